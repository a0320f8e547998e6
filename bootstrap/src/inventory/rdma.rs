//! RDMA devices, their ports and GID tables.

use super::CpuSet;
use super::pci::PciDevice;
use serde::{Deserialize, Serialize};
use std::fmt;
use std::net::{IpAddr, Ipv6Addr};

/// An RDMA device.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct RdmaDevice {
    /// `mlx5_0`.
    pub name: String,
    /// What kind of transport it is built for.
    pub node_type: NodeType,
    /// `mlx5`; the software devices are told by what they are made of.
    pub driver: Option<String>,
    /// `20.31.1014`.
    pub firmware: Option<String>,
    /// Equal for the functions of one card.
    pub node_guid: Option<String>,
    /// Equal for everything on one card, whatever slots it takes.
    pub image_guid: Option<String>,
    /// `None` for a software device.
    pub pci: Option<PciDevice>,
    /// `None` where there is but one node, or the kernel does not say.
    pub numa_node: Option<u32>,
    /// The processors near it.
    pub cpus: Option<CpuSet>,
    /// How programs reach it.
    pub uverbs: Uverbs,
    /// In order of their numbers.
    pub ports: Vec<Port>,
}

/// What kind of device it is (`node_type`).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum NodeType {
    /// A channel adapter: InfiniBand or RoCE.
    ChannelAdapter,
    /// iWARP, and what behaves like it: RDMA_CM only.
    Rnic,
    /// Neither: a switch, usNIC, or not said.
    #[default]
    Other,
}

/// The file through which programs use a device.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Uverbs {
    /// This one can be opened.
    Usable(String),
    /// This one is there and may not be opened by this user.
    Denied(String),
    /// It is not there: not passed to this container, or `ib_uverbs` is not loaded.
    #[default]
    Missing,
}

/// A port of an RDMA device.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Port {
    /// From 1.
    pub number: u8,
    /// What its link is fit for.
    pub state: PortState,
    /// The kernel's words, `LinkUp`.
    pub physical_state: Option<String>,
    /// What it carries.
    pub link_layer: LinkLayer,
    /// Its local identifier; `None` or 0 without a subnet manager.
    pub lid: Option<u16>,
    /// The subnet manager's.
    pub sm_lid: Option<u16>,
    /// The kernel's words, `56 Gb/sec (4X FDR)`. Software devices and eRDMA say anything.
    pub rate: Option<String>,
    /// The largest packet, in bytes, where that follows from the interface's MTU.
    pub mtu: Option<u32>,
    /// Its network interface.
    pub netdev: Option<String>,
    /// How long the GID table is.
    pub gid_table_length: usize,
    /// The entries that are filled.
    pub gids: Vec<Gid>,
}

/// What a port's link is fit for.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum PortState {
    /// No carrier.
    Down,
    /// The link is up, and no subnet manager has configured it.
    Init,
    /// A subnet manager is about to finish.
    Armed,
    /// Data flows.
    Active,
    /// Something else.
    #[default]
    Unknown,
}

impl PortState {
    /// From `4: ACTIVE`.
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

/// As `ibstat` and people write it.
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

/// What a port carries.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum LinkLayer {
    /// InfiniBand: addressed by LID.
    InfiniBand,
    /// Ethernet: RoCE or iWARP, addressed by GID or IP.
    Ethernet,
    /// The kernel does not say.
    #[default]
    Unknown,
}

/// An entry of a GID table.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Gid {
    /// Its place in the table.
    pub index: u16,
    /// The 16 bytes, which look like an IPv6 address.
    pub value: Ipv6Addr,
    /// What packets with it look like.
    pub kind: GidKind,
    /// The interface it stems from; `None` also where the one of that name here is another.
    pub netdev: Option<String>,
}

/// What packets of a GID look like (`gid_attrs/types`).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum GidKind {
    /// InfiniBand, or RoCE inside an Ethernet segment.
    IbOrRoceV1,
    /// RoCE over UDP.
    RoceV2,
    /// The kernel does not say: iWARP, or an old one.
    #[default]
    Unknown,
}

impl GidKind {
    /// From `RoCE v2`.
    pub fn parse(text: &str) -> GidKind {
        match text.trim() {
            "IB/RoCE v1" => GidKind::IbOrRoceV1,
            "RoCE v2" => GidKind::RoceV2,
            _ => GidKind::Unknown,
        }
    }
}

impl Gid {
    /// The IP address that the GID is made of, if it is: `::ffff:a.b.c.d`, or any IPv6 address.
    pub fn ip(&self) -> IpAddr {
        match self.value.to_ipv4_mapped() {
            Some(v4) => IpAddr::V4(v4),
            None => IpAddr::V6(self.value),
        }
    }

    /// The upper half, by which InfiniBand subnets are told apart.
    pub fn subnet_prefix(&self) -> u64 {
        // The upper 64 of 128 bits fit.
        (self.value.to_bits() >> 64) as u64
    }

    /// A MAC address and zeros, which is what iWARP devices put there: no address of anything.
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
