//! Hint for a job whose program was meant as something else: as a verb, which was mistyped or typed behind options, or
//! as the number of ranks.

use super::invocation::definition;
use crate::cli::args::JobArgs;
use clap::Command;
use rlaunch_client::command;
use rlaunch_text::shell::quoted;
use std::ffi::{OsStr, OsString};

/// Returns a hint with the command line that was meant; `None` if the program is not a number and resembles no verb.
pub(super) fn verb_hint(args: &JobArgs) -> Option<String> {
    let (program, arguments) = args.command.argv.split_first()?;
    let at = args.typed.len().checked_sub(arguments.len() + 1)?;
    let (before, rest) = args.typed.split_at(at);
    let is_forced = before.last().is_some_and(|word| word == "--");
    if rest != args.command.argv || is_forced || !args.other_programs.is_empty() {
        return None;
    }
    let options = before.get(1..)?;
    let program = program.to_str()?;
    if program.parse::<u32>().is_ok() && !arguments.is_empty() {
        let number = ["-np".into(), program.into()];
        let words = [options, &number, arguments].concat();
        return Some(format!("for {program} ranks: rlaunch{}", quoted_words(&words)));
    }
    let typed: Vec<OsString> = [options, arguments].concat();
    let (verb, words) = nearest_verb(program, typed, options.is_empty())?;
    Some(format!("for the verb: rlaunch {verb}{}", quoted_words(&words)))
}

fn quoted_words(words: &[OsString]) -> String {
    words.iter().map(|word| format!(" {}", quoted(word))).collect()
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
    fn a_number_was_meant_for_np() {
        let hint = |line: &str| {
            let words = line.split(' ').map(Into::into).collect();
            verb_hint(&parse_job(words).unwrap().0)
        };
        let expected = "for 4 ranks: rlaunch -H a,b -np 4 python3 train.py";
        assert_eq!(hint("rlaunch -H a,b 4 python3 train.py").as_deref(), Some(expected));
        assert_eq!(hint("rlaunch -H a 4"), None);
        assert_eq!(hint("rlaunch -H a -- 4 x"), None);
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
