//! Pictures of hosts and of where ranks run, from inventories and the rank table.
//!
//! Up to 16 hosts are drawn one by one; of more, hosts that are alike are drawn as one. `launcher/plot` gives everything
//! its place and draws it.
//!
//! | file | subject |
//! |---|---|
//! | `networks` | network ports of a host, and which ports are in one network |
//! | `host` | the box of a host; CPUs, GPUs and ports of ranks |

mod host;
mod networks;
#[cfg(test)]
mod tests;

use crate::hosts::Host;
use crate::map::RankMap;
use crate::rank_config::RankConfig;
use crate::selection::{Plan, PortOptions};
use host::HostUses;
use networks::{HostNetworks, HostPort};
use rlaunch_bootstrap::id::NodeId;
use rlaunch_bootstrap::inventory::Inventory;
use rlaunch_bootstrap::rank_table::RankTable;
use rlaunch_plot::topology::{HostBox, Topology};
use rlaunch_text::text;
use std::collections::BTreeSet;

/// Maximum number of hosts that are drawn, one by one or as several that are alike.
const MAX_HOSTS: usize = 16;
/// Maximum length of the names of hosts in a title, in letters.
const MAX_TITLE: usize = 60;

/// Draws hosts with their devices, and the networks between them. `missing` are the names of hosts whose inventories are
/// not known.
pub fn hardware(names: &[&str], inventories: &[Inventory], missing: &[String]) -> Topology {
    let pictured = PicturedHosts::new(names, inventories);
    let mut topology = pictured.drawn(|host, _, _| pictured.host_box(host, None));
    topology.title = format!("hardware of {}", named_or_counted(names));
    if !topology.networks.is_empty() {
        let note = "networks are known from addresses; rlaunch network discover finds the cables";
        topology.notes.push(note.to_owned());
    }
    if !missing.is_empty() {
        topology.notes.push(format!("no answer from {}", text::list(missing)));
    }
    topology
}

/// Draws the hosts of a job, with the CPUs, the GPU and the ports that each rank uses. `inventories` and `rank_configs`
/// are by node.
pub fn placement(
    map: &RankMap,
    inventories: &[Inventory],
    rank_configs: &[Vec<RankConfig>],
    table: &RankTable,
) -> Topology {
    let names: Vec<String> = map.nodes.iter().map(|node| node.host.to_string()).collect();
    let names: Vec<&str> = names.iter().map(String::as_str).collect();
    let pictured = PicturedHosts::new(&names, inventories);
    let no_configs = Vec::new();
    let node = |host: usize| NodeId(u32::try_from(host).unwrap_or(u32::MAX));
    let mut topology = pictured.drawn(|host, is_local, peers| {
        let configs = rank_configs.get(host).unwrap_or(&no_configs);
        let peers: Vec<NodeId> = peers.iter().map(|host| node(*host)).collect();
        let inventory = &inventories[host];
        let uses = HostUses::new(table, node(host), inventory, configs, &peers, is_local);
        pictured.host_box(host, Some(&uses))
    });
    let ranks = text::count(map.world_size as usize, "rank");
    topology.title = format!("{ranks} on {}", named_or_counted(&names));
    topology.notes.push(match map.nodes.len() {
        1 => "all ranks are on one host, and reach each other through shared memory".to_owned(),
        _ => "a port has the numbers of the ranks for which it is the nearest to another host"
            .to_owned(),
    });
    if map.nodes.len() > MAX_HOSTS {
        let note = "ranks have their numbers on their host; --show placement lists all of them";
        topology.notes.push(note.to_owned());
    }
    if !map.unused.is_empty() {
        let unused: Vec<String> = map.unused.iter().map(Host::to_string).collect();
        topology.notes.push(format!("hosts without ranks: {}", text::list(&unused)));
    }
    topology
}

/// Writes the names of hosts, or their number if the names are long.
fn named_or_counted(names: &[&str]) -> String {
    let folded = folded(names);
    match folded.chars().count() {
        1..=MAX_TITLE => folded,
        _ => text::count(names.len(), "host"),
    }
}

/// Hosts with their ports, and the networks between them.
struct PicturedHosts<'a> {
    names: &'a [&'a str],
    inventories: &'a [Inventory],
    ports: Vec<Vec<HostPort<'a>>>,
    networks: HostNetworks,
}

impl<'a> PicturedHosts<'a> {
    fn new(names: &'a [&'a str], inventories: &'a [Inventory]) -> PicturedHosts<'a> {
        let plan = Plan::new(inventories, &PortOptions::default());
        let usable = inventories.iter().zip(&plan.ports);
        let ports: Vec<Vec<HostPort<'a>>> =
            usable.map(|(inventory, usable)| networks::list_ports(inventory, usable)).collect();
        let networks = HostNetworks::find(names, &ports, &plan);
        PicturedHosts { names, inventories, ports, networks }
    }

    fn host_box(&self, host: usize, uses: Option<&HostUses>) -> HostBox {
        let ports = &self.ports[host];
        let networks: Vec<Option<usize>> =
            (0..ports.len()).map(|port| self.networks.network_of(host, port)).collect();
        host::host_box(self.names[host], &self.inventories[host], ports, &networks, uses)
    }

