//! Pictures of recorded machines.

use super::*;
use crate::testing::{decided, inventory, map_of_named, pair, triangle};
use rlaunch_plot::PlotFile;
use rlaunch_plot::topology::{LineStyle, PortRow};
use std::net::{IpAddr, Ipv4Addr};

/// Returns copies of a machine, each with its own addresses.
fn cluster(name: &str, count: u32) -> Vec<Inventory> {
    let machine = inventory(name);
    let numbered = |number: u32| {
        let mut machine = machine.clone();
        let shifted = |v4: Ipv4Addr| Ipv4Addr::from_bits(v4.to_bits() + number);
        for (address, _) in machine.netdevs.iter_mut().flat_map(|netdev| &mut netdev.addresses) {
            if let IpAddr::V4(v4) = *address {
                *address = IpAddr::V4(shifted(v4));
            }
        }
        for gid in machine.rdma.iter_mut().flat_map(|d| &mut d.ports).flat_map(|p| &mut p.gids) {
            if let Some(v4) = gid.value.to_ipv4_mapped() {
                gid.value = shifted(v4).to_ipv6_mapped();
            }
        }
        machine
    };
    (0..count).map(numbered).collect()
}

fn names(count: u32) -> Vec<String> {
    (1..=count).map(|number| format!("n{number:02}")).collect()
}

fn drawn(machines: &[Inventory]) -> Topology {
    let names = names(u32::try_from(machines.len()).unwrap());
    hardware(&names.iter().map(String::as_str).collect::<Vec<_>>(), machines, &[])
}

fn placed(machines: &[Inventory], ranks: usize) -> Topology {
    let names = names(u32::try_from(machines.len()).unwrap());
    let map = map_of_named(&names.iter().map(String::as_str).collect::<Vec<_>>(), ranks);
    decided(&map, machines, |configs, table, _, _| placement(&map, machines, configs, table))
}

fn ports(topology: &Topology, host: usize) -> Vec<&PortRow> {
    let groups = topology.hosts[host].sections.iter().flat_map(|section| &section.groups);
    groups.flat_map(|group| &group.ports).collect()
}

fn port<'a>(topology: &'a Topology, host: usize, name: &str) -> &'a PortRow {
    let found = ports(topology, host).into_iter().find(|port| port.name == name);
    found.unwrap_or_else(|| panic!("{name}: {:?}", ports(topology, host)))
}

fn networks(topology: &Topology) -> Vec<&str> {
    topology.networks.iter().map(|network| network.text.as_str()).collect()
}

#[test]
fn each_cable_of_a_triangle_is_a_network() {
    let machines = triangle();
    let topology = hardware(&["titanic", "iceberg", "carpathia"], &machines, &[]);
    assert_eq!(topology.title, "hardware of titanic, iceberg, carpathia");
    assert_eq!(
        networks(&topology),
        [
            "192.168.100.0/24: RoCE v2, 200 Gb/s, titanic and iceberg",
            "192.168.101.0/24: RoCE v2, 200 Gb/s, titanic and carpathia",
            "192.168.102.0/24: RoCE v2, 200 Gb/s, iceberg and carpathia",
        ]
    );
    let first = port(&topology, 0, "rocep1s0f0/1 (enp1s0f0np0)");
    assert_eq!((first.rate.as_str(), first.network), ("200 Gb/s, PCIe 126", Some(0)));
    assert_eq!(first.address, "192.168.100.2/24");
    let unused = port(&topology, 0, "roceP2p1s0f0/1 (enP2p1s0f0np0)");
    assert_eq!((unused.rate.as_str(), unused.network), ("200 Gb/s, PCIe 126, no address", None));
    assert_eq!(port(&topology, 1, "rocep1s0f0/1 (enp1s0f0np0)").network, Some(0));
    // All three have the same management address in this recording, so it connects nothing.
    assert_eq!(port(&topology, 2, "enP7s7").network, None);
}

#[test]
fn infiniband_and_its_addresses_are_one_network() {
    let topology = hardware(&["pc1", "pc2"], &pair(), &["pc3".to_owned()]);
    let infiniband = topology.networks.iter().find(|network| network.style == LineStyle::Wide);
    assert_eq!(
        infiniband.unwrap().text,
        "192.168.100.0/24 and subnet fe80000000000000: InfiniBand, 56 Gb/s, pc1 and pc2"
    );
    assert!(networks(&topology).contains(&"192.168.1.0/24: TCP, 2.5 Gb/s, pc1 and pc2"));
    let card = port(&topology, 0, "mlx4_0/1 (ibp195s0)");
    assert_eq!(card.rate, "56 Gb/s, PCIe 31.5");
    let second = port(&topology, 0, "mlx4_0/2 (ibp195s0d1)");
    assert_eq!((second.is_down, second.rate.as_str(), second.network), (true, "DOWN", None));
    assert!(topology.notes.contains(&"no answer from pc3".to_owned()), "{:?}", topology.notes);
}

