//! The agent's end of the control channel: its own stdin and stdout, or a connection to the launcher
//! where the shell gives no stdin.

use crate::network::callback::Launcher;
use crate::network::frames::{self, Arrival, Source};
use crate::network::outbox::{self, Outbox, Sink};
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
const LAST_WORDS: Duration = Duration::from_secs(1);
/// How long the launcher's first words may take to come through stdin. They were sent before this
/// process began.
const FIRST_WORDS: Duration = Duration::from_secs(3);
/// More than the first words are, in bytes.
const FIRST_CHUNK: usize = 4 << 10;

/// By what the launcher is heard.
pub(crate) enum Way {
    /// Stdin, from which this has been read.
    Stdin(Vec<u8>),
    /// Nothing comes through stdin.
    Call(Launcher),
}

impl Way {
    /// Finds out whether stdin carries anything, where there is another way. Waits for the first
    /// bytes, at most [`FIRST_WORDS`].
    pub(crate) fn find(launcher: Option<Launcher>) -> Way {
        match launcher {
            None => Way::Stdin(Vec::new()),
            Some(launcher) => match first_words(FIRST_WORDS) {
                Some(words) => Way::Stdin(words),
                None => Way::Call(launcher),
            },
        }
    }
}

/// What stdin has to say; `None` when it has ended, cannot be read, or is silent for so long.
fn first_words(patience: Duration) -> Option<Vec<u8>> {
    let mut stdin = File::from(io::stdin().as_fd().try_clone_to_owned().ok()?);
    let deadline = Instant::now() + patience;
    loop {
        let left = deadline.saturating_duration_since(Instant::now());
        let left = PollTimeout::try_from(left).unwrap_or(PollTimeout::MAX);
        match poll(&mut [PollFd::new(stdin.as_fd(), PollFlags::POLLIN)], left) {
            Err(Errno::EINTR) => {}
            Ok(0) | Err(_) => return None,
            Ok(_) => break,
        }
    }
    let mut words = vec![0; FIRST_CHUNK];
    let length = stdin.read(&mut words).ok().filter(|&length| length > 0)?;
    words.truncate(length);
    Some(words)
}

/// The open channel: frames in, frames out.
pub(crate) struct Channel {
    pub(crate) arrivals: mpsc::Receiver<Arrival<ToAgent>>,
    pub(crate) outbox: Outbox,
    writer: JoinHandle<io::Result<()>>,
    /// Whoever closes a connection before the other end has heard all may take away what is on its
    /// way.
    is_call: bool,
}

impl Channel {
    /// Takes over stdin and stdout and ends the shell's noise, or dials the launcher. Needs a
    /// runtime.
    pub(crate) async fn open(way: Way) -> io::Result<Channel> {
        match way {
            Way::Stdin(first) => {
                let input = File::from(io::stdin().as_fd().try_clone_to_owned()?);
                let mut output = File::from(io::stdout().as_fd().try_clone_to_owned()?);
                output.write_all(HELLO_MAGIC)?;
                // Unchecked, because sshd may hand out sockets where others hand out pipes.
                let input = pipe::Receiver::from_file_unchecked(input)?;
                let output = pipe::Sender::from_file_unchecked(output)?;
                Ok(Channel::of(input, first, output, false))
            }
            Way::Call(launcher) => {
                let (hearing, telling) = launcher.call().await?;
                Ok(Channel::of(hearing, Vec::new(), telling, true))
            }
        }
    }

    fn of(input: impl Source, first: Vec<u8>, output: impl Sink, is_call: bool) -> Channel {
        let (outbox, queue) = Outbox::new();
        let writer = tokio::spawn(outbox::write_all(queue, output));
        let (sender, arrivals) = mpsc::channel(64);
        tokio::spawn(frames::read_all(input, first, sender));
        Channel { arrivals, outbox, writer, is_call }
    }

    /// Waits until everything that was sent is written, and not for long once the launcher has closed
    /// its end.
    pub(crate) async fn close(self) {
        let Channel { outbox, mut writer, mut arrivals, is_call } = self;
        drop(outbox);
        let closed = async {
            gone(&mut arrivals).await;
            tokio::time::sleep(LAST_WORDS).await;
        };
        tokio::select! {
            // A broken channel has been noticed by its reader already.
            _ = &mut writer => {}
            () = closed => return,
        }
        if is_call {
            // The launcher ends the connection when it has heard the end of what this end says.
            let _ = timeout(LAST_WORDS, gone(&mut arrivals)).await;
        }
    }
}

/// Waits until nothing arrives any more. Can be asked again.
async fn gone(arrivals: &mut mpsc::Receiver<Arrival<ToAgent>>) {
    while let Some(arrival) = arrivals.recv().await {
        if matches!(arrival, Arrival::Gone(_)) {
            return;
        }
    }
}
