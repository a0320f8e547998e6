//! The steps of a job on this node:
//!
//! 1. send Hello, receive the job and its files;
//! 2. check and reserve what the ranks need, send Prepared (or Refused);
//! 3. join the tree of agents and prove this node's RDMA paths with the others;
//! 4. on Start, run the ranks until all have ended and their output is sent;
//! 5. clean up, send Done, and relay for child agents until the launcher closes the channel.
//!
//! | file | what |
//! |---|---|
//! | `mod.rs` | events from outside, from the first to the last step |
//! | `startup.rs` | steps 1 to 3 |
//! | `running.rs` | step 4, and what the agent relays for others afterwards |
//! | `mesh.rs` | the process that proves this node's RDMA paths and watches them |
//! | `inspector.rs` | processes that are looked into while ranks run |
//! | `silence.rs` | how long nothing has come from the launcher |

mod inspector;
pub(crate) mod mesh;
mod running;
mod silence;
mod startup;

use crate::agent::mesh::Mesh;
use crate::agent::silence::Silence;
use crate::agent::startup::StartupParts;
use crate::cleanup::cgroup::Cgroup;
use crate::cleanup::guardian::Grace;
use crate::cleanup::helpers::Helpers;
use crate::cleanup::processes;
use crate::cleanup::workspace::Workspace;
use crate::console::errln;
use crate::network::channel::{CallbackTarget, Channel, ChannelKind};
use crate::network::frames::FrameEvent;
use crate::network::ports::AwaitedPorts;
use crate::node::{self, cache};
use crate::ranks::library::RankLibrary;
use crate::ranks::{ProcessContext, Ranks, child};
use nix::sys::signal::Signal;
use rlaunch_bootstrap::protocol::control::{
    BEAT, CleanupReceipt, EndCause, FromAgent, Helper, PROTOCOL_VERSION, ToAgent,
};
use std::collections::VecDeque;
use std::io;
use std::path::Path;
use std::process::ExitCode;
use std::sync::Arc;
use std::time::{Duration, SystemTime};
use tokio::signal::unix::{Signal as SignalStream, SignalKind, signal};
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

fn is_mesh_message(message: &ToAgent) -> bool {
    matches!(message, ToAgent::Prove(_) | ToAgent::PeerEndpoints(_) | ToAgent::WatchPaths { .. })
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
