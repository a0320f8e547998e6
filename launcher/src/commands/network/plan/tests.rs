use super::super::testing::{cable, end, interface, three_hosts, triangle, with_address};
use super::*;
use rlaunch_bootstrap::protocol::network::LinkLocal;

fn options(base: &str) -> PlanOptions {
    PlanOptions { base: base.parse().unwrap(), prefix: 24, mtu: None, keeps: None }
}

fn guide() -> PlanOptions {
    options("192.168.100.0/22")
}

/// Describes a plan: `192.168.100.0/24: 0 p1 .2, 2 p0 .3`, and its changes.
fn shown(plan: &MeshPlan) -> Vec<String> {
    let end = |end: &PlannedEnd| format!("{} {} {}", end.end.host, end.end.interface, end.address);
    let line = |link: &PlannedLink| {
        let ends: Vec<String> = link.ends.iter().map(end).collect();
        format!("{}: {}", link.subnet, ends.join(", "))
    };
    plan.links.iter().map(line).collect()
}

fn changes(plan: &MeshPlan) -> Vec<String> {
    let ends = plan.links.iter().flat_map(|link| &link.ends);
    ends.flat_map(|end| end.changes.iter().map(|c| format!("{} {c}", end.end.host))).collect()
}

#[test]
fn a_triangle_gets_the_addresses_of_the_guide() {
    let plan = plan(&three_hosts(), &triangle(), guide()).unwrap();
    let wanted = [
        "192.168.100.0/24: 0 enp1s0f1np1 192.168.100.2, 2 enp1s0f0np0 192.168.100.3",
        "192.168.101.0/24: 0 enp1s0f0np0 192.168.101.2, 1 enp1s0f0np0 192.168.101.3",
        "192.168.102.0/24: 1 enp1s0f1np1 192.168.102.2, 2 enp1s0f1np1 192.168.102.3",
    ];
    assert_eq!(shown(&plan), wanted);
    assert_eq!(changes(&plan).len(), 6);
    assert_eq!(changes(&plan)[0], "0 ip address add 192.168.100.2/24 dev enp1s0f1np1");
    let mut links = triangle();
    links.reverse();
    assert_eq!(super::plan(&three_hosts(), &links, guide()).unwrap(), plan, "whatever the order");
}

#[test]
fn a_plan_that_is_made_needs_no_change() {
    let mut hosts = three_hosts();
    let first = plan(&hosts, &triangle(), guide()).unwrap();
    for end in first.links.iter().flat_map(|link| &link.ends) {
        let interfaces = &mut hosts[end.end.host].network.interfaces;
        let own = interfaces.iter_mut().find(|one| one.netdev.name == end.end.interface).unwrap();
        own.netdev.addresses.push((end.address.into(), end.prefix));
        let route =
            format!("{} {}/24", end.end.interface, Subnet::new(end.address.into(), 24).address());
        hosts[end.end.host].network.routes.push(route.parse().unwrap());
    }
    let second = plan(&hosts, &triangle(), guide()).unwrap();
    assert_eq!((shown(&second), changes(&second)), (shown(&first), Vec::new()));
}

