//! A rank's process: its stub is spawned, its pipes are handed out, its end is read.

use crate::exec_rank;
use crate::open_files;
use crate::prepare::Program;
use crate::rank_env::Environment;
use nix::sys::wait::{WaitPidFlag, WaitStatus, waitpid};
use nix::unistd::Pid;
use rlaunch_bootstrap::job::{ExitStatus, RankSetup};
use std::ffi::OsString;
use std::io::{self, PipeReader};
use std::os::fd::OwnedFd;
use std::process::{Command, Stdio};
use tokio::net::unix::pipe;

/// A spawned rank and this end of its streams.
pub(crate) struct Child {
    pub(crate) pid: Pid,
    /// `None` where it has nothing to read.
    pub(crate) stdin: Option<pipe::Sender>,
    pub(crate) stdout: pipe::Receiver,
    /// `None` where all that it writes comes by stdout.
    pub(crate) stderr: Option<pipe::Receiver>,
}

/// What a rank's streams are.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Streams {
    /// It reads standard input, not /dev/null.
    pub(crate) stdin: bool,
    /// Its stderr is its stdout, so that the order of what it writes is kept.
    pub(crate) merged: bool,
}

/// Spawns the stub that becomes the rank: the prepared program, set up as `setup` says, with
/// exactly `env`.
pub(crate) fn spawn(
    program: &Program,
    setup: &RankSetup,
    env: &Environment,
    streams: Streams,
) -> io::Result<Child> {
    let (stdout, out) = io::pipe()?;
    let (stderr, err) = match streams.merged {
        true => (None, out.try_clone()?),
        false => io::pipe().map(|(stderr, err)| (Some(stderr), err))?,
    };
    let known_now = |at: u32| setup.words.iter().find(|(index, _)| *index == at);
    let word = |(at, word)| known_now(at).map_or(word, |(_, word): &(u32, OsString)| word);
    // The path in the cache may be gone by now; the kernel's link to this executable is not.
    let mut child = Command::new("/proc/self/exe")
        .args(["__exec-rank", &std::process::id().to_string(), &exec_rank::binding(setup)])
        .arg(open_files::before())
        .args([program.directory.as_os_str(), program.path.as_os_str()])
        .args((0..).zip(&program.argv).map(word))
        .env_clear()
        .envs(env)
        .stdin(if streams.stdin { Stdio::piped() } else { Stdio::null() })
        .stdout(out)
        .stderr(err)
        .spawn()?;
    let stdin = child.stdin.take().map(OwnedFd::from);
    let receiver = |end: PipeReader| pipe::Receiver::from_owned_fd(end.into());
    Ok(Child {
        pid: Pid::from_raw(child.id().cast_signed()),
        stdin: stdin.map(pipe::Sender::from_owned_fd).transpose()?,
        stdout: receiver(stdout)?,
        stderr: stderr.map(receiver).transpose()?,
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
