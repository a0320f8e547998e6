//! Parsing of a command line as a verb, a command for ranks, or a job. Also the hint for a job whose program was meant as
//! something else: as a verb, which was mistyped or typed behind options, as the number of ranks, or as a flag's value.

use super::Verb;
use crate::cli::args::JobArgs;
use crate::cli::command_line::{CommandLine, UsageError, parse_job, value_of_flag};
use clap::{Command, CommandFactory, FromArgMatches, Subcommand, ValueHint};
use rlaunch_client::command;
use rlaunch_text::shell::quoted;
use std::ffi::{OsStr, OsString};

#[derive(Debug)]
pub(crate) enum Invocation {
    Verb(Box<Verb>, Box<CommandLine>),
    /// Command for use inside a rank, with its words: `barrier`, or `kv get KEY`.
    RankCommand(Vec<OsString>),
}

impl Invocation {
    /// Parses a command line, which begins with the command's name. If the second word is neither a verb nor
    /// a command for ranks, the command line is that of a job.
    pub(crate) fn parse(typed: Vec<OsString>) -> Result<Invocation, UsageError> {
        let first = typed.get(1).and_then(|word| word.to_str()).unwrap_or_default();
        if Verb::has_subcommand(first) {
            return parse_verb(&typed);
        }
        if command::VERBS.contains(&first) {
            return Ok(Invocation::RankCommand(typed.into_iter().skip(1).collect()));
        }
        let parsed = parse_job(typed.clone());
        let (args, line) = parsed.map_err(|error| error.with_help_of(definition(), typed))?;
        Ok(Invocation::Verb(Box::new(Verb::Job(Box::new(args))), Box::new(line)))
    }
}

/// Returns the definition of all options and verbs, for help, completions and manual pages. It is not used to
/// parse jobs, since it takes the first word behind options for a verb.
pub(super) fn definition() -> Command {
    let hint = ValueHint::CommandWithArguments;
    let job = JobArgs::command().mut_arg("argv", |argv| argv.value_hint(hint));
    let job = job.subcommand_negates_reqs(true).disable_help_subcommand(true);
    // `augment_subcommands` replaces both texts by the doc comment of `Verb`.
    let about = job.get_about().cloned().unwrap_or_default();
    let long_about = job.get_long_about().cloned().unwrap_or_default();
    Verb::augment_subcommands(job).about(about).long_about(long_about)
}

fn parse_verb(typed: &[OsString]) -> Result<Invocation, UsageError> {
    let rlaunch = Command::new("rlaunch").max_term_width(100).disable_help_subcommand(true);
    let rlaunch = Verb::augment_subcommands(rlaunch);
    let (mut verb, mut depth) = (&rlaunch, 1);
    while let Some(found) = typed.get(depth).and_then(|word| verb.find_subcommand(word)) {
        verb = found;
        depth += 1;
    }
    let (names, options) = typed.split_at(depth);
    let line = CommandLine::prepare(verb, [&names[..1], options].concat())?;
    let words = names.iter().chain(line.words.iter().skip(1));
    let matches = rlaunch.try_get_matches_from(words)?;
    let verb = Verb::from_arg_matches(&matches)?;
    Ok(Invocation::Verb(Box::new(verb), Box::new(line)))
}

/// Returns a hint with the command line that was meant; `None` if the program is not a number and resembles no verb.
pub(super) fn verb_hint(args: &JobArgs) -> Option<String> {
    let (program, arguments) = args.command.argv.split_first()?;
    let at = args.typed.len().checked_sub(arguments.len() + 1)?;
    let (before, rest) = args.typed.split_at(at);
    let is_forced = before.last().is_some_and(|word| word == "--");
    if rest != args.command.argv || is_forced || !args.other_programs.is_empty() {
        return None;
    }
    if let Some(tip) = value_of_flag(args) {
        return Some(tip);
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
    use crate::cli::args::COMMON;
    use crate::commands::bench::BenchCommand;
    use clap::error::ErrorKind;

    fn help(line: &str) -> String {
        match Invocation::parse(line.split(' ').map(OsString::from).collect()) {
            Err(UsageError::Clap(error)) => error.to_string(),
            other => panic!("{line}: {other:?}"),
        }
    }

    #[test]
    fn the_whole_definition_is_sound() {
        definition().debug_assert();
    }

    #[test]
    fn short_help_lists_verbs_and_the_options_that_people_use_most() {
        let (short, long) = (help("rlaunch -h"), help("rlaunch -H a --help"));
        assert!(short.starts_with("Start one program") && long.starts_with("Start one program"));
        let definition = definition();
        assert!(definition.get_subcommands().count() > 0);
        for verb in definition.get_subcommands().map(Command::get_name) {
            let line = |text: &str| text.lines().any(|l| l.starts_with(&format!("  {verb} ")));
            assert!(line(&short) && line(&long), "{verb}: {short}");
        }
        for option in COMMON {
            assert!(short.contains(&format!("--{option}")), "{option}: {short}");
        }
        let topo = help("rlaunch topo -h");
        assert!(topo.contains("Usage: rlaunch topo [OPTIONS]"), "{topo}");
        // Options and the verbs' lines, each of which fits a terminal of 100 columns.
        assert!(short.lines().count() <= 60, "{short}");
        assert!(!short.contains("--oversubscribe") && long.contains("--oversubscribe"), "{short}");
    }

    #[test]
    fn a_verb_in_a_verb_has_its_own_options() {
        let parse = |line: &str| {
            let words = line.split(' ').map(OsString::from).collect();
            match Invocation::parse(words) {
                Ok(Invocation::Verb(verb, line)) => (*verb, line.words),
                other => panic!("{line}: {other:?}"),
            }
        };
        let (verb, words) = parse("rlaunch bench train -np 1,2 -bind-to none ./train -np 3");
        let Verb::Bench(command) = verb else { panic!("{verb:?}") };
        assert!(matches!(*command, BenchCommand::Train(_)), "{command:?}");
        assert_eq!(words, ["rlaunch", "--np", "1,2", "--bind=none", "./train", "-np", "3"]);
        let (verb, _) = parse("rlaunch bench lat -np 2");
        let Verb::Bench(command) = verb else { panic!("{verb:?}") };
        assert!(matches!(*command, BenchCommand::Measure(_)), "{command:?}");
    }

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

    /// Every verb with a letter too few: what the hint names is a verb with words that it takes, or its help.
    #[test]
    fn no_hint_leads_to_another() {
        let words = |line: &str| line.split(' ').map(OsString::from).collect::<Vec<_>>();
        let definition = definition();
        let own = definition.get_subcommands().map(Command::get_name);
        let mut hints = 0;
        for verb in own.chain(command::VERBS.iter().copied()) {
            for rest in ["", " x", " -H a", " -H a x", " --json"] {
                let line = format!("rlaunch {}{rest}", &verb[..verb.len() - 1]);
                let Ok((args, _)) = parse_job(words(&line)) else { continue };
                let Some(hint) = verb_hint(&args) else { continue };
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
            assert_eq!(hint(typed), None, "{typed}");
        }
    }
}
