//! Which verb is meant.

use super::{
    AnotherArgs, Args, BenchArgs, CaptureArgs, CompletionsArgs, ConfigArgs, HelpArgs, HostfileArgs,
    ManArgs, ReapArgs, ReportArgs, SetupArgs, SshConfigArgs, TopoArgs, TrainArgs, TrustArgs,
    program,
};
use crate::cli::compat::translate;
use crate::cli::config::{self, ConfigError, Found};
use clap::error::ErrorKind;
use clap::{CommandFactory, Parser, ValueHint};
use rlaunch_bootstrap::client::command;
use rlaunch_console::exit::Exit;
use rlaunch_console::messages::Failed;
use rlaunch_console::process_env::ProcessEnv;
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
    Hostfile(HostfileArgs),
    SshConfig(SshConfigArgs),
    SshSetup(SetupArgs),
    Trust(TrustArgs),
    Completions(CompletionsArgs),
    Man(ManArgs),
    Help(HelpArgs),
    /// A command of a rank: `rlaunch barrier`, `rlaunch kv get KEY`.
    OfRank(Vec<OsString>),
}

/// A command line that cannot be read, or what stands beside it. Help that was asked for is one, too.
#[derive(Debug)]
pub(crate) enum Misread {
    Words(clap::Error),
    Config(ConfigError),
}

impl From<clap::Error> for Misread {
    fn from(error: clap::Error) -> Misread {
        Misread::Words(error)
    }
}

impl From<ConfigError> for Misread {
    fn from(error: ConfigError) -> Misread {
        Misread::Config(error)
    }
}

impl Misread {
    /// Help that these words ask for lists verbs as well, which are not read by the same definition: with
    /// it `rlaunch -H a topo` would be no program's name.
    fn with_verbs(self, words: Vec<OsString>) -> Misread {
        match self {
            Misread::Words(error) if error.kind() == ErrorKind::DisplayHelp => {
                let listing = definition().try_get_matches_from(words);
                Misread::Words(listing.err().unwrap_or(error))
            }
            other => other,
        }
    }

    /// Says what is wrong, or prints the help.
    pub(crate) fn print(self) -> Exit {
        match self {
            Misread::Words(error) => {
                let _ = error.print();
                if error.use_stderr() { Exit::USAGE } else { Exit::SUCCESS }
            }
            Misread::Config(error) => {
                Failed::from_error(Exit::USAGE, &error).hint(error.hint()).print();
                Exit::USAGE
            }
        }
    }
}

/// Reads the words behind a verb, preceded by the command's name.
type Read = fn(Vec<OsString>) -> Result<Invocation, Misread>;

