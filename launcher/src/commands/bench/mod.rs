//! `rlaunch bench`: measures the speed of rlaunch's communicator. It runs a job whose program, `rlaunch-bench`, comes
//! with rlaunch. `rlaunch bench nccl` and `mpi` run programs that hosts have.
//!
//! | file | subject |
//! |---|---|
//! | `records` | the job, whose rank 0 writes its results |
//! | `table` | results of `lat`, `bw` and `coll`; summary of these and of `nccl` and `mpi` |
//! | `ceiling` | how much of a link's limit a bandwidth is |
//! | `mesh` | `rlaunch bench mesh`: all pairs of hosts |
//! | `programs` | `rlaunch bench nccl` and `mpi`: nccl-tests and OSU's micro-benchmarks |
//! | `train` | `rlaunch bench train` |
//! | `verbs` | `rlaunch bench write`, `read` and `send`: RDMA operations |

mod ceiling;
pub(crate) mod mesh;
pub(crate) mod programs;
pub(super) mod records;
mod table;
pub(crate) mod train;
pub(crate) mod verbs;

use crate::cli::args::{MeasurementArgs, values};
use crate::cli::command_line::CommandLine;
use crate::cli::lower::MeasurementJob;
use crate::commands::output;
use clap::error::ErrorKind;
use clap::parser::ValueSource;
use clap::{ArgMatches, Command, FromArgMatches, Parser, ValueEnum};
use mesh::BenchMeshArgs;
use programs::{MpiArgs, NcclArgs};
use rlaunch_bootstrap::bench::VerbsOperation;
use rlaunch_console::stdout;
use rlaunch_engine::connect::agent::{host_file, store};
use rlaunch_plan::job::JobSpec;
use rlaunch_plot::PlotFile;
use rlaunch_text::exit::Exit;
use rlaunch_text::message::Failed;
use std::ffi::OsString;
use std::path::{Path, PathBuf};
use std::str::FromStr;
use table::{EarlierRun, Summary, Table};
use train::TrainArgs;
use verbs::BenchVerbsArgs;

/// Maximum size of a message, in bytes.
const MAX_SIZE: usize = 1 << 30;

/// Command line of `rlaunch bench`, or of one of its verbs.
#[derive(Debug)]
pub(crate) enum BenchCommand {
    Measure(Benchmark, BenchArgs),
    Mesh(BenchMeshArgs),
    Nccl(NcclArgs),
    Mpi(MpiArgs),
    Train(TrainArgs),
    Verbs(VerbsOperation, BenchVerbsArgs),
}

impl clap::Args for BenchCommand {
    fn augment_args(command: Command) -> Command {
        BenchArgs::augment_args(command)
            .subcommands(VerbsOperation::ALL.map(verbs::command))
            .subcommand(BenchMeshArgs::augment_args(Command::new("mesh")))
            .subcommand(NcclArgs::augment_args(Command::new("nccl")))
            .subcommand(MpiArgs::augment_args(Command::new("mpi")))
            .subcommand(TrainArgs::augment_args(Command::new("train")))
            .args_conflicts_with_subcommands(true)
            .disable_help_subcommand(true)
    }

    fn augment_args_for_update(command: Command) -> Command {
        BenchCommand::augment_args(command)
    }
}

impl FromArgMatches for BenchCommand {
    fn from_arg_matches(matches: &ArgMatches) -> Result<BenchCommand, clap::Error> {
        match matches.subcommand() {
            Some(("mesh", mesh)) => BenchMeshArgs::from_arg_matches(mesh).map(BenchCommand::Mesh),
            Some(("nccl", nccl)) => NcclArgs::from_arg_matches(nccl).map(BenchCommand::Nccl),
            Some(("mpi", mpi)) => MpiArgs::from_arg_matches(mpi).map(BenchCommand::Mpi),
            Some((name, matches)) => match verbs::parse(name, matches) {
                Some(read) => read.map(|(operation, args)| BenchCommand::Verbs(operation, args)),
                None => TrainArgs::from_arg_matches(matches).map(BenchCommand::Train),
            },
            None => BenchCommand::without_verb(matches),
        }
    }

    fn update_from_arg_matches(&mut self, matches: &ArgMatches) -> Result<(), clap::Error> {
        *self = BenchCommand::from_arg_matches(matches)?;
        Ok(())
    }
}

