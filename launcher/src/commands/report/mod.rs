//! `rlaunch report`: how fast a run was, whether its figures are consistent, and which network it used.
//!
//! Metrics are found in output by [`log_metrics`]. They are compared with each other, with facts about the job, and with
//! smaller runs. An inconsistency is a [`ReportFinding`].
//!
//! | file | subject |
//! |---|---|
//! | `log_metrics` | metrics in output, line by line |
//! | `input` | source of the output: a file, standard input, or a job's record |
//! | `speed` | speed of a run; runs of different sizes compared |
//! | `nccl` | networks that NCCL used; checks of nccl-tests' tables |
//! | `curves` | rates over steps as a picture |
//! | `text` | the report for people |

mod curves;
mod input;
pub(crate) mod log_metrics;
pub(crate) mod nccl;
mod speed;
mod text;

pub(crate) use speed::{Run, Scaling, Speed};
pub(crate) use text::{scaling_head, scaling_row};

use super::found::live_failure;
use super::output;
use clap::Parser;
use input::{InputError, JobFacts, ReportInput};
use log_metrics::LogMetrics;
use log_metrics::collective::CollectiveTable;
use nccl::RankNetwork;
use rlaunch_console::{messages, stdout};
use rlaunch_engine::run::live::client::{LiveError, RunningJob};
use rlaunch_engine::run::record::{JobRecord, RecordStore};
use rlaunch_plan::job::name::LAST;
use rlaunch_plot::Picture;
use rlaunch_plot::PlotFile;
use rlaunch_plot::curves::Curves;
use rlaunch_text::exit::Exit;
use rlaunch_text::message::Failed;
use serde::Serialize;
use std::ffi::{OsStr, OsString};

/// Version of the output of `--json`. New fields may appear in the same version.
const VERSION: u32 = 1;
/// Relative difference up to which two figures count as equal.
const TOLERANCE: f64 = 0.02;
/// Number of the newest records among which a run to compare with is looked for.
const COMPARED: usize = 50;

/// Show how fast a run was, whether its figures agree, and which network it used.
///
/// Of a job without figures it shows the command, hosts, exit code, the time that its start took, and the last lines. It reads
/// the output of tf_cnn_benchmarks, of Horovod's synthetic benchmarks and of nccl-tests, and NCCL's log
/// (NCCL_DEBUG=INFO), with the tags of `--tag-output` of rlaunch or Open MPI or without tags. It prints images/sec of
/// each rank (mean of the last 5 values, +/- their standard deviation) and of all ranks, tables of bandwidths, and the
/// network of each rank; of other programs the speed that they print, in it/s, s/it, tokens/sec and the like.
/// Inconsistent figures are warnings. Runs of different sizes are compared; a recorded job is also compared with a
/// smaller recorded job of the same program.
#[derive(Debug, Parser)]
#[command(after_help = "\
Examples:
  rlaunch report                       the last job, from its record
  rlaunch report amber-fox             another job, by its name or id, or the beginning of either
  rlaunch report train.log             output of any launcher's job
  rlaunch report np1.log np4.log       two runs compared
  rlaunch report np1.log np4.log --plot runs.svg   and their images/s over steps, in one picture
  mpirun … | rlaunch report -          output of another program")]
pub(crate) struct ReportArgs {
    /// Files with output, `-` for standard input, or names or ids of jobs; by default `last`, the last job
    #[arg(value_name = "FILE|JOB|last|-", default_value = LAST, hide_default_value = true)]
    pub(crate) sources: Vec<OsString>,

    /// Draw images/s over steps, a curve for each run; .svg, .html or .png
    ///
    /// Below a single run, the rates of its ranks are drawn. Bus bandwidths of nccl-tests are drawn over sizes.
    #[arg(long, value_name = "FILE")]
    pub(crate) plot: Option<PlotFile>,

    /// Print everything as JSON
    #[arg(long)]
    pub(crate) json: bool,
}

/// Report on one input.
#[derive(Debug, Serialize)]
pub(crate) struct SourceReport {
    /// Name of the file, or of the recorded job.
    pub(crate) source: String,
    /// Facts from the job's record.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) job: Option<JobFacts>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) speed: Option<Speed>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) collective: Option<CollectiveTable>,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub(crate) networks: Vec<RankNetwork>,
    #[serde(rename = "remarks")]
    pub(crate) findings: Vec<ReportFinding>,
}

