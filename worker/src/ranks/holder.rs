//! What stands between the agent and a command beside a rank:
//!
//! ```text
//! agent ── front ── holder ── command ── …
//! ```
//!
//! The holder is a subreaper, so that what the command starts stays below it: also a daemon that has called setsid, has
//! lost its parents and has cleared its environment. It ends when all of that has ended. The agent learns how the command
//! has ended from a child of its own, the front, which ends at once with the command's exit code.

use crate::cleanup::processes::{self, Children};
use nix::sys::prctl;
use nix::sys::signal::{SigSet, SigmaskHow, Signal, kill};
use nix::sys::wait::{WaitStatus, waitpid};
use nix::unistd::{Pid, dup2_stderr, dup2_stdin, dup2_stdout, getppid};
use rlaunch_bootstrap::job::ExitStatus;
use rlaunch_sys::Fork;
use std::ffi::CStr;
use std::fs::OpenOptions;
use std::io::{self, PipeReader, PipeWriter, Read, Write};
use std::process::ExitCode;

/// Name of the processes of fronts and holders. They need no signal: they end with what is below them.
pub(super) const HOLDER: &CStr = c"rlaunch-holder";
/// Signal by which the kernel tells the holder that its front has ended.
const FRONT_ENDED: Signal = Signal::SIGUSR1;

/// Puts a front and a holder between this process, a stub, and `agent`. Returns `None` in a new process, which is to become
/// the command, and the exit code in the others, when they are over.
pub(super) fn hold(agent: Pid) -> io::Result<Option<ExitCode>> {
    let (from_holder, to_front) = io::pipe()?;
    let before = SigSet::all().thread_swap_mask(SigmaskHow::SIG_SETMASK)?;
    // The front ends with the agent, and its holder then ends the command.
    prctl::set_pdeathsig(Signal::SIGKILL)?;
    if getppid() != agent {
        return Err(io::Error::other("the agent is gone"));
    }
    let front = Pid::this();
    if let Fork::Parent(holder) = rlaunch_sys::fork()? {
        drop(to_front);
        return Ok(Some(stand_in_front(from_holder, Pid::from_raw(holder))));
    }
    drop(from_holder);
    prctl::set_pdeathsig(FRONT_ENDED)?;
    prctl::set_child_subreaper(true)?;
    if getppid() != front {
        return Err(io::Error::other("the agent is gone"));
    }
    match rlaunch_sys::fork()? {
        Fork::Parent(command) => {
            hold_until_empty(Pid::from_raw(command), to_front);
            Ok(Some(ExitCode::SUCCESS))
        }
        Fork::Child => {
            before.thread_set_mask()?;
            Ok(None)
        }
    }
}

/// Waits until the command has ended, and returns its exit code as shells do.
fn stand_in_front(mut from_holder: PipeReader, holder: Pid) -> ExitCode {
    release_streams();
    let mut code = [0];
    if from_holder.read_exact(&mut code).is_ok() {
        return code[0].into();
    }
    // The holder could not start the command, or was killed.
    match waitpid(holder, None) {
        Ok(WaitStatus::Exited(_, code)) => u8::try_from(code).unwrap_or(1).into(),
        _ => exit_code(ExitStatus::Signal(Signal::SIGKILL as i32)).into(),
    }
}

/// Waits until the command and all that it has started have ended. Tells the front of the command's end.
fn hold_until_empty(command: Pid, to_front: PipeWriter) {
    release_streams();
    let mut to_front = Some(to_front);
    let awaited: SigSet = [Signal::SIGCHLD, FRONT_ENDED].into_iter().collect();
    while Children::now() != Children::None {
        // Both are blocked, so that none is lost.
        let signal = awaited.wait();
        if signal == Ok(FRONT_ENDED) && to_front.is_some() {
            let _ = kill(command, Signal::SIGTERM);
        }
        let ended = processes::reap().into_iter().find(|(pid, _)| *pid == command);
        if let Some((_, status)) = ended
            && let Some(mut to_front) = to_front.take()
        {
            // Fails if the front was killed.
            let _ = to_front.write_all(&[exit_code(status)]);
        }
    }
}

/// Returns the exit code that shells use for how a process has ended.
fn exit_code(status: ExitStatus) -> u8 {
    let code = match status {
        ExitStatus::Code(code) => code & 0xff,
        ExitStatus::Signal(signal) => 128 + signal,
    };
    u8::try_from(code).unwrap_or(1)
}

/// Names this process, and leaves the streams to the command, so that they close with it.
fn release_streams() {
    let _ = prctl::set_name(HOLDER);
    if let Ok(null) = OpenOptions::new().read(true).write(true).open("/dev/null") {
        let _ = dup2_stdin(&null);
        let _ = dup2_stdout(&null);
        let _ = dup2_stderr(&null);
    }
}
