//! The steps of a job on this node:
//!
//! 1. send Hello, receive the job and its files;
//! 2. check and reserve what the ranks need, send Prepared (or Refused);
//! 3. join the tree of agents and prove this node's RDMA paths with the others;
//! 4. on Start, run the ranks until all have ended and their output is sent;
//! 5. clean up, send Done, and relay for child agents until the launcher closes the channel.
//!
//! The launcher's messages are sorted here by the part of the agent that handles them.

mod inspector;
pub(crate) mod mesh;
mod silence;

use crate::agent::inspector::Inspector;
use crate::agent::mesh::Mesh;
use crate::agent::silence::Silence;
use crate::cleanup::cgroup::Cgroup;
use crate::cleanup::guardian::Grace;
use crate::cleanup::helpers::Helpers;
use crate::cleanup::processes;
use crate::cleanup::workspace::Workspace;
use crate::console::errln;
use crate::network::channel::{CallbackTarget, Channel, ChannelKind};
use crate::network::frames::FrameEvent;
use crate::network::horovod::HorovodProxy;
use crate::network::ports::{AwaitedPorts, LOOPBACK};
use crate::network::rendezvous::{Tree, TreeEvent};
use crate::network::services::Services;
use crate::network::until;
use crate::node::{self, cache, environment};
use crate::ranks::files::JobFiles;
use crate::ranks::library::RankLibrary;
use crate::ranks::prepare::{self, PreparedRanks};
use crate::ranks::{ProcessContext, RankChange, Ranks, StartConfig, child, sealed};
use nix::sys::signal::Signal;
use rlaunch_bootstrap::job::{Job, Problem};
use rlaunch_bootstrap::protocol::control::{
    BEAT, CleanupReceipt, EndCause, FromAgent, Helper, PROTOCOL_VERSION, ToAgent,
};
use rlaunch_bootstrap::protocol::rank::JobEvent;
use rlaunch_bootstrap::rank_table::TableMessage;
use rlaunch_bootstrap::rendezvous::payload::Payload;
use std::collections::VecDeque;
use std::io;
use std::path::Path;
use std::pin::pin;
use std::process::ExitCode;
use std::sync::Arc;
use std::time::{Duration, SystemTime};
use tokio::runtime::Handle;
use tokio::signal::unix::{Signal as SignalStream, SignalKind, signal};
use tokio::sync::oneshot;
use tokio::time::{Instant, Interval, MissedTickBehavior, interval_at};

/// Time without a message from the launcher after which it is presumed dead, until the job says what it is. The
/// launcher may be busy with other hosts, to which it sends agents, and no rank waits yet.
const JOB_TIMEOUT: Duration = Duration::from_secs(20);
/// Time limit for the last messages of an agent whose ranks have not started.
const EARLY_CLOSE_TIMEOUT: Duration = Duration::from_secs(2);

/// Runs the agent on its channel to the launcher. Returns success if the job ended in order on this
/// node, whatever the exit codes of its ranks.
pub(crate) fn run(workspace: &Workspace, grace: Grace, target: Option<CallbackTarget>) -> ExitCode {
    child::raise_open_files();
    let kind = ChannelKind::detect(target);
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
    let ended = runtime.and_then(|runtime| runtime.block_on(run_job(workspace, grace, kind)));
    match ended {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            errln!("rlaunch-worker: {error}");
            ExitCode::FAILURE
        }
    }
}

async fn run_job(workspace: &Workspace, grace: Grace, kind: ChannelKind) -> io::Result<()> {
    let mut agent = Agent::start(Channel::open(kind)).await?;
    agent.send_hello();
    cache::hold_build();
    agent.run_and_leave(workspace, grace).await;
    Ok(())
}

/// Event from outside the agent.
pub(crate) enum Input {
    Message(ToAgent),
    /// The channel ended; the text says how.
    LauncherGone(String),
    /// No message has come from the launcher for this long, so the launcher is presumed dead.
    LauncherSilent(Duration),
    /// At least one child process ended.
    Children,
    /// A signal told the agent to end.
    Interrupted,
    /// A signal that means the ranks.
    Signal(Signal),
}

