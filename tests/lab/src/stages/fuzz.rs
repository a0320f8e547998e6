//! `cargo lab fuzz`: a coverage-guided fuzzer for every decoder of input from outside.
//!
//! The instrumentation is LLVM's own and needs no nightly compiler: the flags are those that
//! cargo-fuzz passes. Only crates of this workspace are instrumented; all others are shared with
//! the build of the tests. Where nothing is searched for, known inputs are replayed by a program that the tests build
//! anyway: the instrumented one takes longer to build than all of them to run.

use std::path::PathBuf;
use std::process::Command;
use std::sync::{Mutex, PoisonError};

use super::ledger::Tally;
use crate::command::{at_once, printed, run as run_command};
use crate::dist::workspace_build::{TEST_FEATURES, program_of, write_wrapper};
use crate::files::make_dir;
use crate::setup::{self, PackageSet};
use crate::{LabError, dist};

/// Wrapper that starts rustc, with instrumentation for the fuzzed crates.
const WRAPPER: &str = "\
#!/usr/bin/env bash
case \"$*\" in
    *'--crate-name rlaunch_bootstrap '* | *'--crate-name rlaunch_client '* | *'--crate-name rlaunch_comm '* | \
    *'--crate-name rlaunch_console '* | *'--crate-name rlaunch_engine '* | \
    *'--crate-name rlaunch_plan '* | *'--crate-name rlaunch_horovod '* | \
    *'--crate-name rlaunch_launcher '* | *'--crate-name rlaunch_pmi '* | \
    *'--crate-name rlaunch_ssh '* | *'--crate-name rlaunch_text '* | \
    *'--crate-name rlaunch_fuzz '* | \
    *'--crate-name fuzzer '*)
        exec \"$@\" -Cpasses=sancov-module -Cllvm-args=-sanitizer-coverage-level=4 \
            -Cllvm-args=-sanitizer-coverage-inline-8bit-counters \
            -Cllvm-args=-sanitizer-coverage-pc-table \
            -Cllvm-args=-sanitizer-coverage-trace-compares -Ccodegen-units=1 ;;
esac
exec \"$@\"
";
/// Example that contains the fuzzer; the wrapper instruments it.
const PROGRAM: &str = "fuzzer";
/// Number of targets that are fuzzed at once.
const AT_ONCE: usize = 2;
/// Maximum length of an input in bytes: longer than any message, but short enough to be decoded
/// quickly.
const LONGEST: &str = "8192";
/// Limits of a target: seconds for one input, MiB of memory.
const LIMITS: [&str; 2] = ["-timeout=10", "-rss_limit_mb=2048"];
/// Program that replays inputs, and the seconds it has for those of a target, which take one.
const REPLAYER: &str = "rlaunch-fuzz";
const REPLAY_SECONDS: &str = "60";

/// Targets to fuzz, and for how long after their known inputs were replayed.
#[derive(Debug, Clone)]
pub struct FuzzOptions {
    /// Only these targets; `None` for all.
    pub targets: Option<Vec<String>>,
    /// Seconds of search for each target.
    pub seconds: u64,
    /// Targets that search for new inputs; the others only replay known ones. `None` for all.
    pub searched: Option<Vec<String>>,
}

impl FuzzOptions {
    fn seconds(&self, target: &str) -> u64 {
        let searched = self.searched.as_ref();
        let is_searched = searched.is_none_or(|some| some.iter().any(|name| name == target));
        if is_searched { self.seconds } else { 0 }
    }

    /// Returns whether any target searches for new inputs.
    fn is_search(&self) -> bool {
        self.seconds > 0 && self.searched.as_ref().is_none_or(|some| !some.is_empty())
    }
}

/// Fuzzes the targets, and counts each as one check.
pub fn run(options: &FuzzOptions) -> Result<Tally, LabError> {
    let fuzzer = if options.is_search() { Fuzzer::build()? } else { Fuzzer::replayer()? };
    let all = fuzzer.targets()?;
    let wanted = options.targets.clone().unwrap_or_else(|| all.clone());
    if let Some(unknown) = wanted.iter().find(|target| !all.contains(target)) {
        let known = all.join(", ");
        return Err(LabError::Usage(format!("no target is called {unknown}; there are {known}")));
    }
    let queue = Mutex::new(wanted.iter());
    let next = || queue.lock().unwrap_or_else(PoisonError::into_inner).next();
    let tallies = at_once(0..AT_ONCE, |_| {
        let mut tally = Tally::default();
        while let Some(target) = next() {
            tally.add(Tally::check(fuzzer.run(target, options.seconds(target))?));
        }
        Ok(tally)
    })?;
    let mut total = Tally::default();
    tallies.into_iter().for_each(|tally| total.add(tally));
    Ok(total)
}

