//! What help shows: `rlaunch -h` on one screen, `rlaunch --help` without rare options, and verbs with the options of
//! connections in one line.

use clap::builder::StyledStr;
use clap::builder::styling::Style;
use clap::{Arg, Command};
use std::fmt::Write as _;

const HEADING: Style = Style::new().bold();

const EXAMPLES: [(&str, &str); 4] = [
    ("rlaunch -H a,b,c hostname", "one rank on each of three hosts"),
    ("rlaunch -H a:8,b:8 python3 train.py", "eight ranks on each of two hosts"),
    ("rlaunch -H a,b --copy x.py python3 x.py", "a script that only you have"),
    ("rlaunch -np 4 ./program", "four ranks here, without SSH"),
];

/// Words for a verb and, in a few words, what it does.
type VerbLine = (&'static str, &'static str);

/// Verbs by what people want.
const GROUPS: [(&str, &[VerbLine]); 4] = [
    (
        "Run",
        &[
            ("shell", "each line that you type, on all hosts"),
            ("exec", "a command, or a shell, in the place of a rank"),
            ("attach", "a debugger to a rank that waits in breakpoint()"),
            ("rerun", "a job again, in its directory"),
            ("stop, wait", "end a running job; wait for the end of one"),
            ("push, fetch", "copy files, models, images to all hosts; bring files"),
            ("bench", "measure links, collectives, and how a program scales"),
            ("reap", "end processes that a job left behind"),
        ],
    ),
    (
        "Look",
        &[
            ("jobs, status", "running jobs, and what they use; -a: ended ones too"),
            ("logs", "what ranks have printed"),
            ("monitor", "CPUs, memory, GPUs and traffic, live"),
            ("stack", "where ranks are, and what they wait for"),
            ("report", "how fast a run was, and over which network"),
            ("images", "container images of hosts, and who lacks which"),
        ],
    ),
    (
        "Check",
        &[
            ("doctor", "what is wrong with hosts, and the fix; --try: what works"),
            ("topo, capture", "processors, RDMA ports, GPUs, interfaces; recorded"),
            ("network", "which port is cabled to which; addresses for cables"),
        ],
    ),
    (
        "Set up",
        &[
            ("up, down", "keys, names, addresses, ports that stay; undo them"),
            ("ssh-setup", "let your key log in to hosts"),
            ("ssh --show", "what ~/.ssh/config says about hosts"),
            ("trust", "let ./rlaunch.toml take full effect"),
            ("completions", "for bash, zsh and fish"),
            ("cache, pack, version, man, help", "files on hosts, this build, its pages"),
        ],
    ),
];

/// Common options, two on each line.
const OPTIONS: [[(&str, &str); 2]; 5] = [
    [("-H, --host HOST[:N]", "hosts and slots"), ("--hostfile FILE", "a line per host")],
    [("-n, --np N", "number of ranks"), ("--map-by node", "ranks in turn")],
    [("-x, --env NAME=VALUE", "a variable"), ("--wdir DIR", "run there")],
    [("--copy FILE", "copy it along"), ("-d, --detach", "in background")],
    [("--transport rdma", "RDMA or nothing"), ("--dry-run", "start no ranks")],
];

/// Returns the text of `rlaunch -h`.
pub(super) fn short_help() -> String {
    let mut text = "Start one program on many hosts over SSH.\n\n".to_owned();
    for (line, about) in EXAMPLES {
        let _ = writeln!(text, "  {line:<41}{about}");
    }
    text += "\nUsage: rlaunch [OPTIONS] PROGRAM [ARGUMENT]... [: [OPTIONS] PROGRAM ...]...\n\n";
    for (group, verbs) in GROUPS {
        let mut heading = group;
        for (verb, about) in verbs {
            let _ = writeln!(text, "{HEADING}{heading:<9}{HEADING:#}{verb:<13} {about}");
            heading = "";
        }
    }
    let mut heading = "Options";
    text.push('\n');
    for [(left, about_left), (right, about_right)] in OPTIONS {
        let left = format!("{left:<22}{about_left:<17}");
        let _ = writeln!(text, "{HEADING}{heading:<9}{HEADING:#}{left}{right:<17}{about_right}");
        heading = "";
    }
    text += "\nMore: rlaunch --help, rlaunch VERB --help, rlaunch help (topics: ssh, env, ...)\n";
    text
}

/// Headings of the options that a verb's help names in one line.
const OF_CONNECTIONS: [&str; 3] = ["Reaching hosts", "Containers", "Configuration"];
/// Those that the line names.
const NAMED: [&str; 5] = ["port", "rsh", "container", "ssh-config", "cluster"];

