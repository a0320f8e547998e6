//! `ProxyCommand`: the byte stream to a host is the stdin and stdout of a command on this machine.

use crate::error::SshError;
use crate::transport::stream::one_line;
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

/// Time that a command has to exit after its pipes are closed, before it is killed.
const GRACE: Duration = Duration::from_millis(300);
/// Number of bytes kept from the end of the command's stderr.
const KEPT: usize = 2048;

/// Stdin and stdout of a command, which exits or is killed soon after they are closed.
pub(crate) type Pipes = Join<Stdout, ChildStdin>;

/// Stdout of a command. Dropping this value closes the channel `_open`, by which the task that waits for the
/// command learns that the command's pipes are closed.
pub(crate) struct Stdout {
    pipe: ChildStdout,
    _open: oneshot::Sender<()>,
}

/// Running command; its stdin and stdout are in [`Pipes`].
pub(crate) struct ProxyCommand {
    command: String,
    exit: JoinHandle<ProxyExit>,
}

/// Exit status and stderr of a command that has ended.
struct ProxyExit {
    /// Exit status; `None` if the command had to be killed.
    status: Option<ExitStatus>,
    /// Last [`KEPT`] bytes of the command's stderr.
    stderr: Vec<u8>,
}

/// Starts `command` as ssh(1) does: the user's shell replaces itself with the command (`exec`).
pub(crate) fn start(command: &str) -> Result<(Pipes, ProxyCommand), SshError> {
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
        // A separate process group, so that Ctrl-C on the terminal reaches only the launcher.
        .process_group(0)
        .kill_on_drop(true)
        .spawn()
        .map_err(failed)?;
    let missing = || failed(io::Error::other("no pipe to it"));
    let stdin = child.stdin.take().ok_or_else(missing)?;
    let stdout = child.stdout.take().ok_or_else(missing)?;
    let stderr = child.stderr.take().ok_or_else(missing)?;
    let (open, closed) = oneshot::channel();
    let exit = tokio::spawn(wait_or_kill(child, stderr, closed));
    let pipes = tokio::io::join(Stdout { pipe: stdout, _open: open }, stdin);
    Ok((pipes, ProxyCommand { command: command.to_owned(), exit }))
}

/// Waits for the command to exit. Kills it if it has not exited [`GRACE`] after its pipes were closed.
async fn wait_or_kill(
    mut child: Child,
    stderr: ChildStderr,
    closed: oneshot::Receiver<()>,
) -> ProxyExit {
    let kept = Arc::new(Mutex::new(Vec::new()));
    let mut reading = tokio::spawn(keep_end(stderr, kept.clone()));
    let status = tokio::select! {
        status = child.wait() => status.ok(),
        // Nothing is sent on this channel, which closes when the pipes are dropped.
        _ = closed => tokio::time::timeout(GRACE, child.wait()).await.ok().and_then(Result::ok),
    };
    if status.is_none() {
        let group = child.id().and_then(|id| i32::try_from(id).ok());
        if let Some(group) = group {
            // The child is not reaped yet, so its number cannot belong to another process.
            let _ = killpg(Pid::from_raw(group), Signal::SIGKILL);
        }
        let _ = child.wait().await;
    }
    // Children of the command may still have its stderr open.
    if tokio::time::timeout(GRACE, &mut reading).await.is_err() {
        reading.abort();
    }
    let stderr = std::mem::take(&mut *kept.lock().unwrap_or_else(PoisonError::into_inner));
    ProxyExit { status, stderr }
}

/// Reads stderr to its end, so that the command never blocks when it writes there, and keeps the last
/// bytes.
async fn keep_end(mut stderr: ChildStderr, kept: Arc<Mutex<Vec<u8>>>) {
    let mut buffer = [0; 512];
    while let Ok(count @ 1..) = stderr.read(&mut buffer).await {
        let mut kept = kept.lock().unwrap_or_else(PoisonError::into_inner);
        kept.extend_from_slice(&buffer[..count]);
        let excess = kept.len().saturating_sub(KEPT);
        kept.drain(..excess);
    }
}

impl ProxyCommand {
    /// Waits until the command has exited or was killed, and returns its error. `None` if the command
    /// reported no error; then the host itself has closed the connection.
    pub(crate) async fn failure(self) -> Option<SshError> {
        let ProxyCommand { command, exit } = self;
        let ProxyExit { status, stderr } = exit.await.ok()?;
        let stderr = one_line(&stderr);
        let how = match status {
            Some(status) if status.success() && stderr.is_empty() => return None,
            None if stderr.is_empty() => return None,
            Some(status) => match status.code() {
                Some(code) => format!("exited with code {code}"),
                None => format!("was killed by {status}"),
            },
            None => "opens no connection".to_owned(),
        };
        let how = if stderr.is_empty() { how } else { format!("{how}: {stderr}") };
        Some(SshError::ProxyCommand { command, how })
    }

    /// Waits until the command has exited, or was killed because it did not exit after its pipes were closed.
    pub(crate) async fn end(self) {
        let _ = self.exit.await;
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

    /// Time limit for the test. The command would run for 1000 seconds, so the test finishes within this
    /// limit only if the command is killed. The limit is generous because the test machine may be suspended.
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
        assert!(error.ends_with("exited with code 3: no way"), "{error}");
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
        // State Z: the process was killed, and the process that adopted it has not reaped it yet.
        let dead = || stat().is_empty() || stat().contains(") Z ");
        let deadline = std::time::Instant::now() + BOUND;
        while !dead() {
            assert!(std::time::Instant::now() < deadline, "{}", stat());
            tokio::task::yield_now().await;
        }
    }
}
