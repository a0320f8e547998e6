//! Processes of ranks, from their start to their exit status.
//!
//! * *Start and end.* [`spawn`] starts the agent's own executable again as a stub, in the job's
//!   cgroup if there is one.
//! * *The stub*, [`exec`], is a single-threaded process that sets itself up and becomes the rank.
//!   What would otherwise run between fork and exec is ordinary code with ordinary errors there,
//!   and can be tried by hand:
//!
//!   ```text
//!   rlaunch-worker __exec-rank PARENT-PID CPUS/NODE FILES DIRECTORY PROGRAM ARGV0 [ARG…]
//!   ```
//!
//!   CPUS is a list like `0-3,8`, NODE the preferred NUMA node for memory, FILES the soft limit of
//!   open files; each may be empty. The environment, stdin, stdout and stderr are those of the rank
//!   already. `__exec-beside` has the same arguments and becomes a command in the place of a
//!   running rank: the leader of a session of its own, whose terminal is stdin if that is one, below
//!   a process that holds what it starts ([`holder`](crate::ranks::holder)).
//! * *Limit of open files.* The agent raises its own, since a rank takes three pipes and at least
//!   one connection, and the usual soft limit of 1024 is too low for a node of many ranks. The stub
//!   restores the original limit, because programs that use select(2) fail with descriptors above
//!   1023.

use crate::cleanup::cgroup::Cgroup;
use crate::console::errln;
use crate::node::elf;
use crate::node::environment::Environment;
use crate::ranks::holder;
use crate::ranks::prepare::Program;
use crate::ranks::pseudoterminal::{Pseudoterminal, RankStdout};
use crate::ranks::stream_ends::{InputEnd, OutputEnd};
use nix::sched::{CpuSet, sched_setaffinity};
use nix::sys::prctl;
use nix::sys::resource::{Resource, getrlimit, setrlimit};
use nix::sys::signal::Signal;
use nix::unistd::{Pid, getppid, setpgid, setsid};
use rlaunch_bootstrap::job::{RankSetup, TerminalSize};
use rlaunch_sys::SpawnArgs;
use std::env::consts::ARCH;
use std::ffi::{CString, OsStr, OsString};
use std::fs::{File, OpenOptions};
use std::io::{self, IsTerminal, Read};
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::{Command, ExitCode};
use std::sync::OnceLock;

/// Spawned rank, with the agent's ends of its streams.
pub(crate) struct Child {
    pub(crate) pid: Pid,
    /// `None` if the rank's stdin is /dev/null.
    pub(crate) stdin: Option<InputEnd>,
    pub(crate) stdout: OutputEnd,
    /// `None` if the rank's stderr is merged into its stdout.
    pub(crate) stderr: Option<OutputEnd>,
}

impl Child {
    /// Returns the agent's end of the pseudoterminal, once more; `None` if the rank's stdout is a pipe.
    pub(super) fn terminal(&self) -> Option<OwnedFd> {
        let stdout = self.stdout.as_fd();
        stdout.is_terminal().then(|| stdout.try_clone_to_owned().ok()).flatten()
    }
}

/// Choice of streams for a rank.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Streams {
    /// Whether the rank reads the job's standard input; otherwise it reads /dev/null.
    pub(crate) stdin: bool,
    pub(crate) stdout: RankStdout,
    /// Whether the rank's stderr goes where its stdout goes, which keeps the order of what the
    /// rank writes.
    pub(crate) merged: bool,
}

impl RankStdout {
    /// Opens it, and returns the agent's end and the rank's.
    fn open(self) -> io::Result<(OutputEnd, OwnedFd)> {
        match self {
            RankStdout::Pipe => open_pipe(),
            RankStdout::TerminalOrPipe(size) => open_terminal(size).or_else(|_| open_pipe()),
            RankStdout::Terminal(size) => open_terminal(size).map_err(|error| {
                io::Error::other(format!("cannot open a pseudoterminal for its stdout: {error}"))
            }),
        }
    }
}

fn open_pipe() -> io::Result<(OutputEnd, OwnedFd)> {
    let (reader, writer) = io::pipe()?;
    Ok((OutputEnd::new(reader)?, writer.into()))
}

fn open_terminal(size: TerminalSize) -> io::Result<(OutputEnd, OwnedFd)> {
    let Pseudoterminal { master, slave } = Pseudoterminal::open_raw(size)?;
    Ok((OutputEnd::new(master)?, slave))
}

