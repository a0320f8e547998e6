//! Order in which programs start: a program with `--after` waits until all its conditions are met.
//!
//! [`StartOrder`] receives the events that ranks started and ports opened, and returns the programs that may
//! start.

use super::after::Condition;
use super::{AppTitle, nodes_of};
use crate::job::JobSpec;
use crate::map::RankMap;
use rlaunch_bootstrap::id::{NodeId, Rank};
use rlaunch_bootstrap::job::AwaitedPort;
use rlaunch_bootstrap::rank_table::RankTable;
use std::collections::BTreeSet;
use std::time::{Duration, Instant};

/// Time until the first message about what a program waits for. Each further message follows when the waiting
/// time has tripled.
const FIRST_REPORT: Duration = Duration::from_secs(10);

/// Program that may start now.
#[derive(Debug, PartialEq, Eq)]
pub struct DueProgram {
    /// Index of the program in the job.
    pub index: u32,
    /// Nodes on which the program has ranks.
    pub nodes: Vec<NodeId>,
}

/// Event for which a program waits.
#[derive(Debug)]
enum Awaited {
    /// Start of another program's ranks. The set has the ranks that have not started yet.
    Ranks(BTreeSet<Rank>),
    /// Opening of the port that has this [`AwaitedPort::id`].
    Port(u32),
}

/// Program that may not start yet.
struct WaitingProgram {
    title: AppTitle,
    program: DueProgram,
    /// Conditions that are not met yet, each with the event that meets it.
    awaited: Vec<(Condition, Awaited)>,
}

/// Programs that wait for conditions.
pub struct StartOrder {
    waiting: Vec<WaitingProgram>,
    since: Instant,
    report_at: Instant,
}

impl StartOrder {
    /// Collects the programs that have conditions. All others start at `now`, from which waiting times are
    /// counted.
    pub fn new(job: &JobSpec, map: &RankMap, now: Instant) -> StartOrder {
        let mut ids = 0..;
        let mut awaited = |condition: &Condition| match condition {
            Condition::Started { index, .. } => {
                let is_own = |rank: &Rank| map.application_of(*rank) == *index;
                Some(Awaited::Ranks((0..map.world_size).map(Rank).filter(is_own).collect()))
            }
            Condition::PortOpen { .. } => Some(Awaited::Port(ids.next()?)),
        };
        let mut waiting = Vec::new();
        for (index, app) in job.apps.iter().enumerate() {
            let conditions = app.after.iter();
            let awaited: Vec<_> =
                conditions.filter_map(|c| Some((c.clone(), awaited(c)?))).collect();
            if awaited.is_empty() {
                continue;
            }
            let nodes = nodes_of(map, index).map(|node| node.id).collect();
            let program = DueProgram { index: u32::try_from(index).unwrap_or(u32::MAX), nodes };
            waiting.push(WaitingProgram { title: app.title(index), program, awaited });
        }
        StartOrder { waiting, since: now, report_at: now + FIRST_REPORT }
    }

    /// Records that a rank was started, or failed to start, and returns the programs that may start now.
    pub fn on_rank_started(&mut self, rank: Rank) -> Vec<DueProgram> {
        self.remove_met(|awaited| match awaited {
            Awaited::Ranks(ranks) => {
                ranks.remove(&rank);
                ranks.is_empty()
            }
            Awaited::Port(_) => false,
        })
    }

    /// Records that a port accepts connections, and returns the programs that may start now. `id` is the
    /// port's [`AwaitedPort::id`].
    pub fn on_port_open(&mut self, id: u32) -> Vec<DueProgram> {
        self.remove_met(|awaited| matches!(awaited, Awaited::Port(own) if *own == id))
    }

    fn remove_met(&mut self, mut is_met: impl FnMut(&mut Awaited) -> bool) -> Vec<DueProgram> {
        for waiting in &mut self.waiting {
            waiting.awaited.retain_mut(|(_, awaited)| !is_met(awaited));
        }
        let due = self.waiting.extract_if(.., |waiting| waiting.awaited.is_empty());
        due.map(|waiting| waiting.program).collect()
    }

    /// Returns the time at which [`StartOrder::on_time`] has to be called; `None` if no program waits.
    pub fn deadline(&self) -> Option<Instant> {
        (!self.waiting.is_empty()).then_some(self.report_at)
    }

    /// Returns a message for each program that still waits, if [`StartOrder::deadline`] has passed.
    pub fn on_time(&mut self, now: Instant) -> Vec<String> {
        if now < self.report_at {
            return Vec::new();
        }
        let waited = now.duration_since(self.since);
        self.report_at = now + waited * 2;
        let line = |waiting: &WaitingProgram| {
            let awaited: Vec<String> =
                waiting.awaited.iter().map(|(condition, _)| condition.to_string()).collect();
            let seconds = waited.as_secs();
            format!("{} waits for {}, {seconds} s so far", waiting.title, awaited.join(" and "))
        };
        self.waiting.iter().map(line).collect()
    }
}

/// Returns the ports that programs wait for, each with the node that tries to connect to it: the first node
/// of the waiting program. If the port is on a host of the job, that node uses the host's address in the rank
/// table.
pub fn awaited_ports(
    job: &JobSpec,
    map: &RankMap,
    table: &RankTable,
) -> Vec<(NodeId, AwaitedPort)> {
    let mut ports = Vec::new();
    let mut id = 0;
    for (index, app) in job.apps.iter().enumerate() {
        let prober = nodes_of(map, index).next().map(|node| node.id);
        for condition in &app.after {
            let Condition::PortOpen { host, port } = condition else { continue };
            let hosts = addresses(host, prober, table);
            let port = AwaitedPort { id, hosts, port: *port };
            ports.extend(prober.map(|node| (node, port)));
            id += 1;
        }
    }
    ports
}

/// Returns the names and addresses at which the node `from` tries to reach `host`. If `host` is that node
/// itself, these are all its addresses, including loopback.
fn addresses(host: &str, from: Option<NodeId>, table: &RankTable) -> Vec<String> {
    let job_node = table.nodes().iter().find(|node| node.host == host);
    let Some(node) = job_node else { return vec![host.to_owned()] };
    let mut addresses = vec![node.address.to_string()];
    if Some(node.node) == from {
        addresses.extend(["127.0.0.1", "::1"].map(str::to_owned));
        addresses.extend(node.addresses.iter().map(|own| own.address.to_string()));
        addresses.sort_unstable();
        addresses.dedup();
    }
    addresses
}
