//! The life of an agent: say hello, take the job, prepare, join the tree, start the ranks, see them
//! end, leave.

pub(crate) mod mesh;

use crate::agent::mesh::Mesh;
use crate::cleanup::cgroup::Cgroup;
use crate::cleanup::grace::Grace;
use crate::cleanup::workspace::Workspace;
use crate::network::callback::Launcher;
use crate::network::channel::{Channel, Way};
use crate::network::frames::Arrival;
use crate::network::horovod::{Door, LOOPBACK};
use crate::network::oob::tree::{News, Tree};
use crate::network::services::Services;
use crate::node::cache;
use crate::node::facts;
use crate::node::login;
use crate::node::open_files;
use crate::ranks::awaited_ports::AwaitedPorts;
use crate::ranks::child;
use crate::ranks::library::OfRanks;
use crate::ranks::prepare::{self, JobFiles, Prepared};
use crate::ranks::{Change, Place, Ranks, Setup};
use crate::say::complain;
use nix::sys::signal::Signal;
use rlaunch_bootstrap::client;
use rlaunch_bootstrap::job::{Job, Problem};
use rlaunch_bootstrap::protocol::control::{
    BEAT, BEATS_LOST, FromAgent, PROTOCOL_VERSION, ToAgent,
};
use rlaunch_bootstrap::rendezvous::payload::Payload;
use std::io;
use std::process::ExitCode;
use std::time::Duration;
use tokio::signal::unix::{Signal as SignalStream, SignalKind, signal};
use tokio::time::{Instant, Interval, MissedTickBehavior, interval_at};

/// Runs the agent on its channel. Success means that the job ended here in order, whatever its
/// ranks returned.
pub(crate) fn run(workspace: &Workspace, grace: Grace, launcher: Option<Launcher>) -> ExitCode {
    open_files::raise();
    let way = Way::find(launcher);
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
    let ended = runtime.and_then(|runtime| runtime.block_on(life(workspace, grace, way)));
    match ended {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            complain!("rlaunch-worker: {error}");
            ExitCode::FAILURE
        }
    }
}

async fn life(workspace: &Workspace, grace: Grace, way: Way) -> io::Result<()> {
    let mut agent = Agent::start(way).await?;
    agent.hello();
    cache::hold_build();
    let Some(job) = agent.receive_job().await else { return Ok(()) };
    let mut library = OfRanks::of(&job);
    let Some((mut prepared, services)) = agent.prepare(&job, workspace, &library).await else {
        return Ok(());
    };
    // While the others are waited for.
    let cgroup = Cgroup::create(&job.id.to_string(), &workspace.tag());
    let mut mesh = Mesh::new(&job, &agent.channel.outbox);
    let joined = agent.join(&job, &mut prepared, services, (&mut mesh, &mut library)).await;
    let Some(mut tree) = joined else { return Ok(()) };
    let start = agent.await_start(&mut tree, (&mut mesh, &mut library), workspace).await;
    let Some(setup) = start else { return Ok(()) };
    let Some(door) = agent.open_to_horovod(&setup, &mut prepared).await else { return Ok(()) };
    tree.serve_horovod(door);
    for (application, program) in job.applications.iter().zip(&mut prepared.programs) {
        library.announce(application, &mut program.env);
    }
    agent.channel.outbox.grant(job.output_window);
    let ports = AwaitedPorts::look_for(&setup.ports);
    let (outbox, place) = (&agent.channel.outbox, Place { spared: mesh.pid(), cgroup, grace });
    let mut ranks = Ranks::start(&job, prepared, setup, outbox, agent.hello_at, place);
    agent.see_out(&mut ranks, &mut tree, &mut mesh, ports).await;
    mesh.end().await;
    let receipt = ranks.finish().await;
    workspace.remove();
    agent.channel.outbox.send_last(&FromAgent::Done(receipt));
    if tree.has_children() && !agent.job_is_ending {
        agent.linger(&mut tree).await;
    }
    tree.leave().await;
    agent.channel.close().await;
    Ok(())
}

/// What can happen to an agent from outside.
pub(crate) enum Input {
    Message(ToAgent),
    /// The channel ended.
    LauncherGone(String),
    /// The launcher has been silent for so long that nobody can tell whether it lives.
    LauncherSilent(Duration),
    /// A child ended.
    Children,
    /// This agent was told to end by a signal.
    Interrupted,
}

struct Agent {
    channel: Channel,
    /// Times of ranks are told from here on.
    hello_at: std::time::Instant,
    children: SignalStream,
    interrupts: [SignalStream; 3],
    beat: Interval,
    /// Beats of this agent's since the launcher's last word. Time in which this process, or all of
    /// the host, stood still is not the launcher's silence.
    quiet: u32,
    /// How long the launcher may be silent.
    silence: Duration,
    suspended: bool,
    /// Every node's ranks are being ended, so nobody needs this one's place in the tree.
    job_is_ending: bool,
}

