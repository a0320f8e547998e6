//! `rlaunch-worker reap JOB|all [AGENT-PID GRACE-MS]`: ends whatever a job left on this node, when its
//! agent cannot.
//!
//! A job's processes are known by their cgroup, where they have one, and by RLAUNCH_JOB_ID in the
//! environment they were started with, so a helper is found even when its agent, its guardian and its
//! parents are gone. An agent that hangs is ended first, as decently as can be: its guardian knows all
//! that descends from it. Running it twice does no harm.

use crate::cleanup::cgroup::Cgroup;
use crate::cleanup::{processes, shm, workspace};
use crate::say::{complain, tell};
use nix::sys::signal::{Signal, kill, killpg};
use nix::unistd::{Pid, Uid, getpgid, getpgrp};
use rlaunch_bootstrap::env::RLAUNCH_JOB_ID;
use rlaunch_bootstrap::reaped::Reaped;
use std::collections::HashSet;
use std::ffi::OsString;
use std::fs;
use std::os::unix::fs::MetadataExt;
use std::process::ExitCode;
use std::time::{Duration, Instant, SystemTime};

/// How long killed processes may take to vanish: whoever waits for the answer does not wait for long.
const VANISH: Duration = Duration::from_millis(1500);
/// Between two looks.
const AGAIN: Duration = Duration::from_millis(2);
/// That many looks in a row must find nothing where something was found before.
const EMPTY_LOOKS: usize = 2;

/// Ends the processes of a job (`all`: of every job) of this user, and first its agent if that is named;
/// the last line of stdout says what was done. Fails when something could not be ended.
pub(crate) fn reap(args: impl Iterator<Item = OsString>) -> ExitCode {
    let words: Vec<String> = args.map(|word| word.to_string_lossy().into_owned()).collect();
    let words: Vec<&str> = words.iter().map(String::as_str).collect();
    let (job, agent) = match words[..] {
        [job] => (job, Some(None)),
        [job, pid, grace] => (job, parse_agent(pid, grace).map(Some)),
        _ => ("", None),
    };
    let Some(agent) = agent.filter(|_| is_job(job)) else {
        complain!("rlaunch-worker: reap takes a job's id, 32 hexadecimal digits, or all");
        return ExitCode::from(2);
    };
    if let Some((agent, grace)) = agent {
        // Whoever asked learns that this host answers.
        tell!("looking");
        end_agent(agent, grace);
    }
    let reaped = end(job);
    tell!("{reaped}");
    match reaped {
        Reaped::Clean { .. } => ExitCode::SUCCESS,
        Reaped::Left(_) => ExitCode::FAILURE,
    }
}

fn parse_agent(pid: &str, grace: &str) -> Option<(Pid, Duration)> {
    let pid = pid.parse().ok().filter(|&pid| pid > 1)?;
    Some((Pid::from_raw(pid), Duration::from_millis(grace.parse().ok()?)))
}

/// Ends an agent that does not answer. Told to, it lets its ranks have their grace; stopped, it goes on
/// for that. If it hangs, its guardian ends what descends from it.
fn end_agent(agent: Pid, grace: Duration) {
    if !is_agent(agent) {
        return;
    }
    let guardian = processes::parent(agent).filter(|&parent| is_agent(parent));
    let signals = [Signal::SIGTERM, Signal::SIGCONT];
    for (pid, signals) in [(guardian, &signals[1..]), (Some(agent), &signals[..])] {
        for (pid, signal) in pid.into_iter().flat_map(|pid| signals.iter().map(move |s| (pid, *s)))
        {
            // One that has ended meanwhile needs no signal.
            let _ = kill(pid, signal);
        }
    }
    if !has_gone(agent, grace) {
        let _ = kill(agent, Signal::SIGKILL);
    }
    has_gone(guardian.unwrap_or(agent), VANISH);
}

/// Whether a process is an agent of this build, or its guardian.
fn is_agent(pid: Pid) -> bool {
    let exe = |pid: &str| fs::read_link(format!("/proc/{pid}/exe")).ok();
    let words = fs::read(format!("/proc/{pid}/cmdline")).unwrap_or_default();
    let verb = words.split(|&byte| byte == 0).nth(1);
    let exe_of_pid = exe(&pid.to_string());
    exe_of_pid.is_some() && exe_of_pid == exe("self") && verb == Some(b"agent")
}