struct Agent {
    channel: Channel,
    /// Time at which Hello was sent. The end of each rank is reported relative to this time.
    hello_at: std::time::Instant,
    children: SignalStream,
    interrupts: [SignalStream; 3],
    /// SIGUSR1 and SIGUSR2, which batch systems send to the processes that they have started.
    user_signals: [SignalStream; 2],
    beat: Interval,
    silence: Silence,
    suspended: bool,
    /// Whether this node is cut off from all its neighbours, so that a suspended launcher may be dead.
    is_isolated: bool,
    /// Messages that came after the order to start the ranks, before these could start.
    early: VecDeque<ToAgent>,
    /// Set when the job is being ended on all nodes. From then on, no other agent needs this agent
    /// to pass messages on.
    job_is_ending: bool,
}

/// Where a method returns an option, `None` means that the job ended, or its launcher was lost, before the ranks started.
impl Agent {
    async fn start(opening: impl Future<Output = io::Result<Channel>>) -> io::Result<Agent> {
        // Installed before any child exists, so that no SIGCHLD is missed.
        let children = signal(SignalKind::child())?;
        let interrupts = [
            signal(SignalKind::terminate())?,
            signal(SignalKind::interrupt())?,
            signal(SignalKind::hangup())?,
        ];
        let user_signals =
            [signal(SignalKind::user_defined1())?, signal(SignalKind::user_defined2())?];
        let channel = opening.await?;
        let mut beat = interval_at(Instant::now() + BEAT, BEAT);
        beat.set_missed_tick_behavior(MissedTickBehavior::Delay);
        Ok(Agent {
            children,
            interrupts,
            user_signals,
            channel,
            hello_at: std::time::Instant::now(),
            beat,
            silence: Silence::new(JOB_TIMEOUT, JOB_TIMEOUT),
            suspended: false,
            is_isolated: false,
            early: VecDeque::new(),
            job_is_ending: false,
        })
    }

    fn send_hello(&mut self) {
        let hello = FromAgent::Hello { version: PROTOCOL_VERSION, facts: node::facts() };
        self.hello_at = std::time::Instant::now();
        self.channel.to_launcher.send(&hello);
    }

    /// Runs the job's ranks on this node, and leaves the channel when everything is sent.
    async fn run_and_leave(mut self, workspace: &Workspace, grace: Grace) {
        if self.run(workspace, grace).await.is_some() {
            return self.channel.close().await;
        }
        if self.job_is_ending {
            // The launcher may have ordered the start already, and then takes a node that leaves without this for lost.
            self.channel.to_launcher.send_last(&FromAgent::Done(CleanupReceipt::default()));
        }
        // The launcher may read nothing any more, and there is no output of ranks that it has to get.
        let _ = tokio::time::timeout(EARLY_CLOSE_TIMEOUT, self.channel.close()).await;
    }

    /// Runs the job's ranks on this node, from the job's description to the last of their output. Returns `None`
    /// if the job ends before they start.
    async fn run(&mut self, workspace: &Workspace, grace: Grace) -> Option<()> {
        let job = Arc::new(self.receive_job().await?);
        let job_at = SystemTime::now();
        let library = RankLibrary::locate(&job);
        let (mut prepared, services) = self.prepare(&job, workspace, &library).await?;
        // Overlaps with waiting for the other agents.
        let cgroup = Cgroup::create(&job.id.to_string(), workspace.tag());
        let mesh = Mesh::new(&job, &self.channel.to_launcher);
        let mut parts = StartupParts { mesh, library };
        let mut tree = self.join(&job, &mut prepared, services, &mut parts).await?;
        let Some(setup) = self.await_start(&mut tree, &mut parts, workspace).await else {
            // The launcher is told that nothing is left here, and the prover is a process too.
            parts.mesh.end().await;
            return None;
        };
        let StartupParts { mut mesh, library } = parts;
        tree.serve_horovod(self.open_horovod(&setup, &mut prepared).await?);
        for (application, program) in job.applications.iter().zip(&mut prepared.programs) {
            library.add_variables(application, &mut program.env);
        }
        self.channel.to_launcher.grant(job.output_window);
        let ports = AwaitedPorts::start(&setup.ports);
        let context = ProcessContext {
            helpers: Helpers::new(mesh.pid()),
            cgroup,
            grace,
            workspace: workspace.path().map(Path::to_owned),
            mpi: tree.mpi().identity(),
            unfinalized: tree.mpi().unfinalized(),
            job_at,
        };
        let to_launcher = &self.channel.to_launcher;
        let mut ranks = Ranks::start(&job, prepared, setup, to_launcher, self.hello_at, context);
        self.run_to_completion(&mut ranks, &mut tree, &mut mesh, ports).await;
        mesh.end().await;
        let receipt = ranks.finish(tree.mpi().segments()).await;
        workspace.remove();
        self.channel.to_launcher.send_last(&FromAgent::Done(receipt));
        if tree.has_children() && !self.job_is_ending {
            self.relay_until_end(&mut tree).await;
        }
        tree.leave().await;
        Some(())
    }

