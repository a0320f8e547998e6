//! Mapping of ranks to nodes: host by host, round-robin over the hosts, or a fixed number per host; and the line
//! `placement: a 0-1 · b 2` at the start of a job, which shows it.

use crate::hosts::{Host, SlotsBy};
use crate::rank_list::{MAX_RANKS, RankList};
use rlaunch_bootstrap::id::{LocalRank, NodeId, Rank};
use rlaunch_text::message::Message;
use rlaunch_text::text;
use serde::{Deserialize, Serialize};
use std::fmt;
use std::str::FromStr;
use strum::{EnumString, IntoStaticStr, VariantArray};

/// `--map-by`: the order in which ranks fill the hosts' slots.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum MapBy {
    /// Fill all slots of a host before those of the next host.
    #[default]
    Slot,
    /// Fill one slot of each host in turn.
    Node,
    /// Put this number of ranks on each host.
    Ppr(u32),
    /// Like `Slot`; the ranks of a host are assigned to its NUMA nodes in turn.
    Numa,
    /// Like `Slot`, but a job fails if a host has fewer GPUs than ranks, unless oversubscription is allowed.
    Gpu,
}

impl FromStr for MapBy {
    type Err = String;

    fn from_str(text: &str) -> Result<MapBy, String> {
        let each = || text.strip_prefix("ppr:")?.strip_suffix(":node")?.parse().ok();
        match text {
            "slot" => Ok(MapBy::Slot),
            "node" => Ok(MapBy::Node),
            "numa" => Ok(MapBy::Numa),
            "gpu" => Ok(MapBy::Gpu),
            _ => match each().filter(|&each: &u32| each > 0) {
                Some(each) => Ok(MapBy::Ppr(each)),
                None => Err("slot, node, ppr:N:node, numa or gpu are understood".to_owned()),
            },
        }
    }
}

impl fmt::Display for MapBy {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            MapBy::Slot => f.write_str("slot"),
            MapBy::Node => f.write_str("node"),
            MapBy::Ppr(each) => write!(f, "ppr:{each}:node"),
            MapBy::Numa => f.write_str("numa"),
            MapBy::Gpu => f.write_str("gpu"),
        }
    }
}

/// `--rank-by`: the order in which placed ranks are numbered.
#[derive(Clone, Copy, Debug, PartialEq, Eq, EnumString, IntoStaticStr, VariantArray)]
#[strum(serialize_all = "kebab-case")]
pub enum RankBy {
    /// Host by host.
    Slot,
    /// Round-robin over the hosts.
    Node,
}

/// Conflict of `--npernode` with the number in `--map-by`.
#[derive(Debug, PartialEq, Eq, thiserror::Error)]
#[error("--npernode {0} and --map-by ppr:{1}:node are two numbers of ranks on each host")]
pub struct TwoNumbers(u32, u32);

/// Combines `--map-by`, `--npernode` (`per_node`) and `--rank-by` into one order of placing ranks and one of
/// numbering them.
pub fn combine_orders(
    map_by: MapBy,
    per_node: Option<u32>,
    rank_by: Option<RankBy>,
) -> Result<(MapBy, Option<RankBy>), TwoNumbers> {
    match (per_node, map_by) {
        (None, map_by) => Ok((map_by, rank_by)),
        (Some(each), MapBy::Ppr(other)) if each != other => Err(TwoNumbers(each, other)),
        // A fixed number per host, numbered round-robin.
        (Some(each), MapBy::Node) => Ok((MapBy::Ppr(each), rank_by.or(Some(RankBy::Node)))),
        (Some(each), _) => Ok((MapBy::Ppr(each), rank_by)),
    }
}

/// Host that takes part in the job, with its ranks.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct MappedNode {
    pub id: NodeId,
    pub host: Host,
    /// Ranks on the host, by local rank.
    pub ranks: Vec<Rank>,
}

/// Assignment of all ranks to nodes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RankMap {
    pub nodes: Vec<MappedNode>,
    pub world_size: u32,
    /// Hosts without a rank. If all programs use the same list of hosts, these are the last of the list.
    pub unused: Vec<Host>,
    by_rank: Vec<(NodeId, LocalRank)>,
    /// First rank of each program except the first program, in the order of programs.
    firsts: Vec<Rank>,
}