fn has_gone(pid: Pid, limit: Duration) -> bool {
    let until = Instant::now() + limit;
    while !processes::has_ended(pid) {
        if Instant::now() >= until {
            return false;
        }
        std::thread::sleep(AGAIN);
    }
    true
}

/// Ends what is found of a job, and removes what it has left.
fn end(job: &str) -> Reaped {
    let ended = match end_processes(job) {
        Ok(ended) => ended,
        Err(left) => return Reaped::Left(left),
    };
    let swept = shm::sweep(SystemTime::UNIX_EPOCH);
    workspace::sweep();
    Reaped::Clean { ended, segments: swept.removed + shm::sweep_job(job) }
}

/// Ends a job's processes; gives how many those were, or the names of what is left.
fn end_processes(job: &str) -> Result<usize, String> {
    let until = Instant::now() + VANISH;
    let cgroups = Cgroup::of_job(job);
    let mut found = HashSet::new();
    let mut empty_looks = 0;
    loop {
        for cgroup in &cgroups {
            found.extend(cgroup.members());
            cgroup.kill();
        }
        let left = processes_of(job);
        end_each(&left, &mut found);
        let in_cgroups = || cgroups.iter().filter(|cgroup| cgroup.is_populated());
        let is_clean = left.is_empty() && in_cgroups().next().is_none();
        empty_looks = if is_clean { empty_looks + 1 } else { 0 };
        if empty_looks >= EMPTY_LOOKS || is_clean && found.is_empty() {
            break;
        }
        if Instant::now() >= until {
            let members = in_cgroups().flat_map(Cgroup::members);
            let left: HashSet<Pid> = left.into_iter().chain(members).collect();
            let named: Vec<_> = left.into_iter().map(processes::describe).collect();
            return Err(match named.is_empty() {
                true => "a process that cannot be seen".to_owned(),
                false => named.join(", "),
            });
        }
        std::thread::sleep(AGAIN);
    }
    cgroups.iter().for_each(Cgroup::remove);
    Ok(found.len())
}

/// Stops all of these, then kills those that have been stopped before, or kills them at once where
/// none is new. With each goes its group: the kernel lets none of it fork in between.
fn end_each(left: &[Pid], found: &mut HashSet<Pid>) {
    let are_new = left.iter().filter(|&&pid| found.insert(pid)).count() > 0;
    let signal = if are_new { Signal::SIGSTOP } else { Signal::SIGKILL };
    for &pid in left {
        let group = getpgid(Some(pid)).ok().filter(|&group| group != getpgrp());
        // What has no group here has 0, and 1 would be every process that there is.
        if let Some(group) = group.filter(|group| group.as_raw() > 1) {
            let _ = killpg(group, signal);
        }
        let _ = kill(pid, signal);
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
    pids.filter(|&pid| pid != me && !processes::has_ended(pid) && belongs(pid, job)).collect()
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
    fn what_is_found_is_ended() {
        let job = "1123456789abcdef0123456789abcdef";
        let script = "trap '' TERM; while :; do (sleep 60); done";
        let mut child =
            Command::new("sh").args(["-c", script]).env(RLAUNCH_JOB_ID, job).spawn().unwrap();
        let ended = end_processes(job);
        child.kill().unwrap();
        child.wait().unwrap();
        assert!(matches!(ended, Ok(1..)), "{ended:?}");
    }

    #[test]
    fn only_an_agent_is_taken_for_one() {
        assert!(!is_agent(Pid::this()) && !is_agent(Pid::from_raw(1)));
        assert_eq!(parse_agent("1", "5"), None);
        assert_eq!(parse_agent("77", "x"), None);
        let grace = Duration::from_millis(500);
        assert_eq!(parse_agent("77", "500"), Some((Pid::from_raw(77), grace)));
    }

    #[test]
    fn only_ids_are_taken() {
        assert!(is_job("all"));
        assert!(!is_job("") && !is_job("xyz") && !is_job("*"));
    }
}
