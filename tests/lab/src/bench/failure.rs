//! `cargo lab bench failure`: what is left of a job and for how long, when a part of it fails,
//! under rlaunch, Hydra and Open MPI in turn; then the same for MPI programs of six libraries, under
//! rlaunch and, for Debian's libraries, under their own launchers.

use std::fs::{self, File, OpenOptions};
use std::io::Write;
use std::os::unix::fs::OpenOptionsExt;
use std::path::Path;
use std::process::Command;
use std::thread;
use std::time::{Duration, Instant};

use nix::fcntl::OFlag;
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;

use super::contender::{Contender, Launcher, Scratch, Testbed, clear};
use super::table::{Bar, Rounds, Row, Table};
use crate::command::background::Background;
use crate::command::{last_lines, run as run_command, wait_until};
use crate::dist::{self, Profile};
use crate::setup::mpi::{self, DEBIAN, MpiLibrary, WHEELS};
use crate::setup::{self, PackageSet};
use crate::{Account, Cut, LabError, Process};

const HOSTS: usize = 4;
const PER_HOST: usize = 2;
const RANKS: usize = HOSTS * PER_HOST;
/// Host that is affected, with ranks 4 and 5, the latter of which is killed.
const HOST: &str = "c";
const KILLED: &str = "RANK=5";
/// Time limit for the start of a job: eight MPI ranks that wait actively share two cores.
const START: Duration = Duration::from_secs(60);
/// Time limit for a launcher to deal with a failure that a process can observe at once.
const SHORT: Duration = Duration::from_secs(5);
/// Time limit for a host that falls silent, which is noticed only by a timeout.
const LONG: Duration = Duration::from_secs(15);
/// Maximum number of rounds with MPI programs, since there are six libraries.
const MAX_MPI_ROUNDS: usize = 3;

/// Named pipe; a rank that has read a line from it exits or aborts.
const PIPE: &str = "/tmp/fail-pipe";
/// Program of every rank. No other process sleeps as long, so ranks are recognised by it.
const PROGRAM: &str = "rank=${RANK:-${PMI_RANK:-$OMPI_COMM_WORLD_RANK}}; echo ready
    [ $rank = 5 ] || exec sleep 31536000
    read -r _ </tmp/fail-pipe; exit 3";
const MARK: &str = "31536000";
/// Path of an MPI program on hosts.
const MPI_PROGRAM: &str = "/run/fail-mpi";
/// Script that gives ranks of other launchers the variables of rlaunch that the MPI program looks
/// at. Arguments: the program and its arguments.
const VARIABLES: &str = r#"export RANK=${PMI_RANK:-$OMPI_COMM_WORLD_RANK}
    export WORLD_SIZE=${PMI_SIZE:-$OMPI_COMM_WORLD_SIZE}; exec "$0" "$@""#;

/// Cause of a failure.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Cause {
    /// A line is written to the pipe on this host, the reader of which exits or aborts.
    Line(&'static str),
    LauncherIsKilled,
    LauncherIsInterrupted,
    AgentIsKilled,
    RankIsKilled,
    /// One host falls silent.
    Silence,
}

/// Event that is awaited.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Event {
    LauncherReturned,
    /// The ranks of the affected host are gone.
    HostGone,
    AllGone,
    /// The launcher has returned, and all ranks are gone.
    AllOver,
}

/// Failure with what is awaited: names of rows, and the maximum in seconds for rlaunch.
#[derive(Debug)]
struct Failure {
    cause: Cause,
    awaited: &'static [(&'static str, Event, f64)],
    /// Exit code of rlaunch and a part of its message; none if it is killed.
    end: Option<(i32, &'static str)>,
    /// Text that each rank prints when it is ready; empty if the pipe alone shows it.
    ready: &'static str,
    /// Arguments of an MPI program.
    part: &'static [&'static str],
}

