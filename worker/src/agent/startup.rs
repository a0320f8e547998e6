//! What the agent does before its ranks start: it receives the job, prepares this node, joins the tree of agents and has its
//! RDMA paths proved. Where a method returns an option, `None` means that the job ended, or its launcher was lost, before.

use crate::agent::mesh::Mesh;
use crate::agent::silence::Silence;
use crate::agent::{Agent, is_mesh_message, pass_to_mesh};
use crate::cleanup::workspace::Workspace;
use crate::console::errln;
use crate::network::horovod::HorovodProxy;
use crate::network::ports::LOOPBACK;
use crate::network::rendezvous::{Tree, TreeEvent};
use crate::network::services::Services;
use crate::node::{self, environment};
use crate::ranks::StartConfig;
use crate::ranks::files::JobFiles;
use crate::ranks::library::RankLibrary;
use crate::ranks::prepare::{self, PreparedRanks};
use crate::ranks::sealed::SealedCopy;
use crate::ranks::stream_ends;
use rlaunch_bootstrap::job::{Job, Problem};
use rlaunch_bootstrap::protocol::control::{FromAgent, Helper, ToAgent};
use rlaunch_bootstrap::rank_table::TableMessage;
use rlaunch_bootstrap::rendezvous::payload::Payload;
use std::io;
use std::pin::pin;
use std::sync::Arc;
use tokio::runtime::Handle;

/// Parts of the agent that handle messages which the launcher may send before the ranks start.
pub(super) struct StartupParts {
    pub(super) mesh: Mesh,
    pub(super) library: RankLibrary,
}

impl Agent {
    pub(super) async fn receive_job(&mut self) -> Option<Job> {
        // What other nodes find of it stays until all have looked.
        let mut found = None;
        loop {
            match self.next_message().await? {
                ToAgent::CheckCopy { copy, job, node } => {
                    let checking = move || SealedCopy::find(&copy, job, node).map(Arc::new);
                    found = self.in_thread(checking).await?;
                    let answer = found.as_deref().and_then(SealedCopy::found);
                    self.channel.to_launcher.send(&FromAgent::CopyChecked(answer));
                }
                ToAgent::PatchCopy(patch) => {
                    let copy = found.clone();
                    let patching =
                        move || copy.ok_or_else(|| "no copy was found".to_owned())?.patch(&patch);
                    let failed = self.in_thread(patching).await?.err();
                    self.channel.to_launcher.send(&FromAgent::CopyPatched { failed });
                }
                ToAgent::Job(job) => {
                    if let Some(found) = found {
                        node::in_thread(move || drop(found));
                    }
                    self.silence = Silence::new(job.node_timeout(), job.launcher_timeout());
                    return Some(*job);
                }
                _ => {}
            }
        }
    }

    /// Receives the job's files, checks and reserves everything that the ranks need, and reports
    /// the result to the launcher. Returns `None` if the ranks cannot be started.
    pub(super) async fn prepare(
        &mut self,
        job: &Arc<Job>,
        workspace: &Workspace,
        library: &RankLibrary,
    ) -> Option<(PreparedRanks, Services)> {
        let files = match self.receive_files(job, workspace).await? {
            Ok(files) => files,
            Err(problem) => return self.refuse(vec![problem]).await,
        };
        let node = match self.node_environment(job).await? {
            Ok(node) => node,
            Err(problem) => return self.refuse(vec![problem]).await,
        };
        let job_of_thread = job.clone();
        let preparing = move || {
            let prepared = prepare::prepare(&job_of_thread, &files, &node)?;
            let inventory = prepared.inventory(&job_of_thread);
            Ok::<_, Vec<Problem>>((prepared, Box::new(inventory), files))
        };
        let (mut prepared, inventory, files) = match self.in_thread(preparing).await? {
            Ok(prepared) => prepared,
            Err(problems) => return self.refuse(problems).await,
        };
        let services = Services::for_job(job, files.workspace());
        let services = match services {
            Ok(services) => services,
            Err(problem) => return self.refuse(vec![problem]).await,
        };
        for program in &mut prepared.programs {
            services.add_variables(job, workspace, &mut program.env);
        }
        self.channel.to_launcher.send(&FromAgent::Prepared {
            notices: prepared.notices.clone(),
            ports: prepared.reserved_ports.iter().map(|reserved| reserved.port).collect(),
            listeners: prepared.listening_at(),
            inventory,
            library: library.location(),
        });
        Some((prepared, services))
    }

