//! Scripts: the inputs of a supervisor and its actions, as one text.
//!
//! A line that begins with a time, in seconds since the start of the ranks, is an input; the indented lines
//! below it are the resulting actions. `check` plays the inputs of a script, writes the actions below them
//! and compares the text with the script. Besides inputs there are:
//!
//! | line | meaning |
//! |---|---|
//! | `timeout` | the next timeout is handled when it is due; the script must have its time |
//! | `wait` | all timeouts until the line's time are handled when they are due |
//! | `reader pauses`, `reader reads` | output waits for its reader from now on, or no longer does |
//! | `late timeout` | one timeout is handled at the line's time, as after this process was suspended |

use super::super::{Action, Input, PhaseStates, Supervisor};
use crate::run::hang::OutsideWaits;
use crate::run::links::LinkMonitor;
use crate::run::live::LiveStatus;
use crate::run::nodes::Node;
use crate::run::output::Written;
use crate::run::rendezvous::Relay;
use crate::run::session::{NodeEvent, NodeEventKind};
use crate::run::signals::UserSignal;
use nix::sys::signal::Signal;
use rlaunch_bootstrap::id::{NodeId, Rank};
use rlaunch_bootstrap::job::{ExitStatus, TerminalSize};
use rlaunch_bootstrap::protocol::control::{
    CleanupReceipt, EndCause, FromAgent, ToAgent, UnservedMpi,
};
use rlaunch_bootstrap::protocol::mesh::{
    PathEvent, PathFault, PathOutcome, PathProof, ProofStep, RoundCost,
};
use rlaunch_bootstrap::protocol::rank::JobEvent;
use rlaunch_bootstrap::rank_table::RankTable;
use rlaunch_bootstrap::rendezvous::message::{MissingRanks, RankState};
use rlaunch_bootstrap::rendezvous::shape::TreeShape;
use rlaunch_plan::job::JobSpec;
use rlaunch_plan::job::apps::StartOrder;
use rlaunch_plan::map::RankMap;
use rlaunch_plan::mesh::outcome::ProofOutcome;
use rlaunch_plan::mesh::{Mesh, ProofResult, paths};
use rlaunch_plan::options::MeshMode;
use rlaunch_plan::selection::{Plan, PortOptions};
use rlaunch_plan::testing::{self, table_of, triangle};
use std::fmt::Write as _;
use std::time::{Duration, Instant};

/// Plays a script for the job of a command line without quotes. Rank R has the process id 100 + R.
pub(super) fn check(command: &str, script: &str) {
    let job = testing::job(command);
    let map = job.map_ranks().unwrap();
    let table = triangle_table();
    let links = |now| LinkMonitor::new(&Mesh::default(), &table, &job.options.mesh, now);
    play(&job, &map, links, script);
}

/// Plays a script for a job of one rank on each of three hosts, with RDMA links between any two: link
/// 0 is between a and b, 1 between a and c, 2 between b and c.
pub(super) fn check_links(options: &str, script: &str) {
    let job = testing::job(&format!("-H a,b,c {options}x"));
    let map = job.map_ranks().unwrap();
    let table = triangle_table();
    let mut mesh = Mesh { rounds: 1, ..Mesh::default() };
    for proof in paths::wanted(&table, MeshMode::Auto) {
        let outcome =
            ProofOutcome::Up(PathProof { mtu: proof.mtu, round_trip_ns: 41_000, write_mbps: None });
        mesh.results.push(ProofResult { id: mesh.next_id(), proof, outcome });
    }
    let links = |now| LinkMonitor::new(&mesh, &table, &job.options.mesh, now);
    play(&job, &map, links, script);
}

fn triangle_table() -> RankTable {
    let machines = triangle();
    table_of(&machines, 1, &Plan::new(&machines, &PortOptions::default()))
}

fn play(job: &JobSpec, map: &RankMap, links: impl Fn(Instant) -> LinkMonitor, script: &str) {
    let script = unindented(script);
    let start = Instant::now();
    let nodes = map.nodes.iter().map(|node| Node {
        id: node.id,
        host: node.host.clone(),
        ranks: node.ranks.clone(),
        facts: testing::facts(),
        hello_at: start,
        runs_in: None,
        container: None,
    });
    let nodes: Vec<Node> = nodes.collect();
    let hosts: Vec<String> = nodes.iter().map(|node| node.host.to_string()).collect();
    let shape = TreeShape::new(u32::try_from(nodes.len()).unwrap(), 1);
    let machines = PhaseStates {
        relay: Relay::new(shape),
        links: links(start),
        order: StartOrder::new(job, map, start),
    };
    let mut played = Played {
        supervisor: Supervisor::new(job, nodes, machines, &LiveStatus::new(), start),
        hosts,
        start,
        waits: OutsideWaits::default(),
        text: String::new(),
    };
    let inputs = script.lines().filter(|line| line.starts_with(|c: char| c.is_ascii_digit()));
    inputs.for_each(|line| played.input(line));
    let text = played.finish(job);
    assert!(text == script, "the script is\n{script}\nand played it is\n{text}");
}

