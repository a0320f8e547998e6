//! Sessions beside the ranks of this node: commands in a rank's place, and connections to the
//! debugger at which a rank waits ([`rlaunch_bootstrap::protocol::session`]).
//!
//! | file | contents |
//! |---|---|
//! | `mod.rs` | [`Sessions`]: all sessions of the node, from their start to their end; input and output, one message of each at a time |
//! | `command.rs` | a rank's place (its process, environment and working directory), start of a command there, its terminal |
//! | `debugger.rs` | connection to a rank's debugger |

mod command;
mod debugger;

use crate::cleanup::cgroup::Cgroup;
use crate::cleanup::processes;
use crate::network::frames::FrameSender;
use crate::ranks::holder::HOLDER;
use crate::ranks::stream_ends::{InputEnd, Output, OutputEnd, read_unless_abandoned};
use crate::ranks::{Phase, Ranks, pseudoterminal};
use command::RankPlace;
use debugger::Debugger;
use nix::sys::signal::Signal;
use nix::unistd::Pid;
use rlaunch_bootstrap::env::RLAUNCH_EXEC;
use rlaunch_bootstrap::id::Rank;
use rlaunch_bootstrap::job::{ExitStatus, RankSetup};
use rlaunch_bootstrap::protocol::control::{FromAgent, Stream};
use rlaunch_bootstrap::protocol::session::{
    FromSession, MAX_SESSION_DATA, MAX_SESSIONS, SessionError, SessionKind, SessionStart, Terminal,
    TerminalSize, ToSession,
};
use std::collections::{BTreeMap, BTreeSet};
use std::convert::Infallible;
use std::ffi::OsString;
use std::os::fd::OwnedFd;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::{Duration, Instant};
use tokio::io::{AsyncWrite, AsyncWriteExt};
use tokio::sync::mpsc::error::TrySendError;
use tokio::sync::{Semaphore, mpsc, watch};
use tokio::task::{AbortHandle, JoinSet};

/// Time that the processes of a session have to end after they were told to. Processes that a command has left in the
/// background are told so after the same time.
const HANG_UP_GRACE: Duration = Duration::from_secs(2);

/// Signals that tell the processes of a session that their client or job has gone. A shell ignores
/// SIGTERM, and a program under nohup SIGHUP.
const HANG_UP: &[Signal] = &[Signal::SIGHUP, Signal::SIGTERM, Signal::SIGCONT];

/// Sessions of this node.
pub(super) struct Sessions {
    to_launcher: FrameSender,
    /// Directory in which ranks that wait in the debugger have their sockets; `None` if the job has
    /// no directory.
    workspace: Option<PathBuf>,
    open: BTreeMap<u32, Session>,
    tasks: JoinSet<()>,
    /// Numbers of the sessions that have ever started a command.
    commands: BTreeSet<u32>,
    /// Commands that are over, of which processes may be left.
    ending: Vec<Ending>,
    job_ends: bool,
}

/// Signals for what is left of a command that is over.
struct Ending {
    id: u32,
    at: Instant,
    signals: &'static [Signal],
}

/// Session that has begun.
struct Session {
    handle: SessionHandle,
    /// Process that ends as the command does, until it was reaped; `None` for a debugger.
    front: Option<Pid>,
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
    /// Last message of the session, once the command has ended.
    last: watch::Sender<Option<FromSession>>,
}

impl Sessions {
    pub(super) fn new(to_launcher: &FrameSender, workspace: Option<PathBuf>) -> Sessions {
        Sessions {
            to_launcher: to_launcher.clone(),
            workspace,
            open: BTreeMap::new(),
            tasks: JoinSet::new(),
            commands: BTreeSet::new(),
            ending: Vec::new(),
            job_ends: false,
        }
    }

