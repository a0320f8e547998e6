//! `rlaunch logs`: what the ranks of a job have printed, from the socket of a running job or from the record of one that
//! has ended.

use super::jobs::live_failure;
use super::stack;
use clap::Parser;
use rlaunch_console::messages;
use rlaunch_engine::run::live::client::{LiveError, RunningJob};
use rlaunch_engine::run::output::{RecordedChunk, RecordedOutput};
use rlaunch_engine::run::record::{JobRecord, RecordStore, RecordStoreError};
use rlaunch_text::exit::Exit;
use rlaunch_text::message::Failed;
use rlaunch_text::text;
use std::io::{self, Write};
use std::ops::RangeInclusive;
use std::time::Duration;

/// Time between two looks at a job whose output is followed.
const INTERVAL: Duration = Duration::from_millis(300);

/// Print what the ranks of a job have printed, running or ended.
///
/// Each line goes to stdout or stderr, as it did in the job. The first and the last 384 KiB are kept, of the last
/// 1,000 jobs.
#[derive(Debug, Parser)]
#[command(after_help = "\
Examples:
  rlaunch logs               the running job, or else the last one
  rlaunch logs -f            and what it prints until it ends
  rlaunch logs amber-fox     another job
  rlaunch logs --rank 0,3    some ranks")]
pub(crate) struct LogsArgs {
    /// Name or id of the job, or the beginning of either; `last` is the newest
    #[arg(value_name = "JOB")]
    pub(crate) job: Option<String>,

    /// Go on until the job ends
    #[arg(short, long)]
    pub(crate) follow: bool,

    /// Print these ranks, as 0,3-5; by default all
    #[arg(long = "rank", visible_alias = "ranks", value_name = "RANKS", value_delimiter = ',', value_parser = stack::parse_ranks)]
    pub(crate) ranks: Vec<RangeInclusive<u32>>,
}

/// Prints the output of a job.
pub(super) async fn run(args: &LogsArgs) -> Result<Exit, Failed> {
    let mut printer = Printer::new(&args.ranks);
    let printed = match running(args.job.as_deref()).await? {
        Some(job) => print_running(job, args.follow, &mut printer).await?,
        None => printer.print_rest(&record(args.job.as_deref())?.output),
    };
    // The reader of a pipe may have read all that it wanted.
    Ok(printed.map_or(Exit::READER_GONE, |()| Exit::SUCCESS))
}

/// Finds the job among those that run; `None` if it has ended.
async fn running(job: Option<&str>) -> Result<Option<RunningJob>, Failed> {
    if job == Some("last") {
        return Ok(None);
    }
    match RunningJob::find(job).await {
        Ok(job) => Ok(Some(job)),
        Err(LiveError::NoJob | LiveError::Unknown(_) | LiveError::Ended(_)) => Ok(None),
        Err(error) => Err(live_failure(&error)),
    }
}

fn record(job: Option<&str>) -> Result<JobRecord, Failed> {
    let failed =
        |error: RecordStoreError| Failed::from_error(Exit::FILES, &error).hint(error.hint());
    let store = RecordStore::for_user().map_err(failed)?;
    match job.filter(|job| *job != "last") {
        Some(job) => store.find(job).map_err(failed),
        None => store.last().map_err(failed),
    }
}

/// Prints what a running job has printed and, if it is followed, goes on until it ends. What it prints between the last
/// look and its end is in its record.
async fn print_running(
    mut job: RunningJob,
    follow: bool,
    printer: &mut Printer<'_>,
) -> Result<io::Result<()>, Failed> {
    let mut position = 0;
    loop {
        let part = match job.output(position).await {
            Ok(part) => part,
            Err(LiveError::Ended(id)) => {
                return Ok(printer.print_rest(&record(Some(&id))?.output));
            }
            Err(error) => return Err(live_failure(&error)),
        };
        position = part.next;
        if let Err(gone) = printer.print_part(&part.first, part.is_cut, &part.last) {
            return Ok(Err(gone));
        }
        if !follow {
            return Ok(Ok(()));
        }
        tokio::time::sleep(INTERVAL).await;
    }
}

/// Printer of the chosen ranks' output.
struct Printer<'a> {
    ranks: &'a [RangeInclusive<u32>],
    /// Number of bytes of all ranks that were printed or passed over; `None` if it is not known any more.
    passed: Option<u64>,
}

/// What is printed next.
#[derive(Debug, PartialEq, Eq)]
enum Piece<'a> {
    Text(&'a RecordedChunk, &'a str),
    /// Output that is not kept, in bytes.
    LeftOut(u64),
}

