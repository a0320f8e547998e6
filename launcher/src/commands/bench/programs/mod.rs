//! `rlaunch bench nccl` and `rlaunch bench mpi`: run a test program that the hosts have, and report its table as
//! rlaunch reports its own measurements.
//!
//! | file | subject |
//! |---|---|
//! | `suite` | nccl-tests and OSU's micro-benchmarks: tests, programs, and places where hosts have them |
//! | `parser` | parsers of the output of the two suites |
//! | `table` | output of a program while it runs: tables in the form of rlaunch's own, and what it comes to |

pub(crate) mod parser;
pub(crate) mod suite;
mod table;

use super::table::EarlierRun;
use super::{ResultArgs, known_ranks, records};
use crate::cli::args::{MeasurementArgs, ProcessArgs, values};
use crate::cli::command_line::CommandLine;
use crate::cli::lower::MeasurementJob;
use crate::commands::output;
use clap::Parser;
use rlaunch_bootstrap::env as names;
use rlaunch_bootstrap::job::{EnvRule, EnvVar};
use rlaunch_console::messages;
use rlaunch_plan::job::JobSpec;
use rlaunch_text::exit::Exit;
use rlaunch_text::message::Failed;
use std::ffi::OsString;
use std::path::{Path, PathBuf};
use std::str::FromStr;
use std::time::Duration;
use suite::{Suite, Test};
use table::ProgramReader;

/// Variable by which nccl-tests take the GPU with this number, and not that of their local rank.
const NCCL_TESTS_DEVICE: &str = "NCCL_TESTS_DEVICE";

/// Measure NCCL between hosts by nccl-tests, which the hosts must have.
///
/// all_reduce_perf, or the program of another test, runs as a job whose ranks have a GPU each, and its table is reported
/// like that of `rlaunch bench coll`. Wrong values are an error. Other lines, such as NCCL's log, go to stderr.
#[derive(Debug, Parser)]
#[command(
    override_usage = "rlaunch bench nccl [OPTIONS] [TEST] [-- ARGUMENT...]",
    after_help = "\
Tests: all_reduce (the default), all_gather, reduce_scatter, all_to_all, broadcast, reduce, gather,
scatter, sendrecv; or the program's name, as alltoall_perf.

The program is looked for in PATH on the hosts, then in /usr/local/bin and /opt/nccl-tests/build,
also under the name of NVIDIA's containers, all_reduce_perf_mpi. It must be built with MPI, or each
rank would measure alone:
  git clone https://github.com/NVIDIA/nccl-tests /opt/nccl-tests
  make -C /opt/nccl-tests MPI=1

Examples:
  rlaunch bench nccl -H a:8,b:8                        all_reduce on 16 GPUs, 8 bytes to 128 MiB
  rlaunch bench nccl all_to_all -H a:8,b:8 --sizes 1M..8G --report Gb
  rlaunch bench nccl -H a,b                            one GPU of each host
  rlaunch bench nccl -H a:8,b:8 -x NCCL_ALGO=Ring --plot ring.svg
  rlaunch bench nccl -H a,b --program ~/nccl-tests/build/all_gather_perf
  rlaunch bench nccl -H a:8,b:8 -- -d bfloat16 -o max -w 20

Columns are those of `rlaunch bench --help`; times are averages of nccl-tests, out of place and in
place, and the limit is that of one port of each host."
)]
pub(crate) struct NcclArgs {
    /// Test to run, one of those below
    #[arg(value_name = "TEST", value_parser = |name: &str| Suite::NcclTests.test(name))]
    test: Option<&'static Test>,

    #[command(flatten)]
    options: ProgramOptions,
}

/// Measure MPI between hosts by OSU's micro-benchmarks, which the hosts must have.
///
/// osu_allreduce, or the program of another test, runs as a job, and its table is reported like that of
/// `rlaunch bench lat|bw|coll`. Other lines, such as those of a library's log, go to stderr.
#[derive(Debug, Parser)]
#[command(
    override_usage = "rlaunch bench mpi [OPTIONS] [TEST] [-- ARGUMENT...]",
    after_help = "\
Tests: lat, bw, bibw (between 2 ranks), mbw_mr, multi_lat (between pairs), all_reduce (the default),
all_gather, reduce_scatter, all_to_all, broadcast, reduce, gather, scatter, barrier; or the
program's name, as osu_latency.

