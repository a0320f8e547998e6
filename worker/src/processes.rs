//! Which processes descend from this one.
//!
//! Agent and guardian are subreapers, so whatever a rank starts stays among their descendants:
//! background helpers, `setsid`, double forks and daemons included.

use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use std::collections::{HashMap, HashSet};
use std::fs;

/// Every living descendant of this process but `spared`, parents before children. Zombies are not
/// among them.
pub(crate) fn descendants(spared: Option<Pid>) -> Vec<Pid> {
    let me = Pid::this();
    let mut found = if children(me).is_some() { walk_children(me) } else { walk_table(me) };
    found.retain(|&pid| Some(pid) != spared);
    found
}

/// Sends signals, in this order, to every descendant but `spared`. A process that is forked
/// meanwhile, or that hides because its elder sibling ends while the list is read, is found by
/// looking again.
pub(crate) fn signal_all(signals: &[Signal], spared: Option<Pid>) {
    const LOOKS: usize = 8;
    let mut reached = HashSet::new();
    for _ in 0..LOOKS {
        let mut found_more = false;
        for pid in descendants(spared) {
            if reached.insert(pid) {
                found_more = true;
                for &signal in signals {
                    // One that has ended meanwhile needs no signal.
                    let _ = kill(pid, signal);
                }
            }
        }
        if !found_more {
            return;
        }
    }
}

/// Follows the kernel's own lists of children.
fn walk_children(root: Pid) -> Vec<Pid> {
    let mut found = children(root).unwrap_or_default();
    let mut at = 0;
    while let Some(&pid) = found.get(at) {
        found.extend(children(pid).unwrap_or_default());
        at += 1;
    }
    found.retain(|&pid| !is_zombie(pid));
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

/// Whether a process has ended, collected by its parent or not.
pub(crate) fn is_zombie(pid: Pid) -> bool {
    !matches!(stat(pid), Some((state, _)) if !matches!(state, 'Z' | 'X'))
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
    let name = fs::read_to_string(format!("/proc/{pid}/comm")).unwrap_or_default();
    let state = stat(pid).map_or('?', |(state, _)| state);
    format!("{pid} {} (state {state})", name.trim_end())
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
}
