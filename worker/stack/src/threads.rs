//! Threads of a process with their names and states, from `/proc`, and what they wait for ([`wait`]).
//!
//! Stops of threads, and reasons why a process may not be read. A stop ends some system calls with `EINTR`, which few
//! programs expect, so a thread that sleeps in one of them is not stopped: it is read while it sleeps.

mod wait;

pub(crate) use wait::{SOME_PIPE, Sleep, stdin_of};

#[cfg(target_arch = "x86_64")]
use nix::{sys::ptrace, unistd::Pid};
use rlaunch_bootstrap::protocol::inspection::ThreadStack;
use rlaunch_sys::StoppedThread;
use std::collections::BTreeSet;
use std::fs;
use std::time::{Duration, Instant};
use std::{io, thread};
use wait::{Sockets, of_thread};

/// Threads with frames that were read from a process.
#[derive(Debug)]
pub(crate) struct Found {
    pub(crate) threads: Vec<ThreadStack>,
    /// Reason why some or all frames are missing.
    pub(crate) problem: Option<String>,
}

impl Found {
    pub(crate) fn nothing(problem: String) -> Found {
        Found { threads: Vec::new(), problem: Some(problem) }
    }
}

/// State of a thread that waits in the kernel and cannot be interrupted.
pub(crate) const UNSTOPPABLE: char = 'D';
/// Number of looks at threads in that state, and the time between them.
const LOOKS: usize = 3;
const BETWEEN_LOOKS: Duration = Duration::from_millis(20);

/// Returns the name of a process's program; `None` if the process has ended.
pub(crate) fn name_of(pid: u32) -> Option<String> {
    let name = fs::read_to_string(format!("/proc/{pid}/comm")).ok()?;
    let has_threads = fs::read_dir(format!("/proc/{pid}/task")).is_ok();
    has_threads.then(|| name.trim_end().to_owned())
}

/// Lists the threads of a process without frames; the main thread first.
pub(crate) fn list(pid: u32) -> Vec<ThreadStack> {
    let sockets = Sockets::new(pid);
    let thread = |tid| {
        let (name, state) = state_of(pid, tid)?;
        let waits_for = of_thread(&sockets, tid, state);
        Some(ThreadStack { tid, name, state, waits_for, ..ThreadStack::default() })
    };
    ids(pid).into_iter().filter_map(thread).collect()
}

/// Lists the ids of the threads of a process; the main thread's first.
pub(crate) fn ids(pid: u32) -> Vec<u32> {
    let tasks = fs::read_dir(format!("/proc/{pid}/task")).into_iter().flatten().flatten();
    let mut tids: Vec<u32> =
        tasks.filter_map(|task| task.file_name().to_str()?.parse().ok()).collect();
    tids.sort_by_key(|&tid| (tid != pid, tid));
    tids
}

/// Tells whether a thread of the process sleeps in the kernel in such a way that it cannot be stopped. Most such waits
/// take a moment only, so that a single look proves nothing.
pub(crate) fn has_unstoppable(pid: u32) -> bool {
    let is_in_d = |tid| state_of(pid, tid).is_some_and(|(_, state)| state == UNSTOPPABLE);
    (0..LOOKS).all(|look| {
        if look > 0 {
            thread::sleep(BETWEEN_LOOKS);
        }
        ids(pid).into_iter().any(is_in_d)
    })
}

/// Time limit for a thread to stop. It takes some microseconds, unless the thread begins to wait in the kernel.
const STOP_LIMIT: Duration = Duration::from_millis(200);

/// Stops a thread until the result is dropped.
#[cfg(target_arch = "x86_64")]
pub(crate) fn stop(tid: u32) -> io::Result<StoppedThread> {
    stop_before(tid, Instant::now() + STOP_LIMIT)
}

fn stop_before(tid: u32, deadline: Instant) -> io::Result<StoppedThread> {
    let stopped = StoppedThread::stop(tid.cast_signed(), deadline)?;
    #[cfg(target_arch = "x86_64")]
    restart_interrupted(tid)?;
    Ok(stopped)
}

/// Calls that a stop ends with `EINTR` (signal(7)) and that have done nothing then. Reads and writes are such calls if
/// the socket has a time limit, and reads from inotify.
#[cfg(target_arch = "x86_64")]
const INTERRUPTED: &[libc::c_long] = &[
    libc::SYS_read,
    libc::SYS_write,
    libc::SYS_recvfrom,
    libc::SYS_recvmsg,
    libc::SYS_sendto,
    libc::SYS_sendmsg,
    libc::SYS_accept,
    libc::SYS_accept4,
    libc::SYS_epoll_wait,
    libc::SYS_epoll_pwait,
    libc::SYS_epoll_pwait2,
    libc::SYS_semop,
    libc::SYS_semtimedop,
    libc::SYS_msgrcv,
    libc::SYS_msgsnd,
    libc::SYS_rt_sigtimedwait,
    libc::SYS_io_getevents,
];

