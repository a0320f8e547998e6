//! Which verb is meant.

use super::{
    Args, BenchArgs, CaptureArgs, CompletionsArgs, ManArgs, ReapArgs, ReportArgs, SetupArgs,
    SshConfigArgs, TopoArgs, TrainArgs, spelling,
};
use clap::{CommandFactory, Parser, ValueHint};
use rlaunch_bootstrap::client::command;
use std::ffi::OsString;

/// What rlaunch is asked to do. The verb is the first word; without one it is to run a job.
pub(crate) enum Invocation {
    Run(Box<Args>),
    Reap(ReapArgs),
    Topo(TopoArgs),
    Capture(CaptureArgs),
    Bench(Box<BenchArgs>),
    Train(Box<TrainArgs>),
    Report(ReportArgs),
    SshConfig(SshConfigArgs),
    SshSetup(SetupArgs),
    Completions(CompletionsArgs),
    Man(ManArgs),
    /// A command of a rank: `rlaunch barrier`, `rlaunch kv get KEY`.
    OfRank(Vec<OsString>),
}

/// Reads the words behind a verb, preceded by the command's name.
type Read = fn(Vec<OsString>) -> Result<Invocation, clap::Error>;

/// A verb of the launcher: its name, how its words are read, and its definition.
type Verb = (&'static str, Read, fn() -> clap::Command);

/// Verbs of the launcher; ranks' own are in [`command::VERBS`].
const VERBS: &[Verb] = &[
    ("reap", |typed| Ok(Invocation::Reap(ReapArgs::try_parse_from(typed)?)), ReapArgs::command),
    ("topo", |typed| Ok(Invocation::Topo(TopoArgs::try_parse_from(typed)?)), TopoArgs::command),
    (
        "capture",
        |typed| Ok(Invocation::Capture(CaptureArgs::try_parse_from(typed)?)),
        CaptureArgs::command,
    ),
    ("bench", read_bench, define_bench),
    (
        "report",
        |typed| Ok(Invocation::Report(ReportArgs::try_parse_from(typed)?)),
        ReportArgs::command,
    ),
    (
        "ssh-config",
        |typed| Ok(Invocation::SshConfig(SshConfigArgs::try_parse_from(typed)?)),
        SshConfigArgs::command,
    ),
    (
        "ssh-setup",
        |typed| Ok(Invocation::SshSetup(SetupArgs::try_parse_from(typed)?)),
        SetupArgs::command,
    ),
    (
        "completions",
        |typed| Ok(Invocation::Completions(CompletionsArgs::try_parse_from(typed)?)),
        CompletionsArgs::command,
    ),
    ("man", |typed| Ok(Invocation::Man(ManArgs::try_parse_from(typed)?)), ManArgs::command),
];

/// All that can be typed, verbs included, for completions and for the manual. Nothing is read by it.
pub(crate) fn definition() -> clap::Command {
    let hint = ValueHint::CommandWithArguments;
    let command = Args::command().mut_arg("argv", |argv| argv.value_hint(hint));
    let command = command.subcommand_negates_reqs(true).disable_help_subcommand(true);
    VERBS.iter().fold(command, |command, (verb, _, define)| {
        command.subcommand(define().name(*verb).disable_help_subcommand(true))
    })
}

fn define_bench() -> clap::Command {
    BenchArgs::command().subcommand(TrainArgs::command().name("train"))
}

impl Invocation {
    /// Parses the command line, or prints help or what is wrong with it.
    pub(crate) fn parse_or_explain() -> Result<Invocation, clap::Error> {
        Invocation::parse(std::env::args_os().collect())
    }

    fn parse(mut typed: Vec<OsString>) -> Result<Invocation, clap::Error> {
        let first = typed.get(1).and_then(|word| word.to_str()).unwrap_or_default();
        if let Some((_, read, _)) = VERBS.iter().find(|(verb, ..)| *verb == first) {
            typed.remove(1);
            return read(typed);
        }
        if command::VERBS.contains(&first) {
            return Ok(Invocation::OfRank(typed.split_off(1)));
        }
        let args = Args::try_parse_from(spelling::respell(typed.clone())?)?;
        Ok(Invocation::Run(Box::new(Args { typed, ..args })))
    }
}

fn read_bench(mut typed: Vec<OsString>) -> Result<Invocation, clap::Error> {
    if typed.get(1).is_some_and(|what| what == "train") {
        typed.remove(1);
        return Ok(Invocation::Train(Box::new(TrainArgs::parse(typed)?)));
    }
    // `-np`, as for a job.
    let typed = typed.into_iter().map(|word| if word == "-np" { "-n".into() } else { word });
    Ok(Invocation::Bench(Box::new(BenchArgs::try_parse_from(typed)?)))
}
