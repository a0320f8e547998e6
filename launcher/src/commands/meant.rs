//! What a command line was meant as that is typed as a job: a verb that was mistyped or typed behind options, a word of
//! another tool, the number of ranks, a flag's value, hosts with spaces between them, or options that stand behind the program.

use super::found;
use super::invocation::definition;
use crate::cli::args::JobArgs;
use crate::cli::command_line::{HOSTS, is_program_here, value_of_flag};
use crate::cli::config::LoadedConfig;
use crate::cli::host_selection::{HostOptions, HostSelection};
use clap::Command;
use rlaunch_client::command;
use rlaunch_engine::run::record::RecordedJob;
use rlaunch_plan::hosts::{self, Host};
use rlaunch_text::exit::Exit;
use rlaunch_text::message::Failed;
use rlaunch_text::typed::{TypedJob, command_line};
use std::ffi::{OsStr, OsString};
use std::iter;
use std::path::Path;

/// Words of other tools, or words that people try for a verb; what they want of them; the verb that does it, and the words
/// that it has if none were typed that it takes.
const FOREIGN: [(&[&str], &str, &str, &str); 17] = [
    (&["ps", "ls", "list", "queue", "squeue"], "your running jobs", "jobs", ""),
    (&["past", "runs", "sacct"], "jobs that have ended, too", "jobs", "-a"),
    (&["inspect", "info", "show"], "how a job went", "report", "last"),
    (&["again", "restart"], "a job once more", "rerun", ""),
    (&["kill", "cancel", "scancel", "end", "quit"], "the end of a running job", "stop", ""),
    (
        &["where", "why", "hang", "trace", "py-spy", "dump", "bt", "debug"],
        "where each rank of a job is",
        "stack",
        "",
    ),
    (
        &[
            "bandwidth", "net", "links", "speed", "latency", "iperf", "iperf3", "benchmark",
            "compare", "ping",
        ],
        "how fast the links between hosts are",
        "bench",
        "-H HOSTS",
    ),
    (&["check"], "what is wrong with hosts", "doctor", "-H HOSTS"),
    (&["hosts", "nodes", "gpus"], "what hosts have", "topo", "-H HOSTS"),
    (&["tail", "output"], "what a job prints", "logs", "-f"),
    (&["errors", "error", "explain"], "what a job has printed, and why it failed", "logs", "last"),
    (&["top", "htop", "stats"], "what a job and its hosts do", "monitor", ""),
    (
        &["copy", "cp", "scp", "rsync", "upload", "put", "send", "distribute", "deploy"],
        "files to hosts",
        "push",
        "-H HOSTS FILE",
    ),
    (&["download", "pull", "get"], "files of hosts", "fetch", "-H HOSTS PATH"),
    (&["setup", "init", "bootstrap"], "hosts set up as a cluster", "up", "-H HOSTS"),
    (&["undo", "restore", "teardown"], "what was changed on hosts undone", "down", "-H HOSTS"),
    (&["config", "settings"], "settings", "help", "config"),
];

/// Words that people type before the program to start a job; what they want, and the options for it.
const STARTS: [(&[&str], &str, &[&str]); 2] = [
    (&["run", "start", "launch"], "a job needs no verb", &[]),
    (&["submit", "sbatch", "background", "detach", "bg"], "a job in the background", &["-d"]),
];

/// Words of [`FOREIGN`] that run as programs where they are installed, but rarely are meant so.
const TOOLS: [&str; 9] = ["ps", "ls", "squeue", "kill", "top", "htop", "cp", "scp", "rsync"];

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

/// Refuses a command line whose first word is no program here and resembles a verb or stands for one, before a job leaves a
/// record.
pub(super) fn refuse(args: &JobArgs) -> Result<(), Failed> {
    let Some(words) = Words::of(args) else { return Ok(()) };
    let Some(first) = words.first().filter(|first| !is_program_here(OsStr::new(first))) else {
        return Ok(());
    };
    // Settings may name hosts, and those have programs of their own.
    let is_local = args.hosts.hosts.is_empty() && args.hosts.hostfiles.is_empty();
    let word = foreign(first, words.arguments).or_else(|| start(&words)).filter(|_| is_local);
    let Some(meant) = word.or_else(|| near_verb(&words)) else { return Ok(()) };
    let message = format!("`{first}` is neither a verb of rlaunch nor a program here");
    let mut forced = vec![OsString::from("--")];
    forced.extend_from_slice(&args.command.argv);
    let forced = format!("for a program that hosts have: {}", command_line(&forced));
    Err(Failed::new(Exit::NOT_FOUND, message).hint(Some(meant)).hint(Some(forced)))
}

