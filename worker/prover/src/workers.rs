//! Several threads for work that waits in the kernel, or in a card's firmware.

use std::sync::{Mutex, PoisonError};
use std::thread;

/// Does all jobs on so many threads at most; the results are in the order of the jobs.
pub(crate) fn each<J: Send, R: Send>(
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

/// As many as have something to compute at once.
pub(crate) fn busy() -> usize {
    thread::available_parallelism().map_or(1, usize::from).min(4)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn results_are_in_the_order_of_the_jobs() {
        for threads in [0, 1, 3, 64] {
            let squares = each((0..50).collect(), threads, |number: u32| number * number);
            assert_eq!(squares, (0..50).map(|number| number * number).collect::<Vec<_>>());
        }
    }
}
