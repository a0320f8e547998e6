//! What words of other launchers have become that no option of rlaunch's own says: hidden, since
//! [`crate::cli::compat`] writes them and nobody types them.

use crate::hosts::Host;
use crate::hosts::addresses::Preference;
use clap::ArgAction;
use rlaunch_console::{messages, text};

/// What else other launchers' words say.
#[derive(Clone, Debug, Default, clap::Args)]
pub(crate) struct ForeignArgs {
    /// Words that change nothing here
    #[arg(long, value_name = "WORD", action = ArgAction::Append, hide = true)]
    ignored: Vec<String>,

    /// Sentences on words that mean something else here
    #[arg(long, value_name = "SENTENCE", action = ArgAction::Append, hide = true)]
    remark: Vec<String>,

    /// Networks that agents use where a host has them: a parameter of mpirun and its value
    #[arg(
        long = "interfaces", value_name = "PARAMETER LIST", action = ArgAction::Append, hide = true
    )]
    pub(crate) preferences: Vec<Preference>,

    /// How many hosts there are, as torchrun is told
    #[arg(long, value_name = "N", hide = true, value_parser = parse_nodes)]
    nnodes: Option<usize>,
}

/// `--nnodes` that hosts contradict.
#[derive(Debug, PartialEq, Eq, thiserror::Error)]
#[error("--nnodes {asked}, and there {}: {hosts}", are(*.found))]
pub(crate) struct OtherNodes {
    asked: usize,
    found: usize,
    hosts: String,
}

fn are(hosts: usize) -> String {
    format!("{} {}", if hosts == 1 { "is" } else { "are" }, text::count(hosts, "host"))
}

fn parse_nodes(text: &str) -> Result<usize, String> {
    if text.contains(':') {
        return Err("rlaunch starts a job on all its hosts, and takes no MIN:MAX".to_owned());
    }
    let number = text.trim().parse().ok().filter(|&number: &usize| number > 0);
    number.ok_or_else(|| "a number of hosts, 1 or more".to_owned())
}

impl ForeignArgs {
    /// Names what programs' words say that is ignored, on one line, and what is not as its launcher
    /// has it; each once.
    pub(crate) fn tell<'a>(of_programs: impl Iterator<Item = &'a ForeignArgs> + Clone) {
        let ignored = distinct(of_programs.clone().flat_map(|words| &words.ignored));
        if !ignored.is_empty() {
            messages::ignored(&ignored.join(", "));
        }
        distinct(of_programs.flat_map(|words| &words.remark))
            .iter()
            .for_each(|it| messages::info(it));
    }

    /// The same, once all of it has been told.
    pub(crate) fn told(&self) -> ForeignArgs {
        ForeignArgs { ignored: Vec::new(), remark: Vec::new(), ..self.clone() }
    }

    /// Whether these are as many hosts as was said.
    pub(crate) fn check_nodes(&self, hosts: &[Host]) -> Result<(), OtherNodes> {
        match self.nnodes {
            Some(asked) if asked != hosts.len() => {
                Err(OtherNodes { asked, found: hosts.len(), hosts: text::list(hosts) })
            }
            _ => Ok(()),
        }
    }
}

/// In the order in which they came first.
fn distinct<'a>(words: impl Iterator<Item = &'a String>) -> Vec<&'a str> {
    let mut seen = Vec::new();
    for word in words.map(String::as_str) {
        if !seen.contains(&word) {
            seen.push(word);
        }
    }
    seen
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nodes_are_as_many_as_hosts() {
        let hosts = crate::hosts::parse(&["a:2,b,c".into()]).unwrap();
        let of = |nnodes| ForeignArgs { nnodes, ..ForeignArgs::default() }.check_nodes(&hosts);
        assert_eq!((of(None), of(Some(3))), (Ok(()), Ok(())));
        let said = of(Some(2)).unwrap_err().to_string();
        assert_eq!(said, "--nnodes 2, and there are 3 hosts: a, b, c");
        assert_eq!(parse_nodes(" 2 "), Ok(2));
        assert!(parse_nodes("1:4").unwrap_err().contains("MIN:MAX"));
        assert!(parse_nodes("0").is_err());
    }
}
