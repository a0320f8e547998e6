//! Sessions beside the ranks of this node: commands in a rank's place, and connections to the
//! debugger at which a rank waits ([`rlaunch_bootstrap::protocol::session`]).
//!
//! | file | contents |
//! |---|---|
//! | `mod.rs` | [`Sessions`]: all sessions of the node, from their start to their end |
//! | `place.rs` | a rank's place: its process, environment and working directory |
//! | `command.rs`, `terminal.rs` | start of a command in a rank's place; its terminal |
//! | `debugger.rs` | connection to a rank's debugger |
//! | `relay.rs` | input and output, one message of each at a time |

mod command;
mod debugger;
mod place;
mod relay;
mod terminal;

use crate::cleanup::cgroup::Cgroup;
use crate::cleanup::processes;
use crate::network::outbox::Outbox;
use crate::ranks::{Phase, Ranks};
use debugger::Debugger;
use nix::sys::signal::Signal;
use nix::unistd::{Pid, getsid};
use place::RankPlace;
use relay::Relay;
use rlaunch_bootstrap::id::Rank;
use rlaunch_bootstrap::job::{ExitStatus, RankSetup};
use rlaunch_bootstrap::protocol::control::FromAgent;
use rlaunch_bootstrap::protocol::session::{
    FromSession, MAX_SESSION_DATA, MAX_SESSIONS, SessionError, SessionKind, SessionStart,
    TerminalSize, ToSession,
};
use std::collections::{BTreeMap, HashSet};
use std::os::fd::OwnedFd;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::{Duration, Instant};
use tokio::sync::mpsc::error::TrySendError;
use tokio::sync::{Semaphore, mpsc, watch};
use tokio::task::{AbortHandle, JoinSet};

/// Time that the processes of a session have to end after their client has gone.
const HANG_UP_GRACE: Duration = Duration::from_secs(2);

/// Signals that tell the processes of a session that their client or job has gone. A shell ignores
/// SIGTERM, and a program under nohup SIGHUP.
const HANG_UP: &[Signal] = &[Signal::SIGHUP, Signal::SIGTERM, Signal::SIGCONT];

/// Sessions of this node.
pub(super) struct Sessions {
    outbox: Outbox,
    /// Directory in which ranks that wait in the debugger have their sockets; `None` if the job has
    /// no directory.
    workspace: Option<PathBuf>,
    open: BTreeMap<u32, Session>,
    tasks: JoinSet<()>,
    /// First process of each session that was ever started, by which its other processes are known.
    leaders: HashSet<Pid>,
    /// Sessions without a client, by their leaders, and the times at which they are killed.
    ending: Vec<(Pid, Instant)>,
    job_ends: bool,
}

/// Session that has begun.
struct Session {
    handle: SessionHandle,
    /// Process that leads the session, until it was reaped; `None` for a debugger.
    leader: Option<Pid>,
    /// Agent's end of the terminal, for its size.
    terminal: Option<OwnedFd>,
    /// Path of the debugger's socket.
    debugger: Option<PathBuf>,
    task: AbortHandle,
}

/// Ends of the channels to the task of a session.
struct SessionHandle {
    /// Input that the task has not taken yet, at most one part.
    input: mpsc::Sender<Vec<u8>>,
    /// Semaphore with one permit while output may be sent.
    turn: Arc<Semaphore>,
    /// Last message of the session, once the leader has ended.
    last: watch::Sender<Option<FromSession>>,
}

impl Sessions {
    pub(super) fn new(outbox: &Outbox, workspace: Option<PathBuf>) -> Sessions {
        Sessions {
            outbox: outbox.clone(),
            workspace,
            open: BTreeMap::new(),
            tasks: JoinSet::new(),
            leaders: HashSet::new(),
            ending: Vec::new(),
            job_ends: false,
        }
    }

    fn report(&self, id: u32, what: FromSession) {
        self.outbox.send(&FromAgent::Session { id, what });
    }

