use super::testing::{cable, interface, three_hosts, triangle};
use super::*;
use rlaunch_bootstrap::protocol::network::HeardBeacon;

fn args(words: &str) -> MeshSetupArgs {
    let words = format!("network mesh {words}");
    match NetworkCommand::try_parse_from(words.split_whitespace()).unwrap().verb {
        NetworkVerb::Mesh(args) => args,
        NetworkVerb::Discover(_) => panic!("{words}"),
    }
}

fn four_hosts() -> Vec<Surveyed> {
    let mut hosts = three_hosts();
    let mut fourth = hosts[0].clone();
    fourth.name = "olympic".into();
    hosts.push(fourth);
    hosts
}

fn cables(pairs: &[(usize, usize)]) -> Vec<FoundLink> {
    pairs.iter().map(|&(a, b)| cable((a, "enp1s0f0np0"), (b, "enp1s0f1np1"))).collect()
}

#[test]
fn beacons_become_links() {
    let mut hosts = three_hosts();
    let beacon = |on: &str, host, interface: &str| HeardBeacon {
        on: on.into(),
        host,
        interface: interface.into(),
    };
    hosts[0].hearing.heard = vec![
        beacon("enp1s0f0np0", 1, "enp1s0f0np0"),
        beacon("enp1s0f1np1", 2, "enp1s0f0np0"),
        // The interface that carries SSH is not asked, and there is no host 7.
        beacon("eno1", 1, "enp1s0f0np0"),
        beacon("enp1s0f0np0", 7, "eth0"),
    ];
    hosts[1].hearing.heard =
        vec![beacon("enp1s0f0np0", 0, "enp1s0f0np0"), beacon("enp1s0f1np1", 2, "enp1s0f1np1")];
    hosts[2].hearing.heard =
        vec![beacon("enp1s0f0np0", 0, "enp1s0f1np1"), beacon("enp1s0f1np1", 1, "enp1s0f1np1")];
    assert_eq!(find_links(&hosts, &Wanted::default()), triangle());
}

#[test]
fn a_full_mesh_gets_all_its_links() {
    let (hosts, wanted) = (three_hosts(), Wanted::default());
    let chosen = args("").chosen_links(&hosts, triangle(), &wanted).unwrap();
    assert_eq!(chosen, triangle());
    assert_eq!(args("--ring").chosen_links(&hosts, triangle(), &wanted).unwrap(), triangle());
    let two = args("--ring").chosen_links(&hosts[..2], triangle()[..1].to_vec(), &wanted).unwrap();
    assert_eq!(two.len(), 1);
}

#[test]
fn too_few_ports_are_named_and_the_ring_is_offered() {
    let (hosts, wanted) = (four_hosts(), Wanted::default());
    let ring = cables(&[(0, 1), (1, 2), (2, 3), (0, 3)]);
    let failed = args("").chosen_links(&hosts, ring.clone(), &wanted).unwrap_err();
    let words = "a full mesh of 4 hosts needs 3 ports on each: titanic has 2, iceberg has 2, carpathia has 2, \
                 olympic has 2";
    assert_eq!(failed.message, words);
    let hint = "--ring uses the ring that is cabled: titanic iceberg carpathia olympic";
    assert_eq!(failed.hints, [hint]);
    let mut with_chord = ring.clone();
    with_chord.extend(cables(&[(0, 2)]));
    assert_eq!(args("--ring").chosen_links(&hosts, with_chord, &wanted).unwrap(), ring);
}

#[test]
fn missing_cables_of_a_ring_are_named() {
    let (mut hosts, wanted) = (four_hosts(), Wanted::default());
    let line = cables(&[(0, 1), (1, 2)]);
    let failed = args("--ring").chosen_links(&hosts, line.clone(), &wanted).unwrap_err();
    assert_eq!(failed.message, "the cables between these hosts form no ring");
    let hint = "for the ring titanic iceberg carpathia olympic, cable carpathia to olympic, titanic to olympic, and \
                use --ring";
    assert_eq!(failed.hints, [hint]);
    for host in &mut hosts {
        host.network.interfaces.push(interface("enp2s0np0"));
    }
    let failed = args("").chosen_links(&hosts[..3], line, &wanted).unwrap_err();
    assert_eq!(failed.message, "no cable between titanic and carpathia");
}

#[test]
fn a_small_mtu_of_an_rdma_port_is_noticed() {
    let mut hosts = three_hosts();
    let base = "192.168.100.0/22".parse().unwrap();
    let options = |mtu| PlanOptions { base, prefix: 24, mtu, keeps: None };
    let hint = |hosts: &[Surveyed], mtu| {
        mtu_hint(&plan::plan(hosts, &triangle(), options(mtu)).unwrap(), hosts)
    };
    assert_eq!(hint(&hosts, None), None, "no RDMA");
    hosts[0].network.interfaces[1].rdma = vec!["rocep1s0f0".into()];
    let said = hint(&hosts, None).unwrap();
    assert!(said.contains("titanic enp1s0f0np0 has less: --mtu 9000"), "{said}");
    assert_eq!(hint(&hosts, Some(9000)), None);
}

#[test]
fn times_are_bounded() {
    assert_eq!(parse_seconds("1.5"), Ok(Duration::from_millis(1500)));
    for wrong in ["", "0", "-1", "601", "inf", "NaN", "x"] {
        assert!(parse_seconds(wrong).is_err(), "{wrong}");
    }
    assert_eq!(args("").confirm_timeout, Duration::from_secs(60));
    assert_eq!(args("--confirm-timeout 10").confirm_timeout, Duration::from_secs(10));
    assert!(parse_trial("9").is_err() && parse_trial("3601").is_err());
}
