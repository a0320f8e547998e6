//! The communicator over real verbs: the suite of `tests/comm` over soft RoCE, with queue pairs
//! made out of band or by RDMA_CM (over Soft-iWARP: `iwarp.rs`); and failures. Some ranks share a host. Each
//! of three jobs runs a third of the cases, which has every choice; all together have every pair of choices.

use crate::background::{Background, until};
use crate::support::{Field, ORDINARY, PATIENT, Ran, Undo};
use rlaunch_lab::Cut;

// Options for each way to make queue pairs.
const ROCE: &str = "--hca rxe";
const ROCE_BY_MANAGER: &str = "--hca rxe --connect rdma_cm";
/// Option that makes ranks connect when they first communicate, as in jobs of more than 256 ranks.
pub(crate) const LATER: &str = "-x RLAUNCH_EAGER_RANKS=1";

/// Runs a shell line in each rank of a job whose mesh is not proved, which takes an emulated computer
/// longer than most cases; `$suite` is the path of the suite. `hosts` is for `-H`, `ranks` for `-np`.
fn job(field: &Field, (hosts, ranks): (&str, usize), options: &str, line: &str) -> Ran {
    let words = format!(
        "-H {hosts} -np {ranks} {PATIENT} {ORDINARY} --transport rdma --mesh off {options} --preload {} \
         sh -c",
        field.shared("comm-suite")
    );
    let line = format!("suite=\"$RLAUNCH_PRELOAD_DIR\"/comm-suite; {line}");
    field.rlaunch(&words, &[&line])
}

/// Asserts that all cases in `part` of the suite succeed.
pub(crate) fn holds(field: &Field, ranks: (&str, usize), options: &str, part: &str) {
    let ran = job(field, ranks, options, &format!("exec $suite {part}"));
    let said = ran.succeeded().out.trim_end();
    assert!(said.ends_with(&format!("cases hold among {} ranks", ranks.1)), "{ran}");
}

#[test]
fn cases_hold_over_soft_roce() {
    let field = Field::new();
    holds(&field, ("n1:2,n2:2,n3:1", 5), ROCE, "cover 1/3");
    // Enough for the algorithms of long buffers.
    holds(&field, ("n1,n2,n3", 3), ROCE, "long 131073");
}

#[test]
fn cases_hold_among_ranks_that_connect_by_the_connection_manager_when_they_first_speak() {
    let field = Field::new();
    holds(&field, ("n1:2,n2:1,n3:1", 4), &format!("{ROCE_BY_MANAGER} {LATER}"), "cover 2/3");
}

#[test]
fn ranks_fork_while_they_talk() {
    forks(&Field::new(), ROCE);
}

/// Child processes of the ranks keep running and overwrite the memory that they have inherited.
pub(crate) fn forks(field: &Field, options: &str) {
    let ran = job(field, ("n1,n2", 2), options, "exec $suite forks 4");
    let said = ran.succeeded().out.trim_end();
    assert!(said.ends_with("4 forks during messages among 2 ranks"), "{ran}");
}

/// While a rank communicates, its host has one queue pair of the rank for each peer on another
/// host. Afterwards there are none.
#[test]
fn ranks_talk_over_queue_pairs_of_their_own() {
    let field = Field::new();
    let line = "$suite traffic 10 & \
                count() { rdma resource show qp | grep -c 'comm comm-suite'; }; \
                for look in $(seq 40); do \
                    [ $(count) = 2 ] && sleep 0.5 && [ $(count) = 2 ] && echo 2 && break; sleep 0.1; \
                done; wait $!";
    let ran = job(&field, ("n1,n2,n3", 3), ROCE, line);
    let said = &ran.succeeded().out;
    assert_eq!(said.lines().filter(|line| *line == "2").count(), 3, "{ran}");
    assert!(said.contains("rounds of messages among 3 ranks\n"), "{ran}");
    for guest in ["n1", "n2", "n3"] {
        assert!(!field.on(guest, "rdma resource show qp").contains("comm-suite"), "{guest}");
    }
}

#[test]
fn queue_pairs_are_made_when_ranks_first_speak() {
    speak_later(&Field::new(), ROCE);
}

