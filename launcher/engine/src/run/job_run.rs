//! Attempts at a job, each with its event log and its record.
//!
//! `--max-restarts`: after a failed rank or a lost node, the whole job starts again. Each restart is a job of its own, with a
//! new id and the same command line.

pub use crate::run::output::Stdio;

use crate::connect::connector::Reach;
use crate::run::detach::Detaching;
use crate::run::events::{Event, EventLog};
use crate::run::live::JobSocket;
use crate::run::notify::Notice;
use crate::run::record::{JobRecord, Recorder};
use crate::run::signals::Signals;
use ring::rand::SecureRandom;
use rlaunch_bootstrap::env as names;
use rlaunch_bootstrap::id::JobId;
use rlaunch_bootstrap::inventory::Inventory;
use rlaunch_bootstrap::job::PortRange;
use rlaunch_bootstrap::rank_table::RankTable;
use rlaunch_bootstrap::security::{Secret, Token};
use rlaunch_console::messages;
use rlaunch_plan::job::name::JobName;
use rlaunch_plan::job::options::{Restarts, Show};
use rlaunch_plan::job::{Identity, JobSpec};
use rlaunch_text::exit::Exit;
use rlaunch_text::message::Failed;
use std::path::PathBuf;
use std::pin::Pin;
use std::sync::{Arc, Mutex, OnceLock, PoisonError};
use std::time::{Duration, Instant};
use tracing::Instrument;

/// A job, the way to its hosts, and where its output goes.
pub struct Launch {
    pub spec: JobSpec,
    pub reach: Reach,
    pub stdio: Stdio,
    /// Handle to leave the terminal once ranks have started; `None` for a job that stays there.
    pub detaching: Option<Detaching>,
    /// Source of the working tree for the hosts; `None` if they need none, or have it.
    pub tree: Option<Box<dyn TreeSource>>,
}

/// Future that a trait object returns.
pub type Pending<'a, T> = Pin<Box<dyn Future<Output = Result<T, Failed>> + 'a>>;

/// Working tree whose copy hosts have before they prepare for the job.
pub trait TreeSource: Send {
    /// Returns the directory of hosts that has the copy, with `~/` for their home directories.
    fn copy(&self) -> PathBuf;

    /// Returns a hash of what the copy has to contain: what is in the tree once all hosts are reached.
    fn content(&mut self) -> Pending<'_, [u8; 32]>;

    /// Returns an encoded patch that makes a copy with a former content, by its hash, one of what is in the tree now; `None`
    /// if that is not known, or too much.
    fn patch(&mut self, former: [u8; 32]) -> Pending<'_, Option<Vec<u8>>>;

    /// Is told that all copies are what the patch makes of them.
    fn patched(&mut self);

    /// Copies the tree to all hosts. Returns those whose copy is that of another host, with the latter.
    fn bring(self: Box<Self>) -> Pending<'static, Vec<(String, String)>>;
}

/// Attempt at a job.
pub struct JobRun {
    pub spec: JobSpec,
    pub reach: Reach,
    pub stdio: Stdio,
    pub(crate) detaching: Option<Detaching>,
    /// Taken by the first attempt: a restart finds the copy.
    pub(crate) tree: Mutex<Option<Box<dyn TreeSource>>>,
    pub events: EventLog,
    /// Collector of the job's record; `None` if no record is wanted.
    pub(crate) recorder: Option<Recorder>,
    /// Place for facts about the job; `None` if nothing reads them.
    pub facts: Option<FactsCell>,
    /// Socket at which the job can be asked; `None` if it could not be opened.
    pub socket: Option<JobSocket>,
    /// Whether the user is told where ranks do not run in this directory.
    pub(crate) says_directory: bool,
}

/// Facts about a job that are known once its ranks are about to start.
#[derive(Debug)]
pub struct StartFacts {
    pub table: RankTable,
    /// Inventories by node.
    pub inventories: Vec<Inventory>,
}

/// Place for the facts about a job, which is filled before any rank starts.
pub type FactsCell = Arc<OnceLock<StartFacts>>;

