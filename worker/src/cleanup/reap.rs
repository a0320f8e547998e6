//! `rlaunch-worker reap JOB|all [AGENT-PID GUARDIAN-PID GRACE-MS]`: ends the processes of a job on
//! this host and removes its files, when the job's agent cannot.
//!
//! Processes of a job are recognised by their cgroup, if they have one, and by RLAUNCH_JOB_ID in
//! the environment they were started with, so they are found even when agent, guardian and parents
//! are gone. If the caller names the agent, the agent and its guardian are first told to end the
//! ranks, because they know all descendants of the ranks and the grace period. Running `reap` twice
//! is harmless.

use crate::cleanup::cgroup::Cgroup;
use crate::cleanup::containers::{self, Removal};
use crate::cleanup::guardian::ENDING;
use crate::cleanup::processes::{self, TERM};
use crate::cleanup::{shm, workspace};
use crate::console::{errln, outln};
use nix::sys::signal::{Signal, kill, killpg};
use nix::unistd::{Pid, Uid, getpgid, getpgrp};
use rlaunch_bootstrap::env::RLAUNCH_JOB_ID;
use rlaunch_bootstrap::protocol::housekeeping::CleanupReport;
use std::collections::{BTreeSet, HashSet};
use std::ffi::OsString;
use std::os::unix::fs::MetadataExt;
use std::process::ExitCode;
use std::time::{Duration, Instant, SystemTime};
use std::{fs, io, iter};

/// Time that killed processes have to disappear; short, because a user waits for the answer.
const KILL_TIMEOUT: Duration = Duration::from_millis(1500);
/// Interval between checks, and time for which [`end_newest`] watches for new processes.
const POLL: Duration = Duration::from_millis(2);
/// Interval between checks for events that take longer, such as the end of a grace period.
const SLOW_POLL: Duration = Duration::from_millis(20);
/// Time within which an agent that does not hang sends SIGTERM to its ranks.
const REACTION: Duration = Duration::from_millis(500);
/// Number of consecutive scans that must find no process of the job, since one scan may miss
/// processes that fork and exit at once.
const EMPTY_SCANS: usize = 10;
/// Replacement for [`EMPTY_SCANS`] if the job has cgroups. Few processes leave a cgroup, so fewer
/// scans are enough.
const EMPTY_SCANS_WITH_CGROUP: usize = 2;

/// Ends the job's agent if the arguments name it, and then this user's processes of the job, or of
/// every job for `all`. The last line of stdout reports the result. Returns failure if a process
/// could not be ended.
pub(crate) fn reap(args: impl Iterator<Item = OsString>) -> ExitCode {
    let words: Vec<String> = args.map(|word| word.to_string_lossy().into_owned()).collect();
    let words: Vec<&str> = words.iter().map(String::as_str).collect();
    let parsed = match words[..] {
        [job] if is_job(job) => Some((job, None)),
        [job, agent, guardian, grace] if is_job(job) => {
            LostAgent::parse(agent, guardian, grace).map(|lost| (job, Some(lost)))
        }
        _ => None,
    };
    let Some((job, lost)) = parsed else {
        errln!("rlaunch-worker: reap needs a job id (32 hexadecimal digits) or `all`");
        return ExitCode::from(2);
    };
    if let Some(lost) = lost {
        // Lets the caller know that this host responds.
        outln!("looking");
        end_agent(job, lost);
    }
    let removal = if lost.is_none() { containers::remove(job) } else { Removal::default() };
    let reaped = clean_up(job, removal);
    outln!("{reaped}");
    match reaped {
        CleanupReport::Clean { .. } => ExitCode::SUCCESS,
        CleanupReport::Remaining(_) => ExitCode::FAILURE,
    }
}

/// Agent that does not respond, as named in the arguments.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct LostAgent {
    agent: Pid,
    guardian: Pid,
    /// Grace period of the agent's ranks.
    grace: Duration,
}

impl LostAgent {
    fn parse(agent: &str, guardian: &str, grace: &str) -> Option<LostAgent> {
        let pid = |word: &str| word.parse().ok().filter(|&pid| pid > 1).map(Pid::from_raw);
        let grace = Duration::from_millis(grace.parse().ok()?);
        Some(LostAgent { agent: pid(agent)?, guardian: pid(guardian)?, grace })
    }
}

