//! `cargo lab soak teardown`: jobs whose helper processes try to outlive them, ended in every
//! possible way. Whatever the helpers tried, no process or file may be left.

use std::collections::BTreeMap;
use std::fmt;
use std::path::Path;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;

use super::{IDLE, MAX_FAILURES, hostile, hostile_runs, install};
use crate::bench::Series;
use crate::command::background::Background;
use crate::command::{last_lines, wait_until};
use crate::setup::{self, PackageSet};
use crate::{Account, Lab, LabError, Options, Process};

const NAME: &str = "soakend";
const NET: [u8; 2] = [10, 88];
/// Number of concurrent jobs, each on a host of its own.
const CONCURRENT: usize = 4;
const PROGRAM: &str = "/tmp/hostile";
const GRACE: &str = "0.3";
/// Time limit of a job. A job that exceeds it hangs.
const BOUND: Duration = Duration::from_secs(30);
/// Time limit for a host to end a job after its launcher has gone, in addition to the grace period.
const UNATTENDED: Duration = Duration::from_secs(5);
/// Number of jobs between two lines of progress.
const PROGRESS_EVERY: usize = 100;

/// Kinds of helpers (see hostile.c); some entries combine several kinds. Expensive kinds occur
/// once.
const HELPERS: [&str; 16] = [
    "c", "s", "cc", "ss", "cs", "d", "dd", "t", "p", "h", "f", "e", "cdtphfe", "sdtphfe", "b", "m",
];

/// Cause of the end of a job.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum JobEnd {
    RankExits,
    RankFails,
    LauncherGets(Signal),
    AgentIsKilled,
    ChannelIsCut,
}

const ENDS: [JobEnd; 7] = [
    JobEnd::RankExits,
    JobEnd::RankFails,
    JobEnd::LauncherGets(Signal::SIGINT),
    JobEnd::LauncherGets(Signal::SIGTERM),
    JobEnd::LauncherGets(Signal::SIGKILL),
    JobEnd::AgentIsKilled,
    JobEnd::ChannelIsCut,
];

impl fmt::Display for JobEnd {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            JobEnd::RankExits => write!(f, "the rank exits"),
            JobEnd::RankFails => write!(f, "the rank fails"),
            JobEnd::LauncherGets(signal) => write!(f, "rlaunch gets {signal}"),
            JobEnd::AgentIsKilled => write!(f, "the agent is killed"),
            JobEnd::ChannelIsCut => write!(f, "the channel is cut"),
        }
    }
}

impl JobEnd {
    /// Returns the action of the rank itself, as an argument of hostile.c.
    fn rank_action(self) -> &'static str {
        match self {
            JobEnd::RankExits => "exit",
            JobEnd::RankFails => "fail",
            _ => "stay",
        }
    }

    /// Returns the launcher's expected exit code, or nothing if a signal kills it.
    fn code(self) -> Option<i32> {
        match self {
            JobEnd::RankExits => Some(0),
            JobEnd::RankFails => Some(3),
            JobEnd::LauncherGets(Signal::SIGKILL) => None,
            JobEnd::LauncherGets(signal) => Some(128 + signal as i32),
            JobEnd::AgentIsKilled | JobEnd::ChannelIsCut => Some(206),
        }
    }

    /// Returns whether the launcher waits until everything of the job has gone.
    fn is_waited_for(self) -> bool {
        !matches!(self, JobEnd::LauncherGets(Signal::SIGKILL) | JobEnd::ChannelIsCut)
    }
}

/// Runs `jobs` jobs by `rlaunch` on hosts of their own and prints a summary; returns whether none
/// hung or left anything behind.
pub(super) fn run(jobs: usize, rlaunch: &Path) -> Result<bool, LabError> {
    setup::install(PackageSet::Lab)?;
    let options = Options { net: NET, ..Options::new(NAME, CONCURRENT) };
    Lab::with_fresh(&options, |lab| soak(&lab, rlaunch, jobs))
}

fn soak(lab: &Lab, rlaunch: &Path, jobs: usize) -> Result<bool, LabError> {
    let rlaunch = install(lab, rlaunch)?;
    let program = hostile(rlaunch.parent().unwrap_or(&rlaunch))?;
    let program = std::fs::read(&program).map_err(LabError::io("read the hostile rank"))?;
    let (next, failed, began) = (AtomicUsize::new(0), AtomicUsize::new(0), Instant::now());
    let on_host = |host: &str| -> Result<Vec<(JobEnd, f64)>, LabError> {
        lab.write_file(host, Path::new(PROGRAM), &program, 0o755)?;
        let mut times = Vec::new();
        loop {
            let number = next.fetch_add(1, Ordering::Relaxed);
            if number >= jobs || failed.load(Ordering::Relaxed) >= MAX_FAILURES {
                return Ok(times);
            }
            let job = Job::numbered(number, host);
            match job.run(lab, &rlaunch) {
                Ok(took) => times.push((job.end, took.as_secs_f64())),
                Err(error) => {
                    println!("job {number} ({job}): {error}");
                    failed.fetch_add(1, Ordering::Relaxed);
                    clear(lab, host)?;
                }
            }
            if (number + 1).is_multiple_of(PROGRESS_EVERY) {
                let failed = failed.load(Ordering::Relaxed);
                println!(
                    "{} of {jobs}: {failed} failed, {} s",
                    number + 1,
                    began.elapsed().as_secs()
                );
            }
        }
    };
    let mut times: BTreeMap<JobEnd, Series> = BTreeMap::new();
    let of_hosts = thread::scope(|scope| {
        let hosts = lab.hosts().into_iter();
        let on_host = &on_host;
        let running: Vec<_> = hosts.map(|host| scope.spawn(move || on_host(&host))).collect();
        running.into_iter().map(thread::ScopedJoinHandle::join).collect::<Vec<_>>()
    });
    for of_host in of_hosts {
        let of_host = of_host.map_err(|_| LabError::Unexpected("a thread panicked".into()))?;
        for (end, took) in of_host? {
            times.entry(end).or_default().push(took);
        }
    }
    let failed = failed.into_inner();
    if failed >= MAX_FAILURES {
        println!("giving up after {MAX_FAILURES} failures");
    }
    let ran: usize = times.values().map(Series::count).sum::<usize>() + failed;
    println!(
        "{ran} jobs with hostile helpers, {CONCURRENT} at once, in {} s: {failed} failed; seconds from \
         the cause to the last trace, median (min–max):",
        began.elapsed().as_secs()
    );
    for (end, series) in times {
        println!("  {end}: {}", series.summary());
    }
    Ok(failed == 0)
}

