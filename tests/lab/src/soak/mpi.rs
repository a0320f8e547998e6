//! `cargo lab soak mpi`: the programs that check MPI libraries, many times and with several numbers
//! of hosts and ranks. [`suite`] runs other programs.

pub(super) mod suite;

use std::fmt::Write;
use std::path::Path;
use std::time::{Duration, Instant};

use super::{IDLE, MAX_FAILURES, left_by_a_job, stacks};
use crate::bench::Series;
use crate::bench::testbed::clear;
use crate::command::background::Background;
use crate::command::last_lines;
use crate::setup::mpi::{self, DEBIAN, MpiLibrary, WHEELS};
use crate::setup::{self, PackageSet};
use crate::{Account, Lab, LabError, Options};

const NAME: &str = "soakmpi";
const NET: [u8; 2] = [10, 89];
/// Path of the program on hosts, where no job leaves files.
const PROGRAM: &str = "/run/mpi-program";
/// Words that select the part of the program.
const PART: [&str; 2] = ["all", "4096"];
/// Time limit of a job: 32 ranks on two cores, each of which waits actively.
const BOUND: Duration = Duration::from_secs(120);

/// Numbers of hosts, of ranks on each and of launches. The last gets the time that the others leave.
const SHAPES: [Shape; 4] = [
    Shape { hosts: 1, per_host: 2, launches: 10 },
    Shape { hosts: 4, per_host: 4, launches: 10 },
    Shape { hosts: 16, per_host: 2, launches: 10 },
    Shape { hosts: 2, per_host: 2, launches: 100 },
];

#[derive(Debug, Clone, Copy)]
struct Shape {
    hosts: usize,
    per_host: usize,
    launches: usize,
}

/// Launches of one library with one shape.
#[derive(Debug, Default)]
struct Launches {
    /// Seconds of launches that succeeded.
    times: Series,
    failed: usize,
}

impl Launches {
    /// Formats `100: 0.45 (0.41–0.60)`: the number of launches, and their seconds.
    fn summary(&self) -> String {
        let launches = self.times.count() + self.failed;
        let failed =
            if self.failed > 0 { format!(", {} failed", self.failed) } else { String::new() };
        format!("{launches}: {}{failed}", self.times.summary())
    }
}

/// Launches programs of each library by `rlaunch` for at most `seconds`, and prints a table; returns
/// whether no job hung, failed or left anything behind.
pub fn run(seconds: u64, rlaunch: &Path) -> Result<bool, LabError> {
    setup::install(PackageSet::Headers)?;
    mpi::build()?;
    let hosts = SHAPES.iter().map(|shape| shape.hosts).max().unwrap_or_default();
    let options = Options { net: NET, ..Options::new(NAME, hosts) };
    let rows = Lab::with_fresh(&options, |lab| {
        soak(&lab, rlaunch, Instant::now() + Duration::from_secs(seconds))
    })?;
    print!("{}", table(&rows));
    Ok(rows.iter().all(|(_, cells)| cells.iter().all(|cell| cell.failed == 0)))
}

fn soak(
    lab: &Lab,
    rlaunch: &Path,
    end: Instant,
) -> Result<Vec<(&'static str, Vec<Launches>)>, LabError> {
    let rlaunch = lab.install(rlaunch.parent().unwrap_or(rlaunch))?.join("rlaunch");
    let libraries: Vec<&MpiLibrary> = DEBIAN.iter().chain(&WHEELS).collect();
    let mut rows: Vec<_> = libraries.iter().map(|library| (library.name, Vec::new())).collect();
    let mut left = SHAPES.len() * libraries.len();
    for shape in SHAPES {
        for (library, (_, cells)) in libraries.iter().zip(&mut rows) {
            let share = end.saturating_duration_since(Instant::now()) / left.max(1) as u32;
            left -= 1;
            let cell = launch(lab, &rlaunch, library, shape, Instant::now() + share)?;
            let Shape { hosts, per_host, .. } = shape;
            println!("{}, {hosts} × {per_host}: {}", library.name, cell.summary());
            cells.push(cell);
        }
    }
    Ok(rows)
}

