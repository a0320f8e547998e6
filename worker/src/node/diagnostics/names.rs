//! This host's own name, and the addresses to which it leads.

use super::background::Background;
use crate::node::inventory::Root;
use rlaunch_bootstrap::inventory::Inventory;
use rlaunch_bootstrap::inventory::diagnostics::OwnName;
use rlaunch_bootstrap::inventory::net::NetdevKind;
use std::net::{IpAddr, ToSocketAddrs};
use std::time::Duration;

/// Time limit for the look-up, after which the name counts as unknown.
const LOOKUP_TIMEOUT: Duration = Duration::from_secs(2);
const HOSTNAME: &str = "/proc/sys/kernel/hostname";
/// Source of names that gives a host's own name its own addresses, and is asked last.
const MYHOSTNAME: &str = "myhostname";
/// Sources of names that the agent's C library has, or does without: it asks resolved by DNS.
const KNOWN_SOURCES: &[&str] = &["files", "dns", "resolve", "mymachines", MYHOSTNAME];

/// Starts to look up this host's name. Returns `None` for a recorded host.
pub(super) fn look_up(root: &Root) -> Option<Background<Vec<IpAddr>>> {
    let name = root.is_live().then(|| root.text(HOSTNAME)).flatten()?;
    Some(Background::start(move || {
        let found = (name.as_str(), 0).to_socket_addrs().into_iter().flatten();
        let mut addresses: Vec<IpAddr> = found.map(|address| address.ip()).collect();
        addresses.dedup();
        addresses
    }))
}

/// Returns this host's name and its addresses.
pub(super) fn own_name(
    root: &Root,
    inventory: &Inventory,
    looked_up: Option<Background<Vec<IpAddr>>>,
) -> OwnName {
    let lines = root.socket_lines("/own-addresses", || {
        let addresses = looked_up.and_then(|lookup| lookup.wait(LOOKUP_TIMEOUT));
        addresses.unwrap_or_default().iter().map(IpAddr::to_string).collect()
    });
    let mut addresses: Vec<IpAddr> = lines.iter().filter_map(|line| line.parse().ok()).collect();
    if addresses.is_empty() && sources(root).iter().any(|source| source == MYHOSTNAME) {
        addresses = own_addresses(inventory);
    }
    OwnName { hostname: root.text(HOSTNAME).unwrap_or_default(), addresses }
}

/// Returns what `myhostname` gives as the addresses of this host.
fn own_addresses(inventory: &Inventory) -> Vec<IpAddr> {
    let netdevs = inventory.netdevs.iter().filter(|netdev| netdev.kind != NetdevKind::Loopback);
    let addresses = netdevs.flat_map(|netdev| netdev.addresses.iter().map(|(address, _)| *address));
    let is_link_local = |address: &IpAddr| match address {
        IpAddr::V4(address) => address.is_link_local(),
        IpAddr::V6(address) => address.is_unicast_link_local(),
    };
    let own: Vec<IpAddr> = addresses.filter(|address| !is_link_local(address)).collect();
    if own.is_empty() { vec![IpAddr::from([127, 0, 0, 2])] } else { own }
}

/// Returns the sources of names that the agent does not know.
pub(super) fn other_sources(root: &Root) -> Vec<String> {
    let is_other = |source: &String| !KNOWN_SOURCES.contains(&source.as_str());
    sources(root).into_iter().filter(is_other).collect()
}

/// Returns the sources of names in `/etc/nsswitch.conf`, which has a line like
/// `hosts: files dns [NOTFOUND=return] myhostname # comment`.
fn sources(root: &Root) -> Vec<String> {
    let text = root.text("/etc/nsswitch.conf").unwrap_or_default();
    let Some(line) = text.lines().find_map(|line| line.trim().strip_prefix("hosts:")) else {
        return Vec::new();
    };
    let line = line.split('#').next().unwrap_or_default();
    // Actions in brackets may have spaces.
    let outside = line.split('[').enumerate().map(|(part, text)| match part {
        0 => text,
        _ => text.split_once(']').map_or("", |(_, after)| after),
    });
    outside.flat_map(str::split_whitespace).map(str::to_owned).collect()
}