    /// Draws all hosts. `drawn` draws one of them; it is told whether the box may stand for several hosts, and the other
    /// hosts that matter.
    fn drawn(&self, drawn: impl Fn(usize, bool, &[usize]) -> HostBox) -> Topology {
        let all: Vec<usize> = (0..self.names.len().min(self.ports.len())).collect();
        if all.len() <= MAX_HOSTS {
            let hosts = all.iter().map(|host| drawn(*host, false, &all)).collect();
            return self.topology(hosts, Vec::new());
        }
        // Which ports ranks use depends on all others, so it is not known before hosts are grouped.
        let boxes: Vec<HostBox> =
            all.iter().map(|host| without_addresses(drawn(*host, true, &[]))).collect();
        let groups = groups_alike(&boxes);
        let (shown, left_out) = groups.split_at(groups.len().min(MAX_HOSTS));
        // Two of the hosts that are alike stand for how all reach each other.
        let peers: Vec<usize> =
            shown.iter().flat_map(|group| group.iter().take(2)).copied().collect();
        let hosts = shown.iter().map(|group| {
            let names: Vec<&str> = group.iter().map(|host| self.names[*host]).collect();
            let mut one = without_addresses(drawn(group[0], true, &peers));
            if group.len() > 1 {
                one.name = folded(&names);
                one.summary =
                    format!("{} alike, each {}", text::count(group.len(), "host"), one.summary);
            }
            one
        });
        let mut notes = Vec::new();
        if !left_out.is_empty() {
            let names: Vec<&str> =
                left_out.iter().flatten().map(|host| self.names[*host]).collect();
            let count = text::count(names.len(), "host");
            notes.push(format!("{count} not drawn: {}", folded(&names)));
        }
        self.topology(hosts.collect(), notes)
    }

    /// Returns the picture of these boxes, with the networks that they show.
    fn topology(&self, mut hosts: Vec<HostBox>, notes: Vec<String>) -> Topology {
        let ports = |hosts: &[HostBox]| -> BTreeSet<usize> {
            let groups = hosts.iter().flat_map(|host| &host.sections).flat_map(|s| &s.groups);
            groups.flat_map(|group| &group.ports).filter_map(|port| port.network).collect()
        };
        // Numbers follow the hosts from top to bottom, and have no gaps.
        let shown: Vec<usize> = ports(&hosts).into_iter().collect();
        let groups =
            hosts.iter_mut().flat_map(|host| &mut host.sections).flat_map(|s| &mut s.groups);
        for port in groups.flat_map(|group| &mut group.ports) {
            port.network = port.network.and_then(|own| shown.iter().position(|one| *one == own));
        }
        let networks = shown.iter().map(|network| self.networks.networks[*network].clone());
        Topology { hosts, networks: networks.collect(), notes, ..Topology::default() }
    }
}

/// Removes what differs between hosts that are alike.
fn without_addresses(mut host: HostBox) -> HostBox {
    let groups = host.sections.iter_mut().flat_map(|section| &mut section.groups);
    groups.flat_map(|group| &mut group.ports).for_each(|port| port.address.clear());
    host
}

/// Host boxes with the indices of the hosts that each of them stands for.
fn groups_alike(boxes: &[HostBox]) -> Vec<Vec<usize>> {
    let mut groups: Vec<Vec<usize>> = Vec::new();
    let are_alike = |one: usize, other: usize| {
        let nameless = |host: usize| (&boxes[host].summary, &boxes[host].sections);
        nameless(one) == nameless(other)
    };
    for host in 0..boxes.len() {
        match groups.iter_mut().find(|group| are_alike(group[0], host)) {
            Some(group) => group.push(host),
            None => groups.push(vec![host]),
        }
    }
    groups
}

/// Minimum number of names that are written as a range.
const RANGE: usize = 3;

/// Writes names, those that differ in a number as lists of hosts have them: `n[001-064], login`.
fn folded(names: &[&str]) -> String {
    let mut runs: Vec<NameRun<'_>> = Vec::new();
    for name in names {
        let next = NameRun::new(name);
        match runs.last_mut() {
            Some(run) if run.is_before(&next) => {
                run.last = next.last;
                run.names.push(name);
            }
            _ => runs.push(next),
        }
    }
    runs.iter().map(NameRun::text).collect::<Vec<_>>().join(", ")
}

/// Names that differ in a number, which counts up by one.
struct NameRun<'a> {
    before: &'a str,
    /// Digits of the first and the last number; empty if the name has none.
    first: &'a str,
    last: &'a str,
    after: &'a str,
    names: Vec<&'a str>,
}

impl<'a> NameRun<'a> {
    /// Splits a name at its last number.
    fn new(name: &'a str) -> NameRun<'a> {
        let is_digit = |c: char| c.is_ascii_digit();
        let end = name.rfind(is_digit).map_or(0, |at| at + 1);
        let (head, after) = name.split_at(end);
        let digits = head.trim_end_matches(is_digit).len();
        let (before, number) = head.split_at(digits);
        NameRun { before, first: number, last: number, after, names: vec![name] }
    }

    fn is_before(&self, next: &NameRun<'_>) -> bool {
        let number = |digits: &str| digits.parse::<u64>().ok();
        let is_next = number(self.last).and_then(|last| last.checked_add(1)) == number(next.first);
        (self.before, self.after) == (next.before, next.after)
            && is_next
            && number(next.first).is_some()
            // Numbers with leading zeros all have the same length.
            && (self.last.len() == next.first.len() || !self.first.starts_with('0'))
    }

    fn text(&self) -> String {
        let NameRun { before, first, last, after, names } = self;
        match names.len() {
            ..RANGE => names.join(", "),
            _ => format!("{before}[{first}-{last}]{after}"),
        }
    }
}
