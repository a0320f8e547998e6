//! `cargo lab soak mpi --suite`: the tests of mpi4py with every library of the Python package index,
//! under rlaunch and under the library's own launcher. What becomes of a test must not depend on the
//! launcher.
//!
//! Some tests hang or crash with some libraries, whatever the launcher. Then the job is started again
//! without that test and those that are done.

mod differences;
mod record;

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use nix::sys::signal::Signal;

use super::NET;
use crate::bench::contender::clear;
use crate::command::background::Background;
use crate::command::last_lines;
use crate::setup::mpi::{self, MpiLibrary, WHEELS};
use crate::setup::{self, PackageSet};
use crate::soak::{install, stacks};
use crate::{Account, Lab, LabError, Options};
use record::{Record, TestEnd};

const NAME: &str = "soaksuite";
const HOSTS: [&str; 2] = ["a", "b"];
const PER_HOST: usize = 2;
/// Script that every rank runs.
const SCRIPT: &str = include_str!("suite.py");
/// Directory on hosts where no job leaves files.
const DIRECTORY: &str = "/run/mpi4py";
/// Directory that the hosts share, since tests start programs that they have written and open files
/// on all ranks.
const SHARED: &str = "/root/mpi4py";
/// Time in which at least one rank has to begin or end a test. Four ranks that wait actively share
/// two cores.
const STALL: Duration = Duration::from_secs(120);
/// Time limit of a library under one launcher.
const LIMIT: Duration = Duration::from_secs(1800);
/// Time limit for a launcher to end after an interrupt.
const END: Duration = Duration::from_secs(15);
/// Time between two looks at the records.
const PAUSE: Duration = Duration::from_millis(250);

/// Ends of tests by their names.
type TestEnds = BTreeMap<String, TestEnd>;

/// Runs the tests with the libraries of these names, or with all, and prints what is different under
/// rlaunch; returns whether nothing is but what is known.
pub(in crate::soak) fn run(names: &[String], rlaunch: &Path) -> Result<bool, LabError> {
    setup::install(PackageSet::Peers)?;
    mpi::build()?;
    let tests = mpi::mpi4py_tests()?;
    let options = Options { net: NET, shared_home: true, ..Options::new(NAME, HOSTS.len()) };
    let wanted =
        |library: &&MpiLibrary| names.is_empty() || names.iter().any(|n| n == library.name);
    Lab::with_fresh(&options, |lab| {
        let rlaunch = install(&lab, rlaunch)?;
        let suite = Suite { lab, rlaunch };
        suite.copy(&tests)?;
        let mut same = true;
        for library in WHEELS.iter().filter(wanted) {
            let peer = suite.outcomes(library, By::Own)?;
            let own = suite.outcomes(library, By::Rlaunch)?;
            same &= differences::print(library.name, &own, &peer);
        }
        Ok(same)
    })
}

/// Launcher that starts the tests.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum By {
    Rlaunch,
    /// Launcher of the library.
    Own,
}

/// End of a job, as far as a test is the reason.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Ended {
    /// The launcher has returned.
    Returned,
    /// No rank has begun or ended a test for [`STALL`].
    Stalled,
    /// The time of the library is over.
    OutOfTime,
}

/// Hosts with the tests.
struct Suite {
    lab: Lab,
    rlaunch: PathBuf,
}

impl Suite {
    /// Copies the tests and the script to the hosts.
    fn copy(&self, tests: &Path) -> Result<(), LabError> {
        let operation = || LabError::io(format!("read {}", tests.display()));
        for entry in fs::read_dir(tests).map_err(operation())? {
            let path = entry.map_err(operation())?.path();
            if path.is_file() {
                let name = path.file_name().unwrap_or_default();
                let to = Path::new(DIRECTORY).join("tests").join(name);
                self.write(&to, &fs::read(&path).map_err(operation())?)?;
            }
        }
        self.write(&Path::new(DIRECTORY).join("suite.py"), SCRIPT.as_bytes())
    }

    fn write(&self, path: &Path, bytes: &[u8]) -> Result<(), LabError> {
        HOSTS.into_iter().try_for_each(|host| self.lab.write_file(host, path, bytes, 0o644))
    }

