//! RDMA devices, their ports and GID tables.

use super::CpuSet;
use super::pci::PciDevice;
use serde::{Deserialize, Serialize};
use std::fmt;
use std::net::{IpAddr, Ipv6Addr};

/// RDMA device.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct RdmaDevice {
    /// Name, such as `mlx5_0`.
    pub name: String,
    /// Kind of transport that the device is made for.
    pub node_type: NodeType,
    /// Driver, such as `mlx5`. For software devices it is derived from the device's name and
    /// parent.
    pub driver: Option<String>,
    /// Firmware version, such as `20.31.1014`.
    pub firmware: Option<String>,
    /// Node GUID, which the functions of one card share.
    pub node_guid: Option<String>,
    /// System image GUID, which all devices of one card share, even if the card occupies several
    /// slots.
    pub image_guid: Option<String>,
    /// PCI device; `None` for a software device.
    pub pci: Option<PciDevice>,
    /// NUMA node; `None` if there is only one, or the kernel does not report it.
    pub numa_node: Option<u32>,
    /// CPUs near the device.
    pub cpus: Option<CpuSet>,
    /// Device file of the device, and whether this user can open it.
    pub uverbs: Uverbs,
    /// Ports, in order of their numbers.
    pub ports: Vec<Port>,
}

/// Kind of an RDMA device (`node_type` in sysfs).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum NodeType {
    /// Channel adapter for InfiniBand or RoCE.
    ChannelAdapter,
    /// iWARP adapter, or one that needs the RDMA connection manager like iWARP.
    Rnic,
    /// Neither: a switch, usNIC, or not said.
    #[default]
    Other,
}

/// Device file `/dev/infiniband/uverbsN` of an RDMA device.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Uverbs {
    /// Name of a file that this user can open.
    Usable(String),
    /// Name of a file that this user is not permitted to open.
    Denied(String),
    /// No such file: it is not passed into this container, or `ib_uverbs` is not loaded.
    #[default]
    Missing,
}

/// Port of an RDMA device.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Port {
    /// Number, from 1.
    pub number: u8,
    /// State of the logical link.
    pub state: PortState,
    /// State of the physical link in the kernel's words, such as `LinkUp`.
    pub physical_state: Option<String>,
    /// Link layer.
    pub link_layer: LinkLayer,
    /// Local identifier; `None` or 0 without a subnet manager.
    pub lid: Option<u16>,
    /// Local identifier of the subnet manager.
    pub sm_lid: Option<u16>,
    /// Rate in the kernel's words, such as `56 Gb/sec (4X FDR)`. Software devices and eRDMA report
    /// arbitrary values.
    pub rate: Option<String>,
    /// Largest packet, in bytes, if it follows from the MTU of the network interface.
    pub mtu: Option<u32>,
    /// Network interface of the port.
    pub netdev: Option<String>,
    /// Size of the GID table.
    pub gid_table_length: usize,
    /// Used entries of the GID table.
    pub gids: Vec<Gid>,
}

/// State of a port's logical link.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum PortState {
    /// No carrier.
    Down,
    /// Link up, but not configured by a subnet manager.
    Init,
    /// Configured by a subnet manager, but not active yet.
    Armed,
    /// Data can be transferred.
    Active,
    /// State that the kernel does not report or that is unknown to this build.
    #[default]
    Unknown,
}

impl PortState {
    /// Parses the kernel's text, such as `4: ACTIVE`.
    pub fn parse(text: &str) -> PortState {
        match text.split(':').next().map(str::trim) {
            Some("1") => PortState::Down,
            Some("2") => PortState::Init,
            Some("3") => PortState::Armed,
            Some("4" | "5") => PortState::Active,
            _ => PortState::Unknown,
        }
    }
}

/// Formats a state in capitals, like `ibstat`.
impl fmt::Display for PortState {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            PortState::Down => "DOWN",
            PortState::Init => "INIT",
            PortState::Armed => "ARMED",
            PortState::Active => "ACTIVE",
            PortState::Unknown => "UNKNOWN",
        })
    }
}

/// Link layer of a port.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum LinkLayer {
    /// InfiniBand, addressed by LID.
    InfiniBand,
    /// Ethernet with RoCE or iWARP, addressed by GID or IP address.
    Ethernet,
    /// Not reported by the kernel.
    #[default]
    Unknown,
}

/// Entry of a GID table.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Gid {
    /// Index in the table.
    pub index: u16,
    /// GID: 16 bytes in the format of an IPv6 address.
    pub value: Ipv6Addr,
    /// Packet format that the GID selects.
    pub kind: GidKind,
    /// Network interface of the GID; `None` also if the interface of that name in this network
    /// namespace is a different one.
    pub netdev: Option<String>,
}

/// Packet format that a GID selects (`gid_attrs/types` in sysfs).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum GidKind {
    /// InfiniBand, or RoCE v1, which stays within an Ethernet segment.
    IbOrRoceV1,
    /// RoCE v2, over UDP.
    RoceV2,
    /// Not reported by the kernel: iWARP, or an old kernel.
    #[default]
    Unknown,
}

impl GidKind {
    /// Parses the kernel's text, such as `RoCE v2`.
    pub fn parse(text: &str) -> GidKind {
        match text.trim() {
            "IB/RoCE v1" => GidKind::IbOrRoceV1,
            "RoCE v2" => GidKind::RoceV2,
            _ => GidKind::Unknown,
        }
    }
}

impl Gid {
    /// Returns the IP address in the GID: an IPv4 address for `::ffff:a.b.c.d`, otherwise an IPv6
    /// address.
    pub fn ip(&self) -> IpAddr {
        match self.value.to_ipv4_mapped() {
            Some(v4) => IpAddr::V4(v4),
            None => IpAddr::V6(self.value),
        }
    }

    /// Returns the upper 64 bits, which identify an InfiniBand subnet.
    pub fn subnet_prefix(&self) -> u64 {
        // The upper 64 of 128 bits fit.
        (self.value.to_bits() >> 64) as u64
    }

    /// Tells whether the GID is a MAC address followed by zeros, as on iWARP devices. It is not an
    /// IP address then.
    pub fn is_mac(&self) -> bool {
        let octets = self.value.octets();
        octets[6..].iter().all(|byte| *byte == 0) && octets[..6].iter().any(|byte| *byte != 0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn gid(text: &str) -> Gid {
        Gid { index: 0, value: text.parse().unwrap(), kind: GidKind::RoceV2, netdev: None }
    }

    #[test]
    fn a_gid_says_what_it_is_made_of() {
        let mapped = gid("0000:0000:0000:0000:0000:ffff:c0a8:6402");
        assert_eq!(mapped.ip(), "192.168.100.2".parse::<IpAddr>().unwrap());
        assert!(!mapped.is_mac());
        let siw = gid("5254:0012:3456:0000:0000:0000:0000:0000");
        assert!(siw.is_mac());
        assert_eq!(gid("fe80::1").subnet_prefix(), 0xfe80_0000_0000_0000);
    }

    #[test]
    fn the_kernels_words_are_understood() {
        assert_eq!(PortState::parse("4: ACTIVE"), PortState::Active);
        assert_eq!(PortState::parse("2: INIT\n").to_string(), "INIT");
        assert_eq!(PortState::parse(""), PortState::Unknown);
        assert_eq!(GidKind::parse("RoCE v2\n"), GidKind::RoceV2);
        assert_eq!(GidKind::parse("IB/RoCE v1"), GidKind::IbOrRoceV1);
    }
}
