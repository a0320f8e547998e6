//! From the command line to the verb that it names.

use crate::cli::args::{Args, BenchArgs, Invocation};
use crate::cli::config::Found;
use crate::cli::{host_selection, lower};
use crate::commands::{
    bench, capture, help, man, reap, report, ssh_config, ssh_setup, topo, trust,
};
use crate::job::options::DryRun;
use crate::run::dry_run;
use rlaunch_bootstrap::client::command;
use rlaunch_console::exit::Exit;
use rlaunch_console::messages::Failed;
use rlaunch_console::{log, messages, open_files};
use std::process::ExitCode;

/// Reads the command line, runs the verb and returns the exit code of the process.
pub fn main() -> ExitCode {
    let invocation = match Invocation::parse_or_explain() {
        Ok(invocation) => invocation,
        Err(misread) => return misread.print().into(),
    };
    if let Invocation::Run(args) = &invocation {
        let output = &args.output;
        if output.quiet {
            messages::set_quiet();
        }
        let errors = output.quiet.then_some(tracing::Level::ERROR);
        log::to_stderr(output.verbose, output.log_level.or(errors), output.log_json);
        args.reach.config.found.log();
    }
    let found = invocation.found();
    found.and_then(Found::warning).iter().for_each(|line| messages::warn(line));
    let untrusted = found.and_then(Found::trust_hint);
    if let Err(error) = open_files::require() {
        Failed::new(Exit::USAGE, error.to_string()).hint(Some(error.hint())).print();
        return Exit::USAGE.into();
    }
    let runtime = match runtime() {
        Ok(runtime) => runtime,
        Err(error) => {
            let message = format!("cannot start: {error}");
            let hint = open_files::hint(&message);
            Failed::new(Exit::BUG, message).hint(hint).print();
            return Exit::BUG.into();
        }
    };
    let ended = match invocation {
        Invocation::Run(args) => runtime.block_on(launch(*args)),
        Invocation::Reap(args) => runtime.block_on(reap::reap(args)),
        Invocation::Topo(args) => runtime.block_on(topo::topo(args)),
        Invocation::Capture(args) => runtime.block_on(capture::capture(args)),
        Invocation::Bench(args) => runtime.block_on(measure(*args)),
        Invocation::Train(args) => runtime.block_on(bench::train::train(*args)),
        Invocation::Report(args) => report::report(&args),
        Invocation::Hostfile(args) => host_selection::print(&args),
        Invocation::SshConfig(args) => ssh_config::ssh_config(&args),
        Invocation::Completions(args) => man::completions(&args),
        Invocation::Man(args) => man::man(&args),
        Invocation::Trust(args) => trust::trust(&args),
        Invocation::Help(args) => help::help(&args),
        Invocation::SshSetup(args) => runtime.block_on(ssh_setup::ssh_setup(args)),
        Invocation::OfRank(words) => return command::run(words.into_iter()),
    };
    let exit = ended.unwrap_or_else(|failed| {
        let failed = if failed.by_rank { failed } else { failed.hint(untrusted) };
        failed.print();
        failed.exit
    });
    rlaunch_ssh::prompt::restore_terminal();
    // A name lookup or a write to a stopped terminal may never end, so such tasks are not awaited.
    runtime.shutdown_background();
    exit.into()
}

/// Creates a runtime with a few threads: cryptography needs more than one, and each costs memory for its
/// heap arena.
fn runtime() -> std::io::Result<tokio::runtime::Runtime> {
    const MAX_THREADS: usize = 4;
    let threads = std::thread::available_parallelism().map_or(1, usize::from).min(MAX_THREADS);
    tokio::runtime::Builder::new_multi_thread().worker_threads(threads).enable_all().build()
}

/// Runs a job, or prints its plan for `--dry-run=offline`.
async fn launch(args: Args) -> Result<Exit, Failed> {
    let verb = args.verb_hint();
    let job = lower::specify(args)?;
    let ended = match job.dry_run {
        Some(DryRun::Offline) => dry_run::offline(&job),
        Some(DryRun::Agents) | None => crate::run::run_job(job).await,
    };
    ended.map_err(|failed| match failed.exit {
        Exit::NOT_FOUND if !failed.by_rank => failed.hint(verb),
        _ => failed,
    })
}

/// Runs the job of `rlaunch bench`.
async fn measure(args: BenchArgs) -> Result<Exit, Failed> {
    let (args, what) = bench::job(args)?;
    let job = lower::specify(args)?;
    bench::check(&job, what)?;
    crate::run::run_job(job).await
}