/// Ends an agent that does not respond, after its ranks have had their grace period. The agent
/// receives SIGTERM, and SIGCONT in case it is stopped; if it reacts, it ends its ranks itself. If
/// the agent hangs, this process sends SIGTERM to the ranks. If the agent is gone, the guardian
/// gives the ranks their grace period; if the guardian is gone as well, this process does.
fn end_agent(job: &str, lost: LostAgent) {
    let over = Instant::now() + lost.grace;
    let rest = || over.saturating_duration_since(Instant::now());
    let guardian = Some(lost.guardian).filter(|&pid| is_agent(pid));
    if let Some(guardian) = guardian {
        processes::signal_one(guardian, &[Signal::SIGCONT]);
    }
    let is_gone = || processes::has_ended(lost.agent);
    if is_agent(lost.agent) {
        processes::signal_one(lost.agent, TERM);
        let answers = || is_gone() || processes::is_named(lost.agent, ENDING);
        let hangs = !wait_until(REACTION.min(lost.grace), POLL, answers);
        if hangs {
            for pid in processes::descendants_of(lost.agent) {
                processes::signal_one(pid, TERM);
            }
        }
        let is_idle = || hangs && processes::descendants_of(lost.agent).is_empty();
        if !(wait_until(rest(), SLOW_POLL, || is_gone() || is_idle()) && is_gone()) {
            let _ = kill(lost.agent, Signal::SIGKILL);
            wait_until(KILL_TIMEOUT, POLL, is_gone);
        }
    }
    if let Some(guardian) = guardian {
        let has_ended = || processes::has_ended(guardian);
        if !wait_until(rest(), POLL, has_ended) {
            // Without its agent, the guardian takes TERM as the end of the grace period.
            processes::signal_one(guardian, &[Signal::SIGTERM]);
            wait_until(KILL_TIMEOUT, POLL, has_ended);
        }
    }
    // Needed if both were gone from the start, or died in between.
    wait_for_end(job, lost.agent, rest());
}

/// Tells all remaining processes of the job to end, and waits for at most `grace` until none is
/// left.
fn wait_for_end(job: &str, agent: Pid, grace: Duration) {
    let cgroups = Cgroup::find_by_job(job);
    let left = || {
        let members = cgroups.iter().flat_map(Cgroup::members);
        processes_of(job).into_iter().chain(members).collect::<BTreeSet<_>>()
    };
    left()
        .into_iter()
        .for_each(|pid| processes::signal_one(pid, processes::term_signals(pid, agent)));
    wait_until(grace, SLOW_POLL, || left().is_empty());
}

/// Tells whether a process is an agent of this build, or the guardian of one.
fn is_agent(pid: Pid) -> bool {
    let exe = |pid: &str| fs::read_link(format!("/proc/{pid}/exe")).ok();
    let words = fs::read(format!("/proc/{pid}/cmdline")).unwrap_or_default();
    let verb = words.split(|&byte| byte == 0).nth(1);
    let exe_of_pid = exe(&pid.to_string());
    exe_of_pid.is_some() && exe_of_pid == exe("self") && verb == Some(b"agent")
}

/// Calls `is_true` every `pace` until it returns true. Returns false if it has not returned true
/// within `limit`.
fn wait_until(limit: Duration, pace: Duration, is_true: impl Fn() -> bool) -> bool {
    let until = Instant::now() + limit;
    while !is_true() {
        if Instant::now() >= until {
            return false;
        }
        std::thread::sleep(pace);
    }
    true
}

/// Ends all processes of the job that can be found, and removes the job's files.
fn clean_up(job: &str, removal: Removal) -> CleanupReport {
    let ended = match end_processes(job) {
        Ok(ended) => ended,
        Err(left) => return CleanupReport::Remaining(left),
    };
    let swept = shm::sweep(SystemTime::UNIX_EPOCH);
    workspace::sweep();
    let hidden =
        hidden_processes().into_iter().map(processes::describe).collect::<Vec<_>>().join(", ");
    let segments = swept.removed + shm::sweep_job(job, &[]);
    let Removal { removed: containers, unasked } = removal;
    CleanupReport::Clean { ended, segments, containers, unasked, hidden }
}

/// Ends a job's processes. Returns their number, or a description of those that could not be ended.
fn end_processes(job: &str) -> Result<usize, String> {
    let until = Instant::now() + KILL_TIMEOUT;
    let cgroups = Cgroup::find_by_job(job);
    let mut found = HashSet::new();
    let mut empty_scans = 0;
    // For cgroups the kernel reports reliably whether they are empty.
    let enough = if cgroups.is_empty() { EMPTY_SCANS } else { EMPTY_SCANS_WITH_CGROUP };
    loop {
        for cgroup in &cgroups {
            found.extend(cgroup.members());
            cgroup.kill();
        }
        let left = processes_of(job);
        end_each(&left, &mut found);
        let in_cgroups = || cgroups.iter().filter(|cgroup| cgroup.is_populated());
        let found_new = end_newest(job, &mut found);
        let is_clean = left.is_empty() && !found_new && in_cgroups().next().is_none();
        empty_scans = if is_clean { empty_scans + 1 } else { 0 };
        if empty_scans >= enough {
            break;
        }
        if Instant::now() >= until {
            let members = in_cgroups().flat_map(Cgroup::members);
            let left: HashSet<Pid> = left.into_iter().chain(members).collect();
            let named: Vec<_> = left.into_iter().map(processes::describe).collect();
            return Err(if named.is_empty() {
                "a process that is not visible".to_owned()
            } else {
                named.join(", ")
            });
        }
    }
    cgroups.iter().for_each(Cgroup::remove);
    Ok(found.len())
}

