//! The byte stream to an agent: an SSH channel, the pipes of a process on this machine, or a
//! connection that the agent has made because neither carries anything to it.

use crate::connect::callback::Called;
use bytes::{Bytes, BytesMut};
use nix::sys::signal::{Signal, killpg};
use nix::sys::socket::{Shutdown, shutdown};
use nix::unistd::Pid;
use rlaunch_bootstrap::env::is_host_variable;
use rlaunch_bootstrap::job::ExitStatus;
use rlaunch_bootstrap::security::callback::SharedStream;
use rlaunch_console::open_files;
use russh::client::Msg;
use russh::{Channel, ChannelMsg, ChannelReadHalf, ChannelWriteHalf};
use std::io;
use std::os::fd::AsRawFd;
use std::os::unix::process::ExitStatusExt;
use std::path::Path;
use std::process::Stdio;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::tcp::{OwnedReadHalf, OwnedWriteHalf};
use tokio::process::{Child, ChildStderr, ChildStdin, ChildStdout, Command};

/// How long a process may take to say its last words, and to be gone, once it answers no more.
const LAST_WORDS: Duration = Duration::from_secs(1);

/// What arrives from the other end.
#[derive(Debug)]
pub(crate) enum Incoming {
    Data(Bytes),
    /// Its standard error: what a shell or a failing agent says.
    Diagnostics(Bytes),
}

/// Both directions of a channel.
pub(crate) struct AgentChannel {
    pub(crate) reader: Reader,
    pub(crate) writer: Writer,
}

/// The incoming direction.
pub(crate) enum Reader {
    Ssh(ChannelReadHalf, Ending),
    Local(Box<LocalAgent>),
    Call(Box<CallReader>),
}

/// An agent that has called, and the command that started it, which still says how it fares.
pub(crate) struct CallReader {
    /// `None` once it has ended.
    tcp: Option<OwnedReadHalf>,
    conversation: SharedStream,
    /// Of a packet that is not whole yet, or that is not opened.
    received: BytesMut,
    /// What it has said and nobody has taken.
    heard: Vec<u8>,
    command: Reader,
    command_ended: bool,
}

/// A process on this machine: an agent, or what leads to one.
pub(crate) struct LocalAgent {
    child: Child,
    stdout: Option<ChildStdout>,
    stderr: Option<ChildStderr>,
    /// Of what leads to an agent elsewhere.
    ending: Option<Ending>,
}

/// The outgoing direction.
pub(crate) enum Writer {
    Ssh(ChannelWriteHalf<Msg>),
    Local(Option<ChildStdin>),
    Call(Box<CallWriter>),
}

/// The way to an agent that has called.
pub(crate) struct CallWriter {
    tcp: OwnedWriteHalf,
    conversation: SharedStream,
    /// Leads nowhere, and is held open as long as the agent runs.
    command: Writer,
}

/// How the command at the other end ended, once that is known. Clones share it.
#[derive(Clone, Debug, Default)]
pub(crate) struct Ending(Arc<Mutex<Option<ExitStatus>>>);

impl Ending {
    pub(crate) fn get(&self) -> Option<ExitStatus> {
        *self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn set(&self, status: ExitStatus) {
        *self.0.lock().unwrap_or_else(PoisonError::into_inner) = Some(status);
    }
}

impl AgentChannel {
    /// Over an SSH channel whose command was accepted.
    pub(crate) fn over_ssh(channel: Channel<Msg>, ending: Ending) -> AgentChannel {
        let (reader, writer) = channel.split();
        AgentChannel { reader: Reader::Ssh(reader, ending), writer: Writer::Ssh(writer) }
    }

    /// Starts the agent at `path` on this machine; a bare one has of this shell's environment only
    /// what another host would have by itself.
    pub(crate) fn local(path: &Path, bare: bool) -> io::Result<AgentChannel> {
        let mut command = Command::new(path);
        command.arg("agent");
        if bare {
            command
                .env_clear()
                .envs(std::env::vars_os().filter(|(name, _)| is_host_variable(name)));
        }
        AgentChannel::start(command, None)
    }