/// Two of three ranks communicate, and have a queue pair. The third has none.
pub(crate) fn speak_later(field: &Field, options: &str) {
    // With --mesh off there are no queue pairs of provers.
    let line = "rlaunch barrier spoken; rdma resource show qp | grep -c 'type RC'; \
                rlaunch barrier counted";
    let options = format!("{options} {LATER}");
    let ran = job(field, ("n1,n2,n3", 3), &options, &format!("exec $suite pair \"{line}\""));
    let mut said: Vec<&str> = ran.succeeded().out.lines().collect();
    said.sort_unstable();
    assert_eq!(said, ["0", "1", "1", "2 ranks have spoken"], "{ran}");
}

#[test]
fn a_rank_that_is_killed_is_named_by_all_the_others() {
    is_killed(&Field::new(), ROCE);
}

/// A queue pair does not show that its peer was killed; the agents report it.
pub(crate) fn is_killed(field: &Field, options: &str) {
    let options = format!("{options} --kill-after 10");
    let line = "trap '' TERM; exec $suite lose 1 KILL 1";
    let ran = job(field, ("n1,n2,n3", 3), &options, line);
    assert_eq!(ran.code, Some(137), "{ran}");
    ran.says("error: all_reduce: rank 1 on n2 is lost: it was killed by signal 9");
    ran.says("error: rank 1 on n2 (pid ").says("was killed by signal 9 (SIGKILL)");
}

#[test]
fn a_rank_that_ends_without_a_goodbye_is_missed() {
    leaves(&Field::new(), ROCE);
}

/// Rank 1 ends with exit code 0 and without closing its connections, so no agent reports a failure.
pub(crate) fn leaves(field: &Field, options: &str) {
    // A device waits for an answer of the peer five times, half a second each.
    let options = format!("{options} --rdma-timeout 17");
    let ran = job(field, ("n1,n2", 2), &options, "exec $suite lose 1 LEAVE 1");
    assert_eq!(ran.code, Some(1), "{ran}");
    ran.says("error: all_reduce: rank 1 on n2 is lost: ");
}

/// With --no-watch, ranks must notice a dead link by themselves.
#[test]
fn both_ends_of_a_dead_link_name_each_other() {
    let field = Field::new();
    let _heal = Undo(|| field.lab.heal("n1", "eth1"));
    let program = r#"sh -c "trap \"\" TERM; exec \$RLAUNCH_PRELOAD_DIR/comm-suite traffic 60""#;
    let options = format!("{PATIENT} --kill-after 20 --no-watch --transport rdma {ROCE}");
    let suite = field.shared("comm-suite");
    let words = format!("-H n1,n2 {options} --preload {suite} {program}");
    let job = Background::start(&field, &words);
    let talks = || field.tries("n1", "rdma resource show qp | grep -c comm-suite").code == Some(0);
    until(talks, || format!("they do not talk:\n{}", job.said()));
    field.lab.cut("n1", "eth1", Cut::Silent).unwrap();
    // One rank notices first. The other rank may learn that the first one has ended before its own
    // retries are exhausted.
    job.says("is lost: rxe0: transport retry counter exceeded (status 12)");
    job.says("rank 1 on n2 is lost: ");
    job.says("rank 0 on n1 is lost: ");
    assert_eq!(job.ends(), 1, "{}", job.said());
}

/// The ranks run as root, but without the capability that lifts the limit on locked memory.
#[test]
fn too_little_locked_memory_is_said_and_nobody_hangs() {
    let field = Field::new();
    let line = "ulimit -l 64; exec setpriv --bounding-set=-ipc_lock --inh-caps=-ipc_lock \
                $suite cover";
    let ran = job(&field, ("n1,n2", 2), "--hca rxe", line);
    assert_eq!(ran.code, Some(1), "{ran}");
    let line = ran.line_with("no RDMA by rxe0/1");
    for part in ["rank ", "memory may not be locked", "the limit is 64 KiB"] {
        assert!(line.contains(part), "{part}: {ran}");
    }
    ran.says("hint: raise the limit on locked memory (ulimit -l)");
    ran.says("--transport tcp does without");
}