/// Removes the indentation of the first line from all lines.
fn unindented(script: &str) -> String {
    let script = script.trim_start_matches('\n').trim_end();
    let indent = script.len() - script.trim_start().len();
    script.lines().map(|line| line.get(indent..).unwrap_or_default().to_owned() + "\n").collect()
}

struct Played<'a> {
    supervisor: Supervisor<'a>,
    hosts: Vec<String>,
    start: Instant,
    waits: OutsideWaits,
    text: String,
}

impl Played<'_> {
    fn input(&mut self, line: &str) {
        assert!(!self.supervisor.is_over(), "it is over before {line:?}");
        let (at, words) = line.split_once(' ').unwrap();
        let now = match words {
            "timeout" => self.supervisor.poll_timeout().expect("a timeout"),
            _ => self.start + Duration::from_secs_f64(at.parse().unwrap()),
        };
        let passed = now.duration_since(self.start).as_secs_f64();
        let _ = writeln!(self.text, "{passed:.2} {words}");
        match words {
            "timeout" | "late timeout" => self.supervisor.handle_timeout(now, self.waits),
            "reader pauses" => self.waits.output = true,
            "reader reads" => self.waits.output = false,
            "wait" => self.wait(now),
            _ => {
                let input = self.parse(words).unwrap_or_else(|| panic!("unknown: {line:?}"));
                self.supervisor.handle(now, input);
            }
        }
        self.perform();
        if self.supervisor.is_suspending() {
            self.text.push_str("  (suspending)\n");
        }
    }

    /// Handles every timeout until `end`, or until the job is over.
    fn wait(&mut self, end: Instant) {
        while let Some(due) = self.supervisor.poll_timeout().filter(|due| *due <= end) {
            if self.supervisor.is_over() {
                return;
            }
            self.supervisor.handle_timeout(due, self.waits);
            self.perform();
        }
    }

    fn perform(&mut self) {
        while let Some(action) = self.supervisor.poll_action() {
            let action = self.shown(action);
            let _ = writeln!(self.text, "  {action}");
        }
    }

    /// Returns the text with the outcome appended, if the job is over.
    fn finish(self, job: &JobSpec) -> String {
        let Played { supervisor, mut text, .. } = self;
        if !supervisor.is_over() {
            return text + "(goes on)\n";
        }
        let outcome = supervisor.into_outcome();
        if let Some(line) = outcome.closing_line() {
            let _ = writeln!(text, "rlaunch: {line}");
        }
        let reap = outcome.reap_hint(&"amber-fox".parse().unwrap());
        let decided = outcome.decide(&job.options, Written::default(), 29500);
        let _ = match decided.map_err(|failed| failed.hint(reap)) {
            Ok(exit) => writeln!(text, "exit {}", exit.0),
            Err(failed) => {
                let restart = if failed.may_restart { ", may restart" } else { "" };
                let spoke = if failed.by_rank { " of the rank" } else { "" };
                let details = failed.details.iter().chain(&failed.asides);
                let details = details.map(|detail| format!("\n  {detail}"));
                let hints = failed.hints.iter().map(|hint| format!("\nhint: {hint}"));
                let below: String = details.chain(hints).collect();
                let exit = failed.exit.0;
                writeln!(text, "exit {exit}{spoke}{restart}: {}{below}", failed.message)
            }
        };
        text
    }

    fn parse(&self, words: &str) -> Option<Input> {
        let (first, rest) = words.split_once(' ').unwrap_or((words, ""));
        Some(match (first, rest) {
            ("signal", name) => {
                let signal: Signal = name.parse().ok()?;
                let ends = [Signal::SIGINT, Signal::SIGTERM, Signal::SIGHUP].contains(&signal);
                let signal =
                    if ends { UserSignal::End(signal) } else { UserSignal::Forward(signal) };
                Input::Signal(signal)
            }
            ("resize", size) => {
                let (rows, columns) = size.split_once(' ')?;
                let (rows, columns) = (rows.parse().ok()?, columns.parse().ok()?);
                Input::Signal(UserSignal::Resize(TerminalSize { rows, columns }))
            }
            ("ctrl-z", "") => Input::Signal(UserSignal::Suspend),
            ("reader", "gone") => Input::ReaderGone,
            ("sessions", "closed") => Input::SessionsClosed,
            (host, rest) => Input::Node(NodeEvent {
                node: self.node(host)?,
                kind: self.kind(rest)?,
                room: None,
            }),
        })
    }

    fn node(&self, host: &str) -> Option<NodeId> {
        let at = self.hosts.iter().position(|known| known == host)?;
        Some(NodeId(u32::try_from(at).ok()?))
    }

    fn kind(&self, words: &str) -> Option<NodeEventKind> {
        let (verb, rest) = words.split_once(' ').unwrap_or((words, ""));
        Some(match verb {
            "lost:" => NodeEventKind::Lost(rest.to_owned()),
            "job-over:" => NodeEventKind::JobOver(rest.to_owned()),
            "cleaned-up:" => NodeEventKind::CleanedUp(cleanup(rest)),
            _ => NodeEventKind::Message(self.message(verb, rest)?),
        })
    }

    fn message(&self, verb: &str, rest: &str) -> Option<FromAgent> {
        let (first, more) = rest.split_once(' ').unwrap_or((rest, ""));
        let number = first.parse::<u32>().ok();
        Some(match verb {
            "started" => FromAgent::Started { rank: Rank(number?), pid: 100 + number? },
            "exited" => exited(Rank(number?), more)?,
            "done" => FromAgent::Done(receipt(rest)?),
            "suspended" => FromAgent::Suspended,
            "stood-still" => FromAgent::GraceRestarted,
            "port" => FromAgent::PortOpen { id: number? },
            "no-library:" => FromAgent::NoLibrary { cause: rest.to_owned() },
            "cannot" => {
                let (operation, cause) = rest.split_once(": ")?;
                FromAgent::Failed { operation: operation.to_owned(), cause: cause.to_owned() }
            }
            "unheard" => FromAgent::EndsRanks(EndCause::LauncherSilent { for_s: number? }),
            "got-signal" => FromAgent::EndsRanks(EndCause::Signal(first.parse().ok()?)),
            "relays" => {
                FromAgent::Relay { to: self.node(first)?, data: vec![0; more.parse().ok()?] }
            }
            "edge-broke" => FromAgent::EdgeBroke { peer: self.node(first)?, how: more.to_owned() },
            "waits-for-key" => FromAgent::WaitingForKey { key: first.into(), waited_ms: 10_000 },
            "waits-for" => waits_for(rest),
            "aborted-by" => {
                FromAgent::Aborted { by: Some(Rank(number?)), text: more.into(), code: None }
            }
            "mpi-aborted-by" => {
                let (code, text) = more.split_once(' ').unwrap_or((more, ""));
                let code = code.parse().ok();
                FromAgent::Aborted { by: Some(Rank(number?)), text: text.into(), code }
            }
            "aborted:" => FromAgent::Aborted { by: None, text: rest.into(), code: None },
            "event-of" => FromAgent::RankEvent { rank: Rank(number?), text: more.into() },
            "unserved" => {
                let what = UnservedMpi {
                    library: "libmpi.so.40".into(),
                    needs: "PMIx".into(),
                    linked: more == "linked",
                };
                FromAgent::UnservedMpi { pid: number?, what }
            }
            "link-down" => FromAgent::PathEvent(PathEvent::Down { id: number?, how: more.into() }),
            "port-up" => FromAgent::PathEvent(PathEvent::PortUp { id: number? }),
            "meets" => FromAgent::PathEndpoints { round: number?, endpoints: vec![vec![7]] },
            "proved" => proved(number?, more),
            _ => return None,
        })
    }

    fn shown(&self, action: Action) -> String {
        match action {
            Action::Send(node, message) => {
                format!("to {}: {}", self.hosts[node.index()], message_of(message))
            }
            Action::SendAll(message) => format!("to all: {}", message_of(message)),
            Action::Relay { from, to, data, .. } => {
                let [from, to] = [from, to].map(|node| &self.hosts[node.index()]);
                format!("to {to}: {} bytes of {from}", data.len())
            }
            Action::Emit(event) => {
                let event = serde_json::to_value(&event).unwrap();
                let fields = event.as_object().unwrap().iter().filter(|(name, _)| *name != "event");
                let fields: Vec<String> =
                    fields.map(|(name, value)| format!(" {name}={value}")).collect();
                format!("event {}{}", event["event"].as_str().unwrap(), fields.concat())
            }
            Action::Reply(connection, reply) => format!("reply to {}: {reply:?}", connection.0),
            Action::OfferStackReader => "offer the reader of stacks".to_owned(),
            Action::SendStackReader(node) => {
                format!("to {}: the reader of stacks", self.hosts[node.index()])
            }
            Action::LimitReaders(patience) => {
                format!("readers may pause for {} s", patience.as_secs_f64())
            }
            Action::Info(line) => format!("rlaunch: {line}"),
            Action::Warn(line) => format!("warning: {line}"),
            Action::StopProcess => "stop this process".to_owned(),
        }
    }
}

