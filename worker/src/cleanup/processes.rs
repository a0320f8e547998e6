//! Finding and signalling the descendants of this process.
//!
//! Agent and guardian are subreapers, so every process that a rank starts stays among their
//! descendants, including background processes, daemons, double forks and callers of `setsid`.

use nix::errno::Errno;
use nix::sys::resource::{RLIM_INFINITY, Resource, getrlimit};
use nix::sys::signal::{Signal, kill, killpg};
use nix::sys::wait::{Id, WaitPidFlag, WaitStatus, waitid};
use nix::unistd::{Pid, getpgid, getpgrp, getsid};
use rlaunch_bootstrap::job::ExitStatus;
use rustix::process::{WaitOptions, wait};
use std::collections::{HashMap, HashSet};
use std::ffi::CStr;
use std::fs::File;
use std::os::unix::fs::FileExt;
use std::path::PathBuf;
use std::time::{Duration, Instant};
use std::{fs, io};

/// Returns a sentence about the limit of processes if that is why one cannot be started.
pub(crate) fn reached_limit(error: &io::Error) -> Option<String> {
    if error.raw_os_error() != Some(libc::EAGAIN) {
        return None;
    }
    let (limit, _) = getrlimit(Resource::RLIMIT_NPROC).ok()?;
    let limit = if limit == RLIM_INFINITY { "unlimited".into() } else { limit.to_string() };
    Some(format!(
        "no more processes or threads are allowed there: `ulimit -u` is {limit}; a control group \
         may have fewer (pids.max)"
    ))
}

/// Signals that tell processes to end. A stopped process handles SIGTERM only after SIGCONT.
pub(crate) const TERM: &[Signal] = &[Signal::SIGTERM, Signal::SIGCONT];

/// Returns the signals that tell process `pid` to end after agent `agent` has ended. A rank needs
/// no SIGTERM, because the kernel sent it one when the agent ended. A process is a rank if it leads
/// a process group in the agent's session.
pub(crate) fn term_signals(pid: Pid, agent: Pid) -> &'static [Signal] {
    let is_rank = getpgid(Some(pid)) == Ok(pid) && getsid(Some(pid)) == Ok(agent);
    if is_rank { &[Signal::SIGCONT] } else { TERM }
}

/// Time limit for finding new processes in one call of [`kill_all`].
const SCAN_LIMIT: Duration = Duration::from_millis(20);
/// Number of consecutive scans without a new process after which [`kill_all`] kills the processes
/// found.
const EMPTY_SCANS: usize = 3;

/// State of this process's children, including adopted ones, as the kernel reports it. A scan of
/// the process table is less reliable: processes that fork and exit at once may never appear in it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Children {
    /// No child exists, not even a zombie.
    None,
    /// At least one child has ended and can be reaped.
    Ended,
    /// All children are running.
    Living,
}

impl Children {
    pub(crate) fn now() -> Children {
        let look = WaitPidFlag::WEXITED | WaitPidFlag::WNOHANG | WaitPidFlag::WNOWAIT;
        match waitid(Id::All, look | WaitPidFlag::__WALL) {
            Err(Errno::ECHILD) => Children::None,
            Ok(WaitStatus::StillAlive) => Children::Living,
            // A real-time signal, which nix does not know, has killed it.
            Ok(_) | Err(Errno::EINVAL) => Children::Ended,
            Err(_) => Children::Living,
        }
    }
}

