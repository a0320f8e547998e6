//! `cargo lab bench mesh`: time that proving the RDMA mesh adds to a job's start on three guests,
//! and the cost of a queue pair in a mesh of 24 ranks. `cargo lab soak mesh` proves the mesh
//! repeatedly.

use std::time::{Duration, Instant};

use super::table::{Rounds, Row, Table};
use crate::LabError;
use crate::dist::{self, Profile};
use crate::setup::{self, PackageSet};
use crate::vm::{self, Topology, VmLab, VmOptions};

const LAB: &str = "mesh";
const GUESTS: usize = 3;
/// Path of rlaunch on guests.
pub(crate) const RLAUNCH: &str = "/share/rlaunch";
/// Time limit of a job; emulated computers are slow.
const BOUND: Duration = Duration::from_secs(120);
/// Options with and without the mesh.
const TRANSPORTS: [&str; 2] = ["--transport rdma", "--transport tcp"];
/// Arguments of a job with 192 pairs of ranks on different nodes, each with a queue pair at both
/// ends.
const MANY: &str = "-H n1:8,n2:8,n3:8 -np 24 --transport rdma --mesh-timeout 20 -v hostname";

/// Builds rlaunch by this profile, and calls `act` with three fresh guests cabled to each other.
pub(crate) fn with_guests<T>(
    profile: Profile,
    act: impl FnOnce(&VmLab) -> Result<T, LabError>,
) -> Result<T, LabError> {
    setup::install(PackageSet::Verbs)?;
    dist::build(profile)?;
    dist::build_prover(profile)?;
    vm::build()?;
    println!("starting {GUESTS} guests");
    let share = Some(dist::directory(profile)?);
    VmLab::with_fresh(&VmOptions { share, ..VmOptions::new(LAB, GUESTS, Topology::Triangle) }, act)
}

/// Proves the mesh repeatedly (`cargo lab soak mesh`). Fails if a path of a job is not up, or if a
/// queue pair is left.
pub fn soak(launches: usize) -> Result<bool, LabError> {
    with_guests(Profile::Lab, |lab| (0..launches).try_for_each(|launch| prove(lab, launch)))?;
    println!("{launches} jobs: every path was up, nothing was left");
    Ok(true)
}

/// Runs one job in which paths connect in both directions at the same time, and checks it.
fn prove(lab: &VmLab, launch: usize) -> Result<(), LabError> {
    let started = Instant::now();
    let stderr = job(lab, "-H n1,n2,n3 --hca rxe --mesh-timeout 20 --transport rdma true")?;
    let summary = stderr.lines().find(|line| line.contains("6/6 paths up"));
    let summary =
        summary.ok_or_else(|| LabError::Unexpected(format!("not all paths are up:\n{stderr}")))?;
    for guest in lab.guests() {
        let left = lab.checked(&guest, &["rdma", "resource", "show", "qp"])?;
        if left.contains("rlaunch") {
            return Err(LabError::Unexpected(format!("left on {guest}:\n{left}")));
        }
    }
    println!("{launch}: {summary} ({:.1} s)", started.elapsed().as_secs_f64());
    Ok(())
}

/// Measures and prints. The only bar is the mesh's own time budget, beyond which the job fails.
pub(super) fn run(rounds: usize) -> Result<bool, LabError> {
    let mut table = Table::new(["with the mesh", TRANSPORTS[1]], [Row::new("start", "s", &[])]);
    let many = with_guests(Profile::Release, |lab| {
        table.measure(Rounds::new(rounds), |turn| {
            let started = Instant::now();
            let transport = TRANSPORTS[turn.contender];
            job(lab, &format!("-H n1,n2,n3 --mesh-timeout 20 {transport} hostname"))?;
            Ok(vec![Some(started.elapsed().as_secs_f64())])
        })?;
        job(lab, MANY)
    })?;
    table.print(&format!("{rounds} rounds of `hostname` on 3 guests"));
    let [with, without] = [0, 1].map(|at| &table.rows[0].values[at]);
    println!("the mesh adds {} s\n24 ranks:", with.minus(without).summary());
    let of_mesh = many.lines().filter_map(|line| Some(&line[line.find("mesh: ")?..]));
    of_mesh.for_each(|line| println!("    {line}"));
    Ok(true)
}

/// Runs a job from the first guest; returns its stderr.
fn job(lab: &VmLab, words: &str) -> Result<String, LabError> {
    let line: Vec<&str> = std::iter::once(RLAUNCH).chain(words.split(' ')).collect();
    let output = lab.run_within("n1", &line, BOUND)?;
    let stderr = String::from_utf8_lossy(&output.stderr).into_owned();
    match output.status.success() {
        true => Ok(stderr),
        false => {
            Err(LabError::Unexpected(format!("rlaunch {words}: {}:\n{stderr}", output.status)))
        }
    }
}
