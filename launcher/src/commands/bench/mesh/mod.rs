//! `rlaunch bench mesh`: measures every pair of hosts, and names the host or the cable that is slow.
//!
//! | file | subject |
//! |---|---|
//! | `report` | results, as JSON and as read by `--against`; which hosts and which pairs are slow |
//! | `text` | matrices and conclusions as text, matrices as heat maps |

mod report;
mod text;

use super::records::{self, Ended, RecordReader};
use super::{ResultArgs, Unit, measuring_job, measuring_program};
use crate::cli::args::{ConnectArgs, MeasurementArgs, values};
use crate::cli::command_line::CommandLine;
use crate::cli::lower::MeasurementJob;
use crate::commands::output;
use clap::Parser;
use report::MeshReport;
use rlaunch_bootstrap::bench::BenchRecord;
use rlaunch_console::messages;
use rlaunch_plot::PlotFile;
use rlaunch_text::exit::Exit;
use rlaunch_text::message::Failed;
use std::path::PathBuf;
use std::time::Duration;

/// Measure bandwidth and latency between every two hosts, and name what is slow.
///
/// One rank on each host. In each round every host has one partner, so no measurement disturbs another at a port; at
/// the end all hosts send to all at once. Then slow hosts, whose links are all slow, are told from slow cables. Up to 16
/// hosts are shown as matrices, more as a summary; --json has all figures.
#[derive(Debug, Parser)]
#[command(
    override_usage = "rlaunch bench mesh [OPTIONS]",
    after_help = "\
Examples:
  rlaunch bench mesh -H a,b,c                       over RDMA where it works, else over TCP
  rlaunch bench mesh -H n[01-16] --transport tcp    over TCP
  rlaunch bench mesh -H a,b,c --json > good.json    keep the figures of a healthy cluster
  rlaunch bench mesh -H a,b,c --against good.json   which pairs have become slower since?"
)]
pub(crate) struct BenchMeshArgs {
    #[command(flatten)]
    pub(crate) measurement: MeasurementArgs,

    /// Size of messages by which bandwidth is measured; K and M are powers of 1024
    #[arg(long, value_name = "SIZE", default_value = "256K", value_parser = message_size)]
    pub(crate) size: usize,

    /// Seconds for each direction of each pair; by default 0.1, less for more than 30 hosts
    #[arg(long, value_name = "SECONDS", value_parser = values::parse_timeout)]
    pub(crate) duration: Option<Duration>,

    /// Unit of bandwidths: Gb (10^9 bits per second), GB (10^9 bytes) or MiB (2^20 bytes)
    #[arg(
        long,
        value_name = "UNIT",
        value_enum,
        default_value = "Gb",
        hide_possible_values = true
    )]
    pub(crate) report: Unit,

    /// Compare with the output of an earlier run with --json, and name pairs that have become slower
    #[arg(long, value_name = "FILE")]
    pub(crate) against: Option<PathBuf>,

    /// Draw both matrices as heat maps; .svg, .html or .png
    #[arg(long, value_name = "FILE")]
    pub(crate) plot: Option<PlotFile>,

    /// Print one JSON object, in place of the text
    #[arg(long)]
    pub(crate) json: bool,
}

/// Size of messages without `--size`, whose default value is the same.
const SIZE: usize = 256 << 10;

/// Reads the size of a message, of 1 byte or more.
fn message_size(text: &str) -> Result<usize, String> {
    match super::size(text)? {
        0 => Err("a message of 0 bytes has no bandwidth".to_owned()),
        size => Ok(size),
    }
}

