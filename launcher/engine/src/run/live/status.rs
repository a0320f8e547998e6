//! State of a running job. [`EventLog::emit`](crate::run::events::EventLog::emit) adds the events to it; the placement of
//! ranks, their output and the end are added where they become known.

use super::messages::{JobPhase, JobStatus, LastOutput, RankSpeed};
use super::speed::PrintedSpeed;
use memchr::memmem;
use rlaunch_bootstrap::id::Rank;
use rlaunch_plan::map::{HostRanks, RankMap};
use std::collections::BTreeMap;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant, SystemTime};

/// State of a running job, shared by the tasks that change it and those that report it. Clones share the state.
#[derive(Clone, Debug)]
pub struct LiveStatus(Arc<StatusState>);

#[derive(Debug)]
struct StatusState {
    started: SystemTime,
    clock: Instant,
    changing: Mutex<Changing>,
    /// Last output: milliseconds since `clock` in the upper 40 bits, and above 0; the rank in the lower 24.
    /// 0 if nothing was printed. One word, since output must not wait for a lock.
    last_output: AtomicU64,
    /// Number of outputs, each a chunk of one rank.
    outputs: AtomicU64,
    /// Last speed that each rank has printed, and when. Most programs print none, or one every few seconds.
    speeds: Mutex<BTreeMap<Rank, (PrintedSpeed, Instant)>>,
}

#[derive(Debug, Default)]
struct Changing {
    phase: JobPhase,
    hosts: Vec<HostRanks>,
    ranks_started: u32,
    ranks_ended: u32,
}

/// Number of bits that hold a rank. A job has at most 2^20 ranks.
const RANK_BITS: u32 = 24;

impl LiveStatus {
    /// Makes the state of a job that starts now.
    pub(crate) fn new() -> LiveStatus {
        LiveStatus(Arc::new(StatusState {
            started: SystemTime::now(),
            clock: Instant::now(),
            changing: Mutex::default(),
            last_output: AtomicU64::new(0),
            outputs: AtomicU64::new(0),
            speeds: Mutex::default(),
        }))
    }

    /// Takes note of the placement of ranks.
    pub(crate) fn mapped(&self, map: &RankMap) {
        self.changing().hosts = HostRanks::of_map(map);
    }

    /// Takes note that a phase of the launcher, such as `reach`, has ended.
    pub(crate) fn phase_ended(&self, name: &str) {
        let next = match name {
            "reach" => JobPhase::Preparing,
            "prepare" => JobPhase::Joining,
            "join" => JobPhase::Running,
            _ => return,
        };
        let mut changing = self.changing();
        changing.phase = changing.phase.max(next);
    }

    /// Takes note that the process of a rank has started.
    pub(crate) fn rank_started(&self) {
        self.changing().ranks_started += 1;
    }

    /// Tells whether the processes of all ranks have started, whether or not they run on.
    pub(crate) fn has_started(&self) -> bool {
        let changing = self.changing();
        let ranks = changing.hosts.iter().map(|host| host.ranks.len()).sum::<usize>();
        ranks > 0 && changing.ranks_started as usize >= ranks
    }

    /// Takes note that the process of a rank has ended.
    pub(crate) fn rank_exited(&self) {
        self.changing().ranks_ended += 1;
    }

    /// Takes note that the ranks are being ended.
    pub fn ending(&self) {
        self.changing().phase = JobPhase::Ending;
    }

    /// Takes note of a rank's output.
    pub fn printed(&self, rank: Rank, output: &[u8]) {
        if announces_dumps(output) {
            return;
        }
        if let Some(speed) = PrintedSpeed::last_in(output) {
            self.speeds().insert(rank, (speed, Instant::now()));
        }
        let millis = u64::try_from(self.0.clock.elapsed().as_millis()).unwrap_or(u64::MAX);
        let packed = (millis.max(1) << RANK_BITS) | u64::from(rank.0 & ((1 << RANK_BITS) - 1));
        self.0.last_output.store(packed, Ordering::Relaxed);
        self.0.outputs.fetch_add(1, Ordering::Relaxed);
    }

    /// Returns the state now of the job with this id and name; `program` are the words of its programs.
    pub fn report(&self, job: String, name: String, program: Vec<String>) -> JobStatus {
        let StatusState { started, clock, .. } = &*self.0;
        let since_1970 = started.duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default();
        let changing = self.changing();
        let ranks = changing.hosts.iter().map(|host| host.ranks.len()).sum::<usize>();
        JobStatus {
            job,
            name,
            pid: std::process::id(),
            program,
            started: since_1970.as_secs_f64(),
            seconds: clock.elapsed().as_secs_f64(),
            phase: changing.phase,
            hosts: changing.hosts.clone(),
            ranks: u32::try_from(ranks).unwrap_or(u32::MAX),
            ranks_started: changing.ranks_started,
            ranks_ended: changing.ranks_ended,
            last_output: self.last_output(),
            speeds: self.rank_speeds(),
        }
    }

