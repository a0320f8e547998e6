//! A rank's process: spawning it through its stub (`exec_rank.rs`), its pipes, and its exit status.

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
use std::path::Path;
use std::process::Command;
use tokio::net::unix::pipe;

/// Spawned rank, with the agent's ends of its streams.
pub(crate) struct Child {
    pub(crate) pid: Pid,
    /// `None` if the rank's stdin is /dev/null.
    pub(crate) stdin: Option<pipe::Sender>,
    pub(crate) stdout: pipe::Receiver,
    /// `None` if the rank's stderr is merged into its stdout.
    pub(crate) stderr: Option<pipe::Receiver>,
}

/// Choice of streams for a rank.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Streams {
    /// Whether the rank reads the job's standard input; otherwise it reads /dev/null.
    pub(crate) stdin: bool,
    /// Whether the rank's stderr goes to the pipe of its stdout, which keeps the order of what the
    /// rank writes.
    pub(crate) merged: bool,
}

/// Path of the stub's executable, which is the agent's own. The agent's file in the cache may have
/// been removed, but this link still leads to the content.
const STUB: &str = "/proc/self/exe";

/// Maximum number of attempts to start a stub in the cgroup. If the agent's own cgroup was killed N
/// times before, the first N attempts fail.
const MAX_CGROUP_ATTEMPTS: usize = 16;

/// Spawns the stub that becomes a rank: it runs `program` as `setup` says, with exactly the
/// variables `env`.
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
    let known_now = |at: u32| setup.rendered_args.iter().find(|(index, _)| *index == at);
    let argument = |(at, word)| known_now(at).map_or(word, |(_, word): &(u32, OsString)| word);
    let words = StubWords::new("__exec-rank", setup);
    let mut args = words.before(&program.directory);
    args.push(program.path.as_os_str());
    args.extend((0..).zip(&program.argv).map(argument).map(OsString::as_os_str));

    let stub = Stub { args, env, streams: [read, out.into(), err.into()] };
    let pid = stub.launch(cgroup)?;
    let receiver = |end: PipeReader| pipe::Receiver::from_owned_fd(end.into());
    Ok(Child {
        pid,
        stdin: stdin.map(pipe::Sender::from_owned_fd).transpose()?,
        stdout: receiver(stdout)?,
        stderr: stderr.map(receiver).transpose()?,
    })
}

/// First words of a stub's command line.
pub(super) struct StubWords([String; 4]);

impl StubWords {
    /// Makes the words for the stub with this verb. `setup` has the binding to CPUs and memory.
    pub(super) fn new(verb: &str, setup: &RankSetup) -> StubWords {
        let agent = std::process::id().to_string();
        StubWords([verb.into(), agent, exec_rank::binding(setup), open_files::original()])
    }

    /// Returns the words, up to the working directory.
    pub(super) fn before<'a>(&'a self, directory: &'a Path) -> Vec<&'a OsStr> {
        let words = self.0.iter().map(OsStr::new);
        words.chain([directory.as_os_str()]).collect()
    }
}

/// Stub that is to be started.
pub(super) struct Stub<'a> {
    /// Arguments of the stub, without its name.
    pub(super) args: Vec<&'a OsStr>,
    pub(super) env: &'a Environment,
    pub(super) streams: [OwnedFd; 3],
}

impl Stub<'_> {
    /// Starts the stub in the cgroup, if there is one. If that fails, closes the cgroup and starts
    /// the stub outside.
    pub(super) fn launch(self, cgroup: Option<&mut Cgroup>) -> io::Result<Pid> {
        let pid = match cgroup.and_then(|cgroup| self.start_in(cgroup)) {
            Some(pid) => pid,
            None => self.start()?,
        };
        Ok(Pid::from_raw(pid))
    }

    /// Starts the stub in the cgroup and returns its process id. If that fails, returns `None` and
    /// gives up on the cgroup ([`Cgroup::close`]): later ranks start outside it too.
    fn start_in(&self, cgroup: &mut Cgroup) -> Option<i32> {
        for _ in 0..MAX_CGROUP_ATTEMPTS {
            match self.try_start_in(cgroup) {
                Ok(pid) => return Some(pid),
                // The kernel takes the child for one that was forked while its cgroup was being
                // killed, until the new cgroup has been killed as often as the agent's own.
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
        let args = std::iter::once(OsStr::new(STUB)).chain(self.args.iter().copied());
        let args: Result<Vec<_>, _> = args.map(|arg| CString::new(arg.as_bytes())).collect();
        let env = self
            .env
            .iter()
            .map(|(name, value)| CString::new([name.as_bytes(), b"=", value.as_bytes()].concat()));
        let env: Result<Vec<_>, _> = env.collect();
        let [stdin, stdout, stderr] = &self.streams;
        let streams = [stdin.as_fd(), stdout.as_fd(), stderr.as_fd()];
        let spawn_args = SpawnArgs { program: &stub, args: &args?, env: &env?, streams };
        rlaunch_sys::spawn_in_cgroup(&spawn_args, directory)
    }

    fn start(self) -> io::Result<i32> {
        let [stdin, stdout, stderr] = self.streams;
        let mut command = Command::new(STUB);
        command.args(self.args).env_clear().envs(self.env);
        command.stdin(stdin).stdout(stdout).stderr(stderr);
        Ok(command.spawn()?.id().cast_signed())
    }
}

/// Reaps all children that have ended, including adopted ones. Children killed by a signal come
/// first in the result, because the other children may have ended as a consequence.
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
