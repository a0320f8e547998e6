//! `rlaunch stop`: ends a running job; `rlaunch wait`: waits for the end of one.

use super::found::{self, FoundJob, live_failure};
use super::jobs::short_id;
use super::reap::{self, ReapArgs};
use crate::cli::args::{ConnectArgs, HostListArgs, values};
use crate::cli::command_line::CommandLine;
use clap::Parser;
use rlaunch_console::progress::Progress;
use rlaunch_console::stdout;
use rlaunch_engine::run::live::client::{LiveError, RunningJob};
use rlaunch_engine::run::record::JobRecord;
use rlaunch_text::exit::Exit;
use rlaunch_text::message::Failed;

/// End a running job, and wait until it has ended.
///
/// It ends as by SIGTERM to its launcher: ranks have the job's --kill-after for their own end. A job that has ended already
/// is no error. JOB may be left out while one job runs here.
#[derive(Debug, Parser)]
#[command(after_help = "\
Examples:
  rlaunch stop               the only job that runs here
  rlaunch stop amber-fox     another
  rlaunch stop amber-fox -f  one whose launcher or agents do not end it")]
pub(crate) struct StopArgs {
    /// Name or id of the job, or the beginning of either; `last` is the newest
    #[arg(value_name = "JOB", allow_negative_numbers = true, value_parser = values::parse_listed_job)]
    pub(crate) job: Option<String>,

    /// Kill the job's launcher, and end what is left of the job on its hosts, as `rlaunch reap` does
    #[arg(short, long)]
    pub(crate) force: bool,

    #[command(flatten)]
    pub(crate) connect: ConnectArgs,
}

/// Wait until a job has ended, and return its exit code.
///
/// The code of a job that has ended already comes from its record. It is 137 if its launcher was killed. JOB may be left out
/// while one job runs here.
#[derive(Debug, Parser)]
#[command(after_help = "\
Examples:
  rlaunch wait               the only job that runs here
  rlaunch wait amber-fox     another, running or ended
  rlaunch wait && ./next     go on if all ranks succeed")]
pub(crate) struct WaitArgs {
    /// Name or id of the job, or the beginning of either; `last` is the newest
    #[arg(value_name = "JOB", allow_negative_numbers = true, value_parser = values::parse_listed_job)]
    pub(crate) job: Option<String>,
}

/// Ends a job and prints how it ended.
pub(super) async fn run(args: StopArgs, line: &CommandLine) -> Result<Exit, Failed> {
    if args.force {
        return end_by_force(args, line).await;
    }
    let stopped = end_unasked(args.job.as_deref()).await?;
    let job = match FoundJob::find(stopped.as_deref().or(args.job.as_deref())).await? {
        FoundJob::Running(job) => *job,
        FoundJob::Ended(record) => {
            let how = if stopped.is_some() { "ended" } else { "had already ended" };
            print_end(word_of(&record), how, Some(&record));
            return Ok(Exit::SUCCESS);
        }
    };
    let (name, record) = (job.name.clone(), end(job).await?);
    print_end(&name, "ended", record.as_ref());
    Ok(Exit::SUCCESS)
}

/// Returns the word by which a job that has ended is named to the user.
fn word_of(record: &JobRecord) -> &str {
    if record.name.is_empty() { &record.job } else { &record.name }
}

/// Prints how a job ended: `amber-fox ended: code 143`.
fn print_end(job: &str, how: &str, record: Option<&JobRecord>) {
    stdout::print(&format!("{}\n", end_line(job, how, record)));
}

/// Says how a job ended, with its code if that is known.
pub(super) fn end_line(job: &str, how: &str, record: Option<&JobRecord>) -> String {
    let code = record.map(|record| format!(": code {}", record.end.exit_code));
    format!("{job} {how}{}", code.unwrap_or_default())
}

/// Ends a job that cannot be asked: its launcher is stopped, as by Ctrl-Z, or has too many clients. Returns its id.
async fn end_unasked(job: Option<&str>) -> Result<Option<String>, Failed> {
    match RunningJob::find(job).await {
        Err(
            LiveError::Stopped { job, launcher }
            | LiveError::Refused { job, launcher: Some(launcher), .. },
        ) => {
            launcher.end().map_err(|error| cannot_end(&job, &error))?;
            let progress = Progress::new(std::iter::once(short_id(&job)), "ending");
            progress.report_while(until_it_answers(&job)).await;
            Ok(Some(job))
        }
        _ => Ok(None),
    }
}

