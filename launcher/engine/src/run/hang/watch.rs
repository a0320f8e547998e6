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
//!
//! [`Progress`] says how long ranks have used no CPU, and how long none has printed anything. Times are added up from sample
//! to sample, so that the time for which the job or the launcher was suspended does not count. [`Evidence`] has the stacks of
//! ranks that use CPU, taken several times: a rank whose stack changes computes; one whose stack stays the same in a function
//! that waits, spins.

use super::place;
use crate::run::live::LiveStatus;
use rlaunch_bootstrap::id::Rank;
use rlaunch_bootstrap::protocol::inspection::{
    GroupPosition, Inspection, InspectionResult, RankStacks, RankUsage, StackFrame,
};
use rlaunch_plan::job::options::HangOptions;
use std::collections::{BTreeMap, HashSet};
use std::time::{Duration, Instant};

/// Shortest and longest interval between samples.
const INTERVALS: (Duration, Duration) = (Duration::from_millis(250), Duration::from_secs(10));
/// Number of samples within the timeout.
const SAMPLES_PER_TIMEOUT: u32 = 10;
/// Share of the timeout in which the stacks of a suspicion are taken.
const SUSPICION_SHARE: u32 = 3;

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

    /// Returns the question to ask the agents of all nodes, if one is due.
    pub(crate) fn on_time(&mut self, now: Instant) -> Option<Inspection> {
        if self.due.is_none_or(|due| due > now) {
            return None;
        }
        self.due = None;
        Some(match self.phase {
            Phase::Watching => Inspection::Usage,
            Phase::Suspecting { .. } | Phase::Reporting => {
                Inspection::Stacks { ranks: Vec::new(), native: true }
            }
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
        if self.progress.silent_for < timeout {
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
        self.progress.outputs != self.status.outputs()
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
        let (quiet_for, ends_job) = (self.progress.silent_for, self.options.ends_job);
        Hung { quiet_for, stacks, positions: std::mem::take(&mut self.positions), ends_job }
    }
}

/// Share of a CPU below which a rank is idle. A rank that only waits uses less: a Python process with a timer or a
/// communicator's thread that looks around now and then.
const IDLE_SHARE: f64 = 0.05;

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
    cpu_ms: u64,
    idle_for: Duration,
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
        let step = elapsed.min(self.max_step);
        self.last_sample = Some(now);
        let outputs = status.outputs();
        let was_silent = outputs == std::mem::replace(&mut self.outputs, outputs);
        self.silent_for = if was_silent { self.silent_for + step } else { Duration::ZERO };
        self.ranks.values_mut().for_each(|rank| rank.is_present = false);
        for rank in usage {
            let cpu_ms = rank.user_ms + rank.system_ms;
            let new = RankProgress { cpu_ms, idle_for: Duration::ZERO, is_present: true };
            let known = self.ranks.entry(rank.rank).or_insert(new);
            known.is_present = true;
            // A child that ends before it is waited for takes its time with it.
            let used = Duration::from_millis(cpu_ms.saturating_sub(known.cpu_ms));
            let is_idle = used.as_secs_f64() < IDLE_SHARE * elapsed.as_secs_f64();
            known.idle_for = if is_idle { known.idle_for + step } else { Duration::ZERO };
            known.cpu_ms = cpu_ms;
        }
        self.ranks.retain(|_, rank| rank.is_present);
    }

    /// Returns the ranks that have used CPU within `time`, and those that have not.
    fn split(&self, time: Duration) -> (Vec<Rank>, Vec<Rank>) {
        let ranks = self.ranks.iter();
        let (idle, busy): (Vec<_>, Vec<_>) = ranks.partition(|(_, rank)| rank.idle_for >= time);
        let names = |ranks: Vec<(&Rank, _)>| ranks.into_iter().map(|(rank, _)| *rank).collect();
        (names(busy), names(idle))
    }

    /// Begins to count anew.
    fn restart(&mut self) {
        self.silent_for = Duration::ZERO;
        self.ranks.values_mut().for_each(|rank| rank.idle_for = Duration::ZERO);
    }
}

