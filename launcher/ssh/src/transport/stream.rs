//! Byte stream that carries SSH, and the text that a server sends before its SSH version.

use rlaunch_text::printable;
use std::io;
use std::pin::Pin;
use std::sync::{Arc, Mutex, PoisonError};
use std::task::{Context, Poll, ready};
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};

/// Maximum number of bytes kept from a server's banner.
const KEPT: usize = 1024;

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

    /// Appends received bytes. Returns false once the SSH version or [`KEPT`] bytes were received.
    fn push(&self, bytes: &[u8]) -> bool {
        let mut received = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let room = KEPT - received.len();
        received.extend_from_slice(&bytes[..bytes.len().min(room)]);
        received.len() < KEPT && !has_version(&received)
    }
}

fn has_version(received: &[u8]) -> bool {
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

#[cfg(test)]
mod tests {
    use super::*;
    use tokio::io::{AsyncReadExt, AsyncWriteExt};

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
}
