//! `rlaunch stack`: where the ranks of a running job are.

use super::found::live_failure;
use super::output;
use crate::cli::args::values;
use clap::Parser;
use rlaunch_bootstrap::id::Rank;
use rlaunch_bootstrap::protocol::inspection::{
    Inspection, InspectionResult, ProcessStacks, RankStacks, ThreadStack,
};
use rlaunch_console::{messages, stdout};
use rlaunch_engine::run::hang;
use rlaunch_engine::run::live::client::RunningJob;
use rlaunch_text::exit::Exit;
use rlaunch_text::message::Failed;
use rlaunch_text::printable;
use serde::Serialize;
use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::ops::RangeInclusive;

/// Show where the ranks of a running job are: their stacks, and what they wait for.
///
/// Ranks at the same place are one line. Frames of Python have names and lines; --native adds those of C, C++ and Rust.
/// Nothing has to be installed on the hosts, and a rank stops for some milliseconds only. JOB is the job's
/// name or id; it may be left out while one job runs here.
#[derive(Debug, Parser)]
#[command(after_help = "\
Examples:
  rlaunch stack                 all ranks of the only running job
  rlaunch stack --rank 0,3-5    some of them
  rlaunch stack --native        with frames of C, C++ and Rust
  rlaunch stack amber-fox --full   every thread of every process")]
pub(crate) struct StackArgs {
    /// Name or id of the job, or the beginning of either; `last` is the newest
    #[arg(value_name = "JOB", allow_negative_numbers = true, value_parser = values::parse_listed_job)]
    pub(crate) job: Option<String>,

    /// Ranks to look at, as 0,3-5; by default all
    #[arg(long = "rank", visible_alias = "ranks", value_name = "RANKS", value_delimiter = ',', value_parser = parse_ranks)]
    pub(crate) ranks: Vec<RangeInclusive<u32>>,

    /// Read frames of native code too
    #[arg(long)]
    pub(crate) native: bool,

    /// Print every frame of every thread
    #[arg(long)]
    pub(crate) full: bool,

    /// Print JSON
    #[arg(long, conflicts_with = "full")]
    pub(crate) json: bool,
}

/// Stacks of a rank with its host, as JSON.
#[derive(Debug, Serialize)]
struct RankRow {
    host: String,
    #[serde(flatten)]
    stacks: RankStacks,
}

/// Parses `3` or `3-5`.
pub(super) fn parse_ranks(text: &str) -> Result<RangeInclusive<u32>, String> {
    let number = |text: &str| text.trim().parse::<u32>().ok();
    let (first, last) = text.split_once('-').unwrap_or((text, text));
    let range = number(first).zip(number(last)).filter(|(first, last)| first <= last);
    range.map(|(first, last)| first..=last).ok_or_else(|| "ranks, such as 0,3-5".to_owned())
}

/// Asks the job's agents and prints the answer.
pub(super) async fn run(args: &StackArgs) -> Result<Exit, Failed> {
    let failed = |error| live_failure(&error);
    let mut job = RunningJob::find(args.job.as_deref()).await.map_err(failed)?;
    let ranks = select(&args.ranks, job.status().await.map_err(failed)?.ranks)?;
    let what = Inspection::Stacks { ranks, native: args.native };
    let answers = job.inspect(what).await.map_err(failed)?;
    let (mut rows, mut unread) = (Vec::new(), Vec::new());
    for (host, result) in answers.answers {
        match result {
            InspectionResult::Stacks(ranks) => {
                let row = |stacks| RankRow { host: host.clone(), stacks };
                rows.extend(ranks.into_iter().map(row));
            }
            InspectionResult::Failed(cause) => unread.push(format!("{host}: {cause}")),
            InspectionResult::Usage(_)
            | InspectionResult::Counters(_)
            | InspectionResult::Collectives(_) => {}
        }
    }
    unread.extend(answers.missing.iter().map(|host| format!("{host}: no answer in time")));
    rows.sort_by_key(|row| row.stacks.rank);
    print(args, &rows)?;
    conclude(&rows, unread)
}

/// Lists the ranks that are asked for; none for all.
fn select(wanted: &[RangeInclusive<u32>], count: u32) -> Result<Vec<Rank>, Failed> {
    if let Some(range) = wanted.iter().find(|range| *range.end() >= count) {
        let known = match count {
            0 => "its ranks are not placed yet".to_owned(),
            _ => format!("its ranks are 0 to {}", count - 1),
        };
        let message = format!("the job has no rank {}: {known}", range.end());
        return Err(Failed::new(Exit::USAGE, message));
    }
    let mut ranks: Vec<Rank> = wanted.iter().cloned().flatten().map(Rank).collect();
    ranks.sort_unstable();
    ranks.dedup();
    Ok(ranks)
}