    /// Runs all tests with a library. Tests for which the time does not suffice have no outcome.
    fn outcomes(&self, library: &MpiLibrary, by: By) -> Result<TestEnds, LabError> {
        let (begin, launcher) = (Instant::now(), self.launcher(library, by));
        let name = format!(
            "{} under {}",
            library.name,
            if by == By::Own { "its own launcher" } else { "rlaunch" }
        );
        println!("{name}");
        let mut outcomes = TestEnds::new();
        loop {
            self.prepare(library, &outcomes)?;
            let mut command = self.lab.exec_in(Account::Root, Path::new("/"));
            command.args(&launcher);
            let path = |name: &str| format!("{DIRECTORY}/{name}");
            command.args(library.words(&path("suite.py")));
            command.args(["tests", "record", "left-out"].map(path)).arg(SHARED);
            let mut job = Background::start(command)?;
            let ended = self.watch(&mut job, begin + LIMIT)?;
            let (records, end) = (self.records()?, self.end(&mut job, by, ended));
            let merged = record::merge(&records);
            outcomes.extend(merged.outcomes);
            end?;
            let failed = match (ended, merged.unfinished) {
                (Ended::OutOfTime, _) => break,
                (_, Some(test)) => test,
                (Ended::Returned, None) if merged.is_done => break,
                (_, None) => {
                    let stderr = last_lines(&job.stderr(), 20);
                    return Err(LabError::Unexpected(format!(
                        "{name}: no test was begun\n{stderr}"
                    )));
                }
            };
            let outcome = if ended == Ended::Stalled { TestEnd::Hung } else { TestEnd::Crashed };
            println!("  {failed} {outcome}");
            if outcome == TestEnd::Crashed {
                println!("{}", last_lines(&job.stderr(), 10));
            }
            outcomes.insert(failed, outcome);
        }
        println!("  {} in {:.0} s", record::summary(&outcomes), begin.elapsed().as_secs_f64());
        Ok(outcomes)
    }

    /// Returns the words that start two ranks on each host.
    fn launcher(&self, library: &MpiLibrary, by: By) -> Vec<String> {
        match by {
            By::Own => library.own_launcher(&HOSTS, PER_HOST),
            By::Rlaunch => {
                let slots = HOSTS.map(|host| format!("{host}:{PER_HOST}")).join(",");
                vec![self.rlaunch.display().to_string(), "-H".into(), slots]
            }
        }
    }

    /// Removes what earlier jobs have left, and writes down which tests are left out.
    fn prepare(&self, library: &MpiLibrary, outcomes: &TestEnds) -> Result<(), LabError> {
        clear(&self.lab)?;
        for (host, rank) in ranks() {
            let path = self.lab.path(host, &record_path(rank))?;
            if path.exists() {
                fs::remove_file(&path).map_err(LabError::io("remove a record"))?;
            }
        }
        let shared = self.lab.path(HOSTS[0], Path::new(SHARED))?;
        let _ = fs::remove_dir_all(&shared);
        fs::create_dir(&shared).map_err(LabError::io("make a directory for tests"))?;
        // A pattern with a `*` has to match the whole name.
        let done = outcomes.keys().map(|test| format!("*{test}\n"));
        let known = differences::left_out(library.name).map(|tests| format!("*{tests}\n"));
        let patterns: String = done.chain(known).collect();
        self.write(&Path::new(DIRECTORY).join("left-out"), patterns.as_bytes())
    }

    /// Waits until the launcher returns, no test makes progress, or `end`.
    fn watch(&self, job: &mut Background, end: Instant) -> Result<Ended, LabError> {
        let (mut size, mut changed) = (0, Instant::now());
        loop {
            if job.wait(PAUSE)?.is_some() {
                return Ok(Ended::Returned);
            }
            if Instant::now() >= end {
                return Ok(Ended::OutOfTime);
            }
            let now = self.size_of_records();
            if now != size {
                (size, changed) = (now, Instant::now());
            }
            if changed.elapsed() >= STALL {
                println!("{}", stacks::of(&self.lab));
                return Ok(Ended::Stalled);
            }
        }
    }

    /// Ends a job that still runs. Fails if rlaunch does not return after an interrupt; the other
    /// launchers are killed.
    fn end(&self, job: &mut Background, by: By, ended: Ended) -> Result<(), LabError> {
        if ended == Ended::Returned {
            return Ok(());
        }
        job.signal(Signal::SIGINT)?;
        if job.wait(END)?.is_none() && by == By::Rlaunch {
            let stderr = last_lines(&job.stderr(), 10);
            return Err(LabError::Unexpected(format!("rlaunch ignores an interrupt\n{stderr}")));
        }
        Ok(())
    }

    fn size_of_records(&self) -> u64 {
        let size = |(host, rank)| {
            let path = self.lab.path(host, &record_path(rank)).ok()?;
            Some(fs::metadata(path).ok()?.len())
        };
        ranks().filter_map(size).sum()
    }

    /// Reads the record of every rank. A rank that did not begin has an empty one.
    fn records(&self) -> Result<Vec<Record>, LabError> {
        let read = |(host, rank)| {
            let path = self.lab.path(host, &record_path(rank))?;
            Ok(Record::parse(&fs::read_to_string(path).unwrap_or_default()))
        };
        ranks().map(read).collect()
    }
}

/// Lists hosts and numbers of all ranks.
fn ranks() -> impl Iterator<Item = (&'static str, usize)> {
    (0..HOSTS.len() * PER_HOST).map(|rank| (HOSTS[rank / PER_HOST], rank))
}

fn record_path(rank: usize) -> PathBuf {
    Path::new(DIRECTORY).join(format!("record{rank}"))
}
