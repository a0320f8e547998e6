//! Benchmark program that `rlaunch bench` starts on the hosts:
//! `rlaunch-bench WHAT SIZES TYPE OP BATCHES`, `rlaunch-bench mesh BYTES MILLISECONDS`, or
//! `rlaunch-bench verbs REQUEST` with a [`rlaunch_bootstrap::bench::VerbsRequest`].
//!
//! `BATCHES` 0 means about one second of batches for each size. The launcher has validated the
//! arguments. Rank 0 writes [`rlaunch_bootstrap::bench::BenchRecord`]s.
//!
//! For each size, [`workload`] fills buffers, and repeats a pattern of communication. The
//! repetitions are grouped into batches that take at least [`BATCH`] each, so that neither the
//! clock's resolution nor the barrier before a batch matters. A record has the batches' times.
//!
//! [`tcp`] measures a plain connection beside messages, [`matrix`] all pairs of hosts, and `verbs`
//! RDMA operations.

mod matrix;
mod tcp;
#[cfg(feature = "rdma")]
mod verbs;
mod workload;

use matrix::MatrixOptions;
use rlaunch_bootstrap::bench::{BenchHeader, BenchRecord, BenchRow, VerbsRequest};
use rlaunch_bootstrap::env;
use rlaunch_bootstrap::rank_table::RankTable;
use rlaunch_comm::raw::CollectiveKind;
use rlaunch_comm::{CommError, Communicator, ElementType, Op, StartError, error_chain};
use std::io::{self, Write};
use std::process::ExitCode;
use std::time::{Duration, Instant};
use workload::{Pattern, Workload};

/// Minimum and maximum number of batches for each size, if the command line gives 0. Within these
/// bounds, all batches together take [`BUDGET`].
const BATCHES: std::ops::RangeInclusive<u64> = 10..=1000;
/// Time for all batches of one size together, in seconds.
const BUDGET: f64 = 1.0;
/// Minimum duration of a batch.
const BATCH: Duration = Duration::from_micros(200);
/// Ratio between the duration that calibration plans for a batch and [`BATCH`], the minimum
/// duration.
const MARGIN: f64 = 1.5;
/// Maximum ratio of a calibration batch's repetitions to those of the batch before it. The measured
/// time of a very short batch is inaccurate, and could otherwise lead to far too many repetitions.
const MAX_GROWTH: f64 = 100.0;

