//! Variables by which NCCL uses the planned network; RCCL reads the same ones.
//!
//! NCCL uses either verbs or TCP for all ranks, and cannot use the RDMA connection manager. Its variables are
//! documented in docs/userguide/source/env.rst in the source of NCCL.

mod log;
pub mod network;

pub use log::{Log, LoggedNetwork};
pub(crate) use network::{NcclNetwork, Shape};

use crate::env::Variable;
use crate::findings::{CheckId, id};
use crate::map::RankMap;
use crate::options::{Options, Transport};
use crate::selection::{self, Plan, PortOptions, Rejection, UsablePort};
use network::{NcclPorts, Obstacle, first_of_each};
use rlaunch_bootstrap::id::Rank;
use rlaunch_bootstrap::inventory::Inventory;
use rlaunch_bootstrap::inventory::net::NetdevKind;
use rlaunch_bootstrap::inventory::rdma::NodeType;
use rlaunch_bootstrap::rank_table;
use rlaunch_text::exit::Exit;
use rlaunch_text::message::{Failed, Message};
use std::fmt;
use std::str::FromStr;

/// Hint for eRDMA, whose default mode needs RDMA_CM. Changing the mode drops all of a host's connections.
const ERDMA_COMPAT: &str = "eRDMA works with NCCL in compat mode, to be set on each host: \
    echo 'options erdma compat_mode=Y' | sudo tee /etc/modprobe.d/erdma.conf; sudo rmmod erdma; \
    sudo modprobe erdma compat_mode=Y";
/// Prefix length, in bits, by which NCCL tells subnets apart unless a variable sets another.
const NCCL_PREFIX: u8 = 24;
/// Number of queue pairs per connection over a bond, enough that both ports of the bond carry data.
const QPS_ON_BOND: &str = "4";

/// Version of NCCL, such as `2.30.7`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Version(u32, u32, u32);

impl Version {
    /// First version that can choose a port for each peer by subnet (NCCL_IB_SUBNET_AWARE_ROUTING).
    pub const SUBNET_AWARE: Version = Version(2, 30, 7);
}

/// Error for a text that is not a version.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("not a version like 2.30.7")]
pub struct BadVersion;

impl FromStr for Version {
    type Err = BadVersion;

    /// Parses a version and ignores what follows the third number, as in `2.27.3+cuda12.9`.
    fn from_str(text: &str) -> Result<Version, BadVersion> {
        let mut numbers = text.splitn(3, '.').map(|part| {
            let end = part.find(|c: char| !c.is_ascii_digit()).unwrap_or(part.len());
            part[..end].parse::<u32>().map_err(|_| BadVersion)
        });
        let mut next = || numbers.next().unwrap_or(Err(BadVersion));
        Ok(Version(next()?, next()?, next()?))
    }
}

impl fmt::Display for Version {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}.{}.{}", self.0, self.1, self.2)
    }
}

/// Ports of a job as NCCL sees them.
pub struct Fabric<'a> {
    pub network: NcclNetwork,
    inventories: &'a [Inventory],
    /// Ports that NCCL may use, by node.
    ports: Vec<Vec<&'a UsablePort>>,
    /// Variables with the same value on every node; empty unless NCCL uses verbs.
    shared_variables: Vec<Variable>,
}

