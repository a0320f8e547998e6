//! `rlaunch-worker reap JOB|all`: ends whatever a job left on this node, when its agent cannot.
//!
//! A job's processes are known by RLAUNCH_JOB_ID in the environment they were started with, so a
//! helper is found even when its agent, its guardian and its parents are gone. Running it twice
//! does no harm.

use crate::say::{complain, tell};
use crate::{processes, shm, workspace};
use nix::sys::signal::{Signal, kill};
use nix::unistd::{Pid, Uid};
use rlaunch_bootstrap::awake::Deadline;
use rlaunch_bootstrap::env::RLAUNCH_JOB_ID;
use std::ffi::OsString;
use std::fs;
use std::os::unix::fs::MetadataExt;
use std::process::ExitCode;
use std::time::{Duration, Instant, SystemTime};

/// How long killed processes may take to vanish.
const VANISH: Duration = Duration::from_secs(2);

/// Ends the processes of a job (`all`: of every job) of this user; the last line of stdout says
/// what was done. Fails when something could not be ended.
pub(crate) fn reap(job: Option<OsString>) -> ExitCode {
    let Some(job) = job.and_then(|job| job.into_string().ok()).filter(|job| is_job(job)) else {
        complain!("rlaunch-worker: reap takes a job's id, 32 hexadecimal digits, or all");
        return ExitCode::from(2);
    };
    let mut ended: Vec<Pid> = Vec::new();
    let mut deadline = Deadline::after(VANISH, Instant::now());
    loop {
        let left = processes_of(&job);
        for &pid in &left {
            let _ = kill(pid, Signal::SIGKILL);
            if !ended.contains(&pid) {
                ended.push(pid);
            }
        }
        if left.is_empty() {
            let swept = shm::sweep(SystemTime::UNIX_EPOCH);
            workspace::sweep();
            let removed = swept.removed + shm::sweep_job(&job);
            tell!("{} ended, {removed} segments removed", ended.len());
            return ExitCode::SUCCESS;
        }
        if deadline.is_over(Instant::now()) {
            let left: Vec<_> = left.into_iter().map(processes::describe).collect();
            tell!("left: {}", left.join(", "));
            return ExitCode::FAILURE;
        }
        std::thread::sleep(Duration::from_millis(2));
    }
}

fn is_job(job: &str) -> bool {
    job == "all" || (job.len() == 32 && job.bytes().all(|byte| byte.is_ascii_hexdigit()))
}

/// Living processes of this user that were started as part of the job.
fn processes_of(job: &str) -> Vec<Pid> {
    let (me, my_uid) = (Pid::this(), Uid::effective().as_raw());
    let pids = fs::read_dir("/proc").into_iter().flatten().flatten().filter_map(|entry| {
        let pid: i32 = entry.file_name().to_str()?.parse().ok()?;
        (entry.metadata().ok()?.uid() == my_uid).then_some(Pid::from_raw(pid))
    });
    pids.filter(|&pid| pid != me && !processes::is_zombie(pid) && belongs(pid, job)).collect()
}

fn belongs(pid: Pid, job: &str) -> bool {
    let environment = fs::read(format!("/proc/{pid}/environ")).unwrap_or_default();
    let mark = format!("{RLAUNCH_JOB_ID}=");
    environment.split(|&byte| byte == 0).any(|entry| {
        let id = entry.strip_prefix(mark.as_bytes());
        id.is_some_and(|id| job == "all" || id == job.as_bytes())
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::process::Command;

    /// A process that has not appeared by then never does: wide, since a test host may stand still.
    const APPEARS: Duration = Duration::from_secs(60);

    #[test]
    fn a_process_is_known_by_its_environment() {
        let job = "0123456789abcdef0123456789abcdef";
        let mut child = Command::new("sleep").arg("60").env(RLAUNCH_JOB_ID, job).spawn().unwrap();
        let pid = Pid::from_raw(child.id().cast_signed());
        // For a moment a process that starts has no environment yet.
        let deadline = Instant::now() + APPEARS;
        while processes_of(job).is_empty() && Instant::now() < deadline {
            std::thread::yield_now();
        }
        assert_eq!(processes_of(job), [pid]);
        assert!(processes_of("fedcba98765432100123456789abcdef").is_empty());
        child.kill().unwrap();
        child.wait().unwrap();
        assert!(processes_of(job).is_empty());
    }

    #[test]
    fn only_ids_are_taken() {
        assert!(is_job("all"));
        assert!(!is_job("") && !is_job("xyz") && !is_job("*"));
    }
}