/// Fuzzer that is ready to run.
#[derive(Debug)]
struct Fuzzer {
    program: PathBuf,
    /// Whether the program is libFuzzer, and not the one that only replays.
    can_search: bool,
    /// Inputs found in this and earlier runs, by target.
    found: PathBuf,
}

impl Fuzzer {
    /// Builds the fuzzer with the features of everything else that tests run, so that crates of the
    /// registry are not compiled again.
    fn build() -> Result<Fuzzer, LabError> {
        setup::install(PackageSet::Fuzzer)?;
        let target = dist::target_directory()?;
        let mut build = dist::cargo();
        build.args(["build", "--profile", "lab", "--workspace", "--example", PROGRAM]);
        build.args(["--features", TEST_FEATURES]);
        build.env("RUSTC_WORKSPACE_WRAPPER", write_wrapper(&target, WRAPPER)?);
        let program = program_of("build the fuzzer", &mut build, PROGRAM)?;
        Ok(Fuzzer { program, can_search: true, found: target.join("fuzz/found") })
    }

    /// Takes the program that replays known inputs from the build of the tests.
    fn replayer() -> Result<Fuzzer, LabError> {
        let program = dist::build_everything()?.program(REPLAYER)?;
        let found = dist::target_directory()?.join("fuzz/found");
        Ok(Fuzzer { program, can_search: false, found })
    }

    /// Lists the names of all targets.
    fn targets(&self) -> Result<Vec<String>, LabError> {
        let mut list = Command::new(&self.program);
        let list =
            if self.can_search { list.env("RLAUNCH_FUZZ", "list") } else { list.arg("list") };
        let listed = printed("list what is fuzzed", list)?;
        Ok(listed.lines().map(str::to_owned).collect())
    }

    /// Replays the known inputs of a target, then searches for new ones for `seconds`. Returns
    /// whether nothing failed.
    fn run(&self, target: &str, seconds: u64) -> Result<bool, LabError> {
        let [found, wrong] = [target, "wrong"].map(|name| self.found.join(name));
        make_dir(&found)?;
        make_dir(&wrong)?;
        let corpus = dist::workspace().join("tests/fuzz/corpus").join(target);
        let corpus = Some(corpus).filter(|corpus| corpus.exists());
        if !self.can_search {
            let mut replay = Command::new("timeout");
            replay.arg(REPLAY_SECONDS).arg(&self.program).args([target]).arg(&found).args(corpus);
            return Ok(match printed(&format!("replay {target}"), &mut replay) {
                Ok(said) => {
                    println!("{target:<13} {}", said.trim_end());
                    true
                }
                Err(error) => {
                    println!("{target}: {error}");
                    false
                }
            });
        }
        let mut fuzz = Command::new(&self.program);
        fuzz.env("RLAUNCH_FUZZ", target).env("RLAUNCH_FUZZ_SEEDS", &found);
        fuzz.args(LIMITS).arg(&found).arg(format!("-max_len={LONGEST}"));
        match seconds {
            0 => fuzz.arg("-runs=0"),
            _ => fuzz.arg(format!("-max_total_time={seconds}")),
        };
        fuzz.arg(format!("-artifact_prefix={}/{target}-", wrong.display()));
        fuzz.args(corpus);
        match run_command(&format!("fuzz {target}"), &mut fuzz) {
            Ok(output) => {
                let log = String::from_utf8_lossy(&output.stderr).into_owned();
                let done = log.lines().find(|line| line.starts_with("Done")).unwrap_or_default();
                println!("{target:<13} {}", done.to_lowercase());
                Ok(true)
            }
            Err(error) => {
                println!("{target}: {error}");
                let files = wrong.display();
                println!("replay: cargo run -p {REPLAYER} -- {target} FILE   (files: {files})");
                Ok(false)
            }
        }
    }
}
