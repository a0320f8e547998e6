//! Threads for work that blocks in the kernel or in a card's firmware.

use std::sync::{Mutex, PoisonError};
use std::thread;

/// Runs all jobs on up to `threads` threads, and returns the results in the order of the jobs.
pub(crate) fn map<J: Send, R: Send>(
    jobs: Vec<J>,
    threads: usize,
    work: impl Fn(J) -> R + Sync,
) -> Vec<R> {
    if threads < 2 || jobs.len() < 2 {
        return jobs.into_iter().map(work).collect();
    }
    let threads = threads.min(jobs.len());
    let (queue, done) = (Mutex::new(jobs.into_iter().enumerate()), Mutex::new(Vec::new()));
    let next = || queue.lock().unwrap_or_else(PoisonError::into_inner).next();
    let one_worker = || {
        while let Some((index, job)) = next() {
            let result = work(job);
            done.lock().unwrap_or_else(PoisonError::into_inner).push((index, result));
        }
    };
    thread::scope(|scope| {
        for _ in 0..threads {
            scope.spawn(one_worker);
        }
    });
    let mut done = done.into_inner().unwrap_or_else(PoisonError::into_inner);
    done.sort_unstable_by_key(|(index, _)| *index);
    done.into_iter().map(|(_, result)| result).collect()
}

/// Returns the number of threads for work that also computes: one per processor, up to 4.
pub(crate) fn cpu_threads() -> usize {
    thread::available_parallelism().map_or(1, usize::from).min(4)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn results_are_in_the_order_of_the_jobs() {
        for threads in [0, 1, 3, 64] {
            let squares = map((0..50).collect(), threads, |number: u32| number * number);
            assert_eq!(squares, (0..50).map(|number| number * number).collect::<Vec<_>>());
        }
    }
}
