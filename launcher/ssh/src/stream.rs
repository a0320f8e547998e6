//! The bytes below SSH, whatever carries them, and what the server says in them at first.

use rlaunch_console::printable;
use std::io;
use std::pin::Pin;
use std::sync::{Arc, Mutex, PoisonError};
use std::task::{Context, Poll, ready};
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};

/// How much of a server's first words is kept, in bytes.
const KEPT: usize = 1024;

/// A connection to a server: TCP, a channel through a jump host, the pipes of a command.
pub(super) trait Stream: AsyncRead + AsyncWrite + Send + Unpin {}

impl<T: AsyncRead + AsyncWrite + Send + Unpin> Stream for T {}

/// What a server says before and up to its version, the line that begins with `SSH-`.
#[derive(Clone, Default)]
pub(super) struct Greeting(Arc<Mutex<Vec<u8>>>);

impl Greeting {
    /// Whether the server has said its version: who gets so far was let in to log in.
    pub(super) fn has_version(&self) -> bool {
        has_version(&self.0.lock().unwrap_or_else(PoisonError::into_inner))
    }

    /// The lines before the version, as one; empty where there are none.
    pub(super) fn words(&self) -> String {
        one_line(&self.0.lock().unwrap_or_else(PoisonError::into_inner))
    }

    /// Whether there is more to listen to.
    fn hear(&self, bytes: &[u8]) -> bool {
        let mut heard = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let room = KEPT - heard.len();
        heard.extend_from_slice(&bytes[..bytes.len().min(room)]);
        heard.len() < KEPT && !has_version(&heard)
    }
}

fn has_version(heard: &[u8]) -> bool {
    heard.split(|&byte| byte == b'\n').any(|line| line.starts_with(b"SSH-"))
}

/// What a program or a server wrote, in one line that fits a message.
pub(super) fn one_line(written: &[u8]) -> String {
    let text = String::from_utf8_lossy(written);
    let lines = text.lines().map(str::trim);
    let lines = lines.filter(|line| !line.is_empty() && !line.starts_with("SSH-"));
    printable::first_line(&lines.collect::<Vec<_>>().join("; "))
}

/// A stream whose first words are kept.
pub(super) struct Overheard {
    stream: Box<dyn Stream>,
    greeting: Greeting,
    listening: bool,
}

impl Overheard {
    /// Listens to `stream`.
    pub(super) fn new(stream: Box<dyn Stream>) -> (Overheard, Greeting) {
        let greeting = Greeting::default();
        (Overheard { stream, greeting: greeting.clone(), listening: true }, greeting)
    }
}

impl AsyncRead for Overheard {
    fn poll_read(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let before = buffer.filled().len();
        ready!(Pin::new(&mut self.stream).poll_read(context, buffer))?;
        if self.listening {
            self.listening = self.greeting.hear(&buffer.filled()[before..]);
        }
        Poll::Ready(Ok(()))
    }
}

impl AsyncWrite for Overheard {
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

#[cfg(test)]
mod tests {
    use super::*;
    use tokio::io::{AsyncReadExt, AsyncWriteExt};

    #[tokio::test]
    async fn the_first_words_are_kept_and_passed_on() {
        let (ours, mut servers) = tokio::io::duplex(64);
        let (mut stream, greeting) = Overheard::new(Box::new(ours));
        servers.write_all(b"Exceeded Max").await.unwrap();
        let mut read = [0; 12];
        stream.read_exact(&mut read).await.unwrap();
        assert_eq!((&read, greeting.has_version()), (b"Exceeded Max", false));
        servers.write_all(b"Startups\r\n").await.unwrap();
        drop(servers);
        let mut rest = Vec::new();
        stream.read_to_end(&mut rest).await.unwrap();
        assert_eq!(greeting.words(), "Exceeded MaxStartups");
    }

    #[test]
    fn nothing_is_kept_after_the_version() {
        let greeting = Greeting::default();
        assert!(greeting.hear(b"wait\r\nSSH"));
        assert!(!greeting.hear(b"-2.0-x\r\n"));
        assert!(greeting.has_version());
        assert_eq!(greeting.words(), "wait");
    }

    #[test]
    fn an_endless_greeting_is_cut() {
        let greeting = Greeting::default();
        assert!(!greeting.hear(&[b'x'; 4096]));
        assert_eq!(greeting.words().chars().count(), printable::LONGEST_QUOTE + 1);
        assert_eq!(one_line(b"\x1b[1mone\n\n two \r\n"), "\\x1b[1mone; two");
    }
}
