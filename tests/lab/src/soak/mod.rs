//! `cargo lab soak`: one thing many times over, to find failures that occur once in a hundred
//! times.

mod comm;
mod copy;
mod detach;
mod doctor;
mod frameworks;
mod launch;
mod mpi;
mod options;
mod stacks;
mod teardown;

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use clap::{Args, Subcommand};

use crate::bench::Series;
use crate::command::background::Background;
use crate::command::last_lines;
use crate::dist::{self, Profile};
use crate::{Lab, LabError};

pub use launch::{SoakOptions, run as launch};
pub use teardown::{hostile, hostile_runs};

/// Time limit for an sshd to end after its client has.
const IDLE: Duration = Duration::from_secs(10);
/// Number of failures after which a soak stops.
const MAX_FAILURES: usize = 5;
/// Number of jobs between two lines of progress.
const PROGRESS_EVERY: usize = 100;

/// Things that are repeated.
#[derive(Debug, Subcommand)]
pub enum Soak {
    /// Launch jobs of two ranks on every host; fails if one hangs, fails or leaves anything behind.
    Launch(SoakOptions),
    /// Put random faults into three guests, one at a time; fails if rlaunch doctor does not show a
    /// fault first, or finds something as severe beside it.
    Doctor {
        /// Number of faults.
        #[arg(long, default_value_t = 30)]
        faults: usize,
        /// Seed that chooses faults and places.
        #[arg(long, default_value_t = 1)]
        seed: u64,
    },
    /// Send random messages between 8 ranks on two hosts; fails if one is lost, late, out of order or
    /// wrong, or if a rank's memory grows. Prints a line of progress every minute.
    Comm {
        /// Duration in seconds.
        #[arg(long, default_value_t = 3600, value_parser = clap::value_parser!(u64).range(1..))]
        seconds: u64,
    },
    /// Launch programs of six MPI libraries that check their results, on 1, 2, 4 and 16 hosts; fails
    /// if one hangs, fails or leaves anything behind.
    Mpi {
        /// Maximum duration in seconds; if it is too short, some shapes get fewer launches.
        #[arg(long, default_value_t = 1200, value_parser = clap::value_parser!(u64).range(1..))]
        seconds: u64,
    },
    /// Push changing trees to three hosts, three pushes at once, each in a random trouble at a random moment: a host that
    /// is cut off, crashes, is killed or has no space, or a signal to rlaunch. Fails if a file is neither the old nor the
    /// new one, if anything is left, if the wrong host is blamed, or if the next push does not make all hosts whole.
    Copy {
        /// Number of pushes.
        #[arg(long, default_value_t = 200)]
        copies: usize,
        #[command(flatten)]
        seed: Seed,
    },
    /// Run jobs with -d, four at once, each in a random trouble at a random moment: stopped, by signals to its
    /// launcher or to the rlaunch that waits for its start, or on a host that is cut off. Fails if one has
    /// another end, if anything is left, or if its log has a gap.
    Detach {
        /// Number of jobs.
        #[arg(long, default_value_t = 300)]
        jobs: usize,
        #[command(flatten)]
        seed: Seed,
    },
    /// Run command lines of torch, Lightning, accelerate, DeepSpeed, JAX, TensorFlow, Ray, Dask, vLLM and SGLang as their
    /// pages have them (the last two with stand-ins) on three hosts, also where a host's own name resolves to 127.0.1.1,
    /// beside the frameworks' own launchers; then torch's steps with and without rlaunch, and jobs of Ray that end in every
    /// way. Prints a table; fails if a line is wrong, slow, or leaves anything. Installs 8 GB once.
    Frameworks(frameworks::FrameworkOptions),
    /// Run each option of mpirun (Open MPI) and mpiexec (MPICH) alone, under the launcher of this machine that it is of and
    /// under rlaunch. Prints a table; fails if one has another effect on ranks, variables, output or exit code, apart from
    /// known differences.
    Options(options::OptionsSoak),
    /// Run jobs whose helpers try to outlive them, four at once, and end each in a random way at a random
    /// moment: by signals to rlaunch, agents and ranks, pauses of these, connections that stall or close,
    /// and output that nobody reads. Fails if anything is left, if an end takes too long, or if exit code
    /// or message is not true. Prints a line of progress every hundred jobs.
    Teardown {
        /// Number of jobs.
        #[arg(long, default_value_t = 500)]
        jobs: usize,
        #[command(flatten)]
        seed: Seed,
    },
}

