//! `rlaunch completions` and `rlaunch man`: both are made from the definition by which command lines
//! are read.

use crate::cli::args::{self, CompletionsArgs, ManArgs, Shell};
use crate::commands::help;
use clap_complete::Shell as Known;
use rlaunch_console::exit::Exit;
use rlaunch_console::messages::Failed;
use rlaunch_console::stdout;

/// Prints the script for a shell.
pub(crate) fn completions(args: &CompletionsArgs) -> Result<Exit, Failed> {
    print(&script(args.shell))
}

/// Prints a page.
pub(crate) fn man(args: &ManArgs) -> Result<Exit, Failed> {
    print(&page(&args.words)?)
}

fn print(bytes: &[u8]) -> Result<Exit, Failed> {
    stdout::write(bytes);
    Ok(Exit::SUCCESS)
}

fn script(shell: Shell) -> Vec<u8> {
    let shell = match shell {
        Shell::Bash => Known::Bash,
        Shell::Zsh => Known::Zsh,
        Shell::Fish => Known::Fish,
    };
    let mut script = Vec::new();
    let mut definition = without_hidden(&args::definition());
    clap_complete::generate(shell, &mut definition, "rlaunch", &mut script);
    script
}

/// What completions are made of: all of a command but its hidden options, which scripts would offer.
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

fn page(words: &[String]) -> Result<Vec<u8>, Failed> {
    if let [topic] = words
        && let Some(page) = help::manual_page(topic)
    {
        return Ok(page.into_bytes());
    }
    let mut whole = args::definition();
    whole.build();
    let mut command = &whole;
    for word in words {
        command = command.find_subcommand(word).ok_or_else(|| {
            let known: Vec<&str> = command.get_subcommands().map(clap::Command::get_name).collect();
            let known: Vec<&str> = known.into_iter().filter(|name| *name != "help").collect();
            let message = format!("`{word}` is not a verb or a topic of rlaunch");
            let failed = Failed::new(Exit::USAGE, message);
            failed.hint((!known.is_empty()).then(|| format!("there are {}", known.join(", "))))
        })?;
    }
    let mut page = Vec::new();
    let source = format!("rlaunch {}", env!("CARGO_PKG_VERSION"));
    let written = clap_mangen::Man::new(command.clone()).source(source).render(&mut page);
    written.map_err(|error| Failed::from_error(Exit::BUG, &error))?;
    Ok(page)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// What nobody is to type.
    const HIDDEN: [&str; 5] = ["ignored", "remark", "interfaces", "nnodes", "allow-run-as-root"];
    const VERBS: [&str; 5] = ["topo", "bench", "ssh-config", "completions", "man"];

    fn text(bytes: Vec<u8>) -> String {
        String::from_utf8(bytes).unwrap()
    }

    #[test]
    fn the_whole_definition_is_sound() {
        args::definition().debug_assert();
    }

    #[test]
    fn shells_complete_options_and_verbs() {
        for shell in [Shell::Bash, Shell::Zsh, Shell::Fish] {
            let script = text(script(shell));
            let dashes = if shell == Shell::Fish { "-l " } else { "--" };
            for option in ["map-by", "transport", "gids"] {
                assert!(script.contains(&format!("{dashes}{option}")), "{shell:?}: {option}");
            }
            for verb in VERBS {
                assert!(script.contains(verb), "{shell:?}: {verb}");
            }
            for hidden in HIDDEN {
                assert!(!script.contains(&format!("{dashes}{hidden}")), "{shell:?}: {hidden}");
            }
        }
    }

    #[test]
    fn pages_say_what_help_says() {
        let all = text(page(&[]).unwrap());
        for wanted in [".TH rlaunch 1", "\\-\\-map\\-by", "rlaunch\\-topo(1)", "EXTRA"] {
            assert!(all.contains(wanted), "{wanted} in {all}");
        }
        for hidden in HIDDEN {
            assert!(!all.contains(&format!("\\-\\-{}", hidden.replace('-', "\\-"))), "{hidden}");
        }
        let words = |line: &str| line.split(' ').map(str::to_owned).collect::<Vec<_>>();
        let topo = text(page(&words("topo")).unwrap());
        assert!(topo.contains("\\-\\-gids") && topo.contains(".TH rlaunch-topo 1"), "{topo}");
        assert!(text(page(&words("bench train")).unwrap()).contains("\\-\\-np"));
        let ssh = text(page(&words("ssh")).unwrap());
        assert!(ssh.contains(".TH rlaunch-ssh 7") && ssh.contains("\\fBProxyJump\\fR"), "{ssh}");
        let failed = page(&words("tipo")).unwrap_err();
        assert_eq!(failed.message, "`tipo` is not a verb or a topic of rlaunch");
        assert!(failed.hints[0].contains("topo"), "{failed:?}");
    }
}
