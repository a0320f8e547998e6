//! `rlaunch logs`: what the ranks of a job have printed, from the file of a job that has left its terminal, the socket of a
//! running job or the record of one that has ended.

use super::found::{self, FoundJob, live_failure};
use super::stack;
use crate::cli::args::values;
use clap::Parser;
use rlaunch_console::{messages, stdout};
use rlaunch_engine::run::live::client::{LiveError, RunningJob};
use rlaunch_engine::run::output::replay::{self, RecordedWriter, Shown};
use rlaunch_engine::run::output::store::StoreReader;
use rlaunch_engine::run::output::{RecordedChunk, RecordedOutput};
use rlaunch_engine::run::record::{JobRecord, RecordStoreError};
use rlaunch_plan::job::name::LAST;
use rlaunch_plan::map::HostRanks;
use rlaunch_text::exit::Exit;
use rlaunch_text::message::Failed;
use rlaunch_text::text;
use std::io;
use std::ops::RangeInclusive;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

/// Time between two looks at a job whose output is followed.
const INTERVAL: Duration = Duration::from_millis(300);

/// Print what the ranks of a job have printed, running or ended.
///
/// Of a job that was started with -d all of it, up to 1 GiB, as it would be at this terminal, with the messages of rlaunch and
/// through restarts. Of another the first and the last 384 KiB, and why it has failed; each line goes to stdout or stderr, as
/// it did in the job.
#[derive(Debug, Parser)]
#[command(after_help = "\
Examples:
  rlaunch logs               the running job, or else the last one
  rlaunch logs -f            and what it prints until it ends
  rlaunch logs amber-fox     another job
  rlaunch logs --rank 0,3    some ranks
  rlaunch logs -n 100        the last 100 lines
  rlaunch logs --since 10m   what was printed in the last 10 minutes, by a job with -d")]
pub(crate) struct LogsArgs {
    /// Name or id of the job, or the beginning of either; `last` is the newest
    #[arg(value_name = "JOB", allow_negative_numbers = true, value_parser = parse_job)]
    pub(crate) job: Option<String>,

    /// Go on until the job ends
    #[arg(short, long)]
    pub(crate) follow: bool,

    /// Print these ranks, as 0,3-5; by default all
    #[arg(long = "rank", visible_alias = "ranks", value_name = "RANKS", value_delimiter = ',', value_parser = stack::parse_ranks)]
    pub(crate) ranks: Vec<RangeInclusive<u32>>,

    /// Print the last N lines only
    #[arg(short = 'n', long = "lines", visible_alias = "tail", value_name = "N")]
    pub(crate) lines: Option<usize>,

    /// Print what was printed in this time only, as 90s, 10m, 2h or 1d, by the clock of this machine
    #[arg(long, value_name = "TIME", value_parser = parse_time)]
    pub(crate) since: Option<Duration>,
}

/// Parses the word for a job. A number behind a dash is one of lines, as for `tail -3`.
fn parse_job(text: &str) -> Result<String, String> {
    values::parse_listed_job(text).map_err(|_| format!("-n {} prints the last lines", &text[1..]))
}

/// Parses a number of seconds, minutes, hours or days.
fn parse_time(text: &str) -> Result<Duration, String> {
    let number = text.trim_end_matches(|c: char| c.is_ascii_alphabetic());
    let unit = &text[number.len()..];
    let seconds = match unit {
        "s" => 1,
        "m" => 60,
        "h" => 3600,
        "d" => 86_400,
        _ => 0,
    };
    let count = number.parse::<u32>().ok().filter(|_| seconds > 0);
    count
        .map(|count| Duration::from_secs(u64::from(count) * seconds))
        .ok_or_else(|| "a time, as 90s, 10m, 2h or 1d".to_owned())
}

/// Prints the output of a job.
pub(super) async fn run(args: &LogsArgs) -> Result<Exit, Failed> {
    let asked = |job: &RunningJob| args.job.is_some() || job.is_of_user();
    let running = found::running(args.job.as_deref()).await?.filter(asked);
    let id = match &running {
        Some(job) => Some(job.id.clone()),
        None => found::find_id(args.job.as_deref().unwrap_or(LAST)).await?,
    };
    if let Some(id) = id {
        match found::store()?.open_output(&id) {
            Ok(Some(reader)) => return show_stored(reader, args, &id, running).await,
            Ok(None) => {}
            // The record has the first and the last of it.
            Err(gone @ RecordStoreError::OutputGone) if args.since.is_none() => {
                messages::warn(&gone.to_string());
            }
            Err(error) => return Err(found::record_failure(&error)),
        }
    }
    if args.since.is_some() {
        let failed = Failed::new(
            Exit::USAGE,
            "this job was not started with -d, so its lines have no times",
        );
        return Err(failed.hint(Some("-n 100 prints its last lines")));
    }
    let mut printer = Printer::new(&args.ranks, args.lines);
    let printed = match running {
        Some(job) => print_running(job, args.follow, &mut printer).await?,
        None => printer.print_record(&found::record(args.job.as_deref())?),
    };
    match printed {
        Ok(()) => Ok(Exit::SUCCESS),
        // The reader of a pipe may have read all that it wanted.
        Err(error) if error.kind() == io::ErrorKind::BrokenPipe => Ok(Exit::READER_GONE),
        Err(error) => Err(stdout::unwritten("the job's output", &error)),
    }
}

