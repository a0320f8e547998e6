//! `cargo lab soak`: one thing many times over, to find failures that occur once in a hundred
//! times.

mod comm;
mod doctor;
mod hostile;
mod mpi;
mod stacks;
mod teardown;

use std::hint;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use crate::bench::Series;
use crate::bench::testbed::{clear, temporary_files};
use crate::command::background::Background;
use crate::command::last_lines;
use crate::setup::{self, PackageSet};
use crate::{Account, Lab, LabError, Options};

pub use comm::run as comm;
pub use doctor::run as doctor;
pub use hostile::{build as hostile, is_running as hostile_runs};
pub use mpi::run as mpi;
pub use mpi::suite::run as mpi_suite;
pub use teardown::run as teardown;

const NAME: &str = "soak";
const NET: [u8; 2] = [10, 94];
/// Number of ranks on every host.
const PER_HOST: usize = 2;
/// Time limit of a launch, on a busy machine as well. A launch that exceeds it hangs.
const BOUND: Duration = Duration::from_secs(30);
/// Time limit for an sshd to end after its client has.
const IDLE: Duration = Duration::from_secs(10);
/// Program of every rank, which prints its rank and host.
const PROGRAM: &str = "echo $RANK $(hostname)";
/// Number of failures after which the soak stops.
const MAX_FAILURES: usize = 5;

/// Options of `cargo lab soak launch`.
#[derive(Debug, Clone, Copy)]
pub struct SoakOptions {
    /// Number of jobs, one after the other.
    pub launches: usize,
    /// Number of hosts of each job.
    pub hosts: usize,
    /// Whether the machine's processors are kept busy meanwhile.
    pub load: bool,
}

/// Launches jobs by `rlaunch` on hosts of their own and prints a summary; returns whether none
/// hung, failed or left anything behind.
pub fn launch(options: &SoakOptions, rlaunch: &Path) -> Result<bool, LabError> {
    setup::install(PackageSet::Lab)?;
    let lab = Options { net: NET, ..Options::new(NAME, options.hosts) };
    let SoakResult { times, failed } = Lab::with_fresh(&lab, |lab| soak(options, &lab, rlaunch))?;
    let load = if options.load { "busy" } else { "quiet" };
    let (hosts, launches) = (options.hosts, times.count() + failed);
    println!(
        "{launches} launches of {hosts} hosts × {PER_HOST} ranks on a {load} machine: \
         {failed} failed; seconds, median (min–max): {}",
        times.summary()
    );
    Ok(failed == 0)
}

struct SoakResult {
    /// Seconds of launches that succeeded.
    times: Series,
    failed: usize,
}

fn soak(options: &SoakOptions, lab: &Lab, rlaunch: &Path) -> Result<SoakResult, LabError> {
    let rlaunch = lab.install(rlaunch.parent().unwrap_or(rlaunch))?.join("rlaunch");
    let _load = options.load.then(Load::start);
    let mut soaked = SoakResult { times: Series::default(), failed: 0 };
    // The first launch is not counted: it sends the agent.
    for number in 0..=options.launches {
        match once(lab, &rlaunch) {
            Ok(time) if number > 0 => soaked.times.push(time.as_secs_f64()),
            Ok(_) => {}
            Err(error) => {
                println!("launch {number}: {error}");
                soaked.failed += 1;
                clear(lab)?;
            }
        }
        if soaked.failed == MAX_FAILURES {
            println!("giving up after {MAX_FAILURES} failures");
            break;
        }
    }
    Ok(soaked)
}

/// Runs one job. Fails if a rank ran on the wrong host or not at all, or if anything is left.
fn once(lab: &Lab, rlaunch: &Path) -> Result<Duration, LabError> {
    let hosts = lab.hosts();
    let slots: Vec<String> = hosts.iter().map(|host| format!("{host}:{PER_HOST}")).collect();
    let mut command = lab.exec_in(Account::Root, Path::new("/"));
    command.arg(rlaunch).args(["-H", &slots.join(","), "sh", "-c", PROGRAM]);
    let start = Instant::now();
    let mut job = Background::start(command)?;
    let status = job.wait(BOUND)?;
    let time = start.elapsed();
    let stderr = last_lines(&job.stderr(), 10);
    let Some(status) = status else {
        let left: Vec<String> = lab.all_processes().iter().map(|p| p.host.clone()).collect();
        return Err(LabError::Unexpected(format!("hung, with processes on {left:?}\n{stderr}")));
    };
    let left = left_by_a_job(lab);
    if !left.is_empty() {
        return Err(LabError::Unexpected(format!(
            "ended with {status} and left {left:#?}\n{stderr}"
        )));
    }
    let stdout = job.stdout();
    let mut lines: Vec<&str> = stdout.lines().collect();
    lines.sort_unstable();
    let host_of = |rank: usize| &hosts[rank / PER_HOST];
    let ranks = 0..hosts.len() * PER_HOST;
    let mut wanted: Vec<String> = ranks.map(|rank| format!("{rank} {}", host_of(rank))).collect();
    wanted.sort_unstable();
    if !status.success() || lines != wanted {
        return Err(LabError::Unexpected(format!("ended with {status}\n{stdout}\n{stderr}")));
    }
    lab.wait_until_idle(IDLE)?;
    Ok(time)
}

/// Lists processes and temporary files that a job left on any host. An sshd may still run for a
/// moment after its client.
fn left_by_a_job(lab: &Lab) -> Vec<String> {
    let processes = lab.all_processes().into_iter().filter(|process| {
        let program = process.args.first().map_or("", String::as_str);
        process.state != 'Z' && !program.starts_with("sshd") && !program.starts_with('[')
    });
    let mut left: Vec<String> = processes.map(|p| format!("{} {p:?}", p.host)).collect();
    let name = |(host, path, _): &(String, PathBuf, PathBuf)| format!("{host} {}", path.display());
    left.extend(temporary_files(lab).iter().map(name));
    left
}

/// Two busy loops for every processor, until dropped.
struct Load {
    over: Arc<AtomicBool>,
    loops: Vec<JoinHandle<()>>,
}

impl Load {
    fn start() -> Load {
        let over = Arc::new(AtomicBool::new(false));
        let processors = thread::available_parallelism().map_or(1, usize::from);
        let busy = || {
            let over = over.clone();
            thread::spawn(move || {
                while !over.load(Ordering::Relaxed) {
                    hint::spin_loop();
                }
            })
        };
        let loops = (0..2 * processors).map(|_| busy()).collect();
        Load { over, loops }
    }
}

impl Drop for Load {
    fn drop(&mut self) {
        self.over.store(true, Ordering::Relaxed);
        for busy in self.loops.drain(..) {
            let _ = busy.join();
        }
    }
}