impl JobRun {
    /// Begins the first attempt. Returns an error if the file of `--events`, or that of the output of a job without a
    /// terminal, cannot be opened.
    pub fn first(launch: Launch) -> Result<JobRun, Failed> {
        if let Some(detaching) = &launch.detaching {
            detaching.keep_output(&launch.spec)?;
            detaching.outlive_logout(&launch.spec);
        }
        let target = launch.spec.events.as_deref();
        let events = EventLog::open(target, launch.spec.id).map_err(|error| {
            let target = target.unwrap_or_default();
            Failed::new(Exit::FILES, format!("cannot write events to {target}: {error}"))
        })?;
        Ok(JobRun::new(launch, events))
    }

    /// Makes the attempt put facts about the job into `facts`.
    pub fn with_facts(self, facts: FactsCell) -> JobRun {
        JobRun { facts: Some(facts), ..self }
    }

    /// Begins a restart. Its events are written to the log of the attempts before it.
    pub fn next(launch: Launch, events: EventLog) -> JobRun {
        let events = events.for_job(launch.spec.id);
        JobRun::new(launch, events)
    }

    fn new(launch: Launch, events: EventLog) -> JobRun {
        let Launch { spec, reach, stdio, detaching, tree } = launch;
        let is_timed = spec.show.contains(&Show::Timing);
        let events = if is_timed { events.with_timing() } else { events };
        let store = detaching.as_ref().and_then(Detaching::store);
        let output_file = store.map(|store| store.file_name().to_owned());
        let recorder = spec.is_recorded.then(|| Recorder::new(output_file));
        // A dry run is over at once.
        let is_run = spec.dry_run.is_none();
        let output = recorder.as_ref().map(|recorder| recorder.transcript().clone());
        let socket = is_run.then(|| JobSocket::open(&spec, events.status().clone(), output));
        let socket = socket.flatten();
        JobRun {
            spec,
            reach,
            stdio,
            detaching,
            tree: Mutex::new(tree),
            events,
            recorder,
            facts: None,
            socket,
            says_directory: false,
        }
    }

    /// Returns the parts that the next attempt is made from.
    pub(crate) fn into_parts(self) -> (Launch, EventLog) {
        let JobRun { spec, reach, stdio, detaching, events, .. } = self;
        (Launch { spec, reach, stdio, detaching, tree: None }, events)
    }

    /// Returns the directory of hosts that has the copy of a working tree which is to be brought.
    pub(crate) fn tree_copy(&self) -> Option<PathBuf> {
        let tree = self.tree.lock().unwrap_or_else(PoisonError::into_inner);
        tree.as_ref().map(|tree| tree.copy())
    }

    pub(crate) fn take_tree(&self) -> Option<Box<dyn TreeSource>> {
        self.tree.lock().unwrap_or_else(PoisonError::into_inner).take()
    }

    /// Runs a phase of the job, logs its duration and emits it as an event.
    pub async fn phase<T>(&self, name: &'static str, work: impl Future<Output = T>) -> T {
        let started = Instant::now();
        let done = work.await;
        let seconds = started.elapsed().as_secs_f64();
        tracing::info!("{name}: {:.1} ms", seconds * 1e3);
        self.events.emit(&Event::Phase { name, seconds });
        if let Some(recorder) = &self.recorder {
            recorder.phase_ended(name, seconds);
        }
        done
    }
}

/// Makes the identity of a new attempt at a job.
pub fn new_identity() -> Result<Identity, NoRandom> {
    Ok(Identity {
        id: JobId(uuid::Uuid::now_v7().as_u128()),
        name: JobName::from_bits(u16::from_le_bytes(random()?)),
        secret: Secret::from_bytes(random()?),
        token: Token(random()?),
    })
}

/// Returns random bytes for a secret.
fn random<const N: usize>() -> Result<[u8; N], NoRandom> {
    let mut bytes = [0; N];
    let filled = ring::rand::SystemRandom::new().fill(&mut bytes);
    filled.map(|()| bytes).map_err(|_| NoRandom)
}

#[derive(Debug, thiserror::Error)]
#[error("the system has no source of random numbers")]
pub struct NoRandom;

/// Maximum number of new job ids that are tried to find one whose search for ports begins far from that of
/// the former job. About half of all ids do.
const MAX_IDS: usize = 64;