    /// Starts a command of this machine that leads to an agent. It ends, with its process group,
    /// when nobody reads it any more.
    pub(crate) fn over_child(command: Command, ending: Ending) -> io::Result<AgentChannel> {
        AgentChannel::start(command, Some(ending))
    }

    fn start(mut command: Command, ending: Option<Ending>) -> io::Result<AgentChannel> {
        open_files::give_back(command.as_std_mut());
        let mut child = command
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            // Ctrl-C on the terminal is the launcher's to interpret.
            .process_group(0)
            .spawn()?;
        let missing = || io::Error::other("no pipe to the agent");
        let stdin = child.stdin.take().ok_or_else(missing)?;
        let stdout = Some(child.stdout.take().ok_or_else(missing)?);
        let stderr = child.stderr.take();
        Ok(AgentChannel {
            reader: Reader::Local(Box::new(LocalAgent { child, stdout, stderr, ending })),
            writer: Writer::Local(Some(stdin)),
        })
    }

    /// The same agent by the connection that it has made.
    pub(crate) fn over_call(self, called: Called) -> AgentChannel {
        let Called { tcp, conversation, heard } = called;
        let (reading, writing) = tcp.into_split();
        let reader = CallReader {
            tcp: Some(reading),
            conversation: conversation.clone(),
            received: BytesMut::new(),
            heard,
            command: self.reader,
            command_ended: false,
        };
        let writer = CallWriter { tcp: writing, conversation, command: self.writer };
        AgentChannel {
            reader: Reader::Call(Box::new(reader)),
            writer: Writer::Call(Box::new(writer)),
        }
    }

    pub(crate) async fn next(&mut self) -> Option<Incoming> {
        self.reader.next().await
    }
}

impl Reader {
    /// The next bytes; `None` at the end of the channel. Safe to cancel.
    pub(crate) async fn next(&mut self) -> Option<Incoming> {
        match self {
            Reader::Ssh(channel, ending) => next_of_ssh(channel, ending).await,
            Reader::Local(agent) => agent.next().await,
            // In a box, as it reads of another reader, too.
            Reader::Call(call) => Box::pin(call.next()).await,
        }
    }

    /// Waits until a local agent is gone; a remote one went with its channel.
    pub(crate) async fn reap(self) {
        match self {
            Reader::Ssh(..) => {}
            Reader::Local(mut agent) => match agent.ending {
                None => drop(agent.child.wait().await),
                // One that lingers is ended when it is dropped.
                Some(_) => drop(tokio::time::timeout(LAST_WORDS, agent.child.wait()).await),
            },
            Reader::Call(call) => Box::pin(call.command.reap()).await,
        }
    }
}

impl CallReader {
    /// As [`Reader::next`]: it has ended when the connection has, and the command that started the
    /// agent, which ends when the agent is gone.
    async fn next(&mut self) -> Option<Incoming> {
        loop {
            if !self.heard.is_empty() {
                return Some(Incoming::Data(std::mem::take(&mut self.heard).into()));
            }
            tokio::select! {
                read = read_packets(self.tcp.as_mut(), &mut self.received), if self.tcp.is_some() => {
                    let received = self.received.split();
                    let opened = self.conversation.open(&received, &mut self.heard);
                    if read == 0 || opened.is_err() {
                        self.hang_up();
                    }
                }
                said = self.command.next(), if !self.command_ended => match said {
                    Some(Incoming::Diagnostics(words)) => {
                        return Some(Incoming::Diagnostics(words));
                    }
                    // What ranks print does not come this way.
                    Some(Incoming::Data(_)) => {}
                    None => self.command_ended = true,
                },
                else => return None,
            }
        }
    }