impl<'a> Fabric<'a> {
    pub fn new(
        map: &RankMap,
        inventories: &'a [Inventory],
        plan: &'a Plan,
        options: &Options,
    ) -> Fabric<'a> {
        let NcclPorts { ports, shape } = NcclPorts::from_plan(plan);
        let host = |node: usize| map.nodes[node].host.to_string();
        let network = match (options.transport, shape) {
            (Transport::Tcp, _) => NcclNetwork::Tcp("--transport tcp".to_owned()),
            (_, Ok(shape)) => NcclNetwork::Verbs(shape),
            (_, Err(Obstacle::Portless(node))) => {
                let reason = reason_for_tcp(&inventories[node], &options.ports);
                NcclNetwork::Tcp(format!("{}: {reason}", host(node)))
            }
            (_, Err(Obstacle::Pair { one, other, should_connect })) => {
                let verb = if should_connect { "was found to reach" } else { "reaches" };
                let (one, other) = (host(one), host(other));
                NcclNetwork::Tcp(format!("no RDMA port of {one} {verb} one of {other}"))
            }
        };
        let shared_variables = match &network {
            NcclNetwork::Verbs(shape) => shared_variables(*shape, inventories, &ports),
            NcclNetwork::Tcp(_) => Vec::new(),
        };
        Fabric { network, inventories, ports, shared_variables }
    }

    /// Returns the variables that choose the network for a node's ranks.
    pub fn variables(&self, node: usize) -> Vec<Variable> {
        if let NcclNetwork::Tcp(why) = &self.network {
            return vec![Variable::new("NCCL_IB_DISABLE", "1", why)];
        }
        let ports = &self.ports[node];
        let names = format_ports(ports);
        let chosen = "the RDMA ports that can be used";
        let mut set = vec![
            Variable::new("NCCL_IB_HCA", format!("={names}"), chosen),
            Variable::new("UCX_NET_DEVICES", names, chosen),
        ];
        set.extend(gid_index_variable("NCCL_IB_GID_INDEX", ports));
        let is_merged = network::merges_ports(self.inventories, &self.network);
        if !is_merged && shares_card(&self.inventories[node], ports) {
            let reason = "ports of one card are in different networks";
            set.push(Variable::new("NCCL_IB_MERGE_NICS", "0", reason));
        }
        set.extend(self.shared_variables.iter().cloned());
        set
    }

    /// Returns the variable from which NCCL plugins for point-to-point cabling read the GID index. `None` if
    /// the node's ports differ in their GID index, since the variable holds a single number.
    pub(crate) fn plugin_variable(&self, node: usize) -> Option<Variable> {
        gid_index_variable("NCCL_MESH_GID_INDEX", &self.ports[node])
    }
}

/// Returns the variables that must be equal at both ends of a connection.
fn shared_variables(
    shape: Shape,
    inventories: &[Inventory],
    ports: &[Vec<&UsablePort>],
) -> Vec<Variable> {
    let mut set = address_family_variables(ports);
    set.extend(routing_variables(shape, ports));
    let mut nodes = inventories.iter().zip(ports);
    if let Some(netdev) = nodes.find_map(|(inventory, ports)| bonded_interface(inventory, ports)) {
        let reason = format!("one queue pair uses one port of {netdev}, which is a bond");
        set.push(Variable::new("NCCL_IB_QPS_PER_CONNECTION", QPS_ON_BOND, &reason));
        set.push(Variable::new("NCCL_IB_SPLIT_DATA_ON_QPS", "0", &reason));
    }
    set
}

/// Returns the variables that keep jobs on the same host apart.
pub(crate) fn job_variables(short_id: u64, ras: Option<u16>) -> Vec<Variable> {
    let mut set = vec![Variable::new(
        "NCCL_SOCKET_MAGIC",
        short_id.to_string(),
        "sockets of other jobs are not taken for this one's",
    )];
    if let Some(port) = ras {
        let reason = "jobs on one host each have a port for questions about them";
        set.push(Variable::new("NCCL_RAS_ADDR", format!("localhost:{port}"), reason));
    }
    set
}

/// Returns the variables for the user's traffic class and service level.
pub(crate) fn packet_priority_variables(
    traffic_class: Option<u8>,
    service_level: Option<u8>,
) -> Vec<Variable> {
    let set = |name, value: u8, why| Variable::new(name, value.to_string(), why);
    let class = traffic_class.into_iter().flat_map(|class| {
        ["NCCL_IB_TC", "UCX_IB_TRAFFIC_CLASS"].map(|name| set(name, class, "--traffic-class"))
    });
    let level = service_level.into_iter().flat_map(|level| {
        ["NCCL_IB_SL", "UCX_IB_SL"].map(|name| set(name, level, "--service-level"))
    });
    class.chain(level).collect()
}

/// Returns the variable that makes NCCL treat a rank as alone on its host. NCCL refuses two ranks with the
/// same host hash and the same GPU (src/init.cc).
pub(crate) fn host_id_variable(host: &str, rank: Rank) -> Variable {
    Variable::new("NCCL_HOSTID", format!("{host}-{rank}"), "--nccl-share-gpu")
}

/// Returns the variables that make NCCL log what [`Log`] reads.
pub(crate) fn log_variables() -> Vec<Variable> {
    let set = |name, value| Variable::new(name, value, "--nccl-verify");
    vec![set("NCCL_DEBUG", "INFO"), set("NCCL_DEBUG_SUBSYS", "INIT,NET")]
}