/// Runs a job, and restarts it after failures that may not recur. A restart begins once the attempt before it
/// was shut down. Returns the outcome of the last attempt.
pub(crate) async fn run_with_restarts(
    launch: Launch,
    signals: &mut Signals,
) -> Result<Exit, Failed> {
    let (notify, began) = (launch.spec.notify.clone(), Instant::now());
    // A restart says it no more, nor does a measurement, whose ranks need no directory.
    let job = JobRun { says_directory: true, ..JobRun::first(launch)? };
    let (events, detaching) = (job.events.clone(), job.detaching.clone());
    let (job, mut ended) = run_attempts(job, signals).await;
    if let Some(command) = notify {
        // The command may ask for the output of a job that has no terminal, of which the error is a part.
        let has_left = detaching.as_ref().is_some_and(|detaching| !detaching.is_due());
        if let Err(failed) = ended.as_ref()
            && has_left
        {
            messages::error(failed);
        }
        Notice { job, took: began.elapsed(), ended: &ended }.send(&command, signals).await;
        if has_left {
            // An error without words is not said once more.
            ended = ended.map_err(|failed| Failed { message: String::new(), ..failed });
        }
    }
    await_reader(&events, signals).await;
    if let Some(store) = detaching.as_ref().and_then(Detaching::store) {
        store.finish();
    }
    ended
}

/// Makes attempts until none follows. Returns the id and the outcome of the last one.
async fn run_attempts(mut job: JobRun, signals: &mut Signals) -> (JobId, Result<Exit, Failed>) {
    loop {
        let id = job.spec.id;
        let Attempt { ended, next, .. } = attempt(&job, signals).await;
        let (mut failed, restarts) = match (ended, job.spec.restarts) {
            (Err(failed), Some(restarts)) if may_restart(&failed, signals) => (failed, restarts),
            (ended, _) => return (id, ended),
        };
        let Some(next) = next else {
            let Restarts { max, done } = restarts;
            failed.details.push(format!("restarts: {done} of {max}"));
            return (id, Err(failed));
        };
        print_restart(next.restarts, &failed);
        let (launch, events) = job.into_parts();
        let spec = match restarted(launch.spec, next) {
            Ok(spec) => spec,
            Err(error) => return (id, Err(Failed::from_error(Exit::USAGE, &error))),
        };
        job = JobRun::next(Launch { spec, ..launch }, events);
        job.events.emit(&Event::JobRestarted {
            number: next.restarts.done,
            most: next.restarts.max,
            former: id.to_string(),
            after: names::redacted(&failed.message),
        });
    }
}

/// Tells whether a job may start again after this error. If the user has asked to end a job that is already failing, it
/// may not.
fn may_restart(failed: &Failed, signals: &Signals) -> bool {
    failed.may_restart && signals.end_requests() == 0
}

/// Attempt at a job that is over.
struct Attempt {
    ended: Result<Exit, Failed>,
    /// Its record; `None` if the user wants none.
    record: Option<JobRecord>,
    next: Option<NextAttempt>,
}

/// Attempt that follows another.
#[derive(Clone, Copy, Debug)]
struct NextAttempt {
    id: JobId,
    restarts: Restarts,
}

impl NextAttempt {
    /// Returns `None` if no attempt follows this end.
    fn after(job: &JobSpec, ended: &Result<Exit, Failed>, signals: &Signals) -> Option<Self> {
        let failed = ended.as_ref().err().filter(|failed| may_restart(failed, signals));
        let restarts = failed.and(job.restarts)?.next()?;
        Some(NextAttempt { id: another_id(job.id, job.port_range), restarts })
    }
}

/// Runs one attempt at a job that is not restarted. Stores the record of the attempt and returns it, unless the user wants
/// no record.
pub async fn run_attempt(
    job: &JobRun,
    signals: &mut Signals,
) -> (Result<Exit, Failed>, Option<JobRecord>) {
    let Attempt { ended, record, .. } = attempt(job, signals).await;
    (ended, record)
}

