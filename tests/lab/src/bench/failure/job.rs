//! A job, a part of which fails at a known moment.

use std::fmt;
use std::fs::{self, OpenOptions};
use std::io::Write;
use std::path::{Path, PathBuf};
use std::thread;
use std::time::{Duration, Instant};

use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;

use super::{Failure, HOSTS, PER_HOST};
use crate::bench::launchers::Launcher;
use crate::bench::testbed::Testbed;
use crate::command::background::Background;
use crate::command::{last_lines, run, wait_until};
use crate::{Account, Cut, LabError, Process};

/// Time limit for the start of a job.
const START: Duration = Duration::from_secs(30);
/// Host that is affected, with ranks 4 and 5.
const HOST: &str = "c";
/// Named pipe of that host, which rank 5 reads.
const PIPE: &str = "/tmp/fail";
/// Program of every rank. No other process sleeps as long, so ranks are recognised by it.
const PROGRAM: &str = "rank=${RANK:-${PMI_RANK:-$OMPI_COMM_WORLD_RANK}}; echo ready
    [ $rank = 5 ] || exec sleep 31536000
    read -r _ </tmp/fail; exit 3";
const MARK: &str = "31536000";

/// Running job.
pub(super) struct FailingJob<'a> {
    testbed: &'a Testbed,
    launcher: Launcher,
    job: Background,
    ranks: Vec<Process>,
    /// Writing end of rank 5's pipe.
    pipe: fs::File,
}

/// Observations after a failure: when each awaited condition became true, if it did, and how many
/// ranks were left at the end.
pub(super) struct Observed {
    pub(super) times: Vec<Option<Duration>>,
    pub(super) left: usize,
}

impl fmt::Display for Observed {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for time in &self.times {
            match time {
                Some(time) => write!(f, "{:.3} s, ", time.as_secs_f64())?,
                None => write!(f, "not in time, ")?,
            }
        }
        write!(f, "{} ranks left", self.left)
    }
}