/// Tells the network that NCCL used in each rank. Also returns an error if `--require-rdma` was given and a rank
/// did not use RDMA.
pub fn verify(
    log: &Log,
    ranks: &[(Rank, String)],
    options: &Options,
) -> (Vec<Message>, Option<Failed>) {
    let uses: Vec<_> =
        ranks.iter().map(|(rank, host)| (rank, host, log.network_of(*rank))).collect();
    let line = |(rank, host, used): &(_, _, _)| format!("rank {rank} on {host}: {used}");
    let told = uses.iter().map(|used| Message::Info(line(used))).collect();
    let by_tcp = uses.iter().find(|(.., used)| options.require_rdma && !used.is_rdma());
    let failed =
        by_tcp.map(|used| Failed::new(Exit::MESH, format!("--require-rdma: {}", line(used))));
    (told, failed)
}

/// Writes ports as `mlx5_0:1,mlx5_1:1`.
fn format_ports(ports: &[&UsablePort]) -> String {
    let mut names: Vec<String> =
        ports.iter().map(|port| format!("{}:{}", port.nic.device, port.nic.port)).collect();
    names.dedup();
    names.join(",")
}

/// Returns the variable `name` for the GID index, or `None` if the ports' indexes differ, since the variable
/// holds a single number.
fn gid_index_variable(name: &'static str, ports: &[&UsablePort]) -> Option<Variable> {
    let roce =
        first_of_each(ports).filter(|port| port.nic.transport == rank_table::Transport::Roce);
    let mut indices: Vec<u16> = roce.filter_map(|port| port.nic.gid_index).collect();
    indices.dedup();
    let [index] = indices[..] else { return None };
    Some(Variable::new(name, index.to_string(), "this entry is right for every port listed"))
}

/// Returns the variables that make NCCL use IPv6 addresses, if all RoCE ports prefer an IPv6 address;
/// otherwise none, since NCCL uses IPv4 by default.
fn address_family_variables(all: &[Vec<&UsablePort>]) -> Vec<Variable> {
    let best = all.iter().flat_map(|ports| first_of_each(ports));
    let mut roce = best.filter(|port| port.nic.transport == rank_table::Transport::Roce).peekable();
    let is_v6 = |port: &UsablePort| port.nic.address.is_some_and(|address| address.is_ipv6());
    if roce.peek().is_none() || !roce.all(is_v6) {
        return Vec::new();
    }
    let reason = "no RDMA port of this job has an IPv4 address";
    vec![
        Variable::new("NCCL_IB_ADDR_FAMILY", "AF_INET6", reason),
        Variable::new("NCCL_IB_ROCE_VERSION_NUM", "2", reason),
    ]
}

/// Returns the variables by which NCCL chooses ports by subnet, for topologies that need it.
fn routing_variables(shape: Shape, all: &[Vec<&UsablePort>]) -> Vec<Variable> {
    let (cross, reason) = match shape {
        Shape::Flat => return Vec::new(),
        Shape::Rails => ("0", "each rail is a network of its own"),
        Shape::Mesh => ("1", "which ports meet depends on the two hosts"),
    };
    let mut set = vec![
        Variable::new("NCCL_CROSS_NIC", cross, reason),
        Variable::new("NCCL_IB_SUBNET_AWARE_ROUTING", "1", reason),
    ];
    let own = all.iter().flatten().filter_map(|port| port.reachability.own_subnet());
    let mut prefixes: Vec<u8> = own.map(|network| network.prefix()).collect();
    prefixes.sort_unstable();
    prefixes.dedup();
    if let [prefix] = prefixes[..]
        && prefix != NCCL_PREFIX
    {
        let reason = "the length of the subnets' prefixes";
        set.push(Variable::new("NCCL_IB_SUBNET_PREFIX_LEN", prefix.to_string(), reason));
    }
    set
}

/// Tells whether two ports of one card are in different subnets. NCCL would merge ports of one card into one
/// device.
fn shares_card(inventory: &Inventory, ports: &[&UsablePort]) -> bool {
    let card = |port: &UsablePort| network::card(inventory, port);
    let pairs = ports.iter().flat_map(|one| ports.iter().map(move |other| (one, other)));
    let mut different_rails = pairs.filter(|(one, other)| one.nic.rail != other.nic.rail);
    different_rails.any(|(one, other)| {
        card(one).is_some()
            && card(one) == card(other)
            && one.reachability.own_subnet() != other.reachability.own_subnet()
    })
}