The program is looked for in PATH on the hosts, then in libexec/osu-micro-benchmarks of /usr/local,
/usr, /opt/osu-micro-benchmarks and /opt/conda, also under the name of Red Hat's packages,
mpitests-osu_latency. Its MPI library may be Open MPI, MPICH or Intel MPI (`rlaunch help programs`).

Examples:
  rlaunch bench mpi lat -H a,b                         half of a round trip between two hosts
  rlaunch bench mpi bw -H a,b --plot bw.svg            bandwidth, with the limit
  rlaunch bench mpi bw -H a,b --plot x.svg --with own.json   beside rlaunch's own bw --json
  rlaunch bench mpi -H a:4,b:4 --sizes 4..16M          all_reduce of 8 ranks
  rlaunch bench mpi -H a,b -x OMPI_MCA_pml=ob1         another transport of Open MPI
  rlaunch bench mpi -H a,b --program ./osu_bw --copy ./osu_bw   a program of this machine
  rlaunch bench mpi bw -H a,b -- -W 128                an option of the program

Columns are those of `rlaunch bench --help`; times are averages of all ranks, their minimum and
maximum those of single ranks. algbw of bibw is the sum of both directions, busbw is one of them."
)]
pub(crate) struct MpiArgs {
    /// Test to run, one of those below
    #[arg(value_name = "TEST", value_parser = |name: &str| Suite::Osu.test(name))]
    test: Option<&'static Test>,

    #[command(flatten)]
    options: ProgramOptions,
}

/// Options of both suites.
#[derive(Clone, Debug, clap::Args)]
struct ProgramOptions {
    #[command(flatten)]
    measurement: MeasurementArgs,

    /// Number of ranks, also `-np N`; by default one for each slot
    #[arg(short = 'n', long = "np", value_name = "N", value_parser = values::parse_ranks)]
    ranks: Option<u32>,

    /// Sizes from FIRST to LAST, doubled each time, as the program counts them; K, M and G are powers of 1024. By
    /// default 8..128M for nccl, the program's own for mpi
    #[arg(long, value_name = "FIRST..LAST|SIZE")]
    sizes: Option<SizeRange>,

    /// Number of iterations for each size; by default the program's own
    #[arg(long, value_name = "N", visible_alias = "iters")]
    #[arg(value_parser = clap::value_parser!(u32).range(1..=1_000_000))]
    iterations: Option<u32>,

    /// The program, with its path on the hosts or as a name that is looked for
    #[arg(long, value_name = "PATH|NAME")]
    program: Option<PathBuf>,

    #[command(flatten)]
    process: ProcessArgs,

    /// End the measurement after this time in seconds
    #[arg(long, value_name = "SECONDS", value_parser = values::parse_timeout)]
    timeout: Option<Duration>,

    #[command(flatten)]
    results: ResultArgs,

    /// Arguments of the program, after those that rlaunch gives it
    #[arg(value_name = "ARGUMENT", last = true)]
    arguments: Vec<OsString>,
}

/// Sizes in bytes, from the first to the last.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct SizeRange(usize, usize);

impl FromStr for SizeRange {
    type Err = String;

    fn from_str(text: &str) -> Result<SizeRange, String> {
        let size = |text: &str| {
            let size = values::parse_size(text).filter(|size| (1..=1 << 40).contains(size));
            size.ok_or_else(|| {
                format!("{text:?} is not a size of 1 to 1024G, such as 8, 64K or 16M")
            })
        };
        if text.contains(',') {
            return Err("a test program takes no list of sizes, only FIRST..LAST".to_owned());
        }
        let (first, last) = text.split_once("..").unwrap_or((text, text));
        let (first, last) = (size(first)?, size(last)?);
        match first <= last {
            true => Ok(SizeRange(first, last)),
            false => Err("a range does not end below its start".to_owned()),
        }
    }
}

