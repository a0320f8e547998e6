//! The hang watch's state machine, without I/O and without a clock.
//!
//! ```text
//! Watching ── moments of a silence ──▶ Looking ── the last one: no rank works ──▶ Comparing ── positions ──▶ hung
//!    ▲                                    │
//!    └────── others, or a rank works ─────┘
//! ```
//!
//! A rank that prints leads back to Watching from every state.
//!
//! [`Progress`] says what ranks have used since one of them has printed anything. Times are added up from sample to
//! sample, so that the time for which the job or the launcher was suspended does not count. [`Looks`] has the stacks of
//! all ranks, taken several times, and decides.

use super::decision::{Looks, RankUse};
use super::place;
use crate::run::live::LiveStatus;
use rlaunch_bootstrap::id::Rank;
use rlaunch_bootstrap::protocol::inspection::{
    GroupPosition, Inspection, InspectionResult, RankStacks, RankUsage,
};
use rlaunch_plan::job::options::HangOptions;
use rlaunch_plan::job::stdin::Readers;
use std::collections::BTreeMap;
use std::time::{Duration, Instant};

/// Shortest and longest interval between samples.
const INTERVALS: (Duration, Duration) = (Duration::from_millis(250), Duration::from_secs(10));
/// Number of samples within the timeout.
const SAMPLES_PER_TIMEOUT: u32 = 10;

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

/// Waits of a job for what is outside of it, which are no hangs.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct OutsideWaits {
    /// Output waits for its reader, so that ranks may wait to print.
    pub output: bool,
    /// The launcher's standard input is open, and all that has come was passed on.
    pub input: bool,
}

/// Hang watch of a running job.
#[derive(Debug)]
pub struct HangWatch {
    options: HangOptions,
    status: LiveStatus,
    interval: Duration,
    progress: Progress,
    /// Looks at the present silence.
    looks: Looks,
    phase: Phase,
    /// Time of the next question; `None` while one waits for answers.
    due: Option<Instant>,
    usage: Vec<RankUsage>,
    stacks: Vec<RankStacks>,
    positions: Vec<GroupPosition>,
    /// Whether the present standstill was reported.
    is_reported: bool,
    /// Ranks that read standard input.
    stdin_readers: Readers,
    /// Whether the launcher waited for its standard input at the last question.
    input_waits: bool,
}

#[derive(Debug)]
enum Phase {
    Watching,
    /// Stacks of all ranks are taken.
    Looking,
    /// The job hangs; libraries are asked how far ranks are. This may take seconds where an interpreter is locked, so
    /// stacks come first.
    Comparing {
        stacks: Vec<RankStacks>,
    },
}

impl HangWatch {
    /// Begins to watch a job at `now`.
    pub(crate) fn new(
        options: HangOptions,
        stdin_readers: Readers,
        status: LiveStatus,
        now: Instant,
    ) -> HangWatch {
        let interval = options.timeout / SAMPLES_PER_TIMEOUT;
        let interval = interval.clamp(INTERVALS.0, INTERVALS.1);
        HangWatch {
            options,
            status,
            interval,
            progress: Progress::new(interval),
            looks: Looks::default(),
            phase: Phase::Watching,
            due: Some(now + interval),
            usage: Vec::new(),
            stacks: Vec::new(),
            positions: Vec::new(),
            is_reported: false,
            stdin_readers,
            input_waits: false,
        }
    }

    /// Returns the time at which [`HangWatch::on_time`] is due.
    pub(crate) fn deadline(&self) -> Option<Instant> {
        self.due
    }

