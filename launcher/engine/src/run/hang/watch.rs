//! The hang watch's state machine, without I/O and without a clock.
//!
//! ```text
//! Watching ── silence and no CPU for the timeout ───────▶ Reporting ── stacks ──┐
//!    │  ▲                                                                         ▼
//!    │  └── a rank printed, or stacks change                                  Comparing ── positions ──▶ hung
//!    ▼                                                                            ▲
//! Suspecting ── stacks of ranks that use CPU stay the same ───────────────────────┘
//! ```
//!
//! A rank that prints leads back to Watching from every state.

use super::evidence::{Evidence, SAMPLES};
use super::place;
use super::progress::Progress;
use crate::run::live::LiveStatus;
use rlaunch_bootstrap::id::Rank;
use rlaunch_bootstrap::protocol::inspection::{
    GroupPosition, Inspection, InspectionResult, RankStacks, RankUsage,
};
use rlaunch_plan::job::options::HangOptions;
use std::time::{Duration, Instant};

/// Shortest and longest interval between samples.
const INTERVALS: (Duration, Duration) = (Duration::from_millis(250), Duration::from_secs(10));
/// Number of samples within the timeout.
const SAMPLES_PER_TIMEOUT: u32 = 10;
/// Share of the timeout in which the stacks of a suspicion are taken.
const SUSPICION_SHARE: u32 = 3;

/// Question for the agents of all nodes.
#[derive(Debug, PartialEq, Eq)]
pub struct Question(pub Inspection);

/// Job that makes no progress.
#[derive(Debug)]
pub struct Hung {
    /// Time without progress.
    pub(crate) quiet_for: Duration,
    /// Stacks of all ranks.
    pub stacks: Vec<RankStacks>,
    /// Positions of ranks in collective operations, where a library tells them.
    pub(crate) positions: Vec<GroupPosition>,
    /// Whether the job is to be ended.
    pub ends_job: bool,
}

/// Hang watch of a running job.
#[derive(Debug)]
pub struct HangWatch {
    options: HangOptions,
    status: LiveStatus,
    interval: Duration,
    progress: Progress,
    phase: Phase,
    /// Time of the next question; `None` while one waits for answers.
    due: Option<Instant>,
    usage: Vec<RankUsage>,
    stacks: Vec<RankStacks>,
    positions: Vec<GroupPosition>,
    /// Whether the present standstill was reported.
    is_reported: bool,
}

#[derive(Debug)]
enum Phase {
    Watching,
    /// Ranks that use CPU are looked at several times.
    Suspecting {
        evidence: Evidence,
        busy: Vec<Rank>,
        idle: Vec<Rank>,
    },
    /// No rank uses CPU; stacks are taken for the report.
    Reporting,
    /// The job hangs; libraries are asked how far ranks are. This may take seconds where an interpreter is locked, so
    /// stacks come first.
    Comparing {
        stacks: Vec<RankStacks>,
    },
}

impl HangWatch {
    /// Begins to watch a job at `now`.
    pub fn new(options: HangOptions, status: LiveStatus, now: Instant) -> HangWatch {
        let interval = options.timeout / SAMPLES_PER_TIMEOUT;
        let interval = interval.clamp(INTERVALS.0, INTERVALS.1);
        HangWatch {
            options,
            status,
            interval,
            progress: Progress::new(interval),
            phase: Phase::Watching,
            due: Some(now + interval),
            usage: Vec::new(),
            stacks: Vec::new(),
            positions: Vec::new(),
            is_reported: false,
        }
    }

    /// Returns the time at which [`HangWatch::on_time`] is due.
    pub(crate) fn deadline(&self) -> Option<Instant> {
        self.due
    }

    /// Returns the question to ask, if one is due.
    pub(crate) fn on_time(&mut self, now: Instant) -> Option<Question> {
        if self.due.is_none_or(|due| due > now) {
            return None;
        }
        self.due = None;
        let what = match self.phase {
            Phase::Watching => Inspection::Usage,
            Phase::Suspecting { .. } | Phase::Reporting => {
                Inspection::Stacks { ranks: Vec::new(), native: true }
            }
            Phase::Comparing { .. } => Inspection::Collectives,
        };
        Some(Question(what))
    }

    /// Takes a node's answer.
    pub(crate) fn on_answer(&mut self, result: InspectionResult) {
        match result {
            InspectionResult::Usage(ranks) => self.usage.extend(ranks),
            InspectionResult::Stacks(ranks) => self.stacks.extend(ranks),
            InspectionResult::Collectives(positions) => self.positions.extend(positions),
            InspectionResult::Counters(_) => {}
            InspectionResult::Failed(cause) => tracing::debug!("hang watch: {cause}"),
        }
    }

