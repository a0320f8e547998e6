//! Jobs that the user names: those that run, and those that have ended.

use super::jobs::live_failure;
use rlaunch_engine::run::live::client::{Launcher, LiveError, RunningJob};
use rlaunch_engine::run::record::{JobRecord, RecordStore, RecordStoreError};
use rlaunch_text::exit::Exit;
use rlaunch_text::message::Failed;
use std::time::Duration;
use tokio::time::{Instant, sleep};

/// Time between two looks for what comes at once.
const LOOK: Duration = Duration::from_millis(20);
/// Time after the end of a job within which its record is there. The kernel closes the socket of a launcher that is killed
/// a moment before it frees the lock on the record.
const RECORD_TIME: Duration = Duration::from_secs(1);

/// Job that was found.
pub(super) enum FoundJob {
    Running(Box<RunningJob>),
    Ended(Box<JobRecord>),
}

impl FoundJob {
    /// Finds a job by the beginning of its id, or `last` for the last that has ended; without a word, the only running one.
    pub(super) async fn find(job: Option<&str>) -> Result<FoundJob, Failed> {
        match running(job).await? {
            Some(job) => Ok(FoundJob::Running(Box::new(job))),
            None if job.is_some() => Ok(FoundJob::Ended(Box::new(record(job)?))),
            None => Err(live_failure(&LiveError::NoJob)),
        }
    }
}

/// Finds the job among those that run; `None` if it has ended, or if no word is given and none runs.
pub(super) async fn running(job: Option<&str>) -> Result<Option<RunningJob>, Failed> {
    if job == Some("last") {
        return Ok(None);
    }
    match RunningJob::find(job).await {
        Ok(job) => Ok(Some(job)),
        Err(LiveError::NoJob | LiveError::Unknown(_) | LiveError::Ended(_)) => Ok(None),
        Err(error) => Err(live_failure(&error)),
    }
}

/// Finds the job among those that have ended; the last one without a word.
pub(super) fn record(job: Option<&str>) -> Result<JobRecord, Failed> {
    let store = store()?;
    let found = match job.filter(|job| *job != "last") {
        Some(job) => store.find(job),
        None => store.last(),
    };
    found.map_err(|error| record_failure(&error))
}

/// Opens the records of this user.
pub(super) fn store() -> Result<RecordStore, Failed> {
    RecordStore::for_user().map_err(|error| record_failure(&error))
}

fn record_failure(error: &RecordStoreError) -> Failed {
    Failed::from_error(Exit::FILES, error).hint(error.hint())
}

/// Waits until a job has ended, with all its restarts, and returns its record; `None` if it keeps none.
pub(super) async fn until_ended(mut job: RunningJob) -> Result<Option<JobRecord>, Failed> {
    loop {
        match job.ended().await {
            LiveError::Ended(_) => {}
            error => return Err(live_failure(&error)),
        }
        let record = record_at_end(&job.id).await?;
        let is_restarted = record.as_ref().is_some_and(|record| record.is_restarted);
        let next = match job.launcher().filter(|_| is_restarted) {
            Some(launcher) => next_attempt(launcher, &job.id).await?,
            None => None,
        };
        match next {
            Some(next) => job = next,
            None => return Ok(record),
        }
    }
}

/// Reads the record of a job that has just ended.
pub(super) async fn record_at_end(job: &str) -> Result<Option<JobRecord>, Failed> {
    let store = store()?;
    let due = Instant::now() + RECORD_TIME;
    loop {
        match store.find(job) {
            Ok(record) => return Ok(Some(record)),
            Err(RecordStoreError::Unknown { .. } | RecordStoreError::Empty(_)) => {}
            Err(error) => return Err(record_failure(&error)),
        }
        if Instant::now() >= due {
            return Ok(None);
        }
        sleep(LOOK).await;
    }
}

/// Waits for the attempt that follows another of the same launcher; `None` if the launcher ends before.
async fn next_attempt(launcher: Launcher, former: &str) -> Result<Option<RunningJob>, Failed> {
    loop {
        let is_alive = launcher.is_alive();
        let (jobs, _) = RunningJob::all().await.map_err(|error| live_failure(&error))?;
        let is_next = |job: &RunningJob| job.launcher() == Some(launcher) && job.id != former;
        let next = jobs.into_iter().find(is_next);
        if next.is_some() || !is_alive {
            return Ok(next);
        }
        sleep(LOOK).await;
    }
}
