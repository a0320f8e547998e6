//! Stage netns: tests on hosts made of network namespaces. The lab's own tests run first, then
//! those of rlaunch in three labs at once, then a short soak.

use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::thread;

use super::ledger::{Ledger, Tally};
use super::retry::retry_failures;
use super::run::{self, Outcome, TestProgram, Tests};
use super::{BUILD, LAB_VARIABLE, LAUNCHER_VARIABLE, TestPlan};
use crate::dist::{self, Profile, aarch64};
use crate::setup::venv::BASE;
use crate::setup::{self, PackageSet, mpi, python};
use crate::{Lab, LabError, Options, soak};

pub(super) const NAME: &str = "netns";

/// Labs in which tests of rlaunch run. Their names and addresses are unlikely for labs made by
/// hand.
const LABS: [(&str, [u8; 2]); 3] = [("test", [10, 95]), ("test2", [10, 98]), ("test3", [10, 99])];
const HOSTS: usize = 8;

/// Files of tests that mostly wait, for a time limit or for silence to be noticed. The second lab
/// runs them while the two others run those that mostly compute: three of the latter at once would
/// only take longer.
const WAITING: &[&str] = &[
    "callback",
    "delivery",
    "ending",
    "jump",
    "lost",
    "mpi",
    "network",
    "oob",
    "restarts",
    "services",
    "shells",
    "standstill",
    "teardown",
    "unreachable",
];

/// Name of the soak for `--filter`.
const SOAK: &str = "soak";
/// Number of jobs of each soak (one on a quiet machine, one on a busy machine), and of hosts.
const SOAK_LAUNCHES: usize = 40;
const SOAK_HOSTS: usize = 16;

pub(super) fn test(plan: &TestPlan, ledger: &Ledger) -> Result<Tally, LabError> {
    if ledger.has_failed(BUILD) && dist::build_everything().is_err() {
        return Ok(Tally::skip("the build failed"));
    }
    if let Err(error) = setup::require_root() {
        return Ok(Tally::skip(error.to_string()));
    }
    let built = dist::build_everything()?;
    let mut tally = Tally::default();
    if plan.wants_lab() {
        let own = own_tests(&TestProgram::new(&built.test("lab")?, plan.filter.as_ref()));
        tally.add(own.unwrap_or_else(|error| run::failed("the lab's own tests", &error)));
    }
    let (program, skipped) = runnable(plan, &built.test(NAME)?)?;
    let mut names = program.names()?;
    names.retain(|name| plan.netns().includes_test(name));
    if !names.is_empty() {
        tally.add(in_labs(&program, &names)?);
    }
    for (tests, why) in skipped {
        tally.add(Tally::skip(format!("{tests}…: {why}")));
    }
    if plan.wants_lab() && plan.filter.as_ref().is_none_or(|filter| SOAK.contains(filter)) {
        tally.add(soak(&dist::launcher(Profile::Lab)?));
    }
    Ok(tally)
}

/// Returns the program with the tests that this machine can run, and the tests that it cannot run.
pub(super) fn runnable(
    plan: &TestPlan,
    path: &Path,
) -> Result<(TestProgram, SkippedTests), LabError> {
    let mut program = TestProgram::new(path, plan.filter.as_ref());
    let skipped = skipped(plan, &program.names()?);
    let left_out = skipped.iter().map(|(tests, _)| (*tests).to_owned()).collect();
    program.tests = Tests::Matching(plan.filter.clone(), left_out);
    Ok((program, skipped))
}

/// Runs the tests of the lab itself, which make labs of their own.
fn own_tests(program: &TestProgram) -> Result<Tally, LabError> {
    let first = program.run("netns-lab")?;
    retry_failures(vec![first], |test| program.only(&[test.to_owned()]).run("netns-lab-again"))
}

/// Runs the short form of `cargo lab soak launch`, on a quiet machine and on a busy one.
fn soak(launcher: &Path) -> Tally {
    let mut tally = Tally::default();
    for load in [false, true] {
        let plan = soak::SoakOptions { launches: SOAK_LAUNCHES, hosts: SOAK_HOSTS, load };
        tally.add(match soak::launch(&plan, launcher) {
            Ok(passed) => Tally::check(passed),
            Err(error) => run::failed("the soak", &error),
        });
    }
    tally
}

