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

mod library;
mod memory;
mod report;

use std::fmt;
use std::process::Command;
use std::time::Instant;

use super::Series;
use super::launchers::Launcher;
use super::testbed::{Scratch, Testbed, bench_lab};
use crate::LabError;
use crate::command::run as run_command;
use crate::dist::{self, Profile};
use crate::setup::{self, PackageSet};
use library::{CompiledProgram, Library};

/// Program of the shortest job.
const SHORTEST: &str = "true";
/// Time limit of a job in seconds, as an option of launchers.
const LIMIT: &str = "120";
/// Options of rlaunch by which each rank is a singleton.
const SINGLETONS: [&str; 4] = ["--mpi", "none", "--singleton", "ignore"];

/// Options of the bench.
#[derive(Debug, Clone)]
pub struct MpiOptions {
    /// Numbers of hosts; all of them are measured.
    pub hosts: Vec<usize>,
    /// Number of ranks on each host.
    pub ranks: usize,
    /// Number of timed rounds.
    pub rounds: usize,
    /// Names of libraries to leave out.
    pub skip: Vec<String>,
}

/// Returns the names that `--skip` takes.
pub fn library_names() -> Vec<&'static str> {
    Library::ALL.map(Library::name).to_vec()
}

/// Measured values of one kind of job.
#[derive(Debug, Clone, Default)]
struct JobTimes {
    /// Seconds.
    wall: Series,
    /// Seconds of all nodes together.
    cpu: Series,
    /// Seconds of the slowest rank in `MPI_Init`.
    init: Series,
}

/// Results of one library.
#[derive(Debug, Clone)]
struct LibraryResults {
    library: Library,
    floor: JobTimes,
    own: JobTimes,
    peer: JobTimes,
    /// Peak memory of the largest agent in MiB, less that of a job without MPI.
    agent_growth: f64,
}

/// Results on one number of hosts.
#[derive(Debug, Clone)]
struct Results {
    hosts: usize,
    ranks: usize,
    shortest: JobTimes,
    libraries: Vec<LibraryResults>,
}

/// Kind of job.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Kind {
    /// Singletons, started by rlaunch.
    Floor,
    /// MPI program under rlaunch.
    Own,
    /// MPI program under the launcher of its library.
    Peer,
}

impl Kind {
    const ALL: [Kind; 3] = [Kind::Floor, Kind::Own, Kind::Peer];
}

/// Measures and prints; returns whether every bar is met.
pub fn run(options: &MpiOptions) -> Result<bool, LabError> {
    if options.ranks == 0 || options.hosts.contains(&0) {
        return Err(LabError::Usage("a job has at least one host and one rank on each".into()));
    }
    setup::install(PackageSet::Headers)?;
    let rlaunch = dist::build(Profile::Release)?;
    let scratch = Scratch::make()?;
    let wanted = |library: &Library| !options.skip.iter().any(|name| name == library.name());
    let libraries = Library::ALL.into_iter().filter(wanted);
    let programs: Vec<CompiledProgram> =
        libraries.map(|library| library.compile(scratch.path())).collect::<Result<_, _>>()?;
    let most = options.hosts.iter().copied().max().unwrap_or(1);
    let results = Testbed::with_fresh(&bench_lab(most), rlaunch, |testbed| {
        programs.iter().try_for_each(|program| program.copy_to(testbed))?;
        let measure =
            |&hosts: &usize| MpiSetting::new(testbed, &programs, hosts, options).measure();
        options.hosts.iter().map(measure).collect::<Result<Vec<Results>, _>>()
    })?;
    let met: Vec<bool> =
        results.iter().map(|results| report::print(results, options.rounds)).collect();
    Ok(met.into_iter().all(|met| met))
}

/// Hosts, ranks and programs of a measurement.
struct MpiSetting<'a> {
    testbed: &'a Testbed,
    programs: &'a [CompiledProgram],
    hosts: &'a [String],
    per_host: usize,
    rounds: usize,
}

