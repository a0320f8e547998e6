//! Byte stream to an agent: an SSH channel, the pipes of a process on this machine, or a TCP connection
//! that the agent opened because nothing arrives on its stdin, as in a step of Slurm.

use crate::connect::connector::StepReader;
use bytes::{Bytes, BytesMut};
use nix::sys::signal::{Signal, killpg};
use nix::sys::socket::{Shutdown, shutdown};
use nix::unistd::Pid;
use rlaunch_bootstrap::env::is_host_variable;
use rlaunch_bootstrap::job::ExitStatus;
use rlaunch_bootstrap::security::callback::SharedStream;
use rlaunch_console::limits;
use russh::client::Msg;
use russh::{Channel, ChannelMsg, ChannelReadHalf, ChannelWriteHalf, Sig};
use std::io;
use std::os::fd::AsRawFd;
use std::os::unix::process::ExitStatusExt;
use std::path::Path;
use std::process::Stdio;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio::net::tcp::{OwnedReadHalf, OwnedWriteHalf};
use tokio::process::{Child, ChildStderr, ChildStdin, ChildStdout, Command};

/// Time limit for the rest of a process's stderr, and separately for the process's exit, after the process
/// has closed its stdout; and for the end of a command that has nothing more to do.
const EXIT_TIMEOUT: Duration = Duration::from_secs(1);
/// Time limit for what an agent on this machine has said before it closed its stdout: its guardian may keep its stderr open.
const LAST_WORDS: Duration = Duration::from_millis(20);
/// Time limit for the end of a command that was abandoned, after each thing that makes it end.
const ABANDON_TIMEOUT: Duration = Duration::from_millis(500);

/// Bytes from the remote command.
#[derive(Debug)]
pub enum Incoming {
    Data(Bytes),
    /// Standard error: messages of a shell, or of an agent that fails.
    Diagnostics(Bytes),
}

/// Both directions of the byte stream to an agent.
pub struct AgentChannel {
    pub reader: AgentReader,
    pub writer: AgentWriter,
}

/// Receiving half of an [`AgentChannel`].
pub enum AgentReader {
    Ssh(ChannelReadHalf, CommandStatus),
    Local(Box<LocalAgent>),
    Step(StepReader),
    Callback(Box<CallbackReader>),
    #[cfg(test)]
    Stream(tokio::io::ReadHalf<tokio::io::DuplexStream>),
}

/// Reader of a callback connection. It also reads from the command that started the agent, for the
/// command's stderr and its end.
pub struct CallbackReader {
    /// Receiving half of the TCP connection; `None` once the connection has ended.
    tcp: Option<OwnedReadHalf>,
    secure_stream: SharedStream,
    /// Received bytes that are not decrypted yet.
    received: BytesMut,
    /// Decrypted bytes that were not returned yet.
    decrypted: Vec<u8>,
    command: AgentReader,
    command_ended: bool,
}

/// Authenticated TCP connection from an agent.
#[derive(Debug)]
pub struct AgentCallback {
    pub tcp: TcpStream,
    pub(crate) secure_stream: SharedStream,
    /// Decrypted bytes that arrived during authentication.
    pub decrypted: Vec<u8>,
}

/// Process on this machine: an agent, or an `--rsh` command that starts an agent on a host.
pub struct LocalAgent {
    child: Child,
    stdout: Option<ChildStdout>,
    stderr: Option<ChildStderr>,
    /// Receives the exit status of an `--rsh` command; `None` for an agent, because its exit status is not
    /// needed.
    exit_status: Option<CommandStatus>,
}

/// Sending half of an [`AgentChannel`].
pub enum AgentWriter {
    Ssh(ChannelWriteHalf<Msg>),
    Local(Option<ChildStdin>),
    /// A step of a batch system passes its tasks no stdin.
    Step,
    Callback(Box<CallbackWriter>),
    #[cfg(test)]
    Stream(tokio::io::WriteHalf<tokio::io::DuplexStream>),
}

