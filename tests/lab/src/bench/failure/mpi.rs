//! MPI programs that fail, under rlaunch and, for Debian's libraries, under their own launchers.

use std::fs::{self, OpenOptions};
use std::io::Write;
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};
use std::thread;
use std::time::{Duration, Instant};

use nix::fcntl::OFlag;
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;

use super::job::{Observed, is_running};
use super::table::FailureRow;
use super::{HOSTS, LONG, PER_HOST, SHORT};
use crate::bench::testbed::Testbed;
use crate::command::background::Background;
use crate::command::{last_lines, run, wait_until};
use crate::setup::mpi::{DEBIAN, MpiLibrary, WHEELS};
use crate::{Account, Cut, LabError, Process};

/// Names of the columns.
pub(super) const COLUMNS: [&str; 2] = ["rlaunch", "own launcher"];
/// Maximum number of rounds, since there are six libraries.
const MAX_ROUNDS: usize = 3;
/// Path of the program on hosts.
const PROGRAM: &str = "/run/fail-mpi";
/// Named pipe on the host of rank 1, which aborts the job when it has read a line.
const PIPE: &str = "/run/fail-pipe";
const PIPE_HOST: &str = "a";
/// Host that is cut, with ranks 4 and 5. The latter is killed.
const HOST: &str = "c";
const KILLED: &str = "5";
/// Time limit for the start of a job: eight ranks that wait actively share two cores.
const START: Duration = Duration::from_secs(60);
/// Script that gives ranks of other launchers the variables of rlaunch that the program looks at.
/// Arguments: the program and its arguments.
const VARIABLES: &str = r#"export RANK=${PMI_RANK:-$OMPI_COMM_WORLD_RANK}
    export WORLD_SIZE=${PMI_SIZE:-$OMPI_COMM_WORLD_SIZE}; exec "$0" "$@""#;

/// Way in which an MPI job fails.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum MpiFailure {
    /// One rank calls `MPI_Abort(7)` while the others are in a barrier.
    Abort,
    /// A rank is killed while it is in a barrier.
    Kill,
    /// The user interrupts the launcher.
    Interrupt,
    /// One host falls silent.
    Host,
}

impl MpiFailure {
    const ALL: [MpiFailure; 4] =
        [MpiFailure::Abort, MpiFailure::Kill, MpiFailure::Interrupt, MpiFailure::Host];

    fn name(self) -> &'static str {
        match self {
            MpiFailure::Abort => "MPI_Abort",
            MpiFailure::Kill => "rank killed in a barrier",
            MpiFailure::Interrupt => "Ctrl-C",
            MpiFailure::Host => "host silent",
        }
    }

    /// Maximum time in seconds until rlaunch has returned and all ranks are gone.
    fn bar(self) -> f64 {
        if self == MpiFailure::Host { 10.0 } else { 0.3 }
    }

    fn limit(self) -> Duration {
        if self == MpiFailure::Host { LONG } else { SHORT }
    }

    /// Returns the exit code of rlaunch and a part of its message.
    fn end(self) -> (i32, &'static str) {
        match self {
            MpiFailure::Abort => (7, "error: rank 1 on a called MPI_Abort(7)"),
            MpiFailure::Kill => (137, "was killed by signal 9 (SIGKILL)"),
            MpiFailure::Interrupt => (130, "error: ended by SIGINT"),
            MpiFailure::Host => (206, "error: node c is lost: "),
        }
    }

    /// Returns the words that select the part of the program.
    fn part(self) -> &'static [&'static str] {
        match self {
            MpiFailure::Abort => &["abort", "7", PIPE],
            _ => &["wait"],
        }
    }
}

/// Makes jobs of every library fail in every way; returns a row for each.
pub(super) fn measure(testbed: &Testbed, rounds: usize) -> Result<Vec<FailureRow>, LabError> {
    let mut mkfifo = testbed.lab.on(PIPE_HOST, Account::Root)?;
    run("make a pipe", mkfifo.args(["mkfifo", PIPE]))?;
    let mut rows = Vec::new();
    for (library, has_peer) in
        DEBIAN.iter().map(|l| (l, true)).chain(WHEELS.iter().map(|l| (l, false)))
    {
        let program = library.program()?;
        for host in &testbed.hosts {
            testbed.lab.write_file(host, Path::new(PROGRAM), &program, 0o755)?;
        }
        for failure in MpiFailure::ALL {
            let what = format!("{}, {}", library.name, failure.name());
            let mut row = FailureRow::new(&what, failure.bar(), failure.limit(), COLUMNS.len());
            for round in 1..=rounds.min(MAX_ROUNDS) {
                for (column, is_own) in [(0, true), (1, false)] {
                    // Other launchers do not notice a silent host, so one round is enough.
                    let is_needed =
                        is_own || has_peer && (round == 1 || failure != MpiFailure::Host);
                    if is_needed {
                        let observed = MpiJob::start(testbed, library, failure, is_own)?.fail()?;
                        println!("round {round}: {what}, {}: {observed}", COLUMNS[column]);
                        row.cells[column].push(observed.times[0], observed.left);
                    }
                }
            }
            rows.push(row);
        }
    }
    Ok(rows)
}

/// Job that is about to fail.
struct MpiJob<'a> {
    testbed: &'a Testbed,
    failure: MpiFailure,
    /// Whether rlaunch has started it.
    is_own: bool,
    job: Background,
    ranks: Vec<Process>,
    /// Pipe whose reader calls `MPI_Abort` after a line.
    pipe: Option<fs::File>,
}

