//! Programs of many kinds, healthy and hung ones, under the whole watch in virtual time.

use super::super::watch::{HangWatch, OutsideWaits, tests::usage};
use super::*;
use crate::run::live::LiveStatus;
use rlaunch_bootstrap::protocol::inspection::{Inspection, InspectionResult, StackFrame, Wait};
use rlaunch_plan::job::options::HangOptions;
use rlaunch_plan::job::stdin::Readers;
use std::time::Instant;

/// What a rank does, round by round: its main thread works, then it waits. Times are in milliseconds for a timeout of 10 s,
/// and are as much longer as the timeout is.
#[derive(Clone, Debug)]
struct Program {
    round: f64,
    work: f64,
    /// CPU time of one run of the main thread.
    slice: f64,
    /// Frames while it works, innermost first: functions, or lines of Python as `file:line`.
    working: &'static [&'static str],
    /// Whether it is elsewhere at each moment of its work.
    moves: bool,
    /// Frames while it waits, which it does for this.
    waiting: &'static [&'static str],
    wait: Option<Wait>,
    /// CPUs that its other threads use, and whether these move.
    threads: f64,
    threads_move: bool,
    /// CPUs that the main threads of children use which stay.
    children: f64,
    /// Whether each round's wait is that for a new child.
    starts_children: bool,
    /// Whether a shell has started it.
    is_below_shell: bool,
    /// Time between lines that it prints.
    prints: Option<f64>,
}

const TRAIN: &[&str] = &["train.py:7", "train.py:90"];
const NAP: &[&str] = &["train.py:5", "train.py:90"];
const NATIVE: &[&str] = &["dgemm_", "solve", "main"];
const BARRIER: &[&str] = &["opal_progress", "MPI_Barrier", "main"];
const RECEIVE: &[&str] = &["__poll", "gloo::transport::wait", "train.py:88"];
const SYNC: &[&str] = &["ioctl", "cudaStreamSynchronize", "train.py:77"];
const SHELL: &[&str] = &["__fork", "evaltree", "main"];
const SLEEP: &[&str] = &["clock_nanosleep", "main"];

/// Python that works for `work` of each `round`, and sleeps.
fn works(work: f64, round: f64) -> Program {
    Program {
        round,
        work,
        slice: work.clamp(0.001, 3.0),
        working: TRAIN,
        moves: true,
        waiting: NAP,
        wait: Some(Wait::Sleep),
        threads: 0.0,
        threads_move: true,
        children: 0.0,
        starts_children: false,
        is_below_shell: false,
        prints: None,
    }
}

/// Thread that waits here without using CPU.
fn waits(waiting: &'static [&'static str], wait: Wait) -> Program {
    Program { waiting, wait: Some(wait), ..works(0.0, 1000.0) }
}

/// Thread that uses a whole CPU here all the time.
fn spins(working: &'static [&'static str]) -> Program {
    Program { working, moves: false, ..works(1000.0, 1000.0) }
}

/// Python that wakes from its sleep to look around, all in one line.
fn polls(work: f64, round: f64) -> Program {
    Program { working: NAP, moves: false, ..works(work, round) }
}

fn idle() -> Program {
    waits(NAP, Wait::Socket { peer: None, owner: None })
}

/// Shell that starts a command in each round, which takes this much CPU time and waits for the rest.
fn shell(work: f64, round: f64) -> Program {
    let program = Program { working: SHELL, waiting: SLEEP, ..works(work, round) };
    Program { starts_children: true, ..program }
}

impl Program {
    fn with_threads(self, threads: f64) -> Program {
        Program { threads, ..self }
    }

    /// Returns what it has used after a time, as microseconds of main threads, milliseconds of all, and runs.
    fn used(&self, time: f64) -> (u64, u64, u64) {
        let main = (time / self.round).floor() * self.work + (time % self.round).min(self.work);
        let runs = (main / self.slice) as u64;
        let main = main + self.children * time;
        ((main * 1e3) as u64, (main + self.threads * time) as u64, runs)
    }

