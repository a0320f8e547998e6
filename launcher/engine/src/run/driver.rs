//! Driver of a running job. It owns the channels, the terminal and the clock, and leaves every decision to
//! the [`Supervisor`].

use crate::run::hang::OutsideWaits;
use crate::run::job_run::JobRun;
use crate::run::live::JobSocket;
use crate::run::nodes::{Agents, HelperUpload, Node};
use crate::run::outcome::Outcome;
use crate::run::output::{OutputWriter, Written};
use crate::run::pump::{self, Pump};
use crate::run::signals::{Signals, UserSignal, ended_by};
use crate::run::stdin::StdinFeed;
use crate::run::supervisor::{Action, Input, PhaseStates, READER_PATIENCE, Supervisor};
use nix::sys::signal::Signal;
use rlaunch_bootstrap::protocol::control::Helper;
use rlaunch_console::messages;
use rlaunch_text::exit::Exit;
use rlaunch_text::message::Failed;
use rlaunch_text::text;
use std::time::Duration;

/// Nodes that were ordered to start their ranks.
pub(crate) struct Running {
    pub nodes: Vec<Node>,
    pub writer: OutputWriter,
    pub stdin: StdinFeed,
    pub phase_states: PhaseStates,
    pub master_port: u16,
}

/// Job whose nodes have ended their ranks, or can report that no more.
pub(crate) struct Ended {
    outcome: Outcome,
    writer: OutputWriter,
    master_port: u16,
}

impl Running {
    /// Supervises the job until all nodes have ended their ranks.
    pub(crate) async fn run_to_completion(self, job: &JobRun, pump: &mut Pump<'_>) -> Ended {
        let Running { nodes, mut writer, stdin, phase_states, master_port } = self;
        let status = job.events.status();
        let mut supervisor = Supervisor::new(&job.spec, nodes, phase_states, status, pump::now());
        let mut stack_reader = HelperUpload::new(Helper::Stack);
        let mut queries = job.socket.as_ref().map(JobSocket::take_queries).unwrap_or_default();
        let mut is_untold = false;
        while !supervisor.is_over() {
            let is_listening = !supervisor.is_suspending();
            let input = if is_listening && std::mem::take(&mut is_untold) {
                // The job ends as if its terminal had closed, since the user does not know its name.
                Some(Input::Signal(UserSignal::End(Signal::SIGHUP)))
            } else if let Some(resize) = pump.take_resize() {
                Some(Input::Signal(resize))
            } else {
                tokio::select! {
                    () = pump::until(supervisor.poll_timeout()) => None,
                    input = pump.next_input(is_listening) => Some(input),
                    () = writer.reader_gone(), if is_listening => Some(Input::ReaderGone),
                    query = queries.next() => Some(Input::Query(query)),
                }
            };
            match input {
                Some(input) => supervisor.handle(pump::now(), input),
                None => {
                    let (output, input) = (writer.waits_for_reader(), stdin.waits_for_source());
                    supervisor.handle_timeout(pump::now(), OutsideWaits { output, input });
                }
            }
            if supervisor.is_ending() {
                status.ending();
            }
            while let Some(action) = supervisor.poll_action() {
                let nodes = supervisor.nodes();
                perform(action, job, pump, nodes, &mut writer, &mut stack_reader).await;
            }
            is_untold |= !detach_once_started(job) && !supervisor.is_ending();
        }
        Ended { outcome: supervisor.into_outcome(), writer, master_port }
    }
}

impl Ended {
    /// Writes the remaining output, once every channel is closed, and returns the job's outcome.
    pub(crate) async fn conclude(
        mut self,
        job: &JobRun,
        signals: &mut Signals,
    ) -> Result<Exit, Failed> {
        let (written, ended_wait) = write_rest(&mut self.writer, signals).await;
        let unread = self.writer.unread();
        if unread > 0 {
            let size = text::size(unread);
            messages::warn(&format!(
                "{size} of the ranks' output is dropped, since it was not read"
            ));
        }
        decide_exit(job, self.outcome, written, ended_wait, self.master_port)
    }
}