/// Launches the program of a library several times, at least once, and less often if the time is
/// over.
fn launch(
    lab: &Lab,
    rlaunch: &Path,
    library: &MpiLibrary,
    shape: Shape,
    end: Instant,
) -> Result<Launches, LabError> {
    let program = library.program()?;
    let mut hosts = lab.hosts();
    hosts.truncate(shape.hosts);
    for host in &hosts {
        lab.write_file(host, Path::new(PROGRAM), &program, 0o755)?;
    }
    let mut cell = Launches::default();
    // The first launch is not counted: it sends the agent.
    for number in 0..=shape.launches {
        match once(lab, rlaunch, library, &hosts, shape.per_host) {
            Ok(time) if number > 0 => cell.times.push(time.as_secs_f64()),
            Ok(_) => {}
            Err(error) => {
                println!("{}, launch {number} on {} hosts: {error}", library.name, shape.hosts);
                cell.failed += 1;
                clear(lab)?;
            }
        }
        if cell.failed == MAX_FAILURES || (number > 0 && Instant::now() >= end) {
            break;
        }
    }
    Ok(cell)
}

/// Runs one job. Fails if a result is wrong, or if anything is left.
fn once(
    lab: &Lab,
    rlaunch: &Path,
    library: &MpiLibrary,
    hosts: &[String],
    per_host: usize,
) -> Result<Duration, LabError> {
    let slots: Vec<String> = hosts.iter().map(|host| format!("{host}:{per_host}")).collect();
    let mut command = lab.exec_in(Account::Root, Path::new("/"));
    command.arg(rlaunch).args(["-H", &slots.join(",")]).args(library.words(PROGRAM)).args(PART);
    let start = Instant::now();
    let mut job = Background::start(command)?;
    let status = job.wait(BOUND)?;
    let time = start.elapsed();
    let (stdout, stderr) = (job.stdout(), last_lines(&job.stderr(), 10));
    let Some(status) = status else {
        let waits = stacks::of(lab);
        return Err(LabError::Unexpected(format!("hung\n{waits}\n{stdout}\n{stderr}")));
    };
    let left = left_by_a_job(lab);
    let is_right = stdout.starts_with(&format!("right on {} ranks", hosts.len() * per_host));
    if !left.is_empty() || !status.success() || !is_right {
        return Err(LabError::Unexpected(format!(
            "ended with {status} and left {left:#?}\n{stdout}\n{stderr}"
        )));
    }
    lab.wait_until_idle(IDLE)?;
    Ok(time)
}

/// Formats a line for each library and a column for each shape.
fn table(rows: &[(&str, Vec<Launches>)]) -> String {
    const WIDTH: usize = 32;
    let mut text = format!("\nlaunches: seconds of each, median (min–max)\n{:<16}", "");
    for Shape { hosts, per_host, .. } in SHAPES {
        let _ = write!(text, "{:<WIDTH$}", format!("{hosts} × {per_host}"));
    }
    for (name, cells) in rows {
        let cells: Vec<String> =
            cells.iter().map(|cell| format!("{:<WIDTH$}", cell.summary())).collect();
        let _ = write!(text, "\n{name:<16}{}", cells.concat());
    }
    text.lines().map(|line| format!("{}\n", line.trim_end())).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_table_has_a_line_for_each_library() {
        let mut cell = Launches { failed: 1, ..Launches::default() };
        cell.times.push(0.5);
        let text = table(&[("mpich", vec![cell, Launches::default()])]);
        let lines: Vec<&str> = text.lines().skip(2).collect();
        assert_eq!(lines.len(), 2, "{text}");
        assert!(lines[0].trim_start().starts_with("1 × 2  "), "{text}");
        assert_eq!(lines[1], "mpich           2: 0.50 (0.50–0.50), 1 failed   0: –");
    }
}
