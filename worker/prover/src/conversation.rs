//! Frames from the agent and to it, over stdin and stdout.

use rlaunch_bootstrap::protocol::control::{FrameError, FrameReader, encode};
use rlaunch_bootstrap::protocol::mesh::{FromProver, ToProver};
use std::io::{self, Read, Write};
use std::process;
use std::sync::mpsc::{Receiver, RecvTimeoutError, channel};
use std::thread;
use std::time::Duration;

/// As much as is read at once.
const CHUNK: usize = 64 << 10;

/// Why the agent cannot be talked with.
#[derive(Debug, thiserror::Error)]
pub(crate) enum ConversationError {
    /// A frame that is none, or cannot be made.
    #[error(transparent)]
    Frame(#[from] FrameError),
    /// Its end cannot be read from or written to.
    #[error("the agent's pipe")]
    Pipe(#[from] io::Error),
    /// A frame at another time than its own.
    #[error("{0} was not expected now")]
    Order(&'static str),
}

/// After the agent is gone, for whatever is being done at that moment.
const GRACE: Duration = Duration::from_millis(200);

/// What the agent says.
#[derive(Debug)]
pub(crate) struct Inbox(Receiver<Result<Heard, ConversationError>>);

/// What there is to know.
#[derive(Debug)]
pub(crate) enum Heard {
    /// The agent has said this.
    Frame(ToProver),
    /// It has said nothing for so long.
    Nothing,
    /// It is gone.
    End,
}

impl Inbox {
    /// Begins to read. When the agent is gone this process ends soon, whatever it does at that
    /// moment: the kernel closes what it has open.
    pub(crate) fn open() -> Inbox {
        let (tell, inbox) = channel();
        thread::spawn(move || {
            let ended = read_frames(|frame| tell.send(Ok(Heard::Frame(frame))).is_ok());
            // When nobody listens any more, the process is about to end as well.
            let _ = tell.send(ended.map(|()| Heard::End));
            thread::sleep(GRACE);
            process::exit(0);
        });
        Inbox(inbox)
    }

    /// What there is to know within `patience`.
    pub(crate) fn next(&self, patience: Option<Duration>) -> Result<Heard, ConversationError> {
        let heard = match patience {
            Some(patience) => self.0.recv_timeout(patience),
            None => self.0.recv().map_err(RecvTimeoutError::from),
        };
        match heard {
            Ok(heard) => heard,
            Err(RecvTimeoutError::Timeout) => Ok(Heard::Nothing),
            Err(RecvTimeoutError::Disconnected) => Ok(Heard::End),
        }
    }
}

/// Reads until the end of stdin, or until nobody wants more.
fn read_frames(mut take: impl FnMut(ToProver) -> bool) -> Result<(), ConversationError> {
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

/// Tells the agent something.
pub(crate) fn say(frame: &FromProver) -> Result<(), ConversationError> {
    let mut output = io::stdout().lock();
    output.write_all(&encode(frame)?)?;
    output.flush()?;
    Ok(())
}
