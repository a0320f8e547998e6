//! All processes of an order, read at once within a time limit.

use crate::threads::{self, UNSTOPPABLE};
use crate::{native, permission, python};
use rlaunch_bootstrap::id::Rank;
use rlaunch_bootstrap::protocol::inspection::{
    MAX_STACK_PROCESSES, ProcessStacks, RankStacks, StackOrder, ThreadStack,
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

/// Process by the places of its rank and of itself in the answer.
type Place = (usize, usize, u32);

/// Reads the stacks. Processes that could not be read in time have threads without frames.
pub(crate) fn carry_out(order: &StackOrder) -> Vec<RankStacks> {
    let limit = Duration::from_millis(order.limit_ms.into());
    let start = Instant::now();
    let mut answer: Vec<RankStacks> =
        order.processes.iter().map(|(rank, pids)| without_threads(*rank, pids)).collect();
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
                process.problem = Some("its stack could not be read in time".to_owned());
                process.threads = threads;
            }
        },
    );
    // Those that may keep a reader waiting are read last.
    places.sort_by_key(|place| {
        process_at(&mut answer, *place).is_none_or(|process| may_delay(process))
    });
    let native = order.native;
    let read = move |pid| read_frames(pid, native);
    work_at_once(places, READERS, start + limit, read, |place, frames| {
        if let Some(process) = process_at(&mut answer, place) {
            process.problem = frames.add_to(&mut process.threads);
        }
    });
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
    for _ in 0..workers {
        let (queue, work, done) = (queue.clone(), work.clone(), done.clone());
        thread::spawn(move || {
            let next = || queue.lock().unwrap_or_else(PoisonError::into_inner).next();
            while let Some(place) = next() {
                // An error means that the time is up.
                if done.send((place, work(place.2))).is_err() {
                    return;
                }
            }
        });
    }
    drop(done);
    let left = || deadline.saturating_duration_since(Instant::now());
    while let Ok((place, result)) = results.recv_timeout(left()) {
        take(place, result);
    }
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

/// Frames of the threads of a process.
struct ProcessFrames {
    python: Option<Result<Vec<ThreadStack>, String>>,
    native: Option<Result<Vec<ThreadStack>, String>>,
}

fn read_frames(pid: u32, wants_native: bool) -> ProcessFrames {
    let python = python::is_python(pid).then(|| python::read(pid));
    let native = wants_native.then(|| native::read(pid));
    ProcessFrames { python, native }
}

impl ProcessFrames {
    /// Adds the frames to the threads: the native ones that Python has called, then Python's. Returns the reason why
    /// frames are missing.
    fn add_to(self, threads: &mut [ThreadStack]) -> Option<String> {
        let mut problem = None;
        for found in [self.native, self.python].into_iter().flatten() {
            match found {
                Ok(found) => found.into_iter().for_each(|thread| add(thread, threads)),
                Err(cause) => problem = Some(permission::explain(cause)),
            }
        }
        for thread in threads.iter_mut() {
            let is_python = thread.frames.iter().any(|frame| !frame.native);
            if is_python {
                native::drop_interpreter(&mut thread.frames);
            }
            thread.frames.truncate(MAX_FRAMES);
        }
        problem
    }
}

/// Adds the frames and the name of a thread to the same thread in the list.
fn add(found: ThreadStack, threads: &mut [ThreadStack]) {
    if let Some(thread) = threads.iter_mut().find(|thread| thread.tid == found.tid) {
        thread.frames.extend(found.frames);
        thread.holds_gil = thread.holds_gil.or(found.holds_gil);
        if !found.name.is_empty() {
            thread.name = found.name;
        }
    }
}

#[cfg(test)]
mod tests;