/// Writer of a callback connection.
pub struct CallbackWriter {
    tcp: OwnedWriteHalf,
    secure_stream: SharedStream,
    /// Stdin of the command that started the agent. It stays open although nothing is read from it, because
    /// closing it would end the agent.
    command: AgentWriter,
}

/// Exit status of the remote command, once it is known; clones share it.
#[derive(Clone, Debug, Default)]
pub struct CommandStatus(Arc<Mutex<Option<ExitStatus>>>);

impl CommandStatus {
    pub fn get(&self) -> Option<ExitStatus> {
        *self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(crate) fn set(&self, status: ExitStatus) {
        *self.0.lock().unwrap_or_else(PoisonError::into_inner) = Some(status);
    }
}

impl AgentChannel {
    /// Wraps an SSH channel on which the server has accepted a command. `exit_status` receives the
    /// command's exit status.
    pub(crate) fn over_ssh(channel: Channel<Msg>, exit_status: CommandStatus) -> AgentChannel {
        let (reader, writer) = channel.split();
        AgentChannel {
            reader: AgentReader::Ssh(reader, exit_status),
            writer: AgentWriter::Ssh(writer),
        }
    }

    /// Starts the agent at `path` on this machine. If `bare` is true, the agent inherits only environment
    /// variables that every host sets by itself, such as PATH.
    pub fn local(path: &Path, bare: bool) -> io::Result<AgentChannel> {
        let mut command = Command::new(path);
        command.arg("agent");
        if bare {
            command
                .env_clear()
                .envs(std::env::vars_os().filter(|(name, _)| is_host_variable(name)));
        }
        AgentChannel::over_child(command, None)
    }

    /// Starts a command: an agent, or with `exit_status`, which receives its exit status, an `--rsh` command. Dropping the
    /// reader of the latter sends SIGTERM to its process group.
    pub(crate) fn over_child(
        mut command: Command,
        exit_status: Option<CommandStatus>,
    ) -> io::Result<AgentChannel> {
        limits::restore_open_files(command.as_std_mut());
        let mut child = command
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            // A separate process group, so that Ctrl-C on the terminal reaches only the launcher.
            .process_group(0)
            .spawn()?;
        let missing = || io::Error::other("no pipe to the agent");
        let stdin = child.stdin.take().ok_or_else(missing)?;
        let stdout = Some(child.stdout.take().ok_or_else(missing)?);
        let stderr = child.stderr.take();
        Ok(AgentChannel {
            reader: AgentReader::Local(Box::new(LocalAgent { child, stdout, stderr, exit_status })),
            writer: AgentWriter::Local(Some(stdin)),
        })
    }

    /// Switches to the TCP connection that the agent opened. The stream to the command that started the
    /// agent stays open.
    pub(crate) fn over_callback(self, called: AgentCallback) -> AgentChannel {
        let AgentCallback { tcp, secure_stream, decrypted } = called;
        let (reading, writing) = tcp.into_split();
        let reader = CallbackReader {
            tcp: Some(reading),
            secure_stream: secure_stream.clone(),
            received: BytesMut::new(),
            decrypted,
            command: self.reader,
            command_ended: false,
        };
        let writer = CallbackWriter { tcp: writing, secure_stream, command: self.writer };
        AgentChannel {
            reader: AgentReader::Callback(Box::new(reader)),
            writer: AgentWriter::Callback(Box::new(writer)),
        }
    }

    /// Wraps one end of a stream in memory.
    #[cfg(test)]
    pub(crate) fn over_stream(stream: tokio::io::DuplexStream) -> AgentChannel {
        let (reader, writer) = tokio::io::split(stream);
        AgentChannel { reader: AgentReader::Stream(reader), writer: AgentWriter::Stream(writer) }
    }

    pub async fn next(&mut self) -> Option<Incoming> {
        self.reader.next().await
    }

