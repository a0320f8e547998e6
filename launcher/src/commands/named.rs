//! Jobs of this machine, running or ended, and the words that mean them.

use rlaunch_engine::run::live::client::RunningJob;
use rlaunch_engine::run::record::{RecordStore, RecordedJob};
use rlaunch_plan::job::name::Meant;
use rlaunch_text::exit::Exit;
use rlaunch_text::message::Failed;
use rlaunch_text::text;

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
async fn known_jobs() -> Vec<RecordedJob> {
    let mut jobs = RecordStore::for_user().map(|store| store.jobs()).unwrap_or_default();
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