/// A verb of the launcher: its name, how its words are read, and its definition.
pub(super) type Verb = (&'static str, Read, fn() -> clap::Command);

/// Verbs of the launcher; ranks' own are in [`command::VERBS`].
pub(super) const VERBS: &[Verb] = &[
    (
        "reap",
        |typed| {
            Ok(Invocation::Reap(configured(typed, |args: &mut ReapArgs| &mut args.reach.config)?))
        },
        ReapArgs::command,
    ),
    (
        "topo",
        |typed| {
            Ok(Invocation::Topo(configured(typed, |args: &mut TopoArgs| &mut args.reach.config)?))
        },
        TopoArgs::command,
    ),
    ("capture", read_capture, CaptureArgs::command),
    ("bench", read_bench, define_bench),
    (
        "report",
        |typed| Ok(Invocation::Report(ReportArgs::try_parse_from(typed)?)),
        ReportArgs::command,
    ),
    (
        "hostfile",
        |typed| {
            Ok(Invocation::Hostfile(configured(typed, |args: &mut HostfileArgs| &mut args.config)?))
        },
        HostfileArgs::command,
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
    ("trust", |typed| Ok(Invocation::Trust(TrustArgs::try_parse_from(typed)?)), TrustArgs::command),
    (
        "completions",
        |typed| Ok(Invocation::Completions(CompletionsArgs::try_parse_from(typed)?)),
        CompletionsArgs::command,
    ),
    ("man", |typed| Ok(Invocation::Man(ManArgs::try_parse_from(typed)?)), ManArgs::command),
    ("help", |typed| Ok(Invocation::Help(HelpArgs::try_parse_from(typed)?)), HelpArgs::command),
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
    /// Parses the command line, with what the environment and a file add to it.
    pub(crate) fn parse_or_explain() -> Result<Invocation, Misread> {
        Invocation::parse(std::env::args_os().collect())
    }

    /// Settings found beside the command line, for verbs that take them.
    pub(crate) fn found(&self) -> Option<&Found> {
        let config = match self {
            Invocation::Run(args) => &args.reach.config,
            Invocation::Reap(args) => &args.reach.config,
            Invocation::Topo(args) => &args.reach.config,
            Invocation::Capture(args) => &args.reach.config,
            Invocation::Bench(args) => &args.reach.config,
            Invocation::Train(args) => &args.reach.config,
            Invocation::Hostfile(args) => &args.config,
            Invocation::Report(_)
            | Invocation::SshConfig(_)
            | Invocation::SshSetup(_)
            | Invocation::Trust(_)
            | Invocation::Completions(_)
            | Invocation::Man(_)
            | Invocation::Help(_)
            | Invocation::OfRank(_) => return None,
        };
        Some(&config.found)
    }

    /// What these words ask for, the first of which is the command's name.
    pub(crate) fn parse(mut typed: Vec<OsString>) -> Result<Invocation, Misread> {
        let first = typed.get(1).and_then(|word| word.to_str()).unwrap_or_default();
        if let Some((verb, read, _)) = VERBS.iter().find(|(verb, ..)| *verb == first) {
            typed.remove(1);
            // Usage lines begin with it.
            typed[0] = format!("rlaunch {verb}").into();
            return read(typed);
        }
        if command::VERBS.contains(&first) {
            return Ok(Invocation::OfRank(typed.split_off(1)));
        }
        let parts = program::split(&typed);
        let (first, others) = parts.split_first().map_or((&[][..], &[][..]), |(f, o)| (&f[..], o));
        let spelled = translate::respell(first.to_vec())?;
        let args = configured(spelled.clone(), |args: &mut Args| &mut args.reach.config)
            .map_err(|misread| misread.with_verbs(spelled))?;
        let others: Result<_, _> = others.iter().map(|words| AnotherArgs::parse(words)).collect();
        Ok(Invocation::Run(Box::new(Args { others: others?, typed, ..args })))
    }
}

/// What was typed and what the environment and a file say; `config` is told of it.
fn configured<P: Parser>(
    typed: Vec<OsString>,
    config: impl FnOnce(&mut P) -> &mut ConfigArgs,
) -> Result<P, Misread> {
    let around = ProcessEnv::current();
    let (words, found) = config::with_defaults(Args::command(), P::command(), typed, &around)?;
    let mut args = P::try_parse_from(words)?;
    config(&mut args).found = found;
    Ok(args)
}

fn read_capture(typed: Vec<OsString>) -> Result<Invocation, Misread> {
    let args = configured(typed, |args: &mut CaptureArgs| &mut args.reach.config)?;
    Ok(Invocation::Capture(args))
}

fn read_bench(mut typed: Vec<OsString>) -> Result<Invocation, Misread> {
    if typed.get(1).is_some_and(|what| what == "train") {
        typed.remove(1);
        let spelled = translate::respell_for(TrainArgs::command(), typed)?;
        let (all, around) = (Args::command(), ProcessEnv::current());
        let (words, found) = config::with_defaults(all, TrainArgs::command(), spelled, &around)?;
        let mut args = TrainArgs::parse(words)?;
        args.reach.config.found = found;
        return Ok(Invocation::Train(Box::new(args)));
    }
    // `-np`, as for a job.
    let typed = typed.into_iter().map(|word| if word == "-np" { "-n".into() } else { word });
    let args = configured(typed.collect(), |args: &mut BenchArgs| &mut args.reach.config)?;
    Ok(Invocation::Bench(Box::new(args)))
}