/// Path of the stub's executable, which is the agent's own. The agent's file in the cache may have
/// been removed, but this link still leads to the content.
const STUB: &str = "/proc/self/exe";
/// Number of bytes in which shells look for the first line of a script.
const HEAD: usize = 256;

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
    let (stdout, out) = streams.stdout.open()?;
    let (stderr, err) = if streams.merged {
        (None, out.try_clone()?)
    } else {
        open_pipe().map(|(stderr, err)| (Some(stderr), err))?
    };
    let (stdin, read) = if streams.stdin {
        let (read, stdin) = io::pipe()?;
        (Some(InputEnd::new(stdin)?), OwnedFd::from(read))
    } else {
        (None, OpenOptions::new().read(true).open("/dev/null")?.into())
    };
    let words = StubWords::new("__exec-rank", setup);
    let mut args = words.before(&program.directory);
    args.push(program.path.as_os_str());
    args.extend(arguments(&program.argv, &setup.rendered_args));

    let stub = Stub { args, env, streams: [read, out, err] };
    let pid = stub.launch(cgroup)?;
    Ok(Child { pid, stdin, stdout, stderr })
}

/// Returns a rank's arguments. Those that were templates are in `rendered`, with their places, and left out if nothing has
/// come of them; the others are as they were given.
fn arguments<'a>(
    given: &'a [OsString],
    rendered: &'a [(u32, OsString)],
) -> impl Iterator<Item = &'a OsStr> {
    let argument = move |(at, given): (u32, &'a OsString)| {
        let word = rendered.iter().find(|(place, _)| *place == at);
        word.map_or(Some(given), |(_, word)| Some(word).filter(|word| !word.is_empty()))
    };
    (0..).zip(given).filter_map(argument).map(OsString::as_os_str)
}

/// First words of a stub's command line.
pub(super) struct StubWords([String; 4]);

impl StubWords {
    /// Makes the words for the stub with this verb. `setup` has the binding to CPUs and memory.
    pub(super) fn new(verb: &str, setup: &RankSetup) -> StubWords {
        let agent = std::process::id().to_string();
        StubWords([verb.into(), agent, encode_binding(setup), original_open_files()])
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
        Ok(rlaunch_sys::spawn(&mut command)?.id().cast_signed())
    }
}

// The stub.

/// Program that the stub becomes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum StubKind {
    Rank,
    /// Command in the place of a running rank.
    Beside,
}

/// Arguments of the stub before those of its program.
struct StubArgs {
    parent: Pid,
    setup: RankSetup,
    /// Soft limit of open files, as [`restore_open_files`] takes it.
    files: String,
    directory: OsString,
    program: OsString,
    argv0: OsString,
}

impl StubArgs {
    fn parse(args: &mut impl Iterator<Item = OsString>) -> Option<StubArgs> {
        Some(StubArgs {
            parent: Pid::from_raw(args.next()?.to_str()?.parse().ok()?),
            setup: parse_binding(args.next()?.to_str()?)?,
            files: args.next()?.into_string().ok()?,
            directory: args.next()?,
            program: args.next()?,
            argv0: args.next()?,
        })
    }
}

/// Becomes the rank or the command. Returns only if that fails, with the exit code that a shell
/// would use: 127 if the program does not exist, else 126; and in a command's front and holder.
pub(crate) fn exec(kind: StubKind, mut args: impl Iterator<Item = OsString>) -> ExitCode {
    let Some(stub) = StubArgs::parse(&mut args) else {
        errln!(
            "rlaunch-worker: __exec-rank PARENT-PID CPUS/NODE FILES DIRECTORY PROGRAM ARGV0 [ARG…]"
        );
        return ExitCode::from(2);
    };
    let StubArgs { parent, setup, files, directory, program, argv0 } = stub;
    let held = match kind {
        StubKind::Rank => Ok(None),
        StubKind::Beside => holder::hold(parent),
    };
    let set_up = match held {
        Ok(Some(code)) => return code,
        Ok(None) => set_up_process(kind, parent).and_then(|()| bind(&setup)),
        Err(error) => Err(error),
    };
    if let Err(error) = set_up.and_then(|()| restore_open_files(&files)) {
        errln!("rlaunch: cannot set up the process: {error}");
        return ExitCode::from(126);
    }
    if let Err(error) = std::env::set_current_dir(&directory) {
        errln!("rlaunch: cannot enter {}: {error}", directory.display());
        return ExitCode::from(126);
    }
    // An emulator may be registered for another machine (binfmt_misc). What the kernel does not know,
    // execvp(3) would hand to a shell, which executes the bytes of a binary as if they were commands.
    let error = if is_binary(Path::new(&program)) {
        exec_binary(&program, argv0, args)
    } else {
        Command::new(&program).arg0(argv0).args(args).exec()
    };
    let is_unknown = error.raw_os_error() == Some(libc::ENOEXEC);
    let other = || elf::machine(Path::new(&program)).filter(|machine| *machine != ARCH);
    let machine = if is_unknown { other() } else { None };
    let program = program.display();
    match machine {
        None if is_unknown => errln!(
            "rlaunch: cannot execute {program}: it is neither a script nor a program for this host \
             ({ARCH})\n\
             hint: `file {program}` there says what it is; it may be damaged"
        ),
        Some(machine) => errln!(
            "rlaunch: cannot execute {program}: it is built for {machine}, and this host is {ARCH}\n\
             hint: give hosts of each kind their own program: \
             rlaunch -H HOSTS PROGRAM : -H OTHERS PROGRAM"
        ),
        None => errln!("rlaunch: cannot execute {program}: {error}"),
    }
    ExitCode::from(if error.kind() == io::ErrorKind::NotFound { 127 } else { 126 })
}

