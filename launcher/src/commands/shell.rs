//! `rlaunch shell`: lines that are typed run on all hosts, one after the other.

use super::exec::{self, ExecArgs};
use crate::cli::args::{ConnectArgs, HostListArgs, MeasurementArgs};
use crate::cli::command_line::CommandLine;
use crate::cli::lower::MeasurementJob;
use clap::Parser;
use nix::sys::signal::Signal;
use rlaunch_console::{messages, stdout};
use rlaunch_engine::run;
use rlaunch_plan::job::options::Folding;
use rlaunch_plan::job::tag_pattern::TagPattern;
use rlaunch_text::exit::Exit;
use rlaunch_text::message::Failed;
use std::ffi::OsString;
use std::io::{self, IsTerminal};

/// Run each line that you type on all hosts.
///
/// Every line is a job of its own, with sh on each host: the next one knows neither its `cd` nor its variables. At a
/// terminal, a line that several hosts print is shown once. Ctrl-C ends what runs; exit or Ctrl-D ends the shell. The
/// exit code is that of the last line.
#[derive(Debug, Parser)]
#[command(after_help = "\
Examples:
  rlaunch shell -H 'n[01-16]'       type uptime, and see it of all hosts
  rlaunch shell -H a,b < lines      lines of a file
  rlaunch shell -t 3                the shell of rank 3 of the running job, at a terminal")]
pub(crate) struct ShellArgs {
    /// Rank of the running job that gets a shell at a terminal, the same as `rlaunch exec -t RANK`
    #[arg(short = 't', long = "terminal", value_name = "RANK", conflicts_with = "hosts")]
    pub(crate) rank: Option<u32>,

    #[command(flatten)]
    pub(crate) list: HostListArgs,

    #[command(flatten)]
    pub(crate) connect: ConnectArgs,
}

/// Runs lines until their end. A line that fails does not end them.
pub(super) async fn run(args: ShellArgs, line: &CommandLine) -> Result<Exit, Failed> {
    if let Some(rank) = args.rank {
        let words = ["rlaunch exec", "-t", &rank.to_string()].map(OsString::from);
        let exec = ExecArgs::try_parse_from(words);
        return exec::run_exec(exec.map_err(|error| Failed::from_error(Exit::BUG, &error))?).await;
    }
    // Where its ranks are is the same for every line.
    let _quiet = messages::quiet();
    let mut exit = Exit::SUCCESS;
    while let Some(text) = next_line()? {
        match text.trim() {
            "" => {}
            "exit" | "quit" => break,
            text => match run_line(&args, text, line).await {
                Ok(ended) => exit = ended,
                Err(failed) if ends_shell(&failed) => return Err(failed),
                Err(failed) => {
                    messages::error(&failed);
                    exit = failed.exit;
                }
            },
        }
    }
    Ok(exit)
}

/// Tells whether the user has ended more than the line that ran.
fn ends_shell(failed: &Failed) -> bool {
    let by = [Signal::SIGTERM, Signal::SIGHUP].map(|signal| Exit::signal(signal as i32));
    !failed.by_rank && by.contains(&failed.exit)
}

/// Reads a line, behind a prompt at a terminal. `None` at the end of the input.
fn next_line() -> Result<Option<String>, Failed> {
    if io::stdin().is_terminal() && io::stdout().is_terminal() {
        stdout::write(b"rlaunch> ");
    }
    let mut text = String::new();
    let read = io::stdin().read_line(&mut text).map_err(|error| {
        Failed::new(Exit::FILES, format!("cannot read lines from standard input: {error}"))
    })?;
    Ok((read > 0).then_some(text))
}

/// Runs a line on all hosts.
async fn run_line(args: &ShellArgs, text: &str, line: &CommandLine) -> Result<Exit, Failed> {
    let options = MeasurementArgs::for_hosts(args.list.hosts.clone(), args.connect.clone())?;
    let argv = ["sh", "-c", text].map(OsString::from).to_vec();
    let job = MeasurementJob::new("shell", options, argv).with_one_rank_on_each_host();
    let mut launch = job.launch(&line.config)?;
    let spec = &mut launch.spec;
    spec.continue_on_error = true;
    spec.is_recorded = false;
    spec.output.fold = Some(Folding::Lines);
    if spec.hosts.len() > 1 {
        spec.output.tag = Some(TagPattern::default());
    }
    run::run_job(launch).await
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_those_who_end_more_than_a_line_end_the_shell() {
        let failed = |exit, by_rank| Failed { by_rank, ..Failed::new(exit, "") };
        assert!(ends_shell(&failed(Exit::signal(Signal::SIGTERM as i32), false)));
        assert!(!ends_shell(&failed(Exit::signal(Signal::SIGTERM as i32), true)));
        assert!(!ends_shell(&failed(Exit::signal(Signal::SIGINT as i32), false)));
    }
}