/// Reaps all children that have ended, including adopted ones. Children killed by a signal come
/// first in the result, because the other children may have ended as a consequence. Uses rustix,
/// since nix has an error in place of a process that a real-time signal has killed.
pub(crate) fn reap() -> Vec<(Pid, ExitStatus)> {
    let look = WaitOptions::NOHANG | WaitOptions::from_bits_retain(libc::__WALL.cast_unsigned());
    let mut ended = Vec::new();
    while let Ok(Some((pid, status))) = wait(look) {
        let signal = status.terminating_signal().map(ExitStatus::Signal);
        let status = signal.or_else(|| status.exit_status().map(ExitStatus::Code));
        ended.extend(status.map(|status| (Pid::from_raw(pid.as_raw_nonzero().get()), status)));
    }
    let is_by_signal = |(_, status): &(Pid, ExitStatus)| matches!(status, ExitStatus::Signal(_));
    let (by_signal, others): (Vec<_>, Vec<_>) = ended.into_iter().partition(is_by_signal);
    [by_signal, others].concat()
}

/// Returns all living descendants of this process except `except`, parents before children. Zombies
/// are not included.
pub(crate) fn descendants(except: &[Pid]) -> Vec<Pid> {
    let me = Pid::this();
    let mut found = if children(me).is_some() { walk_children(me) } else { walk_table(me) };
    found.retain(|&pid| !except.contains(&pid));
    found
}

/// Returns all living descendants of another process.
pub(crate) fn descendants_of(root: Pid) -> Vec<Pid> {
    walk_table(root)
}

/// Returns the living descendants of another process by the kernel's lists of children, if it has
/// them. That is much faster than [`descendants_of`] where many processes run, but misses some if
/// others end meanwhile.
pub(crate) fn list_descendants_of(root: Pid) -> Vec<Pid> {
    if children(root).is_some() { walk_children(root) } else { walk_table(root) }
}

/// Describes the remaining descendants of this process except `except`, for an error message.
pub(crate) fn describe_left(except: &[Pid]) -> Vec<String> {
    let left = descendants(except);
    if left.is_empty() && except.is_empty() && Children::now() != Children::None {
        return vec!["a process that is not visible".to_owned()];
    }
    left.into_iter().map(describe).collect()
}

/// Sends the signals, in the given order, to every descendant of this process except `except`.
/// Returns the processes that were signalled.
pub(crate) fn signal_all(signals: &[Signal], except: &[Pid]) -> HashSet<Pid> {
    signal_each(|_| signals, except)
}

/// Sends signals to each descendant of this process except `except`; `signals` returns the signals
/// for a descendant. Returns the processes that were signalled.
///
/// Parents are signalled before their children: if a shell's child ended before the shell is
/// signalled, the shell might start its next command. The processes are scanned several times,
/// because some may have been forked meanwhile, and a list of children misses a process if an older
/// sibling ends while the list is read.
pub(crate) fn signal_each<'a>(
    signals: impl Fn(Pid) -> &'a [Signal],
    except: &[Pid],
) -> HashSet<Pid> {
    const SCANS: usize = 8;
    let mut reached = HashSet::new();
    for _ in 0..SCANS {
        if !reach_new(&mut reached, except, |pid| signal_one(pid, signals(pid))) {
            break;
        }
    }
    reached
}

pub(crate) fn signal_one(pid: Pid, signals: &[Signal]) {
    for &signal in signals {
        // Fails if the process has ended.
        let _ = kill(pid, signal);
    }
}

/// Sends a signal of the user to the rank whose first process is `rank`: to those of its processes that
/// [`nearest_takers`] returns, or to the first process if there are none. SIGCONT needs no taker.
pub(crate) fn signal_rank(rank: Pid, signal: Signal) {
    let mut to = if signal == Signal::SIGCONT { Vec::new() } else { nearest_takers(rank, signal) };
    if to.is_empty() {
        to.push(rank);
    }
    to.into_iter().for_each(|pid| signal_one(pid, &[signal]));
}

/// Returns `root` if it takes a signal, or else the nearest of its descendants that do, by which the signal passes over a
/// shell that has started the program, and would die of it. Processes below one that takes it are left to that: it may
/// pass the signal on, and those that it has forked have its handler and mask too, without being meant.
fn nearest_takers(root: Pid, signal: Signal) -> Vec<Pid> {
    let (mut found, mut open) = (Vec::new(), vec![root]);
    while let Some(pid) = open.pop() {
        if takes(pid, signal) {
            found.push(pid);
        } else {
            open.extend(children(pid).unwrap_or_else(|| children_in_table(pid)));
        }
    }
    found
}

