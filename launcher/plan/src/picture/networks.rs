//! Networks between hosts: which ports are in one network, by their addresses and routes.

use super::ports::HostPort;
use crate::limit;
use crate::mesh::show::transport_name;
use crate::selection::Plan;
use rlaunch_bootstrap::rank_table::{NicId, Transport};
use rlaunch_plot::topology::{LineStyle, Network};
use rlaunch_text::text;
use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;

/// Maximum number of subnets that are named for one network.
const NAMED: usize = 2;

/// Networks that connect hosts.
#[derive(Clone, Debug, Default)]
pub(super) struct HostNetworks {
    pub(super) networks: Vec<Network>,
    /// Index of each port's network, by host and port.
    by_port: Vec<Vec<Option<usize>>>,
}

/// Port by the indices of its host and of the port there.
type PortId = (usize, usize);

/// Set of ports that are connected, as a forest in which each port leads to another of its network.
struct Connected {
    parents: BTreeMap<PortId, PortId>,
}

impl Connected {
    fn root(&self, port: PortId) -> PortId {
        let mut port = port;
        while let Some(parent) = self.parents.get(&port) {
            port = *parent;
        }
        port
    }

    /// Connects two ports. The lower one of their networks' roots is that of both.
    fn connect(&mut self, one: PortId, other: PortId) {
        let (one, other) = (self.root(one), self.root(other));
        if one != other {
            self.parents.insert(one.max(other), one.min(other));
        }
    }
}

