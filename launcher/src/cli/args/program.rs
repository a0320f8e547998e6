//! The program of a job, and several programs with `:` between them.

use super::{CompatArgs, JobArgs, ProcessArgs, values};
use crate::cli::compat::{self, Notices};
use clap::error::ErrorKind;
use clap::{ArgAction, CommandFactory, Parser};
use std::ffi::OsString;
use std::os::unix::ffi::{OsStrExt, OsStringExt};

/// Program and its arguments: the last words of a command line.
#[derive(Clone, Debug, clap::Args)]
pub(crate) struct CommandArgs {
    /// Program and its arguments
    #[arg(
        trailing_var_arg = true,
        allow_hyphen_values = true,
        value_name = "PROGRAM",
        required = true
    )]
    pub(crate) argv: Vec<OsString>,
}

/// Options that relate a program to the other programs of the job.
#[derive(Clone, Debug, clap::Args)]
pub(crate) struct ApplicationArgs {
    /// Name of this program, for --after and templates
    #[arg(long, value_name = "NAME", help_heading = "Several programs")]
    pub(crate) name: Option<String>,

    /// Start this program only when all conditions are met: NAME (the ranks of that program have been
    /// started), ready:tcp:HOST:PORT (HOST, one of the job's or any other, accepts connections at PORT)
    #[arg(
        long, value_name = "CONDITION,...", value_delimiter = ',', action = ArgAction::Append,
        help_heading = "Several programs"
    )]
    pub(crate) after: Vec<String>,

    /// Write DEST on the program's hosts: FILE with its placeholders, as {{host.oob_ip}}, replaced
    ///
    /// DEST is relative to the working directory. Only the user may read it, and it is removed when the job
    /// ends.
    #[arg(
        long, value_name = "FILE:DEST", action = ArgAction::Append,
        help_heading = "Several programs"
    )]
    pub(crate) template: Vec<String>,
}

/// Options and program behind a `:`.
#[derive(Clone, Debug, Parser)]
#[command(
    name = "rlaunch ... :",
    max_term_width = 100,
    override_usage = "rlaunch [OPTIONS] PROGRAM [ARGUMENT]... : [OPTIONS] PROGRAM [ARGUMENT]..."
)]
pub(crate) struct ProgramArgs {
    /// Its hosts; by default those of the job, from the first free slot on
    #[arg(
        short = 'H', long = "host", visible_alias = "hosts", value_name = "HOST[:N],...",
        action = ArgAction::Append
    )]
    pub(crate) hosts: Vec<String>,

    /// Number of its ranks; by default one for each slot
    #[arg(short = 'n', long = "np", value_name = "N", value_parser = values::parse_ranks)]
    pub(crate) ranks: Option<u32>,

    #[command(flatten)]
    pub(crate) process: ProcessArgs,

    #[command(flatten)]
    pub(crate) application: ApplicationArgs,

    #[command(flatten)]
    pub(crate) compat: CompatArgs,

    #[command(flatten)]
    pub(crate) command: CommandArgs,
}

impl ProgramArgs {
    /// Parses the options and the program between two `:`. Options of other launchers are translated.
    pub(crate) fn parse(words: &[OsString]) -> Result<(ProgramArgs, Notices), clap::Error> {
        let command = ProgramArgs::command();
        let mut typed: Vec<OsString> = vec![command.get_name().into()];
        typed.extend_from_slice(words);
        let translated = compat::translate(command, &typed);
        let (words, notices) = translated.map_err(hint_at_job_option)?;
        Ok((ProgramArgs::try_parse_from(words)?, notices))
    }
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

/// Splits a command line at every `:` into the words of each program. The command's name is the first word of
/// the first program. The word `\:` becomes `:`.
pub(crate) fn split_programs(typed: &[OsString]) -> Vec<Vec<OsString>> {
    let words = |part: &[OsString]| part.iter().map(unescape).collect();
    typed.split(|word| word == ":").map(words).collect()
}

/// Removes one backslash from a word that has only backslashes before a colon: `\:` becomes `:`, and `\\:`
/// becomes `\:`.
fn unescape(word: &OsString) -> OsString {
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
        ProgramArgs::command().debug_assert();
    }

    #[test]
    fn a_colon_of_its_own_begins_another_program() {
        let parts = split_programs(&words("rlaunch -H a -np 1 x a:b : -np 2 y \\: : z"));
        assert_eq!(parts, [words("rlaunch -H a -np 1 x a:b"), words("-np 2 y :"), words("z")]);
        assert_eq!(split_programs(&words("x \\\\: \\ a\\: \\a:")), [words("x \\: \\ a\\: \\a:")]);
    }

    #[test]
    fn each_program_has_options_of_its_own() {
        let line =
            "-H a,b -np 2 -x A=1 --name srv --after x,ready:tcp:a:80 --template f:/g p -np 3";
        let (args, _) = ProgramArgs::parse(&words(line)).unwrap();
        assert_eq!((args.hosts, args.ranks), (vec!["a,b".to_owned()], Some(2)));
        assert_eq!(args.application.name.as_deref(), Some("srv"));
        assert_eq!(args.application.after, ["x", "ready:tcp:a:80"]);
        assert_eq!(args.application.template, ["f:/g"]);
        assert_eq!(args.command.argv, ["p", "-np", "3"]);
    }

    #[test]
    fn options_of_the_job_are_not_a_programs() {
        let error = ProgramArgs::parse(&words("--tag-output p")).unwrap_err().to_string();
        assert!(error.contains("'--tag-output' is for all programs"), "{error}");
        let error = ProgramArgs::parse(&words("--tag-outptu p")).unwrap_err().to_string();
        assert!(error.contains("unexpected argument '--tag-outptu'"), "{error}");
        assert!(ProgramArgs::parse(&[]).is_err());
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
            let parts = split_programs(&typed.join(&OsString::from(":")));
            prop_assert_eq!(parts, programs.into_iter().map(|words| {
                words.into_iter().map(OsString::from).collect::<Vec<_>>()
            }).collect::<Vec<_>>());
        }
    }
}
