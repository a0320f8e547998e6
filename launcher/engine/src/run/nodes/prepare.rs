//! Preparation of all nodes: each gets its part of the job, checks whether it can run that part, and answers.

use super::{Nodes, ReachedNode, agent_failure, node_lost};
use crate::run::job_run::JobRun;
use crate::run::session::{NodeEvent, NodeEventKind};
use crate::run::{inventory_check, output, preflight_report};
use bytes::Bytes;
use rlaunch_bootstrap::id::NodeId;
use rlaunch_bootstrap::inventory::Inventory;
use rlaunch_bootstrap::job::library::{LibrarySource, NodeLibrary};
use rlaunch_bootstrap::job::{InterfaceAddress, Job, NodeFacts, Notice, Problem};
use rlaunch_bootstrap::protocol::control::{self, FromAgent, ToAgent};
use rlaunch_bootstrap::rendezvous::oob::OobConfig;
use rlaunch_console::progress::Progress;
use rlaunch_console::{deadline, messages};
use rlaunch_plan::env::ReservedPorts;
use rlaunch_plan::hosts::{Host, addresses};
use rlaunch_plan::job::{JobSpec, apps};
use rlaunch_plan::map::RankMap;
use rlaunch_plan::placement::Bind;
use rlaunch_text::exit::Exit;
use rlaunch_text::message::Failed;
use std::net::{IpAddr, SocketAddr};
use std::time::Duration;

/// Time limit for nodes to prepare, without the time that preloaded files take. A longer node timeout, which says how
/// slow nodes may be, takes precedence.
const PREPARE_TIMEOUT: Duration = Duration::from_secs(30);
/// Lowest rate at which preloaded files are expected to be sent, in bytes per second.
const PRELOAD_RATE: u64 = 256 << 10;

/// Results of preparing all nodes.
#[derive(Default)]
pub(crate) struct Prepared {
    /// TCP ports that each node has reserved, by node, in the order of [`ReservedPorts`].
    pub ports: Vec<Vec<u16>>,
    /// Addresses at which each node listens for its children in the tree, by node.
    pub listeners: Vec<Vec<SocketAddr>>,
    /// Addresses by which other nodes may reach each node, by node, best first.
    pub(crate) candidates: Vec<Vec<InterfaceAddress>>,
    pub inventories: Vec<Inventory>,
    /// Location of the library for ranks, by node; `None` for a node without it.
    pub libraries: Vec<Option<NodeLibrary>>,
}

impl Nodes {
    /// Sends every node its part of the job and waits until each node has checked and prepared what its ranks
    /// need: program, directories, ports, preloaded files.
    pub(crate) async fn prepare(
        &mut self,
        job: &JobRun,
        map: &RankMap,
    ) -> Result<Prepared, Failed> {
        let files = preload_frames(&job.spec)?;
        let named: Vec<(&str, &NodeFacts)> =
            self.reached.iter().map(|node| (node.host.name.as_str(), &node.facts)).collect();
        for (name, facts) in &named {
            let absent = job.reach.host_table.missing_address_warnings(name, &facts.addresses);
            absent.iter().for_each(|line| messages::warn(line));
        }
        let candidates = addresses::candidates(&named, &job.spec.oob)?;
        addresses::unmet_preferences(&named, &job.spec.oob)
            .iter()
            .for_each(|sentence| messages::warn(sentence));
        for node in &self.reached {
            let addresses = candidates[node.id.index()].iter().map(|c| c.address).collect();
            let library = self.libraries.source_for(&node.facts.arch).await;
            let part = node_job(&job.spec, map, node, (addresses, library));
            node.commands.open_window(part.output_window);
            let message = ToAgent::Job(Box::new(part));
            node.commands.try_queue_message(&message).map_err(|error| {
                Failed::new(Exit::USAGE, format!("the job does not fit a frame: {error}"))
                    .hint(Some("the environment or the command line is too large"))
            })?;
            for frame in &files {
                node.commands.send_frame(frame.clone());
            }
        }
        let bytes: u64 = job.spec.preload.iter().map(|preload| preload.file.size).sum();
        let timeout =
            PREPARE_TIMEOUT.max(job.spec.node_timeout) + Duration::from_secs(bytes / PRELOAD_RATE);
        let names = self.reached.iter().map(|node| node.host.to_string());
        let progress = Progress::new(names, "preparing");
        let answers = deadline::within(timeout, self.answers(&progress));
        let answers = progress.report_while(answers).await.ok_or_else(|| {
            let missing = progress.pending();
            Failed::new(Exit::AGENT, format!("no answer within {} s: {missing}", timeout.as_secs()))
        })??;
        let prepared = self.evaluate(&answers, candidates)?;
        let hosts = self.reached.iter().map(|node| &node.host);
        let inventories: Vec<(&Host, &Inventory)> = hosts.zip(&prepared.inventories).collect();
        let container = job.reach.container.as_ref();
        inventory_check::check_container(container, &inventories)?;
        inventory_check::print_deficits(
            container,
            &inventories,
            self.reached.iter().map(|node| node.facts.uid),
        );
        Ok(prepared)
    }

