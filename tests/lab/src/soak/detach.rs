//! `cargo lab soak detach`: jobs with -d, in a random trouble at a random moment. Each has the end of its trouble, leaves
//! nothing on its host, and has a log of what its rank has printed, without a gap.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};
use std::thread;
use std::time::Duration;

use fastrand::Rng;
use serde_json::Value;

use super::{IDLE, Tally, install, left_on};
use crate::command::background::Background;
use crate::command::{at_once, run as run_program, wait_until};
use crate::setup::{self, PackageSet};
use crate::{Account, Cut, Lab, LabError, Options};

const NAME: &str = "soakdetach";
const NET: [u8; 2] = [10, 87];
/// Number of concurrent jobs, each on a host of its own.
const CONCURRENT: usize = 4;
/// Options by which jobs end sooner.
const OPTIONS: [&str; 6] = ["--job-name", "soak", "--kill-after", "0.3", "--node-timeout", "4"];
/// Time limit of a job's start.
const START: Duration = Duration::from_secs(60);
/// Time limit for a host to end what its launcher does not.
const UNATTENDED: Duration = Duration::from_secs(15);

/// What happens to a job.
#[derive(Clone, Copy, Debug)]
enum Trouble {
    /// `rlaunch stop`.
    Stop,
    /// SIGTERM to the launcher.
    Term,
    /// SIGKILL to the launcher.
    Kill,
    /// SIGKILL to the rlaunch that waits for the start.
    Starter,
    /// Its host is cut off.
    Cut,
}
use Trouble::{Kill, Starter, Stop, Term};

/// Runs `jobs` jobs, which `seed` chooses; returns whether all were right.
pub(super) fn run(jobs: usize, seed: u64, rlaunch: &Path) -> Result<bool, LabError> {
    setup::install(PackageSet::Lab)?;
    let options = Options { net: NET, ..Options::new(NAME, CONCURRENT) };
    Lab::with_fresh(&options, |lab| soak(&lab, rlaunch, jobs, seed))
}

fn soak(lab: &Lab, rlaunch: &Path, jobs: usize, seed: u64) -> Result<bool, LabError> {
    let rlaunch = install(lab, rlaunch)?;
    let tally = Tally::new(jobs, seed, CONCURRENT);
    at_once(lab.hosts().iter().enumerate(), |(lane, host)| {
        let mut command = lab.exec_in(Account::Root, Path::new("/"));
        run_program("run a first job", command.arg(&rlaunch).args(["-H", host, "true"]))?;
        tally.run_lane(lane, |number| {
            let job = Job::draw(lab, &rlaunch, host, seed, number);
            let Job { trouble, is_early, delay, .. } = job;
            let moment = if is_early { "start" } else { "return" };
            let failure = |error| format!("{trouble:?} {delay:?} after its {moment}: {error}");
            Ok(job.run().err().map(failure))
        })
    })?;
    Ok(tally.conclude("jobs with -d"))
}

/// Job of the soak.
struct Job<'a> {
    lab: &'a Lab,
    rlaunch: &'a Path,
    host: &'a str,
    number: usize,
    trouble: Trouble,
    /// Whether the time before the trouble begins with the start of `rlaunch -d`; else with its end.
    is_early: bool,
    delay: Duration,
}

