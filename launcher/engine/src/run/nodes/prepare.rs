//! Preparation of all nodes: each gets its part of the job, checks whether it can run that part, and answers.

use super::{Agents, HelperUpload, Node, Reached};
use crate::connect::agent::library::RankLibraries;
use crate::run::job_run::JobRun;
use crate::run::pump::Pump;
use crate::run::{inventory_check, output, preflight_report, told};
use bytes::Bytes;
use rlaunch_bootstrap::id::NodeId;
use rlaunch_bootstrap::inventory::Inventory;
use rlaunch_bootstrap::job::library::{LibrarySource, NodeLibrary};
use rlaunch_bootstrap::job::{Binding, InterfaceAddress, Job, NodeFacts, Notice, Problem};
use rlaunch_bootstrap::protocol::control::{self, FromAgent, Helper, ToAgent};
use rlaunch_bootstrap::rendezvous::oob::OobConfig;
use rlaunch_console::deadline::Deadline;
use rlaunch_console::progress::Progress;
use rlaunch_console::{messages, terminal};
use rlaunch_plan::env::ReservedPorts;
use rlaunch_plan::hosts::{Host, addresses};
use rlaunch_plan::job::{JobSpec, Preload};
use rlaunch_plan::map::RankMap;
use rlaunch_plan::placement::Bind;
use rlaunch_plan::rank_config;
use rlaunch_text::exit::Exit;
use rlaunch_text::message::Failed;
use std::net::{IpAddr, SocketAddr};
use std::time::Duration;

/// Time limit for nodes to prepare, without the time that preloaded files take. A longer node timeout, which says how
/// slow nodes may be, takes precedence.
const PREPARE_TIMEOUT: Duration = Duration::from_secs(30);
/// Lowest rate at which preloaded files are expected to be sent, in bytes per second.
const PRELOAD_RATE: u64 = 256 << 10;
/// Maximum number of problems, and of notices, of one node that are printed; only a faulty agent sends more.
const MAX_FOUND: usize = 100;

/// Nodes that have checked and prepared what their ranks need.
pub(crate) struct Prepared {
    pub map: RankMap,
    pub nodes: Vec<Node>,
    /// Answers of the nodes, by node.
    pub answers: Vec<PreparedNode>,
    /// Inventories by node.
    pub inventories: Vec<Inventory>,
    /// TCP ports that each node has reserved, by node, in the order of [`ReservedPorts`].
    pub ports: Vec<Vec<u16>>,
    libraries: RankLibraries,
}

/// Answer of a node that is prepared, with what its agent was told.
#[derive(Clone, Debug, Default)]
pub(crate) struct PreparedNode {
    /// Addresses by which other nodes may reach the node, best first.
    pub(crate) candidates: Vec<InterfaceAddress>,
    /// Addresses at which the node listens for its children in the tree.
    pub listeners: Vec<SocketAddr>,
    /// Location of the library for ranks; `None` if the node has none.
    pub library: Option<NodeLibrary>,
}

impl PreparedNode {
    /// Tells whether the library for ranks must be sent to the node.
    pub(crate) fn lacks_library(&self) -> bool {
        self.library.as_ref().is_some_and(|library| !library.is_present)
    }
}

