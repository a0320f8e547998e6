//! `cargo lab soak mpi`: the programs that check MPI libraries, many times and with several numbers
//! of hosts and ranks.

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

/// Launches programs of each library by `rlaunch` for at most `seconds`, and prints a line for each shape;
/// returns whether no job hung, failed or left anything behind.
pub(super) fn run(seconds: u64, rlaunch: &Path) -> Result<bool, LabError> {
    setup::install(PackageSet::Headers)?;
    mpi::build()?;
    let hosts = SHAPES.iter().map(|shape| shape.hosts).max().unwrap_or_default();
    let options = Options { net: NET, ..Options::new(NAME, hosts) };
    println!("launches: seconds of each, median (min–max)");
    Lab::with_fresh(&options, |lab| {
        soak(&lab, rlaunch, Instant::now() + Duration::from_secs(seconds))
    })
}

fn soak(lab: &Lab, rlaunch: &Path, end: Instant) -> Result<bool, LabError> {
    let rlaunch = install(lab, rlaunch)?;
    let libraries: Vec<&MpiLibrary> = DEBIAN.iter().chain(&WHEELS).collect();
    let (mut left, mut failed) = (SHAPES.len() * libraries.len(), 0);
    for shape in SHAPES {
        for library in &libraries {
            let share = end.saturating_duration_since(Instant::now()) / left.max(1) as u32;
            left -= 1;
            let launches = launch(lab, &rlaunch, library, shape, Instant::now() + share)?;
            let Shape { hosts, per_host, .. } = shape;
            println!("{}, {hosts} × {per_host}: {}", library.name, launches.summary());
            failed += launches.failed;
        }
    }
    Ok(failed == 0)
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
