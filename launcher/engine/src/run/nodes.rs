//! Nodes of a job: connected, given their ranks, and prepared, all of them in parallel.
//!
//! Phases are types: each has what its phase has found out, and a method that consumes it and returns the next.
//!
//! ```text
//! Connecting ── reach ─▶ Reached ── prepare ─▶ Prepared ── join ─▶ Joined ── start ─▶ Running ── run_to_completion ─▶ Ended
//! ```
//!
//! | file | subject |
//! |---|---|
//! | `nodes` | a node, its agent, ranks assigned to nodes |
//! | `connect` | hosts are connected and their agents started |
//! | `helper_upload` | programs that nodes need for the proof of paths, and for stacks |
//! | `tree` | copies of a working tree are compared with it, and made what they have to be |
//! | `prepare` | every node gets its part of the job and checks that it can run that part |

mod connect;
mod helper_upload;
mod prepare;
mod tree;

pub(crate) use connect::{Connecting, open_sessions};
pub(crate) use helper_upload::HelperUpload;
pub(crate) use prepare::{Prepared, PreparedNode};
pub(crate) use tree::check_copies;

use crate::connect::agent::library::RankLibraries;
use crate::connect::connector::StartedContainer;
use crate::connect::outbox::{Outbox, Reserved};
use crate::run::output::OutputReceiver;
use crate::run::pump::{AgentMessage, Pump};
use crate::run::stdin::StdinFeed;
use rlaunch_bootstrap::id::{NodeId, Rank};
use rlaunch_bootstrap::job::NodeFacts;
use rlaunch_bootstrap::protocol::control::{FromAgent, ToAgent};
use rlaunch_console::deadline::{self, Deadline};
use rlaunch_console::progress::Progress;
use rlaunch_plan::hosts::Host;
use rlaunch_plan::job::JobSpec;
use rlaunch_plan::map::{MapBy, RankMap};
use rlaunch_text::exit::Exit;
use rlaunch_text::message::Failed;
use rlaunch_text::text;
use std::collections::{BTreeMap, HashMap};
use std::path::PathBuf;
use std::time::{Duration, Instant};
use tokio::sync::mpsc;

/// Time limit for all channels to close after agents were ordered to end.
const CLOSE_TIMEOUT: Duration = Duration::from_secs(2);

/// Host that takes part in the job, and whose agent has started. The queue to its agent is in [`Agents`].
#[derive(Debug)]
pub(crate) struct Node {
    pub id: NodeId,
    pub host: Host,
    pub ranks: Vec<Rank>,
    pub facts: NodeFacts,
    /// Time at which the agent's first message was received.
    pub(crate) hello_at: Instant,
    /// Home directory in which the ranks run for want of the launcher's directory, if the user should know that.
    pub(crate) runs_in: Option<PathBuf>,
    /// Container that was started for the agent.
    pub(crate) container: Option<StartedContainer>,
}

/// Says on which hosts ranks run in a home directory for want of the launcher's: one line for each home. `verb` is `run` or
/// `ran`.
pub(crate) fn homes(nodes: &[Node], verb: &str) -> Vec<String> {
    let elsewhere = nodes.iter().filter_map(|node| Some((node.runs_in.as_ref()?, &node.host)));
    let line = |(home, hosts): (&PathBuf, Vec<&Host>)| {
        let (hosts, home) = (text::list(&hosts), home.display());
        format!("this directory is not on {hosts}: the ranks there {verb} in {home}")
    };
    text::grouped(elsewhere).into_iter().map(line).collect()
}

/// Agents of a job, as the launcher reaches them. When this is dropped, sessions that are still open are cut off.
pub(crate) struct Agents {
    /// Queue to each agent, by node.
    outboxes: Vec<Outbox>,
    /// Channel on which nothing is sent. Every session holds a sender, so the channel closes when the last session ends.
    all_closed: mpsc::Receiver<()>,
}

impl Agents {
    /// Returns the queue to the agent of a node of the job.
    pub(crate) fn outbox(&self, node: NodeId) -> &Outbox {
        &self.outboxes[node.index()]
    }

    /// Returns the queues to all agents, by node.
    pub(crate) fn outboxes(&self) -> &[Outbox] {
        &self.outboxes
    }

    pub(crate) fn queue_for_all(&self, message: &ToAgent) {
        self.outboxes.iter().for_each(|agent| agent.queue_command(message));
    }

    pub(crate) fn queue_command(&self, node: NodeId, message: &ToAgent) {
        if let Some(agent) = self.outboxes.get(node.index()) {
            agent.queue_command(message);
        }
    }

    /// Forwards bytes from one node to another. `room` is the space that the bytes occupy in the buffer for
    /// the sending node; it is released when the bytes are written.
    pub(crate) fn relay(
        &self,
        (from, to): (NodeId, NodeId),
        data: Vec<u8>,
        room: Option<Reserved>,
    ) {
        if let Some(agent) = self.outboxes.get(to.index()) {
            agent.forward(&ToAgent::Relay { from, data }, room);
        }
    }

    /// Ends all but the first `count` agents, whose hosts have no ranks.
    pub(crate) fn end_all_but_first(&mut self, count: usize) {
        for idle in self.outboxes.split_off(count.min(self.outboxes.len())) {
            idle.queue_command(&ToAgent::End { now: true });
        }
    }

