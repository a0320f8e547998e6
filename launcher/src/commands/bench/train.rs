//! `rlaunch bench train`: runs a training program with several numbers of ranks, and reports how it scales.

use crate::cli::args::{CommandArgs, CompatArgs, MeasurementArgs, ProcessArgs, values};
use crate::cli::command_line::CommandLine;
use crate::cli::config::LoadedConfig;
use crate::cli::lower::MeasurementJob;
use crate::commands::output;
use crate::commands::report::log_metrics::KNOWN_FORMATS;
use crate::commands::report::{
    ReportFinding, Run, Scaling, SourceReport, Speed, scaling_head, scaling_row,
};
use clap::Parser;
use rlaunch_console::{messages, stdout};
use rlaunch_engine::run::job_run::{JobRun, Launch, Stdio, run_attempt};
use rlaunch_engine::run::record::JobRecord;
use rlaunch_engine::run::signals::Signals;
use rlaunch_plan::job::tag_pattern::TagPattern;
use rlaunch_plot::PlotFile;
use rlaunch_plot::curves::{Axis, Curves};
use rlaunch_text::columns;
use rlaunch_text::exit::Exit;
use rlaunch_text::message::Failed;
use rlaunch_text::shell::{self, without_secrets};
use serde::Serialize;
use std::ffi::OsString;
use std::time::Duration;

/// Version of the output of `--json`. New fields may appear in the same version.
const VERSION: u32 = 1;

/// Run a training program with several numbers of ranks, one after the other, and report how it scales.
///
/// Each run is a normal job, and leaves a record for `rlaunch report`. The program has to print images/sec, or another
/// speed, in a format that `rlaunch report` knows. Efficiency is images/sec per rank relative to the smallest run. Runs
/// with contradictory figures, or whose total is not known because some ranks print no speed, are not compared.
#[derive(Debug, Parser)]
#[command(
    override_usage = "rlaunch bench train --np N,... [OPTIONS] PROGRAM [ARGUMENT]...",
    after_help = "\
Examples:
  rlaunch bench train -H a,b,c,d --np 1,2,4 python3 train.py --batch-size 64
  rlaunch bench train -H a:8,b:8 --np 8,16 --json -- python3 train.py
  rlaunch bench train -H a,b --np 1,2 --plot scaling.svg ./train"
)]
pub(crate) struct TrainArgs {
    #[command(flatten)]
    pub(crate) measurement: MeasurementArgs,

    /// Numbers of ranks, also `-np N,...`; smaller jobs run on the first hosts
    #[arg(short = 'n', long = "np", value_name = "N,...", required = true, value_delimiter = ',')]
    #[arg(value_parser = values::parse_ranks)]
    pub(crate) ranks: Vec<u32>,

    #[command(flatten)]
    pub(crate) process: ProcessArgs,

    /// Start every line of ranks' output with `[rank,host]`
    #[arg(long)]
    pub(crate) tag_output: bool,

    /// End a job, and the measurement with it, after this time in seconds
    #[arg(long, value_name = "SECONDS", value_parser = values::parse_timeout)]
    pub(crate) timeout: Option<Duration>,

    /// Draw the speed over numbers of ranks, beside that of perfect scaling; .svg, .html or .png
    #[arg(long, value_name = "FILE")]
    pub(crate) plot: Option<PlotFile>,

    /// Print one JSON object at the end; the output of ranks goes to stderr
    #[arg(long)]
    pub(crate) json: bool,

    #[command(flatten)]
    pub(crate) compat: CompatArgs,

    #[command(flatten)]
    pub(crate) command: CommandArgs,
}

/// Result of one job of the measurement.
#[derive(Serialize)]
struct MeasuredRun {
    command: String,
    job: String,
    ranks: u32,
    /// Duration in seconds.
    seconds: f64,
    /// Unit of the rates, such as `images/sec`.
    unit: String,
    /// Rate of all ranks; `None` if the figures contradict each other or do not tell.
    total: Option<f64>,
    /// Mean rate of the ranks that print one.
    mean: Option<f64>,
    #[serde(rename = "remarks")]
    findings: Vec<ReportFinding>,
}

/// Output of `--json`.
#[derive(Serialize)]
struct TrainReport<'a> {
    v: u32,
    runs: &'a [MeasuredRun],
    scaling: Option<&'a Scaling>,
}

