use super::*;
use crate::checks::FoldedFinding;
use crate::findings::{CheckId, Finding, Fix, id};
use crate::fixes;
use crate::testing::is_golden;

const PRINTED: &str = "\
keeper netplan
wall ufw
open eth0
name a 10.0.0.1
name b
hosts
127.0.0.1 localhost
10.0.0.9 b";

fn host(name: &str, address: &str, printed: &str) -> UpHost {
    UpHost {
        name: format!("root@{name}"),
        bare: name.into(),
        address: address.parse().ok(),
        facts: Facts::parse(printed),
        cabled: vec!["eth1".into()],
    }
}

fn hosts() -> Vec<UpHost> {
    let known = "wall iptables\nopen eth1\nname a 10.0.0.1\nname b 127.0.1.1 10.0.0.2\nhosts\n";
    vec![host("a", "10.0.0.1", PRINTED), host("b", "10.0.0.2", known)]
}

#[test]
fn facts_are_read() {
    let facts = Facts::parse(PRINTED);
    assert_eq!((facts.keeper, facts.wall), (Some(Keeper::Netplan), Some(Wall::Ufw)));
    assert_eq!(facts.open, ["eth0"]);
    assert_eq!(facts.names[1], ("b".to_owned(), vec![]));
    assert_eq!(facts.hosts_file, "127.0.0.1 localhost\n10.0.0.9 b\n");
    assert_eq!(Facts::parse("sh: rubbish\n"), Facts::default());
}

/// The script is plain enough for the shell of this machine, and changes nothing.
#[test]
fn the_survey_runs_here() {
    let script = survey(&["localhost", "no-such-host.invalid"]);
    let output = std::process::Command::new("sh").args(["-c", &script]).output().unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    let facts = Facts::parse(&String::from_utf8_lossy(&output.stdout));
    let at = |name: &str| facts.names.iter().find(|(known, _)| known == name).unwrap().1.clone();
    assert!(at("localhost").iter().any(IpAddr::is_loopback), "{facts:?}");
    assert!(at("no-such-host.invalid").is_empty());
    assert_eq!(facts.hosts_file, std::fs::read_to_string("/etc/hosts").unwrap());
}

#[test]
fn a_block_replaces_the_one_before() {
    let once = with_block("10.0.0.9 b", "10.0.0.2 b\n");
    assert!(
        once.starts_with("# rlaunch up") && once.ends_with("# rlaunch up: end\n10.0.0.9 b"),
        "{once}"
    );
    assert_eq!(with_block(&once, "10.0.0.2 b\n"), once);
    // An earlier version has put it at the end.
    let last = format!("127.0.0.1 localhost\n{}\n10.0.0.2 b\n{}\n", MARKS.0, MARKS.1);
    let moved = with_block(&last, "10.0.0.2 b\n");
    assert!(moved.ends_with("# rlaunch up: end\n127.0.0.1 localhost\n"), "{moved}");
    assert_eq!(moved.matches("10.0.0.2 b").count(), 1, "{moved}");
    let more = with_block(&(once.clone() + "10.0.0.7 own\n"), "10.0.0.3 b\n");
    assert!(more.contains("10.0.0.7 own\n") && !more.contains("10.0.0.2 b"), "{more}");
    // Whoever removed the end of a block has lines of their own behind it.
    let cut = with_block(&format!("{}\n10.0.0.7 own\n", MARKS.0), "10.0.0.3 b\n");
    assert!(cut.ends_with("10.0.0.7 own\n") && cut.contains("10.0.0.3 b"), "{cut}");
}

#[test]
fn hosts_behind_one_address_get_no_names() {
    let mut hosts = hosts();
    hosts[1].address = hosts[0].address;
    let Step { state: State::Cannot { why, .. }, .. } = names(&hosts) else { panic!("planned") };
    assert_eq!(why, "root@a and root@b have one address here, 10.0.0.1");
}

#[test]
fn pods_are_refused_with_a_command_to_type() {
    let host = Facts::parse(PRINTED);
    // The second one is of a pod with the network of its node.
    let pods =
        ["# Kubernetes-managed hosts file.\n", "# Kubernetes-managed hosts file (host network).\n"];
    let pods = pods.map(|first| Facts::parse(&format!("hosts\n{first}127.0.0.1 localhost\n")));
    assert!(refuse_pods([("a", &host), ("root@b", &host)]).is_none());
    let refused = refuse_pods([("a", &host), ("root@b", &pods[0])]).unwrap();
    assert_eq!(
        refused.message,
        "root@b is a pod of Kubernetes, where nothing is kept that `rlaunch up` would change"
    );
    assert!(refused.hints[0].starts_with("`rlaunch doctor -H root@b` says"), "{refused:?}");
    let refused = refuse_pods([("b", &pods[0]), ("c", &pods[1])]).unwrap();
    assert!(refused.message.starts_with("b, c are pods of "), "{refused:?}");
    assert!(refused.hints[0].starts_with("`rlaunch doctor -H b,c` says"), "{refused:?}");
}

