//! `cargo lab soak mpi`: the programs that check MPI libraries, many times and with several numbers
//! of hosts and ranks. [`suite`] runs other programs.

pub(super) mod suite;

use std::fmt::Write;
use std::path::Path;
use std::time::{Duration, Instant};

use super::{Launches, install, job};
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

/// Launches programs of each library by `rlaunch` for at most `seconds`, and prints a table; returns
/// whether no job hung, failed or left anything behind.
pub(super) fn run(seconds: u64, rlaunch: &Path) -> Result<bool, LabError> {
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
    let rlaunch = install(lab, rlaunch)?;
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
    let per_host = shape.per_host;
    let slots: Vec<String> = hosts.iter().map(|host| format!("{host}:{per_host}")).collect();
    let right = format!("right on {} ranks", hosts.len() * per_host);
    let what = format!("{} on {} hosts", library.name, hosts.len());
    let is_over = || Instant::now() >= end;
    Launches::repeat(lab, (&what, shape.launches), is_over, || {
        let mut command = lab.exec_in(Account::Root, Path::new("/"));
        command.arg(rlaunch).args(["-H", &slots.join(",")]).args(library.words(PROGRAM)).args(PART);
        job(lab, command, BOUND, |stdout| stdout.starts_with(&right))
    })
}

/// Formats a line for each library and a column for each shape.
fn table(rows: &[(&str, Vec<Launches>)]) -> String {
    const WIDTH: usize = 36;
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
        assert_eq!(lines[1], "mpich           2: 0.500 (0.500–0.500), 1 failed    0: –");
    }
}
