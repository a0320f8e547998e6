//! The mesh of queue pairs, proved before ranks start: cases that work, and how they are shown.

use crate::support::{ALL, Field, PATIENT, Ran, Undo, list};
use serde_json::Value;
use std::net::IpAddr;

/// Guests that share one cable.
const PAIR: &str = "n1,n2";

/// Runs a job with `--show mesh` on these hosts.
fn shown(field: &Field, hosts: &str, options: &str) -> Ran {
    field.rlaunch(&format!("-H {hosts} {PATIENT} {options} --show mesh true"), &[])
}

/// Returns the pairs of nodes of a job on these hosts, from `--show mesh=json`.
fn pairs(field: &Field, hosts: &str, options: &str) -> Vec<Value> {
    let words = format!("-H {hosts} {PATIENT} {options} --show mesh=json true");
    let ran = field.rlaunch(&words, &[]);
    let shown: Value = serde_json::from_str(&ran.succeeded().out).unwrap();
    list(&shown).to_vec()
}

fn address(text: &str) -> IpAddr {
    text.parse().unwrap()
}

/// Asserts that `cell` is a round trip like `412 us`.
fn assert_is_time(cell: &str) {
    let micros = cell.strip_suffix(" us").and_then(|micros| micros.parse::<u64>().ok());
    assert!(micros.is_some_and(|micros| micros > 0), "{cell}");
}

/// While the job runs, the watch keeps a queue pair for each pair of nodes.
#[test]
fn six_paths_of_soft_roce_are_proved_and_nothing_of_the_mesh_is_left() {
    let field = Field::new();
    let words = format!("-H {ALL} {PATIENT} --hca rxe --transport rdma --show mesh sh -c");
    let ran = field.rlaunch(&words, &["rdma resource show qp | grep -c rlaunch-prover"]);
    ran.succeeded().says("rlaunch: mesh: 6/6 paths up, RoCE v2, 3 subnets, tested in ");
    ran.does_not_say("warning");
    let (watched, mut rows): (Vec<_>, Vec<_>) =
        ran.rows().into_iter().partition(|row| row.len() == 1);
    assert_eq!(watched, [["2"]; 3], "{ran}");
    rows.iter_mut().for_each(|row| assert_is_time(row.pop().unwrap()));
    let of = |ranks, hosts, from, to| vec![ranks, hosts, "RoCE v2 oob", from, to, "4096"];
    let wanted = [
        of("0-1", "n1-n2", "rxe0/1 GID 1 192.168.101.2", "rxe0/1 GID 1 192.168.101.3"),
        of("0-2", "n1-n3", "rxe1/1 GID 1 192.168.100.2", "rxe0/1 GID 1 192.168.100.3"),
        of("1-2", "n2-n3", "rxe1/1 GID 1 192.168.102.2", "rxe1/1 GID 1 192.168.102.3"),
    ];
    assert_eq!(rows, wanted, "{ran}");
    for guest in ALL.split(',') {
        let left = field.on(guest, "rdma resource show qp; ps -e -o args");
        assert!(!left.contains("rlaunch-prover"), "{guest}: {left}");
    }
}

#[test]
fn programs_see_that_pairs_are_proved() {
    let field = Field::new();
    let pairs = pairs(&field, PAIR, "--hca rxe");
    assert_eq!(pairs.len(), 1, "{pairs:?}");
    for pair in &pairs {
        assert_eq!(pair["connect"], "rdma", "{pair}");
        assert_eq!(pair["proved"], true, "{pair}");
        assert!(pair["round_trip_us"].as_f64().is_some_and(|time| time > 0.0), "{pair}");
        assert_eq!(list(&pair["failed"]), &[] as &[Value], "{pair}");
    }
}

/// Without options, so with all ports and the default time limits.
#[test]
fn the_mesh_is_proved_without_being_asked_for() {
    let field = Field::new();
    let ran = field.rlaunch(&format!("-H {ALL} hostname"), &[]);
    assert_eq!(ran.succeeded().sorted(), ["n1", "n2", "n3"], "{ran}");
    ran.says("rlaunch: mesh: ").says(" paths up, ").says(", tested in ");
}

