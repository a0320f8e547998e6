//! When programs start: those that wait for others, until what they wait for is there.

use super::after::Condition;
use super::{Title, nodes_of};
use crate::job::JobSpec;
use crate::plan::map::RankMap;
use rlaunch_bootstrap::id::{NodeId, Rank};
use rlaunch_bootstrap::job::AwaitedPort;
use rlaunch_bootstrap::rank_table::RankTable;
use std::collections::BTreeSet;
use std::time::{Duration, Instant};

/// After so long it is said what a program waits for; then after three times as long each time.
const SPEAK_AFTER: Duration = Duration::from_secs(10);

/// A program may start: its ranks on these nodes.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Due {
    /// Its number.
    pub(crate) index: u32,
    pub(crate) nodes: Vec<NodeId>,
}

/// What is not there yet.
#[derive(Debug)]
enum Missing {
    /// These ranks of a program have not been started.
    Ranks(BTreeSet<Rank>),
    /// The port of this id does not accept connections.
    Port(u32),
}

/// A program that waits.
struct Waiting {
    title: Title,
    due: Due,
    missing: Vec<(Condition, Missing)>,
}

/// The programs that wait; of a job without such there are none, and nothing is done.
pub(crate) struct Order {
    waiting: Vec<Waiting>,
    since: Instant,
    speak_at: Instant,
}

impl Order {
    /// All have to wait that have conditions; the ranks of the others start at `now`.
    pub(crate) fn of(job: &JobSpec, map: &RankMap, now: Instant) -> Order {
        let mut ids = 0..;
        let mut missing = |condition: &Condition| match condition {
            Condition::Started { index, .. } => {
                let is_own = |rank: &Rank| map.application_of(*rank) == *index;
                Some(Missing::Ranks((0..map.world_size).map(Rank).filter(is_own).collect()))
            }
            Condition::Open { .. } => Some(Missing::Port(ids.next()?)),
        };
        let mut waiting = Vec::new();
        for (index, app) in job.apps.iter().enumerate() {
            let conditions = app.after.iter();
            let missing: Vec<_> =
                conditions.filter_map(|c| Some((c.clone(), missing(c)?))).collect();
            if missing.is_empty() {
                continue;
            }
            let nodes = nodes_of(map, index).map(|node| node.id).collect();
            let due = Due { index: u32::try_from(index).unwrap_or(u32::MAX), nodes };
            waiting.push(Waiting { title: app.title(index), due, missing });
        }
        Order { waiting, since: now, speak_at: now + SPEAK_AFTER }
    }

    /// A rank has been started, or has ended without that: which programs may start now.
    pub(crate) fn rank_seen(&mut self, rank: Rank) -> Vec<Due> {
        self.met(|missing| match missing {
            Missing::Ranks(ranks) => {
                ranks.remove(&rank);
                ranks.is_empty()
            }
            Missing::Port(_) => false,
        })
    }

    /// A port accepts connections: which programs may start now.
    pub(crate) fn port_open(&mut self, id: u32) -> Vec<Due> {
        self.met(|missing| matches!(missing, Missing::Port(own) if *own == id))
    }

    fn met(&mut self, mut is_there: impl FnMut(&mut Missing) -> bool) -> Vec<Due> {
        for waiting in &mut self.waiting {
            waiting.missing.retain_mut(|(_, missing)| !is_there(missing));
        }
        let due = self.waiting.extract_if(.., |waiting| waiting.missing.is_empty());
        due.map(|waiting| waiting.due).collect()
    }

    /// When [`Order::on_time`] is due.
    pub(crate) fn deadline(&self) -> Option<Instant> {
        (!self.waiting.is_empty()).then_some(self.speak_at)
    }

    /// What to say of those that still wait; `host` is where a node is.
    pub(crate) fn on_time(&mut self, now: Instant) -> Vec<String> {
        if now < self.speak_at {
            return Vec::new();
        }
        let waited = now.duration_since(self.since);
        self.speak_at = now + waited * 2;
        let line = |waiting: &Waiting| {
            let missing: Vec<String> =
                waiting.missing.iter().map(|(condition, _)| condition.to_string()).collect();
            let seconds = waited.as_secs();
            format!("{} waits for {}, {seconds} s so far", waiting.title, missing.join(" and "))
        };
        self.waiting.iter().map(line).collect()
    }
}