/// Shows the output that a job with -d has left in its file. Ctrl-C leaves it, and not the job. `id` is that of an attempt at
/// the job.
async fn show_stored(
    reader: StoreReader,
    args: &LogsArgs,
    id: &str,
    running: Option<RunningJob>,
) -> Result<Exit, Failed> {
    let may_be_over = running.is_none() || args.follow;
    let name = running.map(|job| job.name);
    let since_1970 = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    let since = args.since.map_or(Duration::ZERO, |time| since_1970.saturating_sub(time));
    let shown = Shown {
        ranks: args.ranks.clone(),
        since: u64::try_from(since.as_micros()).unwrap_or(u64::MAX),
        lines: args.lines,
        follows: args.follow,
    };
    tokio::select! {
        ended = replay::show(reader, &shown) => {
            if may_be_over && ended.as_ref().is_ok_and(|exit| *exit == Exit::SUCCESS) {
                say_killed(id).await;
            }
            ended
        }
        Ok(()) = tokio::signal::ctrl_c() => {
            messages::end_line_of_key();
            if let Some(name) = name {
                messages::info(&format!("{name} runs on; `rlaunch stop {name}` ends it"));
            }
            Ok(Exit::SUCCESS)
        }
    }
}

/// Says that the launcher of a job was killed, which could not write so into the job's file.
async fn say_killed(id: &str) {
    // The record is there only a moment after the launcher's death.
    if let Ok(Some(FoundJob::Ended(_))) = found::at_once(id).await
        && let Ok(FoundJob::Ended(record)) = FoundJob::find(Some(id)).await
        && record.end.is_killed()
    {
        messages::error(&Failed::new(Exit(record.end.exit_code), record.end.message.as_str()));
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
                return Ok(printer.print_record(&found::record(Some(&id))?));
            }
            Err(error) => return Err(live_failure(&error)),
        };
        position = part.next;
        // Hosts are known before a rank prints. A job that has just ended says no more, but in its record.
        if printer.writer.is_none()
            && let Ok(status) = job.status().await
            && !status.hosts.is_empty()
        {
            printer.name_ranks(&status.hosts);
        }
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
    /// Number of last lines to which what is printed next is cut.
    lines: Option<usize>,
    /// Number of bytes of all ranks that were printed or passed over; `None` if it is not known any more.
    passed: Option<u64>,
    /// `None` before the hosts of the ranks are known.
    writer: Option<RecordedWriter>,
}

/// What is printed next.
#[derive(Debug, PartialEq, Eq)]
enum Piece<'a> {
    Text(&'a RecordedChunk, &'a str),
    /// Output that is not kept, in bytes.
    LeftOut(u64),
    /// Output that is not kept, of unknown size.
    Gap,
}

impl<'a> Printer<'a> {
    fn new(ranks: &'a [RangeInclusive<u32>], lines: Option<usize>) -> Printer<'a> {
        Printer { ranks, lines, passed: Some(0), writer: None }
    }

    /// Takes the hosts of the ranks, for tags.
    fn name_ranks(&mut self, hosts: &[HostRanks]) {
        self.writer.get_or_insert_with(|| RecordedWriter::new(hosts));
    }

    /// Prints what a running job has printed since the last part.
    fn print_part(
        &mut self,
        first: &[RecordedChunk],
        is_cut: bool,
        last: &[RecordedChunk],
    ) -> io::Result<()> {
        fn text(chunk: &RecordedChunk) -> Piece<'_> {
            Piece::Text(chunk, &chunk.text)
        }
        let gap = is_cut.then_some(Piece::Gap);
        self.print(first.iter().map(text).chain(gap).chain(last.iter().map(text)).collect())?;
        let bytes: usize = first.iter().chain(last).map(|chunk| chunk.text.len()).sum();
        self.passed = self.passed.filter(|_| !is_cut).map(|passed| passed + bytes as u64);
        Ok(())
    }

