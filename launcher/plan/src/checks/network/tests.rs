use super::super::cluster::{JudgedProgram, Probe, ProbeKind, ProbeOutcome};
use super::super::testing::{Machine, all_lines, line, lines, with_cluster};
use super::*;
use rlaunch_bootstrap::inventory::diagnostics::Counter;

fn plain() -> Machine {
    Machine::recorded("no-rdma")
}

/// Runs the check of pairs on `count` hosts; `failed` lists pairs of hosts with the error's text, which is
/// empty for silence, and `short` if full packets are lost.
fn pairs(count: usize, failed: &[(usize, usize, &str)]) -> Vec<Finding> {
    pairs_of(&vec![plain(); count], failed)
}

fn pairs_of(machines: &[Machine], failed: &[(usize, usize, &str)]) -> Vec<Finding> {
    let count = machines.len();
    let probe = |(from, to)| {
        let failure = failed.iter().find(|(a, b, _)| (*a, *b) == (from, to));
        let outcome = match failure {
            None => ProbeOutcome::Worked(90),
            Some((.., "")) => ProbeOutcome::Silent,
            Some((.., "short")) => ProbeOutcome::OnlyShort,
            Some((.., cause)) => ProbeOutcome::Failed((*cause).into()),
        };
        let address = format!("10.0.0.{to}").parse().ok();
        Probe { from, to, kind: ProbeKind::Tcp, netdev: None, address, outcome }
    };
    let all = (0..count).flat_map(|from| (0..count).map(move |to| (from, to)));
    let probes: Vec<Probe> = all.filter(|(from, to)| from != to).map(probe).collect();
    with_cluster(machines, |cluster| {
        let mut cluster = cluster;
        cluster.probes = Some(&probes);
        pairs::examine(&cluster)
    })
}

fn pair_lines(count: usize, failed: &[(usize, usize, &str)]) -> Vec<String> {
    pairs(count, failed).iter().map(line).collect()
}

#[test]
fn pairs_are_grouped_by_the_host_that_they_share() {
    const WHY: &str =
        "rlaunch's messages can take another way, and NCCL, Gloo and MPI hang or fail";
    assert!(pair_lines(3, &[]).is_empty());
    let to_c = [(0, 2, ""), (1, 2, "")];
    assert_eq!(
        pair_lines(3, &to_c),
        [format!("error net.pair c: cannot be reached at 10.0.0.2 by a, b: no answer — {WHY}")]
    );
    let from_a = [(0, 1, ""), (0, 2, "Connection timed out (os error 110)")];
    assert_eq!(
        pair_lines(3, &from_a),
        [format!("error net.pair a: cannot reach b, c: no answer — {WHY}")]
    );
    let one = [(0, 2, "Connection refused (os error 111)")];
    assert_eq!(
        pair_lines(3, &one),
        [format!("error net.pair a → c: cannot connect at 10.0.0.2: connection refused — {WHY}")]
    );
    let short = pairs(2, &[(0, 1, "short")]);
    let expected = "error net.pair a → b: cannot send much at 10.0.0.1: short messages arrive, and no full packets";
    assert_eq!(short.iter().map(line).collect::<Vec<_>>(), [format!("{expected} — {WHY}")]);
    assert!(short[0].hints().iter().any(|hint| hint.contains("set both to 1500")), "{short:?}");
    // A host that neither reaches others nor is reached, and a pair that has nothing to do with it.
    let many =
        [(0, 3, ""), (1, 3, ""), (2, 3, ""), (3, 0, ""), (3, 1, ""), (3, 2, ""), (0, 1, "x")];
    assert_eq!(
        pair_lines(4, &many),
        [
            format!(
                "error net.pair d: cannot be reached at 10.0.0.3 by a, b, c: no answer — {WHY}"
            ),
            format!("error net.pair d: cannot reach a, b, c: no answer — {WHY}"),
            format!("error net.pair a → b: cannot connect at 10.0.0.1: x — {WHY}"),
        ]
    );
}

