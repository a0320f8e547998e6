//! `__exec-rank`: the stub, a single-threaded process that sets itself up and becomes a rank.
//!
//! Setup that would otherwise run between fork and exec happens here, as ordinary code with
//! ordinary errors, and can be tried by hand:
//!
//! ```text
//! rlaunch-worker __exec-rank PARENT-PID CPUS/NODE FILES DIRECTORY PROGRAM ARGV0 [ARG…]
//! ```
//!
//! CPUS is a list like `0-3,8`, NODE the preferred NUMA node for memory, FILES the soft limit of
//! open files; each may be empty. The environment, stdin, stdout and stderr are those of the rank
//! already.
//!
//! `__exec-beside` has the same arguments and becomes a command in the place of a running rank: the
//! leader of a session of its own, whose terminal is stdin if that is one.

use crate::console::errln;
use crate::node::elf;
use crate::node::open_files;
use nix::sched::{CpuSet, sched_setaffinity};
use nix::sys::prctl;
use nix::sys::signal::Signal;
use nix::unistd::{Pid, getppid, setpgid, setsid};
use rlaunch_bootstrap::job::RankSetup;
use std::env::consts::ARCH;
use std::ffi::{CString, OsStr, OsString};
use std::io::{self, IsTerminal};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::{Command, ExitCode};

/// Program that the stub becomes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum StubKind {
    Rank,
    /// Command in the place of a running rank.
    Beside,
}

/// Becomes the rank or the command. Returns only if that fails, with the exit code that a shell
/// would use.
pub(crate) fn exec(kind: StubKind, mut args: impl Iterator<Item = OsString>) -> ExitCode {
    let parent = args.next().and_then(|pid| pid.to_str()?.parse().ok()).map(Pid::from_raw);
    let binding = args.next().and_then(|text| parse_binding(text.to_str()?));
    let files = args.next().and_then(|files| files.into_string().ok());
    let (Some(parent), Some(setup), Some(files), Some(directory), Some(program), Some(argv0)) =
        (parent, binding, files, args.next(), args.next(), args.next())
    else {
        errln!(
            "rlaunch-worker: __exec-rank PARENT-PID CPUS/NODE FILES DIRECTORY PROGRAM ARGV0 [ARG…]"
        );
        return ExitCode::from(2);
    };
    let set_up = set_up_process(kind, parent).and_then(|()| bind(&setup));
    if let Err(error) = set_up.and_then(|()| open_files::restore(&files)) {
        errln!("rlaunch: cannot set up the process: {error}");
        return ExitCode::from(126);
    }
    if let Err(error) = std::env::set_current_dir(&directory) {
        errln!("rlaunch: cannot enter {}: {error}", directory.display());
        return ExitCode::from(126);
    }
    let machine = elf::machine(Path::new(&program)).filter(|machine| *machine != ARCH);
    let error = match machine {
        // An emulator may be registered for the other machine (binfmt_misc). Without one, execvp(3)
        // would run the binary as a shell script and report a syntax error.
        Some(_) => exec_binary(&program, argv0, args),
        None => Command::new(&program).arg0(argv0).args(args).exec(),
    };
    let program = program.display();
    match machine.filter(|_| error.raw_os_error() == Some(libc::ENOEXEC)) {
        Some(machine) => errln!(
            "rlaunch: cannot execute {program}: it is built for {machine}, and this host is {ARCH}\n\
             hint: give hosts of each kind their own program: \
             rlaunch -H HOSTS PROGRAM : -H OTHERS PROGRAM"
        ),
        None => errln!("rlaunch: cannot execute {program}: {error}"),
    }
    ExitCode::from(if error.kind() == io::ErrorKind::NotFound { 127 } else { 126 })
}

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
pub(crate) fn binding(setup: &RankSetup) -> String {
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
        sched_setaffinity(Pid::from_raw(0), &set)
            .map_err(|errno| io::Error::other(format!("cannot bind to CPUs {cpus}: {errno}")))?;
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
    // The agent may have died before prctl(2) took effect.
    if getppid() != parent {
        return Err(io::Error::other("the agent is gone"));
    }
    Ok(())
}

/// Makes the process the leader of a session, so that its descendants are found whatever becomes of
/// their parents. If stdin is a terminal, it becomes the session's.
fn lead_session() -> io::Result<()> {
    setsid()?;
    let stdin = io::stdin();
    if stdin.is_terminal() {
        rustix::process::ioctl_tiocsctty(&stdin)?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_stub_is_told_what_was_meant() {
        let cpus = Some("0-3,8".parse().unwrap());
        for setup in [
            RankSetup { cpus, memory_node: Some(1), ..RankSetup::default() },
            RankSetup { memory_node: Some(0), ..RankSetup::default() },
            RankSetup::default(),
        ] {
            assert_eq!(parse_binding(&binding(&setup)), Some(setup));
        }
        for wrong in ["", "0-3", "x/", "/y"] {
            assert_eq!(parse_binding(wrong), None);
        }
    }
}
