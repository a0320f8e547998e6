//! Tables `[hosts.NAME]` of a configuration file. Each sets address, login name, port and slots of a host,
//! and its addresses on the fabric, the fast network between hosts.

use crate::hosts::{Host, HostsError};
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

/// All `[hosts.NAME]` tables of a configuration file.
#[derive(Clone, Debug, Default)]
pub struct HostTable {
    pub path: PathBuf,
    pub entries: Vec<HostEntry>,
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

    /// Parses the values of `-H`. A host without a number of slots in `lists` gets the number from the
    /// file, or one slot if the file has none.
    pub fn parse_hosts(&self, lists: &[String]) -> Result<Vec<Host>, HostsError> {
        crate::hosts::parse_with_slots(lists, |host| self.get(&host.name)?.slots)
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