/// Reason why ranks cannot be mapped to hosts.
#[derive(Debug, PartialEq, Eq, thiserror::Error)]
pub enum MapError {
    #[error("{}", describe(*.ranks, .hosts))]
    Slots { ranks: u32, hosts: Vec<Host> },
    #[error(
        "{ranks} ranks do not fit: {each} on each of {hosts} hosts are {}",
        each_of(*.each, *.hosts)
    )]
    Hosts { ranks: u32, each: u32, hosts: usize },
    #[error("{each} ranks on each host need {each} slots; {host} has {slots}: use {host}:{each}")]
    OfEach { each: u32, host: String, slots: u32 },
    #[error("-np {ranks}, but the rankfile has {listed} ranks")]
    Unlisted { ranks: u32, listed: usize },
    #[error("rank {rank} of the rankfile is on {host}, and the hosts are {}", text::list(.hosts))]
    NotThere { rank: usize, host: String, hosts: Vec<Host> },
    #[error("{ranks} ranks are more than the {MAX_RANKS} of a job")]
    Ranks { ranks: u64 },
}

/// Writes `3 ranks need 3 slots; a has 1: use -H a:3`; of several hosts `4 ranks need 4 slots; there are 3
/// (a 1, b 1, c 1): use -H a:2,b,c`.
fn describe(ranks: u32, hosts: &[Host]) -> String {
    const SHOWN: usize = 8;
    if let [host] = hosts {
        let slots = host.slots;
        return format!(
            "{ranks} ranks need {ranks} slots; {host} has {slots}: use -H {host}:{ranks}"
        );
    }
    let slots = slots_of(hosts);
    let mut list: Vec<_> = hosts.iter().take(SHOWN).map(|h| format!("{h} {}", h.slots)).collect();
    if hosts.len() > SHOWN {
        list.push(format!("and {} more", hosts.len() - SHOWN));
    }
    let enough = enough_slots(ranks, hosts);
    let with_slots = |(host, slots): (&Host, &u32)| match slots {
        1 => host.to_string(),
        slots => format!("{host}:{slots}"),
    };
    let meant = if hosts.len() > SHOWN {
        let most = enough.iter().max().copied().unwrap_or_default();
        format!("give each host up to {most}, as in -H {}:{most}", hosts[0])
    } else {
        let hosts: Vec<String> = hosts.iter().zip(&enough).map(with_slots).collect();
        format!("use -H {}", hosts.join(","))
    };
    format!("{ranks} ranks need {ranks} slots; there are {slots} ({}): {meant}", list.join(", "))
}

/// Returns numbers of slots for so many ranks: the hosts with the fewest get more, until there are enough.
fn enough_slots(ranks: u32, hosts: &[Host]) -> Vec<u32> {
    let sum = |level: u32| hosts.iter().map(|host| u64::from(host.slots.max(level))).sum::<u64>();
    let (mut below, mut level) = (0, ranks);
    while below + 1 < level {
        let middle = below + (level - below) / 2;
        if sum(middle) < u64::from(ranks) { below = middle } else { level = middle }
    }
    // The last ones need not be that high.
    let mut excess = sum(level).saturating_sub(u64::from(ranks));
    let mut enough: Vec<u32> = hosts.iter().map(|host| host.slots.max(level)).collect();
    for (slots, host) in enough.iter_mut().zip(hosts).rev() {
        if excess > 0 && *slots > host.slots {
            *slots -= 1;
            excess -= 1;
        }
    }
    enough
}

fn slots_of(hosts: &[Host]) -> u64 {
    hosts.iter().map(|host| u64::from(host.slots)).sum()
}

fn each_of(each: u32, hosts: usize) -> u64 {
    u64::from(each).saturating_mul(hosts as u64)
}

/// Ranks of a host. Records of jobs have it, and messages on the socket of a job: a change needs a new `SOCKET_VERSION`
/// (`live/messages.rs` of the engine).
#[derive(Clone, Debug, Deserialize, PartialEq, Eq, Serialize)]
pub struct HostRanks {
    pub host: String,
    pub ranks: Vec<u32>,
}

impl HostRanks {
    /// Lists the hosts of a map with their ranks, in the order of nodes.
    pub fn of_map(map: &RankMap) -> Vec<HostRanks> {
        let hosts = map.nodes.iter().map(|node| HostRanks {
            host: node.host.to_string(),
            ranks: node.ranks.iter().map(|rank| rank.0).collect(),
        });
        hosts.collect()
    }
}

impl RankMap {
    #[cfg(any(test, feature = "testing"))]
    pub fn by_slot(
        hosts: &[Host],
        ranks: Option<u32>,
        oversubscribe: bool,
    ) -> Result<RankMap, MapError> {
        RankMap::place(MapBy::Slot, hosts, ranks, oversubscribe)
    }

