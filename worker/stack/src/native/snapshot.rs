//! Copies of the registers and the stack of a thread.

use crate::threads::{self, Sleep};
use nix::sys::ptrace;
use nix::unistd::Pid;
use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt;

/// Maximum size of the copy of a stack, in bytes. Frames further out are not seen.
const MAX_STACK: usize = 512 << 10;
/// Size of a page of memory: the end of a stack is found by reading page by page.
const PAGE: usize = 4 << 10;

/// Frame pointer of a thread that has not been stopped: an address where no stack is, so that a frame that needs it
/// cannot be unwound.
pub(super) const UNKNOWN: u64 = 0xdead << 48;

/// Copy of a thread's registers and stack.
pub(super) struct Snapshot {
    pub(super) instruction: u64,
    pub(super) stack_pointer: u64,
    /// May be [`UNKNOWN`].
    pub(super) frame_pointer: u64,
    pub(super) stack: Vec<u8>,
}

/// Reason why a thread cannot be copied.
#[derive(Debug, thiserror::Error)]
pub(super) enum SnapshotError {
    #[error("thread {tid} waits in the kernel and cannot be stopped")]
    Unstoppable { tid: u32 },
    #[error("cannot read the system call of thread {tid}: {cause}")]
    Call { tid: u32, cause: io::Error },
    #[error("thread {tid} woke each time that it was read")]
    Wakes { tid: u32 },
    #[error("cannot stop thread {tid}: {cause}")]
    Stop { tid: u32, cause: io::Error },
}

impl Snapshot {
    /// Copies a thread that sleeps, and may wake meanwhile.
    pub(super) fn of_sleeper(memory: &File, sleep: &Sleep) -> Snapshot {
        let (instruction, stack_pointer) = sleep.registers();
        let stack = read_stack(memory, stack_pointer);
        Snapshot { instruction, stack_pointer, frame_pointer: UNKNOWN, stack }
    }

    /// Stops and copies a thread.
    pub(super) fn take(memory: &File, tid: u32) -> Result<Snapshot, SnapshotError> {
        let failed = |cause| SnapshotError::Stop { tid, cause };
        let stopped = threads::stop(tid).map_err(failed)?;
        let registers = ptrace::getregs(Pid::from_raw(tid.cast_signed()));
        let registers = registers.map_err(|cause| failed(cause.into()))?;
        let stack = read_stack(memory, registers.rsp);
        drop(stopped);
        let (instruction, stack_pointer) = (registers.rip, registers.rsp);
        Ok(Snapshot { instruction, stack_pointer, frame_pointer: registers.rbp, stack })
    }

    /// Returns the 8 bytes at an address of the stack.
    pub(super) fn word(&self, address: u64) -> Option<u64> {
        let at = usize::try_from(address.checked_sub(self.stack_pointer)?).ok()?;
        let bytes = self.stack.get(at..at.checked_add(8)?)?;
        Some(u64::from_ne_bytes(bytes.try_into().ok()?))
    }
}

/// Reads from an address to the end of the mapped memory.
fn read_stack(memory: &File, from: u64) -> Vec<u8> {
    let mut stack = Vec::new();
    let in_page = usize::try_from(from).unwrap_or_default() % PAGE;
    let mut part = PAGE - in_page;
    while stack.len() < MAX_STACK {
        let at = stack.len();
        stack.resize(at + part, 0);
        let address = from.saturating_add(at as u64);
        if memory.read_exact_at(&mut stack[at..], address).is_err() {
            stack.truncate(at);
            break;
        }
        part = PAGE;
    }
    stack
}
