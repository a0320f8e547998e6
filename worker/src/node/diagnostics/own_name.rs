//! This host's own name, and the addresses to which it leads.

use super::background::Background;
use super::program;
use crate::node::inventory::Root;
use rlaunch_bootstrap::inventory::diagnostics::OwnName;
use std::fs;
use std::net::IpAddr;
use std::time::Duration;

/// Time limit for the look-up, after which the name counts as one without an address.
const LOOKUP_TIMEOUT: Duration = Duration::from_secs(3);
const HOSTNAME: &str = "/proc/sys/kernel/hostname";
/// Recorded files with addresses and sources, one a line.
const ADDRESSES: &str = "/own-addresses";
const OTHER_SOURCES: &str = "/other-name-sources";

/// Result of a look-up.
#[derive(Debug, Default)]
pub(super) struct FoundName {
    addresses: Vec<String>,
    /// Sources of names that were not asked.
    other_sources: Vec<String>,
}

/// Starts to look up this host's name. Returns `None` for a recorded host.
pub(super) fn start_look_up(root: &Root) -> Option<Background<FoundName>> {
    let name = root.is_live().then(|| root.text(HOSTNAME)).flatten()?;
    Some(Background::start(move || look_up(&name)))
}

/// Returns this host's name with its addresses, and the sources of names that were not asked.
pub(super) fn read(
    root: &Root,
    looked_up: Option<Background<FoundName>>,
) -> (OwnName, Vec<String>) {
    let found = looked_up.and_then(|lookup| lookup.wait(LOOKUP_TIMEOUT)).unwrap_or_default();
    let lines = root.asked_lines(ADDRESSES, || found.addresses);
    let addresses = lines.iter().filter_map(|line| line.parse::<IpAddr>().ok()).collect();
    let hostname = root.text(HOSTNAME).unwrap_or_default();
    (OwnName { hostname, addresses }, root.asked_lines(OTHER_SOURCES, || found.other_sources))
}

/// Looks up a name as programs do. The agent is linked statically and cannot ask the host's sources
/// of names itself; `getent` can.
fn look_up(name: &str) -> FoundName {
    let read = |path| fs::read_to_string(path).unwrap_or_default();
    let Some(getent) = program::find("getent") else {
        let addresses = addresses_in_hosts(name, &read("/etc/hosts"));
        return FoundName { addresses, other_sources: other_sources(&read("/etc/nsswitch.conf")) };
    };
    let printed = program::run(&getent, &["ahosts", name]).unwrap_or_default();
    let addresses = printed.lines().filter_map(|line| line.split_whitespace().next());
    // Each address is printed once for each type of socket.
    let mut addresses: Vec<String> = addresses.map(str::to_owned).collect();
    addresses.dedup();
    FoundName { addresses, other_sources: Vec::new() }
}

/// Returns the addresses of a name in `/etc/hosts`.
fn addresses_in_hosts(name: &str, hosts: &str) -> Vec<String> {
    let address = |line: &str| {
        let mut words = line.split('#').next()?.split_whitespace();
        let address = words.next()?;
        words.any(|own| own.eq_ignore_ascii_case(name)).then(|| address.to_owned())
    };
    hosts.lines().filter_map(address).collect()
}

/// Returns the sources of names in `/etc/nsswitch.conf` except files. It has a line like
/// `hosts: files dns [NOTFOUND=return] myhostname # comment`; without it, files and DNS are asked.
fn other_sources(text: &str) -> Vec<String> {
    let line = text.lines().find_map(|line| line.trim().strip_prefix("hosts:"));
    let line = line.unwrap_or("files dns").split('#').next().unwrap_or_default();
    // Actions in brackets may have spaces.
    let outside = line.split('[').enumerate().map(|(part, text)| match part {
        0 => text,
        _ => text.split_once(']').map_or("", |(_, after)| after),
    });
    let sources = outside.flat_map(str::split_whitespace).filter(|source| *source != "files");
    sources.map(str::to_owned).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_looked_up() {
        let hosts = "127.0.0.1 localhost\n10.0.0.7\tg7.lan G7 # old: 10.0.0.8 g8\n::1 g7\n";
        assert_eq!(addresses_in_hosts("g7", hosts), ["10.0.0.7", "::1"]);
        assert!(addresses_in_hosts("g8", hosts).is_empty());
        let addresses = look_up("localhost").addresses;
        assert!(addresses.iter().all(|own| own.parse::<IpAddr>().unwrap().is_loopback()));
        assert!(!addresses.is_empty());
    }

    #[test]
    fn sources_of_names_are_listed() {
        let text = "passwd: files\nhosts:  files sss [NOTFOUND = return] dns # local\n";
        assert_eq!(other_sources(text), ["sss", "dns"]);
        assert_eq!(other_sources("passwd: files"), ["dns"]);
    }
}
