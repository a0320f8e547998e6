//! Links, limits and libraries that prevent RDMA: the messages about them, and what is used
//! instead.

use crate::support::{ALL, Field, PATIENT, Ran, Undo, list};
use rlaunch_lab::{Cut, LabError};
use serde_json::Value;

/// Runs a job on all guests.
fn job(field: &Field, options: &str) -> Ran {
    field.rlaunch(&format!("-H {ALL} {PATIENT} {options} hostname"), &[])
}

/// Asserts that all ranks have run.
fn assert_ran(ran: &Ran) -> &Ran {
    assert_eq!(ran.succeeded().sorted(), ["n1", "n2", "n3"], "{ran}");
    ran
}

/// Returns the pairs of NICs that the rank table lists as exceptions.
fn exceptions(ran: &Ran) -> Vec<Value> {
    let table: Value = serde_json::from_str(&ran.succeeded().out).unwrap();
    list(&table["exceptions"]).to_vec()
}

/// Beginning of the message about the cable that connects n1 and n2.
const N1_N2: &str = "no RDMA between n1 rxe0/1 GID 1 192.168.101.2 and n2 rxe0/1 GID 1 \
                     192.168.101.3 (ranks 0 and 1): ";

/// Three hosts in a line are left: each has RDMA only to its neighbours.
#[test]
fn a_pulled_cable_leaves_two_others() {
    let field = Field::new();
    let _heal = Undo(|| field.lab.heal("n1", "eth1"));
    field.lab.cut("n1", "eth1", Cut::Carrier).unwrap();
    let line = "no RDMA between n1 and n2: n1 has rxe1/1 192.168.100.2/24 (eth2), \
                siw1/1 192.168.100.2/24 (eth2) RDMA_CM; n2 has rxe1/1 192.168.102.2/24 (eth2), \
                siw1/1 192.168.102.2/24 (eth2) RDMA_CM";
    let ran = field.rlaunch(&format!("-H {ALL} {PATIENT} --show mesh true"), &[]);
    ran.succeeded().says("mesh: 4/4 paths up, RoCE v2, 2 subnets, tested in ");
    ran.says(&format!("{line}: TCP is used"));
    let ways: Vec<Vec<&str>> = ran.rows().iter().map(|row| row[..3].to_vec()).collect();
    let [near, far] = ["RoCE v2 oob", "TCP"];
    assert_eq!(ways, [["0-1", "n1-n2", far], ["0-2", "n1-n3", near], ["1-2", "n2-n3", near]]);
    job(&field, "--transport rdma").refused().says(line);
}

/// The ports are active, but no packet arrives.
#[test]
fn a_dead_link_is_found_out() {
    let field = Field::new();
    let _heal = Undo(|| field.lab.heal("n1", "eth1"));
    field.lab.cut("n1", "eth1", Cut::Silent).unwrap();
    let words = format!("-H {ALL} {PATIENT} --hca rxe --show rank-table=json true");
    let ran = field.rlaunch(&words, &[]);
    ran.succeeded().says("mesh: 4/6 paths up, RoCE v2, 2 subnets, tested in ");
    let line = ran.line_with(N1_N2);
    assert!(line.ends_with(": TCP is used"), "{line}");
    // With the neighbour's hardware address still in the cache the token fails, otherwise the
    // connection.
    assert!([": token: n", ": connect: n"].iter().any(|step| line.contains(step)), "{line}");
    let exceptions = exceptions(&ran);
    assert_eq!(exceptions.len(), 1, "{ran}");
    let nodes = (&exceptions[0]["a"]["node"], &exceptions[0]["b"]["node"]);
    assert_eq!((nodes.0.as_u64(), nodes.1.as_u64()), (Some(0), Some(1)), "{ran}");
    assert_eq!(exceptions[0]["reach"], false, "{ran}");

    let ran = job(&field, "--hca rxe --transport rdma");
    ran.refused().says("mesh: 4/6 paths up").says(N1_N2.trim_end_matches(": "));
    ran.says("hint: --transport auto uses TCP where RDMA does not work");
}