/// Number of times that stacks are taken.
const SAMPLES: usize = 3;

/// Stacks of all ranks, in the order in which they were taken.
#[derive(Debug, Default)]
struct Evidence(Vec<BTreeMap<Rank, RankStacks>>);

impl Evidence {
    /// Adds the stacks of all ranks.
    fn add(&mut self, stacks: Vec<RankStacks>) {
        self.0.push(stacks.into_iter().map(|rank| (rank.rank, rank)).collect());
    }

    /// Tells whether stacks were taken often enough.
    fn is_complete(&self) -> bool {
        self.0.len() >= SAMPLES
    }

    /// Tells whether the job hangs although the ranks in `busy` use CPU: each of them is where it was, and waits for
    /// others there or is waited for by the ranks in `idle`.
    fn shows_hang(&self, busy: &[Rank], idle: &[Rank]) -> bool {
        busy.iter().all(|&rank| self.stays(rank) && (!idle.is_empty() || self.spins(rank)))
    }

    /// Returns the last stacks.
    fn into_last(mut self) -> Vec<RankStacks> {
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
                let Some(what) = self.watch.on_time(due) else { panic!("no question") };
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

    const SECOND: Duration = Duration::from_secs(1);

    fn used(rank: u32, cpu_ms: u64) -> RankUsage {
        let (rank, pid, processes, resident, state) = (Rank(rank), 1, 1, 1, 'S');
        let (user_ms, system_ms, waited_ms) = (cpu_ms, 0, None);
        RankUsage { rank, pid, processes, user_ms, system_ms, resident, state, waited_ms }
    }

    #[test]
    fn a_rank_that_uses_cpu_is_busy() {
        let (mut progress, status) = (Progress::new(SECOND), LiveStatus::new());
        let now = Instant::now();
        for step in 0..=5_u32 {
            let ranks = [used(0, 1000 * u64::from(step)), used(1, 20 * u64::from(step))];
            progress.sample(now + step * SECOND, &ranks, &status);
        }
        assert_eq!(progress.split(5 * SECOND), (vec![Rank(0)], vec![Rank(1)]));
        assert_eq!(progress.silent_for, 5 * SECOND);
        status.printed(Rank(1), b"a line\n");
        progress.sample(now + 6 * SECOND, &[used(0, 5000)], &status);
        assert_eq!(progress.silent_for, Duration::ZERO);
        assert_eq!(progress.split(SECOND), (vec![], vec![Rank(0)]), "rank 1 has ended");
    }

    #[test]
    fn time_that_was_not_watched_does_not_count() {
        let (mut progress, status) = (Progress::new(SECOND), LiveStatus::new());
        let now = Instant::now();
        progress.sample(now, &[used(0, 0)], &status);
        progress.sample(now + 1000 * SECOND, &[used(0, 0)], &status);
        assert_eq!(progress.silent_for, 2 * SECOND);
        assert_eq!(progress.split(3 * SECOND), (vec![Rank(0)], vec![]));
    }

    fn frame(text: &str) -> StackFrame {
        let native = !text.contains(':');
        let (file, line) = text.split_once(':').unwrap_or((text, "0"));
        let function = if native { text } else { "forward" };
        let (function, file) = (function.to_owned(), file.to_owned());
        StackFrame { function, file, line: line.parse().unwrap(), native }
    }

    fn stacks_of(rank: u32, frames: &[&str]) -> RankStacks {
        let frames = frames.iter().map(|text| frame(text)).collect();
        let threads = vec![ThreadStack { state: 'R', frames, ..ThreadStack::default() }];
        let processes = vec![ProcessStacks { threads, ..ProcessStacks::default() }];
        RankStacks { rank: Rank(rank), processes }
    }

    fn evidence(samples: &[&[&str]]) -> Evidence {
        let mut evidence = Evidence::default();
        samples.iter().for_each(|frames| evidence.add(vec![stacks_of(0, frames)]));
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
