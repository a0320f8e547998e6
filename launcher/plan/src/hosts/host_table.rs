//! Tables `[hosts.NAME]` of a configuration file. Each sets address, login name, port and slots of a host,
//! and its addresses on the fabric, the fast network between hosts. And its table `[groups]`, whose names stand for
//! several hosts in `-H`.

use super::{
    Host, HostsError, MAX_HOSTS, SlotsBy, entries, parse_entry, parse_lists,
    parse_slots_behind_colon,
};
use rlaunch_bootstrap::job::InterfaceAddress;
use std::net::IpAddr;
use std::path::PathBuf;

/// Settings of one host in a configuration file.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct HostEntry {
    /// Name of the host as in `-H`.
    pub name: String,
    /// Line of the table in the file, from 1.
    pub line: usize,
    /// Host name or IP address to log in to in place of `name`.
    pub ssh: Option<String>,
    pub user: Option<String>,
    pub port: Option<u16>,
    pub slots: Option<u32>,
    /// Addresses of the host on the fabric, each with its line in the file.
    pub fabric_addresses: Vec<(IpAddr, usize)>,
}

impl HostEntry {
    /// Returns the name in the syntax of `-H`. An IPv6 address gets brackets, since without them the text
    /// after a colon could be taken for a number of slots.
    pub fn bracketed(&self) -> String {
        if self.name.contains(':') { format!("[{}]", self.name) } else { self.name.clone() }
    }
}

/// Group of hosts: `gpu = ["a", "b:4"]` in `[groups]`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct HostGroup {
    /// Name of the group, which `-H` has behind an `@`.
    pub name: String,
    /// Line of the group in the file, from 1.
    pub line: usize,
    /// Hosts in the syntax of `-H`.
    pub lists: Vec<String>,
}

impl HostGroup {
    /// Parses the hosts of the group, each with the slots of the group's list or one.
    pub fn hosts(&self) -> Result<Vec<Host>, HostsError> {
        let mut hosts = Vec::new();
        for entry in self.lists.iter().flat_map(|list| entries(list)) {
            if entry.starts_with('@') {
                return Err(HostsError::Nested(entry.to_owned()));
            }
            hosts.extend(parse_entry(entry, SlotsBy::One)?);
            if hosts.len() > MAX_HOSTS {
                return Err(HostsError::TooMany);
            }
        }
        Ok(hosts)
    }
}

/// All `[hosts.NAME]` tables and groups of a configuration file.
#[derive(Clone, Debug, Default)]
pub struct HostTable {
    pub path: PathBuf,
    pub entries: Vec<HostEntry>,
    pub groups: Vec<HostGroup>,
}

impl HostTable {
    fn get(&self, name: &str) -> Option<&HostEntry> {
        self.entries.iter().find(|entry| entry.name == name)
    }

    /// Returns the name and user to log in with for `host`, and the port if the file sets one. A user in
    /// `-H` takes precedence over the user in the file.
    pub fn target_of(&self, host: &Host) -> (Host, Option<u16>) {
        let mut dialled = host.clone();
        let Some(entry) = self.get(&host.name) else { return (dialled, None) };
        dialled.name = entry.ssh.clone().unwrap_or(dialled.name);
        dialled.user = dialled.user.or_else(|| entry.user.clone());
        (dialled, entry.port)
    }

    /// Parses the values of `-H`, in which `@NAME` stands for the hosts of a group. A host without a number of slots in
    /// `lists` gets the number from the file, or one slot if the file has none.
    pub fn parse_hosts(&self, lists: &[String]) -> Result<Vec<Host>, HostsError> {
        parse_lists(lists, |entry| {
            let hosts = match entry.strip_prefix('@') {
                Some(group) => self.hosts_of_group(group)?,
                None => parse_entry(entry, SlotsBy::One)?,
            };
            Ok(hosts.into_iter().map(|host| self.with_slots(host)).collect())
        })
    }

    /// Returns the hosts of `gpu` or, each with four slots, of `gpu:4`.
    fn hosts_of_group(&self, entry: &str) -> Result<Vec<Host>, HostsError> {
        let (name, slots) = match entry.split_once(':') {
            Some((name, slots)) => {
                (name, Some(parse_slots_behind_colon(&format!("@{entry}"), slots)?))
            }
            None => (entry, None),
        };
        let Some(group) = self.groups.iter().find(|group| group.name == name) else {
            let path = self.path.display();
            let shown = |group: &HostGroup| format!("@{} ({path}:{})", group.name, group.line);
            let known = self.groups.iter().map(shown).collect();
            return Err(HostsError::Group { name: name.to_owned(), known });
        };
        let mut hosts = group.hosts()?;
        if let Some(slots) = slots {
            hosts.iter_mut().for_each(|host| (host.slots, host.slots_by) = slots);
        }
        Ok(hosts)
    }

    fn with_slots(&self, host: Host) -> Host {
        match self.get(&host.name).and_then(|entry| entry.slots) {
            Some(slots) if host.slots_by == SlotsBy::One => {
                Host { slots, slots_by: SlotsBy::Given, ..host }
            }
            _ => host,
        }
    }

    /// Lists the fabric addresses of all hosts. Agents and ranks prefer these addresses.
    pub fn fabric_addresses(&self) -> Vec<IpAddr> {
        self.entries
            .iter()
            .flat_map(|entry| &entry.fabric_addresses)
            .map(|(address, _)| *address)
            .collect()
    }

    /// Returns a warning for each fabric address of host `name` in the file that is not one of `own`, the
    /// addresses that the host reported.
    pub fn missing_address_warnings(&self, name: &str, own: &[InterfaceAddress]) -> Vec<String> {
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
