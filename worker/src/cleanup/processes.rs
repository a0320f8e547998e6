//! Finding and signalling the descendants of this process.
//!
//! Agent and guardian are subreapers, so every process that a rank starts stays among their
//! descendants, including background processes, daemons, double forks and callers of `setsid`.
//!
//! Their CPU time and memory are read from `/proc`.
//!
//! [`Helpers`] are children of the agent that are no ranks.

use crate::node::Units;
use nix::errno::Errno;
use nix::fcntl::OFlag;
use nix::sys::signal::{Signal, kill, killpg};
use nix::sys::wait::{Id, WaitPidFlag, WaitStatus, waitid};
use nix::unistd::{Pid, getpgid, getpgrp, getsid};
use rlaunch_bootstrap::id::Rank;
use rlaunch_bootstrap::protocol::inspection::RankUsage;
use rlaunch_bootstrap::protocol::rank::WaitRecord;
use std::collections::{HashMap, HashSet};
use std::fs::{self, OpenOptions};
use std::os::unix::fs::{FileExt, OpenOptionsExt};
use std::path::Path;
use std::time::{Duration, Instant};

/// Signals that tell processes to end. A stopped process handles SIGTERM only after SIGCONT.
pub(crate) const TERM: &[Signal] = &[Signal::SIGTERM, Signal::SIGCONT];