/// Runs one attempt at a job, and stores its record.
async fn attempt(job: &JobRun, signals: &mut Signals) -> Attempt {
    let span = tracing::info_span!("job", id = %job.spec.id);
    let ended = super::run(job, signals).instrument(span).await;
    job.events.emit(&Event::job_ended(&ended));
    let ended = job.events.conclude(ended);
    let next = NextAttempt::after(&job.spec, &ended, signals);
    let record = job.recorder.as_ref().and_then(|recorder| recorder.finish(&job.spec, &ended));
    let next_id = next.map(|next| next.id.to_string());
    let record = record.map(|record| JobRecord { next: next_id, ..record });
    if let Some((recorder, record)) = job.recorder.as_ref().zip(record.as_ref()) {
        recorder.save_or_warn(record);
    }
    Attempt { ended, record, next }
}

/// Waits until the reader of the events has taken them all, unless the user has asked for the end. Says after a second what
/// it waits for.
async fn await_reader(events: &EventLog, signals: &mut Signals) {
    const CHECK: Duration = Duration::from_millis(20);
    /// Time that is left to the reader when the user has asked for the end.
    const LAST: Duration = Duration::from_secs(1);
    let (began, mut is_said) = (Instant::now(), false);
    while events.is_behind() && (began.elapsed() < LAST || signals.end_requests() == 0) {
        if began.elapsed() >= LAST && !is_said {
            is_said = true;
            messages::info(&events.wait_line());
        }
        tokio::select! {
            () = tokio::time::sleep(CHECK) => {}
            _ = signals.end() => return,
        }
    }
}

/// Prints `restart 1 of 3 after: rank 1 on b (pid 4711) exited with code 7`, with details and hints.
fn print_restart(Restarts { max, done }: Restarts, failed: &Failed) {
    let details = failed.details.iter().chain(&failed.asides);
    let below = details.map(|detail| format!("\n  {detail}"));
    let below: String = below.collect();
    messages::info(&format!("restart {done} of {max} after: {}{below}", failed.message));
    failed.hints.iter().for_each(|hint| messages::hint(hint));
}

/// Returns the same job with the id of the next attempt and new secrets.
fn restarted(job: JobSpec, next: NextAttempt) -> Result<JobSpec, NoRandom> {
    let Identity { secret, token, .. } = new_identity()?;
    Ok(JobSpec {
        id: next.id,
        secret,
        token,
        restarts: Some(next.restarts),
        stdin: job.stdin.for_restart(),
        ..job
    })
}

/// Makes the id of a restart. Agents begin their search for free ports at an offset in the range that depends
/// on the id. The new id is chosen, if the range allows it, so that its offset is far from the offset of the
/// former id. A leftover of the former job that still connects to the former MASTER_PORT then does not reach
/// the new job.
fn another_id(former: JobId, range: PortRange) -> JobId {
    let count = range.count();
    let steps = |id: JobId| (range.start_offset(id) + count - range.start_offset(former)) % count;
    let is_far = |id: &JobId| (count / 4..=count - count / 4).contains(&steps(*id));
    let new = || JobId(uuid::Uuid::now_v7().as_u128());
    let mut ids = std::iter::repeat_with(new).take(MAX_IDS);
    ids.find(|id| steps(*id) > 0 && is_far(id)).unwrap_or_else(new)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn there_are_as_many_restarts_as_were_asked_for() {
        assert_eq!(Restarts::up_to(0).next(), None);
        let last = Restarts::up_to(2).next().and_then(Restarts::next);
        assert_eq!(last, Some(Restarts { max: 2, done: 2 }));
        assert_eq!(last.and_then(Restarts::next), None);
    }

    #[test]
    fn another_attempt_looks_for_ports_elsewhere() {
        for (first, last) in [(21000, 21511), (21000, 21002), (21000, 21001)] {
            let range = PortRange { first, last };
            let former = JobId(uuid::Uuid::now_v7().as_u128());
            let id = another_id(former, range);
            assert_ne!(range.start_offset(id), range.start_offset(former), "{first}-{last}");
        }
        // A range of one port leaves no choice.
        let one = PortRange { first: 21000, last: 21000 };
        assert_ne!(another_id(JobId(1), one), JobId(1));
    }
}