/// Inconsistency in the output of a run, or a fact that the reader must know to interpret the figures.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub(crate) struct ReportFinding {
    pub(crate) kind: FindingKind,
    pub(crate) text: String,
    /// Further lines.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub(crate) details: Vec<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) hint: Option<String>,
}

/// Kind of a finding, for programs that read `--json`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum FindingKind {
    /// Ranks ran as separate jobs of one rank each.
    Alone,
    /// The average that nccl-tests printed is not the average of its table.
    AverageDiffers,
    /// NCCL could not connect two ports, which may be on different subnets.
    Disconnected,
    /// The job has failed.
    Failed,
    /// Some ranks printed no rate.
    Incomplete,
    /// The record lacks the middle of the job's output.
    LeftOut,
    /// The sum of the ranks' rates is not the printed total.
    SumDiffers,
    /// Ranks used TCP and not RDMA.
    Tcp,
    /// Ranks printed different totals for the same run.
    TotalsDiffer,
    /// Lines do not name the ranks that printed them.
    Unnamed,
    /// The program's output names another number of ranks than the number that the launcher started.
    WorldDiffers,
    /// Collectives had wrong results.
    WrongValues,
}

impl ReportFinding {
    fn new(kind: FindingKind, text: impl Into<String>) -> ReportFinding {
        ReportFinding { kind, text: text.into(), details: Vec::new(), hint: None }
    }

    fn hint(self, hint: impl Into<String>) -> ReportFinding {
        ReportFinding { hint: Some(hint.into()), ..self }
    }
}

impl SourceReport {
    fn new(input: ReportInput) -> SourceReport {
        let ReportInput { name, job, metrics } = input;
        let LogMetrics { throughput, collective, networks: nccl, ranks, hosts } = &metrics;
        let host_of = |rank: u32| match &job {
            Some(job) => job.host_of(rank),
            None => hosts.get(&rank).map(String::as_str),
        };
        let mut findings = job.as_ref().map(JobFacts::findings).unwrap_or_default();
        // Without a record, the number of ranks is that of ranks in tags. A single rank may have printed for
        // all ranks, so it tells nothing.
        let named = u32::try_from(ranks.len()).ok().filter(|named| *named > 1);
        let world = job.as_ref().map(|job| job.ranks).or(named);
        let speed = Speed::assess(throughput, world, host_of);
        let speed = speed.map(|(speed, speed_findings)| {
            findings.extend(speed_findings);
            speed
        });
        let collective = (!collective.rows.is_empty()).then(|| collective.clone());
        findings.extend(collective.iter().flat_map(nccl::table_findings));
        let networks = nccl::by_rank(nccl, host_of);
        findings.extend(nccl::network_findings(&networks, nccl));
        SourceReport { source: name, job, speed, collective, networks, findings }
    }

    pub(crate) fn from_record(record: &JobRecord) -> SourceReport {
        SourceReport::new(ReportInput::from_record(record))
    }

    /// Returns the run for a comparison; `None` if its figures are not reliable.
    pub(crate) fn run(&self) -> Option<Run> {
        let speed = self.speed.as_ref()?;
        Some(Run { source: self.source.clone(), ranks: speed.ranks?, total: speed.total? })
    }
}

/// Output of `--json`, and content of the report for people.
#[derive(Debug, Serialize)]
struct Report {
    v: u32,
    reports: Vec<SourceReport>,
    #[serde(skip_serializing_if = "Option::is_none")]
    scaling: Option<Scaling>,
}

/// Reads all inputs and prints the report.
pub(super) async fn run(args: &ReportArgs) -> Result<Exit, Failed> {
    output::prepare_plot(args.plot.as_ref())?;
    let mut inputs = Vec::new();
    for source in &args.sources {
        inputs.push(read(source).await?);
    }
    // A job has its command, its end and its start to show.
    let is_empty = |input: &&ReportInput| input.metrics.is_empty() && input.job.is_none();
    if let Some(empty) = inputs.iter().find(is_empty) {
        return Err(input_failure(&InputError::NoFigures(empty.name.clone())));
    }
    let curves = args.plot.as_ref().map(|_| curves::pictures(&inputs)).unwrap_or_default();
    let program = inputs.iter().find_map(|input| Some(input.job.as_ref()?.program.clone()));
    let reports: Vec<SourceReport> = inputs.into_iter().map(SourceReport::new).collect();
    let mut runs: Vec<Run> = reports.iter().filter_map(SourceReport::run).collect();
    if let ([only], Some(program)) = (&runs[..], program) {
        let smaller = smaller_run(only, &program);
        runs.extend(smaller);
    }
    let report = Report { v: VERSION, scaling: Scaling::between_sizes(runs), reports };
    print(&report, args.json)?;
    match &args.plot {
        Some(file) => draw(file, &curves, &report),
        None => Ok(Exit::SUCCESS),
    }
}

