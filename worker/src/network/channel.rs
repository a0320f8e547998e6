//! The agent's end of the control channel to the launcher: its stdin and stdout, or a connection
//! back to the launcher if the remote shell passes no stdin.

use crate::network::callback::CallbackTarget;
use crate::network::frames::{self, ByteSource, FrameEvent};
use crate::network::outbox::{self, ByteSink, Outbox};
use nix::errno::Errno;
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use rlaunch_bootstrap::protocol::control::{HELLO_MAGIC, ToAgent};
use std::fs::File;
use std::io::{self, Read, Write};
use std::os::fd::AsFd;
use std::time::{Duration, Instant};
use tokio::net::unix::pipe;
use tokio::sync::mpsc;
use tokio::task::JoinHandle;
use tokio::time::timeout;

/// Time limit for writing the last frames after the launcher has closed its end.
const DRAIN_TIMEOUT: Duration = Duration::from_secs(1);
/// Time limit for the launcher's first bytes to arrive on stdin. The launcher sends them before
/// this process starts.
const FIRST_BYTES_TIMEOUT: Duration = Duration::from_secs(3);
/// Size of the buffer for the launcher's first bytes. Before the agent's hello, the launcher sends
/// at most one beat.
const FIRST_CHUNK: usize = 4 << 10;

/// Kind of control channel.
pub(crate) enum ChannelKind {
    /// Stdin and stdout; these bytes were already read from stdin.
    Stdin(Vec<u8>),
    /// Connection back to the launcher, since stdin carries nothing.
    Callback(CallbackTarget),
}

impl ChannelKind {
    /// Returns the kind of channel to use. If the launcher accepts connections (`target`), waits up
    /// to [`FIRST_BYTES_TIMEOUT`] for data on stdin before choosing.
    pub(crate) fn detect(target: Option<CallbackTarget>) -> ChannelKind {
        match target {
            None => ChannelKind::Stdin(Vec::new()),
            Some(target) => match first_bytes(FIRST_BYTES_TIMEOUT) {
                Some(bytes) => ChannelKind::Stdin(bytes),
                None => ChannelKind::Callback(target),
            },
        }
    }
}

/// Reads the first bytes from stdin. Returns `None` if stdin has ended, cannot be read, or carries
/// no data within `limit`.
fn first_bytes(limit: Duration) -> Option<Vec<u8>> {
    let mut stdin = File::from(io::stdin().as_fd().try_clone_to_owned().ok()?);
    let deadline = Instant::now() + limit;
    loop {
        let left = deadline.saturating_duration_since(Instant::now());
        let left = PollTimeout::try_from(left).unwrap_or(PollTimeout::MAX);
        match poll(&mut [PollFd::new(stdin.as_fd(), PollFlags::POLLIN)], left) {
            Err(Errno::EINTR) => {}
            Ok(0) | Err(_) => return None,
            Ok(_) => break,
        }
    }
    let mut bytes = vec![0; FIRST_CHUNK];
    let length = stdin.read(&mut bytes).ok().filter(|&length| length > 0)?;
    bytes.truncate(length);
    Some(bytes)
}

/// Open channel that carries frames in both directions.
pub(crate) struct Channel {
    pub(crate) events: mpsc::Receiver<FrameEvent<ToAgent>>,
    pub(crate) outbox: Outbox,
    writer: JoinHandle<io::Result<()>>,
    /// Whether the channel is a TCP connection. Such a channel must not be closed before the
    /// launcher has read everything, because that could discard data in flight.
    is_callback: bool,
}

impl Channel {
    /// Takes over stdin and stdout and prints the marker that ends the login shell's output, or
    /// connects back to the launcher. Must be called within a Tokio runtime.
    pub(crate) async fn open(kind: ChannelKind) -> io::Result<Channel> {
        match kind {
            ChannelKind::Stdin(first) => {
                let input = File::from(io::stdin().as_fd().try_clone_to_owned()?);
                let mut output = File::from(io::stdout().as_fd().try_clone_to_owned()?);
                output.write_all(HELLO_MAGIC)?;
                // Unchecked, because sshd may use sockets instead of pipes.
                let input = pipe::Receiver::from_file_unchecked(input)?;
                let output = pipe::Sender::from_file_unchecked(output)?;
                Ok(Channel::start(input, first, output, false))
            }
            ChannelKind::Callback(target) => {
                let (reader, writer) = target.connect().await?;
                Ok(Channel::start(reader, Vec::new(), writer, true))
            }
        }
    }

    fn start(
        input: impl ByteSource,
        first: Vec<u8>,
        output: impl ByteSink,
        is_callback: bool,
    ) -> Channel {
        let (outbox, queue) = Outbox::new();
        let writer = tokio::spawn(outbox::write_all(queue, output));
        let (sender, events) = mpsc::channel(64);
        tokio::spawn(frames::read_all(input, first, sender));
        Channel { events, outbox, writer, is_callback }
    }

    /// Waits until everything that was sent is written, but at most [`DRAIN_TIMEOUT`] once the
    /// launcher has closed its end.
    pub(crate) async fn close(self) {
        let Channel { outbox, mut writer, mut events, is_callback } = self;
        drop(outbox);
        let peer_closed = async {
            wait_closed(&mut events).await;
            tokio::time::sleep(DRAIN_TIMEOUT).await;
        };
        tokio::select! {
            // The reader reports a broken channel.
            _ = &mut writer => {}
            () = peer_closed => return,
        }
        if is_callback {
            // The launcher closes the connection once it has read everything.
            let _ = timeout(DRAIN_TIMEOUT, wait_closed(&mut events)).await;
        }
    }
}

/// Waits until the launcher has closed the channel, and drops its messages. May be called again
/// afterwards.
async fn wait_closed(events: &mut mpsc::Receiver<FrameEvent<ToAgent>>) {
    while let Some(event) = events.recv().await {
        if matches!(event, FrameEvent::Closed(_)) {
            return;
        }
    }
}