/// Waits until a job has a place for one more client, or has ended.
async fn until_it_answers(job: &str) {
    while let Err(LiveError::Refused { .. }) = RunningJob::find(Some(job)).await {
        tokio::time::sleep(found::LOOK).await;
    }
}

/// Ends a job, and waits until it has ended. Returns its record; `None` if it keeps none.
async fn end(mut job: RunningJob) -> Result<Option<JobRecord>, Failed> {
    match job.launcher() {
        Some(launcher) => launcher.end().map_err(|error| cannot_end(&job.id, &error))?,
        // From another container the process is not to be seen, and the socket takes requests while ranks run.
        None => job.end().await.map_err(|error| live_failure(&error))?,
    }
    let progress = Progress::new(std::iter::once(job.name.clone()), "ending");
    progress.report_while(found::until_ended(job)).await
}

fn cannot_end(job: &str, error: &std::io::Error) -> Failed {
    let message = format!("cannot end job {}: {error}", short_id(job));
    Failed::new(Exit::USAGE, message).hint(Some("rlaunch stop --force ends it on its hosts"))
}

/// Kills the launcher of a job, and ends on the job's hosts what is left of it.
async fn end_by_force(args: StopArgs, line: &CommandLine) -> Result<Exit, Failed> {
    let (id, hosts) = match RunningJob::find(args.job.as_deref()).await {
        Err(
            LiveError::Stopped { job, launcher }
            | LiveError::Silent { job, launcher: Some(launcher) }
            | LiveError::Refused { job, launcher: Some(launcher), .. },
        ) => {
            launcher.kill().map_err(|error| cannot_end(&job, &error))?;
            (job, None)
        }
        _ => match FoundJob::find(args.job.as_deref()).await? {
            FoundJob::Ended(record) => (record.job.clone(), Some(record.hosts)),
            FoundJob::Running(mut job) => {
                let status = job.status().await.map_err(|error| live_failure(&error))?;
                if let Some(launcher) = job.launcher() {
                    launcher.kill().map_err(|error| cannot_end(&job.id, &error))?;
                }
                (job.id.clone(), Some(status.hosts))
            }
        },
    };
    let hosts = match hosts {
        Some(hosts) => hosts,
        None => match found::at_once(&id).await? {
            Some(FoundJob::Ended(record)) => record.hosts,
            Some(FoundJob::Running(_)) | None => Vec::new(),
        },
    };
    let hosts = hosts.into_iter().map(|host| host.host).collect();
    let reaped = ReapArgs {
        job: Some(id),
        all: false,
        hosts: HostListArgs { hosts },
        connect: args.connect,
    };
    reap::run(reaped, line).await
}

/// Waits for the end of a job and returns its exit code; a job that has failed is an error with the reason.
pub(super) async fn run_wait(args: &WaitArgs) -> Result<Exit, Failed> {
    let record = match FoundJob::find(args.job.as_deref()).await? {
        FoundJob::Ended(record) => *record,
        FoundJob::Running(job) => {
            let name = job.name.clone();
            found::until_ended(*job).await?.ok_or_else(|| no_code(&name))?
        }
    };
    outcome(&record)
}

fn no_code(job: &str) -> Failed {
    let message = format!("job {job} has ended, and its exit code is not known");
    let hint =
        "it has left no record: because of --no-record, or it was killed before it had hosts";
    Failed::new(Exit::FILES, message).hint(Some(hint))
}

/// Returns the outcome of a job that has ended.
fn outcome(record: &JobRecord) -> Result<Exit, Failed> {
    let exit = Exit(record.end.exit_code);
    if exit == Exit::SUCCESS {
        return Ok(exit);
    }
    let reason = match record.end.message.as_str() {
        "" => String::new(),
        message => format!(": {message}"),
    };
    let message = format!("job {} ended with code {}{reason}", word_of(record), exit.0);
    // The code is not one of this command.
    Err(Failed { by_rank: true, ..Failed::new(exit, message) })
}