    /// Begins a session and reports that, or why it cannot begin.
    fn start(
        &mut self,
        id: u32,
        kind: SessionKind,
        place: Result<RankPlace<'_>, SessionError>,
        cgroup: Option<&mut Cgroup>,
    ) {
        self.forget_finished();
        let begun = place.and_then(|place| {
            if self.open.len() >= MAX_SESSIONS || self.open.contains_key(&id) {
                return Err(SessionError::TooMany);
            }
            match kind {
                SessionKind::Command { argv, terminal } => {
                    self.start_command(id, &place, (argv, terminal), cgroup)
                }
                SessionKind::Debugger => self.attach(id, &place),
            }
        });
        if let Err(error) = begun {
            self.report(id, FromSession::Failed(error));
        }
    }

    fn start_command(
        &mut self,
        id: u32,
        place: &RankPlace<'_>,
        (argv, terminal): command::Wanted,
        cgroup: Option<&mut Cgroup>,
    ) -> Result<(), SessionError> {
        let started = command::start(place, argv, terminal, cgroup)?;
        self.leaders.insert(started.pid);
        self.report(id, FromSession::Started { pid: started.pid.as_raw().cast_unsigned() });
        let (relay, handle) = Relay::new(id, &self.outbox);
        let task = self.tasks.spawn(relay.of_command(started.stdin, started.outputs));
        let (leader, terminal) = (Some(started.pid), started.terminal);
        self.open.insert(id, Session { handle, leader, terminal, debugger: None, task });
        Ok(())
    }

    /// Connects to the debugger at which a process of the rank waits.
    fn attach(&mut self, id: u32, place: &RankPlace<'_>) -> Result<(), SessionError> {
        let directory = self.workspace.as_deref().ok_or(SessionError::NotAtBreakpoint)?;
        let is_taken = |path: &PathBuf| {
            self.open.values().any(|session| session.debugger.as_ref() == Some(path))
        };
        let debugger = Debugger::connect(directory, place.rank, is_taken)?;
        self.report(id, FromSession::Started { pid: debugger.pid.as_raw().cast_unsigned() });
        let (relay, handle) = Relay::new(id, &self.outbox);
        let path = Some(debugger.path.clone());
        let task = self.tasks.spawn(relay.of_debugger(debugger));
        self.open
            .insert(id, Session { handle, leader: None, terminal: None, debugger: path, task });
        Ok(())
    }

    /// Handles a message for a session that has begun. A session that is over is no error: both ends
    /// may end it at the same time.
    fn on_message(&mut self, id: u32, what: ToSession) {
        let Some(session) = self.open.get(&id) else { return };
        match what {
            ToSession::Stdin(data) => {
                // A full queue means that the client has not waited for its turn.
                let fits = data.len() <= MAX_SESSION_DATA;
                if !fits
                    || matches!(session.handle.input.try_send(data), Err(TrySendError::Full(_)))
                {
                    self.report(id, FromSession::Failed(SessionError::Protocol));
                    self.end(id);
                }
            }
            ToSession::OutputTaken => {
                if session.handle.turn.available_permits() == 0 {
                    session.handle.turn.add_permits(1);
                }
            }
            ToSession::Resize(size) => {
                session.resize(size);
                self.report(id, FromSession::Resized);
            }
            ToSession::End => self.end(id),
            // Numbers are used once.
            ToSession::Start(_) => {}
        }
    }

    /// Ends a session whose client has gone.
    fn end(&mut self, id: u32) {
        let Some(session) = self.open.remove(&id) else { return };
        // Closes pipes and terminal.
        session.task.abort();
        if let Some(leader) = session.leader {
            self.ending.push((leader, Instant::now() + HANG_UP_GRACE));
            drop(session);
            for pid in members(|sid| sid == leader) {
                processes::signal_one(pid, HANG_UP);
            }
        }
    }

