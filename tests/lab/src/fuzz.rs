//! `cargo lab fuzz`: every decoder of what comes from outside, fed by a fuzzer that is led by what
//! the input reaches.
//!
//! The instrumentation is LLVM's own and needs no nightly compiler: the flags are those that
//! cargo-fuzz passes.

use std::fs;
use std::path::PathBuf;
use std::process::Command;
use std::thread;

use crate::command::{run as run_command, show};
use crate::ledger::Tally;
use crate::setup::{self, Extent};
use crate::{LabError, dist};

const FLAGS: &str = "-Cpasses=sancov-module -Cllvm-args=-sanitizer-coverage-level=4 \
    -Cllvm-args=-sanitizer-coverage-inline-8bit-counters \
    -Cllvm-args=-sanitizer-coverage-pc-table \
    -Cllvm-args=-sanitizer-coverage-trace-compares -Ccodegen-units=1";
/// How many targets at once.
const AT_ONCE: usize = 2;
/// The longest input, in bytes: more than any message, less than what takes long.
const LONGEST: &str = "8192";
/// A single input may take this many seconds, and all memory this many MiB.
const LIMITS: [&str; 2] = ["-timeout=10", "-rss_limit_mb=2048"];

/// Fuzzes one target, or all; each counts as a check.
pub fn run(target: Option<&str>, seconds: u64) -> Result<Tally, LabError> {
    let fuzzer = Fuzzer::build()?;
    let all = fuzzer.targets()?;
    if let Some(unknown) = target.filter(|target| !all.iter().any(|name| name == target)) {
        let known = all.join(", ");
        return Err(LabError::Usage(format!("nothing is called {unknown}; there are {known}")));
    }
    let wanted = |name: &&String| target.is_none_or(|target| target == *name);
    let wanted: Vec<&String> = all.iter().filter(wanted).collect();
    let mut tally = Tally::default();
    for together in wanted.chunks(AT_ONCE) {
        let run = |name: &&String| fuzzer.run(name, seconds);
        let results = thread::scope(|scope| {
            let threads: Vec<_> = together.iter().map(|name| scope.spawn(|| run(name))).collect();
            threads.into_iter().map(std::thread::ScopedJoinHandle::join).collect::<Vec<_>>()
        });
        for result in results {
            let lost = |_| Err(LabError::Wrong("lost sight of a fuzzer".into()));
            tally.add(Tally::check(result.unwrap_or_else(lost)?));
        }
    }
    Ok(tally)
}

/// A fuzzer that is ready to run.
#[derive(Debug)]
struct Fuzzer {
    program: PathBuf,
    /// What was found in this and earlier runs, by target.
    found: PathBuf,
}

impl Fuzzer {
    /// Builds it.
    fn build() -> Result<Fuzzer, LabError> {
        setup::install(Extent::Fuzzer)?;
        let directory = dist::target_directory()?.join("fuzz");
        let triple = dist::host_triple()?;
        let mut build = dist::cargo();
        // With a target, only what is fuzzed is instrumented, not what builds it.
        build.args(["build", "--profile", "lab", "-p", "rlaunch-fuzz", "--features", "libfuzzer"]);
        build.args(["--target", &triple, "--target-dir"]).arg(&directory).env("RUSTFLAGS", FLAGS);
        show("build the fuzzer", &mut build)?;
        let program = directory.join(&triple).join("lab/rlaunch-fuzz");
        Ok(Fuzzer { program, found: directory.join("found") })
    }

    /// The names of all targets.
    fn targets(&self) -> Result<Vec<String>, LabError> {
        let mut list = Command::new(&self.program);
        let output = run_command("list what is fuzzed", list.env("RLAUNCH_FUZZ", "list"))?;
        Ok(String::from_utf8_lossy(&output.stdout).lines().map(str::to_owned).collect())
    }

    /// Replays what is known of a target, then looks for more for some seconds; true if nothing
    /// was wrong.
    fn run(&self, target: &str, seconds: u64) -> Result<bool, LabError> {
        let found = made(self.found.join(target))?;
        let wrong = made(self.found.join("wrong"))?;
        let mut fuzz = Command::new(&self.program);
        fuzz.env("RLAUNCH_FUZZ", target).env("RLAUNCH_FUZZ_SEEDS", &found);
        fuzz.args(LIMITS).arg(&found);
        fuzz.arg(format!("-max_len={LONGEST}")).arg(format!("-max_total_time={seconds}"));
        fuzz.arg(format!("-artifact_prefix={}/{target}-", wrong.display()));
        let corpus = dist::workspace().join("tests/fuzz/corpus").join(target);
        fuzz.args(Some(corpus).filter(|corpus| corpus.exists()));
        match run_command(&format!("fuzz {target}"), &mut fuzz) {
            Ok(output) => {
                let said = String::from_utf8_lossy(&output.stderr).into_owned();
                let done = said.lines().find(|line| line.starts_with("Done")).unwrap_or_default();
                println!("{target:<12} {}", done.to_lowercase());
                Ok(true)
            }
            Err(error) => {
                println!("{target}: {error}");
                println!(
                    "replay: cargo run -p rlaunch-fuzz -- {target} FILE   (files: {})",
                    wrong.display()
                );
                Ok(false)
            }
        }
    }
}

fn made(directory: PathBuf) -> Result<PathBuf, LabError> {
    let operation = format!("make {}", directory.display());
    fs::create_dir_all(&directory).map_err(LabError::io(operation))?;
    Ok(directory)
}