#[test]
fn nothing_is_proved_where_tcp_is_wanted() {
    let field = Field::new();
    let ran = shown(&field, PAIR, "--transport tcp");
    assert!(ran.succeeded().out.lines().skip(1).all(|line| line.contains("TCP")), "{ran}");
    ran.does_not_say("mesh: ");
}

#[test]
fn soft_roce_is_proved_by_the_connection_manager_too() {
    let field = Field::new();
    let ran = shown(&field, PAIR, "--connect rdma_cm --transport rdma");
    ran.succeeded().says("mesh: 2/2 paths up, RoCE v2 by RDMA_CM, 1 subnet, tested in ");
    for row in ran.rows() {
        assert_eq!(row[2], "RoCE v2 rdma_cm", "{ran}");
        assert_is_time(row.last().unwrap());
    }
}

#[test]
fn the_smaller_mtu_of_two_ends_is_used() {
    let field = Field::new();
    let _back = Undo(|| field.lab.set_mtu("n2", "eth1", 4200));
    field.lab.set_mtu("n2", "eth1", 1500).unwrap();
    // On three, to see that other pairs keep theirs.
    let ran = shown(&field, ALL, "--hca rxe --transport rdma");
    ran.succeeded().says("mesh: 6/6 paths up").says("warning[mtu.mismatch]: n2 rxe0/1: RDMA");
    let rows = ran.rows();
    let mtus: Vec<&str> = rows.iter().map(|row| row[5]).collect();
    assert_eq!(mtus, ["1024", "4096", "4096"], "{ran}");
}

/// The port keeps only its second address, so the first entry for IPv4 in its GID table is empty.
#[test]
fn gaps_in_a_gid_table_are_stepped_over() {
    let field = Field::new();
    let [old, new] = ["192.168.101.2", "192.168.101.50"].map(address);
    let promote = "/proc/sys/net/ipv4/conf/eth1/promote_secondaries";
    let before = field.on("n1", &format!("cat {promote}"));
    // In this order, the old address gets its entry back.
    let _back = Undo(|| {
        let line = format!(
            "ip address replace {old}/24 dev eth1; echo 1 > {promote}; \
             ip address del {new}/24 dev eth1; echo {} > {promote}",
            before.trim()
        );
        field.restore("n1", &line)?;
        field.await_gid("n1", ("rxe0", 1), Some(old))
    });
    field.on("n1", &format!("echo 1 > {promote}; ip address add {new}/24 dev eth1"));
    field.await_gid("n1", ("rxe0", 2), Some(new)).unwrap();
    field.on("n1", &format!("ip address del {old}/24 dev eth1"));
    field.await_gid("n1", ("rxe0", 1), None).unwrap();
    let ran = shown(&field, PAIR, "--hca rxe --transport rdma");
    ran.succeeded().says("mesh: 2/2 paths up");
    let ends = ["rxe0/1 GID 2 192.168.101.50", "rxe0/1 GID 1 192.168.101.3"];
    assert_eq!(ran.rows()[0][3..5], ends, "{ran}");
}

#[test]
fn hosts_with_ipv6_alone_are_joined() {
    let field = Field::new();
    let ends = [("n1", "192.168.101.2", "fd00:101::2"), ("n2", "192.168.101.3", "fd00:101::3")];
    let ends = ends.map(|(guest, old, new)| (guest, address(old), address(new)));
    // In this order, the old addresses get their entries back.
    let _back = Undo(|| {
        ends.into_iter().try_for_each(|(guest, old, new)| {
            field.restore(guest, &format!("ip address replace {old}/24 dev eth1"))?;
            field.await_gid(guest, ("rxe0", 1), Some(old))?;
            field.restore(guest, &format!("ip address del {new}/64 dev eth1"))
        })
    });
    for (guest, old, new) in ends {
        field.on(guest, &format!("ip address add {new}/64 dev eth1 nodad"));
        field.await_gid(guest, ("rxe0", 2), Some(new)).unwrap();
        field.on(guest, &format!("ip address del {old}/24 dev eth1"));
        field.await_gid(guest, ("rxe0", 1), None).unwrap();
    }
    let ran = shown(&field, "n1,n2", "--hca rxe0 --transport rdma");
    ran.succeeded().says("mesh: 2/2 paths up, RoCE v2, 1 subnet, tested in ");
    let ends = ["rxe0/1 GID 2 fd00:101::2", "rxe0/1 GID 2 fd00:101::3"];
    assert_eq!(ran.rows()[0][3..5], ends, "{ran}");
}