    /// Waits for the next event, sending beats meanwhile.
    async fn next_input(&mut self) -> Input {
        loop {
            let [terminate, interrupt, hangup] = &mut self.interrupts;
            let [first, second] = &mut self.user_signals;
            tokio::select! {
                // In this order: a signal that ends the agent and its ranks at once, as at a shutdown, has to be
                // reported before the deaths of the ranks, which would seem to be of their own.
                biased;
                _ = terminate.recv() => return self.report_interrupt(Signal::SIGTERM),
                _ = interrupt.recv() => return self.report_interrupt(Signal::SIGINT),
                _ = hangup.recv() => return self.report_interrupt(Signal::SIGHUP),
                _ = first.recv() => return Input::Signal(Signal::SIGUSR1),
                _ = second.recv() => return Input::Signal(Signal::SIGUSR2),
                _ = self.children.recv() => return Input::Children,
                due = self.beat.tick() => {
                    self.channel.to_launcher.send(&FromAgent::Beat);
                    let (late, channel) = (Instant::now() - due, &self.channel);
                    if self.suspended && !self.is_isolated {
                        self.silence.end();
                    } else if let Some(length) = self.silence.beat(late, || channel.is_answered()) {
                        return self.report_silence(length);
                    }
                }
                // The reader sends nothing after `Closed`, so this branch is disabled then.
                Some(event) = self.channel.events.recv() => match event {
                    FrameEvent::Message(message) => {
                        self.silence.end();
                        match message {
                            ToAgent::Beat => continue,
                            ToAgent::Suspend => self.suspended = true,
                            ToAgent::Resume => self.suspended = false,
                            _ => {}
                        }
                        return Input::Message(message);
                    }
                    FrameEvent::Closed(reason) => return Input::LauncherGone(reason),
                },
            }
        }
    }

    /// Tells the launcher of a signal that ends this agent. Otherwise the ranks would seem to have ended by themselves.
    fn report_interrupt(&self, signal: Signal) -> Input {
        let cause = EndCause::Signal(signal as i32);
        self.channel.to_launcher.send(&FromAgent::EndsRanks(cause));
        Input::Interrupted
    }

    /// Tells the launcher that it is presumed dead. It may only have been suspended or starved, and read this later.
    fn report_silence(&self, length: Duration) -> Input {
        let for_s = u32::try_from(length.as_secs()).unwrap_or(u32::MAX);
        errln!("rlaunch-worker: nothing from the launcher for {for_s} s");
        self.channel.to_launcher.send(&FromAgent::EndsRanks(EndCause::LauncherSilent { for_s }));
        Input::LauncherSilent(length)
    }

    /// Waits for the launcher's next message while no rank runs. Returns `None` if the job ends.
    async fn next_message(&mut self) -> Option<ToAgent> {
        loop {
            match self.next_input().await {
                Input::Message(ToAgent::End { .. })
                | Input::LauncherGone(_)
                | Input::LauncherSilent(_)
                | Input::Interrupted => {
                    self.job_is_ending = true;
                    return None;
                }
                Input::Message(message) => return Some(message),
                // While no rank runs, the only child is the prover.
                Input::Children => drop(processes::reap()),
                Input::Signal(_) => {}
            }
        }
    }

    async fn receive_job(&mut self) -> Option<Job> {
        loop {
            match self.next_message().await? {
                ToAgent::CheckCopy { copy, content } => {
                    let checking = move || sealed::host_of(&copy, &content);
                    let host = self.in_thread(checking).await?;
                    self.channel.to_launcher.send(&FromAgent::CopyChecked { host });
                }
                ToAgent::Job(job) => {
                    self.silence = Silence::new(job.node_timeout(), job.launcher_timeout());
                    return Some(*job);
                }
                _ => {}
            }
        }
    }

    /// Receives the job's files, checks and reserves everything that the ranks need, and reports
    /// the result to the launcher. Returns `None` if the ranks cannot be started.
    async fn prepare(
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
        let (sender, result) = oneshot::channel();
        let runtime = Handle::current();
        // If no thread can be made, it runs here, and no beats are sent meanwhile.
        node::in_thread(move || {
            let _context = runtime.enter();
            // An agent whose job has ended does not wait for the result.
            let _ = sender.send(work());
        });
        self.beat_until(result).await?.ok()
    }

