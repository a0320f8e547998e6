//! `cargo lab soak teardown`: jobs whose helper processes try to outlive them, ended in random ways
//! at random moments. Whatever the helpers tried, no process or file may be left, and what rlaunch says
//! has to be true.

mod cause;

use std::collections::BTreeMap;
use std::fmt;
use std::fs::{self, File, TryLockError};
use std::io::PipeReader;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use fastrand::Rng;
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;

use super::{IDLE, Tally, install};
use crate::bench::Series;
use crate::command::background::Background;
use crate::command::{at_once, last_lines, run as run_program, wait_until};
use crate::setup::{self, PackageSet};
use crate::{Account, Lab, LabError, Options};
use cause::{Cause, End, Target};

const NAME: &str = "soakend";
const NET: [u8; 2] = [10, 88];
/// Number of concurrent jobs, each on a host of its own.
const CONCURRENT: usize = 4;
const PROGRAM: &str = "/tmp/hostile";
const GRACE: &str = "0.3";
/// Options by which jobs end sooner.
const OPTIONS: [&str; 4] = ["--kill-after", GRACE, "--node-timeout", "4"];
/// ProxyCommand of connections that fail.
const PROXY: &str = "connection.py";
/// Time limit of a job's start.
const BOUND: Duration = Duration::from_secs(30);
/// Time limit for a host to end a job after its launcher has gone, in addition to the grace period.
const UNATTENDED: Duration = Duration::from_secs(5);
/// Time that a job which survives its cause goes on.
const SURVIVAL: Duration = Duration::from_millis(500);
/// Time in which a job sends what a connection passes on before it fails.
const SENDING: Duration = Duration::from_secs(2);

/// Kinds of helpers (see hostile.c); some entries combine several kinds. Expensive kinds occur
/// once.
const HELPERS: [&str; 16] = [
    "c", "s", "cc", "ss", "cs", "d", "dd", "t", "p", "h", "f", "e", "cdtphfe", "sdtphfe", "b", "m",
];

/// Runs `jobs` jobs, which `seed` chooses, by `rlaunch` on hosts of their own and prints a summary;
/// returns whether none hung, left anything behind, or said what is not true.
pub(super) fn run(jobs: usize, seed: u64, rlaunch: &Path) -> Result<bool, LabError> {
    setup::install(PackageSet::Lab)?;
    let options = Options { net: NET, ..Options::new(NAME, CONCURRENT) };
    Lab::with_fresh(&options, |lab| soak(&lab, rlaunch, jobs, seed))
}

fn soak(lab: &Lab, rlaunch: &Path, jobs: usize, seed: u64) -> Result<bool, LabError> {
    let rlaunch = install(lab, rlaunch)?;
    let program = hostile(rlaunch.parent().unwrap_or(&rlaunch))?;
    let program = fs::read(&program).map_err(LabError::io("read the hostile rank"))?;
    fs::write(rlaunch.with_file_name(PROXY), include_str!("teardown/connection.py"))
        .map_err(LabError::io("write a ProxyCommand"))?;
    let tally = Tally::new(jobs, seed, CONCURRENT);
    let on_host = |lane: usize, host: &str| -> Result<Vec<(String, f64)>, LabError> {
        lab.write_file(host, Path::new(PROGRAM), &program, 0o755)?;
        warm(lab, &rlaunch, host)?;
        let mut times = Vec::new();
        tally.run_lane(lane, |number| {
            let job = Job::draw(seed, number, host);
            match job.run(lab, &rlaunch) {
                Ok(took) => times.push((job.cause.kind(), took.as_secs_f64())),
                Err(error) => {
                    clear(lab, host)?;
                    return Ok(Some(format!("{job}: {error}")));
                }
            }
            Ok(None)
        })?;
        Ok(times)
    };
    let mut times: BTreeMap<String, Series> = BTreeMap::new();
    let hosts = lab.hosts();
    let all = at_once(hosts.iter().enumerate(), |(lane, host)| on_host(lane, host))?;
    for (kind, took) in all.into_iter().flatten() {
        times.entry(kind).or_default().push(took);
    }
    let is_clean = tally.conclude("jobs with hostile helpers");
    println!("seconds from the cause to the last trace, median (min–max):");
    for (kind, series) in times {
        println!("  {kind}: {} of {}", series.summary(), series.count());
    }
    Ok(is_clean)
}

/// Sends the agent to a host, so that no job has to.
fn warm(lab: &Lab, rlaunch: &Path, host: &str) -> Result<(), LabError> {
    Account::ALL.into_iter().try_for_each(|account| {
        let mut command = lab.exec_in(account, Path::new("/"));
        run_program("run a first job", command.arg(rlaunch).args(["-H", host, "true"])).map(drop)
    })
}