impl NcclArgs {
    pub(super) async fn run(self, line: &CommandLine) -> Result<Exit, Failed> {
        run(Suite::NcclTests, self.test, self.options, line).await
    }
}

impl MpiArgs {
    pub(super) async fn run(self, line: &CommandLine) -> Result<Exit, Failed> {
        run(Suite::Osu, self.test, self.options, line).await
    }
}

/// Runs the program of a test, and prints its results.
async fn run(
    suite: Suite,
    asked: Option<&'static Test>,
    options: ProgramOptions,
    line: &CommandLine,
) -> Result<Exit, Failed> {
    let test = suite.choose(asked, options.program.as_deref());
    let test = test.map_err(|error| Failed::from_error(Exit::USAGE, &error))?;
    let results = options.results.clone();
    let earlier: Vec<EarlierRun> = results.check(test.name)?;
    let program = options.program.clone().unwrap_or_else(|| test.program.into());
    let mut launch = options.into_job(suite, test, &program).launch(&line.config)?;
    let is_searched = search(&mut launch.spec, suite, &program);
    check_ranks(&launch.spec, test)?;
    output::prepare_plot(results.plot.as_ref())?;
    let reader = ProgramReader::new((suite, test), &program, &results);
    let measured = records::run_lines(launch, reader).await?;
    let summary = measured.facts().and_then(|facts| measured.reader.summary(facts));
    let complete = measured.ended.is_ok() && measured.reader.fault().is_none();
    results.show(summary.as_ref(), &earlier, complete)?;
    if let Some(incomplete) = measured.reader.incomplete() {
        messages::warn(&incomplete);
    }
    let has_started = measured.facts().is_some();
    let missing = |failed: &Failed| {
        is_searched && !has_started && failed.exit == Exit::NOT_FOUND && failed.details.is_empty()
    };
    let ended = measured.ended.map_err(|failed| match missing(&failed) {
        true => explain_missing(failed, suite, &program),
        false => failed,
    });
    measured.reader.verdict(ended)
}

/// Makes the agents look for the program in the usual places and under its other names, unless it is given with a
/// path. Tells whether they look for it.
fn search(job: &mut JobSpec, suite: Suite, program: &Path) -> bool {
    let name = program.to_string_lossy();
    if name.contains('/') {
        return false;
    }
    for app in &mut job.apps {
        let value = suite.directories().join(":").into();
        app.env.push(EnvVar { name: names::PATH.into(), value, rule: EnvRule::PathAfter });
        app.other_names = suite.other_names(&name);
    }
    true
}

fn check_ranks(job: &JobSpec, test: &Test) -> Result<(), Failed> {
    let Some(ranks) = known_ranks(job)? else { return Ok(()) };
    test.check_ranks(ranks)
        .map_err(|error| Failed::from_error(Exit::USAGE, &error).hint(Some(super::TWO_RANKS)))
}

/// Adds to the error of hosts without the program where it was looked for, and how to get it.
fn explain_missing(mut failed: Failed, suite: Suite, program: &Path) -> Failed {
    let name = program.to_string_lossy();
    let names: Vec<OsString> = suite.other_names(&name);
    let names: Vec<String> = names.iter().map(|name| name.display().to_string()).collect();
    let places = suite.places().join(", ");
    failed.details =
        vec![format!("nor is {}: not in PATH there, and not in {places}", names.join(", "))];
    failed.hints.clear();
    failed
        .hint(Some(suite.how_to_get()))
        .hint(Some("--program PATH names it elsewhere, --copy FILE copies it from this machine"))
}