impl Agent {
    async fn start(way: Way) -> io::Result<Agent> {
        // Before any child exists, so that no end is missed.
        let children = signal(SignalKind::child())?;
        let interrupts = [
            signal(SignalKind::terminate())?,
            signal(SignalKind::interrupt())?,
            signal(SignalKind::hangup())?,
        ];
        let channel = Channel::open(way).await?;
        let mut beat = interval_at(Instant::now() + BEAT, BEAT);
        beat.set_missed_tick_behavior(MissedTickBehavior::Delay);
        Ok(Agent {
            children,
            interrupts,
            channel,
            hello_at: std::time::Instant::now(),
            beat,
            quiet: 0,
            silence: BEATS_LOST,
            suspended: false,
            job_is_ending: false,
        })
    }

    fn hello(&mut self) {
        let hello = FromAgent::Hello { version: PROTOCOL_VERSION, facts: facts::read() };
        self.hello_at = std::time::Instant::now();
        self.channel.outbox.send(&hello);
    }

    /// The next thing that happens. Beats go out on the way.
    async fn next(&mut self) -> Input {
        loop {
            let [terminate, interrupt, hangup] = &mut self.interrupts;
            tokio::select! {
                // Once the reader has said that the launcher is gone, it says no more.
                Some(arrival) = self.channel.arrivals.recv() => match arrival {
                    Arrival::Message(message) => {
                        self.quiet = 0;
                        match message {
                            ToAgent::Beat => {}
                            message => {
                                self.suspended = match message {
                                    ToAgent::Suspend => true,
                                    ToAgent::Resume => false,
                                    _ => self.suspended,
                                };
                                return Input::Message(message);
                            }
                        }
                    }
                    Arrival::Gone(how) => return Input::LauncherGone(how),
                },
                _ = self.children.recv() => return Input::Children,
                _ = terminate.recv() => return Input::Interrupted,
                _ = interrupt.recv() => return Input::Interrupted,
                _ = hangup.recv() => return Input::Interrupted,
                _ = self.beat.tick() => {
                    self.channel.outbox.send(&FromAgent::Beat);
                    self.quiet = if self.suspended { 0 } else { self.quiet + 1 };
                    // The first may have come right after the word.
                    if BEAT * self.quiet.saturating_sub(1) >= self.silence {
                        self.quiet = 0;
                        return Input::LauncherSilent(self.silence);
                    }
                }
            }
        }
    }

    /// The next message; `None` when the job is over before it began.
    async fn message(&mut self) -> Option<ToAgent> {
        loop {
            match self.next().await {
                Input::Message(ToAgent::End { .. })
                | Input::LauncherGone(_)
                | Input::LauncherSilent(_)
                | Input::Interrupted => return None,
                Input::Message(message) => return Some(message),
                // The prover, when there is nothing to prove any more.
                Input::Children => drop(child::reap()),
            }
        }
    }

    async fn receive_job(&mut self) -> Option<Job> {
        loop {
            if let ToAgent::Job(job) = self.message().await? {
                self.silence = job.silence();
                return Some(*job);
            }
        }
    }

    /// Receives the job's files, checks everything, and answers.
    async fn prepare(
        &mut self,
        job: &Job,
        workspace: &Workspace,
        library: &OfRanks,
    ) -> Option<(Prepared, Services)> {
        let files = match self.receive_files(job, workspace).await? {
            Ok(files) => files,
            Err(problem) => return self.refuse(vec![problem]).await,
        };
        let node = match self.node_environment(job).await? {
            Ok(node) => node,
            Err(problem) => return self.refuse(vec![problem]).await,
        };
        let mut prepared = match prepare::prepare(job, &files, &node) {
            Ok(prepared) => prepared,
            Err(problems) => return self.refuse(problems).await,
        };
        let services = Services::for_job(job, files.workspace());
        let services = match services {
            Ok(services) => services,
            Err(problem) => return self.refuse(vec![problem]).await,
        };
        for program in &mut prepared.programs {
            services.announce(job, workspace, &mut program.env);
        }
        self.channel.outbox.send(&FromAgent::Prepared {
            notices: prepared.notices.clone(),
            ports: prepared.held_ports.iter().map(|held| held.port).collect(),
            listeners: prepared.listening_at(),
            inventory: Box::new(prepared.inventory(job)),
            library: library.place(),
        });
        Some((prepared, services))
    }

