//! The byte stream to an agent: an SSH channel, or the pipes of a process on this machine.

use bytes::{Bytes, BytesMut};
use russh::client::Msg;
use russh::{Channel, ChannelMsg, ChannelReadHalf, ChannelWriteHalf};
use std::io;
use std::path::Path;
use std::process::Stdio;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
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
        }
    }

    /// Waits until a local agent is gone; a remote one went with its channel.
    pub(crate) async fn reap(self) {
        if let Reader::Local(mut agent) = self {
            let _ = agent.child.wait().await;
        }
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
        }
    }

    pub(crate) async fn end(&mut self) -> io::Result<()> {
        match self {
            Writer::Ssh(channel) => channel.eof().await.map_err(io::Error::other),
            Writer::Local(stdin) => {
                *stdin = None;
                Ok(())
            }
        }
    }
}