    /// Returns where its processes are.
    fn stacks(&self, time: f64) -> Vec<ProcessStacks> {
        let (round, works) = ((time / self.round) as u32, time % self.round < self.work);
        let moment = (time * 7.3) as u32;
        let step = if self.moves { moment } else { 0 };
        let wait = self.wait.clone().filter(|_| !works);
        let frames = if works { frames(self.working, step) } else { frames(self.waiting, 0) };
        let child = self.starts_children && !works;
        let pid = if child { 100 + round } else { 2 };
        let mut own = vec![thread(pid, wait, frames)];
        if self.threads > 0.0 && !child {
            let step = if self.threads_move { moment } else { 0 };
            own.push(thread(3, None, self::frames(&["watch.py:1"], step)));
        }
        let mut processes = vec![process(own)];
        if self.is_below_shell || child {
            let shell = thread(1, Some(Wait::Child), self::frames(&["wait4", "main"], 0));
            processes.insert(0, process(vec![shell]));
        }
        if self.children > 0.0 {
            processes.push(process(vec![thread(50, None, self::frames(&["load.py:1"], moment))]));
        }
        if self.starts_children && works {
            // The shell itself runs.
            processes[0].pid = 1;
            processes[0].threads[0].tid = 1;
        }
        processes
    }
}

fn process(threads: Vec<ThreadStack>) -> ProcessStacks {
    ProcessStacks { pid: threads[0].tid, threads, ..ProcessStacks::default() }
}

fn thread(tid: u32, waits_for: Option<Wait>, frames: Vec<StackFrame>) -> ThreadStack {
    let state = if waits_for.is_some() { 'S' } else { 'R' };
    ThreadStack { tid, state, waits_for, frames, ..ThreadStack::default() }
}

/// Makes frames: of Python if they have a line, to which `step` is added, else native ones.
fn frames(texts: &[&str], step: u32) -> Vec<StackFrame> {
    let frame = |text: &&str| match text.split_once(".py:") {
        Some((file, line)) => {
            let line = line.parse::<u32>().unwrap() + step;
            StackFrame { file: format!("{file}.py"), line, ..StackFrame::default() }
        }
        None => StackFrame { function: (*text).to_owned(), native: true, ..StackFrame::default() },
    };
    texts.iter().map(frame).collect()
}

/// Parameters of trials: number of ranks, and timeout in seconds.
const TRIALS: [(u32, u32); 5] = [(1, 10), (2, 3), (3, 10), (4, 60), (8, 300)];

/// Runs a job for four timeouts, of which rank 0 is one program and all others another. Tells whether a hang is found.
fn is_reported(first: &Program, others: &Program, (ranks, seconds): (u32, u32)) -> bool {
    let timeout = Duration::from_secs(seconds.into());
    let (status, start) = (LiveStatus::new(), Instant::now());
    let options = HangOptions { timeout, ends_job: true };
    let mut watch = HangWatch::new(options, Readers::None, status.clone(), start);
    let mut printed = 0;
    while let Some(due) = watch.deadline().filter(|due| *due < start + 4 * timeout) {
        let time = (due - start).as_secs_f64() * 1e3 * 10.0 / f64::from(seconds);
        let lines = first.prints.map_or(0, |every| (time / every) as u64);
        if lines > printed {
            printed = lines;
            status.printed(Rank(0), b"a line\n");
        }
        let what = watch.on_time(due, OutsideWaits::default()).unwrap();
        for rank in 0..ranks {
            let program = if rank == 0 { first } else { others };
            // Ranks are at different places of their rounds.
            let time = time + 1237.0 + f64::from(rank) * 411.0;
            watch.on_answer(answer(program, Rank(rank), time, &what, f64::from(seconds) / 10.0));
        }
        if watch.on_complete(due).is_some() {
            return true;
        }
    }
    false
}

fn answer(
    program: &Program,
    rank: Rank,
    time: f64,
    what: &Inspection,
    scale: f64,
) -> InspectionResult {
    match what {
        Inspection::Usage | Inspection::Counters => {
            let (main_us, all_ms, main_runs) = program.used(time);
            let scaled = |amount: u64| (amount as f64 * scale) as u64;
            let all = usage(rank, scaled(all_ms));
            InspectionResult::Usage(vec![RankUsage {
                main_us: scaled(main_us),
                main_runs: scaled(main_runs),
                ..all
            }])
        }
        Inspection::Stacks { .. } => {
            let processes = program.stacks(time);
            InspectionResult::Stacks(vec![RankStacks { rank, processes }])
        }
        Inspection::Collectives => InspectionResult::Collectives(Vec::new()),
    }
}

