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
    /// Kind of the device, such as channel adapter.
    pub node_type: NodeType,
    /// Driver, such as `mlx5`. For a software device it is derived from the names of the device and
    /// its parent.
    pub driver: Option<String>,
    /// Firmware version, such as `20.31.1014`.
    pub firmware: Option<String>,
    /// Node GUID. All functions of one card share it.
    pub node_guid: Option<String>,
    /// System image GUID. All devices of one card share it, even if the card occupies several
    /// slots.
    pub image_guid: Option<String>,
    /// PCI device of the RDMA device; `None` for a software device.
    pub pci: Option<PciDevice>,
    /// NUMA node of the device; `None` if the node has only one, or the kernel does not report it.
    pub numa_node: Option<u32>,
    /// CPUs near the device; `None` if the kernel does not report them.
    pub cpus: Option<CpuSet>,
    /// Device file that programs open to use the device.
    pub uverbs: Uverbs,
    /// Ports, in order of their numbers.
    pub ports: Vec<Port>,
}

/// Kind of an RDMA device, as in the sysfs file `node_type`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum NodeType {
    /// Channel adapter for InfiniBand or RoCE.
    ChannelAdapter,
    /// iWARP adapter, or another device that needs the RDMA connection manager.
    Rnic,
    /// Another kind, such as a switch or usNIC, or a kind that the kernel does not report.
    #[default]
    Other,
}

/// Device file `/dev/infiniband/uverbsN` of an RDMA device, if this user can open it.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Uverbs {
    /// The user can open the file with this name.
    Usable(String),
    /// The user is not permitted to open the file with this name.
    Denied(String),
    /// The file does not exist: it is not passed into the container, or `ib_uverbs` is not loaded.
    #[default]
    Missing,
}

/// Port of an RDMA device.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Port {
    /// Number of the port on its device, from 1.
    pub number: u8,
    /// State of the logical link.
    pub state: PortState,
    /// State of the physical link as the kernel reports it, such as `LinkUp`.
    pub physical_state: Option<String>,
    pub link_layer: LinkLayer,
    /// InfiniBand address (LID) of the port; `None` or 0 without a subnet manager.
    pub lid: Option<u16>,
    /// LID of the subnet manager.
    pub sm_lid: Option<u16>,
    /// Data rate as the kernel reports it, such as `56 Gb/sec (4X FDR)`. Software devices and eRDMA
    /// report arbitrary values.
    pub rate: Option<String>,
    /// Maximum size of a packet, in bytes; `None` if it cannot be derived from the MTU of the
    /// network interface.
    pub mtu: Option<u32>,
    /// Name of the port's network interface.
    pub netdev: Option<String>,
    /// Number of entries in the GID table, used or not.
    pub gid_table_length: usize,
    /// Entries of the GID table that are in use.
    pub gids: Vec<Gid>,
}

/// State of a port's logical link.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum PortState {
    /// The link has no carrier.
    Down,
    /// The link is up, but no subnet manager has configured it.
    Init,
    /// A subnet manager has configured the link, which is not active yet.
    Armed,
    /// The link can transfer data.
    Active,
    /// The kernel does not report a state, or reports one that this build does not know.
    #[default]
    Unknown,
}

impl PortState {
    /// Parses the state in the kernel's form, such as `4: ACTIVE`.
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

/// Formats the state in capitals, like `ibstat`.
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
    /// Link layer that the kernel does not report.
    #[default]
    Unknown,
}

/// Entry of a GID table.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Gid {
    /// Index of the entry in the table.
    pub index: u16,
    /// Value of the GID: 16 bytes in the format of an IPv6 address.
    pub value: Ipv6Addr,
    /// Packet format that the GID selects.
    pub kind: GidKind,
    /// Name of the GID's network interface. `None` also if this network namespace has a different
    /// interface of that name.
    pub netdev: Option<String>,
}

/// Packet format that a GID selects, as in the sysfs directory `gid_attrs/types`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum GidKind {
    /// InfiniBand, or RoCE v1, whose packets stay within an Ethernet segment.
    IbOrRoceV1,
    /// RoCE v2, whose packets are UDP datagrams.
    RoceV2,
    /// Format that the kernel does not report: iWARP, or an old kernel.
    #[default]
    Unknown,
}

impl GidKind {
    /// Parses the format in the kernel's form, such as `RoCE v2`.
    pub fn parse(text: &str) -> GidKind {
        match text.trim() {
            "IB/RoCE v1" => GidKind::IbOrRoceV1,
            "RoCE v2" => GidKind::RoceV2,
            _ => GidKind::Unknown,
        }
    }
}

impl Gid {
    /// Returns the IP address that the GID contains: an IPv4 address for `::ffff:a.b.c.d`,
    /// otherwise an IPv6 address.
    pub fn ip(&self) -> IpAddr {
        match self.value.to_ipv4_mapped() {
            Some(v4) => IpAddr::V4(v4),
            None => IpAddr::V6(self.value),
        }
    }

    /// Returns the upper 64 bits of the GID, which identify an InfiniBand subnet.
    pub fn subnet_prefix(&self) -> u64 {
        // The upper 64 of 128 bits fit into 64 bits.
        (self.value.to_bits() >> 64) as u64
    }

    /// Tells whether the GID is a MAC address followed by zeros, as on iWARP devices, and so not an
    /// IP address.
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