/// Refuses a first word that hosts have as a program, if what stands behind it means a job of the user or one of the hosts:
/// `kill amber-fox`, `cp train.py a:`. The program would know neither, and do something else on every host.
pub(super) async fn refuse_habit(args: &JobArgs, config: &LoadedConfig) -> Result<(), Failed> {
    let Some(habit) = Words::of(args).and_then(|words| Habit::of(&words)) else { return Ok(()) };
    let answer = if habit.is_copy() {
        if !args.command.argv.iter().any(|word| word.as_encoded_bytes().contains(&b':')) {
            return Ok(());
        }
        let options = HostOptions {
            lists: &args.hosts.hosts,
            files: &args.hosts.hostfiles,
            exclude: &args.hosts.exclude,
            table: &config.hosts,
        };
        // What is wrong with the hosts is said when the job is made.
        HostSelection::new(&options).ok().and_then(|selected| habit.copy(&selected.hosts))
    } else {
        habit.job(&found::known_jobs().await)
    };
    answer.map_or(Ok(()), |(because, meant)| Err(habit.refused(&because, meant)))
}

/// First word that is a verb of other tools, with what stands behind it.
struct Habit<'a> {
    word: &'a str,
    what: &'static str,
    verb: &'static str,
    arguments: Vec<&'a str>,
}

impl<'a> Habit<'a> {
    fn of(words: &Words<'a>) -> Option<Habit<'a>> {
        let word = words.first()?;
        let &(_, what, verb, _) = FOREIGN.iter().find(|(words, ..)| words.contains(&word))?;
        let arguments = words.arguments.iter().map(|word| word.to_str());
        let arguments: Vec<&str> = arguments.collect::<Option<_>>()?;
        (!arguments.is_empty()).then_some(Habit { word, what, verb, arguments })
    }

    fn is_copy(&self) -> bool {
        matches!(self.verb, "push" | "fetch")
    }

    /// Finds an argument that is the name of a job, or so much of its id that it is no process id; with a hint. A file of
    /// that name is not meant as a job.
    fn job(&self, jobs: &[RecordedJob]) -> Option<(String, String)> {
        const LONGER_THAN_PROCESS_IDS: usize = 8;
        let is_job = |word: &&&str| {
            let is_id = |job: &RecordedJob| {
                word.len() >= LONGER_THAN_PROCESS_IDS && job.id.starts_with(**word)
            };
            let is_known = jobs.iter().any(|job| job.name == ***word || is_id(job));
            !word.is_empty() && is_known && !Path::new(word).exists()
        };
        let word = *self.arguments.iter().find(is_job)?;
        let definition = definition();
        let verb = definition.find_subcommand(self.verb)?;
        let whole: Vec<OsString> = self.arguments.iter().map(OsString::from).collect();
        let lines = [whole, vec![word.into()]];
        let rest = lines.into_iter().find(|words| accepts(verb, words))?;
        let line = [vec![self.verb.into()], rest].concat();
        let meant = format!("{}: {}", self.what, command_line(&line));
        Some((format!("{word} is a job of yours"), meant))
    }

    /// Finds an argument such as `HOST:` or `HOST:PATH`; with a hint on the copy that was meant.
    fn copy(&self, hosts: &[Host]) -> Option<(String, String)> {
        let on_host = |word: &'a str| {
            let (host, path) = word.split_once(':')?;
            let is_one = hosts.iter().any(|one| one.name == host || one.to_string() == host);
            is_one.then_some((host, path))
        };
        let paths: Vec<&str> =
            self.arguments.iter().copied().filter(|word| !word.starts_with('-')).collect();
        let named = paths.iter().copied().find(|word| on_host(word).is_some())?;
        let because = format!("{named} is a place on a host of the job");
        let (&last, sources) = paths.split_last()?;
        let (what, words) = match (on_host(last), sources) {
            (_, []) => return None,
            (Some((host, directory)), sources)
                if sources.iter().all(|word| on_host(word).is_none()) =>
            {
                let to = |source: &&str| match directory {
                    "" => OsString::from(source),
                    directory => format!("{source}:{directory}").into(),
                };
                let sources: Vec<OsString> = sources.iter().map(to).collect();
                let line = [vec!["push".into(), "-H".into(), host.into()], sources].concat();
                ("files to hosts", line)
            }
            (None, [source]) => {
                let (host, path) = on_host(source)?;
                let path = if path.is_empty() { "PATH" } else { path };
                let words = ["fetch", "-H", host, path, last];
                let words = if last == "." { &words[..4] } else { &words[..] };
                ("files of hosts", words.iter().map(OsString::from).collect())
            }
            _ => {
                let line = ["push", "--from", "HOST", "-H", "HOSTS", "PATH:DEST"];
                ("files of one host to others", line.map(OsString::from).to_vec())
            }
        };
        Some((because, format!("{what}: {}", command_line(&words))))
    }

