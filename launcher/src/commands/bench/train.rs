//! `rlaunch bench train`: one program with several numbers of ranks, and how it scales.

use crate::cli::args::{ForeignArgs, TrainArgs};
use crate::cli::lower::specify;
use crate::commands::report::log_metrics::KNOWN;
use crate::commands::report::{Remark, Run, Scaling, Verdict, scaling_table};
use crate::run::job_run::JobRun;
use crate::run::record::JobRecord;
use crate::run::run_attempt;
use crate::run::signals::Signals;
use rlaunch_console::exit::Exit;
use rlaunch_console::messages::{self, Failed};
use rlaunch_console::redact::without_secrets;
use rlaunch_console::{shell, stdout};
use serde::Serialize;
use std::ffi::OsString;

/// Version of what `--json` prints. New fields may appear without a new one.
const VERSION: u32 = 1;

/// A run that is over.
#[derive(Serialize)]
struct Measured {
    command: String,
    job: String,
    ranks: u32,
    /// In seconds.
    seconds: f64,
    /// Of all ranks, in images per second; none if the figures contradict each other.
    total: Option<f64>,
    remarks: Vec<Remark>,
}

/// What `--json` prints.
#[derive(Serialize)]
struct Printed<'a> {
    v: u32,
    runs: &'a [Measured],
    scaling: Option<&'a Scaling>,
}

/// Runs all sizes, smallest first, and prints what they were worth. The first job that fails ends
/// it.
pub(crate) async fn train(args: TrainArgs) -> Result<Exit, Failed> {
    let mut signals = Signals::install()?;
    ForeignArgs::tell([&args.foreign].into_iter());
    let mut measured = Vec::new();
    let mut ended = Ok(Exit::SUCCESS);
    for ranks in args.sizes() {
        match run(&args, ranks, &mut signals).await {
            Ok(run) => measured.push(run),
            Err(failed) => {
                ended = Err(failed);
                break;
            }
        }
    }
    print(&measured, args.json)?;
    ended
}

/// One job, as if it had been typed.
async fn run(args: &TrainArgs, ranks: u32, signals: &mut Signals) -> Result<Measured, Failed> {
    let job = args.job(ranks).map_err(|error| Failed::from_error(Exit::USAGE, &error))?;
    let command = quoted(&job.typed);
    messages::info(&command);
    let job = JobRun::first(specify(job)?)?;
    let (ended, record) = run_attempt(&job, signals).await;
    ended?;
    let record = record.ok_or_else(|| Failed::new(Exit::BUG, "the job has left no record"))?;
    measure(&record, command)
}

fn measure(record: &JobRecord, command: String) -> Result<Measured, Failed> {
    let verdict = Verdict::of_record(record);
    if verdict.speed.is_none() {
        let message = format!("no images/sec in what {command} printed");
        return Err(Failed::new(Exit::FILES, message).hint(Some(KNOWN)));
    }
    for remark in &verdict.remarks {
        messages::warn(&remark.text);
        remark.hint.iter().for_each(|hint| messages::hint(hint));
    }
    Ok(Measured {
        command,
        job: record.job.clone(),
        ranks: record.ranks(),
        seconds: record.seconds,
        total: verdict.run().map(|run| run.total),
        remarks: verdict.remarks,
    })
}

fn print(measured: &[Measured], json: bool) -> Result<(), Failed> {
    let run = |measured: &Measured| {
        let source = measured.command.clone();
        Some(Run { source, ranks: measured.ranks, total: measured.total? })
    };
    let runs: Vec<Run> = measured.iter().filter_map(run).collect();
    let text = match json {
        true => {
            let scaling = Scaling::of(runs);
            let printed = Printed { v: VERSION, runs: measured, scaling: scaling.as_ref() };
            let text = serde_json::to_string_pretty(&printed);
            text.map_err(|error| Failed::from_error(Exit::BUG, &error))? + "\n"
        }
        false => scaling_table(&Scaling::beside_smallest(runs)),
    };
    stdout::print(&text);
    Ok(())
}

/// As a shell takes it, without secrets.
fn quoted(words: &[OsString]) -> String {
    let words = without_secrets(words);
    let words = words.iter().map(|word| shell::quoted(word.as_ref()));
    words.collect::<Vec<_>>().join(" ")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn commands_are_quoted_for_a_shell() {
        let words = ["rlaunch", "-x", "A_KEY=abc", "sh", "-c", "echo 'a b'", ""];
        let expected = r"rlaunch -x 'A_KEY=(set, 3 chars)' sh -c 'echo '\''a b'\''' ''";
        assert_eq!(quoted(&words.map(OsString::from)), expected);
    }
}
