//! Frames from the agent (stdin) and to the agent (stdout).

use rlaunch_bootstrap::protocol::control::{FrameError, FrameReader, encode};
use rlaunch_bootstrap::protocol::mesh::{FromProver, ToProver};
use std::io::{self, Read, Write};
use std::sync::mpsc::{Receiver, RecvTimeoutError, channel};
use std::time::Duration;
use std::{process, thread};

/// Size of reads from stdin, in bytes.
const CHUNK: usize = 64 << 10;

/// Failure of the communication with the agent, after which the prover exits.
#[derive(Debug, thiserror::Error)]
pub(crate) enum PipeError {
    /// A frame cannot be encoded or decoded.
    #[error(transparent)]
    Frame(#[from] FrameError),
    /// stdin cannot be read, or stdout cannot be written.
    #[error("cannot use the pipe to the agent: {0}")]
    Pipe(#[from] io::Error),
    /// A frame that the protocol does not allow in the current stage.
    #[error("unexpected frame {0}")]
    Order(&'static str),
}

/// Time that the main thread has to exit by itself after stdin has closed.
const GRACE: Duration = Duration::from_millis(200);

/// Receiver of the agent's frames, which a thread reads from stdin.
#[derive(Debug)]
pub(crate) struct AgentInput(Receiver<Result<Input, PipeError>>);

/// Result of waiting for a frame.
#[derive(Debug)]
pub(crate) enum Input {
    Frame(ToProver),
    /// No frame arrived before the timeout.
    Timeout,
    /// stdin has closed: the agent is gone.
    Closed,
}

impl AgentInput {
    /// Starts the reading thread. When stdin closes, that thread ends the process after [`GRACE`],
    /// even if the main thread is blocked in an RDMA verb; the kernel then destroys the queue
    /// pairs.
    pub(crate) fn open() -> AgentInput {
        let (sender, receiver) = channel();
        thread::spawn(move || {
            let result = read_frames(|frame| sender.send(Ok(Input::Frame(frame))).is_ok());
            // Fails only if the main thread has dropped the receiver because the process is
            // exiting.
            let _ = sender.send(result.map(|()| Input::Closed));
            thread::sleep(GRACE);
            process::exit(0);
        });
        AgentInput(receiver)
    }

    /// Waits for the next frame, without limit if `timeout` is `None`.
    pub(crate) fn next(&self, timeout: Option<Duration>) -> Result<Input, PipeError> {
        let received = match timeout {
            Some(timeout) => self.0.recv_timeout(timeout),
            None => self.0.recv().map_err(RecvTimeoutError::from),
        };
        match received {
            Ok(input) => input,
            Err(RecvTimeoutError::Timeout) => Ok(Input::Timeout),
            Err(RecvTimeoutError::Disconnected) => Ok(Input::Closed),
        }
    }
}

/// Reads frames until stdin closes or `take` returns false.
fn read_frames(mut take: impl FnMut(ToProver) -> bool) -> Result<(), PipeError> {
    let (mut input, mut frames) = (io::stdin().lock(), FrameReader::default());
    let mut chunk = vec![0; CHUNK];
    loop {
        match input.read(&mut chunk) {
            Ok(0) => return Ok(()),
            Ok(length) => frames.push(&chunk[..length]),
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(error) => return Err(error.into()),
        }
        while let Some(frame) = frames.next_frame()? {
            if !take(frame) {
                return Ok(());
            }
        }
    }
}

/// Sends a frame to the agent.
pub(crate) fn send(frame: &FromProver) -> Result<(), PipeError> {
    let mut output = io::stdout().lock();
    output.write_all(&encode(frame)?)?;
    output.flush()?;
    Ok(())
}
