//! `rlaunch topo` on real hosts, compared with the output of the hosts' own tools.

use crate::support::Field;
use serde_json::Value;

#[test]
fn interfaces_are_those_that_ip_lists() {
    let field = Field::new();
    let ran = field.rlaunch("topo -H a,b --json").run();
    let nodes: Value = serde_json::from_str(&ran.succeeded().out()).unwrap();
    for (node, host) in nodes.as_array().unwrap().iter().zip(["a", "b"]) {
        assert_eq!(node["host"], host);
        let netdevs = node["inventory"]["netdevs"].as_array().unwrap();
        let listed: Value = serde_json::from_str(&field.on(host, "ip -j addr")).unwrap();
        let listed = listed.as_array().unwrap();
        assert_eq!(netdevs.len(), listed.len(), "{ran}");
        for (netdev, listed) in netdevs.iter().zip(listed) {
            assert_eq!(netdev["name"], listed["ifname"]);
            assert_eq!(netdev["index"], listed["ifindex"]);
            assert_eq!(netdev["mtu"], listed["mtu"]);
            assert_eq!(netdev["hardware_address"], listed["address"]);
            let addresses = netdev["addresses"].as_array().unwrap();
            let mut own: Vec<String> =
                addresses.iter().map(|a| format!("{} {}", a[0].as_str().unwrap(), a[1])).collect();
            let known = listed["addr_info"].as_array().unwrap().iter();
            let mut known: Vec<String> = known
                .map(|a| format!("{} {}", a["local"].as_str().unwrap(), a["prefixlen"]))
                .collect();
            own.sort();
            known.sort();
            assert_eq!(own, known);
        }
        let allowed = field.on(host, "grep Cpus_allowed_list /proc/self/status");
        let cpus = node["inventory"]["cpus"]["allowed"].as_str().unwrap();
        assert_eq!(allowed.split_whitespace().last(), Some(cpus));
    }
}

#[test]
fn people_get_a_part_for_each_host() {
    let field = Field::new();
    let ran = field.rlaunch("topo -H b,a").run();
    let out = ran.succeeded().out().into_owned();
    let hosts: Vec<&str> = out.lines().filter(|line| !line.starts_with(' ')).collect();
    assert!(hosts[0].starts_with("b: ") && hosts[1].starts_with("a: "), "{ran}");
    assert!(out.contains("  no RDMA device\n") && out.contains("eth0"), "{ran}");
    let gids = field.rlaunch("topo -H a --gids").run();
    assert_eq!(gids.succeeded().out(), "a:\n  no GID\n");
}

#[test]
fn a_host_that_is_not_there_hides_no_other() {
    let field = Field::new();
    let ran = field.rlaunch("topo -H a,nosuchhost").run();
    ran.ended_with(201).says(&["nosuchhost"]);
    assert!(ran.out().starts_with("a: "), "{ran}");
}

#[test]
fn hosts_and_the_network_between_them_are_drawn() {
    let field = Field::new();
    let directory = crate::support::launch_directory();
    let picture = directory.path().join("hw.svg");
    let ran = field.rlaunch(&format!("topo -H a,b --plot {}", picture.display())).run();
    assert!(ran.succeeded().out().starts_with("a: "), "{ran}");
    let svg = std::fs::read_to_string(&picture).unwrap();
    for text in ["<svg ", "\na\n", "\nb\n", "\neth0\n", ": TCP, "] {
        assert!(svg.contains(text), "no {text} in {svg}");
    }
    let hosts = "topo -H nosuchhost --plot";
    field.rlaunch(&format!("{hosts} hw.pdf")).run().refused(200, &[".svg, .html or .png"]);
    let missing = "/nonexistent/hw.svg";
    let ran = field.rlaunch(&format!("{hosts} {missing}")).run();
    ran.refused(203, &["cannot write /nonexistent/hw.svg"]);
}

#[test]
fn this_machine_is_asked_without_ssh() {
    let field = Field::new();
    let ran = field.rlaunch("topo").run();
    assert!(ran.succeeded().out().starts_with("localhost: "), "{ran}");
}

#[test]
fn a_recording_says_what_the_hosts_said_and_no_secret() {
    let field = Field::new();
    let secret = "correct-horse-battery-staple";
    let _kept = field.files(&["a", "b"], "/root/.ssh/id_planted", secret, 0o600);
    let directory = crate::support::launch_directory();
    let archive = directory.path().join("x.tar");
    let words = format!("capture -H a,b -o {}", archive.display());
    let ran = field.rlaunch(&words).env("PLANTED", secret).run();
    ran.succeeded().says(&["recorded a, b in"]);
    let bytes = std::fs::read(&archive).unwrap();
    let has = |text: &str| bytes.windows(text.len()).any(|window| window == text.as_bytes());
    assert!(has("Cpus_allowed_list") && !has(secret) && !has("PLANTED"), "{ran}");

    let live = field.rlaunch("topo -H a,b").run();
    let recorded = field.rlaunch(&format!("topo --from {}", archive.display())).run();
    assert_eq!(recorded.succeeded().out(), live.succeeded().out());
    let words = "topo --from /nowhere/x.tar";
    field.rlaunch(words).run().refused(203, &["cannot read /nowhere/x.tar"]);
}
