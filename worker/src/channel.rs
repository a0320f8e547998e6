//! The agent's end of the control channel: its own stdin and stdout.

use crate::outbox::{self, Outbox};
use rlaunch_bootstrap::wire::{FrameReader, HELLO_MAGIC, ToAgent};
use std::fs::File;
use std::io::{self, Write};
use std::os::fd::AsFd;
use tokio::io::AsyncReadExt;
use tokio::net::unix::pipe;
use tokio::sync::mpsc;
use tokio::task::JoinHandle;

/// What arrives from the launcher.
#[derive(Debug)]
pub(crate) enum Arrival {
    Message(ToAgent),
    /// The channel ended, and how it was noticed.
    Gone(String),
}

/// The open channel: frames in, frames out.
pub(crate) struct Channel {
    pub(crate) arrivals: mpsc::Receiver<Arrival>,
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
        tokio::spawn(read_all(input, sender));
        Ok(Channel { arrivals, outbox, writer })
    }

    /// Waits until everything that was sent is written.
    pub(crate) async fn close(self) {
        let Channel { outbox, writer, arrivals } = self;
        drop((outbox, arrivals));
        // A broken channel has been noticed by its reader already.
        let _ = writer.await;
    }
}

async fn read_all(mut input: pipe::Receiver, arrivals: mpsc::Sender<Arrival>) {
    let gone = read_frames(&mut input, &arrivals).await;
    // Nobody listens any more once the agent is leaving.
    let _ = arrivals.send(Arrival::Gone(gone)).await;
}

/// Reads until the channel ends, and says how it did.
async fn read_frames(input: &mut pipe::Receiver, arrivals: &mpsc::Sender<Arrival>) -> String {
    let mut frames = FrameReader::default();
    let mut buffer = vec![0; 64 << 10];
    loop {
        match input.read(&mut buffer).await {
            Ok(0) => return "end of stdin".to_owned(),
            Ok(length) => frames.push(&buffer[..length]),
            Err(error) => return format!("cannot read stdin: {error}"),
        }
        loop {
            match frames.next_frame() {
                Ok(Some(message)) => {
                    if arrivals.send(Arrival::Message(message)).await.is_err() {
                        return "closing".to_owned();
                    }
                }
                Ok(None) => break,
                Err(error) => return error.to_string(),
            }
        }
    }
}
