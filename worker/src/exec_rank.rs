//! `__exec-rank`: a fresh process of one thread that arranges itself and becomes a rank.
//!
//! What must happen between fork and exec happens here instead, as ordinary code with ordinary
//! errors, and can be tried by hand:
//!
//! ```text
//! rlaunch-worker __exec-rank PARENT-PID DIRECTORY PROGRAM ARGV0 [ARG…]
//! ```
//!
//! The environment is the rank's already, stdin, stdout and stderr are too.

use crate::say::complain;
use nix::sys::prctl;
use nix::sys::signal::Signal;
use nix::unistd::{Pid, getppid, setsid};
use std::ffi::OsString;
use std::io;
use std::os::unix::process::CommandExt;
use std::process::{Command, ExitCode};

/// Becomes the rank; returns only when that fails, with the shell's codes for it.
pub(crate) fn exec(mut args: impl Iterator<Item = OsString>) -> ExitCode {
    let parent = args.next().and_then(|pid| pid.to_str()?.parse().ok()).map(Pid::from_raw);
    let (Some(parent), Some(directory), Some(program), Some(argv0)) =
        (parent, args.next(), args.next(), args.next())
    else {
        complain!("rlaunch-worker: __exec-rank PARENT-PID DIRECTORY PROGRAM ARGV0 [ARG…]");
        return ExitCode::from(2);
    };
    if let Err(error) = arrange(parent) {
        complain!("rlaunch: cannot set up the rank: {error}");
        return ExitCode::from(126);
    }
    if let Err(error) = std::env::set_current_dir(&directory) {
        complain!("rlaunch: cannot enter {}: {error}", directory.display());
        return ExitCode::from(126);
    }
    let error = Command::new(&program).arg0(argv0).args(args).exec();
    complain!("rlaunch: cannot execute {}: {error}", program.display());
    ExitCode::from(if error.kind() == io::ErrorKind::NotFound { 127 } else { 126 })
}

/// A session of its own, and death with the agent.
fn arrange(parent: Pid) -> io::Result<()> {
    setsid()?;
    prctl::set_pdeathsig(Signal::SIGKILL)?;
    // The agent may have died before the line above took effect.
    if getppid() != parent {
        return Err(io::Error::other("the agent is gone"));
    }
    Ok(())
}
