//! CPU time and memory of processes, read from `/proc`, and what ranks use of them.

use crate::cleanup::processes::list_descendants_of;
use crate::node::Units;
use nix::fcntl::OFlag;
use nix::unistd::Pid;
use rlaunch_bootstrap::id::Rank;
use rlaunch_bootstrap::protocol::inspection::RankUsage;
use rlaunch_bootstrap::protocol::rank::WaitRecord;
use std::fs::{self, OpenOptions};
use std::os::unix::fs::{FileExt, OpenOptionsExt};
use std::path::Path;

/// Returns the resources that ranks use, each with the process id of its own process.
pub(crate) fn usage_of_ranks(ranks: &[(Rank, Pid)], directory: Option<&Path>) -> Vec<RankUsage> {
    ranks.iter().map(|&(rank, pid)| usage_of_rank(rank, pid, directory)).collect()
}

/// Returns the resources that a rank and its descendants use. `pid` is the rank's own process, and
/// `directory` the job's directory, if it has one.
fn usage_of_rank(rank: Rank, pid: Pid, directory: Option<&Path>) -> RankUsage {
    let own = ProcessStat::read(pid);
    // A process that is gone reads as a zombie.
    let state = own.as_ref().map_or('Z', |stat| stat.state);
    let descendants = list_descendants_of(pid);
    let below: Vec<Pid> = descendants.into_iter().filter(|&other| other != pid).collect();
    let stats = below.iter().map(|&pid| ProcessStat::read(pid));
    let Usage { processes, user_ms, system_ms, resident } =
        Usage::sum(std::iter::once(own).chain(stats).flatten());
    let main: Vec<_> = std::iter::once(pid).chain(below).filter_map(MainThread::read).collect();
    let main_us = main.iter().map(|thread| thread.used_us).sum();
    let main_runs = main.iter().map(|thread| thread.runs).sum();
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

    /// Returns the time since the process started, in seconds.
    pub(super) fn age_s(&self) -> u64 {
        let uptime = fs::read_to_string("/proc/uptime").unwrap_or_default();
        let uptime = uptime.split('.').next().and_then(|seconds| seconds.parse::<u64>().ok());
        let started = self.start / Units::of_system().ticks_per_second;
        uptime.unwrap_or_default().saturating_sub(started)
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

#[cfg(test)]
mod tests {
    use super::*;
    use std::process::{Command, Stdio};
    use std::time::Duration;

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
}
