//! Stacks of ranks that use CPU, taken several times: a rank whose stack changes computes; one whose stack stays the
//! same in a function that waits, spins.

use super::place;
use rlaunch_bootstrap::id::Rank;
use rlaunch_bootstrap::protocol::inspection::{RankStacks, StackFrame};
use std::collections::{BTreeMap, HashSet};

/// Number of times that stacks are taken.
pub(super) const SAMPLES: usize = 3;

/// Stacks of all ranks, in the order in which they were taken.
#[derive(Debug, Default)]
pub(super) struct Evidence(Vec<BTreeMap<Rank, RankStacks>>);

impl Evidence {
    /// Adds the stacks of all ranks.
    pub(super) fn add(&mut self, stacks: Vec<RankStacks>) {
        self.0.push(stacks.into_iter().map(|rank| (rank.rank, rank)).collect());
    }

    /// Tells whether stacks were taken often enough.
    pub(super) fn is_complete(&self) -> bool {
        self.0.len() >= SAMPLES
    }

    /// Tells whether the job hangs although the ranks in `busy` use CPU: each of them is where it was, and waits for
    /// others there or is waited for by the ranks in `idle`.
    pub(super) fn shows_hang(&self, busy: &[Rank], idle: &[Rank]) -> bool {
        busy.iter().all(|&rank| self.stays(rank) && (!idle.is_empty() || self.spins(rank)))
    }

    /// Returns the last stacks.
    pub(super) fn into_last(mut self) -> Vec<RankStacks> {
        self.0.pop().unwrap_or_default().into_values().collect()
    }

    /// Tells whether a rank was at the same place every time.
    fn stays(&self, rank: Rank) -> bool {
        let places: HashSet<Option<Vec<&StackFrame>>> =
            self.0.iter().map(|stacks| place(stacks.get(&rank)?)).collect();
        places.len() == 1 && !places.contains(&None)
    }

    /// Tells whether a rank waits while it uses CPU, as far as its stack shows.
    fn spins(&self, rank: Rank) -> bool {
        let stacks = self.0.last().and_then(|stacks| stacks.get(&rank));
        let thread = stacks.and_then(|stacks| place::working_thread(&stacks.processes));
        thread.is_some_and(place::waits_for_others)
    }
}

/// Returns the frames by which two looks at a rank are compared: those of the thread that does its work. Native frames
/// are left out if the process has frames of an interpreter, since a spinning function calls others.
fn place(stacks: &RankStacks) -> Option<Vec<&StackFrame>> {
    let thread = place::working_thread(&stacks.processes)?;
    let frames = place::steady_frames(thread);
    (!frames.is_empty()).then_some(frames)
}

#[cfg(test)]
mod tests {
    use super::*;
    use rlaunch_bootstrap::protocol::inspection::{ProcessStacks, ThreadStack};

    fn frame(text: &str) -> StackFrame {
        let native = !text.contains(':');
        let (file, line) = text.split_once(':').unwrap_or((text, "0"));
        let function = if native { text } else { "forward" };
        let (function, file) = (function.to_owned(), file.to_owned());
        StackFrame { function, file, line: line.parse().unwrap(), native }
    }

    fn stacks(rank: u32, frames: &[&str]) -> RankStacks {
        let frames = frames.iter().map(|text| frame(text)).collect();
        let threads = vec![ThreadStack { state: 'R', frames, ..ThreadStack::default() }];
        let processes = vec![ProcessStacks { threads, ..ProcessStacks::default() }];
        RankStacks { rank: Rank(rank), processes }
    }

    fn evidence(samples: &[&[&str]]) -> Evidence {
        let mut evidence = Evidence::default();
        samples.iter().for_each(|frames| evidence.add(vec![stacks(0, frames)]));
        evidence
    }

    const BUSY: &[Rank] = &[Rank(0)];
    const IDLE: &[Rank] = &[Rank(1)];

    #[test]
    fn a_rank_that_computes_is_elsewhere_each_time() {
        let computes = evidence(&[&["a.py:1"], &["a.py:2"], &["a.py:1"]]);
        assert!(computes.is_complete() && !computes.shows_hang(BUSY, IDLE));
    }

    #[test]
    fn an_endless_loop_hangs_those_that_wait_for_it() {
        let loops = evidence(&[&["a.py:1", "a.py:9"][..]; 3]);
        assert!(loops.shows_hang(BUSY, IDLE));
        // Alone it may be a long computation.
        assert!(!loops.shows_hang(BUSY, &[]));
    }

    #[test]
    fn ranks_that_spin_in_a_collective_hang_together() {
        let spins = [
            ["opal_progress", "MPI_Allreduce", "main"],
            ["poll", "MPI_Allreduce", "main"],
            ["ompi_request_wait", "MPI_Allreduce", "main"],
        ];
        let spins: Vec<&[&str]> = spins.iter().map(|frames| &frames[..]).collect();
        assert!(evidence(&spins).shows_hang(BUSY, &[]));
        let mixed =
            [["opal_progress", "MPI_Allreduce", "main"], ["opal_progress", "MPI_Bcast", "main"]];
        let mixed: Vec<&[&str]> = mixed.iter().map(|frames| &frames[..]).collect();
        assert!(!evidence(&mixed).shows_hang(BUSY, IDLE));
    }

    #[test]
    fn without_frames_nothing_is_claimed() {
        assert!(!evidence(&[&[], &[], &[]]).shows_hang(BUSY, IDLE));
    }
}