#[test]
fn rails_are_networks_and_switches_are_groups() {
    let topology = drawn(&cluster("dgx", 4));
    assert_eq!(topology.hosts.len(), 4);
    let wanted = [
        "10.0.0.0/24: RoCE v2, 400 Gb/s, 4 hosts",
        "10.7.0.0/24: RoCE v2, 400 Gb/s, 4 hosts",
        "10.128.0.0/24: TCP, 10 Gb/s, 4 hosts",
    ];
    for wanted in wanted {
        assert!(networks(&topology).contains(&wanted), "{:?}", networks(&topology));
    }
    assert_eq!(topology.networks.len(), 9);
    let sections = &topology.hosts[3].sections;
    let labels: Vec<&str> = sections.iter().map(|section| section.label.as_str()).collect();
    let numa = ["0: CPUs 0-55,112-167, 1008 GiB", "1: CPUs 56-111,168-223, 1008 GiB"];
    let numa = numa.map(|label| format!("NUMA node {label}"));
    assert_eq!(labels, [&*numa[0], &*numa[1], "NUMA node not known"]);
    let groups: Vec<(bool, usize, usize)> = sections
        .iter()
        .flat_map(|section| &section.groups)
        .map(|group| (group.is_switch, group.gpus.len(), group.ports.len()))
        .collect();
    let switch = (true, 2, 2);
    assert_eq!(groups, [switch, switch, switch, switch, (false, 0, 1)]);
    assert_eq!(sections[0].groups[0].gpus[0].name, "0000:13:00.0 H100 80GB HBM3");
}

#[test]
fn a_placement_says_what_each_rank_uses() {
    let topology = placed(&cluster("dgx", 2), 8);
    assert_eq!(topology.title, "16 ranks on n01, n02");
    for rank in 0..16 {
        let host = &topology.hosts[rank / 8];
        let section = &host.sections[rank % 8 / 4];
        let group = &section.groups[rank % 4 / 2];
        let cpus = ["0-55,112-167", "56-111,168-223"][rank % 8 / 4];
        assert_eq!(group.ranks[rank % 2], format!("rank {rank} · CPUs {cpus}"));
        let name = format!("rank {rank}");
        assert_eq!(group.gpus[rank % 2].used_by, Some(name.clone()));
        assert_eq!(group.ports[rank % 2].used_by, Some(name));
    }
    assert_eq!(port(&topology, 0, "eno1").used_by, None);
}

#[test]
fn a_rank_is_at_each_port_that_another_host_needs() {
    let machines = triangle();
    let map = map_of_named(&["titanic", "iceberg", "carpathia"], 1);
    let topology =
        decided(&map, &machines, |configs, table, _, _| placement(&map, &machines, configs, table));
    for host in 0..3 {
        let rank = Some(format!("rank {host}"));
        assert_eq!(port(&topology, host, "rocep1s0f0/1 (enp1s0f0np0)").used_by, rank);
        assert_eq!(port(&topology, host, "rocep1s0f1/1 (enp1s0f1np1)").used_by, rank);
        assert_eq!(port(&topology, host, "enP7s7").used_by, None);
    }
}

#[test]
fn tcp_uses_the_interface_of_the_address() {
    let topology = placed(&cluster("no-rdma", 2), 2);
    let used: Vec<(&str, &str)> = ports(&topology, 1)
        .into_iter()
        .filter_map(|port| Some((port.name.as_str(), port.used_by.as_deref()?)))
        .collect();
    assert_eq!(used.len(), 1, "{used:?}");
    assert_eq!(used[0].1, "ranks 2-3");
    let alone = placed(&cluster("no-rdma", 1), 2);
    assert!(ports(&alone, 0).iter().all(|port| port.used_by.is_none()));
    assert!(alone.notes[0].contains("shared memory"), "{:?}", alone.notes);
}

