//! `rlaunch jobs`: the jobs of this user that run; `rlaunch jobs -a`: those that have ended as well.

use super::found::{self, live_failure};
use super::{agent_session, output};
use crate::cli::args::{ConnectArgs, HostListArgs, values};
use crate::cli::command_line::CommandLine;
use clap::Parser;
use rlaunch_bootstrap::protocol::housekeeping::{HostJob, HostJobs};
use rlaunch_bootstrap::protocol::inspection::{Inspection, InspectionResult};
use rlaunch_console::{messages, stdout, terminal};
use rlaunch_engine::run::live::client::{LiveError, NodeAnswers, RunningJob};
use rlaunch_engine::run::live::messages::{JobPhase, JobStatus};
use rlaunch_engine::run::record::JobRecord;
use rlaunch_plan::job::name::verb_of;
use rlaunch_text::columns::{lay_out, row};
use rlaunch_text::exit::Exit;
use rlaunch_text::message::Failed;
use rlaunch_text::shell::without_secrets;
use rlaunch_text::{printable, text};
use serde::Serialize;
use std::ffi::OsString;
use std::time::{SystemTime, UNIX_EPOCH};

/// Number of hosts of a job that the table of all jobs names.
const NAMED: usize = 3;
/// Maximum length of a program in the table, in characters.
const MAX_PROGRAM: usize = 60;
/// Room for a program at a terminal, in characters, for which other columns give way.
const MIN_PROGRAM: usize = 10;
/// Columns that give way at a narrow terminal, in this order.
const GIVING_WAY: [&str; 3] = ["MEMORY", "HOSTS", "CPU"];
/// Number of the last jobs that are listed.
const LAST_JOBS: usize = 50;
/// Length of the beginning of an id that the table shows. It names a job among a thousand of the same minute.
const SHORT_ID: usize = 13;

/// List your running jobs, with their state and what they use.
///
/// Without -H the jobs that were started on this machine. With -H those that have processes on the named hosts,
/// whichever machine started them; `left over` are processes that no agent looks after. -a adds those that have ended and
/// left a record: the last 50 of the 1,000 newest. At a terminal, columns give way to its width; a pipe gets all.
#[derive(Debug, Parser)]
#[command(after_help = "\
Examples:
  rlaunch jobs               jobs started here; rlaunch status is the same
  rlaunch jobs amber-fox     one of them
  rlaunch jobs -a            those that have ended too, with exit codes
  rlaunch jobs -n 5          the last five, running or ended
  rlaunch jobs -H a,b        jobs with processes on a and b
  rlaunch jobs --json        for programs, one array")]
pub(crate) struct JobsArgs {
    /// List only this job, by its name or id, or the beginning of either; `last` is the newest
    #[arg(value_name = "JOB", allow_negative_numbers = true, value_parser = values::parse_listed_job)]
    pub(crate) job: Option<String>,

    /// List jobs that have ended too, before those that run
    #[arg(short, long, conflicts_with_all = ["job", "hosts"])]
    pub(crate) all: bool,

    /// List the last N jobs, as with -a
    #[arg(short = 'n', long = "last", value_name = "N", conflicts_with_all = ["job", "hosts"])]
    pub(crate) last: Option<usize>,

    #[command(flatten)]
    pub(crate) hosts: HostListArgs,

    /// Print JSON
    #[arg(long)]
    pub(crate) json: bool,

    #[command(flatten)]
    pub(crate) connect: ConnectArgs,
}

/// List your jobs that have ended, the last one at the end: those of `rlaunch jobs -a` without the running ones.
#[derive(Debug, Parser)]
pub(crate) struct HistoryArgs {
    /// List the last N jobs
    #[arg(short = 'n', long = "last", value_name = "N", default_value_t = LAST_JOBS)]
    pub(crate) last: usize,

    /// Print JSON
    #[arg(long)]
    pub(crate) json: bool,
}