/// Makes the report of a rank's exit from `code 3`, `signal 9`, `signal 9 oom`, `code 3 at 0.05`,
/// `code 0 unfinalized` or `signal 15 ended`, which is for a rank that was ended by its agent.
fn exited(rank: Rank, how: &str) -> Option<FromAgent> {
    let mut words = how.split(' ');
    let kind = words.next()?;
    let number = words.next()?.parse().ok()?;
    let status = match kind {
        "code" => ExitStatus::Code(number),
        _ => ExitStatus::Signal(number),
    };
    let rest: Vec<&str> = words.collect();
    let at_us = match &rest[..] {
        ["at", at] => (at.parse::<f64>().ok()? * 1e6) as u64,
        _ => u64::from(u32::MAX),
    };
    let out_of_memory = rest == ["oom"];
    let unfinalized = rest.first() == Some(&"unfinalized");
    let by_itself = rest.last() != Some(&"ended");
    Some(FromAgent::Exited {
        rank,
        pid: 100 + rank.0,
        status,
        out_of_memory,
        unfinalized,
        by_itself,
        at_us,
    })
}

/// Makes the final report of a node from the empty text or `left PROCESS`.
fn receipt(left: &str) -> Option<CleanupReceipt> {
    match left {
        "" => Some(CleanupReceipt::default()),
        left => {
            let left = vec![left.strip_prefix("left ")?.to_owned()];
            Some(CleanupReceipt { left, ..CleanupReceipt::default() })
        }
    }
}