/// Tells whether a file is no script: an executable, or one with a zero byte in its first line, as shells see it. A name
/// without a directory is searched for only later.
fn is_binary(program: &Path) -> bool {
    let mut head = Vec::with_capacity(HEAD);
    let has_directory = program.as_os_str().as_bytes().contains(&b'/');
    let file = has_directory.then(|| File::open(program).ok()).flatten();
    let read = file.and_then(|file| file.take(HEAD as u64).read_to_end(&mut head).ok());
    let line = head.split(|&byte| byte == b'\n').next().unwrap_or_default();
    read.is_some() && (head.starts_with(b"\x7fELF") || line.contains(&0))
}

/// Executes a program without execvp's second try as a shell script.
fn exec_binary(
    program: &OsStr,
    argv0: OsString,
    args: impl Iterator<Item = OsString>,
) -> io::Error {
    let c_string = |word: &OsStr| CString::new(word.as_bytes());
    let words: Result<Vec<CString>, _> =
        std::iter::once(argv0).chain(args).map(|word| c_string(&word)).collect();
    match c_string(program).and_then(|path| Ok((path, words?))) {
        Ok((path, words)) => rlaunch_sys::exec(&path, &words),
        Err(error) => error.into(),
    }
}

/// Encodes CPUs and memory node for the stub's command line.
pub(crate) fn encode_binding(setup: &RankSetup) -> String {
    let cpus = setup.cpus.as_ref().map(ToString::to_string).unwrap_or_default();
    let node = setup.memory_node.map(|node| node.to_string()).unwrap_or_default();
    format!("{cpus}/{node}")
}

fn parse_binding(text: &str) -> Option<RankSetup> {
    let (cpus, node) = text.split_once('/')?;
    let cpus = Some(cpus).filter(|cpus| !cpus.is_empty()).map(str::parse).transpose().ok()?;
    let memory_node =
        Some(node).filter(|node| !node.is_empty()).map(str::parse).transpose().ok()?;
    Some(RankSetup { cpus, memory_node, ..RankSetup::default() })
}

fn cpu_numbers(cpus: &rlaunch_bootstrap::inventory::CpuSet) -> impl Iterator<Item = usize> {
    cpus.iter().filter_map(|cpu| usize::try_from(cpu).ok())
}

/// Binds the process to its CPUs, and prefers its NUMA node for memory. Errors of the second step
/// are ignored: many containers forbid it, and memory of another node is only slower.
fn bind(setup: &RankSetup) -> io::Result<()> {
    // A set of the C library has 1024 CPUs; on a larger machine the rank is not bound.
    let fits = |cpus: &&_| cpu_numbers(cpus).all(|cpu| cpu < CpuSet::count());
    if let Some(cpus) = setup.cpus.as_ref().filter(fits) {
        let mut set = CpuSet::new();
        for cpu in cpu_numbers(cpus) {
            set.set(cpu)?;
        }
        sched_setaffinity(Pid::from_raw(0), &set).map_err(|errno| {
            let cause = errno.desc();
            io::Error::other(format!("cannot bind to CPUs {cpus}: {cause} (see --bind none)"))
        })?;
    }
    if let Some(node) = setup.memory_node {
        let _ = rlaunch_sys::prefer_numa_node(node);
    }
    Ok(())
}

