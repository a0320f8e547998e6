//! Run of the measuring job: its rank 0 writes records, which are taken as they come.

use crate::job::JobSpec;
use crate::job::options::RankStdout;
use crate::run::job_run::{FactsCell, JobRun, StartFacts};
use crate::run::run_attempt;
use crate::run::signals::Signals;
use rlaunch_bootstrap::bench::BenchRecord;
use rlaunch_console::exit::Exit;
use rlaunch_console::messages::{self, Failed};
use std::io::{self, BufRead, BufReader, PipeReader, Read};
use std::sync::Arc;

/// Results of a measuring job.
pub(super) struct Measured {
    /// Outcome of the job. A job that failed may have measured something before.
    pub(super) ended: Result<Exit, Failed>,
    /// Records in the order in which they came.
    pub(super) records: Vec<BenchRecord>,
    facts: FactsCell,
}

/// Maximum length of a line of the measuring program, in bytes: a matrix of some thousand hosts.
const MAX_LINE: u64 = 1 << 28;

impl Measured {
    /// Returns facts about the job; `None` if it failed before any rank was started.
    pub(super) fn facts(&self) -> Option<&StartFacts> {
        self.facts.get()
    }
}

/// Runs the job. Calls `show` with each record as soon as it comes; the job ends if that fails, because the reader of
/// the results has left. Lines that are not records are printed as messages.
pub(super) async fn run(
    mut job: JobSpec,
    show: impl FnMut(&BenchRecord, &StartFacts) -> io::Result<()> + Send + 'static,
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
    let ended = match ended {
        Ok(exit) if exit == Exit::SUCCESS && records.is_empty() => {
            Err(Failed::new(Exit::BUG, "the measuring program has printed no results"))
        }
        ended => ended,
    };
    Ok(Measured { ended, records, facts })
}

/// Reads records until the end of the pipe. Closes it if `show` fails, which ends the job.
fn read(
    reader: PipeReader,
    facts: &FactsCell,
    mut show: impl FnMut(&BenchRecord, &StartFacts) -> io::Result<()>,
) -> Vec<BenchRecord> {
    let (mut records, mut line) = (Vec::new(), Vec::new());
    let mut reader = BufReader::new(reader);
    loop {
        line.clear();
        let length = reader.by_ref().take(MAX_LINE).read_until(b'\n', &mut line);
        if length.is_err() || line.is_empty() {
            return records;
        }
        match serde_json::from_slice::<BenchRecord>(&line) {
            Ok(record) => {
                let shown = facts.get().map_or(Ok(()), |facts| show(&record, facts));
                records.push(record);
                if shown.is_err() {
                    return records;
                }
            }
            Err(error) => {
                let line = String::from_utf8_lossy(&line);
                let line = line.trim_end();
                let what =
                    if line.starts_with('{') { format!(" ({error})") } else { String::new() };
                messages::warn(&format!("not a result of the measuring program{what}: {line}"));
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::Write;

    #[test]
    fn lines_that_are_no_records_lose_none() {
        let (reader, mut writer) = io::pipe().unwrap();
        writer.write_all(b"\xff hello\n{\"tcp\":12.5}\n{\"tcp\":null}\n{\"tcp\":1.0}").unwrap();
        drop(writer);
        let records = read(reader, &FactsCell::default(), |_, _| Ok(()));
        assert_eq!(records, [BenchRecord::Tcp(12.5), BenchRecord::Tcp(1.0)]);
    }
}
