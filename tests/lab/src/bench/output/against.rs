//! Output beside that of an earlier build.

use super::{
    LINE, MeasuredJob, ON_HOST, OutputOptions, OutputReader, OutputTask, Tagging, attempt,
    output_buffer, place_lines,
};
use crate::LabError;
use crate::bench::against::{self, Build, Builds, ComparisonRow, EarlierBuild, Testbeds};
use crate::bench::launchers::Launcher;

/// Compares this build with an earlier one and prints; returns whether it is slower in no row.
pub fn run_against(options: &OutputOptions, earlier: &EarlierBuild) -> Result<bool, LabError> {
    let builds = Builds::make(earlier, options.rounds)?;
    let rows = against::on_hosts(options.hosts, builds, |testbeds| compare(testbeds, options))?;
    println!(
        "\n{} MiB of lines of {LINE} bytes from each of {} hosts, median (min–max) of {} rounds",
        options.mebibytes, options.hosts, options.rounds
    );
    Ok(against::print(&rows))
}

/// Rows with or without tags.
struct Rows {
    wall: ComparisonRow,
    cpu: ComparisonRow,
    memory: ComparisonRow,
}

impl Rows {
    fn new(tagging: Tagging) -> Rows {
        let name = |what| format!("{} {what}", tagging.name());
        Rows {
            wall: ComparisonRow::new(name("wall"), "s"),
            cpu: ComparisonRow::new(name("CPU"), "s"),
            memory: ComparisonRow::without_bar(name("memory"), "MiB"),
        }
    }
}

fn compare(testbeds: &Testbeds, options: &OutputOptions) -> Result<Vec<ComparisonRow>, LabError> {
    let lines = place_lines(testbeds.testbed(Build::This), options)?;
    let mut arrived = output_buffer(options, lines);
    let mut taggings = Tagging::ALL.map(|tagging| (tagging, Rows::new(tagging)));
    testbeds.for_each_turn(options.rounds, |turn| {
        for (tagging, rows) in &mut taggings {
            let program = ["cat", ON_HOST];
            let (launcher, tagging) = (Launcher::Rlaunch, *tagging);
            let (program, reader) = (&program[..], OutputReader::Pipe);
            let task = OutputTask { launcher, tagging, program, lines, pace: None, reader };
            let MeasuredJob { ran, cpu, damage } = attempt(turn.testbed, &task, &mut arrived)?;
            let (cpu, tagging) = (against::required(cpu)?, tagging.name());
            println!("{turn} {tagging:<9} {:.2} s, {cpu:.2} s of CPU, {damage}", ran.seconds);
            if !damage.is_none() {
                // Lost output takes no time, so its run is not a measurement.
                let build = turn.build.name();
                return Err(LabError::Unexpected(format!(
                    "output of {build}, {tagging}: {damage}"
                )));
            }
            rows.wall.note(turn, ran.seconds);
            rows.cpu.note(turn, cpu);
            rows.memory.note(turn, ran.memory);
        }
        Ok(())
    })?;
    Ok(taggings.into_iter().flat_map(|(_, rows)| [rows.wall, rows.cpu, rows.memory]).collect())
}
