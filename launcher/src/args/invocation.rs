//! Which verb is meant.

use super::{
    AnotherArgs, Args, BenchArgs, CaptureArgs, ReapArgs, ReportArgs, SetupArgs, SshConfigArgs,
    TopoArgs, TrainArgs, application, spelling,
};
use clap::Parser;
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
    /// A command of a rank: `rlaunch barrier`, `rlaunch kv get KEY`.
    OfRank(Vec<OsString>),
}

/// Reads the words behind a verb, preceded by the command's name.
type Read = fn(Vec<OsString>) -> Result<Invocation, clap::Error>;

/// Verbs of the launcher; ranks' own are in [`command::VERBS`].
const VERBS: &[(&str, Read)] = &[
    ("reap", |typed| Ok(Invocation::Reap(ReapArgs::try_parse_from(typed)?))),
    ("topo", |typed| Ok(Invocation::Topo(TopoArgs::try_parse_from(typed)?))),
    ("capture", |typed| Ok(Invocation::Capture(CaptureArgs::try_parse_from(typed)?))),
    ("bench", read_bench),
    ("report", |typed| Ok(Invocation::Report(ReportArgs::try_parse_from(typed)?))),
    ("ssh-config", |typed| Ok(Invocation::SshConfig(SshConfigArgs::try_parse_from(typed)?))),
    ("ssh-setup", |typed| Ok(Invocation::SshSetup(SetupArgs::try_parse_from(typed)?))),
];

impl Invocation {
    /// Parses the command line, or prints help or what is wrong with it.
    pub(crate) fn parse_or_explain() -> Result<Invocation, clap::Error> {
        Invocation::parse(std::env::args_os().collect())
    }

    /// The same for a command line, the command's name included.
    pub(crate) fn parse(mut typed: Vec<OsString>) -> Result<Invocation, clap::Error> {
        let first = typed.get(1).and_then(|word| word.to_str()).unwrap_or_default();
        if let Some((_, read)) = VERBS.iter().find(|(verb, _)| *verb == first) {
            typed.remove(1);
            return read(typed);
        }
        if command::VERBS.contains(&first) {
            return Ok(Invocation::OfRank(typed.split_off(1)));
        }
        let parts = application::split(&typed);
        let (first, others) = parts.split_first().map_or((&[][..], &[][..]), |(f, o)| (&f[..], o));
        let args = Args::try_parse_from(spelling::respell(first.to_vec())?)?;
        let others: Result<_, _> = others.iter().map(|words| AnotherArgs::parse(words)).collect();
        Ok(Invocation::Run(Box::new(Args { others: others?, typed, ..args })))
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