const FAILURES: [Failure; 4] = [
    Failure {
        cause: Cause::Line(HOST),
        awaited: &[("a rank exits with 3: launcher returned", Event::LauncherReturned, 0.15)],
        end: Some((3, "error: rank 5 on c ")),
        ready: "ready",
        part: &[],
    },
    Failure {
        cause: Cause::LauncherIsKilled,
        awaited: &[("launcher killed: all ranks gone", Event::AllGone, 0.1)],
        end: None,
        ready: "ready",
        part: &[],
    },
    Failure {
        cause: Cause::AgentIsKilled,
        awaited: &[
            ("agent killed: launcher returned", Event::LauncherReturned, 0.3),
            ("    and the host's ranks gone", Event::HostGone, 0.3),
        ],
        end: Some((206, "error: node c is lost: ")),
        ready: "ready",
        part: &[],
    },
    Failure {
        cause: Cause::Silence,
        awaited: &[
            ("host silent: named, launcher returned", Event::LauncherReturned, 10.0),
            ("    and the host's ranks gone", Event::HostGone, 10.0),
        ],
        end: Some((206, "error: node c is lost: ")),
        ready: "ready",
        part: &[],
    },
];

/// Text of a rank of the MPI program that is about to enter a barrier.
const WAITS: &str = " waits in process ";
const MPI_FAILURES: [Failure; 4] = [
    Failure {
        cause: Cause::Line("a"),
        awaited: &[("MPI_Abort: all over", Event::AllOver, 0.3)],
        end: Some((7, "error: rank 1 on a called MPI_Abort(7)")),
        ready: "",
        part: &["abort", "7", PIPE],
    },
    Failure {
        cause: Cause::RankIsKilled,
        awaited: &[("rank killed in a barrier: all over", Event::AllOver, 0.3)],
        end: Some((137, "was killed by signal 9 (SIGKILL)")),
        ready: WAITS,
        part: &["wait"],
    },
    Failure {
        cause: Cause::LauncherIsInterrupted,
        awaited: &[("Ctrl-C: all over", Event::AllOver, 0.3)],
        end: Some((130, "interrupted: ")),
        ready: WAITS,
        part: &["wait"],
    },
    Failure {
        cause: Cause::Silence,
        awaited: &[("host silent: all over", Event::AllOver, 10.0)],
        end: Some((206, "error: node c is lost: ")),
        ready: WAITS,
        part: &["wait"],
    },
];

/// Measures and prints; returns whether every bar is met.
pub(super) fn run(rounds: usize) -> Result<bool, LabError> {
    setup::install(PackageSet::Headers)?;
    mpi::build()?;
    let contenders = Contender::with_services(&dist::build(Profile::Release)?);
    // The launchers' temporary files: the launch node's `/tmp` is the machine's own.
    let scratch = Scratch::make(std::env::temp_dir())?;
    let what = format!("{RANKS} ranks on {HOSTS} hosts, from the failure");
    Testbed::with_fresh(HOSTS, |testbed| {
        let bench = Bench { testbed, scratch: &scratch, contenders: &contenders };
        let mut tables = vec![(what, bench.measure(rounds)?)];
        for library in DEBIAN.iter().chain(&WHEELS) {
            let rounds = rounds.min(MAX_MPI_ROUNDS);
            tables.push((library.name.into(), bench.measure_mpi(library, rounds)?));
        }
        let met: Vec<bool> = tables.iter().map(|(title, table)| table.print(title)).collect();
        Ok(met.into_iter().all(|met| met))
    })
}

/// Makes the rows of failures: for each awaited event, and the ranks that are left if one is late.
fn rows(failures: &[Failure]) -> impl Iterator<Item = Row> + '_ {
    failures.iter().flat_map(|failure| {
        let row = |&(name, _, most): &(&str, _, f64)| Row::new(name, "s", &[Bar::Median(most)]);
        failure.awaited.iter().map(row).chain([Row::new("    left in the end", "ranks", &[])])
    })
}

