//! Preferred networks, given by mpirun's parameter `oob_tcp_if_include` and similar ones. A node without
//! such a network causes only a warning, whereas a node without the interface of `--oob-if` causes an
//! error.

use super::Network;
use rlaunch_bootstrap::job::InterfaceAddress;
use std::fmt;
use std::str::FromStr;

/// Interfaces and networks to use or, for a parameter `…_exclude`, to avoid.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Preference {
    /// Name of mpirun's parameter. If it ends in `_exclude`, the list names interfaces and networks to
    /// avoid.
    parameter: String,
    list: String,
    entries: Vec<InterfaceOrNetwork>,
}

#[derive(Clone, Debug, PartialEq, Eq)]
enum InterfaceOrNetwork {
    Interface(String),
    Network(Network),
}

impl FromStr for Preference {
    type Err = String;

    /// Parses the name and the value of a parameter: `oob_tcp_if_include eth0,10.1.0.0/16`.
    fn from_str(text: &str) -> Result<Preference, String> {
        let wanted =
            || "interfaces or networks with commas between, as eth0,10.1.0.0/16".to_owned();
        let (parameter, list) = text.split_once(' ').ok_or_else(wanted)?;
        let entry = |text: &str| match text.trim() {
            "" => Err(wanted()),
            network if network.contains('/') => network.parse().map(InterfaceOrNetwork::Network),
            interface => Ok(InterfaceOrNetwork::Interface(interface.to_owned())),
        };
        let entries = list.split(',').map(entry).collect::<Result<_, _>>()?;
        Ok(Preference { parameter: parameter.to_owned(), list: list.to_owned(), entries })
    }
}

impl fmt::Display for Preference {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "--mca {} {}", self.parameter, self.list)
    }
}

impl Preference {
    fn excludes(&self) -> bool {
        self.parameter.ends_with("_exclude")
    }

    /// Tells whether the preference permits the use of an address.
    pub(super) fn permits(&self, address: &InterfaceAddress) -> bool {
        let is_named = self.entries.iter().any(|entry| match entry {
            InterfaceOrNetwork::Interface(name) => *name == address.interface,
            InterfaceOrNetwork::Network(network) => network.contains(address.address),
        });
        is_named != self.excludes()
    }

    /// Returns the warning for `count` hosts without a suitable address; `hosts` has their names, separated
    /// by commas.
    pub(super) fn unmet_warning(&self, hosts: &str, count: usize) -> String {
        let (have, agents, use_) = match count {
            1 => ("has", "its agent", "uses"),
            _ => ("have", "their agents", "use"),
        };
        let another = if count == 1 { "another" } else { "others" };
        match self.excludes() {
            true => {
                format!("{hosts} {have} no interface but those of {self}: {agents} {use_} them")
            }
            false => format!("{hosts} {have} no interface of {self}: {agents} {use_} {another}"),
        }
    }
}