impl<'a> MpiJob<'a> {
    /// Starts a job and waits until all ranks are in a barrier, or are about to enter it.
    fn start(
        testbed: &'a Testbed,
        library: &MpiLibrary,
        failure: MpiFailure,
        is_own: bool,
    ) -> Result<MpiJob<'a>, LabError> {
        let hosts: Vec<&str> = testbed.hosts.iter().map(String::as_str).collect();
        let mut command = testbed.lab.exec_in(Account::Root, Path::new("/"));
        if is_own {
            let slots: Vec<String> =
                hosts.iter().map(|host| format!("{host}:{PER_HOST}")).collect();
            command.arg(&testbed.rlaunch).args(["-H", &slots.join(",")]);
        } else {
            command.args(library.own_launcher(&hosts, PER_HOST)).args(["sh", "-c", VARIABLES]);
        }
        command.args(library.words(PROGRAM)).args(failure.part());
        let job = Background::start(command)?;
        let mut job = MpiJob { testbed, failure, is_own, job, ranks: Vec::new(), pipe: None };
        let started = wait_until(START, "the ranks to start", || {
            job.ranks = all_ranks(testbed);
            Ok(job.ranks.len() == HOSTS * PER_HOST && job.is_ready()?)
        });
        let Err(error) = started else { return Ok(job) };
        let stderr = last_lines(&job.job.stderr(), 10);
        testbed.clear()?;
        Err(LabError::Unexpected(format!("{}: {error}\n{stderr}", library.name)))
    }

    /// Tells whether the ranks wait. The pipe stays open: to its reader, closing it is the end of a file.
    fn is_ready(&mut self) -> Result<bool, LabError> {
        if self.failure == MpiFailure::Abort {
            if self.pipe.is_none() {
                self.pipe = open_pipe(self.testbed)?;
            }
            return Ok(self.pipe.is_some());
        }
        Ok(self.job.stdout().matches(" waits in process ").count() == HOSTS * PER_HOST)
    }

    /// Makes the job fail, observes it, and removes what it leaves.
    fn fail(mut self) -> Result<Observed, LabError> {
        let killed = self.rank(KILLED)?;
        let began = Instant::now();
        match self.failure {
            MpiFailure::Abort => {
                if let Some(pipe) = &mut self.pipe {
                    writeln!(pipe).map_err(LabError::io("write to a pipe"))?;
                }
            }
            MpiFailure::Kill => {
                kill(killed, Signal::SIGKILL).map_err(LabError::errno("kill a rank"))?;
            }
            MpiFailure::Interrupt => self.job.signal(Signal::SIGINT)?,
            MpiFailure::Host => self.testbed.lab.cut(HOST, Cut::Silent)?,
        }
        let observed = self.watch(began);
        if self.failure == MpiFailure::Host {
            self.testbed.lab.heal(HOST)?;
        }
        let observed = observed?;
        if self.is_own && observed.times[0].is_some() {
            self.check()?;
        }
        drop(self.job);
        self.testbed.clear()?;
        Ok(observed)
    }

    /// Waits until the launcher has returned and all ranks are gone, up to the time limit.
    fn watch(&mut self, began: Instant) -> Result<Observed, LabError> {
        let left = |ranks: &[Process]| ranks.iter().filter(|rank| is_running(rank)).count();
        while began.elapsed() < self.failure.limit() {
            if self.job.ended()?.is_some() && left(&self.ranks) == 0 {
                return Ok(Observed { times: vec![Some(began.elapsed())], left: 0 });
            }
            thread::sleep(Duration::from_millis(1));
        }
        Ok(Observed { times: vec![None], left: left(&self.ranks) })
    }

    /// Checks rlaunch's exit code and error message.
    fn check(&mut self) -> Result<(), LabError> {
        let (wanted, message) = self.failure.end();
        let code = self.job.wait(SHORT)?.and_then(|status| status.code());
        let stderr = self.job.stderr();
        if code == Some(wanted) && stderr.contains(message) {
            return Ok(());
        }
        Err(LabError::Unexpected(format!(
            "{:?}: rlaunch ended with {code:?} and printed\n{stderr}",
            self.failure
        )))
    }

    /// Finds a rank by its number.
    fn rank(&self, number: &str) -> Result<Pid, LabError> {
        let wanted = format!("RANK={number}");
        let is_wanted = |rank: &&Process| {
            let variables = fs::read(format!("/proc/{}/environ", rank.pid)).unwrap_or_default();
            variables.split(|&byte| byte == 0).any(|variable| variable == wanted.as_bytes())
        };
        let missing = || LabError::Unexpected(format!("no rank {number} is in {:#?}", self.ranks));
        self.ranks.iter().find(is_wanted).map(|rank| Pid::from_raw(rank.pid)).ok_or_else(missing)
    }
}

/// Opens the pipe for writing; returns nothing while no rank reads it.
fn open_pipe(testbed: &Testbed) -> Result<Option<fs::File>, LabError> {
    let path: PathBuf = testbed.lab.path(PIPE_HOST, Path::new(PIPE))?;
    let opened = OpenOptions::new().write(true).custom_flags(OFlag::O_NONBLOCK.bits()).open(path);
    match opened {
        Ok(pipe) => Ok(Some(pipe)),
        Err(error) if error.raw_os_error() == Some(nix::libc::ENXIO) => Ok(None),
        Err(error) => Err(LabError::io("open a pipe")(error)),
    }
}

/// Lists the processes that run the program, without shells and launchers that name it.
fn all_ranks(testbed: &Testbed) -> Vec<Process> {
    let mut processes = testbed.lab.all_processes();
    processes.retain(|process| {
        let program = process.args.first().map_or("", String::as_str);
        let is_python = program.ends_with("/bin/python");
        program == PROGRAM || is_python && process.args.get(1).is_some_and(|word| word == PROGRAM)
    });
    processes
}
