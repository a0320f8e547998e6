use super::super::cluster::{Probe, ProbeKind, ProbeOutcome, ProofFailure};
use super::super::testing::{Machine, line, lines, probed, readdress, with_cluster};
use super::super::{Cluster, fold};
use super::*;
use crate::findings::{CheckId, Finding, Step};
use crate::options::Transport;
use crate::testing::triangle;
use rlaunch_bootstrap::inventory::Inventory;
use rlaunch_bootstrap::inventory::diagnostics::{Firewall, InterfaceState};
use rlaunch_bootstrap::inventory::rdma::PortState;

fn cabled() -> Vec<Machine> {
    let machine = |inventory: Inventory| Machine { inventory, ..Machine::default() };
    let machines = triangle().map(machine).map(|machine| {
        machine.diagnosed(|diagnostics| diagnostics.firewall = Some(Firewall::default()))
    });
    machines.into()
}

#[test]
fn a_pair_without_a_common_subnet_is_named_with_its_ports() {
    let mut machines = cabled();
    assert!(lines(unconnected, &machines).is_empty());
    readdress(&mut machines[1].inventory, "192.168.102.2", "192.168.109.2");
    let found = lines(unconnected, &machines);
    let expected = "warn mesh.subnet b → c: shares no RDMA network with c: it has rocep1s0f0/1 192.168.100.3/24 \
                    (enp1s0f0np0), rocep1s0f1/1 192.168.109.2/24 (enp1s0f1np1); c has rocep1s0f0/1 192.168.102.3/24 \
                    (enp1s0f0np0), rocep1s0f1/1 192.168.101.3/24 (enp1s0f1np1) — TCP is used between them, and by NCCL \
                    on all hosts";
    assert_eq!(found, [expected]);
    let required = with_cluster(&machines, |mut cluster| {
        cluster.transport = Transport::Rdma;
        line(&unconnected(&cluster)[0])
    });
    assert!(required.starts_with("error mesh.subnet"), "{required}");
}

#[test]
fn a_host_in_another_network_is_one_finding() {
    let roce = || Machine::recorded("esxi-vm");
    let odd = roce().change(|i| readdress(i, "192.168.111.11", "10.9.0.1"));
    let found = lines(unconnected, &[roce(), odd, roce(), roce()]);
    assert!(found.len() == 1, "{found:?}");
    assert!(
        found[0].starts_with("warn mesh.subnet b: shares no RDMA network with a, c, d: it has"),
        "{found:?}"
    );
}

#[test]
fn a_cable_that_is_pulled_explains_what_follows() {
    let mut machines = cabled();
    let device = machines[0].inventory.rdma.iter_mut().find(|d| d.name == "rocep1s0f1").unwrap();
    device.ports[0].state = PortState::Down;
    let machines = machines;
    let subnets = lines(unconnected, &machines);
    assert!(subnets.len() == 1 && subnets[0].starts_with("warn mesh.subnet a → c"), "{subnets:?}");
    let found = with_cluster(&machines, |cluster| {
        let checks = super::super::links::CHECKS.iter().chain(CHECKS);
        let found: Vec<Finding> = checks.flat_map(|check| (check.examine)(&cluster)).collect();
        folded(&found, &cluster)
    });
    assert_eq!(found, ["link.down < mesh.subnet"]);
}

/// Folds findings and writes each with the ids of its consequences.
fn folded(found: &[Finding], cluster: &Cluster<'_>) -> Vec<String> {
    let line = |folded: super::super::FoldedFinding| {
        let effects: Vec<String> = folded.consequences.iter().map(|f| f.id.to_string()).collect();
        format!("{} < {}", folded.finding.id, effects.join(" "))
    };
    fold(found, cluster).into_iter().map(line).collect()
}

