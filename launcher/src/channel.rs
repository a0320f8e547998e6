//! The byte stream to an agent: an SSH channel, the pipes of a process on this machine, or a
//! connection that the agent has made because neither carries anything to it.

use crate::callback::Called;
use bytes::{Bytes, BytesMut};
use nix::sys::socket::{Shutdown, shutdown};
use rlaunch_bootstrap::callback::Conversation;
use russh::client::Msg;
use russh::{Channel, ChannelMsg, ChannelReadHalf, ChannelWriteHalf};
use std::io;
use std::os::fd::AsRawFd;
use std::path::Path;
use std::process::Stdio;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::tcp::{OwnedReadHalf, OwnedWriteHalf};
use tokio::process::{Child, ChildStderr, ChildStdin, ChildStdout, Command};

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
    Ssh(ChannelReadHalf),
    Local(Box<LocalAgent>),
    Call(Box<CallReader>),
}

/// An agent that has called, and the command that started it, which still says how it fares.
pub(crate) struct CallReader {
    /// `None` once it has ended.
    tcp: Option<OwnedReadHalf>,
    conversation: Conversation,
    /// Of a packet that is not whole yet, or that is not opened.
    received: BytesMut,
    /// What it has said and nobody has taken.
    heard: Vec<u8>,
    command: Reader,
    command_ended: bool,
}

/// A process on this machine.
pub(crate) struct LocalAgent {
    child: Child,
    stdout: ChildStdout,
    stderr: Option<ChildStderr>,
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
    conversation: Conversation,
    /// Leads nowhere, and is held open as long as the agent runs.
    command: Writer,
}

impl AgentChannel {
    pub(crate) fn over_ssh(channel: Channel<Msg>) -> AgentChannel {
        let (reader, writer) = channel.split();
        AgentChannel { reader: Reader::Ssh(reader), writer: Writer::Ssh(writer) }
    }

    /// Starts the agent at `path` on this machine.
    pub(crate) fn local(path: &Path) -> io::Result<AgentChannel> {
        let mut child = Command::new(path)
            .arg("agent")
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            // Ctrl-C on the terminal is the launcher's to interpret.
            .process_group(0)
            .spawn()?;
        let missing = || io::Error::other("no pipe to the agent");
        let stdin = child.stdin.take().ok_or_else(missing)?;
        let stdout = child.stdout.take().ok_or_else(missing)?;
        let stderr = child.stderr.take();
        Ok(AgentChannel {
            reader: Reader::Local(Box::new(LocalAgent { child, stdout, stderr })),
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
            Reader::Ssh(channel) => next_of_ssh(channel).await,
            Reader::Local(agent) => next_of_child(&mut agent.stdout, &mut agent.stderr).await,
            // In a box, as it reads of another reader, too.
            Reader::Call(call) => Box::pin(call.next()).await,
        }
    }

    /// Waits until a local agent is gone; a remote one went with its channel.
    pub(crate) async fn reap(self) {
        match self {
            Reader::Ssh(_) => {}
            Reader::Local(mut agent) => drop(agent.child.wait().await),
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

async fn next_of_ssh(channel: &mut ChannelReadHalf) -> Option<Incoming> {
    loop {
        match channel.wait().await? {
            ChannelMsg::Data { data } => return Some(Incoming::Data(data)),
            ChannelMsg::ExtendedData { data, .. } => return Some(Incoming::Diagnostics(data)),
            ChannelMsg::Close => return None,
            _ => {}
        }
    }
}

async fn next_of_child(
    stdout: &mut ChildStdout,
    stderr: &mut Option<ChildStderr>,
) -> Option<Incoming> {
    loop {
        let mut data = BytesMut::with_capacity(64 << 10);
        let mut words = BytesMut::with_capacity(4 << 10);
        tokio::select! {
            read = stdout.read_buf(&mut data) => {
                return (read.unwrap_or(0) > 0).then(|| Incoming::Data(data.freeze()));
            }
            read = read_some(stderr, &mut words) => {
                if read > 0 {
                    return Some(Incoming::Diagnostics(words.freeze()));
                }
                *stderr = None;
            }
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