/// Returns a verb, and the verbs in it, with the options of connections in one line of their help, if they have these.
pub(super) fn with_short_connections(verb: Command) -> Command {
    let verb = verb.mut_subcommands(with_short_connections);
    let is_of_connections =
        |arg: &Arg| arg.get_help_heading().is_some_and(|heading| OF_CONNECTIONS.contains(&heading));
    let has = |name: &&str| verb.get_arguments().any(|arg| arg.get_long() == Some(*name));
    if !NAMED.iter().all(has) {
        return verb;
    }
    let names: Vec<String> = NAMED.iter().map(|name| format!("--{name}")).collect();
    let line = format!("To reach hosts: {}, ... (rlaunch help options)", names.join(", "));
    let above = |text: &StyledStr| format!("{line}\n\n{}", text.ansi());
    let long = verb.get_after_long_help().map(above);
    let text = verb.get_after_help().map(above).unwrap_or(line);
    // Without a text of its own, the long help has that of the short one.
    let verb = match long {
        Some(long) => verb.after_help(text).after_long_help(long),
        None => verb.after_help(text),
    };
    verb.mut_args(|arg| {
        let is_hidden = is_of_connections(&arg);
        if is_hidden { arg.hide_short_help(true).hide_long_help(true) } else { arg }
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cli::command_line::UsageError;
    use crate::commands::Invocation;
    use crate::commands::invocation::{definition, with_all_options};
    use std::ffi::OsString;

    fn help(line: &str) -> String {
        match Invocation::parse(line.split(' ').map(OsString::from).collect()) {
            Err(UsageError::Clap(error)) => error.to_string(),
            other => panic!("{line}: {other:?}"),
        }
    }

    /// Returns the words of all verbs in the groups.
    fn listed() -> Vec<&'static str> {
        let verbs = GROUPS.iter().flat_map(|(_, verbs)| verbs.iter().map(|(words, _)| *words));
        verbs.flat_map(|words| words.split(", ")).collect()
    }

    #[test]
    fn both_lists_of_verbs_say_the_same_of_bench() {
        let about = definition().find_subcommand("bench").unwrap().get_about().unwrap().to_string();
        let mut lines = GROUPS.iter().flat_map(|(_, lines)| lines.iter());
        let line = lines.find(|(verb, _)| *verb == "bench").unwrap();
        assert_eq!(about.trim_end_matches('.').to_lowercase(), line.1);
    }

    #[test]
    fn every_verb_is_in_one_group() {
        let definition = definition();
        let verbs = definition.get_subcommands().filter(|verb| !verb.is_hide_set());
        for verb in verbs.map(Command::get_name) {
            let count = listed().iter().filter(|word| word.split(' ').next() == Some(verb)).count();
            assert_eq!(count, 1, "{verb}");
        }
        for words in listed() {
            let verb = words.split(' ').next().unwrap();
            assert!(definition.find_subcommand(verb).is_some(), "{verb}");
        }
    }

    #[test]
    fn short_help_fits_a_screen() {
        for line in ["rlaunch -h", "rlaunch -H a -h"] {
            let text = help(line);
            assert!(text.starts_with("Start one program on many hosts"), "{text}");
            assert!(text.lines().count() <= 40, "{} lines:\n{text}", text.lines().count());
            let long: Vec<&str> = text.lines().filter(|line| line.chars().count() > 80).collect();
            assert!(long.is_empty(), "{long:#?}");
        }
        let definition = definition();
        for (option, _) in OPTIONS.as_flattened() {
            let long = option.split_once("--").unwrap().1.split(' ').next().unwrap();
            assert!(definition.get_arguments().any(|arg| arg.get_long() == Some(long)), "{long}");
        }
    }

    #[test]
    fn examples_are_command_lines() {
        for (line, _) in EXAMPLES {
            let words = line.split(' ').map(OsString::from).collect();
            assert!(crate::cli::command_line::parse_job(words).is_ok(), "{line}");
        }
    }

    #[test]
    fn long_help_has_the_options_that_people_use_and_the_rest_is_behind_a_word() {
        let options = |text: &str| {
            let is_option = |line: &&str| line.starts_with("  -") || line.starts_with("      --");
            text.lines().filter(is_option).count()
        };
        let long = help("rlaunch -H a --help");
        assert!(options(&long) <= 60, "{} options", options(&long));
        assert!(long.contains("--oversubscribe") && !long.contains("--rdma-retries"), "{long}");
        assert!(long.contains("rlaunch help options"), "{long}");
        let all = with_all_options().render_long_help().to_string();
        assert!(all.contains("--rdma-retries") && options(&all) > options(&long), "{all}");
        let hidden = ["--interfaces", "--preload", "  hostfile ", "  ssh-config "];
        assert!(hidden.iter().all(|word| !all.contains(word)), "{all}");
    }

    #[test]
    fn a_verb_names_options_of_connections_in_one_line() {
        for line in ["rlaunch topo --help", "rlaunch topo -h", "rlaunch bench train --help"] {
            let text = help(line);
            let named = "To reach hosts: --port, --rsh";
            assert_eq!(text.lines().filter(|line| line.starts_with(named)).count(), 1, "{text}");
            assert!(!text.contains("--agent-dir") && !text.contains("--ssh-fanout"), "{text}");
        }
        let report = help("rlaunch report --help");
        assert!(!report.contains("To reach hosts"), "{report}");
    }
}
