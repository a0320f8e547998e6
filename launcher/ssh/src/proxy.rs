//! `ProxyCommand`: the stream to a host is stdin and stdout of a command on this machine.

use super::error::SshError;
use super::stream::one_line;
use nix::sys::signal::{Signal, killpg};
use nix::unistd::Pid;
use rlaunch_console::open_files;
use std::io;
use std::pin::Pin;
use std::process::{ExitStatus, Stdio};
use std::sync::{Arc, Mutex, PoisonError};
use std::task::{Context, Poll};
use std::time::Duration;
use tokio::io::{AsyncRead, AsyncReadExt, Join, ReadBuf};
use tokio::process::{Child, ChildStderr, ChildStdin, ChildStdout, Command};
use tokio::sync::oneshot;
use tokio::task::JoinHandle;

/// What a command may take to end once its pipes are closed, before it is killed.
const GRACE: Duration = Duration::from_millis(300);
/// How much of the end of its standard error is kept, in bytes.
const KEPT: usize = 2048;

/// The pipes of a command. It ends soon after they are closed.
pub(super) type Pipes = Join<Stdout, ChildStdin>;

/// The half that is read, which tells when it is closed.
pub(super) struct Stdout {
    pipe: ChildStdout,
    _open: oneshot::Sender<()>,
}

/// A command beside its pipes.
pub(super) struct ProxyCommand {
    command: String,
    ending: JoinHandle<Ending>,
}

/// How a command ended.
struct Ending {
    /// `None` where we had to kill it.
    status: Option<ExitStatus>,
    /// The end of its standard error.
    said: Vec<u8>,
}

/// Starts `command` as ssh(1) does: by the user's shell, which it replaces.
pub(super) fn start(command: &str) -> Result<(Pipes, ProxyCommand), SshError> {
    let failed = |source| SshError::ProxyStart { command: command.to_owned(), source };
    let shell = std::env::var_os("SHELL").filter(|shell| !shell.is_empty());
    let mut shell = Command::new(shell.unwrap_or_else(|| "/bin/sh".into()));
    open_files::restore(shell.as_std_mut());
    let mut child = shell
        .arg("-c")
        .arg(format!("exec {command}"))
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        // Ctrl-C on the terminal is the launcher's to interpret.
        .process_group(0)
        .kill_on_drop(true)
        .spawn()
        .map_err(failed)?;
    let missing = || failed(io::Error::other("no pipe to it"));
    let stdin = child.stdin.take().ok_or_else(missing)?;
    let stdout = child.stdout.take().ok_or_else(missing)?;
    let stderr = child.stderr.take().ok_or_else(missing)?;
    let (open, closed) = oneshot::channel();
    let ending = tokio::spawn(tend(child, stderr, closed));
    let pipes = tokio::io::join(Stdout { pipe: stdout, _open: open }, stdin);
    Ok((pipes, ProxyCommand { command: command.to_owned(), ending }))
}

/// Waits for the end of the command, and sees to it once the pipes are closed.
async fn tend(mut child: Child, stderr: ChildStderr, closed: oneshot::Receiver<()>) -> Ending {
    let said = Arc::new(Mutex::new(Vec::new()));
    let mut reading = tokio::spawn(keep_end(stderr, said.clone()));
    let by_itself = tokio::select! {
        status = child.wait() => status.ok(),
        // Nothing is ever sent; it ends with the pipes.
        _ = closed => tokio::time::timeout(GRACE, child.wait()).await.ok().and_then(Result::ok),
    };
    if by_itself.is_none() {
        let group = child.id().and_then(|id| i32::try_from(id).ok());
        if let Some(group) = group {
            // Not reaped yet, so the number is still its own.
            let _ = killpg(Pid::from_raw(group), Signal::SIGKILL);
        }
        let _ = child.wait().await;
    }
    // What it started may still hold its standard error.
    if tokio::time::timeout(GRACE, &mut reading).await.is_err() {
        reading.abort();
    }
    let said = std::mem::take(&mut *said.lock().unwrap_or_else(PoisonError::into_inner));
    Ending { status: by_itself, said }
}

/// Reads to the end, so that the command never waits for a reader.
async fn keep_end(mut stderr: ChildStderr, said: Arc<Mutex<Vec<u8>>>) {
    let mut buffer = [0; 512];
    while let Ok(count @ 1..) = stderr.read(&mut buffer).await {
        let mut said = said.lock().unwrap_or_else(PoisonError::into_inner);
        said.extend_from_slice(&buffer[..count]);
        let excess = said.len().saturating_sub(KEPT);
        said.drain(..excess);
    }
}

impl ProxyCommand {
    /// Once the pipes are closed: what went wrong with the command. `None` where it did what it
    /// was asked to, so that it was the host that ended the connection.
    pub(super) async fn failure(self) -> Option<SshError> {
        let ProxyCommand { command, ending } = self;
        let Ending { status, said } = ending.await.ok()?;
        let said = one_line(&said);
        let how = match status {
            Some(status) if status.success() && said.is_empty() => return None,
            None if said.is_empty() => return None,
            Some(status) => match status.code() {
                Some(code) => format!("ended with code {code}"),
                None => format!("was ended by {status}"),
            },
            None => "gives no connection".to_owned(),
        };
        let how = if said.is_empty() { how } else { format!("{how}: {said}") };
        Some(SshError::ProxyCommand { command, how })
    }

    /// Once the pipes are closed: waits until the command is gone.
    pub(super) async fn end(self) {
        let _ = self.ending.await;
    }
}

impl AsyncRead for Stdout {
    fn poll_read(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        Pin::new(&mut self.pipe).poll_read(context, buffer)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use tokio::io::AsyncWriteExt;

    /// Limit far below the thousand seconds of a process that is not killed; a machine may stand still.
    const BOUND: Duration = Duration::from_secs(60);

    #[tokio::test]
    async fn bytes_go_through_the_command_and_it_goes_with_its_pipes() {
        let (mut pipes, proxy) = start("cat").unwrap();
        pipes.write_all(b"SSH-2.0-x\r\n").await.unwrap();
        let mut read = [0; 11];
        pipes.read_exact(&mut read).await.unwrap();
        assert_eq!(&read, b"SSH-2.0-x\r\n");
        drop(pipes);
        assert!(proxy.failure().await.is_none());
    }

    #[tokio::test]
    async fn a_command_that_fails_is_quoted() {
        let (mut pipes, proxy) = start("sh -c 'echo no way >&2; exit 3'").unwrap();
        assert_eq!(pipes.read(&mut [0]).await.unwrap(), 0);
        drop(pipes);
        let error = proxy.failure().await.unwrap().to_string();
        assert!(error.ends_with("ended with code 3: no way"), "{error}");
    }

    #[tokio::test]
    async fn a_command_that_does_not_listen_is_killed_with_what_it_started() {
        let (mut pipes, proxy) = start("sh -c 'sleep 1000 & echo $!; wait'").unwrap();
        let mut read = [0; 16];
        let count = pipes.read(&mut read).await.unwrap();
        let inner: i32 = String::from_utf8_lossy(&read[..count]).trim().parse().unwrap();
        drop(pipes);
        proxy.end().await;
        let stat = || std::fs::read_to_string(format!("/proc/{inner}/stat")).unwrap_or_default();
        // Killed, and perhaps not reaped yet by whoever inherited it.
        let dead = || stat().is_empty() || stat().contains(") Z ");
        let deadline = std::time::Instant::now() + BOUND;
        while !dead() {
            assert!(std::time::Instant::now() < deadline, "{}", stat());
            tokio::task::yield_now().await;
        }
    }
}
