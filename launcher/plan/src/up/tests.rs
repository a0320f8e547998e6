use super::*;
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
    let once = with_block("127.0.0.1 localhost", "10.0.0.2 b\n");
    assert!(once.starts_with("127.0.0.1 localhost\n# rlaunch up"), "{once}");
    assert_eq!(with_block(&once, "10.0.0.2 b\n"), once);
    let more = with_block(&(once.clone() + "10.0.0.7 own\n"), "10.0.0.3 b\n");
    assert!(more.contains("10.0.0.7 own\n") && !more.contains("10.0.0.2 b"), "{more}");
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
        firewall(&hosts),
        Step::of(StepId::Addresses, vec![vec![], vec![]], "every link has addresses"),
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
        let Some(Change::Run { line, undo: Some(undo), .. }) = wall.admission("eth1") else {
            panic!("{wall:?}")
        };
        assert!(line.contains("eth1") && undo.contains("eth1"), "{line} {undo}");
        for script in [line, undo] {
            let checked = std::process::Command::new("sh").args(["-nc", &script]).output().unwrap();
            assert!(checked.status.success(), "{script}");
        }
        assert_eq!(wall.admission("eth1;reboot"), None);
    }
}
