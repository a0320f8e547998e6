//! Running checks and test programs: their output is printed, kept in a file and counted.

use std::fs::{self, File};
use std::io::{BufRead, BufReader, Write};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use super::ledger::Tally;
use super::times::TestClock;
use crate::command::display;
use crate::{LabError, dist};

/// Runs a command as one check.
pub(super) fn check(command: &mut Command) -> Tally {
    println!("$ {}", display(command));
    match command.status() {
        Ok(status) => Tally::check(status.success()),
        Err(source) => {
            failed(&display(command), &LabError::Io { operation: "start".into(), source })
        }
    }
}

/// Counts a check that could not be run as failed, and prints why.
pub(super) fn failed(what: &str, error: &LabError) -> Tally {
    report(what, error);
    Tally::check(false)
}

/// Prints an error with its causes.
pub(super) fn report(what: &str, error: &LabError) {
    println!("{what} failed: {error}");
    let mut cause = std::error::Error::source(error);
    while let Some(source) = cause {
        println!("  caused by: {source}");
        cause = source.source();
    }
}

const ONE_AT_A_TIME: [&str; 2] = ["--test-threads", "1"];

/// Whether the output of a program is printed as it arrives.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Echo {
    Yes,
    No,
}

/// Test program, and its arguments and environment.
#[derive(Debug, Clone)]
pub(super) struct TestProgram {
    pub(super) path: PathBuf,
    /// Working directory.
    pub(super) directory: PathBuf,
    pub(super) environment: Vec<(&'static str, PathBuf)>,
    /// Whether the program runs as the account that called sudo, as cargo does, rather than as
    /// root.
    pub(super) is_of_caller: bool,
    pub(super) tests: Tests,
}

/// Tests of a program that are run.
#[derive(Debug, Clone)]
pub(super) enum Tests {
    /// Tests whose names contain the first string, if there is one, and none of the others.
    Matching(Option<String>, Vec<String>),
    /// Tests of exactly these names.
    Named(Vec<String>),
}

impl TestProgram {
    /// Selects all tests of a program, or those whose names contain `filter`.
    pub(super) fn new(path: &Path, filter: Option<&String>) -> TestProgram {
        let tests = Tests::Matching(filter.cloned(), Vec::new());
        let directory = dist::workspace();
        let (path, environment) = (path.into(), Vec::new());
        TestProgram { path, directory, environment, is_of_caller: false, tests }
    }

    /// Selects tests of exactly these names.
    pub(super) fn only(&self, tests: &[String]) -> TestProgram {
        TestProgram { tests: Tests::Named(tests.to_vec()), ..self.clone() }
    }

    /// Makes the command.
    fn command(&self) -> Command {
        let mut command = match self.is_of_caller {
            true => dist::as_caller(self.path.clone().into()),
            false => Command::new(&self.path),
        };
        match &self.tests {
            Tests::Matching(filter, left_out) => {
                command.args(filter);
                command.args(left_out.iter().flat_map(|name| ["--skip", name.as_str()]))
            }
            Tests::Named(names) => command.arg("--exact").args(names),
        };
        command.envs(self.environment.iter().cloned()).current_dir(&self.directory);
        command
    }

    /// Runs its tests one at a time, prints their output and keeps it in a file called `log`.
    pub(super) fn run(&self, log: &str) -> Result<Outcome, LabError> {
        self.run_timed(log, Echo::Yes)
    }

    /// Runs its tests one at a time and keeps their output, without printing it.
    pub(super) fn run_quietly(&self, log: &str) -> Result<Outcome, LabError> {
        self.run_timed(log, Echo::No)
    }

    fn run_timed(&self, log: &str, shown: Echo) -> Result<Outcome, LabError> {
        let mut clock = TestClock::start();
        let mut command = self.command();
        let read = |line: &str| clock.read(line);
        let mut outcome = tests_read_by(command.args(ONE_AT_A_TIME), log, shown, read)?;
        outcome.tally.times = clock.into_times();
        Ok(outcome)
    }