/// Runs tests of these names, those of each file one after the other. Failed tests are run again in
/// the first lab, alone.
fn in_labs(program: &TestProgram, names: &[String]) -> Result<Tally, LabError> {
    let queue = Queue::new(names);
    let count = queue.len().min(LABS.len());
    let run = |lab: usize| run_lane(program, lab, &queue);
    let lanes: Vec<_> = thread::scope(|scope| {
        let threads: Vec<_> = (0..count).map(|lab| scope.spawn(move || run(lab))).collect();
        threads.into_iter().map(thread::ScopedJoinHandle::join).collect()
    });
    let mut outcomes = Vec::new();
    for lane in lanes {
        let lost = |_| Err(LabError::Unexpected("the thread of a lab's tests panicked".into()));
        outcomes.extend(lane.unwrap_or_else(lost)?);
    }
    retry_failures(outcomes, |test| {
        let (_up, program) = hosts(program, 0)?;
        program.only(&[test.to_owned()]).run(&format!("again-{test}"))
    })
}

/// Runs the files that the queue assigns to a lab.
fn run_lane(program: &TestProgram, lab: usize, queue: &Queue) -> Result<Vec<Outcome>, LabError> {
    let (_up, program) = hosts(program, lab)?;
    let mut outcomes = Vec::new();
    while let Some((file, names)) = queue.next(lab) {
        outcomes.push(program.only(&names).run(&format!("{NAME}-{file}"))?);
    }
    Ok(outcomes)
}

/// Calls `run` with a program of this stage and fresh hosts.
pub(super) fn on_hosts(
    program: &TestProgram,
    run: impl FnOnce(&TestProgram) -> Result<(), LabError>,
) -> Result<(), LabError> {
    let (_up, program) = hosts(program, 0)?;
    run(&program)
}