#[test]
fn a_host_that_comes_later_joins_those_before() {
    let mut hosts = hosts();
    let Step { state: State::Will(changes), .. } = names(&hosts) else { panic!("b is elsewhere") };
    let Change::File { content: Some(content), .. } = &changes[0][0] else { panic!("{changes:?}") };
    hosts.push(host("c", "10.0.0.3", ""));
    let known = format!("name a 10.0.0.1\nname b 10.0.0.2\nname c\nhosts\n{content}");
    hosts[0].facts = Facts::parse(&known);
    let Step { state: State::Will(changes), .. } = names(&hosts) else { panic!("c is missing") };
    let Change::File { content: Some(content), .. } = &changes[0][0] else { panic!("{changes:?}") };
    assert!(content.contains("\n10.0.0.2 b\n10.0.0.3 c\n"), "{content}");
}

fn folded(id: CheckId, hosts: &[&str], fix: Fix) -> FoldedFinding {
    let mut finding = Finding::warning(id, hosts[0], "seen", "matters").fixed_by(fix);
    finding.hosts = hosts.iter().map(|host| (*host).to_owned()).collect();
    FoldedFinding { finding, consequences: Vec::new() }
}

fn planned(hosts: &[UpHost]) -> Vec<PlannedFix> {
    let found = [
        folded(
            id::NET_ARP,
            &["root@a", "root@b"],
            Fix::sysctl("arp", &[("net.ipv4.conf.all.arp_ignore", "1")]),
        ),
        folded(id::LINK_DOWN, &["root@a"], Fix::interface_up("eth1")),
        folded(id::LINK_DOWN, &["root@b"], Fix::interface_up("eth9")),
        folded(id::DEV_LIBRARY, &["root@a"], Fix::package("sudo apt-get install -y rdma-core")),
        folded(id::SSH_PERMS, &["root@a"], Fix::here("chmod 600 /k".to_owned())),
    ];
    safe_fixes(fixes::plan(&found, &[]), hosts)
}

#[test]
fn only_what_needs_no_question_and_no_cable_is_fixed() {
    let hosts = hosts();
    let chosen = planned(&hosts);
    let ids: Vec<_> = chosen.iter().map(|fix| (fix.id().as_str(), fix.place())).collect();
    assert_eq!(ids, [("net.arp", "root@a, root@b".to_owned()), ("link.down", "root@b".to_owned())]);
    let step = super::fixes(&chosen, &hosts);
    let changes = step.changes().unwrap();
    assert_eq!(changes[1].len(), changes[0].len() + 1, "{changes:?}");
    assert!(matches!(super::fixes(&[], &hosts).state, State::Done(_)));
}

/// What keeps addresses is asked by its files below another root.
#[test]
fn a_file_that_was_not_read_is_seen() {
    let root = tempfile::tempdir().unwrap();
    let at = |path: &str| root.path().join(path);
    let write = |path: &str, text: &str| {
        std::fs::create_dir_all(at(path).parent().unwrap()).unwrap();
        std::fs::write(at(path), text).unwrap();
    };
    let unread = |keeper: Keeper| {
        let line = keeper.unread(&["eth1".to_owned(), "eth2".to_owned()]);
        let root = root.path().to_str().unwrap();
        let line = ["/run/", "/sys/", "/etc/"]
            .iter()
            .fold(line, |line, top| line.replace(top, &format!("{root}{top}")));
        let output = std::process::Command::new("sh").args(["-c", &line]).output().unwrap();
        assert!(output.stderr.is_empty(), "{line}: {output:?}");
        String::from_utf8(output.stdout).unwrap()
    };
    assert_eq!(unread(Keeper::Ifupdown), "");
    assert_eq!(unread(Keeper::Networkd), "", "networkd has noted nothing");
    for (index, interface) in ["eth1", "eth2"].iter().enumerate() {
        write(&format!("sys/class/net/{interface}/ifindex"), &format!("{index}\n"));
        write(&format!("run/systemd/netif/links/{index}"), "ADMIN_STATE=unmanaged\n");
    }
    assert_eq!(unread(Keeper::Networkd), "eth1\neth2\n");
    write(
        "run/systemd/netif/links/1",
        "NETWORK_FILE=/etc/systemd/network/10-rdma-mesh-eth2.network\n",
    );
    assert_eq!(unread(Keeper::Networkd), "eth1\n");
    write("etc/netplan/99-rdma-mesh.yaml", "network:\n");
    assert_eq!(unread(Keeper::Netplan), "eth1\neth2\n");
    let generated = [
        "run/systemd/network/10-netplan-eth1.network",
        "run/NetworkManager/system-connections/netplan-eth2.nmconnection",
    ];
    let set = |path: &str, seconds: u64| {
        let time = std::time::UNIX_EPOCH + std::time::Duration::from_secs(seconds);
        std::fs::File::options().write(true).open(at(path)).unwrap().set_modified(time).unwrap();
    };
    generated.iter().for_each(|path| write(path, ""));
    set("etc/netplan/99-rdma-mesh.yaml", 2000);
    set(generated[0], 1000);
    set(generated[1], 3000);
    assert_eq!(unread(Keeper::Netplan), "eth1\n", "its file is older");
    let checked = Keeper::NetworkManager.unread(&["a b".to_owned()]);
    let checked = std::process::Command::new("sh").args(["-nc", &checked]).output().unwrap();
    assert!(checked.status.success());
}

