//! Pump of an attempt at a job: it owns the sessions with the agents, the user's signals and `--timeout`, and yields what
//! comes from them one by one.
//!
//! While ranks run, the [`Supervisor`](super::supervisor::Supervisor) decides what follows from an input. Before that there
//! is nothing to decide: a lost node, an agent that cannot go on, a signal that ends the job and `--timeout` end the
//! attempt, in whatever phase it is.

use crate::connect::outbox::Reserved;
use crate::run::loss::Loss;
use crate::run::nodes::Agents;
use crate::run::outcome;
use crate::run::session::{NodeEvent, NodeEventKind};
use crate::run::signals::{self, Signals, UserSignal};
use crate::run::supervisor::Input;
use nix::sys::signal::Signal;
use rlaunch_bootstrap::id::NodeId;
use rlaunch_bootstrap::job::TerminalSize;
use rlaunch_bootstrap::protocol::control::{FromAgent, ToAgent};
use rlaunch_console::deadline::Deadline;
use rlaunch_text::exit::Exit;
use rlaunch_text::message::Failed;
use std::pin::pin;
use std::time::{Duration, Instant};
use tokio::sync::mpsc;

/// Returns the time by the clock of the runtime, which tests can stop.
pub(crate) fn now() -> Instant {
    tokio::time::Instant::now().into_std()
}

/// Sleeps until `at`, or for ever if `at` is `None`.
pub(crate) async fn until(at: Option<Instant>) {
    match at {
        Some(at) => tokio::time::sleep_until(at.into()).await,
        None => std::future::pending().await,
    }
}

/// Everything outside of this process that an attempt deals with, and its time limit.
pub(crate) struct Pump<'s> {
    pub(crate) agents: Agents,
    events: mpsc::UnboundedReceiver<NodeEvent>,
    signals: &'s mut Signals,
    /// Hosts of the nodes, by node, as the user named them.
    hosts: Vec<String>,
    timeout: Option<Duration>,
    /// Time at which `timeout` ends an attempt that has started no rank.
    due: Option<Instant>,
    /// Size of the user's terminal, if it has changed before ranks run: nodes may have been told the former one.
    resized: Option<TerminalSize>,
}

/// Message of an agent before ranks run.
pub(crate) struct AgentMessage {
    pub node: NodeId,
    pub message: FromAgent,
    /// Room of [`NodeEvent::room`].
    pub room: Option<Reserved>,
}