    /// Ends every agent and waits until the channels are closed, so that no agent outlives rlaunch.
    pub(crate) async fn shutdown(self) {
        self.queue_for_all(&ToAgent::End { now: true });
        let Agents { outboxes, mut all_closed } = self;
        drop(outboxes);
        // Sessions that remain are cut off with the receiver: the thread that writes output waits until their senders are
        // dropped.
        let _ = deadline::within(CLOSE_TIMEOUT, all_closed.recv()).await;
    }
}

/// Launcher's ends of two channels from the sessions: ranks' output, and reports of nodes' buffer space for
/// standard input. Both are used only after this process's own streams are opened.
pub(crate) struct PendingStdio {
    pub output: OutputReceiver,
    pub stdin: StdinFeed,
}

/// Nodes whose hosts are connected and whose agents have started.
pub(crate) struct Reached {
    /// Ranks of the nodes; without ranks if those depend on the number of GPUs.
    pub map: RankMap,
    pub nodes: Vec<Node>,
    libraries: RankLibraries,
}

/// Maximum number of hosts without enough GPUs that an error names in addition to the first.
const MAX_LINES: usize = 8;

impl Reached {
    /// Maps ranks to hosts if the number of slots was unknown until GPUs were counted, and ends the agents of
    /// hosts without ranks. Returns an error if two hosts are one machine, or if with `--map-by gpu` a host has fewer GPUs than ranks.
    pub(crate) fn assign_ranks(
        mut self,
        job: &JobSpec,
        pump: &mut Pump<'_>,
    ) -> Result<Reached, Failed> {
        if job.has_slots_from_gpus() {
            let nodes = self.nodes.iter();
            let hosts: Vec<Host> = nodes.map(|node| node.host.settled(node.facts.gpus)).collect();
            let map = job.map_ranks_to(&hosts);
            self.map = map.map_err(|error| job.mapping_failed(&error))?;
        }
        // Hosts without ranks are the last ones, so the other hosts keep their ids.
        let count = self.map.nodes.len();
        self.nodes.truncate(count);
        pump.end_all_but_first(count);
        for (node, mapped) in self.nodes.iter_mut().zip(&self.map.nodes) {
            (node.host, node.ranks) = (mapped.host.clone(), mapped.ranks.clone());
        }
        self.check_names(job)?;
        self.check_gpus(job)?;
        Ok(self)
    }

    /// Collects one answer from each of these nodes, in the order of nodes: what `take` makes of the messages of agents. Nodes
    /// that have not answered within `limit` are named in the error.
    async fn answers<T>(
        &self,
        pump: &mut Pump<'_>,
        from: &[NodeId],
        limit: Duration,
        progress: &Progress,
        mut take: impl FnMut(&Agents, NodeId, FromAgent) -> Option<T>,
    ) -> Result<Vec<T>, Failed> {
        let mut deadline = Deadline::after(limit);
        let mut answers = BTreeMap::new();
        while answers.len() < from.len() {
            let Some(AgentMessage { node, message, .. }) = pump.next_message(&mut deadline).await?
            else {
                let (seconds, missing) = (limit.as_secs(), progress.describe_pending());
                let message = format!("no answer within {seconds} s: {missing}");
                return Err(Failed::new(Exit::AGENT, message));
            };
            if let Some(answer) = take(&pump.agents, node, message)
                && from.contains(&node)
            {
                progress.done(&pump.host(node));
                answers.insert(node, answer);
            }
        }
        Ok(answers.into_values().collect())
    }

    /// Returns an error if two names mean one machine, because its CPUs and GPUs would be assigned twice and
    /// its ranks would have no network between them. With `--oversubscribe` that is no error.
    fn check_names(&self, job: &JobSpec) -> Result<(), Failed> {
        if job.oversubscribe {
            return Ok(());
        }
        let mut seen: HashMap<&str, Vec<&Node>> = HashMap::new();
        let twins = self.nodes.iter().find_map(|node| {
            let earlier = seen.entry(&node.facts.machine).or_default();
            let twin = earlier.iter().find(|twin| twin.facts.is_same_host(&node.facts)).copied();
            earlier.push(node);
            Some((twin?, node))
        });
        let Some((node, other)) = twins else { return Ok(()) };
        let (first, second) = (&node.host.name, &other.host.name);
        let ranks = node.ranks.len() + other.ranks.len();
        let message =
            format!("{first} and {second} are one machine ({}), named twice", node.facts.hostname);
        let hint = format!(
            "name it once, as {first}:{ranks} with -H or `{first} slots={ranks}` in a hostfile; \
             or run the ranks as those of two hosts: {}",
            job.with_options(&["--oversubscribe"])
        );
        Err(Failed::new(Exit::USAGE, message).hint(Some(hint)))
    }

    /// Returns an error if, with `--map-by gpu`, a host has fewer GPUs than ranks.
    fn check_gpus(&self, job: &JobSpec) -> Result<(), Failed> {
        if job.map_by != MapBy::Gpu || job.oversubscribe {
            return Ok(());
        }
        let too_few = |node: &&Node| node.ranks.len() > node.facts.gpus as usize;
        let line = |node: &Node| {
            format!("{}: {} ranks, {} GPUs", node.host, node.ranks.len(), node.facts.gpus)
        };
        let mut lines = self.nodes.iter().filter(too_few).map(line);
        let Some(first) = lines.next() else { return Ok(()) };
        let message = format!("--map-by gpu gives each rank a GPU of its own: {first}");
        let mut failed = Failed::new(Exit::USAGE, message);
        failed.details = lines.take(MAX_LINES).collect();
        let line = job.with_options(&["--oversubscribe"]);
        Err(failed.hint(Some(format!("ranks can share them: {line}"))))
    }
}