impl BenchCommand {
    /// Reads a command line that has a kind of measurement, or none, for all pairs of hosts.
    fn without_verb(matches: &ArgMatches) -> Result<BenchCommand, clap::Error> {
        let args = BenchArgs::from_arg_matches(matches)?;
        if let Some(benchmark) = args.benchmark {
            return Ok(BenchCommand::Measure(benchmark, args));
        }
        if !args.results.with.is_empty() {
            let message = "--with needs a kind of measurement: lat, bw or coll\n";
            return Err(clap::Error::raw(ErrorKind::MissingRequiredArgument, message));
        }
        let unit = match matches.value_source("report") {
            Some(ValueSource::CommandLine) => args.results.report,
            _ => Unit::Gigabits,
        };
        let args = BenchMeshArgs::without_kind(args.measurement, args.results, unit);
        Ok(BenchCommand::Mesh(args))
    }
}

/// Measure links, collectives, and how a program scales.
///
/// Messages and collectives are those of rlaunch's communicator between hosts.
///
/// Without a kind of measurement: the bandwidth of each link in Gb/s, its latency, the slowest cable, and what the
/// hardware can give, as by `rlaunch bench mesh`.
///
/// A small program is copied to the hosts and run as ranks. Its transport (shared memory, TCP, RDMA) is chosen as for
/// a job, by --transport and by what the hosts have. A line for each size is printed as soon as it is measured.
/// Received data is compared with what was sent.
#[derive(Debug, Parser)]
#[command(
    override_usage = "rlaunch bench [OPTIONS] [lat|bw|coll [COLLECTIVE]]\n       \
                      rlaunch bench write|read|send [lat|bw] [OPTIONS]\n       \
                      rlaunch bench mesh [OPTIONS]\n       \
                      rlaunch bench nccl|mpi [OPTIONS] [TEST] [-- ARGUMENT...]\n       \
                      rlaunch bench train --np N,... [OPTIONS] PROGRAM [ARGUMENT]...",
    after_help = "\
Examples:
  rlaunch bench -H a,b                           each link, the slowest, and what the hardware can give
  rlaunch bench lat -H a,b                       latency of messages of 8 bytes to 4 MiB
  rlaunch bench coll all_reduce -H a:4,b:4       8 ranks on two hosts, 8 bytes to 16 MiB
  rlaunch bench --help                           more, and what the columns are",
    after_long_help = "\
Examples:
  rlaunch bench -H a,b                           each link, the slowest, and what the hardware can give
  rlaunch bench lat -H a,b                       latency of messages of 8 bytes to 4 MiB
  rlaunch bench lat -H a:2 --sizes 8             the same within a host, over shared memory
  rlaunch bench bw -H a,b --transport tcp        bandwidth of many messages at once, over TCP
  rlaunch bench bw -H a,b --plot bw.svg          the same as curves, with the limit
  rlaunch bench coll all_reduce -H a:4,b:4       8 ranks on two hosts, 8 bytes to 16 MiB
  rlaunch bench coll all_gather -H a,b --sizes 1K,1M --type u8 --json
  rlaunch bench write -H a,b                     RDMA writes, as perftest; see bench write --help
  rlaunch bench mesh -H a,b,c                    all pairs of hosts; see bench mesh --help
  rlaunch bench nccl -H a:8,b:8                  NCCL, by nccl-tests; see bench nccl --help
  rlaunch bench mpi lat -H a,b                   MPI, by OSU's programs; see bench mpi --help
  rlaunch bench train -H a,b --np 1,2 ./train    how a program scales; see bench train --help

Columns:
  bytes      of each message, of each rank's vector (all_reduce, reduce, broadcast), or of all
             ranks' parts together (gather, scatter, all_gather, reduce_scatter, all_to_all)
  time       of one message or call on the slowest rank, in microseconds: the median, the minimum
             and the 99th percentile over batches of 200 us or more, which ranks start together
  algbw      bytes / median time; GB are 10^9 bytes
  busbw      load of each rank's link, whatever the number n of ranks, as nccl-tests defines it:
             algbw * 2 (n - 1) / n for all_reduce,
             algbw * (n - 1) / n for gather, scatter, all_gather, reduce_scatter, all_to_all,
             algbw for broadcast and reduce, and for lat and bw, which do not repeat it