    /// Maps ranks to hosts in the given order. If `ranks` is `None`, every slot gets a rank, or every host
    /// the number in `Ppr`. With `oversubscribe`, ranks beyond the number of slots are spread evenly over the
    /// hosts.
    ///
    /// # Errors
    ///
    /// There are more ranks than slots and `oversubscribe` is false, more than `Ppr` puts on all hosts, or
    /// more than 2^20.
    pub fn place(
        order: MapBy,
        hosts: &[Host],
        ranks: Option<u32>,
        oversubscribe: bool,
    ) -> Result<RankMap, MapError> {
        let room = match order {
            MapBy::Ppr(each) => each_of(each, hosts.len()),
            _ => slots_of(hosts),
        };
        let wanted = ranks.map_or(room, u64::from);
        let world_size = u32::try_from(wanted).ok().filter(|&ranks| ranks <= MAX_RANKS);
        let world_size = world_size.ok_or(MapError::Ranks { ranks: wanted })?;
        let ranks = match order {
            MapBy::Ppr(each) => {
                number_by_host(&equal_counts(each, hosts, world_size, oversubscribe)?)
            }
            _ if wanted > room && (!oversubscribe || hosts.is_empty()) => {
                return Err(MapError::Slots { ranks: world_size, hosts: hosts.to_vec() });
            }
            MapBy::Slot | MapBy::Numa | MapBy::Gpu => {
                number_by_host(&fill_slots(hosts, world_size))
            }
            MapBy::Node => assign_round_robin(hosts, world_size),
        };
        Ok(RankMap::from_assignment(hosts.iter().cloned().zip(ranks).collect(), Vec::new()))
    }

    /// Maps ranks to the hosts that `list` has for them: `ranks` of them, or all.
    ///
    /// # Errors
    ///
    /// The list has fewer ranks, or a host that is not among `hosts`.
    pub(crate) fn listed(
        list: &RankList,
        hosts: &[Host],
        ranks: Option<u32>,
    ) -> Result<RankMap, MapError> {
        let listed = list.len();
        let count = ranks.map_or(listed, |ranks| ranks as usize);
        if count > listed {
            return Err(MapError::Unlisted { ranks: ranks.unwrap_or_default(), listed });
        }
        let indices = list.indices(hosts);
        let indices = indices.map_err(|(rank, host)| MapError::NotThere {
            rank,
            host,
            hosts: hosts.to_vec(),
        })?;
        let mut of_hosts: Vec<(Host, Vec<Rank>)> =
            hosts.iter().map(|host| (host.clone(), Vec::new())).collect();
        for (rank, host) in (0..).map(Rank).zip(indices).take(count) {
            of_hosts[host].1.push(rank);
        }
        Ok(RankMap::from_assignment(of_hosts, Vec::new()))
    }

    /// Makes the map from hosts with their ranks. Nodes are numbered from that of rank 0, whose address and port all ranks
    /// know, and then in the order of `hosts`, without hosts that have no rank. `firsts` has the first rank of each program
    /// except the first program.
    pub(crate) fn from_assignment(mut hosts: Vec<(Host, Vec<Rank>)>, firsts: Vec<Rank>) -> RankMap {
        if let Some(first) = hosts.iter().position(|(_, ranks)| ranks.contains(&Rank(0))) {
            hosts[..=first].rotate_right(1);
        }
        let ranks: usize = hosts.iter().map(|(_, ranks)| ranks.len()).sum();
        let world_size = u32::try_from(ranks).unwrap_or(u32::MAX);
        let by_rank = vec![(NodeId(0), LocalRank(0)); ranks];
        let mut map = RankMap { nodes: vec![], world_size, unused: vec![], by_rank, firsts };
        for (host, ranks) in hosts {
            map.add(&host, ranks);
        }
        map
    }

    /// Returns the first rank of each program except the first program.
    pub fn first_ranks(&self) -> &[Rank] {
        &self.firsts
    }

    /// Returns the index of the program that a rank runs.
    pub fn application_of(&self, rank: Rank) -> usize {
        self.firsts.partition_point(|first| *first <= rank)
    }

    /// Lists the ranks of a program, which follow each other. `index` is the program's number in the job, from 0.
    pub fn ranks_of(&self, index: usize) -> impl Iterator<Item = Rank> + use<> {
        let begin = |app: usize| self.firsts.get(app).map_or(self.world_size, |first| first.0);
        let first = if index == 0 { 0 } else { begin(index - 1) };
        (first..begin(index)).map(Rank)
    }

    /// Returns the nodes on which a program has ranks. `index` is the program's number in the job, from 0.
    pub(crate) fn nodes_of(&self, index: usize) -> impl Iterator<Item = &MappedNode> {
        let is_its = move |rank: &Rank| self.application_of(*rank) == index;
        self.nodes.iter().filter(move |node| node.ranks.iter().any(is_its))
    }