impl<'a> Printer<'a> {
    fn new(ranks: &'a [RangeInclusive<u32>]) -> Printer<'a> {
        Printer { ranks, passed: Some(0) }
    }

    /// Prints what a running job has printed since the last part.
    fn print_part(
        &mut self,
        first: &[RecordedChunk],
        is_cut: bool,
        last: &[RecordedChunk],
    ) -> io::Result<()> {
        first.iter().try_for_each(|chunk| self.print_text(chunk, &chunk.text))?;
        if is_cut {
            messages::info("output in between is not kept");
        }
        last.iter().try_for_each(|chunk| self.print_text(chunk, &chunk.text))?;
        let bytes: usize = first.iter().chain(last).map(|chunk| chunk.text.len()).sum();
        self.passed = self.passed.filter(|_| !is_cut).map(|passed| passed + bytes as u64);
        Ok(())
    }

    /// Prints what is in a record and was not printed.
    fn print_rest(&self, output: &RecordedOutput) -> io::Result<()> {
        let Some(passed) = self.passed else {
            messages::info("the job has ended: `rlaunch logs last` prints its last output");
            return Ok(());
        };
        for piece in rest(output, passed) {
            match piece {
                Piece::Text(chunk, text) => self.print_text(chunk, text)?,
                Piece::LeftOut(bytes) => {
                    messages::info(&format!("{} in between are not kept", text::size(bytes)));
                }
            }
        }
        Ok(())
    }

    fn print_text(&self, chunk: &RecordedChunk, text: &str) -> io::Result<()> {
        if !self.ranks.is_empty() && !self.ranks.iter().any(|range| range.contains(&chunk.rank)) {
            return Ok(());
        }
        if chunk.stream == "stderr" {
            return io::stderr().lock().write_all(text.as_bytes());
        }
        let mut stdout = io::stdout().lock();
        stdout.write_all(text.as_bytes())?;
        // A line that the rank has not finished, such as a progress bar.
        stdout.flush()
    }
}

/// Returns the recorded output without its first `passed` bytes.
fn rest(output: &RecordedOutput, passed: u64) -> Vec<Piece<'_>> {
    let (mut pieces, mut passed) = (Vec::new(), passed);
    add_rest(&mut pieces, &output.first, &mut passed);
    if passed < output.left_out_bytes {
        pieces.push(Piece::LeftOut(output.left_out_bytes - passed));
    }
    passed = passed.saturating_sub(output.left_out_bytes);
    add_rest(&mut pieces, &output.last, &mut passed);
    pieces
}

/// Adds the text of chunks without its first `passed` bytes, and subtracts those.
fn add_rest<'a>(pieces: &mut Vec<Piece<'a>>, chunks: &'a [RecordedChunk], passed: &mut u64) {
    for chunk in chunks {
        let skip = usize::try_from(*passed).unwrap_or(usize::MAX).min(chunk.text.len());
        *passed -= skip as u64;
        let rest = chunk.text.get(skip..).filter(|rest| !rest.is_empty());
        pieces.extend(rest.map(|rest| Piece::Text(chunk, rest)));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn chunk(rank: u32, text: &str) -> RecordedChunk {
        RecordedChunk { rank, stream: "stdout".into(), text: text.into() }
    }

    #[test]
    fn what_was_printed_is_not_printed_again() {
        let output = RecordedOutput {
            first: vec![chunk(0, "a\nb\n"), chunk(1, "c\n")],
            left_out_bytes: 10,
            last: vec![chunk(0, "x\ny\n")],
        };
        let shown = |passed: u64| {
            let piece = |piece: &Piece<'_>| match piece {
                Piece::Text(chunk, text) => format!("{}:{}", chunk.rank, text.replace('\n', ".")),
                Piece::LeftOut(bytes) => format!("({bytes})"),
            };
            rest(&output, passed).iter().map(piece).collect::<Vec<_>>().join(" ")
        };
        assert_eq!(shown(0), "0:a.b. 1:c. (10) 0:x.y.");
        assert_eq!(shown(2), "0:b. 1:c. (10) 0:x.y.");
        assert_eq!(shown(9), "(7) 0:x.y.");
        assert_eq!(shown(18), "0:y.");
        assert_eq!(shown(20), "");
        assert_eq!(shown(99), "");
    }

    #[test]
    fn a_cut_in_what_was_followed_ends_the_count() {
        let mut printer = Printer::new(&[]);
        let none = Printer::new(&[7..=7]);
        none.print_text(&chunk(0, "never\n"), "never\n").unwrap();
        printer.print_part(&[], false, &[]).unwrap();
        assert_eq!(printer.passed, Some(0));
        printer.print_part(&[], true, &[]).unwrap();
        assert_eq!(printer.passed, None);
    }
}
