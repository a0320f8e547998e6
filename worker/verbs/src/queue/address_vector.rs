//! How a queue pair finds its peer: an address vector, a function of both ends alone.

use super::queue_pair::Endpoint;
use crate::device::{LinkLayer, PortAttributes};
use rdma_sys::{ibv_ah_attr, ibv_gid, ibv_global_route};
use std::net::Ipv6Addr;

/// Hops that a packet may make between routers.
const HOPS: u8 = 255;

/// This end's port, as far as addresses depend on it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LocalPort {
    /// From 1.
    pub number: u8,
    /// What it carries.
    pub link_layer: LinkLayer,
    /// It wants a global header with every packet.
    pub wants_global: bool,
    /// The GID that it sends from, and its place in the table.
    pub gid: Option<(u16, Ipv6Addr)>,
}

impl LocalPort {
    /// A port and the GID that is used of it.
    pub fn of(port: &PortAttributes, gid: Option<(u16, Ipv6Addr)>) -> LocalPort {
        let PortAttributes { number, link_layer, wants_global, .. } = *port;
        LocalPort { number, link_layer, wants_global, gid }
    }
}

/// Where packets for a peer go.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct AddressVector {
    /// The peer's local identifier; 0 on Ethernet.
    pub lid: u16,
    /// The service level.
    pub service_level: u8,
    /// The port they leave by, from 1: this end's own, whatever the peer's number is.
    pub port: u8,
    /// The global header, when there is one.
    pub global: Option<GlobalRoute>,
}

/// What the global header says.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct GlobalRoute {
    /// The peer's GID.
    pub to: Ipv6Addr,
    /// The place of this end's GID in its table.
    pub from_index: u8,
    /// How many routers may pass it on.
    pub hops: u8,
    /// With RoCE the TOS byte of IP: DSCP is its upper six bits.
    pub traffic_class: u8,
}

impl AddressVector {
    /// From a port to a peer. On InfiniBand by LID, with a global header where the port wants one
    /// or the subnets differ; on Ethernet by GID alone.
    pub fn between(
        local: &LocalPort,
        peer: &Endpoint,
        service_level: u8,
        traffic_class: u8,
    ) -> AddressVector {
        let global = || {
            let (index, _) = local.gid?;
            let from_index = u8::try_from(index).ok()?;
            Some(GlobalRoute { to: peer.gid?, from_index, hops: HOPS, traffic_class })
        };
        let port = local.number;
        match local.link_layer {
            LinkLayer::Ethernet => AddressVector { lid: 0, service_level, port, global: global() },
            LinkLayer::InfiniBand => {
                let elsewhere = local
                    .gid
                    .zip(peer.gid)
                    .is_some_and(|((_, own), theirs)| subnet_prefix(own) != subnet_prefix(theirs));
                let global = if elsewhere || local.wants_global { global() } else { None };
                AddressVector { lid: peer.lid, service_level, port, global }
            }
        }
    }

    pub(crate) fn to_verbs(self) -> ibv_ah_attr {
        let no_gid = ibv_gid { raw: [0; 16] };
        let none = ibv_global_route {
            dgid: no_gid,
            flow_label: 0,
            sgid_index: 0,
            hop_limit: 0,
            traffic_class: 0,
        };
        let route = |global: GlobalRoute| ibv_global_route {
            dgid: ibv_gid { raw: global.to.octets() },
            flow_label: 0,
            sgid_index: global.from_index,
            hop_limit: global.hops,
            traffic_class: global.traffic_class,
        };
        ibv_ah_attr {
            grh: self.global.map_or(none, route),
            dlid: self.lid,
            sl: self.service_level,
            src_path_bits: 0,
            static_rate: 0,
            is_global: u8::from(self.global.is_some()),
            port_num: self.port,
        }
    }
}

/// By which InfiniBand tells subnets apart.
fn subnet_prefix(gid: Ipv6Addr) -> u128 {
    gid.to_bits() >> 64
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::device::Mtu;

    fn local(link_layer: LinkLayer, gid: &str) -> LocalPort {
        let gid = Some((3, gid.parse().unwrap()));
        LocalPort { number: 2, link_layer, wants_global: false, gid }
    }

    fn peer(lid: u16, gid: &str) -> Endpoint {
        Endpoint { lid, gid: Some(gid.parse().unwrap()), mtu: Mtu::B4096, ..Endpoint::default() }
    }

    #[test]
    fn one_subnet_of_infiniband_needs_no_global_header() {
        let (own, other) = (local(LinkLayer::InfiniBand, "fe80::1"), peer(7, "fe80::2"));
        let address = AddressVector::between(&own, &other, 1, 106);
        assert_eq!(address, AddressVector { lid: 7, service_level: 1, port: 2, global: None });
        assert_eq!(address.to_verbs().is_global, 0);
        let wants = LocalPort { wants_global: true, ..own };
        assert!(AddressVector::between(&wants, &other, 0, 0).global.is_some());
    }

    #[test]
    fn another_subnet_is_reached_through_a_router() {
        let address = AddressVector::between(
            &local(LinkLayer::InfiniBand, "fe80::1"),
            &peer(7, "fec0:0:0:1::2"),
            0,
            0,
        );
        let global = address.global.unwrap();
        assert_eq!((address.lid, global.from_index, global.hops), (7, 3, 255));
        assert_eq!(global.to, "fec0:0:0:1::2".parse::<Ipv6Addr>().unwrap());
    }

    #[test]
    fn roce_is_global_and_has_no_lid() {
        let own = local(LinkLayer::Ethernet, "::ffff:10.0.0.1");
        let address = AddressVector::between(&own, &peer(9, "::ffff:10.0.0.2"), 0, 106);
        let verbs = address.to_verbs();
        assert_eq!((verbs.dlid, verbs.is_global, verbs.port_num), (0, 1, 2));
        assert_eq!(
            (verbs.grh.sgid_index, verbs.grh.traffic_class, verbs.grh.hop_limit),
            (3, 106, 255)
        );
    }
}
