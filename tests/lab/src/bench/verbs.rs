//! `cargo lab bench verbs`: RDMA writes by rlaunch's verbs, and messages of its communicator,
//! beside perftest's, on two guests.
//!
//! Emulated processors are noisy: perftest compared with itself varies by a factor of two. So each
//! round is perftest, rlaunch, perftest. The ratio of rlaunch to the first perftest is compared
//! with the ratio of the second perftest to the first.

use super::Series;
use crate::LabError;
use crate::dist::{self, Profile};
use crate::setup::{self, PackageSet};
use crate::vm::pair::{Benchmark, Pair, Program};
use crate::vm::{self, Topology, VmLab, VmOptions};

const LAB: &str = "verbs";
const GUESTS: usize = 2;
/// Quantiles of the ratio of perftest to itself, between which the median ratio of rlaunch has to
/// be.
const BAND: (f64, f64) = (0.1, 0.9);
/// Maximum ratio of rlaunch's minimum latency to perftest's.
const LEAST_BAR: f64 = 1.10;

/// Options of the bench.
#[derive(Debug, Clone)]
pub struct VerbsOptions {
    /// Number of timed rounds of perftest, rlaunch, perftest, after a warm-up round.
    pub rounds: usize,
    /// Measure only rows whose names contain this.
    pub row: Option<String>,
}

/// Row of the report.
#[derive(Debug, Clone, Copy)]
struct VerbsCase {
    name: &'static str,
    unit: &'static str,
    benchmark: Benchmark,
    /// Program that is compared with perftest.
    program: Program,
    /// Size of a message in bytes.
    size: usize,
    iterations: usize,
}

impl VerbsCase {
    fn order(&self) -> [Program; 3] {
        [Program::Perftest, self.program, Program::Perftest]
    }
}

const CASES: [VerbsCase; 5] = [
    VerbsCase {
        name: "write bandwidth, 64 KiB",
        unit: "MiB/s",
        benchmark: Benchmark::WriteBandwidth,
        program: Program::Rlaunch,
        size: 64 << 10,
        iterations: 500,
    },
    VerbsCase {
        name: "write bandwidth, 1 MiB",
        unit: "MiB/s",
        benchmark: Benchmark::WriteBandwidth,
        program: Program::Rlaunch,
        size: 1 << 20,
        iterations: 50,
    },
    VerbsCase {
        name: "write latency, 2 bytes",
        unit: "us",
        benchmark: Benchmark::WriteLatency,
        program: Program::Rlaunch,
        size: 2,
        iterations: 1000,
    },
    VerbsCase {
        name: "messages, 1 MiB",
        unit: "MiB/s",
        benchmark: Benchmark::WriteBandwidth,
        program: Program::Ranks,
        size: 1 << 20,
        iterations: 48,
    },
    VerbsCase {
        name: "message latency, 8 bytes",
        unit: "us",
        benchmark: Benchmark::SendLatency,
        program: Program::Ranks,
        size: 8,
        iterations: 1000,
    },
];

/// Result of one run.
#[derive(Debug, Clone, Copy, PartialEq)]
struct VerbsMeasurement {
    /// Mean bandwidth or median latency.
    typical: f64,
    /// Minimum latency; `None` for bandwidths.
    least: Option<f64>,
}

/// Results of a row, by position in a round.
#[derive(Debug, Default)]
struct CaseResults {
    typical: [Series; 3],
    least: [Series; 3],
}

/// Measures and prints; returns whether all bars are met.
pub fn run(options: &VerbsOptions) -> Result<bool, LabError> {
    let wanted = |case: &&VerbsCase| options.row.as_ref().is_none_or(|row| case.name.contains(row));
    let cases: Vec<VerbsCase> = CASES.iter().filter(wanted).copied().collect();
    if cases.is_empty() {
        let names = CASES.map(|case| format!("`{}`", case.name)).join(", ");
        return Err(LabError::Usage(format!("no row has this name; there are {names}")));
    }
    setup::install(PackageSet::Verbs)?;
    dist::build(Profile::Release)?;
    dist::build_examples()?;
    dist::build_measure(Profile::Release)?;
    vm::build()?;
    println!("starting {GUESTS} guests");
    let share = Some(dist::directory(Profile::Release)?);
    let lab = VmOptions { share, ..VmOptions::new(LAB, GUESTS, Topology::Star) };
    let results = VmLab::with_fresh(&lab, |lab| measure(lab, &cases, options.rounds))?;
    println!("\n{} rounds of perftest, rlaunch, perftest, median (min–max)", options.rounds);
    let met: Vec<bool> = cases.iter().zip(&results).map(|(case, of)| print(case, of)).collect();
    Ok(met.iter().all(|met| *met))
}

fn measure(lab: &VmLab, cases: &[VerbsCase], rounds: usize) -> Result<Vec<CaseResults>, LabError> {
    let mut pair = Pair::new(lab)?;
    let mut results: Vec<CaseResults> = cases.iter().map(|_| CaseResults::default()).collect();
    for round in 0..=rounds {
        for (case, of) in cases.iter().zip(&mut results) {
            let mut words = Vec::new();
            for (place, program) in case.order().into_iter().enumerate() {
                let amount = (case.size, case.iterations);
                let printed = pair.run(program, case.benchmark, amount, "")?;
                let measured = read(program, case, &printed)?;
                words.push(format!("{:.2}", measured.typical));
                if round > 0 {
                    of.typical[place].push(measured.typical);
                    measured.least.into_iter().for_each(|least| of.least[place].push(least));
                }
            }
            println!("round {round}: {:<24} {} {}", case.name, words.join(" "), case.unit);
        }
    }
    Ok(results)
}