    /// Ends the command, as [`abandon`] does.
    pub(crate) async fn abandon(&mut self) -> Abandoned {
        abandon(&mut self.reader, &mut self.writer).await
    }
}

/// Waits for the end of a command that has said its last word, so that its shell is gone when rlaunch returns.
pub(crate) async fn finish(reader: &mut AgentReader, writer: &mut AgentWriter) {
    let ends = async {
        drop(writer.end().await);
        while reader.next().await.is_some() {}
    };
    let _ = tokio::time::timeout(EXIT_TIMEOUT, ends).await;
}

/// State of a command that was abandoned, as far as it is known.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Abandoned {
    /// It has ended, or this machine ends it.
    Ended,
    /// No server has said that it has ended.
    MayRun,
}

/// Ends a command on a host that is waited for no longer, and waits for its end. A shell whose start-up file hangs does not
/// notice that its client has gone: without a terminal, OpenSSH sends it nothing when its channel closes. It stays where the
/// server passes on no signals, as OpenSSH before 9.8 for root, and any for forced commands. A second command would hang in
/// the same file.
pub(crate) async fn abandon(reader: &mut AgentReader, writer: &mut AgentWriter) -> Abandoned {
    #[cfg(test)]
    if matches!(reader, AgentReader::Stream(_)) {
        return Abandoned::Ended;
    }
    for signal in [None, Some(Sig::TERM), Some(Sig::KILL)] {
        let ends = async {
            match signal {
                None => drop(writer.end().await),
                Some(signal) => writer.signal(signal).await,
            }
            while reader.next().await.is_some() {}
        };
        let ended = tokio::time::timeout(ABANDON_TIMEOUT, ends).await.is_ok();
        match reader {
            _ if ended => return Abandoned::Ended,
            // The command of `--rsh` gets SIGTERM when its reader is dropped; the shell that it has started gets nothing.
            AgentReader::Local(agent) if agent.exit_status.is_some() => return Abandoned::MayRun,
            // A process here gets SIGTERM when its reader is dropped, and so does a step with its last reader.
            AgentReader::Local(_) | AgentReader::Step(_) => return Abandoned::Ended,
            _ => {}
        }
    }
    Abandoned::MayRun
}

impl AgentReader {
    /// Returns the next bytes; `None` at the end of the channel. Cancel-safe.
    pub async fn next(&mut self) -> Option<Incoming> {
        match self {
            AgentReader::Ssh(channel, exit_status) => next_from_ssh(channel, exit_status).await,
            AgentReader::Local(agent) => agent.next().await,
            AgentReader::Step(task) => task.next().await,
            // Boxed, because a callback reader contains another reader, which makes the future recursive.
            AgentReader::Callback(call) => Box::pin(call.next()).await,
            #[cfg(test)]
            AgentReader::Stream(stream) => {
                let mut data = BytesMut::with_capacity(64 << 10);
                let read = stream.read_buf(&mut data).await.unwrap_or(0);
                (read > 0).then(|| Incoming::Data(data.freeze()))
            }
        }
    }

    /// Waits until a process on this machine has exited. Over SSH there is nothing to wait for, since the
    /// command has ended with its channel.
    pub async fn reap(self) {
        match self {
            AgentReader::Ssh(..) => {}
            AgentReader::Local(mut agent) => match agent.exit_status {
                None => drop(agent.child.wait().await),
                Some(_) => {
                    let exits = tokio::time::timeout(EXIT_TIMEOUT, agent.child.wait());
                    if exits.await.is_err() {
                        agent.terminate();
                        drop(tokio::time::timeout(EXIT_TIMEOUT, agent.child.wait()).await);
                    }
                }
            },
            // Ends with the last task of the step, so that srun is gone when rlaunch returns. A task of another node may
            // hang, hence the limit.
            AgentReader::Step(mut task) => {
                let ends = async { while task.next().await.is_some() {} };
                drop(tokio::time::timeout(EXIT_TIMEOUT, ends).await);
            }
            AgentReader::Callback(call) => Box::pin(call.command.reap()).await,
            #[cfg(test)]
            AgentReader::Stream(_) => {}
        }
    }
}

