//! `rlaunch PROGRAM`: runs a job.

use super::doctor;
use super::verb_hint::verb_hint;
use crate::cli::args::JobArgs;
use crate::cli::command_line::CommandLine;
use crate::cli::lower;
use rlaunch_engine::run::{self, dry_run};
use rlaunch_plan::job::options::DryRun;
use rlaunch_plan::options::Preflight;
use rlaunch_text::exit::Exit;
use rlaunch_text::message::Failed;

/// Runs a job or its dry run. If the program is not found and resembles a verb, the failure has a hint with
/// the verb.
pub(super) async fn run(args: JobArgs, line: &CommandLine) -> Result<Exit, Failed> {
    let verb = verb_hint(&args);
    if args.network.preflight == Preflight::Full {
        doctor::check_before_job(&args, line).await?;
    }
    let launch = lower::job_or_fail(args, &line.config)?;
    let ended = match launch.job.dry_run {
        Some(DryRun::Offline) => dry_run::offline(&launch.job),
        Some(DryRun::Agents) | None => run::run_job(launch).await,
    };
    ended.map_err(|failed| match failed.exit {
        Exit::NOT_FOUND if !failed.by_rank => failed.hint(verb),
        _ => failed,
    })
}
