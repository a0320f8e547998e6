//! `cargo lab bench verbs`: RDMA operations by `rlaunch bench write|read|send`, and messages of
//! rlaunch's communicator, beside perftest's, on two guests.
//!
//! Emulated processors are noisy: perftest compared with itself varies by a factor of two. So each
//! round is perftest, rlaunch, perftest. The ratio of rlaunch to the first perftest is compared
//! with the ratio of the second perftest to the first.

use std::fmt;

use super::Series;
use crate::LabError;
use crate::dist::{self, Profile};
use crate::setup::{self, PackageSet};
use crate::vm::pair::{Benchmark, Pair, Program, Quantity, RdmaOperation};
use crate::vm::{self, Topology, VmLab, VmOptions};

const LAB: &str = "verbs";
const GUESTS: usize = 2;
/// Quantiles of the ratio of perftest to itself, between which the median ratio of rlaunch has to
/// be.
const BAND: (f64, f64) = (0.1, 0.9);
/// Part of the rows that have to be inside their band.
const ROWS: f64 = 0.9;

/// Options of the bench.
#[derive(Debug, Clone)]
pub struct VerbsOptions {
    /// Number of rounds of perftest, rlaunch, perftest.
    pub rounds: usize,
    /// Measure only groups of rows whose names contain this.
    pub row: Option<String>,
}

/// Sizes that are measured by one job of rlaunch.
#[derive(Debug, Clone, Copy)]
struct Group {
    benchmark: Benchmark,
    /// Program that is compared with perftest.
    program: Program,
    /// Sizes of messages in bytes.
    sizes: &'static [usize],
    iterations: usize,
}

const SMALL: &[usize] = &[2, 64, 512, 4 << 10, 16 << 10];
const LARGE: &[usize] = &[64 << 10, 256 << 10, 1 << 20];
const FEW: &[usize] = &[2, 4 << 10, 64 << 10];

const fn group(
    (operation, quantity): (RdmaOperation, Quantity),
    sizes: &'static [usize],
    iterations: usize,
) -> Group {
    let benchmark = Benchmark { operation, quantity };
    Group { benchmark, program: Program::Rlaunch, sizes, iterations }
}

const GROUPS: [Group; 10] = [
    group((RdmaOperation::Write, Quantity::Bandwidth), SMALL, 1000),
    group((RdmaOperation::Write, Quantity::Bandwidth), LARGE, 32),
    group((RdmaOperation::Write, Quantity::Latency), SMALL, 500),
    group((RdmaOperation::Write, Quantity::Latency), LARGE, 20),
    group((RdmaOperation::Read, Quantity::Bandwidth), FEW, 300),
    group((RdmaOperation::Read, Quantity::Latency), FEW, 200),
    group((RdmaOperation::Send, Quantity::Bandwidth), FEW, 300),
    group((RdmaOperation::Send, Quantity::Latency), FEW, 200),
    Group {
        program: Program::Ranks,
        ..group((RdmaOperation::Write, Quantity::Bandwidth), &[1 << 20], 48)
    },
    Group {
        program: Program::Ranks,
        ..group((RdmaOperation::Send, Quantity::Latency), &[8], 1000)
    },
];

impl Group {
    fn order(&self) -> [Program; 3] {
        [Program::Perftest, self.program, Program::Perftest]
    }
}

impl fmt::Display for Group {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let operation = match (self.program, self.benchmark.operation) {
            (Program::Ranks, _) => "message",
            (_, RdmaOperation::Write) => "write",
            (_, RdmaOperation::Read) => "read",
            (_, RdmaOperation::Send) => "send",
        };
        f.write_str(operation)?;
        f.write_str(match self.benchmark.quantity {
            Quantity::Bandwidth => " bandwidth",
            Quantity::Latency => " latency",
        })
    }
}

/// Results of a size, by position in a round: mean bandwidth or median latency.
#[derive(Debug, Default)]
struct RowResults {
    typical: [Series; 3],
    /// Minimum latencies.
    least: [Series; 3],
}

/// Result of one run.
#[derive(Debug, Clone, Copy, PartialEq)]
struct VerbsMeasurement {
    /// Mean bandwidth in MiB/s or median latency in microseconds.
    typical: f64,
    /// Minimum latency; `None` for bandwidths.
    least: Option<f64>,
}