/// Runs a job for each number of ranks, the smallest first, and prints their speeds. The first job that fails ends the
/// measurement.
pub(super) async fn run(args: TrainArgs, line: &CommandLine) -> Result<Exit, Failed> {
    output::prepare_plot(args.plot.as_ref())?;
    let mut signals = Signals::install()?;
    let options = args.options_of_jobs(&line.words);
    let mut runs = Vec::new();
    let mut ended = Ok(Exit::SUCCESS);
    for ranks in args.sizes() {
        let launch = args.launch(ranks, &line.config)?;
        let command_line = args.command_line(ranks, &options);
        match run_job(launch, command_line, &mut signals).await {
            Ok(run) => runs.push(run),
            Err(failed) => {
                ended = Err(failed);
                break;
            }
        }
    }
    print(&runs, args.json)?;
    let picture = args.plot.as_ref().filter(|_| ended.is_ok()).zip(picture(&runs));
    if let Some((file, curves)) = picture {
        output::write_plot(file, &curves.title, &[&curves])?;
    }
    ended
}

async fn run_job(
    mut launch: Launch,
    command_line: Vec<OsString>,
    signals: &mut Signals,
) -> Result<MeasuredRun, Failed> {
    let command = quoted(&command_line);
    messages::info(&command);
    launch.spec.command_line = command_line;
    let job = JobRun::first(launch)?;
    let (ended, record) = run_attempt(&job, signals).await;
    ended?;
    let record = record.ok_or_else(|| Failed::new(Exit::BUG, "the job has left no record"))?;
    measure(&record, command)
}

fn measure(record: &JobRecord, command: String) -> Result<MeasuredRun, Failed> {
    let report = SourceReport::from_record(record);
    let Some(Speed { unit, rates, sum, .. }) = report.speed.clone() else {
        let message = format!("no speed in the output of {command}");
        return Err(Failed::new(Exit::FILES, message).hint(Some(KNOWN_FORMATS)));
    };
    for finding in &report.findings {
        messages::warn(&finding.text);
        finding.hint.iter().for_each(|hint| messages::hint(hint));
    }
    Ok(MeasuredRun {
        command,
        job: record.job.clone(),
        ranks: record.ranks(),
        seconds: record.seconds,
        unit,
        total: report.run().map(|run| run.total).filter(|total| *total > 0.0),
        mean: (!rates.is_empty()).then(|| sum / rates.len() as f64),
        findings: report.findings,
    })
}

/// Lists the runs whose rate of all ranks is known.
fn known(measured: &[MeasuredRun]) -> Vec<Run> {
    let run = |measured: &MeasuredRun| {
        let source = measured.command.clone();
        Some(Run { source, ranks: measured.ranks, total: measured.total? })
    };
    measured.iter().filter_map(run).collect()
}

fn print(measured: &[MeasuredRun], json: bool) -> Result<(), Failed> {
    let runs = known(measured);
    let text = match json {
        true => {
            let scaling = Scaling::between_sizes(runs);
            output::json(&TrainReport { v: VERSION, runs: measured, scaling: scaling.as_ref() })?
        }
        false => table(measured, &Scaling::new(runs)),
    };
    stdout::print(&text);
    Ok(())
}

/// Formats a table with a row for each run. Where the total is not known, ranks have the mean of those that print.
fn table(measured: &[MeasuredRun], scaling: &Scaling) -> String {
    let unknown = measured.iter().filter(|run| run.total.is_none()).map(|run| {
        let dash = || "-".to_owned();
        let mean = run.mean.map_or_else(dash, |mean| format!("{mean:.1}"));
        (run.ranks, vec![run.ranks.to_string(), dash(), mean, dash(), run.command.clone()])
    });
    let known = scaling.runs.iter().map(|scaled| (scaled.run.ranks, scaling_row(scaled)));
    let mut rows: Vec<(u32, Vec<String>)> = known.chain(unknown).collect();
    rows.sort_by_key(|(ranks, _)| *ranks);
    let head = scaling_head(measured.first().map_or("images/sec", |run| run.unit.as_str()));
    let rows = rows.into_iter().map(|(_, cells)| cells);
    columns::lay_out(&std::iter::once(head).chain(rows).collect::<Vec<_>>())
}

