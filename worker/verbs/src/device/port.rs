//! What ports and entries of GID tables are.

use rdma_sys::{ibv_gid_entry, ibv_port_attr, ibv_port_state};
use std::net::Ipv6Addr;

/// The largest packet that a path carries.
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
    /// In bytes.
    pub fn bytes(self) -> u32 {
        256 << (self as u32)
    }

    /// The largest that is no larger than `bytes`; `None` below 256.
    pub fn up_to(bytes: u32) -> Option<Mtu> {
        MTUS.iter().rev().find(|(_, size)| *size <= bytes).map(|(mtu, _)| *mtu)
    }

    /// `enum ibv_mtu`, which counts from 1.
    pub(crate) fn to_verbs(self) -> u32 {
        self as u32 + 1
    }

    fn from_verbs(number: u32) -> Option<Mtu> {
        MTUS.iter().map(|(mtu, _)| *mtu).find(|mtu| mtu.to_verbs() == number)
    }
}

/// What a port carries.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LinkLayer {
    /// Addressed by LID.
    InfiniBand,
    /// Addressed by GID.
    Ethernet,
}

/// A port at one moment.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PortAttributes {
    /// From 1.
    pub number: u8,
    /// Data flows.
    pub is_active: bool,
    /// The largest packet now.
    pub mtu: Mtu,
    /// Its local identifier; 0 on Ethernet.
    pub lid: u16,
    /// What it carries.
    pub link_layer: LinkLayer,
    /// How long its GID table is.
    pub gids: u16,
    /// It wants a global header with every packet, whatever the subnet.
    pub wants_global: bool,
}

/// `IBV_QPF_GRH_REQUIRED`.
const GRH_REQUIRED: u8 = 1;
/// `IBV_LINK_LAYER_ETHERNET`.
const ETHERNET: u8 = 2;

impl PortAttributes {
    pub(crate) fn of(number: u8, attributes: &ibv_port_attr) -> PortAttributes {
        let is_ethernet = attributes.link_layer == ETHERNET;
        PortAttributes {
            number,
            is_active: attributes.state == ibv_port_state::IBV_PORT_ACTIVE,
            mtu: Mtu::from_verbs(attributes.active_mtu).unwrap_or(Mtu::B256),
            lid: attributes.lid,
            link_layer: if is_ethernet { LinkLayer::Ethernet } else { LinkLayer::InfiniBand },
            gids: u16::try_from(attributes.gid_tbl_len).unwrap_or(0),
            wants_global: attributes.flags & GRH_REQUIRED != 0,
        }
    }
}

/// A filled entry of a GID table.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct GidEntry {
    /// Its place.
    pub index: u16,
    /// Its 16 bytes.
    pub value: Ipv6Addr,
    /// RoCE over UDP.
    pub is_roce_v2: bool,
    /// The kernel's number for its interface; 0 without one.
    pub interface: u32,
}

/// `IBV_GID_TYPE_ROCE_V2`.
const ROCE_V2: u32 = 2;

impl GidEntry {
    /// `None` when it is all zeros, which is how empty places look.
    pub(crate) fn of(index: u16, entry: &ibv_gid_entry) -> Option<GidEntry> {
        // SAFETY: both fields of the union are 16 bytes without padding, so any value is bytes.
        let raw = unsafe { entry.gid.raw };
        let value = Ipv6Addr::from(raw);
        let is_roce_v2 = entry.gid_type == ROCE_V2;
        let interface = entry.ndev_ifindex;
        (!value.is_unspecified()).then_some(GidEntry { index, value, is_roce_v2, interface })
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
