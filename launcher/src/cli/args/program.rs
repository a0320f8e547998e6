//! Several programs in one job, with `:` between them.

use super::{Args, CommandArgs, ForeignArgs, values};
use clap::error::ErrorKind;
use clap::{ArgAction, CommandFactory, Parser};
use std::ffi::OsString;
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::path::PathBuf;

/// What one program of several is to the others, and what is made for it.
#[derive(Clone, Debug, clap::Args)]
pub(crate) struct ApplicationArgs {
    /// Call this program NAME, for --after and templates
    #[arg(long, value_name = "NAME", help_heading = "Several programs")]
    pub(crate) name: Option<String>,

    /// Start this program only when all of that is there: NAME (the ranks of that program have been
    /// started) or ready:tcp:HOST:PORT (HOST accepts connections at PORT; HOST is one of the job's
    /// hosts, or any name)
    #[arg(
        long, value_name = "CONDITION,...", value_delimiter = ',', action = ArgAction::Append,
        help_heading = "Several programs"
    )]
    pub(crate) after: Vec<String>,

    /// Make DEST on the program's hosts out of FILE, in which {{host.oob_ip}} and the like are
    /// filled in; below the working directory, unless DEST begins with a slash. Only the hosts'
    /// user may read it, and it goes when the job is over
    #[arg(
        long, value_name = "FILE:DEST", action = ArgAction::Append,
        help_heading = "Several programs"
    )]
    pub(crate) template: Vec<String>,
}

/// Options that stand before a program behind a `:`.
#[derive(Clone, Debug, Parser)]
#[command(
    name = "rlaunch ... :",
    max_term_width = 100,
    override_usage = "rlaunch [OPTIONS] PROGRAM [ARGUMENT]... : [OPTIONS] PROGRAM [ARGUMENT]..."
)]
pub(crate) struct AnotherArgs {
    /// Its hosts; otherwise the job's, from the first slot on that is free
    #[arg(
        short = 'H', long = "host", visible_alias = "hosts", value_name = "HOST[:N],...",
        action = ArgAction::Append
    )]
    pub(crate) hosts: Vec<String>,

    /// How many ranks to start; without it, one for each slot
    #[arg(short = 'n', long = "np", value_name = "N", value_parser = values::parse_ranks)]
    pub(crate) ranks: Option<u32>,

    /// Give its ranks this variable as well, or instead: NAME=VALUE, or NAME to take its value from
    /// here
    #[arg(short = 'x', long = "env", value_name = "NAME[=VALUE]", action = ArgAction::Append)]
    pub(crate) env: Vec<OsString>,

    /// Run in this directory, which its hosts must have
    #[arg(long, value_name = "DIR")]
    pub(crate) wdir: Option<PathBuf>,

    /// Copy this file to the hosts as well; arguments that name it become the copy's path
    #[arg(long, value_name = "FILE", action = ArgAction::Append)]
    pub(crate) preload: Vec<PathBuf>,

    #[command(flatten)]
    pub(crate) application: ApplicationArgs,

    #[command(flatten)]
    pub(crate) foreign: ForeignArgs,

    #[command(flatten)]
    pub(crate) command: CommandArgs,
}

impl AnotherArgs {
    /// Reads the words between two `:`.
    pub(super) fn parse(words: &[OsString]) -> Result<AnotherArgs, clap::Error> {
        let command = AnotherArgs::command();
        let mut typed: Vec<OsString> = vec![command.get_name().into()];
        typed.extend_from_slice(words);
        let spelled = crate::cli::compat::translate::respell_for(command, typed).map_err(of_all)?;
        AnotherArgs::try_parse_from(spelled)
    }
}