    /// Returns the question to ask the agents of all nodes, if one is due. `waits` are those of this moment.
    pub(crate) fn on_time(&mut self, now: Instant, waits: OutsideWaits) -> Option<Inspection> {
        if self.due.is_none_or(|due| due > now) {
            return None;
        }
        self.due = None;
        self.input_waits = waits.input;
        if waits.output {
            // Ranks that wait until somebody reads on make no progress, and do not hang.
            self.restart();
        }
        Some(match self.phase {
            Phase::Watching => Inspection::Usage,
            Phase::Looking => Inspection::Stacks { ranks: Vec::new(), native: true },
            Phase::Comparing { .. } => Inspection::Collectives,
        })
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
            // A rank has printed since the question, so the job does not hang.
            Phase::Looking | Phase::Comparing { .. } if self.has_printed() => {
                self.positions.clear();
                None
            }
            Phase::Looking => {
                self.looks.add(stacks);
                if self.looks.next_at(self.options.timeout).is_none() {
                    self.decide(now);
                }
                None
            }
            Phase::Comparing { stacks } => Some(self.report(stacks)),
        }
    }

    /// Decides after a sample whether to look at stacks.
    fn watch(&mut self, now: Instant) {
        let (silent_for, timeout) = (self.progress.silent_for, self.options.timeout);
        if silent_for < timeout {
            self.is_reported = false;
        }
        if silent_for.is_zero() {
            self.looks = Looks::default();
        }
        // Before ranks have started, and after all have ended, there is none to look at.
        if self.is_reported || self.progress.ranks.is_empty() {
            return;
        }
        if self.looks.next_at(timeout).is_some_and(|at| silent_for >= at) {
            self.due = Some(now);
            self.phase = Phase::Looking;
        }
    }

    /// Decides after the last look whether the job hangs. If it does, asks libraries how far ranks are, unless a rank
    /// waits for the user, for whom all may wait as long as the user wants.
    fn decide(&mut self, now: Instant) {
        let looks = std::mem::take(&mut self.looks);
        let hangs = looks.show_hang(&self.progress.uses(), self.progress.silent_for);
        let stacks = looks.into_last();
        if !hangs || stacks.iter().any(|rank| self.waits_for_user(rank)) {
            // Another timeout passes before ranks are looked at as often again.
            self.progress.restart();
            return;
        }
        self.due = Some(now);
        self.phase = Phase::Comparing { stacks };
    }

    /// Tells whether a rank stands at a breakpoint, or waits for standard input that the launcher has not got itself.
    fn waits_for_user(&self, RankStacks { rank, processes }: &RankStacks) -> bool {
        place::is_at_breakpoint(processes)
            || (self.input_waits && self.stdin_readers.has(*rank) && place::reads_stdin(processes))
    }

    /// Begins to watch anew.
    fn restart(&mut self) {
        self.progress.restart();
        self.looks = Looks::default();
        self.phase = Phase::Watching;
    }

    /// Tells whether a rank has printed something since the last sample.
    fn has_printed(&self) -> bool {
        self.progress.outputs != self.status.outputs()
    }

    /// Makes the finding.
    fn report(&mut self, stacks: Vec<RankStacks>) -> Hung {
        self.is_reported = true;
        let (quiet_for, ends_job) = (self.progress.silent_for, self.options.ends_job);
        Hung { quiet_for, stacks, positions: std::mem::take(&mut self.positions), ends_job }
    }
}

/// Progress of all ranks.
#[derive(Debug)]
struct Progress {
    /// Maximum time that one sample adds, against time that was not watched.
    max_step: Duration,
    last_sample: Option<Instant>,
    ranks: BTreeMap<Rank, RankProgress>,
    /// Time since a rank has printed something.
    silent_for: Duration,
    /// Number of outputs at the last sample.
    outputs: u64,
}

#[derive(Debug)]
struct RankProgress {
    last: RankUsage,
    /// What the rank has used in this silence.
    used: RankUse,
    /// Whether the last sample had the rank.
    is_present: bool,
}

impl Progress {
    /// Makes the progress of a job that is sampled about every `interval`.
    fn new(interval: Duration) -> Progress {
        Progress {
            max_step: interval * 2,
            last_sample: None,
            ranks: BTreeMap::new(),
            silent_for: Duration::ZERO,
            outputs: 0,
        }
    }

