//! One attempt at a job, with its event log and its record.

use crate::connect::options::Reach;
use crate::run::events::{Event, EventLog};
use crate::run::live::JobSocket;
use crate::run::record::Recorder;
use ring::rand::SecureRandom;
use rlaunch_bootstrap::id::JobId;
use rlaunch_bootstrap::inventory::Inventory;
use rlaunch_bootstrap::rank_table::RankTable;
use rlaunch_bootstrap::security::{Secret, Token};
use rlaunch_plan::job::{Identity, JobSpec};
use rlaunch_text::exit::Exit;
use rlaunch_text::message::Failed;
use std::io::{self, IsTerminal, PipeWriter};
use std::ops::Deref;
use std::sync::{Arc, OnceLock};
use std::time::Instant;

/// A job, the way to its hosts, and where its output goes.
pub struct Launch {
    pub job: JobSpec,
    pub reach: Reach,
    pub stdio: Stdio,
}

/// Destination of the ranks' stdout.
#[derive(Clone, Debug, Default)]
pub enum Stdio {
    /// This process's stdout.
    #[default]
    Stdout,
    /// This process's stderr, because it prints its own result to stdout.
    Stderr,
    /// A pipe whose other end this process reads. The reader sees the end once the job is dropped.
    Pipe(Arc<PipeWriter>),
}

impl Stdio {
    pub fn is_terminal(&self) -> bool {
        match self {
            Stdio::Stdout => io::stdout().is_terminal(),
            Stdio::Stderr => io::stderr().is_terminal(),
            Stdio::Pipe(_) => false,
        }
    }
}

/// Attempt at a job.
pub struct JobRun {
    job: JobSpec,
    pub reach: Reach,
    pub stdio: Stdio,
    pub events: EventLog,
    /// Collector of the job's record; `None` if no record is wanted.
    pub(crate) recorder: Option<Recorder>,
    /// Place for facts about the job; `None` if nothing reads them.
    pub facts: Option<FactsCell>,
    /// Socket at which the job can be asked; `None` if it could not be opened.
    pub socket: Option<JobSocket>,
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

impl Deref for JobRun {
    type Target = JobSpec;

    fn deref(&self) -> &JobSpec {
        &self.job
    }
}

impl JobRun {
    /// Begins the first attempt. Returns an error if the file of `--events` cannot be opened.
    pub fn first(launch: Launch) -> Result<JobRun, Failed> {
        let target = launch.job.events.as_deref();
        let events = EventLog::open(target, launch.job.id).map_err(|error| {
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
        let events = events.for_job(launch.job.id);
        JobRun::new(launch, events)
    }

    fn new(launch: Launch, events: EventLog) -> JobRun {
        let Launch { job, reach, stdio } = launch;
        let recorder = job.is_recorded.then(Recorder::new);
        // A dry run is over at once.
        let is_run = job.dry_run.is_none();
        let socket = is_run.then(|| JobSocket::open(&job, events.status().clone())).flatten();
        JobRun { job, reach, stdio, events, recorder, facts: None, socket }
    }

    /// Returns the parts that the next attempt is made from.
    pub(crate) fn into_parts(self) -> (Launch, EventLog) {
        let JobRun { job, reach, stdio, events, .. } = self;
        (Launch { job, reach, stdio }, events)
    }

    /// Runs a phase of the job, logs its duration and emits it as an event.
    pub async fn phase<T>(&self, name: &'static str, work: impl Future<Output = T>) -> T {
        let started = Instant::now();
        let done = work.await;
        let seconds = started.elapsed().as_secs_f64();
        tracing::info!("{name}: {:.1} ms", seconds * 1e3);
        self.events.emit(&Event::Phase { name, seconds });
        done
    }
}

/// Makes the identity of a new attempt at a job.
pub fn new_identity() -> Result<Identity, NoRandom> {
    Ok(Identity {
        id: JobId(uuid::Uuid::now_v7().as_u128()),
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
