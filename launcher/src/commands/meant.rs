//! What a command line was meant as that is typed as a job: a verb that was mistyped or typed behind options, a word of
//! another tool, the number of ranks, a flag's value, or options that stand behind the program.

use super::invocation::definition;
use crate::cli::args::JobArgs;
use crate::cli::command_line::{HOSTS, is_program_here, value_of_flag};
use clap::Command;
use rlaunch_client::command;
use rlaunch_plan::hosts;
use rlaunch_text::exit::Exit;
use rlaunch_text::message::Failed;
use rlaunch_text::typed::command_line;
use std::ffi::{OsStr, OsString};

/// Words of other tools, what people want of them, and the command of rlaunch that does it.
const FOREIGN: [(&str, &str, &str); 4] = [
    ("ps", "your running jobs", "rlaunch jobs"),
    ("ls", "your running jobs", "rlaunch jobs"),
    ("top", "what a job and its hosts do", "rlaunch monitor"),
    ("kill", "the end of a running job", "rlaunch stop"),
];

/// Command line of a job with one program that does not stand behind `--`.
struct Words<'a> {
    options: &'a [OsString],
    program: &'a OsString,
    arguments: &'a [OsString],
}

impl<'a> Words<'a> {
    fn of(args: &'a JobArgs) -> Option<Words<'a>> {
        let (program, arguments) = args.command.argv.split_first()?;
        let at = args.typed.len().checked_sub(arguments.len() + 1)?;
        let (before, rest) = args.typed.split_at(at);
        let is_forced = before.last().is_some_and(|word| word == "--");
        if rest != args.command.argv || is_forced || !args.other_programs.is_empty() {
            return None;
        }
        Some(Words { options: before.get(1..)?, program, arguments })
    }

    /// Returns the first word, if it is the program.
    fn first(&self) -> Option<&'a str> {
        self.program.to_str().filter(|_| self.options.is_empty())
    }
}

/// Refuses a command line whose first word is no program here and resembles a verb, before a job leaves a record.
pub(super) fn refuse(args: &JobArgs) -> Result<(), Failed> {
    let Some(words) = Words::of(args) else { return Ok(()) };
    let Some(first) = words.first().filter(|first| !is_program_here(OsStr::new(first))) else {
        return Ok(());
    };
    let Some(meant) = foreign(first).or_else(|| near_verb(&words)) else { return Ok(()) };
    let message = format!("`{first}` is neither a verb of rlaunch nor a program here");
    let mut forced = vec![OsString::from("--")];
    forced.extend_from_slice(&args.command.argv);
    let forced = format!("for a program that hosts have: {}", command_line(&forced));
    Err(Failed::new(Exit::NOT_FOUND, message).hint(Some(meant)).hint(Some(forced)))
}

/// Returns a hint for a first word that is a program, and a verb of other tools.
pub(super) fn aside(args: &JobArgs) -> Option<String> {
    foreign(Words::of(args)?.first()?)
}

fn foreign(word: &str) -> Option<String> {
    let (_, what, command) = FOREIGN.iter().find(|(known, ..)| *known == word)?;
    Some(format!("{what}: {command}"))
}

/// Returns a hint with the command line that was meant, for a program that is not found. `None` if it is not a number and
/// resembles no verb.
pub(super) fn hint(args: &JobArgs) -> Option<String> {
    let words = Words::of(args)?;
    if let Some(tip) = value_of_flag(args) {
        return Some(tip);
    }
    let Words { options, program, arguments } = words;
    if program.to_str()?.parse::<u32>().is_ok() && !arguments.is_empty() {
        let number = ["-np".into(), program.clone()];
        let line = command_line(&[options, &number, arguments].concat());
        return Some(format!("for {} ranks: {line}", program.display()));
    }
    near_verb(&words)
}

/// Returns a hint for options that name a job's hosts or ranks and stand behind the program, whose own they are then.
pub(super) fn options_behind(args: &JobArgs) -> Option<String> {
    let words = Words::of(args)?;
    let names_hosts = |word: &OsString| word.to_str().is_some_and(|word| HOSTS.contains(&word));
    if words.options.iter().any(names_hosts) {
        return None;
    }
    let pairs = words.arguments.chunks_exact(2);
    let count = pairs.take_while(|pair| names_hosts(&pair[0]) && is_value(&pair[0], &pair[1]));
    let (own, rest) = words.arguments.split_at(2 * count.count());
    let program = std::slice::from_ref(words.program);
    let line = command_line(&[words.options, own, program, rest].concat());
    (!own.is_empty()).then(|| format!("options of rlaunch stand before the program: {line}"))
}

/// Tells whether a word can be the value of an option that names hosts or ranks.
fn is_value(option: &OsStr, value: &OsStr) -> bool {
    let Some(value) = value.to_str() else { return false };
    match option.to_str() {
        Some("-np" | "--np") => value.parse::<u32>().is_ok(),
        // curl's -H is a header.
        Some("-H") => !value.contains(char::is_whitespace) && hosts::parse(&[value.into()]).is_ok(),
        _ => !value.starts_with('-'),
    }
}