/// Kinds in which every rank does the same.
fn healthy_alike() -> Vec<(&'static str, Program)> {
    let file = Wait::File { path: "/data/x".to_owned() };
    let socket = Wait::Socket { peer: None, owner: None };
    let at = |waiting, wait, program| Program { waiting, wait: Some(wait), ..program };
    vec![
        ("30 ms of each second", works(30.0, 1000.0)),
        ("10 ms of each 300 ms", works(10.0, 300.0)),
        ("100 ms of each 2 s", works(100.0, 2000.0)),
        ("3 ms of each 100 ms", works(3.0, 100.0)),
        ("1 ms of each 30 ms", works(1.0, 30.0)),
        ("15 ms of each second", works(15.0, 1000.0)),
        ("500 ms of each 8 s", works(500.0, 8000.0)),
        ("3 % in native code", Program { working: NATIVE, moves: false, ..works(30.0, 1000.0) }),
        ("3 % without frames", Program { working: &[], waiting: &[], ..works(30.0, 1000.0) }),
        ("3 % below a shell", Program { is_below_shell: true, ..works(30.0, 1000.0) }),
        ("3 % beside a watchdog", works(30.0, 1000.0).with_threads(0.04)),
        ("a shell with sleep 0.1", shell(1.0, 100.0)),
        ("a shell with sleep 0.5", shell(1.0, 500.0)),
        ("a shell with sleep 1", shell(1.0, 1000.0)),
        ("a shell with sleep 4", shell(1.0, 4000.0)),
        ("a shell with commands that work", shell(300.0, 700.0)),
        ("training on the CPU", works(1000.0, 1000.0)),
        ("half of a CPU", works(50.0, 100.0)),
        ("loaders at 100 %", Program { children: 1.0, ..idle() }),
        ("loaders at 10 %", Program { children: 0.1, ..idle() }),
        ("loaders at 3 %", Program { children: 0.03, ..idle() }),
        ("loaders and 3 %", Program { children: 0.03, ..works(30.0, 1000.0) }),
        ("a pool of threads at 400 %", idle().with_threads(4.0)),
        ("a pool of threads at 50 %", idle().with_threads(0.5)),
        ("a pool of threads at 10 %", idle().with_threads(0.1)),
        ("a thread of autograd", waits(NATIVE, Wait::Futex).with_threads(0.6)),
        ("a GPU, waited for by ioctl", at(SYNC, file.clone(), works(5.0, 100.0))),
        ("a GPU with long steps", at(SYNC, file.clone(), works(30.0, 1000.0))),
        ("a GPU that is polled", Program { slice: 0.06, ..works(6.0, 100.0) }),
        ("messages between steps", at(RECEIVE, socket.clone(), works(500.0, 1000.0))),
        ("a download", at(TRAIN, socket.clone(), works(0.6, 20.0))),
        ("a server of events", at(TRAIN, Wait::Descriptors, works(1.0, 25.0))),
        ("a file of a slow server", at(NAP, file, works(2.0, 100.0))),
        ("a long computation in one function", spins(NATIVE)),
        ("lines in time", Program { prints: Some(7000.0), ..idle() }),
        ("many lines", Program { prints: Some(50.0), ..spins(BARRIER) }),
    ]
}

/// Kinds in which rank 0 works while the others wait for it.
fn healthy_apart() -> Vec<(&'static str, Program, Program)> {
    let gloo = waits(RECEIVE, Wait::Futex);
    vec![
        ("3 %, others sleep", works(30.0, 1000.0), idle()),
        ("3 %, others spin", works(30.0, 1000.0), spins(BARRIER)),
        ("3 %, others in gloo", works(30.0, 1000.0), gloo.clone()),
        ("a shell, others sleep", shell(1.0, 500.0), idle()),
        ("a shell, others spin", shell(1.0, 500.0), spins(BARRIER)),
        ("an evaluation, others sleep", works(1000.0, 1000.0), idle()),
        ("an evaluation, others spin", works(1000.0, 1000.0), spins(BARRIER)),
        ("one function, others spin", spins(NATIVE), spins(BARRIER)),
        ("loaders, others in gloo", Program { children: 0.5, ..idle() }, gloo),
        ("threads, others sleep", idle().with_threads(3.0), idle()),
        ("threads, others spin", idle().with_threads(0.3), spins(BARRIER)),
        ("lines, others sleep", Program { prints: Some(6000.0), ..idle() }, idle()),
    ]
}

