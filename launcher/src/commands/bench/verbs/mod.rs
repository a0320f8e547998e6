//! `rlaunch bench write|read|send`: RDMA operations between two hosts, as perftest measures them. `table` has the results as
//! text, as JSON, as curves and in the columns of perftest.

mod table;

use super::{Sizes, Unit, measuring_job, measuring_program, records, verb_and_count};
use crate::cli::args::{MeasurementArgs, values};
use crate::cli::command_line::CommandLine;
use crate::cli::lower::MeasurementJob;
use crate::commands::output;
use clap::{Args, Command, FromArgMatches, Parser};
use rlaunch_bootstrap::bench::{VerbsAmount, VerbsOperation, VerbsPart, VerbsRequest};
use rlaunch_console::stdout;
use rlaunch_plan::options::Transport;
use rlaunch_plot::PlotFile;
use rlaunch_text::exit::Exit;
use rlaunch_text::message::Failed;
use std::ffi::OsString;
use std::path::PathBuf;
use table::{VerbsSummary, VerbsTable};

/// Sizes that are measured unless the user gives others: from 2 bytes to 1 MiB.
const SIZES: [usize; 8] = [2, 16, 128, 1 << 10, 8 << 10, 64 << 10, 256 << 10, 1 << 20];
/// Time for each size and each part, unless the user gives another or a number of messages.
const SECONDS: f64 = 0.3;
/// Maximum number of queue pairs.
const MAX_QPS: i64 = 1024;
/// Maximum number of outstanding requests of a queue pair, and of messages of each size.
const MAX_DEPTH: i64 = 16_384;
const MAX_MESSAGES: u64 = 1 << 39;
/// Path MTUs in bytes.
const MTUS: [&str; 5] = ["256", "512", "1024", "2048", "4096"];

const MORE_HELP: &str = "\
A small program is copied to both hosts, and asks the devices for the same requests as perftest: latency with one
message at a time, bandwidth with as many as the queue pairs hold. Nothing is installed, and the ports are those that a
job would use. A line for each size is printed as soon as it is measured.";

const EXAMPLES: &str = "\
Examples:
  rlaunch bench write -H a,b                        times and bandwidth, 2 bytes to 1 MiB
  rlaunch bench write bw -H a,b --sizes 64K --duration 0   until Ctrl-C, a line a second
  rlaunch bench read -H a,b --hca mlx5_1            over this device
  rlaunch bench send lat -H a,b --sizes 8 --distribution   how times are distributed
  rlaunch bench write bw -H a,b --qps 4 --bidirectional --report Gb
  rlaunch bench write -H a,b --perftest             in the columns of ib_write_lat and ib_write_bw

Columns:
  bytes      of each message
  min ...    times of single messages in microseconds: half of a round trip of write and send, the
             whole time of read; typical is the median
  peak       highest bandwidth of any part of the stream; average: that of all of it. With
             --bidirectional these and Mmsg/s are sums of both directions, as with perftest's -b
  Mmsg/s     millions of messages per second
  CPU %      of both processes, from rank 0 to rank 1; 100 is one processor

Below the table, the highest average bandwidth is compared with the limit: the rate of the port, or
of the slowest PCIe link below it. Where neither is known, it is compared with one TCP connection.
launcher/schemas/bench-verbs.schema.json describes the output of --json.";

/// Options of `rlaunch bench write`, `read` and `send`.
#[derive(Clone, Debug, Parser)]
pub(crate) struct BenchVerbsArgs {
    /// lat: times of single messages; bw: streams of messages; both unless given
    #[arg(value_name = "lat|bw", value_parser = values::one_of(PARTS), hide_possible_values = true)]
    pub(crate) part: Option<VerbsPart>,

    #[command(flatten)]
    pub(crate) measurement: MeasurementArgs,

    /// Sizes of messages, from FIRST to LAST, doubled each time, or a list; K, M and G are powers of 1024.
    /// By default 8 sizes from 2 to 1M
    #[arg(long, value_name = "FIRST..LAST|SIZE,...")]
    pub(crate) sizes: Option<Sizes>,

    /// Number of messages of each size and queue pair, in place of --duration
    #[arg(long, value_name = "N", visible_alias = "iters", conflicts_with = "duration")]
    #[arg(value_parser = clap::value_parser!(u64).range(2..=MAX_MESSAGES))]
    pub(crate) iterations: Option<u64>,

