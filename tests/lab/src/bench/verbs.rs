//! `cargo lab bench verbs`: RDMA operations by `rlaunch bench write|read|send`, and messages of
//! rlaunch's communicator, beside perftest's, on two guests.
//!
//! Emulated processors are noisy: perftest compared with itself varies by a factor of two. So each
//! round is perftest, rlaunch, perftest. The ratio of rlaunch to the first perftest is compared
//! with the ratio of the second perftest to the first.

use std::fmt;

use super::table::{Bar, Rounds, Row, Table};
use crate::LabError;
use crate::dist::{self, Profile};
use crate::setup::{self, PackageSet};
use crate::vm::pair::{Benchmark, Pair, Program, Quantity, RdmaOperation};
use crate::vm::{self, Topology, VmLab, VmOptions};

const LAB: &str = "verbs";
const GUESTS: usize = 2;
/// Contenders; which of them runs when.
const NAMES: [&str; 3] = ["rlaunch", "perftest", "perftest again"];
const ORDER: &[usize] = &[1, 0, 2];
/// Part of the rows that have to be inside their band.
const ROWS: f64 = 0.9;

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

impl fmt::Display for Group {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let is_of_ranks = self.program == Program::Ranks;
        f.write_str(if is_of_ranks { "message" } else { self.benchmark.operation.name() })?;
        f.write_str(match self.benchmark.quantity {
            Quantity::Bandwidth => " bandwidth",
            Quantity::Latency => " latency",
        })
    }
}

/// Measures and prints; returns whether all bars are met.
pub(super) fn run(rounds: usize, row: &str) -> Result<bool, LabError> {
    let wanted = |group: &&Group| group.to_string().contains(row);
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
    let tables = VmLab::with_fresh(&lab, |lab| measure(lab, &groups, rounds))?;
    let mut met = Vec::new();
    for (group, table) in groups.iter().zip(&tables) {
        met.extend(table.print_bars(&format!("{group}, {rounds} rounds")));
    }
    let inside = met.iter().filter(|met| **met).count();
    let part = inside as f64 / met.len() as f64;
    let verdict = if part >= ROWS { "met" } else { "MISSED" };
    println!("\n{inside} of {} rows inside (bar {:.0} %: {verdict})", met.len(), ROWS * 100.0);
    Ok(part >= ROWS)
}

impl Group {
    /// Makes a row for each size, then one for each minimum latency.
    fn table(&self) -> Table {
        let is_bandwidth = self.benchmark.quantity == Quantity::Bandwidth;
        let (unit, bar) = match is_bandwidth {
            true => ("MiB/s", Bar::Band { more_is_better: true }),
            false => ("us", Bar::Band { more_is_better: false }),
        };
        let typical = self.sizes.iter().map(|size| Row::new(format!("{size} bytes"), unit, &[bar]));
        let least = self.sizes.iter().filter(|_| !is_bandwidth);
        let least = least.map(|size| Row::new(format!("{size} bytes, minimum"), unit, &[]));
        Table::new(NAMES, typical.chain(least))
    }
}

/// Returns a table for each group. All groups are measured in each round.
fn measure(lab: &VmLab, groups: &[Group], rounds: usize) -> Result<Vec<Table>, LabError> {
    let mut pair = Pair::new(lab)?;
    let mut tables: Vec<Table> = groups.iter().map(Group::table).collect();
    let one_round = Rounds { order: Some(ORDER), ..Rounds::without_warm_up(1) };
    for round in 1..=rounds {
        println!("round {round} of {rounds}");
        for (group, table) in groups.iter().zip(&mut tables) {
            println!("{group}");
            table.measure(one_round, |turn| {
                let program = if turn.contender == 0 { group.program } else { Program::Perftest };
                let amount = (group.sizes, group.iterations);
                let printed = pair.run(program, group.benchmark, amount, &[])?;
                let read = |size: &usize| read(program, group, *size, &printed);
                let measured =
                    group.sizes.iter().map(read).collect::<Result<Vec<_>, LabError>>()?;
                let least = measured.iter().filter_map(|(_, least)| *least);
                Ok(measured.iter().map(|(typical, _)| *typical).chain(least).map(Some).collect())
            })?;
        }
    }
    Ok(tables)
}

/// Reads the line of the output that begins with the size: mean bandwidth in MiB/s, or median and
/// minimum latency in microseconds. perftest's columns, which rlaunch prints
/// too, are size, iterations, and either peak and mean bandwidth or minimum, maximum and median
/// latency. Ranks print name, seconds, repetitions and minimum seconds.
fn read(
    program: Program,
    group: &Group,
    size: usize,
    printed: &str,
) -> Result<(f64, Option<f64>), LabError> {
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
    measured.ok_or_else(wrong)
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
        let measured = (99.25, None);
        for program in [Program::Perftest, Program::Rlaunch] {
            assert_eq!(read(program, &GROUPS[1], 64 << 10, table), measured);
        }
        let table = " 2       1000          60.10          900.50      71.20    80.00   9.1  1 2\n";
        let measured = (71.2, Some(60.1));
        assert_eq!(read(Program::Perftest, &GROUPS[2], 2, table), measured);
        let measured = (512.0, None);
        let ranks = "bandwidth/1048576 1.953125e-3 6";
        assert_eq!(read(Program::Ranks, &GROUPS[8], 1 << 20, ranks), measured);
        let measured = (250.0, Some(125.0));
        assert_eq!(read(Program::Ranks, &GROUPS[9], 8, "latency/8 2.5e-4 1 1.25e-4"), measured);
        assert!(super::read(Program::Perftest, &GROUPS[1], 8, "Unable to connect").is_err());
    }
}