/// An option that is unknown here may be one of the job's, which stand before the first program.
fn of_all(error: clap::Error) -> clap::Error {
    let text = error.to_string();
    let word = text.split('\'').nth(1).filter(|_| error.kind() == ErrorKind::UnknownArgument);
    let long = word.map(|word| word.trim_start_matches('-').split('=').next().unwrap_or_default());
    let command = Args::command();
    let is_of_job = |long: &str| command.get_arguments().any(|arg| arg.get_long() == Some(long));
    match (word, long) {
        (Some(word), Some(long)) if is_of_job(long) => command.clone().error(
            ErrorKind::UnknownArgument,
            format!("'{word}' is for all programs: it stands before the first of them"),
        ),
        _ => error,
    }
}

/// The words of each program: those up to the first `:`, the name of the command included, then
/// those up to the next. A `:` that is meant as an argument is typed as `\:`.
pub(super) fn split(typed: &[OsString]) -> Vec<Vec<OsString>> {
    let words = |part: &[OsString]| part.iter().map(unescaped).collect();
    typed.split(|word| word == ":").map(words).collect()
}

/// `\:` is `:`, `\\:` is `\:`, and so on; every other word is itself.
fn unescaped(word: &OsString) -> OsString {
    let bytes = word.as_bytes();
    match bytes.strip_prefix(b"\\") {
        Some(rest) if rest.strip_suffix(b":").is_some_and(|r| r.iter().all(|&b| b == b'\\')) => {
            OsString::from_vec(rest.to_vec())
        }
        _ => word.clone(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn words(line: &str) -> Vec<OsString> {
        line.split(' ').map(OsString::from).collect()
    }

    #[test]
    fn the_definition_is_sound() {
        AnotherArgs::command().debug_assert();
    }

    #[test]
    fn a_colon_of_its_own_begins_another_program() {
        let parts = split(&words("rlaunch -H a -np 1 x a:b : -np 2 y \\: : z"));
        assert_eq!(parts, [words("rlaunch -H a -np 1 x a:b"), words("-np 2 y :"), words("z")]);
        assert_eq!(split(&words("x \\\\: \\ a\\: \\a:")), [words("x \\: \\ a\\: \\a:")]);
    }

    #[test]
    fn each_program_has_options_of_its_own() {
        let line =
            "-H a,b -np 2 -x A=1 --name srv --after x,ready:tcp:a:80 --template f:/g p -np 3";
        let args = AnotherArgs::parse(&words(line)).unwrap();
        assert_eq!((args.hosts, args.ranks), (vec!["a,b".to_owned()], Some(2)));
        assert_eq!(args.application.name.as_deref(), Some("srv"));
        assert_eq!(args.application.after, ["x", "ready:tcp:a:80"]);
        assert_eq!(args.application.template, ["f:/g"]);
        assert_eq!(args.command.argv, ["p", "-np", "3"]);
    }

    #[test]
    fn options_of_the_job_are_not_a_programs() {
        let error = AnotherArgs::parse(&words("--tag-output p")).unwrap_err().to_string();
        assert!(error.contains("'--tag-output' is for all programs"), "{error}");
        let error = AnotherArgs::parse(&words("--tag-outptu p")).unwrap_err().to_string();
        assert!(error.contains("unexpected argument '--tag-outptu'"), "{error}");
        assert!(AnotherArgs::parse(&[]).is_err());
    }

    proptest! {
        #[test]
        fn any_words_can_be_typed(programs in prop::collection::vec(
            prop::collection::vec("[\\\\:a-]{0,4}", 1..4), 1..4,
        )) {
            let escape = |word: &String| match word.trim_start_matches('\\') {
                ":" => OsString::from(format!("\\{word}")),
                _ => OsString::from(word),
            };
            let typed: Vec<Vec<OsString>> =
                programs.iter().map(|words| words.iter().map(escape).collect()).collect();
            let parts = split(&typed.join(&OsString::from(":")));
            prop_assert_eq!(parts, programs.into_iter().map(|words| {
                words.into_iter().map(OsString::from).collect::<Vec<_>>()
            }).collect::<Vec<_>>());
        }
    }
}