Below the table, the highest busbw is compared with the limit: the rate of the port, or of
the slowest PCIe link below it. Where neither is known, bw compares with one TCP connection
between the same hosts. launcher/schemas/ describes the output of --json."
)]
pub(crate) struct BenchArgs {
    /// lat: latency of a message, half a round trip of 2 ranks; bw: bandwidth from rank 0 to rank 1, many
    /// messages at once; coll: a collective of all ranks
    #[arg(value_name = "lat|bw|coll", hide_possible_values = true)]
    pub(crate) benchmark: Option<Benchmark>,

    /// Collective for coll: all_reduce, reduce, broadcast, gather, scatter, all_gather, reduce_scatter,
    /// all_to_all or barrier
    #[arg(value_name = "COLLECTIVE", value_parser = COLLECTIVES, hide_possible_values = true)]
    pub(crate) collective: Option<String>,

    #[command(flatten)]
    pub(crate) measurement: MeasurementArgs,

    /// Number of ranks of lat, bw and coll, also `-np N`; by default one for each slot
    #[arg(short = 'n', long = "np", value_name = "N", value_parser = values::parse_ranks)]
    pub(crate) ranks: Option<u32>,

    /// Sizes of messages, from FIRST to LAST, doubled each time, or a list; K, M and G are powers of 1024.
    /// By default 8..4M for lat and bw, 8..16M for coll
    #[arg(long, value_name = "FIRST..LAST|SIZE,...", requires = "benchmark")]
    pub(crate) sizes: Option<Sizes>,

    /// Type of elements: f16, bf16, f32, f64, i32, i64, u8 or u64
    #[arg(long = "type", value_name = "TYPE", default_value = "f32", hide_possible_values = true)]
    #[arg(value_parser = ["f16", "bf16", "f32", "f64", "i32", "i64", "u8", "u64"])]
    #[arg(requires = "benchmark")]
    pub(crate) element: String,

    /// Operation of all_reduce, reduce and reduce_scatter: sum, prod, min or max
    #[arg(long, value_name = "OP", default_value = "sum", hide_possible_values = true)]
    #[arg(value_parser = ["sum", "prod", "min", "max"], requires = "benchmark")]
    pub(crate) op: String,

    /// Number of batches of each size; by default as many as fit into a second, from 10 to 1000
    #[arg(long, value_name = "N", visible_alias = "iters", requires = "benchmark")]
    #[arg(value_parser = clap::value_parser!(u32).range(1..=1_000_000))]
    pub(crate) iterations: Option<u32>,

    #[command(flatten)]
    pub(crate) results: ResultArgs,
}

/// Form of the results of a measurement over sizes.
#[derive(Clone, Debug, clap::Args)]
pub(crate) struct ResultArgs {
    /// Unit of bandwidths: GB (10^9 bytes per second), Gb (10^9 bits) or MiB (2^20 bytes)
    #[arg(
        long,
        value_name = "UNIT",
        value_enum,
        default_value = "GB",
        hide_possible_values = true
    )]
    pub(crate) report: Unit,

    /// Draw curves over sizes, with the limit as a line; .svg, .html or .png
    #[arg(long, value_name = "FILE")]
    pub(crate) plot: Option<PlotFile>,

    /// Draw curves of earlier runs too, from their output with --json; can be repeated
    #[arg(long, value_name = "FILE", requires = "plot")]
    pub(crate) with: Vec<PathBuf>,

    /// Print one JSON object at the end, in place of the table
    #[arg(long)]
    pub(crate) json: bool,
}

/// Unit of bandwidths.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum, strum::Display)]
pub(crate) enum Unit {
    #[value(name = "GB", alias = "gb")]
    #[strum(to_string = "GB/s")]
    Gigabytes,
    #[value(name = "Gb")]
    #[strum(to_string = "Gb/s")]
    Gigabits,
    #[value(name = "MiB")]
    #[strum(to_string = "MiB/s")]
    Mebibytes,
}

impl Unit {
    /// Converts 10^9 bytes per second.
    pub(crate) fn convert(self, gigabytes: f64) -> f64 {
        match self {
            Unit::Gigabytes => gigabytes,
            Unit::Gigabits => gigabytes * 8.0,
            Unit::Mebibytes => gigabytes * 1e9 / f64::from(1 << 20),
        }
    }
}

