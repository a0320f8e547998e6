//! Messages between `rlaunch network` and an agent that was started as `rlaunch-worker network`.
//!
//! ```text
//! agent                              launcher
//!   State(HostNetwork)    ──────▶                        the launcher waits for every host
//!                         ◀──────   Apply, Discover, Probe, Confirm or RollBack, any number of times
//!   one reply for each    ──────▶
//! ```
//!
//! Both directions carry frames of [`crate::frame`], the agent's first one after
//! [`HELLO_MAGIC`](super::control::HELLO_MAGIC). The agent undoes all changes that were not confirmed when the
//! launcher says so, when its stdin ends, when a signal ends it, or when the time of the last [`NetworkOrder::Apply`]
//! has passed. If it is killed, its guardian undoes them and sends the last message in its place.

use crate::inventory::net::{Netdev, Route};
use crate::shell_safe::word;
use serde::{Deserialize, Serialize};
use std::fmt;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

/// UDP port of beacons and probes.
pub const NETWORK_PORT: u16 = 40_000;
/// Link-local multicast group of all nodes, to which beacons are sent. Every switch forwards it, and every interface
/// with IPv6 is a member.
pub const BEACON_GROUP: Ipv6Addr = Ipv6Addr::new(0xff02, 0, 0, 0, 0, 0, 0, 1);
/// Maximum number of different beacons that an agent reports.
pub const MAX_HEARD: usize = 4096;

/// Network of a host, as its agent sees it.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct HostNetwork {
    /// Network interfaces, in order of the kernel's indices, without the loopback interface.
    pub interfaces: Vec<HostInterface>,
    /// Routes that lead out of the host.
    pub routes: Vec<Route>,
    /// Own address of the SSH connection; `None` if the agent was not started by SSH.
    pub ssh_address: Option<IpAddr>,
    /// Other end's address of the SSH connection, as far as this host sees it.
    pub ssh_client: Option<IpAddr>,
    /// Right to change the network. It is examined only if the launcher means to use it.
    pub privilege: Privilege,
}

/// Network interface with what decides whether it can be asked for its cable.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct HostInterface {
    /// Properties that every inventory has.
    pub netdev: Netdev,
    /// Whether it is set up, with or without a carrier.
    pub is_up: bool,
    /// State of IPv6, which carries beacons.
    pub ipv6: LinkLocal,
    /// Bond or bridge that it is a part of.
    pub master: Option<String>,
    /// RDMA devices of the interface, in order of their names.
    pub rdma: Vec<String>,
    /// Name of the socket for a cable that it shares with other interfaces of the host. It is known for cards with RDMA
    /// alone.
    pub socket: Option<String>,
    /// Mode of an IPoIB interface: `datagram` or `connected`.
    pub ipoib_mode: Option<String>,
    pub is_wireless: bool,
    /// File by which systemd-networkd configures it.
    pub network_file: Option<NetworkFile>,
}

/// Configuration file of systemd-networkd, which uses the first one that matches an interface.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct NetworkFile {
    pub path: String,
    /// Whether it matches one interface alone, by its name or hardware address.
    pub is_for_one: bool,
}

/// State of IPv6 on an interface.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub enum LinkLocal {
    /// It has a link-local address that can be used.
    Usable,
    /// It has a link-local address that the kernel is still checking.
    Tentative,
    /// IPv6 is enabled, and there is no link-local address.
    #[default]
    Missing,
    /// `net.ipv6.conf.NAME.disable_ipv6` is 1.
    Disabled,
    /// The kernel has no IPv6.
    Unsupported,
}

/// Right of an account to change the network. Journals keep it by position: later versions add variants at the end, never fields.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub enum Privilege {
    /// It was not examined.
    #[default]
    Unknown,
    Root,
    /// The account may run `ip` by `sudo -n`.
    Sudo,
    /// The account is not root, and `sudo -n` refuses.
    Refused,
    /// The program `ip` is not on the host.
    NoProgram,
}

