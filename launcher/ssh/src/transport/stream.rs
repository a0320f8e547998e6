//! Byte streams to servers, such as the stdin and stdout of a `ProxyCommand`. The text that a server sends before its SSH
//! version is kept for errors.

use crate::error::SshError;
use nix::sys::signal::{Signal, killpg};
use nix::unistd::Pid;
use rlaunch_console::limits;
use rlaunch_text::printable;
use std::io;
use std::pin::Pin;
use std::process::{ExitStatus, Stdio};
use std::sync::{Arc, Mutex, PoisonError};
use std::task::{Context, Poll, ready};
use std::time::Duration;
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, Join, ReadBuf};
use tokio::process::{Child, ChildStderr, ChildStdin, ChildStdout, Command};
use tokio::sync::oneshot;
use tokio::task::JoinHandle;

/// Maximum number of bytes kept from a server's banner.
pub(crate) const BANNER_KEPT: usize = 1024;

/// Byte stream to a server: TCP, a channel through a jump host, or the pipes of a command.
pub(crate) trait Stream: AsyncRead + AsyncWrite + Send + Unpin {}

impl<T: AsyncRead + AsyncWrite + Send + Unpin> Stream for T {}

/// Text that a server sends first, up to and including the line with its SSH version, which begins with
/// `SSH-`. A server that drops a connection sends its reason instead of that line. Clones share the text.
#[derive(Clone, Default)]
pub(crate) struct Banner(Arc<Mutex<Vec<u8>>>);

impl Banner {
    /// Tells whether the server has sent its SSH version. If not, it may have dropped the connection
    /// because of MaxStartups.
    pub(crate) fn has_version(&self) -> bool {
        has_version(&self.0.lock().unwrap_or_else(PoisonError::into_inner))
    }

    /// Returns the lines before the SSH version, joined into one line; empty if there are none.
    pub(crate) fn text(&self) -> String {
        one_line(&self.0.lock().unwrap_or_else(PoisonError::into_inner))
    }

    /// Appends received bytes. Returns false once the SSH version or [`BANNER_KEPT`] bytes were received.
    fn push(&self, bytes: &[u8]) -> bool {
        let mut received = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let room = BANNER_KEPT - received.len();
        received.extend_from_slice(&bytes[..bytes.len().min(room)]);
        received.len() < BANNER_KEPT && !has_version(&received)
    }
}

/// Tells whether a line with an SSH version has begun.
pub(crate) fn has_version(received: &[u8]) -> bool {
    received.split(|&byte| byte == b'\n').any(|line| line.starts_with(b"SSH-"))
}

/// Joins the output of a program or server into one line for an error, without the line of the SSH version.
pub(crate) fn one_line(written: &[u8]) -> String {
    let text = String::from_utf8_lossy(written);
    let lines = text.lines().map(str::trim);
    let lines = lines.filter(|line| !line.is_empty() && !line.starts_with("SSH-"));
    printable::first_line(&lines.collect::<Vec<_>>().join("; "))
}

/// Stream that copies the server's [`Banner`] as it is read.
pub(crate) struct BannerReader {
    stream: Box<dyn Stream>,
    banner: Banner,
    in_banner: bool,
}

impl BannerReader {
    /// Wraps `stream`. The second value contains the banner once it was read.
    pub(crate) fn new(stream: Box<dyn Stream>) -> (BannerReader, Banner) {
        let banner = Banner::default();
        (BannerReader { stream, banner: banner.clone(), in_banner: true }, banner)
    }
}

impl AsyncRead for BannerReader {
    fn poll_read(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let before = buffer.filled().len();
        ready!(Pin::new(&mut self.stream).poll_read(context, buffer))?;
        if self.in_banner {
            self.in_banner = self.banner.push(&buffer.filled()[before..]);
        }
        Poll::Ready(Ok(()))
    }
}