#[test]
fn two_ports_on_one_subnet_must_answer_for_themselves() {
    let with = |ignore: u8, announce: u8| {
        Machine::recorded("dual-port")
            .change(|inventory| readdress(inventory, "192.168.20.21", "192.168.10.22"))
            .diagnosed(|diagnostics| {
                let state = |name: &str| InterfaceState {
                    name: name.into(),
                    arp_ignore: Some(ignore),
                    arp_announce: Some(announce),
                    ..InterfaceState::default()
                };
                diagnostics.interfaces = ["ens3f0np0", "ens3f1np1"].map(state).into();
            })
    };
    let expected = "warn mesh.duplicate a: ens3f0np0 and ens3f1np1 are both on 192.168.10.0/24 — each answers ARP for the \
                    other, so RoCE packets reach the wrong port";
    assert_eq!(lines(duplicate, &[with(0, 0)]), [expected]);
    let fix = with_cluster(&[with(0, 0)], |cluster| duplicate(&cluster)[0].fix.clone());
    let Step::Run(line) = &fix[0] else { panic!("{fix:?}") };
    assert!(line.starts_with("sudo sysctl -w net.ipv4.conf.all.arp_ignore=1 "), "{line}");
    assert!(lines(duplicate, &[with(1, 2)]).is_empty());
    let apart = with(0, 0).change(|i| readdress(i, "192.168.10.22", "192.168.20.21"));
    assert!(lines(duplicate, &[apart]).is_empty());
    assert!(lines(duplicate, &cabled()).is_empty());
}

#[test]
fn a_cable_in_the_port_beside_is_told_from_a_missing_one() {
    let fault = |other_has_link: bool| {
        let mut machines = cabled();
        let c = &mut machines[2].inventory;
        // The cable to a is in the port without an address: that of the other half of the card does not count.
        c.netdevs.retain(|netdev| !netdev.name.starts_with("enP2p1s0"));
        c.rdma.retain(|device| !device.name.starts_with("roceP2p1s0"));
        let bare = |text: &str| text.replace("f1", "f2").replace("f2np1", "f2np2");
        let mut device = c.rdma.iter().find(|d| d.name == "rocep1s0f1").unwrap().clone();
        let mut netdev = c.netdevs.iter().find(|n| n.name == "enp1s0f1np1").unwrap().clone();
        (netdev.name, netdev.port_name) = (bare(&netdev.name), Some("p2".into()));
        netdev.addresses.clear();
        netdev.running = other_has_link;
        device.name = bare(&device.name);
        device.ports[0].netdev = Some(netdev.name.clone());
        device.ports[0].gids.truncate(1);
        if !other_has_link {
            device.ports[0].state = PortState::Down;
        }
        let old = c.rdma.iter_mut().find(|d| d.name == "rocep1s0f1").unwrap();
        old.ports[0].state = PortState::Down;
        c.netdevs.iter_mut().filter(|n| n.name == "enp1s0f1np1").for_each(|n| n.running = false);
        c.rdma.push(device);
        c.netdevs.push(netdev);
        machines
    };
    let expected = "error mesh.cabling c rocep1s0f1/1: enp1s0f1np1 has 192.168.101.3 and no carrier, enp1s0f2np2 beside it a \
                    carrier and no address — the cable to a is likely in the wrong port";
    assert_eq!(lines(cables::misplaced, &fault(true)), [expected]);
    assert!(lines(cables::misplaced, &fault(false)).is_empty());
    assert!(lines(cables::misplaced, &cabled()).is_empty());
    assert!(lines(cables::misplaced, &vec![Machine::recorded("connectx3"); 2]).is_empty());
}

/// Probes of a triangle of cables: logins between all hosts, and datagrams on each cable, of which those with this
/// host are silent.
fn probes(silent: impl Fn(usize, usize) -> bool) -> Vec<Probe> {
    let links = [(0, "f0np0", 1, "f0np0"), (0, "f1np1", 2, "f1np1"), (1, "f1np1", 2, "f0np0")];
    let both = links.iter().flat_map(|&(a, x, b, y)| [(a, x, b), (b, y, a)]);
    let link = |(from, netdev, to): (usize, &str, usize)| Probe {
        from,
        to,
        kind: ProbeKind::PathMtu(4156),
        netdev: Some(format!("enp1s0{netdev}")),
        address: Some("192.168.100.3".parse().unwrap()),
        outcome: if silent(from, to) { ProbeOutcome::Silent } else { ProbeOutcome::Worked(80) },
    };
    let login = |(from, _, to): (usize, &str, usize)| Probe {
        from,
        to,
        kind: ProbeKind::Tcp,
        netdev: None,
        address: None,
        outcome: ProbeOutcome::Worked(90),
    };
    both.clone().map(link).chain(both.map(login)).collect()
}

