//! One job, and something in it that fails at a known moment.

use std::fmt;
use std::fs::{self, OpenOptions};
use std::io::Write;
use std::path::{Path, PathBuf};
use std::thread;
use std::time::{Duration, Instant};

use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;

use super::{Failure, HOSTS, PER_HOST, Scratch};
use crate::bench::launchers::{Launcher, Testbed};
use crate::command::background::Background;
use crate::command::{last_lines, run, wait_until};
use crate::{Account, Cut, LabError, Process};

/// How long a job may take to start.
const START: Duration = Duration::from_secs(30);
/// The host that something happens to, with the ranks 4 and 5.
const HOST: &str = "c";
/// Rank 5 waits at this pipe of its host.
const PIPE: &str = "/tmp/fail";
/// What every rank runs. Nothing else sleeps that long, so ranks are known by it.
const PROGRAM: &str = "rank=${RANK:-${PMI_RANK:-$OMPI_COMM_WORLD_RANK}}; echo ready
    [ $rank = 5 ] || exec sleep 31536000
    read -r _ </tmp/fail; exit 3";
const MARK: &str = "31536000";

/// A running job.
pub(super) struct FailingJob<'a> {
    testbed: &'a Testbed,
    launcher: Launcher,
    job: Background,
    ranks: Vec<Process>,
    /// The writing end of rank 5's pipe.
    pipe: fs::File,
}

/// What was seen after a failure: when each thing that was waited for had come true, if it had,
/// and how many ranks were left in the end.
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
    /// Starts eight ranks and waits until all are up and one of them at its pipe.
    pub(super) fn start(
        testbed: &'a Testbed,
        scratch: &Scratch,
        launcher: Launcher,
    ) -> Result<FailingJob<'a>, LabError> {
        let mut mkfifo = testbed.lab.on(HOST, Account::Root)?;
        run("make a pipe", mkfifo.args(["mkfifo", PIPE]))?;
        let mut command = launcher.command(testbed, PER_HOST, &["sh", "-c", PROGRAM]);
        command.env("TMPDIR", &scratch.0);
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
        // Waits for the reader.
        let pipe = OpenOptions::new().write(true).open(outside(testbed, PIPE)?);
        let pipe = pipe.map_err(LabError::io(format!("open {PIPE}")))?;
        Ok(FailingJob { testbed, launcher, job, ranks, pipe })
    }

    /// Makes something fail and sees what becomes of the job.
    pub(super) fn fail(&mut self, case: Failure) -> Result<Observed, LabError> {
        let agent = self.agent()?;
        let began = Instant::now();
        match case {
            Failure::Rank => writeln!(self.pipe).map_err(LabError::io("write to a pipe"))?,
            Failure::Launcher => self.job.kill()?,
            Failure::Agent => {
                kill(agent, Signal::SIGKILL).map_err(LabError::errno("kill an agent"))?;
            }
            Failure::Host => self.testbed.lab.cut(HOST, Cut::Silent)?,
        }
        let seen = self.watch(case, began);
        if case == Failure::Host {
            self.testbed.lab.heal(HOST)?;
        }
        let seen = seen?;
        self.check(case, &seen)?;
        Ok(seen)
    }

    /// Waits for what the case measures, up to its limit.
    fn watch(&mut self, case: Failure, began: Instant) -> Result<Observed, LabError> {
        let mut returned = None;
        let mut gone = None;
        while began.elapsed() < case.limit() {
            if returned.is_none() && self.job.ended()?.is_some() {
                returned = Some(began.elapsed());
            }
            if gone.is_none() && !self.ranks_in(case).any(lives) {
                gone = Some(began.elapsed());
            }
            let done = match case {
                Failure::Rank => returned.is_some(),
                Failure::Launcher => gone.is_some(),
                Failure::Agent | Failure::Host => returned.is_some() && gone.is_some(),
            };
            if done {
                break;
            }
            thread::sleep(Duration::from_millis(1));
        }
        let times = match case {
            Failure::Rank => vec![returned],
            Failure::Launcher => vec![gone],
            Failure::Agent | Failure::Host => vec![returned, gone],
        };
        Ok(Observed { times, left: self.ranks_in(case).filter(|rank| lives(rank)).count() })
    }

    /// The ranks that a case is about: those of one host, or all.
    fn ranks_in(&self, case: Failure) -> impl Iterator<Item = &Process> {
        let one_host = matches!(case, Failure::Agent | Failure::Host);
        self.ranks.iter().filter(move |rank| !one_host || rank.host == HOST)
    }

    /// rlaunch's word is part of what is measured.
    fn check(&mut self, case: Failure, seen: &Observed) -> Result<(), LabError> {
        let wanted = match case {
            Failure::Rank => (3, "error: rank 5 on c "),
            Failure::Agent | Failure::Host => (206, "error: node c is lost: "),
            Failure::Launcher => return Ok(()),
        };
        if self.launcher != Launcher::Rlaunch || seen.times[0].is_none() {
            return Ok(());
        }
        let code = self.job.wait(START)?.and_then(|status| status.code());
        let stderr = self.job.stderr();
        if code == Some(wanted.0) && stderr.contains(wanted.1) {
            return Ok(());
        }
        Err(LabError::Unexpected(format!(
            "{case:?}: rlaunch ended with {code:?} and said\n{stderr}"
        )))
    }

    /// The process that watches over the ranks of [`HOST`].
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

    /// Ends whatever is left, anywhere.
    pub(super) fn end(self) -> Result<(), LabError> {
        let FailingJob { testbed, job, pipe, .. } = self;
        drop((job, pipe));
        testbed.lab.clear()?;
        for host in &testbed.hosts {
            empty(&testbed.lab.path(host, Path::new("/tmp"))?)?;
        }
        Ok(())
    }
}

/// What is seen as `path` on [`HOST`], from outside.
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

/// Whether a process still runs; one that only waits to be collected does not.
fn lives(process: &Process) -> bool {
    let stat = fs::read_to_string(format!("/proc/{}/stat", process.pid)).unwrap_or_default();
    let state = stat.rsplit_once(") ").and_then(|(_, rest)| rest.chars().next());
    state.is_some_and(|state| !matches!(state, 'Z' | 'X'))
}

fn empty(directory: &Path) -> Result<(), LabError> {
    let operation = || LabError::io(format!("empty {}", directory.display()));
    for entry in fs::read_dir(directory).map_err(operation())? {
        let path = entry.map_err(operation())?.path();
        let removed =
            if path.is_dir() { fs::remove_dir_all(&path) } else { fs::remove_file(&path) };
        removed.map_err(operation())?;
    }
    Ok(())
}
