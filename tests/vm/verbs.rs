//! The verbs room on real devices, by its example `loopback`.

use crate::support::Field;

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
    // What was made is given back.
    let left = field.on("n1", "rdma resource show qp | grep -c loopback || true");
    assert_eq!(left.trim(), "0");
}

#[test]
fn what_cannot_work_is_said_with_its_verb() {
    let field = Field::new();
    let said = |line: &str| {
        let ran = field.tries("n1", line);
        assert_eq!(ran.code, Some(1), "{ran}");
        ran
    };
    said("/share/loopback siw0 0").says("the device takes RDMA_CM only");
    said("/share/loopback nosuch 0").says("no device nosuch");
    // The third entry of the table is empty.
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

/// n1 and n2 share the network 192.168.101.0/24, soft RoCE and Soft-iWARP are both on it.
#[test]
fn two_hosts_are_joined_by_the_connection_manager() {
    let field = Field::new();
    field.on("n1", "ssh n2 'cat > /run/loopback && chmod +x /run/loopback' < /share/loopback");
    let listener = "/share/loopback listen 192.168.101.2:21900 > /run/listened 2>&1 & \
                    timeout 10 sh -c 'until grep -q listening /run/listened; do :; done'";
    field.on("n1", listener);
    let ran = field.tries("n2", "/run/loopback connect 192.168.101.3 192.168.101.2:21900");
    let listened = field.on("n1", "wait; cat /run/listened");
    assert!(ran.succeeded().out.contains("the block came"), "{ran}\n{listened}");
    assert!(listened.contains("a token came, the block is sent"), "{listened}");
    let ran = field.tries("n2", "/run/loopback connect 192.168.101.3 192.168.101.2:21901");
    assert_eq!(ran.code, Some(1), "{ran}");
    ran.says("rdma_connect");
}
