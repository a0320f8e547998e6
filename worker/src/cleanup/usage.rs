//! CPU time and memory of processes, read from `/proc`.

use crate::cleanup::processes;
use crate::node::units::Units;
use nix::fcntl::OFlag;
use nix::unistd::Pid;
use rlaunch_bootstrap::id::Rank;
use rlaunch_bootstrap::protocol::inspection::RankUsage;
use rlaunch_bootstrap::protocol::rank::WaitRecord;
use std::fs::{self, OpenOptions};
use std::os::unix::fs::{FileExt, OpenOptionsExt};
use std::path::Path;

/// Returns the resources that ranks use, each with the process id of its own process.
pub(crate) fn of_ranks(ranks: &[(Rank, Pid)], directory: Option<&Path>) -> Vec<RankUsage> {
    ranks.iter().map(|&(rank, pid)| of_rank(rank, pid, directory)).collect()
}

/// Returns the resources that a rank and its descendants use. `pid` is the rank's own process, and `directory` the job's
/// directory, if it has one.
fn of_rank(rank: Rank, pid: Pid, directory: Option<&Path>) -> RankUsage {
    let own = ProcessStat::read(pid);
    let state = own.as_ref().map_or('Z', |stat| stat.state);
    let descendants = processes::list_descendants_of(pid);
    let below = descendants.into_iter().filter(|&other| other != pid).map(ProcessStat::read);
    let Usage { processes, user_ms, system_ms, resident } =
        Usage::sum(std::iter::once(own).chain(below).flatten());
    let pid = pid.as_raw().cast_unsigned();
    let waited_ms = directory.and_then(|directory| waited_ms(rank, directory));
    RankUsage { rank, pid, processes, user_ms, system_ms, resident, state, waited_ms }
}

/// Reads the time for which a rank has waited in calls of the communicator; `None` if it has not used it.
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
    /// Number of processes.
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
            start: number(22)?,
            resident_pages: number(24)?,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::time::Duration;

    #[test]
    fn fields_are_found_behind_any_name() {
        let line = "7 (a) b (c)) S 1 7 7 0 -1 4194304 100 0 0 0 11 22 3 4 20 0 1 0 5 6 77 8\n";
        let stat = ProcessStat { state: 'S', user: 14, system: 26, start: 5, resident_pages: 77 };
        assert_eq!(ProcessStat::parse(line), Some(stat));
        assert_eq!(ProcessStat::parse("7 (a) S 1"), None);
        assert_eq!(ProcessStat::parse(""), None);
    }

    #[test]
    fn this_process_uses_memory() {
        let usage = of_rank(Rank(3), Pid::this(), None);
        assert!(usage.processes >= 1 && usage.resident > 1 << 20, "{usage:?}");
        assert!(matches!(usage.state, 'R' | 'S'), "{usage:?}");
    }

    #[test]
    fn a_rank_that_uses_the_communicator_has_waited() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join(WaitRecord::file_name(Rank(0)));
        let waited = || of_rank(Rank(0), Pid::this(), Some(directory.path())).waited_ms;
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
        let usage = of_rank(Rank(0), Pid::from_raw(child.id().cast_signed()), None);
        assert_eq!((usage.processes, usage.state, usage.resident), (0, 'Z', 0));
    }
}
