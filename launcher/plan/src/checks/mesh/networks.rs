//! Networks that RDMA ports of hosts share.

use crate::checks::Cluster;
use crate::checks::devices::indexed;
use crate::checks::links::interface;
use crate::findings::{Finding, Severity, id};
use crate::options::Transport;
use crate::selection::{Plan, UsablePort};
use rlaunch_text::text;

/// Maximum number of ports that a line lists for a host.
const MAX_PORTS: usize = 4;

pub(super) fn unconnected(cluster: &Cluster<'_>) -> Vec<Finding> {
    let Some(plan) = cluster.plan else { return Vec::new() };
    let severity = match cluster.transport {
        Transport::Tcp => return Vec::new(),
        Transport::Rdma => Severity::Error,
        Transport::Auto => Severity::Warning,
    };
    let mut pairs = plan.unconnected_pairs();
    let mut found = Vec::new();
    // The host in the most pairs is the odd one: one line names all that it does not reach.
    while let Some(odd) = busiest(&pairs, cluster.hosts.len()) {
        let is_its = |(one, other): &(usize, usize)| *one == odd || *other == odd;
        let (its, rest): (Vec<_>, Vec<_>) = pairs.into_iter().partition(is_its);
        pairs = rest;
        let others: Vec<usize> =
            its.iter().map(|(one, other)| if *one == odd { *other } else { *one }).collect();
        found.push(finding(cluster, plan, severity, odd, &others));
    }
    found
}

/// Returns the node that is in most pairs, the lowest of several; `None` if there are no pairs.
fn busiest(pairs: &[(usize, usize)], nodes: usize) -> Option<usize> {
    let count = |node: usize| pairs.iter().filter(|(a, b)| *a == node || *b == node).count();
    let counts = (0..nodes).map(|node| (count(node), node)).filter(|(count, _)| *count > 0);
    counts.min_by_key(|(count, node)| (std::cmp::Reverse(*count), *node)).map(|(_, node)| node)
}

fn finding(
    cluster: &Cluster<'_>,
    plan: &Plan,
    severity: Severity,
    odd: usize,
    others: &[usize],
) -> Finding {
    let name = |node: usize| cluster.hosts[node].name;
    let names: Vec<&str> = others.iter().map(|node| name(*node)).collect();
    let first = others[0];
    let seen = format!(
        "shares no RDMA network with {}: it has {}; {} has {}",
        text::list(&names),
        ports(&plan.ports[odd]),
        name(first),
        ports(&plan.ports[first])
    );
    let matters = "TCP is used between them, and by NCCL on all hosts";
    let found = Finding::new(id::MESH_SUBNET, severity, name(odd), seen, matters);
    let found = if names.len() == 1 { found.peer(names[0]) } else { found };
    found.advise("give the ends of a cable, or all ports of a switch, addresses of one subnet")
}

fn ports(ports: &[UsablePort]) -> String {
    let mut words: Vec<String> = ports.iter().take(MAX_PORTS).map(UsablePort::to_string).collect();
    if ports.len() > MAX_PORTS {
        words.push(format!("{} more", ports.len() - MAX_PORTS));
    }
    words.join(", ")
}

pub(super) fn duplicate(cluster: &Cluster<'_>) -> Vec<Finding> {
    let Some(plan) = cluster.plan else { return Vec::new() };
    let mut found = Vec::new();
    for (index, host) in indexed(cluster) {
        let (Some(diagnostics), Some(ports)) = (host.diagnostics, plan.ports.get(index)) else {
            continue;
        };
        let is_v4 = |port: &&UsablePort| port.nic.address.is_some_and(|a| a.is_ipv4());
        let ports: Vec<&UsablePort> = ports.iter().filter(is_v4).collect();
        let answers_for_others = |port: &UsablePort| {
            let netdev = port.nic.netdev.as_deref().unwrap_or_default();
            let state = interface(diagnostics, netdev);
            let settings = state.and_then(|state| Some((state.arp_ignore?, state.arp_announce?)));
            settings.is_some_and(|(ignore, announce)| ignore == 0 || announce < 2)
        };
        let pair = ports.iter().enumerate().find_map(|(at, one)| {
            let subnet = one.reachability.own_subnet()?;
            let other = ports[at + 1..].iter().find(|other| {
                other.nic.netdev != one.nic.netdev
                    && other.reachability.own_subnet() == Some(subnet)
                    && (answers_for_others(one) || answers_for_others(other))
            })?;
            Some((subnet, *one, *other))
        });
        let Some((subnet, one, other)) = pair else { continue };
        let name = |port: &UsablePort| port.nic.netdev.clone().unwrap_or_default();
        let seen = format!("{} and {} are both on {subnet}", name(one), name(other));
        let matters = "each answers ARP for the other, so RoCE packets reach the wrong port";
        let settings = "net.ipv4.conf.all.arp_ignore=1 net.ipv4.conf.all.arp_announce=2 net.ipv4.conf.all.rp_filter=2";
        let finding = Finding::warning(id::MESH_DUPLICATE, host.name, seen, matters)
            .run(format!("sudo sysctl -w {settings}"))
            .run(format!("printf '%s\\n' {settings} | sudo tee /etc/sysctl.d/90-rdma.conf"))
            .advise("or use a subnet for each interface");
        found.push(finding);
    }
    found
}
