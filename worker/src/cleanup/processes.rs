//! Which processes descend from this one.
//!
//! Agent and guardian are subreapers, so whatever a rank starts stays among their descendants:
//! background helpers, `setsid`, double forks and daemons included.

use nix::errno::Errno;
use nix::sys::signal::{Signal, kill, killpg};
use nix::sys::wait::{Id, WaitPidFlag, WaitStatus, waitid};
use nix::unistd::{Pid, getpgid, getpgrp, getsid};
use std::collections::{HashMap, HashSet};
use std::fs;
use std::time::{Duration, Instant};

/// Signals that tell processes to end: a stopped one takes its TERM only when it runs.
pub(crate) const TERM: &[Signal] = &[Signal::SIGTERM, Signal::SIGCONT];

/// Signals that tell what an agent has left to end. Its ranks, each of which leads a group in the agent's
/// session, have had TERM from the kernel.
pub(crate) fn term(pid: Pid, agent: Pid) -> &'static [Signal] {
    let is_rank = getpgid(Some(pid)) == Ok(pid) && getsid(Some(pid)) == Ok(agent);
    if is_rank { &[Signal::SIGCONT] } else { TERM }
}

/// How long one attempt to kill everything may look for processes that it has not reached.
const SCAN_LIMIT: Duration = Duration::from_millis(20);
/// That many looks in a row must find no new process before those that were found are killed.
const EMPTY_SCANS: usize = 3;

/// The kernel's word on this process's children, adopted ones included. No look at a process table is
/// as good: a process that forks and ends at once may never be there when one looks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Children {
    /// There are none, dead or alive.
    None,
    /// At least one has ended and can be collected.
    Ended,
    /// All of them live.
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

/// Every living descendant of this process but `except`, parents before children. Zombies are not
/// among them.
pub(crate) fn descendants(except: Option<Pid>) -> Vec<Pid> {
    let me = Pid::this();
    let mut found = if children(me).is_some() { walk_children(me) } else { walk_table(me) };
    found.retain(|&pid| Some(pid) != except);
    found
}

/// Every living descendant of another process.
pub(crate) fn below(root: Pid) -> Vec<Pid> {
    walk_table(root)
}

/// Names what is left of this process's descendants but `except`, for a message.
pub(crate) fn left(except: Option<Pid>) -> Vec<String> {
    let left = descendants(except);
    if left.is_empty() && except.is_none() && Children::now() != Children::None {
        return vec!["a process that cannot be seen".to_owned()];
    }
    left.into_iter().map(describe).collect()
}

/// Sends signals, in this order, to every descendant but `except`, and gives those.
pub(crate) fn signal_all(signals: &[Signal], except: Option<Pid>) -> HashSet<Pid> {
    signal_each(|_| signals, except)
}

/// Sends each descendant but `except` the signals for it, parents first: a shell whose child ends before
/// it is told may go on. A process that is forked meanwhile, or that hides because its elder sibling ends
/// while the list is read, is found by looking again. Gives all of them.
pub(crate) fn signal_each<'a>(
    signals: impl Fn(Pid) -> &'a [Signal],
    except: Option<Pid>,
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

/// Sends signals to a process, in this order.
pub(crate) fn signal_one(pid: Pid, signals: &[Signal]) {
    for &signal in signals {
        // One that has ended meanwhile needs no signal.
        let _ = kill(pid, signal);
    }
}

