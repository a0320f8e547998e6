//! Processes of hosts, read from the machine's /proc: a host's processes are those in its pid
//! namespace.

use std::collections::HashMap;
use std::fs;
use std::path::{Path, PathBuf};
use std::time::Duration;

use nix::sys::signal::{self, Signal};
use nix::unistd::Pid;

use crate::LabError;
use crate::command::wait_until;

/// Number of seconds that pid 1 of a host sleeps while it waits for orphans. No other process
/// sleeps as long, so the sleeper is recognised by it.
pub(super) const KEEPER: &str = "2147483647";

/// Process on a host.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Process {
    /// Host that it runs on.
    pub host: String,
    /// Pid on this machine, for signals sent from outside the host.
    pub pid: i32,
    /// Pid on the host.
    pub host_pid: i32,
    /// Pid of its parent on this machine.
    pub parent: i32,
    /// State letter of ps(1).
    pub state: char,
    /// Arguments, or its name in brackets if it has none.
    pub args: Vec<String>,
}

impl Process {
    /// Returns the arguments, separated by spaces.
    pub fn command_line(&self) -> String {
        self.args.join(" ")
    }

    /// Tells whether it still runs; a zombie does not.
    pub fn is_running(&self) -> bool {
        start_time(self.pid).is_some()
    }

    /// Tells whether this process is the sshd that listens for connections.
    pub(super) fn is_listening_sshd(&self) -> bool {
        let line = self.command_line();
        line.starts_with("sshd: ") && line.contains("[listener]")
    }

    /// Tells whether this process is an sshd that serves a connection, not the listening sshd.
    pub(super) fn is_ssh_session(&self) -> bool {
        self.command_line().starts_with("sshd") && !self.is_listening_sshd()
    }
}

/// Kills a process of this machine, unless it has ended meanwhile.
pub(crate) fn kill(pid: i32) {
    let _ = signal::kill(Pid::from_raw(pid), Signal::SIGKILL);
}

/// Kills what `list` finds, but for this process, until it finds nothing else.
pub(super) fn kill_all(what: &str, list: impl Fn() -> Vec<i32>) -> Result<(), LabError> {
    let own = i32::try_from(std::process::id()).unwrap_or(0);
    wait_until(Duration::from_secs(10), what, || {
        let mut left = list();
        left.retain(|&pid| pid != own);
        left.iter().for_each(|pid| kill(*pid));
        Ok(left.is_empty())
    })
}

/// Lists all processes in the pid namespaces of `hosts`, each given by name and pid 1, in one pass
/// over /proc.
pub(super) fn all(hosts: &[(&str, i32)]) -> Vec<Process> {
    let namespace = |pid: i32| fs::read_link(format!("/proc/{pid}/ns/pid")).ok();
    let named = hosts.iter().filter_map(|&(host, init)| Some((namespace(init)?, host)));
    let named: HashMap<PathBuf, &str> = named.collect();
    numbers(Path::new("/proc"))
        // A process that ends during the pass is left out.
        .filter_map(|pid| read(named.get(&namespace(pid)?)?, pid))
        .collect()
}

/// Lists the processes of `hosts` without those that belong to the hosts themselves: init, its
/// sleeper and the listening sshd.
pub(super) fn visible(hosts: &[(&str, i32)]) -> Vec<Process> {
    let is_init = |pid: i32| hosts.iter().any(|&(_, init)| init == pid);
    let mut processes = all(hosts);
    processes.retain(|process| {
        let keeper = process.args == ["sleep", KEEPER];
        // A dead child of init is about to be reaped.
        let reaped = process.state == 'Z' && is_init(process.parent);
        !is_init(process.pid) && !keeper && !reaped && !process.is_listening_sshd()
    });
    processes
}

/// Lists the children of `pid`.
pub(super) fn children(pid: i32) -> Vec<i32> {
    fs::read_to_string(format!("/proc/{pid}/task/{pid}/children"))
        .unwrap_or_default()
        .split_whitespace()
        .filter_map(|word| word.parse().ok())
        .collect()
}