/// The ports that programs wait for, each with the node that looks for it: the first of the program
/// that waits. One of the job's hosts is looked for by its address.
pub(crate) fn awaited_ports(
    job: &JobSpec,
    map: &RankMap,
    table: &RankTable,
) -> Vec<(NodeId, AwaitedPort)> {
    let mut ports = Vec::new();
    let mut id = 0;
    for (index, app) in job.apps.iter().enumerate() {
        let looks = nodes_of(map, index).next().map(|node| node.id);
        for condition in &app.after {
            let Condition::Open { host, port } = condition else { continue };
            let hosts = addresses(host, looks, table);
            let port = AwaitedPort { id, hosts, port: *port };
            ports.extend(looks.map(|node| (node, port)));
            id += 1;
        }
    }
    ports
}

/// By what `host` is tried from a node: on the node itself by whatever it has.
fn addresses(host: &str, from: Option<NodeId>, table: &RankTable) -> Vec<String> {
    let of_job = table.nodes().iter().find(|node| node.host == host);
    let Some(node) = of_job else { return vec![host.to_owned()] };
    let mut addresses = vec![node.address.to_string()];
    if Some(node.node) == from {
        addresses.extend(["127.0.0.1", "::1"].map(str::to_owned));
        addresses.extend(node.addresses.iter().map(|own| own.address.to_string()));
        addresses.sort_unstable();
        addresses.dedup();
    }
    addresses
}

#[cfg(test)]
mod tests {
    use super::super::typed;
    use super::*;

    fn order(line: &str, now: Instant) -> Order {
        let job = typed(line).unwrap();
        Order::of(&job, &job.map_ranks().unwrap(), now)
    }

    fn due(index: u32, nodes: &[u32]) -> Vec<Due> {
        vec![Due { index, nodes: nodes.iter().copied().map(NodeId).collect() }]
    }

    #[test]
    fn a_program_starts_when_all_of_another_has_and_its_ports_are_open() {
        let line = "-H a,b -np 2 --name srv x : -H b:2,c --after srv,ready:tcp:a:80 y : -H c \
                    --after ready:tcp:b:81 z";
        let mut order = order(line, Instant::now());
        assert_eq!(order.rank_seen(Rank(0)), []);
        assert_eq!(order.port_open(0), []);
        assert_eq!(order.port_open(1), due(2, &[2]));
        assert_eq!(order.rank_seen(Rank(0)), [], "the same one again");
        assert_eq!(order.rank_seen(Rank(1)), due(1, &[1, 2]));
        assert_eq!(order.deadline(), None, "nobody waits any more");
    }

    #[test]
    fn a_long_wait_is_said_less_and_less_often() {
        let now = Instant::now();
        let line =
            "-H a -np 1 --name srv x : -H b -np 1 --name decode --after srv,ready:tcp:a:80 y";
        let mut order = order(line, now);
        let mut said = Vec::new();
        for second in 0..=100 {
            let lines = order.on_time(now + Duration::from_secs(second));
            said.extend(lines.into_iter().map(|line| (second, line)));
        }
        let seconds: Vec<u64> = said.iter().map(|(second, _)| *second).collect();
        assert_eq!(seconds, [10, 30, 90]);
        let line = "application 2 (decode) waits for srv and ready:tcp:a:80, 30 s so far";
        assert_eq!(said[1].1, line);
        assert_eq!(order.rank_seen(Rank(0)), []);
        let left = order.on_time(now + Duration::from_secs(300));
        assert_eq!(left, ["application 2 (decode) waits for ready:tcp:a:80, 300 s so far"]);
    }

    #[test]
    fn a_job_without_conditions_waits_for_nothing() {
        let mut order = order("-H a,b x", Instant::now());
        assert_eq!(order.deadline(), None);
        assert_eq!(order.rank_seen(Rank(0)), []);
    }
}