/// The first cable has a subnet, one end of the second has an address, and the third has one of the first's.
#[test]
fn addresses_that_fit_are_kept_and_others_replaced() {
    let mut hosts = three_hosts();
    let mut give = |host: usize, index: usize, text: &str| {
        let own = &mut hosts[host].network.interfaces[index];
        *own = with_address(own.clone(), text);
    };
    give(0, 1, "192.168.103.7/24");
    give(1, 1, "192.168.103.9/24");
    give(2, 1, "192.168.102.2/24");
    give(1, 2, "192.168.103.1/24");
    give(2, 2, "192.168.101.5/30");
    give(0, 2, "10.9.9.9/24");
    let plan = plan(&hosts, &triangle(), guide()).unwrap();
    let wanted = [
        "192.168.102.0/24: 0 enp1s0f1np1 192.168.102.3, 2 enp1s0f0np0 192.168.102.2",
        "192.168.103.0/24: 0 enp1s0f0np0 192.168.103.7, 1 enp1s0f0np0 192.168.103.9",
        "192.168.100.0/24: 1 enp1s0f1np1 192.168.100.2, 2 enp1s0f1np1 192.168.100.3",
    ];
    assert_eq!(shown(&plan), wanted);
    let wanted = [
        "0 ip address add 192.168.102.3/24 dev enp1s0f1np1",
        "1 ip address delete 192.168.103.1/24 dev enp1s0f1np1",
        "1 ip address add 192.168.100.2/24 dev enp1s0f1np1",
        "2 ip address delete 192.168.101.5/30 dev enp1s0f1np1",
        "2 ip address add 192.168.100.3/24 dev enp1s0f1np1",
    ];
    assert_eq!(changes(&plan), wanted, "10.9.9.9 is outside of the base");
}

#[test]
fn two_ends_with_one_address_get_two() {
    let mut hosts = three_hosts();
    for host in &mut hosts[..2] {
        let own = &mut host.network.interfaces[1];
        *own = with_address(own.clone(), "192.168.101.2/24");
    }
    let plan = plan(&hosts, &triangle()[..1], guide()).unwrap();
    let wanted = "192.168.101.0/24: 0 enp1s0f0np0 192.168.101.2, 1 enp1s0f0np0 192.168.101.3";
    assert_eq!(shown(&plan), [wanted]);
}

#[test]
fn interfaces_are_set_up_with_the_wanted_mtu() {
    let mut hosts = three_hosts();
    let own = &mut hosts[0].network.interfaces[1];
    own.is_up = false;
    // It was up during the discovery, and is down again.
    hosts[1].down = vec!["enp1s0f0np0".into()];
    let ib = &mut hosts[1].network.interfaces[1];
    ib.netdev.kind = NetdevKind::Ipoib;
    ib.ipoib_mode = Some("connected".into());
    let options = PlanOptions { mtu: Some(9000), ..guide() };
    let plan = plan(&hosts, &triangle()[..1], options).unwrap();
    let wanted = [
        "0 ip link set dev enp1s0f0np0 mtu 9000",
        "0 ip link set dev enp1s0f0np0 up",
        "0 ip address add 192.168.100.2/24 dev enp1s0f0np0",
        "1 ip link set dev enp1s0f0np0 type ipoib mode datagram",
        "1 ip link set dev enp1s0f0np0 up",
        "1 ip address add 192.168.100.3/24 dev enp1s0f0np0",
    ];
    assert_eq!(changes(&plan), wanted);
    assert_eq!((plan.links[0].ends[0].mtu, plan.links[0].ends[1].mtu), (Some(9000), None));
}

#[test]
fn a_base_that_is_too_small_is_refused() {
    let refused = |base: &str, prefix| {
        let options = PlanOptions { prefix, ..options(base) };
        plan(&three_hosts(), &triangle(), options).unwrap_err()
    };
    let error = refused("192.168.100.0/23", 24);
    let words = "3 links need 3 subnets of /24, and 192.168.100.0/23 has 2";
    assert_eq!(error.to_string(), words);
    assert_eq!(error.hint().unwrap(), "--base 192.168.100.0/22 is large enough");
    assert_eq!(
        refused("192.168.100.0/25", 24).hint().unwrap(),
        "--base 192.168.100.0/22 is large enough"
    );
    assert_eq!(refused("192.168.100.0/22", 32), PlanError::Prefix(32));
    assert_eq!(plan(&three_hosts(), &[], guide()), Err(PlanError::NoLink));
}

