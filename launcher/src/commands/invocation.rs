//! Parsing of a command line as a verb, a command for ranks, or a job.

use super::{ALIASES, Verb, overview};
use crate::cli::args::JobArgs;
use crate::cli::command_line::{CommandLine, HOSTS, UsageError, parse_job};
use clap::error::{ContextKind, ContextValue, ErrorKind};
use clap::{Command, CommandFactory, FromArgMatches, Subcommand, ValueHint};
use rlaunch_client::command;
use rlaunch_plan::job::name::LAST;
use rlaunch_text::typed::command_line;
use std::ffi::OsString;
use std::slice;

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
        if is_verb(first, &typed) {
            return parse_verb(&typed);
        }
        if command::VERBS.contains(&first) {
            return Ok(Invocation::RankCommand(typed.into_iter().skip(1).collect()));
        }
        let parsed = parse_job(typed.clone());
        let (args, line) = parsed.map_err(|error| error.with_help_of(of_help, typed))?;
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
    let whole = Verb::augment_subcommands(job).about(about).long_about(long_about);
    whole.mut_subcommands(overview::with_short_connections)
}

/// Returns the definition whose help is that of `-h`, or of `--help`.
fn of_help(is_long: bool) -> Command {
    if is_long { definition() } else { definition().override_help(overview::short_help()) }
}

/// Returns the definition whose long help has all options.
pub(super) fn with_all_options() -> Command {
    definition().mut_args(|arg| arg.hide_long_help(false))
}

/// Tells whether the first word of a command line is a verb. `ssh` is a program too, and the verb only with its option.
fn is_verb(first: &str, typed: &[OsString]) -> bool {
    if first == "ssh" {
        let is_asked = |word: &OsString| word == "--show" || word == "--help" || word == "-h";
        return typed.get(2).is_some_and(is_asked) || typed.last().is_some_and(|w| w == "--show");
    }
    Verb::has_subcommand(first) || ALIASES.contains(&first)
}

fn parse_verb(typed: &[OsString]) -> Result<Invocation, UsageError> {
    let rlaunch = Command::new("rlaunch").max_term_width(100).disable_help_subcommand(true);
    let rlaunch = Verb::augment_subcommands(rlaunch);
    let rlaunch = rlaunch.mut_subcommands(overview::with_short_connections);
    let (mut verb, mut depth) = (&rlaunch, 1);
    while let Some(found) = typed.get(depth).and_then(|word| verb.find_subcommand(word)) {
        verb = found;
        depth += 1;
    }
    let (names, options) = typed.split_at(depth);
    let line = CommandLine::prepare(verb, [&names[..1], options].concat())?;
    let words = names.iter().chain(line.words.iter().skip(1));
    let matches = rlaunch.try_get_matches_from(words).map_err(|error| with_tip(error, typed))?;
    let verb = Verb::from_arg_matches(&matches)?;
    Ok(Invocation::Verb(Box::new(verb), Box::new(line)))
}

/// Adds the command line that was meant to the error of another.
fn with_tip(mut error: clap::Error, typed: &[OsString]) -> clap::Error {
    if let Some(ContextValue::StyledStrs(tips)) = error.get(ContextKind::Suggested) {
        // What clap does not know is an option of another tool or verb, not a value.
        let is_value = tips.iter().any(|tip| tip.to_string().contains("as a value"));
        if is_value {
            error.remove(ContextKind::Suggested);
        }
    }
    drop_far_tip(&mut error);
    let words = typed.get(1..).unwrap_or_default();
    let Some((verb, rest)) = words.split_first() else { return error };
    let is_option = |word: &OsString| word.as_encoded_bytes().starts_with(b"-");
    let names_hosts = |word: &OsString| word.to_str().is_some_and(|word| HOSTS.contains(&word));
    let (what, word) = match (verb.to_str(), error.kind()) {
        (Some("network"), ErrorKind::UnknownArgument) if rest.first().is_some_and(is_option) => {
            ("which port is cabled to which", "discover")
        }
        (Some("reap"), ErrorKind::MissingRequiredArgument) => ("the last job", LAST),
        _ => return with_other_line(error, verb, rest),
    };
    let mut meant = [slice::from_ref(verb), &[OsString::from(word)][..], rest].concat();
    if !rest.iter().any(names_hosts) {
        meant.extend(["-H", "HOSTS"].map(OsString::from));
    }
    let tip = format!("{what}: {}", command_line(&meant));
    error.insert(ContextKind::Suggested, ContextValue::StyledStrs(vec![tip.into()]));
    error
}