/// Looks at the newest process of the host again and again, for [`POLL`], and stops it if it
/// belongs to the job. Returns whether a process was stopped. A scan of all processes is too slow
/// to find processes that fork and exit at once.
fn end_newest(job: &str, found: &mut HashSet<Pid>) -> bool {
    let until = Instant::now() + POLL;
    let mut is_one = false;
    while Instant::now() < until {
        if let Some(pid) =
            newest_process().filter(|pid| !found.contains(pid) && belongs_to(*pid, job))
        {
            end_each(&[pid], found);
            is_one = true;
        }
        // Lets other processes run on a machine with one processor.
        std::thread::yield_now();
    }
    is_one
}

/// Returns the process or thread that the kernel created last.
fn newest_process() -> Option<Pid> {
    let load = fs::read_to_string("/proc/loadavg").ok()?;
    load.split_ascii_whitespace().next_back()?.parse().ok().map(Pid::from_raw)
}

/// Stops all processes of `left` if at least one of them is not in `found` yet, otherwise kills all
/// of them. The process groups receive the same signal, because no member of a group can fork while
/// the kernel signals the group.
fn end_each(left: &[Pid], found: &mut HashSet<Pid>) {
    let are_new = left.iter().filter(|&&pid| found.insert(pid)).count() > 0;
    let signal = if are_new { Signal::SIGSTOP } else { Signal::SIGKILL };
    for &pid in left {
        let group = getpgid(Some(pid)).ok().filter(|&group| group != getpgrp());
        // The group is 0 if it is outside this PID namespace, and 1 would mean every process.
        if let Some(group) = group.filter(|group| group.as_raw() > 1) {
            let _ = killpg(group, signal);
        }
        let _ = kill(pid, signal);
    }
}

fn is_job(job: &str) -> bool {
    job == "all" || (job.len() == 32 && job.bytes().all(|byte| byte.is_ascii_hexdigit()))
}

/// Returns this user's living processes that were started as part of the job.
pub(super) fn processes_of(job: &str) -> Vec<Pid> {
    let (me, my_uid) = (Pid::this(), Uid::effective().as_raw());
    let mine = all_processes().filter(|(_, uid)| *uid == my_uid).map(|(pid, _)| pid);
    mine.filter(|&pid| pid != me && !processes::has_ended(pid) && belongs_to(pid, job)).collect()
}

/// Returns all visible processes, each with the owner of its entry in `/proc`. The owner is root
/// for a process that has changed its user id or denies inspection.
fn all_processes() -> impl Iterator<Item = (Pid, u32)> {
    fs::read_dir("/proc").into_iter().flatten().flatten().filter_map(|entry| {
        let pid: i32 = entry.file_name().to_str()?.parse().ok()?;
        Some((Pid::from_raw(pid), entry.metadata().ok()?.uid()))
    })
}

/// Names of processes that serve a user's login and deny inspection.
const LOGIN_SERVERS: [&str; 5] = ["sshd", "sshd-session", "sshd-auth", "(sd-pam)", "ssh-agent"];

/// Returns this user's living processes with an environment that cannot be read, except the
/// ancestors of this process and the [`LOGIN_SERVERS`].
fn hidden_processes() -> Vec<Pid> {
    let my_uid = Uid::effective().as_raw();
    let above: Vec<Pid> = iter::successors(Some(Pid::this()), |&pid| processes::parent(pid))
        .take_while(|pid| pid.as_raw() > 0)
        .collect();
    let serves_a_login = |pid: Pid| {
        let name = fs::read_to_string(format!("/proc/{pid}/comm")).unwrap_or_default();
        LOGIN_SERVERS.contains(&name.trim_end())
    };
    let mine = all_processes().filter(|(pid, uid)| *uid == my_uid || has_uid(*pid, my_uid));
    let mine = mine.map(|(pid, _)| pid).filter(|pid| !above.contains(pid));
    mine.filter(|&pid| {
        let is_hidden = is_part_of("all", processes::read_environment(pid)).is_none();
        is_hidden && !processes::has_ended(pid) && !serves_a_login(pid)
    })
    .collect()
}