/// What a soak draws at random.
#[derive(Debug, Clone, Copy, Args)]
pub struct Seed {
    /// Seed that chooses all that is random; by default a random one, which is printed.
    #[arg(long)]
    seed: Option<u64>,
}

impl Seed {
    fn get(self) -> u64 {
        self.seed.unwrap_or_else(|| fastrand::u64(..))
    }
}

/// Runs a soak; returns whether it found nothing wrong.
pub fn run(soak: &Soak) -> Result<bool, LabError> {
    let rlaunch = || dist::build(Profile::Lab);
    match soak {
        Soak::Launch(options) => launch(options, &rlaunch()?),
        Soak::Doctor { faults, seed } => doctor::run(*faults, *seed),
        Soak::Comm { seconds } => comm::run(*seconds),
        Soak::Mpi { seconds } => mpi::run(*seconds, &rlaunch()?),
        Soak::Copy { copies, seed } => copy::run(*copies, seed.get(), &rlaunch()?),
        Soak::Frameworks(options) => frameworks::soak(options, &rlaunch()?),
        Soak::Detach { jobs, seed } => detach::run(*jobs, seed.get(), &rlaunch()?),
        Soak::Options(options) => match &options.rlaunch {
            Some(rlaunch) => options::run(options, rlaunch),
            None => options::run(options, &rlaunch()?),
        },
        Soak::Teardown { jobs, seed } => teardown::run(*jobs, seed.get(), &rlaunch()?),
    }
}

/// Copies the distribution of `rlaunch` into the lab; returns the copy's path. A build meanwhile
/// changes nothing in it.
fn install(lab: &Lab, rlaunch: &Path) -> Result<PathBuf, LabError> {
    Ok(lab.install(rlaunch.parent().unwrap_or(rlaunch))?.join("rlaunch"))
}

/// Jobs with numbers, in lanes that run at once.
struct Tally {
    jobs: usize,
    seed: u64,
    lanes: usize,
    began: Instant,
    ran: AtomicUsize,
    failed: AtomicUsize,
}

impl Tally {
    fn new(jobs: usize, seed: u64, lanes: usize) -> Tally {
        println!("{jobs} jobs with seed {seed}");
        let (ran, failed) = (AtomicUsize::new(0), AtomicUsize::new(0));
        Tally { jobs, seed, lanes, began: Instant::now(), ran, failed }
    }

    /// Runs the jobs of a lane until too many of all have failed. Which lane runs a job does not depend on how fast others
    /// are, so a seed repeats all. `run` returns what has failed, which is printed.
    fn run_lane(
        &self,
        lane: usize,
        mut run: impl FnMut(usize) -> Result<Option<String>, LabError>,
    ) -> Result<(), LabError> {
        for number in (lane..self.jobs).step_by(self.lanes) {
            if self.failed.load(Ordering::Relaxed) >= MAX_FAILURES {
                break;
            }
            if let Some(failure) = run(number)? {
                println!("job {number} of seed {}, {failure}", self.seed);
                self.failed.fetch_add(1, Ordering::Relaxed);
            }
            let ran = self.ran.fetch_add(1, Ordering::Relaxed) + 1;
            if ran.is_multiple_of(PROGRESS_EVERY) {
                let failed = self.failed.load(Ordering::Relaxed);
                println!("{ran} of {}: {failed} failed, {} s", self.jobs, self.seconds());
            }
        }
        Ok(())
    }

    /// Says what came of the jobs; returns whether none has failed.
    fn conclude(&self, what: &str) -> bool {
        let [ran, failed] = [&self.ran, &self.failed].map(|count| count.load(Ordering::Relaxed));
        if failed >= MAX_FAILURES {
            println!("giving up after {MAX_FAILURES} failures");
        }
        println!("{ran} {what}, seed {}, in {} s: {failed} failed", self.seed, self.seconds());
        failed == 0
    }

    fn seconds(&self) -> u64 {
        self.began.elapsed().as_secs()
    }
}

/// Launches of one kind.
#[derive(Debug, Default)]
struct Launches {
    /// Seconds of launches that succeeded.
    times: Series,
    failed: usize,
}