const COLLECTIVES: [&str; 9] = [
    "all_reduce", "reduce", "broadcast", "gather", "scatter", "all_gather", "reduce_scatter",
    "all_to_all", "barrier",
];

/// Kind of measurement: latency, bandwidth, or a collective.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum, strum::Display)]
#[strum(serialize_all = "lowercase")]
pub(crate) enum Benchmark {
    Lat,
    Bw,
    Coll,
}

/// Sizes of messages in bytes, in the order in which they are measured.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Sizes(pub(crate) Vec<usize>);

impl FromStr for Sizes {
    type Err = String;

    fn from_str(text: &str) -> Result<Sizes, String> {
        let Some((first, last)) = text.split_once("..") else {
            return text.split(',').map(size).collect::<Result<_, _>>().map(Sizes);
        };
        let (first, last) = (size(first)?, size(last)?);
        if first == 0 || first > last {
            return Err("a range starts at 1 or more and does not end below its start".to_owned());
        }
        Ok(Sizes(
            std::iter::successors(Some(first), |size| Some(size * 2))
                .take_while(|size| *size <= last)
                .collect(),
        ))
    }
}

fn size(text: &str) -> Result<usize, String> {
    let size = values::parse_size(text).filter(|size| *size <= MAX_SIZE);
    size.ok_or_else(|| format!("{text:?} is not a size of up to 1G, such as 8, 64K or 16M"))
}

#[derive(Debug, thiserror::Error)]
pub(crate) enum BenchError {
    #[error("rlaunch bench coll needs a collective: {}", COLLECTIVES.join(", "))]
    NoCollective,
    #[error("rlaunch bench {0} takes no collective, but {1} was given")]
    Collective(Benchmark, String),
    #[error("rlaunch bench {benchmark} is between 2 ranks, but there {are}", are = verb_and_count(*.ranks as usize))]
    Ranks { benchmark: Benchmark, ranks: u32 },
}

fn verb_and_count(number: usize) -> String {
    if number == 1 { "is 1".to_owned() } else { format!("are {number}") }
}

/// Runs the measuring job of `rlaunch bench`, or one of its verbs.
pub(super) async fn run(command: BenchCommand, line: &CommandLine) -> Result<Exit, Failed> {
    let (benchmark, args) = match command {
        BenchCommand::Train(args) => return train::run(args, line).await,
        BenchCommand::Mesh(args) => return mesh::run(args, line).await,
        BenchCommand::Verbs(operation, args) => return verbs::run(operation, args, line).await,
        BenchCommand::Nccl(args) => return args.run(line).await,
        BenchCommand::Mpi(args) => return args.run(line).await,
        BenchCommand::Measure(benchmark, args) => (benchmark, args),
    };
    let program = measuring_program(&args.measurement)?;
    let results = args.results.clone();
    let name = args.collective.clone().unwrap_or_else(|| benchmark.to_string());
    let earlier = results.check(&name)?;
    let job = args.into_job(benchmark, program);
    let job = job.map_err(|error| Failed::from_error(Exit::USAGE, &error))?;
    let launch = job.launch(&line.config)?;
    check_ranks(&launch.spec, benchmark)?;
    output::prepare_plot(results.plot.as_ref())?;
    let (mut table, json) = (Table::new(results.report), results.json);
    let measured = records::run(launch, move |record, facts| {
        let lines = table.lines(record, facts).filter(|_| !json);
        lines.map_or(Ok(()), |lines| stdout::try_print(&lines))
    })
    .await?;
    let records = &measured.reader.records;
    let summary = measured.facts().and_then(|facts| Summary::new(records, facts));
    results.show(summary.as_ref(), &earlier, measured.ended.is_ok())?;
    measured.ended
}

impl ResultArgs {
    /// Reads the earlier runs of a benchmark, and checks that it can be drawn if a picture is asked for.
    fn check(&self, bench: &str) -> Result<Vec<EarlierRun>, Failed> {
        if self.plot.is_some() && bench == "barrier" {
            return Err(Failed::new(Exit::USAGE, "a barrier has no sizes to draw curves over"));
        }
        let earlier = self.with.iter().map(|path| EarlierRun::read(path, bench));
        let earlier = earlier.collect::<Result<Vec<_>, _>>();
        earlier.map_err(|error| Failed::from_error(Exit::FILES, &error))
    }

