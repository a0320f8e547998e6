//! Attributes of ports, and entries of their GID tables.

use rdma_sys::{ibv_gid_entry, ibv_port_attr, ibv_port_state};
use std::net::Ipv6Addr;

/// Path MTU, the largest payload of a packet. InfiniBand and RoCE support only these sizes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Mtu {
    /// 256 bytes.
    B256,
    /// 512 bytes.
    B512,
    /// 1024 bytes.
    B1024,
    /// 2048 bytes.
    B2048,
    /// 4096 bytes.
    B4096,
}

const MTUS: [(Mtu, u32); 5] = [
    (Mtu::B256, 256),
    (Mtu::B512, 512),
    (Mtu::B1024, 1024),
    (Mtu::B2048, 2048),
    (Mtu::B4096, 4096),
];

impl Mtu {
    /// Returns the size in bytes.
    pub fn bytes(self) -> u32 {
        256 << (self as u32)
    }

    /// Returns the largest MTU of at most `bytes` bytes; `None` if `bytes` is less than 256.
    pub fn up_to(bytes: u32) -> Option<Mtu> {
        MTUS.iter().rev().find(|(_, size)| *size <= bytes).map(|(mtu, _)| *mtu)
    }

    /// Returns the value of `enum ibv_mtu`.
    pub(crate) fn to_verbs(self) -> u32 {
        self as u32 + 1
    }

    fn from_verbs(number: u32) -> Option<Mtu> {
        MTUS.iter().map(|(mtu, _)| *mtu).find(|mtu| mtu.to_verbs() == number)
    }
}

/// Link layer of a port.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LinkLayer {
    /// InfiniBand: peers in the same subnet are addressed by LID.
    InfiniBand,
    /// Ethernet (RoCE, iWARP): peers are addressed by GID.
    Ethernet,
}

/// Attributes of a port at the time of the query.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PortAttributes {
    /// Port number, from 1.
    pub number: u8,
    /// Whether the port's state is ACTIVE, so that it carries data.
    pub is_active: bool,
    /// Path MTU that is active on the port.
    pub mtu: Mtu,
    /// Local identifier in the InfiniBand subnet; 0 on Ethernet.
    pub lid: u16,
    /// Link layer of the port.
    pub link_layer: LinkLayer,
    /// Number of entries of the GID table, empty ones included.
    pub gid_table_len: u16,
    /// Whether every packet needs a global route header, even within the subnet.
    pub grh_required: bool,
}

/// `IBV_QPF_GRH_REQUIRED`.
const GRH_REQUIRED: u8 = 1;
/// `IBV_LINK_LAYER_ETHERNET`.
const ETHERNET: u8 = 2;

impl PortAttributes {
    pub(crate) fn from_verbs(number: u8, attributes: &ibv_port_attr) -> PortAttributes {
        let is_ethernet = attributes.link_layer == ETHERNET;
        PortAttributes {
            number,
            is_active: attributes.state == ibv_port_state::IBV_PORT_ACTIVE,
            mtu: Mtu::from_verbs(attributes.active_mtu).unwrap_or(Mtu::B256),
            lid: attributes.lid,
            link_layer: if is_ethernet { LinkLayer::Ethernet } else { LinkLayer::InfiniBand },
            gid_table_len: u16::try_from(attributes.gid_tbl_len).unwrap_or(0),
            grh_required: attributes.flags & GRH_REQUIRED != 0,
        }
    }
}

/// Entry of a GID table that is not empty.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct GidEntry {
    /// Index in the GID table, from 0.
    pub index: u16,
    /// GID of the port. For RoCE it is the IPv6 address of the interface, or its IPv4 address as
    /// `::ffff:a.b.c.d`.
    pub value: Ipv6Addr,
    /// Whether packets with this GID are RoCE v2 (over UDP).
    pub is_roce_v2: bool,
    /// Index (`ifindex`) of the network interface that has the address; 0 if there is none.
    pub interface_index: u32,
}

/// `IBV_GID_TYPE_ROCE_V2`.
const ROCE_V2: u32 = 2;

impl GidEntry {
    /// Converts an entry; `None` if the entry is empty, that is, all zeros.
    pub(crate) fn from_verbs(index: u16, entry: &ibv_gid_entry) -> Option<GidEntry> {
        // SAFETY: both fields of the union are 16 bytes without padding, so reading bytes is valid.
        let raw = unsafe { entry.gid.raw };
        let value = Ipv6Addr::from(raw);
        let is_roce_v2 = entry.gid_type == ROCE_V2;
        let interface_index = entry.ndev_ifindex;
        (!value.is_unspecified()).then_some(GidEntry { index, value, is_roce_v2, interface_index })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn mtus_are_those_of_verbs() {
        assert_eq!(Mtu::B4096.bytes(), 4096);
        assert_eq!(Mtu::B256.to_verbs(), 1);
        assert_eq!(Mtu::up_to(1500), Some(Mtu::B1024));
        assert_eq!(Mtu::up_to(9000), Some(Mtu::B4096));
        assert_eq!(Mtu::up_to(255), None);
        for (mtu, bytes) in MTUS {
            assert_eq!((mtu.bytes(), Mtu::from_verbs(mtu.to_verbs())), (bytes, Some(mtu)));
        }
        assert_eq!(Mtu::from_verbs(9), None);
    }
}