#[test]
fn small_subnets_have_room_for_two() {
    let first = |prefix| {
        let options = PlanOptions { prefix, ..options("10.1.0.0/24") };
        shown(&plan(&three_hosts(), &triangle(), options).unwrap()).swap_remove(1)
    };
    assert_eq!(first(30), "10.1.0.4/30: 0 enp1s0f0np0 10.1.0.5, 1 enp1s0f0np0 10.1.0.6");
    assert_eq!(first(31), "10.1.0.2/31: 0 enp1s0f0np0 10.1.0.2, 1 enp1s0f0np0 10.1.0.3");
    assert_eq!(first(29), "10.1.0.8/29: 0 enp1s0f0np0 10.1.0.10, 1 enp1s0f0np0 10.1.0.11");
}

#[test]
fn a_base_that_overlaps_another_network_is_refused() {
    let refused = |change: &dyn Fn(&mut Surveyed)| {
        let mut hosts = three_hosts();
        change(&mut hosts[1]);
        let error = plan(&hosts, &triangle(), guide()).unwrap_err();
        (error.to_string(), error.hint())
    };
    let other = Some("--base 10.200.0.0/22 is free on all hosts".to_owned());
    let by_route = refused(&|host| {
        host.network.routes.push("eno1 192.168.0.0/16 via 10.0.0.1".parse().unwrap());
    });
    let words = "192.168.100.0/22 overlaps 192.168.0.0/16 on iceberg (eno1)";
    assert_eq!(by_route, (words.to_owned(), other.clone()));
    let by_address = refused(&|host| {
        let docker = NetdevKind::Bridge;
        let mut bridge = with_address(interface("docker0"), "192.168.103.1/24");
        bridge.netdev.kind = docker;
        host.network.interfaces.push(bridge);
    });
    assert_eq!(by_address.0, "192.168.100.0/22 overlaps 192.168.103.0/24 on iceberg (docker0)");
    let by_client = refused(&|host| host.network.ssh_client = "192.168.101.77".parse().ok());
    let words = "192.168.100.0/22 contains 192.168.101.77, from which iceberg is reached by SSH";
    assert_eq!(by_client, (words.to_owned(), other));
    let routed = refused(&|host| {
        host.network.routes.push("enp1s0f0np0 192.168.102.0/24 via 192.168.101.9".parse().unwrap());
    });
    assert!(routed.0.contains("overlaps 192.168.102.0/24 on iceberg (enp1s0f0np0)"), "{routed:?}");
}

#[test]
fn the_address_of_ssh_is_not_taken() {
    let mut hosts = three_hosts();
    let own = &mut hosts[0].network.interfaces[1];
    *own = with_address(with_address(own.clone(), "192.168.101.2/24"), "192.168.102.8/24");
    hosts[0].network.ssh_address = "192.168.102.8".parse().ok();
    let error = plan(&hosts, &triangle(), guide()).unwrap_err();
    let words = "the plan would take 192.168.102.8 from titanic (enp1s0f0np0), which is reached by SSH there";
    assert_eq!(error.to_string(), words);
    // An address that is kept may carry SSH, and the launcher may be at the other end.
    hosts[0].network.ssh_address = "192.168.101.2".parse().ok();
    hosts[0].network.ssh_client = "192.168.101.3".parse().ok();
    plan(&hosts, &triangle(), guide()).unwrap();
}

/// Each address of the base that does not fit is removed, in the kernel's order.
#[test]
fn the_address_of_ssh_is_not_taken_behind_others() {
    let refused = |host: usize, index: usize, own: &[&str], ssh: &str| {
        let mut hosts = three_hosts();
        let network = &mut hosts[host].network;
        let interface = &mut network.interfaces[index];
        *interface = own.iter().fold(interface.clone(), |one, text| with_address(one, text));
        network.ssh_address = ssh.parse().ok();
        plan(&hosts, &triangle(), guide()).unwrap_err().to_string()
    };
    let second = refused(0, 1, &["192.168.101.8/30", "192.168.102.8/30"], "192.168.102.8");
    let words = "the plan would take 192.168.102.8 from titanic (enp1s0f0np0), which is reached by SSH there";
    assert_eq!(second, words);
    let own = ["192.168.103.1/25", "192.168.103.2/25", "192.168.103.3/25"];
    let third = refused(2, 2, &own, "192.168.103.3");
    let words = "the plan would take 192.168.103.3 from carpathia (enp1s0f1np1), which is reached by SSH there";
    assert_eq!(third, words);
}

