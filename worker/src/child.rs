//! A rank's process: its stub is spawned, its pipes are handed out, its end is read.

use crate::exec_rank;
use crate::prepare::Program;
use crate::rank_env::Environment;
use nix::sys::wait::{WaitPidFlag, WaitStatus, waitpid};
use nix::unistd::Pid;
use rlaunch_bootstrap::job::{ExitStatus, RankSetup};
use std::ffi::OsString;
use std::io;
use std::os::fd::OwnedFd;
use std::process::{Command, Stdio};
use tokio::net::unix::pipe;

/// A spawned rank and the reading ends of its streams.
pub(crate) struct Child {
    pub(crate) pid: Pid,
    pub(crate) stdout: pipe::Receiver,
    pub(crate) stderr: pipe::Receiver,
}

/// Spawns the stub that becomes the rank: the prepared program, set up as `setup` says, with
/// exactly `env`.
pub(crate) fn spawn(program: &Program, setup: &RankSetup, env: &Environment) -> io::Result<Child> {
    let known_now = |at: u32| setup.words.iter().find(|(index, _)| *index == at);
    let word = |(at, word)| known_now(at).map_or(word, |(_, word): &(u32, OsString)| word);
    // The path in the cache may be gone by now; the kernel's link to this executable is not.
    let mut child = Command::new("/proc/self/exe")
        .args(["__exec-rank", &std::process::id().to_string(), &exec_rank::binding(setup)])
        .args([program.directory.as_os_str(), program.path.as_os_str()])
        .args((0..).zip(&program.argv).map(word))
        .env_clear()
        .envs(env)
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()?;
    let missing = || io::Error::other("no pipe to the rank");
    let stdout = OwnedFd::from(child.stdout.take().ok_or_else(missing)?);
    let stderr = OwnedFd::from(child.stderr.take().ok_or_else(missing)?);
    Ok(Child {
        pid: Pid::from_raw(child.id().cast_signed()),
        stdout: pipe::Receiver::from_owned_fd(stdout)?,
        stderr: pipe::Receiver::from_owned_fd(stderr)?,
    })
}

/// Collects every child that has ended, adopted ones included. Of those that are found together, the
/// ones that were killed come first: the others may have ended for that.
pub(crate) fn reap() -> Vec<(Pid, ExitStatus)> {
    let mut ended = Vec::new();
    loop {
        match waitpid(None, Some(WaitPidFlag::WNOHANG)) {
            Ok(WaitStatus::Exited(pid, code)) => ended.push((pid, ExitStatus::Code(code))),
            Ok(WaitStatus::Signaled(pid, signal, _)) => {
                ended.push((pid, ExitStatus::Signal(signal as i32)));
            }
            Ok(WaitStatus::StillAlive) | Err(_) => break,
            Ok(_) => {}
        }
    }
    ended.sort_by_key(|(_, status)| matches!(status, ExitStatus::Code(_)));
    ended
}
