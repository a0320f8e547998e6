//! `rlaunch-worker jobs`: lists the jobs of this user that have processes on this host, whichever
//! machine started them.

use crate::cleanup::usage::{ProcessStat, Usage};
use crate::cleanup::{processes, reap};
use nix::unistd::Pid;
use rlaunch_bootstrap::env::{RLAUNCH_JOB_ID, RLAUNCH_RANK};
use rlaunch_bootstrap::protocol::housekeeping::{HostJob, HostJobs};
use std::collections::{BTreeMap, BTreeSet};
use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt;
use std::{fs, iter};

/// Lists the jobs, in the order of their ids, and so of their starts.
pub(crate) fn list_jobs() -> HostJobs {
    let mut jobs: BTreeMap<String, JobProcesses> = BTreeMap::new();
    for pid in reap::processes_of("all") {
        let environment = processes::read_environment(pid).unwrap_or_default();
        let (Some(job), Some(stat)) =
            (processes::find_variable(&environment, RLAUNCH_JOB_ID), ProcessStat::read(pid))
        else {
            continue;
        };
        let job = jobs.entry(job).or_default();
        job.ranks.extend(processes::find_variable(&environment, RLAUNCH_RANK));
        job.processes.push((pid, stat));
    }
    HostJobs(jobs.into_iter().filter_map(|(id, job)| job.describe(id)).collect())
}

/// Processes of a job.
#[derive(Default)]
struct JobProcesses {
    /// Ranks, as in their variable.
    ranks: BTreeSet<String>,
    processes: Vec<(Pid, ProcessStat)>,
}

impl JobProcesses {
    /// Describes the job. Returns `None` if it has no process.
    fn describe(self, job: String) -> Option<HostJob> {
        let (oldest, stat) = self.processes.iter().min_by_key(|(pid, stat)| (stat.start, *pid))?;
        let (oldest, seconds) = (*oldest, stat.age_s());
        let has_agent = self.processes.iter().any(|(pid, _)| has_agent(*pid));
        let Usage { processes, user_ms, system_ms, resident } =
            Usage::sum(self.processes.into_iter().map(|(_, stat)| stat));
        Some(HostJob {
            job,
            ranks: u32::try_from(self.ranks.len()).unwrap_or(u32::MAX),
            processes,
            seconds,
            cpu_ms: user_ms + system_ms,
            resident,
            program: command_line(oldest),
            has_agent,
        })
    }
}

/// Tells whether a process is a descendant of an agent, of this build or another.
fn has_agent(pid: Pid) -> bool {
    let is_agent = |pid: &Pid| {
        let words = command_line(*pid);
        let name = words.first().and_then(|path| path.rsplit('/').next());
        name == Some("rlaunch-worker") && words.get(1).is_some_and(|verb| verb == "agent")
    };
    let above = iter::successors(Some(pid), |&pid| processes::parent(pid));
    above.take_while(|pid| pid.as_raw() > 1).any(|pid| is_agent(&pid))
}

fn command_line(pid: Pid) -> Vec<String> {
    let line = fs::read(format!("/proc/{pid}/cmdline")).unwrap_or_default();
    let line = line.strip_suffix(b"\0").unwrap_or(&line);
    let text = |word: &[u8]| OsStr::from_bytes(word).to_string_lossy().into_owned();
    line.split(|&byte| byte == 0).map(text).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::process::Command;
    use std::time::Duration;

    #[test]
    fn a_job_is_listed_with_its_ranks() {
        // Another run of the tests on this machine may have jobs of its own.
        let id = &format!("{:032x}", std::process::id());
        let start = |rank: &str| {
            let mut sleep = Command::new("sleep");
            sleep.arg("60").env(RLAUNCH_JOB_ID, id).env(RLAUNCH_RANK, rank).spawn().unwrap()
        };
        let mut children = [start("4"), start("5")];
        // A process may show its environment only a moment after it has begun to execute the program.
        let found = (0..100).find_map(|_| {
            std::thread::sleep(Duration::from_millis(20));
            list_jobs().0.into_iter().find(|job| job.job == *id && job.processes == 2)
        });
        children.iter_mut().for_each(|child| {
            child.kill().unwrap();
            child.wait().unwrap();
        });
        let found = found.unwrap();
        assert_eq!((found.ranks, found.has_agent), (2, false));
        assert_eq!(found.program, ["sleep", "60"]);
        assert!(found.seconds < 600 && found.resident > 0, "{found:?}");
    }
}
