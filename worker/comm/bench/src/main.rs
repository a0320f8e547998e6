//! Benchmark program that `rlaunch bench` starts on the hosts:
//! `rlaunch-bench WHAT SIZES TYPE OP BATCHES`, `rlaunch-bench mesh BYTES MILLISECONDS`, or
//! `rlaunch-bench verbs REQUEST` with a [`rlaunch_bootstrap::bench::VerbsRequest`].
//!
//! `BATCHES` 0 means about one second of batches for each size. The launcher has validated the
//! arguments. Rank 0 writes [`rlaunch_bootstrap::bench::BenchRecord`]s.
//!
//! For each size, [`workload`] fills buffers, and repeats a pattern of communication. The
//! repetitions are grouped into batches that take at least [`report::BATCH`] each, so that neither
//! the clock's resolution nor the barrier before a batch matters. [`report`] makes a record of the
//! batches' times. [`tcp`] measures a plain connection beside them, [`matrix`] all pairs of hosts,
//! and `verbs` RDMA operations.

mod matrix;
mod report;
mod tcp;
#[cfg(feature = "rdma")]
mod verbs;
mod workload;

use matrix::MatrixOptions;
use report::BATCH;
use rlaunch_bootstrap::bench::{BenchRecord, BenchRow, VerbsRequest};
use rlaunch_bootstrap::env;
use rlaunch_bootstrap::rank_table::RankTable;
use rlaunch_comm::raw::CollectiveKind;
use rlaunch_comm::{CommError, Communicator, ElementType, Op, StartError, error_chain};
use std::process::ExitCode;
use std::time::{Duration, Instant};
use workload::{Pattern, Workload};

/// Minimum and maximum number of batches for each size, if the command line gives 0. Within these
/// bounds, all batches together take [`BUDGET`].
const BATCHES: std::ops::RangeInclusive<u64> = 10..=1000;
/// Time for all batches of one size together, in seconds.
const BUDGET: f64 = 1.0;
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
        BenchError::Verbs(error) => error.hint().map(str::to_owned),
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
            write(comm, &BenchRecord::Matrix(matrix))?;
        }
        Measurement::Verbs(request) => measure_verbs(comm, &request)?,
    }
    Ok(matrix::barrier(comm)?)
}

fn measure_pattern(comm: &Communicator, options: &Options) -> Result<(), BenchError> {
    let Options { pattern, element, op, .. } = *options;
    write(comm, &BenchRecord::Begin(report::header(pattern, (element, op), comm.size())))?;
    let mut measured = None;
    for &bytes in &options.sizes {
        let elements = elements(options, bytes, comm.size());
        // Small sizes may be rounded to the same number of elements.
        if measured.replace(elements) == Some(elements) {
            continue;
        }
        let row = measure(comm, options, elements)?;
        write(comm, &BenchRecord::Row(row))?;
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
        write(comm, &BenchRecord::Tcp(rate))?;
    }
    Ok(())
}

#[cfg(feature = "rdma")]
fn measure_verbs(comm: &Communicator, request: &VerbsRequest) -> Result<(), BenchError> {
    verbs::measure(comm, rank_table().as_ref(), request, report::write)?;
    if request.has_comparable_bandwidth() {
        measure_tcp(comm)?;
    }
    Ok(())
}

#[cfg(not(feature = "rdma"))]
fn measure_verbs(_: &Communicator, _: &VerbsRequest) -> Result<(), BenchError> {
    Err(BenchError::NoRdma)
}

/// Writes a record if this is rank 0.
fn write(comm: &Communicator, record: &BenchRecord) -> Result<(), BenchError> {
    if comm.rank() == 0 {
        report::write(record)?;
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
    Ok(report::row((bytes, elements * parts), times, repetitions))
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
}
