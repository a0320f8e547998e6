//! Output beside that of an earlier build.

use super::{LINE, ON_HOST, Plan, Task, Trial, Way, attempt, place_lines, room};
use crate::LabError;
use crate::bench::against::{self, Build, Builds, Earlier, Ground, Row};
use crate::bench::launchers::Launcher;

/// Measures this build beside an earlier one and prints; true if it is slower by no row.
pub fn run_against(plan: &Plan, earlier: &Earlier) -> Result<bool, LabError> {
    let builds = Builds::make(earlier, plan.rounds)?;
    let rows = against::on_hosts(plan.hosts, builds, |ground| compare(ground, plan))?;
    println!(
        "\n{} MiB of lines of {LINE} bytes from each of {} hosts, median (min–max) of {} rounds",
        plan.mebibytes, plan.hosts, plan.rounds
    );
    Ok(against::print(&rows))
}

/// Rows of one way.
struct Rows {
    wall: Row,
    cpu: Row,
    memory: Row,
}

impl Rows {
    fn new(way: Way) -> Rows {
        let name = |what| format!("{} {what}", way.name());
        Rows {
            wall: Row::new(name("wall"), "s"),
            cpu: Row::new(name("CPU"), "s"),
            memory: Row::without_bar(name("memory"), "MiB"),
        }
    }
}

fn compare(ground: &Ground, plan: &Plan) -> Result<Vec<Row>, LabError> {
    let lines = place_lines(ground.field(Build::This), plan)?;
    let mut arrived = room(plan, lines);
    let mut ways = Way::ALL.map(|way| (way, Rows::new(way)));
    ground.in_turn(plan.rounds, |turn| {
        for (way, rows) in &mut ways {
            let program = ["cat", ON_HOST];
            let (launcher, way) = (Launcher::Rlaunch, *way);
            let task = Task { launcher, way, program: &program, lines, pace: None };
            let Trial { ran, cpu, damage } = attempt(turn.field, &task, &mut arrived)?;
            let (cpu, way) = (against::required(cpu)?, way.name());
            println!("{turn} {way:<9} {:.2} s, {cpu:.2} s of CPU, {damage}", ran.seconds);
            if !damage.is_none() {
                // What is lost costs no time.
                let build = turn.build.name();
                return Err(LabError::Wrong(format!("output of {build}, {way}: {damage}")));
            }
            rows.wall.note(turn, ran.seconds);
            rows.cpu.note(turn, cpu);
            rows.memory.note(turn, ran.memory);
        }
        Ok(())
    })?;
    Ok(ways.into_iter().flat_map(|(_, rows)| [rows.wall, rows.cpu, rows.memory]).collect())
}