    /// Adds a sample of all ranks.
    fn sample(&mut self, now: Instant, usage: &[RankUsage], status: &LiveStatus) {
        let elapsed = self.last_sample.map_or(Duration::ZERO, |last| now - last);
        let mut step = elapsed.min(self.max_step);
        self.last_sample = Some(now);
        let outputs = status.outputs();
        if outputs != std::mem::replace(&mut self.outputs, outputs) {
            self.restart();
            step = Duration::ZERO;
        }
        self.silent_for += step;
        self.ranks.values_mut().for_each(|rank| rank.is_present = false);
        for rank in usage {
            let known = self.ranks.entry(rank.rank).or_insert_with(|| RankProgress {
                last: rank.clone(),
                used: RankUse::default(),
                is_present: true,
            });
            // The time before its first sample was not watched.
            if !known.is_present {
                known.used.add(&known.last, rank, elapsed, step);
            }
            known.last = rank.clone();
            known.is_present = true;
        }
        self.ranks.retain(|_, rank| rank.is_present);
    }

    /// Returns what ranks have used in this silence.
    fn uses(&self) -> Vec<(Rank, RankUse)> {
        self.ranks.iter().map(|(rank, progress)| (*rank, progress.used)).collect()
    }

    /// Begins to count anew.
    fn restart(&mut self) {
        self.silent_for = Duration::ZERO;
        self.ranks.values_mut().for_each(|rank| rank.used = RankUse::default());
    }
}