impl<'a> MpiSetting<'a> {
    fn new(
        testbed: &'a Testbed,
        programs: &'a [CompiledProgram],
        hosts: usize,
        options: &MpiOptions,
    ) -> MpiSetting<'a> {
        let hosts = &testbed.hosts[..hosts];
        MpiSetting { testbed, programs, hosts, per_host: options.ranks, rounds: options.rounds }
    }

    fn ranks(&self) -> usize {
        self.hosts.len() * self.per_host
    }

    /// Runs a warm-up round and the timed rounds, then measures memory. In each round every kind of
    /// job runs once for each library; the order of the kinds rotates.
    fn measure(&self) -> Result<Results, LabError> {
        println!("\n{} ranks on {} hosts", self.ranks(), self.hosts.len());
        let mut shortest = JobTimes::default();
        let mut libraries: Vec<LibraryResults> =
            self.programs.iter().map(|program| LibraryResults::new(program.library)).collect();
        for round in 0..=self.rounds {
            let measured = self.time(SHORTEST, &mut self.rlaunch(&[], &[SHORTEST]), None)?;
            println!("round {round}: {SHORTEST:<19} {measured}");
            shortest.note(round, &measured);
            for (program, results) in self.programs.iter().zip(&mut libraries) {
                for turn in 0..Kind::ALL.len() {
                    let kind = Kind::ALL[(round + turn) % Kind::ALL.len()];
                    let (name, measured) = self.time_kind(program, kind)?;
                    println!("round {round}: {:<10} {name:<8} {measured}", program.library.name());
                    results.times(kind).note(round, &measured);
                }
            }
        }
        let without = self.agent_memory(&["sleep", memory::HELD])?;
        for results in &mut libraries {
            let with = self.agent_memory(&[&results.library.program(), memory::HELD])?;
            results.agent_growth = with - without;
        }
        let (hosts, ranks) = (self.hosts.len(), self.ranks());
        Ok(Results { hosts, ranks, shortest, libraries })
    }

    fn rlaunch(&self, options: &[&str], program: &[&str]) -> Command {
        let options = [&["--timeout", LIMIT], options].concat();
        Launcher::Rlaunch.command_on(self.hosts, &options, self.testbed, self.per_host, program)
    }

    /// Runs a job of one kind; returns its name and its times.
    fn time_kind(
        &self,
        program: &CompiledProgram,
        kind: Kind,
    ) -> Result<(&'static str, Measured), LabError> {
        let path = program.library.program();
        let (name, mut command, world) = match kind {
            Kind::Floor => ("floor", self.rlaunch(&SINGLETONS, &[&path]), 1),
            Kind::Own => (Launcher::Rlaunch.name(), self.rlaunch(&[], &[&path]), self.ranks()),
            Kind::Peer => {
                let command = program.command(self.testbed, self.hosts, self.per_host, LIMIT);
                (program.library.launcher(), command, self.ranks())
            }
        };
        let operation = format!("run {name} of {}", program.library.name());
        Ok((name, self.time(&operation, &mut command, Some(world))?))
    }

    /// Runs a job and returns its times. `world` is the number of ranks of which MPI must tell each
    /// rank; none if the program does not use MPI.
    fn time(
        &self,
        operation: &str,
        command: &mut Command,
        world: Option<usize>,
    ) -> Result<Measured, LabError> {
        let ((wall, output), cpu) = self.testbed.with_cpu(|| {
            let start = Instant::now();
            let output = run_command(operation, command)?;
            Ok((start.elapsed().as_secs_f64(), output))
        })?;
        let printed = String::from_utf8_lossy(&output.stdout);
        let init = world.map(|world| slowest(&printed, self.ranks(), world)).transpose()?;
        Ok(Measured { wall, cpu, init })
    }
}

/// Times of one job in seconds.
struct Measured {
    wall: f64,
    /// None on a machine without cgroup v2.
    cpu: Option<f64>,
    /// None for a program without MPI.
    init: Option<f64>,
}

impl fmt::Display for Measured {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:.2} s", self.wall)?;
        self.cpu.map_or(Ok(()), |cpu| write!(f, ", {cpu:.2} s of CPU"))?;
        self.init.map_or(Ok(()), |init| write!(f, ", MPI_Init {:.0} ms", init * 1e3))
    }
}

impl JobTimes {
    /// Adds the times of a job, unless it belongs to the warm-up round 0.
    fn note(&mut self, round: usize, measured: &Measured) {
        if round > 0 {
            self.wall.push(measured.wall);
            measured.cpu.into_iter().for_each(|cpu| self.cpu.push(cpu));
            measured.init.into_iter().for_each(|init| self.init.push(init));
        }
    }
}

impl LibraryResults {
    fn new(library: Library) -> LibraryResults {
        let [floor, own, peer] = [(); 3].map(|()| JobTimes::default());
        LibraryResults { library, floor, own, peer, agent_growth: 0.0 }
    }

    fn times(&mut self, kind: Kind) -> &mut JobTimes {
        match kind {
            Kind::Floor => &mut self.floor,
            Kind::Own => &mut self.own,
            Kind::Peer => &mut self.peer,
        }
    }
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