/// Message of the launcher.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum NetworkOrder {
    /// Make these changes in order, each of which can be undone.
    Apply {
        changes: Vec<NetworkChange>,
        /// Time until all changes are undone unless they are confirmed, in milliseconds.
        revert_ms: u32,
        /// Maximum time for interfaces that were set up to get a carrier and a link-local address, in milliseconds.
        settle_ms: u32,
    },
    /// Send beacons and listen for those of others.
    Discover {
        /// Random bytes of this run.
        token: [u8; 16],
        /// Number of the host, for its beacons.
        host: u32,
        /// Interfaces to send from.
        interfaces: Vec<String>,
        /// Duration, in milliseconds.
        window_ms: u32,
    },
    /// Send datagrams to other hosts, and send theirs back from now on.
    Probe {
        /// Random bytes of this run.
        token: [u8; 16],
        /// Probes of this host.
        probes: Vec<LinkProbe>,
        /// Time limit for all probes, in milliseconds.
        limit_ms: u32,
    },
    /// Keep the changes.
    Confirm,
    /// Undo the changes.
    RollBack,
}

/// Answer of the agent to an order.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum NetworkReply {
    /// First message, and answer to [`NetworkOrder::Apply`] if all changes were made.
    State(HostNetwork),
    /// Answer to [`NetworkOrder::Apply`] if a change failed. The earlier ones are undone.
    ChangeFailed(ChangeFailure, RollBackReport),
    /// Answer to [`NetworkOrder::Discover`].
    Heard(BeaconReport),
    /// Answer to [`NetworkOrder::Probe`]: the outcomes, in the order of the probes.
    Probed(Vec<LinkAnswer>),
    /// Answer to [`NetworkOrder::Confirm`].
    Confirmed,
    /// Answer to [`NetworkOrder::RollBack`], or the agent's last message if it ends by itself.
    RolledBack(RollBackReport),
}

/// Change to the network of a host. Journals keep it by position: later versions add variants at the end, never fields.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum NetworkChange {
    /// Set an interface up or down.
    SetUp {
        interface: String,
        /// False for down.
        up: bool,
    },
    /// Set the maximum size of packets.
    SetMtu {
        interface: String,
        /// Size in bytes.
        mtu: u32,
    },
    /// Set the mode of an IPoIB interface.
    SetIpoibMode {
        interface: String,
        /// `datagram` or `connected`.
        mode: String,
    },
    AddAddress {
        interface: String,
        address: IpAddr,
        /// Length of the network prefix, in bits.
        prefix: u8,
    },
    RemoveAddress {
        interface: String,
        address: IpAddr,
        /// Length of the network prefix, in bits.
        prefix: u8,
    },
}

impl NetworkChange {
    /// Returns the name of the interface.
    pub fn interface(&self) -> &str {
        match self {
            NetworkChange::SetUp { interface, .. }
            | NetworkChange::SetMtu { interface, .. }
            | NetworkChange::SetIpoibMode { interface, .. }
            | NetworkChange::AddAddress { interface, .. }
            | NetworkChange::RemoveAddress { interface, .. } => interface,
        }
    }

    /// Returns the arguments for `ip` that make the change.
    pub fn arguments(&self) -> Vec<String> {
        let words = |text: &str| text.split(' ').map(str::to_owned).collect::<Vec<_>>();
        let mut line = match self {
            NetworkChange::SetUp { .. }
            | NetworkChange::SetMtu { .. }
            | NetworkChange::SetIpoibMode { .. } => words("link set dev"),
            NetworkChange::AddAddress { address, prefix, .. } => {
                words(&format!("address add {address}/{prefix} dev"))
            }
            NetworkChange::RemoveAddress { address, prefix, .. } => {
                words(&format!("address delete {address}/{prefix} dev"))
            }
        };
        line.push(self.interface().to_owned());
        line.extend(match self {
            NetworkChange::SetUp { up, .. } => words(if *up { "up" } else { "down" }),
            NetworkChange::SetMtu { mtu, .. } => words(&format!("mtu {mtu}")),
            NetworkChange::SetIpoibMode { mode, .. } => words(&format!("type ipoib mode {mode}")),
            // Without a check for duplicates, which takes seconds, the address can be used at once.
            NetworkChange::AddAddress { address: IpAddr::V6(_), .. } => words("nodad"),
            NetworkChange::AddAddress { .. } | NetworkChange::RemoveAddress { .. } => Vec::new(),
        });
        line
    }
}

