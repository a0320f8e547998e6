//! Check, before ranks start, whether RDMA connects all hosts. Missing connections are reported, and are an
//! error under `--transport rdma`.

use crate::env::nccl::{self, NcclNetwork};
use crate::findings::{self, CheckId, id};
use crate::map::RankMap;
use crate::options::{Transport, UserChoices};
use crate::rank_config;
use crate::selection::{Plan, UsablePort};
use rlaunch_bootstrap::inventory::Inventory;
use rlaunch_text::exit::Exit;
use rlaunch_text::message::{Failed, Message};
use rlaunch_text::text;

/// Maximum number of lines about hosts without RDMA; the rest are only counted.
const MAX_LINES: usize = 8;

/// Tells which hosts RDMA does not connect, and warns about the network that NCCL will use.
///
/// # Errors
///
/// RDMA is required by `--transport rdma` and does not connect all hosts, or is required by `--require-rdma`
/// and NCCL cannot use it.
pub fn check(
    choices: &UserChoices<'_>,
    map: &RankMap,
    inventories: &[Inventory],
    plan: &Plan,
    network: &NcclNetwork,
) -> Result<Vec<Message>, Failed> {
    let mut told = Vec::new();
    let mut info = |text: String| told.push(Message::Info(text));
    if choices.options.nccl_share_gpu {
        info("ranks share GPUs: their data goes by the network, and times mean nothing".into());
    }
    if map.nodes.len() < 2 || choices.options.transport == Transport::Tcp {
        return Ok(told);
    }
    let missing = missing(choices, map, inventories, plan);
    if choices.options.transport == Transport::Rdma && !missing.is_empty() {
        let refused = refuse(missing, nccl::erdma_remedy(map, inventories));
        return Err(findings::with_finding(
            refused,
            finding_of_first_line(choices, inventories, plan),
        ));
    }
    if choices.options.require_rdma
        && let NcclNetwork::Tcp(why) = network
    {
        let line = format!("NCCL would use TCP on every host ({why})");
        let refused = refuse(vec![line], nccl::erdma_remedy(map, inventories));
        return Err(findings::with_finding(refused, Some(id::NCCL_NET)));
    }
    // If no host has RDMA, its absence is not worth a message.
    let expected = plan.ports.iter().any(|ports| !ports.is_empty());
    for line in missing.iter().take(MAX_LINES).filter(|_| expected) {
        info(format!("{line}: TCP is used"));
    }
    if missing.len() > MAX_LINES && expected {
        info(format!("and {} more without RDMA", missing.len() - MAX_LINES));
    }
    if let Some((line, hint)) = rank_config::slow_network(choices, map, inventories, network) {
        info(line);
        told.extend(hint.map(Message::Hint));
    }
    Ok(told)
}

/// Returns the id of the finding that the first line about missing RDMA states.
fn finding_of_first_line(
    choices: &UserChoices<'_>,
    inventories: &[Inventory],
    plan: &Plan,
) -> Option<CheckId> {
    match plan.nodes_without_ports().next() {
        Some(node) => nccl::finding_for_tcp(&inventories[node], &choices.options.ports),
        None => Some(id::MESH_SUBNET),
    }
}

fn refuse(lines: Vec<String>, cure: Option<String>) -> Failed {
    let mut lines = lines.into_iter();
    let mut failed = Failed::new(Exit::MESH, lines.next().unwrap_or_default());
    failed.details.extend(lines.by_ref().take(MAX_LINES));
    let more = lines.count();
    if more > 0 {
        failed.details.push(format!("and {more} more"));
    }
    let otherwise = "--transport auto uses TCP where there is no RDMA";
    failed.hint(cure).hint(Some(otherwise))
}

/// Writes a line for each reason why hosts have no usable port, and for each pair of hosts whose ports do not
/// reach each other.
fn missing(
    choices: &UserChoices<'_>,
    map: &RankMap,
    inventories: &[Inventory],
    plan: &Plan,
) -> Vec<String> {
    let mut causes: Vec<(String, Vec<String>)> = Vec::new();
    for node in plan.nodes_without_ports() {
        let host = map.nodes[node].host.to_string();
        let why = nccl::reason_for_tcp(&inventories[node], &choices.options.ports);
        match causes.iter_mut().find(|(known, _)| *known == why) {
            Some((_, hosts)) => hosts.push(host),
            None => causes.push((why, vec![host])),
        }
    }
    let causes = causes.into_iter();
    let unusable = causes.map(|(why, hosts)| format!("no RDMA on {}: {why}", text::list(&hosts)));
    let unconnected = plan.unconnected_pairs().into_iter().map(|(one, other)| {
        let has = |node: usize| format!("{} has {}", map.nodes[node].host, list(&plan.ports[node]));
        let (one_host, other_host) = (&map.nodes[one].host, &map.nodes[other].host);
        format!("no RDMA between {one_host} and {other_host}: {}; {}", has(one), has(other))
    });
    unusable.chain(unconnected).collect()
}

fn list(ports: &[UsablePort]) -> String {
    ports.iter().map(UsablePort::to_string).collect::<Vec<_>>().join(", ")
}