/// Measures and prints; returns whether all bars are met.
pub fn run(options: &VerbsOptions) -> Result<bool, LabError> {
    let wanted =
        |group: &&Group| options.row.as_ref().is_none_or(|row| group.to_string().contains(row));
    let groups: Vec<Group> = GROUPS.iter().filter(wanted).copied().collect();
    if groups.is_empty() {
        let names = GROUPS.map(|group| format!("`{group}`")).join(", ");
        return Err(LabError::Usage(format!("no row has this name; there are {names}")));
    }
    setup::install(PackageSet::Verbs)?;
    dist::build(Profile::Release)?;
    dist::build_bench(Profile::Release)?;
    dist::build_measure(Profile::Release)?;
    vm::build()?;
    println!("starting {GUESTS} guests");
    let share = Some(dist::directory(Profile::Release)?);
    let lab = VmOptions { share, ..VmOptions::new(LAB, GUESTS, Topology::Star) };
    let results = VmLab::with_fresh(&lab, |lab| measure(lab, &groups, options.rounds))?;
    println!("\n{} rounds of perftest, rlaunch, perftest, median (min–max)", options.rounds);
    let mut met = Vec::new();
    for (group, rows) in groups.iter().zip(&results) {
        for (size, row) in group.sizes.iter().zip(rows) {
            met.push(print(group, *size, row));
        }
    }
    let inside = met.iter().filter(|met| **met).count();
    let part = inside as f64 / met.len() as f64;
    let verdict = if part >= ROWS { "met" } else { "MISSED" };
    println!("{inside} of {} rows inside (bar {:.0} %: {verdict})", met.len(), ROWS * 100.0);
    Ok(part >= ROWS)
}

/// Returns the results of each size of each group.
fn measure(lab: &VmLab, groups: &[Group], rounds: usize) -> Result<Vec<Vec<RowResults>>, LabError> {
    let mut pair = Pair::new(lab)?;
    let rows = |group: &Group| group.sizes.iter().map(|_| RowResults::default()).collect();
    let mut results: Vec<Vec<RowResults>> = groups.iter().map(rows).collect();
    for round in 1..=rounds {
        for (group, rows) in groups.iter().zip(&mut results) {
            for (place, program) in group.order().into_iter().enumerate() {
                let amount = (group.sizes, group.iterations);
                let printed = pair.run(program, group.benchmark, amount, &[])?;
                let mut words = Vec::new();
                for (size, row) in group.sizes.iter().zip(&mut *rows) {
                    let measured = read(program, group, *size, &printed)?;
                    words.push(format!("{:.2}", measured.typical));
                    row.typical[place].push(measured.typical);
                    measured.least.into_iter().for_each(|least| row.least[place].push(least));
                }
                println!("round {round}: {group}, {program:?}: {}", words.join(" "));
            }
        }
    }
    Ok(results)
}

/// Reads the line of the output that begins with the size. perftest's columns, which rlaunch prints
/// too, are size, iterations, and either peak and mean bandwidth or minimum, maximum and median
/// latency. Ranks print name, seconds, repetitions and minimum seconds.
fn read(
    program: Program,
    group: &Group,
    size: usize,
    printed: &str,
) -> Result<VerbsMeasurement, LabError> {
    let quantity = group.benchmark.quantity;
    let name = match (program, quantity) {
        (Program::Ranks, Quantity::Bandwidth) => format!("bandwidth/{size}"),
        (Program::Ranks, Quantity::Latency) => format!("latency/{size}"),
        _ => size.to_string(),
    };
    let line = printed.lines().find_map(|line| {
        let words: Vec<&str> = line.split_whitespace().collect();
        (words.first() == Some(&name.as_str())).then_some(words)
    });
    let number = |column: usize| -> Option<f64> { line.as_ref()?.get(column)?.parse().ok() };
    // Ranks print seconds.
    let rate = |seconds: f64| size as f64 / seconds / f64::from(1 << 20);
    let micros = |seconds: f64| seconds * 1e6;
    let measured = match (quantity, program) {
        (Quantity::Bandwidth, Program::Ranks) => number(1).map(rate).zip(Some(None)),
        (Quantity::Bandwidth, _) => number(3).zip(Some(None)),
        (Quantity::Latency, Program::Ranks) => {
            number(1).map(micros).zip(Some(number(3).map(micros)))
        }
        (Quantity::Latency, _) => number(4).zip(Some(number(2))),
    };
    let wrong = || LabError::Unexpected(format!("{group} printed no result:\n{printed}"));
    let (typical, least) = measured.ok_or_else(wrong)?;
    Ok(VerbsMeasurement { typical, least })
}

