//! `rlaunch completions`: a script that completes options, verbs, jobs, hosts and topics in a shell. clap makes what is
//! known beforehand, and `rlaunch __complete` finds the rest.

use super::invocation::definition;
use crate::cli::args::values;
use clap::Parser;
use clap_complete::Shell;
use rlaunch_console::stdout;
use rlaunch_text::exit::Exit;
use rlaunch_text::message::Failed;
use std::env;

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
}