    /// What this node has by itself: the agent's own, or that of a login. Beats go out meanwhile.
    async fn node_environment(&mut self, job: &Job) -> Option<Result<login::Variables, Problem>> {
        if !job.login {
            return Some(Ok(std::env::vars_os().collect()));
        }
        let asking = login::environment();
        tokio::pin!(asking);
        loop {
            tokio::select! {
                answer = &mut asking => return Some(answer),
                // Nothing is said before this node has answered, but that the job is over.
                message = self.message() => drop(message?),
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
        while !files.complete() {
            if let ToAgent::File { index, data } = self.message().await?
                && let Err(problem) = files.receive(index, &data)
            {
                return Some(Err(problem));
            }
        }
        Some(Ok(files))
    }

    /// Says why not, and stays until the launcher has read it and ends the channel.
    async fn refuse<T>(&mut self, problems: Vec<Problem>) -> Option<T> {
        self.channel.outbox.send(&FromAgent::Refused { problems });
        while self.message().await.is_some() {}
        None
    }

    /// Sets out to the node's place in the tree.
    async fn join(
        &mut self,
        job: &Job,
        prepared: &mut Prepared,
        services: Services,
        mut early: Early<'_>,
    ) -> Option<Tree> {
        let listeners = std::mem::take(&mut prepared.listeners);
        loop {
            match self.message().await? {
                ToAgent::Join { parent } => {
                    return Some(Tree::join(
                        job,
                        listeners,
                        parent,
                        services,
                        &self.channel.outbox,
                    ));
                }
                other => self.early_message(&mut early, other),
            }
        }
    }

    /// What may be said before the ranks start, of what they need.
    fn early_message(&self, (mesh, library): &mut Early<'_>, message: ToAgent) {
        let ToAgent::LibraryPart(part) = message else { return mesh_message(mesh, message) };
        if let Err(cause) = library.receive(&part) {
            self.channel.outbox.send(&FromAgent::NoLibrary { cause });
        }
    }

    /// Takes part in the tree and the mesh until the ranks may start, and have what they need.
    async fn await_start(
        &mut self,
        tree: &mut Tree,
        mut early: Early<'_>,
        workspace: &Workspace,
    ) -> Option<Setup> {
        let mut start = None;
        let mut released = Vec::new();
        loop {
            let mesh = &mut *early.0;
            if !early.1.is_arriving()
                && let Some(start) = start.take()
            {
                return Some(Setup { released, ..start });
            }
            while let Some(news) = tree.poll_news() {
                match news {
                    News::Table(table) => self.keep(&table, workspace),
                    News::Met(answer) => mesh.met(answer),
                }
            }
            while let Some(meeting) = mesh.poll_meeting() {
                tree.meet(meeting.kind, &meeting.name, &meeting.given);
            }
            tokio::select! {
                message = self.message() => match message? {
                    ToAgent::Start { env, ranks, horovod, ports } => {
                        start = Some(Setup { env, ranks, horovod, ports, released: Vec::new() });
                    }
                    // Other nodes may be further on.
                    ToAgent::StartApplication { index } => released.push(index),
                    ToAgent::Table(table) => tree.table(table),
                    ToAgent::Relay { from, data } => tree.relayed(from, &data),
                    other => self.early_message(&mut early, other),
                },
                () = tree.turn() => {}
                heard = mesh.next() => mesh.on_heard(heard),
            }
        }
    }

    /// Opens the door to the store by which Horovod's ranks meet. Without it they would wait for
    /// each other in vain, so the job does not go on.
    async fn open_to_horovod(&mut self, setup: &Setup, prepared: &mut Prepared) -> Option<Door> {
        let Some(port) = setup.horovod else { return Some(Door::absent()) };
        let opened = Door::open(port, &mut prepared.held_ports);
        if let Err(error) = &opened {
            if error.kind() == io::ErrorKind::AddrNotAvailable {
                // A node without loopback: whatever its ranks are, they are not Horovod's.
                complain!("rlaunch-worker: cannot serve Horovod: {error}");
                return Some(Door::absent());
            }
            let operation = format!("serve Horovod at {LOOPBACK}:{port}");
            self.channel.outbox.send(&FromAgent::Failed { operation, cause: error.to_string() });
            // Stays until the launcher has read it and ends the channel.
            while self.message().await.is_some() {}
        }
        opened.ok()
    }

    /// The rank table is for the ranks to read.
    fn keep(&self, table: &Payload, workspace: &Workspace) {
        if let Err(error) = workspace.keep_rank_table(table) {
            let operation = "write the rank table".to_owned();
            self.channel.outbox.send(&FromAgent::Failed { operation, cause: error.to_string() });
        }
    }

    /// The ranks of this node have ended; other nodes still reach one another through it.
    async fn linger(&mut self, tree: &mut Tree) {
        loop {
            tokio::select! {
                message = self.message() => match message {
                    None => return,
                    Some(ToAgent::Relay { from, data }) => tree.relayed(from, &data),
                    Some(_) => {}
                },
                () = tree.turn() => {}
            }
        }
    }

    /// From the start of the ranks until all have ended and their output is sent.
    async fn see_out(
        &mut self,
        ranks: &mut Ranks,
        tree: &mut Tree,
        mesh: &mut Mesh,
        mut ports: AwaitedPorts,
    ) {
        while !ranks.are_over() {
            if ranks.have_ended() {
                // What it watches is not used any more, and as long as it lives this process has a
                // child: only without any is it certain that nothing is left of the ranks.
                mesh.dismiss();
            }
            while let Some(change) = ranks.poll_change() {
                match change {
                    Change::Started(rank, pid) => tree.rank_started(rank, pid),
                    Change::Ended(rank, status) => tree.rank_ended(rank, status),
                }
            }
            let deadline = ranks.deadline();
            let timer = async move {
                match deadline {
                    Some(at) => tokio::time::sleep_until(at.into()).await,
                    None => std::future::pending().await,
                }
            };
            let input = tokio::select! {
                input = self.next() => Some(input),
                () = timer => None,
                () = ranks.drained() => None,
                () = tree.turn() => continue,
                heard = mesh.next() => {
                    mesh.on_heard(heard);
                    continue;
                }
                id = ports.next_open() => {
                    self.channel.outbox.send(&FromAgent::PortOpen { id });
                    continue;
                }
            };
            match input {
                Some(Input::Message(ToAgent::Relay { from, data })) => {
                    tree.relayed(from, &data);
                }
                Some(Input::Message(message)) if is_of_mesh(&message) => {
                    mesh_message(mesh, message);
                }
                Some(Input::Message(ToAgent::News(news))) => tree.tell_ranks(&news),
                Some(input) => {
                    if let Some(why) = ending(&input) {
                        tree.tell_ranks(&client::events::News::Ending { why });
                    }
                    self.pass_on(input, ranks);
                }
                None => ranks.on_time(),
            }
        }
    }

    fn pass_on(&mut self, input: Input, ranks: &mut Ranks) {
        self.job_is_ending |= matches!(
            input,
            Input::Message(ToAgent::End { .. })
                | Input::Interrupted
                | Input::LauncherGone(_)
                | Input::LauncherSilent(_)
        );
        let outbox = &self.channel.outbox;
        match input {
            Input::Message(ToAgent::Credit(bytes)) => outbox.grant(bytes),
            Input::Message(ToAgent::Stdin(data)) => ranks.feed(data),
            Input::Message(ToAgent::Signal(signal)) => ranks.signal(signal),
            Input::Message(ToAgent::StartApplication { index }) => ranks.start_application(index),
            Input::Message(ToAgent::End { now }) => ranks.end(now),
            Input::Message(ToAgent::Suspend) => {
                ranks.signal_all(&[Signal::SIGSTOP]);
                outbox.send(&FromAgent::Suspended);
            }
            Input::Message(ToAgent::Resume) => ranks.signal_all(&[Signal::SIGCONT]),
            Input::Message(_) => {}
            Input::Children => ranks.reap(),
            Input::Interrupted => ranks.end(false),
            Input::LauncherGone(how) => {
                complain!("rlaunch-worker: the launcher is gone: {how}");
                outbox.discard_output();
                ranks.end(false);
            }
            Input::LauncherSilent(silence) => {
                let silent = silence.as_secs();
                complain!("rlaunch-worker: nothing from the launcher for {silent} s");
                // It may have stood still, or be reached again.
                outbox
                    .send(&FromAgent::Unheard { for_s: u32::try_from(silent).unwrap_or(u32::MAX) });
                outbox.discard_output();
                ranks.end(false);
            }
        }
    }
}

/// What comes about while the agents join.
type Early<'a> = (&'a mut Mesh, &'a mut OfRanks);

/// Why this node's ranks are ended, where nobody but this agent knows.
fn ending(input: &Input) -> Option<String> {
    match input {
        Input::Interrupted => Some("the agent was told to end".to_owned()),
        Input::LauncherGone(how) => Some(format!("the launcher is gone: {how}")),
        Input::LauncherSilent(silence) => {
            Some(format!("nothing from the launcher for {} s", silence.as_secs()))
        }
        Input::Message(_) | Input::Children => None,
    }
}

/// What the launcher has to say of the mesh.
fn mesh_message(mesh: &mut Mesh, message: ToAgent) {
    match message {
        ToAgent::Prover(file) => mesh.on_file(file),
        ToAgent::ProverPart(part) => mesh.on_part(&part),
        ToAgent::Prove(round) => mesh.prove(round),
        ToAgent::Met(given) => mesh.met_other(given),
        ToAgent::WatchPaths { ids, beat_ms } => mesh.watch(ids, beat_ms),
        _ => {}
    }
}

fn is_of_mesh(message: &ToAgent) -> bool {
    matches!(message, ToAgent::Prove(_) | ToAgent::Met(_) | ToAgent::WatchPaths { .. })
}