/// Prints a row; returns whether it is inside its band, or better.
fn print(group: &Group, size: usize, row: &RowResults) -> bool {
    let [first, own, second] = &row.typical;
    let unit = match group.benchmark.quantity {
        Quantity::Bandwidth => "MiB/s",
        Quantity::Latency => "us",
    };
    println!("{group}, {size} bytes, {unit}");
    println!("    perftest {}", first.summary());
    println!("    rlaunch  {}", own.summary());
    println!("    perftest {}", second.summary());
    print_least(row);
    let (ours, theirs) = (own.ratios_to(first), second.ratios_to(first));
    let band = theirs.quantile(BAND.0).zip(theirs.quantile(BAND.1));
    let (Some(median), Some((low, high))) = (ours.median(), band) else { return false };
    let is_inside = (low..=high).contains(&median);
    // Less time, or more bandwidth, is not a failure.
    let is_better = match group.benchmark.quantity {
        Quantity::Bandwidth => median > high,
        Quantity::Latency => median < low,
    };
    let verdict = match (is_inside, is_better) {
        (true, _) => "met",
        (false, true) => "met: better",
        (false, false) => "MISSED",
    };
    println!(
        "    rlaunch/perftest {median:.3}, perftest/perftest {low:.3} to {high:.3}: {verdict}"
    );
    is_inside || is_better
}

/// Prints the minimum latencies of all rounds.
fn print_least(row: &RowResults) {
    let [first, own, _] = &row.least;
    if let (Some(own), Some(first)) = (own.quantile(0.0), first.quantile(0.0)) {
        println!("    minimum {own:.2} beside {first:.2}: {:.3}", own / first);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tables_are_read_by_their_columns() {
        let table = "\
 #bytes     #iterations    BW peak[MB/sec]    BW average[MB/sec]   MsgRate[Mpps]
 65536      1000             101.50             99.25              0.001588
---------------------------------------------------------------------------------------\n";
        let read = |program, group: &Group, size, text| read(program, group, size, text).unwrap();
        let measured = VerbsMeasurement { typical: 99.25, least: None };
        for program in [Program::Perftest, Program::Rlaunch] {
            assert_eq!(read(program, &GROUPS[1], 64 << 10, table), measured);
        }
        let table = " 2       1000          60.10          900.50      71.20    80.00   9.1  1 2\n";
        let measured = VerbsMeasurement { typical: 71.2, least: Some(60.1) };
        assert_eq!(read(Program::Perftest, &GROUPS[2], 2, table), measured);
        let measured = VerbsMeasurement { typical: 512.0, least: None };
        let ranks = "bandwidth/1048576 1.953125e-3 6";
        assert_eq!(read(Program::Ranks, &GROUPS[8], 1 << 20, ranks), measured);
        let measured = VerbsMeasurement { typical: 250.0, least: Some(125.0) };
        assert_eq!(read(Program::Ranks, &GROUPS[9], 8, "latency/8 2.5e-4 1 1.25e-4"), measured);
        assert!(super::read(Program::Perftest, &GROUPS[1], 8, "Unable to connect").is_err());
    }

    #[test]
    fn groups_have_the_sizes_that_are_compared() {
        let sizes = |operation, quantity| {
            let is_wanted = |group: &&Group| {
                group.benchmark == Benchmark { operation, quantity }
                    && group.program == Program::Rlaunch
            };
            GROUPS.iter().filter(is_wanted).map(|group| group.sizes.len()).sum::<usize>()
        };
        for quantity in [Quantity::Bandwidth, Quantity::Latency] {
            assert_eq!(sizes(RdmaOperation::Write, quantity), 8);
            assert_eq!(sizes(RdmaOperation::Read, quantity), 3);
            assert_eq!(sizes(RdmaOperation::Send, quantity), 3);
        }
    }
}