    /// Collects one answer from every node, in the order of nodes.
    async fn answers(&mut self, progress: &Progress) -> Result<Vec<(NodeId, FromAgent)>, Failed> {
        let mut answers = Vec::new();
        while answers.len() < self.reached.len() {
            let Some(NodeEvent { node, kind, .. }) = self.events.recv().await else { break };
            match kind {
                NodeEventKind::Message(
                    answer @ (FromAgent::Prepared { .. } | FromAgent::Refused { .. }),
                ) => {
                    progress.done(&self.host(node));
                    answers.push((node, answer));
                }
                NodeEventKind::Message(other) => {
                    agent_failure(&self.host(node), &other).map_or(Ok(()), Err)?;
                }
                NodeEventKind::CleanedUp(_) => {}
                NodeEventKind::Lost(how) => return Err(node_lost(&self.host(node), &how)),
            }
        }
        answers.sort_by_key(|(node, _)| *node);
        Ok(answers)
    }

    /// Converts the answers to [`Prepared`]. If any node refused the job, returns an error with the problems
    /// of all nodes.
    fn evaluate(
        &self,
        answers: &[(NodeId, FromAgent)],
        candidates: Vec<Vec<InterfaceAddress>>,
    ) -> Result<Prepared, Failed> {
        let mut problems: Vec<(&Host, &Problem)> = Vec::new();
        let mut notices: Vec<(&Host, &Notice)> = Vec::new();
        let mut prepared = Prepared { candidates, ..Prepared::default() };
        for (node, answer) in answers {
            let host = &self.reached[node.index()].host;
            match answer {
                FromAgent::Refused { problems: found } => {
                    problems.extend(found.iter().map(|problem| (host, problem)));
                }
                FromAgent::Prepared { notices: found, ports, listeners, inventory, library } => {
                    notices.extend(found.iter().map(|notice| (host, notice)));
                    prepared.ports.push(ports.clone());
                    prepared.listeners.push(listeners.clone());
                    prepared.inventories.push((**inventory).clone());
                    prepared.libraries.push(library.clone());
                }
                _ => {}
            }
        }
        if problems.is_empty() {
            preflight_report::print_notices(&notices);
            return Ok(prepared);
        }
        Err(preflight_report::explain(&problems))
    }

    /// Begins to send the library for ranks to the nodes that lack it, and does not wait until they have it.
    pub(crate) fn send_libraries(&self, prepared: &Prepared) {
        let is_lacking =
            |place: &Option<NodeLibrary>| place.as_ref().is_some_and(|place| !place.is_present);
        let nodes = self.reached.iter().zip(&prepared.libraries);
        let lacking = nodes
            .filter(|(_, place)| is_lacking(place))
            .map(|(node, _)| (node.host.clone(), node.facts.arch.clone(), node.commands.clone()));
        self.libraries.send(lacking.collect());
    }
}

/// Makes the part of the job that one node gets.
fn node_job(
    job: &JobSpec,
    map: &RankMap,
    node: &ReachedNode,
    (addresses, library): (Vec<IpAddr>, Option<LibrarySource>),
) -> Job {
    let shape = job.shape(map.nodes.len());
    let (applications, ranks) = apps::node_applications(job, map, node.id);
    Job {
        id: job.id,
        node: node.id,
        host: node.host.name.clone(),
        login: job.login,
        applications,
        ranks,
        preload: job.preload.iter().map(|preload| preload.file.clone()).collect(),
        kill_after_ms: u32::try_from(job.kill_after.as_millis()).unwrap_or(u32::MAX),
        node_timeout_ms: u32::try_from(job.node_timeout.as_millis()).unwrap_or(u32::MAX),
        output_window: output::window(map.nodes.len()),
        stamp_output: job.output.needs_timestamps(),
        merge_stderr: job.output.merge_stderr,
        world_size: map.world_size,
        mpi: job.mpi,
        singleton: job.singleton,
        wants_cores: matches!(job.options.bind, Bind::Core(_)),
        nccl_net_plugin: job.options.nccl_net_plugin.clone(),
        library,
        reserved_port_count: ReservedPorts::for_node(
            &job.options,
            map,
            &map.nodes[node.id.index()],
        )
        .count(),
        master_port: job.master_port.filter(|_| node.id == NodeId(0)),
        oob: OobConfig {
            secret: job.secret.clone(),
            nodes: shape.nodes(),
            radix: shape.radix(),
            addresses,
            ports: job.port_range,
        },
        token: job.token,
    }
}

/// Encodes the preloaded files as frames, once for all nodes.
fn preload_frames(job: &JobSpec) -> Result<Vec<Bytes>, Failed> {
    let mut frames = Vec::new();
    for (index, preload) in (0u32..).zip(&job.preload) {
        let failed = |error: &dyn std::error::Error| {
            let message = format!("cannot preload {}: {error}", preload.source.display());
            Failed::new(Exit::FILES, message)
        };
        let content = std::fs::read(&preload.source).map_err(|error| failed(&error))?;
        for data in control::file_parts(&content).map(<[u8]>::to_vec) {
            let frame = control::encode(&ToAgent::File { index, data });
            frames.push(frame.map_err(|error| failed(&error))?.into());
        }
    }
    Ok(frames)
}
