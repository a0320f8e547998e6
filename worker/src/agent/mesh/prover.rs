//! The prover process, and the frames between it and the agent.

use crate::network::frames::{self, FrameEvent};
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use rlaunch_bootstrap::id::NodeId;
use rlaunch_bootstrap::protocol::control;
use rlaunch_bootstrap::protocol::mesh::{FromProver, ToProver};
use std::io;
use std::os::fd::OwnedFd;
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::Duration;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::unix::pipe;
use tokio::sync::{mpsc, oneshot};
use tokio::time::timeout;

/// Time limit for the prover to exit after its stdin is closed, and for its stderr to end after its
/// stdout has ended.
const EXIT_TIMEOUT: Duration = Duration::from_secs(1);

/// Number of bytes of the prover's stderr that are kept, counted from the end.
const MAX_STDERR: usize = 1024;

/// Running prover process.
pub(crate) struct Prover {
    pid: Pid,
    /// Frames for the prover's stdin. `None` after [`Prover::shutdown`], which closes stdin.
    commands: Option<mpsc::UnboundedSender<Vec<u8>>>,
    answers: mpsc::Receiver<FrameEvent<FromProver>>,
    /// Last line of the prover's stderr, sent when stderr ends.
    stderr_tail: oneshot::Receiver<String>,
    /// Reason why the prover's stdout ended, until [`Prover::next_event`] has reported it.
    gone: Option<String>,
}

impl Prover {
    /// Starts the prover of this node from its executable. The agent reaps the prover together with
    /// the ranks.
    pub(crate) fn start(path: &Path, node: NodeId) -> io::Result<Prover> {
        let mut child = Command::new(path)
            .arg(node.to_string())
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()?;
        let missing = || io::Error::other("it has no pipe");
        let stdin = OwnedFd::from(child.stdin.take().ok_or_else(missing)?);
        let stdout = OwnedFd::from(child.stdout.take().ok_or_else(missing)?);
        let stderr = OwnedFd::from(child.stderr.take().ok_or_else(missing)?);
        let (commands, queue) = mpsc::unbounded_channel();
        let (tail, stderr_tail) = oneshot::channel();
        let (answer, answers) = mpsc::channel(16);
        tokio::spawn(write_all(queue, pipe::Sender::from_owned_fd(stdin)?));
        tokio::spawn(frames::read_all(pipe::Receiver::from_owned_fd(stdout)?, Vec::new(), answer));
        tokio::spawn(read_last_line(pipe::Receiver::from_owned_fd(stderr)?, tail));
        let pid = Pid::from_raw(child.id().cast_signed());
        Ok(Prover { pid, commands: Some(commands), answers, stderr_tail, gone: None })
    }

    pub(crate) fn pid(&self) -> Pid {
        self.pid
    }

    /// Sends a message to the prover. Returns an error text if the message does not fit into a
    /// frame or the prover has ended.
    pub(crate) fn send(&self, message: &ToProver) -> Result<(), String> {
        let frame = control::encode(message).map_err(|error| error.to_string())?;
        let sent = self.commands.as_ref().is_some_and(|commands| commands.send(frame).is_ok());
        if sent { Ok(()) } else { Err("rlaunch-prover has ended".to_owned()) }
    }

    /// Waits for the prover's next event. `Closed` is returned once, with the last line of stderr,
    /// and never after a shutdown. Cancel-safe.
    pub(crate) async fn next_event(&mut self) -> FrameEvent<FromProver> {
        if self.gone.is_none() {
            match self.answers.recv().await {
                Some(FrameEvent::Closed(_)) if self.commands.is_none() => {
                    return std::future::pending().await;
                }
                Some(FrameEvent::Closed(how)) => self.gone = Some(how),
                Some(message) => return message,
                // The prover's end has been reported.
                None => std::future::pending().await,
            }
        }
        let tail = timeout(EXIT_TIMEOUT, &mut self.stderr_tail).await;
        let how = self.gone.take().unwrap_or_default();
        match tail {
            Ok(Ok(tail)) if !tail.is_empty() => FrameEvent::Closed(format!("{how}: {tail}")),
            _ => FrameEvent::Closed(how),
        }
    }

    /// Tells the prover to close everything and exit, by closing its stdin.
    pub(crate) fn shutdown(&mut self) {
        self.commands = None;
    }

    pub(crate) fn kill(&self) {
        // Fails if the prover has ended already.
        let _ = kill(self.pid, Signal::SIGKILL);
    }

    /// Shuts the prover down and waits until its stdout is closed. Kills the prover after
    /// [`EXIT_TIMEOUT`].
    pub(crate) async fn end(mut self) {
        self.shutdown();
        let gone = async { while self.answers.recv().await.is_some() {} };
        if timeout(EXIT_TIMEOUT, gone).await.is_err() {
            self.kill();
        }
    }
}

async fn write_all(mut queue: mpsc::UnboundedReceiver<Vec<u8>>, mut stdin: pipe::Sender) {
    while let Some(frame) = queue.recv().await {
        // A prover that has ended is noticed when its stdout closes.
        if stdin.write_all(&frame).await.is_err() {
            return;
        }
    }
}

/// Reads stderr to the end and sends its last line that is not blank.
async fn read_last_line(mut stderr: pipe::Receiver, tail: oneshot::Sender<String>) {
    let mut text = Vec::new();
    let mut part = [0; 1024];
    while let Ok(length @ 1..) = stderr.read(&mut part).await {
        text.extend_from_slice(&part[..length]);
        text.drain(..text.len().saturating_sub(MAX_STDERR));
    }
    let text = String::from_utf8_lossy(&text);
    let last = text.lines().rev().map(str::trim).find(|line| !line.is_empty());
    // The receiver is dropped at the end of the job.
    let _ = tail.send(last.unwrap_or_default().to_owned());
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs;
    use std::os::unix::fs::PermissionsExt;

    /// A prover that needs a newer C library than the host has reports that on stderr.
    #[test]
    fn one_that_does_not_start_says_why() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("prover");
        fs::write(&path, "#!/bin/sh\necho first >&2; echo \"no GLIBC_2.34 here\" >&2; exit 1\n")
            .unwrap();
        fs::set_permissions(&path, fs::Permissions::from_mode(0o700)).unwrap();
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        let event = runtime.block_on(async {
            let mut prover = Prover::start(&path, NodeId(3)).unwrap();
            prover.next_event().await
        });
        let FrameEvent::Closed(how) = event else { panic!("{event:?}") };
        assert_eq!(how, "it has ended: no GLIBC_2.34 here");
    }
}