impl<'s> Pump<'s> {
    /// Begins an attempt. `hosts` are those of the nodes, `timeout` is `--timeout`.
    pub(crate) fn new(
        agents: Agents,
        events: mpsc::UnboundedReceiver<NodeEvent>,
        signals: &'s mut Signals,
        hosts: Vec<String>,
        timeout: Option<Duration>,
    ) -> Pump<'s> {
        let due = timeout.map(|timeout| now() + timeout);
        Pump { agents, events, signals, hosts, timeout, due, resized: None }
    }

    /// Ends the agents of all but the first `count` hosts, which have no ranks, and drops their events.
    pub(crate) fn end_all_but_first(&mut self, count: usize) {
        self.hosts.truncate(count);
        self.agents.end_all_but_first(count);
    }

    /// Ends every agent, and waits until the sessions are closed.
    pub(crate) async fn shutdown(self) {
        // A session stops reading while too many of its events wait to be taken; without them it reads to its end.
        drop(self.events);
        self.agents.shutdown().await;
    }

    /// Returns the name of a node's host, or `unknown node N` for an id that no node has, which only a faulty
    /// agent sends.
    pub(crate) fn host(&self, node: NodeId) -> String {
        let known = self.hosts.get(node.index()).cloned();
        known.unwrap_or_else(|| format!("unknown node {}", node.0))
    }

    /// Waits for the next event of a node or signal of the user. Unless `takes_signals` is true, signals are left for
    /// later. Cancel-safe.
    pub(crate) async fn next_input(&mut self, takes_signals: bool) -> Input {
        loop {
            let event = tokio::select! {
                event = self.events.recv() => event,
                signal = self.signals.next(), if takes_signals => return Input::Signal(signal),
            };
            match event {
                None => return Input::SessionsClosed,
                Some(event) if event.node.index() < self.hosts.len() => return Input::Node(event),
                // From a host without ranks, whose agent was ended.
                Some(_) => {}
            }
        }
    }

    /// Waits for the next message of an agent before ranks run; returns `None` if `deadline` expires first. Returns an
    /// error if the attempt must end.
    pub(crate) async fn next_message(
        &mut self,
        deadline: &mut Deadline,
    ) -> Result<Option<AgentMessage>, Failed> {
        loop {
            let due = self.due;
            let input = tokio::select! {
                input = deadline.run(self.next_input(true)) => input,
                () = until(due) => return Err(self.timed_out()),
            };
            match input {
                None => return Ok(None),
                Some(Input::Node(NodeEvent { node, kind, room })) => match kind {
                    NodeEventKind::Lost(how) => {
                        return Err(Loss::of_channel(how).error(&self.host(node)));
                    }
                    NodeEventKind::JobOver(how) => {
                        return Err(Loss::of_job(how).error(&self.host(node)));
                    }
                    NodeEventKind::Message(message) => match Loss::reported(&message) {
                        Some(loss) => return Err(loss.error(&self.host(node))),
                        None => return Ok(Some(AgentMessage { node, message, room })),
                    },
                    // It follows the loss of the node, which has ended the attempt.
                    NodeEventKind::CleanedUp(_) => {}
                },
                Some(Input::SessionsClosed) => {
                    return Err(Failed::new(Exit::BUG, "every session has ended"));
                }
                Some(Input::Signal(signal)) => self.obey_before_start(signal).await?,
                // The driver makes these, once ranks run.
                Some(Input::ReaderGone | Input::Query(_)) => {}
            }
        }
    }

    /// Does work of this machine before ranks run, unless the user or `--timeout` ends the attempt meanwhile.
    pub(crate) async fn run_unless_ended<T>(
        &mut self,
        work: impl Future<Output = Result<T, Failed>>,
    ) -> Result<T, Failed> {
        let mut work = pin!(work);
        loop {
            tokio::select! {
                done = &mut work => return done,
                signal = self.signals.next() => self.obey_before_start(signal).await?,
                () = until(self.due) => return Err(self.timed_out()),
            }
        }
    }

    /// Does work that obeys the user's signals itself, as a job does. Its time is not that of `--timeout`.
    pub(crate) async fn leave_signals_to<T>(&mut self, work: impl Future<Output = T>) -> T {
        let began = now();
        let mut work = pin!(work);
        let mut is_suspended = false;
        let done = loop {
            let signal = tokio::select! {
                biased;
                done = &mut work => break done,
                signal = self.signals.next() => signal,
            };
            match signal {
                UserSignal::Resize(size) => self.resized = Some(size),
                // The work stops this process, a moment later.
                UserSignal::Suspend => {
                    is_suspended = true;
                    self.agents.queue_for_all(&ToAgent::Suspend);
                }
                UserSignal::Forward(Signal::SIGCONT) if is_suspended => {
                    is_suspended = false;
                    self.agents.queue_for_all(&ToAgent::Resume);
                }
                UserSignal::End(_) | UserSignal::Forward(_) => {}
            }
        };
        if is_suspended {
            self.agents.queue_for_all(&ToAgent::Resume);
        }
        self.due = self.due.map(|due| due + (now() - began));
        done
    }

    /// Stops this process as the user has asked, unless it was continued since.
    pub(crate) async fn stop_process(&mut self) {
        self.signals.stop().await;
    }

    fn timed_out(&self) -> Failed {
        let details = vec!["no rank was started yet".to_owned()];
        outcome::timed_out(self.timeout.unwrap_or_default(), details)
    }

    /// Takes the change of the terminal's size that ranks have not been told of, once they run.
    pub(crate) fn take_resize(&mut self) -> Option<UserSignal> {
        self.resized.take().map(UserSignal::Resize)
    }

    /// Obeys a signal of the user before ranks run; returns an error if it ends the job. Signals for ranks have no receiver
    /// yet.
    async fn obey_before_start(&mut self, signal: UserSignal) -> Result<(), Failed> {
        match signal {
            UserSignal::End(signal) => {
                const WHEN: &str = " before any rank was started";
                return Err(if signal == Signal::SIGINT {
                    Failed {
                        is_asked: true,
                        ..Failed::new(Exit::signal(signal as i32), format!("interrupted{WHEN}"))
                    }
                } else {
                    signals::ended_by(signal, WHEN)
                });
            }
            UserSignal::Suspend => {
                // Otherwise agents give up a launcher that sends nothing.
                self.agents.queue_for_all(&ToAgent::Suspend);
                self.signals.suspend().await;
                self.agents.queue_for_all(&ToAgent::Resume);
            }
            UserSignal::Resize(size) => self.resized = Some(size),
            UserSignal::Forward(_) => {}
        }
        Ok(())
    }
}
