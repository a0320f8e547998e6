//! A rank's process: its stub is spawned, its pipes are handed out, its end is read.

use crate::cleanup::cgroup::Cgroup;
use crate::node::environment::Environment;
use crate::node::open_files;
use crate::ranks::exec_rank;
use crate::ranks::prepare::Program;
use nix::sys::wait::{WaitPidFlag, WaitStatus, waitpid};
use nix::unistd::Pid;
use rlaunch_bootstrap::job::{ExitStatus, RankSetup};
use rlaunch_sys::SpawnArgs;
use std::ffi::{CString, OsStr, OsString};
use std::fs::OpenOptions;
use std::io::{self, PipeReader};
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;
use std::process::Command;
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

/// The stub's program. The path in the cache may be gone by now; the kernel's link to this executable
/// is not.
const STUB: &str = "/proc/self/exe";

/// How often the agent's own cgroup may have been killed in its life.
const MOST_KILLED: usize = 16;

/// Spawns the stub that becomes the rank: the prepared program, set up as `setup` says, with
/// exactly `env`, in a cgroup where there is one. One that takes no rank is closed.
pub(crate) fn spawn(
    program: &Program,
    setup: &RankSetup,
    env: &Environment,
    streams: Streams,
    cgroup: Option<&mut Cgroup>,
) -> io::Result<Child> {
    let (stdout, out) = io::pipe()?;
    let (stderr, err) = match streams.merged {
        true => (None, out.try_clone()?),
        false => io::pipe().map(|(stderr, err)| (Some(stderr), err))?,
    };
    let (stdin, read) = if streams.stdin {
        let (read, stdin) = io::pipe()?;
        (Some(OwnedFd::from(stdin)), OwnedFd::from(read))
    } else {
        (None, OpenOptions::new().read(true).open("/dev/null")?.into())
    };
    let known_now = |at: u32| setup.words.iter().find(|(index, _)| *index == at);
    let word = |(at, word)| known_now(at).map_or(word, |(_, word): &(u32, OsString)| word);
    let (agent, binding) = (std::process::id().to_string(), exec_rank::binding(setup));
    let files = open_files::before();
    let mut words: Vec<&OsStr> = ["__exec-rank", &agent, &binding, &files].map(OsStr::new).into();
    words.extend([program.directory.as_os_str(), program.path.as_os_str()]);
    words.extend((0..).zip(&program.argv).map(word).map(OsString::as_os_str));

    let stub = Stub { words, env, streams: [read, out.into(), err.into()] };
    let pid = match cgroup.and_then(|cgroup| stub.start_in(cgroup)) {
        Some(pid) => pid,
        None => stub.start()?,
    };
    let receiver = |end: PipeReader| pipe::Receiver::from_owned_fd(end.into());
    Ok(Child {
        pid: Pid::from_raw(pid),
        stdin: stdin.map(pipe::Sender::from_owned_fd).transpose()?,
        stdout: receiver(stdout)?,
        stderr: stderr.map(receiver).transpose()?,
    })
}

/// A stub to be started.
struct Stub<'a> {
    /// Behind its name.
    words: Vec<&'a OsStr>,
    env: &'a Environment,
    streams: [OwnedFd; 3],
}

impl Stub<'_> {
    /// Starts it in a cgroup, which is closed where that does not work.
    fn start_in(&self, cgroup: &mut Cgroup) -> Option<i32> {
        for _ in 0..MOST_KILLED {
            match self.try_start_in(cgroup) {
                Ok(pid) => return Some(pid),
                // The kernel mistakes it for one that was forked while its cgroup was killed, unless
                // both cgroups have been killed equally often.
                Err(error) if error.raw_os_error() == Some(libc::ECANCELED) => {
                    if cgroup.is_populated() {
                        break;
                    }
                    cgroup.kill();
                }
                Err(_) => break,
            }
        }
        cgroup.close();
        None
    }

    fn try_start_in(&self, cgroup: &Cgroup) -> io::Result<i32> {
        let directory = cgroup.directory().ok_or(io::ErrorKind::NotFound)?;
        let stub = CString::new(STUB)?;
        let words = std::iter::once(OsStr::new(STUB)).chain(self.words.iter().copied());
        let words: Result<Vec<_>, _> = words.map(|word| CString::new(word.as_bytes())).collect();
        let env = self
            .env
            .iter()
            .map(|(name, value)| CString::new([name.as_bytes(), b"=", value.as_bytes()].concat()));
        let env: Result<Vec<_>, _> = env.collect();
        let [stdin, stdout, stderr] = &self.streams;
        let streams = [stdin.as_fd(), stdout.as_fd(), stderr.as_fd()];
        let start = SpawnArgs { program: &stub, words: &words?, env: &env?, streams };
        rlaunch_sys::spawn_in_cgroup(&start, directory)
    }

    fn start(self) -> io::Result<i32> {
        let [stdin, stdout, stderr] = self.streams;
        let mut command = Command::new(STUB);
        command.args(self.words).env_clear().envs(self.env);
        command.stdin(stdin).stdout(stdout).stderr(stderr);
        Ok(command.spawn()?.id().cast_signed())
    }
}

/// Collects every child that has ended, adopted ones included. Of those that are found together, the
/// ones that were killed come first: the others may have ended for that.
pub(crate) fn reap() -> Vec<(Pid, ExitStatus)> {
    let mut ended = Vec::new();
    loop {
        match waitpid(None, Some(WaitPidFlag::WNOHANG | WaitPidFlag::__WALL)) {
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