#[test]
fn full_packets_are_those_of_the_interface_that_sends_them() {
    let sends = |mtu: u32| {
        let machine = plain().change(|inventory| {
            inventory.netdevs[1].mtu = mtu;
            inventory.netdevs[1].addresses[0].0 = "10.0.0.9".parse().unwrap();
        });
        pairs_of(&[machine.clone(), machine], &[(0, 1, "short")])[0].hints().join("\n")
    };
    let jumbo = sends(9000);
    assert!(jumbo.contains("-s 8972 10.0.0.1  # for an MTU of 9000"), "{jumbo}");
    assert!(jumbo.contains("set both to 1500"), "{jumbo}");
    let common = sends(1500);
    assert!(
        common.contains("on a: ping -c 3 -M do -s 1472 10.0.0.1  # for an MTU of 1500"),
        "{common}"
    );
    assert!(common.contains("a tunnel or VXLAN, carries less than the 1500 bytes of "), "{common}");
    assert!(common.contains(" mtu 1450") && !common.contains("set both"), "{common}");
    assert!(sends(1450).contains(" mtu 1400"), "{}", sends(1450));
}

#[test]
fn silence_asks_for_the_filter_and_a_missing_route_for_the_route() {
    let first = |cause| pairs(2, &[(0, 1, cause)]).remove(0).fix.remove(0);
    assert!(matches!(first(""), Step::RunOn(host, line) if host == "b" && line.contains("nft")));
    assert_eq!(
        first("No route to host (os error 113)"),
        Step::RunOn("a".into(), "ip route get 10.0.0.1".into())
    );
}

/// Runs the check of names on hosts `a` and `b`; the name of `b` leads to `addresses`.
fn names(addresses: &[&str], with_program: bool) -> Vec<String> {
    let named = |addresses: &[&str]| {
        let addresses = addresses.iter().map(|address| address.parse().unwrap()).collect();
        OwnName { hostname: "me".into(), addresses }
    };
    let first = plain()
        .change(|inventory| inventory.netdevs[1].addresses[0].0 = "192.168.1.31".parse().unwrap())
        .diagnosed(|state| state.own_name = named(&["192.168.1.31"]));
    let second = plain().diagnosed(|state| state.own_name = named(addresses));
    let program = JudgedProgram::default();
    with_cluster(&[first, second], |cluster| {
        let mut cluster = cluster;
        cluster.program = with_program.then_some(&program);
        own_name(&cluster).iter().map(line).collect()
    })
}

#[test]
fn a_name_that_leads_elsewhere_is_wrong() {
    const WHY: &str = "programs that look it up give their peers a wrong address";
    let wrong = |rest: &str| format!("warn net.name b: its own name me leads to {rest} — {WHY}");
    assert_eq!(names(&["192.168.1.31"], false), [wrong("192.168.1.31 of a")]);
    let nowhere = wrong("192.0.2.9, which no interface has");
    assert_eq!(names(&["192.168.1.30", "192.0.2.9"], false), [nowhere]);
    for addresses in [&["192.168.1.30"][..], &["127.0.1.1", "192.168.1.30"]] {
        assert!(names(addresses, true).is_empty(), "{addresses:?}");
    }
}

#[test]
fn loopback_matters_only_to_a_program() {
    let beginnings = [
        "note net.name b: its own name me is 127.0.1.1",
        "note net.name b: its own name me has no address",
    ];
    for (addresses, beginning) in [&["127.0.1.1"][..], &[]].into_iter().zip(beginnings) {
        assert!(names(addresses, false).is_empty(), "{addresses:?}");
        let found = names(addresses, true);
        assert!(found.len() == 1 && found[0].starts_with(beginning), "{found:?}");
    }
}

#[test]
fn a_proxy_needs_exceptions() {
    let with = |names: &[&str]| {
        let names = names.iter().map(|name| (*name).to_owned()).collect();
        plain().diagnosed(|state| state.proxy_variables = names)
    };
    let found = lines(proxy, &[plain(), with(&["HTTPS_PROXY"])]);
    assert_eq!(
        found,
        [
            "note net.proxy b: logins get https_proxy, and no_proxy is not set — JAX and other users of \
          gRPC would reach the other hosts by the proxy"
        ]
    );
    assert!(lines(proxy, &[plain(), with(&["https_proxy", "no_proxy"])]).is_empty());
    assert!(lines(proxy, &[with(&["https_proxy"])]).is_empty());
}