/// Draws the rates of all ranks over numbers of ranks, beside those of perfect scaling. Where no total is known, ranks
/// have the mean of those that print.
fn picture(measured: &[MeasuredRun]) -> Option<Curves> {
    let unit = measured.first()?.unit.clone();
    let runs = Scaling::new(known(measured)).runs;
    let series = if let Some(smallest) = runs.first() {
        let ranks = || runs.iter().map(|scaled| f64::from(scaled.run.ranks));
        let totals = ranks().zip(runs.iter().map(|scaled| scaled.run.total)).collect();
        let perfect = ranks().map(|ranks| (ranks, ranks * smallest.per_rank)).collect();
        vec![("measured".to_owned(), totals), ("perfect scaling".to_owned(), perfect)]
    } else {
        let mean = |run: &MeasuredRun| Some((f64::from(run.ranks), run.mean?));
        let means = measured.iter().filter_map(mean).collect();
        vec![("mean of the ranks that print".to_owned(), means)]
    };
    let title = format!("{unit} over numbers of ranks");
    Some(Curves { title, unit, axis: Axis::Ranks, series, ..Curves::default() })
}

/// Quotes a command line for a shell, without secrets.
fn quoted(words: &[OsString]) -> String {
    let words = without_secrets(words);
    let words = words.iter().map(|word| shell::quoted(word.as_ref()));
    words.collect::<Vec<_>>().join(" ")
}

impl TrainArgs {
    /// Returns the numbers of ranks in ascending order, each once.
    fn sizes(&self) -> Vec<u32> {
        let mut sizes = self.ranks.clone();
        sizes.sort_unstable();
        sizes.dedup();
        sizes
    }

    /// Returns the options for the command line of each job: those in `words`, without `--np`, `--plot`, `--json`
    /// and `--`.
    fn options_of_jobs(&self, words: &[OsString]) -> Vec<OsString> {
        let options = &words[1..words.len() - self.command.argv.len()];
        let mut kept = Vec::with_capacity(options.len());
        let mut options = options.iter();
        while let Some(word) = options.next() {
            match word.to_str() {
                Some("--np" | "-n" | "--plot") => drop(options.next()),
                Some("--json" | "--") => {}
                Some(text) if text.starts_with("--np=") || text.starts_with("--plot=") => {}
                _ => kept.push(word.clone()),
            }
        }
        kept
    }

    /// Returns the command line that runs a job with this number of ranks.
    fn command_line(&self, ranks: u32, options: &[OsString]) -> Vec<OsString> {
        let mut typed: Vec<OsString> = vec!["rlaunch".into()];
        typed.extend_from_slice(options);
        typed.extend(["--np".into(), ranks.to_string().into()]);
        if self.command.argv.first().is_some_and(|word| word.as_encoded_bytes().starts_with(b"-")) {
            typed.push("--".into());
        }
        typed.extend_from_slice(&self.command.argv);
        typed
    }

