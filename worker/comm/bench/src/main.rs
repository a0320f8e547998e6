//! Benchmark program that `rlaunch bench` starts on the hosts:
//! `rlaunch-bench WHAT SIZES TYPE OP BATCHES table|json`.
//!
//! `BATCHES` 0 means about one second of batches for each size. The launcher has validated the
//! arguments. Rank 0 prints the results.
//!
//! For each size, [`workload`] fills buffers, and repeats the [`pattern`] of communication. The
//! repetitions are grouped into batches that take at least [`report::BATCH`] each, so that neither
//! the clock's resolution nor the barrier before a batch matters. [`report`] prints quantiles of
//! the batches' times.

mod pattern;
mod report;
mod workload;

use pattern::Pattern;
use report::{BATCH, Report, Row};
use rlaunch_comm::raw::CollectiveKind;
use rlaunch_comm::{CommError, Communicator, ElementType, Op, StartError, error_chain};
use std::process::ExitCode;
use std::time::Instant;
use workload::Workload;

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
    #[error("usage: rlaunch-bench WHAT SIZES TYPE OP BATCHES table|json")]
    Usage,
    #[error(transparent)]
    Start(#[from] StartError),
    #[error(transparent)]
    Comm(#[from] CommError),
    #[error("{what} of {bytes} bytes delivered wrong data to rank {rank}")]
    WrongData { what: &'static str, bytes: usize, rank: usize },
}

fn main() -> ExitCode {
    match run() {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("error: {}", error_chain(&error));
            if let BenchError::Start(error) = &error
                && let Some(hint) = error.hint()
            {
                eprintln!("hint: {hint}");
            }
            ExitCode::FAILURE
        }
    }
}

struct Options {
    pattern: Pattern,
    sizes: Vec<usize>,
    element: ElementType,
    op: Op,
    batches: u64,
    json: bool,
}

impl Options {
    fn read(words: &[String]) -> Option<Options> {
        let [what, sizes, element, op, batches, form] = words else { return None };
        let sizes: Result<Vec<usize>, _> = sizes.split(',').map(str::parse).collect();
        Some(Options {
            pattern: Pattern::from_name(what)?,
            sizes: sizes.ok()?,
            element: ElementType::ALL.into_iter().find(|known| known.name() == element)?,
            op: Op::ALL.into_iter().find(|known| known.name() == op)?,
            batches: batches.parse().ok()?,
            json: form == "json",
        })
    }
}

fn run() -> Result<(), BenchError> {
    let words: Vec<String> = std::env::args().skip(1).collect();
    let options = Options::read(&words).ok_or(BenchError::Usage)?;
    let comm = Communicator::from_env()?;
    let Options { pattern, element, op, .. } = options;
    let (hosts, transports) = (Vec::new(), Vec::new());
    let mut report = Report { pattern, element, op, ranks: comm.size(), hosts, transports };
    let (is_first, mut rows) = (comm.rank() == 0, Vec::new());
    if is_first {
        report.describe();
    }
    if is_first && !options.json {
        println!("{}", report.header());
    }
    let mut measured = None;
    for &bytes in &options.sizes {
        let elements = elements(&options, bytes, comm.size());
        // Small sizes may be rounded to the same number of elements.
        if measured.replace(elements) == Some(elements) {
            continue;
        }
        let row = measure(&comm, &options, elements)?;
        if is_first && !options.json {
            println!("{}", report.line(&row));
        }
        rows.push(row);
    }
    if is_first && options.json {
        println!("{}", report.json(&rows));
    }
    Ok(comm.barrier()?)
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

fn measure(comm: &Communicator, options: &Options, elements: usize) -> Result<Row, BenchError> {
    let Options { pattern, element, op, .. } = *options;
    let mut workload = Workload::new(comm, pattern, (element, op), elements);
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
    Ok(Row::new(bytes, elements * parts, times, repetitions))
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
        let all = options("all_reduce 8,16 f32 sum 0 table").unwrap();
        assert_eq!((all.sizes, all.element, all.op), (vec![8, 16], ElementType::F32, Op::Sum));
        for bad in ["all_reduce 8 f32 sum 0", "x 8 f32 sum 0 table", "lat 8,y u8 sum 0 json"] {
            assert!(options(bad).is_none(), "{bad}");
        }
    }

    #[test]
    fn a_size_is_that_of_a_message_or_of_all_parts() {
        let of = |words: &str, bytes| elements(&options(words).unwrap(), bytes, 4);
        assert_eq!(of("all_reduce 8 f32 sum 0 table", 64), 16);
        assert_eq!(of("all_gather 8 f32 sum 0 table", 64), 4);
        assert_eq!(of("all_gather 8 f32 sum 0 table", 8), 1);
        assert_eq!(of("lat 0 u8 sum 0 table", 0), 0);
        assert_eq!(of("barrier 0 u8 sum 0 table", 8), 0);
    }

    #[test]
    fn every_act_runs_alone_and_brings_what_it_should() {
        let comm = Communicator::from_env().unwrap();
        for what in ["barrier", "all_reduce", "all_gather", "all_to_all", "broadcast", "reduce"] {
            for element in ElementType::ALL {
                let options = options(&format!("{what} 64 {element} sum 3 table")).unwrap();
                let row = measure(&comm, &options, elements(&options, 64, 1)).unwrap();
                assert!(row.median() > 0.0, "{what}");
            }
        }
    }
}
