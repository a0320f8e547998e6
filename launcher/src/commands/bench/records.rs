//! Run of the measuring job: lines of its ranks' stdout are taken as they come. Those of rlaunch's own program are
//! records.

use rlaunch_bootstrap::bench::BenchRecord;
use rlaunch_console::messages;
use rlaunch_engine::run::job_run::{FactsCell, JobRun, Launch, StartFacts, Stdio, run_attempt};
use rlaunch_engine::run::signals::{Signals, ended_by};
use rlaunch_text::exit::Exit;
use rlaunch_text::message::Failed;
use std::io::{self, BufRead, BufReader, PipeReader, Read};
use std::sync::Arc;

/// Reader of the lines of ranks' stdout.
pub(crate) trait LineReader: Send + 'static {
    /// Takes a line, with the newline unless the stream ends without one. `facts` is known, since ranks run. The job
    /// ends after an error.
    fn take(&mut self, line: &[u8], facts: Option<&StartFacts>) -> io::Result<()>;
}

/// Job that has ended, with what was read of it.
pub(crate) struct Ended<R> {
    /// Outcome of the job. A job that failed may have measured something before.
    pub(crate) ended: Result<Exit, Failed>,
    pub(crate) reader: R,
    pub(crate) facts: FactsCell,
}

impl<R> Ended<R> {
    /// Returns facts about the job; `None` if it failed before any rank was started.
    pub(super) fn facts(&self) -> Option<&StartFacts> {
        self.facts.get()
    }
}

/// Maximum length of a line of the measuring program, in bytes: a matrix of some thousand hosts.
const MAX_LINE: u64 = 1 << 28;

/// Runs the job, whose ranks' stdout `reader` takes.
pub(crate) async fn run_lines<R: LineReader>(
    mut launch: Launch,
    mut reader: R,
) -> Result<Ended<R>, Failed> {
    let no_pipe = |error: io::Error| {
        Failed::new(Exit::FILES, format!("cannot make a pipe for the results: {error}"))
    };
    let (pipe, writer) = io::pipe().map_err(no_pipe)?;
    launch.stdio = Stdio::Pipe(Arc::new(writer));
    // Results would not be readable behind tags, or between lines of stderr.
    launch.spec.output.tag = None;
    launch.spec.output.merge_stderr = false;
    let facts = FactsCell::default();
    let job = JobRun::first(launch)?.with_facts(Arc::clone(&facts));
    let known = Arc::clone(&facts);
    let reading = tokio::task::spawn_blocking(move || {
        read(pipe, &known, &mut reader);
        reader
    });
    let mut signals = Signals::install()?;
    let (ended, _record) = run_attempt(&job, &mut signals).await;
    // Closes the writing end of the pipe.
    drop(job);
    let reader = tokio::select! {
        reader = reading => reader.map_err(|error| Failed::from_error(Exit::BUG, &error))?,
        // Results are shown to a reader, such as a pager, that may not read.
        signal = signals.end() => {
            return Err(ended_by(signal, " before all results were read"));
        }
    };
    Ok(Ended { ended, reader, facts })
}

/// Reads lines until the end of the pipe. Closes it if `reader` fails, which ends the job.
fn read(pipe: PipeReader, facts: &FactsCell, reader: &mut impl LineReader) {
    let mut line = Vec::new();
    let mut pipe = BufReader::new(pipe);
    loop {
        line.clear();
        let length = pipe.by_ref().take(MAX_LINE).read_until(b'\n', &mut line);
        if length.is_err() || line.is_empty() || reader.take(&line, facts.get()).is_err() {
            return;
        }
    }
}

/// Records of rlaunch's own program.
pub(crate) struct RecordReader<F> {
    /// Records in the order in which they came.
    pub(crate) records: Vec<BenchRecord>,
    show: F,
}

impl<F> LineReader for RecordReader<F>
where
    F: FnMut(&BenchRecord, &StartFacts) -> io::Result<()> + Send + 'static,
{
    fn take(&mut self, line: &[u8], facts: Option<&StartFacts>) -> io::Result<()> {
        match serde_json::from_slice::<BenchRecord>(line) {
            Ok(record) => {
                let shown = facts.map_or(Ok(()), |facts| (self.show)(&record, facts));
                self.records.push(record);
                shown
            }
            Err(error) => {
                let line = String::from_utf8_lossy(line);
                let line = line.trim_end();
                let what =
                    if line.starts_with('{') { format!(" ({error})") } else { String::new() };
                messages::warn(&format!("not a result of the measuring program{what}: {line}"));
                Ok(())
            }
        }
    }
}

/// Runs a job of rlaunch's own program, whose rank 0 writes records. Calls `show` with each record as soon as it comes;
/// the job ends if that fails, because the reader of the results has left. Lines that are not records are printed as
/// messages.
pub(crate) async fn run<F>(launch: Launch, show: F) -> Result<Ended<RecordReader<F>>, Failed>
where
    F: FnMut(&BenchRecord, &StartFacts) -> io::Result<()> + Send + 'static,
{
    let mut measured = run_lines(launch, RecordReader { records: Vec::new(), show }).await?;
    if measured.ended.as_ref().is_ok_and(|exit| *exit == Exit::SUCCESS)
        && measured.reader.records.is_empty()
    {
        let nothing = Failed::new(Exit::BUG, "the measuring program has printed no results");
        measured.ended = Err(nothing);
    }
    Ok(measured)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::Write;

    /// Reader that fails at the second line.
    struct LeavesSoon(Vec<Vec<u8>>);

    impl LineReader for LeavesSoon {
        fn take(&mut self, line: &[u8], _facts: Option<&StartFacts>) -> io::Result<()> {
            self.0.push(line.to_vec());
            if self.0.len() < 2 { Ok(()) } else { Err(io::ErrorKind::BrokenPipe.into()) }
        }
    }

    #[test]
    fn lines_that_are_no_records_lose_none() {
        let (pipe, mut writer) = io::pipe().unwrap();
        writer.write_all(b"\xff hello\n{\"tcp\":12.5}\n{\"tcp\":null}\n{\"tcp\":1.0}").unwrap();
        drop(writer);
        let show = |_: &BenchRecord, _: &StartFacts| Ok(());
        let mut reader = RecordReader { records: Vec::new(), show };
        read(pipe, &FactsCell::default(), &mut reader);
        assert_eq!(reader.records, [BenchRecord::Tcp(12.5), BenchRecord::Tcp(1.0)]);
    }

    #[test]
    fn a_reader_that_fails_closes_the_pipe() {
        let (pipe, mut writer) = io::pipe().unwrap();
        writer.write_all(b"a\nb\nc\n").unwrap();
        let mut reader = LeavesSoon(Vec::new());
        read(pipe, &FactsCell::default(), &mut reader);
        assert_eq!(reader.0, [b"a\n", b"b\n"]);
        let error = writer.write_all(b"d\n").unwrap_err();
        assert_eq!(error.kind(), io::ErrorKind::BrokenPipe);
    }
}