fn found(
    examine: fn(&Cluster<'_>) -> Vec<Finding>,
    machines: &[Machine],
    probes: &[Probe],
) -> Vec<String> {
    probed(examine, machines, probes).iter().map(line).collect()
}

#[test]
fn swapped_cables_are_those_of_the_host_that_nobody_answers() {
    let swapped = probes(|from, to| from == 0 || to == 0);
    let expected = "error mesh.cabling a: enp1s0f0np0, enp1s0f1np1 have a carrier, and nothing answers on them from b, c — \
                    their cables are likely swapped";
    assert_eq!(found(cables::misplaced, &cabled(), &swapped), [expected]);
    assert!(found(cables::misplaced, &cabled(), &probes(|_, _| false)).is_empty());
    let one_link = probes(|from, to| from + to == 1);
    assert!(found(cables::misplaced, &cabled(), &one_link).is_empty(), "one cable is not swapped");
    let mut filtered = cabled();
    filtered[0] =
        filtered[0].clone().diagnosed(|d| d.firewall.as_mut().unwrap().drops_by_default = true);
    assert!(found(cables::misplaced, &filtered, &swapped).is_empty());
    filtered[0] = filtered[0].clone().diagnosed(|d| d.firewall = None);
    assert!(found(cables::misplaced, &filtered, &swapped).is_empty(), "who knows");
}

#[test]
fn a_silent_link_is_one_finding() {
    let one_link = probes(|from, to| from + to == 1);
    let expected = "warn mesh.silent a enp1s0f0np0 → b: no answer to datagrams between RDMA interfaces — the ports should \
                    reach each other, and connections time out";
    assert_eq!(found(super::probed::silent, &cabled(), &one_link), [expected]);
    let queue_pair =
        |outcome: ProbeOutcome| Probe { kind: ProbeKind::Rdma, outcome, ..one_link[0].clone() };
    let with = |probe: Probe| one_link.iter().cloned().chain([probe]).collect::<Vec<Probe>>();
    let works = with(queue_pair(ProbeOutcome::Worked(3)));
    // The datagrams of the other direction are still silent.
    assert_eq!(found(super::probed::silent, &cabled(), &works).len(), 1);
    let failure = unproved(id::MESH_SILENT, "token: status 12", false);
    let silent = with(queue_pair(failure));
    let lines = found(super::probed::silent, &cabled(), &silent);
    assert!(
        lines.len() == 1
            && lines[0].starts_with(
                "error mesh.silent a enp1s0f0np0 → b: no answer to RDMA (token: status 12)"
            )
    );
    let fix = probed(super::probed::silent, &cabled(), &silent)[0].fix.clone();
    assert_eq!(fix[0], Step::Run("ping -c 3 -I enp1s0f0np0 192.168.100.3".into()));
    assert!(format!("{:?}", fix[1]).contains("UDP port 4791"), "{fix:?}");
    assert!(found(super::probed::silent, &cabled(), &probes(|_, _| false)).is_empty());
}

/// Two hosts with two links: the second one fails in the other direction only.
#[test]
fn each_link_of_two_hosts_is_a_finding() {
    let one = Machine::recorded("dual-port");
    let other = one.clone().change(|inventory| {
        readdress(inventory, "192.168.10.21", "192.168.10.22");
        readdress(inventory, "192.168.20.21", "192.168.20.22");
    });
    let probe = |from, to, netdev: &str, address: &str| Probe {
        from,
        to,
        kind: ProbeKind::PathMtu(4156),
        netdev: Some(netdev.into()),
        address: address.parse().ok(),
        outcome: ProbeOutcome::Silent,
    };
    let probes = [
        probe(0, 1, "ens3f0np0", "192.168.10.22"),
        probe(1, 0, "ens3f0np0", "192.168.10.21"),
        probe(1, 0, "ens3f1np1", "192.168.20.21"),
    ];
    let lines = found(super::probed::silent, &[one, other], &probes);
    assert!(
        lines.len() == 2
            && lines[0].starts_with("warn mesh.silent a ens3f0np0 → b: ")
            && lines[1].starts_with("warn mesh.silent b ens3f1np1 → a: "),
        "{lines:?}"
    );
}

#[test]
fn a_refusal_of_the_kernel_is_quoted() {
    let mut probes = probes(|_, _| false);
    probes[0].outcome = ProbeOutcome::Failed("Network is unreachable (os error 101)".into());
    let findings = probed(super::probed::unreachable, &cabled(), &probes);
    let expected = "error mesh.route a enp1s0f0np0 → b: 192.168.100.3: Network is unreachable (os error 101) — RDMA cannot \
                    connect there";
    assert_eq!(findings.iter().map(line).collect::<Vec<_>>(), [expected]);
    assert_eq!(findings[0].fix[0], Step::Run("ip route get 192.168.100.3 oif enp1s0f0np0".into()));
}

#[test]
fn a_datagram_that_a_rule_refuses_is_a_warning() {
    let mut probes = probes(|_, _| false);
    probes[0].outcome = ProbeOutcome::Failed("Operation not permitted (os error 1)".into());
    let findings = probed(super::probed::unreachable, &cabled(), &probes);
    let expected = "warn mesh.route a enp1s0f0np0 → b: 192.168.100.3: Operation not permitted (os error 1) — a packet filter \
                    refuses datagrams there, and may refuse RDMA";
    assert_eq!(findings.iter().map(line).collect::<Vec<_>>(), [expected]);
    assert!(format!("{:?}", findings[0].fix).contains("nft list ruleset"), "{findings:?}");
}

fn unproved(finding: CheckId, cause: &str, is_of_host: bool) -> ProbeOutcome {
    let hint = Some("do this".to_owned());
    ProbeOutcome::Unproved(ProofFailure { finding, cause: cause.into(), hint, is_of_host })
}

fn queue_pair(from: usize, to: usize, netdev: &str, outcome: ProbeOutcome) -> Probe {
    let address = "192.168.100.3".parse().ok();
    Probe { from, to, kind: ProbeKind::Rdma, netdev: Some(netdev.into()), address, outcome }
}

#[test]
fn a_proof_that_failed_says_why() {
    let memory = || unproved(id::LIM_MEMLOCK, "prepare: mlx5_0: ibv_reg_mr: no memory", true);
    let probes = [
        queue_pair(0, 1, "enp1s0f0np0", memory()),
        queue_pair(0, 2, "enp1s0f1np1", memory()),
        queue_pair(1, 2, "enp1s0f1np1", unproved(id::MESH_PROOF, "token: status 10", false)),
    ];
    let findings = crate::findings::merge(probed(super::probed::failed, &cabled(), &probes));
    assert_eq!(
        findings.iter().map(line).collect::<Vec<_>>(),
        [
            "error lim.memlock a: the test of RDMA failed: prepare: mlx5_0: ibv_reg_mr: no memory — RDMA cannot be used \
             there",
            "error mesh.proof b enp1s0f1np1 → c: the test of RDMA failed: token: status 10 — RDMA cannot be used there",
        ]
    );
    assert_eq!(findings[0].fix, [Step::Do("do this".into())]);
    assert!(probed(super::probed::silent, &cabled(), &probes).is_empty());
    assert!(probed(super::probed::unreachable, &cabled(), &probes).is_empty());

    let late = "prepare: not tried within 5 s (--mesh-timeout)";
    let late = [queue_pair(0, 1, "enp1s0f0np0", unproved(id::MESH_PROOF, late, false))];
    let lines = found(super::probed::failed, &cabled(), &late);
    assert!(lines[0].starts_with("warn mesh.proof a enp1s0f0np0 → b: "), "{lines:?}");
    assert!(lines[0].ends_with(" — whether RDMA works there is not known"), "{lines:?}");

    let route = unproved(id::MESH_ROUTE, "connect: ibv_modify_qp to RTR: no route", false);
    let route = [queue_pair(0, 1, "enp1s0f0np0", route)];
    let lines = found(super::probed::unreachable, &cabled(), &route);
    assert!(
        lines[0].starts_with("error mesh.route a enp1s0f0np0 → b: 192.168.100.3: connect: ibv")
    );
    assert!(found(super::probed::failed, &cabled(), &route).is_empty());
}

/// The limit itself is a finding, and the proof its consequence.
#[test]
fn a_proof_that_failed_for_a_known_fault_follows_from_it() {
    let mut machines = cabled();
    machines[0].inventory.limits.locked_memory = Some(65536);
    machines[0].diagnostics.uid = 1000;
    let memory = unproved(id::LIM_MEMLOCK, "prepare: mlx5_0: ibv_reg_mr: no memory", true);
    let probes = [queue_pair(0, 1, "enp1s0f0np0", memory)];
    let shown = with_cluster(&machines, |cluster| {
        let Cluster { hosts, plan, .. } = cluster;
        let cluster = Cluster { hosts, plan, probes: Some(&probes), ..Cluster::default() };
        let found = [id::LIM_MEMLOCK, id::MESH_PROOF].map(|id| super::super::find(id.as_str()));
        let found = found.into_iter().flatten().flat_map(|check| (check.examine)(&cluster));
        folded(&found.collect::<Vec<_>>(), &cluster)
    });
    assert_eq!(shown, ["lim.memlock < mesh.proof"]);
}

/// Both rails between two hosts fail, each told by another end.
#[test]
fn each_failed_rail_is_named() {
    let silent = || unproved(id::MESH_SILENT, "token: status 12", false);
    let probes =
        [queue_pair(1, 0, "enp1s0f0np0", silent()), queue_pair(0, 1, "enp1s0f1np1", silent())];
    assert_eq!(found(super::probed::silent, &cabled(), &probes).len(), 2);
}

#[test]
fn silence_on_infiniband_is_not_searched_by_ip() {
    let machines = vec![Machine::recorded("connectx3"); 2];
    let name = with_cluster(&machines, |cluster| {
        let port = &cluster.plan.unwrap().ports[0][0].nic;
        port.netdev.clone().unwrap_or_else(|| format!("{}/{}", port.device, port.port))
    });
    let silent = unproved(id::MESH_SILENT, "token: status 12", false);
    let found = probed(super::probed::silent, &machines, &[queue_pair(0, 1, &name, silent)]);
    let fix = format!("{:?}", found[0].fix);
    assert!(fix.contains("ibping") && fix.contains("partition key"), "{fix}");
    assert!(!fix.contains("ping -c") && !fix.contains("4791"), "{fix}");
}

#[test]
fn a_slow_path_is_below_its_limit_or_the_others() {
    let measured = |rates: &[u64], limit: Option<u32>| {
        let pairs = [(0, 1), (0, 2), (1, 2), (1, 0)];
        let probe = |(&rate, (from, to)): (&u64, (usize, usize))| Probe {
            from,
            to,
            kind: ProbeKind::Bandwidth { limit },
            netdev: Some("enp1s0f0np0".into()),
            address: None,
            outcome: ProbeOutcome::Worked(rate),
        };
        let probes: Vec<Probe> = rates.iter().zip(pairs).map(probe).collect();
        found(super::probed::slow, &cabled(), &probes)
    };
    let expected = "warn mesh.bandwidth a enp1s0f0np0 → c: 61.0 of 98.0 Gb/s — collectives are as slow as their slowest path";
    assert_eq!(measured(&[97_000, 61_000, 96_500], Some(98_000)), [expected]);
    let among = measured(&[97_000, 61_000, 96_500], None);
    assert!(among.len() == 1 && among[0].contains("61.0 Gb/s, others 96.5"), "{among:?}");
    assert!(measured(&[97_000, 96_000, 96_500], Some(98_000)).is_empty());
    assert!(measured(&[97_000, 61_000], None).is_empty(), "two say nothing about each other");
}
