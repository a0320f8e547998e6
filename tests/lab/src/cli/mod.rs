//! Command line of `cargo lab`.
//!
//! | file | what |
//! |---|---|
//! | `args` | options and verbs; the verbs that check, test and build |
//! | `hosts` | verbs for hosts made of namespaces |
//! | `vm` | verbs for hosts made of emulated computers |

mod args;
mod hosts;
mod vm;

use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::{Command, ExitCode};
use std::time::Instant;

use rlaunch_lab::dist::{self, Profile};
use rlaunch_lab::setup::{self, PackageSet};
use rlaunch_lab::stages::fuzz;
use rlaunch_lab::{LabError, bench, demo, gpu, soak, stages};

pub(crate) use args::Args;
use args::{TestArgs, Verb};

/// Runs the verb that was typed.
pub(crate) fn run(args: &Args) -> Result<ExitCode, LabError> {
    if args.verb.needs_root() {
        setup::become_root()?;
    }
    let lab = args.lab.as_str();
    let success = match &args.verb {
        Verb::Hosts(verb) => return hosts::run(lab, verb),
        Verb::Vm(verb) => return vm::run(lab, verb),
        Verb::Bench(verb) => bench::run(verb)?,
        Verb::Soak(verb) => soak::run(verb)?,
        Verb::Setup => set_up()?,
        Verb::Build { profile } => build(*profile)?,
        Verb::Dist { profile } => pack(*profile)?,
        Verb::Gpu { from } => pack_proofs(from.as_deref())?,
        Verb::Demo { keep } => demo::run(*keep).map(|()| true)?,
        Verb::Test(args) => test(args)?,
        Verb::Sim { words } => stages::run_simulation(words),
        Verb::Deps { online } => stages::check_dependencies(*online).failed == 0,
        Verb::Fuzz { target, seconds } => {
            let targets = target.clone().map(|target| vec![target]);
            let plan = fuzz::FuzzOptions { targets, seconds: *seconds, searched: None };
            fuzz::run(&plan)?.failed == 0
        }
    };
    Ok(if success { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

fn set_up() -> Result<bool, LabError> {
    setup::install(PackageSet::Headers)?;
    setup::install(PackageSet::Copying)?;
    dist::aarch64::prepare()?;
    println!("everything the lab and its benches need is installed");
    Ok(true)
}

fn build(profile: Profile) -> Result<bool, LabError> {
    // Named here, minutes before a compiler would miss them.
    setup::require(PackageSet::Verbs)?;
    for missing in dist::aarch64::missing(profile)? {
        println!("not built: {missing}");
    }
    let began = Instant::now();
    let launcher = dist::build_all(profile)?;
    println!("built in {} s", began.elapsed().as_secs());
    println!("{}", launcher.display());
    Ok(true)
}

fn pack(profile: Profile) -> Result<bool, LabError> {
    setup::install(PackageSet::Packing)?;
    build(profile)?;
    dist::packages::build_other_launchers(profile)?;
    println!("{}", dist::packages::pack(profile)?.display());
    Ok(true)
}

fn pack_proofs(from: Option<&Path>) -> Result<bool, LabError> {
    let folder = gpu::pack(from)?;
    println!("{}", folder.display());
    println!("there: ./run (without a GPU: what needs none; ./run --list)");
    Ok(true)
}

fn test(args: &TestArgs) -> Result<bool, LabError> {
    // Without root, stages that need it are reported as skipped.
    let _ = setup::become_root();
    stages::check_space()?;
    let mut plan = stages::TestPlan::new(args.stage.clone(), args.filter.clone());
    plan.ignored = args.ignored;
    if let Some(revision) = &args.changed {
        plan = plan.changed_since(revision.as_deref())?;
    }
    match args.repeat {
        Some(times) => stages::repeat(&plan, times),
        None => Ok(stages::test(&plan)),
    }
}

/// Replaces this process by the command, so that signals, terminal and exit status are the command's.
fn become_command(command: &mut Command) -> Result<ExitCode, LabError> {
    let source = command.exec();
    Err(LabError::Io { operation: "start sh".into(), source })
}