#[test]
fn the_plan_is_as_agreed() {
    let hosts = hosts();
    let kept = Change::File {
        path: "/etc/netplan/99-rdma-mesh.yaml".into(),
        mode: 0o600,
        content: Some("network:\n".into()),
        expected: None,
    };
    let kept = Keeper::Netplan.around(vec![kept], &[]);
    let why = "b has neither netplan nor another program that rlaunch knows".to_owned();
    let steps = [
        names(&hosts),
        super::fixes(&planned(&hosts), &hosts),
        firewall(&hosts),
        Step::of(StepId::Addresses, vec![vec![], vec![]], "done already: every link has addresses"),
        Step::of(StepId::Keep, vec![kept, vec![]], ""),
        Step {
            id: StepId::Keep,
            state: State::Cannot { why, fix: "apt install netplan.io".into() },
        },
    ];
    let both = to_text(&steps, &hosts) + "=== script\n" + &to_script(&steps, &hosts);
    is_golden("up-plan", &both);
}

#[test]
fn a_script_has_only_hosts_that_change() {
    let hosts = hosts();
    let none = Step::of(StepId::Names, vec![vec![], vec![]], "done already: x");
    let nothing = "# there is nothing to change on the hosts\n";
    assert_eq!(to_script(&[none], &hosts), nothing);
    let change = Change::Run { line: "ufw allow".into(), save: None, undo: None };
    let one = Step::of(StepId::Firewall, vec![vec![], vec![change]], "");
    let script = "# as root on each host\n\n# root@b\n# ports of the cables\nufw allow\n";
    assert_eq!(to_script(&[one], &hosts), script);
}

#[test]
fn a_host_that_lacks_nothing_is_done() {
    let second = &hosts()[1..];
    assert!(matches!(names(second).state, State::Done(_)), "it knows itself");
    assert!(matches!(firewall(second).state, State::Done(_)));
    assert!(StepId::Keep.needs(StepId::Addresses) && !StepId::Firewall.needs(StepId::Names));
}

#[test]
fn one_host_manages_the_subnet() {
    let mut hosts = hosts();
    assert!(matches!(subnet_manager(&hosts).state, State::Done(_)));
    hosts.iter_mut().for_each(|host| host.facts.waits_for_manager = true);
    let step = subnet_manager(&hosts);
    let changes = step.changes().unwrap();
    assert_eq!((changes[0].len(), changes[1].len()), (1, 0));
    let Change::Run { line, undo: Some(undo), .. } = &changes[0][0] else { panic!("{step:?}") };
    for script in [line, undo] {
        let checked = std::process::Command::new("sh").args(["-nc", script]).output().unwrap();
        assert!(checked.status.success(), "{script}");
    }
    hosts[1].facts.has_manager = true;
    let State::Cannot { why, .. } = subnet_manager(&hosts).state else { panic!("one is enough") };
    assert_eq!(why, "opensm runs on root@b, and ports of root@a still wait");
    assert!(Facts::parse("fabric waits\nfabric managed\n").has_manager);
}

#[test]
fn every_wall_is_opened_and_closed() {
    for wall in [Wall::Ufw, Wall::Firewalld, Wall::Nft, Wall::Iptables] {
        let change = wall.admission("eth1").unwrap();
        let (Change::Run { line, undo, .. } | Change::RunUntilBoot { line, undo, .. }) = change
        else {
            panic!("{wall:?}")
        };
        let undo = undo.unwrap();
        assert!(line.contains("eth1") && undo.contains("eth1"), "{line} {undo}");
        for script in [line, undo] {
            let checked = std::process::Command::new("sh").args(["-nc", &script]).output().unwrap();
            assert!(checked.status.success(), "{script}");
        }
        assert_eq!(wall.admission("eth1;reboot"), None);
    }
}