/// Time that a process takes to start another.
const FORK_PAUSE: Duration = Duration::from_millis(1);

/// Tells whether a process has a handler for a signal, waits for it by sigwait(3), or reads it by signalfd(2), for which
/// all of its threads block it. A process that has ended or is hidden does none of these.
fn takes(pid: Pid, signal: Signal) -> bool {
    let status = fs::read_to_string(format!("/proc/{pid}/status")).unwrap_or_default();
    if is_in_set(&status, "SigCgt:", signal) || is_awaited(pid, signal) {
        return true;
    }
    if !is_in_set(&status, "SigBlk:", signal) {
        return false;
    }
    // A shell that is just starting a command blocks all signals.
    std::thread::sleep(FORK_PAUSE);
    threads(pid).iter().all(|thread| {
        // A thread that has ended since takes none from the others.
        let status = fs::read_to_string(thread.join("status")).ok();
        status.is_none_or(|status| is_in_set(&status, "SigBlk:", signal))
    })
}

/// Tells whether a thread of a process waits for a signal by sigwait(3), during which its mask does not show that it
/// blocks the signal.
fn is_awaited(pid: Pid, signal: Signal) -> bool {
    threads(pid).iter().any(|thread| {
        let call = fs::read_to_string(thread.join("syscall")).unwrap_or_default();
        let mut words = call.split_whitespace();
        let is_wait = words.next() == Some(libc::SYS_rt_sigtimedwait.to_string().as_str());
        let set = words.next().and_then(|word| u64::from_str_radix(word.get(2..)?, 16).ok());
        let Some(address) = set.filter(|_| is_wait) else { return false };
        let mut mask = [0; size_of::<u64>()];
        let memory = File::open(thread.join("mem"));
        memory.is_ok_and(|memory| memory.read_exact_at(&mut mask, address).is_ok())
            && has_signal(u64::from_ne_bytes(mask), signal)
    })
}

/// Returns the directories in /proc of a process's threads; none of one that has ended.
fn threads(pid: Pid) -> Vec<PathBuf> {
    let entries = fs::read_dir(format!("/proc/{pid}/task"));
    entries.into_iter().flatten().flatten().map(|entry| entry.path()).collect()
}

/// Tells whether a signal is in a set of `/proc/PID/status`.
fn is_in_set(status: &str, set: &str, signal: Signal) -> bool {
    let mask = status.lines().find_map(|line| line.strip_prefix(set));
    let mask = mask.and_then(|mask| u64::from_str_radix(mask.trim(), 16).ok()).unwrap_or(0);
    has_signal(mask, signal)
}

/// Tells whether a signal is in a set as the kernel has it: a bit for each signal, from 1 on.
fn has_signal(set: u64, signal: Signal) -> bool {
    set >> (signal as i32 - 1) & 1 == 1
}

/// Kills every descendant of this process except `except`. First stops the descendants one by one
/// until scans find no new process, because a stopped process can neither fork nor hide its
/// children from the scans by ending. Then kills all of them. `collect` is called meanwhile and
/// must reap zombies, because many zombies slow the scans down, so that short-lived processes
/// escape.
///
/// Process groups are signalled as well as single processes, because no member of a group can fork
/// while the kernel signals the group.
pub(crate) fn kill_all(except: &[Pid], mut collect: impl FnMut()) {
    let own_group = getpgrp();
    let (mut reached, mut groups) = (HashSet::new(), HashSet::new());
    let until = Instant::now() + SCAN_LIMIT;
    let mut empty_scans = 0;
    collect();
    while empty_scans < EMPTY_SCANS && Instant::now() < until {
        let found = reach_new(&mut reached, except, |pid| {
            let group = getpgid(Some(pid)).ok().filter(|&group| group != own_group);
            // The group is 0 if it is outside this PID namespace, and 1 would mean every process.
            if let Some(group) = group.filter(|group| group.as_raw() > 1)
                && groups.insert(group)
            {
                let _ = killpg(group, Signal::SIGSTOP);
            }
            let _ = kill(pid, Signal::SIGSTOP);
        });
        empty_scans = if found { 0 } else { empty_scans + 1 };
        collect();
    }
    for group in groups {
        let _ = killpg(group, Signal::SIGKILL);
    }
    for pid in reached {
        let _ = kill(pid, Signal::SIGKILL);
    }
    collect();
}