    /// Returns how often ranks have printed something.
    pub fn outputs(&self) -> u64 {
        self.0.outputs.load(Ordering::Relaxed)
    }

    /// Returns the last output; `None` if nothing was printed.
    pub fn last_output(&self) -> Option<LastOutput> {
        let packed = self.0.last_output.load(Ordering::Relaxed);
        let seconds = Duration::from_millis(packed >> RANK_BITS);
        let ago = self.0.clock.elapsed().saturating_sub(seconds);
        let rank = u32::try_from(packed & ((1 << RANK_BITS) - 1)).unwrap_or_default();
        (packed > 0).then_some(LastOutput { rank, seconds_ago: ago.as_secs_f64() })
    }

    /// Returns the last speed of each rank that has printed one within the last `time`, by rank.
    pub(crate) fn speeds_since(&self, time: Duration) -> Vec<(Rank, PrintedSpeed)> {
        let speeds = self.speeds();
        let recent = speeds.iter().filter(|(_, (_, at))| at.elapsed() <= time);
        recent.map(|(rank, (speed, _))| (*rank, speed.clone())).collect()
    }

    fn rank_speeds(&self) -> Vec<RankSpeed> {
        let speeds = self.speeds();
        let speeds = speeds.iter().map(|(rank, (speed, at))| RankSpeed {
            rank: rank.0,
            speed: speed.clone(),
            seconds_ago: at.elapsed().as_secs_f64(),
        });
        speeds.collect()
    }

    fn speeds(&self) -> MutexGuard<'_, BTreeMap<Rank, (PrintedSpeed, Instant)>> {
        self.0.speeds.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn changing(&self) -> MutexGuard<'_, Changing> {
        self.0.changing.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Tells whether all lines are those with which torch announces that it writes what its flight recorder keeps. It does so
/// when it is asked, by rlaunch too, and the rank makes no progress by it. Such lines begin with `[rank0]:[E`, and all
/// backends of torch have the same words (`dumpDebuggingInfo` in its `ProcessGroup*.cpp`).
fn announces_dumps(output: &[u8]) -> bool {
    const WORDS: &[u8] = b" preparing to dump debug info";
    let lines = output.strip_suffix(b"\n").unwrap_or(output).split(|&byte| byte == b'\n');
    lines.into_iter().all(|line| line.starts_with(b"[") && memmem::find(line, WORDS).is_some())
}

#[cfg(test)]
mod tests {
    use super::*;
    use rlaunch_plan::hosts::Host;

    #[test]
    fn a_job_goes_through_its_phases() {
        let status = LiveStatus::new();
        let report = || status.report("5".into(), "x".into(), vec!["a".into()]);
        assert_eq!(report().phase, JobPhase::Connecting);
        let map = RankMap::by_slot(&[Host::this_machine()], Some(1), false).unwrap();
        status.mapped(&map);
        for (name, phase) in [
            ("reach", JobPhase::Preparing),
            ("prepare", JobPhase::Joining),
            ("join", JobPhase::Running),
        ] {
            status.phase_ended(name);
            assert_eq!(report().phase, phase);
        }
        assert!(!status.has_started());
        status.rank_started();
        assert!(status.has_started());
        let now = report();
        assert_eq!((now.ranks, now.ranks_started, now.ranks_ended), (1, 1, 0));
        status.ending();
        assert_eq!(report().phase, JobPhase::Ending);
    }

    #[test]
    fn what_torch_says_of_its_dumps_is_no_progress() {
        const NOTICE: &[u8] = b"[rank1]:[E1129 19:41:03.515258727 ProcessGroupNCCL.cpp:1628] [PG ID 0 PG GUID \
            0(default_pg) Rank 1] ProcessGroupNCCL preparing to dump debug info. Include stack trace: 1\n";
        let status = LiveStatus::new();
        status.printed(Rank(1), NOTICE);
        status.printed(Rank(1), &NOTICE.repeat(2));
        assert_eq!((status.outputs(), status.last_output()), (0, None));
        status.printed(Rank(1), &[NOTICE, b"step 7\n"].concat());
        status.printed(Rank(1), b"\n");
        assert_eq!(status.outputs(), 2);
    }

    #[test]
    fn the_last_output_has_its_rank() {
        let status = LiveStatus::new();
        assert_eq!(status.last_output(), None);
        status.printed(Rank(3), b"7 images/s\n");
        status.printed(Rank((1 << 20) - 1), b"/\n");
        let last = status.last_output().unwrap();
        assert_eq!(last.rank, (1 << 20) - 1);
        assert!(last.seconds_ago < 60.0);
        let speeds = status.speeds_since(Duration::from_secs(600));
        assert_eq!(speeds, [(Rank(3), PrintedSpeed { value: 7.0, unit: "images/s".into() })]);
    }
}
