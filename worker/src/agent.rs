//! The life of an agent: say hello, take the job, prepare, join the tree, start the ranks, see them
//! end, leave.

use crate::channel::{Arrival, Channel};
use crate::facts;
use crate::oob::tree::Tree;
use crate::prepare::{self, JobFiles, Prepared};
use crate::processes;
use crate::ranks::{Change, Ranks, Setup};
use crate::say::complain;
use crate::services::Services;
use crate::workspace::Workspace;
use nix::sys::signal::Signal;
use rlaunch_bootstrap::job::{Job, Problem};
use rlaunch_bootstrap::tree::payload::Payload;
use rlaunch_bootstrap::wire::{BEAT, BEATS_LOST, FromAgent, PROTOCOL_VERSION, ToAgent};
use std::io;
use std::process::ExitCode;
use std::time::Duration;
use tokio::signal::unix::{Signal as SignalStream, SignalKind, signal};
use tokio::time::{Instant, Interval, MissedTickBehavior, interval_at};

/// Runs the agent on its channel. Success means that the job ended here in order, whatever its
/// ranks returned.
pub(crate) fn run(workspace: &Workspace) -> ExitCode {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
    let ended = runtime.and_then(|runtime| runtime.block_on(life(workspace)));
    match ended {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            complain!("rlaunch-worker: {error}");
            ExitCode::FAILURE
        }
    }
}

async fn life(workspace: &Workspace) -> io::Result<()> {
    let mut agent = Agent::start()?;
    agent.hello();
    let Some(job) = agent.receive_job().await else { return Ok(()) };
    let Some((mut prepared, services)) = agent.prepare(&job, workspace).await else {
        return Ok(());
    };
    let Some(mut tree) = agent.join(&job, &mut prepared, services).await else { return Ok(()) };
    let Some(setup) = agent.await_start(&mut tree, workspace).await else { return Ok(()) };
    agent.channel.outbox.grant(job.output_window);
    let mut ranks = Ranks::start(&job, prepared, &setup, &agent.channel.outbox, agent.hello_at);
    agent.see_out(&mut ranks, &mut tree).await;
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
    /// The launcher has been silent for too long: nobody can tell whether it lives.
    LauncherSilent,
    /// A child ended.
    Children,
    /// This agent was told to end by a signal.
    Interrupted,
}

struct Agent {
    channel: Channel,
    hello_at: std::time::Instant,
    children: SignalStream,
    interrupts: [SignalStream; 3],
    beat: Interval,
    heard: Instant,
    suspended: bool,
    /// Every node's ranks are being ended, so nobody needs this one's place in the tree.
    job_is_ending: bool,
}

impl Agent {
    fn start() -> io::Result<Agent> {
        let mut beat = interval_at(Instant::now() + BEAT, BEAT);
        beat.set_missed_tick_behavior(MissedTickBehavior::Delay);
        Ok(Agent {
            // Before any child exists, so that no end is missed.
            children: signal(SignalKind::child())?,
            interrupts: [
                signal(SignalKind::terminate())?,
                signal(SignalKind::interrupt())?,
                signal(SignalKind::hangup())?,
            ],
            channel: Channel::open()?,
            hello_at: std::time::Instant::now(),
            beat,
            heard: Instant::now(),
            suspended: false,
            job_is_ending: false,
        })
    }

    fn hello(&self) {
        let hello = FromAgent::Hello { version: PROTOCOL_VERSION, facts: facts::read() };
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
                        self.heard = Instant::now();
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
                    if !self.suspended && self.heard.elapsed() > BEATS_LOST {
                        self.heard = Instant::now();
                        return Input::LauncherSilent;
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
                | Input::LauncherSilent
                | Input::Interrupted => return None,
                Input::Message(message) => return Some(message),
                Input::Children => {}
            }
        }
    }

    async fn receive_job(&mut self) -> Option<Job> {
        loop {
            if let ToAgent::Job(job) = self.message().await? {
                return Some(*job);
            }
        }
    }

    /// Receives the job's files, checks everything, and answers.
    async fn prepare(&mut self, job: &Job, workspace: &Workspace) -> Option<(Prepared, Services)> {
        let files = match self.receive_files(job, workspace).await? {
            Ok(files) => files,
            Err(problem) => return self.refuse(vec![problem]).await,
        };
        let mut prepared = match prepare::prepare(job, &files) {
            Ok(prepared) => prepared,
            Err(problems) => return self.refuse(problems).await,
        };
        let services = Services::for_job(job, files.workspace());
        let services = match services {
            Ok(services) => services,
            Err(problem) => return self.refuse(vec![problem]).await,
        };
        services.announce(job, workspace, &mut prepared.env);
        self.channel.outbox.send(&FromAgent::Prepared {
            notices: prepared.notices.clone(),
            ports: prepared.held_ports.iter().map(|held| held.port).collect(),
            listeners: prepared.listening_at(),
            inventory: Box::new(prepared.inventory(job)),
        });
        Some((prepared, services))
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
    ) -> Option<Tree> {
        let listeners = std::mem::take(&mut prepared.listeners);
        loop {
            if let ToAgent::Join { parent } = self.message().await? {
                return Some(Tree::join(job, listeners, parent, services, &self.channel.outbox));
            }
        }
    }

    /// Takes part in the tree until the ranks may start.
    async fn await_start(&mut self, tree: &mut Tree, workspace: &Workspace) -> Option<Setup> {
        loop {
            let table = tokio::select! {
                message = self.message() => match message? {
                    ToAgent::Start { env, ranks } => return Some(Setup { env, ranks }),
                    ToAgent::Table(table) => tree.table(table),
                    ToAgent::Relay { from, data } => tree.relayed(from, &data),
                    _ => None,
                },
                table = tree.turn() => table,
            };
            if let Some(table) = table {
                self.keep(&table, workspace);
            }
        }
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
                    Some(ToAgent::Relay { from, data }) => drop(tree.relayed(from, &data)),
                    Some(_) => {}
                },
                _ = tree.turn() => {}
            }
        }
    }

    /// From the start of the ranks until all have ended and their output is sent.
    async fn see_out(&mut self, ranks: &mut Ranks, tree: &mut Tree) {
        while !ranks.are_over() {
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
                _ = tree.turn() => continue,
            };
            match input {
                Some(Input::Message(ToAgent::Relay { from, data })) => {
                    tree.relayed(from, &data);
                }
                Some(input) => self.pass_on(input, ranks),
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
                | Input::LauncherSilent
        );
        let outbox = &self.channel.outbox;
        match input {
            Input::Message(ToAgent::Credit(bytes)) => outbox.grant(bytes),
            Input::Message(ToAgent::Signal(signal)) => ranks.signal(signal),
            Input::Message(ToAgent::End { now }) => ranks.end(now),
            Input::Message(ToAgent::Suspend) => {
                processes::signal_all(&[Signal::SIGSTOP]);
                outbox.send(&FromAgent::Suspended);
            }
            Input::Message(ToAgent::Resume) => processes::signal_all(&[Signal::SIGCONT]),
            Input::Message(_) => {}
            Input::Children => ranks.reap(),
            Input::Interrupted => ranks.end(false),
            Input::LauncherGone(how) => {
                complain!("rlaunch-worker: the launcher is gone: {how}");
                outbox.discard_output();
                ranks.end(false);
            }
            Input::LauncherSilent => {
                let silent = Duration::as_secs(&BEATS_LOST);
                complain!("rlaunch-worker: nothing from the launcher for {silent} s");
                outbox.discard_output();
                ranks.end(true);
            }
        }
    }
}
