//! Connecting of agents: over any addresses that carry a connection in both directions, and through
//! the launcher where there are none.

use crate::running::Outcome;
use crate::support::{Field, Undo};
use std::time::Duration;

/// The launcher's default range of ports.
const PORTS: &str = "21000-21511";
/// Nodes of these tests.
const HOSTS: [&str; 3] = ["a", "b", "c"];

/// Returns the address of `host` in the network that every lab has.
fn first_network(field: &Field, host: &str) -> String {
    let line = "ip -4 -o addr show dev eth0 primary scope global | head -1";
    let text = field.on(host, line);
    let address = text.split_whitespace().nth(3).unwrap().split('/').next().unwrap();
    address.to_owned()
}

/// Runs `line` on every host when the guard is dropped.
fn undo<'a>(field: &'a Field, hosts: &'a [&'a str], line: &'a str) -> impl Drop + 'a {
    Undo(move || {
        for host in hosts {
            field.on(host, line);
        }
        Ok::<(), String>(())
    })
}

/// Adds a second network until the guard is dropped: 10.77.0.2 is a, 10.77.0.3 is b, 10.77.0.4 is
/// c.
fn second_network(field: &Field) -> impl Drop + '_ {
    for (host, number) in HOSTS.iter().zip(2..) {
        field.on(host, &format!("ip addr add 10.77.0.{number}/24 dev eth0"));
    }
    Undo(move || {
        for (host, number) in HOSTS.iter().zip(2..) {
            field.on(host, &format!("ip addr del 10.77.0.{number}/24 dev eth0"));
        }
        Ok::<(), String>(())
    })
}

/// Adds a firewall on `host` until the guard is dropped. `rule` is for incoming packets, or with
/// `hook` `output` for outgoing ones.
fn firewall<'a>(field: &'a Field, host: &'a str, hook: &str, rule: &str) -> impl Drop + 'a {
    let chain = format!("{{ type filter hook {hook} priority 0; }}");
    field.on(host, &format!(
        "nft add table inet t && nft add chain inet t c '{chain}' && nft add rule inet t c {rule}"
    ));
    Undo(move || {
        field.on(host, "nft delete table inet t");
        Ok::<(), String>(())
    })
}

/// Makes a job with a barrier, after which its ranks print the address of rank 0.
fn meet<'a>(field: &'a Field, options: &str) -> crate::support::Run<'a> {
    field
        .rlaunch(&format!("{options} -H a,b,c"))
        .sh("rlaunch barrier x && echo at $MASTER_ADDR")
        .within(Duration::from_secs(60))
}

/// Asserts that all ranks passed the barrier and know rank 0 by `address`.
fn met_at(ran: &Outcome, address: &str) {
    let line = format!("at {address}");
    assert_eq!(ran.succeeded().sorted(), [&*line; 3], "{ran}");
    ran.took_less_than(15);
}

#[test]
fn where_nothing_is_in_the_way_nothing_is_said() {
    let field = Field::new();
    let ran = meet(&field, "").run();
    met_at(&ran, &first_network(&field, "a"));
    ran.keeps_quiet_about(&["cannot reach", "through this machine", "connect over"]);
}

#[test]
fn a_filtered_network_is_left_for_another() {
    let field = Field::new();
    let _second = second_network(&field);
    let a = first_network(&field, "a");
    for verdict in ["drop", "reject with tcp reset", "reject with icmpx type port-unreachable"] {
        let rule = format!("ip daddr {a} tcp dport {PORTS} {verdict}");
        let _firewall = firewall(&field, "a", "input", &rule);
        let ran = meet(&field, "").run();
        met_at(&ran, "10.77.0.2");
        let how = if verdict == "drop" { "no answer" } else { "refused" };
        ran.says(&["b and a connect over 10.77.0.2 and 10.77.0.3: b cannot reach a at", how]);
    }
}

#[test]
fn a_network_that_is_open_in_one_direction_is_left_too() {
    let field = Field::new();
    let _second = second_network(&field);
    let b = first_network(&field, "b");
    for verdict in ["drop", "reject with tcp reset"] {
        let rule = format!("ip daddr {b} tcp dport {PORTS} tcp flags syn / syn,ack {verdict}");
        let _firewall = firewall(&field, "b", "input", &rule);
        let ran = meet(&field, "").run();
        ran.succeeded().took_less_than(15);
        ran.says(&["b and a connect over 10.77.0.2 and 10.77.0.3: a cannot reach b at"]);
        ran.keeps_quiet_about(&["c and a meet"]);
    }
}