    /// Prints the lines below the rows, or JSON. Draws curves if the measurement is `complete`.
    fn show(
        &self,
        summary: Option<&Summary<'_>>,
        earlier: &[EarlierRun],
        complete: bool,
    ) -> Result<(), Failed> {
        let Some(summary) = summary else { return Ok(()) };
        let text = if self.json { format!("{}\n", summary.json()) } else { summary.end() };
        output::print_measurement(&text);
        if let Some(file) = self.plot.as_ref().filter(|_| complete) {
            let curves = summary.curves(self.report, earlier);
            output::write_plot(file, &curves.title, &[&curves])?;
        }
        Ok(())
    }
}

/// Finds the program that measures, which comes with rlaunch.
pub(super) fn measuring_program(measurement: &MeasurementArgs) -> Result<PathBuf, Failed> {
    own_program(store::BENCH, measurement.connect.agent.as_deref())
}

/// Finds a program that comes with rlaunch, for this machine. `agent` is the path from `--agent`.
pub(super) fn own_program(name: &'static str, agent: Option<&Path>) -> Result<PathBuf, Failed> {
    const ARCH: &str = std::env::consts::ARCH;
    let failed =
        |error: store::AgentStoreError| Failed::from_error(Exit::FILES, &error).hint(error.hint());
    if let Some(path) = store::path_beside_agent(name, agent, ARCH).map_err(failed)? {
        return Ok(path);
    }
    let program = store::carried(name, agent, ARCH).map_err(failed)?;
    program.local_path().map_err(|error| {
        Failed::new(Exit::FILES, format!("no place for {program} on this machine: {error}"))
            .hint(Some(host_file::PLACES))
    })
}

/// Returns the job that copies the measuring program to the hosts and runs it with `words`.
pub(super) fn measuring_job(
    args: MeasurementArgs,
    program: PathBuf,
    words: Vec<String>,
) -> MeasurementJob {
    let name = program.file_name().unwrap_or(program.as_os_str()).to_owned();
    let argv = [name].into_iter().chain(words.into_iter().map(OsString::from)).collect();
    let mut job = MeasurementJob::new("bench", args, argv);
    job.process.preload.push(program);
    job
}

/// Checks that the number of ranks suits the benchmark, if that number is known. Otherwise the measuring program checks
/// it later.
fn check_ranks(job: &JobSpec, benchmark: Benchmark) -> Result<(), Failed> {
    let Some(ranks) = known_ranks(job)? else { return Ok(()) };
    benchmark
        .check_ranks(ranks)
        .map_err(|error| Failed::from_error(Exit::USAGE, &error).hint(Some(TWO_RANKS)))
}

/// Ways to have two ranks, as the text of a hint.
const TWO_RANKS: &str = "-H a,b for two hosts, -H a:2 for two ranks on one host, or -np 2";

/// Returns the number of ranks; `None` if it depends on how many GPUs the hosts have, which is not known yet.
fn known_ranks(job: &JobSpec) -> Result<Option<u32>, Failed> {
    if job.has_slots_from_gpus() {
        return Ok(job.first().ranks);
    }
    let map = job.map_ranks().map_err(|error| Failed::from_error(Exit::USAGE, &error))?;
    Ok(Some(map.world_size))
}

impl Benchmark {
    /// Returns an error if `lat` or `bw` would run with a number of ranks other than 2. A collective may have any
    /// number.
    fn check_ranks(self, ranks: u32) -> Result<(), BenchError> {
        match (self, ranks) {
            (Benchmark::Coll, _) | (_, 2) => Ok(()),
            (benchmark, _) => Err(BenchError::Ranks { benchmark, ranks }),
        }
    }
}