    /// Handles the end of the answers to a question. Returns the finding if the job hangs.
    pub(crate) fn on_complete(&mut self, now: Instant) -> Option<Hung> {
        let (usage, stacks) = (std::mem::take(&mut self.usage), std::mem::take(&mut self.stacks));
        self.due = Some(now + self.interval);
        match std::mem::replace(&mut self.phase, Phase::Watching) {
            Phase::Watching => {
                self.progress.sample(now, &usage, &self.status);
                self.watch(now);
                None
            }
            // A rank has printed since the stacks were asked for, so the job does not hang.
            Phase::Reporting | Phase::Comparing { .. } if self.has_printed() => {
                self.positions.clear();
                None
            }
            Phase::Reporting => {
                self.compare(now, stacks);
                None
            }
            Phase::Comparing { stacks } => Some(self.report(stacks)),
            Phase::Suspecting { mut evidence, busy, idle } => {
                evidence.add(stacks);
                if self.has_printed() {
                    return None;
                }
                if !evidence.is_complete() {
                    self.due = Some(now + self.pause());
                    self.phase = Phase::Suspecting { evidence, busy, idle };
                    return None;
                }
                if evidence.shows_hang(&busy, &idle) {
                    self.compare(now, evidence.into_last());
                    return None;
                }
                // They compute. Another timeout passes before they are suspected again.
                self.progress.restart();
                None
            }
        }
    }

    /// Decides after a sample whether to look at stacks.
    fn watch(&mut self, now: Instant) {
        let timeout = self.options.timeout;
        if self.progress.silent_for() < timeout {
            self.is_reported = false;
            return;
        }
        if self.is_reported {
            return;
        }
        let (busy, idle) = self.progress.split(timeout);
        if busy.is_empty() && idle.is_empty() {
            // Ranks have not started, or have all ended.
            return;
        }
        self.due = Some(now);
        self.phase = match busy.is_empty() {
            true => Phase::Reporting,
            false => Phase::Suspecting { evidence: Evidence::default(), busy, idle },
        };
    }

    /// Returns the time between stacks of a suspicion.
    fn pause(&self) -> Duration {
        let samples = u32::try_from(SAMPLES).unwrap_or(u32::MAX);
        (self.options.timeout / (SUSPICION_SHARE * samples)).max(INTERVALS.0)
    }

    /// Tells whether a rank has printed something since the last sample.
    fn has_printed(&self) -> bool {
        self.progress.outputs() != self.status.outputs()
    }

    /// Asks libraries how far ranks are, unless a rank stands at a breakpoint, where all may wait as long as the user
    /// wants.
    fn compare(&mut self, now: Instant, stacks: Vec<RankStacks>) {
        if stacks.iter().any(|rank| place::is_at_breakpoint(&rank.processes)) {
            self.progress.restart();
            return;
        }
        self.due = Some(now);
        self.phase = Phase::Comparing { stacks };
    }

