//! The crate `rlaunch-verbs` on real devices, tested with its example `loopback`.

use crate::support::{Field, Ran, Undo};
use std::time::Duration;

/// Command prefix that finds uses of memory that is uninitialised or freed, and memory that is
/// leaked.
const VALGRIND: &str = "valgrind -q --error-exitcode=9 --leak-check=full \
                        --show-leak-kinds=definite --errors-for-leak-kinds=definite";
/// Time limit with [`VALGRIND`], which makes an emulated computer even slower: loading libraries
/// takes half a minute.
const SUPERVISED: Duration = Duration::from_secs(400);

#[test]
fn two_queue_pairs_of_soft_roce_talk() {
    let field = Field::new();
    for (arguments, wanted) in [
        ("rxe0 1", "rxe0: token and block, MTU 4096"),
        ("rxe1 1 1024", "rxe1: token and block, MTU 1024"),
    ] {
        let ran = field.tries("n1", &format!("/share/loopback {arguments}"));
        assert!(ran.succeeded().out.starts_with(wanted), "{ran}");
    }
    // All queue pairs are destroyed at the end.
    let left = field.on("n1", "rdma resource show qp | grep -c loopback || true");
    assert_eq!(left.trim(), "0");
}

#[test]
fn memory_is_used_as_it_may_be() {
    let field = Field::new();
    let line = format!("{VALGRIND} /share/loopback rxe0 1");
    let ran = Ran::of(field.lab.run_within("n1", &["sh", "-c", &line], SUPERVISED).unwrap());
    assert!(ran.succeeded().out.starts_with("rxe0: token and block"), "{ran}");
}

#[test]
fn what_cannot_work_is_said_with_its_verb() {
    let field = Field::new();
    let said = |line: &str| {
        let ran = field.tries("n1", line);
        assert_eq!(ran.code, Some(1), "{ran}");
        ran
    };
    said("/share/loopback siw0 0").says("the device supports connections by RDMA_CM only");
    said("/share/loopback nosuch 0").says("no device nosuch");
    // Entry 3 of the GID table is empty.
    said("/share/loopback rxe0 3").says("rxe0: ibv_modify_qp to RTR");
    said(
        "ulimit -l 64; setpriv --reuid 65534 --bounding-set -all --inh-caps -all \
          /share/loopback rxe0 1",
    )
    .says("rxe0:");
    let hiding = |what: &str, behind: &str| {
        let line = format!("mount --bind {behind} {what} && exec /share/loopback rxe0 1");
        said(&format!("mkdir -p /run/empty; unshare -m sh -c '{line}'"))
    };
    let libraries = "/usr/lib/x86_64-linux-gnu";
    hiding(&format!("{libraries}/libibverbs"), "/run/empty").says("no provider for rxe0");
    hiding(&format!("{libraries}/libibverbs.so.1"), "/dev/null").says("no rdma-core");
}

/// A device reports by itself that its port went down and came back.
#[test]
fn ports_that_fail_are_told_of() {
    let field = Field::new();
    let watch = "rm -f /run/watched; /share/loopback events rxe1 20 > /run/watched 2>&1 & \
                 timeout 60 sh -c 'until grep -q watching /run/watched; do sleep 0.1; done'";
    field.on("n1", watch);
    let _up = Undo(|| field.lab.set_port("n1", "eth2", true));
    field.lab.set_port("n1", "eth2", false).unwrap();
    field.lab.set_port("n1", "eth2", true).unwrap();
    let over = "timeout 60 sh -c 'until grep -q watched /run/watched; do sleep 0.1; done'; cat /run/watched";
    let said = field.on("n1", over);
    let ports = said.lines().filter(|line| line.starts_with("Port"));
    assert_eq!(ports.collect::<Vec<_>>(), ["PortError(1)", "PortActive(1)"], "{said}");
}

/// The hosts n1 and n2 share the network 192.168.101.0/24, which soft RoCE and Soft-iWARP use.
#[test]
fn two_hosts_are_joined_by_the_connection_manager() {
    let field = Field::new();
    field.on("n1", "ssh n2 'cat > /run/loopback && chmod +x /run/loopback' < /share/loopback");
    let connect = "/run/loopback connect 192.168.101.3 192.168.101.2:2190";
    // The second connection has a class of service.
    for (port, class) in [(0, ""), (1, "106")] {
        listens(&field, &format!("listen 192.168.101.2:2190{port}"));
        let ran = field.tries("n2", &format!("{connect}{port} {class}"));
        let listened = listened(&field);
        assert!(ran.succeeded().out.contains("the block came"), "{ran}\n{listened}");
        assert!(listened.contains("a token came, the block is sent"), "{listened}");
    }
    let ran = field.tries("n2", &format!("{connect}9"));
    assert_eq!(ran.code, Some(1), "{ran}");
    ran.says("rdma_connect: RDMA_CM_EVENT_REJECTED (nothing listens there)");
    listens(&field, "refuse 192.168.101.2:21902");
    for _ in 0..2 {
        let ran = field.tries("n2", &format!("{connect}2"));
        ran.says("rdma_connect: RDMA_CM_EVENT_REJECTED: rejected by the peer's program");
    }
    let listened = listened(&field);
    assert!(listened.contains("two were sent away"), "{listened}");
}

/// Starts a listener on n1, and waits until it listens. What the one before has printed must not pass for its words.
fn listens(field: &Field, words: &str) {
    let line = format!(
        "rm -f /run/listened; /share/loopback {words} > /run/listened 2>&1 & \
         timeout 60 sh -c 'until grep -q listening /run/listened; do sleep 0.1; done'"
    );
    field.on("n1", &line);
}

/// Returns the output of the listener, once it has sent its block or failed.
fn listened(field: &Field) -> String {
    let over = "until grep -qE 'sent|error' /run/listened; do sleep 0.1; done";
    field.on("n1", &format!("timeout 60 sh -c \"{over}\"; cat /run/listened"))
}