impl AsyncWrite for BannerReader {
    fn poll_write(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.stream).poll_write(context, bytes)
    }

    fn poll_flush(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_flush(context)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_shutdown(context)
    }
}

/// Time that a command has to exit after its pipes are closed, before it is killed.
const GRACE: Duration = Duration::from_millis(300);
/// Number of bytes kept from the end of a command's stderr.
const STDERR_KEPT: usize = 2048;

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
    /// Last [`STDERR_KEPT`] bytes of the command's stderr.
    stderr: Vec<u8>,
}

/// Starts `command` as ssh(1) does: the user's shell replaces itself with the command (`exec`).
pub(crate) fn start_proxy(command: &str) -> Result<(Pipes, ProxyCommand), SshError> {
    let failed = |source| SshError::ProxyStart { command: command.to_owned(), source };
    let shell = std::env::var_os("SHELL").filter(|shell| !shell.is_empty());
    let mut shell = Command::new(shell.unwrap_or_else(|| "/bin/sh".into()));
    limits::restore_open_files(shell.as_std_mut());
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
        let excess = kept.len().saturating_sub(STDERR_KEPT);
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

    #[tokio::test]
    async fn the_first_words_are_kept_and_passed_on() {
        let (ours, mut servers) = tokio::io::duplex(64);
        let (mut stream, banner) = BannerReader::new(Box::new(ours));
        servers.write_all(b"Exceeded Max").await.unwrap();
        let mut read = [0; 12];
        stream.read_exact(&mut read).await.unwrap();
        assert_eq!((&read, banner.has_version()), (b"Exceeded Max", false));
        servers.write_all(b"Startups\r\n").await.unwrap();
        drop(servers);
        let mut rest = Vec::new();
        stream.read_to_end(&mut rest).await.unwrap();
        assert_eq!(banner.text(), "Exceeded MaxStartups");
    }

    #[test]
    fn nothing_is_kept_after_the_version() {
        let banner = Banner::default();
        assert!(banner.push(b"wait\r\nSSH"));
        assert!(!banner.push(b"-2.0-x\r\n"));
        assert!(banner.has_version());
        assert_eq!(banner.text(), "wait");
    }

    #[test]
    fn an_endless_greeting_is_cut() {
        let banner = Banner::default();
        assert!(!banner.push(&[b'x'; 4096]));
        assert_eq!(banner.text().chars().count(), printable::LONGEST_QUOTE + 1);
        assert_eq!(one_line(b"\x1b[1mone\n\n two \r\n"), "\\x1b[1mone; two");
    }

    /// Time limit for the test. The command would run for 1000 seconds, so the test finishes within this
    /// limit only if the command is killed. The limit is generous because the test machine may be suspended.
    const BOUND: Duration = Duration::from_secs(60);

    #[tokio::test]
    async fn bytes_go_through_the_command_and_it_goes_with_its_pipes() {
        let (mut pipes, proxy) = start_proxy("cat").unwrap();
        pipes.write_all(b"SSH-2.0-x\r\n").await.unwrap();
        let mut read = [0; 11];
        pipes.read_exact(&mut read).await.unwrap();
        assert_eq!(&read, b"SSH-2.0-x\r\n");
        drop(pipes);
        assert!(proxy.failure().await.is_none());
    }

    #[tokio::test]
    async fn a_command_that_fails_is_quoted() {
        let (mut pipes, proxy) = start_proxy("sh -c 'echo no way >&2; exit 3'").unwrap();
        assert_eq!(pipes.read(&mut [0]).await.unwrap(), 0);
        drop(pipes);
        let error = proxy.failure().await.unwrap().to_string();
        assert!(error.ends_with("exited with code 3: no way"), "{error}");
    }

    #[tokio::test]
    async fn a_command_that_does_not_listen_is_killed_with_what_it_started() {
        let (mut pipes, proxy) = start_proxy("sh -c 'sleep 1000 & echo $!; wait'").unwrap();
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