fn near_verb(words: &Words<'_>) -> Option<String> {
    let typed = [words.options, words.arguments].concat();
    let program = words.program.to_str()?;
    let (verb, rest) = nearest_verb(program, typed, words.options.is_empty())?;
    let line = [&[OsString::from(verb)][..], &rest[..]].concat();
    Some(format!("for the verb: {}", command_line(&line)))
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
    let own = definition.get_subcommands().filter(|verb| !verb.is_hide_set());
    let own = own.flat_map(|verb| std::iter::once(verb.get_name()).chain(verb.get_all_aliases()));
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
    use crate::cli::command_line::{UsageError, parse_job};
    use crate::commands::{Invocation, Verb};
    use clap::error::ErrorKind;

    fn words(line: &str) -> Vec<OsString> {
        line.split(' ').map(OsString::from).collect()
    }

    fn job(line: &str) -> JobArgs {
        parse_job(words(line)).unwrap().0
    }

    fn verb_hint(line: &str) -> Option<String> {
        Some(hint(&job(line))?.strip_prefix("for the verb: ").unwrap().to_owned())
    }

    #[test]
    fn a_number_was_meant_for_np() {
        let hint = |line: &str| hint(&job(line));
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
            ("rlaunch -H a bench", "rlaunch bench -H a"),
            ("rlaunch hlep env", "rlaunch help env"),
            ("rlaunch statsu", "rlaunch status"),
            ("rlaunch bariier epoch", "rlaunch barrier epoch"),
        ] {
            assert_eq!(verb_hint(typed).as_deref(), Some(meant), "{typed}");
        }
    }

    /// Every verb with a letter too few: what the hint names is a verb with words that it takes, or its help.
    #[test]
    fn no_hint_leads_to_another() {
        let definition = definition();
        let own = definition.get_subcommands().map(Command::get_name);
        let mut hints = 0;
        for verb in own.chain(command::VERBS.iter().copied()) {
            for rest in ["", " x", " -H a", " -H a x", " --json"] {
                let line = format!("rlaunch {}{rest}", &verb[..verb.len() - 1]);
                let Ok((args, _)) = parse_job(words(&line)) else { continue };
                let Some(hint) = hint(&args) else { continue };
                let meant = hint.strip_prefix("for the verb: ").unwrap();
                hints += 1;
                match Invocation::parse(words(meant)) {
                    Ok(Invocation::Verb(verb, _)) => {
                        assert!(!matches!(*verb, Verb::Job(_)), "{line}: {meant}");
                    }
                    Ok(Invocation::RankCommand(_)) => {}
                    Err(UsageError::Clap(error)) => {
                        assert_eq!(
                            error.kind(),
                            ErrorKind::DisplayHelp,
                            "{line}: {meant}: {error}"
                        );
                    }
                    Err(error) => panic!("{line}: {meant}: {error}"),
                }
            }
        }
        assert!(hints > 20, "{hints}");
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
            assert_eq!(verb_hint(typed), None, "{typed}");
        }
    }

    #[test]
    fn a_first_word_near_a_verb_starts_no_job() {
        let failed = refuse(&job("rlaunch monitr --once")).unwrap_err();
        assert_eq!(failed.exit, Exit::NOT_FOUND);
        assert_eq!(failed.message, "`monitr` is neither a verb of rlaunch nor a program here");
        let expected = [
            "for the verb: rlaunch monitor --once",
            "for a program that hosts have: rlaunch -- monitr --once",
        ];
        assert_eq!(failed.hints, expected);
        for line in ["rlaunch -- monitr", "rlaunch -H a monitr", "rlaunch sh", "rlaunch no-such"] {
            assert!(refuse(&job(line)).is_ok(), "{line}");
        }
    }

    #[test]
    fn words_of_other_tools_are_programs_where_there_are_such() {
        let aside = |line: &str| aside(&job(line));
        assert_eq!(aside("rlaunch ps").as_deref(), Some("your running jobs: rlaunch jobs"));
        assert_eq!(aside("rlaunch -H a ps"), None);
        assert_eq!(aside("rlaunch psql"), None);
        assert!(refuse(&job("rlaunch ls -l")).is_ok());
        for (word, _, command) in FOREIGN {
            let hint = foreign(word).unwrap();
            assert!(hint.ends_with(command), "{hint}");
            let verb = Invocation::parse(words(command));
            assert!(matches!(verb, Ok(Invocation::Verb(..))), "{command}");
        }
    }

    #[test]
    fn options_behind_the_program_are_brought_before_it() {
        let hint = |line: &str| {
            let hint = options_behind(&job(line))?;
            Some(hint.split_once(": ").unwrap().1.to_owned())
        };
        for (typed, meant) in [
            ("rlaunch sh -H a,b -np 4 x.sh", "rlaunch -H a,b -np 4 sh x.sh"),
            ("rlaunch -q sh -np 4", "rlaunch -q -np 4 sh"),
        ] {
            assert_eq!(hint(typed).as_deref(), Some(meant), "{typed}");
        }
        for typed in [
            "rlaunch -H a sh -H b",
            "rlaunch sh x.sh -np 4",
            "rlaunch sh -np many",
            "rlaunch sh -H",
            "rlaunch -- sh -H a",
        ] {
            assert_eq!(hint(typed), None, "{typed}");
        }
        let header = ["rlaunch", "sh", "-H", "Accept: text"].map(OsString::from).to_vec();
        assert_eq!(options_behind(&parse_job(header).unwrap().0), None);
    }
}
