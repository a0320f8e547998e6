//! Hidden options. Another launcher's option is translated to one of them if no documented option has its
//! meaning.

use rlaunch_plan::hosts::Host;
use rlaunch_plan::hosts::addresses::Preference;
use rlaunch_text::text;

/// Options that [`crate::cli::compat`] sets.
#[derive(Clone, Debug, Default, clap::Args)]
pub(crate) struct CompatArgs {
    /// Networks that agents prefer on hosts that have them: a parameter of mpirun and its value
    #[arg(long = "interfaces", value_name = "PARAMETER LIST", hide = true)]
    pub(crate) preferences: Vec<Preference>,

    /// Number of hosts, as torchrun takes it
    #[arg(long, value_name = "N", hide = true, value_parser = parse_nodes)]
    nnodes: Option<usize>,
}

/// Error if the number of a job's hosts is not that of `--nnodes`.
#[derive(Debug, PartialEq, Eq, thiserror::Error)]
#[error("--nnodes {expected}, but there {}: {hosts}", verb_and_count(*.found))]
pub(crate) struct NodeCountError {
    expected: usize,
    found: usize,
    hosts: String,
}

impl NodeCountError {
    pub(crate) fn hint(&self) -> &'static str {
        "without --nnodes the job uses all hosts"
    }
}

fn verb_and_count(hosts: usize) -> String {
    format!("{} {}", if hosts == 1 { "is" } else { "are" }, text::count(hosts, "host"))
}

fn parse_nodes(text: &str) -> Result<usize, String> {
    if text.contains(':') {
        return Err("rlaunch starts a job on all its hosts and takes no MIN:MAX".to_owned());
    }
    let number = text.trim().parse().ok().filter(|&number: &usize| number > 0);
    number.ok_or_else(|| "a number of hosts, 1 or more".to_owned())
}

impl CompatArgs {
    /// Checks that the job has as many hosts as `--nnodes` says, if the option is given.
    pub(crate) fn check_nodes(&self, hosts: &[Host]) -> Result<(), NodeCountError> {
        match self.nnodes {
            Some(expected) if expected != hosts.len() => {
                let found = hosts.len();
                Err(NodeCountError { expected, found, hosts: text::list(hosts) })
            }
            _ => Ok(()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nodes_are_as_many_as_hosts() {
        let hosts = rlaunch_plan::hosts::parse(&["a:2,b,c".into()]).unwrap();
        let check = |nnodes| CompatArgs { nnodes, ..CompatArgs::default() }.check_nodes(&hosts);
        assert_eq!((check(None), check(Some(3))), (Ok(()), Ok(())));
        let error = check(Some(2)).unwrap_err().to_string();
        assert_eq!(error, "--nnodes 2, but there are 3 hosts: a, b, c");
        assert_eq!(parse_nodes(" 2 "), Ok(2));
        assert!(parse_nodes("1:4").unwrap_err().contains("MIN:MAX"));
        assert!(parse_nodes("0").is_err());
    }
}