impl Reached {
    /// Sends every node its part of the job and waits until each node has checked and prepared what its ranks
    /// need: program, directories, ports, preloaded files.
    pub(crate) async fn prepare(
        mut self,
        job: &JobRun,
        pump: &mut Pump<'_>,
    ) -> Result<Prepared, Failed> {
        let bytes: u64 = job.spec.preload.iter().map(|preload| preload.file.size).sum();
        let limit = PREPARE_TIMEOUT.max(job.spec.node_timeout())
            + Duration::from_secs(bytes / PRELOAD_RATE);
        let (files, libraries) =
            pump.run_unless_ended(self.read_local_files(&job.spec, limit)).await?;
        let candidates = self.candidates(job)?;
        let mut copier = job.spec.runs_copier.then(|| HelperUpload::new(Helper::Copier));
        for ((node, own), library) in self.nodes.iter().zip(&candidates).zip(libraries) {
            let addresses = own.iter().map(|candidate| candidate.address).collect();
            let part = node_job(&job.spec, &self.map, node, addresses, library);
            let agent = pump.agents.outbox(node.id);
            agent.open_window(&self.map.nodes[node.id.index()].ranks, part.output_window);
            agent.try_queue_message(&ToAgent::Job(Box::new(part))).map_err(|error| {
                Failed::new(Exit::USAGE, format!("the job does not fit a frame: {error}"))
                    .hint(Some("the environment or the command line is too large"))
            })?;
            files.iter().for_each(|frame| agent.send_frame(frame.clone()));
            if let Some(copier) = &mut copier {
                copier.offer(&pump.agents, node, job.reach.agent.as_deref())?;
            }
        }
        let progress = Progress::new(self.nodes.iter().map(|n| n.host.to_string()), "preparing");
        let all: Vec<NodeId> = self.nodes.iter().map(|node| node.id).collect();
        let answers = self.answers(pump, &all, limit, &progress, |agents, node, message| {
            if let (FromAgent::NeedsHelper(Helper::Copier), Some(copier)) = (&message, &mut copier)
            {
                copier.send(agents, &self.nodes[node.index()]);
            }
            let is_answer =
                matches!(message, FromAgent::Prepared { .. } | FromAgent::Refused { .. });
            is_answer.then_some(message)
        });
        let answers = progress.report_while(answers).await?;
        let prepared = self.evaluate(job, answers, candidates)?;
        super::homes(&prepared.nodes, "run").iter().for_each(|line| told::once(line));
        let hosts = prepared.nodes.iter().map(|node| &node.host);
        let inventories: Vec<(&Host, &Inventory)> = hosts.zip(&prepared.inventories).collect();
        inventory_check::check_container(&job.reach, &inventories)?;
        inventory_check::print_deficits(
            &job.reach,
            &inventories,
            prepared.nodes.iter().map(|node| node.facts.uid),
        );
        Ok(prepared)
    }

    /// Reads within `limit` what nodes need from this machine: the frames of preloaded files, and where each node finds
    /// the library for its ranks.
    async fn read_local_files(
        &mut self,
        job: &JobSpec,
        limit: Duration,
    ) -> Result<(Vec<Bytes>, Vec<Option<LibrarySource>>), Failed> {
        let mut deadline = Deadline::after(limit);
        let preload = job.preload.clone();
        let reading = tokio::task::spawn_blocking(move || preload_frames(&preload));
        let files = in_time(&mut deadline, "the files of --copy were", reading).await?;
        let files = files.map_err(|error| Failed::from_error(Exit::BUG, &error))??;
        let mut libraries = Vec::with_capacity(self.nodes.len());
        for node in &self.nodes {
            let library = self.libraries.source_for(&node.facts.arch);
            libraries.push(in_time(&mut deadline, "the library for ranks was", library).await?);
        }
        Ok((files, libraries))
    }

    /// Returns the addresses by which other nodes may reach each node, by node.
    fn candidates(&self, job: &JobRun) -> Result<Vec<Vec<InterfaceAddress>>, Failed> {
        let named: Vec<(&str, &NodeFacts)> =
            self.nodes.iter().map(|node| (node.host.name.as_str(), &node.facts)).collect();
        for (name, facts) in &named {
            let absent = job.reach.host_table.missing_address_warnings(name, &facts.addresses);
            absent.iter().for_each(|line| messages::warn(line));
        }
        let candidates = addresses::candidates(&named, &job.spec.oob)?;
        addresses::unmet_preferences(&named, &job.spec.oob)
            .iter()
            .for_each(|sentence| messages::warn(sentence));
        Ok(candidates)
    }

