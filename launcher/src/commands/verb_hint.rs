//! Hint for a job whose program was meant as a verb: the verb was mistyped, or typed behind options.

use super::invocation::definition;
use crate::cli::args::JobArgs;
use clap::Command;
use rlaunch_bootstrap::client::command;
use rlaunch_console::shell::quoted;
use std::ffi::{OsStr, OsString};

/// Returns a hint with the command line of a verb; `None` if the program resembles no verb.
pub(super) fn verb_hint(args: &JobArgs) -> Option<String> {
    let (program, arguments) = args.command.argv.split_first()?;
    let at = args.typed.len().checked_sub(arguments.len() + 1)?;
    let (before, rest) = args.typed.split_at(at);
    let is_forced = before.last().is_some_and(|word| word == "--");
    if rest != args.command.argv || is_forced || !args.other_programs.is_empty() {
        return None;
    }
    let options = before.get(1..)?;
    let typed: Vec<OsString> = [options, arguments].concat();
    let (verb, words) = nearest_verb(program.to_str()?, typed, options.is_empty())?;
    let words = words.iter().map(|word| format!(" {}", quoted(word)));
    Some(format!("for the verb: rlaunch {verb}{}", words.collect::<String>()))
}

/// Finds the verb that `word` is or resembles, and the words to type after the verb: `typed` if the verb
/// accepts them, otherwise `--help`. A command for ranks, such as `barrier`, is found only if `word` is the
/// first word, because such commands follow no options.
fn nearest_verb(
    word: &str,
    typed: Vec<OsString>,
    is_first: bool,
) -> Option<(String, Vec<OsString>)> {
    let definition = definition();
    let own = definition.get_subcommands().map(Command::get_name);
    let of_ranks = command::VERBS.iter().copied().filter(|_| is_first);
    let distance = |verb: &str| strsim::damerau_levenshtein(verb, word);
    let near = own.chain(of_ranks).filter(|verb| distance(verb) <= verb.len() / 4);
    let verb = near.min_by_key(|verb| distance(verb))?.to_owned();
    let accepts = |command: &Command| {
        let line = std::iter::once(OsStr::new("rlaunch")).chain(typed.iter().map(|word| &**word));
        command.clone().try_get_matches_from(line).is_ok()
    };
    match definition.find_subcommand(&verb) {
        Some(command) if !accepts(command) => Some((verb, vec!["--help".into()])),
        _ => Some((verb, typed)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cli::command_line::parse_job;

    fn hint(line: &str) -> Option<String> {
        let words = line.split(' ').map(Into::into).collect();
        let (args, _) = parse_job(words).unwrap();
        Some(verb_hint(&args)?.strip_prefix("for the verb: ").unwrap().to_owned())
    }

    #[test]
    fn a_mistyped_or_late_verb_is_named_as_it_should_be_typed() {
        for (typed, meant) in [
            ("rlaunch tpo -H a", "rlaunch topo -H a"),
            ("rlaunch -H a topo", "rlaunch topo -H a"),
            ("rlaunch -H a,b topo --gids", "rlaunch topo -H a,b --gids"),
            ("rlaunch captrue -H a -o x.tar", "rlaunch capture -H a -o x.tar"),
            ("rlaunch -H a bench", "rlaunch bench --help"),
            ("rlaunch hlep env", "rlaunch help env"),
            ("rlaunch bariier epoch", "rlaunch barrier epoch"),
        ] {
            assert_eq!(hint(typed).as_deref(), Some(meant), "{typed}");
        }
    }

    #[test]
    fn other_programs_are_no_verbs() {
        for typed in [
            "rlaunch -H a hostname",
            "rlaunch -H a -- topo",
            "rlaunch -H a ./topo",
            "rlaunch -H a barrier",
            "rlaunch -H a topo : hostname",
            "rlaunch mpi",
        ] {
            assert_eq!(hint(typed), None, "{typed}");
        }
    }
}
