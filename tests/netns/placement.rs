//! Placement of ranks on nodes and processors, and the variables by which their libraries find the
//! network.

use crate::support::Field;

const WHERE: &str = "echo $RANK $(grep Cpus_allowed_list /proc/self/status | cut -f2)";

/// Returns `RANK CPUS` for each rank, as `--show placement` prints them.
fn shown(out: &str) -> Vec<String> {
    let rows = out.lines().skip_while(|line| !line.starts_with("rank ")).skip(1);
    let words = rows.map(|row| row.split_whitespace().collect::<Vec<_>>());
    words.take_while(|words| words.len() > 3).map(|w| format!("{} {}", w[0], w[2])).collect()
}

#[test]
fn ranks_run_where_it_was_said() {
    let field = Field::new();
    for bind in ["numa", "core", "cpulist:0"] {
        let options = format!("-H a:2,b --show placement --bind {bind}");
        let ran = field.rlaunch(&options).sh(WHERE).run();
        let out = ran.succeeded().out().into_owned();
        let shown = shown(&out);
        assert_eq!(shown.len(), 3, "{ran}");
        let mut seen: Vec<String> =
            out.lines().filter(|line| line.split(' ').count() == 2).map(str::to_owned).collect();
        seen.sort();
        assert_eq!(seen, shown, "{bind}: {ran}");
    }
}

#[test]
fn unbound_ranks_may_use_what_their_agent_may() {
    let field = Field::new();
    let allowed = field.on("a", "grep Cpus_allowed_list /proc/self/status");
    let ran = field.rlaunch("-H a --bind none").sh(WHERE).run();
    let allowed = allowed.split_whitespace().last().unwrap();
    assert_eq!(ran.succeeded().out().trim(), format!("0 {allowed}"));
}

#[test]
fn processors_that_are_not_there_are_refused() {
    let field = Field::new();
    let ran = field.rlaunch("-H a --bind cpulist:4000 true").run();
    ran.refused(200, &["a: none of the CPUs 4000 may be used"]);
    field.rlaunch("-H a --bind socket true").run().refused(200, &["cpulist:0-3,8"]);
}

#[test]
fn libraries_are_told_the_interface_of_their_own_host() {
    let field = Field::new();
    let script = "echo $NCCL_SOCKET_IFNAME $GLOO_SOCKET_IFNAME $NCCL_IB_DISABLE";
    let ran = field.rlaunch("-H a,b").sh(script).run();
    assert_eq!(ran.succeeded().sorted(), ["=eth0 eth0 1"; 2], "{ran}");
    // A job on one node needs no network.
    let ran = field.rlaunch("-H a:2").sh("echo ${NCCL_SOCKET_IFNAME-none}").run();
    assert_eq!(ran.succeeded().sorted(), ["none"; 2], "{ran}");
}

#[test]
fn where_the_time_of_a_start_went_is_told_once_ranks_run() {
    let field = Field::new();
    let ran = field.rlaunch("-H a,b --show timing hostname").run();
    assert_eq!(ran.succeeded().sorted(), ["a", "b"], "{ran}");
    let said = ran.said();
    let phases: Vec<&str> = said.iter().filter_map(|line| line.split_whitespace().next()).collect();
    let wanted = ["phase", "login", "agent", "inventory", "rendezvous", "start", "total"];
    let phases: Vec<&str> = phases.into_iter().filter(|one| wanted.contains(one)).collect();
    assert_eq!(phases, wanted, "{ran}");
}

#[test]
fn what_the_user_sets_wins_and_is_marked() {
    let field = Field::new();
    let words = "-H a,b --show env -x OMP_NUM_THREADS=7 -x NCCL_IB_HCA=mlx5_9";
    let ran =
        field.rlaunch(words).sh("echo $OMP_NUM_THREADS $NCCL_IB_HCA ${NCCL_IB_DISABLE-}").run();
    let out = ran.succeeded().out().into_owned();
    assert_eq!(out.lines().filter(|line| line.trim() == "7 mlx5_9").count(), 2, "{ran}");
    for variable in ["OMP_NUM_THREADS=7", "NCCL_IB_HCA=mlx5_9"] {
        let is_marked = |line: &str| line.split_whitespace().eq([variable, "0-1", "(yours)"]);
        assert!(out.lines().any(is_marked), "{ran}");
    }
    let is_number = |line: &str| line.starts_with("RANK ") && line.contains(" 0-1 ");
    assert!(out.lines().any(is_number), "{ran}");
    assert!(out.lines().any(|line| line.starts_with("MASTER_ADDR=")), "{ran}");
    assert!(out.lines().any(|line| line.starts_with("TMPDIR ")), "{ran}");
    assert!(out.contains("of eth0 is how other nodes reach this one"), "{ran}");
    let ran = field.rlaunch("-H a").env("OMP_NUM_THREADS", "5").sh("echo $OMP_NUM_THREADS").run();
    assert_eq!(ran.succeeded().out().trim(), "5");
}