/// Leaves the terminal when all ranks have started. Returns `false` if nobody could be told of the job.
fn detach_once_started(job: &JobRun) -> bool {
    match job.detaching.as_ref().filter(|detaching| detaching.is_due()) {
        Some(detaching) if job.events.status().has_started() => detaching.detach(&job.spec.name),
        _ => true,
    }
}

/// Performs an action. `stack_reader` is the program that reads stacks.
async fn perform(
    action: Action,
    job: &JobRun,
    pump: &mut Pump<'_>,
    nodes: &[Node],
    writer: &mut OutputWriter,
    stack_reader: &mut HelperUpload,
) {
    let agents = &pump.agents;
    match action {
        Action::LimitReaders(patience) => writer.limit_readers(patience),
        Action::Send(node, message) => agents.queue_command(node, &message),
        Action::SendAll(message) => agents.queue_for_all(&message),
        Action::Relay { from, to, data, room } => agents.relay((from, to), data, room),
        Action::Emit(event) => job.events.emit(&event),
        Action::OfferStackReader => offer(stack_reader, job, agents, nodes),
        Action::SendStackReader(node) => stack_reader.send(agents, &nodes[node.index()]),
        Action::Reply(connection, reply) => {
            if let Some(socket) = &job.socket {
                socket.reply(connection, reply);
            }
        }
        Action::Info(line) => messages::info(&line),
        Action::Warn(line) => messages::warn(&line),
        Action::StopProcess => pump.stop_process().await,
    }
}

/// Offers a program to all nodes. A node for which there is none answers questions with that reason.
fn offer(program: &mut HelperUpload, job: &JobRun, agents: &Agents, nodes: &[Node]) {
    let given = job.reach.agent.as_deref();
    for node in nodes {
        if let Err(failed) = program.offer(agents, node, given) {
            tracing::info!(host = %node.host, "{}", failed.message);
        }
    }
}

/// Waits until the ranks' output is written. A reader has all the time that it wants, unless the user asks for the end:
/// the first signal limits its pauses, the second gives it up, and the third gives up everything that is still
/// being written. Returns the first signal that came meanwhile.
async fn write_rest(writer: &mut OutputWriter, signals: &mut Signals) -> (Written, Option<Signal>) {
    let mut asked = None;
    loop {
        let requests = signals.end_requests();
        let signal = tokio::select! {
            written = writer.finish() => return (written, asked),
            signal = signals.end() => signal,
        };
        asked.get_or_insert(signal);
        match requests {
            0 => writer.limit_readers(READER_PATIENCE),
            1 => writer.limit_readers(Duration::ZERO),
            _ => {
                messages::warn("the ranks' last output is not completely written");
                return (Written::default(), asked);
            }
        }
    }
}

/// Decides the job's exit code and message. `ended_wait` is the signal by which the user ended the wait for the last
/// output.
fn decide_exit(
    job: &JobRun,
    outcome: Outcome,
    written: Written,
    ended_wait: Option<Signal>,
    master_port: u16,
) -> Result<Exit, Failed> {
    let closing_line = outcome.closing_line().map(str::to_owned);
    let reap = outcome.reap_hint(&job.spec.name);
    let tree = job.spec.tree.as_ref();
    let wrote = tree.and_then(|tree| outcome.written_line(tree));
    let decided = outcome.decide(&job.spec.options, written, master_port);
    let decided = decided.map_err(|failed| failed.hint(reap));
    // A job that has failed keeps its own error, which says more than the signal.
    let decided = match ended_wait {
        Some(signal) => decided.and(Err(ended_by(signal, ""))),
        None => decided,
    };
    if let Some(line) = closing_line {
        messages::info(&line);
    }
    if let Some(line) = wrote {
        messages::info(&line);
    }
    if let Err(failed) = &decided {
        tracing::debug!(job = %job.spec.id, exit = failed.exit.0, "concluded");
    }
    decided
}