/// Removes what clap suggests in the place of an option if that is more than a slip of the finger: `--pull` for `--all`. The
/// usage that comes with it has that option.
fn drop_far_tip(error: &mut clap::Error) {
    let (Some(ContextValue::String(typed)), Some(ContextValue::String(tip))) =
        (error.get(ContextKind::InvalidArg), error.get(ContextKind::SuggestedArg))
    else {
        return;
    };
    let typed = typed.trim_start_matches('-');
    let distance = strsim::damerau_levenshtein(typed, tip.trim_start_matches('-'));
    if distance > (typed.len() / 3).max(1) {
        error.remove(ContextKind::SuggestedArg);
        error.remove(ContextKind::Usage);
    }
}

/// Adds the command line that was meant where the verb, or an option that it lacks, was not.
fn with_other_line(mut error: clap::Error, verb: &OsString, rest: &[OsString]) -> clap::Error {
    let names_hosts = rest.iter().any(|word| word.to_str().is_some_and(|w| HOSTS.contains(&w)));
    let are_names = rest.iter().all(|word| !word.as_encoded_bytes().starts_with(b"-"));
    let tip = match (verb.to_str().unwrap_or_default(), error.kind()) {
        ("exec" | "shell", ErrorKind::UnknownArgument) if names_hosts => {
            format!("a program on hosts: {}", command_line(rest))
        }
        ("stop", ErrorKind::UnknownArgument)
            if rest.iter().any(|word| word == "--all" || word == "-a") =>
        {
            "one job at a time: rlaunch stop NAME (rlaunch jobs lists them)".to_owned()
        }
        ("doctor" | "topo" | "capture" | "up" | "down", ErrorKind::UnknownArgument)
            if are_names =>
        {
            let hosts = rest.iter().map(|word| word.to_string_lossy()).collect::<Vec<_>>();
            let meant = [verb.clone(), "-H".into(), hosts.join(",").into()];
            format!("hosts: {}", command_line(&meant))
        }
        ("bench", ErrorKind::InvalidValue) if is_invalid(&error, rest.first()) => {
            let hosts = rest.get(1..).filter(|_| names_hosts).unwrap_or_default().to_vec();
            let none = vec!["-H".into(), "HOSTS".into()];
            let hosts = if hosts.is_empty() { none } else { hosts };
            let meant = [vec![verb.clone()], hosts].concat();
            format!("the links between hosts: {}", command_line(&meant))
        }
        _ => return error,
    };
    error.insert(ContextKind::Suggested, ContextValue::StyledStrs(vec![tip.into()]));
    error
}

