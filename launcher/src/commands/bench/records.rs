//! Run of the measuring job: its rank 0 writes records, which are taken as they come.

use crate::job::JobSpec;
use crate::job::options::RankStdout;
use crate::run::job_run::{FactsCell, JobRun, StartFacts};
use crate::run::run_attempt;
use crate::run::signals::Signals;
use rlaunch_bootstrap::bench::BenchRecord;
use rlaunch_console::exit::Exit;
use rlaunch_console::messages::{self, Failed};
use std::io::{self, BufRead, BufReader, PipeReader};
use std::sync::Arc;

/// Results of a measuring job.
pub(super) struct Measured {
    pub(super) exit: Exit,
    /// Records in the order in which they came.
    pub(super) records: Vec<BenchRecord>,
    /// `None` if no rank was started, as in a dry run.
    pub(super) facts: Option<Arc<FactsOfJob>>,
}

/// Facts of a job that is over.
pub(super) type FactsOfJob = std::sync::OnceLock<StartFacts>;

impl Measured {
    pub(super) fn facts(&self) -> Option<&StartFacts> {
        self.facts.as_ref()?.get()
    }
}

/// Runs the job. Calls `show` with each record as soon as it comes. Other lines go to stderr.
pub(super) async fn run(
    mut job: JobSpec,
    show: impl FnMut(&BenchRecord, &StartFacts) + Send + 'static,
) -> Result<Measured, Failed> {
    let no_pipe = |error: io::Error| {
        Failed::new(Exit::FILES, format!("cannot make a pipe for the results: {error}"))
    };
    let (reader, writer) = io::pipe().map_err(no_pipe)?;
    job.rank_stdout = RankStdout::Pipe(Arc::new(writer));
    // Records would not be readable behind tags, or between lines of stderr.
    job.output.tag = None;
    job.output.merge_stderr = false;
    let facts = FactsCell::default();
    let job = JobRun::first(job)?.with_facts(Arc::clone(&facts));
    let known = Arc::clone(&facts);
    let reading = tokio::task::spawn_blocking(move || read(reader, &known, show));
    let (ended, _record) = run_attempt(&job, &mut Signals::install()?).await;
    // Closes the writing end of the pipe.
    drop(job);
    let records = reading.await.unwrap_or_default();
    Ok(Measured { exit: ended?, records, facts: Some(facts) })
}

fn read(
    reader: PipeReader,
    facts: &FactsOfJob,
    mut show: impl FnMut(&BenchRecord, &StartFacts),
) -> Vec<BenchRecord> {
    let mut records = Vec::new();
    for line in BufReader::new(reader).lines() {
        // The job ends if this end of the pipe is closed.
        let Ok(line) = line else { break };
        match serde_json::from_str::<BenchRecord>(&line) {
            Ok(record) => {
                if let Some(facts) = facts.get() {
                    show(&record, facts);
                }
                records.push(record);
            }
            Err(_) => messages::info(&format!("from the measuring program: {line}")),
        }
    }
    records
}