    fn refused(&self, because: &str, meant: String) -> Failed {
        let message =
            format!("nothing was run: `{}` would run as a program, and {because}", self.word);
        let forced = ["--", self.word].into_iter().chain(self.arguments.iter().copied());
        let forced: Vec<OsString> = forced.map(OsString::from).collect();
        Failed::new(Exit::USAGE, message)
            .hint(Some(meant))
            .hint(Some(format!("for the program: {}", command_line(&forced))))
    }
}

/// Returns a hint for a first word that is a program, and a verb of other tools.
pub(super) fn aside(args: &JobArgs) -> Option<String> {
    foreign(Words::of(args)?.first().filter(|first| TOOLS.contains(first))?, &[])
}

fn foreign(word: &str, arguments: &[OsString]) -> Option<String> {
    let (_, what, verb, alone) = FOREIGN.iter().find(|(words, ..)| words.contains(&word))?;
    let takes_them = !arguments.is_empty()
        && definition().find_subcommand(verb).is_some_and(|verb| accepts(verb, arguments));
    let alone: Vec<OsString> = alone.split_whitespace().map(OsString::from).collect();
    let rest = if takes_them { arguments } else { &alone[..] };
    let line = [&[OsString::from(verb)][..], rest].concat();
    Some(format!("{what}: {}", command_line(&line)))
}

/// Returns a hint for a word that is typed before the program to start a job.
fn start(words: &Words<'_>) -> Option<String> {
    let word = words.program.to_str()?;
    let (_, what, options) = STARTS.iter().find(|(starts, ..)| starts.contains(&word))?;
    let mut line = [words.options.to_vec(), options.iter().map(OsString::from).collect()].concat();
    if words.arguments.is_empty() {
        let hosts: &[&str] = if words.options.is_empty() { &["-H", "HOSTS"] } else { &[] };
        line.extend(hosts.iter().chain(&["PROGRAM"]).map(OsString::from));
    }
    line.extend_from_slice(words.arguments);
    Some(format!("{what}: {}", command_line(&line)))
}

/// Returns a hint with the command line that was meant, for a program that is not found. `None` if nothing is known that it
/// could have been meant as.
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
    let first = words.first().and_then(|first| foreign(first, arguments));
    let verb = first.or_else(|| start(&words)).or_else(|| near_verb(&words));
    verb.or_else(|| hosts_apart(args))
        .or_else(|| host_first(&words))
        .or_else(|| near_program(&words))
        .or_else(|| no_verb(args))
}

/// Returns a hint for a program that is not here, and whose name resembles that of one that is: `pyhton3`.
fn near_program(words: &Words<'_>) -> Option<String> {
    let word = words.program.to_str().filter(|word| !word.contains('/'))?;
    if is_program_here(words.program) {
        return None;
    }
    let path = std::env::var_os("PATH")?;
    let entries =
        std::env::split_paths(&path).filter_map(|directory| directory.read_dir().ok()).flatten();
    let names = entries.filter_map(|entry| entry.ok()?.file_name().into_string().ok());
    let is_version = |name: &str| {
        name.strip_prefix(word).is_some_and(|rest| rest.chars().all(|c| c.is_ascii_digit()))
    };
    let is_near = |name: &String| {
        let distance = strsim::damerau_levenshtein(name, word);
        name.chars().next() == word.chars().next()
            && !is_version(name)
            && distance <= word.len() / 4
    };
    let near = names.filter(is_near);
    // The order of a directory is none.
    let program =
        near.min_by_key(|name| (strsim::damerau_levenshtein(name, word), name.clone()))?;
    let meant = [words.options, &[OsString::from(program)], words.arguments].concat();
    Some(format!("a program with a name like that: {}", command_line(&meant)))
}