/// Writes the line for a shell: `ip address add 192.168.101.2/24 dev eth1`.
impl fmt::Display for NetworkChange {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("ip")?;
        self.arguments().iter().try_for_each(|argument| write!(f, " {}", word(argument)))
    }
}

/// Change that was not made.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ChangeFailure {
    /// The change as a line for a shell.
    pub line: String,
    /// Message of `ip`, or the reason why it did not start.
    pub cause: String,
}

/// Account of changes that were undone.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct RollBackReport {
    /// Number of changes that were undone.
    pub undone: u32,
    /// Changes that could not be undone.
    pub failed: Vec<ChangeFailure>,
}

/// Datagram by which an interface makes itself known to the other end of its cable.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Beacon {
    /// Random bytes of the run.
    pub token: [u8; 16],
    pub host: u32,
    pub interface: String,
}

/// Outcome of sending beacons and listening for them.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct BeaconReport {
    /// Beacons that arrived, each once.
    pub heard: Vec<HeardBeacon>,
    /// Interfaces from which no beacon could be sent, with the last reason.
    pub mute: Vec<(String, String)>,
}

/// Beacon that arrived.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub struct HeardBeacon {
    /// Interface on which it arrived.
    pub on: String,
    /// Number of the sending host.
    pub host: u32,
    /// Interface of the sender.
    pub interface: String,
}

/// Probe of a link between two addresses.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct LinkProbe {
    /// Own address.
    pub from: Ipv4Addr,
    /// Address of the other host.
    pub to: Ipv4Addr,
    /// Size of the larger one of two IP packets, in bytes.
    pub packet: u32,
}

/// Outcome of a probe of a link.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum LinkAnswer {
    /// Short and large packets came back.
    Answered,
    /// Only short packets came back.
    OnlyShort,
    /// Nothing came back.
    Silent,
    /// The kernel refused: its message.
    Refused(String),
}

#[cfg(test)]
mod tests {
    use super::*;

    fn changes() -> [NetworkChange; 7] {
        let interface = || "eth1".to_owned();
        let (address, prefix) = ("192.168.101.2".parse().unwrap(), 24);
        [
            NetworkChange::SetUp { interface: interface(), up: true },
            NetworkChange::SetUp { interface: interface(), up: false },
            NetworkChange::SetMtu { interface: interface(), mtu: 9000 },
            NetworkChange::SetIpoibMode { interface: interface(), mode: "datagram".into() },
            NetworkChange::AddAddress { interface: interface(), address, prefix },
            NetworkChange::RemoveAddress { interface: interface(), address, prefix },
            NetworkChange::AddAddress {
                interface: interface(),
                address: "fe80::1".parse().unwrap(),
                prefix: 64,
            },
        ]
    }

    #[test]
    fn changes_are_lines_for_a_shell() {
        let lines = changes().map(|change| change.to_string());
        let wanted = [
            "ip link set dev eth1 up",
            "ip link set dev eth1 down",
            "ip link set dev eth1 mtu 9000",
            "ip link set dev eth1 type ipoib mode datagram",
            "ip address add 192.168.101.2/24 dev eth1",
            "ip address delete 192.168.101.2/24 dev eth1",
            "ip address add fe80::1/64 dev eth1 nodad",
        ];
        assert_eq!(lines, wanted);
    }

    #[test]
    fn journals_of_earlier_versions_can_be_read() {
        let encoded = changes().map(|change| postcard::to_stdvec(&change).unwrap());
        let wanted: [&[u8]; 7] = [
            b"\x00\x04eth1\x01",
            b"\x00\x04eth1\x00",
            b"\x01\x04eth1\xa8\x46",
            b"\x02\x04eth1\x08datagram",
            b"\x03\x04eth1\x00\xc0\xa8\x65\x02\x18",
            b"\x04\x04eth1\x00\xc0\xa8\x65\x02\x18",
            b"\x03\x04eth1\x01\xfe\x80\0\0\0\0\0\0\0\0\0\0\0\0\0\x01\x40",
        ];
        assert_eq!(encoded, wanted);
        let rights = [
            Privilege::Unknown,
            Privilege::Root,
            Privilege::Sudo,
            Privilege::Refused,
            Privilege::NoProgram,
        ];
        assert_eq!(postcard::to_stdvec(&rights).unwrap(), [0, 1, 2, 3, 4]);
    }
}