/// Tells whether `word` is the value to which an error objects.
fn is_invalid(error: &clap::Error, word: Option<&OsString>) -> bool {
    let Some(ContextValue::String(value)) = error.get(ContextKind::InvalidValue) else {
        return false;
    };
    word.is_some_and(|word| **word == **value)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::commands::bench::BenchCommand;

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
    fn a_verb_has_its_own_help() {
        let topo = help("rlaunch topo -h");
        assert!(topo.contains("Usage: rlaunch topo [OPTIONS]"), "{topo}");
        assert!(help("rlaunch -H a --help").starts_with("Start one program"));
    }

    #[test]
    fn ssh_is_a_verb_only_with_its_option() {
        let parse = |line: &str| {
            let words = line.split(' ').map(OsString::from).collect();
            match Invocation::parse(words) {
                Ok(Invocation::Verb(verb, _)) => *verb,
                other => panic!("{line}: {other:?}"),
            }
        };
        for line in ["rlaunch ssh --show a", "rlaunch ssh a b --show"] {
            assert!(matches!(parse(line), Verb::Ssh(_)), "{line}");
        }
        for line in ["rlaunch ssh a hostname", "rlaunch ssh a ls -h"] {
            assert!(matches!(parse(line), Verb::Job(_)), "{line}");
        }
        assert!(matches!(parse("rlaunch ssh-config a"), Verb::SshConfig(_)));
    }

    #[test]
    fn another_word_for_a_verb_is_the_verb() {
        let definition = definition();
        let aliases = definition.get_subcommands().flat_map(Command::get_all_aliases);
        assert_eq!(aliases.collect::<Vec<_>>(), ALIASES);
        let words = ["rlaunch", "status", "--json"].map(OsString::from).to_vec();
        let Ok(Invocation::Verb(verb, _)) = Invocation::parse(words) else { panic!() };
        assert!(matches!(*verb, Verb::Jobs(_)), "{verb:?}");
    }

    #[test]
    fn options_of_other_tools_are_understood_or_answered() {
        let parse = |line: &str| {
            let words = line.split(' ').map(OsString::from).collect();
            match Invocation::parse(words) {
                Ok(Invocation::Verb(verb, _)) => Ok(*verb),
                Err(error) => Err(error.to_string()),
                other => panic!("{line}: {other:?}"),
            }
        };
        let Ok(Verb::Logs(args)) = parse("rlaunch logs --tail 2") else { panic!() };
        assert_eq!(args.lines, Some(2));
        let Ok(Verb::Stop(args)) = parse("rlaunch stop -f amber-fox") else { panic!() };
        assert!(args.force);
        for verb in ["rerun", "stop", "wait", "jobs", "stack", "monitor"] {
            let error = parse(&format!("rlaunch {verb} -3")).unwrap_err();
            assert!(error.contains("`rlaunch jobs -n 3` lists the last 3"), "{error}");
            assert!(!error.contains("-- -3"), "{error}");
        }
        assert!(parse("rlaunch logs -3").unwrap_err().contains("-n 3 prints the last lines"));
        for (typed, meant) in [
            ("network -H a,b", "network discover -H a,b"),
            ("reap -H a,b", "reap last -H a,b"),
            ("reap", "reap last -H HOSTS"),
        ] {
            let error = parse(&format!("rlaunch {typed}")).unwrap_err();
            assert!(error.contains(&format!(": rlaunch {meant}\n")), "{error}");
            assert!(parse(&format!("rlaunch {meant}")).is_ok(), "{meant}");
        }
        for (typed, tip) in [
            ("exec -H a,b hostname", "a program on hosts: rlaunch -H a,b hostname"),
            ("shell -H a,b hostname", "a program on hosts: rlaunch -H a,b hostname"),
            ("doctor a b", "hosts: rlaunch doctor -H a,b"),
            ("up a b c", "hosts: rlaunch up -H a,b,c"),
            ("bench links -H a,b", "the links between hosts: rlaunch bench -H a,b"),
            ("bench links", "the links between hosts: rlaunch bench -H HOSTS"),
            ("stop --all", "one job at a time: rlaunch stop NAME"),
            ("stop -a", "one job at a time: rlaunch stop NAME"),
        ] {
            let error = parse(&format!("rlaunch {typed}")).unwrap_err();
            assert!(error.contains(tip) && !error.contains("as a value"), "{error}");
            assert!(!error.contains("--pull"), "{error}");
        }
        let error = parse("rlaunch stop --frce").unwrap_err();
        assert!(error.contains("'--force'"), "{error}");
        let error = parse("rlaunch network mesh --no-such").unwrap_err();
        assert!(!error.contains("discover"), "{error}");
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
        assert!(matches!(*command, BenchCommand::Measure(..)), "{command:?}");
    }
}
