//! Tables `[hosts.NAME]` of a configuration file. Each sets address, login name, port and slots of a host,
//! and its addresses on the fabric, the fast network between hosts.

use crate::hosts::{Host, HostsError};
use rlaunch_bootstrap::job::InterfaceAddress;
use std::net::IpAddr;
use std::path::PathBuf;

/// Settings of one host in a configuration file.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct HostEntry {
    /// Name of the host as in `-H`.
    pub(crate) name: String,
    /// Line of the table in the file, from 1.
    pub(crate) line: usize,
    /// Host name or IP address to log in to in place of `name`.
    pub(crate) ssh: Option<String>,
    pub(crate) user: Option<String>,
    pub(crate) port: Option<u16>,
    pub(crate) slots: Option<u32>,
    /// Addresses of the host on the fabric, each with its line in the file.
    pub(crate) fabric_addresses: Vec<(IpAddr, usize)>,
}

impl HostEntry {
    /// Returns the name in the syntax of `-H`. An IPv6 address gets brackets, since without them the text
    /// after a colon could be taken for a number of slots.
    pub(crate) fn bracketed(&self) -> String {
        if self.name.contains(':') { format!("[{}]", self.name) } else { self.name.clone() }
    }
}

/// All `[hosts.NAME]` tables of a configuration file.
#[derive(Clone, Debug, Default)]
pub(crate) struct HostTable {
    pub(crate) path: PathBuf,
    pub(crate) entries: Vec<HostEntry>,
}

impl HostTable {
    fn get(&self, name: &str) -> Option<&HostEntry> {
        self.entries.iter().find(|entry| entry.name == name)
    }

    /// Returns the name and user to log in with for `host`, and the port if the file sets one. A user in
    /// `-H` takes precedence over the user in the file.
    pub(crate) fn target_of(&self, host: &Host) -> (Host, Option<u16>) {
        let mut dialled = host.clone();
        let Some(entry) = self.get(&host.name) else { return (dialled, None) };
        dialled.name = entry.ssh.clone().unwrap_or(dialled.name);
        dialled.user = dialled.user.or_else(|| entry.user.clone());
        (dialled, entry.port)
    }

    /// Parses the values of `-H`. A host without a number of slots in `lists` gets the number from the
    /// file, or one slot if the file has none.
    pub(crate) fn parse_hosts(&self, lists: &[String]) -> Result<Vec<Host>, HostsError> {
        crate::hosts::parse_with_slots(lists, |host| self.get(&host.name)?.slots)
    }

    /// Lists the fabric addresses of all hosts. Agents and ranks prefer these addresses.
    pub(crate) fn fabric_addresses(&self) -> Vec<IpAddr> {
        self.entries
            .iter()
            .flat_map(|entry| &entry.fabric_addresses)
            .map(|(address, _)| *address)
            .collect()
    }

    /// Returns a warning for each fabric address of host `name` in the file that is not one of `own`, the
    /// addresses that the host reported.
    pub(crate) fn missing_address_warnings(
        &self,
        name: &str,
        own: &[InterfaceAddress],
    ) -> Vec<String> {
        let fabric_addresses = self.get(name).map_or(&[][..], |entry| &entry.fabric_addresses);
        let absent = fabric_addresses
            .iter()
            .filter(|(address, _)| !own.iter().any(|o| o.address == *address));
        let place = self.path.display();
        absent
            .map(|(a, line)| format!("{name} has no address {a}, its mesh in {place}:{line}"))
            .collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::path::Path;

    fn table(text: &str) -> HostTable {
        let path = Path::new("rlaunch.toml");
        HostTable {
            path: path.into(),
            entries: crate::cli::config::file::parse(text, path).unwrap().hosts,
        }
    }

    #[test]
    fn hosts_are_dialled_as_the_file_says() {
        let table =
            table("[hosts.t]\nssh = \"10.0.0.170\"\nuser = \"me\"\nport = 2222\n[hosts.s]\n");
        let way = |entry: &str| {
            let hosts = crate::hosts::parse(&[entry.to_owned()]).unwrap();
            let (host, port) = table.target_of(&hosts[0]);
            (host.to_string(), port)
        };
        assert_eq!(way("t"), ("me@10.0.0.170".to_owned(), Some(2222)));
        assert_eq!(way("you@t"), ("you@10.0.0.170".to_owned(), Some(2222)));
        assert_eq!(way("s"), ("s".to_owned(), None));
        assert_eq!(way("other"), ("other".to_owned(), None));
    }

    #[test]
    fn slots_of_the_file_count_where_none_are_typed() {
        let table = table(
            "[hosts.t]\nslots = 4\n[hosts.\"fd00::2\"]\nslots = 2\n[hosts.s]\n\
                         [hosts.n02]\nslots = 3\n",
        );
        let parsed = |list: &str| {
            let hosts = table.parse_hosts(&[list.to_owned()]).unwrap();
            let shown = |host: &Host| format!("{host} {} {:?}", host.slots, host.slots_by);
            hosts.iter().map(shown).collect::<Vec<_>>().join(", ")
        };
        assert_eq!(parsed("t,me@t,s,x"), "t 4 Given, me@t 4 Given, s 1 One, x 1 One");
        assert_eq!(parsed("t, t,t:1"), "t 9 Given");
        assert_eq!(parsed("[fd00::2],fd00::2,[fd00::2]:1"), "fd00::2 5 Given");
        assert_eq!(parsed("n[01-02,20],t:2"), "n01 1 One, n02 3 Given, n20 1 One, t 2 Given");
        // An error quotes what the user typed.
        let error = table.parse_hosts(&["t,b:two".to_owned()]).unwrap_err().to_string();
        assert_eq!(error, "in -H t,b:two: `b:two`: `two` is not a number of slots");
    }

    #[test]
    fn a_fabric_address_that_is_nowhere_is_said() {
        let table = table("[hosts.t]\nmesh = [\"10.1.0.1\", \"10.1.0.2\"]\n");
        let own = [InterfaceAddress {
            interface: "eth1".into(),
            address: "10.1.0.1".parse().unwrap(),
            prefix: 24,
        }];
        let expected = "t has no address 10.1.0.2, its mesh in rlaunch.toml:2";
        assert_eq!(table.missing_address_warnings("t", &own), [expected]);
        assert!(table.missing_address_warnings("s", &own).is_empty());
        assert_eq!(table.fabric_addresses().len(), 2);
    }
}
