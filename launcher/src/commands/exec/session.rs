//! The client's end of a session: one loop that relays input, output and sizes, one message of each at a time.

use super::stdio::{LocalTerminal, PartReader, PartWriter};
use nix::sys::signal::Signal;
use rlaunch_bootstrap::job::ExitStatus;
use rlaunch_bootstrap::protocol::session::{
    FromSession, SessionError, SessionKind, SessionStart, ToSession,
};
use rlaunch_console::signals::EndSignals;
use rlaunch_console::{messages, terminal};
use rlaunch_engine::run::live::client::{LiveError, RunningJob};
use rlaunch_engine::run::live::messages::{Reply, Request};
use std::io;
use tokio::signal::unix::{Signal as SignalStream, SignalKind, signal};

/// End of a session.
#[derive(Debug)]
pub(super) enum SessionOutcome {
    Ended(ExitStatus),
    /// The debugger has let go of this client, and the rank waits for the next one.
    Detached,
    /// This process was told to end.
    Interrupted(Signal),
    /// The reader of this process's output has gone.
    ReaderGone,
}

/// Reason why a session has not begun, or has not come to its end.
#[derive(Debug)]
pub(super) enum SessionFailure {
    Live(LiveError),
    /// The launcher has refused to begin it.
    Refused(String),
    /// The agent has refused to begin it.
    NotBegun(SessionError),
    /// The job has ended after it began.
    JobEnded,
    /// The agent has ended it after it began.
    Broken(SessionError),
    /// The node was lost after it began.
    NodeLost(String),
    /// An operation on this process's own streams has failed.
    Io(&'static str, io::Error),
}

/// Runs a session until its end. The local terminal is restored before this returns.
pub(super) async fn run(
    job: &mut RunningJob,
    start: SessionStart,
    terminal: LocalTerminal,
) -> Result<SessionOutcome, SessionFailure> {
    let has_terminal = matches!(start.kind, SessionKind::Command { terminal: Some(_), .. });
    let mut signals =
        ClientSignals::install().map_err(|e| SessionFailure::Io("handle signals", e))?;
    let client = Client {
        stdin: PartReader::start().map_err(|error| SessionFailure::Io("read stdin", error))?,
        stdout: PartWriter::start().map_err(|error| SessionFailure::Io("write", error))?,
        terminal,
        has_terminal,
        input: StdinState::Reading,
        is_writing: false,
        is_resizing: false,
        size_changed: false,
    };
    start_session(job, start).await?;
    client.relay(job, &mut signals).await
}

/// Begins a session, and waits until the agent has begun it too.
async fn start_session(job: &mut RunningJob, start: SessionStart) -> Result<(), SessionFailure> {
    let start = Request::Session(ToSession::Start(start));
    job.send(&start).await.map_err(SessionFailure::Live)?;
    match job.receive().await.map_err(SessionFailure::Live)? {
        Reply::Session(FromSession::Started { .. }) => Ok(()),
        Reply::Session(FromSession::Failed(error)) => Err(SessionFailure::NotBegun(error)),
        Reply::Refused(why) => Err(SessionFailure::Refused(why)),
        _ => Err(SessionFailure::NotBegun(SessionError::Protocol)),
    }
}

async fn tell(job: &mut RunningJob, what: ToSession) -> Result<(), SessionFailure> {
    let sent = job.send(&Request::Session(what)).await;
    sent.map_err(after_start)
}

/// Tells a job that has ended from other errors, once the session has begun.
fn after_start(error: LiveError) -> SessionFailure {
    match error {
        LiveError::Ended(_) => SessionFailure::JobEnded,
        error => SessionFailure::Live(error),
    }
}

/// State of the input.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum StdinState {
    /// The reader was asked for the next part.
    Reading,
    /// A part is on its way to the command.
    Sent,
    /// The end of the input was sent.
    Closed,
}

struct Client {
    stdin: PartReader,
    stdout: PartWriter,
    terminal: LocalTerminal,
    /// Whether the command has a terminal.
    has_terminal: bool,
    input: StdinState,
    is_writing: bool,
    is_resizing: bool,
    /// Whether the size has changed since the last one was sent.
    size_changed: bool,
}

