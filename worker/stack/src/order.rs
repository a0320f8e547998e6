//! All processes of an order, read at once within a time limit.
//!
//! Answers that are too large for a frame: the outermost frames and the last threads are left out.

use crate::threads::{self, Found, UNSTOPPABLE};
use crate::{native, python};
use rlaunch_bootstrap::frame::{self, FrameError, MAX_FRAME};
use rlaunch_bootstrap::id::Rank;
use rlaunch_bootstrap::protocol::inspection::{
    MAX_STACK_PROCESSES, ProcessStacks, RankStacks, ThreadStack, Wait,
};
use std::sync::{Arc, Mutex, PoisonError, mpsc};
use std::thread;
use std::time::{Duration, Instant};

/// Number of processes whose threads are listed at a time. Reading `/proc` may wait for a process that waits itself.
const LISTERS: usize = 16;
/// Number of processes that are stopped and read at a time. Most of the time passes while the kernel stops threads, not
/// on a CPU.
const READERS: usize = 8;

/// Maximum number of frames of a thread, and of threads of a process, in an answer.
const MAX_FRAMES: usize = 128;
const MAX_THREADS: usize = 128;

/// Problem of a process that is not read in time.
const LATE: &str = "its stack could not be read in time";

/// Process by the places of its rank and of itself in the answer.
type Place = (usize, usize, u32);

/// Reads the stacks. Processes that could not be read in time have threads without frames.
pub(crate) fn carry_out(
    ranks: &[(Rank, Vec<u32>)],
    wants_native: bool,
    limit: Duration,
) -> Vec<RankStacks> {
    let start = Instant::now();
    let mut answer: Vec<RankStacks> =
        ranks.iter().map(|(rank, pids)| without_threads(*rank, pids)).collect();
    let mut places: Vec<Place> = answer.iter().enumerate().flat_map(places_of).collect();
    // Half of the time is left for frames, if some process cannot be looked at.
    work_at_once(
        places.clone(),
        LISTERS,
        start + limit / 2,
        threads::list,
        |place, mut threads| {
            threads.truncate(MAX_THREADS);
            if let Some(process) = process_at(&mut answer, place) {
                process.problem = Some(LATE.to_owned());
                process.threads = threads;
            }
        },
    );
    answer.iter_mut().for_each(name_stdin);
    // Those that may keep a reader waiting are read last.
    places.sort_by_key(|place| {
        process_at(&mut answer, *place).is_none_or(|process| may_delay(process))
    });
    // Frames of Python first, which take milliseconds. Native ones may take seconds where libraries are large.
    let deadline = start + limit;
    let python = |pid| python::is_python(pid).then(|| python::read(pid));
    work_at_once(places.clone(), READERS, deadline, python, |place, found| {
        if let Some(process) = process_at(&mut answer, place)
            && (found.is_some() || !wants_native)
        {
            let found = found.map(|found| match found {
                Ok(threads) => Found { threads, problem: None },
                Err(cause) => Found::nothing(cause),
            });
            process.problem = found.and_then(|found| add_frames(found, &mut process.threads));
        }
    });
    if wants_native {
        work_at_once(places, READERS, deadline, native::read, |place, found| {
            if let Some(process) = process_at(&mut answer, place) {
                let earlier = process.problem.take().filter(|problem| problem != LATE);
                process.problem = add_frames(found, &mut process.threads).or(earlier);
            }
        });
    }
    answer
}

/// Does some work for each process, several at a time, and passes on what is done before the deadline.
fn work_at_once<T: Send + 'static>(
    places: Vec<Place>,
    workers: usize,
    deadline: Instant,
    work: impl Fn(u32) -> T + Send + Sync + 'static,
    mut take: impl FnMut(Place, T),
) {
    let (done, results) = mpsc::channel();
    let workers = workers.min(places.len());
    let (queue, work) = (Arc::new(Mutex::new(places.into_iter())), Arc::new(work));
    let worker = || {
        let (queue, work, done) = (queue.clone(), work.clone(), done.clone());
        move || {
            let next = || queue.lock().unwrap_or_else(PoisonError::into_inner).next();
            while let Some(place) = next().filter(|_| Instant::now() < deadline) {
                let Some(result) = alone(&*work, place.2) else { continue };
                // An error means that the time is up.
                if done.send((place, result)).is_err() {
                    return;
                }
            }
        }
    };
    let mut has_thread = false;
    for _ in 0..workers {
        has_thread |= thread::Builder::new().spawn(worker()).is_ok();
    }
    if !has_thread {
        // glibc starts threads by clone3(2), which seccomp filters of older container engines forbid.
        worker()();
    }
    drop(done);
    let left = || deadline.saturating_duration_since(Instant::now());
    while let Ok((place, result)) = results.recv_timeout(left()) {
        take(place, result);
    }
}

