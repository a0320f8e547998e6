//! Addresses of a plan on trial: they stay only if every link answers.

use super::Surveyed;
use super::agents::{HostAgents, OrderAnswer, SETTLE_MS, report_failures, unexpected};
use super::plan::{MeshPlan, PlannedEnd};
use rlaunch_bootstrap::protocol::network::{
    LinkAnswer, LinkProbe, NetworkChange, NetworkOrder, NetworkReply,
};
use rlaunch_console::messages;
use rlaunch_text::exit::Exit;
use rlaunch_text::message::Failed;
use rlaunch_text::text;
use std::time::Duration;

/// Time limit for the probes of all links, in milliseconds.
const PROBE_MS: u32 = 5_000;
/// MTU that is assumed if an interface's is unknown.
const USUAL_MTU: u32 = 1500;

/// Direction of a link.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Direction {
    from: PlannedEnd,
    to: PlannedEnd,
    probe: LinkProbe,
}

/// Changes the addresses, probes all links and confirms the changes; undoes them if anything fails. Returns a sentence
/// on what was done.
pub(super) async fn apply(
    agents: &mut HostAgents,
    plan: &MeshPlan,
    hosts: &[Surveyed],
    confirm: Duration,
) -> Result<String, Failed> {
    let changes: Vec<Vec<NetworkChange>> =
        (0..hosts.len()).map(|host| changes_of(plan, host)).collect();
    let count = changes.iter().map(Vec::len).sum::<usize>();
    let revert_ms = u32::try_from(confirm.as_millis()).unwrap_or(u32::MAX);
    let tried = match agents.apply(changes, revert_ms, SETTLE_MS).await {
        Ok(()) => probe(agents, plan, hosts).await,
        Err(failed) => Err(failed),
    };
    match tried {
        Ok(directions) => {
            confirm_all(agents).await?;
            let links = text::count(plan.links.len(), "link");
            Ok(format!(
                "{} made; {links} answered, {directions} directions",
                text::count(count, "change")
            ))
        }
        Err(failed) => {
            roll_back(agents).await;
            Err(failed)
        }
    }
}

/// Returns the changes of a host, with removals first: an address may move from one interface to another.
pub(super) fn changes_of(plan: &MeshPlan, host: usize) -> Vec<NetworkChange> {
    let ends = plan.links.iter().flat_map(|link| &link.ends).filter(|end| end.end.host == host);
    let all: Vec<NetworkChange> = ends.flat_map(|end| end.changes.clone()).collect();
    let is_removal = |change: &NetworkChange| matches!(change, NetworkChange::RemoveAddress { .. });
    let (removals, others): (Vec<_>, Vec<_>) = all.into_iter().partition(is_removal);
    removals.into_iter().chain(others).collect()
}

/// Lists both directions of each link.
fn directions(plan: &MeshPlan, hosts: &[Surveyed]) -> Vec<Direction> {
    let mtu = |end: &PlannedEnd| {
        let found = hosts.get(end.end.host).and_then(|host| host.interface(&end.end.interface));
        end.mtu.or(found.map(|one| one.netdev.mtu)).unwrap_or(USUAL_MTU)
    };
    let mut all = Vec::new();
    for link in &plan.links {
        for from in &link.ends {
            for to in link.ends.iter().filter(|to| *to != from) {
                let packet = mtu(from).min(mtu(to));
                let probe = LinkProbe { from: from.address, to: to.address, packet };
                all.push(Direction { from: from.clone(), to: to.clone(), probe });
            }
        }
    }
    all
}

/// Probes all links. Returns the number of directions, or an error that names the links that do not answer.
pub(super) async fn probe(
    agents: &mut HostAgents,
    plan: &MeshPlan,
    hosts: &[Surveyed],
) -> Result<usize, Failed> {
    let directions = directions(plan, hosts);
    let of = |host: usize| directions.iter().filter(move |d| d.from.end.host == host);
    let token = agents.token;
    let order = |host| NetworkOrder::Probe {
        token,
        probes: of(host).map(|direction| direction.probe.clone()).collect(),
        limit_ms: PROBE_MS,
    };
    let orders = (0..hosts.len()).map(order).collect();
    let limit = Duration::from_millis(u64::from(PROBE_MS));
    let answers = agents.order("probing the links", limit, orders).await;
    let mut silent = Vec::new();
    for (host, answer) in answers.into_iter().enumerate() {
        let name = |end: &PlannedEnd| {
            let host = hosts.get(end.end.host).map_or("?", |host| &host.name);
            format!("{host} {} {}", end.end.interface, end.address)
        };
        match answer {
            Ok(NetworkReply::Probed(outcomes)) => {
                silent.extend(of(host).zip(outcomes).filter_map(|(direction, outcome)| {
                    let (from, to) = (name(&direction.from), name(&direction.to));
                    failure(&outcome, direction.probe.packet)
                        .map(|failure| format!("{from} to {to}: {failure}"))
                }));
            }
            other => silent.push(format!("{}: {}", hosts[host].name, unexpected(other))),
        }
    }
    if silent.is_empty() {
        return Ok(directions.len());
    }
    let message =
        format!("{} of {} do not answer", silent.len(), text::count(directions.len(), "direction"));
    let mut failed = Failed::new(Exit::RENDEZVOUS, message);
    failed.details = silent;
    let port = rlaunch_bootstrap::protocol::network::NETWORK_PORT;
    Err(failed.hint(Some(format!(
        "a firewall may drop UDP port {port} between these addresses, or a cable was moved since the discovery"
    ))))
}