/// Measures, and prints the results.
pub(super) async fn run(args: BenchMeshArgs, line: &CommandLine) -> Result<Exit, Failed> {
    let (unit, json, plot) = (args.report, args.json, args.plot.clone());
    let earlier = args.against.as_deref().map(MeshReport::read).transpose();
    let earlier = earlier.map_err(|error| Failed::from_error(Exit::FILES, &error))?;
    let earlier = args.against.clone().zip(earlier);
    let program = measuring_program(&args.measurement)?;
    let launch = args.job(program).launch(&line.config)?;
    if launch.spec.hosts.len() < 2 {
        let message = "links are measured between hosts, but there is 1";
        let failed = Failed::new(Exit::USAGE, message);
        return Err(failed.hint(Some("name two or more: rlaunch bench -H a,b")));
    }
    output::prepare_plot(plot.as_ref())?;
    let measured = records::run(launch, |_, _| Ok(())).await?;
    if let Some(mut report) = report_of(&measured)? {
        if let Some((path, earlier)) = earlier {
            let compared = report.compare(&path, &earlier);
            compared.map_err(|error| Failed::from_error(Exit::FILES, &error))?;
        }
        let text = if json { report.to_json() } else { text::report(&report, unit) };
        output::print_measurement(&text);
        if let Some(file) = plot {
            let maps = text::heat_maps(&report, unit);
            let title = format!("mesh: {}", text::title(&report));
            output::write_plot(&file, &title, &[&maps[0], &maps[1]])?;
        }
    }
    measured.ended
}

/// Measures all pairs of hosts, and returns a line on the slowest.
pub(in crate::commands) async fn verdict(
    hosts: Vec<String>,
    connect: ConnectArgs,
    line: &CommandLine,
) -> Result<String, Failed> {
    let measurement = MeasurementArgs::for_hosts(hosts, connect)?;
    let results = ResultArgs { plot: None, with: Vec::new(), report: Unit::Gigabytes, json: false };
    let args = BenchMeshArgs::without_kind(measurement, results, Unit::Gigabytes);
    let program = measuring_program(&args.measurement)?;
    let launch = args.job(program).launch(&line.config)?;
    let _quiet = messages::quiet();
    let measured = records::run(launch, |_, _| Ok(())).await?;
    let report = report_of(&measured)?;
    measured.ended?;
    let nothing = || Failed::new(Exit::BUG, "the measuring program has printed no result");
    report.map(|report| text::verdict(&report, Unit::Gigabytes)).ok_or_else(nothing)
}

/// Makes a report of what was measured; `None` if nothing was.
fn report_of<R>(measured: &Ended<RecordReader<R>>) -> Result<Option<MeshReport>, Failed> {
    let matrix = measured.reader.records.iter().find_map(|record| match record {
        BenchRecord::Matrix(matrix) => Some(matrix),
        _ => None,
    });
    let report = matrix.zip(measured.facts()).map(|(matrix, facts)| MeshReport::new(matrix, facts));
    report.transpose().map_err(|error| Failed::from_error(Exit::BUG, &error))
}

impl BenchMeshArgs {
    /// Returns the measurement of `rlaunch bench` without a kind.
    pub(super) fn without_kind(
        measurement: MeasurementArgs,
        results: ResultArgs,
        report: Unit,
    ) -> BenchMeshArgs {
        let ResultArgs { plot, json, .. } = results;
        let (size, duration, against) = (SIZE, None, None);
        BenchMeshArgs { measurement, size, duration, report, against, plot, json }
    }

    /// Returns the job that runs the measuring program once on each host.
    fn job(self, program: PathBuf) -> MeasurementJob {
        let size = self.size;
        // Without a time the program chooses one, which depends on the number of ranks.
        let millis = self.duration.map_or(0, |time| time.as_millis().max(1));
        let words = vec!["mesh".to_owned(), size.to_string(), millis.to_string()];
        measuring_job(self.measurement, program, words).with_one_rank_on_each_host()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use rlaunch_plan::map::MapBy;
    use std::ffi::OsString;

    #[test]
    fn a_job_has_one_rank_on_each_host() {
        let words = ["rlaunch bench mesh", "-H", "a:8,b:8", "--size", "64K", "--duration", "0.5"];
        let job = BenchMeshArgs::try_parse_from(words).unwrap().job("/x/rlaunch-bench".into());
        let words = ["rlaunch-bench", "mesh", "65536", "500"].map(OsString::from);
        assert_eq!((job.map_by, job.ranks), (MapBy::Ppr(1), None));
        assert_eq!(job.argv, words);
    }
}