/// Job of this machine, running or ended, for the table and as JSON.
#[derive(Debug, Serialize)]
struct AnyJob {
    job: String,
    /// Empty if an older rlaunch has started it.
    name: String,
    /// Start, in seconds since 1970.
    started: f64,
    /// Duration so far, or to the end.
    seconds: f64,
    program: Vec<String>,
    hosts: Vec<String>,
    ranks: u32,
    /// Phase of a running job, `stopped` if its launcher is, or `ended`.
    state: &'static str,
    /// `None` while the job runs.
    exit_code: Option<u8>,
    /// Whether rlaunch itself was killed, so that neither its time nor its code are known.
    launcher_killed: bool,
    /// Reason why the job failed; empty if it runs or has succeeded.
    message: String,
}

impl AnyJob {
    fn running(status: JobStatus) -> AnyJob {
        AnyJob {
            hosts: status.hosts.into_iter().map(|host| host.host).collect(),
            job: status.job,
            name: status.name,
            started: status.started,
            seconds: status.seconds,
            program: status.program,
            ranks: status.ranks,
            state: status.phase.word(),
            exit_code: None,
            launcher_killed: false,
            message: String::new(),
        }
    }

    fn ended(record: JobRecord) -> AnyJob {
        AnyJob {
            ranks: record.ranks(),
            hosts: record.hosts.into_iter().map(|host| host.host).collect(),
            job: record.job,
            name: record.name,
            started: record.started,
            seconds: record.seconds,
            program: record.program,
            state: "ended",
            exit_code: Some(record.end.exit_code),
            launcher_killed: record.end.is_killed(),
            message: record.end.message,
        }
    }
}

/// Job of this machine, for the table and as JSON.
#[derive(Debug, Serialize)]
struct JobRow {
    #[serde(flatten)]
    status: JobStatus,
    /// CPU time of all ranks, in seconds; `None` if no rank runs.
    cpu_seconds: Option<f64>,
    /// Resident memory of all ranks, in bytes; `None` if no rank runs.
    resident_bytes: Option<u64>,
    /// Hosts that have not answered.
    silent_hosts: Vec<String>,
}

impl JobRow {
    /// Returns the row of a job that cannot be asked, since its launcher is stopped.
    fn of_stopped(status: JobStatus) -> JobRow {
        JobRow { status, cpu_seconds: None, resident_bytes: None, silent_hosts: Vec::new() }
    }
}

/// Job that has processes on a host, as JSON.
#[derive(Debug, Serialize)]
struct HostJobRow {
    host: String,
    job: String,
    ranks: u32,
    processes: u32,
    seconds: u64,
    cpu_seconds: f64,
    resident_bytes: u64,
    program: Vec<String>,
    left_over: bool,
}

/// Lists the jobs of this machine or of hosts.
pub(super) async fn run(args: JobsArgs, line: &CommandLine) -> Result<Exit, Failed> {
    if args.all || args.last.is_some() {
        let (running, failed) = all_running().await?;
        print_all(running, args.last.unwrap_or(LAST_JOBS), args.json)?;
        warn_of_unknown(&failed);
        Ok(Exit::SUCCESS)
    } else if args.hosts.hosts.is_empty() || line.config.names_hosts() {
        list_here(args.job.as_deref(), args.json).await
    } else {
        list_on_hosts(args, line).await
    }
}

/// Lists the jobs that have ended.
pub(super) fn run_history(args: &HistoryArgs) -> Result<Exit, Failed> {
    print_all(Vec::new(), args.last, args.json)?;
    Ok(Exit::SUCCESS)
}

/// Returns the running jobs, and the reasons why some are not known.
async fn all_running() -> Result<(Vec<AnyJob>, Vec<LiveError>), Failed> {
    let (jobs, mut failed) = RunningJob::all().await.map_err(|error| live_failure(&error))?;
    let mut running = Vec::new();
    for mut job in jobs {
        match job.status().await {
            Ok(status) => running.push(AnyJob::running(status)),
            // It is in its record now.
            Err(LiveError::Ended(_)) => {}
            Err(error) => failed.push(error),
        }
    }
    running.extend(failed.iter().filter_map(LiveError::stopped).map(AnyJob::running));
    Ok((running, failed))
}

