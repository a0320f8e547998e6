//! What `rlaunch bench` runs on the hosts: `rlaunch-bench WHAT SIZES TYPE OP BATCHES table|json`.
//!
//! The launcher has checked what was typed; `BATCHES` 0 means as many as a second has, within
//! bounds. Rank 0 prints.

mod act;
mod memory;
mod report;

use act::Act;
use memory::Memory;
use report::{BATCH, Row, Subject};
use rlaunch_comm::raw::CollectiveKind;
use rlaunch_comm::{CommError, Communicator, ElementType, Op, StartError, error_chain};
use std::process::ExitCode;
use std::time::Instant;

/// How many batches of a size are timed where nobody says it: those of about [`BUDGET`] seconds.
const BATCHES: std::ops::RangeInclusive<u64> = 10..=1000;
const BUDGET: f64 = 1.0;
/// A batch that was too short is followed by one that should be ample, but not by one that is this
/// many times longer: the first is mostly start-up.
const AMPLE: f64 = 1.5;
const GROWTH: f64 = 100.0;

#[derive(Debug, thiserror::Error)]
enum BenchError {
    #[error("usage: rlaunch-bench WHAT SIZES TYPE OP BATCHES table|json")]
    Usage,
    #[error(transparent)]
    Start(#[from] StartError),
    #[error(transparent)]
    Comm(#[from] CommError),
    #[error("{what} of {bytes} bytes brought wrong data to rank {rank}")]
    Wrong { what: &'static str, bytes: usize, rank: usize },
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

/// What was asked for.
struct Asked {
    act: Act,
    sizes: Vec<usize>,
    element: ElementType,
    op: Op,
    batches: u64,
    json: bool,
}

impl Asked {
    fn read(words: &[String]) -> Option<Asked> {
        let [what, sizes, element, op, batches, form] = words else { return None };
        let sizes: Result<Vec<usize>, _> = sizes.split(',').map(str::parse).collect();
        Some(Asked {
            act: Act::named(what)?,
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
    let asked = Asked::read(&words).ok_or(BenchError::Usage)?;
    let comm = Communicator::from_env()?;
    let Asked { act, element, op, .. } = asked;
    let (hosts, over) = (Vec::new(), Vec::new());
    let mut subject = Subject { act, element, op, ranks: comm.size(), hosts, over };
    let (is_first, mut rows) = (comm.rank() == 0, Vec::new());
    if is_first {
        subject.describe();
    }
    if is_first && !asked.json {
        println!("{}", subject.head());
    }
    let mut measured = None;
    for &bytes in &asked.sizes {
        let elements = elements(&asked, bytes, comm.size());
        // Small sizes may come to the same.
        if measured.replace(elements) == Some(elements) {
            continue;
        }
        let row = measure(&comm, &asked, elements)?;
        if is_first && !asked.json {
            println!("{}", subject.line(&row));
        }
        rows.push(row);
    }
    if is_first && asked.json {
        println!("{}", subject.json(&rows));
    }
    Ok(comm.barrier()?)
}

/// How many elements a message or a part has; one at least, unless nothing is asked.
fn elements(asked: &Asked, bytes: usize, ranks: usize) -> usize {
    let parts = if asked.act.is_of_all() { ranks } else { 1 };
    match (asked.act, bytes) {
        (Act::Collective(CollectiveKind::Barrier), _) | (_, 0) => 0,
        _ => (bytes / asked.element.size() / parts).max(1),
    }
}

fn measure(comm: &Communicator, asked: &Asked, elements: usize) -> Result<Row, BenchError> {
    let Asked { act, element, op, .. } = *asked;
    let mut memory = Memory::new(comm, act, (element, op), elements);
    let (repetitions, batches) = settle(comm, &mut memory, asked.batches)?;
    let mut times = Vec::new();
    for _ in 0..batches {
        times.push(time(comm, &mut memory, repetitions)? / repetitions as f64 / memory.acts());
    }
    if let Act::Collective(_) = act {
        // A collective has taken as long as it took the last.
        comm.all_reduce_in_place(&mut times, Op::Max)?;
    }
    let parts = if act.is_of_all() { comm.size() } else { 1 };
    let bytes = elements * element.size() * parts;
    if !memory.is_right() {
        return Err(BenchError::Wrong { what: act.name(), bytes, rank: comm.rank() });
    }
    Ok(Row::new(bytes, elements * parts, times, repetitions))
}

/// Seconds of so many repetitions, which all ranks begin together.
fn time(comm: &Communicator, memory: &mut Memory<'_>, count: u64) -> Result<f64, CommError> {
    comm.barrier()?;
    let begin = Instant::now();
    memory.repeat(count)?;
    Ok(begin.elapsed().as_secs_f64())
}

/// Warms up; how many repetitions make a batch, and how many batches there are. Rank 0's clock
/// says.
fn settle(
    comm: &Communicator,
    memory: &mut Memory<'_>,
    asked: u64,
) -> Result<(u64, u64), CommError> {
    let least = BATCH.as_secs_f64();
    let mut count = 1;
    // The first touches all memory.
    time(comm, memory, count)?;
    loop {
        let lasted = time(comm, memory, count)?.max(1e-9);
        let longer = (AMPLE * least / lasted).min(GROWTH);
        let next = if lasted < least { (count as f64 * longer) as u64 + 1 } else { count };
        let batches = match asked {
            0 => ((BUDGET / lasted) as u64).clamp(*BATCHES.start(), *BATCHES.end()),
            asked => asked,
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

    fn asked(words: &str) -> Option<Asked> {
        Asked::read(&words.split(' ').map(str::to_owned).collect::<Vec<_>>())
    }

    #[test]
    fn words_are_understood_or_not() {
        let all = asked("all_reduce 8,16 f32 sum 0 table").unwrap();
        assert_eq!((all.sizes, all.element, all.op), (vec![8, 16], ElementType::F32, Op::Sum));
        for bad in ["all_reduce 8 f32 sum 0", "x 8 f32 sum 0 table", "lat 8,y u8 sum 0 json"] {
            assert!(asked(bad).is_none(), "{bad}");
        }
    }

    #[test]
    fn a_size_is_that_of_a_message_or_of_all_parts() {
        let of = |words: &str, bytes| elements(&asked(words).unwrap(), bytes, 4);
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
                let asked = asked(&format!("{what} 64 {element} sum 3 table")).unwrap();
                let row = measure(&comm, &asked, elements(&asked, 64, 1)).unwrap();
                assert!(row.median() > 0.0, "{what}");
            }
        }
    }
}
