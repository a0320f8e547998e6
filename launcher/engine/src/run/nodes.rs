//! All nodes of a job together: they are connected, prepared and started in parallel, and shut down at the
//! end of the job.
//!
//! | file | subject |
//! |---|---|
//! | `nodes` | the nodes with their sessions; ranks assigned to them; the launcher's stdio; the order to start ranks; the end |
//! | `connect` | hosts are connected and their agents started |
//! | `prepare` | every node gets its part of the job and checks that it can run that part |

mod connect;
mod prepare;

pub(crate) use connect::prepare_sessions;
pub(crate) use prepare::Prepared;

use crate::connect::agent::library::RankLibraries;
use crate::connect::outbox::{Outbox, Reserved};
use crate::run::job_run::JobRun;
use crate::run::output::{self, Transcript};
use crate::run::rendezvous::Joined;
use crate::run::session::NodeEvent;
use crate::run::stdin::StdinFeed;
use nix::sys::signal::Signal;
use rlaunch_bootstrap::id::{NodeId, Rank};
use rlaunch_bootstrap::job::{NodeFacts, RankSetup};
use rlaunch_bootstrap::protocol::control::{self, EndCause, FromAgent, ToAgent};
use rlaunch_console::deadline;
use rlaunch_plan::env::identity;
use rlaunch_plan::env::nccl::Log;
use rlaunch_plan::hosts::Host;
use rlaunch_plan::job::JobSpec;
use rlaunch_plan::job::apps::{self, RenderedTexts};
use rlaunch_plan::map::{MapBy, RankMap};
use rlaunch_plan::rank_config::RankConfig;
use rlaunch_text::exit::Exit;
use rlaunch_text::message::Failed;
use std::collections::HashMap;
use std::time::{Duration, Instant};
use tokio::sync::mpsc;
use tokio::task::JoinHandle;

/// Time limit for all channels to close after agents were ordered to end.
const CLOSE_TIMEOUT: Duration = Duration::from_secs(2);

/// Nodes of a job, each with its session.
pub(crate) struct Nodes {
    /// Nodes with a started agent, indexed by [`NodeId`].
    pub reached: Vec<ReachedNode>,
    pub events: NodeEvents,
    libraries: RankLibraries,
    sessions: Vec<JoinHandle<()>>,
}

/// Receiver of events from all nodes of a job. Events of hosts without ranks are dropped, since their agents
/// were ended.
pub(crate) struct NodeEvents {
    receiver: mpsc::UnboundedReceiver<NodeEvent>,
    /// Number of nodes; hosts without ranks have higher ids.
    nodes: usize,
}

impl NodeEvents {
    /// Waits for the next event; `None` when every session has ended. Cancel-safe.
    pub(crate) async fn recv(&mut self) -> Option<NodeEvent> {
        loop {
            let event = self.receiver.recv().await?;
            if event.node.index() < self.nodes {
                return Some(event);
            }
        }
    }
}

/// Node with a started agent.
pub(crate) struct ReachedNode {
    pub id: NodeId,
    pub host: Host,
    pub ranks: Vec<Rank>,
    pub commands: Outbox,
    pub facts: NodeFacts,
    /// Time at which the agent's first message was received.
    pub(crate) hello_at: Instant,
}

impl Nodes {
    pub(crate) fn queue_for_all(&self, message: &ToAgent) {
        for node in &self.reached {
            node.commands.queue_command(message);
        }
    }