/// Returns a hint for a host that stands before the program, as ssh has it.
fn host_first(words: &Words<'_>) -> Option<String> {
    let host = host_of_list(OsStr::new(words.first()?))?;
    hosts::parse(&[host.to_owned()]).ok()?;
    words.arguments.first().filter(|program| is_program_here(program))?;
    let line = [&["-H".into(), words.program.clone()][..], words.arguments].concat();
    Some(format!("if {host} is a host: {}", command_line(&line)))
}

/// Returns a hint for a bare word that resembles no verb and nothing else.
fn no_verb(args: &JobArgs) -> Option<String> {
    let words = Words::of(args)?;
    let word = words.first().filter(|_| words.arguments.is_empty())?;
    let is_bare = word.chars().all(|c| c.is_ascii_lowercase() || c == '-');
    let typed = TypedJob::of_program(&args.command.argv);
    let is_other = is_program_here(OsStr::new(word)) || typed.for_shell().is_some();
    let hint = format!("`{word}` is no verb of rlaunch either: rlaunch --help lists them");
    (is_bare && !is_other).then_some(hint)
}

/// Returns a hint for hosts with spaces between them, as in `-H a b c hostname` and `-H a, b, c hostname`: all but the first
/// stand where the program does.
pub(super) fn hosts_apart(args: &JobArgs) -> Option<String> {
    let words = Words::of(args)?;
    let (first, options) = words.options.split_last()?;
    let option = options.last()?.to_str()?;
    if !matches!(option, "-H" | "--host" | "--hosts" | "-host" | "-hosts") {
        return None;
    }
    // Someone who types `a,b` knows that commas join hosts, so the next word is none.
    if is_whole_list(&first.to_string_lossy()) {
        return None;
    }
    let is_program = |word: &OsString| is_program_here(word) || Path::new(word).exists();
    let at = args.command.argv.iter().position(is_program).filter(|at| *at > 0)?;
    // A script is no program if what stands before it is a misspelt interpreter: `-H a pyhton3 train.py`.
    let is_argument = || !is_program_here(&args.command.argv[at]) && near_program(&words).is_some();
    if start(&words).is_some() || is_argument() {
        return None;
    }
    let (others, program) = args.command.argv.split_at(at);
    let listed = iter::once(first).chain(others).map(|word| host_of_list(word));
    let hosts = listed.collect::<Option<Vec<&str>>>()?.join(",");
    hosts::parse(std::slice::from_ref(&hosts)).ok()?;
    let line = command_line(&[options, &[OsString::from(hosts)], program].concat());
    Some(format!("hosts are joined by commas: {line}"))
}

/// Tells whether a word lists several hosts, and does not end as if more were to follow.
fn is_whole_list(word: &str) -> bool {
    let outside = word.split(']').filter_map(|part| part.split('[').next());
    !word.ends_with(',') && outside.flat_map(str::chars).any(|c| c == ',')
}

/// Returns a word without the commas around it, if it can be a host or a list of hosts.
fn host_of_list(word: &OsStr) -> Option<&str> {
    let word = word.to_str()?.trim_matches(',');
    let is_other = word.starts_with('-') || word.contains(['=', '/', ' ']);
    (!is_other).then_some(word)
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
    let own = own.flat_map(|verb| iter::once(verb.get_name()).chain(verb.get_all_aliases()));
    let of_ranks = command::VERBS.iter().copied().filter(|_| is_first);
    let distance = |verb: &str| strsim::damerau_levenshtein(verb, word);
    // A slip of the finger is rarely the first letter: `htop` is not `stop`.
    let begins_alike = |verb: &str| verb.chars().next() == word.chars().next();
    // Of short words only a letter that was typed twice is a slip: `upp`, and not `us`.
    let is_doubled = |verb: &str| {
        let mut letters: Vec<char> = word.chars().collect();
        letters.dedup();
        letters.into_iter().eq(verb.chars())
    };
    let is_near =
        |verb: &&str| begins_alike(verb) && (distance(verb) <= verb.len() / 4 || is_doubled(verb));
    let near = own.chain(of_ranks).filter(is_near);
    let verb = near.min_by_key(|verb| distance(verb))?.to_owned();
    match definition.find_subcommand(&verb) {
        Some(command) if !accepts(command, &typed) => Some((verb, vec!["--help".into()])),
        _ => Some((verb, typed)),
    }
}