#[test]
fn larger_meshes_begin_with_the_ring() {
    let mut hosts = three_hosts();
    let mut fourth = hosts[0].clone();
    fourth.name = "olympic".into();
    hosts.push(fourth);
    let pairs = (0..4).flat_map(|a| (a + 1..4).map(move |b| (a, b)));
    let links: Vec<FoundLink> = pairs.map(|(a, b)| cable((a, "p"), (b, "p"))).collect();
    let found = strands(4, &links);
    let pairs: Vec<[usize; 2]> = found.iter().map(|ends| [ends[0].host, ends[1].host]).collect();
    assert_eq!(pairs, [[0, 3], [0, 1], [1, 2], [2, 3], [0, 2], [1, 3]]);
    let error = plan(&hosts, &links, guide()).unwrap_err();
    assert_eq!(error.hint().unwrap(), "--base 192.168.96.0/21 is large enough");
}

#[test]
fn a_switch_is_one_subnet_and_parallel_cables_are_two() {
    let mut hosts = three_hosts();
    let ends = vec![
        end(0, "enp1s0f0np0"),
        end(0, "enp1s0f1np1"),
        end(1, "enp1s0f0np0"),
        end(2, "enp1s0f0np0"),
    ];
    let switch = FoundLink { kind: LinkKind::Switch, ends, silent: Vec::new() };
    let options = PlanOptions { prefix: 30, ..guide() };
    let error = plan(&hosts, std::slice::from_ref(&switch), options).unwrap_err();
    assert_eq!(error.to_string(), "a /30 has 2 addresses for the 3 hosts at a switch");
    let wanted = "192.168.100.0/24: 0 enp1s0f0np0 192.168.100.2, 1 enp1s0f0np0 192.168.100.3, \
                  2 enp1s0f0np0 192.168.100.4";
    assert_eq!(shown(&plan(&hosts, &[switch], guide()).unwrap()), [wanted]);
    for host in &mut hosts {
        host.network.interfaces[2].ipv6 = LinkLocal::Usable;
    }
    let two = [
        cable((0, "enp1s0f0np0"), (1, "enp1s0f0np0")),
        cable((0, "enp1s0f1np1"), (1, "enp1s0f1np1")),
    ];
    let found = shown(&plan(&hosts, &two, guide()).unwrap());
    assert!(found[0].starts_with("192.168.100.0/24: 0 enp1s0f0np0"), "{found:?}");
    assert!(found[1].starts_with("192.168.101.0/24: 0 enp1s0f1np1"), "{found:?}");
    let halves = FoundLink {
        kind: LinkKind::Cable,
        ends: two
            .iter()
            .flat_map(|link| link.ends.clone())
            .collect::<BTreeSet<_>>()
            .into_iter()
            .collect(),
        silent: Vec::new(),
    };
    assert_eq!(shown(&plan(&hosts, &[halves], guide()).unwrap()), found);
}

#[test]
fn bases_are_networks() {
    let parse = |text: &str| text.parse::<Base>();
    assert_eq!(parse("192.168.100.0/22").unwrap().to_string(), "192.168.100.0/22");
    let error = parse("192.168.101.0/22").unwrap_err();
    assert_eq!(
        error,
        "`192.168.101.0/22` has bits behind its prefix; the network is 192.168.100.0/22"
    );
    for wrong in
        ["", "10.0.0.0", "10.0.0.0/7", "10.0.0.0/32", "fd00::/64", "10.0.0/8", "10.0.0.0/x"]
    {
        assert!(parse(wrong).is_err(), "{wrong}");
    }
}
