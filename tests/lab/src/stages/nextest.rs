//! Runs of tests by nextest, as `.config/nextest.toml` sets it up; its events become counts.

use std::io::{BufRead, BufReader};
use std::path::{Path, PathBuf};
use std::process::{Command, ExitStatus, Stdio};
use std::time::Duration;

use serde::Deserialize;

use super::TestPlan;
use super::ledger::Tally;
use super::tool::NEXTEST;
use crate::command::{display, printed};
use crate::{LabError, dist, files};

/// Test programs of the whole workspace, built by the profile of tests.
#[derive(Debug, Clone)]
pub(super) struct TestPrograms {
    nextest: PathBuf,
    /// Descriptions of programs and workspace, so that nextest builds nothing: as root it must not.
    programs: PathBuf,
    workspace: PathBuf,
}

impl TestPrograms {
    /// Builds what is missing; after [`dist::build_everything`] nothing is.
    pub(super) fn build() -> Result<TestPrograms, LabError> {
        let mut list = NEXTEST.command()?;
        list.args(["list", "--cargo-profile", dist::Profile::Lab.name()]);
        list.args(["--workspace", "--features", dist::TEST_FEATURES]);
        list.args(["--list-type", "binaries-only", "--message-format", "json"]);
        dist::link_as_tests_are(&mut list)?;
        let mut workspace = dist::cargo();
        workspace.args(["metadata", "--format-version", "1", "--offline"]);
        Ok(TestPrograms {
            nextest: NEXTEST.program()?,
            programs: kept("list test programs", list, "programs.json")?,
            workspace: kept("describe the workspace", workspace, "workspace.json")?,
        })
    }

    /// Selects tests of a plan by a filterset.
    pub(super) fn select(&self, profile: &'static str, set: String, plan: &TestPlan) -> Tests {
        Tests {
            programs: self.clone(),
            profile,
            set,
            filter: plan.filter.clone(),
            are_ignored: plan.ignored,
            is_of_caller: false,
            threads: None,
        }
    }
}

/// Runs a command and keeps its output in a file; returns the path of the file.
fn kept(operation: &str, mut command: Command, name: &str) -> Result<PathBuf, LabError> {
    let output = crate::command::run(operation, &mut command)?;
    let file = log_file(name)?;
    files::write(&file, output.stdout, 0o644)?;
    Ok(file)
}

/// Returns the path of a file for output. It replaces that of the last run.
fn log_file(name: &str) -> Result<PathBuf, LabError> {
    let directory = dist::target_directory()?.join("lab-output");
    files::make_dir(&directory)?;
    let plain = |c: char| if c.is_ascii_alphanumeric() || "-_.".contains(c) { c } else { '-' };
    Ok(directory.join(name.chars().map(plain).collect::<String>()))
}

/// Selected tests.
#[derive(Debug, Clone)]
pub(super) struct Tests {
    programs: TestPrograms,
    /// Profile of nextest.
    profile: &'static str,
    set: String,
    filter: Option<String>,
    /// Whether they are those that are marked `#[ignore]`.
    are_ignored: bool,
    /// Whether they run as the account that called sudo rather than as root.
    pub(super) is_of_caller: bool,
    /// Number of tests at once, if it is not that of the profile.
    pub(super) threads: Option<usize>,
}

impl Tests {
    /// Selects those that match another filterset too.
    pub(super) fn and(&self, set: &str) -> Tests {
        Tests { set: format!("({}) & ({set})", self.set), ..self.clone() }
    }

    fn command(&self, verb: &str) -> Command {
        let TestPrograms { nextest, programs, workspace } = &self.programs;
        let mut command = match self.is_of_caller {
            true => dist::as_caller(nextest.into()),
            false => Command::new(nextest),
        };
        command.args(["nextest", verb, "--profile", self.profile]);
        command.arg("--binaries-metadata").arg(programs).arg("--cargo-metadata").arg(workspace);
        command.args(["--filterset", &self.set]).args(&self.filter);
        command.current_dir(dist::workspace());
        command
    }

    /// Lists the names of those that run.
    pub(super) fn names(&self) -> Result<Vec<String>, LabError> {
        self.list(self.run_ignored())
    }