#[cfg(test)]
pub(super) mod tests {
    use super::*;
    use rlaunch_bootstrap::protocol::inspection::{ProcessStacks, StackFrame, ThreadStack, Wait};

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
        waits: OutsideWaits,
        /// Whether rank 1 reads standard input.
        reads: bool,
    }

    impl Simulation {
        fn new(ranks: usize) -> Simulation {
            let (status, now) = (LiveStatus::new(), Instant::now());
            let options = HangOptions { timeout: TIMEOUT, ends_job: false };
            let watch = HangWatch::new(options, Readers::One(Rank(1)), status.clone(), now);
            Simulation {
                watch,
                status,
                now,
                cpu_ms: vec![0; ranks],
                file: "train.py",
                prints_when_compared: false,
                waits: OutsideWaits::default(),
                reads: false,
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
                let what = self.watch.on_time(due, self.waits).expect("a question");
                if what == Inspection::Collectives && self.prints_when_compared {
                    self.status.printed(Rank(0), b"a line\n");
                }
                for (at, cpu) in self.cpu_ms.iter().enumerate() {
                    let number = Rank(u32::try_from(at).unwrap());
                    self.watch.on_answer(match what {
                        Inspection::Usage | Inspection::Counters => {
                            InspectionResult::Usage(vec![usage(number, *cpu)])
                        }
                        Inspection::Stacks { .. } => {
                            let mut stacks = stacks(number, self.file, rank(at, step).1);
                            let reads = self.reads && at == 1;
                            stacks.processes[0].threads[0].waits_for = reads.then_some(Wait::Stdin);
                            InspectionResult::Stacks(vec![stacks])
                        }
                        Inspection::Collectives => InspectionResult::Collectives(Vec::new()),
                    });
                }
                found.extend(self.watch.on_complete(due));
            }
            found
        }
    }

    /// Returns what a rank has used, all in its main thread.
    pub(in super::super) fn usage(rank: Rank, cpu_ms: u64) -> RankUsage {
        RankUsage {
            rank,
            pid: 1,
            processes: 1,
            user_ms: cpu_ms,
            system_ms: 0,
            main_us: 1000 * cpu_ms,
            main_runs: 0,
            resident: 1,
            state: 'S',
            waited_ms: None,
        }
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
    fn output_that_waits_for_its_reader_is_not_a_hang() {
        let mut job = Simulation::new(4);
        job.waits.output = true;
        assert!(job.run(8 * TIMEOUT, |_, _| (0.0, 1)).is_empty());
        // Also if the reader pauses after the ranks were looked at once.
        job.waits.output = false;
        assert!(job.run(TIMEOUT * 3 / 4, |_, _| (0.0, 1)).is_empty());
        job.waits.output = true;
        assert!(job.run(TIMEOUT, |_, _| (0.0, 1)).is_empty());
        job.waits.output = false;
        assert!(job.run(TIMEOUT * 3 / 4, |_, _| (0.0, 1)).is_empty());
        assert_eq!(job.run(TIMEOUT, |_, _| (0.0, 1)).len(), 1);
    }

    #[test]
    fn a_rank_that_waits_for_what_the_user_types_does_not_hang() {
        let waits = |input| OutsideWaits { input, output: false };
        let reads = |input| Simulation { waits: waits(input), reads: true, ..Simulation::new(4) };
        assert!(reads(true).run(8 * TIMEOUT, |_, _| (0.0, 1)).is_empty());
        // The launcher has passed its input on, or the input has ended, and the rank still waits.
        assert_eq!(reads(false).run(2 * TIMEOUT, |_, _| (0.0, 1)).len(), 1);
        // The launcher waits for input that no rank reads.
        let mut job = Simulation { waits: waits(true), ..Simulation::new(4) };
        assert_eq!(job.run(2 * TIMEOUT, |_, _| (0.0, 1)).len(), 1);
        // Rank 0 alone has the launcher's input; another rank waits for input of its own.
        let mut job = reads(true);
        job.watch.stdin_readers = Readers::One(Rank(0));
        assert_eq!(job.run(2 * TIMEOUT, |_, _| (0.0, 1)).len(), 1);
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

    const SECOND: Duration = Duration::from_secs(1);

    fn used(rank: u32, cpu_ms: u64) -> RankUsage {
        usage(Rank(rank), cpu_ms)
    }

    #[test]
    fn what_ranks_use_counts_from_the_last_output_on() {
        let (mut progress, status) = (Progress::new(SECOND), LiveStatus::new());
        let now = Instant::now();
        for step in 0..=5_u32 {
            let ranks = [used(0, 1000 * u64::from(step)), used(1, 20 * u64::from(step))];
            progress.sample(now + step * SECOND, &ranks, &status);
        }
        assert_eq!(progress.silent_for, 5 * SECOND);
        let mut expected = RankUse::default();
        for step in 0..5 {
            expected.add(&used(1, 20 * step), &used(1, 20 * (step + 1)), SECOND, SECOND);
        }
        assert_eq!(progress.uses()[1], (Rank(1), expected));
        status.printed(Rank(1), b"a line\n");
        progress.sample(now + 6 * SECOND, &[used(0, 5000)], &status);
        assert_eq!(progress.silent_for, Duration::ZERO);
        assert_eq!(progress.uses(), [(Rank(0), RankUse::default())], "rank 1 has ended");
    }

    #[test]
    fn time_that_was_not_watched_does_not_count() {
        let (mut progress, status) = (Progress::new(SECOND), LiveStatus::new());
        let now = Instant::now();
        progress.sample(now, &[used(0, 0)], &status);
        progress.sample(now + 1000 * SECOND, &[used(0, 0)], &status);
        assert_eq!(progress.silent_for, 2 * SECOND);
        let mut expected = RankUse::default();
        expected.add(&used(0, 0), &used(0, 0), SECOND, 2 * SECOND);
        assert_eq!(progress.uses(), [(Rank(0), expected)]);
    }

    #[test]
    fn a_job_is_looked_at_three_times_in_a_silence() {
        let (mut job, mut looks) = (Simulation::new(1), Vec::new());
        let start = job.now;
        while job.now < start + 12 * SECOND {
            let due = job.watch.deadline().unwrap();
            job.now = due;
            let what = job.watch.on_time(due, OutsideWaits::default()).unwrap();
            if matches!(what, Inspection::Stacks { .. }) {
                looks.push(job.watch.progress.silent_for);
            }
            job.watch.on_answer(InspectionResult::Usage(vec![used(0, 0)]));
            job.watch.on_complete(due);
        }
        assert_eq!(looks, [5 * SECOND, 8 * SECOND, 10 * SECOND]);
    }
}