struct Bench<'a> {
    testbed: &'a Testbed,
    scratch: &'a Scratch,
    /// Launchers, rlaunch first.
    contenders: &'a [Contender],
}

impl Bench<'_> {
    /// Runs a warm-up, then in each turn every failure.
    fn measure(&self, rounds: usize) -> Result<Table, LabError> {
        for contender in self.contenders {
            Job::start(self.testbed, self.command(contender), &FAILURES[1], is_rank)?.end()?;
        }
        let names = self.contenders.iter().map(|contender| contender.name);
        let mut table = Table::new(names, rows(&FAILURES));
        table.measure(Rounds::without_warm_up(rounds), |turn| {
            let contender = &self.contenders[turn.contender];
            observe_all(&FAILURES, turn.round, contender.launcher, |failure| {
                Job::start(self.testbed, self.command(contender), failure, is_rank)
            })
        })?;
        Ok(table)
    }

    fn command(&self, contender: &Contender) -> Command {
        let place = self.testbed.all(PER_HOST);
        let mut command = contender.command(place, &[], &["sh", "-c", PROGRAM]);
        command.env("TMPDIR", &self.scratch.0);
        command
    }

    /// Makes jobs of a library fail, under rlaunch and, for Debian's libraries, under its own
    /// launcher.
    fn measure_mpi(&self, library: &MpiLibrary, rounds: usize) -> Result<Table, LabError> {
        println!("{}", library.name);
        let program = library.program()?;
        for host in &self.testbed.hosts {
            self.testbed.lab.write_file(host, Path::new(MPI_PROGRAM), &program, 0o755)?;
        }
        let has_peer = DEBIAN.iter().any(|debian| debian.name == library.name);
        let names = if has_peer { &["rlaunch", "own launcher"][..] } else { &["rlaunch"] };
        let mut table = Table::new(names.iter().copied(), rows(&MPI_FAILURES));
        table.measure(Rounds::without_warm_up(rounds), |turn| {
            // Only rlaunch is told from other launchers.
            let launcher = [Launcher::Rlaunch, Launcher::OpenMpi][turn.contender];
            observe_all(&MPI_FAILURES, turn.round, launcher, |failure| {
                let command = self.mpi_command(library, failure, launcher);
                Job::start(self.testbed, command, failure, is_mpi_rank)
            })
        })?;
        Ok(table)
    }

    fn mpi_command(&self, library: &MpiLibrary, failure: &Failure, launcher: Launcher) -> Command {
        let place = self.testbed.all(PER_HOST);
        let program = library.words(MPI_PROGRAM).into_iter();
        let program: Vec<String> =
            program.chain(failure.part.iter().map(|word| (*word).into())).collect();
        if launcher == Launcher::Rlaunch {
            return self.contenders[0].command(place, &[], &program);
        }
        let mut command = place.launched_by(library);
        command.args(["sh", "-c", VARIABLES]).args(program);
        command
    }
}

/// Observes every failure in a job of its own; returns a value for each row. Other launchers do not
/// notice a silent host, which comes last, so one round of it is enough for them.
fn observe_all<'a>(
    failures: &'static [Failure],
    round: usize,
    launcher: Launcher,
    start: impl Fn(&'static Failure) -> Result<Job<'a>, LabError>,
) -> Result<Vec<Option<f64>>, LabError> {
    let mut values = Vec::new();
    for failure in failures {
        if failure.cause == Cause::Silence && launcher != Launcher::Rlaunch && round > 1 {
            continue;
        }
        let mut job = start(failure)?;
        values.extend(job.fail(launcher)?);
        job.end()?;
    }
    Ok(values)
}

/// Running job.
struct Job<'a> {
    testbed: &'a Testbed,
    failure: &'static Failure,
    job: Background,
    ranks: Vec<Process>,
    /// Writing end of the pipe. It stays open: to its reader, closing it is the end of a file.
    pipe: Option<File>,
}