    /// Returns the value of `--run-ignored`.
    fn run_ignored(&self) -> &'static str {
        if self.are_ignored { "only" } else { "default" }
    }

    /// Lists the names of those that are marked `#[ignore]`, or not.
    fn list(&self, ignored: &str) -> Result<Vec<String>, LabError> {
        let mut list = self.command("list");
        list.args(["--message-format", "oneline", "--color", "never", "--run-ignored", ignored]);
        let listed = printed("list tests", &mut list)?;
        // The name comes after that of its program.
        let name = |line: &str| Some(line.split_once(' ')?.1.to_owned());
        Ok(listed.lines().filter_map(name).collect())
    }

    /// Runs them `times` times.
    pub(super) fn run(&self, times: u32) -> Result<Outcome, LabError> {
        // Nextest tells nothing of programs in which every test is ignored.
        let ignored = if self.are_ignored { 0 } else { self.list("only")?.len() };
        let mut outcome = Outcome { ignored, ..Outcome::default() };
        let mut command = self.command("run");
        command.args(["--no-fail-fast", "--no-tests", "pass", "--message-format", "libtest-json"]);
        command.args(["--run-ignored", self.run_ignored()]);
        command.env("NEXTEST_EXPERIMENTAL_LIBTEST_JSON", "1");
        if let Some(threads) = self.threads {
            command.arg("--test-threads").arg(threads.to_string());
        }
        if times > 1 {
            command.arg("--stress-count").arg(times.to_string());
        }
        println!("$ {}", display(&command));
        let operation = || LabError::io("run nextest");
        let mut child =
            command.stdin(Stdio::null()).stdout(Stdio::piped()).spawn().map_err(operation())?;
        let lines = child.stdout.take().map(|stdout| BufReader::new(stdout).lines());
        for line in lines.into_iter().flatten().map_while(Result::ok) {
            outcome.read(&line)?;
        }
        outcome.end(child.wait().map_err(operation())?);
        Ok(outcome)
    }
}

/// Event of a test, as nextest prints it.
#[derive(Deserialize)]
struct Event {
    #[serde(rename = "type")]
    kind: String,
    event: String,
    #[serde(default)]
    name: String,
    #[serde(default)]
    exec_time: f64,
    #[serde(default)]
    stdout: String,
}

/// One run of a test.
#[derive(Debug)]
pub(super) struct TestResult {
    pub(super) name: String,
    took: Duration,
    /// Output of a test that failed.
    pub(super) log: Option<PathBuf>,
}

#[cfg(test)]
impl TestResult {
    pub(super) fn new(name: &str, log: Option<PathBuf>) -> TestResult {
        TestResult { name: name.to_owned(), took: Duration::ZERO, log }
    }
}

/// Results of a run of nextest.
#[derive(Debug, Default)]
pub(super) struct Outcome {
    pub(super) tests: Vec<TestResult>,
    pub(super) ignored: usize,
    /// Whether the run failed without a failed test.
    pub(super) is_broken: bool,
}

impl Outcome {
    fn read(&mut self, line: &str) -> Result<(), LabError> {
        let Ok(event) = serde_json::from_str::<Event>(line) else { return Ok(()) };
        // `CRATE::PROGRAM@stress-1$TEST`; a name of Rust has none of these characters.
        let name = event.name.rsplit('$').next().unwrap_or_default().to_owned();
        let log = match (event.kind.as_str(), event.event.as_str()) {
            ("test", "ok") => None,
            ("test", "failed") => {
                let log = log_file(&format!("{}.log", event.name))?;
                files::write(&log, &event.stdout, 0o644)?;
                Some(log)
            }
            _ => return Ok(()),
        };
        let took = Duration::try_from_secs_f64(event.exec_time).unwrap_or_default();
        self.tests.push(TestResult { name, took, log });
        Ok(())
    }

    fn end(&mut self, status: ExitStatus) {
        if !status.success() && self.failed().next().is_none() {
            println!("nextest ended with {status}");
            self.is_broken = true;
        }
    }

    /// Lists the tests that failed, each with its output.
    pub(super) fn failed(&self) -> impl Iterator<Item = (&str, &Path)> {
        self.tests.iter().filter_map(|test| Some((test.name.as_str(), test.log.as_deref()?)))
    }

    /// Counts the tests.
    pub(super) fn tally(&self) -> Tally {
        let failed = self.failed().count();
        let ignored = (self.ignored, "tests marked #[ignore]".to_owned());
        Tally {
            passed: self.tests.len() - failed,
            failed: failed + usize::from(self.is_broken),
            skipped: if self.ignored > 0 { vec![ignored] } else { Vec::new() },
            times: self.tests.iter().map(|test| (test.name.clone(), test.took)).collect(),
            ..Tally::default()
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn events_are_counted() {
        let mut outcome = Outcome::default();
        for line in [
            r#"{"type":"suite","event":"started","test_count":3}"#,
            r#"{"type":"test","event":"started","name":"a::a$b::one"}"#,
            r#"{"type":"test","event":"ok","name":"a::a$b::one","exec_time":1.5}"#,
            r#"{"type":"test","event":"ok","name":"a::a@stress-1$b::one","exec_time":0.5}"#,
            r#"{"type":"test","event":"ignored","name":"a::a$b::two"}"#,
            r#"{"type":"suite","event":"ok","passed":2,"failed":0,"ignored":1}"#,
            "no event",
        ] {
            outcome.read(line).unwrap();
        }
        let tally = outcome.tally();
        assert_eq!((tally.passed, tally.failed), (2, 0));
        assert!(tally.skipped.is_empty());
        assert_eq!(outcome.tests[1].name, "b::one");
        assert_eq!(tally.times[0].1, Duration::from_millis(1500));
    }

    #[test]
    fn a_run_that_fails_without_a_failed_test_is_one_failure() {
        let mut outcome = Outcome::default();
        outcome.end(Command::new("false").status().unwrap());
        assert_eq!((outcome.tally().passed, outcome.tally().failed), (0, 1));
    }
}
