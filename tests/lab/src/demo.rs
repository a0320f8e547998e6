//! `cargo lab demo`: from a clean checkout to a job on three hosts, each step shown.

use std::path::Path;
use std::process::Command;
use std::time::Instant;

use crate::command::{display, show, with_spinner};
use crate::dist;
use crate::setup::{self, PackageSet};
use crate::{Account, Lab, LabError, Options};

const NAME: &str = "demo";
const NET: [u8; 2] = [10, 96];

/// Arguments of rlaunch for the jobs of the demo.
const JOBS: [&[&str]; 2] = [
    &["-H", "a,b,c", "-np", "3", "hostname"],
    &["-H", "a,b,c", "-np", "3", "--copy", "examples/train/train.py", "python3", "train.py"],
];

/// Sets up the machine, builds, starts three hosts and runs the jobs. The hosts stay up if `keep`
/// is set. Files that only the second job needs are built after the first job has run.
pub fn run(keep: bool) -> Result<(), LabError> {
    step("1/6", "checking what this machine has", || setup::install(PackageSet::Lab))?;
    let rlaunch = step("2/6", "building rlaunch and its agent", dist::build_job)?;
    let options = Options { net: NET, ..Options::new(NAME, 3) };
    let lab = step("3/6", "starting hosts a, b and c", || {
        with_spinner("starting three hosts, each with its own sshd", || Lab::up(&options))
    })?;
    let [first, second] = JOBS;
    let result = step("4/6", "running a job on them", || job(&lab, &rlaunch, first))
        .and_then(|()| step("5/6", "building what ranks import", dist::build_for_ranks))
        .and_then(|()| step("6/6", "training on them", || job(&lab, &rlaunch, second)));
    if keep {
        println!(
            "\nthe hosts stay: `cargo lab --lab {NAME} ssh a`, and `cargo lab --lab {NAME} down`"
        );
    } else {
        println!("\nremoving the hosts (`--keep` leaves them)");
        Lab::down(NAME)?;
    }
    result
}

/// Prints the name of a step, runs it and prints its time.
fn step<T>(
    number: &str,
    what: &str,
    run: impl FnOnce() -> Result<T, LabError>,
) -> Result<T, LabError> {
    println!("[{number}] {what}");
    let start = Instant::now();
    let result = run();
    println!("  ({:.1} s)\n", start.elapsed().as_secs_f64());
    result
}

fn job(lab: &Lab, rlaunch: &Path, words: &[&str]) -> Result<(), LabError> {
    println!("\n$ {}", display(Command::new("rlaunch").args(words)));
    let mut command = lab.exec_in(Account::Root, &dist::workspace());
    show("run the job", command.arg(rlaunch).args(words))
}
