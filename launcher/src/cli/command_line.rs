//! Conversion of the words that the user typed to words that clap parses.
//!
//! 1. Other launchers' options are translated ([`crate::cli::compat`]), if the command runs a program.
//! 2. Settings from variables and from configuration files are inserted before the options of the user, which
//!    override them ([`crate::cli::config`]), if the command has the option `--cluster`.

use crate::cli::args::{JobArgs, ProgramArgs, split_programs};
use crate::cli::compat::{self, Notices};
use crate::cli::config::{self, ConfigError, LoadedConfig};
use clap::error::ErrorKind;
use clap::{Command, CommandFactory, FromArgMatches, Parser};
use rlaunch_console::process_env::ProcessEnv;
use rlaunch_console::{messages, stdout};
use rlaunch_text::exit::Exit;
use rlaunch_text::message::Failed;
use std::ffi::{OsStr, OsString};
use std::path::Path;

/// Command line that clap can parse, with the configuration and the notices that were found while it was
/// prepared.
#[derive(Clone, Debug, Default)]
pub(crate) struct CommandLine {
    /// Name of the command, its options and its arguments.
    pub(crate) words: Vec<OsString>,
    pub(crate) config: LoadedConfig,
    pub(crate) notices: Notices,
}

/// Error in a command line, or in a file or variable with settings. A request for help is also returned as an
/// error.
#[derive(Debug, thiserror::Error)]
pub(crate) enum UsageError {
    #[error(transparent)]
    Clap(#[from] clap::Error),
    #[error(transparent)]
    Config(#[from] ConfigError),
}

impl UsageError {
    /// If this error is a request for a job's help, replaces that help by the help of a definition that also lists the
    /// verbs; `definition` makes it, for `--help` or for `-h`. (It does not parse jobs, because it would take a program
    /// with the name of a verb for the verb.)
    pub(crate) fn with_help_of(
        self,
        definition: impl FnOnce(bool) -> Command,
        typed: Vec<OsString>,
    ) -> UsageError {
        match self {
            UsageError::Clap(error) if error.kind() == ErrorKind::DisplayHelp => {
                let first = split_programs(&typed).into_iter().next().unwrap_or_default();
                let words = translate_job(first).map_or(typed, |(words, _)| words);
                let asked = words.iter().find(|word| *word == "-h" || *word == "--help");
                let is_long = asked.is_some_and(|word| word == "--help");
                let parsed = definition(is_long).try_get_matches_from(words);
                UsageError::Clap(parsed.err().unwrap_or(error))
            }
            other => other,
        }
    }

    /// Prints the error or the help, and returns the exit code.
    pub(crate) fn print(self) -> Exit {
        match self {
            UsageError::Clap(error) => {
                let printed = error.print();
                if error.use_stderr() {
                    return Exit::USAGE;
                }
                let _ = stdout::noted(printed);
                Exit::SUCCESS
            }
            UsageError::Config(error) => {
                messages::error(&Failed::from_error(Exit::USAGE, &error).hint(error.hint()));
                Exit::USAGE
            }
        }
    }
}

impl CommandLine {
    /// Converts the command line `typed`, which begins with the command's name, to words that clap parses.
    pub(crate) fn prepare(
        command: &Command,
        typed: Vec<OsString>,
    ) -> Result<CommandLine, UsageError> {
        let has = |id: &str| command.get_arguments().any(|arg| arg.get_id() == id);
        let command = &built(command.clone());
        let (words, notices) = match has("argv") {
            true => compat::translate(command, &typed)?,
            // A command without a program has only one option of another launcher, `-np`.
            false => (with_long_np(command, typed), Notices::default()),
        };
        let (words, config) = match has("cluster") {
            true => insert_settings(&built(JobArgs::command()), command, words)?,
            false => (words, LoadedConfig::default()),
        };
        Ok(CommandLine { words, config, notices })
    }
}

/// Parses the command line of a job: one program, or several with `:` between them.
pub(crate) fn parse_job(typed: Vec<OsString>) -> Result<(JobArgs, CommandLine), UsageError> {
    // Its options are many: to build them again for each step would cost more than the steps.
    let mut job = built(JobArgs::command());
    let typed = compat::with_programs_of_file(&job, typed)?;
    let mut programs = split_programs(&typed).into_iter();
    let first = without_run(programs.next().unwrap_or_default());
    let (words, mut notices) = compat::translate(&job, &first)?;
    let (words, config) = insert_settings(&job, &job, words)?;
    let parsed = job.try_get_matches_from_mut(&words)?;
    let args = JobArgs::from_arg_matches(&parsed).map_err(|error| error.format(&mut job))?;
    let mut other_programs = Vec::new();
    for words in programs {
        let (program, of_program) = parse_program(&words)?;
        other_programs.push(program);
        notices.extend(of_program);
    }
    let args = JobArgs { other_programs, typed, ..args };
    if let Some(tip) = value_of_flag(&args).filter(|_| has_lost_its_hosts(&args)) {
        let program =
            args.command.argv.first().map(|word| word.to_string_lossy()).unwrap_or_default();
        let message = format!(
            "{program} would be the program, and the options behind it its own\n\n  tip: {tip}"
        );
        return Err(job.error(ErrorKind::UnknownArgument, message).into());
    }
    Ok((args, CommandLine { words, config, notices }))
}

/// Options that name a job's hosts or ranks.
pub(crate) const HOSTS: [&str; 9] =
    ["-H", "--host", "--hosts", "-host", "-hosts", "--hostfile", "-hostfile", "-np", "--np"];

/// Returns a tip if the program is the value that `-l` of ssh or `-v` of docker would take, which are flags here.
pub(crate) fn value_of_flag(args: &JobArgs) -> Option<String> {
    let (program, arguments) = args.command.argv.split_first()?;
    let program = program.to_str().filter(|_| args.other_programs.is_empty())?;
    let before = args.typed.len().checked_sub(arguments.len() + 2)?;
    match args.typed[before].to_str()? {
        "-l" if !program.contains('/') => Some(format!(
            "-l is --tag-output here, not the login name of ssh, which goes before the host: -H {program}@HOST"
        )),
        "-v" if program.contains(':') && !Path::new(program).exists() => Some(format!(
            "-v is --verbose here, not a volume of docker: --image NAME --volume {program} mounts it"
        )),
        _ => None,
    }
}

/// Tells whether options that name hosts are arguments of a program that is not on this machine, on which the job would
/// run.
fn has_lost_its_hosts(args: &JobArgs) -> bool {
    let argv = &args.command.argv;
    let names_hosts = |word: &OsString| word.to_str().is_some_and(|word| HOSTS.contains(&word));
    let (before, _) = args.typed.split_at(args.typed.len().saturating_sub(argv.len()));
    let Some(program) = argv.first() else { return false };
    argv.get(1).is_some_and(names_hosts)
        && !before.iter().any(names_hosts)
        && !is_program_here(program)
}

/// Tells whether a program is on this machine: at its path, or in a directory of PATH.
pub(crate) fn is_program_here(program: &OsStr) -> bool {
    let path = std::env::var_os("PATH").unwrap_or_default();
    std::env::split_paths(&path).any(|directory| directory.join(program).exists())
}

/// Translates the command line of a job, the first word of which is the command's name. The word `run` behind
/// it is dropped.
pub(crate) fn translate_job(words: Vec<OsString>) -> Result<(Vec<OsString>, Notices), clap::Error> {
    compat::translate(&built(JobArgs::command()), &without_run(words))
}

fn without_run(mut words: Vec<OsString>) -> Vec<OsString> {
    if words.get(1).is_some_and(|verb| verb == "run") {
        words.remove(1);
    }
    words
}

/// Returns a command whose options of all kinds can be asked for.
pub(crate) fn built(mut command: Command) -> Command {
    command.build();
    command
}

/// Parses the options and the program between two `:`. Options of other launchers are translated.
fn parse_program(words: &[OsString]) -> Result<(ProgramArgs, Notices), clap::Error> {
    let command = built(ProgramArgs::command());
    let mut typed: Vec<OsString> = vec![command.get_name().into()];
    typed.extend_from_slice(words);
    let translated = compat::translate(&command, &typed);
    let (words, notices) = translated.map_err(hint_at_job_option)?;
    Ok((ProgramArgs::try_parse_from(words)?, notices))
}

/// Replaces the error for an unknown option behind a `:`, if the job has that option. The new error says that
/// the option goes before the first program.
fn hint_at_job_option(error: clap::Error) -> clap::Error {
    let text = error.to_string();
    let word = text.split('\'').nth(1).filter(|_| error.kind() == ErrorKind::UnknownArgument);
    let long = word.map(|word| word.trim_start_matches('-').split('=').next().unwrap_or_default());
    let command = JobArgs::command();
    let is_of_job = |long: &str| command.get_arguments().any(|arg| arg.get_long() == Some(long));
    match (word, long) {
        (Some(word), Some(long)) if is_of_job(long) => command.clone().error(
            ErrorKind::UnknownArgument,
            format!("'{word}' is for all programs: it goes before the first of them"),
        ),
        _ => error,
    }
}

/// Replaces the word `-np` by `--np`, if the command has the option `--np`.
fn with_long_np(command: &Command, typed: Vec<OsString>) -> Vec<OsString> {
    let has_np = command.get_arguments().any(|arg| arg.get_long() == Some("np"));
    let long = |word: OsString| if has_np && word == "-np" { "--np".into() } else { word };
    typed.into_iter().map(long).collect()
}

fn insert_settings(
    all: &Command,
    command: &Command,
    words: Vec<OsString>,
) -> Result<(Vec<OsString>, LoadedConfig), ConfigError> {
    config::with_defaults(all, command, words, &ProcessEnv::current())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn words(line: &str) -> Vec<OsString> {
        line.split(' ').map(OsString::from).collect()
    }

    #[test]
    fn each_program_has_options_of_its_own() {
        let line =
            "-H a,b -np 2 -x A=1 --name srv --after x,ready:tcp:a:80 --template f:/g p -np 3";
        let (args, _) = parse_program(&words(line)).unwrap();
        assert_eq!((args.hosts, args.ranks), (vec!["a,b".to_owned()], Some(2)));
        assert_eq!(args.application.name.as_deref(), Some("srv"));
        assert_eq!(args.application.after, ["x", "ready:tcp:a:80"]);
        assert_eq!(args.application.template, ["f:/g"]);
        assert_eq!(args.command.argv, ["p", "-np", "3"]);
    }

    #[test]
    fn the_value_of_a_flag_is_no_program() {
        let parsed = |line: &str| parse_job(words(&format!("rlaunch {line}")));
        for (line, tip) in [
            ("-l no-such-user -H h1 id", "before the host: -H no-such-user@HOST"),
            ("-v /no/such:/data -H h1 python3 x", "--image NAME --volume /no/such:/data"),
        ] {
            let error = parsed(line).unwrap_err().to_string();
            assert!(error.contains(tip), "{error}");
        }
        // These are programs, or may be.
        for line in
            ["-l sh -H h1", "-H h1 -l no-such -H x", "-v no-such -H h1", "-l -- no-such -H h1"]
        {
            let (args, _) = parsed(line).unwrap();
            assert_eq!(args.command.argv[1], "-H", "{line}");
        }
        assert!(value_of_flag(&parsed("-H h1 -l bob id").unwrap().0).is_some());
    }

    #[test]
    fn options_of_the_job_are_not_a_programs() {
        let error = parse_program(&words("--tag-output p")).unwrap_err().to_string();
        assert!(error.contains("'--tag-output' is for all programs"), "{error}");
        let error = parse_program(&words("--tag-outptu p")).unwrap_err().to_string();
        assert!(error.contains("unexpected argument '--tag-outptu'"), "{error}");
        assert!(parse_program(&[]).is_err());
    }
}