/// Makes the process the leader of a process group or session, and lets the kernel send it SIGTERM
/// when the agent dies. The guardian, or `rlaunch reap` if the guardian has died too, then gives the
/// ranks their grace period; see [`term`](crate::cleanup::processes::term).
fn set_up_process(kind: StubKind, parent: Pid) -> io::Result<()> {
    match kind {
        StubKind::Rank => setpgid(Pid::from_raw(0), Pid::from_raw(0))?,
        StubKind::Beside => lead_session()?,
    }
    prctl::set_pdeathsig(Signal::SIGTERM)?;
    // Lets the agent's children read the stacks of this process where Yama would let only its ancestors. Fails on
    // kernels without Yama, where it is not needed.
    let _ = rlaunch_sys::let_descendants_read(parent.as_raw().cast_unsigned());
    // The agent may have died before prctl(2) took effect. A command beside a rank is a child of its holder.
    if kind == StubKind::Rank && getppid() != parent {
        return Err(io::Error::other("the agent is gone"));
    }
    Ok(())
}

/// Makes the process the leader of a session. If stdin is a terminal, it becomes the session's.
fn lead_session() -> io::Result<()> {
    setsid()?;
    let stdin = io::stdin();
    if stdin.is_terminal() {
        rustix::process::ioctl_tiocsctty(&stdin)?;
    }
    Ok(())
}

// Limit of open files.

/// Maximum to which the agent raises its limit: no agent needs more, and some programs try to close
/// every descriptor up to the limit.
const MAX_LIMIT: u64 = 1 << 16;

/// Soft limit that this process was started with. Unset if the limit was not raised.
static ORIGINAL_LIMIT: OnceLock<u64> = OnceLock::new();

/// Raises the soft limit as far as the hard limit and [`MAX_LIMIT`] allow. If that fails, opening
/// files may fail later.
pub(crate) fn raise_open_files() {
    let Ok((soft, hard)) = getrlimit(Resource::RLIMIT_NOFILE) else { return };
    let most = hard.min(MAX_LIMIT);
    if soft < most && setrlimit(Resource::RLIMIT_NOFILE, most, hard).is_ok() {
        let _ = ORIGINAL_LIMIT.set(soft);
    }
}

/// Returns the soft limit that `__exec-rank` has to restore; empty if the limit was not raised.
pub(crate) fn original_open_files() -> String {
    ORIGINAL_LIMIT.get().map(u64::to_string).unwrap_or_default()
}

/// Restores a limit that [`original_open_files`] has returned.
pub(crate) fn restore_open_files(original: &str) -> io::Result<()> {
    if original.is_empty() {
        return Ok(());
    }
    let soft = original.parse().map_err(io::Error::other)?;
    let (_, hard) = getrlimit(Resource::RLIMIT_NOFILE)?;
    Ok(setrlimit(Resource::RLIMIT_NOFILE, soft, hard)?)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_argument_of_which_nothing_is_left_is_left_out() {
        let words = |words: &[&str]| words.iter().map(OsString::from).collect::<Vec<_>>();
        let given = words(&["train", "{{x}}", "", "{{y}}"]);
        let rendered = [(1, OsString::from("--x")), (3, OsString::new())];
        assert!(arguments(&given, &rendered).eq(["train", "--x", ""]), "one that is empty is kept");
    }

    #[test]
    fn no_binary_is_a_script() {
        let file = tempfile::NamedTempFile::new().unwrap();
        let files: [(&[u8], bool); 6] = [
            (b"", false),
            (b"echo\n", false),
            (b"#!/bin/sh\n", false),
            // A script may carry data behind its first line.
            (b"exec tar -x\n\0\0", false),
            (b"\x7fELF\x01\x01\x01\n", true),
            (b"\xcf\xfa\xed\xfe\0\n", true),
        ];
        for (content, binary) in files {
            std::fs::write(file.path(), content).unwrap();
            assert_eq!(is_binary(file.path()), binary, "{content:?}");
        }
        assert!(!is_binary(Path::new("sh")) && !is_binary(Path::new("/nonexistent")));
    }

    #[test]
    fn the_stub_is_told_what_was_meant() {
        let cpus = Some("0-3,8".parse().unwrap());
        for setup in [
            RankSetup { cpus, memory_node: Some(1), ..RankSetup::default() },
            RankSetup { memory_node: Some(0), ..RankSetup::default() },
            RankSetup::default(),
        ] {
            assert_eq!(parse_binding(&encode_binding(&setup)), Some(setup));
        }
        for wrong in ["", "0-3", "x/", "/y"] {
            assert_eq!(parse_binding(wrong), None);
        }
    }
}