impl CallbackReader {
    /// Returns the next bytes; `None` once both the connection and the command that started the agent
    /// have ended. Cancel-safe.
    async fn next(&mut self) -> Option<Incoming> {
        loop {
            if !self.decrypted.is_empty() {
                return Some(Incoming::Data(std::mem::take(&mut self.decrypted).into()));
            }
            self.received.reserve(64 << 10);
            tokio::select! {
                read = read_some(&mut self.tcp, &mut self.received), if self.tcp.is_some() => {
                    let received = self.received.split();
                    let opened = self.secure_stream.open(&received, &mut self.decrypted);
                    if read == 0 || opened.is_err() {
                        self.hang_up();
                    }
                }
                from_command = self.command.next(), if !self.command_ended => match from_command {
                    Some(Incoming::Diagnostics(stderr)) => {
                        return Some(Incoming::Diagnostics(stderr));
                    }
                    // The agent sends everything by TCP, so stdout has only messages of the shell.
                    Some(Incoming::Data(_)) => {}
                    None => self.command_ended = true,
                },
                else => return None,
            }
        }
    }

    /// Shuts the TCP connection down. The agent waits for the shutdown before it exits, because the
    /// shutdown proves that the launcher has read all frames.
    fn hang_up(&mut self) {
        if let Some(tcp) = self.tcp.take() {
            let _ = shutdown(tcp.as_ref().as_raw_fd(), Shutdown::Both);
        }
        // A step lasts until its last task has ended, on whichever node.
        self.command_ended |= matches!(self.command, AgentReader::Step(_));
    }
}

async fn next_from_ssh(
    channel: &mut ChannelReadHalf,
    command_status: &CommandStatus,
) -> Option<Incoming> {
    loop {
        match channel.wait().await? {
            ChannelMsg::Data { data } => return Some(Incoming::Data(data)),
            ChannelMsg::ExtendedData { data, .. } => return Some(Incoming::Diagnostics(data)),
            ChannelMsg::ExitStatus { exit_status } => {
                command_status.set(ExitStatus::Code(exit_status.cast_signed()));
            }
            // A server that refuses to execute the command leaves the channel open.
            ChannelMsg::Close | ChannelMsg::Failure => return None,
            // Eof is among them, which may come before the exit status; Close comes last.
            _ => {}
        }
    }
}

impl LocalAgent {
    async fn next(&mut self) -> Option<Incoming> {
        while let Some(stdout) = &mut self.stdout {
            let mut data = BytesMut::with_capacity(64 << 10);
            let mut stderr = BytesMut::with_capacity(4 << 10);
            tokio::select! {
                read = stdout.read_buf(&mut data) => {
                    if read.unwrap_or(0) > 0 {
                        return Some(Incoming::Data(data.freeze()));
                    }
                    self.stdout = None;
                }
                read = read_some(&mut self.stderr, &mut stderr) => {
                    if read > 0 {
                        return Some(Incoming::Diagnostics(stderr.freeze()));
                    }
                    self.stderr = None;
                }
            }
        }
        let limit = if self.exit_status.is_some() { EXIT_TIMEOUT } else { LAST_WORDS };
        // Diagnostics may arrive a moment after the end of stdout.
        if self.stderr.is_some() {
            let mut stderr = BytesMut::with_capacity(4 << 10);
            let read = read_some(&mut self.stderr, &mut stderr);
            if tokio::time::timeout(limit, read).await.unwrap_or(0) > 0 {
                return Some(Incoming::Diagnostics(stderr.freeze()));
            }
            self.stderr = None;
        }
        let command_status = self.exit_status.clone()?;
        if let Ok(Ok(status)) = tokio::time::timeout(EXIT_TIMEOUT, self.child.wait()).await {
            let by_signal = status.signal().map(ExitStatus::Signal);
            command_status.set(by_signal.unwrap_or(ExitStatus::Code(status.code().unwrap_or(-1))));
        }
        None
    }
}

impl LocalAgent {
    /// Sends SIGTERM to a command that still runs, and to what it has started.
    fn terminate(&self) {
        // `id` returns `None` once the process was reaped, so the number cannot belong to another process.
        let group = self.child.id().filter(|_| self.exit_status.is_some());
        if let Some(group) = group.and_then(|id| i32::try_from(id).ok()) {
            let _ = killpg(Pid::from_raw(group), Signal::SIGTERM);
        }
    }
}