/// Returns the start time of `pid` in ticks since boot, or nothing if it has ended.
pub(super) fn start_time(pid: i32) -> Option<u64> {
    let stat = fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
    let fields = Stat::parse(&stat)?;
    // A zombie still has an entry, but has ended.
    (fields.state != 'Z').then_some(fields.start)
}

/// Returns the argument vector of `pid`, which is empty for zombies and kernel threads.
pub(super) fn arguments(pid: i32) -> Vec<String> {
    let bytes = fs::read(format!("/proc/{pid}/cmdline")).unwrap_or_default();
    split_arguments(&bytes)
}

/// Returns the proportional set size of `pid` in bytes: a page shared by n processes counts 1/n in
/// each.
pub(super) fn memory(pid: i32) -> Option<u64> {
    let text = fs::read_to_string(format!("/proc/{pid}/smaps_rollup")).ok()?;
    let line = text.lines().find_map(|line| line.strip_prefix("Pss:"))?;
    let kib: u64 = line.trim().trim_end_matches("kB").trim().parse().ok()?;
    Some(kib * 1024)
}

fn read(host: &str, pid: i32) -> Option<Process> {
    let stat = fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
    let fields = Stat::parse(&stat)?;
    let status = fs::read_to_string(format!("/proc/{pid}/status")).ok()?;
    let numbers = status.lines().find_map(|line| line.strip_prefix("NSpid:"))?;
    let mut args = arguments(pid);
    if args.is_empty() {
        args = vec![format!("[{}]", fields.name)];
    }
    Some(Process {
        host: host.into(),
        pid,
        host_pid: numbers.split_whitespace().next_back()?.parse().ok()?,
        parent: fields.parent,
        state: fields.state,
        args,
    })
}

fn numbers(proc: &Path) -> impl Iterator<Item = i32> {
    let entries = fs::read_dir(proc).into_iter().flatten().flatten();
    entries.filter_map(|entry| entry.file_name().to_str()?.parse().ok())
}

/// Splits arguments, each of which ends with a NUL. An sshd overwrites its own with one text and
/// trailing NULs.
fn split_arguments(bytes: &[u8]) -> Vec<String> {
    let end = bytes.iter().rposition(|&byte| byte != 0).map_or(0, |last| last + 1);
    if end == 0 {
        return Vec::new();
    }
    bytes[..end].split(|&byte| byte == 0).map(|arg| String::from_utf8_lossy(arg).into()).collect()
}

/// Fields of `/proc/PID/stat` that are used here.
struct Stat<'a> {
    name: &'a str,
    state: char,
    parent: i32,
    start: u64,
}

impl Stat<'_> {
    /// Parses the file. The name is in parentheses, and may itself contain spaces and parentheses.
    fn parse(text: &str) -> Option<Stat<'_>> {
        let (head, tail) = text.rsplit_once(')')?;
        let (_, name) = head.split_once('(')?;
        let fields: Vec<&str> = tail.split_whitespace().collect();
        Some(Stat {
            name,
            state: fields.first()?.chars().next()?,
            parent: fields.get(1)?.parse().ok()?,
            start: fields.get(19)?.parse().ok()?,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn stat_survives_odd_names() {
        let line = "42 (a) b (c) S 1 42 42 0 -1 4194560 1 0 0 0 0 0 0 0 20 0 1 0 777 1 1";
        let stat = Stat::parse(line).unwrap();
        assert_eq!((stat.name, stat.state, stat.parent, stat.start), ("a) b (c", 'S', 1, 777));
        assert!(Stat::parse("42 (x").is_none());
    }

    #[test]
    fn arguments_end_in_nul() {
        assert_eq!(split_arguments(b"sh\0-c\0\0x\0"), ["sh", "-c", "", "x"]);
        assert_eq!(split_arguments(b"sshd: root@notty\0\0\0"), ["sshd: root@notty"]);
        assert!(split_arguments(b"").is_empty());
    }
}
