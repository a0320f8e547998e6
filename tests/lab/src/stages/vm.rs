//! Stage vm: tests of rlaunch on QEMU guests with real verbs.

use std::collections::VecDeque;
use std::path::PathBuf;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::thread;

use super::ledger::{Ledger, Tally};
use super::retry::retry_failures;
use super::run::{Outcome, TestProgram, report};
use super::{BUILD, LAB_VARIABLE, LAUNCHER_VARIABLE, TestPlan};
use crate::command::background::Background;
use crate::dist::{self, Profile};
use crate::vm::{self, Topology, VmLab, VmOptions};
use crate::{LabError, setup};

pub(super) const NAME: &str = "vm";

/// Lab of these tests, and its topology.
#[derive(Debug)]
struct TestLab {
    name: &'static str,
    topology: Topology,
}

/// Labs of these tests. Tests whose names begin with `star::` run on a star, the others on a
/// triangle. There are two triangles, since emulated computers spend a third of their time waiting
/// for each other.
const STAR_LAB: TestLab = TestLab { name: "teststar", topology: Topology::Star };
const TRIANGLES: [TestLab; 2] = [
    TestLab { name: "test", topology: Topology::Triangle },
    TestLab { name: "test2", topology: Topology::Triangle },
];
const GUESTS: usize = 3;
/// Beginning of the names of tests on a star.
const STAR: &str = "star::";

/// Path of the launcher on the first guest.
const LAUNCHER: &str = "/share/rlaunch";

/// Starts building the guests' image in the background; the stage then waits for it. Returns
/// nothing if there can be no guests.
pub(super) fn start_image() -> Option<Background> {
    // A failure is reported by the stage itself.
    obstacle().is_none().then(|| vm::build_beside().ok()).flatten()
}

/// Returns why this machine cannot run guests, if that is so.
fn obstacle() -> Option<String> {
    let not_root = setup::require_root().err().map(|error| error.to_string());
    not_root.or_else(vm::obstacle)
}

/// Builds what is missing, starts the guests and runs the tests on them.
pub(super) fn test(plan: &TestPlan, ledger: &Ledger) -> Result<Tally, LabError> {
    if let Some(reason) = obstacle() {
        return Ok(Tally::skip(reason));
    }
    if ledger.has_failed(BUILD) && dist::build_everything().is_err() {
        return Ok(Tally::skip("the build failed"));
    }
    let program = TestProgram::new(&dist::build_everything()?.test(NAME)?, plan.filter.as_ref());
    let mut names = program.names()?;
    names.retain(|name| plan.vm().includes_test(name));
    let (stars, others): (Vec<String>, Vec<String>) =
        names.into_iter().partition(|name| name.starts_with(STAR));
    // Built once, before two labs need it.
    vm::build()?;
    let queue = Mutex::new(by_file(&others));
    let second = || -> Result<Vec<Outcome>, LabError> {
        let mut outcomes = run_on_own_guests(&program, &STAR_LAB, &stars)?;
        // Starting guests takes half a minute, which pays off if more than one file is left.
        if lock(&queue).len() > 1 {
            outcomes.extend(from_queue(&program, &TRIANGLES[1], || lock(&queue).pop_back())?);
        }
        Ok(outcomes)
    };
    let (first, second) = thread::scope(|scope| {
        let beside = scope.spawn(second);
        (from_queue(&program, &TRIANGLES[0], || lock(&queue).pop_front()), beside.join())
    });
    let lost = |_| Err(LabError::Unexpected("the thread of a lab's tests panicked".into()));
    let mut outcomes = first?;
    outcomes.extend(second.unwrap_or_else(lost)?);
    retry_failures(outcomes, |test| retry_test(&program, test))
}

/// Runs one test alone on fresh guests.
fn retry_test(program: &TestProgram, test: &str) -> Result<Outcome, LabError> {
    let lab = if test.starts_with(STAR) { &STAR_LAB } else { &TRIANGLES[0] };
    let (_up, program) = guests(program, lab)?;
    program.only(&[test.to_owned()]).run(&format!("{NAME}-again-{test}"))
}

/// Runs tests on guests of their own, if there are any tests.
fn run_on_own_guests(
    program: &TestProgram,
    lab: &'static TestLab,
    names: &[String],
) -> Result<Vec<Outcome>, LabError> {
    let mut all = Some(("star".to_owned(), names.to_vec())).filter(|_| !names.is_empty());
    from_queue(program, lab, || all.take())
}

/// Starts guests and runs files of tests on them until `next` returns none.
fn from_queue(
    program: &TestProgram,
    lab: &'static TestLab,
    mut next: impl FnMut() -> Option<File>,
) -> Result<Vec<Outcome>, LabError> {
    let Some(mut file) = next() else { return Ok(Vec::new()) };
    let (_up, program) = guests(program, lab)?;
    let mut outcomes = Vec::new();
    loop {
        outcomes.push(program.only(&file.1).run(&format!("{NAME}-{}", file.0))?);
        match next() {
            Some(another) => file = another,
            None => return Ok(outcomes),
        }
    }
}

/// File of tests, and the names of its tests.
type File = (String, Vec<String>);

fn by_file(names: &[String]) -> VecDeque<File> {
    let mut files: VecDeque<File> = VecDeque::new();
    for name in names {
        let file = name.split("::").next().unwrap_or(name);
        match files.iter_mut().find(|(known, _)| known == file) {
            Some((_, tests)) => tests.push(name.clone()),
            None => files.push_back((file.to_owned(), vec![name.clone()])),
        }
    }
    files
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Calls `run` with a program of this stage and fresh guests, in each lab that has tests of it.
pub(super) fn on_guests(
    program: &TestProgram,
    mut run: impl FnMut(&TestProgram) -> Result<(), LabError>,
) -> Result<(), LabError> {
    let (stars, others): (Vec<String>, Vec<String>) =
        program.names()?.into_iter().partition(|name| name.starts_with(STAR));
    for (lab, names) in [(&TRIANGLES[0], others), (&STAR_LAB, stars)] {
        if !names.is_empty() {
            let (_up, program) = guests(&program.only(&names), lab)?;
            run(&program)?;
        }
    }
    Ok(())
}

/// Takes guests down when dropped.
struct GuestsGuard(&'static str);

impl Drop for GuestsGuard {
    fn drop(&mut self) {
        if let Err(error) = VmLab::down(self.0) {
            report("taking the guests down", &error);
        }
    }
}

/// Starts fresh guests in a lab, and returns the program with the environment for them.
fn guests(
    program: &TestProgram,
    lab: &'static TestLab,
) -> Result<(GuestsGuard, TestProgram), LabError> {
    vm::build()?;
    // An interrupted run leaves its guests behind.
    VmLab::down(lab.name)?;
    let share = Some(dist::directory(Profile::Lab)?);
    let new = VmOptions::new(lab.name, GUESTS, lab.topology);
    VmLab::up(&VmOptions { share, is_share_fixed: true, ..new })?;
    let environment =
        vec![(LAB_VARIABLE, PathBuf::from(lab.name)), (LAUNCHER_VARIABLE, PathBuf::from(LAUNCHER))];
    Ok((GuestsGuard(lab.name), TestProgram { environment, ..program.clone() }))
}