/// Does the work for a process in a thread of its own, if one can be started: the end of the thread lets go of what it
/// could not stop in time. Returns `None` if the work panics.
fn alone<T: Send + 'static>(work: &(impl Fn(u32) -> T + Sync), pid: u32) -> Option<T> {
    thread::scope(|scope| match thread::Builder::new().spawn_scoped(scope, || work(pid)) {
        Ok(thread) => thread.join().ok(),
        Err(_) => Some(work(pid)),
    })
}

/// Lists the processes of a rank by their places in the answer.
fn places_of((at, rank): (usize, &RankStacks)) -> Vec<Place> {
    let processes = rank.processes.iter().enumerate();
    processes.map(|(process, stacks)| (at, process, stacks.pid)).collect()
}

fn process_at(answer: &mut [RankStacks], (rank, process, _): Place) -> Option<&mut ProcessStacks> {
    answer.get_mut(rank)?.processes.get_mut(process)
}

/// Tells whether reading a process may take long: a thread cannot be stopped, or not even `/proc` could be read.
fn may_delay(process: &ProcessStacks) -> bool {
    process.threads.is_empty() || process.threads.iter().any(|thread| thread.state == UNSTOPPABLE)
}

/// Describes the processes of a rank without threads, which waits for nothing.
fn without_threads(rank: Rank, pids: &[u32]) -> RankStacks {
    let pids = pids.iter().take(MAX_STACK_PROCESSES);
    let processes = pids.filter_map(|&pid| {
        let program = threads::name_of(pid)?;
        let problem = Some("its threads could not be listed in time".to_owned());
        Some(ProcessStacks { pid, program, problem, threads: Vec::new() })
    });
    RankStacks { rank, processes: processes.collect() }
}

/// Names the waits for what the rank's own process has as standard input. Its descendants may have the same.
fn name_stdin(rank: &mut RankStacks) {
    let Some(stdin) = rank.processes.first().and_then(|own| threads::stdin_of(own.pid)) else {
        return;
    };
    for process in &mut rank.processes {
        for thread in &mut process.threads {
            let Some(Wait::Pipe { name }) = &thread.waits_for else { continue };
            let has_stdin = || threads::stdin_of(process.pid).as_ref() == Some(&stdin);
            if *name == stdin || (name == threads::SOME_PIPE && has_stdin()) {
                thread.waits_for = Some(Wait::Stdin);
            }
        }
    }
}

/// Adds frames to the threads of a process. Returns the reason why some are missing.
fn add_frames(found: Found, threads: &mut [ThreadStack]) -> Option<String> {
    found.threads.into_iter().for_each(|thread| add(thread, threads));
    for thread in threads.iter_mut() {
        if has_python(thread) {
            native::drop_interpreter(&mut thread.frames);
        }
        thread.frames.truncate(MAX_FRAMES);
    }
    found.problem.map(threads::explain)
}

fn has_python(thread: &ThreadStack) -> bool {
    thread.frames.iter().any(|frame| !frame.native)
}

/// Adds the frames and the name of a thread to the same thread in the list.
fn add(found: ThreadStack, threads: &mut [ThreadStack]) {
    if let Some(thread) = threads.iter_mut().find(|thread| thread.tid == found.tid) {
        // Those of Python were added first, and have called the native ones.
        thread.frames.splice(..0, found.frames);
        thread.holds_gil = thread.holds_gil.or(found.holds_gil);
        if !found.name.is_empty() {
            thread.name = found.name;
        }
    }
}

/// Maximum size of an answer in bytes, which leaves room for what agent and launcher add.
const MAX_ANSWER: usize = MAX_FRAME / 2;

/// Numbers of frames of a thread and of threads of a process that are kept, tried one after another.
const KEPT: [(usize, usize); 5] = [(48, 64), (24, 32), (12, 16), (6, 4), (2, 1)];

/// Encodes an answer as a frame.
pub(crate) fn encode(mut answer: Vec<RankStacks>) -> Result<Vec<u8>, FrameError> {
    let mut kept = KEPT.iter();
    loop {
        match (frame::encode(&answer), kept.next()) {
            (Ok(encoded), _) if encoded.len() <= MAX_ANSWER => return Ok(encoded),
            (Ok(_) | Err(FrameError::TooLong(_)), Some(&(frames, threads))) => {
                shorten(&mut answer, frames, threads);
            }
            (encoded, _) => return encoded,
        }
    }
}

/// Leaves out what exceeds these numbers, and says so at each process that has lost something.
fn shorten(answer: &mut [RankStacks], frames: usize, threads: usize) {
    for process in answer.iter_mut().flat_map(|rank| &mut rank.processes) {
        let is_long = process.threads.iter().any(|thread| thread.frames.len() > frames);
        if is_long || process.threads.len() > threads {
            let what = "frames and threads are left out, since there is too much to send";
            process.problem.get_or_insert_with(|| what.to_owned());
        }
        process.threads.truncate(threads);
        process.threads.iter_mut().for_each(|thread| thread.frames.truncate(frames));
    }
}

#[cfg(test)]
mod tests;
