//! `rlaunch report`: whether a run was fast, whether its figures add up, and which network it used.
//!
//! Figures are read by [`crate::commands::report::log_metrics`]; here they are compared with each other, with what is
//! known of the job, and with smaller runs. What does not fit is a [`Remark`].

pub(crate) mod log_metrics;
mod networks;
mod scaling;
mod source;
mod speed;
mod tables;
mod text;

pub(crate) use scaling::{Run, Scaling};
pub(crate) use speed::Speed;
pub(crate) use text::table as scaling_table;

use crate::cli::args::ReportArgs;
use crate::commands::report::log_metrics::Figures;
use crate::commands::report::log_metrics::collective::Collective;
use crate::run::record::JobRecord;
use crate::run::record::store::RecordStore;
use networks::RankNetwork;
use rlaunch_console::exit::Exit;
use rlaunch_console::messages::Failed;
use rlaunch_console::printable;
use serde::Serialize;
use source::{JobFacts, Source, SourceError};

/// Version of what `--json` prints. New fields may appear without a new one.
const VERSION: u32 = 1;
/// Figures that differ by less are the same, as part of the larger.
const TOLERANCE: f64 = 0.02;

/// What is to be said of one job's output.
#[derive(Debug, Serialize)]
pub(crate) struct Verdict {
    /// The file's name, or that it is a record.
    pub(crate) source: String,
    /// What its record knows.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) job: Option<JobFacts>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) speed: Option<Speed>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) collective: Option<Collective>,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub(crate) networks: Vec<RankNetwork>,
    pub(crate) remarks: Vec<Remark>,
}

/// Something that does not add up, or that a reader of the figures has to know.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub(crate) struct Remark {
    pub(crate) kind: Kind,
    pub(crate) text: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) hint: Option<String>,
}

/// What a remark is about, for programs.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum Kind {
    /// Each rank has run by itself.
    Alone,
    /// The printed average is not that of the table.
    AverageDiffers,
    /// NCCL tried to connect ports of two networks.
    Disconnected,
    /// The job has failed.
    Failed,
    /// Some ranks have printed no rate.
    Incomplete,
    /// The middle of the output was not kept.
    LeftOut,
    /// The sum of the ranks is not the total.
    SumDiffers,
    /// Not RDMA.
    Tcp,
    /// Totals that should be one differ.
    TotalsDiffer,
    /// Nothing says which rank has printed what.
    Unnamed,
    /// As many ranks as were started have not met.
    WorldDiffers,
    /// Collectives had wrong results.
    WrongValues,
}

impl Remark {
    fn new(kind: Kind, text: impl Into<String>) -> Remark {
        Remark { kind, text: text.into(), hint: None }
    }

    fn hint(self, hint: impl Into<String>) -> Remark {
        Remark { hint: Some(hint.into()), ..self }
    }
}

impl Verdict {
    /// Of what a source has printed.
    fn of(source: Source) -> Verdict {
        let Source { name, job, figures } = source;
        let Figures { throughput, collective, networks: nccl, ranks, hosts } = &figures;
        let host_of = |rank: u32| match &job {
            Some(job) => job.host_of(rank),
            None => hosts.get(&rank).map(String::as_str),
        };
        let mut remarks = job.as_ref().map(JobFacts::remarks).unwrap_or_default();
        // Without a record, ranks that are named are all that is known; a single one may have
        // printed for others.
        let named = u32::try_from(ranks.len()).ok().filter(|named| *named > 1);
        let world = job.as_ref().map(|job| job.ranks).or(named);
        let speed = Speed::of(throughput, world, host_of);
        let speed = speed.map(|(speed, of_speed)| {
            remarks.extend(of_speed);
            speed
        });
        let collective = (!collective.rows.is_empty()).then(|| collective.clone());
        remarks.extend(collective.iter().flat_map(tables::remarks));
        let networks = networks::by_rank(nccl, host_of);
        remarks.extend(networks::remarks(&networks, nccl));
        Verdict { source: name, job, speed, collective, networks, remarks }
    }

    /// Of a record.
    pub(crate) fn of_record(record: &JobRecord) -> Verdict {
        Verdict::of(Source::of_record(record))
    }

    /// As a run that others can be compared with; `None` if its figures are not to be trusted.
    pub(crate) fn run(&self) -> Option<Run> {
        let speed = self.speed.as_ref()?;
        Some(Run { source: self.source.clone(), ranks: speed.ranks?, total: speed.total? })
    }
}

/// Everything that is printed.
#[derive(Debug, Serialize)]
struct Report {
    v: u32,
    reports: Vec<Verdict>,
    #[serde(skip_serializing_if = "Option::is_none")]
    scaling: Option<Scaling>,
}

/// Reads, judges and prints.
pub(crate) fn report(args: &ReportArgs) -> Result<Exit, Failed> {
    let failed = |error: SourceError| Failed::from_error(Exit::FILES, &error).hint(error.hint());
    let sources: Result<Vec<Source>, SourceError> =
        args.sources.iter().map(|given| Source::read(given)).collect();
    let sources = sources.map_err(failed)?;
    if let Some(empty) = sources.iter().find(|source| source.figures.is_empty()) {
        return Err(failed(SourceError::NoFigures(empty.name.clone())));
    }
    let program = sources.iter().find_map(|source| Some(source.job.as_ref()?.program.clone()));
    let reports: Vec<Verdict> = sources.into_iter().map(Verdict::of).collect();
    let mut runs: Vec<Run> = reports.iter().filter_map(Verdict::run).collect();
    if let ([only], Some(program)) = (&runs[..], program) {
        let smaller = smaller_run(only, &program);
        runs.extend(smaller);
    }
    let report = Report { v: VERSION, scaling: Scaling::of(runs), reports };
    print(&report, args.json)?;
    Ok(Exit::SUCCESS)
}

/// Of the jobs on record that ran the same program, the smallest, and of these the newest.
fn smaller_run(than: &Run, program: &[String]) -> Option<Run> {
    let mut records = RecordStore::for_user().ok()?.all();
    records.retain(|record| record.program == program && record.ranks() < than.ranks);
    records.retain(|record| record.end.exit_code == 0);
    // Of several that are the smallest it takes the first.
    records.reverse();
    let runs = records.iter().filter_map(|record| Verdict::of_record(record).run());
    runs.min_by_key(|run| run.ranks)
}

fn print(report: &Report, json: bool) -> Result<(), Failed> {
    use std::io::Write;
    let mut out = anstream::stdout().lock();
    // A reader that has gone does not need it.
    if json {
        let text = serde_json::to_string_pretty(report);
        let text = text.map_err(|error| Failed::from_error(Exit::BUG, &error))?;
        let _ = writeln!(out, "{}", printable::text(&text));
    } else {
        let _ = text::write(&mut out, report);
    }
    Ok(())
}

/// Whether two figures that should be the same are.
fn agree(one: f64, other: f64) -> bool {
    (one - other).abs() <= TOLERANCE * one.abs().max(other.abs())
}

#[cfg(test)]
mod tests;
