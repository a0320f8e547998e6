//! Running checks and test programs, with their output shown and their tests counted.

use std::io::{BufRead, BufReader, Write};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use serde::Deserialize;

use super::Plan;
use crate::command::display;
use crate::ledger::Tally;
use crate::{LabError, dist};

/// Runs a check that either passes or fails.
pub(super) fn check(command: &mut Command) -> Tally {
    println!("$ {}", display(command));
    match command.status() {
        Ok(status) => Tally::check(status.success()),
        Err(source) => {
            failed(&display(command), &LabError::Io { operation: "start".into(), source })
        }
    }
}

/// A check that could not even be made.
pub(super) fn failed(what: &str, error: &LabError) -> Tally {
    report(what, error);
    Tally::check(false)
}

/// Prints why something failed, with its causes.
pub(super) fn report(what: &str, error: &LabError) {
    println!("{what} failed: {error}");
    let mut cause = std::error::Error::source(error);
    while let Some(source) = cause {
        println!("  caused by: {source}");
        cause = source.source();
    }
}

/// Runs test programs, shows what they print and counts their tests. A program that ends badly
/// without a failed test (it did not build, or crashed) counts as one.
pub(super) fn tests(command: &mut Command) -> Result<Tally, LabError> {
    println!("$ {}", display(command));
    let operation = || LabError::io(format!("run {}", display(command)));
    let (start, wait) = (operation(), operation());
    let mut child = command.stdin(Stdio::null()).stdout(Stdio::piped()).spawn().map_err(start)?;
    let mut tally = Tally::default();
    if let Some(stdout) = child.stdout.take() {
        let mut lines = BufReader::new(stdout);
        let mut line = Vec::new();
        // Tests may print anything, so lines are bytes.
        while lines.read_until(b'\n', &mut line).is_ok_and(|count| count > 0) {
            let _ = std::io::stdout().write_all(&line);
            tally.add_libtest_line(&String::from_utf8_lossy(&line));
            line.clear();
        }
    }
    let status = child.wait().map_err(wait)?;
    if !status.success() && tally.failed == 0 {
        println!("{} ended with {status}", display(command));
        tally.failed = 1;
    }
    Ok(tally)
}

/// Builds the test program `test` of `package` and runs it, one test at a time, as the account we
/// run as: cargo itself may run as another.
pub(super) fn root_tests(
    package: &str,
    test: &str,
    plan: &Plan,
    environment: &[(&str, PathBuf)],
) -> Result<Tally, LabError> {
    program(&test_program(package, test)?, plan, environment)
}

/// Runs a test program that has been built, one test at a time.
pub(super) fn program(
    program: &Path,
    plan: &Plan,
    environment: &[(&str, PathBuf)],
) -> Result<Tally, LabError> {
    program_without(program, plan, &[], environment)
}

/// The same without the tests whose names contain one of `left_out`.
pub(super) fn program_without(
    program: &Path,
    plan: &Plan,
    left_out: &[&str],
    environment: &[(&str, PathBuf)],
) -> Result<Tally, LabError> {
    let mut command = Command::new(program);
    command.args(["--test-threads", "1"]).args(&plan.filter);
    command.args(left_out.iter().flat_map(|name| ["--skip", *name]));
    command.envs(environment.iter().cloned()).current_dir(dist::workspace());
    tests(&mut command)
}

/// A line of cargo's JSON messages, as far as it matters.
#[derive(Deserialize)]
struct Message {
    target: Option<Target>,
    executable: Option<PathBuf>,
}

#[derive(Deserialize)]
struct Target {
    name: String,
    kind: Vec<String>,
}

/// Builds the test program `test` of `package` and says where it is.
pub(super) fn test_program(package: &str, test: &str) -> Result<PathBuf, LabError> {
    let mut cargo = dist::cargo();
    cargo.args(["test", "--package", package, "--test", test, "--profile", "lab", "--no-run"]);
    cargo.arg("--message-format=json-render-diagnostics").stderr(Stdio::inherit());
    let operation = format!("build the tests of {package}");
    let output = cargo.output().map_err(LabError::io(operation.clone()))?;
    let found = String::from_utf8_lossy(&output.stdout)
        .lines()
        .filter_map(|line| serde_json::from_str::<Message>(line).ok())
        .find(|message| message.target.as_ref().is_some_and(|target| is_test(target, test)))
        .and_then(|message| message.executable);
    found.filter(|path| Path::exists(path)).ok_or_else(|| LabError::Tool {
        operation,
        program: "cargo".into(),
        status: output.status.to_string(),
        stderr: String::new(),
    })
}

fn is_test(target: &Target, name: &str) -> bool {
    target.name == name && target.kind.iter().any(|kind| kind == "test")
}