    /// Makes the finding.
    fn report(&mut self, stacks: Vec<RankStacks>) -> Hung {
        self.is_reported = true;
        let (quiet_for, ends_job) = (self.progress.silent_for(), self.options.ends_job);
        Hung { quiet_for, stacks, positions: std::mem::take(&mut self.positions), ends_job }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use rlaunch_bootstrap::protocol::inspection::{ProcessStacks, StackFrame, ThreadStack};

    const TIMEOUT: Duration = Duration::from_secs(10);

    /// Job whose ranks use a given share of a CPU, at a given line.
    struct Simulation {
        watch: HangWatch,
        status: LiveStatus,
        now: Instant,
        cpu_ms: Vec<u64>,
        /// File that all ranks execute.
        file: &'static str,
        /// Whether a rank prints a line whenever positions are asked for.
        prints_when_compared: bool,
    }

    impl Simulation {
        fn new(ranks: usize) -> Simulation {
            let (status, now) = (LiveStatus::new(), Instant::now());
            let options = HangOptions { timeout: TIMEOUT, ends_job: false };
            let watch = HangWatch::new(options, status.clone(), now);
            Simulation {
                watch,
                status,
                now,
                cpu_ms: vec![0; ranks],
                file: "train.py",
                prints_when_compared: false,
            }
        }

        /// Lets time pass. `rank` returns the share of a CPU that a rank uses, and its line, at a step.
        fn run(&mut self, time: Duration, rank: impl Fn(usize, u32) -> (f64, u32)) -> Vec<Hung> {
            let end = self.now + time;
            let (mut found, mut step) = (Vec::new(), 0);
            while self.now < end {
                step += 1;
                let due = self.watch.deadline().unwrap();
                let passed = due - self.now;
                self.now = due;
                for (at, cpu) in self.cpu_ms.iter_mut().enumerate() {
                    *cpu += (passed.as_secs_f64() * 1e3 * rank(at, step).0) as u64;
                }
                let Some(Question(what)) = self.watch.on_time(due) else { panic!("no question") };
                if what == Inspection::Collectives && self.prints_when_compared {
                    self.status.printed(Rank(0), b"a line\n");
                }
                for (at, cpu) in self.cpu_ms.iter().enumerate() {
                    let number = Rank(u32::try_from(at).unwrap());
                    self.watch.on_answer(match what {
                        Inspection::Usage | Inspection::Counters => {
                            InspectionResult::Usage(vec![usage(number, *cpu)])
                        }
                        Inspection::Stacks { .. } => InspectionResult::Stacks(vec![stacks(
                            number,
                            self.file,
                            rank(at, step).1,
                        )]),
                        Inspection::Collectives => InspectionResult::Collectives(Vec::new()),
                    });
                }
                found.extend(self.watch.on_complete(due));
            }
            found
        }
    }

    fn usage(rank: Rank, cpu_ms: u64) -> RankUsage {
        let (pid, processes, resident, state) = (1, 1, 1, 'S');
        let (user_ms, system_ms, waited_ms) = (cpu_ms, 0, None);
        RankUsage { rank, pid, processes, user_ms, system_ms, resident, state, waited_ms }
    }

    fn stacks(rank: Rank, file: &str, line: u32) -> RankStacks {
        let file = file.to_owned();
        let frames = vec![StackFrame { file, line, ..StackFrame::default() }];
        let threads = vec![ThreadStack { frames, ..ThreadStack::default() }];
        RankStacks { rank, processes: vec![ProcessStacks { threads, ..ProcessStacks::default() }] }
    }

    #[test]
    fn ranks_that_all_wait_hang_once() {
        let mut job = Simulation::new(4);
        assert!(job.run(TIMEOUT, |_, _| (0.0, 1)).is_empty());
        let found = job.run(4 * TIMEOUT, |_, _| (0.0, 1));
        assert_eq!(found.len(), 1);
        assert!(found[0].quiet_for >= TIMEOUT && found[0].quiet_for < 2 * TIMEOUT);
        assert_eq!(found[0].stacks.len(), 4);
        // Progress and another standstill are reported again.
        job.status.printed(Rank(0), b"a line\n");
        assert_eq!(job.run(3 * TIMEOUT, |_, _| (0.0, 1)).len(), 1);
    }

    #[test]
    fn a_rank_that_prints_while_positions_are_asked_for_makes_progress() {
        let mut job = Simulation { prints_when_compared: true, ..Simulation::new(4) };
        assert!(job.run(3 * TIMEOUT, |_, _| (0.0, 1)).is_empty());
    }

    #[test]
    fn a_breakpoint_is_not_a_hang() {
        let mut job = Simulation { file: "/x/python/rlaunch/_debugger.py", ..Simulation::new(4) };
        assert!(job.run(8 * TIMEOUT, |_, _| (0.0, 1)).is_empty());
    }

    #[test]
    fn ranks_that_compute_in_silence_do_not_hang() {
        let mut job = Simulation::new(4);
        assert!(job.run(20 * TIMEOUT, |_, step| (1.0, step)).is_empty());
        // Nor does one that the others wait for.
        let one = |rank, step| if rank == 0 { (1.0, step) } else { (0.0, 1) };
        assert!(job.run(20 * TIMEOUT, one).is_empty());
    }

    #[test]
    fn an_endless_loop_is_found_among_ranks_that_wait() {
        let mut job = Simulation::new(4);
        let found = job.run(4 * TIMEOUT, |rank, _| (if rank == 3 { 1.0 } else { 0.0 }, 7));
        assert_eq!(found.len(), 1);
    }

    #[test]
    fn ranks_that_print_do_not_hang() {
        let mut job = Simulation::new(2);
        for _ in 0..20 {
            assert!(job.run(TIMEOUT / 2, |_, _| (0.0, 1)).is_empty());
            job.status.printed(Rank(1), b"a line\n");
        }
    }
}
