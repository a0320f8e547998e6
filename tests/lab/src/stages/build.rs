//! Stages without hosts: set-up, lints and build, unit tests, simulation, fuzzing.

use std::process::Command;
use std::thread;

use serde_json::Value;

use super::ledger::Tally;
use super::nextest::{TestPrograms, Tests};
use super::tool::DENY;
use super::{TestPlan, advisories, check, failed, fuzz, report};
use crate::LabError;
use crate::dist::workspace_build::write_wrapper;
use crate::dist::{self, Profile, TEST_FEATURES, aarch64};
use crate::setup::{self, PackageSet};

pub(super) const UNIT: &str = "unit";
pub(super) const SIM: &str = "sim";
pub(super) const FUZZ: &str = "fuzz";

/// Numbers of seeds that are simulated: fixed ones, and others that depend on the commit.
const FIXED_SEEDS: &str = "200";
const FRESH_SEEDS: &str = "50";
/// Number of hosts of the one long copy that is simulated.
const CHAIN: &str = "10000";

pub(super) fn set_up(_: &TestPlan) -> Result<Tally, LabError> {
    setup::install(PackageSet::Headers)?;
    setup::install(PackageSet::Fuzzer)?;
    if let Err(error) = aarch64::prepare() {
        // Tests that need them are listed as skipped.
        report("adding Rust's targets for aarch64", &error);
    }
    println!("everything the lab needs is installed");
    Ok(Tally::check(true))
}

/// Checks formatting and dependencies, then lints and builds everything that the other stages run,
/// in one pass. All checks run even if one fails, so that one run finds all
/// there is to fix.
pub(super) fn build(plan: &TestPlan) -> Result<Tally, LabError> {
    let mut tally = Tally::default();
    tally.add(check(dist::cargo().args(["fmt", "--all", "--check"])));
    tally.add(check_dependencies(false));
    if !plan.reach.is_nothing() {
        match dist::build_everything() {
            Ok(built) => {
                println!("lints: {} warnings", built.warnings());
                tally.add(Tally::check(built.warnings() == 0));
                tally.add(Tally::check(true));
            }
            Err(error) => tally.add(failed("the build", &error)),
        }
    }
    if plan.wants_aarch64() {
        tally.add(match aarch64::build(Profile::Lab) {
            Ok(missing) if missing.is_empty() => Tally::check(true),
            Ok(missing) => Tally::skip(missing.join("; ")),
            Err(error) => failed("the build for aarch64", &error),
        });
    }
    Ok(tally)
}

/// Checks licences, sources and duplicates of dependencies, and that each is at least the version
/// in which its last known vulnerability was fixed. With `online`, also checks against RustSec's
/// current database.
pub fn check_dependencies(online: bool) -> Tally {
    let mut tally = match DENY.command() {
        Ok(mut deny) => {
            deny.args(["--config", ".deny.toml", "--all-features"]);
            deny.args(["check", "--hide-inclusion-graph", "bans", "licenses", "sources"]);
            check(deny.args(online.then_some("advisories")))
        }
        Err(error) => failed("cargo deny", &error),
    };
    tally.add(match advisories::check() {
        Ok(tally) => tally,
        Err(error) => failed("the check of versions", &error),
    });
    tally
}

/// Runs tests that need neither root nor hosts by nextest, then the examples in doc comments, which
/// nextest does not run.
pub(super) fn unit(plan: &TestPlan) -> Result<Tally, LabError> {
    dist::build_everything()?;
    let mut tally = selected(plan, &TestPrograms::build()?).run(1)?.tally();
    tally.add(doc_tests(plan)?);
    Ok(tally)
}

/// Selects the tests of this stage.
pub(super) fn selected(plan: &TestPlan, programs: &TestPrograms) -> Tests {
    let mut tests = programs.select("default", plan.unit_tests(), plan);
    tests.is_of_caller = true;
    // A third of their time they wait, for a process or a time limit.
    tests.threads = thread::available_parallelism().ok().map(|number| number.get() * 3 / 2);
    tests
}

/// Runs the examples in doc comments. Cargo asks rustdoc for those of all libraries, also where a manifest says that there
/// are none, which takes as long as to check the crate.
fn doc_tests(plan: &TestPlan) -> Result<Tally, LabError> {
    let mut doc = dist::cargo();
    doc.args(["test", "--doc", "--profile", "lab", "--no-fail-fast", "--workspace"]);
    doc.args(["--features", TEST_FEATURES]).args(&plan.filter);
    dist::link_as_tests_are(&mut doc)?;
    let skipping = rustdoc_for(&crates_with_examples(&dist::metadata("ask cargo for its crates")?));
    doc.env("RUSTDOC", write_wrapper(&dist::target_directory()?, &skipping)?);
    Ok(check(&mut doc))
}