impl Client {
    async fn relay(
        mut self,
        job: &mut RunningJob,
        signals: &mut ClientSignals,
    ) -> Result<SessionOutcome, SessionFailure> {
        self.terminal.make_raw();
        self.stdin.ask();
        loop {
            tokio::select! {
                reply = job.next::<Reply>() => {
                    if let Some(outcome) = self.on_reply(reply.map_err(after_start)?)? {
                        self.finish_writing().await;
                        return Ok(outcome);
                    }
                }
                part = self.stdin.next(), if self.input == StdinState::Reading => {
                    // A terminal that is gone reads as an error, which is its end.
                    let part = part.unwrap_or_default();
                    self.input = if part.is_empty() { StdinState::Closed } else { StdinState::Sent };
                    tell(job, ToSession::Stdin(part)).await?;
                }
                written = self.stdout.written(), if self.is_writing => {
                    self.is_writing = false;
                    match written {
                        Ok(()) => tell(job, ToSession::OutputTaken).await?,
                        Err(error) if error.kind() == io::ErrorKind::BrokenPipe => {
                            return Ok(SessionOutcome::ReaderGone);
                        }
                        Err(error) => return Err(SessionFailure::Io("write", error)),
                    }
                }
                event = signals.next() => match event {
                    SignalEvent::End(signal) => return Ok(SessionOutcome::Interrupted(signal)),
                    SignalEvent::Resized => self.size_changed = true,
                    // A shell that continues this process has set the terminal's modes.
                    SignalEvent::Continued => {
                        self.terminal.make_raw();
                        self.size_changed = true;
                    }
                },
            }
            if self.has_terminal && self.size_changed && !self.is_resizing {
                self.size_changed = false;
                if let Some(size) = terminal::size() {
                    self.is_resizing = true;
                    tell(job, ToSession::Resize(size)).await?;
                }
            }
        }
    }

    /// Handles a message of the launcher. Returns the outcome if the session is over.
    fn on_reply(&mut self, reply: Reply) -> Result<Option<SessionOutcome>, SessionFailure> {
        match reply {
            Reply::Session(FromSession::Output { stream, data }) => {
                self.is_writing = true;
                self.stdout.write(stream, data);
            }
            Reply::Session(FromSession::StdinTaken) if self.input == StdinState::Sent => {
                self.input = StdinState::Reading;
                self.stdin.ask();
            }
            Reply::Session(FromSession::Resized) => self.is_resizing = false,
            Reply::Session(FromSession::Ended(status)) => {
                return Ok(Some(SessionOutcome::Ended(status)));
            }
            Reply::Session(FromSession::Detached) => return Ok(Some(SessionOutcome::Detached)),
            Reply::Session(FromSession::Failed(error)) => {
                return Err(SessionFailure::Broken(error));
            }
            Reply::Suspended => self.say("the job is suspended, and this session with it"),
            Reply::Resumed => self.say("the job goes on"),
            Reply::Refused(why) => return Err(SessionFailure::NodeLost(why)),
            // Answers to other questions, which were not asked.
            _ => {}
        }
        Ok(None)
    }

    /// Prints a message in the terminal's own modes.
    fn say(&self, message: &str) {
        self.terminal.restore();
        messages::info(message);
        self.terminal.make_raw();
    }

    /// Waits until the last output is written. Whatever happens to it, the session is over.
    async fn finish_writing(&mut self) {
        if self.is_writing {
            let _ = self.stdout.written().await;
        }
    }
}

/// Signals that this process handles during a session.
struct ClientSignals {
    ends: EndSignals,
    resized: SignalStream,
    continued: SignalStream,
}

#[derive(Clone, Copy, Debug)]
enum SignalEvent {
    End(Signal),
    /// The size of the terminal has changed.
    Resized,
    /// This process was stopped and goes on.
    Continued,
}

impl ClientSignals {
    fn install() -> io::Result<ClientSignals> {
        Ok(ClientSignals {
            ends: EndSignals::install()?,
            resized: signal(SignalKind::window_change())?,
            continued: signal(SignalKind::from_raw(Signal::SIGCONT as i32))?,
        })
    }

    /// Waits for the next signal. Cancel-safe.
    async fn next(&mut self) -> SignalEvent {
        tokio::select! {
            signal = self.ends.next() => SignalEvent::End(signal),
            _ = self.resized.recv() => SignalEvent::Resized,
            _ = self.continued.recv() => SignalEvent::Continued,
        }
    }
}