    /// Seconds for each size, for lat and for bw, by default 0.3; 0: a stream until Ctrl-C, with a line a second
    #[arg(long, value_name = "SECONDS", value_parser = seconds)]
    pub(crate) duration: Option<f64>,

    /// Number of queue pairs of a stream
    #[arg(long, value_name = "N", default_value = "1")]
    #[arg(value_parser = clap::value_parser!(u32).range(1..=MAX_QPS))]
    pub(crate) qps: u32,

    /// Maximum number of outstanding requests of each queue pair of a stream
    #[arg(long, value_name = "N", default_value = "128")]
    #[arg(value_parser = clap::value_parser!(u32).range(1..=MAX_DEPTH))]
    pub(crate) depth: u32,

    /// Send streams in both directions at once; bandwidths are those of both together
    #[arg(long)]
    pub(crate) bidirectional: bool,

    /// Messages of up to this size are copied into the request; by default 220 (236 for send) or what the device takes for lat, and 0 for bw
    #[arg(long, value_name = "BYTES")]
    pub(crate) inline: Option<u32>,

    /// Upper limit of the path MTU in bytes: 256, 512, 1024, 2048 or 4096
    #[arg(long, value_name = "BYTES", value_parser = MTUS, hide_possible_values = true)]
    pub(crate) mtu: Option<String>,

    /// Set this variable for the measuring program: NAME=VALUE, or NAME to pass on its value here
    #[arg(short = 'x', long = "env", value_name = "NAME[=VALUE]")]
    pub(crate) env: Vec<OsString>,

    /// Unit of bandwidths: GB (10^9 bytes per second), Gb (10^9 bits) or MiB (2^20 bytes)
    #[arg(
        long,
        value_name = "UNIT",
        value_enum,
        default_value = "GB",
        hide_possible_values = true
    )]
    pub(crate) report: Unit,

    /// Print the columns of perftest, whose bandwidths are in MiB/s, or in Gb/s with --report Gb; its times leave the
    /// two longest out, and t_max is the second longest
    #[arg(long, conflicts_with_all = ["json", "distribution"])]
    pub(crate) perftest: bool,

    /// Print the distribution of times below each line
    #[arg(long)]
    pub(crate) distribution: bool,

    /// Draw curves of bandwidth over sizes, or of times for lat, with the limit as a line; .svg, .html or .png
    #[arg(long, value_name = "FILE")]
    pub(crate) plot: Option<PlotFile>,

    /// Print one JSON object at the end, in place of the table
    #[arg(long)]
    pub(crate) json: bool,
}

/// Parts of the measurement.
const PARTS: &[(&str, VerbsPart)] = &[("lat", VerbsPart::Latency), ("bw", VerbsPart::Bandwidth)];

