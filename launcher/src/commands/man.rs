//! `rlaunch man`: manual pages of rlaunch, of its verbs and of help topics.

use super::help;
use super::invocation::definition;
use clap::Parser;
use rlaunch_console::exit::Exit;
use rlaunch_console::messages::Failed;
use rlaunch_console::stdout;

/// Print the manual page of rlaunch, of one of its verbs, or of a topic.
#[derive(Debug, Parser)]
#[command(after_help = "\
Examples:
  rlaunch man | man -l -                            read it
  rlaunch man topo | man -l -                       that of a verb
  rlaunch man env | man -l -                        that of a topic of rlaunch help
  rlaunch man > ~/.local/share/man/man1/rlaunch.1   install it")]
pub(crate) struct ManArgs {
    /// Verb or topic, as topo or env; for bench train both words
    #[arg(value_name = "VERB|TOPIC", num_args = 0..=2)]
    pub(crate) words: Vec<String>,
}

pub(super) fn run(args: &ManArgs) -> Result<Exit, Failed> {
    stdout::write(&page(&args.words)?);
    Ok(Exit::SUCCESS)
}

fn page(words: &[String]) -> Result<Vec<u8>, Failed> {
    if let [topic] = words
        && let Some(page) = help::man_page(topic)
    {
        return Ok(page.into_bytes());
    }
    let mut whole = definition();
    whole.build();
    let mut command = &whole;
    for word in words {
        command = command.find_subcommand(word).ok_or_else(|| {
            let known: Vec<&str> = command.get_subcommands().map(clap::Command::get_name).collect();
            let known: Vec<&str> = known.into_iter().filter(|name| *name != "help").collect();
            let message = format!("`{word}` is not a verb or a topic of rlaunch");
            let failed = Failed::new(Exit::USAGE, message);
            failed.hint((!known.is_empty()).then(|| format!("verbs are {}", known.join(", "))))
        })?;
    }
    let mut page = Vec::new();
    let source = format!("rlaunch {}", env!("CARGO_PKG_VERSION"));
    let written = clap_mangen::Man::new(command.clone()).source(source).render(&mut page);
    written.map_err(|error| Failed::from_error(Exit::BUG, &error))?;
    Ok(page)
}

/// Options that must not appear in any help or completion.
#[cfg(test)]
pub(super) const HIDDEN: [&str; 5] =
    ["ignored", "remark", "interfaces", "nnodes", "allow-run-as-root"];

#[cfg(test)]
mod tests {
    use super::*;

    fn text(bytes: Vec<u8>) -> String {
        String::from_utf8(bytes).unwrap()
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