impl Drop for LocalAgent {
    fn drop(&mut self) {
        self.terminate();
    }
}

/// Reads bytes; returns their number, 0 at the end of the stream or after an error. Never completes if `from` is `None`.
/// Cancel-safe.
async fn read_some(from: &mut Option<impl AsyncRead + Unpin>, buffer: &mut BytesMut) -> usize {
    match from {
        Some(from) => from.read_buf(buffer).await.unwrap_or(0),
        None => std::future::pending().await,
    }
}

impl AgentWriter {
    pub async fn send(&mut self, bytes: Bytes) -> io::Result<()> {
        match self {
            AgentWriter::Ssh(channel) => channel.data_bytes(bytes).await.map_err(io::Error::other),
            AgentWriter::Local(Some(stdin)) => stdin.write_all(&bytes).await,
            AgentWriter::Local(None) => Err(io::ErrorKind::BrokenPipe.into()),
            AgentWriter::Step => Ok(()),
            AgentWriter::Callback(call) => {
                let sealed = call.secure_stream.seal(&bytes).map_err(io::Error::other)?;
                call.tcp.write_all(&sealed).await
            }
            #[cfg(test)]
            AgentWriter::Stream(stream) => stream.write_all(&bytes).await,
        }
    }

    /// Sends a signal to the processes of a command over SSH.
    async fn signal(&mut self, signal: Sig) {
        match self {
            AgentWriter::Ssh(channel) => drop(channel.signal(signal).await),
            AgentWriter::Callback(call) => Box::pin(call.command.signal(signal)).await,
            AgentWriter::Local(_) | AgentWriter::Step => {}
            #[cfg(test)]
            AgentWriter::Stream(_) => {}
        }
    }

    pub async fn end(&mut self) -> io::Result<()> {
        match self {
            AgentWriter::Ssh(channel) => channel.eof().await.map_err(io::Error::other),
            AgentWriter::Local(stdin) => {
                *stdin = None;
                Ok(())
            }
            AgentWriter::Step => Ok(()),
            AgentWriter::Callback(call) => {
                let ended = call.tcp.shutdown().await;
                let _ = Box::pin(call.command.end()).await;
                ended
            }
            #[cfg(test)]
            AgentWriter::Stream(stream) => stream.shutdown().await,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use rlaunch_ssh::testing::Server;
    use std::fs;
    use std::os::unix::fs::PermissionsExt;

    /// Both streams have ended when they are read, as on a busy machine.
    #[tokio::test]
    async fn an_agent_that_does_not_start_here_is_heard() {
        let directory = tempfile::tempdir().unwrap();
        let (agent, gone) = (directory.path().join("agent"), directory.path().join("gone"));
        let script = format!("#!/bin/sh\necho cannot fork >&2\nexec mkdir {}\n", gone.display());
        fs::write(&agent, script).unwrap();
        fs::set_permissions(&agent, fs::Permissions::from_mode(0o755)).unwrap();
        for _ in 0..20 {
            let mut channel = AgentChannel::local(&agent, false).unwrap();
            while fs::remove_dir(&gone).is_err() {
                std::thread::sleep(Duration::from_millis(1));
            }
            let mut said = Vec::new();
            while let Some(incoming) = channel.next().await {
                let Incoming::Diagnostics(words) = incoming else { panic!("{incoming:?}") };
                said.extend_from_slice(&words);
            }
            assert_eq!(String::from_utf8(said).unwrap(), "cannot fork\n");
        }
    }

    #[tokio::test(start_paused = true)]
    async fn a_command_that_no_server_ends_may_run_on() {
        for (ends_by, expected) in [
            (Some(Sig::TERM), Abandoned::Ended),
            (Some(Sig::KILL), Abandoned::Ended),
            (None, Abandoned::MayRun),
        ] {
            let connection = Server::ending_by(ends_by.clone()).connect().await;
            let channel = connection.exec("sleep 1000").await.unwrap();
            let mut channel = AgentChannel::over_ssh(channel, CommandStatus::default());
            assert_eq!(channel.abandon().await, expected, "{ends_by:?}");
        }
    }
}
