//! Addresses of a plan as files for the programs that configure networks.

use super::Surveyed;
use super::plan::{IPOIB_MODE, MeshPlan, PlannedEnd, PlannedLink};
use clap::ValueEnum;
use rlaunch_bootstrap::inventory::net::NetdevKind;
use rlaunch_bootstrap::protocol::network::{NetworkChange, NetworkFile};
use rlaunch_text::{columns, shell};
use std::fmt::Write as _;
use std::path::Path;

/// Words that YAML does not take for text.
const YAML_WORDS: [&str; 9] = ["y", "n", "yes", "no", "on", "off", "true", "false", "null"];

/// `--format`: program that configures the network of a host.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(super) enum ConfigFormat {
    /// Netplan: a file for /etc/netplan
    Netplan,
    /// NetworkManager: commands for nmcli
    Nmcli,
    /// systemd-networkd: files for /etc/systemd/network
    Networkd,
    /// ifupdown: a file for /etc/network/interfaces.d
    Ifupdown,
    /// NetworkManager: files for its system-connections
    Keyfile,
    /// Commands for ip, which last until the next boot
    Ip,
}

/// File with the configuration of a host.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct SetupFile {
    /// Directory where it belongs on the host; `None` for a script.
    pub(super) directory: Option<&'static str>,
    pub(super) name: String,
    pub(super) text: String,
}

impl ConfigFormat {
    /// Writes the configuration of a host, given by its index.
    pub(super) fn files(self, plan: &MeshPlan, hosts: &[Surveyed], host: usize) -> Vec<SetupFile> {
        let ends = ends_of(plan, hosts, host);
        if ends.is_empty() {
            return Vec::new();
        }
        let script = |line: fn(&PeeredEnd<'_>) -> String| {
            let lines: String = ends.iter().map(line).collect();
            vec![SetupFile {
                directory: None,
                name: "rdma-mesh.sh".into(),
                text: format!("#!/bin/sh\nset -e\n{lines}"),
            }]
        };
        match self {
            ConfigFormat::Netplan => vec![SetupFile {
                directory: Some("/etc/netplan"),
                name: "99-rdma-mesh.yaml".into(),
                text: netplan(&ends),
            }],
            ConfigFormat::Networkd => ends.iter().map(networkd).collect(),
            ConfigFormat::Ifupdown => vec![SetupFile {
                directory: Some("/etc/network/interfaces.d"),
                name: "rdma-mesh".into(),
                text: ends.iter().map(ifupdown).collect::<Vec<_>>().join("\n"),
            }],
            ConfigFormat::Keyfile => ends.iter().filter_map(keyfile).collect(),
            ConfigFormat::Nmcli => script(nmcli),
            ConfigFormat::Ip => script(ip),
        }
    }

    /// Returns what is to be done on each host with the files.
    pub(super) fn instructions(self) -> &'static str {
        match self {
            ConfigFormat::Netplan => {
                "on each host, as root: put the file into /etc/netplan with mode 600, then `netplan try`"
            }
            ConfigFormat::Nmcli => "on each host, as root: `sh rdma-mesh.sh`",
            ConfigFormat::Networkd => {
                "on each host, as root: put the files into /etc/systemd/network, then `networkctl reload`"
            }
            ConfigFormat::Ifupdown => {
                "on each host, as root: put the file into /etc/network/interfaces.d, then `ifup` its interfaces"
            }
            ConfigFormat::Keyfile => {
                "on each host, as root: put the files into /etc/NetworkManager/system-connections with mode 600, then \
                 `nmcli connection reload`"
            }
            ConfigFormat::Ip => {
                "on each host, as root: `sh rdma-mesh.sh`; this lasts until the next boot, the other formats stay"
            }
        }
    }
}

/// Interface of a host, and the names of the other ends of its link.
struct PeeredEnd<'a> {
    end: &'a PlannedEnd,
    peers: String,
    network_file: Option<&'a NetworkFile>,
}

impl PeeredEnd<'_> {
    fn interface(&self) -> &str {
        &self.end.end.interface
    }

    fn address(&self) -> String {
        format!("{}/{}", self.end.address, self.end.prefix)
    }

    /// Returns the name of the file of systemd-networkd to which its address is to be added, if that is for it alone.
    fn file_to_extend(&self) -> Option<&str> {
        let file = self.network_file.filter(|file| file.is_for_one)?;
        let name = Path::new(&file.path).file_name()?.to_str()?;
        (name != own_network_file(self.interface())).then_some(name)
    }

    fn is_ipoib(&self) -> bool {
        self.end.kind == NetdevKind::Ipoib
    }
}