    /// Prints what is in a record and was not printed, and why the job has failed.
    fn print_record(&mut self, record: &JobRecord) -> io::Result<()> {
        self.name_ranks(&record.hosts);
        self.print_rest(&record.output)?;
        // It is the job's failure and not one of this command.
        messages::error(&Failed::new(Exit(record.end.exit_code), record.end.message.as_str()));
        Ok(())
    }

    /// Prints output of a record that was not printed.
    fn print_rest(&mut self, output: &RecordedOutput) -> io::Result<()> {
        let Some(passed) = self.passed else {
            messages::info("the job has ended: `rlaunch logs last` prints its last output");
            return Ok(());
        };
        self.print(rest(output, passed))
    }

    fn print(&mut self, mut pieces: Vec<Piece<'_>>) -> io::Result<()> {
        if let Some(most) = self.lines.take() {
            cut_to_last(&mut pieces, most, |rank| self.has_rank(rank));
        }
        for piece in &pieces {
            if let Piece::Text(chunk, _) = piece
                && self.has_rank(chunk.rank)
            {
                self.writer().expect(chunk.rank);
            }
        }
        for piece in pieces {
            match piece {
                Piece::Text(chunk, text) => self.print_text(chunk, text)?,
                Piece::LeftOut(bytes) => {
                    messages::info(&format!("{} in between are not kept", text::size(bytes)));
                }
                Piece::Gap => messages::info("output in between is not kept"),
            }
        }
        Ok(())
    }

    fn has_rank(&self, rank: u32) -> bool {
        self.ranks.is_empty() || self.ranks.iter().any(|range| range.contains(&rank))
    }

    fn print_text(&mut self, chunk: &RecordedChunk, text: &str) -> io::Result<()> {
        if !self.has_rank(chunk.rank) {
            return Ok(());
        }
        self.writer().write(chunk, text)
    }

    fn writer(&mut self) -> &mut RecordedWriter {
        self.writer.get_or_insert_with(|| RecordedWriter::new(&[]))
    }
}

/// Cuts pieces to the last `most` lines of the chosen ranks.
fn cut_to_last(pieces: &mut Vec<Piece<'_>>, most: usize, is_chosen: impl Fn(u32) -> bool) {
    let (mut left, mut first) = (most, 0);
    for (at, piece) in pieces.iter_mut().enumerate().rev() {
        let Piece::Text(chunk, text) = piece else { continue };
        if !is_chosen(chunk.rank) {
            continue;
        }
        let lines = text.matches('\n').count();
        if lines >= left {
            let before = text.split_inclusive('\n').take(lines - left).map(str::len).sum();
            let whole = *text;
            *text = &whole[before..];
            first = at;
            break;
        }
        left -= lines;
    }
    pieces.drain(..first);
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
                Piece::Gap => "(?)".to_owned(),
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
    fn the_last_lines_are_those_of_the_chosen_ranks() {
        let chunks = [chunk(0, "a\nb\n"), chunk(1, "c\n"), chunk(0, "d\ne\n")];
        let last = |most: usize, rank: Option<u32>| {
            let mut pieces: Vec<Piece<'_>> =
                chunks.iter().map(|chunk| Piece::Text(chunk, &chunk.text)).collect();
            let is_chosen = |of: u32| rank.is_none_or(|rank| rank == of);
            cut_to_last(&mut pieces, most, is_chosen);
            let text = |piece: &Piece<'_>| match piece {
                Piece::Text(chunk, text) if is_chosen(chunk.rank) => text.replace('\n', ""),
                _ => String::new(),
            };
            pieces.iter().map(text).collect::<String>()
        };
        assert_eq!(last(1, None), "e");
        assert_eq!(last(4, None), "bcde");
        assert_eq!(last(9, None), "abcde");
        assert_eq!(last(0, None), "");
        assert_eq!(last(3, Some(0)), "bde");
        assert_eq!(last(1, Some(1)), "c");
    }

    #[test]
    fn times_have_a_unit() {
        assert_eq!(parse_time("10m"), Ok(Duration::from_secs(600)));
        assert_eq!(parse_time("2h"), Ok(Duration::from_secs(7200)));
        for text in ["", "10", "m", "-1s", "1.5h", "3 weeks", "5ä"] {
            assert!(parse_time(text).is_err(), "{text}");
        }
    }

    #[test]
    fn a_cut_in_what_was_followed_ends_the_count() {
        let mut printer = Printer::new(&[], None);
        let mut none = Printer::new(&[7..=7], None);
        none.print_text(&chunk(0, "never\n"), "never\n").unwrap();
        printer.print_part(&[], false, &[]).unwrap();
        assert_eq!(printer.passed, Some(0));
        printer.print_part(&[], true, &[]).unwrap();
        assert_eq!(printer.passed, None);
    }
}