    /// Waits for `work` and sends beats meanwhile. Returns `None` if the job ends.
    async fn beat_until<T>(&mut self, work: impl Future<Output = T>) -> Option<T> {
        let mut work = pin!(work);
        loop {
            tokio::select! {
                done = &mut work => return Some(done),
                // Until this node has answered, the launcher sends nothing but an end of the job.
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
    async fn join(
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
    async fn await_start(
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
    async fn open_horovod(
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

    /// Serves the tree of agents after the ranks of this node have ended, until the launcher ends
    /// the job or closes the channel.
    async fn relay_until_end(&mut self, tree: &mut Tree) {
        loop {
            tokio::select! {
                message = self.next_message() => match message {
                    None => return,
                    Some(ToAgent::Relay { from, data }) => tree.on_relayed(from, &data),
                    // The others are for ranks, which have ended.
                    Some(_) => {}
                },
                () = tree.run_once() => {}
            }
        }
    }

    /// Runs the ranks until all have ended and their output is sent.
    async fn run_to_completion(
        &mut self,
        ranks: &mut Ranks,
        tree: &mut Tree,
        mesh: &mut Mesh,
        mut ports: AwaitedPorts,
    ) {
        let mut inspector = Inspector::new(&self.channel.to_launcher);
        while !ranks.are_over() {
            if ranks.have_ended() {
                // The prover's paths are no longer used. It must exit now: only once this process
                // has no child is it certain that nothing is left of the ranks.
                mesh.shutdown();
            }
            if ranks.are_ending() {
                inspector.kill_programs(ranks);
            }
            exchange_events(tree, ranks);
            self.is_isolated = tree.is_isolated();
            let timer = until(ranks.deadline());
            let input = match self.early.pop_front() {
                Some(message) => Some(Input::Message(message)),
                None => tokio::select! {
                    input = self.next_input() => Some(input),
                    () = timer => None,
                    () = ranks.drained() => None,
                    () = tree.run_once() => continue,
                    event = mesh.next_event() => {
                        mesh.on_prover_event(event);
                        continue;
                    }
                    answer = inspector.next_answer() => {
                        inspector.on_answer(answer, ranks);
                        continue;
                    }
                    id = ports.next_open() => {
                        self.channel.to_launcher.send(&FromAgent::PortOpen { id });
                        continue;
                    }
                },
            };
            match input {
                Some(input) => self.on_input(input, ranks, tree, mesh, &mut inspector),
                None => ranks.on_deadline(),
            }
        }
    }

    /// Passes an input to the part of the agent that it is for, while ranks run.
    fn on_input(
        &mut self,
        input: Input,
        ranks: &mut Ranks,
        tree: &mut Tree,
        mesh: &mut Mesh,
        inspector: &mut Inspector,
    ) {
        match input {
            Input::Message(ToAgent::Relay { from, data }) => tree.on_relayed(from, &data),
            Input::Message(ToAgent::JobEvent(event)) => tree.notify_ranks(&event),
            Input::Message(ToAgent::Suspend) => {
                tree.watch_for_isolation();
                ranks.signal_all(&[Signal::SIGSTOP]);
                self.channel.to_launcher.send(&FromAgent::Suspended);
            }
            Input::Message(message) if is_mesh_message(&message) => pass_to_mesh(mesh, message),
            Input::Message(message) if Inspector::is_inspection(&message) => {
                inspector.on_inspection(message, ranks);
            }
            input => {
                if let Some(why) = end_reason(&input) {
                    tree.notify_ranks(&JobEvent::JobEnding { why });
                }
                self.pass_to_ranks(input, ranks);
            }
        }
    }

    fn pass_to_ranks(&mut self, input: Input, ranks: &mut Ranks) {
        self.job_is_ending |= matches!(
            input,
            Input::Message(ToAgent::End { .. })
                | Input::Interrupted
                | Input::LauncherGone(_)
                | Input::LauncherSilent(_)
        );
        let to_launcher = &self.channel.to_launcher;
        match input {
            Input::Message(ToAgent::Credit(bytes)) => to_launcher.grant(bytes),
            Input::Message(ToAgent::Stdin(data)) => ranks.feed_stdin(data),
            Input::Message(ToAgent::Signal(signal)) => ranks.forward_signal(signal),
            Input::Signal(signal) => ranks.forward_signal(signal as i32),
            Input::Message(ToAgent::Resize(size)) => ranks.resize(size),
            Input::Message(ToAgent::StartApplication { index }) => ranks.start_application(index),
            Input::Message(ToAgent::End { now }) => ranks.end(now),
            Input::Message(ToAgent::Session { id, what }) => ranks.on_session(id, what),
            Input::Message(ToAgent::Resume) => ranks.signal_all(&[Signal::SIGCONT]),
            // The others belong to steps that are over.
            Input::Message(_) => {}
            Input::Children => ranks.reap(),
            Input::Interrupted => ranks.end(false),
            Input::LauncherGone(reason) => {
                errln!("rlaunch-worker: the launcher is gone: {reason}");
                to_launcher.discard_output();
                ranks.end(false);
            }
            Input::LauncherSilent(_) => {
                to_launcher.discard_output();
                ranks.end(false);
            }
        }
    }
}

/// Passes texts of the tree to the ranks, and changes of ranks to the tree. The tree's other events belong to the steps
/// before the start.
fn exchange_events(tree: &mut Tree, ranks: &mut Ranks) {
    while let Some(event) = tree.poll_event() {
        if let TreeEvent::Print(rank, text) = event {
            ranks.print(rank, &text);
        }
    }
    while let Some(change) = ranks.poll_change() {
        match change {
            RankChange::Started(rank, pid) => tree.rank_started(rank, pid),
            RankChange::Ended(rank, status) => tree.rank_ended(rank, status),
        }
    }
}

/// Parts of the agent that handle messages which the launcher may send before the ranks start.
struct StartupParts {
    mesh: Mesh,
    library: RankLibrary,
}

/// Passes a message about the mesh to [`Mesh`]. Ignores all other messages.
fn pass_to_mesh(mesh: &mut Mesh, message: ToAgent) {
    match message {
        ToAgent::Helper(Helper::Prover, file) => mesh.on_file(file),
        ToAgent::HelperPart(Helper::Prover, part) => mesh.on_part(&part),
        ToAgent::Prove(round) => mesh.prove(round),
        ToAgent::PeerEndpoints(blobs) => mesh.on_peer_ready(blobs),
        ToAgent::WatchPaths { ids, beat_ms } => mesh.watch(ids, beat_ms),
        _ => {}
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

fn is_mesh_message(message: &ToAgent) -> bool {
    matches!(message, ToAgent::Prove(_) | ToAgent::PeerEndpoints(_) | ToAgent::WatchPaths { .. })
}

/// Returns the reason why this node's ranks are being ended, to be told to the ranks. Returns
/// `None` if the launcher has ordered the end, because the launcher then sends the reason itself.
fn end_reason(input: &Input) -> Option<String> {
    match input {
        Input::Interrupted => Some("the agent was told to end".to_owned()),
        Input::LauncherGone(reason) => Some(format!("the launcher is gone: {reason}")),
        Input::LauncherSilent(length) => {
            Some(format!("nothing from the launcher for {} s", length.as_secs()))
        }
        Input::Message(_) | Input::Children | Input::Signal(_) => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use rlaunch_bootstrap::protocol::control::{FrameReader, encode};
    use tokio::io::{AsyncReadExt, AsyncWriteExt};
    use tokio::net::unix::pipe;

    /// Returns what an agent sends that gets these messages before its ranks have started.
    async fn said_to(orders: &[ToAgent]) -> Vec<FromAgent> {
        let (mut launcher, input) = pipe::pipe().unwrap();
        let (output, mut reports) = pipe::pipe().unwrap();
        let agent = Agent::start(async { Ok(Channel::over_pipes(input, output)) }).await.unwrap();
        for order in orders {
            launcher.write_all(&encode(order).unwrap()).await.unwrap();
        }
        drop(launcher);
        agent.run_and_leave(&Workspace::choose(), Grace::share()).await;
        let (mut frames, mut bytes) = (FrameReader::default(), Vec::new());
        reports.read_to_end(&mut bytes).await.unwrap();
        frames.push(&bytes);
        let said = std::iter::from_fn(|| frames.next_frame::<FromAgent>().unwrap());
        // A slow machine takes longer than the time between two beats.
        said.filter(|said| *said != FromAgent::Beat).collect()
    }

    #[tokio::test]
    async fn an_agent_that_is_ended_before_its_ranks_start_says_that_it_is_done() {
        let said = said_to(&[ToAgent::Beat, ToAgent::End { now: false }]).await;
        assert!(matches!(said[..], [FromAgent::Done(_)]), "{said:?}");
    }
}