impl HostNetworks {
    /// Finds the networks between hosts with these ports.
    pub(super) fn find(names: &[&str], ports: &[Vec<HostPort<'_>>], plan: &Plan) -> HostNetworks {
        let members = members(ports);
        let mut connected = Connected { parents: BTreeMap::new() };
        for ids in members.values() {
            ids.iter().for_each(|id| connected.connect(ids[0], *id));
        }
        for exception in plan.exceptions.iter().filter(|exception| exception.reach) {
            let ends = [exception.a, exception.b].map(|nic| port_of(ports, plan, nic));
            if let [Some(one), Some(other)] = ends {
                connected.connect(one, other);
            }
        }
        let all = (0..ports.len()).flat_map(|host| (0..ports[host].len()).map(move |p| (host, p)));
        let mut groups: BTreeMap<PortId, Vec<PortId>> = BTreeMap::new();
        for id in all {
            groups.entry(connected.root(id)).or_default().push(id);
        }
        let mut found = HostNetworks {
            networks: Vec::new(),
            by_port: ports.iter().map(|ports| vec![None; ports.len()]).collect(),
        };
        for ids in groups.into_values() {
            let hosts: BTreeSet<usize> = ids.iter().map(|(host, _)| *host).collect();
            if hosts.len() < 2 {
                continue;
            }
            for (host, port) in &ids {
                found.by_port[*host][*port] = Some(found.networks.len());
            }
            found.networks.push(describe(names, ports, &ids, &hosts, &members));
        }
        found
    }

    /// Returns the index of a port's network.
    pub(super) fn network_of(&self, host: usize, port: usize) -> Option<usize> {
        self.by_port.get(host)?.get(port).copied().flatten()
    }
}

/// Lists the ports of each network that has ports of several hosts, with different addresses: an address that hosts
/// share, such as that of a container engine's bridge, connects nothing.
fn members(ports: &[Vec<HostPort<'_>>]) -> BTreeMap<String, Vec<PortId>> {
    let mut members: BTreeMap<String, Vec<(PortId, Option<IpAddr>)>> = BTreeMap::new();
    for (host, ports) in ports.iter().enumerate() {
        for (index, port) in ports.iter().enumerate() {
            for network in &port.networks {
                let member = ((host, index), network.address);
                members.entry(network.name.clone()).or_default().push(member);
            }
        }
    }
    members.retain(|_, members| {
        let Some(((first, _), address)) = members.first().copied() else { return false };
        let is_other = |((host, _), own): &(PortId, Option<IpAddr>)| {
            *host != first && (own.is_none() || *own != address)
        };
        members.iter().any(is_other)
    });
    let ids = |members: Vec<(PortId, Option<IpAddr>)>| members.into_iter().map(|m| m.0).collect();
    members.into_iter().map(|(name, members)| (name, ids(members))).collect()
}

/// Returns the port of an RDMA port in the plan.
fn port_of(ports: &[Vec<HostPort<'_>>], plan: &Plan, nic: NicId) -> Option<PortId> {
    let host = nic.node.index();
    let usable = &plan.ports.get(host)?.get(nic.nic as usize)?.nic;
    let wanted = Some((usable.device.as_str(), usable.port));
    let index = ports.get(host)?.iter().position(|port| port.device == wanted)?;
    Some((host, index))
}

/// Describes a network: subnets, transport, rate, and hosts or their number.
fn describe(
    names: &[&str],
    ports: &[Vec<HostPort<'_>>],
    ids: &[PortId],
    hosts: &BTreeSet<usize>,
    members: &BTreeMap<String, Vec<PortId>>,
) -> Network {
    let own = |(host, port): &PortId| &ports[*host][*port];
    let mut transports: Vec<(Transport, usize)> = Vec::new();
    for (host, transport) in ids.iter().filter_map(|id| Some((id.0, own(id).transport?))) {
        if !transports.contains(&(transport, host)) {
            transports.push((transport, host));
        }
    }
    let is_shared =
        |transport: &Transport| transports.iter().filter(|(own, _)| own == transport).count() > 1;
    let all = [Transport::Infiniband, Transport::Roce, Transport::Iwarp];
    let shared: Vec<Transport> = all.into_iter().filter(is_shared).collect();
    let style = match shared[..] {
        [] => LineStyle::Dashed,
        [Transport::Infiniband, ..] => LineStyle::Wide,
        _ => LineStyle::Plain,
    };
    let by = match shared[..] {
        [] => "TCP".to_owned(),
        _ => shared.iter().copied().map(transport_name).collect::<Vec<_>>().join(" and "),
    };
    let mut parts = vec![format!("{}: {by}", subnets(ids, members))];
    parts.extend(rates(ids.iter().filter_map(|id| own(id).megabits)));
    let hosts: Vec<&str> = hosts.iter().filter_map(|host| names.get(*host).copied()).collect();
    parts.push(match hosts[..] {
        [one, other] => format!("{one} and {other}"),
        _ => text::count(hosts.len(), "host"),
    });
    Network { text: parts.join(", "), style }
}

/// Names the subnets of a network, those of most ports first.
fn subnets(ids: &[PortId], members: &BTreeMap<String, Vec<PortId>>) -> String {
    let ids: BTreeSet<PortId> = ids.iter().copied().collect();
    let is_own = |(_, members): &(&String, &Vec<PortId>)| {
        members.first().is_some_and(|first| ids.contains(first))
    };
    let mut names: Vec<(&String, &Vec<PortId>)> = members.iter().filter(is_own).collect();
    // Default routes lead everywhere.
    let is_special = |name: &str| !name.ends_with("/0");
    if names.iter().any(|(name, _)| is_special(name)) {
        names.retain(|(name, _)| is_special(name));
    }
    names.sort_by_key(|(name, members)| (std::cmp::Reverse(members.len()), *name));
    let shown = names.iter().take(NAMED).map(|(name, _)| match name.strip_prefix("ib ") {
        Some(prefix) => format!("subnet {prefix}"),
        None => (*name).clone(),
    });
    let mut shown: Vec<String> = shown.collect();
    if names.len() > NAMED {
        shown.push(format!("{} more", names.len() - NAMED));
    }
    match shown.is_empty() {
        true => "routed".to_owned(),
        false => shown.join(" and "),
    }
}

/// Describes rates in Mb/s: `200 Gb/s`, or `25 to 100 Gb/s`.
fn rates(megabits: impl Iterator<Item = u32>) -> Option<String> {
    let all: BTreeSet<u32> = megabits.collect();
    let (least, most) = (*all.first()?, *all.last()?);
    let (least, most) = (limit::short_gigabits(least), limit::short_gigabits(most));
    Some(match least == most {
        true => format!("{most} Gb/s"),
        false => format!("{least} to {most} Gb/s"),
    })
}
