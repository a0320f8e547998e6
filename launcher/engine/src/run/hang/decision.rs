//! Decision whether a job hangs: a pure function of what its ranks have used during a silence, and of where they were at
//! three moments of it.
//!
//! A rank that waits may still use CPU: by a thread that watches over others, or since it spins. And a rank that works
//! may use little, or be at the same line whenever it is looked at. So neither the one nor the other decides alone.

use super::place;
use rlaunch_bootstrap::id::Rank;
use rlaunch_bootstrap::protocol::inspection::{
    MAX_STACK_PROCESSES, ProcessStacks, RankStacks, RankUsage, ThreadStack,
};
use std::collections::BTreeMap;
use std::time::Duration;

/// Share of a CPU from which on main threads work. One that only waits uses less: a program that sleeps for 10 ms and
/// looks around, again and again, uses half of that.
const WORK_SHARE: f64 = 0.01;
/// Share of a CPU between two samples from which on main threads have worked then, so that a short piece of work is
/// noticed in a long silence.
const BURST_SHARE: f64 = 0.05;
/// Share of a CPU from which on other threads work. Those that watch over a program or its network use less.
const THREAD_SHARE: f64 = 0.08;
/// Shortest time on a CPU, on average, that is work. One that wakes to look whether a wait is over takes less.
const SHORTEST_WORK: Duration = Duration::from_micros(500);

/// Moments of a silence at which stacks are taken, in quarters of the timeout.
const MOMENTS: [u32; 3] = [2, 3, 4];

/// Processor time of a rank during a silence.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub(super) struct RankUse {
    /// Time for which the rank was watched.
    watched: Duration,
    /// CPU time of the main threads of its processes, and of children that have ended.
    main: Duration,
    /// CPU time of other threads.
    others: Duration,
    /// Number of times that its main threads began to run.
    runs: u64,
    /// Whether main threads have worked between two samples.
    has_burst: bool,
}

impl RankUse {
    /// Adds what was used between two samples, which are `elapsed` apart, of which `step` counts.
    pub(super) fn add(
        &mut self,
        before: &RankUsage,
        now: &RankUsage,
        elapsed: Duration,
        step: Duration,
    ) {
        if elapsed.is_zero() || step.is_zero() {
            return;
        }
        // A child that ends before it is waited for takes its time with it.
        let used = |of: fn(&RankUsage) -> u64| {
            let used = Duration::from_micros(of(now).saturating_sub(of(before)));
            used.mul_f64(step.as_secs_f64() / elapsed.as_secs_f64())
        };
        let (all, main) = (used(all_us), used(|usage| usage.main_us));
        self.watched += step;
        self.main += main;
        self.others += all.saturating_sub(main);
        self.runs += now.main_runs.saturating_sub(before.main_runs);
        self.has_burst |= main >= step.mul_f64(BURST_SHARE);
    }

    /// Tells whether main threads work, or may have worked: the rank was not watched for all of the silence.
    fn works(&self, silence: Duration) -> bool {
        self.has_burst || self.watched < silence || self.main >= self.watched.mul_f64(WORK_SHARE)
    }

    fn has_working_threads(&self) -> bool {
        self.others >= self.watched.mul_f64(THREAD_SHARE)
    }

    /// Tells whether main threads only wake to look around.
    fn polls(&self) -> bool {
        let wake = u32::try_from(self.runs).ok().and_then(|runs| self.main.checked_div(runs));
        wake.is_some_and(|time| time < SHORTEST_WORK)
    }
}

fn all_us(usage: &RankUsage) -> u64 {
    (usage.user_ms + usage.system_ms) * 1000
}

/// Judgement of a rank in a silence.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Standing {
    /// It makes progress, or nothing can be claimed.
    Works,
    /// It uses almost no CPU, and is where it was.
    Idle,
    /// It uses CPU while it waits for other ranks or for a GPU.
    Spins,
    /// It uses CPU and is where it was. Alone it may be a long computation; others may wait for it.
    Loops,
}

/// Stacks of all ranks at moments of a silence, in the order in which they were taken.
#[derive(Debug, Default)]
pub(super) struct Looks(Vec<BTreeMap<Rank, RankStacks>>);

impl Looks {
    /// Returns the length of a silence at which the next look is due; `None` if there were enough.
    pub(super) fn next_at(&self, timeout: Duration) -> Option<Duration> {
        MOMENTS.get(self.0.len()).map(|quarters| timeout * *quarters / 4)
    }