/// Describes an outcome that is a failure.
fn failure(outcome: &LinkAnswer, packet: u32) -> Option<String> {
    match outcome {
        LinkAnswer::Answered => None,
        LinkAnswer::OnlyShort => {
            Some(format!("only short packets come back, none of {packet} bytes"))
        }
        LinkAnswer::Silent => Some("nothing comes back".to_owned()),
        LinkAnswer::Refused(cause) => Some(cause.clone()),
    }
}

async fn confirm_all(agents: &mut HostAgents) -> Result<(), Failed> {
    let answers = agents.order_all("confirming", Duration::ZERO, &NetworkOrder::Confirm).await;
    let unconfirmed: Vec<String> = unanswered(agents, answers, &NetworkReply::Confirmed);
    if unconfirmed.is_empty() {
        return Ok(());
    }
    let message = format!("{} was lost while it confirmed", text::list(&unconfirmed));
    let hint = "its changes are kept or undone as a whole, and the other hosts keep theirs: run the command again";
    Err(Failed::new(Exit::NODE_LOST, message).hint(Some(hint)))
}

fn unanswered(
    agents: &HostAgents,
    answers: Vec<OrderAnswer>,
    wanted: &NetworkReply,
) -> Vec<String> {
    let answers = agents.names().into_iter().zip(answers);
    answers.filter(|(_, answer)| answer.as_ref() != Ok(wanted)).map(|(name, _)| name).collect()
}

/// Undoes all changes and prints where that was done.
async fn roll_back(agents: &mut HostAgents) {
    let order = NetworkOrder::RollBack;
    let answers = agents.order_all("rolling back", Duration::ZERO, &order).await;
    let (mut done, mut lost) = (Vec::new(), Vec::new());
    for (name, answer) in agents.names().into_iter().zip(answers) {
        match answer {
            Ok(NetworkReply::RolledBack(report)) => {
                report_failures(&name, &report.failed);
                done.push(name);
            }
            _ => lost.push(name),
        }
    }
    if !done.is_empty() {
        messages::info(&format!("rolled back on {}", text::list(&done)));
    }
    if !lost.is_empty() {
        let names = text::list(&lost);
        messages::warn(&format!(
            "no word from {names} that the changes are undone; an agent that misses rlaunch undoes them \
             by itself: `ip address` there shows whether it has"
        ));
    }
}

#[cfg(test)]
mod tests {
    use super::super::plan::{PlanOptions, plan};
    use super::super::testing::{three_hosts, triangle, with_address};
    use super::*;

    #[test]
    fn each_direction_is_probed_with_the_smaller_mtu() {
        let mut hosts = three_hosts();
        hosts[0].network.interfaces[1].netdev.mtu = 9000;
        let base = "192.168.100.0/22".parse().unwrap();
        let mut options = PlanOptions { base, prefix: 24, mtu: None, keeps: None };
        let probes = |options: PlanOptions| {
            let plan = plan(&hosts, &triangle(), options).unwrap();
            let all = directions(&plan, &hosts).into_iter();
            all.map(|d| (d.probe.from.to_string(), d.probe.to.to_string(), d.probe.packet))
                .collect::<Vec<_>>()
        };
        let all = probes(options);
        assert_eq!(all.len(), 6);
        assert!(all.contains(&("192.168.101.2".into(), "192.168.101.3".into(), 1500)), "{all:?}");
        assert!(all.contains(&("192.168.101.3".into(), "192.168.101.2".into(), 1500)), "{all:?}");
        options.mtu = Some(4200);
        assert!(probes(options).iter().all(|(_, _, packet)| *packet == 4200));
    }

    #[test]
    fn addresses_are_removed_before_others_are_added() {
        let mut hosts = three_hosts();
        let own = &mut hosts[0].network.interfaces;
        own[1] = with_address(own[1].clone(), "192.168.103.2/30");
        own[2] = with_address(own[2].clone(), "192.168.101.2/30");
        let base = "192.168.100.0/22".parse().unwrap();
        let options = PlanOptions { base, prefix: 24, mtu: None, keeps: None };
        let plan = plan(&hosts, &triangle(), options).unwrap();
        let lines: Vec<String> = changes_of(&plan, 0).iter().map(ToString::to_string).collect();
        let wanted = [
            "ip address delete 192.168.101.2/30 dev enp1s0f1np1",
            "ip address delete 192.168.103.2/30 dev enp1s0f0np0",
            "ip address add 192.168.100.2/24 dev enp1s0f1np1",
            "ip address add 192.168.101.2/24 dev enp1s0f0np0",
        ];
        assert_eq!(lines, wanted);
    }

    #[test]
    fn failures_of_probes_are_described() {
        assert_eq!(failure(&LinkAnswer::Answered, 1500), None);
        let only = failure(&LinkAnswer::OnlyShort, 9000).unwrap();
        assert_eq!(only, "only short packets come back, none of 9000 bytes");
        assert!(failure(&LinkAnswer::Silent, 1500).is_some());
        assert_eq!(failure(&LinkAnswer::Refused("x".into()), 1500).unwrap(), "x");
    }
}
