//! `rlaunch-stack`: reads the stacks of ranks' processes, what their threads wait for, and how far they are in
//! collective operations.
//!
//! An agent starts it when a user asks where the ranks of a job are, or when the job hangs. It gets a
//! [`StackOrder`](rlaunch_bootstrap::protocol::inspection::StackOrder) on stdin, writes one answer to
//! stdout and exits. Nothing has to be installed on the host, and the ranks notice nothing but a stop
//! of a few milliseconds, from which threads are spared that sleep in system calls that it would interrupt.
//!
//! | file | subject |
//! |---|---|
//! | `order` | all processes at once, within a time limit; answers that are too large for a frame |
//! | `threads` | threads and their states, from `/proc`; reasons why a process may not be read |
//! | `threads/wait` | what a thread waits for: the system call in which it sleeps, the file behind its descriptor, the other end of a TCP connection |
//! | `python` | frames of Python |
//! | `native` | frames of native code |
//! | `collectives/` | positions in collective operations |

mod collectives;
#[cfg(target_arch = "x86_64")]
mod native;
/// Native frames on architectures where registers of another thread cannot be read.
#[cfg(not(target_arch = "x86_64"))]
mod native {
    use crate::threads::Found;
    use rlaunch_bootstrap::protocol::inspection::StackFrame;

    /// Returns the reason why there are none.
    pub(crate) fn read(_pid: u32) -> Found {
        Found::nothing(format!("native frames are not read on {}", std::env::consts::ARCH))
    }

    /// Does nothing, since there are no native frames.
    pub(crate) fn drop_interpreter(_frames: &mut [StackFrame]) {}
}
mod order;
mod python;
mod threads;

use rlaunch_bootstrap::frame::{self, FrameError, FrameReader};
use rlaunch_bootstrap::protocol::inspection::{StackOrder, StackSubject};
use std::io::{self, Read, Write};
use std::process::ExitCode;
use std::time::Duration;

/// Reason why there is no answer.
#[derive(Debug, thiserror::Error)]
enum StackError {
    #[error("cannot read the order from stdin")]
    Read(#[source] io::Error),
    #[error("the order is incomplete")]
    Incomplete,
    #[error(transparent)]
    Frame(#[from] FrameError),
    #[error("cannot write the answer to stdout")]
    Write(#[source] io::Error),
}

fn main() -> ExitCode {
    match answer() {
        // Threads that still read processes end with this one.
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            let cause = std::error::Error::source(&error).map(|cause| format!(": {cause}"));
            // An error means that the agent has gone, which is why stderr is closed.
            let _ = writeln!(io::stderr(), "{error}{}", cause.unwrap_or_default());
            ExitCode::FAILURE
        }
    }
}

fn answer() -> Result<(), StackError> {
    let mut bytes = Vec::new();
    io::stdin().lock().take(1 << 20).read_to_end(&mut bytes).map_err(StackError::Read)?;
    let mut frames = FrameReader::default();
    frames.push(&bytes);
    let order: StackOrder = frames.next_frame()?.ok_or(StackError::Incomplete)?;
    let limit = Duration::from_millis(order.limit_ms.into());
    let answer = match order.subject {
        StackSubject::Stacks { native } => {
            order::encode(order::carry_out(&order.processes, native, limit))?
        }
        StackSubject::Collectives => {
            frame::encode(&collectives::carry_out(order.processes, limit))?
        }
    };
    let mut stdout = io::stdout().lock();
    stdout.write_all(&answer).and_then(|()| stdout.flush()).map_err(StackError::Write)
}