    /// Sends a message of a session to the launcher.
    fn report(&self, id: u32, what: FromSession) {
        self.to_launcher.send(&FromAgent::Session { id, what });
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
                    self.start_command(id, &place, argv, terminal, cgroup)
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
        argv: Vec<OsString>,
        terminal: Option<Terminal>,
        cgroup: Option<&mut Cgroup>,
    ) -> Result<(), SessionError> {
        let started = command::start(place, &mark(id), argv, terminal, cgroup)?;
        self.commands.insert(id);
        self.report(id, FromSession::Started { pid: started.pid.as_raw().cast_unsigned() });
        let (relay, handle) = Relay::new(id, &self.to_launcher);
        let task = self.tasks.spawn(relay.of_command(started.stdin, started.outputs));
        let (front, terminal) = (Some(started.pid), started.terminal);
        self.open.insert(id, Session { handle, front, terminal, debugger: None, task });
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
        let (relay, handle) = Relay::new(id, &self.to_launcher);
        let path = Some(debugger.path.clone());
        let task = self.tasks.spawn(relay.of_debugger(debugger));
        self.open.insert(id, Session { handle, front: None, terminal: None, debugger: path, task });
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
                // Only one message may be on its way.
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
        drop(session);
        if self.commands.contains(&id) {
            let now = Instant::now();
            self.ending.retain(|ending| ending.id != id);
            self.ending.push(Ending { id, at: now, signals: HANG_UP });
            self.on_deadline(now);
        }
    }

    /// Takes note of the end of a child process.
    pub(super) fn on_child_ended(&mut self, pid: Pid, status: ExitStatus) {
        let mut sessions = self.open.iter_mut();
        if let Some((id, session)) = sessions.find(|(_, session)| session.front == Some(pid)) {
            let at = Instant::now() + HANG_UP_GRACE;
            self.ending.push(Ending { id: *id, at, signals: HANG_UP });
            session.front = None;
            session.terminal = None;
            let last = if self.job_ends {
                FromSession::Failed(SessionError::JobEnding)
            } else {
                FromSession::Ended(status)
            };
            session.handle.last.send_replace(Some(last));
        }
    }

    /// Tells the processes of all sessions to end, because the job does.
    pub(super) fn hang_up(&mut self) {
        self.job_ends = true;
        for pid in self.members(|_| true) {
            processes::signal_one(pid, HANG_UP);
        }
    }

    /// Tells whether a process was started by a session.
    pub(super) fn has_started(&self, pid: Pid) -> bool {
        !self.commands.is_empty() && self.session_of(pid).is_some()
    }

    /// Returns the number of the session that has started a process. Its own environment tells that, or, if it has
    /// cleared it, that of a process above it: in any case of the holder, which outlives it.
    fn session_of(&self, pid: Pid) -> Option<u32> {
        let above = std::iter::successors(Some(pid), |pid| processes::parent(*pid));
        let of_agent = above.take_while(|pid| *pid != Pid::this() && pid.as_raw() > 1);
        let mut marks = of_agent.filter_map(|pid| {
            processes::find_variable(&processes::read_environment(pid).ok()?, RLAUNCH_EXEC)
        });
        marks.find_map(|found| self.commands.iter().copied().find(|id| mark(*id) == found))
    }

    /// Lists the living processes of sessions.
    fn members(&self, is_wanted: impl Fn(u32) -> bool) -> Vec<Pid> {
        if self.commands.is_empty() {
            return Vec::new();
        }
        let mut found = processes::descendants(&[]);
        found.retain(|pid| {
            !processes::is_named(*pid, HOLDER) && self.session_of(*pid).is_some_and(&is_wanted)
        });
        found
    }

    /// Returns the time at which [`Sessions::on_deadline`] is due.
    pub(super) fn deadline(&self) -> Option<Instant> {
        self.ending.iter().map(|ending| ending.at).min()
    }

    /// Ends what is left of commands that are over: first tells it to end, then kills it.
    pub(super) fn on_deadline(&mut self, now: Instant) {
        let due: Vec<Ending> = self.ending.extract_if(.., |ending| ending.at <= now).collect();
        for mut ending in due {
            let left = self.members(|id| id == ending.id);
            if left.is_empty() {
                continue;
            }
            let session = self.open.get(&ending.id);
            // Output of processes in the background still goes to the client.
            if session.is_none_or(|session| session.task.is_finished()) {
                left.iter().for_each(|pid| processes::signal_one(*pid, ending.signals));
                ending.signals = &[Signal::SIGKILL];
            }
            ending.at = now + HANG_UP_GRACE;
            self.ending.push(ending);
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
            let _ = pseudoterminal::set_size(terminal, size);
        }
    }
}