/// Job of the soak.
struct Job<'a> {
    host: &'a str,
    account: Account,
    helpers: &'static str,
    end: JobEnd,
}

impl fmt::Display for Job<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "{} on {}, helpers {}, {}",
            self.account.name(),
            self.host,
            self.helpers,
            self.end
        )
    }
}

impl Job<'_> {
    /// Returns the job with this number. The numbers cover every combination of helpers, end and
    /// account.
    fn numbered(number: usize, host: &str) -> Job<'_> {
        let (pair, account) = (number / 2, Account::ALL[number % 2]);
        let (helpers, end) = (HELPERS[pair % HELPERS.len()], ENDS[pair % ENDS.len()]);
        Job { host, account, helpers, end }
    }

    /// Runs the job; returns the time from the cause of its end until nothing was left.
    fn run(&self, lab: &Lab, rlaunch: &Path) -> Result<Duration, LabError> {
        let mut command = lab.exec_in(self.account, Path::new("/"));
        command.arg(rlaunch).args(["--kill-after", GRACE, "-H", self.host]);
        command.args([PROGRAM, self.helpers, self.end.rank_action()]);
        let mut launcher = Background::start(command)?;
        wait_until(BOUND, "the rank to be up", || Ok(launcher.stdout().contains("up\n")))?;
        let cause = Instant::now();
        match self.end {
            JobEnd::RankExits | JobEnd::RankFails => {}
            JobEnd::LauncherGets(signal) => launcher.signal(signal)?,
            JobEnd::AgentIsKilled => {
                let agent = self.agent(lab)?;
                kill(agent, Signal::SIGKILL).map_err(LabError::errno("kill an agent"))?;
            }
            JobEnd::ChannelIsCut => lab.sshd(self.host)?.kill_sessions()?,
        }
        let status = launcher.wait(BOUND)?;
        let mut left = left_on(lab, self.host)?;
        let stderr = last_lines(&launcher.stderr(), 10);
        let Some(status) = status else {
            return Err(LabError::Unexpected(format!("hung, and left {left:#?}\n{stderr}")));
        };
        let claims = stderr.contains("nothing left") || stderr.contains("nothing more found");
        if !left.is_empty() && (claims || self.end.is_waited_for()) {
            return Err(LabError::Unexpected(format!(
                "ended with {status} and left {left:#?}\n{stderr}"
            )));
        }
        let gone = wait_until(UNATTENDED, "the host to end it", || {
            left = left_on(lab, self.host)?;
            Ok(left.is_empty())
        });
        let took = cause.elapsed();
        if gone.is_err() || status.code() != self.end.code() {
            return Err(LabError::Unexpected(format!(
                "ended with {status}; left: {left:#?}\n{stderr}"
            )));
        }
        let idle = || Ok(lab.processes(self.host)?.is_empty());
        wait_until(IDLE, "the sshd to leave", idle)?;
        Ok(took)
    }

    /// Finds the agent, which is the child of the two processes `rlaunch-worker`.
    fn agent(&self, lab: &Lab) -> Result<Pid, LabError> {
        let mut found = lab.processes(self.host)?;
        found.retain(|process| process.args[0].ends_with("rlaunch-worker"));
        let is_child = |process: &&Process| found.iter().any(|other| other.pid == process.parent);
        let agent = found.iter().find(is_child).map(|process| Pid::from_raw(process.pid));
        agent.ok_or_else(|| LabError::Unexpected("there is no agent".into()))
    }
}

/// Lists what jobs have left on a host, and whether a helper holds the lock.
fn left_on(lab: &Lab, host: &str) -> Result<Vec<String>, LabError> {
    let mut left = super::left_on(lab, host)?;
    if hostile_runs(lab, host)? {
        left.push("a process that holds the helpers' lock".to_owned());
    }
    Ok(left)
}

/// Kills and removes what a failed job has left, so that the next one starts on a clean host.
fn clear(lab: &Lab, host: &str) -> Result<(), LabError> {
    wait_until(IDLE, "the host to be clear", || {
        for process in lab.processes(host)? {
            // Fails if the process has ended meanwhile.
            let _ = kill(Pid::from_raw(process.pid), Signal::SIGKILL);
        }
        for directory in ["/tmp", "/dev/shm", "/sys/fs/cgroup"] {
            let outside = lab.path(host, Path::new(directory))?;
            for entry in std::fs::read_dir(outside).into_iter().flatten().flatten() {
                if entry.file_name().to_string_lossy().starts_with("rlaunch-") {
                    let path = entry.path();
                    // A cgroup is removed like an empty directory, although it contains files.
                    let _ = std::fs::remove_dir(&path)
                        .or_else(|_| std::fs::remove_dir_all(&path))
                        .or_else(|_| std::fs::remove_file(&path));
                }
            }
        }
        Ok(left_on(lab, host)?.is_empty())
    })
}