/// Job of the soak.
struct Job<'a> {
    number: usize,
    host: &'a str,
    account: Account,
    helpers: &'static str,
    /// What the rank does by itself, as an argument of hostile.c.
    action: &'static str,
    cause: Cause,
    /// Whether the time before the cause begins with the launcher; else it begins with the rank.
    is_early: bool,
    delay: Duration,
}

impl fmt::Display for Job<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Job { host, helpers, action, cause, delay, .. } = self;
        let (account, since) =
            (self.account.name(), if self.is_early { "launcher" } else { "rank" });
        write!(
            f,
            "{account} on {host}, helpers {helpers}, {action}, {delay:?} from the {since}: {cause:?}"
        )
    }
}

impl Job<'_> {
    /// Returns the job with this number.
    fn draw(seed: u64, number: usize, host: &str) -> Job<'_> {
        let mut random = Rng::with_seed(seed.wrapping_add(number as u64));
        let cause = Cause::draw(&mut random);
        let helpers = match cause {
            Cause::Unread(1, _) => "o",
            Cause::Unread(..) => "x",
            _ => HELPERS[random.usize(..HELPERS.len())],
        };
        let actions = ["exit", "fail", "stay", "stay", "stay"];
        let of_rank = if cause == Cause::RankEnds { 2 } else { actions.len() };
        let action = actions[random.usize(..of_rank)];
        let account = Account::ALL[random.usize(..2)];
        let (is_early, delay) = (random.bool(), Duration::from_millis(random.u64(..600)));
        Job { number, host, account, helpers, action, cause, is_early, delay }
    }

    /// Runs the job; returns the time from the cause of its end until nothing was left.
    fn run(&self, lab: &Lab, rlaunch: &Path) -> Result<Duration, LabError> {
        let (mut launcher, _unread) = self.start(lab, rlaunch)?;
        if !self.is_early {
            let up = || Ok(hostile_runs(lab, self.host)? || launcher.ended()?.is_some());
            // Over a connection that stalls before, the launcher ends first.
            wait_until(BOUND.max(self.cause.limit()), "the rank to be up", up)?;
        }
        thread::sleep(self.delay);
        let cause = Instant::now();
        let has_struck = self.strike(lab, &mut launcher, &self.file(rlaunch, "failed"))?;
        let mut signals: Vec<Signal> = self.cause.of_user().into_iter().collect();
        let survives = !has_struck && self.action == "stay";
        if survives && launcher.wait(SURVIVAL)?.is_none() {
            launcher.signal(Signal::SIGTERM)?;
            signals.push(Signal::SIGTERM);
        }
        let status = launcher.wait(self.cause.limit())?;
        let left = left_on(lab, self.host)?;
        let (stdout, stderr) = (launcher.stdout(), launcher.stderr());
        let last = last_lines(&stderr, 10);
        let wrong =
            |what: &str| Err(LabError::Unexpected(format!("{what}; left: {left:#?}\n{last}")));
        let Some(status) = status else { return wrong("hung") };
        let Job { host, cause: by, action, is_early, .. } = *self;
        let end = End { host, cause: by, is_early, action, signals, status, stdout, stderr };
        if !end.is_true() {
            return wrong(&format!("ended with {status}, or its message, is not true"));
        }
        let claims = ["all processes ended", "ranks ended", "nothing more found"]
            .map(|text| end.stderr.contains(text));
        let waits = status.code().is_some() && !is_early && by.is_waited_for();
        if !left.is_empty() && (claims.contains(&true) || waits) {
            return wrong(&format!("ended with {status} too early"));
        }
        let gone = || Ok(left_on(lab, host)?.is_empty());
        if wait_until(UNATTENDED, "the host to end it", gone).is_err() {
            return wrong(&format!("ended with {status}; later {:#?}", left_on(lab, host)?));
        }
        let took = cause.elapsed();
        wait_until(IDLE, "the sshd to leave", || Ok(lab.processes(host)?.is_empty()))?;
        Ok(took)
    }

    /// Returns the path of a file of the job, beside rlaunch.
    fn file(&self, rlaunch: &Path, name: &str) -> PathBuf {
        rlaunch.with_file_name(format!("{name}-{}", self.number))
    }

    /// Starts the launcher. A stream that nobody is to read is a pipe, whose end is returned.
    fn start(
        &self,
        lab: &Lab,
        rlaunch: &Path,
    ) -> Result<(Background, Option<PipeReader>), LabError> {
        let mut command = lab.exec_in(self.account, Path::new("/"));
        command.arg(rlaunch).args(OPTIONS);
        if let Cause::Connection(then, way, bytes) = self.cause {
            let (config, mark) = (self.file(rlaunch, "ssh"), self.file(rlaunch, "failed"));
            let proxy = rlaunch.with_file_name(PROXY);
            let text = format!(
                "IdentityFile ~/.ssh/id_ed25519\nConnectTimeout 4\n\
                 ProxyCommand python3 {} %h %p {way} {bytes} {then} {}\n",
                proxy.display(),
                mark.display()
            );
            fs::write(&config, text)
                .and_then(|()| fs::write(&mark, ""))
                // The proxy runs as the job's account.
                .and_then(|()| fs::set_permissions(&mark, PermissionsExt::from_mode(0o666)))
                .map_err(LabError::io("write the files of a connection"))?;
            command.arg("--ssh-config").arg(config);
        }
        command.args(["-H", self.host, PROGRAM, self.helpers, self.action]);
        let Cause::Unread(stream, _) = self.cause else {
            return Ok((Background::start(command)?, None));
        };
        let (reader, writer) = std::io::pipe().map_err(LabError::io("make a pipe"))?;
        let mut streams = [Stdio::from(writer), Stdio::piped()];
        if stream == 2 {
            streams.swap(0, 1);
        }
        Ok((Background::start_with(command, streams)?, Some(reader)))
    }

    /// Makes the cause happen; returns whether the job ends by it.
    fn strike(&self, lab: &Lab, launcher: &mut Background, mark: &Path) -> Result<bool, LabError> {
        let mut send = |target: Target, signal: Signal| {
            if target == Target::Launcher {
                let runs = launcher.ended()?.is_none();
                return if runs { launcher.signal(signal).map(|()| true) } else { Ok(false) };
            }
            // Fails if the process has ended meanwhile.
            Ok(self.find(lab, target)?.is_some_and(|pid| kill(pid, signal).is_ok()))
        };
        match self.cause {
            Cause::RankEnds => Ok(true),
            Cause::Unread(_, signal) => send(Target::Launcher, signal),
            Cause::Signal(target, signal) => send(target, signal),
            Cause::Pause(target, time) => {
                if send(target, Signal::SIGSTOP)? {
                    thread::sleep(time);
                    // What rlaunch has given up meanwhile is gone.
                    send(target, Signal::SIGCONT)?;
                }
                Ok(false)
            }
            Cause::Cut => lab.sshd(self.host)?.kill_sessions().map(|()| !self.is_early),
            Cause::Connection(..) => {
                let failed = || fs::metadata(mark).is_ok_and(|mark| mark.len() > 0);
                let over = || Ok(failed() || launcher.ended()?.is_some());
                // A job that sends less than that is ended in another way.
                let _ = wait_until(SENDING, "the connection to fail", over);
                Ok(failed())
            }
        }
    }

    /// Finds a process of the job on its host.
    fn find(&self, lab: &Lab, target: Target) -> Result<Option<Pid>, LabError> {
        let mut found = lab.processes(self.host)?;
        if target == Target::Rank {
            let lock = format!("/tmp/hostile.alive.{}", self.account.id());
            let own = fs::read_to_string(lab.path(self.host, Path::new(&lock))?);
            let own: Option<i32> = own.ok().and_then(|pid| pid.parse().ok());
            found.retain(|process| process.args[0] == PROGRAM && Some(process.host_pid) == own);
        } else {
            found.retain(|process| {
                process.args[0].ends_with("rlaunch-worker")
                    && process.args.iter().any(|word| word == "agent")
            });
            let all: Vec<i32> = found.iter().map(|process| process.pid).collect();
            // The guardian is the parent of the agent.
            found.retain(|one| all.contains(&one.parent) == (target == Target::Agent));
        }
        Ok(found.first().map(|process| Pid::from_raw(process.pid)))
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

/// Program of a rank that starts helper processes, which try to outlive it.
const HOSTILE: &str = include_str!("hostile.c");

/// Compiles the hostile rank into a directory; returns the path of the program.
pub fn hostile(directory: &Path) -> Result<PathBuf, LabError> {
    let (source, program) = (directory.join("hostile.c"), directory.join("hostile"));
    let operation = "compile the hostile rank";
    fs::write(&source, HOSTILE).map_err(LabError::io(operation))?;
    run_program(operation, Command::new("cc").arg("-O2").arg("-o").arg(&program).arg(&source))?;
    Ok(program)
}

/// Returns whether any process that the hostile rank started runs on a host, however briefly. All of
/// them hold a lock, so the kernel knows.
pub fn hostile_runs(lab: &Lab, host: &str) -> Result<bool, LabError> {
    let tmp = lab.path(host, Path::new("/tmp"))?;
    let entries = fs::read_dir(&tmp).map_err(LabError::io(format!("read {}", tmp.display())))?;
    let locks = entries
        .flatten()
        .filter(|entry| entry.file_name().to_string_lossy().starts_with("hostile.alive."));
    for lock in locks {
        let lock = File::open(lock.path()).map_err(LabError::io("open the helpers' lock"))?;
        if matches!(lock.try_lock(), Err(TryLockError::WouldBlock)) {
            return Ok(true);
        }
    }
    Ok(false)
}