/// Tells whether a verb takes these words.
fn accepts(verb: &Command, words: &[OsString]) -> bool {
    let line = iter::once(OsStr::new("rlaunch")).chain(words.iter().map(|word| &**word));
    verb.clone().try_get_matches_from(line).is_ok()
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
        Some(hint(&job(line))?.strip_prefix("for the verb: ")?.to_owned())
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
            ("rlaunch upp -H a", "rlaunch up -H a"),
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
                let Some(meant) = hint.strip_prefix("for the verb: ") else { continue };
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
            "rlaunch -H a hostname", "rlaunch -H a -- topo", "rlaunch -H a ./topo",
            "rlaunch -H a barrier", "rlaunch -H a topo : hostname", "rlaunch mpi",
            "rlaunch -H a htop", "rlaunch us -H a", "rlaunch uptime",
        ] {
            assert_eq!(verb_hint(typed), None, "{typed}");
        }
    }

    #[test]
    fn a_word_before_the_program_starts_no_job() {
        for (typed, meant) in [
            ("rlaunch -H a,b run sh", "a job needs no verb: rlaunch -H a,b sh"),
            ("rlaunch -H a launch", "a job needs no verb: rlaunch -H a PROGRAM"),
            ("rlaunch submit -H a sh", "a job in the background: rlaunch -d -H a sh"),
            ("rlaunch submit", "a job in the background: rlaunch -d -H HOSTS PROGRAM"),
            ("rlaunch node7 sh x.sh", "if node7 is a host: rlaunch -H node7 sh x.sh"),
        ] {
            assert_eq!(hint(&job(typed)).as_deref(), Some(meant), "{typed}");
        }
        let refused = refuse(&job("rlaunch submit -H a sh")).unwrap_err();
        assert_eq!(refused.hints[0], "a job in the background: rlaunch -d -H a sh");
        assert_eq!(hosts_apart(&job("rlaunch -H a,b run sh")), None);
    }

    #[test]
    fn a_word_that_is_nothing_is_said_to_be_no_verb() {
        let expected = "`frobnicate` is no verb of rlaunch either: rlaunch --help lists them";
        assert_eq!(hint(&job("rlaunch frobnicate")).as_deref(), Some(expected));
        for other in ["rlaunch module", "rlaunch frobnicate x", "rlaunch -H a frobnicate"] {
            assert_eq!(hint(&job(other)), None, "{other}");
        }
    }

    #[test]
    fn a_misspelt_program_is_named() {
        for line in ["rlaunch -H a hotsname", "rlaunch -H a hotsname Cargo.toml"] {
            let args = job(line);
            let expected =
                format!("a program with a name like that: {}", line.replace("hots", "host"));
            assert_eq!(hint(&args), Some(expected), "{line}");
            assert_eq!(hosts_apart(&args), None, "{line}");
        }
        assert_eq!(hint(&job("rlaunch -H a ./hotsname")), None);
    }

    #[test]
    fn hosts_are_joined_by_commas() {
        for (typed, meant) in [
            ("-H h1 h2 h3 sh -c x", "-H h1,h2,h3 sh -c x"),
            ("-H h1,h2, h3 sh -c x", "-H h1,h2,h3 sh -c x"),
            ("-H n[1,3] n5 sh", "-H 'n[1,3],n5' sh"),
            ("-np 3 -H h1, h2:2, n[1-2] sh", "-np 3 -H 'h1,h2:2,n[1-2]' sh"),
        ] {
            let expected = format!("hosts are joined by commas: rlaunch {meant}");
            let args = job(&format!("rlaunch {typed}"));
            assert_eq!(hint(&args).as_deref(), Some(&*expected), "{typed}");
        }
        for other in [
            "-H h1 h2 h3", "-H h1 -q h2 sh", "-H h1 -- h2 sh", "-H h1 h2 -np 2 sh",
            "-H h1,h2 h3 sh",
        ] {
            assert_eq!(hosts_apart(&job(&format!("rlaunch {other}"))), None, "{other}");
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
        for word in FOREIGN.iter().flat_map(|(words, ..)| words.iter()) {
            let hint = foreign(word, &[]).unwrap();
            let (_, command) = hint.split_once(": ").unwrap();
            match Invocation::parse(words(command)) {
                Ok(Invocation::Verb(verb, _)) => assert!(!matches!(*verb, Verb::Job(_)), "{hint}"),
                _ => panic!("{hint}"),
            }
        }
        assert!(TOOLS.iter().all(|tool| foreign(tool, &[]).is_some()));
    }

    fn habit(line: &str, jobs: &[(&str, &str)], list: &str) -> Option<Failed> {
        let args = job(line);
        let habit = Habit::of(&Words::of(&args)?)?;
        let hosts = hosts::parse(&[list.to_owned()]).unwrap();
        let job =
            |(id, name): &(&str, &str)| RecordedJob { id: (*id).into(), name: (*name).into() };
        let jobs: Vec<RecordedJob> = jobs.iter().map(job).collect();
        let found = if habit.is_copy() { habit.copy(&hosts) } else { habit.job(&jobs) };
        found.map(|(because, meant)| habit.refused(&because, meant))
    }

    #[test]
    fn a_program_that_would_get_a_job_does_not_run() {
        let jobs = [("01a22b5a24857f00", "amber-fox")];
        for (typed, meant) in [
            ("kill amber-fox", "the end of a running job: rlaunch stop amber-fox"),
            ("kill -9 amber-fox", "the end of a running job: rlaunch stop amber-fox"),
            ("kill 01a22b5a24857", "the end of a running job: rlaunch stop 01a22b5a24857"),
            ("ps amber-fox", "your running jobs: rlaunch jobs amber-fox"),
            ("tail -f amber-fox", "what a job prints: rlaunch logs -f amber-fox"),
        ] {
            let failed = habit(&format!("rlaunch {typed}"), &jobs, "a").unwrap();
            let forced = format!("for the program: rlaunch -- {typed}");
            assert_eq!(failed.hints, [meant.to_owned(), forced], "{typed}");
            assert!(failed.message.starts_with("nothing was run: `"), "{failed:?}");
        }
        for typed in [
            "kill 01a22b5", "kill -9 4711", "kill", "ps -ef", "-- kill amber-fox",
            "-H a kill amber-fox", "echo amber-fox", "cp amber-fox b",
        ] {
            assert!(habit(&format!("rlaunch {typed}"), &jobs, "a").is_none(), "{typed}");
        }
        assert!(habit("rlaunch ls src", &[("01", "src")], "a").is_none(), "a file is meant");
    }

    #[test]
    fn a_program_that_would_get_a_host_for_a_file_does_not_run() {
        for (typed, meant) in [
            ("cp train.py a:", "files to hosts: rlaunch push -H a train.py"),
            ("scp -r x y root@b:/d", "files to hosts: rlaunch push -H root@b x:/d y:/d"),
            ("scp a:/var/log/app .", "files of hosts: rlaunch fetch -H a /var/log/app"),
            ("cp a:runs out", "files of hosts: rlaunch fetch -H a runs out"),
            (
                "rsync a:x b:y",
                "files of one host to others: rlaunch push --from HOST -H HOSTS PATH:DEST",
            ),
        ] {
            let failed = habit(&format!("rlaunch {typed}"), &[], "a:8,root@b").unwrap();
            assert_eq!(failed.hints[0], meant, "{typed}");
        }
        for typed in ["cp x other:", "cp x y", "cp a:", "cp dir/a:x y", "-H a cp x a:"] {
            assert!(habit(&format!("rlaunch {typed}"), &[], "a,b").is_none(), "{typed}");
        }
    }

    #[test]
    fn words_for_a_verb_lead_to_it_where_no_hosts_are_named() {
        let meant = |line: &str| refuse(&job(line)).unwrap_err().hints.swap_remove(0);
        let job_ended = "the end of a running job: rlaunch stop";
        assert_eq!(meant("rlaunch quit"), job_ended);
        assert_eq!(meant("rlaunch quit amber-fox"), format!("{job_ended} amber-fox"));
        assert_eq!(meant("rlaunch quit --no-such"), job_ended);
        assert_eq!(meant("rlaunch inspect"), "how a job went: rlaunch report last");
        assert_eq!(meant("rlaunch output"), "what a job prints: rlaunch logs -f");
        let links = "how fast the links between hosts are: rlaunch bench -H";
        assert_eq!(meant("rlaunch latency"), format!("{links} HOSTS"));
        assert_eq!(meant("rlaunch latency -H a,b"), format!("{links} a,b"));
        assert!(refuse(&job("rlaunch -H a gpus")).is_ok());
        let listed = JobArgs { hosts: job("rlaunch -H a x").hosts, ..job("rlaunch gpus") };
        assert!(refuse(&listed).is_ok());
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
            "rlaunch -H a sh -H b", "rlaunch sh x.sh -np 4", "rlaunch sh -np many",
            "rlaunch sh -H", "rlaunch -- sh -H a",
        ] {
            assert_eq!(hint(typed), None, "{typed}");
        }
        let header = ["rlaunch", "sh", "-H", "Accept: text"].map(OsString::from).to_vec();
        assert_eq!(options_behind(&parse_job(header).unwrap().0), None);
    }
}