/// Prints the jobs that have ended, and behind them those that run.
fn print_all(running: Vec<AnyJob>, last: usize, json: bool) -> Result<(), Failed> {
    let ended = found::store()?.newest(last);
    // A job that ended after it was found running.
    let is_new = |job: &AnyJob| !ended.iter().any(|record| record.job == job.job);
    let running: Vec<AnyJob> = running.into_iter().filter(is_new).collect();
    let mut jobs: Vec<AnyJob> = ended.into_iter().map(AnyJob::ended).chain(running).collect();
    jobs.drain(..jobs.len().saturating_sub(last));
    if json {
        stdout::print(&output::json(&jobs)?);
    } else if jobs.is_empty() {
        messages::info("no job of yours has ended here; `rlaunch jobs` lists those that run");
    } else {
        let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
        stdout::print(&fit(table_of_all(&jobs, now.as_secs_f64()), terminal::columns()));
    }
    Ok(())
}

/// Makes the rows of jobs, running or ended. `now` is in seconds since 1970.
fn table_of_all(jobs: &[AnyJob], now: f64) -> Vec<Vec<String>> {
    let header = row(["NAME", "JOB", "STARTED", "TOOK", "EXIT", "RANKS", "HOSTS", "PROGRAM"]);
    let rows = jobs.iter().map(|job| {
        let exit = match job.exit_code {
            Some(_) if job.launcher_killed => "launcher killed".to_owned(),
            Some(code) => code.to_string(),
            None => job.state.to_owned(),
        };
        vec![
            job.name.clone(),
            short_id(&job.job),
            ago(now - job.started),
            if job.launcher_killed { String::new() } else { took(job.seconds) },
            exit,
            job.ranks.to_string(),
            hosts(&job.hosts),
            program_of(&job.name, &job.program),
        ]
    });
    std::iter::once(header).chain(rows).collect()
}

/// Lays out rows with programs in the last column, to fit into a terminal of so many columns. There, names stand for ids.
fn fit(mut rows: Vec<Vec<String>>, columns: Option<u16>) -> String {
    let Some(columns) = columns.map(usize::from) else { return lay_out(&rows) };
    if rows.first().is_some_and(|header| header.iter().any(|cell| cell == "NAME")) {
        for row in &mut rows {
            let id = row.remove(1);
            // An older rlaunch gave no name.
            if row[0].is_empty() {
                row[0] = id;
            }
        }
    }
    let programs: Vec<String> = rows.iter_mut().filter_map(Vec::pop).collect();
    let longest = programs.iter().map(|program| program.chars().count()).max().unwrap_or(0);
    for column in GIVING_WAY {
        if begin_of_last(&rows) + longest.min(MIN_PROGRAM) <= columns {
            break;
        }
        let at = rows.first().and_then(|header| header.iter().position(|cell| cell == column));
        if let Some(at) = at {
            rows.iter_mut().for_each(|row| drop(row.remove(at)));
        }
    }
    let room = columns.saturating_sub(begin_of_last(&rows)).max(1);
    for (row, program) in rows.iter_mut().zip(programs) {
        row.push(cut(program, room));
    }
    lay_out(&rows)
}

/// Returns the column at which one more begins.
fn begin_of_last(rows: &[Vec<String>]) -> usize {
    let table = lay_out(rows);
    table.lines().map(|line| line.chars().count()).max().unwrap_or(0) + 2
}

/// Cuts a text to `most` characters, with `…` at its end.
fn cut(text: String, most: usize) -> String {
    if text.chars().count() <= most {
        return text;
    }
    let kept: String = text.chars().take(most.saturating_sub(1)).collect();
    format!("{}…", kept.trim_end())
}

/// Names the first hosts of a job.
fn hosts(names: &[String]) -> String {
    let shown = names.iter().take(NAMED).map(String::as_str).collect::<Vec<_>>().join(",");
    match names.len().saturating_sub(NAMED) {
        0 => shown,
        more => format!("{shown} and {more} more"),
    }
}