fn cleanup(words: &str) -> crate::connect::lost_agent::CleanupOutcome {
    use crate::connect::lost_agent::CleanupOutcome;

    match words {
        "unreachable" => CleanupOutcome::Unreachable,
        words => CleanupOutcome::Clean(words.to_owned()),
    }
}

/// Makes the report that ranks are waited for, with the state of the first of them.
fn waits_for(ranks: &str) -> FromAgent {
    let ranks: Vec<Rank> = ranks.split(' ').map(|rank| Rank(rank.parse().unwrap())).collect();
    let states = vec![(ranks[0], RankState::NotArrived { pid: 100 + ranks[0].0 })];
    let missing = MissingRanks { ranks: ranks.into_iter().collect(), states };
    FromAgent::Waiting { what: "barrier \"x\"".into(), waited_ms: 10_000, missing }
}

/// Makes the report of a round with one path from the path's id and result: `3 up` or `3 failed`.
fn proved(round: u32, result: &str) -> FromAgent {
    let (id, result) = result.split_once(' ').unwrap();
    let result = match result {
        "up" => Ok(PathProof { mtu: None, round_trip_ns: 41_000, write_mbps: None }),
        cause => Err(PathFault {
            step: ProofStep::Prepare,
            cause: cause.into(),
            hint: None,
            awaited_peer: false,
        }),
    };
    let outcomes = vec![PathOutcome { id: id.parse().unwrap(), result }];
    FromAgent::RoundDone { round, outcomes, cost: RoundCost::default() }
}

fn message_of(message: ToAgent) -> String {
    match message {
        ToAgent::End { now: false } => "end".to_owned(),
        ToAgent::End { now: true } => "end now".to_owned(),
        ToAgent::Signal(signal) => Signal::try_from(signal).unwrap().to_string(),
        ToAgent::Resize(TerminalSize { rows, columns }) => format!("resize {rows} {columns}"),
        ToAgent::Suspend => "suspend".to_owned(),
        ToAgent::Resume => "resume".to_owned(),
        ToAgent::StartApplication { index } => format!("start application {}", index + 1),
        ToAgent::Prove(round) => {
            let paths: Vec<u32> = round.paths.iter().map(|path| path.id).collect();
            format!("prove {paths:?} in round {}", round.number)
        }
        ToAgent::PeerEndpoints(given) => format!("met {given:?}"),
        ToAgent::WatchPaths { ids, .. } => format!("watch {ids:?}"),
        ToAgent::JobEvent(event) => format!("event: {}", event_of(event)),
        other => format!("{other:?}"),
    }
}

fn event_of(event: JobEvent) -> String {
    match event {
        JobEvent::RankFailed { rank, status, ends } => {
            let end = if ends { ", which ends the job" } else { "" };
            format!("rank {rank} {status}{end}")
        }
        JobEvent::NodeLost { node, how } => format!("node {node} lost: {how}"),
        JobEvent::LinkDown { nodes: [one, other], what } => format!("nodes {one}, {other}: {what}"),
        JobEvent::JobEnding { why } => format!("ending: {why}"),
        JobEvent::RanksFinished { ranks } => format!("ranks {ranks} finished"),
    }
}
