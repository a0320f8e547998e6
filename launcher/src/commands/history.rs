//! `rlaunch history`: the jobs that have left a record.

use super::jobs::{duration, program, short_id};
use super::output;
use clap::Parser;
use rlaunch_console::{messages, stdout};
use rlaunch_engine::run::record::{JobRecord, RecordStore};
use rlaunch_text::columns::{lay_out, row};
use rlaunch_text::exit::Exit;
use rlaunch_text::message::Failed;
use serde::Serialize;
use std::time::{SystemTime, UNIX_EPOCH};

/// Number of hosts that the table names.
const NAMED: usize = 3;

/// List your jobs that have ended, the last one at the end.
///
/// The last 50 of the 1,000 newest that were started on this machine, except those with --no-record. `rlaunch logs NAME`
/// prints what their ranks have printed, `rlaunch report NAME` how fast they were.
#[derive(Debug, Parser)]
#[command(after_help = "\
Examples:
  rlaunch history            the last 50
  rlaunch history -n 5       the last five
  rlaunch history --json     for programs, one array")]
pub(crate) struct HistoryArgs {
    /// List the last N jobs
    #[arg(short = 'n', long = "last", value_name = "N", default_value_t = 50)]
    pub(crate) last: usize,

    /// Print JSON
    #[arg(long)]
    pub(crate) json: bool,
}

/// Job that has ended, for the table and as JSON.
#[derive(Debug, Serialize)]
struct EndedJob {
    job: String,
    /// Empty if an older rlaunch has started it.
    name: String,
    /// Start, in seconds since 1970.
    started: f64,
    seconds: f64,
    program: Vec<String>,
    hosts: Vec<String>,
    ranks: u32,
    exit_code: u8,
    /// Whether rlaunch itself was killed, so that neither its time nor its code are known.
    launcher_killed: bool,
    /// Reason why the job failed; empty if it succeeded.
    message: String,
}

impl EndedJob {
    fn new(record: JobRecord) -> EndedJob {
        EndedJob {
            ranks: record.ranks(),
            hosts: record.hosts.into_iter().map(|host| host.host).collect(),
            job: record.job,
            name: record.name,
            started: record.started,
            seconds: record.seconds,
            program: record.program,
            exit_code: record.end.exit_code,
            launcher_killed: record.end.is_killed(),
            message: record.end.message,
        }
    }
}

/// Lists the recorded jobs.
pub(super) fn run(args: &HistoryArgs) -> Result<Exit, Failed> {
    let store = RecordStore::for_user();
    let store =
        store.map_err(|error| Failed::from_error(Exit::FILES, &error).hint(error.hint()))?;
    let jobs: Vec<EndedJob> = store.newest(args.last).into_iter().map(EndedJob::new).collect();
    if args.json {
        stdout::print(&output::json(&jobs)?);
    } else if jobs.is_empty() {
        messages::info("no job of yours has ended here; `rlaunch jobs` lists those that run");
    } else {
        let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
        stdout::print(&table(&jobs, now.as_secs_f64()));
    }
    Ok(Exit::SUCCESS)
}

/// Lays the jobs out. `now` is in seconds since 1970.
fn table(jobs: &[EndedJob], now: f64) -> String {
    let header = row(["NAME", "JOB", "STARTED", "TOOK", "EXIT", "RANKS", "HOSTS", "PROGRAM"]);
    let rows = jobs.iter().map(|job| {
        let (took, exit) = if job.launcher_killed {
            (String::new(), "launcher killed".to_owned())
        } else {
            (duration(job.seconds), job.exit_code.to_string())
        };
        vec![
            job.name.clone(),
            short_id(&job.job),
            format!("{} ago", duration(now - job.started)),
            took,
            exit,
            job.ranks.to_string(),
            hosts(&job.hosts),
            program(&job.program),
        ]
    });
    lay_out(&std::iter::once(header).chain(rows).collect::<Vec<_>>())
}

fn hosts(names: &[String]) -> String {
    let shown = names.iter().take(NAMED).map(String::as_str).collect::<Vec<_>>().join(",");
    match names.len().saturating_sub(NAMED) {
        0 => shown,
        more => format!("{shown} and {more} more"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_job_is_a_line() {
        let job = EndedJob {
            job: "0123456789abcdef0123456789abcdef".into(),
            name: "amber-fox".into(),
            started: 1000.0,
            seconds: 61.0,
            program: vec!["python3".into(), "train.py".into()],
            hosts: ["a", "b", "c", "d", "e"].map(str::to_owned).into(),
            ranks: 10,
            exit_code: 3,
            launcher_killed: false,
            message: "rank 1 on b exited with code 3".into(),
        };
        let line = |job: EndedJob| {
            let table = table(&[job], 1090.0);
            table.lines().nth(1).unwrap().trim_end().to_owned()
        };
        let expected = "amber-fox  0123456789abc  1 min 30 s ago  1 min 1 s  3     10     a,b,c and 2 more  \
                        python3 train.py";
        assert_eq!(line(job), expected);
    }

    #[test]
    fn a_launcher_that_was_killed_has_no_code() {
        let job = EndedJob {
            job: "0123456789abcdef0123456789abcdef".into(),
            name: "amber-fox".into(),
            started: 1000.0,
            seconds: 0.0,
            program: vec!["true".into()],
            hosts: vec!["a".into()],
            ranks: 1,
            exit_code: 137,
            launcher_killed: true,
            message: String::new(),
        };
        let table = table(&[job], 1090.0);
        assert!(table.contains("1 min 30 s ago  launcher killed  1"), "{table}");
    }
}
