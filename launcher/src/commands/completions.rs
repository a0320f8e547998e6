//! `rlaunch completions`: a script that completes options and verbs in a shell.

use super::invocation::definition;
use crate::cli::args::values;
use clap::Parser;
use clap_complete::Shell;
use rlaunch_console::stdout;
use rlaunch_text::exit::Exit;
use rlaunch_text::message::Failed;

/// Print a script that completes rlaunch's options and verbs in a shell.
#[derive(Debug, Parser)]
#[command(after_help = "\
Examples:
  rlaunch completions bash > ~/.local/share/bash-completion/completions/rlaunch
  rlaunch completions zsh > ~/.zfunc/_rlaunch       if fpath has ~/.zfunc
  rlaunch completions fish > ~/.config/fish/completions/rlaunch.fish")]
pub(crate) struct CompletionsArgs {
    /// The shell
    #[arg(
        value_name = "bash|zsh|fish",
        value_parser = values::one_of(SHELLS),
        hide_possible_values = true
    )]
    pub(crate) shell: Shell,
}

/// Shells for which completions can be made.
const SHELLS: &[(&str, Shell)] =
    &[("bash", Shell::Bash), ("zsh", Shell::Zsh), ("fish", Shell::Fish)];

pub(super) fn run(args: &CompletionsArgs) -> Result<Exit, Failed> {
    stdout::write(&script(args.shell));
    Ok(Exit::SUCCESS)
}

fn script(shell: Shell) -> Vec<u8> {
    let mut script = Vec::new();
    let mut definition = without_hidden(&definition());
    clap_complete::generate(shell, &mut definition, "rlaunch", &mut script);
    script
}

/// Returns a copy of the definition without hidden options, which completion scripts would otherwise offer.
fn without_hidden(command: &clap::Command) -> clap::Command {
    let shown = command.get_arguments().filter(|arg| !arg.is_hide_set()).cloned();
    let about = command.get_about().cloned().unwrap_or_default();
    clap::Command::new(command.get_name().to_owned())
        .about(about)
        .args(shown)
        .subcommands(command.get_subcommands().map(without_hidden))
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
            for verb in ["topo", "bench", "ssh-config", "completions", "man"] {
                assert!(script.contains(verb), "{shell:?}: {verb}");
            }
            for hidden in HIDDEN {
                assert!(!script.contains(&format!("{dashes}{hidden}")), "{shell:?}: {hidden}");
            }
        }
    }
}
