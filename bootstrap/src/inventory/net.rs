//! Network interfaces.

use serde::{Deserialize, Serialize};
use std::net::IpAddr;

/// A network interface.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Netdev {
    /// `eth0`.
    pub name: String,
    /// The kernel's number for it.
    pub index: u32,
    /// What is behind it.
    pub kind: NetdevKind,
    /// The largest packet, in bytes.
    pub mtu: u32,
    /// In Mb/s; `None` where the driver does not know, or there is no carrier.
    pub speed: Option<u32>,
    /// Whether it can carry data now: up and with a carrier.
    pub running: bool,
    /// The hardware address as the kernel writes it, 6 bytes or 20 for IPoIB.
    pub hardware_address: Option<String>,
    /// The PCI address of its device.
    pub pci: Option<String>,
    /// Which port of that device it is, from 0.
    pub device_port: Option<u16>,
    /// Its addresses and the leading bits that name their networks.
    pub addresses: Vec<(IpAddr, u8)>,
}

/// What is behind a network interface.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum NetdevKind {
    /// A device of its own.
    Physical,
    /// A cable between two computers: Thunderbolt, USB4.
    Thunderbolt,
    /// IP over InfiniBand.
    Ipoib,
    /// Several interfaces as one.
    Bond,
    /// A bridge, as container engines and hypervisors make them.
    Bridge,
    /// The machine itself.
    Loopback,
    /// A VLAN or another interface upon one.
    Upper,
    /// Made of software alone: veth, tun, dummy.
    #[default]
    Virtual,
}