#[test]
fn where_no_network_is_open_the_launcher_carries() {
    let field = Field::new();
    let a = first_network(&field, "a");
    let b = first_network(&field, "b");
    for verdict in ["drop", "reject with tcp reset"] {
        let rule = format!("ip saddr {b} tcp dport {PORTS} {verdict}");
        let _firewall = firewall(&field, "a", "input", &rule);
        let ran = meet(&field, "").run();
        met_at(&ran, &a);
        ran.says(&["b cannot reach a at", "their messages go through this machine"]);
        ran.keeps_quiet_about(&["c cannot reach a"]);
        ran.hints(&format!("nft insert rule inet filter input ip saddr {b} tcp dport"));
        assert_eq!(ran.err().matches("through this machine").count(), 1, "{ran}");
    }
}

/// A packet passes every chain at its hook, so accepting it in one that drops nothing is no help.
#[test]
fn the_rule_of_the_hint_opens_the_host_whichever_chain_drops() {
    let field = Field::new();
    let b = first_network(&field, "b");
    let _open = Undo(|| {
        field.on(
            "a",
            "nft delete table inet filter; iptables -F INPUT; nft delete table ip filter; :",
        );
        Ok::<(), String>(())
    });
    field.on(
        "a",
        &format!(
            "nft add table inet filter && nft add chain inet filter input \
         '{{ type filter hook input priority 0; policy accept; }}' && \
         iptables -A INPUT -s {b} -p tcp --dport 21000:21511 -j DROP"
        ),
    );
    let ran = meet(&field, "").run();
    met_at(&ran, &first_network(&field, "a"));
    let said = ran.err();
    let rule = said.split_once("on a, let b in: ").and_then(|(_, hint)| hint.split_once(" (or"));
    let (rule, _) = rule.unwrap_or_else(|| panic!("no rule in\n{ran}"));
    // The next job may take another port of the range.
    let port = rule.split_once("dport ").and_then(|(_, rest)| rest.split(' ').next()).unwrap();
    let of_range = rule.replace(&format!("{port} accept"), "21000-21511 accept");
    field.on("a", &of_range.replace(&format!("{port} -j"), "21000:21511 -j"));
    meet(&field, "").run().succeeded().keeps_quiet_about(&["cannot reach"]);
}

#[test]
fn where_nobody_reaches_anybody_the_job_runs_all_the_same() {
    let field = Field::new();
    let rule = format!("tcp dport {PORTS} drop");
    let _firewalls: Vec<_> =
        HOSTS.iter().map(|host| firewall(&field, host, "input", &rule)).collect();
    let script = "rlaunch kv put from-$RANK $RANK; for r in 0 1 2; do rlaunch kv wait from-$r; \
                  done; head -c 60000 /dev/zero | rlaunch kv put big-$RANK -; \
                  rlaunch kv wait big-$(( (RANK + 1) % 3 )) | wc -c";
    let ran = field.rlaunch("-H a,b,c").sh(script).within(Duration::from_secs(60)).run();
    let expected = ["0", "0", "0", "1", "1", "1", "2", "2", "2", "60001", "60001", "60001"];
    assert_eq!(ran.succeeded().sorted(), expected, "{ran}");
    assert_eq!(ran.err().matches("through this machine").count(), 2, "{ran}");
    ran.took_less_than(15);
}

#[test]
fn hosts_of_ipv6_alone() {
    let field = Field::new();
    for (host, number) in HOSTS.iter().zip(2..) {
        field.on(host, &format!("ip addr add fd00:77::{number}/64 dev eth0 nodad"));
    }
    let _undo = undo(&field, &HOSTS, "ip -6 addr flush dev eth0 scope global");
    met_at(&meet(&field, "--oob-net fd00:77::/64").run(), "fd00:77::2");
}

#[test]
fn bridges_with_one_address_everywhere_are_no_way() {
    let field = Field::new();
    for host in HOSTS {
        for (name, address) in [("docker0", "172.17.0.1/16"), ("virbr0", "192.168.122.1/24")] {
            field.on(
                host,
                &format!(
                    "ip link add {name} type bridge && ip addr add {address} dev {name} && \
                 ip link set {name} up"
                ),
            );
        }
    }
    let _undo = undo(&field, &HOSTS, "ip link del docker0; ip link del virbr0");
    let ran = meet(&field, "").run();
    met_at(&ran, &first_network(&field, "a"));
    ran.keeps_quiet_about(&["cannot reach", "172.17", "192.168.122"]);
}

