//! Driver of a running job. It owns the channels, the terminal and the clock, and leaves every decision to
//! the [`Supervisor`].

use crate::run::Started;
use crate::run::helper_upload::HelperUpload;
use crate::run::job_run::JobRun;
use crate::run::live::JobSocket;
use crate::run::nodes::Nodes;
use crate::run::outcome::{Outcome, SupervisedNode, ended_by};
use crate::run::output::{OutputWriter, Written};
use crate::run::signals::{self, Signals};
use crate::run::supervisor::{Action, Input, READER_PATIENCE, Supervisor};
use nix::sys::signal::Signal;
use rlaunch_bootstrap::protocol::control::Helper;
use rlaunch_console::messages;
use rlaunch_text::exit::Exit;
use rlaunch_text::message::Failed;
use rlaunch_text::text;
use std::time::{Duration, Instant};

/// Supervises a job from the start of its ranks until all nodes have ended their ranks. Then closes every
/// channel, writes the remaining output and returns the job's outcome.
pub(crate) async fn run_to_completion(
    job: &JobRun,
    mut nodes: Nodes,
    Started { mut writer, phase_states, master_port }: Started,
    signals: &mut Signals,
) -> Result<Exit, Failed> {
    let supervised = nodes.reached.iter().map(|node| SupervisedNode {
        host: node.host.to_string(),
        ranks: node.ranks.clone(),
        addresses: node.facts.addresses.iter().map(|own| own.address).collect(),
        hello_at: node.hello_at,
    });
    let mut supervisor = Supervisor::new(
        &job.spec,
        supervised.collect(),
        phase_states,
        job.events.status(),
        Instant::now(),
    );
    let mut stack_reader = HelperUpload::new(Helper::Stack);
    let mut queries = job.socket.as_ref().map(JobSocket::take_queries).unwrap_or_default();
    while !supervisor.is_over() {
        let is_listening = !supervisor.is_suspending();
        let input = tokio::select! {
            () = until(supervisor.poll_timeout()) => None,
            event = nodes.events.recv() => Some(event.map_or(Input::SessionsClosed, Input::Node)),
            signal = signals.next(), if is_listening => Some(Input::Signal(signal)),
            () = writer.reader_gone(), if is_listening => Some(Input::ReaderGone),
            query = queries.next() => Some(Input::Query(query)),
        };
        match input {
            Some(input) => supervisor.handle(Instant::now(), input),
            None => supervisor.handle_timeout(Instant::now(), writer.waits_for_reader()),
        }
        if supervisor.is_ending() {
            job.events.status().ending();
        }
        while let Some(action) = supervisor.poll_action() {
            perform(action, job, &nodes, &mut writer, &mut stack_reader);
        }
    }
    let outcome = supervisor.into_outcome();
    nodes.shutdown().await;
    let written = write_rest(&mut writer, signals).await;
    if writer.unread() > 0 {
        let size = text::size(writer.unread());
        messages::warn(&format!("{size} of the ranks' output is dropped, since it was not read"));
    }
    conclude(job, outcome, written, master_port)
}

/// Performs an action. `stack_reader` is the program that reads stacks.
fn perform(
    action: Action,
    job: &JobRun,
    nodes: &Nodes,
    writer: &mut OutputWriter,
    stack_reader: &mut HelperUpload,
) {
    match action {
        Action::LimitReaders(patience) => writer.limit_readers(patience),
        Action::Send(node, message) => nodes.queue_command(node, &message),
        Action::SendAll(message) => nodes.queue_for_all(&message),
        Action::Relay { from, to, data, room } => nodes.relay((from, to), data, room),
        Action::Emit(event) => job.events.emit(&event),
        Action::OfferStackReader => offer(stack_reader, job, nodes),
        Action::SendStackReader(node) => stack_reader.send(nodes, node),
        Action::Reply(connection, reply) => {
            if let Some(socket) = &job.socket {
                socket.reply(connection, reply);
            }
        }
        Action::Info(line) => messages::info(&line),
        Action::Warn(line) => messages::warn(&line),
        Action::StopProcess => signals::stop_process(),
    }
}

/// Offers a program to all nodes. A node for which there is none answers questions with that reason.
fn offer(program: &mut HelperUpload, job: &JobRun, nodes: &Nodes) {
    let given = job.reach.agent.as_deref();
    for node in &nodes.reached {
        if let Err(failed) = program.offer(node, given) {
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

/// Decides the job's exit code and message. `asked` is the signal by which the user ended the wait for the last output.
fn conclude(
    job: &JobRun,
    outcome: Outcome,
    (mut written, asked): (Written, Option<Signal>),
    master_port: u16,
) -> Result<Exit, Failed> {
    if let (Some(recorder), Some(transcript)) = (&job.recorder, written.transcript.take()) {
        recorder.printed(transcript);
    }
    let closing_line = outcome.closing_line().map(str::to_owned);
    let decided = match (outcome.decide(&job.spec.options, written, master_port), asked) {
        (Ok(_), Some(signal)) => Err(ended_by(signal)),
        (decided, _) => decided,
    };
    closing_line.iter().for_each(|line| messages::info(line));
    if let Err(failed) = &decided {
        tracing::debug!(job = %job.spec.id, exit = failed.exit.0, "concluded");
    }
    decided
}

/// Sleeps until `at`, or for ever if `at` is `None`.
async fn until(at: Option<Instant>) {
    match at {
        Some(at) => tokio::time::sleep_until(at.into()).await,
        None => std::future::pending().await,
    }
}