/// Scans for descendants of this process except `except`. Calls `reach` for each descendant that is
/// not in `reached` as soon as it is found, and adds it to `reached`. Returns whether any was new.
fn reach_new(reached: &mut HashSet<Pid>, except: &[Pid], mut reach: impl FnMut(Pid)) -> bool {
    let me = Pid::this();
    let mut found = false;
    let mut parents = vec![me];
    while let Some(parent) = parents.pop() {
        let Some(children) = children(parent) else {
            if parent == me {
                // The kernel has no lists of children.
                let table = walk_table(me).into_iter().filter(|pid| !except.contains(pid));
                for pid in table.filter(|pid| reached.insert(*pid)) {
                    found = true;
                    reach(pid);
                }
            }
            continue;
        };
        for pid in children.into_iter().filter(|pid| !except.contains(pid)) {
            if reached.insert(pid) {
                found = true;
                reach(pid);
            }
            parents.push(pid);
        }
    }
    found
}

/// Returns the living descendants of a process, from the kernel's lists of children.
fn walk_children(root: Pid) -> Vec<Pid> {
    let mut found = children(root).unwrap_or_default();
    found.retain(|&pid| !has_ended(pid));
    let mut at = 0;
    while let Some(&pid) = found.get(at) {
        // Zombies have no children.
        let living = |pid: &Pid| !has_ended(*pid);
        found.extend(children(pid).unwrap_or_default().into_iter().filter(living));
        at += 1;
    }
    found
}

/// Returns the children of all threads of a process, from the kernel's lists. `None` if the kernel
/// has no such lists (`CONFIG_PROC_CHILDREN`) or the process is gone.
fn children(pid: Pid) -> Option<Vec<Pid>> {
    let mut found = Vec::new();
    for thread in fs::read_dir(format!("/proc/{pid}/task")).ok()? {
        let list = fs::read_to_string(thread.ok()?.path().join("children")).ok()?;
        found.extend(
            list.split_ascii_whitespace().filter_map(|p| p.parse().ok()).map(Pid::from_raw),
        );
    }
    Some(found)
}

/// Returns the living children of a process, from the whole process table.
fn children_in_table(pid: Pid) -> Vec<Pid> {
    let mut below = walk_table(pid);
    below.retain(|&other| parent(other) == Some(pid));
    below
}

/// Returns the living descendants of a process, from the whole process table.
fn walk_table(root: Pid) -> Vec<Pid> {
    let mut by_parent: HashMap<i32, Vec<(Pid, char)>> = HashMap::new();
    for entry in fs::read_dir("/proc").into_iter().flatten().flatten() {
        let Some(pid) = entry.file_name().to_str().and_then(|name| name.parse().ok()) else {
            continue;
        };
        if let Some((state, parent)) = state_and_parent(Pid::from_raw(pid)) {
            by_parent.entry(parent).or_default().push((Pid::from_raw(pid), state));
        }
    }
    let mut found = Vec::new();
    let mut parents = vec![root];
    while let Some(parent) = parents.pop() {
        for &(pid, state) in by_parent.get(&parent.as_raw()).into_iter().flatten() {
            parents.push(pid);
            if !matches!(state, 'Z' | 'X') {
                found.push(pid);
            }
        }
    }
    found
}

