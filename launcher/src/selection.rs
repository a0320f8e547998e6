//! Which RDMA ports a job can use, and how each is addressed: a pure function of what the agents
//! have found.

mod gid;

use rlaunch_bootstrap::inventory::net::Netdev;
use rlaunch_bootstrap::inventory::rdma::{
    Gid, LinkLayer, NodeType, Port, PortState, RdmaDevice, Uverbs,
};
use std::fmt;

/// How queue pairs of a port find each other.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Addressing {
    /// InfiniBand: by LID, and by this GID across routers.
    Lid { gid: Option<Gid> },
    /// RoCE: by this GID, chosen for this reason.
    Gid { gid: Gid, reason: String },
    /// iWARP, and what behaves like it: by IP address, through the RDMA connection manager.
    ConnectionManager,
}

/// Why a port is not used.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Rejection {
    /// Its device cannot be opened: it was not passed to this container.
    NotPassed,
    /// Its device may not be opened by this user.
    Denied(String),
    /// No carrier.
    Down,
    /// The link is up, and nobody has configured it.
    NoSubnetManager,
    /// A subnet manager is at it, or the kernel says something else.
    NotActive(PortState),
    /// Neither InfiniBand nor Ethernet.
    UnknownLayer,
    /// RoCE needs an address on the port's interface.
    NoGid,
    /// What the port's addresses are for is in another network namespace.
    InterfaceElsewhere,
    /// Packets of RoCE v1 do not leave their segment, and many switches drop them.
    OnlyRoceV1,
}

impl fmt::Display for Rejection {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Rejection::NotPassed => {
                f.write_str("its file in /dev/infiniband is missing: not passed to this container")
            }
            Rejection::Denied(path) => write!(f, "{path}: permission denied"),
            Rejection::Down => f.write_str("DOWN: no carrier"),
            Rejection::NoSubnetManager => {
                f.write_str("INIT: no subnet manager; start opensm on one host of this fabric")
            }
            Rejection::NotActive(state) => write!(f, "{state}"),
            Rejection::UnknownLayer => f.write_str("neither InfiniBand nor Ethernet"),
            Rejection::NoGid => f.write_str("its interface has no address"),
            Rejection::InterfaceElsewhere => {
                f.write_str("its interface is in another network namespace")
            }
            Rejection::OnlyRoceV1 => f.write_str("only RoCE v1"),
        }
    }
}

/// Whether a port can be used, and how.
pub(crate) fn examine(
    device: &RdmaDevice,
    port: &Port,
    netdevs: &[Netdev],
) -> Result<Addressing, Rejection> {
    match port.state {
        PortState::Active => {}
        PortState::Down => return Err(Rejection::Down),
        PortState::Init if port.link_layer == LinkLayer::InfiniBand => {
            return Err(Rejection::NoSubnetManager);
        }
        state => return Err(Rejection::NotActive(state)),
    }
    match &device.uverbs {
        Uverbs::Usable(_) => {}
        Uverbs::Denied(path) => return Err(Rejection::Denied(path.clone())),
        Uverbs::Missing => return Err(Rejection::NotPassed),
    }
    match (device.node_type, port.link_layer) {
        (NodeType::Rnic, _) => Ok(Addressing::ConnectionManager),
        (_, LinkLayer::InfiniBand) => {
            let gid = port.gids.iter().find(|gid| gid.index == 0).cloned();
            Ok(Addressing::Lid { gid })
        }
        (_, LinkLayer::Ethernet) => {
            gid::choose(port, netdevs).map(|(gid, reason)| Addressing::Gid { gid, reason })
        }
        (_, LinkLayer::Unknown) => Err(Rejection::UnknownLayer),
    }
}
