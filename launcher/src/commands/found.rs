//! Jobs of this machine, running or ended, and the words that mean them.

use rlaunch_bootstrap::id::JobId;
use rlaunch_engine::run::live::client::{LiveError, RunningJob};
use rlaunch_engine::run::record::{
    HeldName, JobRecord, NameClaim, RecordStore, RecordStoreError, RecordedJob,
};
use rlaunch_plan::job::name::{JobName, LAST, Meant};
use rlaunch_text::exit::Exit;
use rlaunch_text::message::Failed;
use rlaunch_text::text;
use std::time::{Duration, SystemTime, UNIX_EPOCH};
use tokio::time::{Instant, sleep};

/// Time between two looks for what comes at once.
pub(super) const LOOK: Duration = Duration::from_millis(20);
/// Time within which the record of a job that has ended is there, and its next attempt. The kernel closes the socket of a
/// launcher that is killed a moment before it frees the lock on the record.
const AT_ONCE: Duration = Duration::from_secs(1);

/// Time after the end of a job within which the next attempt that its record names has begun: its launcher goes on at once,
/// on a machine that may be busy.
const NEXT_WITHIN: Duration = Duration::from_secs(10);

/// Job that was found.
pub(super) enum FoundJob {
    Running(Box<RunningJob>),
    Ended(Box<JobRecord>),
}

impl FoundJob {
    /// Finds the job that a word means ([`Meant::find`]), first among those that run; without a word, the only running one.
    /// Of a job that was started again it is the last attempt.
    pub(super) async fn find(word: Option<&str>) -> Result<FoundJob, Failed> {
        let newest = match word {
            Some(LAST) => find_id(LAST).await?,
            _ => None,
        };
        let job = newest.as_deref().or(word);
        let mut found = match (running(job).await?, job) {
            (Some(job), _) => FoundJob::Running(Box::new(job)),
            (None, Some(job)) => FoundJob::Ended(Box::new(record_at_once(job).await?)),
            (None, None) => return Err(live_failure(&LiveError::NoJob)),
        };
        while let FoundJob::Ended(record) = &found {
            let Some(next) = next_attempt(record).await? else { break };
            found = next;
        }
        Ok(found)
    }
}

/// Finds the job among those that run; `None` if it has ended, or if no word is given and none runs.
pub(super) async fn running(job: Option<&str>) -> Result<Option<RunningJob>, Failed> {
    match RunningJob::find(job).await {
        Ok(job) => Ok(Some(job)),
        Err(LiveError::NoJob | LiveError::Unknown(_) | LiveError::Ended(_)) => Ok(None),
        Err(error) => Err(live_failure(&error)),
    }
}

/// Finds the job among those that have ended; the last one without a word.
pub(super) fn record(job: Option<&str>) -> Result<JobRecord, Failed> {
    store()?.find(job.unwrap_or(LAST)).map_err(|error| record_failure(&error))
}

/// Finds the record of a job that does not run. That of a job whose launcher was killed a moment ago comes at once.
async fn record_at_once(job: &str) -> Result<JobRecord, Failed> {
    let due = Instant::now() + AT_ONCE;
    loop {
        let is_last = Instant::now() >= due;
        let found = record(Some(job));
        if found.is_ok() || is_last || Meant::find(job, &store()?.begun()) == Meant::Nothing {
            return found;
        }
        sleep(LOOK).await;
    }
}

/// Returns the id of the job of this machine that `word` means; `None` if none is meant.
pub(super) async fn find_id(word: &str) -> Result<Option<String>, Failed> {
    let jobs = known_jobs().await;
    match Meant::find(word, &jobs) {
        Meant::Nothing => Ok(None),
        Meant::One(at) => Ok(Some(jobs[at].id.clone())),
        Meant::Several(found) => {
            let names: Vec<&str> = found.iter().map(|at| word_for(&jobs[*at])).collect();
            let message = format!(
                "{word} begins the names or ids of {}: {}",
                found.len(),
                text::list(&names)
            );
            Err(Failed::new(Exit::USAGE, message).hint(Some("give more of the name or id")))
        }
    }
}

/// Lists the jobs that run or have left a record, oldest first.
pub(super) async fn known_jobs() -> Vec<RecordedJob> {
    let recorded = RecordStore::for_user().and_then(|store| store.recorded());
    let mut jobs = recorded.unwrap_or_default();
    let running = RunningJob::all().await.map(|(running, _)| running).unwrap_or_default();
    jobs.extend(running.into_iter().map(|job| RecordedJob { id: job.id, name: job.name }));
    // Ids begin with the time.
    jobs.sort_unstable();
    jobs.dedup();
    jobs
}

/// Returns the word by which a job is named to the user: its name, or its id if it has none.
pub(super) fn word_for(job: &RecordedJob) -> &str {
    if job.name.is_empty() { &job.id } else { &job.name }
}

