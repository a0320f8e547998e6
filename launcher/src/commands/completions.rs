//! `rlaunch completions`: a script that completes options, verbs, jobs, hosts and topics in a shell. clap makes what is
//! known beforehand, and `rlaunch __complete` finds the rest.

use super::invocation::definition;
use super::{found, help};
use crate::cli::args::{ConfigArgs, values};
use crate::cli::command_line::CommandLine;
use clap::{Arg, Command, Parser};
use clap_complete::Shell;
use rlaunch_console::stdout;
use rlaunch_engine::run::live::client::RunningJob;
use rlaunch_engine::run::record::RecordStore;
use rlaunch_plan::checks;
use rlaunch_plan::job::name::{LAST, verb_of};
use rlaunch_text::exit::Exit;
use rlaunch_text::message::Failed;
use std::ffi::OsString;
use std::{env, fs};

/// Print a script that completes rlaunch's options, verbs, jobs and hosts in a shell.
#[derive(Debug, Parser)]
#[command(after_help = "\
Examples:
  rlaunch completions                               the line for your shell
  rlaunch completions bash > ~/.local/share/bash-completion/completions/rlaunch
  rlaunch completions zsh > ~/.zfunc/_rlaunch       if fpath has ~/.zfunc
  rlaunch completions fish > ~/.config/fish/completions/rlaunch.fish")]
pub(crate) struct CompletionsArgs {
    /// The shell; without it the line to type is printed
    #[arg(value_name = "bash|zsh|fish", value_parser = values::one_of(SHELLS))]
    #[arg(hide_possible_values = true)]
    pub(crate) shell: Option<Shell>,
}

/// Shells for which completions can be made.
const SHELLS: &[(&str, Shell)] =
    &[("bash", Shell::Bash), ("zsh", Shell::Zsh), ("fish", Shell::Fish)];

pub(super) fn run(args: &CompletionsArgs) -> Result<Exit, Failed> {
    match args.shell {
        Some(shell) => stdout::write(&script(shell)),
        None => {
            let own = env::var("SHELL").unwrap_or_default();
            stdout::print(&instructions(own.rsplit('/').next().unwrap_or_default()));
        }
    }
    Ok(Exit::SUCCESS)
}

/// Says what to type in the user's shell, or in each of them if that is none of these.
fn instructions(own: &str) -> String {
    let one = |(name, shell): &(&str, Shell)| format!("in {name}:\n{}\n", lines(*shell));
    match SHELLS.iter().find(|(name, _)| *name == own) {
        Some(shell) => one(shell),
        None => SHELLS.iter().map(one).collect(),
    }
}

/// Returns the lines that install the script.
fn lines(shell: Shell) -> &'static str {
    match shell {
        Shell::Zsh => {
            "  mkdir -p ~/.zfunc && rlaunch completions zsh > ~/.zfunc/_rlaunch\n  \
             and in ~/.zshrc, before compinit: fpath+=~/.zfunc"
        }
        Shell::Fish => "  rlaunch completions fish > ~/.config/fish/completions/rlaunch.fish",
        _ => {
            "  mkdir -p ~/.local/share/bash-completion/completions\n  \
             rlaunch completions bash > ~/.local/share/bash-completion/completions/rlaunch\n\
             and open a new shell, which needs the package bash-completion; without it, in ~/.bashrc:\n  \
             eval \"$(rlaunch completions bash)\""
        }
    }
}