fn print(args: &StackArgs, rows: &[RankRow]) -> Result<(), Failed> {
    if args.json {
        stdout::print(&output::json(rows)?);
    } else if args.full {
        stdout::print(&rows.iter().map(full).collect::<String>());
    } else if !rows.is_empty() {
        let hosts: BTreeMap<Rank, &str> =
            rows.iter().map(|row| (row.stacks.rank, row.host.as_str())).collect();
        let stacks: Vec<RankStacks> = rows.iter().map(|row| row.stacks.clone()).collect();
        let host = |rank| hosts.get(&rank).map_or_else(String::new, |host| (*host).to_owned());
        let lines = hang::list(&stacks, host);
        stdout::print(&lines.iter().map(|line| format!("{line}\n")).collect::<String>());
    }
    Ok(())
}

/// Formats all threads of a rank.
fn full(RankRow { host, stacks }: &RankRow) -> String {
    let mut text = format!("rank {} on {host}\n", stacks.rank);
    for ProcessStacks { pid, program, problem, threads } in &stacks.processes {
        let problem = problem.iter().map(|problem| format!(" — {problem}")).collect::<String>();
        let line = printable::first_line(&format!("{program} (pid {pid}){problem}"));
        let _ = writeln!(text, "  {line}");
        for thread in threads {
            let ThreadStack { tid, name, holds_gil, frames, .. } = thread;
            let gil = if *holds_gil == Some(true) { ", holds the GIL" } else { "" };
            let doing = hang::describe_thread(thread);
            let line = printable::first_line(&format!("thread {tid} {name}: {doing}{gil}"));
            let _ = writeln!(text, "    {line}");
            for frame in frames {
                let at = if frame.line > 0 { format!(":{}", frame.line) } else { String::new() };
                let line = format!("{} ({}{at})", frame.function, frame.file);
                let _ = writeln!(text, "      {}", printable::first_line(&line));
            }
        }
    }
    text
}

/// Warns of hosts and processes that could not be read. Fails if no rank could be.
fn conclude(rows: &[RankRow], unread: Vec<String>) -> Result<Exit, Failed> {
    let processes = rows.iter().flat_map(|row| {
        let problems = row.stacks.processes.iter().filter_map(|process| process.problem.as_ref());
        problems.map(|problem| format!("rank {} on {}: {problem}", row.stacks.rank, row.host))
    });
    let mut lines: Vec<String> = unread.into_iter().chain(processes).collect();
    lines.dedup();
    if rows.is_empty() && !lines.is_empty() {
        let first = lines.remove(0);
        return Err(Failed { details: lines, ..Failed::new(Exit::HOST, first) });
    }
    lines.iter().for_each(|line| messages::warn(&printable::first_line(line)));
    Ok(Exit::SUCCESS)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ranks_are_named_by_numbers_and_ranges() {
        assert_eq!(parse_ranks("3"), Ok(3..=3));
        assert_eq!(parse_ranks("3-5"), Ok(3..=5));
        for wrong in ["", "x", "5-3", "-1"] {
            assert!(parse_ranks(wrong).is_err(), "{wrong}");
        }
        let ranks = select(&[4..=5, 0..=0, 5..=5], 6).unwrap();
        assert_eq!(ranks, [Rank(0), Rank(4), Rank(5)]);
        let error = select(&[4..=6], 6).unwrap_err();
        assert_eq!(error.message, "the job has no rank 6: its ranks are 0 to 5");
    }

    #[test]
    fn all_threads_are_printed() {
        let thread = ThreadStack {
            tid: 7,
            name: "MainThread".into(),
            state: 'R',
            holds_gil: Some(true),
            ..ThreadStack::default()
        };
        let problem = Some("no frames".to_owned());
        let process =
            ProcessStacks { pid: 7, program: "python3".into(), problem, threads: vec![thread] };
        let stacks = RankStacks { rank: Rank(2), processes: vec![process] };
        let text = full(&RankRow { host: "b".into(), stacks });
        let expected = "rank 2 on b\n  python3 (pid 7) — no frames\n    \
                        thread 7 MainThread: runs, holds the GIL\n";
        assert_eq!(text, expected);
    }
}
