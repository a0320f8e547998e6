//! Stages without hosts: set-up, lints and build, unit tests, simulation, fuzzing.

use super::ledger::{Ledger, Tally};
use super::run::{self, Echo, TestProgram};
use super::{TestPlan, advisories, deny};
use super::{fuzz, sim};
use crate::LabError;
use crate::dist::{self, Built, Profile, TEST_FEATURES, aarch64};
use crate::setup::{self, PackageSet};

pub(super) const UNIT: &str = "unit";
pub(super) const SIM: &str = "sim";
pub(super) const FUZZ: &str = "fuzz";

/// Test programs that need hosts or guests: other stages run them.
const OF_OTHER_STAGES: [&str; 3] = ["lab", "netns", "vm"];

/// Numbers of seeds that are simulated: fixed ones, and others that depend on the commit.
const FIXED_SEEDS: &str = "200";
const FRESH_SEEDS: &str = "50";

/// Seconds of fuzzing for each decoder whose sources have changed.
const FUZZ_SECONDS: u64 = 10;

pub(super) fn set_up(_: &TestPlan, _: &Ledger) -> Result<Tally, LabError> {
    setup::install(PackageSet::Headers)?;
    setup::install(PackageSet::Fuzzer)?;
    if let Err(error) = aarch64::prepare() {
        // Tests that need them are listed as skipped.
        run::report("adding Rust's targets for aarch64", &error);
    }
    println!("everything the lab needs is installed");
    Ok(Tally::check(true))
}

/// Checks formatting and dependencies, then lints and builds everything that the other stages run,
/// in one pass. All checks run even if one fails, so that one run finds all
/// there is to fix.
pub(super) fn build(plan: &TestPlan, _: &Ledger) -> Result<Tally, LabError> {
    let mut tally = Tally::default();
    tally.add(run::check(dist::cargo().args(["fmt", "--all", "--check"])));
    tally.add(check_dependencies(false));
    if plan.wants_build() {
        match dist::build_everything() {
            Ok(built) => {
                println!("lints: {} warnings", built.warnings());
                tally.add(Tally::check(built.warnings() == 0));
                tally.add(Tally::check(true));
            }
            Err(error) => tally.add(run::failed("the build", &error)),
        }
    }
    if plan.wants_aarch64() {
        tally.add(match aarch64::build(Profile::Lab) {
            Ok(missing) if missing.is_empty() => Tally::check(true),
            Ok(missing) => Tally::skip(missing.join("; ")),
            Err(error) => run::failed("the build for aarch64", &error),
        });
    }
    Ok(tally)
}

/// Checks licences, sources and duplicates of dependencies, and that each is at least the version
/// in which its last known vulnerability was fixed. With `online`, also checks against RustSec's
/// current database.
pub fn check_dependencies(online: bool) -> Tally {
    let mut tally = match deny::command(online) {
        Ok(mut deny) => run::check(&mut deny),
        Err(error) => run::failed("cargo deny", &error),
    };
    tally.add(match advisories::check() {
        Ok(tally) => tally,
        Err(error) => run::failed("the check of versions", &error),
    });
    tally
}

/// Runs tests that need neither root nor hosts, one program after the other, then the examples in
/// doc comments.
pub(super) fn unit(plan: &TestPlan, ledger: &Ledger) -> Result<Tally, LabError> {
    if ledger.has_failed(super::BUILD) && dist::build_everything().is_err() {
        return Ok(Tally::skip("the build failed"));
    }
    let mut tally = Tally::default();
    for (name, program) in programs(&dist::build_everything()?, plan) {
        println!("\n{name}");
        tally.add(program.run_at_once(&format!("unit-{name}"))?.tally);
    }
    let mut doc = dist::cargo();
    doc.args(["test", "--doc", "--profile", "lab", "--no-fail-fast", "--workspace"]);
    doc.args(["--features", TEST_FEATURES]);
    dist::link_as_tests_are(&mut doc)?;
    tally.add(run::tests(doc.args(&plan.filter), "unit-doc", Echo::Yes)?.tally);
    Ok(tally)
}

/// Lists test programs of crates, with their names.
pub(super) fn programs(built: &Built, plan: &TestPlan) -> Vec<(String, TestProgram)> {
    let is_wanted = |package: &str| plan.packages().is_none_or(|names| names.contains(package));
    let tests = built.tests().filter(|test| !OF_OTHER_STAGES.contains(&test.name()));
    let tests = tests.filter(|test| is_wanted(test.package()));
    let program = |test: &dist::Artifact| {
        let mut program = TestProgram::new(test.program()?, plan.filter.as_ref());
        program.directory = test.directory();
        program.is_of_caller = true;
        program.environment.push(("CARGO_MANIFEST_DIR", test.directory()));
        Some((format!("{}-{}", test.package(), test.name()), program))
    };
    tests.filter_map(program).collect()
}

/// Simulates with fixed seeds, and with some that depend on the commit.
pub(super) fn simulate(_: &TestPlan, ledger: &Ledger) -> Result<Tally, LabError> {
    if ledger.has_failed(super::BUILD) && dist::build_everything().is_err() {
        return Ok(Tally::skip("the build failed"));
    }
    let program = dist::build_everything()?.program("rlaunch-sim")?;
    let fresh = sim::fresh_seed().to_string();
    println!("fresh seeds begin at {fresh}");
    let mut tally = Tally::default();
    for words in [&["--seeds", FIXED_SEEDS][..], &["--from", &fresh, "--seeds", FRESH_SEEDS]] {
        tally.add(Tally::check(sim::run_program(&program, words)?));
    }
    Ok(tally)
}

/// Replays known inputs in all targets, and searches in those whose sources have changed.
pub(super) fn fuzz(plan: &TestPlan, _: &Ledger) -> Result<Tally, LabError> {
    let searched = plan.searched_targets()?;
    match searched.as_deref() {
        None => println!("all targets search for new inputs"),
        Some([]) => println!("no target's sources have changed"),
        Some(names) => println!("targets whose sources have changed: {}", names.join(" ")),
    }
    fuzz::run(&fuzz::FuzzOptions { targets: None, seconds: FUZZ_SECONDS, searched })
}