/// Reads the line of the output that begins with the size. perftest's columns are size, iterations,
/// and either peak and mean bandwidth or minimum, maximum and median latency; those of `perf` are
/// the same without the peak. Ranks print name, seconds, repetitions and minimum seconds.
fn read(program: Program, case: &VerbsCase, printed: &str) -> Result<VerbsMeasurement, LabError> {
    let name = match (program, case.benchmark) {
        (Program::Ranks, Benchmark::WriteBandwidth) => format!("bandwidth/{}", case.size),
        (Program::Ranks, _) => format!("latency/{}", case.size),
        _ => case.size.to_string(),
    };
    let line = printed.lines().find_map(|line| {
        let words: Vec<&str> = line.split_whitespace().collect();
        (words.first() == Some(&name.as_str())).then_some(words)
    });
    let number = |column: usize| -> Option<f64> { line.as_ref()?.get(column)?.parse().ok() };
    // Ranks print seconds.
    let rate = |seconds: f64| case.size as f64 / seconds / f64::from(1 << 20);
    let micros = |seconds: f64| seconds * 1e6;
    let measured = match (case.benchmark, program) {
        (Benchmark::WriteBandwidth, Program::Perftest) => number(3).zip(Some(None)),
        (Benchmark::WriteBandwidth, Program::Rlaunch) => number(2).zip(Some(None)),
        (Benchmark::WriteBandwidth, Program::Ranks) => number(1).map(rate).zip(Some(None)),
        (_, Program::Ranks) => number(1).map(micros).zip(Some(number(3).map(micros))),
        (Benchmark::WriteLatency | Benchmark::SendLatency, _) => number(4).zip(Some(number(2))),
    };
    let wrong = || LabError::Unexpected(format!("{} printed no result:\n{printed}", case.name));
    let (typical, least) = measured.ok_or_else(wrong)?;
    Ok(VerbsMeasurement { typical, least })
}

/// Prints a row; returns whether its bars are met.
fn print(case: &VerbsCase, of: &CaseResults) -> bool {
    let [first, own, second] = &of.typical;
    println!("{}, {}", case.name, case.unit);
    println!("    perftest {}", first.summary());
    println!("    rlaunch  {}", own.summary());
    println!("    perftest {}", second.summary());
    let (ours, theirs) = (own.ratios_to(first), second.ratios_to(first));
    let band = theirs.quantile(BAND.0).zip(theirs.quantile(BAND.1));
    let (Some(median), Some((low, high))) = (ours.median(), band) else { return false };
    let is_inside = (low..=high).contains(&median);
    // Less time, or more bandwidth, is not a failure.
    let is_better =
        if case.benchmark == Benchmark::WriteBandwidth { median > high } else { median < low };
    let verdict = match (is_inside, is_better) {
        (true, _) => "met",
        (false, true) => "met: better",
        (false, false) => "MISSED",
    };
    println!(
        "    rlaunch/perftest {median:.3}, perftest/perftest {low:.3} to {high:.3}: {verdict}"
    );
    (is_inside || is_better) & print_least(of)
}

/// Prints the minimum latencies of all rounds; returns whether their bar is met.
fn print_least(of: &CaseResults) -> bool {
    let [first, own, _] = &of.least;
    let (Some(own), Some(first)) = (own.quantile(0.0), first.quantile(0.0)) else { return true };
    let ratio = own / first;
    let verdict = if ratio <= LEAST_BAR { "met" } else { "MISSED" };
    println!("    minimum {own:.2} beside {first:.2}: {ratio:.3} (bar {LEAST_BAR:.2}: {verdict})");
    ratio <= LEAST_BAR
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
        let read = |program, case: &VerbsCase, text| read(program, case, text).unwrap();
        let measured = VerbsMeasurement { typical: 99.25, least: None };
        assert_eq!(read(Program::Perftest, &CASES[0], table), measured);
        assert_eq!(read(Program::Rlaunch, &CASES[0], "65536 1000 99.25\n"), measured);
        let table = " 2       1000          60.10          900.50      71.20    80.00   9.1  1 2\n";
        let measured = VerbsMeasurement { typical: 71.2, least: Some(60.1) };
        assert_eq!(read(Program::Perftest, &CASES[2], table), measured);
        assert_eq!(read(Program::Rlaunch, &CASES[2], "2 1000 60.10 900.50 71.20 80.00"), measured);
        let measured = VerbsMeasurement { typical: 512.0, least: None };
        assert_eq!(read(Program::Ranks, &CASES[3], "bandwidth/1048576 1.953125e-3 6"), measured);
        let measured = VerbsMeasurement { typical: 250.0, least: Some(125.0) };
        assert_eq!(read(Program::Ranks, &CASES[4], "latency/8 2.5e-4 1 1.25e-4"), measured);
        assert!(super::read(Program::Perftest, &CASES[1], "Unable to connect").is_err());
    }
}