impl<'a> FailingJob<'a> {
    /// Starts eight ranks and waits until all are up and rank 5 reads its pipe.
    pub(super) fn start(
        testbed: &'a Testbed,
        scratch: &Path,
        launcher: Launcher,
    ) -> Result<FailingJob<'a>, LabError> {
        let mut mkfifo = testbed.lab.on(HOST, Account::Root)?;
        run("make a pipe", mkfifo.args(["mkfifo", PIPE]))?;
        let mut command = launcher.command(testbed, PER_HOST, &["sh", "-c", PROGRAM]);
        command.env("TMPDIR", scratch);
        let job = Background::start(command)?;
        let ready = || job.stdout().matches("ready").count() == HOSTS * PER_HOST;
        let mut ranks = Vec::new();
        let started = wait_until(START, "the ranks to start", || {
            ranks = all_ranks(testbed);
            Ok(ready() && ranks.len() == HOSTS * PER_HOST)
        });
        if let Err(error) = started {
            let stderr = last_lines(&job.stderr(), 10);
            return Err(LabError::Unexpected(format!("{}: {error}\n{stderr}", launcher.name())));
        }
        // Blocks until rank 5 has opened the pipe.
        let pipe = OpenOptions::new().write(true).open(outside(testbed, PIPE)?);
        let pipe = pipe.map_err(LabError::io(format!("open {PIPE}")))?;
        Ok(FailingJob { testbed, launcher, job, ranks, pipe })
    }

    /// Makes a part of the job fail and observes the job.
    pub(super) fn fail(&mut self, failure: Failure) -> Result<Observed, LabError> {
        let agent = self.agent()?;
        let began = Instant::now();
        match failure {
            Failure::Rank => writeln!(self.pipe).map_err(LabError::io("write to a pipe"))?,
            Failure::Launcher => self.job.kill()?,
            Failure::Agent => {
                kill(agent, Signal::SIGKILL).map_err(LabError::errno("kill an agent"))?;
            }
            Failure::Host => self.testbed.lab.cut(HOST, Cut::Silent)?,
        }
        let observed = self.watch(failure, began);
        if failure == Failure::Host {
            self.testbed.lab.heal(HOST)?;
        }
        let observed = observed?;
        self.check(failure, &observed)?;
        Ok(observed)
    }

    /// Waits for the conditions of this failure, up to its time limit.
    fn watch(&mut self, failure: Failure, began: Instant) -> Result<Observed, LabError> {
        let mut returned = None;
        let mut gone = None;
        while began.elapsed() < failure.limit() {
            if returned.is_none() && self.job.ended()?.is_some() {
                returned = Some(began.elapsed());
            }
            if gone.is_none() && !self.ranks_in(failure).any(is_running) {
                gone = Some(began.elapsed());
            }
            let done = match failure {
                Failure::Rank => returned.is_some(),
                Failure::Launcher => gone.is_some(),
                Failure::Agent | Failure::Host => returned.is_some() && gone.is_some(),
            };
            if done {
                break;
            }
            thread::sleep(Duration::from_millis(1));
        }
        let times = match failure {
            Failure::Rank => vec![returned],
            Failure::Launcher => vec![gone],
            Failure::Agent | Failure::Host => vec![returned, gone],
        };
        Ok(Observed { times, left: self.ranks_in(failure).filter(|rank| is_running(rank)).count() })
    }

    /// Returns the ranks that the failure affects: those of one host, or all.
    fn ranks_in(&self, failure: Failure) -> impl Iterator<Item = &Process> {
        let one_host = matches!(failure, Failure::Agent | Failure::Host);
        self.ranks.iter().filter(move |rank| !one_host || rank.host == HOST)
    }

    /// Checks rlaunch's exit code and error message.
    fn check(&mut self, failure: Failure, observed: &Observed) -> Result<(), LabError> {
        let wanted = match failure {
            Failure::Rank => (3, "error: rank 5 on c "),
            Failure::Agent | Failure::Host => (206, "error: node c is lost: "),
            Failure::Launcher => return Ok(()),
        };
        if self.launcher != Launcher::Rlaunch || observed.times[0].is_none() {
            return Ok(());
        }
        let code = self.job.wait(START)?.and_then(|status| status.code());
        let stderr = self.job.stderr();
        if code == Some(wanted.0) && stderr.contains(wanted.1) {
            return Ok(());
        }
        Err(LabError::Unexpected(format!(
            "{failure:?}: rlaunch ended with {code:?} and printed\n{stderr}"
        )))
    }

    /// Finds the process that manages the ranks of [`HOST`].
    fn agent(&self) -> Result<Pid, LabError> {
        let name = match self.launcher {
            Launcher::Rlaunch => "rlaunch-worker",
            Launcher::Hydra => "hydra_pmi_proxy",
            Launcher::OpenMpi | Launcher::PlainSsh => "orted",
        };
        let processes = self.testbed.lab.processes(HOST)?;
        let is_parent = |process: &Process| {
            let is_child = |rank: &&Process| rank.host == HOST && rank.parent == process.pid;
            self.ranks.iter().any(|rank| is_child(&rank))
        };
        let agent = processes.iter().find(|&process| {
            process.args.first().is_some_and(|word| word.ends_with(name)) && is_parent(process)
        });
        let missing = || LabError::Unexpected(format!("no {name} is on {HOST}: {processes:#?}"));
        agent.map(|agent| Pid::from_raw(agent.pid)).ok_or_else(missing)
    }

    /// Kills and removes whatever is left on any host.
    pub(super) fn end(self) -> Result<(), LabError> {
        let FailingJob { testbed, job, pipe, .. } = self;
        drop((job, pipe));
        testbed.clear()
    }
}

/// Returns what [`HOST`] sees as `path`, as a path on this machine.
fn outside(testbed: &Testbed, path: &str) -> Result<PathBuf, LabError> {
    testbed.lab.path(HOST, Path::new(path))
}

fn all_ranks(testbed: &Testbed) -> Vec<Process> {
    let mut processes = testbed.lab.all_processes();
    processes.retain(|process| {
        let program = process.args.first().map_or("", String::as_str);
        ["sh", "sleep"].contains(&program) && process.args.iter().any(|arg| arg.contains(MARK))
    });
    processes
}

/// Returns whether a process still runs, rather than being a zombie.
pub(super) fn is_running(process: &Process) -> bool {
    let stat = fs::read_to_string(format!("/proc/{}/stat", process.pid)).unwrap_or_default();
    let state = stat.rsplit_once(") ").and_then(|(_, rest)| rest.chars().next());
    state.is_some_and(|state| !matches!(state, 'Z' | 'X'))
}