#[test]
fn packets_are_marked_as_asked() {
    let field = Field::new();
    let rule = "INPUT -i eth1 -p udp --dport 4791 -m tos --tos 104/0xfc";
    let _gone = Undo(|| field.restore("n2", &format!("iptables -D {rule}")));
    field.on("n2", &format!("iptables -I {rule}"));
    let counted = || {
        let line = "iptables -nvxL INPUT | grep 4791";
        let counters = field.on("n2", line);
        counters.split_whitespace().next().unwrap().parse::<u64>().unwrap()
    };
    let words = format!("-H n1,n2 {PATIENT} --hca rxe --transport rdma --no-watch");
    let ran = field.rlaunch(&format!("{words} sh -c"), &["echo ${NCCL_IB_TC-unset}"]);
    assert_eq!(ran.succeeded().sorted(), ["unset"; 2], "{ran}");
    assert_eq!(counted(), 0, "none is marked");
    let words = format!("{words} --traffic-class 104");
    let ran = field.rlaunch(&format!("{words} sh -c"), &["echo ${NCCL_IB_TC-unset}"]);
    assert_eq!(ran.succeeded().sorted(), ["104"; 2], "{ran}");
    // The token, the echo and a block of 64 KiB.
    let of_mesh = counted();
    assert!(of_mesh >= 16, "{of_mesh}");
    // Messages between ranks are marked as well.
    let suite = field.shared("comm-suite");
    let words = format!("{words} --mesh off --preload {suite} sh -c");
    field.rlaunch(&words, &["exec $RLAUNCH_PRELOAD_DIR/comm-suite stream 1"]).succeeded();
    assert!(counted() >= of_mesh + 256, "{of_mesh} and {}", counted());
}

/// One port carries a queue pair from each of 8 local ranks to each of 16 remote ranks. Each queue
/// pair takes little memory.
#[test]
fn every_pair_of_24_ranks_is_proved_in_one_subnet() {
    let field = Field::new();
    // The ordinary network is that of a switch, and has no RDMA otherwise.
    let _gone =
        Undo(|| ALL.split(',').try_for_each(|guest| field.restore(guest, "rdma link delete rxe9")));
    for (guest, address) in ALL.split(',').zip(["10.77.0.1", "10.77.0.2", "10.77.0.3"]) {
        field.on(guest, "rdma link add rxe9 type rxe netdev eth0");
        field.await_gid(guest, ("rxe9", 1), address.parse().ok()).unwrap();
    }
    let patient = PATIENT.replace("40", "80");
    let words = format!("-v -H n1:8,n2:8,n3:8 -np 24 {patient} --hca rxe9 --mesh full");
    let prove = || field.rlaunch(&format!("{words} --transport rdma true"), &[]);
    let cost_of = |guest| format!("mesh: {guest}: 128 queue pairs, ");
    // Where this machine has other work, packets are lost, and pairs are proved again by queue pairs of their own.
    let is_once = |ran: &Ran| ALL.split(',').all(|guest| ran.err.contains(&cost_of(guest)));
    let ran = (0..3).map(|_| prove()).find(is_once).expect("pairs are proved again each time");
    ran.succeeded().says("mesh: 384/384 paths up, RoCE v2, 1 subnet, tested in ");
    for guest in ALL.split(',') {
        let begin = cost_of(guest);
        let cost = ran.line_with(&begin).split_once(&begin).unwrap().1;
        let bytes = cost.split_once(" and ").unwrap().1.split_once(" B each").unwrap().0;
        assert!(bytes.parse::<u64>().unwrap() <= 16 << 10, "{cost}");
    }
}