/// Tells whether `uid` is one of a process's user ids (real, effective, saved, file system).
fn has_uid(pid: Pid, uid: u32) -> bool {
    let status = fs::read_to_string(format!("/proc/{pid}/status")).unwrap_or_default();
    let ids = status.lines().find_map(|line| line.strip_prefix("Uid:"));
    ids.is_some_and(|ids| ids.split_ascii_whitespace().any(|id| id.parse() == Ok(uid)))
}

fn belongs_to(pid: Pid, job: &str) -> bool {
    is_part_of(job, processes::read_environment(pid)) == Some(true)
}

/// Tells whether a process with this environment was started as part of the job. Returns `None` if
/// the environment may not be read.
fn is_part_of(job: &str, environment: io::Result<Vec<u8>>) -> Option<bool> {
    let environment = match environment {
        Err(error) if error.kind() == io::ErrorKind::PermissionDenied => return None,
        environment => environment.unwrap_or_default(),
    };
    let mark = format!("{RLAUNCH_JOB_ID}=");
    Some(environment.split(|&byte| byte == 0).any(|entry| {
        let id = entry.strip_prefix(mark.as_bytes());
        id.is_some_and(|id| job == "all" || id == job.as_bytes())
    }))
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::process::Command;

    /// Time limit for a process to appear. It is long, because a test machine may be suspended for
    /// seconds.
    const APPEARS: Duration = Duration::from_secs(60);

    /// Number of jobs in the test. A reaper that scanned only once would miss processes of some of
    /// them, but perhaps not of the first.
    const CHAINS: usize = 8;

    #[test]
    fn a_process_is_known_by_its_environment() {
        let job = "0123456789abcdef0123456789abcdef";
        let mut child = Command::new("sleep").arg("60").env(RLAUNCH_JOB_ID, job).spawn().unwrap();
        let pid = Pid::from_raw(child.id().cast_signed());
        // A new process has no environment for a moment.
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

    /// Each shell starts the next and exits; the pipe stays open while one of them lives.
    #[test]
    fn a_chain_of_processes_is_ended() {
        let script = "f() { if [ $1 = 0 ]; then echo missed; else f $(($1 - 1)) & fi; }; f 4000";
        for number in 0..CHAINS {
            let job = format!("{number:032x}");
            let (mut pipe, end) = io::pipe().unwrap();
            let mut shell = Command::new("sh");
            shell.args(["-c", script]).env(RLAUNCH_JOB_ID, &job).stdout(end);
            let mut child = shell.spawn().unwrap();
            drop(shell);
            child.wait().unwrap();
            let ended = end_processes(&job);
            let mut output = String::new();
            io::Read::read_to_string(&mut pipe, &mut output).unwrap();
            assert!(
                matches!(ended, Ok(1..)) && output.is_empty(),
                "chain {number}: {ended:?} {output}"
            );
        }
    }

    #[test]
    fn an_environment_that_may_not_be_read_says_nothing() {
        let job = "2123456789abcdef0123456789abcdef";
        let denied = || io::Error::from(io::ErrorKind::PermissionDenied);
        assert_eq!(is_part_of(job, Err(denied())), None);
        let gone = io::Error::from_raw_os_error(libc::ESRCH);
        assert_eq!(is_part_of(job, Err(gone)), Some(false));
        let marked = format!("A=b\0{RLAUNCH_JOB_ID}={job}\0").into_bytes();
        assert_eq!(is_part_of(job, Ok(marked.clone())), Some(true));
        assert_eq!(is_part_of("all", Ok(marked)), Some(true));
        assert_eq!(is_part_of(job, Ok(b"A=b".to_vec())), Some(false));
    }

    #[test]
    fn only_an_agent_is_taken_for_one() {
        assert!(!is_agent(Pid::this()) && !is_agent(Pid::from_raw(1)));
        for [agent, guardian, grace] in [["1", "76", "5"], ["77", "0", "5"], ["77", "76", "x"]] {
            assert_eq!(LostAgent::parse(agent, guardian, grace), None);
        }
        let [agent, guardian] = [77, 76].map(Pid::from_raw);
        let lost = LostAgent { agent, guardian, grace: Duration::from_millis(500) };
        assert_eq!(LostAgent::parse("77", "76", "500"), Some(lost));
    }

    #[test]
    fn only_ids_are_taken() {
        assert!(is_job("all"));
        assert!(!is_job("") && !is_job("xyz") && !is_job("*"));
    }
}