/// Has the kernel restart the call of a stopped thread that ran when it was looked at, and began to wait just before the
/// stop. The result that it gets is the kernel's own for calls that only a signal's handler interrupts.
#[cfg(target_arch = "x86_64")]
fn restart_interrupted(tid: u32) -> io::Result<()> {
    const ERESTARTNOHAND: i64 = 514;
    let thread = Pid::from_raw(tid.cast_signed());
    let mut registers = ptrace::getregs(thread)?;
    let is_interrupted = registers.rax.cast_signed() == -i64::from(libc::EINTR);
    if is_interrupted && INTERRUPTED.contains(&registers.orig_rax.cast_signed()) {
        registers.rax = (-ERESTARTNOHAND).cast_unsigned();
        ptrace::setregs(thread, registers)?;
    }
    Ok(())
}

/// Threads of a process, held until this is dropped. Those that a stop would interrupt sleep on, and may move.
#[derive(Debug, Default)]
pub(crate) struct Held {
    stopped: Vec<StoppedThread>,
    asleep: Vec<Sleep>,
}

impl Held {
    fn hold(&mut self, pid: u32, tid: u32, deadline: Instant) -> io::Result<()> {
        match Sleep::of(pid, tid)? {
            Some(sleep) if !sleep.is_restarted() => self.asleep.push(sleep),
            _ => self.stopped.push(stop_before(tid, deadline)?),
        }
        Ok(())
    }

    /// Tells whether a thread has moved since it is held.
    pub(crate) fn has_moved(&self) -> bool {
        self.asleep.iter().any(Sleep::has_moved)
    }
}

/// Holds all threads of a process, also those that it starts meanwhile.
pub(crate) fn hold_all(pid: u32) -> io::Result<Held> {
    let deadline = Instant::now() + STOP_LIMIT;
    let (mut held, mut seen) = (Held::default(), BTreeSet::new());
    loop {
        let new: Vec<u32> = ids(pid).into_iter().filter(|tid| seen.insert(*tid)).collect();
        if new.is_empty() {
            return Ok(held);
        }
        for tid in new {
            match held.hold(pid, tid, deadline) {
                Ok(()) => {}
                // It has ended, as the main thread may have while others run.
                Err(_) if has_ended(pid, tid) => {}
                Err(error) => return Err(error),
            }
        }
    }
}

/// States of threads that have ended.
const ENDED: [char; 2] = ['Z', 'X'];

/// Tells whether a thread has ended.
pub(crate) fn has_ended(pid: u32, tid: u32) -> bool {
    state_of(pid, tid).is_none_or(|(_, state)| ENDED.contains(&state))
}

/// Reads name and state of a thread; `None` if it has ended.
pub(crate) fn state_of(pid: u32, tid: u32) -> Option<(String, char)> {
    parse_stat(&fs::read_to_string(format!("/proc/{pid}/task/{tid}/stat")).ok()?)
}

/// Parses `tid (name) state …`. The name may contain anything, including parentheses.
fn parse_stat(stat: &str) -> Option<(String, char)> {
    let (begin, rest) = stat.rsplit_once(')')?;
    let (_, name) = begin.split_once('(')?;
    Some((name.to_owned(), rest.trim_start().chars().next()?))
}

/// Setting of Yama, a security module of the kernel, about which processes may read others.
const YAMA: &str = "/proc/sys/kernel/yama/ptrace_scope";

/// Adds the reason to an error if the error is about a missing permission and the reason is known.
pub(crate) fn explain(cause: String) -> String {
    let scope = fs::read_to_string(YAMA).ok().and_then(|scope| scope.trim().parse().ok());
    match scope.filter(|_| is_denied(&cause)).and_then(reason) {
        Some(reason) => format!("{cause}: {reason}"),
        None => cause,
    }
}

fn is_denied(cause: &str) -> bool {
    ["Operation not permitted", "Permission denied", "EPERM", "EACCES"]
        .iter()
        .any(|part| cause.contains(part))
}

/// Returns what a value of the setting forbids. Ranks let the agent read them, but a process that a rank starts does
/// not inherit that.
fn reason(scope: u32) -> Option<String> {
    let allowed = match scope {
        0 => return None,
        1 => "only ranks themselves may be read, not what they have started",
        2 => "only root may read processes",
        _ => "no process may be read",
    };
    Some(format!("{allowed}, since kernel.yama.ptrace_scope is {scope} on this host"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_main_thread_comes_first() {
        let own = std::process::id();
        let threads = list(own);
        assert_eq!(threads[0].tid, own);
        assert!(name_of(own).is_some() && name_of(u32::MAX).is_none());
    }

    #[test]
    fn a_name_may_contain_anything() {
        assert_eq!(parse_stat("7 (a) (b)) R 1 2"), Some(("a) (b)".to_owned(), 'R')));
        assert_eq!(parse_stat("7 a"), None);
    }

    #[test]
    fn only_missing_permissions_are_explained() {
        assert!(is_denied("no frames of Python: Operation not permitted (os error 1)"));
        assert!(is_denied("cannot stop thread 7: EPERM: Operation not permitted"));
        assert!(!is_denied("no frames of Python: no such process"));
        let other = "no such process".to_owned();
        assert_eq!(explain(other.clone()), other);
        assert_eq!(reason(0), None);
        assert!(reason(1).unwrap().ends_with("since kernel.yama.ptrace_scope is 1 on this host"));
    }
}
