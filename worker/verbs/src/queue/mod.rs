//! Queue pairs, and the completion queues that report the end of their work requests.
//!
//! | file | contents |
//! |---|---|
//! | `completion_queue` | [`CompletionQueue`], the [`Completion`]s polled from it, and [`CompletionChannel`], the file descriptor that completion events arrive on |
//! | `mod` | [`Resources`]: the objects and capacities that a queue pair is created with; [`Endpoint`], what a queue pair tells its peer; [`AddressVector`]: the path to a peer's port |
//! | `queue_pair` | [`QueuePair`]: a reliable connection |

mod completion_queue;
mod queue_pair;

pub use completion_queue::{
    Completion, CompletionBatch, CompletionChannel, CompletionQueue, WcStatus,
};
pub use queue_pair::{Connected, Prepared, QueuePair, Settings};

use crate::device::{LinkLayer, Mtu, PortAttributes};
use crate::error::{Verb, VerbsError};
use crate::memory::{MemoryRegion, ProtectionDomain};
use rdma_sys::{
    ibv_ah_attr, ibv_context, ibv_gid, ibv_global_route, ibv_qp_init_attr, ibv_qp_type,
};
use std::mem::MaybeUninit;
use std::net::Ipv6Addr;
use std::sync::Arc;

/// Objects and capacities that a queue pair is created with. Several queue pairs may share the
/// objects. The domain and the completion queue must belong to the same opened device.
#[derive(Clone, Debug)]
pub struct Resources {
    /// Domain whose memory the queue pair may access.
    pub domain: Arc<ProtectionDomain>,
    /// Queue for the completions of both sends and receives.
    pub completions: Arc<CompletionQueue>,
    /// Capacities of the queue pair.
    pub depth: Depth,
}

/// Capacities of a queue pair (`ibv_qp_cap`).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Depth {
    /// Maximum number of outstanding sends, RDMA reads and RDMA writes.
    pub send: u32,
    /// Maximum number of outstanding receives.
    pub receive: u32,
    /// Maximum number of bytes of inline data. Inline data is copied into the work request, so that
    /// the device need not fetch it from memory. If the device does not support this number, the
    /// queue pair has no inline data at all: see [`crate::QueuePair::max_inline`].
    pub inline: u32,
}

/// Defaults: small queues, for programs with many peers. A work request takes 64 to 256 bytes,
/// depending on the device, so a queue pair takes about 4 KiB. There is no inline data, because not
/// every device supports it.
impl Default for Depth {
    fn default() -> Depth {
        Depth { send: 16, receive: 1, inline: 0 }
    }
}

impl Resources {
    /// Makes resources of the default [`Depth`].
    pub fn new(domain: &Arc<ProtectionDomain>, completions: &Arc<CompletionQueue>) -> Resources {
        let (domain, completions) = (domain.clone(), completions.clone());
        Resources { domain, completions, depth: Depth::default() }
    }

    /// Returns the attributes to create a reliable connection (RC) on this opened device. Fails
    /// with EINVAL if the domain or the completion queue belongs to another opened device.
    pub(crate) fn init_attr(&self, context: *mut ibv_context) -> Result<InitAttr, VerbsError> {
        let own = self.domain.context();
        if own.as_ptr() != context || self.completions.context().as_ptr() != context {
            return Err(VerbsError::from_errno(Verb::CreateQp, own.name(), libc::EINVAL));
        }
        let attr = MaybeUninit::<ibv_qp_init_attr>::zeroed();
        // SAFETY: the structure consists of integers and pointers, for which zeros are valid.
        let mut attr = unsafe { attr.assume_init() };
        attr.send_cq = self.completions.as_ptr();
        attr.recv_cq = self.completions.as_ptr();
        attr.qp_type = ibv_qp_type::IBV_QPT_RC;
        attr.cap.max_send_wr = self.depth.send;
        attr.cap.max_recv_wr = self.depth.receive;
        attr.cap.max_send_sge = 1;
        attr.cap.max_recv_sge = 1;
        attr.cap.max_inline_data = self.depth.inline;
        Ok(InitAttr(attr))
    }
}

/// Attributes that a queue pair is created with.
pub(crate) struct InitAttr(ibv_qp_init_attr);

impl InitAttr {
    /// Calls `create` with the attributes and, if that fails, again without inline data. Returns
    /// the result of `create`, and the queue pair's inline capacity in bytes.
    pub(crate) fn create_with_inline_fallback<T>(
        mut self,
        create: impl Fn(*mut ibv_qp_init_attr) -> Result<T, VerbsError>,
    ) -> Result<(T, u32), VerbsError> {
        let inline = self.0.cap.max_inline_data;
        let mut attr = self.0;
        match create(&raw mut attr) {
            Ok(created) => Ok((created, inline)),
            Err(error) if inline == 0 => Err(error),
            Err(_) => {
                self.0.cap.max_inline_data = 0;
                Ok((create(&raw mut self.0)?, 0))
            }
        }
    }
}