    /// Returns a map in which every host is a node without ranks, used to connect to hosts whose number of
    /// slots is not known yet.
    pub fn all_hosts(hosts: &[Host]) -> RankMap {
        let node = |(id, host): (u32, &Host)| MappedNode {
            id: NodeId(id),
            host: host.clone(),
            ranks: Vec::new(),
        };
        let nodes = (0..).zip(hosts).map(node).collect();
        RankMap { nodes, world_size: 0, unused: vec![], by_rank: vec![], firsts: vec![] }
    }

    /// Renumbers the ranks by `--rank-by`, if given.
    pub(crate) fn renumbered(self, order: MapBy, by: Option<RankBy>) -> RankMap {
        let counts: Vec<u32> =
            self.nodes.iter().map(|node| u32::try_from(node.ranks.len()).unwrap_or(0)).collect();
        let ranks = match (by, order) {
            // Already numbered like that.
            (None, _) | (Some(RankBy::Node), MapBy::Node) => return self,
            (Some(RankBy::Slot), _) => number_by_host(&counts),
            (Some(RankBy::Node), _) => number_round_robin(&counts),
        };
        let mut map = RankMap { nodes: vec![], ..self };
        for (node, ranks) in self.nodes.iter().zip(ranks) {
            map.add(&node.host, ranks);
        }
        map
    }

    fn add(&mut self, host: &Host, ranks: Vec<Rank>) {
        if ranks.is_empty() {
            self.unused.push(host.clone());
            return;
        }
        let id = NodeId(u32::try_from(self.nodes.len()).unwrap_or(u32::MAX));
        for (local, rank) in (0..).map(LocalRank).zip(&ranks) {
            self.by_rank[rank.index()] = (id, local);
        }
        self.nodes.push(MappedNode { id, host: host.clone(), ranks });
    }

    /// Returns the node on which a rank runs; `None` if the job has no such rank.
    pub fn node_of(&self, rank: Rank) -> Option<&MappedNode> {
        let (node, _) = self.by_rank.get(rank.index())?;
        self.nodes.get(node.index())
    }
}

/// Computes the number of ranks on each host if slots are filled host by host. Ranks beyond the number of
/// slots are spread evenly.
fn fill_slots(hosts: &[Host], world_size: u32) -> Vec<u32> {
    let mut left = world_size;
    let mut counts: Vec<u32> = hosts
        .iter()
        .map(|host| {
            let count = host.slots.min(left);
            left -= count;
            count
        })
        .collect();
    let hosts = u32::try_from(hosts.len()).unwrap_or(u32::MAX).max(1);
    for (at, count) in (0u32..).zip(&mut counts) {
        *count += left / hosts + u32::from(at < left % hosts);
    }
    counts
}

/// Computes the number of ranks on each host: every host in turn gets `each` ranks, until `world_size` is
/// reached. Returns an error if all hosts together take fewer than `world_size` ranks, or if a host gets more
/// ranks than the user gave it slots and `oversubscribe` is false.
fn equal_counts(
    each: u32,
    hosts: &[Host],
    world_size: u32,
    oversubscribe: bool,
) -> Result<Vec<u32>, MapError> {
    if u64::from(world_size) > each_of(each, hosts.len()) {
        return Err(MapError::Hosts { ranks: world_size, each, hosts: hosts.len() });
    }
    let mut left = world_size;
    let count = |host: &Host| {
        let count = each.min(left);
        left -= count;
        let is_full = host.has_given_slots() && count > host.slots;
        if is_full && !oversubscribe {
            let (host, slots) = (host.to_string(), host.slots);
            return Err(MapError::OfEach { each, host, slots });
        }
        Ok(count)
    };
    hosts.iter().map(count).collect()
}

/// Numbers ranks host by host.
fn number_by_host(counts: &[u32]) -> Vec<Vec<Rank>> {
    let mut next = 0;
    let host_ranks = |&count: &u32| {
        let first = next;
        next += count;
        (first..next).map(Rank).collect()
    };
    counts.iter().map(host_ranks).collect()
}

/// Numbers ranks round-robin over the hosts.
fn number_round_robin(counts: &[u32]) -> Vec<Vec<Rank>> {
    let mut ranks: Vec<Vec<Rank>> = vec![Vec::new(); counts.len()];
    let mut next = 0;
    for round in 0..counts.iter().copied().max().unwrap_or(0) {
        for (ranks, _) in ranks.iter_mut().zip(counts).filter(|(_, count)| round < **count) {
            ranks.push(Rank(next));
            next += 1;
        }
    }
    ranks
}