fn warn_of_unknown(unknown: &[LiveError]) {
    for error in unknown {
        messages::warn(&messages::error_chain(error));
        error.hint().iter().for_each(|hint| messages::hint(hint));
    }
}

async fn list_here(job: Option<&str>, json: bool) -> Result<Exit, Failed> {
    let failed = |error: LiveError| live_failure(&error);
    let (jobs, failed) = match job {
        Some(job) => (vec![RunningJob::find(Some(job)).await.map_err(failed)?], Vec::new()),
        None => RunningJob::all().await.map_err(failed)?,
    };
    let (mut rows, mut unknown) = (Vec::new(), failed);
    for job in jobs {
        match ask(job).await {
            Ok(row) => rows.push(row),
            // It has ended since it was found.
            Err(LiveError::Ended(_)) => {}
            Err(error) => unknown.push(error),
        }
    }
    rows.extend(unknown.iter().filter_map(LiveError::stopped).map(JobRow::of_stopped));
    if json {
        stdout::print(&output::json(&rows)?);
    } else if !rows.is_empty() {
        stdout::print(&fit(table(&rows), terminal::columns()));
    } else if unknown.iter().all(|error| matches!(error, LiveError::Elsewhere { .. })) {
        stdout::print("no job of yours runs from this machine\n");
        messages::hint("`rlaunch jobs -a` lists those that have ended, `-H HOSTS` those on hosts");
    }
    warn_of_unknown(&unknown);
    Ok(Exit::SUCCESS)
}

/// Asks a job for its state, and its nodes for what its ranks use.
async fn ask(mut job: RunningJob) -> Result<JobRow, LiveError> {
    let status = job.status().await?;
    let answers = match job.inspect(Inspection::Usage).await {
        Ok(answers) => answers,
        // Its ranks have not started.
        Err(LiveError::Refused { .. }) => NodeAnswers { answers: Vec::new(), missing: Vec::new() },
        Err(error) => return Err(error),
    };
    let mut usage = Vec::new();
    for (_, answer) in answers.answers {
        if let InspectionResult::Usage(ranks) = answer {
            usage.extend(ranks);
        }
    }
    let cpu_ms: u64 = usage.iter().map(|rank| rank.user_ms + rank.system_ms).sum();
    let resident = usage.iter().map(|rank| rank.resident).sum();
    let runs = !usage.is_empty();
    Ok(JobRow {
        status,
        cpu_seconds: runs.then_some(cpu_ms as f64 / 1e3),
        resident_bytes: runs.then_some(resident),
        silent_hosts: answers.missing,
    })
}

fn table(jobs: &[JobRow]) -> Vec<Vec<String>> {
    let header = row([
        "NAME", "JOB", "AGE", "STATE", "RANKS", "HOSTS", "CPU", "MEMORY", "OUTPUT", "PROGRAM",
    ]);
    let rows = jobs.iter().map(|JobRow { status, cpu_seconds, resident_bytes, silent_hosts }| {
        let running = status.ranks_started.saturating_sub(status.ranks_ended);
        let output = status.last_output.map_or("none".to_owned(), |last| {
            format!("{} ago, rank {}", duration(last.seconds_ago), last.rank)
        });
        let state = match silent_hosts.as_slice() {
            [] => status.phase.word().to_owned(),
            silent => format!("{}, no answer of {}", status.phase.word(), silent.join(", ")),
        };
        // A launcher that is stopped does not say how many run.
        let ranks = match status.phase {
            JobPhase::Stopped => status.ranks.to_string(),
            _ => format!("{running}/{}", status.ranks),
        };
        vec![
            status.name.clone(),
            short_id(&status.job),
            duration(status.seconds),
            state,
            ranks,
            status.hosts.len().to_string(),
            cpu_seconds.map(|cpu| percent(cpu, status.seconds)).unwrap_or_default(),
            resident_bytes.map(text::mib).unwrap_or_default(),
            output,
            program_of(&status.name, &status.program),
        ]
    });
    std::iter::once(header).chain(rows).collect()
}