/// Address of a queue pair, which its peer needs to connect.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Endpoint {
    /// Queue pair number, 24 bits.
    pub qpn: u32,
    /// Packet sequence number of the first packet, 24 bits. It is random, so that a late packet of
    /// an earlier queue pair with the same number is not taken for a packet of this connection.
    pub psn: u32,
    /// Local identifier of the port; 0 on Ethernet.
    pub lid: u16,
    pub gid: Option<Ipv6Addr>,
    /// Active MTU of the port.
    pub mtu: Mtu,
    /// Address and rkey of memory that the peer may read and write, if there is any.
    pub memory: Option<(u64, u32)>,
}

impl Default for Endpoint {
    fn default() -> Endpoint {
        Endpoint { qpn: 0, psn: 0, lid: 0, gid: None, mtu: Mtu::B256, memory: None }
    }
}

impl Endpoint {
    /// Returns the address `offset` bytes behind the start of [`Endpoint::memory`]; without memory,
    /// address `offset` with rkey 0.
    pub fn remote_addr(&self, offset: u64) -> RemoteAddr {
        let (address, rkey) = self.memory.unwrap_or_default();
        RemoteAddr { address: address.wrapping_add(offset), rkey }
    }

    /// Returns a copy of the endpoint with `region` as the memory that the peer may read and write.
    pub fn with_memory(&self, region: &MemoryRegion) -> Endpoint {
        Endpoint { memory: Some((region.address(), region.rkey())), ..self.clone() }
    }
}

const HOP_LIMIT: u8 = 255;

/// Address in a peer's memory, with the rkey that RDMA reads and writes need there.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RemoteAddr {
    address: u64,
    rkey: u32,
}

impl RemoteAddr {
    /// Makes a remote address from an address and an rkey that the peer has sent.
    pub fn new(address: u64, rkey: u32) -> RemoteAddr {
        RemoteAddr { address, rkey }
    }
}

/// Address of the local port.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LocalPort {
    /// Port number, from 1.
    pub number: u8,
    pub link_layer: LinkLayer,
    /// Whether every packet needs a global route header.
    pub grh_required: bool,
    /// Index in the GID table, and value, of the GID that packets are sent from.
    pub gid: Option<(u16, Ipv6Addr)>,
}

impl LocalPort {
    /// Returns the address of a port that sends from `gid`, which is an index in the port's GID
    /// table and the value there.
    pub fn new(port: &PortAttributes, gid: Option<(u16, Ipv6Addr)>) -> LocalPort {
        let PortAttributes { number, link_layer, grh_required, .. } = *port;
        LocalPort { number, link_layer, grh_required, gid }
    }
}

/// Path of packets to a peer (`ibv_ah_attr`).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct AddressVector {
    /// Local identifier of the peer's port; 0 on Ethernet.
    pub lid: u16,
    /// InfiniBand service level, 0 to 15.
    pub service_level: u8,
    /// Number of the local port, from 1.
    pub port: u8,
    /// Global route header, if packets have one.
    pub global: Option<GlobalRoute>,
}

/// Global route header (`ibv_global_route`). RoCE builds the IP header from it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct GlobalRoute {
    /// GID of the peer's port.
    pub dgid: Ipv6Addr,
    /// Index of the local GID in the port's GID table.
    pub sgid_index: u8,
    /// Largest number of routers on the path.
    pub hop_limit: u8,
    /// Traffic class; for RoCE the TOS byte of IP, whose upper six bits are the DSCP.
    pub traffic_class: u8,
}

impl AddressVector {
    /// Computes the path from a local port to a peer. On InfiniBand, packets have the peer's LID,
    /// and a global route header if the port requires one or the peer is in another subnet. On
    /// Ethernet they have only the peer's GID.
    pub fn between(
        local: &LocalPort,
        peer: &Endpoint,
        service_level: u8,
        traffic_class: u8,
    ) -> AddressVector {
        let global = || {
            let (index, _) = local.gid?;
            let sgid_index = u8::try_from(index).ok()?;
            Some(GlobalRoute { dgid: peer.gid?, sgid_index, hop_limit: HOP_LIMIT, traffic_class })
        };
        let port = local.number;
        match local.link_layer {
            LinkLayer::Ethernet => AddressVector { lid: 0, service_level, port, global: global() },
            LinkLayer::InfiniBand => {
                let is_in_other_subnet = local
                    .gid
                    .zip(peer.gid)
                    .is_some_and(|((_, own), remote)| subnet_prefix(own) != subnet_prefix(remote));
                let global = if is_in_other_subnet || local.grh_required { global() } else { None };
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
            dgid: ibv_gid { raw: global.dgid.octets() },
            flow_label: 0,
            sgid_index: global.sgid_index,
            hop_limit: global.hop_limit,
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

/// Returns the upper 64 bits of a GID, which identify the InfiniBand subnet.
fn subnet_prefix(gid: Ipv6Addr) -> u128 {
    gid.to_bits() >> 64
}

#[cfg(test)]
mod tests {
    use super::*;

    fn local(link_layer: LinkLayer, gid: &str) -> LocalPort {
        let gid = Some((3, gid.parse().unwrap()));
        LocalPort { number: 2, link_layer, grh_required: false, gid }
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
        let wants = LocalPort { grh_required: true, ..own };
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
        assert_eq!((address.lid, global.sgid_index, global.hop_limit), (7, 3, 255));
        assert_eq!(global.dgid, "fec0:0:0:1::2".parse::<Ipv6Addr>().unwrap());
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