/// Returns the name of a bonded interface among the interfaces of these ports.
fn bonded_interface<'a>(inventory: &'a Inventory, ports: &[&UsablePort]) -> Option<&'a str> {
    let is_used = |name: &str| ports.iter().any(|port| port.nic.netdev.as_deref() == Some(name));
    let bonds = inventory.netdevs.iter().filter(|netdev| netdev.kind == NetdevKind::Bond);
    bonds.map(|netdev| netdev.name.as_str()).find(|name| is_used(name))
}

/// Explains why a node has no port that NCCL can use.
pub(crate) fn reason_for_tcp(inventory: &Inventory, options: &PortOptions) -> String {
    let devices = inventory.rdma.iter();
    let ports = devices.flat_map(|device| device.ports.iter().map(move |port| (device, port)));
    let reasons = ports.map(|(device, port)| {
        let name = format!("{}/{}", device.name, port.number);
        match selection::examine_wanted(device, port, &inventory.netdevs, options) {
            Ok(_) if device.node_type == NodeType::Rnic => format!("{name} takes RDMA_CM only"),
            Ok(_) => format!("{name} can be used"),
            Err(rejection @ Rejection::Down) => format!("{name} is {rejection}"),
            Err(rejection @ Rejection::ManagerOnly) => format!("{name} {rejection}"),
            Err(rejection) => format!("{name}: {rejection}"),
        }
    });
    let reasons: Vec<String> = reasons.collect();
    if reasons.is_empty() { "no RDMA device".to_owned() } else { reasons.join(", ") }
}

/// Returns the id of the finding for a node that has no port at all: that of the first of its ports that has one.
pub(crate) fn finding_for_tcp(inventory: &Inventory, options: &PortOptions) -> Option<CheckId> {
    let ports = inventory.rdma.iter().flat_map(|d| d.ports.iter().map(move |port| (d, port)));
    let mut reasons = ports.filter_map(|(device, port)| {
        selection::examine_wanted(device, port, &inventory.netdevs, options).err()?.id()
    });
    let is_absent = inventory.rdma.is_empty().then_some(id::DEV_ABSENT);
    reasons.next().or(is_absent)
}

/// Returns a remedy if hosts have eRDMA devices in a mode that NCCL cannot use.
pub(crate) fn erdma_remedy(map: &RankMap, inventories: &[Inventory]) -> Option<String> {
    let erdma = |inventory: &Inventory, node_type: NodeType| {
        let mut devices = inventory.rdma.iter();
        devices.any(|d| d.driver.as_deref() == Some("erdma") && d.node_type == node_type)
    };
    let hosts = |node_type: NodeType| -> Vec<String> {
        let nodes = map.nodes.iter().zip(inventories);
        let having = nodes.filter(|(_, inventory)| erdma(inventory, node_type));
        having.map(|(node, _)| node.host.to_string()).collect()
    };
    let (standard, compat) = (hosts(NodeType::Rnic), hosts(NodeType::ChannelAdapter));
    match (standard.is_empty(), compat.is_empty()) {
        (true, _) => None,
        (false, true) => Some(ERDMA_COMPAT.to_owned()),
        (false, false) => Some(format!(
            "eRDMA is in compat mode on {}, in standard mode on {}: these cannot connect. \
             {ERDMA_COMPAT}",
            compat.join(", "),
            standard.join(", ")
        )),
    }
}

/// Returns a warning and a hint if the topology is a mesh and a host's version of NCCL cannot choose ports by
/// subnet.
pub(crate) fn old_version_warning(
    map: &RankMap,
    inventories: &[Inventory],
    shape: Shape,
) -> Option<(String, String)> {
    if shape != Shape::Mesh {
        return None;
    }
    let nodes = map.nodes.iter().zip(inventories);
    let mut found =
        nodes.filter_map(|(node, inventory)| Some((node, network::too_old(inventory)?)));
    let (node, library) = found.next()?;
    let (host, old, path) = (&node.host, &library.version, &library.path);
    let known = Version::SUBNET_AWARE;
    let line = format!(
        "the hosts' links are on different subnets, and NCCL {old} ({path} on {host}) does not \
         choose ports by subnet: ranks may hang when they connect"
    );
    let hint = format!(
        "NCCL {known} or newer does; or --nccl-net-plugin PATH names a plugin that does; or \
         -x NCCL_IB_DISABLE=1 makes it use TCP"
    );
    Some((line, hint))
}

#[cfg(test)]
mod tests;