/// Assigns ranks round-robin to hosts with free slots, and to all hosts once no slot is free.
fn assign_round_robin(hosts: &[Host], world_size: u32) -> Vec<Vec<Rank>> {
    let most = hosts.iter().map(|host| host.slots).max().unwrap_or(0);
    let mut ranks: Vec<Vec<Rank>> = vec![Vec::new(); hosts.len()];
    let (mut next, mut round) = (0, 0);
    while next < world_size && !hosts.is_empty() {
        for (host, ranks) in hosts.iter().zip(&mut ranks) {
            if next < world_size && (round < host.slots || round >= most) {
                ranks.push(Rank(next));
                next += 1;
            }
        }
        round += 1;
    }
    ranks
}

/// Maximum number of hosts named in the line `placement: …`, counted separately for hosts with and without ranks.
const LINE_HOSTS: usize = 8;
/// Maximum number of rank ranges shown for a host.
const LINE_RUNS: usize = 4;

/// Returns the line `placement: a 0-1 · b 2`, which shows the ranks of each host, if a host idles, or has more ranks than
/// slots, as `oversubscribe` allows, or was taken to have one slot for want of a GPU.
pub fn placement_line(map: &RankMap, order: MapBy, oversubscribe: bool) -> Option<Message> {
    let mut hosts = map.nodes.iter().map(|node| &node.host).chain(&map.unused);
    let is_odd = !map.unused.is_empty() || hosts.any(|host| host.slots_by == SlotsBy::NoGpu);
    let crowded = if oversubscribe { crowded(map) } else { Vec::new() };
    let is_shown = is_odd || !crowded.is_empty();
    is_shown.then(|| Message::Labelled(format_line(map, &remarks(map, order, &crowded))))
}

/// Returns the hosts that have more ranks than slots.
fn crowded(map: &RankMap) -> Vec<&Host> {
    let crowded = map.nodes.iter().filter(|node| node.ranks.len() > node.host.slots as usize);
    crowded.map(|node| &node.host).collect()
}

fn format_line(map: &RankMap, remarks: &[String]) -> String {
    let used = map.nodes.iter().map(|node| {
        format!("{} {}", node.host, text::ranges(node.ranks.iter().map(|rank| rank.0), LINE_RUNS))
    });
    let idle = map.unused.iter().map(|host| format!("{host} none"));
    let mut parts = Vec::new();
    parts.extend(used.take(LINE_HOSTS));
    parts.extend(hosts_left_out(map.nodes.len(), ""));
    parts.extend(idle.take(LINE_HOSTS));
    parts.extend(hosts_left_out(map.unused.len(), " none"));
    let remarks = match remarks {
        [] => String::new(),
        remarks => format!(" — {}", remarks.join("; ")),
    };
    format!("placement: {}{remarks}", parts.join(" · "))
}

/// Writes how many of the hosts a line leaves out; `what` stands after the number.
fn hosts_left_out(hosts: usize, what: &str) -> Option<String> {
    (hosts > LINE_HOSTS).then(|| format!("and {} more{what}", hosts - LINE_HOSTS))
}

/// Lists what is unusual about a placement: idle hosts, more ranks than slots, and slots counted from GPUs.
fn remarks(map: &RankMap, order: MapBy, crowded: &[&Host]) -> Vec<String> {
    let mut remarks = Vec::new();
    let (idle, used) = (map.unused.len(), map.nodes.len());
    if idle > 0 {
        remarks.push(format!("{idle} of {} hosts idle", idle + used));
        let is_crowded = map.nodes.iter().any(|node| node.ranks.len() > 1);
        if is_crowded && order != MapBy::Node {
            remarks.push("--map-by node spreads".to_owned());
        }
    }
    if !crowded.is_empty() {
        remarks.push(format!("more ranks than slots: {}", text::list(crowded)));
    }
    let hosts = || map.nodes.iter().map(|node| &node.host).chain(&map.unused);
    let by_gpus = hosts().filter(|host| host.slots_by == SlotsBy::Gpus);
    let by_gpus: Vec<String> = by_gpus.map(|host| format!("{host} {}", host.slots)).collect();
    if !by_gpus.is_empty() {
        remarks.push(format!("slots are GPUs: {}", text::list(&by_gpus)));
    }
    let without: Vec<&Host> = hosts().filter(|host| host.slots_by == SlotsBy::NoGpu).collect();
    if !without.is_empty() {
        remarks.push(format!("1 slot where there is no GPU: {}", text::list(&without)));
    }
    remarks
}

#[cfg(test)]
mod tests;