    pub(crate) fn queue_command(&self, node: NodeId, message: &ToAgent) {
        if let Some(node) = self.reached.get(node.index()) {
            node.commands.queue_command(message);
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
        if let Some(node) = self.reached.get(to.index()) {
            node.commands.forward(&ToAgent::Relay { from, data }, room);
        }
    }

    /// Returns the name of a node's host, or `unknown node N` for an id that no node has, which only a faulty
    /// agent sends.
    pub(crate) fn host(&self, node: NodeId) -> String {
        let known = self.reached.get(node.index());
        known.map_or_else(|| format!("unknown node {}", node.0), |node| node.host.to_string())
    }

    /// Ends every agent and waits until the channels are closed, so that no agent outlives rlaunch.
    pub(crate) async fn shutdown(self) {
        self.queue_for_all(&ToAgent::End { now: true });
        let Nodes { reached, mut sessions, events, .. } = self;
        drop((reached, events));
        let closed = async {
            for session in &mut sessions {
                // An error means that the session panicked, which was printed.
                let _ = session.await;
            }
        };
        if deadline::within(CLOSE_TIMEOUT, closed).await.is_none() {
            // Sessions that remain are aborted: the thread that writes output waits until their senders are
            // dropped.
            sessions.iter().for_each(JoinHandle::abort);
        }
    }
}

/// Makes the error of a job that has lost a node.
pub(crate) fn node_lost(host: &str, how: &str) -> Failed {
    let failed = Failed::new(Exit::NODE_LOST, format!("node {host} is lost: {how}"));
    Failed { may_restart: true, ..failed }
}

/// Says how a node was lost whose agent ends its ranks without an order, and returns a hint with it.
pub(crate) fn own_end(cause: EndCause) -> (String, &'static str) {
    match cause {
        EndCause::LauncherSilent { for_s } => (
            format!("it received nothing from this rlaunch for {for_s} s and gave up"),
            "hosts cannot tell an rlaunch that is suspended or cut off from one that has died; \
             --node-timeout sets how long they wait once they have the job",
        ),
        EndCause::Signal(number) => {
            let name = Signal::try_from(number).map_or("unknown", Signal::as_str);
            (
                format!("its agent got signal {number} ({name}) and ended"),
                "a host that shuts down, its batch system or a person there sends it to \
                 rlaunch-worker",
            )
        }
    }
}

/// Returns the error that an agent reports about itself, in whatever phase of the job.
pub(crate) fn agent_failure(host: &str, message: &FromAgent) -> Option<Failed> {
    match message {
        FromAgent::Failed { operation, cause } => {
            Some(node_lost(host, &format!("cannot {operation}: {cause}")))
        }
        FromAgent::EndsRanks(cause) => {
            let (how, hint) = own_end(*cause);
            Some(node_lost(host, &how).hint(Some(hint)))
        }
        _ => None,
    }
}

/// Makes the warning about a node that could not store the library for its ranks.
pub(crate) fn no_library(host: &str, cause: &str) -> String {
    format!("{host}: ranks have no library to link or import: {cause}")
}

/// Maximum number of hosts without enough GPUs that an error names in addition to the first.
const MAX_LINES: usize = 8;

impl Nodes {
    /// Maps ranks to hosts if the number of slots was unknown until GPUs were counted, and ends the agents of
    /// hosts without ranks. Otherwise returns the map `reached` unchanged. Returns an error if two hosts are
    /// one machine, or if with `--map-by gpu` a host has fewer GPUs than ranks.
    pub(crate) fn assign_ranks(
        &mut self,
        job: &JobSpec,
        reached: RankMap,
    ) -> Result<RankMap, Failed> {
        let map = match job.has_slots_from_gpus() {
            false => reached,
            true => {
                let nodes = self.reached.iter();
                let hosts: Vec<Host> =
                    nodes.map(|node| node.host.settled(node.facts.gpus)).collect();
                job.map_ranks_to(&hosts).map_err(|error| Failed::from_error(Exit::USAGE, &error))?
            }
        };
        // Hosts without ranks are the last ones, so the other hosts keep their ids.
        for idle in self.reached.split_off(map.nodes.len().min(self.reached.len())) {
            idle.commands.queue_command(&ToAgent::End { now: true });
        }
        self.events.nodes = self.reached.len();
        for (node, mapped) in self.reached.iter_mut().zip(&map.nodes) {
            (node.host, node.ranks) = (mapped.host.clone(), mapped.ranks.clone());
        }
        self.check_names(job)?;
        self.check_gpus(job)?;
        Ok(map)
    }