/// Lists the crates whose manifests do not say that their doc comments have no examples.
fn crates_with_examples(metadata: &Value) -> Vec<String> {
    let packages = metadata["packages"].as_array().into_iter().flatten();
    let targets = packages.flat_map(|package| package["targets"].as_array().into_iter().flatten());
    let names = targets.filter(|target| target["doctest"] == true);
    names.filter_map(|target| Some(target["name"].as_str()?.replace('-', "_"))).collect()
}

/// Returns a script that starts rustdoc, but not for other crates than these.
fn rustdoc_for(crates: &[String]) -> String {
    let known: String =
        crates.iter().map(|name| format!("    *' --crate-name {name} '*) ;;\n")).collect();
    format!(
        "#!/usr/bin/env bash\ncase \" $* \" in\n{known}    *' --crate-name '*) exit ;;\nesac\n\
         exec rustdoc \"$@\"\n"
    )
}

/// Simulates with fixed seeds, and with some that depend on the commit, and one copy to many hosts.
pub(super) fn simulate(_: &TestPlan) -> Result<Tally, LabError> {
    let program = dist::build_everything()?.program("rlaunch-sim")?;
    let fresh = fresh_seed().to_string();
    println!("fresh seeds begin at {fresh}");
    let mut tally = Tally::default();
    let fixed = ["--seeds", FIXED_SEEDS];
    let fresh = ["--from", &fresh, "--seeds", FRESH_SEEDS];
    for words in [&fixed[..], &fresh, &["--chain", CHAIN]] {
        tally.add(check(Command::new(&program).args(words).current_dir(dist::workspace())));
    }
    Ok(tally)
}

/// Builds and runs the simulation of the agents' tree and of copies with these arguments; returns whether it found nothing wrong. It
/// is a program of its own, so that the lab builds without the code that it simulates.
pub fn run_simulation(words: &[String]) -> bool {
    let mut cargo = dist::cargo();
    cargo.args(["run", "--quiet", "--profile", "lab", "--package", "rlaunch-sim", "--"]);
    check(cargo.args(words)).failed == 0
}

/// Returns a seed that depends on the commit, so that each commit has new ones that can be
/// reproduced.
fn fresh_seed() -> u64 {
    let head = Command::new("git").args(["rev-parse", "HEAD"]).output().ok();
    let id = head.and_then(|output| String::from_utf8(output.stdout).ok());
    let digits = id.and_then(|id| id.get(..12).map(str::to_owned));
    digits.and_then(|digits| u64::from_str_radix(&digits, 16).ok()).unwrap_or(1_000_000)
}

/// Replays known inputs, and searches for new ones in targets whose sources have changed.
pub(super) fn fuzz(plan: &TestPlan) -> Result<Tally, LabError> {
    let options = plan.fuzzing()?;
    match options.searched.as_ref().or(options.targets.as_ref()) {
        None => println!("all targets search for new inputs"),
        Some(names) if names.is_empty() => println!("no target's sources have changed"),
        Some(names) => println!("targets whose sources have changed: {}", names.join(" ")),
    }
    fuzz::run(&options)
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn rustdoc_is_started_for_crates_with_examples_alone() {
        let target = |name: &str, doctest: bool| json!({ "name": name, "doctest": doctest });
        let targets = [target("rlaunch-verbs", true), target("rlaunch-sys", false)];
        let crates = crates_with_examples(&json!({ "packages": [{ "targets": targets }] }));
        assert_eq!(crates, ["rlaunch_verbs"]);
        let script = rustdoc_for(&crates).replace("exec rustdoc", "echo");
        let printed = |words: &str| {
            let mut bash = Command::new("bash");
            let output =
                bash.args(["-c", &script, "rustdoc"]).args(words.split(' ')).output().unwrap();
            String::from_utf8(output.stdout).unwrap()
        };
        assert_eq!(
            printed("--crate-name rlaunch_verbs --test"),
            "--crate-name rlaunch_verbs --test\n"
        );
        assert_eq!(printed("--crate-name rlaunch_sys --test"), "");
        assert_eq!(printed("--version"), "--version\n");
    }
}