#[test]
fn hosts_that_are_alike_are_drawn_as_one() {
    let machines = cluster("dgx", 64);
    let topology = drawn(&machines);
    assert_eq!(topology.hosts.len(), 1);
    assert_eq!(topology.hosts[0].name, "n[01-64]");
    assert_eq!(topology.hosts[0].summary, "64 hosts alike, each 224 CPUs, 2016 GiB");
    assert!(ports(&topology, 0).iter().all(|port| port.address.is_empty()));
    assert_eq!(topology.networks.len(), 9);
    let placed = placed(&machines[..20], 8);
    assert_eq!(placed.hosts.len(), 1);
    let group = &placed.hosts[0].sections[0].groups[0];
    assert_eq!(group.ranks[0], "local rank 0 · CPUs 0-55,112-167");
    assert_eq!(group.ports[1].used_by.as_deref(), Some("local rank 1"));
}

#[test]
fn of_hosts_that_differ_the_first_are_drawn() {
    let mut machines = cluster("no-rdma", 20);
    for (number, machine) in machines.iter_mut().enumerate() {
        machine.netdevs.iter_mut().for_each(|netdev| netdev.name += &format!("x{number}"));
    }
    let topology = drawn(&machines);
    assert_eq!(topology.hosts.len(), 16);
    let note = "4 hosts not drawn: n[17-20]".to_owned();
    assert!(topology.notes.contains(&note), "{:?}", topology.notes);
}

#[test]
fn every_recorded_machine_is_drawn() {
    let machines = "\
        ack-node amd-apu bond connectx3 container dgx dual-port erdma-compat erdma-standard \
        esxi-vm ibsim macvlan-pod no-rdma rxe siw spark";
    let machines: Vec<&str> = machines.split(' ').collect();
    let all: Vec<Inventory> = machines.iter().map(|name| inventory(name)).collect();
    let topology = hardware(&machines, &all, &[]);
    let text = rlaunch_plot::svg(&[&topology]).unwrap();
    for (name, machine) in machines.iter().zip(&all) {
        assert!(text.contains(&format!("\n{name}\n")), "{name}");
        for device in &machine.rdma {
            assert!(text.contains(&format!("\n{}/1", device.name)), "{name}: {}", device.name);
        }
        for gpu in &machine.gpus {
            assert!(text.contains(&format!("\n{} ", gpu.pci.address)), "{name}");
        }
    }
}

#[test]
fn pictures_are_written_in_each_format() {
    let directory = tempfile::tempdir().unwrap();
    let machines = pair();
    let pictures = [("hardware", drawn(&machines)), ("placement", placed(&machines, 2))];
    for (name, topology) in &pictures {
        let write = |ending: &str| {
            let path = directory.path().join(format!("{name}.{ending}"));
            let file: PlotFile = path.to_str().unwrap().parse().unwrap();
            file.write(&topology.title, &[topology]).unwrap();
            std::fs::read_to_string(path).unwrap()
        };
        let svg = write("svg");
        let words = ["n01", "n02", "mlx4_0/1 (ibp195s0)", "0000:c4:00.0 AMD", "DOWN"];
        for word in words {
            assert!(svg.contains(&format!("\n{word}\n")), "{word} is not in {name}");
        }
        assert_eq!(svg.contains("\nrank 3 · CPUs 0-31\n"), *name == "placement");
        let html = write("html");
        assert!(
            html.contains(&format!("<title>{}</title>", topology.title)) && html.contains(&svg)
        );
    }
}

#[test]
fn names_are_folded_as_users_write_them() {
    assert_eq!(folded(&["n08", "n09", "n10", "login"]), "n[08-10], login");
    assert_eq!(folded(&["n8.x.org", "n9.x.org", "n10.x.org"]), "n[8-10].x.org");
    assert_eq!(folded(&["n08", "n9", "n10"]), "n08, n9, n10");
    assert_eq!(folded(&["n1", "n2", "n4", "a", "b"]), "n1, n2, n4, a, b");
    assert_eq!(folded(&["10.0.0.9", "10.0.0.10", "10.0.0.11"]), "10.0.0.[9-11]");
    assert_eq!(folded(&[]), "");
}

#[test]
fn hosts_are_alike_but_for_their_names() {
    let host = |name: &str, summary: &str| HostBox {
        name: name.into(),
        summary: summary.into(),
        ..HostBox::default()
    };
    let hosts = [host("a", "8 CPUs"), host("b", "4 CPUs"), host("c", "8 CPUs")];
    assert_eq!(groups_alike(&hosts), [vec![0, 2], vec![1]]);
}