    /// Returns an error if two names mean one machine, because its CPUs and GPUs would be assigned twice and
    /// its ranks would have no network between them. With `--oversubscribe` that is no error.
    fn check_names(&self, job: &JobSpec) -> Result<(), Failed> {
        if job.oversubscribe {
            return Ok(());
        }
        let mut seen: HashMap<&str, Vec<&ReachedNode>> = HashMap::new();
        let twins = self.reached.iter().find_map(|node| {
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
             --oversubscribe runs the ranks as those of two hosts"
        );
        Err(Failed::new(Exit::USAGE, message).hint(Some(hint)))
    }

    /// Returns an error if, with `--map-by gpu`, a host has fewer GPUs than ranks.
    fn check_gpus(&self, job: &JobSpec) -> Result<(), Failed> {
        if job.map_by != MapBy::Gpu || job.oversubscribe {
            return Ok(());
        }
        let too_few = |node: &&ReachedNode| node.ranks.len() > node.facts.gpus as usize;
        let line = |node: &ReachedNode| {
            format!("{}: {} ranks, {} GPUs", node.host, node.ranks.len(), node.facts.gpus)
        };
        let mut lines = self.reached.iter().filter(too_few).map(line);
        let Some(first) = lines.next() else { return Ok(()) };
        let message = format!("--map-by gpu gives each rank a GPU of its own: {first}");
        let mut failed = Failed::new(Exit::USAGE, message);
        failed.details = lines.take(MAX_LINES).collect();
        Err(failed.hint(Some("--oversubscribe lets ranks share them")))
    }
}

/// Launcher's ends of two channels from the sessions: ranks' output, and reports of nodes' buffer space for
/// standard input. Both are used only after this process's own streams are opened.
pub(crate) struct PendingStdio {
    output: output::OutputReceiver,
    stdin: StdinFeed,
}

impl Nodes {
    /// Creates the files of `--output-dir`, begins to read standard input if any rank reads it, and starts
    /// the thread that writes the ranks' output.
    pub(crate) fn open_stdio(
        &self,
        job: &JobRun,
        map: &RankMap,
        streams: PendingStdio,
    ) -> Result<output::OutputWriter, Failed> {
        let files = output::rank_files(&job.spec.output, map.world_size)?;
        let commands: Vec<Outbox> = self.reached.iter().map(|node| node.commands.clone()).collect();
        streams.stdin.open(&job.spec.stdin, map, &commands).map_err(|error| {
            Failed::new(Exit::FILES, format!("cannot read standard input: {error}"))
        })?;
        let nccl =
            job.spec.options.nccl_verify.then(|| Log::new(job.spec.sets_variable("NCCL_DEBUG")));
        let config = output::OutputConfig {
            tags: job.spec.output.tag.clone().map(|pattern| output::Tags::new(pattern, map)),
            fold: job.spec.output.fold,
            files,
            merged: job.spec.output.merge_stderr,
            credit: commands,
            ranks: map.world_size,
            nccl,
            transcript: job.recorder.is_some().then(Transcript::default),
            stdio: job.stdio.clone(),
            status: job.events.status().clone(),
        };
        Ok(output::start(config, streams.output))
    }
}

impl Nodes {
    /// Sends every node the order to start its ranks.
    pub(super) fn order_start(
        &self,
        job: &JobSpec,
        map: &RankMap,
        joined: &Joined,
    ) -> Result<(), Failed> {
        let (address, port) = joined.master;
        tracing::info!("MASTER_ADDR {address} MASTER_PORT {port}");
        let user_set_vars = apps::vars_set_for_all_apps(&job.apps);
        let mut env = identity::master_variables(address, port, &user_set_vars);
        env.extend(job.restarts.into_iter().flat_map(|restarts| restarts.env(&user_set_vars)));
        let mut filled = RenderedTexts::render_all(job, map, &joined.table)?;
        let awaited = apps::awaited_ports(job, map, &joined.table);
        let mut messages = Vec::with_capacity(self.reached.len());
        for (node, rank_configs) in self.reached.iter().zip(&joined.rank_configs) {
            let rank_setup = |(rank, setup): (&Rank, &RankConfig)| {
                let RenderedTexts { arguments, env, files } =
                    filled.remove(rank).unwrap_or_default();
                RankSetup { rendered_args: arguments, rendered_env: env, files, ..setup.to_setup() }
            };
            let ranks = node.ranks.iter().zip(rank_configs).map(rank_setup).collect();
            let own = awaited.iter().filter(|(looks, _)| *looks == node.id);
            let ports = own.map(|(_, port)| port.clone()).collect();
            let horovod = joined.horovod.get(node.id.index()).copied();
            let message = ToAgent::Start { env: env.clone(), ranks, horovod, ports };
            messages.push(control::encode(&message).map_err(|error| {
                Failed::new(Exit::USAGE, format!("templates do not fit a frame: {error}"))
            })?);
        }
        for (node, message) in self.reached.iter().zip(messages) {
            node.commands.send_frame(message.into());
        }
        Ok(())
    }
}