/// Returns the signals that tell process `pid` to end after agent `agent` has ended. A rank needs
/// no SIGTERM, because the kernel sent it one when the agent ended. A process is a rank if it leads
/// a process group in the agent's session.
pub(crate) fn term(pid: Pid, agent: Pid) -> &'static [Signal] {
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
            Ok(WaitStatus::StillAlive) | Err(_) => Children::Living,
            Ok(_) => Children::Ended,
        }
    }
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
pub(crate) fn left(except: &[Pid]) -> Vec<String> {
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
/// [`handlers`] returns, or to the first process if there are none. SIGCONT needs no handler.
pub(crate) fn signal_rank(rank: Pid, signal: Signal) {
    let mut to = if signal == Signal::SIGCONT { Vec::new() } else { handlers(rank, signal) };
    if to.is_empty() {
        to.push(rank);
    }
    to.into_iter().for_each(|pid| signal_one(pid, &[signal]));
}

/// Returns `root` if it handles a signal, or else the nearest of its descendants that do, by which the signal passes
/// over a shell that has started the program, and would die of it. Processes below a handler are left to it: the
/// handler may pass the signal on, and those that it has forked have its handler too, without being meant.
fn handlers(root: Pid, signal: Signal) -> Vec<Pid> {
    let (mut found, mut open) = (Vec::new(), vec![root]);
    while let Some(pid) = open.pop() {
        if handles(pid, signal) {
            found.push(pid);
        } else {
            open.extend(children(pid).unwrap_or_else(|| children_in_table(pid)));
        }
    }
    found
}

/// Tells whether a process has a handler for a signal. A process that has ended or is hidden has none.
fn handles(pid: Pid, signal: Signal) -> bool {
    let status = fs::read_to_string(format!("/proc/{pid}/status")).unwrap_or_default();
    let mask = status.lines().find_map(|line| line.strip_prefix("SigCgt:"));
    let mask = mask.and_then(|mask| u64::from_str_radix(mask.trim(), 16).ok()).unwrap_or(0);
    mask >> (signal as i32 - 1) & 1 == 1
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
        if let Some((state, parent)) = stat(Pid::from_raw(pid)) {
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
    match stat(pid) {
        Some((state, _)) => matches!(state, 'Z' | 'X'),
        None => kill(pid, None) == Err(Errno::ESRCH),
    }
}

pub(crate) fn parent(pid: Pid) -> Option<Pid> {
    stat(pid).map(|(_, parent)| Pid::from_raw(parent))
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
fn stat(pid: Pid) -> Option<(char, i32)> {
    let stat = fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
    let mut fields = stat[stat.rfind(')')? + 1..].split_ascii_whitespace();
    Some((fields.next()?.chars().next()?, fields.next()?.parse().ok()?))
}

/// Describes a process for an error message: `4711 python3 (state D)`.
pub(crate) fn describe(pid: Pid) -> String {
    let name = fs::read_to_string(format!("/proc/{pid}/comm"));
    match (name, stat(pid)) {
        (Ok(name), Some((state, _))) => {
            // Processes choose their own names; a comma would look like the end of the entry.
            let name = name.trim_end().replace(|c: char| c.is_control() || c == ',', "?");
            format!("{pid} {name} (state {state})")
        }
        _ => format!("{pid} (of another user, name hidden)"),
    }
}

/// Returns the resources that ranks use, each with the process id of its own process.
pub(crate) fn usage_of_ranks(ranks: &[(Rank, Pid)], directory: Option<&Path>) -> Vec<RankUsage> {
    ranks.iter().map(|&(rank, pid)| usage_of_rank(rank, pid, directory)).collect()
}

/// Returns the resources that a rank and its descendants use. `pid` is the rank's own process, and
/// `directory` the job's directory, if it has one.
fn usage_of_rank(rank: Rank, pid: Pid, directory: Option<&Path>) -> RankUsage {
    let own = ProcessStat::read(pid);
    let state = own.as_ref().map_or('Z', |stat| stat.state);
    let descendants = list_descendants_of(pid);
    let below: Vec<Pid> = descendants.into_iter().filter(|&other| other != pid).collect();
    let stats = below.iter().map(|&pid| ProcessStat::read(pid));
    let Usage { processes, user_ms, system_ms, resident } =
        Usage::sum(std::iter::once(own).chain(stats).flatten());
    let main = std::iter::once(pid).chain(below).filter_map(MainThread::read);
    let (main_us, main_runs) =
        main.fold((0, 0), |(us, runs), main| (us + main.used_us, runs + main.runs));
    let pid = pid.as_raw().cast_unsigned();
    let waited_ms = directory.and_then(|directory| waited_ms(rank, directory));
    RankUsage {
        rank,
        pid,
        processes,
        user_ms,
        system_ms,
        main_us,
        main_runs,
        resident,
        state,
        waited_ms,
    }
}

/// What the main thread of a process has used.
#[derive(Debug, PartialEq, Eq)]
struct MainThread {
    /// CPU time of the thread and of the process's children that have ended, in microseconds.
    used_us: u64,
    /// Number of times that the kernel has let it run; 0 if unknown.
    runs: u64,
}

impl MainThread {
    fn read(pid: Pid) -> Option<MainThread> {
        let read = |name| fs::read_to_string(format!("/proc/{pid}/task/{pid}/{name}")).ok();
        let clock = read("schedstat").and_then(|line| parse_schedstat(&line));
        MainThread::new(&ProcessStat::parse(&read("stat")?)?, clock)
    }

    /// Combines a thread's `stat`, which counts in ticks, with its more exact time in nanoseconds and its number of
    /// runs, which kernels without CONFIG_SCHED_INFO do not tell.
    fn new(stat: &ProcessStat, clock: Option<(u64, u64)>) -> Option<MainThread> {
        let us = |ticks: u64| ticks * 1_000_000 / Units::of_system().ticks_per_second;
        let (own_us, runs) = match clock {
            Some((nanos, runs)) => (nanos / 1000, runs),
            None => (us((stat.user + stat.system).checked_sub(stat.children)?), 0),
        };
        Some(MainThread { used_us: own_us + us(stat.children), runs })
    }
}

/// Parses `/proc/PID/task/TID/schedstat`: nanoseconds on a CPU, nanoseconds in the queue, number of runs. Returns `None`
/// if the kernel counts nothing.
fn parse_schedstat(line: &str) -> Option<(u64, u64)> {
    let mut fields = line.split_ascii_whitespace().map(|field| field.parse::<u64>().ok());
    let (nanos, _, runs) = (fields.next()??, fields.next()??, fields.next()??);
    (runs > 0).then_some((nanos, runs))
}

/// Reads the time for which a rank has waited in calls of the communicator; `None` if it has not
/// used it.
fn waited_ms(rank: Rank, directory: &Path) -> Option<u64> {
    // A rank may have put anything there; a pipe would never answer.
    let flags = (OFlag::O_NONBLOCK | OFlag::O_NOFOLLOW).bits();
    let path = directory.join(WaitRecord::file_name(rank));
    let file = OpenOptions::new().read(true).custom_flags(flags).open(path).ok()?;
    let mut content = [0; WaitRecord::SIZE];
    file.read_exact_at(&mut content, 0).ok()?;
    u64::try_from(WaitRecord::decode(&content)?.0.as_millis()).ok()
}

/// Resources that several processes use together.
#[derive(Debug, Default, PartialEq, Eq)]
pub(super) struct Usage {
    pub(super) processes: u32,
    /// CPU time in user code, in milliseconds.
    pub(super) user_ms: u64,
    /// CPU time in the kernel, in milliseconds.
    pub(super) system_ms: u64,
    /// Resident memory, in bytes.
    pub(super) resident: u64,
}

impl Usage {
    /// Adds up what processes use.
    pub(super) fn sum(stats: impl Iterator<Item = ProcessStat>) -> Usage {
        let units = Units::of_system();
        let mut sum = Usage::default();
        for stat in stats {
            sum.processes += 1;
            sum.user_ms += stat.user * 1000 / units.ticks_per_second;
            sum.system_ms += stat.system * 1000 / units.ticks_per_second;
            sum.resident += stat.resident_pages * units.page_size;
        }
        sum
    }
}

/// Returns the time since a process started, in seconds.
pub(super) fn age(stat: &ProcessStat) -> u64 {
    let uptime = fs::read_to_string("/proc/uptime").unwrap_or_default();
    let uptime = uptime.split('.').next().and_then(|seconds| seconds.parse::<u64>().ok());
    let started = stat.start / Units::of_system().ticks_per_second;
    uptime.unwrap_or_default().saturating_sub(started)
}

/// Fields of `/proc/PID/stat`. CPU times include those of children that have ended and were waited
/// for, so that no process's time is counted twice.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct ProcessStat {
    state: char,
    user: u64,
    system: u64,
    /// Part of both that children have used which have ended.
    children: u64,
    /// Time from the start of the system to that of the process, in ticks.
    pub(super) start: u64,
    resident_pages: u64,
}

impl ProcessStat {
    pub(super) fn read(pid: Pid) -> Option<ProcessStat> {
        ProcessStat::parse(&fs::read_to_string(format!("/proc/{pid}/stat")).ok()?)
    }

    /// Parses the line. The name, in parentheses, may contain anything.
    fn parse(stat: &str) -> Option<ProcessStat> {
        let (_, fields) = stat.rsplit_once(')')?;
        let fields: Vec<&str> = fields.split_ascii_whitespace().collect();
        // Numbered as in proc_pid_stat(5), where the state is the third field.
        let number = |field: usize| fields.get(field - 3)?.parse::<u64>().ok();
        Some(ProcessStat {
            state: fields.first()?.chars().next()?,
            user: number(14)? + number(16)?,
            system: number(15)? + number(17)?,
            children: number(16)? + number(17)?,
            start: number(22)?,
            resident_pages: number(24)?,
        })
    }
}

/// Time limit for helpers to exit after they were shut down.
const EXIT_TIMEOUT: Duration = Duration::from_secs(1);

/// Helpers that run: children of the agent that are not part of the user's program, so signals for
/// the ranks are not sent to them. They are the prover, the program that reads stacks, and the one
/// that reads the use of GPUs.
#[derive(Debug, Default)]
pub(crate) struct Helpers {
    pids: Vec<Pid>,
    /// Time at which they are killed, set once no other process is left.
    kill_at: Option<Instant>,
    killed: bool,
}

/// State of the helpers after their time to exit.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum HelperState {
    /// None runs any more.
    Gone,
    /// They were killed now.
    Killed,
    /// They run although they were killed before. The guardian deals with them.
    Stuck,
}

impl Helpers {
    pub(crate) fn new(pids: impl IntoIterator<Item = Pid>) -> Helpers {
        Helpers { pids: pids.into_iter().collect(), ..Helpers::default() }
    }

    pub(crate) fn pids(&self) -> &[Pid] {
        &self.pids
    }

    pub(crate) fn add(&mut self, pid: Pid) {
        self.pids.push(pid);
    }

    /// Removes a process that was reaped, if it is a helper.
    pub(crate) fn on_reaped(&mut self, pid: Pid) {
        self.pids.retain(|&helper| helper != pid);
    }

    /// Kills one helper, unless it has ended.
    pub(crate) fn kill(&self, pid: Pid) {
        // Until it is reaped, no other process gets its id.
        if self.pids.contains(&pid) {
            let _ = kill(pid, Signal::SIGKILL);
        }
    }

    /// Begins to wait for the helpers to exit.
    pub(crate) fn await_exit(&mut self, now: Instant) {
        self.kill_at.get_or_insert(now + EXIT_TIMEOUT);
    }

    /// Returns the time at which [`Helpers::end`] is due.
    pub(crate) fn kill_at(&self) -> Option<Instant> {
        self.kill_at
    }

    /// Kills helpers that were shut down and have not exited.
    pub(crate) fn end(&mut self) -> HelperState {
        self.kill_at = None;
        self.pids.retain(|&pid| parent(pid) == Some(Pid::this()));
        if self.pids.is_empty() {
            return HelperState::Gone;
        }
        if std::mem::replace(&mut self.killed, true) {
            return HelperState::Stuck;
        }
        self.pids.iter().for_each(|&pid| self.kill(pid));
        HelperState::Killed
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::process::{Command, Stdio};

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
            let is_below = |p: &&Pid| stat(**p).is_some_and(|(_, parent)| parent == mine.as_raw());
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
    fn a_signal_is_for_the_nearest_process_that_handles_it() {
        let handler = r#"trap : USR1; echo; sh -c "sleep 60; :"; :"#;
        let mut shell = Command::new("sh")
            .args(["-c", r#"sh -c "$0"; :"#, handler])
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let mut line = [0; 1];
        std::io::Read::read_exact(shell.stdout.as_mut().unwrap(), &mut line).unwrap();
        let mine = Pid::from_raw(shell.id().cast_signed());
        let found = handlers(mine, Signal::SIGUSR1);
        assert!(found.len() == 1 && parent(found[0]) == Some(mine), "{found:?} below {mine}");
        assert_eq!(handlers(found[0], Signal::SIGUSR1), found);
        assert!(handlers(mine, Signal::SIGUSR2).is_empty());
        assert_eq!(children_in_table(mine), found);
        for pid in walk_table(mine).into_iter().chain([mine]) {
            kill(pid, Signal::SIGKILL).unwrap();
        }
        shell.wait().unwrap();
        assert!(!handles(mine, Signal::SIGUSR1));
    }

    #[test]
    fn a_child_counts_until_it_is_collected() {
        let mut child = Command::new("sleep").arg("60").spawn().unwrap();
        let pid = Pid::from_raw(child.id().cast_signed());
        assert_ne!(Children::now(), Children::None);
        assert!(!has_ended(pid) && !is_exiting(pid) && parent(pid) == Some(Pid::this()));
        child.kill().unwrap();
        child.wait().unwrap();
        assert!(has_ended(pid) && is_exiting(pid));
    }

    #[test]
    fn fields_are_found_behind_any_name() {
        let line = "7 (a) b (c)) S 1 7 7 0 -1 4194304 100 0 0 0 11 22 3 4 20 0 1 0 5 6 77 8\n";
        let (user, system, children, start, resident_pages) = (14, 26, 7, 5, 77);
        let stat = ProcessStat { state: 'S', user, system, children, start, resident_pages };
        assert_eq!(ProcessStat::parse(line), Some(stat));
        assert_eq!(ProcessStat::parse("7 (a) S 1"), None);
        assert_eq!(ProcessStat::parse(""), None);
    }

    #[test]
    fn this_process_uses_memory() {
        let usage = usage_of_rank(Rank(3), Pid::this(), None);
        assert!(usage.processes >= 1 && usage.resident > 1 << 20, "{usage:?}");
        assert!(matches!(usage.state, 'R' | 'S'), "{usage:?}");
    }

    #[test]
    fn times_of_a_main_thread_are_read() {
        assert_eq!(parse_schedstat("1500000 20 3\n"), Some((1_500_000, 3)));
        for none in ["0 0 0\n", "7 x 1", "7", ""] {
            assert_eq!(parse_schedstat(none), None, "{none}");
        }
        let line = "7 (a) S 1 7 7 0 -1 4194304 100 0 0 0 11 22 3 4 20 0 1 0 5 6 77 8\n";
        let (stat, tick) =
            (ProcessStat::parse(line).unwrap(), 1_000_000 / Units::of_system().ticks_per_second);
        let exact = MainThread { used_us: 1500 + 7 * tick, runs: 3 };
        assert_eq!(MainThread::new(&stat, Some((1_500_000, 3))), Some(exact));
        assert_eq!(MainThread::new(&stat, None).unwrap().used_us, 40 * tick);
    }

    /// The main thread sleeps for a second, while another one computes.
    #[test]
    fn the_main_thread_is_told_from_others() {
        let script = "import threading, time\ndef work():\n  end = time.thread_time() + 0.3\n  \
                      while time.thread_time() < end: pass\n\
                      one = threading.Thread(target=work); one.start(); one.join(); print(flush=True); time.sleep(60)";
        let mut command = Command::new("python3");
        let mut python = command.args(["-c", script]).stdout(Stdio::piped()).spawn().unwrap();
        let mut line = [0; 1];
        std::io::Read::read_exact(python.stdout.as_mut().unwrap(), &mut line).unwrap();
        let usage = usage_of_rank(Rank(0), Pid::from_raw(python.id().cast_signed()), None);
        python.kill().unwrap();
        python.wait().unwrap();
        let all_us = (usage.user_ms + usage.system_ms) * 1000;
        assert!(usage.main_us > 0 && all_us >= usage.main_us + 200_000, "{usage:?}");
    }

    /// Children that a shell has waited for count as its own work.
    #[test]
    fn a_shell_that_starts_commands_works() {
        let script = "i=0; while [ $i -lt 100 ]; do /bin/true; i=$((i + 1)); done; echo; read line";
        let mut command = Command::new("sh");
        let command = command.args(["-c", script]).stdin(Stdio::piped()).stdout(Stdio::piped());
        let mut shell = command.spawn().unwrap();
        let mut line = [0; 1];
        std::io::Read::read_exact(shell.stdout.as_mut().unwrap(), &mut line).unwrap();
        let usage = usage_of_rank(Rank(0), Pid::from_raw(shell.id().cast_signed()), None);
        shell.kill().unwrap();
        shell.wait().unwrap();
        assert!(usage.main_us >= 5_000, "{usage:?}");
    }

    #[test]
    fn a_rank_that_uses_the_communicator_has_waited() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join(WaitRecord::file_name(Rank(0)));
        let waited = || usage_of_rank(Rank(0), Pid::this(), Some(directory.path())).waited_ms;
        assert_eq!(waited(), None);
        fs::write(&path, WaitRecord(Duration::from_millis(1500)).encode()).unwrap();
        assert_eq!(waited(), Some(1500));
        // Not the communicator's own file.
        fs::remove_file(&path).unwrap();
        nix::unistd::mkfifo(&path, nix::sys::stat::Mode::S_IRWXU).unwrap();
        assert_eq!(waited(), None);
    }

    #[test]
    fn a_process_that_has_ended_uses_nothing() {
        let mut child = std::process::Command::new("true").spawn().unwrap();
        child.wait().unwrap();
        let usage = usage_of_rank(Rank(0), Pid::from_raw(child.id().cast_signed()), None);
        assert_eq!((usage.processes, usage.state, usage.resident), (0, 'Z', 0));
    }

    #[test]
    fn a_helper_that_does_not_exit_is_killed() {
        let mut child = Command::new("sleep").arg("1000").spawn().unwrap();
        let pid = Pid::from_raw(child.id().cast_signed());
        let mut helpers = Helpers::new([pid]);
        let now = Instant::now();
        helpers.await_exit(now);
        helpers.await_exit(now + EXIT_TIMEOUT);
        assert_eq!(helpers.kill_at(), Some(now + EXIT_TIMEOUT));
        assert_eq!(helpers.end(), HelperState::Killed);
        child.wait().unwrap();
        helpers.on_reaped(pid);
        assert_eq!((helpers.end(), helpers.kill_at()), (HelperState::Gone, None));
    }
}
