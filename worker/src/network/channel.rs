//! The agent's end of the control channel: its own stdin and stdout, or a connection to the launcher
//! where the shell gives no stdin.

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

/// How long what was said last may take to be written to a launcher that listens no more.
const DRAIN_TIMEOUT: Duration = Duration::from_secs(1);
/// How long the launcher's first bytes may take to come through stdin. They were sent before this
/// process began.
const FIRST_BYTES_TIMEOUT: Duration = Duration::from_secs(3);
/// More than the first bytes are, in bytes.
const FIRST_CHUNK: usize = 4 << 10;

/// By what the launcher is heard.
pub(crate) enum ChannelKind {
    /// Stdin, from which this has been read.
    Stdin(Vec<u8>),
    /// Nothing comes through stdin.
    Callback(CallbackTarget),
}

impl ChannelKind {
    /// Finds out whether stdin carries anything, where there is another way. Waits for the first
    /// bytes, at most [`FIRST_BYTES_TIMEOUT`].
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

/// What stdin has to say; `None` when it has ended, cannot be read, or is silent for so long.
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

/// The open channel: frames in, frames out.
pub(crate) struct Channel {
    pub(crate) events: mpsc::Receiver<FrameEvent<ToAgent>>,
    pub(crate) outbox: Outbox,
    writer: JoinHandle<io::Result<()>>,
    /// Whoever closes a connection before the other end has heard all may take away what is on its
    /// way.
    is_callback: bool,
}

impl Channel {
    /// Takes over stdin and stdout and ends the shell's noise, or dials the launcher. Needs a
    /// runtime.
    pub(crate) async fn open(kind: ChannelKind) -> io::Result<Channel> {
        match kind {
            ChannelKind::Stdin(first) => {
                let input = File::from(io::stdin().as_fd().try_clone_to_owned()?);
                let mut output = File::from(io::stdout().as_fd().try_clone_to_owned()?);
                output.write_all(HELLO_MAGIC)?;
                // Unchecked, because sshd may hand out sockets where others hand out pipes.
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

    /// Waits until everything that was sent is written, and not for long once the launcher has closed
    /// its end.
    pub(crate) async fn close(self) {
        let Channel { outbox, mut writer, mut events, is_callback } = self;
        drop(outbox);
        let peer_closed = async {
            closed(&mut events).await;
            tokio::time::sleep(DRAIN_TIMEOUT).await;
        };
        tokio::select! {
            // A broken channel has been noticed by its reader already.
            _ = &mut writer => {}
            () = peer_closed => return,
        }
        if is_callback {
            // The launcher ends the connection when it has heard the end of what this end says.
            let _ = timeout(DRAIN_TIMEOUT, closed(&mut events)).await;
        }
    }
}

/// Waits until nothing arrives any more. Can be asked again.
async fn closed(events: &mut mpsc::Receiver<FrameEvent<ToAgent>>) {
    while let Some(event) = events.recv().await {
        if matches!(event, FrameEvent::Closed(_)) {
            return;
        }
    }
}
