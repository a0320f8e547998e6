//! `cargo lab bench detach`: a job that has left its terminal beside one in front, and the verbs that ask about jobs where a
//! thousand have left records.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::{Duration, Instant};

use clap::Args;
use nix::sys::signal::Signal;
use serde_json::Value;

use super::contender::{Scratch, Testbed, peak_memory};
use super::table::{Bar, Rounds, Row, Table};
use crate::command::background::Background;
use crate::command::{run as run_command, wait_until};
use crate::dist::{self, Profile};
use crate::{Account, LabError};

/// Job of two ranks, each of which prints 20,000 lines and waits.
const JOB: [&str; 5] = ["-H", "a,b", "sh", "-c", "seq 20000; exec sleep 1000"];
/// Last line of each rank.
const LAST: &str = "20000\n";
/// Number of records that are kept.
const RECORDS: usize = 1000;
/// Maximum time of a verb in milliseconds.
const BAR: Bar = Bar::Median(30.0);
/// Time limit of each step.
const BOUND: Duration = Duration::from_secs(60);

/// Options of the bench.
#[derive(Debug, Clone, Args)]
pub struct DetachOptions {
    /// Number of timed rounds, after one warm-up round.
    #[arg(long, default_value_t = 15)]
    rounds: usize,
}

/// Measures and prints; returns whether every bar is met.
pub(super) fn run(options: &DetachOptions) -> Result<bool, LabError> {
    let rlaunch = dist::build(Profile::Release)?;
    let scratch = Scratch::make(std::env::temp_dir())?;
    let rows = [Row::new("first line", "ms", &[]), Row::new("memory", "MiB", &[])];
    let mut jobs = Table::new(["-d, logs -f", "in front"], rows);
    let (many, one) = (scratch.0.join("many"), scratch.0.join("one"));
    Testbed::with_fresh(2, |testbed| {
        let launcher = |state: &Path| Launcher { testbed, rlaunch: &rlaunch, state: state.into() };
        for state in [&many, &one] {
            launcher(state).run(&["-H", "a", "seq", "10000"])?;
        }
        let timed = launcher(&scratch.0.join("timed"));
        jobs.measure(Rounds::new(options.rounds), |turn| {
            if turn.contender == 0 { timed.detached() } else { timed.in_front() }
        })
    })?;
    let ids = [multiply(&many, RECORDS)?, multiply(&one, 1)?];
    let verbs = [
        ("jobs", Row::new("jobs", "ms", &[BAR])),
        ("jobs -a", Row::new("jobs -a", "ms", &[BAR])),
        ("logs ID", Row::new("logs, of one that has ended", "ms", &[BAR])),
        ("stop ID", Row::new("stop, of one that has ended", "ms", &[BAR])),
    ];
    let (words, rows): (Vec<&str>, Vec<Row>) = verbs.into_iter().unzip();
    let mut asked = Table::new(["1,000 records", "1 record"], rows);
    asked.measure(Rounds::new(options.rounds), |turn| {
        let (state, id) = ([&many, &one][turn.contender], &ids[turn.contender]);
        words.iter().map(|words| time(&rlaunch, &words.replace("ID", id), state)).collect()
    })?;
    jobs.print(&format!("jobs of two ranks, {} rounds", options.rounds));
    Ok(asked.print(&format!("verbs, {} rounds", options.rounds)))
}

/// An rlaunch on the launch node.
struct Launcher<'a> {
    testbed: &'a Testbed,
    rlaunch: &'a Path,
    /// Directory in which it keeps records.
    state: PathBuf,
}

impl Launcher<'_> {
    fn command(&self, words: &[&str]) -> Command {
        let mut command = self.testbed.lab.exec_in(Account::Root, Path::new("/"));
        command.arg(self.rlaunch).args(words).env("XDG_STATE_HOME", &self.state);
        command
    }

    /// Runs it, and returns what it prints.
    fn run(&self, words: &[&str]) -> Result<String, LabError> {
        let output = run_command(&format!("rlaunch {}", words[0]), &mut self.command(words))?;
        Ok(String::from_utf8_lossy(&output.stdout).into_owned())
    }

    /// Returns the milliseconds until a job with -d has shown its first line, and its memory.
    fn detached(&self) -> Result<Vec<Option<f64>>, LabError> {
        let started = Instant::now();
        let name = self.run(&[&["-d"], &JOB[..]].concat())?;
        let logs = Background::start(self.command(&["logs", "-f", name.trim()]))?;
        let values = self.values(&logs, started)?;
        self.end()?;
        Ok(values)
    }

    /// Returns the same of a job in front.
    fn in_front(&self) -> Result<Vec<Option<f64>>, LabError> {
        let started = Instant::now();
        let mut job = Background::start(self.command(&JOB))?;
        let values = self.values(&job, started)?;
        job.signal(Signal::SIGTERM)?;
        job.wait(BOUND)?;
        self.testbed.lab.wait_until_idle(BOUND)?;
        Ok(values)
    }

    /// Waits for the first and the last line of the running job.
    fn values(&self, shown: &Background, started: Instant) -> Result<Vec<Option<f64>>, LabError> {
        wait_until(BOUND, "the first line", || Ok(!shown.stdout().is_empty()))?;
        let first = started.elapsed().as_secs_f64() * 1e3;
        let is_last = || Ok(shown.stdout().matches(LAST).count() == 2);
        wait_until(BOUND, "the last line", is_last)?;
        let jobs: Value = serde_json::from_str(&self.run(&["jobs", "--json"])?)
            .map_err(|error| LabError::Unexpected(format!("rlaunch jobs --json: {error}")))?;
        let launcher = jobs[0]["pid"].as_u64().and_then(|pid| u32::try_from(pid).ok());
        let memory = launcher.and_then(|pid| peak_memory(pid, Some("rlaunch")));
        Ok(vec![Some(first), memory])
    }

    fn end(&self) -> Result<(), LabError> {
        self.run(&["stop"])?;
        self.testbed.lab.wait_until_idle(BOUND)
    }
}

/// Makes `count` records of the only one in a state directory, under other ids and names. Returns the id of the first.
fn multiply(state: &Path, count: usize) -> Result<String, LabError> {
    let unexpected = || LabError::Unexpected(format!("no record in {}", state.display()));
    let directory = state.join("rlaunch/jobs");
    let entries = fs::read_dir(&directory).map_err(LabError::io("list records"))?.flatten();
    let mut names = entries.filter_map(|entry| entry.file_name().into_string().ok());
    let file = names.find(|name| name.ends_with(".json")).ok_or_else(unexpected)?;
    let (id, name) = file.trim_end_matches(".json").split_once('.').ok_or_else(unexpected)?;
    let rest = id.get(8..).ok_or_else(unexpected)?;
    let text = fs::read_to_string(directory.join(&file)).map_err(LabError::io("read a record"))?;
    for number in 1..count {
        let (other, called) = (format!("{number:08x}{rest}"), format!("{name}-{number}"));
        let copy = text.replace(id, &other).replace(name, &called);
        let path = directory.join(format!("{other}.{called}.json"));
        fs::write(path, copy).map_err(LabError::io("write a record"))?;
    }
    Ok(id.to_owned())
}

/// Returns the milliseconds that a verb takes on this machine.
fn time(rlaunch: &Path, words: &str, state: &Path) -> Result<Option<f64>, LabError> {
    let mut command = Command::new(rlaunch);
    command.args(words.split(' ')).env("XDG_STATE_HOME", state);
    let started = Instant::now();
    run_command(&format!("rlaunch {words}"), &mut command)?;
    Ok(Some(started.elapsed().as_secs_f64() * 1e3))
}