impl Job<'_> {
    fn draw<'a>(
        lab: &'a Lab,
        rlaunch: &'a Path,
        host: &'a str,
        seed: u64,
        number: usize,
    ) -> Job<'a> {
        let mut random = Rng::with_seed(seed.wrapping_add(number as u64));
        let trouble = [Stop, Term, Kill, Starter, Trouble::Cut][random.usize(..5)];
        let is_early = random.bool() || matches!(trouble, Starter);
        let delay = Duration::from_millis(random.u64(..600));
        Job { lab, rlaunch, host, number, trouble, is_early, delay }
    }

    fn run(&self) -> Result<(), LabError> {
        let mut starter = Background::start(self.start())?;
        if !self.is_early {
            starter.wait(START)?;
        }
        thread::sleep(self.delay);
        let has_struck = self.strike(&mut starter);
        // One that went on, or had not begun when it was to be stopped.
        let status = starter.wait(START)?;
        let waited = match self.launcher()? {
            Some(_) if !matches!(has_struck, Ok(true)) => self.ask(&["stop", "soak"])?,
            _ => self.ask(&["wait", "soak"])?,
        };
        self.lab.heal(self.host)?;
        has_struck?;
        let wrong = |what: String| Err(LabError::Unexpected(what));
        if status.is_none() {
            return wrong("rlaunch -d does not return".into());
        }
        if !self.is_true(waited.status.code()) {
            let said = String::from_utf8_lossy(&waited.stderr).into_owned();
            return wrong(format!("ended with {}: {said}", waited.status));
        }
        let gone = || Ok(left_on(self.lab, self.host)?.is_empty());
        if wait_until(UNATTENDED, "the host to end it", gone).is_err() {
            return wrong(format!("left {:#?}", left_on(self.lab, self.host)?));
        }
        self.check_log()?;
        let idle = || Ok(self.lab.processes(self.host)?.is_empty());
        // Data that the sshd could not send is sent again after twice the time, each time.
        let limit = if matches!(self.trouble, Trouble::Cut) { 3 * IDLE } else { IDLE };
        wait_until(limit, "the sshd to leave", idle)
    }

    /// Makes the command that starts the job. Each line of its rank is in a file before it is printed.
    fn start(&self) -> Command {
        let script = format!(
            "i=0; exec 3>{}; while :; do i=$((i + 1)); echo $i >&3; echo $i; sleep 0.001; done",
            self.copy()
        );
        let words = [&["-d", "-H", self.host][..], &OPTIONS, &["sh", "-c", &script]].concat();
        self.command(&words)
    }

    /// Returns the path of the rank's file.
    fn copy(&self) -> String {
        format!("/tmp/hostile-{}", self.number)
    }

    fn state(&self) -> PathBuf {
        self.rlaunch.with_file_name(format!("state-{}", self.number))
    }

    fn command(&self, words: &[&str]) -> Command {
        let mut command = self.lab.exec_in(Account::Root, Path::new("/"));
        command.arg(self.rlaunch).args(words).env("XDG_STATE_HOME", self.state());
        command
    }

    /// Runs a verb, whatever its exit code.
    fn ask(&self, words: &[&str]) -> Result<Output, LabError> {
        let mut command = self.command(words);
        command.stdin(Stdio::null()).output().map_err(LabError::io("ask about a job"))
    }

    /// Returns the pid of the launcher, if the job runs.
    fn launcher(&self) -> Result<Option<u64>, LabError> {
        let jobs: Option<Value> =
            serde_json::from_slice(&self.ask(&["jobs", "--json"])?.stdout).ok();
        Ok(jobs.and_then(|jobs| jobs[0]["pid"].as_u64()))
    }

    /// Makes the trouble happen; returns whether the job ends by it.
    fn strike(&self, starter: &mut Background) -> Result<bool, LabError> {
        match self.trouble {
            Stop => Ok(self.ask(&["stop", "soak"])?.status.success()),
            Term => self.signal("-TERM"),
            Kill => self.signal("-KILL"),
            Starter => {
                let runs = starter.ended()?.is_none();
                if runs {
                    starter.kill()?;
                }
                Ok(runs)
            }
            Trouble::Cut => self.lab.cut(self.host, Cut::Silent).map(|()| true),
        }
    }

    fn signal(&self, signal: &str) -> Result<bool, LabError> {
        let Some(launcher) = self.launcher()? else { return Ok(false) };
        let mut kill = Command::new("kill");
        kill.args([signal, &launcher.to_string()]).stderr(Stdio::null());
        Ok(kill.status().map_err(LabError::io("signal a launcher"))?.success())
    }

    /// Tells whether a code of `rlaunch wait` or `rlaunch stop` may be that of the job.
    fn is_true(&self, code: Option<i32>) -> bool {
        let ends: &[i32] = match self.trouble {
            Stop | Term => &[143],
            Kill => &[137],
            Starter => &[129],
            Trouble::Cut => &[206],
        };
        // Before the ranks start, the host is not reached, or there is no record; and one that the trouble has missed was
        // stopped.
        let early = [0, 143, 200, 201, 202, 203, 206];
        code.is_some_and(|code| ends.contains(&code) || self.is_early && early.contains(&code))
    }

    /// Checks that the log is the beginning of what the rank has printed.
    fn check_log(&self) -> Result<(), LabError> {
        let path = self.lab.path(self.host, Path::new(&self.copy()))?;
        let printed = fs::read(&path).unwrap_or_default();
        let log = self.ask(&["logs", "soak"])?.stdout;
        // A line that was cut off may be ended.
        let log = log.strip_suffix(b"\n").unwrap_or(&log);
        let _ = fs::remove_file(path);
        let _ = fs::remove_dir_all(self.state());
        if printed.starts_with(log) {
            return Ok(());
        }
        let message = format!("a log of {} bytes is not what was printed", log.len());
        Err(LabError::Unexpected(message))
    }
}