/// Kills every descendant but `except`: stops them one after the other, so that none forks or ends and
/// hides others, until there is no new one, and then kills them. `collect` collects the dead meanwhile:
/// a long list of them takes the time in which a process that forks and ends is there to be reached.
///
/// A group is signalled as well as its processes: the kernel lets none of it fork in between.
pub(crate) fn kill_all(except: Option<Pid>, mut collect: impl FnMut()) {
    let own_group = getpgrp();
    let (mut reached, mut groups) = (HashSet::new(), HashSet::new());
    let until = Instant::now() + SCAN_LIMIT;
    let mut empty_scans = 0;
    collect();
    while empty_scans < EMPTY_SCANS && Instant::now() < until {
        let found = reach_new(&mut reached, except, |pid| {
            let group = getpgid(Some(pid)).ok().filter(|&group| group != own_group);
            // A process without a group here has 0, and 1 would be every process that there is.
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

/// Has `reach` meet every descendant but `except` that is not among `reached`, each as soon as it is
/// found; whether there was one.
fn reach_new(reached: &mut HashSet<Pid>, except: Option<Pid>, mut reach: impl FnMut(Pid)) -> bool {
    let me = Pid::this();
    let mut found = false;
    let mut parents = vec![me];
    while let Some(parent) = parents.pop() {
        let Some(children) = children(parent) else {
            if parent == me {
                // The kernel keeps no such lists.
                let table = walk_table(me).into_iter().filter(|pid| Some(*pid) != except);
                for pid in table.filter(|pid| reached.insert(*pid)) {
                    found = true;
                    reach(pid);
                }
            }
            continue;
        };
        for pid in children.into_iter().filter(|pid| Some(*pid) != except) {
            if reached.insert(pid) {
                found = true;
                reach(pid);
            }
            parents.push(pid);
        }
    }
    found
}

/// Follows the kernel's own lists of children.
fn walk_children(root: Pid) -> Vec<Pid> {
    let mut found = children(root).unwrap_or_default();
    found.retain(|&pid| !has_ended(pid));
    let mut at = 0;
    while let Some(&pid) = found.get(at) {
        // What has ended has no children.
        let living = |pid: &Pid| !has_ended(*pid);
        found.extend(children(pid).unwrap_or_default().into_iter().filter(living));
        at += 1;
    }
    found
}

/// The children of every thread of a process; `None` where the kernel keeps no such list
/// (`CONFIG_PROC_CHILDREN`) or the process is gone.
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

/// Reads the whole process table.
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

/// Whether a process has ended, collected by its parent or not. That its entry cannot be read says
/// nothing: one that has changed its user is hidden from this one where `/proc` is mounted so
/// (`hidepid`).
pub(crate) fn has_ended(pid: Pid) -> bool {
    match stat(pid) {
        Some((state, _)) => matches!(state, 'Z' | 'X'),
        None => kill(pid, None) == Err(Errno::ESRCH),
    }
}

/// The parent of a process.
pub(crate) fn parent(pid: Pid) -> Option<Pid> {
    stat(pid).map(|(_, parent)| Pid::from_raw(parent))
}

/// State letter and parent of a process, from `/proc/PID/stat`: `pid (name) state ppid …`, where
/// the name may hold anything, parentheses included.
fn stat(pid: Pid) -> Option<(char, i32)> {
    let stat = fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
    let mut fields = stat[stat.rfind(')')? + 1..].split_ascii_whitespace();
    Some((fields.next()?.chars().next()?, fields.next()?.parse().ok()?))
}

/// A process as a message names it: `4711 python3 (state D)`.
pub(crate) fn describe(pid: Pid) -> String {
    let name = fs::read_to_string(format!("/proc/{pid}/comm"));
    match (name, stat(pid)) {
        (Ok(name), Some((state, _))) => {
            // A process names itself; a name is not to look like the end of the list.
            let name = name.trim_end().replace(|c: char| c.is_control() || c == ',', "?");
            format!("{pid} {name} (state {state})")
        }
        _ => format!("{pid} (another user's, whose name is hidden)"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::process::{Command, Stdio};

    /// Both ways of looking agree, and see a grandchild.
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
            // Children of other tests may be gone by now.
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

    #[test]
    fn a_child_counts_until_it_is_collected() {
        let mut child = Command::new("sleep").arg("60").spawn().unwrap();
        let pid = Pid::from_raw(child.id().cast_signed());
        assert_ne!(Children::now(), Children::None);
        assert!(!has_ended(pid) && parent(pid) == Some(Pid::this()));
        child.kill().unwrap();
        child.wait().unwrap();
        assert!(has_ended(pid));
    }
}