    /// The agent waits for this before it leaves: all that it said has been heard.
    fn hang_up(&mut self) {
        if let Some(tcp) = self.tcp.take() {
            let _ = shutdown(tcp.as_ref().as_raw_fd(), Shutdown::Both);
        }
    }
}

/// How many bytes came; 0 at the end. Safe to cancel.
async fn read_packets(tcp: Option<&mut OwnedReadHalf>, buffer: &mut BytesMut) -> usize {
    buffer.reserve(64 << 10);
    match tcp {
        Some(tcp) => tcp.read_buf(buffer).await.unwrap_or(0),
        None => 0,
    }
}

async fn next_of_ssh(channel: &mut ChannelReadHalf, ending: &Ending) -> Option<Incoming> {
    loop {
        match channel.wait().await? {
            ChannelMsg::Data { data } => return Some(Incoming::Data(data)),
            ChannelMsg::ExtendedData { data, .. } => return Some(Incoming::Diagnostics(data)),
            ChannelMsg::ExitStatus { exit_status } => {
                ending.set(ExitStatus::Code(exit_status.cast_signed()));
            }
            ChannelMsg::Close => return None,
            _ => {}
        }
    }
}

impl LocalAgent {
    async fn next(&mut self) -> Option<Incoming> {
        while let Some(stdout) = &mut self.stdout {
            let mut data = BytesMut::with_capacity(64 << 10);
            let mut words = BytesMut::with_capacity(4 << 10);
            tokio::select! {
                read = stdout.read_buf(&mut data) => {
                    if read.unwrap_or(0) > 0 {
                        return Some(Incoming::Data(data.freeze()));
                    }
                    self.stdout = None;
                }
                read = read_some(&mut self.stderr, &mut words) => {
                    if read > 0 {
                        return Some(Incoming::Diagnostics(words.freeze()));
                    }
                    self.stderr = None;
                }
            }
        }
        let ending = self.ending.clone()?;
        // Why it ended may be said a moment after the end of what it answers.
        while self.stderr.is_some() {
            let mut words = BytesMut::with_capacity(4 << 10);
            let read = read_some(&mut self.stderr, &mut words);
            if tokio::time::timeout(LAST_WORDS, read).await.unwrap_or(0) > 0 {
                return Some(Incoming::Diagnostics(words.freeze()));
            }
            self.stderr = None;
        }
        if let Ok(Ok(status)) = tokio::time::timeout(LAST_WORDS, self.child.wait()).await {
            let by_signal = status.signal().map(ExitStatus::Signal);
            ending.set(by_signal.unwrap_or(ExitStatus::Code(status.code().unwrap_or(-1))));
        }
        None
    }
}

impl Drop for LocalAgent {
    fn drop(&mut self) {
        // Known until it was waited for, so the number is still its own.
        let group = self.child.id().filter(|_| self.ending.is_some());
        if let Some(group) = group.and_then(|id| i32::try_from(id).ok()) {
            let _ = killpg(Pid::from_raw(group), Signal::SIGTERM);
        }
    }
}

/// Never resolves once the stream is gone.
async fn read_some(stderr: &mut Option<ChildStderr>, buffer: &mut BytesMut) -> usize {
    match stderr {
        Some(stderr) => stderr.read_buf(buffer).await.unwrap_or(0),
        None => std::future::pending().await,
    }
}

impl Writer {
    pub(crate) async fn send(&mut self, bytes: Bytes) -> io::Result<()> {
        match self {
            Writer::Ssh(channel) => channel.data_bytes(bytes).await.map_err(io::Error::other),
            Writer::Local(Some(stdin)) => stdin.write_all(&bytes).await,
            Writer::Local(None) => Err(io::ErrorKind::BrokenPipe.into()),
            Writer::Call(call) => {
                let sealed = call.conversation.seal(&bytes).map_err(io::Error::other)?;
                call.tcp.write_all(&sealed).await
            }
        }
    }

    pub(crate) async fn end(&mut self) -> io::Result<()> {
        match self {
            Writer::Ssh(channel) => channel.eof().await.map_err(io::Error::other),
            Writer::Local(stdin) => {
                *stdin = None;
                Ok(())
            }
            Writer::Call(call) => {
                let ended = call.tcp.shutdown().await;
                let _ = Box::pin(call.command.end()).await;
                ended
            }
        }
    }
}