async fn list_on_hosts(args: JobsArgs, line: &CommandLine) -> Result<Exit, Failed> {
    let answers =
        agent_session::query_hosts(&args.hosts, args.connect, &line.config, "jobs").await?;
    let asked: Vec<String> = answers.iter().map(|(host, _)| host.to_string()).collect();
    let (mut rows, mut failures) = (Vec::new(), Vec::new());
    for (host, answer) in answers {
        let host = host.to_string();
        match answer.and_then(|answer| agent_session::decode::<HostJobs>(&answer, &host)) {
            Ok(jobs) => rows.extend(jobs.0.into_iter().map(|job| HostJobRow::new(&host, job))),
            Err(failed) => failures.push(failed),
        }
    }
    if let Some(job) = args.job {
        // Hosts know ids alone.
        let begin = found::find_id(&job).await?.unwrap_or_else(|| job.to_ascii_lowercase());
        rows.retain(|row| row.job.starts_with(&begin));
    }
    rows.sort_by(|a, b| a.job.cmp(&b.job));
    if args.json {
        stdout::print(&output::json(&rows)?);
    } else if rows.is_empty() && failures.is_empty() {
        stdout::print(&format!("no job of yours has processes on {}\n", hosts(&asked)));
    } else if !rows.is_empty() {
        // Hosts know neither names nor what was typed.
        let (started_here, _) = all_running().await.unwrap_or_default();
        stdout::print(&fit(host_table(&rows, &started_here), terminal::columns()));
    }
    if let Some(left) = rows.iter().find(|row| row.left_over) {
        let hint = format!("rlaunch reap {} -H {} ends what is left over", left.job, left.host);
        messages::hint(&hint);
    }
    agent_session::conclude(failures)
}

impl HostJobRow {
    fn new(host: &str, job: HostJob) -> HostJobRow {
        let words: Vec<OsString> = job.program.into_iter().map(OsString::from).collect();
        HostJobRow {
            host: host.to_owned(),
            job: printable::first_line(&job.job),
            ranks: job.ranks,
            processes: job.processes,
            seconds: job.seconds,
            cpu_seconds: job.cpu_ms as f64 / 1e3,
            resident_bytes: job.resident,
            program: without_secrets(&words),
            left_over: !job.has_agent,
        }
    }
}

/// Makes the rows of jobs that have processes on hosts. Those that run from this machine have names.
fn host_table(rows: &[HostJobRow], started_here: &[AnyJob]) -> Vec<Vec<String>> {
    let header = row([
        "NAME", "JOB", "HOST", "AGE", "STATE", "RANKS", "PROCESSES", "CPU", "MEMORY", "PROGRAM",
    ]);
    let rows = rows.iter().map(|job| {
        let known = started_here.iter().find(|known| known.job == job.job);
        vec![
            known.map(|known| known.name.clone()).unwrap_or_default(),
            short_id(&job.job),
            job.host.clone(),
            duration(job.seconds as f64),
            if job.left_over { "left over" } else { "running" }.to_owned(),
            job.ranks.to_string(),
            job.processes.to_string(),
            percent(job.cpu_seconds, job.seconds as f64),
            text::mib(job.resident_bytes),
            known.map_or_else(
                || program(&job.program),
                |known| program_of(&known.name, &known.program),
            ),
        ]
    });
    std::iter::once(header).chain(rows).collect()
}

pub(super) fn short_id(job: &str) -> String {
    job.chars().take(SHORT_ID).collect()
}

/// Formats the words of a program in one line.
pub(super) fn program(words: &[String]) -> String {
    let line = printable::first_line(&words.join(" "));
    let end = line.char_indices().nth(MAX_PROGRAM).map(|(end, _)| end);
    end.map_or(line.clone(), |end| format!("{}…", &line[..end]))
}

/// Returns what was typed to start the job of this name: its program, or the verb that has started it.
fn program_of(name: &str, words: &[String]) -> String {
    verb_of(name).map_or_else(|| program(words), |verb| format!("rlaunch {verb}"))
}