    /// Takes note of the end of a child process.
    pub(super) fn on_child_ended(&mut self, pid: Pid, status: ExitStatus) {
        let mut sessions = self.open.values_mut();
        if let Some(session) = sessions.find(|session| session.leader == Some(pid)) {
            session.leader = None;
            session.terminal = None;
            let last = match self.job_ends {
                true => FromSession::Failed(SessionError::JobEnding),
                false => FromSession::Ended(status),
            };
            session.handle.last.send_replace(Some(last));
        }
    }

    /// Tells the processes of all sessions to end, because the job does.
    pub(super) fn hang_up(&mut self) {
        self.job_ends = true;
        if !self.leaders.is_empty() {
            for pid in members(|sid| self.leaders.contains(&sid)) {
                processes::signal_one(pid, HANG_UP);
            }
        }
    }

    /// Tells whether a process was started by a session.
    pub(super) fn own(&self, pid: Pid) -> bool {
        !self.leaders.is_empty() && getsid(Some(pid)).is_ok_and(|sid| self.leaders.contains(&sid))
    }

    /// Returns the time at which [`Sessions::on_deadline`] is due.
    pub(super) fn deadline(&self) -> Option<Instant> {
        self.ending.iter().map(|(_, at)| *at).min()
    }

    /// Kills what is left of sessions whose clients have gone some time ago.
    pub(super) fn on_deadline(&mut self, now: Instant) {
        let due: Vec<Pid> =
            self.ending.extract_if(.., |(_, at)| *at <= now).map(|(pid, _)| pid).collect();
        if !due.is_empty() {
            for pid in members(|sid| due.contains(&sid)) {
                processes::signal_one(pid, &[Signal::SIGKILL]);
            }
        }
    }

    /// Ends all tasks. Output that was not sent is lost.
    pub(super) async fn shut_down(&mut self) {
        self.open.clear();
        self.tasks.shutdown().await;
    }

    fn forget_finished(&mut self) {
        while self.tasks.try_join_next().is_some() {}
        self.open.retain(|_, session| !session.task.is_finished());
    }
}

impl Session {
    fn resize(&self, size: TerminalSize) {
        if let Some(terminal) = &self.terminal {
            // Fails if the terminal is gone.
            let _ = rustix::termios::tcsetwinsize(terminal, terminal::window(size));
        }
    }
}

/// Lists the processes that belong to a session of the kernel, by the session's leader.
fn members(is_wanted: impl Fn(Pid) -> bool) -> Vec<Pid> {
    let mut found = processes::descendants(&[]);
    found.retain(|pid| getsid(Some(*pid)).is_ok_and(&is_wanted));
    found
}

impl Ranks {
    /// Handles a message for a session beside a rank.
    pub(crate) fn on_session(&mut self, id: u32, what: ToSession) {
        let unbound = RankSetup::default();
        match what {
            ToSession::Start(SessionStart { rank, kind }) => {
                let running = self.running.iter().find(|(running, _)| *running == rank);
                let own = self.local_ranks.get(&rank).map(|local| local.index());
                let own = own.and_then(|index| self.setup.ranks.get(index));
                let place = match (self.phase, running) {
                    (Phase::Running, Some(&(rank, pid))) => {
                        Ok(RankPlace { rank, pid, setup: own.unwrap_or(&unbound) })
                    }
                    (Phase::Running, None) => Err(match self.is_waiting(rank) {
                        true => SessionError::NotStarted,
                        false => SessionError::RankEnded,
                    }),
                    _ => Err(SessionError::JobEnding),
                };
                self.sessions.start(id, kind, place, self.context.cgroup.as_mut());
            }
            other => self.sessions.on_message(id, other),
        }
    }

    fn is_waiting(&self, rank: Rank) -> bool {
        self.waiting.iter().any(|(_, spec)| spec.rank == rank)
    }
}