/// Tells whether a process has ended, whether or not its parent has reaped it. A process without a
/// readable entry in `/proc` may still be alive: with `hidepid`, processes that have changed their
/// user id are hidden.
pub(crate) fn has_ended(pid: Pid) -> bool {
    match state_and_parent(pid) {
        Some((state, _)) => matches!(state, 'Z' | 'X'),
        None => kill(pid, None) == Err(Errno::ESRCH),
    }
}

pub(crate) fn parent(pid: Pid) -> Option<Pid> {
    state_and_parent(pid).map(|(_, parent)| Pid::from_raw(parent))
}

/// Tells whether a process is exiting or has exited. A process closes its connections some time
/// before it can be reaped.
pub(crate) fn is_exiting(pid: Pid) -> bool {
    // Flag of the kernel, `PF_EXITING`.
    const EXITING: u64 = 4;
    let stat = fs::read_to_string(format!("/proc/{pid}/stat"));
    // The state is the first field after the name, the flags are the seventh.
    let flags = stat.as_ref().ok().and_then(|stat| {
        let (_, fields) = stat.rsplit_once(')')?;
        fields.split_ascii_whitespace().nth(6)?.parse::<u64>().ok()
    });
    flags.is_none_or(|flags| flags & EXITING != 0)
}

/// Returns the state letter and the parent's id from `/proc/PID/stat`: `pid (name) state ppid …`.
/// The name may contain anything, including parentheses.
fn state_and_parent(pid: Pid) -> Option<(char, i32)> {
    let stat = fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
    let mut fields = stat[stat.rfind(')')? + 1..].split_ascii_whitespace();
    Some((fields.next()?.chars().next()?, fields.next()?.parse().ok()?))
}

/// Tells whether a process has this name, which it may have given itself.
pub(crate) fn is_named(pid: Pid, name: &CStr) -> bool {
    let own = fs::read(format!("/proc/{pid}/comm")).unwrap_or_default();
    own.trim_ascii_end() == name.to_bytes()
}

/// Describes a process for an error message: `4711 python3 (state D)`.
pub(crate) fn describe(pid: Pid) -> String {
    let name = fs::read_to_string(format!("/proc/{pid}/comm"));
    match (name, state_and_parent(pid)) {
        (Ok(name), Some((state, _))) => {
            // Processes choose their own names; a comma would look like the end of the entry.
            let name = name.trim_end().replace(|c: char| c.is_control() || c == ',', "?");
            format!("{pid} {name} (state {state})")
        }
        _ => format!("{pid} (of another user, name hidden)"),
    }
}

/// Reads the environment with which a process was started.
pub(crate) fn read_environment(pid: Pid) -> io::Result<Vec<u8>> {
    fs::read(format!("/proc/{pid}/environ"))
}

/// Returns the value of a variable in the environment of a process.
pub(crate) fn find_variable(environment: &[u8], name: &str) -> Option<String> {
    let mut entries = environment.split(|&byte| byte == 0);
    let value = entries.find_map(|entry| entry.strip_prefix(name.as_bytes())?.strip_prefix(b"="));
    value.map(|value| String::from_utf8_lossy(value).into_owned())
}

#[cfg(test)]
mod tests {
    use super::*;
    use nix::sys::signal::SigSet;
    use std::process::{Command, Stdio};

    #[test]
    fn a_limit_of_processes_is_named() {
        let limit = |code| reached_limit(&io::Error::from_raw_os_error(code));
        assert!(limit(libc::EAGAIN).unwrap().contains("`ulimit -u` is "));
        assert_eq!(limit(libc::ENOMEM), None);
    }