/// Takes a lab down when dropped.
struct LabGuard(&'static str);

impl Drop for LabGuard {
    fn drop(&mut self) {
        if let Err(error) = Lab::down(self.0) {
            run::report("taking the hosts down", &error);
        }
    }
}

/// Makes fresh hosts in a lab, and returns the program with the environment for them.
fn hosts(program: &TestProgram, lab: usize) -> Result<(LabGuard, TestProgram), LabError> {
    let (name, net) = LABS[lab];
    // An interrupted run leaves its lab behind, in any state.
    Lab::down(name)?;
    let lab = Lab::up(&Options { net, ..Options::new(name, HOSTS) })?;
    let up = LabGuard(name);
    let launcher = lab.install(&dist::directory(Profile::Lab)?)?.join("rlaunch");
    let environment = vec![(LAB_VARIABLE, PathBuf::from(name)), (LAUNCHER_VARIABLE, launcher)];
    Ok((up, TestProgram { environment, ..program.clone() }))
}

/// Queue of test files with their tests, in the order of the program.
struct Queue(Mutex<Vec<(String, Vec<String>)>>);

impl Queue {
    fn new(names: &[String]) -> Queue {
        let mut files: Vec<(String, Vec<String>)> = Vec::new();
        for name in names {
            let file = name.rsplit_once("::").map_or("", |(file, _)| file);
            match files.iter_mut().find(|(known, _)| known == file) {
                Some((_, tests)) => tests.push(name.clone()),
                None => files.push((file.to_owned(), vec![name.clone()])),
            }
        }
        Queue(Mutex::new(files))
    }

    fn len(&self) -> usize {
        self.lock().len()
    }

    /// Takes the next file for a lab. The second lab gets files that wait, the first and the third
    /// get the others from both ends of the list, and each of them then gets what is left.
    fn next(&self, lab: usize) -> Option<(String, Vec<String>)> {
        let mut files = self.lock();
        let is_own = |(file, _): &(String, Vec<String>)| is_waiting(file) == (lab == 1);
        let own = match lab {
            0 | 1 => files.iter().position(is_own),
            _ => files.iter().rposition(is_own),
        };
        let at = own.or_else(|| (!files.is_empty()).then_some(0))?;
        Some(files.remove(at))
    }

    fn lock(&self) -> MutexGuard<'_, Vec<(String, Vec<String>)>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

fn is_waiting(file: &str) -> bool {
    WAITING.contains(&file.split("::").next().unwrap_or(file))
}

/// Beginnings of the names of tests that this machine cannot run, each with the reason.
pub(super) type SkippedTests = Vec<(&'static str, String)>;

/// Finds which of the tests called `names` this machine cannot run.
fn skipped(plan: &TestPlan, names: &[String]) -> SkippedTests {
    let is_wanted = |part: &str| {
        names.iter().any(|name| name.contains(part) && plan.netns().includes_test(name))
    };
    let mut skipped = Vec::new();
    if is_wanted(AARCH64) {
        let missing = aarch64::build(Profile::Lab).unwrap_or_else(|error| vec![error.to_string()]);
        let missing = missing.into_iter().chain(aarch64::cannot_run()).map(|why| (AARCH64, why));
        skipped.extend(missing);
        skipped.extend(aarch64::python().err().map(|why| (AARCH64_PYTHON, why.to_string())));
    }
    if is_wanted(NUMPY) && !has_numpy() {
        skipped.push((NUMPY, format!("{BASE} has no numpy")));
    }
    // Built before hosts start: they mount it then.
    if is_wanted(TORCH)
        && let Err(error) = python::TORCH.build()
    {
        skipped.push((TORCH, format!("no Python with torch: {error}")));
    }
    let missing = setup::missing(PackageSet::Headers);
    if is_wanted(MPI) && !missing.is_empty() {
        skipped.push((MPI, format!("not installed: {}", missing.join(", "))));
    }
    if is_wanted(MPI_WHEELS)
        && let Err(error) = mpi::build()
    {
        skipped.push((MPI_WHEELS, format!("no Python with an MPI library: {error}")));
    }
    if is_wanted(GPU) && !has_gpu() {
        skipped.push((GPU, "this machine has no NVIDIA GPU".to_owned()));
    }
    let shells: Vec<_> = LOGIN_SHELLS.into_iter().filter(|shell| !setup::has(shell)).collect();
    if is_wanted(SHELLS) && !shells.is_empty() {
        skipped.push((SHELLS, format!("not installed: {}", shells.join(", "))));
    }
    skipped
}

/// Parts of the names of tests that need numpy, torch, Debian's MPI libraries, those of the Python
/// package index, an NVIDIA GPU, hosts of another architecture, or several login shells.
const NUMPY: &str = "numpy_";
const TORCH: &str = "torch_";
const MPI: &str = "mpi::";
const MPI_WHEELS: &str = "mpi::wheels::";
const GPU: &str = "gpu::";
const AARCH64: &str = "aarch64::";
const AARCH64_PYTHON: &str = "aarch64::python_";
const SHELLS: &str = "shells::";
const LOGIN_SHELLS: [&str; 3] = ["fish", "zsh", "csh"];

fn has_gpu() -> bool {
    let look = Command::new("nvidia-smi").arg("-L").stdout(Stdio::null()).status();
    look.is_ok_and(|status| status.success())
}

fn has_numpy() -> bool {
    let program = "import importlib.util as u, sys; sys.exit(not u.find_spec('numpy'))";
    Command::new(BASE).args(["-c", program]).status().is_ok_and(|status| status.success())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn names(all: &[&str]) -> Vec<String> {
        all.iter().map(|name| (*name).to_owned()).collect()
    }

    #[test]
    fn files_that_wait_have_the_second_lab() {
        let queue = Queue::new(&names(&[
            "lost::a",
            "output::b",
            "output::c",
            "teardown::lost::d",
            "words::e",
        ]));
        assert_eq!(queue.len(), 4);
        let file = |lab| queue.next(lab).map(|(file, tests)| (file, tests.len()));
        assert_eq!(file(1), Some(("lost".into(), 1)));
        assert_eq!(file(2), Some(("words".into(), 1)));
        assert_eq!(file(0), Some(("output".into(), 2)));
        // Each lab takes other files when it has nothing else to do.
        assert_eq!(file(0), Some(("teardown::lost".into(), 1)));
        assert_eq!((file(0), file(1), file(2)), (None, None, None));
    }
}