impl<'a> Job<'a> {
    /// Starts eight ranks and waits until all are up, and one reads the pipe if it will have to.
    fn start(
        testbed: &'a Testbed,
        command: Command,
        failure: &'static Failure,
        is_rank: fn(&Process) -> bool,
    ) -> Result<Job<'a>, LabError> {
        let pipe_host = if let Cause::Line(host) = failure.cause { Some(host) } else { None };
        let mut mkfifo = testbed.lab.on(pipe_host.unwrap_or(HOST), Account::Root)?;
        run_command("make a pipe", mkfifo.args(["mkfifo", PIPE]))?;
        let job = Background::start(command)?;
        let mut job = Job { testbed, failure, job, ranks: Vec::new(), pipe: None };
        let started = wait_until(START, "the ranks to start", || {
            job.ranks = testbed.lab.all_processes().into_iter().filter(is_rank).collect();
            if let (Some(host), None) = (pipe_host, &job.pipe) {
                job.pipe = open_pipe(testbed, host)?;
            }
            let printed = job.job.stdout().matches(failure.ready).count();
            Ok(job.ranks.len() == RANKS
                && (failure.ready.is_empty() || printed == RANKS)
                && job.pipe.is_some() == pipe_host.is_some())
        });
        let Err(error) = started else { return Ok(job) };
        let stderr = last_lines(&job.job.stderr(), 10);
        job.end()?;
        Err(LabError::Unexpected(format!("{error}\n{stderr}")))
    }

    /// Makes a part of the job fail; returns the seconds until each awaited event, and the number
    /// of affected ranks that are left if one is late.
    fn fail(&mut self, launcher: Launcher) -> Result<Vec<Option<f64>>, LabError> {
        let cause = self.failure.cause;
        let victim = match cause {
            Cause::AgentIsKilled => Some(self.agent(launcher)?),
            Cause::RankIsKilled => Some(self.killed_rank()?),
            _ => None,
        };
        let began = Instant::now();
        match (cause, &mut self.pipe) {
            (Cause::Line(_), Some(pipe)) => {
                writeln!(pipe).map_err(LabError::io("write to a pipe"))?;
            }
            (Cause::LauncherIsKilled, _) => self.job.kill()?,
            (Cause::LauncherIsInterrupted, _) => self.job.signal(Signal::SIGINT)?,
            (Cause::Silence, _) => self.testbed.lab.cut(HOST, Cut::Silent)?,
            _ => {}
        }
        if let Some(victim) = victim {
            kill(victim, Signal::SIGKILL).map_err(LabError::errno("kill a process"))?;
        }
        let times = self.watch(began);
        if cause == Cause::Silence {
            self.testbed.lab.heal(HOST)?;
        }
        let times = times?;
        if launcher == Launcher::Rlaunch && times[0].is_some() {
            self.check()?;
        }
        let is_late = times.iter().any(Option::is_none);
        let on_host = self.failure.awaited.iter().any(|(_, event, _)| *event == Event::HostGone);
        let left = self.left(|rank| is_late && (!on_host || rank.host == HOST));
        Ok(times.into_iter().chain([Some(left as f64)]).collect())
    }

    /// Waits for the awaited events, up to the time limit.
    fn watch(&mut self, began: Instant) -> Result<Vec<Option<f64>>, LabError> {
        let limit = if self.failure.cause == Cause::Silence { LONG } else { SHORT };
        let mut times = vec![None; self.failure.awaited.len()];
        while began.elapsed() < limit && times.iter().any(Option::is_none) {
            for ((_, event, _), time) in self.failure.awaited.iter().zip(&mut times) {
                let mut has_returned = || Ok::<_, LabError>(self.job.ended()?.is_some());
                if time.is_none()
                    && match event {
                        Event::LauncherReturned => has_returned()?,
                        Event::AllOver => has_returned()? && self.left(|_| true) == 0,
                        Event::HostGone => self.left(|rank| rank.host == HOST) == 0,
                        Event::AllGone => self.left(|_| true) == 0,
                    }
                {
                    *time = Some(began.elapsed().as_secs_f64());
                }
            }
            thread::sleep(Duration::from_millis(1));
        }
        Ok(times)
    }

    /// Counts the ranks that still run and are not zombies.
    fn left(&self, is_meant: impl Fn(&Process) -> bool) -> usize {
        self.ranks.iter().filter(|rank| is_meant(rank) && rank.is_running()).count()
    }

    /// Checks rlaunch's exit code and error message.
    fn check(&mut self) -> Result<(), LabError> {
        let Failure { cause, end: Some((wanted, message)), .. } = self.failure else {
            return Ok(());
        };
        let code = self.job.wait(SHORT)?.and_then(|status| status.code());
        let stderr = self.job.stderr();
        if code == Some(*wanted) && stderr.contains(message) {
            return Ok(());
        }
        Err(LabError::Unexpected(format!(
            "{cause:?}: rlaunch ended with {code:?} and printed\n{stderr}"
        )))
    }

    /// Finds the process that manages the ranks of [`HOST`].
    fn agent(&self, launcher: Launcher) -> Result<Pid, LabError> {
        let name = match launcher {
            Launcher::Rlaunch => "rlaunch-worker",
            Launcher::Hydra => "hydra_pmi_proxy",
            Launcher::OpenMpi | Launcher::PlainSsh => "orted",
        };
        let processes = self.testbed.lab.processes(HOST)?;
        let is_agent = |process: &&Process| {
            process.args.first().is_some_and(|word| word.ends_with(name))
                && self.ranks.iter().any(|rank| rank.host == HOST && rank.parent == process.pid)
        };
        let missing = || LabError::Unexpected(format!("no {name} is on {HOST}: {processes:#?}"));
        processes.iter().find(is_agent).map(|of| Pid::from_raw(of.pid)).ok_or_else(missing)
    }

    fn killed_rank(&self) -> Result<Pid, LabError> {
        let is_wanted = |rank: &&Process| {
            let variables = fs::read(format!("/proc/{}/environ", rank.pid)).unwrap_or_default();
            variables.split(|&byte| byte == 0).any(|variable| variable == KILLED.as_bytes())
        };
        let missing = || LabError::Unexpected(format!("no {KILLED} is in {:#?}", self.ranks));
        self.ranks.iter().find(is_wanted).map(|rank| Pid::from_raw(rank.pid)).ok_or_else(missing)
    }

    /// Kills and removes whatever is left on any host.
    fn end(self) -> Result<(), LabError> {
        let Job { testbed, job, pipe, .. } = self;
        drop((job, pipe));
        clear(&testbed.lab)
    }
}

/// Opens the pipe for writing; returns nothing while no rank reads it.
fn open_pipe(testbed: &Testbed, host: &str) -> Result<Option<File>, LabError> {
    let path = testbed.lab.path(host, Path::new(PIPE))?;
    let opened = OpenOptions::new().write(true).custom_flags(OFlag::O_NONBLOCK.bits()).open(path);
    match opened {
        Ok(pipe) => Ok(Some(pipe)),
        Err(error) if error.raw_os_error() == Some(nix::libc::ENXIO) => Ok(None),
        Err(error) => Err(LabError::io("open a pipe")(error)),
    }
}

fn is_rank(process: &Process) -> bool {
    let program = process.args.first().map_or("", String::as_str);
    ["sh", "sleep"].contains(&program) && process.args.iter().any(|arg| arg.contains(MARK))
}

/// Returns whether a process runs the MPI program, rather than being a shell or launcher that names
/// it.
fn is_mpi_rank(process: &Process) -> bool {
    let program = process.args.first().map_or("", String::as_str);
    let is_python = program.ends_with("/bin/python");
    program == MPI_PROGRAM
        || is_python && process.args.get(1).is_some_and(|word| word == MPI_PROGRAM)
}
