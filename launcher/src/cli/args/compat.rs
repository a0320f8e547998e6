//! Hidden options. Another launcher's option is translated to one of them if no documented option has its
//! meaning.

use rlaunch_plan::hosts::addresses::Preference;
use rlaunch_plan::hosts::{self, Host};
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

    /// No ranks on this machine, as mpirun's -nolocal has it
    #[arg(long, hide = true)]
    pub(crate) no_local: bool,
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

/// Tells whether a host has the name of this machine, with or without a domain.
fn has_own_name(host: &Host) -> bool {
    let short = |name: &str| name.split('.').next().unwrap_or_default().to_ascii_lowercase();
    nix::unistd::gethostname().is_ok_and(|own| short(&own.to_string_lossy()) == short(&host.name))
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
    /// Leaves out this machine with `--no-local`. Returns whether that leaves any of the hosts.
    pub(crate) fn leave_out_this_machine(&self, hosts: &mut Vec<Host>) -> bool {
        if self.no_local {
            hosts.retain(|host| {
                !hosts::are_local(std::slice::from_ref(host)) && !has_own_name(host)
            });
        }
        !self.no_local || !hosts.is_empty()
    }

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
    fn this_machine_can_be_left_out() {
        let own = nix::unistd::gethostname().unwrap().to_string_lossy().into_owned();
        let left = |no_local, list: &str| {
            let mut hosts = rlaunch_plan::hosts::parse(&[list.to_owned()]).unwrap();
            let args = CompatArgs { no_local, ..CompatArgs::default() };
            (args.leave_out_this_machine(&mut hosts), text::list(&hosts))
        };
        let all = format!("{own},b,localhost");
        assert_eq!(left(true, &all), (true, "b".to_owned()));
        assert_eq!(left(true, "localhost"), (false, String::new()));
        assert_eq!(left(false, "localhost"), (true, "localhost".to_owned()));
    }

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
