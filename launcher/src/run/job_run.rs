//! One attempt at a job: what it is, where its events go and what is recorded of it.

use crate::job::JobSpec;
use crate::run::events::{Events, Record};
use crate::run::record::Recorder;
use rlaunch_console::exit::Exit;
use rlaunch_console::messages::Failed;
use std::ops::Deref;
use std::time::Instant;

/// A job that is being run.
pub(crate) struct JobRun {
    job: JobSpec,
    pub(crate) events: Events,
    /// `None` where no record is wanted.
    pub(crate) recorder: Option<Recorder>,
}

impl Deref for JobRun {
    type Target = JobSpec;

    fn deref(&self) -> &JobSpec {
        &self.job
    }
}

impl JobRun {
    /// Begins the first; fails where its events cannot be written.
    pub(crate) fn first(job: JobSpec) -> Result<JobRun, Failed> {
        let target = job.events.as_deref();
        let events = Events::open(target, job.id).map_err(|error| {
            let target = target.unwrap_or_default();
            Failed::new(Exit::FILES, format!("cannot write events to {target}: {error}"))
        })?;
        Ok(JobRun { recorder: job.is_recorded.then(Recorder::new), job, events })
    }

    /// Begins another one at `job`, whose events go to the same place.
    pub(crate) fn next(job: JobSpec, events: Events) -> JobRun {
        let events = events.of_job(job.id);
        JobRun { recorder: job.is_recorded.then(Recorder::new), job, events }
    }

    /// Takes it apart: the job, and where its events go.
    pub(crate) fn into_parts(self) -> (JobSpec, Events) {
        (self.job, self.events)
    }

    /// Runs a phase of the job and records how long it took.
    pub(crate) async fn phase<T>(&self, name: &str, work: impl Future<Output = T>) -> T {
        let started = Instant::now();
        let done = work.await;
        let seconds = started.elapsed().as_secs_f64();
        tracing::info!("{name}: {:.1} ms", seconds * 1e3);
        self.events.emit(&Record::Phase { name, seconds });
        done
    }
}