#[test]
fn two_interfaces_in_one_subnet() {
    let machine = |second: &str, arp_ignore| {
        plain()
            .change(|inventory| {
                let second = second.parse().unwrap();
                inventory.netdevs[2].addresses = vec![(second, 24)];
                inventory.netdevs[2].running = true;
            })
            .diagnosed(|state| {
                let interface = |name: &str| InterfaceState {
                    name: name.into(),
                    arp_ignore: Some(arp_ignore),
                    ..InterfaceState::default()
                };
                state.interfaces = vec![interface("eno1"), interface("eno2")];
            })
    };
    assert_eq!(
        lines(answers_for_others, &[machine("192.168.1.31", 0)]),
        [
            "note net.arp a: eno1 and eno2 are both in 192.168.1.0/24, arp_ignore 0 — packets for one \
          may arrive at the other"
        ]
    );
    assert!(lines(answers_for_others, &[machine("192.168.1.31", 1)]).is_empty());
    assert!(lines(answers_for_others, &[machine("192.168.2.31", 0)]).is_empty());
}

fn counter(name: &str, first: u64, last: u64) -> Counter {
    Counter { name: name.into(), first, last }
}

#[test]
fn counters_that_grow_now() {
    let machine = |interface: &str, name: &str, last: u64| {
        plain().diagnosed(|state| {
            let counters = vec![counter("rx_errors", 5, last), counter(name, 5, last)];
            let name = interface.to_owned();
            state.interfaces = vec![InterfaceState { name, counters, ..Default::default() }];
            state.interval_ms = 1000;
        })
    };
    assert_eq!(
        lines(interface_errors, &[machine("eno1", "rx_crc_errors", 12)]),
        [
            "warn net.errors a eno1: rx_crc_errors grew by 7 in 1 s — packets are lost and sent again"
        ]
    );
    let missed = lines(interface_errors, &[machine("eno1", "rx_missed_errors", 9)]);
    assert!(missed[0].contains("rx_missed_errors grew by 4"), "{missed:?}");
    let old = machine("eno1", "rx_crc_errors", 5);
    let virtual_one = machine("docker0", "rx_crc_errors", 12);
    let harmless = plain().diagnosed(|state| {
        let counters = vec![counter("rx_dropped", 0, 100)];
        let name = "eno1".to_owned();
        state.interfaces = vec![InterfaceState { name, counters, ..Default::default() }];
    });
    assert!(lines(interface_errors, &[old, virtual_one, harmless]).is_empty());
}

#[test]
fn packets_that_find_no_queue_matter_to_soft_roce() {
    let machine = |name: &str, last| {
        Machine::recorded(name).diagnosed(|state| {
            state.counters =
                vec![counter("UdpRcvbufErrors", 1, 9), counter("softnet_dropped", 1, last)];
            state.interval_ms = 500;
        })
    };
    assert_eq!(
        lines(udp_drops, &[machine("rxe", 3)]),
        [
            "warn net.udp-drops a: the kernel dropped 2 packets in 0.5 s for lack of space in a CPU's queue — soft RoCE \
          sends every lost packet again"
        ]
    );
    let cure = |backlog| {
        let machine = machine("rxe", 3).diagnosed(|state| state.kernel.backlog_max = backlog);
        with_cluster(&[machine], |cluster| udp_drops(&cluster).remove(0).fixes.len())
    };
    assert_eq!((cure(None), cure(Some(1000)), cure(Some(250_000))), (1, 1, 0));
    // The buffers of sockets do not concern rxe.
    assert!(lines(udp_drops, &[machine("rxe", 1), machine("siw", 3)]).is_empty());
}

#[test]
fn erdma_keeps_its_ports() {
    let machine = |name: &str, range| {
        Machine::recorded(name).diagnosed(|state| state.kernel.ephemeral_ports = Some(range))
    };
    assert_eq!(
        lines(reserved_ports, &[machine("erdma-compat", (1024, 65535))]),
        ["warn net.reserved a erdma_0: the range from which the kernel chooses ports 1024-65535 \
          includes 30608-30623 — eRDMA's compat mode listens on these ports in the kernel"]
    );
    let healthy = [machine("erdma-compat", (32768, 60999)), machine("siw", (1024, 65535))];
    assert!(lines(reserved_ports, &healthy).is_empty());
    let moved = |base: &str| {
        machine("erdma-compat", (32768, 60999)).diagnosed(|state| {
            state.module_parameters = vec![("erdma.reserve_ports_base".into(), base.into())];
        })
    };
    assert!(lines(reserved_ports, &[moved("40000")])[0].contains("includes 40000-40015"));
    assert!(lines(reserved_ports, &[moved("61000")]).is_empty());
}

#[test]
fn a_plain_machine_has_no_findings() {
    assert!(all_lines(&[plain(), plain()]).is_empty());
}