    /// Takes the answers of all nodes. If any node refused the job, returns an error with the problems of all nodes.
    fn evaluate(
        self,
        job: &JobRun,
        answers: Vec<FromAgent>,
        candidates: Vec<Vec<InterfaceAddress>>,
    ) -> Result<Prepared, Failed> {
        let Reached { map, mut nodes, libraries } = self;
        let mut problems: Vec<(Host, Problem)> = Vec::new();
        let mut notices: Vec<(Host, Notice)> = Vec::new();
        let (mut inventories, mut reserved, mut prepared) = (Vec::new(), Vec::new(), Vec::new());
        for ((node, answer), candidates) in nodes.iter_mut().zip(answers).zip(candidates) {
            match answer {
                FromAgent::Refused { problems: found } => {
                    let found = found.into_iter().take(MAX_FOUND);
                    problems.extend(found.map(|problem| (node.host.clone(), problem)));
                }
                FromAgent::Prepared { notices: found, ports, listeners, inventory, library } => {
                    for notice in found.into_iter().take(MAX_FOUND) {
                        match notice {
                            Notice::RunsInHome { home } => {
                                node.runs_in = job.says_directory.then_some(home);
                            }
                            notice => notices.push((node.host.clone(), notice)),
                        }
                    }
                    inventories.push(*inventory);
                    reserved.push(ports);
                    prepared.push(PreparedNode { candidates, listeners, library });
                }
                // `prepare` takes nothing else.
                _ => {}
            }
        }
        if !problems.is_empty() {
            let problems: Vec<(&Host, &Problem)> = problems.iter().map(|(h, p)| (h, p)).collect();
            return Err(preflight_report::explain(&problems, job.spec.typed()));
        }
        let notices: Vec<(&Host, &Notice)> = notices.iter().map(|(h, n)| (h, n)).collect();
        preflight_report::print_notices(&notices);
        Ok(Prepared { map, nodes, answers: prepared, inventories, ports: reserved, libraries })
    }
}

impl Prepared {
    /// Begins to send the library for ranks to the nodes that lack it, and does not wait until they have it.
    pub(crate) fn send_libraries(&self, agents: &Agents) {
        let lacking = self.nodes.iter().zip(&self.answers).filter(|(_, own)| own.lacks_library());
        let lacking = lacking.map(|(node, _)| {
            (node.host.clone(), node.facts.arch.clone(), agents.outbox(node.id).clone())
        });
        self.libraries.send(lacking.collect());
    }
}

/// Waits until `reading` has read files of this machine. `what` names them with a verb, in an error if their file system
/// does not answer in time.
async fn in_time<T>(
    deadline: &mut Deadline,
    what: &str,
    reading: impl Future<Output = T>,
) -> Result<T, Failed> {
    let read = deadline.run(reading).await;
    read.ok_or_else(|| {
        let message = format!("{what} not read within {} s", deadline.limit().as_secs());
        Failed::new(Exit::FILES, message)
            .hint(Some("their file system does not answer; `df` hangs on this machine as well"))
    })
}

/// Makes the part of the job that one node gets.
fn node_job(
    job: &JobSpec,
    map: &RankMap,
    node: &Node,
    addresses: Vec<IpAddr>,
    library: Option<LibrarySource>,
) -> Job {
    let shape = job.shape(map.nodes.len());
    let (applications, ranks) = rank_config::node_applications(job, map, node.id);
    let launcher_timeout = job.launcher_timeout();
    // An agent on this machine is not cut off from its launcher.
    let node_timeout = if job.is_local { launcher_timeout } else { job.node_timeout() };
    Job {
        id: job.id,
        node: node.id,
        host: node.host.name.clone(),
        login: job.login,
        applications,
        ranks,
        preload: job.preload.iter().map(|preload| preload.file.clone()).collect(),
        runs_copier: job.runs_copier,
        tree: job.tree.as_ref().map(|tree| tree.of_ranks.clone()),
        kill_after_ms: u32::try_from(job.kill_after.as_millis()).unwrap_or(u32::MAX),
        node_timeout_ms: u32::try_from(node_timeout.as_millis()).unwrap_or(u32::MAX),
        launcher_timeout_ms: u32::try_from(launcher_timeout.as_millis()).unwrap_or(u32::MAX),
        output_window: output::window(map.nodes.len()),
        stamp_output: job.output.needs_timestamps(),
        merge_stderr: job.output.merge_stderr,
        // The user may have changed the size since the job was typed, or last started.
        pseudoterminals: job.output.pseudoterminals.with_size(terminal::size()),
        world_size: map.world_size,
        mpi: job.mpi,
        singleton: job.singleton,
        wants_cores: job.options.wants_cores(),
        binding: match &job.options.bind {
            _ if job.options.binds_by_list() => Binding::Required,
            None => Binding::Usual,
            Some(Bind::None) => Binding::None,
            Some(_) => Binding::Required,
        },
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
fn preload_frames(preload: &[Preload]) -> Result<Vec<Bytes>, Failed> {
    let mut frames = Vec::new();
    for (index, preload) in (0u32..).zip(preload) {
        let failed = |error: &dyn std::error::Error| {
            let message = format!("cannot copy {}: {error}", preload.source.display());
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
