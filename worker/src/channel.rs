//! The agent's end of the control channel: its own stdin and stdout.

use crate::frames::{self, Arrival};
use crate::outbox::{self, Outbox};
use rlaunch_bootstrap::wire::{HELLO_MAGIC, ToAgent};
use std::fs::File;
use std::io::{self, Write};
use std::os::fd::AsFd;
use std::time::Duration;
use tokio::net::unix::pipe;
use tokio::sync::mpsc;
use tokio::task::JoinHandle;

/// How long what was said last may take to be written to a launcher that listens no more.
const LAST_WORDS: Duration = Duration::from_secs(1);

/// The open channel: frames in, frames out.
pub(crate) struct Channel {
    pub(crate) arrivals: mpsc::Receiver<Arrival<ToAgent>>,
    pub(crate) outbox: Outbox,
    writer: JoinHandle<io::Result<()>>,
}

impl Channel {
    /// Takes over stdin and stdout and ends the shell's noise. Needs a runtime.
    pub(crate) fn open() -> io::Result<Channel> {
        let input = File::from(io::stdin().as_fd().try_clone_to_owned()?);
        let mut output = File::from(io::stdout().as_fd().try_clone_to_owned()?);
        output.write_all(HELLO_MAGIC)?;
        // Unchecked, because sshd may hand out sockets where others hand out pipes.
        let input = pipe::Receiver::from_file_unchecked(input)?;
        let output = pipe::Sender::from_file_unchecked(output)?;

        let (outbox, queue) = Outbox::new();
        let writer = tokio::spawn(outbox::write_all(queue, output));
        let (sender, arrivals) = mpsc::channel(64);
        tokio::spawn(frames::read_all(input, sender));
        Ok(Channel { arrivals, outbox, writer })
    }

    /// Waits until everything that was sent is written, and not for long once the launcher has closed
    /// its end.
    pub(crate) async fn close(self) {
        let Channel { outbox, mut writer, mut arrivals } = self;
        drop(outbox);
        let closed = async {
            while let Some(arrival) = arrivals.recv().await {
                if matches!(arrival, Arrival::Gone(_)) {
                    break;
                }
            }
            tokio::time::sleep(LAST_WORDS).await;
        };
        tokio::select! {
            // A broken channel has been noticed by its reader already.
            _ = &mut writer => {}
            () = closed => {}
        }
    }
}