    /// The kernel's lists of children and the process table both lead to a grandchild.
    #[test]
    fn sees_grandchildren() {
        let mut shell = Command::new("sh")
            .args(["-c", "sleep 60 & echo; wait"])
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let mut line = [0; 1];
        std::io::Read::read_exact(shell.stdout.as_mut().unwrap(), &mut line).unwrap();
        let me = Pid::this();
        let mine = Pid::from_raw(shell.id().cast_signed());
        for found in [walk_children(me), walk_table(me)] {
            // Children of other tests may have ended since.
            let is_below =
                |p: &&Pid| state_and_parent(**p).is_some_and(|(_, parent)| parent == mine.as_raw());
            let below: Vec<_> = found.iter().filter(is_below).collect();
            assert!(found.contains(&mine));
            assert_eq!(below.len(), 1);
        }
        for pid in walk_table(mine) {
            nix::sys::signal::kill(pid, nix::sys::signal::SIGKILL).unwrap();
        }
        shell.wait().unwrap();
        assert!(walk_table(mine).is_empty());
    }

    /// The shell above has no handler and would die; the program below has inherited none.
    #[test]
    fn a_signal_is_for_the_nearest_process_that_takes_it() {
        let handler = r#"trap : USR1; echo; sh -c "sleep 60; :"; :"#;
        let mut shell = Command::new("sh")
            .args(["-c", r#"sh -c "$0"; :"#, handler])
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let mut line = [0; 1];
        std::io::Read::read_exact(shell.stdout.as_mut().unwrap(), &mut line).unwrap();
        let mine = Pid::from_raw(shell.id().cast_signed());
        let found = nearest_takers(mine, Signal::SIGUSR1);
        assert!(found.len() == 1 && parent(found[0]) == Some(mine), "{found:?} below {mine}");
        assert_eq!(nearest_takers(found[0], Signal::SIGUSR1), found);
        // A shell blocks all signals while it starts the next command.
        let started = Instant::now();
        while !nearest_takers(mine, Signal::SIGUSR2).is_empty() {
            assert!(started.elapsed() < Duration::from_secs(10));
        }
        assert_eq!(children_in_table(mine), found);
        for pid in walk_table(mine).into_iter().chain([mine]) {
            kill(pid, Signal::SIGKILL).unwrap();
        }
        shell.wait().unwrap();
        assert!(!takes(mine, Signal::SIGUSR1));
    }

    #[test]
    fn a_program_that_waits_for_a_signal_takes_it() {
        // A child inherits the mask of the thread that starts it.
        let waited_for = SigSet::from(Signal::SIGUSR1);
        waited_for.thread_block().unwrap();
        let mut waits = Command::new("sleep").arg("60").spawn().unwrap();
        waited_for.thread_unblock().unwrap();
        let mut dies = Command::new("sleep").arg("60").spawn().unwrap();
        let pid = |child: &std::process::Child| Pid::from_raw(child.id().cast_signed());
        assert!(takes(pid(&waits), Signal::SIGUSR1) && !takes(pid(&waits), Signal::SIGUSR2));
        assert!(!takes(pid(&dies), Signal::SIGUSR1));
        for child in [&mut waits, &mut dies] {
            child.kill().unwrap();
            child.wait().unwrap();
        }
    }

    #[test]
    fn a_child_counts_until_it_is_collected() {
        let mut child = Command::new("sleep").arg("60").spawn().unwrap();
        let pid = Pid::from_raw(child.id().cast_signed());
        assert_ne!(Children::now(), Children::None);
        assert!(!has_ended(pid) && !is_exiting(pid) && parent(pid) == Some(Pid::this()));
        assert!(is_named(pid, c"sleep") && !is_named(pid, c"sleeping"));
        child.kill().unwrap();
        child.wait().unwrap();
        assert!(has_ended(pid) && is_exiting(pid));
    }

    #[test]
    fn a_variable_is_found_by_its_whole_name() {
        let environment = b"XRLAUNCH_RANK=1\0RLAUNCH_RANKS=2\0RLAUNCH_RANK=3\0";
        assert_eq!(find_variable(environment, "RLAUNCH_RANK"), Some("3".to_owned()));
        assert_eq!(find_variable(b"", "RLAUNCH_RANK"), None);
    }
}