/// Returns the mark of a session's processes, which those of another agent on this host do not have.
fn mark(id: u32) -> String {
    format!("{}-{id}", Pid::this())
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
                    (Phase::Running, None) => Err(if self.is_waiting(rank) {
                        SessionError::NotStarted
                    } else {
                        SessionError::RankEnded
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

/// Task's ends of the channels of a session.
struct Relay {
    sender: SessionSender,
    input: mpsc::Receiver<Vec<u8>>,
    turn: Arc<Semaphore>,
    last: watch::Receiver<Option<FromSession>>,
}

/// Handle for sending messages of one session.
#[derive(Clone)]
struct SessionSender {
    id: u32,
    to_launcher: FrameSender,
}

impl SessionSender {
    fn send(&self, what: FromSession) {
        self.to_launcher.send(&FromAgent::Session { id: self.id, what });
    }
}

impl Relay {
    fn new(id: u32, to_launcher: &FrameSender) -> (Relay, SessionHandle) {
        let (sender, input) = mpsc::channel(1);
        let turn = Arc::new(Semaphore::new(1));
        let (end, last) = watch::channel(None);
        let handle = SessionHandle { input: sender, turn: turn.clone(), last: end };
        let sender = SessionSender { id, to_launcher: to_launcher.clone() };
        (Relay { sender, input, turn, last }, handle)
    }

    /// Relays for a command until it has ended and its output is sent.
    async fn of_command(self, stdin: InputEnd, outputs: Vec<(Stream, OutputEnd)>) {
        let Relay { sender, input, turn, mut last } = self;
        let mut pumps = JoinSet::new();
        for (stream, pipe) in outputs {
            pumps.spawn(pump(stream, pipe, sender.clone(), turn.clone(), last.clone()));
        }
        let feeding = feed(stdin, input, &sender);
        let finished = async {
            while pumps.join_next().await.is_some() {}
            // An error means that the agent is at its end.
            last.wait_for(Option::is_some).await.ok().and_then(|last| last.clone())
        };
        let last = tokio::select! {
            last = finished => last,
            never = feeding => match never {},
        };
        if let Some(last) = last {
            sender.send(last);
        }
    }

    /// Relays for a debugger until it closes the connection.
    async fn of_debugger(self, debugger: Debugger) {
        let Relay { sender, input, turn, last } = self;
        let Debugger { stream, path, pid } = debugger;
        let (reader, writer) = stream.into_split();
        let pump = pump(Stream::Stdout, reader, sender.clone(), turn, last);
        tokio::select! {
            () = pump => {}
            never = feed(writer, input, &sender) => match never {},
        }
        sender.send(Debugger::outcome(&path, pid));
    }
}

/// Writes input, and never returns: the session's end drops it. Input that cannot be written is dropped, as by a command
/// that does not read it.
async fn feed(
    writer: impl AsyncWrite + Unpin,
    mut input: mpsc::Receiver<Vec<u8>>,
    sender: &SessionSender,
) -> Infallible {
    let mut open = Some(writer);
    while let Some(data) = input.recv().await {
        if let Some(mut writer) = open.take()
            && !data.is_empty()
            && writer.write_all(&data).await.is_ok()
        {
            open = Some(writer);
        }
        sender.send(FromSession::StdinTaken);
    }
    std::future::pending().await
}

/// Sends what can be read until the end of the stream.
async fn pump(
    stream: Stream,
    mut reader: impl Output,
    sender: SessionSender,
    turn: Arc<Semaphore>,
    mut last: watch::Receiver<Option<FromSession>>,
) {
    let mut buffer = Vec::with_capacity(MAX_SESSION_DATA);
    loop {
        let abandoned = async {
            // The sender exists as long as the session does.
            let _ = last.wait_for(Option::is_some).await;
        };
        // A process in the background may keep the stream of a command open that has ended.
        let read = read_unless_abandoned(&mut reader, &mut buffer, abandoned).await;
        // Reading a terminal fails once no process has it open.
        if !matches!(read, Ok(1..)) {
            return;
        }
        let Ok(permit) = turn.acquire().await else { return };
        // It comes back when the client has taken the output.
        permit.forget();
        let data = std::mem::replace(&mut buffer, Vec::with_capacity(MAX_SESSION_DATA));
        sender.send(FromSession::Output { stream, data });
    }
}