/// Returns an error if a job of this machine and user runs under a name that another is to have.
pub(super) fn refuse_taken(name: &JobName) -> Result<(), Failed> {
    let store = RecordStore::for_user().ok();
    let running = store.and_then(|store| store.running_as(name));
    running.map_or(Ok(()), |job| Err(name_taken(name, &job.id)))
}

/// Takes a name for a job until the value is dropped, or returns an error if another job has taken it meanwhile. `None`
/// where that cannot be known.
pub(super) fn hold_name(name: &JobName, job: JobId) -> Result<Option<HeldName>, Failed> {
    let Ok(store) = RecordStore::for_user() else { return Ok(None) };
    match store.hold_name(name, job) {
        Ok(NameClaim::Held(held)) => Ok(Some(held)),
        Ok(NameClaim::Taken(id)) => Err(name_taken(name, &id)),
        Err(error) => {
            tracing::info!("two jobs may take the name {name} at once: {error}");
            Ok(None)
        }
    }
}

fn name_taken(name: &JobName, id: &str) -> Failed {
    let message = format!("--job-name {name}: job {id} of yours has that name and runs");
    let hint = format!("`rlaunch stop {name}` ends that one; or give this one another name");
    Failed::new(Exit::USAGE, message).hint(Some(hint))
}

/// Opens the records of this user.
pub(super) fn store() -> Result<RecordStore, Failed> {
    RecordStore::for_user().map_err(|error| record_failure(&error))
}

/// Makes the failure of a verb that talks to a running job.
pub(super) fn live_failure(error: &LiveError) -> Failed {
    Failed::from_error(Exit::USAGE, error).hint(error.hint())
}

pub(super) fn record_failure(error: &RecordStoreError) -> Failed {
    Failed::from_error(Exit::FILES, error).hint(error.hint())
}

/// Waits until a job has ended, with all its restarts, and returns its record; `None` if it keeps none.
pub(super) async fn until_ended(job: RunningJob) -> Result<Option<JobRecord>, Failed> {
    let mut found = FoundJob::Running(Box::new(job));
    loop {
        let then = match &mut found {
            FoundJob::Running(job) => {
                match job.ended().await {
                    LiveError::Ended(_) => {}
                    error => return Err(live_failure(&error)),
                }
                at_once(&job.id).await?
            }
            FoundJob::Ended(record) => next_attempt(record).await?,
        };
        found = match (then, found) {
            (Some(next), _) => next,
            (None, FoundJob::Ended(record)) => return Ok(Some(*record)),
            (None, FoundJob::Running(_)) => return Ok(None),
        };
    }
}

/// Finds the attempt that follows an ended one; `None` if none does.
async fn next_attempt(record: &JobRecord) -> Result<Option<FoundJob>, Failed> {
    let Some(next) = &record.next else { return Ok(None) };
    let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    within(time_for_next(record, now), next).await
}

/// Returns how long the next attempt at a job is waited for `now`, a time since 1970.
fn time_for_next(record: &JobRecord, now: Duration) -> Duration {
    let ended = Duration::try_from_secs_f64(record.started + record.seconds).unwrap_or_default();
    ended.saturating_add(NEXT_WITHIN).saturating_sub(now).clamp(AT_ONCE, NEXT_WITHIN)
}

/// Finds a job, by its whole id, that runs or has left a record, or does so at once.
pub(super) async fn at_once(job: &str) -> Result<Option<FoundJob>, Failed> {
    within(AT_ONCE, job).await
}

async fn within(limit: Duration, job: &str) -> Result<Option<FoundJob>, Failed> {
    let store = store()?;
    let due = Instant::now() + limit;
    loop {
        // However long the looks before have taken on a busy machine, the last one begins when the time is up.
        let is_last = Instant::now() >= due;
        if let Some(job) = running(Some(job)).await? {
            return Ok(Some(FoundJob::Running(Box::new(job))));
        }
        if let Some(record) = store.of_id(job).map_err(|error| record_failure(&error))? {
            return Ok(Some(FoundJob::Ended(Box::new(record))));
        }
        if is_last {
            return Ok(None);
        }
        sleep(LOOK).await;
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn the_next_attempt_is_waited_for_if_the_last_one_has_just_ended() {
        let record: JobRecord = serde_json::from_value(json!({
            "v": 1, "job": "5", "started": 100.0, "seconds": 12.0, "argv": [], "program": [], "hosts": [],
            "placement": [], "environment": [], "next": "6",
            "end": { "exit_code": 3, "spoke": "rank", "message": "" },
        }))
        .unwrap();
        let wait = |now| time_for_next(&record, Duration::from_secs(now));
        assert_eq!([wait(112), wait(115), wait(500)].map(|wait| wait.as_secs()), [10, 7, 1]);
        // A clock that went back.
        assert_eq!(wait(5), NEXT_WITHIN);
        let odd = JobRecord { started: f64::NAN, ..record };
        assert_eq!(time_for_next(&odd, Duration::from_secs(112)), AT_ONCE);
    }
}