#[test]
fn a_name_that_means_loopback_misleads_nobody() {
    let field = Field::new();
    let line = "sed \"1i 127.0.1.1 $(hostname)\" /etc/hosts > /tmp/hosts && \
                mount --bind /tmp/hosts /etc/hosts && grep -q 127.0.1.1 /etc/hosts";
    for host in HOSTS {
        field.on(host, line);
    }
    let _undo = undo(&field, &HOSTS, "umount /etc/hosts; rm /tmp/hosts");
    met_at(&meet(&field, "").run(), &first_network(&field, "a"));
}

#[test]
fn a_path_of_small_packets_carries_large_messages() {
    let field = Field::new();
    for host in ["b", "c"] {
        field.on(host, "ip link set eth0 mtu 1400");
    }
    let _undo = undo(&field, &["b", "c"], "ip link set eth0 mtu 1500");
    let script = "head -c 65000 /dev/zero | rlaunch kv put k$RANK - && \
                  rlaunch kv wait k$(( (RANK + 1) % 3 )) | wc -c";
    let ran = field.rlaunch("-H a,b,c").sh(script).run();
    assert_eq!(ran.succeeded().sorted(), ["65001"; 3], "{ran}");
}

/// `nccl#1524`: an MTU of 9000, and a switch between that carries 1500.
#[test]
fn a_path_that_loses_full_packets_is_found() {
    let field = Field::new();
    let rule = format!("tcp dport {PORTS} meta length gt 1400 drop");
    let _switch = firewall(&field, "b", "input", &rule);
    let ran = field.rlaunch("doctor -H a,b --only net.pair").run();
    assert!(ran.out().contains("short messages arrive, and no full packets"), "{ran}");
}

#[test]
fn the_user_chooses_the_network() {
    let field = Field::new();
    let _second = second_network(&field);
    met_at(&meet(&field, "--oob-net 10.77.0.0/24").run(), "10.77.0.2");
    met_at(&meet(&field, "--oob-if eth0 --oob-net 10.77.0.0/24").run(), "10.77.0.2");
    let ran = meet(&field, "--oob-if eth9").run();
    ran.refused(204, &["a has no address for --oob-if eth9", "eth0 10.77.0.2/24"]);
    meet(&field, "--oob-net 10.77").run().refused(200, &[]).says(&["a network like 10.1.0.0/16"]);
}

#[test]
fn erdmas_ports_are_not_taken() {
    let field = Field::new();
    let ran = field.rlaunch("--port-range 30600-30700 -H a true").run();
    ran.says(&["30608-30623", "eRDMA"]);
    assert_ne!(ran.code, 0, "{ran}");
}

#[test]
fn the_addresses_in_use_are_said_when_asked() {
    let field = Field::new();
    let ran = meet(&field, "-v").run();
    let a = first_network(&field, "a");
    ran.says(&[&format!("out-of-band addresses: a {a}, b ")]);
    assert_eq!(ran.err().matches("out-of-band addresses").count(), 1, "{ran}");
}

#[test]
fn a_tree_of_any_depth_serves_its_ranks() {
    let field = Field::new();
    let script = "rlaunch barrier one && rlaunch kv put k$RANK $RANK && rlaunch barrier two && \
                  rlaunch kv get k$(( ($RANK + 5) % 8 ))";
    for radix in ["1", "2", "3"] {
        let run = field.rlaunch("--radix").args([radix, "-H", "a,b,c,d,e,f,g,h"]).sh(script);
        let ran = run.run();
        assert_eq!(ran.succeeded().sorted(), ["0", "1", "2", "3", "4", "5", "6", "7"], "{ran}");
    }
}

#[test]
fn an_edge_that_breaks_is_relayed() {
    let field = Field::new();
    let script = "echo up; for i in $(seq 300); do rlaunch barrier b || exit 1; sleep 0.01; done";
    let run = field.rlaunch("-H a,b,c").sh(script).within(Duration::from_secs(120));
    let mut running = run.spawn();
    running.wait_for_text("up\n", 3);
    let rule = format!("tcp sport {PORTS} reject with tcp reset");
    let _firewall = firewall(&field, "b", "input", &rule);
    let ran = running.finish();
    ran.succeeded().says(&["the connection between b and a broke", "through this machine"]);
    assert_eq!(ran.err().matches("through this machine").count(), 1, "{ran}");
}