    /// Adds the stacks of all ranks.
    pub(super) fn add(&mut self, stacks: Vec<RankStacks>) {
        self.0.push(stacks.into_iter().map(|rank| (rank.rank, rank)).collect());
    }

    /// Tells whether the job hangs after a silence in which its ranks have used this: none of them works, and if one
    /// seems to be in an endless loop, another one waits.
    pub(super) fn show_hang(&self, ranks: &[(Rank, RankUse)], silence: Duration) -> bool {
        let standings = ranks.iter().map(|(rank, used)| self.standing(*rank, used, silence));
        let standings: Vec<Standing> = standings.collect();
        let has = |standing| standings.contains(&standing);
        !ranks.is_empty() && !has(Standing::Works) && (!has(Standing::Loops) || has(Standing::Idle))
    }

    /// Returns the last stacks.
    pub(super) fn into_last(mut self) -> Vec<RankStacks> {
        self.0.pop().unwrap_or_default().into_values().collect()
    }

    fn standing(&self, rank: Rank, used: &RankUse, silence: Duration) -> Standing {
        let looks: Vec<&RankStacks> = self.0.iter().filter_map(|look| look.get(&rank)).collect();
        if looks.windows(2).any(|two| has_moved(two[0], two[1])) {
            return Standing::Works;
        }
        let (works, has_working_threads) = (used.works(silence), used.has_working_threads());
        if !works && !has_working_threads {
            return Standing::Idle;
        }
        // Without frames nothing is claimed of a rank that uses CPU.
        let Some(threads) = at_one_place(&looks) else { return Standing::Works };
        let [.., last] = threads[..] else { return Standing::Works };
        let sleeps = threads.iter().any(|thread| thread.waits_for.is_some());
        if works && sleeps && !place::waits_for_ranks(last) {
            // It wakes from its wait in between, and does something.
            return if used.polls() { Standing::Loops } else { Standing::Works };
        }
        if place::waits_for_others(last) {
            return Standing::Spins;
        }
        let have_moved = || looks.windows(2).any(|two| others_have_moved(two[0], two[1]));
        if has_working_threads && have_moved() { Standing::Works } else { Standing::Loops }
    }
}

/// Returns the threads that do a rank's work if they were at the same place at every moment.
fn at_one_place<'a>(looks: &[&'a RankStacks]) -> Option<Vec<&'a ThreadStack>> {
    let threads = looks.iter().filter_map(|look| place::working_thread(&look.processes));
    let threads: Vec<&ThreadStack> = threads.collect();
    let places: Vec<_> = threads.iter().map(|thread| place::steady_frames(thread)).collect();
    let is_same = places.windows(2).all(|two| two[0] == two[1]);
    let is_known = places.len() == MOMENTS.len() && places.iter().all(|place| !place.is_empty());
    (is_same && is_known).then_some(threads)
}

/// Tells whether the thread that did a rank's work is elsewhere afterwards, or has ended with its process: a shell
/// starts one command after the other.
fn has_moved(before: &RankStacks, after: &RankStacks) -> bool {
    let Some(thread) = place::working_thread(&before.processes) else { return false };
    match find_process(after, thread.tid) {
        Some(process) => process.threads.first().is_some_and(|later| is_elsewhere(thread, later)),
        // The own process of a rank is always there, and the list of others may have been cut.
        None => !after.processes.is_empty() && after.processes.len() < MAX_STACK_PROCESSES,
    }
}

/// Tells whether a thread that is not the main one of a process is elsewhere afterwards.
fn others_have_moved(before: &RankStacks, after: &RankStacks) -> bool {
    before.processes.iter().any(|process| {
        let Some(later) = find_process(after, process.pid) else { return false };
        process.threads.iter().skip(1).any(|thread| {
            let mut threads = later.threads.iter().skip(1);
            threads.any(|later| later.tid == thread.tid && is_elsewhere(thread, later))
        })
    })
}

fn find_process(rank: &RankStacks, pid: u32) -> Option<&ProcessStacks> {
    rank.processes.iter().find(|process| process.pid == pid)
}

/// Tells whether a thread is at another place afterwards. Frames of an interpreter, which may be missing in one look,
/// are not compared with native ones.
fn is_elsewhere(before: &ThreadStack, after: &ThreadStack) -> bool {
    let (before, after) = (place::steady_frames(before), place::steady_frames(after));
    match (before.first(), after.first()) {
        (Some(first), Some(second)) => first.native == second.native && before != after,
        _ => false,
    }
}

#[cfg(test)]
mod tests;
