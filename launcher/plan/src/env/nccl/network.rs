//! Network that NCCL can use: verbs if its ports connect all nodes, and which ports reach each other.

use crate::selection::{Plan, UsablePort};
use rlaunch_bootstrap::rank_table;

/// Network that NCCL uses for all ranks.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum NcclNetwork {
    /// Verbs on every node.
    Verbs(Shape),
    /// TCP, with the reason.
    Tcp(String),
}

/// Topology of the nodes' ports.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Shape {
    /// Every port reaches every port of the other nodes.
    Flat,
    /// Every port reaches the ports of its own rail on all nodes.
    Rails,
    /// Which ports reach each other depends on the two nodes, for example if each pair of nodes has its own
    /// cable.
    Mesh,
}

/// Ports that NCCL may use, and what follows from them.
#[derive(Debug)]
pub struct NcclPorts<'a> {
    /// Ports by node.
    pub ports: Vec<Vec<&'a UsablePort>>,
    /// Topology of the ports, or why NCCL cannot use verbs.
    pub shape: Result<Shape, Obstacle>,
}

/// Reason why NCCL cannot use verbs. Nodes are indexes of the plan.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Obstacle {
    /// The node has no port that works without the RDMA connection manager.
    Portless(usize),
    /// No port of one node reaches a port of the other. `should_connect` tells whether their networks say
    /// otherwise, and a proof has failed.
    Pair { one: usize, other: usize, should_connect: bool },
}

impl<'a> NcclPorts<'a> {
    pub(crate) fn from_plan(plan: &'a Plan) -> NcclPorts<'a> {
        let usable: Vec<Vec<&UsablePort>> =
            plan.ports.iter().map(|ports| usable_without_cm(ports)).collect();
        let ports: Vec<Vec<&UsablePort>> =
            (0..usable.len()).map(|node| reaching_ports(&usable, node)).collect();
        let portless = ports.iter().position(Vec::is_empty);
        let shape = match portless {
            Some(node) => Err(Obstacle::Portless(node)),
            None => shape(&preferred_entries(&ports)).map_err(|(one, other)| {
                let connects = |a: &UsablePort| usable[other].iter().any(|b| a.should_reach(b));
                let should_connect = usable[one].iter().any(|port| connects(port));
                Obstacle::Pair { one, other, should_connect }
            }),
        };
        NcclPorts { ports, shape }
    }
}

/// Selects the ports that work without the RDMA connection manager; software devices only if there are
/// no others.
fn usable_without_cm(ports: &[UsablePort]) -> Vec<&UsablePort> {
    let without_cm = ports.iter().filter(|port| port.nic.transport != rank_table::Transport::Iwarp);
    let (software, hardware): (Vec<_>, Vec<_>) = without_cm.partition(|port| port.nic.software);
    if hardware.is_empty() { software } else { hardware }
}

/// Returns the node's ports that reach another node, or all its ports if none does.
fn reaching_ports<'a>(usable: &[Vec<&'a UsablePort>], node: usize) -> Vec<&'a UsablePort> {
    let others = || usable.iter().enumerate().filter(|(other, _)| *other != node);
    let is_used =
        |port: &&&UsablePort| others().flat_map(|(_, ports)| ports).any(|other| port.reach(other));
    let reaching: Vec<&UsablePort> = usable[node].iter().filter(is_used).copied().collect();
    if reaching.is_empty() { usable[node].clone() } else { reaching }
}

/// Keeps, for each port, only the entry with the preferred address, which is the one that NCCL uses.
fn preferred_entries<'a>(ports: &[Vec<&'a UsablePort>]) -> Vec<Vec<&'a UsablePort>> {
    ports.iter().map(|ports| first_of_each(ports).collect()).collect()
}

/// Determines the topology. The error has the indexes of two nodes that RDMA does not connect.
fn shape(ports: &[Vec<&UsablePort>]) -> Result<Shape, (usize, usize)> {
    let common = |ports: &mut dyn Iterator<Item = &&UsablePort>| {
        let Some(first) = ports.next() else { return true };
        let mut networks = first.nic.networks.clone();
        ports.for_each(|port| networks.retain(|network| port.nic.networks.contains(network)));
        !networks.is_empty()
    };
    // The networks decide for nearly all clusters, in a time that is linear in the number of nodes.
    // Otherwise, all pairs of nodes are compared below.
    let all_work = ports.iter().flatten().all(|port| port.failed_proofs.is_empty());
    if all_work && common(&mut ports.iter().flatten()) {
        return Ok(Shape::Flat);
    }
    let rails = |rail| ports.iter().flatten().filter(move |port| port.nic.rail == rail);
    let mut numbers: Vec<u32> = ports.iter().flatten().map(|port| port.nic.rail).collect();
    numbers.sort_unstable();
    numbers.dedup();
    let whole = |&rail: &u32| rails(rail).count() >= ports.len() && common(&mut rails(rail));
    if all_work && numbers.iter().all(whole) {
        return Ok(Shape::Rails);
    }
    let (mut flat, mut aligned) = (true, true);
    for (one, own) in ports.iter().enumerate() {
        for (other, theirs) in ports.iter().enumerate().skip(one + 1) {
            let mut connected = false;
            for (a, b) in own.iter().flat_map(|a| theirs.iter().map(move |b| (a, b))) {
                let reach = a.reach(b);
                connected |= reach;
                flat &= reach;
                aligned &= reach || a.nic.rail != b.nic.rail;
            }
            if !connected {
                return Err((one, other));
            }
            let rails =
                |ports: &[&UsablePort]| ports.iter().map(|p| p.nic.rail).collect::<Vec<_>>();
            aligned &= rails(own) == rails(theirs);
        }
    }
    Ok(match (flat, aligned) {
        (true, _) => Shape::Flat,
        (_, true) => Shape::Rails,
        _ => Shape::Mesh,
    })
}

/// Returns the first entry of each port, which has the port's preferred address.
pub(super) fn first_of_each<'a>(ports: &[&'a UsablePort]) -> impl Iterator<Item = &'a UsablePort> {
    let before = move |at: usize| at.checked_sub(1).and_then(|at| ports.get(at));
    let is_first = move |(at, port): &(usize, &&UsablePort)| {
        before(*at).is_none_or(|before| before.nic.rail != port.nic.rail)
    };
    ports.iter().enumerate().filter(is_first).map(|(_, port)| *port)
}