/// Lists the interfaces of a host in the order of their names.
fn ends_of<'a>(plan: &'a MeshPlan, hosts: &'a [Surveyed], host: usize) -> Vec<PeeredEnd<'a>> {
    let peered = |link: &'a PlannedLink| {
        let end = link.ends.iter().find(|end| end.end.host == host)?;
        let others = link.ends.iter().filter(|other| other.end.host != host);
        let name = |other: &PlannedEnd| {
            let host = hosts.get(other.end.host).map_or("?", |host| &host.name);
            format!("{host} {}", other.end.interface)
        };
        let peers = others.map(name).collect::<Vec<_>>().join(", ");
        let found = hosts.get(host).and_then(|host| host.interface(&end.end.interface));
        let network_file = found.and_then(|found| found.network_file.as_ref());
        Some(PeeredEnd { end, peers, network_file })
    };
    let mut ends: Vec<PeeredEnd<'a>> = plan.links.iter().filter_map(peered).collect();
    ends.sort_by(|one, other| one.interface().cmp(other.interface()));
    ends
}

fn netplan(ends: &[PeeredEnd<'_>]) -> String {
    let mut text = "network:\n  version: 2\n".to_owned();
    let bonds: (Vec<_>, Vec<_>) = ends.iter().partition(|end| end.end.kind == NetdevKind::Bond);
    // The entry of a bond is merged with the one in another file that makes the bond.
    for (section, ends) in [("ethernets", bonds.1), ("bonds", bonds.0)] {
        if !ends.is_empty() {
            let _ = writeln!(text, "  {section}:");
        }
        for end in ends {
            let _ = writeln!(text, "    {}:  # to {}", yaml_key(end.interface()), end.peers);
            let _ = writeln!(text, "      optional: true");
            if end.is_ipoib() {
                let _ = writeln!(text, "      infiniband-mode: {IPOIB_MODE}");
            }
            if let Some(mtu) = end.end.mtu {
                let _ = writeln!(text, "      mtu: {mtu}");
            }
            let _ = writeln!(text, "      addresses:\n        - {}", end.address());
        }
    }
    text
}

fn yaml_key(name: &str) -> String {
    let is_plain = name.starts_with(|c: char| c.is_ascii_alphabetic())
        && name.chars().all(|c| c.is_ascii_alphanumeric() || "-_.".contains(c))
        && !YAML_WORDS.contains(&name.to_ascii_lowercase().as_str());
    if is_plain { name.to_owned() } else { format!("'{}'", name.replace('\'', "''")) }
}

fn own_network_file(interface: &str) -> String {
    format!("10-rdma-mesh-{interface}.network")
}

/// Writes a file for an interface. networkd uses the first one that matches: what the interface has by one of its own is
/// added to.
fn networkd(end: &PeeredEnd<'_>) -> SetupFile {
    let name = end.interface();
    let directory = Some("/etc/systemd/network");
    if let Some(file) = end.file_to_extend() {
        let mut text = format!("# to {}\n", end.peers);
        if let Some(mtu) = end.end.mtu {
            let _ = write!(text, "[Link]\nMTUBytes={mtu}\n\n");
        }
        if end.is_ipoib() {
            let _ = write!(text, "[IPoIB]\nMode={IPOIB_MODE}\n\n");
        }
        let _ = write!(text, "[Network]\nAddress={}\n", end.address());
        return SetupFile { directory, name: format!("{file}.d/rdma-mesh.conf"), text };
    }
    let mut text = format!("# to {}\n", end.peers);
    if end.end.kind == NetdevKind::Bond {
        // Its name is known on the host only.
        let _ = writeln!(
            text,
            "# networkd uses the first file that matches. If {name} has one already (`networkctl status {name}` names \
             it),\n# put [Link] and [Network] into a drop-in for it instead: \
             /etc/systemd/network/FILE.network.d/rdma-mesh.conf"
        );
    }
    let _ = write!(text, "[Match]\nName={name}\n\n[Link]\n");
    if let Some(mtu) = end.end.mtu {
        let _ = writeln!(text, "MTUBytes={mtu}");
    }
    text.push_str("RequiredForOnline=no\n\n");
    if end.is_ipoib() {
        let _ = write!(text, "[IPoIB]\nMode={IPOIB_MODE}\n\n");
    }
    let _ = write!(text, "[Network]\nLinkLocalAddressing=ipv6\nAddress={}\n", end.address());
    SetupFile { directory, name: own_network_file(name), text }
}

fn nmcli(end: &PeeredEnd<'_>) -> String {
    let name = quoted(end.interface());
    let connection = quoted(&format!("rdma-mesh-{}", end.interface()));
    let address = end.address();
    if end.end.kind == NetdevKind::Bond {
        // The connection that makes the bond may have any name.
        return format!(
            "# to {}\nconnection=$(nmcli -e no -g GENERAL.CONNECTION device show {name})\n\
             nmcli connection modify \"$connection\" ipv4.method manual +ipv4.addresses {address}\n\
             nmcli connection up \"$connection\"\n",
            end.peers
        );
    }
    let special = match end.end.mtu {
        _ if end.is_ipoib() => format!("infiniband.transport-mode {IPOIB_MODE} "),
        Some(mtu) => format!("802-3-ethernet.mtu {mtu} "),
        None => String::new(),
    };
    let kind = if end.is_ipoib() { "infiniband" } else { "ethernet" };
    format!(
        "# to {}\nnmcli connection add type {kind} con-name {connection} ifname {name} {special}\
         ipv4.method manual ipv4.addresses {address} ipv4.never-default yes ipv6.method link-local \
         connection.autoconnect-priority 10\nnmcli connection up {connection}\n",
        end.peers
    )
}

/// Writes a file of ifupdown. Names of interfaces have no space in it.
fn ifupdown(end: &PeeredEnd<'_>) -> String {
    let name = end.interface();
    let mut text = format!(
        "# to {}\nauto {name}\niface {name} inet static\n    address {}\n",
        end.peers,
        end.address()
    );
    if end.is_ipoib() {
        let _ = writeln!(text, "    pre-up echo {IPOIB_MODE} > /sys/class/net/$IFACE/mode");
    }
    if let Some(mtu) = end.end.mtu {
        let _ = writeln!(text, "    mtu {mtu}");
    }
    text
}

/// Writes a connection of NetworkManager as it stores them; `None` for a bond, whose connection is there under another name.
fn keyfile(end: &PeeredEnd<'_>) -> Option<SetupFile> {
    let name = end.interface();
    if end.end.kind == NetdevKind::Bond {
        return None;
    }
    let kind = if end.is_ipoib() { "infiniband" } else { "ethernet" };
    let mut text = format!(
        "# to {}\n[connection]\nid=rdma-mesh-{name}\ntype={kind}\ninterface-name={name}\nautoconnect-priority=10\n\n",
        end.peers
    );
    let special = match end.end.mtu {
        _ if end.is_ipoib() => format!("transport-mode={IPOIB_MODE}\n"),
        Some(mtu) => format!("mtu={mtu}\n"),
        None => String::new(),
    };
    let _ = write!(
        text,
        "[{kind}]\n{special}\n[ipv4]\nmethod=manual\naddress1={}\nnever-default=true\n\n[ipv6]\nmethod=link-local\n",
        end.address()
    );
    Some(SetupFile {
        directory: Some("/etc/NetworkManager/system-connections"),
        name: format!("rdma-mesh-{name}.nmconnection"),
        text,
    })
}

fn quoted(word: &str) -> String {
    shell::quoted(word.as_ref())
}

/// Writes the changes, which are undone by a boot, for a host in any state.
fn ip(end: &PeeredEnd<'_>) -> String {
    let interface = || end.interface().to_owned();
    let mut changes = Vec::new();
    if end.is_ipoib() {
        changes.push(NetworkChange::SetIpoibMode {
            interface: interface(),
            mode: IPOIB_MODE.to_owned(),
        });
    }
    changes.extend(end.end.mtu.map(|mtu| NetworkChange::SetMtu { interface: interface(), mtu }));
    changes.push(NetworkChange::SetUp { interface: interface(), up: true });
    let removals = end
        .end
        .changes
        .iter()
        .filter(|change| matches!(change, NetworkChange::RemoveAddress { .. }));
    changes.extend(removals.cloned());
    let mut text = format!("# to {}\n", end.peers);
    for change in changes {
        let words: Vec<String> = change.arguments().iter().map(|word| quoted(word)).collect();
        let _ = writeln!(text, "ip {}", words.join(" "));
    }
    let name = quoted(end.interface());
    let _ = writeln!(text, "ip address replace {} dev {name}", end.address());
    text
}

/// Formats a table of links, subnets and addresses.
pub(super) fn table(plan: &MeshPlan, hosts: &[Surveyed]) -> String {
    let mut header = vec!["link".to_owned(), "subnet".to_owned()];
    header.extend(hosts.iter().map(|host| host.name.clone()));
    let row = |link: &PlannedLink| {
        let name = |end: &PlannedEnd| {
            let host = hosts.get(end.end.host).map_or("?", |host| &host.name);
            format!("{host} {}", end.end.interface)
        };
        let names: Vec<String> = link.ends.iter().map(name).collect();
        let joint = if names.len() == 2 { " ── " } else { ", " };
        let mut row = vec![names.join(joint), link.subnet.to_string()];
        row.extend((0..hosts.len()).map(|host| {
            let end = link.ends.iter().find(|end| end.end.host == host);
            end.map_or("-".to_owned(), |end| {
                let mark = if end.changes.is_empty() { " (kept)" } else { "" };
                format!("{}{mark}", shortened(end))
            })
        }));
        row
    };
    let rows: Vec<Vec<String>> =
        std::iter::once(header).chain(plan.links.iter().map(row)).collect();
    columns::lay_out(&rows)
}

/// Writes an address: only its last number, `.2`, if the subnet has the other three.
fn shortened(end: &PlannedEnd) -> String {
    match end.prefix {
        24.. => format!(".{}", end.address.octets()[3]),
        _ => end.address.to_string(),
    }
}

#[cfg(test)]
mod tests;
