//! A verb that was typed where only a program can be, or with a letter wrong.

use super::Args;
use super::invocation::VERBS;
use rlaunch_bootstrap::client::command;
use rlaunch_console::shell::quoted;
use std::ffi::{OsStr, OsString};

impl Args {
    /// Says what to type if the program, which is on no host, was meant as a verb.
    pub(crate) fn verb_hint(&self) -> Option<String> {
        let (program, arguments) = self.command.argv.split_first()?;
        let at = self.typed.len().checked_sub(arguments.len() + 1)?;
        let (before, rest) = self.typed.split_at(at);
        let is_forced = before.last().is_some_and(|word| word == "--");
        if rest != self.command.argv || is_forced || !self.others.is_empty() {
            return None;
        }
        let options = before.get(1..)?;
        let typed: Vec<OsString> = [options, arguments].concat();
        let (verb, words) = nearest(program.to_str()?, typed, options.is_empty())?;
        let words = words.iter().map(|word| format!(" {}", quoted(word)));
        Some(format!("if the verb is meant: rlaunch {verb}{}", words.collect::<String>()))
    }
}

/// Finds the verb that a word is or resembles, and what is to follow it: what was typed, if the verb takes
/// it.
fn nearest(
    word: &str,
    typed: Vec<OsString>,
    is_first: bool,
) -> Option<(&'static str, Vec<OsString>)> {
    let own = VERBS.iter().map(|(verb, ..)| *verb);
    // Ranks' commands take no option before them.
    let of_ranks = command::VERBS.iter().copied().filter(|_| is_first);
    let distance = |verb: &str| strsim::damerau_levenshtein(verb, word);
    let near = own.chain(of_ranks).filter(|verb| distance(verb) <= verb.len() / 4);
    let verb = near.min_by_key(|verb| distance(verb))?;
    let takes = |(_, _, define): &(_, _, fn() -> clap::Command)| {
        let line = std::iter::once(OsStr::new("rlaunch")).chain(typed.iter().map(|word| &**word));
        define().try_get_matches_from(line).is_ok()
    };
    match VERBS.iter().find(|(name, ..)| *name == verb) {
        Some(found) if !takes(found) => Some((verb, vec!["--help".into()])),
        _ => Some((verb, typed)),
    }
}

#[cfg(test)]
mod tests {
    use super::super::Invocation;

    fn hint(line: &str) -> Option<String> {
        let words = line.split(' ').map(Into::into).collect();
        let Ok(Invocation::Run(args)) = Invocation::parse(words) else { panic!("{line}") };
        let hint = args.verb_hint()?;
        Some(hint.strip_prefix("if the verb is meant: ").unwrap().to_owned())
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