impl Launches {
    /// Runs `job` several times, fewer after too many failures, or once it `is_over`.
    fn repeat(
        lab: &Lab,
        (what, count): (&str, usize),
        is_over: impl Fn() -> bool,
        job: impl Fn() -> Result<Duration, LabError>,
    ) -> Result<Launches, LabError> {
        let mut launches = Launches::default();
        // The first launch is not counted: it sends the agent.
        for number in 0..=count {
            match job() {
                Ok(time) if number > 0 => launches.times.push(time.as_secs_f64()),
                Ok(_) => {}
                Err(error) => {
                    println!("{what}, launch {number}: {error}");
                    launches.failed += 1;
                    clear(lab)?;
                }
            }
            if launches.failed == MAX_FAILURES {
                println!("giving up after {MAX_FAILURES} failures");
                break;
            }
            if number > 0 && is_over() {
                break;
            }
        }
        Ok(launches)
    }

    /// Formats `100: 0.450 (0.410–0.600)`: the number of launches, and their seconds.
    fn summary(&self) -> String {
        let launches = self.times.count() + self.failed;
        let failed =
            if self.failed > 0 { format!(", {} failed", self.failed) } else { String::new() };
        format!("{launches}: {}{failed}", self.times.summary())
    }
}

/// Kills everything that runs in the lab, and removes the temporary files of all hosts.
fn clear(lab: &Lab) -> Result<(), LabError> {
    lab.clear()?;
    for host in lab.hosts() {
        for directory in ["/tmp", "/dev/shm"].map(Path::new) {
            let Ok(outside) = lab.path(&host, directory) else { continue };
            for path in fs::read_dir(outside).into_iter().flatten().flatten().map(|of| of.path()) {
                let removed =
                    if path.is_dir() { fs::remove_dir_all(&path) } else { fs::remove_file(&path) };
                removed.map_err(LabError::io(format!("remove {}", path.display())))?;
            }
        }
    }
    Ok(())
}

/// Runs one job; returns its duration. Fails if it is not over after `bound`, or fails, or prints
/// what is not right, or leaves anything on a host.
fn job(
    lab: &Lab,
    command: Command,
    bound: Duration,
    is_right: impl Fn(&str) -> bool,
) -> Result<Duration, LabError> {
    let start = Instant::now();
    let mut job = Background::start(command)?;
    let status = job.wait(bound)?;
    let time = start.elapsed();
    let (stdout, stderr) = (job.stdout(), last_lines(&job.stderr(), 10));
    let Some(status) = status else {
        let waits = stacks::of(lab);
        return Err(LabError::Unexpected(format!("hung\n{waits}\n{stdout}\n{stderr}")));
    };
    let mut left = Vec::new();
    for host in lab.hosts() {
        left.extend(left_on(lab, &host)?);
    }
    if !left.is_empty() || !status.success() || !is_right(&stdout) {
        return Err(LabError::Unexpected(format!(
            "ended with {status} and left {left:#?}\n{stdout}\n{stderr}"
        )));
    }
    lab.wait_until_idle(IDLE)?;
    Ok(time)
}

/// Lists what jobs have left on a host: processes, files and directories, shared memory and cgroups.
/// An sshd may still run for a moment after its client.
fn left_on(lab: &Lab, host: &str) -> Result<Vec<String>, LabError> {
    let mut left = Vec::new();
    for process in lab.processes(host)? {
        let program = process.args.first().map_or("", String::as_str);
        if process.state != 'Z' && !program.starts_with("sshd") && !program.starts_with('[') {
            left.push(format!("{host} {process:?}"));
        }
    }
    for directory in ["/tmp", "/dev/shm", "/sys/fs/cgroup"] {
        let entries = fs::read_dir(lab.path(host, Path::new(directory))?);
        let names = entries.into_iter().flatten().flatten();
        let names = names.map(|entry| entry.file_name().to_string_lossy().into_owned());
        // The kernel's own files are in the directory of cgroups, too, and our program in /tmp.
        let is_left = |name: &String| match directory {
            "/sys/fs/cgroup" => name.starts_with("rlaunch-"),
            _ => !name.starts_with("hostile"),
        };
        left.extend(names.filter(is_left).map(|name| format!("{host} {directory}/{name}")));
    }
    Ok(left)
}