    /// Returns this node's environment: that of a login shell if the job wants it, else the agent's
    /// own. Sends beats meanwhile.
    async fn node_environment(
        &mut self,
        job: &Job,
    ) -> Option<Result<environment::Variables, Problem>> {
        if !job.login {
            return Some(Ok(std::env::vars_os().collect()));
        }
        self.beat_until(environment::of_login()).await
    }

    /// Runs `work`, which may block for long, as at a file system that does not answer. Sends beats meanwhile.
    async fn in_thread<T: Send + 'static>(
        &mut self,
        work: impl FnOnce() -> T + Send + 'static,
    ) -> Option<T> {
        let runtime = Handle::current();
        // If the host permits no other thread, it waits for one, or, if there is none at all, runs here without beats.
        let result = stream_ends::in_thread(move || {
            let _context = runtime.enter();
            work()
        });
        self.beat_until(result).await?.ok()
    }

    /// Waits for `work` and sends beats meanwhile. Returns `None` if the job ends.
    async fn beat_until<T>(&mut self, work: impl Future<Output = T>) -> Option<T> {
        let mut work = pin!(work);
        loop {
            tokio::select! {
                done = &mut work => return Some(done),
                // Until this node has answered, the launcher sends an end of the job, or Suspend and Resume, which were
                // obeyed as they were read.
                message = self.next_message() => drop(message?),
            }
        }
    }

    async fn receive_files(
        &mut self,
        job: &Job,
        workspace: &Workspace,
    ) -> Option<Result<JobFiles, Problem>> {
        let mut files = match JobFiles::create(job, workspace) {
            Ok(files) => files,
            Err(problem) => return Some(Err(problem)),
        };
        while !files.is_complete() {
            let received = match self.next_message().await? {
                ToAgent::File { index, data } => files.receive(index, &data),
                ToAgent::Helper(Helper::Copier, file) => files.locate_copier(file).map(|needed| {
                    if needed {
                        let to_launcher = &self.channel.to_launcher;
                        to_launcher.send(&FromAgent::NeedsHelper(Helper::Copier));
                    }
                }),
                ToAgent::HelperPart(Helper::Copier, part) => files.receive_copier(&part),
                _ => Ok(()),
            };
            if let Err(problem) = received {
                return Some(Err(problem));
            }
        }
        Some(Ok(files))
    }

    /// Reports the problems, then waits until the launcher has read them and closes the channel.
    /// Always returns `None`.
    async fn refuse<T>(&mut self, problems: Vec<Problem>) -> Option<T> {
        self.channel.to_launcher.send(&FromAgent::Refused { problems });
        while self.next_message().await.is_some() {}
        None
    }

    /// Waits until the launcher names this node's parent in the tree of agents, and starts to join
    /// the tree.
    pub(super) async fn join(
        &mut self,
        job: &Job,
        prepared: &mut PreparedRanks,
        services: Services,
        parts: &mut StartupParts,
    ) -> Option<Tree> {
        let listeners = std::mem::take(&mut prepared.listeners);
        loop {
            match self.next_message().await? {
                ToAgent::Join { parent } => {
                    return Some(Tree::join(
                        job, listeners, parent, services, &self.channel.to_launcher,
                    ));
                }
                other => self.on_startup_message(parts, other),
            }
        }
    }

    /// Handles a message that may come before the ranks start: a part of the library for ranks, or
    /// a message about the mesh.
    fn on_startup_message(&self, parts: &mut StartupParts, message: ToAgent) {
        let ToAgent::LibraryPart(part) = message else {
            return pass_to_mesh(&mut parts.mesh, message);
        };
        if let Err(cause) = parts.library.receive(&part) {
            self.channel.to_launcher.send(&FromAgent::NoLibrary { cause });
        }
    }

    /// Takes part in the tree and the mesh until the launcher has started the ranks and the library
    /// for ranks is complete.
    pub(super) async fn await_start(
        &mut self,
        tree: &mut Tree,
        parts: &mut StartupParts,
        workspace: &Workspace,
    ) -> Option<StartConfig> {
        let mut start = None;
        let mut released = Vec::new();
        loop {
            if !parts.library.is_downloading()
                && let Some(start) = start.take()
            {
                return Some(StartConfig { released, ..start });
            }
            while let Some(event) = tree.poll_event() {
                match event {
                    TreeEvent::Table(table) => self.take_rank_table(&table, tree, workspace),
                    TreeEvent::CollectiveDone(answer) => parts.mesh.on_collective_done(answer),
                    // No rank has started.
                    TreeEvent::Print(..) => {}
                }
            }
            while let Some(collective) = parts.mesh.poll_collective() {
                tree.start_collective(collective.kind, &collective.name, &collective.blobs);
            }
            tokio::select! {
                message = self.next_message() => match message? {
                    ToAgent::Start { ranks, horovod, ports } => {
                        start = Some(StartConfig { ranks, horovod, ports, released: Vec::new() });
                    }
                    // An application may be released before this node has everything it needs to
                    // start.
                    ToAgent::StartApplication { index } => released.push(index),
                    ToAgent::Table(table) => tree.distribute_table(table),
                    ToAgent::Relay { from, data } => tree.on_relayed(from, &data),
                    // The launcher believes that the ranks run.
                    other if start.is_some() && !is_startup_message(&other) => {
                        self.early.push_back(other);
                    }
                    other => self.on_startup_message(parts, other),
                },
                () = tree.run_once() => {}
                event = parts.mesh.next_event() => parts.mesh.on_prover_event(event),
            }
        }
    }

    /// Opens the proxy through which Horovod's ranks reach their key-value store. Without the proxy
    /// the ranks would wait for each other forever, so a failure ends the job.
    pub(super) async fn open_horovod(
        &mut self,
        setup: &StartConfig,
        prepared: &mut PreparedRanks,
    ) -> Option<HorovodProxy> {
        let Some(port) = setup.horovod else { return Some(HorovodProxy::absent()) };
        let opened = HorovodProxy::open(port, &mut prepared.reserved_ports);
        if let Err(error) = &opened {
            if error.kind() == io::ErrorKind::AddrNotAvailable {
                // A node without a loopback address cannot run Horovod's ranks anyway.
                errln!("rlaunch-worker: cannot serve Horovod: {error}");
                return Some(HorovodProxy::absent());
            }
            let operation = format!("serve Horovod at {LOOPBACK}:{port}");
            self.channel
                .to_launcher
                .send(&FromAgent::Failed { operation, cause: error.to_string() });
            // Waits until the launcher has read the error and closes the channel.
            while self.next_message().await.is_some() {}
        }
        opened.ok()
    }

    /// Writes the rank table to a file for the ranks, and gives the layout of the ranks to the
    /// process manager for MPI.
    fn take_rank_table(&self, message: &Payload, tree: &mut Tree, workspace: &Workspace) {
        let taken = TableMessage::parse(message).map_err(io::Error::other).and_then(|table| {
            workspace.write_rank_table(table.json())?;
            tree.mpi().set_table(table, workspace.path());
            Ok(())
        });
        if let Err(error) = taken {
            let operation = "write the rank table".to_owned();
            self.channel
                .to_launcher
                .send(&FromAgent::Failed { operation, cause: error.to_string() });
        }
    }
}

/// Tells whether a message is about the library for ranks, or about the mesh.
fn is_startup_message(message: &ToAgent) -> bool {
    matches!(
        message,
        ToAgent::LibraryPart(_)
            | ToAgent::Helper(Helper::Prover, _)
            | ToAgent::HelperPart(Helper::Prover, _)
    ) || is_mesh_message(message)
}