impl ProgramOptions {
    /// Returns the job that runs the program.
    fn into_job(self, suite: Suite, test: &Test, program: &Path) -> MeasurementJob {
        let sizes = self.sizes.map(|SizeRange(first, last)| (first, last));
        let arguments = suite.arguments(test, sizes, self.iterations);
        let arguments = arguments.into_iter().map(OsString::from).chain(self.arguments);
        let argv = [program.as_os_str().to_owned()].into_iter().chain(arguments).collect();
        let mut process = self.process;
        if suite == Suite::NcclTests && self.measurement.placement.gpu_mask {
            // Each rank sees one GPU, whatever its local rank is. What the user sets comes later and wins.
            process.env.insert(0, format!("{NCCL_TESTS_DEVICE}=0").into());
        }
        MeasurementJob {
            process,
            ranks: self.ranks,
            timeout: self.timeout,
            ..MeasurementJob::new("bench", self.measurement, argv)
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use clap::CommandFactory;

    fn words(line: &str) -> Vec<String> {
        ["x"].into_iter().chain(line.split(' ')).map(str::to_owned).collect()
    }

    fn nccl(line: &str) -> MeasurementJob {
        let NcclArgs { test, options } = NcclArgs::try_parse_from(words(line)).unwrap();
        let program = options.program.clone().unwrap_or_else(|| "all_reduce_perf".into());
        let test = Suite::NcclTests.choose(test, None).unwrap();
        options.into_job(Suite::NcclTests, test, &program)
    }

    fn argv(job: &MeasurementJob) -> String {
        let words = job.argv.iter().map(|word| word.to_string_lossy().into_owned());
        words.collect::<Vec<_>>().join(" ")
    }

    #[test]
    fn the_definitions_are_sound() {
        NcclArgs::command().debug_assert();
        MpiArgs::command().debug_assert();
    }

    #[test]
    fn what_was_typed_becomes_a_job() {
        let job = nccl("-H a:2,b:2 -n 3 --sizes 8..1K --iters 7 -x A=1 --timeout 9 -- -d half");
        assert_eq!(argv(&job), "all_reduce_perf -b 8 -e 1024 -f 2 -g 1 -n 7 -d half");
        assert_eq!((job.ranks, job.args.hosts), (Some(3), vec!["a:2,b:2".to_owned()]));
        assert_eq!(job.process.env, ["A=1"]);
        assert_eq!(job.timeout, Some(Duration::from_secs(9)));
        let job = nccl("alltoall_perf -H a --gpu-mask -x NCCL_TESTS_DEVICE=1");
        assert_eq!(job.process.env, ["NCCL_TESTS_DEVICE=0", "NCCL_TESTS_DEVICE=1"]);
    }

    #[test]
    fn a_program_with_a_path_is_not_looked_for() {
        let lowered = |program: &str| {
            let mut job = crate::cli::lower::parse("-H a,b prog").unwrap();
            let searched = search(&mut job, Suite::Osu, Path::new(program));
            let is_path = |var: &&EnvVar| var.name == names::PATH && var.rule == EnvRule::PathAfter;
            let paths = job.first().env.iter().filter(is_path).count();
            (searched, paths, job.first().other_names.clone())
        };
        assert_eq!(lowered("osu_bw"), (true, 1, vec!["mpitests-osu_bw".into()]));
        assert_eq!(lowered("./osu_bw"), (false, 0, vec![]));
    }

    #[test]
    fn what_cannot_be_meant_is_said() {
        let error = |line: &str| MpiArgs::try_parse_from(words(line)).unwrap_err().to_string();
        assert!(
            error("latenz").contains("\"latenz\" is not a test of OSU Micro-Benchmarks: lat, bw")
        );
        assert!(error("lat --sizes 1,2").contains("takes no list of sizes"));
        assert!(error("lat --sizes 9..8").contains("does not end below its start"));
        assert!(error("lat --sizes 0..8").contains("is not a size of 1 to 1024G"));
        assert!(error("lat osu_bw").contains("unexpected argument 'osu_bw'"));
    }

    #[test]
    fn hosts_without_the_program_are_told_how_to_get_it() {
        let failed = Failed::new(Exit::NOT_FOUND, "osu_bw is not on a, b").hint(Some("PATH"));
        let failed = explain_missing(failed, Suite::Osu, Path::new("osu_bw"));
        assert_eq!(failed.message, "osu_bw is not on a, b");
        assert!(
            failed.details[0]
                .starts_with("nor is mpitests-osu_bw: not in PATH there, and not in /usr/")
        );
        assert!(failed.hints[0].contains("https://mvapich.cse.ohio-state.edu/benchmarks/"));
        assert!(failed.hints[1].starts_with("--program PATH"), "{failed:?}");
    }
}