    /// Returns the job with this number of ranks. Ranks do not read standard input, since the first job would
    /// leave nothing for the others.
    fn launch(&self, ranks: u32, config: &LoadedConfig) -> Result<Launch, Failed> {
        let job = MeasurementJob {
            process: self.process.clone(),
            ranks: Some(ranks),
            timeout: self.timeout,
            ..MeasurementJob::new("bench", self.measurement.clone(), self.command.argv.clone())
        };
        let mut launch = job.launch(config)?;
        let nodes = self.compat.check_nodes(&launch.spec.hosts);
        nodes.map_err(|error| Failed::from_error(Exit::USAGE, &error).hint(Some(error.hint())))?;
        launch.spec.oob.preferences.clone_from(&self.compat.preferences);
        launch.spec.output.tag = self.tag_output.then(TagPattern::default);
        if self.json {
            launch.stdio = Stdio::Stderr;
        }
        Ok(launch)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cli::command_line::built;
    use crate::cli::compat;
    use clap::CommandFactory;

    /// Parses a line, and returns the arguments with the options for each job.
    fn parse(line: &str) -> Result<(TrainArgs, Vec<OsString>), clap::Error> {
        let words: Vec<OsString> =
            ["rlaunch"].into_iter().chain(line.split(' ')).map(OsString::from).collect();
        let (words, _) = compat::translate(&built(TrainArgs::command()), &words)?;
        let args = TrainArgs::try_parse_from(&words)?;
        let options = args.options_of_jobs(&words);
        Ok((args, options))
    }

    fn command((args, options): &(TrainArgs, Vec<OsString>), ranks: u32) -> String {
        let typed = args.command_line(ranks, options);
        typed.iter().map(|word| word.to_string_lossy()).collect::<Vec<_>>().join(" ")
    }

    #[test]
    fn the_definition_is_sound() {
        TrainArgs::command().debug_assert();
    }

    #[test]
    fn each_job_is_a_command_line() {
        let parsed = parse("-H a,b:2 -np 2,1,2 --mca x y -x A=1 --json train.py --np 7 --json");
        let parsed = parsed.unwrap();
        assert_eq!(parsed.0.sizes(), [1, 2]);
        let expected = "rlaunch -H a,b:2 -x A=1 --env=OMPI_MCA_x=y --np 2 train.py --np 7 --json";
        assert_eq!(command(&parsed, 2), expected);
        let Launch { spec, stdio, .. } = parsed.0.launch(2, &LoadedConfig::default()).unwrap();
        assert_eq!((spec.first().ranks, spec.hosts.len()), (Some(2), 2));
        assert!(matches!(stdio, Stdio::Stderr));
        for plot in ["--plot a.svg", "--plot=a.svg"] {
            let parsed = parse(&format!("-H a {plot} --np 1,2 train.py --plot x")).unwrap();
            assert_eq!(command(&parsed, 1), "rlaunch -H a --np 1 train.py --plot x");
        }
        assert_eq!(spec.first().argv, ["train.py", "--np", "7", "--json"]);
        let set = spec.first().env.iter().find(|var| var.name == "A");
        assert_eq!(set.unwrap().value, "1");
    }

    #[test]
    fn every_spelling_of_np_is_replaced() {
        for np in ["--np=1,2", "-n1,2", "-n 1,2", "--np 1,2"] {
            let parsed = parse(&format!("{np} --transport tcp -- -odd")).unwrap();
            assert_eq!(command(&parsed, 1), "rlaunch --transport tcp --np 1 -- -odd", "{np}");
            let launch = parsed.0.launch(1, &LoadedConfig::default()).unwrap();
            assert!(matches!(launch.stdio, Stdio::Stdout));
        }
    }

    fn run(ranks: u32, total: Option<f64>) -> MeasuredRun {
        MeasuredRun {
            command: format!("np{ranks}"),
            job: String::new(),
            ranks,
            seconds: 1.0,
            unit: "images/sec".into(),
            total,
            mean: Some(99.0),
            findings: Vec::new(),
        }
    }

    #[test]
    fn speeds_are_drawn_over_ranks() {
        let curves = picture(&[run(1, Some(100.0)), run(2, None), run(4, Some(360.0))]).unwrap();
        let expected = [
            ("measured".to_owned(), vec![(1.0, 100.0), (4.0, 360.0)]),
            ("perfect scaling".to_owned(), vec![(1.0, 100.0), (4.0, 400.0)]),
        ];
        assert_eq!((curves.axis, &curves.series[..]), (Axis::Ranks, &expected[..]));
        assert!(
            rlaunch_plot::svg(&[&curves]).unwrap().contains("<title>measured: 4: 360 images/sec")
        );
        // Rank 0 alone prints.
        let curves = picture(&[run(1, None), run(2, None)]).unwrap();
        assert_eq!(curves.series[0].1, [(1.0, 99.0), (2.0, 99.0)]);
        assert!(picture(&[]).is_none());
    }

    #[test]
    fn a_run_without_a_total_has_a_row() {
        let runs = [run(1, Some(100.0)), run(2, None), run(4, Some(200.0))];
        let known = [0, 2].map(|at: usize| {
            let MeasuredRun { command, ranks, total, .. } = &runs[at];
            Run { source: command.clone(), ranks: *ranks, total: total.unwrap() }
        });
        let table = table(&runs, &Scaling::new(known.to_vec()));
        let rows: Vec<Vec<&str>> =
            table.lines().skip(1).map(|line| line.split_whitespace().collect()).collect();
        assert_eq!(rows[0], ["1", "100.0", "100.0", "100.0", "%", "np1"]);
        assert_eq!(rows[1], ["2", "-", "99.0", "-", "np2"]);
        assert_eq!(rows[2], ["4", "200.0", "50.0", "50.0", "%", "np4"]);
    }

    #[test]
    fn what_is_missing_is_said() {
        for line in ["--np 1,2", "-H a train.py", "--np 0 train.py", "--np 1,, train.py"] {
            assert!(parse(line).is_err(), "{line}");
        }
    }

    #[test]
    fn commands_are_quoted_for_a_shell() {
        let words = ["rlaunch", "-x", "A_KEY=abc", "sh", "-c", "echo 'a b'", ""];
        let expected = r"rlaunch -x 'A_KEY=(set, 3 chars)' sh -c 'echo '\''a b'\''' ''";
        assert_eq!(quoted(&words.map(OsString::from)), expected);
    }
}