/// Words that only rlaunch knows come first; where it knows none, the script of clap completes. COMP_WORDS has hosts as
/// `a:2` and `me@a` in pieces, of which bash replaces the last: that behind a `:` or `=`, or from an `@` on.
const BASH: &str = r#"
_rlaunch_words() {
    local line=${COMP_LINE:0:COMP_POINT} words typed kept
    read -ra words <<< "$line"
    [[ $line != *[[:space:]] ]] || words+=("")
    mapfile -t COMPREPLY < <(rlaunch __complete -- "${words[@]:1}" 2>/dev/null)
    [[ ${#COMPREPLY[@]} -gt 0 ]] || { _rlaunch "$@"; return; }
    typed=${words[-1]} kept=${typed%"${typed##*[:=]}"} typed=${typed##*[:=]}
    [[ $COMP_WORDBREAKS != *@* || $typed != *@* ]] || kept+=${typed%@*}
    COMPREPLY=("${COMPREPLY[@]#"$kept"}")
}
complete -F _rlaunch_words -o bashdefault -o default rlaunch
"#;

/// Begin of the function in clap's script for zsh, and what is added to it.
const ZSH_BEGIN: &str = "_rlaunch() {\n";
const ZSH: &str = r#"    local -a known
    known=("${(@f)$(rlaunch __complete -- "${(@)words[2,CURRENT]}" 2>/dev/null)}")
    if [[ -n "$known[1]" ]]; then
        compadd -- $known
        return
    fi
"#;

const FISH: &str = "\
complete -c rlaunch -a '(rlaunch __complete -- (commandline -opc | tail -n +2) (commandline -ct) 2>/dev/null)'
";

fn script(shell: Shell) -> Vec<u8> {
    let mut script = Vec::new();
    let mut definition = without_hidden(&definition());
    clap_complete::generate(shell, &mut definition, "rlaunch", &mut script);
    let script = String::from_utf8_lossy(&script).into_owned();
    let script = match shell {
        Shell::Bash => script + BASH,
        Shell::Zsh => script.replacen(ZSH_BEGIN, &format!("{ZSH_BEGIN}{ZSH}"), 1),
        _ => script + FISH,
    };
    script.into_bytes()
}

/// Returns a copy of the definition without hidden options and verbs, which completion scripts would otherwise offer.
fn without_hidden(command: &clap::Command) -> clap::Command {
    let shown = command.get_arguments().filter(|arg| !arg.is_hide_set()).cloned();
    let verbs = command.get_subcommands().filter(|verb| !verb.is_hide_set());
    let about = command.get_about().cloned().unwrap_or_default();
    clap::Command::new(command.get_name().to_owned())
        .about(about)
        .args(shown)
        .subcommands(verbs.map(without_hidden))
        .disable_help_subcommand(true)
        .disable_version_flag(command.get_version().is_none_or(str::is_empty))
        .version(env!("CARGO_PKG_VERSION"))
}

/// Number of the last records whose hosts are offered.
const RECORDS: usize = 10;

/// Print the words that may stand where a shell completes
#[derive(Debug, Parser)]
pub(crate) struct CompleteArgs {
    /// Words behind `rlaunch`, of which the last is to be completed
    #[arg(last = true, value_name = "WORD")]
    pub(crate) words: Vec<OsString>,

    #[command(flatten)]
    pub(crate) config: ConfigArgs,
}

/// Kind of word that a shell completes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Wanted {
    /// Names of hosts with commas between them.
    Hosts,
    /// Names of running jobs.
    Running,
    /// Names of jobs that have ended, and `last`.
    Ended,
    /// Both.
    Jobs,
    /// Topics, verbs and ids of findings.
    Topics,
}

/// Prints the words that begin as the last one does, a line for each. Prints none if the shell's script knows better.
pub(super) async fn run_complete(args: &CompleteArgs, line: &CommandLine) -> Result<Exit, Failed> {
    let words: Vec<String> =
        args.words.iter().map(|word| word.to_string_lossy().into_owned()).collect();
    let Some((current, before)) = words.split_last() else { return Ok(Exit::SUCCESS) };
    let found = match wanted(current, before) {
        None => Vec::new(),
        Some(Wanted::Hosts) => host_lists(current, known_hosts(line)),
        Some(Wanted::Topics) => topics(),
        Some(Wanted::Running) => running().await,
        Some(Wanted::Ended) => ended(),
        Some(Wanted::Jobs) => [running().await, ended()].concat(),
    };
    let mut found: Vec<String> =
        found.into_iter().filter(|word| word.starts_with(current.as_str())).collect();
    found.sort();
    found.dedup();
    found.iter().for_each(|word| stdout::print(&format!("{word}\n")));
    Ok(Exit::SUCCESS)
}

/// Finds out what stands behind the words `before`. `None` for what the shell's script completes: options and verbs.
fn wanted(current: &str, before: &[String]) -> Option<Wanted> {
    const HOSTS: [&str; 5] = ["-H", "--host", "--hosts", "--exclude", "--from"];
    let last = before.last()?;
    if current.starts_with('-') {
        return None;
    }
    if HOSTS.contains(&last.as_str()) {
        return Some(Wanted::Hosts);
    }
    let (verb, words) = before.split_first()?;
    let definition = definition();
    let command = definition.find_subcommand(verb)?;
    if last.starts_with('-') && takes_value(command, last) {
        return None;
    }
    let is_next = words.iter().all(|word| word.starts_with('-'));
    match (verb.as_str(), is_next) {
        ("help" | "man", true) => Some(Wanted::Topics),
        ("report", _) | ("rerun", true) => Some(Wanted::Ended),
        ("logs" | "reap" | "wait", true) => Some(Wanted::Jobs),
        ("jobs" | "status" | "stop" | "stack" | "monitor" | "exec" | "attach", true) => {
            Some(Wanted::Running)
        }
        ("ssh" | "ssh-config", _) => Some(Wanted::Hosts),
        _ => None,
    }
}

/// Tells whether an option takes the next word as its value.
fn takes_value(command: &Command, option: &str) -> bool {
    let is_option = |arg: &&Arg| {
        let letter = arg.get_short().map(|letter| format!("-{letter}"));
        let long = arg.get_long().map(|long| format!("--{long}"));
        letter.as_deref() == Some(option) || long.as_deref() == Some(option)
    };
    let found = command.get_arguments().find(is_option);
    found.is_some_and(|arg| arg.get_action().takes_values() && !arg.is_require_equals_set())
}

fn topics() -> Vec<String> {
    let definition = definition();
    let verbs = definition.get_subcommands().filter(|verb| !verb.is_hide_set());
    let verbs = verbs.map(|verb| verb.get_name().to_owned());
    let ids = checks::catalogue().map(|check| check.id.to_string());
    help::topic_names().map(str::to_owned).chain(verbs).chain(ids).collect()
}

async fn running() -> Vec<String> {
    let jobs = RunningJob::all().await.map(|(jobs, _)| jobs).unwrap_or_default();
    jobs.into_iter().map(|job| job.name).collect()
}

fn ended() -> Vec<String> {
    let jobs = RecordStore::for_user().map(|store| store.jobs()).unwrap_or_default();
    let has_last = jobs.iter().any(|job| verb_of(&job.name).is_none());
    let last = has_last.then(|| LAST.to_owned());
    jobs.iter().map(|job| found::word_for(job).to_owned()).chain(last).collect()
}

/// Lists the hosts that the user knows: those of a trusted rlaunch.toml with its groups, of the SSH configuration, and of
/// the last jobs.
fn known_hosts(line: &CommandLine) -> Vec<String> {
    let table = &line.config.hosts;
    let mut hosts: Vec<String> = table.entries.iter().map(|entry| entry.name.clone()).collect();
    hosts.extend(table.groups.iter().map(|group| format!("@{}", group.name)));
    if let Some(home) = std::env::home_dir() {
        hosts.extend(ssh_hosts(&fs::read_to_string(home.join(".ssh/config")).unwrap_or_default()));
    }
    if let Ok(store) = RecordStore::for_user() {
        let records = store.newest(RECORDS).into_iter();
        hosts.extend(records.flat_map(|record| record.hosts).map(|host| host.host));
    }
    hosts
}

/// Returns the names of hosts in an SSH configuration, without patterns.
fn ssh_hosts(config: &str) -> Vec<String> {
    let names = config.lines().filter_map(|line| {
        let (keyword, names) = line.trim().split_once([' ', '\t', '='])?;
        keyword.eq_ignore_ascii_case("host").then(|| names.split_whitespace())
    });
    names.flatten().filter(|name| !name.contains(['*', '?', '!', '"'])).map(str::to_owned).collect()
}

/// Returns the list `typed` with each host or group in place of its last name; those that are in the list already are left
/// out.
fn host_lists(typed: &str, hosts: Vec<String>) -> Vec<String> {
    let (first, last) = typed.rsplit_once(',').map_or(("", typed), |(first, last)| (first, last));
    // A group has no user, and begins with the `@`.
    let user = last.rsplit_once('@').filter(|(user, _)| !user.is_empty());
    let user = user.map_or(String::new(), |(user, _)| format!("{user}@"));
    let before = if first.is_empty() { String::new() } else { format!("{first},") };
    let is_new = |host: &String| !first.split(',').any(|known| known == host);
    let is_possible = |host: &String| user.is_empty() || !host.starts_with('@');
    let hosts = hosts.into_iter().filter(is_new).filter(is_possible);
    hosts.map(|host| format!("{before}{user}{host}")).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::commands::man::HIDDEN;

    #[test]
    fn shells_complete_options_and_verbs() {
        for shell in [Shell::Bash, Shell::Zsh, Shell::Fish] {
            let script = String::from_utf8(script(shell)).unwrap();
            let dashes = if shell == Shell::Fish { "-l " } else { "--" };
            for option in ["map-by", "transport", "gids"] {
                assert!(script.contains(&format!("{dashes}{option}")), "{shell:?}: {option}");
            }
            for verb in ["topo", "bench", "ssh-setup", "completions", "man", "__complete"] {
                assert!(script.contains(verb), "{shell:?}: {verb}");
            }
            for hidden in HIDDEN {
                assert!(!script.contains(&format!("{dashes}{hidden}")), "{shell:?}: {hidden}");
            }
        }
    }

    #[test]
    fn old_words_are_not_offered() {
        assert!(definition().find_subcommand("ssh-config").is_some());
        assert!(without_hidden(&definition()).find_subcommand("ssh-config").is_none());
    }

    #[test]
    fn without_a_shell_the_line_to_type_is_printed() {
        let bash = instructions("bash");
        assert!(bash.starts_with("in bash:") && !bash.contains("zsh"), "{bash}");
        assert!(instructions("zsh").contains("> ~/.zfunc/_rlaunch"), "{}", instructions("zsh"));
        let all = instructions("tcsh");
        assert!(["in bash:", "in zsh:", "in fish:"].iter().all(|text| all.contains(text)), "{all}");
    }

    fn wanted_at(line: &str) -> Option<Wanted> {
        let words: Vec<String> = line.split(' ').map(str::to_owned).collect();
        let (current, before) = words.split_last().unwrap();
        wanted(current, before)
    }

    #[test]
    fn each_place_has_its_words() {
        for (line, expected) in [
            ("-H ", Some(Wanted::Hosts)),
            ("doctor -H a,", Some(Wanted::Hosts)),
            ("ssh --show ", Some(Wanted::Hosts)),
            ("logs ", Some(Wanted::Jobs)),
            ("logs -f 01", Some(Wanted::Jobs)),
            ("status ", Some(Wanted::Running)),
            ("exec ", Some(Wanted::Running)),
            ("rerun ", Some(Wanted::Ended)),
            ("stop ", Some(Wanted::Running)),
            ("wait 01", Some(Wanted::Jobs)),
            ("report a.log ", Some(Wanted::Ended)),
            ("reap ", Some(Wanted::Jobs)),
            ("help mtu", Some(Wanted::Topics)),
            // The shell's script knows better, or files are wanted.
            ("", None),
            ("top", None),
            ("logs --rank ", None),
            ("logs --", None),
            ("exec 01 ", None),
            ("python3 ", None),
            ("-np ", None),
        ] {
            assert_eq!(wanted_at(line), expected, "{line}");
        }
    }

    #[test]
    fn topics_verbs_and_ids_of_findings_are_explained() {
        let topics = topics();
        for word in ["ssh", "topo", "mtu.path"] {
            assert!(topics.iter().any(|known| known == word), "{word}: {topics:?}");
        }
        assert!(!topics.iter().any(|word| word == "ssh-config"), "{topics:?}");
    }

    #[test]
    fn a_list_of_hosts_goes_on_behind_its_last_comma() {
        let lists = |typed: &str| host_lists(typed, ["a", "b", "@gpu"].map(str::to_owned).into());
        assert_eq!(lists(""), ["a", "b", "@gpu"]);
        assert_eq!(lists("a,"), ["a,b", "a,@gpu"]);
        assert_eq!(lists("c,me@"), ["c,me@a", "c,me@b"]);
        assert!(lists("a,@g").contains(&"a,@gpu".to_owned()));
    }

    #[test]
    fn patterns_are_no_hosts() {
        let config = "Host a b *.lab\n  HostName 10.0.0.1\nhost=c\nHost *\nMatch host d\n";
        assert_eq!(ssh_hosts(config), ["a", "b", "c"]);
    }
}