#[derive(Debug, thiserror::Error)]
enum BenchError {
    #[error(
        "usage: rlaunch-bench WHAT SIZES TYPE OP BATCHES | mesh BYTES MILLISECONDS | verbs REQUEST"
    )]
    Usage,
    #[error("cannot write results: {0}")]
    Write(#[from] std::io::Error),
    #[error(transparent)]
    Start(#[from] StartError),
    #[error(transparent)]
    Comm(#[from] CommError),
    #[cfg(feature = "rdma")]
    #[error(transparent)]
    Verbs(#[from] verbs::VerbsBenchError),
    #[cfg(not(feature = "rdma"))]
    #[error("this build of rlaunch-bench has no RDMA")]
    NoRdma,
    #[error("{what} of {bytes} bytes delivered wrong data to rank {rank}")]
    WrongData { what: &'static str, bytes: usize, rank: usize },
}

fn main() -> ExitCode {
    let words: Vec<String> = std::env::args().skip(1).collect();
    let Some(measurement) = Measurement::read(&words) else { return failed(&BenchError::Usage) };
    let comm = match Communicator::from_env() {
        Ok(comm) => comm,
        Err(error) => return failed(&error.into()),
    };
    // A rank that has failed says why before the other ranks notice that it has left.
    match run(&comm, measurement) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => failed(&error),
    }
}

/// Prints why the measurement has failed.
fn failed(error: &BenchError) -> ExitCode {
    eprintln!("error: {}", error_chain(error));
    let hint = match error {
        BenchError::Start(error) => error.hint(),
        #[cfg(feature = "rdma")]
        BenchError::Verbs(error) => error.hint().map(std::borrow::Cow::into_owned),
        _ => None,
    };
    if let Some(hint) = hint {
        eprintln!("hint: {hint}");
    }
    ExitCode::FAILURE
}

/// Measurement of one pattern.
struct Options {
    pattern: Pattern,
    sizes: Vec<usize>,
    element: ElementType,
    op: Op,
    batches: u64,
}

/// Measurement that the command line asks for.
enum Measurement {
    Pattern(Options),
    Matrix(MatrixOptions),
    Verbs(VerbsRequest),
}

impl Measurement {
    fn read(words: &[String]) -> Option<Measurement> {
        match words {
            [what, bytes, millis] if what == "mesh" => {
                let time = Duration::from_millis(millis.parse().ok()?);
                Some(Measurement::Matrix(MatrixOptions { bytes: bytes.parse().ok()?, time }))
            }
            [what, request] if what == "verbs" => {
                serde_json::from_str(request).ok().map(Measurement::Verbs)
            }
            words => Options::read(words).map(Measurement::Pattern),
        }
    }
}

impl Options {
    fn read(words: &[String]) -> Option<Options> {
        let [what, sizes, element, op, batches] = words else { return None };
        let sizes: Result<Vec<usize>, _> = sizes.split(',').map(str::parse).collect();
        Some(Options {
            pattern: Pattern::from_name(what)?,
            sizes: sizes.ok()?,
            element: ElementType::ALL.into_iter().find(|known| known.name() == element)?,
            op: Op::ALL.into_iter().find(|known| known.name() == op)?,
            batches: batches.parse().ok()?,
        })
    }
}

fn run(comm: &Communicator, measurement: Measurement) -> Result<(), BenchError> {
    match measurement {
        Measurement::Pattern(options) => measure_pattern(comm, &options)?,
        Measurement::Matrix(options) => {
            let matrix = matrix::measure(comm, rank_table().as_ref(), options)?;
            print_if_first(comm, &BenchRecord::Matrix(matrix))?;
        }
        Measurement::Verbs(request) => measure_verbs(comm, &request)?,
    }
    Ok(matrix::barrier(comm)?)
}

fn measure_pattern(comm: &Communicator, options: &Options) -> Result<(), BenchError> {
    let Options { pattern, element, op, .. } = *options;
    print_if_first(comm, &BenchRecord::Begin(header(pattern, (element, op), comm.size())))?;
    let mut measured = None;
    for &bytes in &options.sizes {
        let elements = elements(options, bytes, comm.size());
        // Small sizes may be rounded to the same number of elements.
        if measured.replace(elements) == Some(elements) {
            continue;
        }
        let row = measure(comm, options, elements)?;
        print_if_first(comm, &BenchRecord::Row(row))?;
    }
    if pattern == Pattern::Bandwidth {
        measure_tcp(comm)?;
    }
    Ok(())
}

/// Measures a TCP connection beside messages, where the ranks are on different hosts.
fn measure_tcp(comm: &Communicator) -> Result<(), BenchError> {
    if let Some(at) = rank_table().as_ref().and_then(tcp::address)
        && let Some(rate) = tcp::throughput(comm, at)?
    {
        print_if_first(comm, &BenchRecord::Tcp(rate))?;
    }
    Ok(())
}

#[cfg(feature = "rdma")]
fn measure_verbs(comm: &Communicator, request: &VerbsRequest) -> Result<(), BenchError> {
    verbs::measure(comm, rank_table().as_ref(), request, print)?;
    if request.has_comparable_bandwidth() {
        measure_tcp(comm)?;
    }
    Ok(())
}

#[cfg(not(feature = "rdma"))]
fn measure_verbs(_: &Communicator, _: &VerbsRequest) -> Result<(), BenchError> {
    Err(BenchError::NoRdma)
}

/// Prints a record if this is rank 0.
fn print_if_first(comm: &Communicator, record: &BenchRecord) -> Result<(), BenchError> {
    if comm.rank() == 0 {
        print(record)?;
    }
    Ok(())
}

fn rank_table() -> Option<RankTable> {
    let path = std::env::var_os(env::RLAUNCH_RANK_TABLE)?;
    serde_json::from_slice(&std::fs::read(path).ok()?).ok()
}

/// Converts a size in bytes to the number of elements in a message, in a rank's vector, or in one
/// rank's part. The result is at least 1, except for barriers and for size 0, where it is 0.
fn elements(options: &Options, bytes: usize, ranks: usize) -> usize {
    let parts = if options.pattern.size_is_total() { ranks } else { 1 };
    match (options.pattern, bytes) {
        (Pattern::Collective(CollectiveKind::Barrier), _) | (_, 0) => 0,
        _ => (bytes / options.element.size() / parts).max(1),
    }
}

fn measure(
    comm: &Communicator,
    options: &Options,
    elements: usize,
) -> Result<BenchRow, BenchError> {
    let Options { pattern, element, op, .. } = *options;
    let mut workload = Workload::new(comm, pattern, element, op, elements);
    let (repetitions, batches) = calibrate(comm, &mut workload, options.batches)?;
    let mut times = Vec::new();
    for _ in 0..batches {
        times.push(
            time(comm, &mut workload, repetitions)? / repetitions as f64 / workload.operations(),
        );
    }
    if let Pattern::Collective(_) = pattern {
        // A collective takes as long as its slowest rank.
        comm.all_reduce_in_place(&mut times, Op::Max)?;
    }
    let parts = if pattern.size_is_total() { comm.size() } else { 1 };
    let bytes = elements * element.size() * parts;
    if !workload.is_correct() {
        return Err(BenchError::WrongData { what: pattern.name(), bytes, rank: comm.rank() });
    }
    Ok(row((bytes, elements * parts), times, repetitions))
}

/// Returns the time of `count` repetitions in seconds. All ranks start them together after a
/// barrier.
fn time(comm: &Communicator, workload: &mut Workload<'_>, count: u64) -> Result<f64, CommError> {
    comm.barrier()?;
    let begin = Instant::now();
    workload.repeat(count)?;
    Ok(begin.elapsed().as_secs_f64())
}

/// Warms up, and returns the number of repetitions in a batch and the number of batches. Rank 0
/// decides both by its clock and broadcasts them, so that all ranks agree. `requested` is the
/// number of batches; if it is 0, about as many batches are run as fit into [`BUDGET`].
fn calibrate(
    comm: &Communicator,
    workload: &mut Workload<'_>,
    requested: u64,
) -> Result<(u64, u64), CommError> {
    let least = BATCH.as_secs_f64();
    let mut count = 1;
    // The first repetition touches all memory.
    time(comm, workload, count)?;
    loop {
        let lasted = time(comm, workload, count)?.max(1e-9);
        let longer = (MARGIN * least / lasted).min(MAX_GROWTH);
        let next = if lasted < least { (count as f64 * longer) as u64 + 1 } else { count };
        let batches = match requested {
            0 => ((BUDGET / lasted) as u64).clamp(*BATCHES.start(), *BATCHES.end()),
            requested => requested,
        };
        let mut agreed = [next, batches];
        comm.broadcast(&mut agreed, 0)?;
        let [next, batches] = agreed;
        if next == count {
            return Ok((count, batches));
        }
        count = next;
    }
}

/// Prints a record at once, whatever the rank, because the launcher prints rows as they come.
fn print(record: &BenchRecord) -> io::Result<()> {
    let mut line = serde_json::to_vec(record)?;
    line.push(b'\n');
    let mut stdout = io::stdout().lock();
    stdout.write_all(&line)?;
    stdout.flush()
}

/// Describes the measurement of a pattern by `ranks` ranks.
fn header(pattern: Pattern, (element, op): (ElementType, Op), ranks: usize) -> BenchHeader {
    BenchHeader {
        bench: pattern.name().to_owned(),
        element: element.name().to_owned(),
        op: pattern.reduces().then(|| op.name().to_owned()),
        ranks,
        size_is_total: pattern.size_is_total(),
        formula: pattern.formula().to_owned(),
        bus_factor: pattern.bus_factor(ranks),
    }
}

/// Summarises batches of `repetitions` each. `times` are the batches' mean times of an operation in
/// seconds, in any order.
fn row((bytes, elements): (usize, usize), times: Vec<f64>, repetitions: u64) -> BenchRow {
    let times = Sorted::new(times);
    let us = |part| times.quantile(part) * 1e6;
    BenchRow {
        bytes,
        elements,
        median_us: us(0.5),
        min_us: us(0.0),
        p99_us: us(0.99),
        algbw_gb_s: bytes as f64 / times.quantile(0.5) / 1e9,
        batches: times.0.len(),
        repetitions,
    }
}

/// Numbers in ascending order.
struct Sorted(Vec<f64>);

impl Sorted {
    fn new(mut numbers: Vec<f64>) -> Sorted {
        numbers.sort_by(f64::total_cmp);
        Sorted(numbers)
    }

    /// Returns a quantile by the nearest-rank method; NaN if there are no numbers. `part` ranges
    /// from 0 for the minimum to 1 for the maximum.
    fn quantile(&self, part: f64) -> f64 {
        let ordinal = (part * self.0.len() as f64).ceil() as usize;
        self.0.get(ordinal.saturating_sub(1)).copied().unwrap_or(f64::NAN)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn options(words: &str) -> Option<Options> {
        Options::read(&words.split(' ').map(str::to_owned).collect::<Vec<_>>())
    }

    #[test]
    fn words_are_understood_or_not() {
        let all = options("all_reduce 8,16 f32 sum 0").unwrap();
        assert_eq!((all.sizes, all.element, all.op), (vec![8, 16], ElementType::F32, Op::Sum));
        for bad in ["all_reduce 8 f32 sum", "x 8 f32 sum 0", "lat 8,y u8 sum 0"] {
            assert!(options(bad).is_none(), "{bad}");
        }
    }

    #[test]
    fn a_size_is_that_of_a_message_or_of_all_parts() {
        let of = |words: &str, bytes| elements(&options(words).unwrap(), bytes, 4);
        assert_eq!(of("all_reduce 8 f32 sum 0", 64), 16);
        assert_eq!(of("all_gather 8 f32 sum 0", 64), 4);
        assert_eq!(of("all_gather 8 f32 sum 0", 8), 1);
        assert_eq!(of("lat 0 u8 sum 0", 0), 0);
        assert_eq!(of("barrier 0 u8 sum 0", 8), 0);
    }

    #[test]
    fn every_act_runs_alone_and_brings_what_it_should() {
        let comm = Communicator::from_env().unwrap();
        for what in ["barrier", "all_reduce", "all_gather", "all_to_all", "broadcast", "reduce"] {
            for element in ElementType::ALL {
                let options = options(&format!("{what} 64 {element} sum 3")).unwrap();
                let row = measure(&comm, &options, elements(&options, 64, 1)).unwrap();
                assert!(row.median_us > 0.0, "{what}");
            }
        }
    }

    #[test]
    fn quantiles_are_times_that_were_measured() {
        let times = Sorted::new((1..=100).rev().map(f64::from).collect());
        let quantiles = [0.5, 0.0, 0.99].map(|part| times.quantile(part));
        assert_eq!(quantiles, [50.0, 1.0, 99.0]);
        assert_eq!(Sorted::new(vec![3.0]).quantile(0.99), 3.0);
    }

    #[test]
    fn a_row_has_the_bandwidth_at_the_median() {
        let row = row((1 << 20, 1 << 18), vec![1e-3, 1e-3, 5e-3], 1);
        assert_eq!((row.median_us, row.p99_us, row.batches), (1000.0, 5000.0, 3));
        assert!((row.algbw_gb_s - 1.048_576).abs() < 1e-9, "{row:?}");
    }
}
