//! Registers and the top of the stack of a thread, copied while the thread is stopped.

use nix::sys::ptrace::{self, Options};
use nix::sys::wait::{WaitPidFlag, waitpid};
use nix::unistd::Pid;
use std::fs::File;
use std::os::unix::fs::FileExt;

/// Maximum size of the copy of a stack, in bytes. Frames further out are not seen.
const MAX_STACK: usize = 512 << 10;
/// Size of a page of memory: the end of a stack is found by reading page by page.
const PAGE: usize = 4 << 10;

/// Copy of a thread's registers and stack.
pub(super) struct Snapshot {
    pub(super) instruction: u64,
    pub(super) stack_pointer: u64,
    pub(super) frame_pointer: u64,
    stack: Vec<u8>,
}

/// Reason why a thread cannot be copied.
#[derive(Debug, thiserror::Error)]
pub(super) enum SnapshotError {
    #[error("thread {tid} waits in the kernel and cannot be stopped")]
    Unstoppable { tid: u32 },
    #[error("cannot stop thread {tid}: {cause}")]
    Stop { tid: u32, cause: nix::Error },
    #[error("cannot read the memory of process {pid}: {cause}")]
    Memory { pid: u32, cause: std::io::Error },
}

/// Stop of a thread, which goes on when this is dropped.
struct Stopped(Pid);

impl Stopped {
    /// Stops a thread without a signal that it could notice. Waits for ever for a thread that sleeps in the kernel and
    /// cannot be woken; the time limit of the whole program ends that wait.
    fn stop(tid: Pid) -> nix::Result<Stopped> {
        ptrace::seize(tid, Options::empty())?;
        let stopped = Stopped(tid);
        ptrace::interrupt(tid)?;
        waitpid(tid, Some(WaitPidFlag::__WALL))?;
        Ok(stopped)
    }
}

impl Drop for Stopped {
    fn drop(&mut self) {
        // Fails if the thread has ended.
        let _ = ptrace::detach(self.0, None);
    }
}

impl Snapshot {
    /// Copies a thread.
    pub(super) fn take(pid: u32, tid: u32) -> Result<Snapshot, SnapshotError> {
        let memory = File::open(format!("/proc/{pid}/mem"));
        let memory = memory.map_err(|cause| SnapshotError::Memory { pid, cause })?;
        let failed = |cause| SnapshotError::Stop { tid, cause };
        let thread = Pid::from_raw(tid.cast_signed());
        let stopped = Stopped::stop(thread).map_err(failed)?;
        let registers = ptrace::getregs(thread).map_err(failed)?;
        let stack = read_stack(&memory, registers.rsp);
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