/// Formats CPU time as a share of one CPU over `seconds`.
pub(super) fn percent(cpu: f64, seconds: f64) -> String {
    format!("{:.0} %", 100.0 * cpu / seconds.max(0.01))
}

/// Formats a time by its two largest units.
pub(super) fn duration(seconds: f64) -> String {
    let seconds = seconds.max(0.0) as u64;
    match seconds {
        0..60 => format!("{seconds} s"),
        60..3600 => format!("{} min {} s", seconds / 60, seconds % 60),
        3600..86_400 => format!("{} h {} min", seconds / 3600, seconds / 60 % 60),
        _ => format!("{} d {} h", seconds / 86_400, seconds / 3600 % 24),
    }
}

/// Formats how long a job took, a short one to tenths of a second.
fn took(seconds: f64) -> String {
    if seconds < 9.95 { format!("{:.1} s", seconds.max(0.0)) } else { duration(seconds.round()) }
}

/// Formats how long ago something was, by one unit.
fn ago(seconds: f64) -> String {
    let seconds = seconds.max(0.0) as u64;
    match seconds {
        0..60 => format!("{seconds} s ago"),
        60..3600 => format!("{} min ago", seconds / 60),
        3600..86_400 => format!("{} h ago", seconds / 3600),
        _ => format!("{} d ago", seconds / 86_400),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use rlaunch_engine::run::live::messages::LastOutput;
    use rlaunch_plan::map::HostRanks;

    #[test]
    fn times_have_two_units() {
        let texts = [0.4, 59.9, 60.0, 3725.0, 90_000.0].map(duration);
        assert_eq!(texts, ["0 s", "59 s", "1 min 0 s", "1 h 2 min", "1 d 1 h"]);
        let texts = [0.4, 119.0, 7300.0, 200_000.0].map(ago);
        assert_eq!(texts, ["0 s ago", "1 min ago", "2 h ago", "2 d ago"]);
        assert_eq!([0.04, 1.34, 9.96, 61.0].map(took), ["0.0 s", "1.3 s", "10 s", "1 min 1 s"]);
    }

    #[test]
    fn a_job_that_has_ended_is_a_line_beside_one_that_runs() {
        let ended = AnyJob {
            job: "0123456789abcdef0123456789abcdef".into(),
            name: "amber-fox".into(),
            started: 1000.0,
            seconds: 61.0,
            program: vec!["python3".into(), "train.py".into()],
            hosts: ["a", "b", "c", "d", "e"].map(str::to_owned).into(),
            ranks: 10,
            state: "ended",
            exit_code: Some(3),
            launcher_killed: false,
            message: "rank 1 on b exited with code 3".into(),
        };
        let running = AnyJob {
            job: "0223456789abcdef0123456789abcdef".into(),
            name: "calm-owl".into(),
            started: 1080.0,
            seconds: 10.0,
            program: vec!["sh".into()],
            hosts: vec!["a".into()],
            ranks: 1,
            state: "running",
            exit_code: None,
            launcher_killed: false,
            message: String::new(),
        };
        let table = fit(table_of_all(&[ended, running], 1090.0), None);
        let lines: Vec<String> = table
            .lines()
            .map(|line| line.split_whitespace().collect::<Vec<_>>().join(" "))
            .collect();
        assert_eq!(
            lines[1..],
            [
                "amber-fox 0123456789abc 1 min ago 1 min 1 s 3 10 a,b,c and 2 more python3 train.py",
                "calm-owl 0223456789abc 10 s ago 10 s running 1 a sh",
            ]
        );
    }

    #[test]
    fn a_job_is_a_line() {
        let host = |host: &str, ranks: &[u32]| HostRanks { host: host.into(), ranks: ranks.into() };
        let status = JobStatus {
            job: "0123456789abcdef0123456789abcdef".into(),
            name: "amber-fox".into(),
            pid: 1,
            program: vec!["python3".into(), "train.py".into(), "x".repeat(80)],
            started: 0.0,
            seconds: 100.0,
            phase: JobPhase::Running,
            hosts: vec![host("a", &[0, 1]), host("b", &[2])],
            ranks: 3,
            ranks_started: 3,
            ranks_ended: 1,
            last_output: Some(LastOutput { rank: 2, seconds_ago: 61.0 }),
            speeds: Vec::new(),
        };
        let row = JobRow {
            status,
            cpu_seconds: Some(150.0),
            resident_bytes: Some(3 << 20),
            silent_hosts: vec!["b".into()],
        };
        let table = table(&[row]);
        let lines = fit(table.clone(), None);
        let line = lines.lines().nth(1).unwrap();
        let expected = "amber-fox  0123456789abc  1 min 40 s  running, no answer of b  2/3    2      150 %  \
                        3.0 MiB  1 min 1 s ago, rank 2  python3 train.py xxx";
        assert!(line.starts_with(expected) && line.ends_with("x…"), "{line}");
        let at_terminal = fit(table.clone(), Some(150));
        let line = at_terminal.lines().nth(1).unwrap();
        assert!(line.starts_with("amber-fox  1 min 40 s  ") && line.contains("3.0 MiB"), "{line}");
        let mut quick = table;
        quick[1][3] = "running".into();
        let narrow = fit(quick, Some(80));
        assert_eq!(
            narrow,
            "NAME       AGE         STATE    RANKS  CPU    OUTPUT                 PROGRAM\n\
             amber-fox  1 min 40 s  running  2/3    150 %  1 min 1 s ago, rank 2  python3 tr…\n"
        );
    }

    #[test]
    fn a_job_of_a_verb_is_listed_as_the_verb() {
        let words = ["rlaunch-bench", "mesh", "262144", "0"].map(str::to_owned);
        assert_eq!(program_of("rlaunch-bench", &words), "rlaunch bench");
        assert_eq!(program_of("amber-fox", &words), "rlaunch-bench mesh 262144 0");
    }

    #[test]
    fn a_job_on_hosts_has_the_name_and_the_program_that_it_was_started_with() {
        let on = |host: &str, job: &str| HostJobRow {
            host: host.into(),
            job: job.repeat(32),
            ranks: 1,
            processes: 2,
            seconds: 5,
            cpu_seconds: 1.0,
            resident_bytes: 3 << 20,
            program: vec!["python3".into(), "/tmp/rlaunch-0123/long.py".into()],
            left_over: false,
        };
        let known = AnyJob {
            job: "1".repeat(32),
            name: "green-dolphin".into(),
            started: 0.0,
            seconds: 5.0,
            program: vec!["long.py".into()],
            hosts: Vec::new(),
            ranks: 1,
            state: "running",
            exit_code: None,
            launcher_killed: false,
            message: String::new(),
        };
        let table = fit(host_table(&[on("a", "1"), on("b", "2")], &[known]), Some(80));
        let lines: Vec<&str> = table.lines().skip(1).collect();
        assert!(lines[0].starts_with("green-dolphin  a  ") && lines[0].ends_with("  long.py"));
        assert!(lines[1].starts_with("2222222222222  b  ") && lines[1].contains("  python3"));
    }

    #[test]
    fn a_job_without_a_name_goes_by_its_id() {
        let rows = [row(["NAME", "JOB", "PROGRAM"]), row(["", "0123", "sh"])];
        assert_eq!(fit(rows.to_vec(), Some(80)), "NAME  PROGRAM\n0123  sh\n");
        assert_eq!(fit(rows.to_vec(), None), "JOB   PROGRAM\n0123  sh\n");
    }

    #[test]
    fn the_last_jobs_are_of_all() {
        let parse = |line: &str| JobsArgs::try_parse_from(line.split(' '));
        assert_eq!(parse("jobs -n 3").unwrap().last, Some(3));
        assert!(parse("jobs -n 3 -H a").is_err() && parse("jobs -n 3 amber").is_err());
    }
}
