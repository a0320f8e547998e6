//! `--after`: conditions that have to be met before the ranks of a program start, and the order in which programs start.
//!
//! [`StartOrder`] receives the events that ranks started and ports opened, and returns the programs that may
//! start.

use super::{AppError, AppTitle};
use crate::job::JobSpec;
use crate::map::RankMap;
use rlaunch_bootstrap::id::{NodeId, Rank};
use rlaunch_bootstrap::job::AwaitedPort;
use rlaunch_bootstrap::rank_table::RankTable;
use rlaunch_text::text::nearest;
use std::collections::BTreeSet;
use std::fmt;
use std::time::{Duration, Instant};

/// Condition that a program waits for.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Condition {
    /// All ranks of another program have been started. `index` is that program's number in the job, from 0.
    Started { index: usize, name: String },
    /// The host accepts TCP connections at this port.
    PortOpen { host: String, port: u16 },
}

impl fmt::Display for Condition {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Condition::Started { name, .. } => f.write_str(name),
            Condition::PortOpen { host, port } if host.contains(':') => {
                write!(f, "ready:tcp:[{host}]:{port}")
            }
            Condition::PortOpen { host, port } => write!(f, "ready:tcp:{host}:{port}"),
        }
    }
}

/// Parses the `--after` options of one program, and drops repeated conditions. `names` has the name of each
/// program of the job.
pub fn parse(
    options: &[String],
    names: &[Option<String>],
    title: &AppTitle,
) -> Result<Vec<Condition>, AppError> {
    let mut conditions = Vec::new();
    for text in options {
        let condition = parse_one(text.trim(), names, title)?;
        if !conditions.contains(&condition) {
            conditions.push(condition);
        }
    }
    Ok(conditions)
}

fn parse_one(
    text: &str,
    names: &[Option<String>],
    title: &AppTitle,
) -> Result<Condition, AppError> {
    if let Some(port) = text.strip_prefix("ready:") {
        return parse_port(port).ok_or_else(|| AppError::Ready(text.to_owned()));
    }
    if let Some(index) = names.iter().position(|name| name.as_deref() == Some(text)) {
        return Ok(Condition::Started { index, name: text.to_owned() });
    }
    let nearest = nearest(text, names.iter().flatten().map(String::as_str)).map(str::to_owned);
    Err(AppError::UnknownName { title: title.clone(), name: text.to_owned(), nearest })
}

/// Parses `tcp:HOST:PORT`, in which an IPv6 address is in brackets.
fn parse_port(text: &str) -> Option<Condition> {
    let (host, port) = text.strip_prefix("tcp:")?.rsplit_once(':')?;
    let port = port.parse().ok().filter(|&port| port > 0)?;
    let host = match host.strip_prefix('[') {
        Some(rest) => rest.strip_suffix(']')?,
        None => Some(host).filter(|host| !host.contains(':'))?,
    };
    let is_name = !host.is_empty() && !host.contains(|c: char| c.is_whitespace() || c == '/');
    is_name.then(|| Condition::PortOpen { host: host.to_owned(), port })
}

/// Returns an error if programs wait for each other in a cycle. `after` and `names` have the conditions and
/// the name of each program of the job.
pub fn check_cycles(after: &[&[Condition]], names: &[Option<String>]) -> Result<(), AppError> {
    let mut left: Vec<usize> = (0..after.len()).collect();
    loop {
        let waits = |index: &usize| {
            after[*index].iter().any(|condition| match condition {
                Condition::Started { index, .. } => left.contains(index),
                Condition::PortOpen { .. } => false,
            })
        };
        let still: Vec<usize> = left.iter().copied().filter(waits).collect();
        if still.len() == left.len() {
            break;
        }
        left = still;
    }
    // A program that waits for a program of the cycle is not part of the cycle. Such a program is left out if
    // no other program waits for it.
    let awaited = |index: &usize| {
        left.iter().any(|waiting| {
            after[*waiting].iter().any(|condition| {
                matches!(condition, Condition::Started { index: of, .. } if of == index)
            })
        })
    };
    let cycle: Vec<String> =
        left.iter().filter(|i| awaited(i)).filter_map(|&i| names[i].clone()).collect();
    if cycle.is_empty() { Ok(()) } else { Err(AppError::Cycle(cycle)) }
}

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
            let nodes = map.nodes_of(index).map(|node| node.id).collect();
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
        let prober = map.nodes_of(index).next().map(|node| node.id);
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

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn names(list: &[&str]) -> Vec<Option<String>> {
        list.iter().map(|name| Some((*name).to_owned()).filter(|name| !name.is_empty())).collect()
    }

    fn parsed(text: &str) -> Result<Condition, String> {
        let title = AppTitle::new(1, None, &["decode".into()]);
        parse_one(text, &names(&["master", "", "prefill"]), &title).map_err(|e| e.to_string())
    }

    #[test]
    fn conditions_are_names_or_ports() {
        let started = |index, name: &str| Ok(Condition::Started { index, name: name.into() });
        let open = |host: &str, port| Ok(Condition::PortOpen { host: host.into(), port });
        assert_eq!(parsed("prefill"), started(2, "prefill"));
        assert_eq!(parsed("ready:tcp:p:7100"), open("p", 7100));
        assert_eq!(parsed("ready:tcp:[fd00::1]:80"), open("fd00::1", 80));
        for bad in ["ready:tcp:7100", "ready:udp:p:1", "ready:tcp:p:0", "ready:tcp::1", "ready:"] {
            assert!(parsed(bad).unwrap_err().contains(bad), "{bad}");
        }
        assert!(parsed("ready:tcp:fd00::1:80").is_err());
    }

    #[test]
    fn a_mistyped_name_is_answered_with_the_nearest() {
        let title = AppTitle::new(1, None, &["/usr/bin/decode".into()]);
        let error = parse_one("mastr", &names(&["master", ""]), &title).unwrap_err();
        let expected =
            "application 2 (decode) is to start after `mastr`, but no program has that name";
        assert_eq!(error.to_string(), expected);
        assert_eq!(error.hint().as_deref(), Some("master exists"));
    }

    #[test]
    fn circles_are_named() {
        let all = names(&["a", "b", "c", "d"]);
        let after = |list: &[usize]| -> Vec<Condition> {
            let one = |&i: &usize| Condition::Started { index: i, name: all[i].clone().unwrap() };
            list.iter().map(one).collect()
        };
        let check = |lists: &[Vec<Condition>]| {
            let lists: Vec<&[Condition]> = lists.iter().map(Vec::as_slice).collect();
            check_cycles(&lists, &all).map_err(|error| error.to_string())
        };
        assert_eq!(check(&[after(&[]), after(&[0]), after(&[0, 1]), after(&[2])]), Ok(()));
        let cycle = check(&[after(&[1]), after(&[0]), after(&[1]), after(&[])]);
        assert_eq!(cycle, Err("a, b cannot start: each waits for another".to_owned()));
        let own = check(&[after(&[0]), after(&[]), after(&[]), after(&[])]);
        assert_eq!(own, Err("a cannot start: each waits for another".to_owned()));
    }

    proptest! {
        #[test]
        fn what_is_shown_can_be_typed(host in "[a-z0-9:.-]{1,12}", port in 1u16..) {
            let condition = Condition::PortOpen { host, port };
            prop_assert_eq!(parsed(&condition.to_string()), Ok(condition));
        }

        #[test]
        fn any_text_is_answered(text in ".{0,40}") {
            let _ = parsed(&text);
        }
    }
}