/// Reason why a measurement cannot be meant.
#[derive(Debug, thiserror::Error)]
enum VerbsArgsError {
    #[error("rlaunch bench {0} measures RDMA, but --transport tcp was given")]
    Tcp(&'static str),
    #[error("messages of 0 bytes are not measured: --sizes begins at 1")]
    Empty,
    #[error("--duration 0 is a stream without end: it needs `bw` and one size")]
    Endless,
    #[error("--duration 0 prints the rate of one direction, and --bidirectional has two")]
    EndlessBoth,
    #[error("--duration 0 has no end, at which --json, --perftest or --plot could show something")]
    EndlessAtTheEnd,
    #[error("--bidirectional is of streams, but only times of single messages are asked for")]
    OneAtATime,
    #[error(transparent)]
    Program(#[from] clap::Error),
}

/// Returns the verb of an operation.
pub(super) fn command(operation: VerbsOperation) -> Command {
    let (name, about) = match operation {
        VerbsOperation::Write => {
            ("write", "Measure RDMA writes between two hosts, as ib_write_lat and ib_write_bw do")
        }
        VerbsOperation::Read => {
            ("read", "Measure RDMA reads between two hosts, as ib_read_lat and ib_read_bw do")
        }
        VerbsOperation::Send => {
            ("send", "Measure sends between two hosts, as ib_send_lat and ib_send_bw do")
        }
    };
    BenchVerbsArgs::augment_args(Command::new(name))
        .about(about)
        .long_about(format!("{about}.\n\n{MORE_HELP}"))
        .override_usage(format!("rlaunch bench {name} [lat|bw] [OPTIONS]"))
        .after_help(EXAMPLES)
}

/// Reads the options of a verb; `None` if the name is not one of an operation.
pub(super) fn parse(
    name: &str,
    matches: &clap::ArgMatches,
) -> Option<Result<(VerbsOperation, BenchVerbsArgs), clap::Error>> {
    let operation = VerbsOperation::ALL.into_iter().find(|known| known.name() == name)?;
    Some(BenchVerbsArgs::from_arg_matches(matches).map(|args| (operation, args)))
}

fn seconds(text: &str) -> Result<f64, String> {
    match text.trim() {
        "0" => Ok(0.0),
        text => values::parse_timeout(text).map(|time| time.as_secs_f64()),
    }
}

/// Measures, and prints the results.
pub(super) async fn run(
    operation: VerbsOperation,
    args: BenchVerbsArgs,
    line: &CommandLine,
) -> Result<Exit, Failed> {
    let usage = |error: &VerbsArgsError| Failed::from_error(Exit::USAGE, error);
    let request = args.request(operation).map_err(|error| usage(&error))?;
    let program = measuring_program(&args.measurement)?;
    let launch = args.job(&request, program).launch(&line.config)?;
    if launch.spec.hosts.len() != 2 {
        let there_are = verb_and_count(launch.spec.hosts.len());
        let message =
            format!("rlaunch bench {} is between 2 hosts, but there {there_are}", operation.name());
        let hint = "-H a,b for two hosts; rlaunch bench mesh measures all pairs of more";
        return Err(Failed::new(Exit::USAGE, message).hint(Some(hint)));
    }
    output::prepare_plot(args.plot.as_ref())?;
    let is_shown = !args.json && !args.perftest;
    let table = VerbsTable::new(args.report, args.distribution);
    let measured = records::run(launch, move |record, facts| {
        let lines = table.lines(record, facts).filter(|_| is_shown);
        lines.map_or(Ok(()), |lines| stdout::try_print(&lines))
    })
    .await?;
    if let Some(facts) = measured.facts()
        && let Some(summary) = VerbsSummary::new(&measured.reader.records, facts)
    {
        let text = match (args.json, args.perftest) {
            (true, _) => format!("{}\n", summary.json()),
            (_, true) => table::perftest_tables(&summary.rows, args.report),
            _ => summary.end(),
        };
        output::print_measurement(&text);
        if let Some(file) = args.plot.filter(|_| measured.ended.is_ok()) {
            let curves = summary.curves(args.report);
            output::write_plot(&file, &curves.title, &[&curves])?;
        }
    }
    measured.ended
}

impl BenchVerbsArgs {
    /// Returns the request for the measuring program.
    fn request(&self, operation: VerbsOperation) -> Result<VerbsRequest, VerbsArgsError> {
        let part = self.part.unwrap_or(VerbsPart::Both);
        let sizes = self.sizes.clone().map_or(SIZES.to_vec(), |sizes| sizes.0);
        let amount = match (self.iterations, self.duration) {
            (Some(messages), _) => VerbsAmount::Messages(messages),
            (None, Some(0.0)) => VerbsAmount::Endless,
            (None, seconds) => VerbsAmount::Seconds(seconds.unwrap_or(SECONDS)),
        };
        if sizes.contains(&0) {
            return Err(VerbsArgsError::Empty);
        }
        if amount == VerbsAmount::Endless && (part != VerbsPart::Bandwidth || sizes.len() != 1) {
            return Err(VerbsArgsError::Endless);
        }
        if amount == VerbsAmount::Endless && self.bidirectional {
            return Err(VerbsArgsError::EndlessBoth);
        }
        let is_shown_at_the_end = self.json || self.perftest || self.plot.is_some();
        if amount == VerbsAmount::Endless && is_shown_at_the_end {
            return Err(VerbsArgsError::EndlessAtTheEnd);
        }
        if part == VerbsPart::Latency && self.bidirectional {
            return Err(VerbsArgsError::OneAtATime);
        }
        if self.measurement.network.transport == Transport::Tcp {
            return Err(VerbsArgsError::Tcp(operation.name()));
        }
        Ok(VerbsRequest {
            operation,
            part,
            sizes,
            amount,
            qps: self.qps,
            depth: self.depth,
            inline: self.inline,
            // The values that are allowed are numbers.
            mtu: self.mtu.as_ref().and_then(|mtu| mtu.parse().ok()),
            bidirectional: self.bidirectional,
            perftest: self.perftest,
        })
    }

    /// Returns the job that runs the measuring program once on each host, with RDMA between them.
    fn job(&self, request: &VerbsRequest, program: PathBuf) -> MeasurementJob {
        let request = serde_json::to_string(request).unwrap_or_default();
        let mut args = self.measurement.clone();
        args.network.transport = Transport::Rdma;
        let job = measuring_job(args, program, vec!["verbs".to_owned(), request]);
        let mut job = job.with_one_rank_on_each_host();
        job.process.env.clone_from(&self.env);
        job
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use rlaunch_plan::map::MapBy;

    fn request(line: &str) -> Result<VerbsRequest, VerbsArgsError> {
        let words = ["rlaunch bench write"].into_iter().chain(line.split(' '));
        BenchVerbsArgs::try_parse_from(words)?.request(VerbsOperation::Write)
    }

    #[test]
    fn options_do_not_clash() {
        for operation in VerbsOperation::ALL {
            let command = command(operation);
            assert_eq!(command.get_name(), operation.name());
            command.debug_assert();
        }
    }

    #[test]
    fn what_was_typed_becomes_a_request() {
        let all = request("-H a,b").unwrap();
        assert_eq!((all.part, all.amount), (VerbsPart::Both, VerbsAmount::Seconds(SECONDS)));
        assert_eq!((all.sizes.len(), all.qps, all.depth, all.inline), (8, 1, 128, None));
        let line = "bw -H a,b --sizes 64K,1M --iterations 500 --qps 4 --depth 16 --inline 0 --mtu 1024 --bidirectional";
        let given = request(line).unwrap();
        assert_eq!((given.part, given.amount), (VerbsPart::Bandwidth, VerbsAmount::Messages(500)));
        assert_eq!((given.sizes, given.qps, given.depth), (vec![65_536, 1 << 20], 4, 16));
        assert_eq!((given.inline, given.mtu, given.bidirectional), (Some(0), Some(1024), true));
        let endless = request("bw -H a,b --sizes 8 --duration 0").unwrap();
        assert_eq!(endless.amount, VerbsAmount::Endless);
    }

    #[test]
    fn a_job_has_one_rank_on_each_host_and_insists_on_rdma() {
        let words = ["rlaunch bench write", "-H", "a:8,b:8"];
        let args = BenchVerbsArgs::try_parse_from(words).unwrap();
        let request = args.request(VerbsOperation::Read).unwrap();
        let job = args.job(&request, "/x/rlaunch-bench".into());
        assert_eq!((job.map_by, job.args.network.transport), (MapBy::Ppr(1), Transport::Rdma));
        let words: Vec<_> = job.argv.iter().map(|word| word.to_string_lossy()).collect();
        assert_eq!(words[..2], ["rlaunch-bench", "verbs"]);
        assert_eq!(serde_json::from_str::<VerbsRequest>(&words[2]).unwrap(), request);
    }

    #[test]
    fn what_cannot_be_meant_is_said() {
        let error = |line: &str| request(line).unwrap_err().to_string();
        assert!(error("-H a,b --sizes 0,8").contains("0 bytes"));
        assert!(error("-H a,b --duration 0").contains("`bw` and one size"));
        assert!(error("bw -H a,b --sizes 8 --duration 0 --bidirectional").contains("two"));
        assert!(error("bw -H a,b --sizes 8 --duration 0 --json").contains("has no end"));
        assert!(error("lat -H a,b --bidirectional").contains("single messages"));
        assert!(error("-H a,b --transport tcp").contains("--transport tcp was given"));
        assert!(error("-H a,b --mtu 1500").contains("invalid value '1500'"));
        assert!(error("-H a,b --iterations 5 --duration 1").contains("cannot be used with"));
    }
}
