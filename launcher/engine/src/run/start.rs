//! Start of the ranks: the job's decisions are shown, this process's own streams are opened, and every node gets the order
//! to start.

use crate::run::detach::Detaching;
use crate::run::driver::Running;
use crate::run::job_run::{JobRun, StartFacts};
use crate::run::links::LinkMonitor;
use crate::run::nodes::{Agents, Node, PendingStdio};
use crate::run::output::store::{StoredAttempt, StoredRecord};
use crate::run::output::{self, OutputWriter, Tags};
use crate::run::pump::{self, Pump};
use crate::run::rendezvous::Joined;
use crate::run::show::{self, ShownPlan};
use crate::run::supervisor::PhaseStates;
use rlaunch_bootstrap::id::Rank;
use rlaunch_bootstrap::job::RankSetup;
use rlaunch_bootstrap::protocol::control::{self, ToAgent};
use rlaunch_console::progress;
use rlaunch_plan::env::nccl::Log;
use rlaunch_plan::job::JobSpec;
use rlaunch_plan::job::apps::{self, RenderedTexts, StartOrder};
use rlaunch_plan::job::options::OutputOptions;
use rlaunch_plan::job::tag_pattern::TagPattern;
use rlaunch_plan::map::{HostRanks, MappedNode, RankMap};
use rlaunch_plan::rank_config::RankConfig;
use rlaunch_text::exit::Exit;
use rlaunch_text::message::Failed;

impl Joined {
    /// Prints what `--show` or `--dry-run` asks for, unless the attempt must end meanwhile.
    pub(crate) async fn show(&self, job: &JobRun, pump: &mut Pump<'_>) -> Result<(), Failed> {
        job.events.mesh_proved(self.mesh.duration);
        let shown = ShownPlan {
            job: &job.spec,
            map: &self.map,
            inventories: &self.inventories,
            table: &self.table,
            mesh: &self.mesh,
            rank_configs: &self.rank_configs,
            libraries: &self.libraries,
            containers: &self.containers(),
        };
        let showing = async {
            show::print(&shown).await;
            Ok(())
        };
        pump.run_unless_ended(showing).await
    }

    /// Returns the command that has started a node's container, by node.
    fn containers(&self) -> Vec<Option<String>> {
        self.nodes.iter().map(|node| Some(node.container.as_ref()?.command.clone())).collect()
    }

    /// Opens this process's streams and orders every node to start its ranks.
    pub(crate) fn start(
        self,
        job: &JobRun,
        stdio: PendingStdio,
        agents: &Agents,
    ) -> Result<Running, Failed> {
        let orders = self.orders(&job.spec)?;
        let stdin = stdio.stdin.clone();
        let writer = open_stdio(job, &self.map, agents, stdio)?;
        let now = pump::now();
        let phase_states = PhaseStates {
            relay: self.relay,
            links: LinkMonitor::new(&self.mesh, &self.table, &job.spec.options.mesh, now),
            order: StartOrder::new(&job.spec, &self.map, now),
        };
        if let Some(facts) = &job.facts {
            let (table, inventories) = (self.table.clone(), self.inventories);
            // An error would mean a second call, which an attempt does not make.
            let _ = facts.set(StartFacts { table, inventories });
        }
        // From here on ranks write to the terminal.
        progress::erase_step();
        for (node, frame) in self.nodes.iter().zip(orders) {
            agents.outbox(node.id).send_frame(frame.into());
        }
        if let Some(recorder) = &job.recorder {
            recorder.starting(self.table, self.rank_configs, self.libraries);
        }
        let (nodes, master_port) = (self.nodes, self.addresses.master.1);
        Ok(Running { nodes, writer, stdin, phase_states, master_port })
    }

    /// Encodes each node's order to start its ranks, by node.
    fn orders(&self, job: &JobSpec) -> Result<Vec<Vec<u8>>, Failed> {
        let Joined { map, table, addresses, .. } = self;
        let (address, port) = addresses.master;
        tracing::info!("MASTER_ADDR {address} MASTER_PORT {port}");
        let mut filled = RenderedTexts::render_all(job, map, table, addresses)?;
        let awaited = apps::awaited_ports(job, map, table);
        let encode = |(node, rank_configs): (&Node, &Vec<RankConfig>)| {
            let rank_setup = |(rank, setup): (&Rank, &RankConfig)| {
                let RenderedTexts { arguments, env, files } =
                    filled.remove(rank).unwrap_or_default();
                RankSetup { rendered_args: arguments, rendered_env: env, files, ..setup.to_setup() }
            };
            let ranks = node.ranks.iter().zip(rank_configs).map(rank_setup).collect();
            let own = awaited.iter().filter(|(looks, _)| *looks == node.id);
            let ports = own.map(|(_, port)| port.clone()).collect();
            let horovod = self.horovod.get(node.id.index()).copied();
            let message = ToAgent::Start { ranks, horovod, ports };
            control::encode(&message).map_err(|error| {
                Failed::new(Exit::USAGE, format!("templates do not fit a frame: {error}"))
            })
        };
        self.nodes.iter().zip(&self.rank_configs).map(encode).collect()
    }
}

/// Creates the files of `--output-dir`, begins to read standard input if any rank reads it, and starts
/// the thread that writes the ranks' output.
fn open_stdio(
    job: &JobRun,
    map: &RankMap,
    agents: &Agents,
    streams: PendingStdio,
) -> Result<OutputWriter, Failed> {
    let files = output::rank_files(&job.spec.output, map.world_size)?;
    streams.stdin.open(&job.spec.stdin, map, agents.outboxes()).map_err(|error| {
        Failed::new(Exit::FILES, format!("cannot read standard input: {error}"))
    })?;
    let nccl = job.spec.options.nccl_verify.then(|| Log::new(job.spec.sets_variable("NCCL_DEBUG")));
    if let Some(store) = job.detaching.as_ref().and_then(Detaching::store) {
        store.add(&StoredRecord::Attempt(stored_attempt(&job.spec, map)));
    }
    let config = output::OutputConfig {
        tags: tags(&job.spec.output, map),
        fold: job.spec.output.fold,
        files,
        merged: job.spec.output.merge_stderr,
        credit: agents.outboxes().to_vec(),
        ranks: map.world_size,
        nccl,
        transcript: job.recorder.as_ref().map(|recorder| recorder.transcript().clone()),
        store: job.detaching.as_ref().and_then(Detaching::store).cloned(),
        stdio: job.stdio.clone(),
        last: None,
        status: job.events.status().clone(),
    };
    Ok(output::start(config, streams.output))
}

/// Returns what is needed to show the output of this attempt later.
fn stored_attempt(job: &JobSpec, map: &RankMap) -> StoredAttempt {
    let OutputOptions { tag, no_tag, fold, merge_stderr, .. } = &job.output;
    // Tags have names of hosts, without users and ports.
    let host = |node: &MappedNode| HostRanks {
        host: node.host.name.clone(),
        ranks: node.ranks.iter().map(|rank| rank.0).collect(),
    };
    StoredAttempt {
        job: job.id.to_string(),
        hosts: map.nodes.iter().map(host).collect(),
        tag: tag.as_ref().map(TagPattern::to_string).unwrap_or_default(),
        no_tag: *no_tag,
        fold: fold.map(<&'static str>::from).unwrap_or_default().to_owned(),
        merged: *merge_stderr,
    }
}

fn tags(options: &OutputOptions, map: &RankMap) -> Option<Tags> {
    match &options.tag {
        Some(pattern) => Some(Tags::new(pattern.clone(), map)),
        None => (!options.no_tag && map.world_size > 1).then(|| Tags::short(map)),
    }
}
