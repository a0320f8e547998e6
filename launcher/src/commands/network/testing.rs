//! Hosts for tests.

use super::Surveyed;
use super::cabled::CabledHosts;
use super::links::{CableEnd, FoundLink, LinkKind};
use rlaunch_bootstrap::inventory::Inventory;
use rlaunch_bootstrap::inventory::net::{Netdev, NetdevKind, Route};
use rlaunch_bootstrap::protocol::network::{
    BeaconReport, HeardBeacon, HostInterface, HostNetwork, LinkLocal,
};
use std::net::IpAddr;

/// Network card with a cable, 100 Gb/s, without addresses.
pub(super) fn interface(name: &str) -> HostInterface {
    let netdev = Netdev {
        name: name.into(),
        kind: NetdevKind::Physical,
        mtu: 1500,
        speed: Some(100_000),
        running: true,
        ..Netdev::default()
    };
    HostInterface { netdev, is_up: true, ipv6: LinkLocal::Usable, ..HostInterface::default() }
}

/// Splits `10.0.0.170/24`.
fn address(text: &str) -> (IpAddr, u8) {
    let (address, prefix) = text.split_once('/').unwrap();
    (address.parse().unwrap(), prefix.parse().unwrap())
}

/// Gives an interface an address.
pub(super) fn with_address(mut interface: HostInterface, text: &str) -> HostInterface {
    interface.netdev.addresses.push(address(text));
    interface
}

/// Host with an interface `eno1`, which carries SSH and the default route.
pub(super) struct HostBuilder(HostNetwork);

impl HostBuilder {
    pub(super) fn new(management: &str) -> HostBuilder {
        let ssh = address(management).0;
        let gateway = Some("10.0.0.1".parse().unwrap());
        let default = Route {
            netdev: "eno1".into(),
            destination: "0.0.0.0".parse().unwrap(),
            prefix: 0,
            gateway,
        };
        let network = HostNetwork {
            interfaces: vec![with_address(interface("eno1"), management)],
            routes: vec![default, "eno1 10.0.0.0/24".parse().unwrap()],
            ssh_address: Some(ssh),
            ssh_client: "10.0.0.9".parse().ok(),
            ..HostNetwork::default()
        };
        HostBuilder(network)
    }

    pub(super) fn with(mut self, more: impl IntoIterator<Item = HostInterface>) -> HostBuilder {
        self.0.interfaces.extend(more);
        self
    }

    pub(super) fn build(self) -> HostNetwork {
        self.0
    }
}

/// Hosts titanic, iceberg and carpathia with two ports each, `enp1s0f0np0` and `enp1s0f1np1`.
pub(super) fn three_hosts() -> Vec<Surveyed> {
    let host = |(index, name): (usize, &str)| {
        let network = HostBuilder::new(&format!("10.0.0.17{index}/24"));
        let network = network.with(["enp1s0f0np0", "enp1s0f1np1"].map(interface)).build();
        Surveyed { name: name.into(), network, hearing: BeaconReport::default(), down: Vec::new() }
    };
    ["titanic", "iceberg", "carpathia"].into_iter().enumerate().map(host).collect()
}

pub(super) fn end(host: usize, interface: &str) -> CableEnd {
    CableEnd { host, interface: interface.into() }
}

pub(super) fn cable(one: (usize, &str), other: (usize, &str)) -> FoundLink {
    let ends = vec![end(one.0, one.1), end(other.0, other.1)];
    FoundLink { kind: LinkKind::Cable, ends, silent: Vec::new() }
}

/// Cables of the guide's triangle: the first ports of the first two hosts, and so on.
pub(super) fn triangle() -> Vec<FoundLink> {
    vec![
        cable((0, "enp1s0f0np0"), (1, "enp1s0f0np0")),
        cable((0, "enp1s0f1np1"), (2, "enp1s0f0np0")),
        cable((1, "enp1s0f1np1"), (2, "enp1s0f1np1")),
    ]
}

/// Two interfaces that hear each other, each with the index of its host.
pub(in crate::commands) type Cable<'a> = ((usize, &'a str), (usize, &'a str));

/// Makes hosts of recorded machines, in which these interfaces hear each other. They are reached by their first addresses.
pub(in crate::commands) fn recorded_cables(
    machines: &[(&str, Inventory)],
    cables: &[Cable<'_>],
) -> CabledHosts {
    let both = cables.iter().flat_map(|(one, other)| [(*one, *other), (*other, *one)]);
    let heard: Vec<Cable<'_>> = both.collect();
    let host = |(index, (name, machine)): (usize, &(&str, Inventory))| {
        let beacons = heard.iter().filter(|(at, _)| at.0 == index);
        let beacon = |(at, from): &Cable<'_>| HeardBeacon {
            on: at.1.into(),
            host: u32::try_from(from.0).unwrap(),
            interface: from.1.into(),
        };
        let hearing = BeaconReport { heard: beacons.map(beacon).collect(), mute: Vec::new() };
        Surveyed { name: (*name).into(), network: network_of(machine), hearing, down: Vec::new() }
    };
    CabledHosts::without_agents(machines.iter().enumerate().map(host).collect()).unwrap()
}

/// Makes the network of a recorded machine, with all interfaces set up.
fn network_of(machine: &Inventory) -> HostNetwork {
    let interface = |netdev: &Netdev| {
        let devices = machine.rdma.iter().filter(|device| {
            device.ports.iter().any(|port| port.netdev.as_ref() == Some(&netdev.name))
        });
        let devices: Vec<_> = devices.collect();
        let guid = devices.iter().find_map(|device| device.image_guid.as_deref());
        let socket = guid.zip(netdev.port_name.as_deref());
        HostInterface {
            netdev: netdev.clone(),
            is_up: true,
            ipv6: LinkLocal::Usable,
            rdma: devices.iter().map(|device| device.name.clone()).collect(),
            socket: socket.map(|(guid, port)| format!("{guid} {port}")),
            ..HostInterface::default()
        }
    };
    let real = machine.netdevs.iter().filter(|netdev| netdev.kind != NetdevKind::Loopback);
    let interfaces: Vec<HostInterface> = real.map(interface).collect();
    let ssh_address =
        interfaces.iter().flat_map(|one| &one.netdev.addresses).map(|(own, _)| *own).next();
    HostNetwork {
        interfaces,
        routes: machine.routes.clone(),
        ssh_address,
        ..HostNetwork::default()
    }
}