/// The interfaces have an MTU of 4200 bytes, but a firewall between them drops large packets.
#[test]
fn large_packets_that_get_lost_are_made_smaller() {
    let field = Field::new();
    let rule = "INPUT -i eth1 -p udp --dport 4791 -m length --length 1600:65535 -j DROP";
    let _open = Undo(|| field.restore("n2", &format!("iptables -D {rule}")));
    field.on("n2", &format!("iptables -I {rule}"));
    let words = format!("-H {ALL} {PATIENT} --hca rxe --transport rdma");
    let ran = field.rlaunch(&format!("{words} --show mesh true"), &[]);
    ran.succeeded().says("mesh: 6/6 paths up, RoCE v2, 3 subnets, tested in ");
    let line = ran.line_with("only small packets pass between n1 rxe0/1 ");
    assert!(line.contains(" (ranks 0 and 1): block: n"), "{line}");
    assert!(line.ends_with(": MTU 1024 works and is used"), "{line}");
    ran.says("hint: something between them drops packets of 4096 B");
    ran.says("set the interfaces (n1 eth1, n2 eth1) to MTU 1500");
    let mtus: Vec<&str> = ran.rows().iter().map(|row| row[5]).collect();
    assert_eq!(mtus, ["1024", "4096", "4096"], "{ran}");
    let ran = field.rlaunch(&format!("{words} --show rank-table=json true"), &[]);
    let exceptions = exceptions(&ran);
    assert_eq!(exceptions.len(), 1, "{ran}");
    assert_eq!((&exceptions[0]["reach"], &exceptions[0]["mtu"]), (&true.into(), &1024.into()));
}

/// The directory with libibverbs' drivers is hidden on one guest.
#[test]
fn a_host_without_its_provider_is_named() {
    let field = Field::new();
    let directory = "/usr/lib/x86_64-linux-gnu/libibverbs";
    let _back = Undo(|| field.restore("n2", &format!("umount {directory}")));
    field.on("n2", &format!("mkdir -p /run/empty; mount --bind /run/empty {directory}"));
    let ran = job(&field, "--hca rxe");
    assert_ran(&ran).says("mesh: 2/6 paths up, RoCE v2, 1 subnet, tested in ");
    ran.says(": prepare: n2: no provider for rxe0: TCP is used");
    ran.says(": prepare: n2: no provider for rxe1: TCP is used");
    ran.says("hint: install ibverbs-providers");
}

/// Adds the ordinary user alice, who may lock little memory, to `guests` until the guard is dropped. The
/// keys of root open the account.
fn account<'a>(field: &'a Field, guests: &'a [&str]) -> Undo<impl FnMut() -> Result<(), LabError>> {
    let gone = Undo(move || {
        guests.iter().try_for_each(|guest| field.restore(guest, "userdel -rf alice 2>&1"))
    });
    let line = "useradd -m -s /bin/bash -p '*' alice && install -d -m 700 -o alice ~alice/.ssh && \
                install -m 600 -o alice ~/.ssh/authorized_keys ~alice/.ssh && \
                echo 'ulimit -l 64' > ~alice/.bashrc";
    for guest in guests {
        field.on(guest, line);
    }
    gone
}

/// Options of a job of alice, with a working directory that she may enter: rlaunch is started in
/// root's home.
const ALICE: &str = "-H alice@n1,alice@n2 --wdir / --hca rxe";

#[test]
fn what_an_ordinary_user_may_not_do_is_said() {
    let field = Field::new();
    let _gone = account(&field, &["n1", "n2"]);
    let words = format!("{ALICE} {PATIENT} sh -c");
    let ran = field.rlaunch(&words, &["whoami; ulimit -l"]);
    assert_eq!(ran.succeeded().sorted(), ["64", "64", "alice", "alice"], "{ran}");
    let line = ran.line_with("no RDMA between n1 rxe0/1 ");
    for part in [": prepare: ", "memory may not be locked", " KiB are needed, the limit is 64 KiB"]
    {
        assert!(line.contains(part), "{part}: {ran}");
    }
    assert!(line.ends_with(": TCP is used"), "{line}");
    ran.says("hint: raise the limit on locked memory (ulimit -l)");

    let files = "/dev/infiniband/uverbs*";
    let _open = Undo(|| field.restore("n2", &format!("chmod 666 {files}")));
    field.on("n2", &format!("chmod 600 {files}"));
    let ran = field.rlaunch(&format!("{ALICE} {PATIENT} hostname"), &[]);
    assert_eq!(ran.succeeded().sorted(), ["n1", "n2"], "{ran}");
    let line = ran.line_with("no RDMA on alice@n2: rxe0/1: /dev/infiniband/uverbs");
    assert!(line.contains(": permission denied, ") && line.ends_with(": TCP is used"), "{line}");
}