impl BenchArgs {
    /// Returns the job that runs the measuring program.
    fn into_job(
        self,
        benchmark: Benchmark,
        program: PathBuf,
    ) -> Result<MeasurementJob, BenchError> {
        let test = match (benchmark, self.collective) {
            (Benchmark::Coll, Some(collective)) => collective,
            (Benchmark::Coll, None) => return Err(BenchError::NoCollective),
            (benchmark, None) => benchmark.to_string(),
            (benchmark, Some(collective)) => {
                return Err(BenchError::Collective(benchmark, collective));
            }
        };
        let is_collective = benchmark == Benchmark::Coll;
        let last: usize = if is_collective { 16 << 20 } else { 4 << 20 };
        let default = || Sizes((3..=last.ilog2()).map(|power| 1 << power).collect());
        let sizes = match test.as_str() {
            "barrier" => Sizes(vec![0]),
            _ => self.sizes.unwrap_or_else(default),
        };
        let sizes: Vec<String> = sizes.0.iter().map(ToString::to_string).collect();
        let element = if is_collective { self.element } else { "u8".to_owned() };
        let batches = self.iterations.unwrap_or(0).to_string();
        let words = vec![test, sizes.join(","), element, self.op, batches];
        let job = measuring_job(self.measurement, program, words);
        Ok(MeasurementJob { ranks: self.ranks, ..job })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn words(line: &str) -> Result<String, Box<dyn std::error::Error>> {
        let words = ["rlaunch bench"].into_iter().chain(line.split(' '));
        let args = BenchArgs::try_parse_from(words)?;
        let benchmark = args.benchmark.ok_or("no kind")?;
        let job = args.into_job(benchmark, "/x/rlaunch-bench".into())?;
        let words = job.argv.iter().map(|word| word.to_string_lossy().into_owned());
        Ok(words.collect::<Vec<_>>().join(" "))
    }

    #[test]
    fn sizes_are_doubled_or_listed() {
        let sizes = |text: &str| text.parse::<Sizes>().map(|sizes| sizes.0);
        assert_eq!(sizes("8..64").unwrap(), [8, 16, 32, 64]);
        assert_eq!(sizes("3..10").unwrap(), [3, 6]);
        assert_eq!(sizes("0,1k,2M").unwrap(), [0, 1024, 2 << 20]);
        for bad in ["", "8..", "9..8", "0..8", "2G", "8,x", "K", "-1", "18446744073709551615G"] {
            assert!(sizes(bad).is_err(), "{bad}");
        }
    }

    #[test]
    fn what_was_typed_becomes_a_job() {
        let line = words("coll all_gather -H a:2,b --sizes 8,16 --type u8 --json").unwrap();
        assert_eq!(line, "rlaunch-bench all_gather 8,16 u8 sum 0");
        let line = words("lat -H a,b --sizes 8 --iterations 5").unwrap();
        assert_eq!(line, "rlaunch-bench lat 8 u8 sum 5");
        assert!(words("coll all_reduce -H a").unwrap().contains(" 8,16,32,"));
        assert_eq!(words("coll barrier -H a").unwrap(), "rlaunch-bench barrier 0 f32 sum 0");
    }

    fn command(line: &str) -> Result<BenchCommand, clap::Error> {
        let definition = <BenchCommand as clap::Args>::augment_args(Command::new("bench"));
        let words = ["bench"].into_iter().chain(line.split(' '));
        BenchCommand::from_arg_matches(&definition.try_get_matches_from(words)?)
    }

    #[test]
    fn without_a_kind_all_pairs_are_measured() {
        let mesh = |line: &str| match command(line) {
            Ok(BenchCommand::Mesh(args)) => (args.report, args.size, args.json),
            other => panic!("{line}: {other:?}"),
        };
        assert_eq!(mesh("-H a,b"), mesh("mesh -H a,b"));
        assert_eq!(mesh("-H a,b --report GB --json"), mesh("mesh -H a,b --report GB --json"));
        for refused in ["--sizes 8", "--type u8", "--op sum", "--iterations 9"] {
            assert!(command(&format!("-H a,b {refused}")).is_err(), "{refused}");
        }
        let error = command("-H a,b --plot a.svg --with b.json").unwrap_err().to_string();
        assert!(error.contains("--with needs a kind of measurement"), "{error}");
    }

    #[test]
    fn what_cannot_be_meant_is_said() {
        let error = |line: &str| words(line).unwrap_err().to_string();
        assert!(
            error("coll -H a").starts_with("rlaunch bench coll needs a collective: all_reduce,")
        );
        assert!(error("lat barrier").contains("takes no collective"));
        assert!(error("coll allreduce").contains("invalid value 'allreduce'"));
        let one = Benchmark::Lat.check_ranks(1).unwrap_err().to_string();
        assert_eq!(one, "rlaunch bench lat is between 2 ranks, but there is 1");
        assert!(Benchmark::Coll.check_ranks(1).is_ok());
    }
}
