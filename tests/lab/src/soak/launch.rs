//! `cargo lab soak launch`: jobs of two ranks on every host, on a quiet or a busy machine.

use std::path::Path;
use std::process::Command;
use std::thread;
use std::time::Duration;

use clap::Args;

use super::{Launches, install, job};
use crate::command::background::Background;
use crate::setup::{self, PackageSet};
use crate::{Account, Lab, LabError, Options};

const NAME: &str = "soak";
const NET: [u8; 2] = [10, 94];
/// Number of ranks on every host.
const PER_HOST: usize = 2;
/// Time limit of a launch, on a busy machine as well. A launch that exceeds it hangs.
const BOUND: Duration = Duration::from_secs(30);
/// Program of every rank, which prints its rank and host.
const PROGRAM: &str = "echo $RANK $(hostname)";

/// Options of the soak.
#[derive(Debug, Clone, Copy, Args)]
pub struct SoakOptions {
    /// Number of jobs, one after the other.
    #[arg(long, default_value_t = 300)]
    pub launches: usize,
    /// Number of hosts of each job.
    #[arg(long, default_value_t = 16)]
    pub hosts: usize,
    /// Keep the machine's processors busy meanwhile.
    #[arg(long)]
    pub load: bool,
}

/// Launches jobs by `rlaunch` on hosts of their own and prints a summary; returns whether none
/// hung, failed or left anything behind.
pub fn run(options: &SoakOptions, rlaunch: &Path) -> Result<bool, LabError> {
    setup::install(PackageSet::Lab)?;
    let lab = Options { net: NET, ..Options::new(NAME, options.hosts) };
    let launches = Lab::with_fresh(&lab, |lab| soak(options, &lab, rlaunch))?;
    let load = if options.load { "busy" } else { "quiet" };
    println!(
        "launches of {} hosts × {PER_HOST} ranks on a {load} machine; seconds, median (min–max): {}",
        options.hosts,
        launches.summary()
    );
    Ok(launches.failed == 0)
}

fn soak(options: &SoakOptions, lab: &Lab, rlaunch: &Path) -> Result<Launches, LabError> {
    let rlaunch = install(lab, rlaunch)?;
    let _load = if options.load { keep_busy()? } else { Vec::new() };
    let hosts = lab.hosts();
    let slots: Vec<String> = hosts.iter().map(|host| format!("{host}:{PER_HOST}")).collect();
    let ranks = 0..hosts.len() * PER_HOST;
    let mut wanted: Vec<String> =
        ranks.map(|rank| format!("{rank} {}", hosts[rank / PER_HOST])).collect();
    wanted.sort_unstable();
    Launches::repeat(
        lab,
        ("two ranks on every host", options.launches),
        || false,
        || {
            let mut command = lab.exec_in(Account::Root, Path::new("/"));
            command.arg(&rlaunch).args(["-H", &slots.join(","), "sh", "-c", PROGRAM]);
            job(lab, command, BOUND, |stdout| {
                let mut lines: Vec<&str> = stdout.lines().collect();
                lines.sort_unstable();
                lines == wanted
            })
        },
    )
}

/// Starts two busy loops for every processor, which run until they are dropped.
fn keep_busy() -> Result<Vec<Background>, LabError> {
    let processors = thread::available_parallelism().map_or(1, usize::from);
    let busy = |_| {
        let mut shell = Command::new("sh");
        shell.args(["-c", "while :; do :; done"]);
        Background::start(shell)
    };
    (0..2 * processors).map(busy).collect()
}