fn hung() -> Vec<(&'static str, Program, Program)> {
    let alike = |name, program: Program| (name, program.clone(), program);
    let lock = || waits(NAP, Wait::Futex);
    let gloo = || waits(RECEIVE, Wait::Futex);
    let watched = |share| lock().with_threads(share);
    let stays = Program { threads_move: false, ..watched(0.05) };
    vec![
        alike("a lock", lock()),
        alike("a lock beside a watchdog of 2 %", watched(0.02)),
        alike("a lock beside a watchdog of 3 %", watched(0.03)),
        alike("a lock beside a watchdog of 5 %", watched(0.05)),
        alike("a lock beside watchdogs of 7 %", watched(0.07)),
        alike("a lock beside a watchdog that stays", stays),
        alike("a socket", idle()),
        alike("a pipe", waits(NAP, Wait::Pipe { name: "/tmp/x".to_owned() })),
        alike("a stop", waits(TRAIN, Wait::Stopped)),
        alike(
            "a file of a server that is gone",
            waits(NAP, Wait::Kernel { channel: "rpc".into() }),
        ),
        alike("a sleep of a second, again and again", works(0.05, 1000.0)),
        alike("a look every 10 ms", polls(0.05, 10.0)),
        alike("no frames", waits(&[], Wait::Futex)),
        alike("a program below a shell", Program { is_below_shell: true, ..lock() }),
        alike("gloo beside a watchdog of 4 %", gloo().with_threads(0.04)),
        alike("a barrier that all spin in", spins(BARRIER)),
        alike("a barrier, spinning beside a watchdog", spins(BARRIER).with_threads(0.05)),
        alike("a GPU that waits for others", spins(SYNC)),
        alike("a GPU beside NCCL's threads", spins(SYNC).with_threads(1.0)),
        alike("gloo beside a loader", Program { children: 0.05, ..gloo() }),
        ("a sleep, others spin", works(0.05, 1000.0), spins(BARRIER)),
        (
            "a sleep, others in gloo beside watchdogs",
            works(0.05, 1000.0),
            gloo().with_threads(0.05),
        ),
        ("an endless loop, others sleep", spins(TRAIN), idle()),
        ("an endless loop in C, others sleep beside watchdogs", spins(NATIVE), watched(0.05)),
        ("a look every millisecond, others sleep", polls(0.03, 1.0), idle()),
    ]
}

#[test]
fn programs_that_make_progress_are_not_reported() {
    let alike = healthy_alike().into_iter().map(|(name, program)| (name, program.clone(), program));
    let kinds: Vec<_> = alike.chain(healthy_apart()).collect();
    assert!(kinds.len() * TRIALS.len() >= 200);
    for (name, first, others) in kinds {
        for trial in TRIALS {
            assert!(!is_reported(&first, &others, trial), "{name} {trial:?}");
        }
    }
}

/// An endless loop counts as a hang only if another rank waits for it, so each job has two ranks.
#[test]
fn programs_that_hang_are_reported() {
    for (name, first, others) in hung() {
        for trial in TRIALS.into_iter().filter(|(ranks, _)| *ranks > 1) {
            assert!(is_reported(&first, &others, trial), "{name} {trial:?}");
        }
    }
}

/// Rank at one look.
fn look(processes: Vec<ProcessStacks>) -> RankStacks {
    RankStacks { rank: Rank(0), processes }
}

#[test]
fn a_look_that_could_not_be_taken_is_no_progress() {
    let python = |line| look(vec![process(vec![thread(2, None, frames(&["a.py:1"], line))])]);
    let native = look(vec![process(vec![thread(2, None, frames(&["read"], 0))])]);
    let unread = look(vec![process(vec![thread(2, None, Vec::new())])]);
    assert!(has_moved(&python(0), &python(1)) && !has_moved(&python(0), &python(0)));
    for other in [native, unread, look(Vec::new())] {
        assert!(!has_moved(&python(0), &other) && !has_moved(&other, &python(0)), "{other:?}");
    }
    let cut = (10..).map(|pid| process(vec![thread(pid, None, Vec::new())]));
    assert!(!has_moved(&python(0), &look(cut.take(MAX_STACK_PROCESSES).collect())));
}