/// Reads one input. A job leaves its record at its end, so one that runs is an error; if an earlier job is meant by the
/// same word, that one is reported, and a message says so.
async fn read(source: &OsStr) -> Result<ReportInput, Failed> {
    let input = ReportInput::read(source);
    let Some(word) = ReportInput::job_word(source) else {
        return input.map_err(|error| input_failure(&error));
    };
    let error = match input {
        Ok(input) => {
            let ended = input.job.as_ref().map_or("", |job| job.id.as_str());
            // Ids begin with the time.
            if let Ok(running) = RunningJob::find(Some(&word)).await
                && running.id.as_str() > ended
            {
                let name = &running.name;
                messages::info(&format!("job {name} is still running; this is an earlier one"));
            }
            return Ok(input);
        }
        Err(error) if error.is_absence() => error,
        Err(error) => return Err(input_failure(&error)),
    };
    match RunningJob::find(Some(&word)).await {
        Ok(running) => Err(still_running(&running.name)),
        // It may have ended between the two looks.
        Err(LiveError::Unknown(_) | LiveError::Ended(_)) => {
            ReportInput::read(source).map_err(|error| input_failure(&error))
        }
        Err(LiveError::List(_)) => Err(input_failure(&error)),
        Err(running) => Err(live_failure(&running)),
    }
}

fn still_running(job: &str) -> Failed {
    let message = format!("job {job} is still running, and leaves its record at its end");
    let hint = format!(
        "`rlaunch jobs {job}` shows its state, `rlaunch logs {job}` what it has printed so far; \
         `rlaunch wait {job}` waits for its end"
    );
    Failed::new(Exit::FILES, message).hint(Some(hint))
}

fn input_failure(error: &InputError) -> Failed {
    Failed::from_error(Exit::FILES, error).hint(error.hint())
}

fn draw(file: &PlotFile, curves: &[Curves], report: &Report) -> Result<Exit, Failed> {
    let sources: Vec<&str> = report.reports.iter().map(|one| one.source.as_str()).collect();
    let sources = rlaunch_text::text::list(&sources);
    if curves.is_empty() {
        let message =
            format!("cannot draw {}: no rates over steps in {sources}", file.path().display());
        let hint = "lines of tf_cnn_benchmarks, of Horovod's synthetic benchmarks and tables of nccl-tests can be drawn";
        return Err(Failed::new(Exit::FILES, message).hint(Some(hint)));
    }
    let pictures: Vec<&dyn Picture> = curves.iter().map(|one| one as &dyn Picture).collect();
    output::write_plot(file, &format!("report on {sources}"), &pictures)?;
    Ok(Exit::SUCCESS)
}

/// Finds the recorded run with which to compare the run `than`: of the successful runs of the same program with fewer
/// ranks than `than`, the one with the fewest ranks. If several have that number, the newest is returned.
fn smaller_run(than: &Run, program: &[String]) -> Option<Run> {
    let store = RecordStore::for_user().ok()?;
    let mut records = store.newest(COMPARED);
    records.retain(|record| record.program == program && record.ranks() < than.ranks);
    records.retain(|record| record.end.exit_code == 0);
    // `min_by_key` returns the first of several, so the newest has to come first.
    records.reverse();
    // With their output, which has the figures.
    let whole = records.iter().filter_map(|record| store.of_id(&record.job).ok().flatten());
    let runs = whole.filter_map(|record| SourceReport::from_record(&record).run());
    runs.min_by_key(|run| run.ranks)
}

fn print(report: &Report, json: bool) -> Result<(), Failed> {
    if json {
        stdout::print(&output::json(report)?);
    } else {
        stdout::print_styled(&text::format(report));
    }
    Ok(())
}

/// Tells whether two figures are equal within the tolerance.
fn agree(one: f64, other: f64) -> bool {
    (one - other).abs() <= TOLERANCE * one.abs().max(other.abs())
}

#[cfg(test)]
mod tests;