    /// Lists the names of the selected tests.
    pub(super) fn names(&self) -> Result<Vec<String>, LabError> {
        let mut list = self.command();
        let output = crate::command::run("list tests", list.arg("--list"))?;
        let text = String::from_utf8_lossy(&output.stdout).into_owned();
        Ok(text.lines().filter_map(|line| line.strip_suffix(": test")).map(str::to_owned).collect())
    }
}

/// Result of one run of a test program.
#[derive(Debug, Default)]
pub(super) struct Outcome {
    pub(super) tally: Tally,
    /// Names of the failed tests, as far as the program printed them.
    pub(super) failed: Vec<String>,
    /// File with the program's output.
    pub(super) log: PathBuf,
}

/// Runs a command that executes test programs, keeps its output in a file and counts the tests. A
/// command that fails without a failed test (the build failed, or a test crashed) counts as one
/// failed test.
pub(super) fn tests(command: &mut Command, log: &str, shown: Echo) -> Result<Outcome, LabError> {
    tests_read_by(command, log, shown, |_| ())
}

/// Runs such a command and passes each line of its output on as it arrives.
fn tests_read_by(
    command: &mut Command,
    log: &str,
    shown: Echo,
    mut pass: impl FnMut(&str),
) -> Result<Outcome, LabError> {
    let log = log_file(log)?;
    let mut kept = File::create(&log).map_err(LabError::io(format!("make {}", log.display())))?;
    let operation = || LabError::io(format!("run {}", display(command)));
    let (start, wait) = (operation(), operation());
    let mut child = command.stdin(Stdio::null()).stdout(Stdio::piped()).spawn().map_err(start)?;
    let mut reader = Reader::default();
    if let Some(stdout) = child.stdout.take() {
        let mut lines = BufReader::new(stdout);
        let mut line = Vec::new();
        // Tests may print anything, so lines are bytes.
        while lines.read_until(b'\n', &mut line).is_ok_and(|count| count > 0) {
            if shown == Echo::Yes {
                let _ = std::io::stdout().write_all(&line);
            }
            // A full disk will make tests fail soon enough.
            let _ = kept.write_all(&line);
            let text = String::from_utf8_lossy(&line);
            reader.read(&text);
            pass(text.trim_end());
            line.clear();
        }
    }
    let status = child.wait().map_err(wait)?;
    let Reader { mut tally, failed, is_complete, .. } = reader;
    // Without a result line the program ended in the middle of a test, whatever its status is.
    if (!status.success() || !is_complete) && tally.failed == 0 {
        println!("{} ended with {status}", display(command));
        tally.failed = 1;
    }
    Ok(Outcome { tally, failed, log })
}

/// Returns the file for the output of a run called `name`, which replaces that of the last such
/// run.
pub(super) fn log_file(name: &str) -> Result<PathBuf, LabError> {
    let directory = dist::target_directory()?.join("lab-output");
    fs::create_dir_all(&directory)
        .map_err(LabError::io(format!("make {}", directory.display())))?;
    let plain = |c: char| if c.is_ascii_alphanumeric() || "-_.".contains(c) { c } else { '-' };
    Ok(directory.join(name.chars().map(plain).collect::<String>() + ".log"))
}

/// Parser of the output of libtest, line by line.
#[derive(Debug, Default)]
struct Reader {
    tally: Tally,
    failed: Vec<String>,
    /// Names since the last heading `failures:`, as long as the lines look like names.
    listed: Option<Vec<String>>,
    /// Whether a result line has been read.
    is_complete: bool,
}

impl Reader {
    fn read(&mut self, line: &str) {
        let line = line.trim_end();
        if line == "failures:" {
            // There are two such headings: one above the output of failed tests, one above their
            // names.
            self.listed = Some(Vec::new());
        } else if let Some(listed) = &mut self.listed {
            match line.strip_prefix("    ") {
                Some(name) if !name.contains(' ') => listed.push(name.to_owned()),
                _ if line.starts_with("test result: ") => {
                    self.failed.append(&mut self.listed.take().unwrap_or_default());
                }
                _ if line.is_empty() => {}
                _ => listed.clear(),
            }
        }
        self.is_complete |= line.starts_with("test result: ");
        self.tally.add_libtest_line(line);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn failed_tests_are_known_by_name() {
        let text = "\
running 3 tests
test a::one ... ok
test a::two ... FAILED
test b::three ... FAILED

failures:

---- a::two stdout ----
thread 'a::two' panicked at tests/a.rs:1:
    indented
more

---- b::three stdout ----
failures:
    faked

failures:
    a::two
    b::three

test result: FAILED. 1 passed; 2 failed; 0 ignored; 0 measured; 0 filtered out; finished in 0.1s

";
        let mut reader = Reader::default();
        text.lines().for_each(|line| reader.read(line));
        assert_eq!(reader.failed, ["a::two", "b::three"]);
        assert_eq!((reader.tally.passed, reader.tally.failed), (1, 2));
    }
}
