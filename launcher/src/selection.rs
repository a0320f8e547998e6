//! Which RDMA ports a job can use, and how each is addressed: a pure function of what the agents
//! have found.

mod gid;

use rlaunch_bootstrap::inventory::Inventory;
use rlaunch_bootstrap::inventory::net::Netdev;
use rlaunch_bootstrap::inventory::pci::{Distance, PciDevice};
use rlaunch_bootstrap::inventory::rdma::{
    Gid, GidKind, LinkLayer, NodeType, Port, PortState, RdmaDevice, Uverbs,
};
use rlaunch_bootstrap::table::Nic;
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

/// Drivers that say the same rate whatever they run on.
const RATE_UNKNOWN: &[&str] = &["rxe", "siw", "erdma"];

/// What a port's rate is worth, in the kernel's words: nothing while it is not active, `unknown`
/// where the driver says anything.
pub(crate) fn rate<'a>(device: &RdmaDevice, port: &'a Port) -> &'a str {
    let driver = device.driver.as_deref().unwrap_or_default();
    match port.state {
        PortState::Active if RATE_UNKNOWN.contains(&driver) => "unknown",
        PortState::Active => port.rate.as_deref().unwrap_or_default(),
        _ => "",
    }
}

/// A port that can be used, and its device.
#[derive(Clone, Debug)]
pub(crate) struct Usable<'a> {
    pub(crate) device: &'a RdmaDevice,
    pub(crate) port: &'a Port,
    pub(crate) how: Addressing,
}

/// The ports of a node that can be used, in the order of device names.
pub(crate) fn usable(inventory: &Inventory) -> Vec<Usable<'_>> {
    let ports = inventory.rdma.iter().flat_map(|d| d.ports.iter().map(move |port| (d, port)));
    let usable = ports.filter_map(|(device, port)| {
        let how = examine(device, port, &inventory.netdevs).ok()?;
        Some(Usable { device, port, how })
    });
    usable.collect()
}

impl Usable<'_> {
    /// As the rank table has it.
    pub(crate) fn nic(&self, netdevs: &[Netdev]) -> Nic {
        let gid = match &self.how {
            Addressing::Lid { gid } => gid.as_ref(),
            Addressing::Gid { gid, .. } => Some(gid),
            Addressing::ConnectionManager => None,
        };
        let netdev = gid.and_then(|gid| gid.netdev.as_ref()).or(self.port.netdev.as_ref());
        let of_interface = || {
            let netdev = netdevs.iter().find(|candidate| Some(&candidate.name) == netdev)?;
            netdev.addresses.first().map(|(address, _)| *address)
        };
        // A GID that is made of an address says which; InfiniBand's is made of a GUID.
        let of_gid = gid.filter(|gid| gid.kind == GidKind::RoceV2).map(Gid::ip);
        Nic {
            device: self.device.name.clone(),
            port: self.port.number,
            gid_index: gid.map(|gid| gid.index),
            gid: gid.map(|gid| gid.value.to_string()),
            netdev: netdev.cloned(),
            address: of_gid.or_else(of_interface),
            mtu: self.port.mtu,
            rate_mbps: megabits(rate(self.device, self.port)),
        }
    }

    /// How far the port is from a rank's GPU, or else from its NUMA node; nearest first.
    pub(crate) fn distance(&self, gpu: Option<&PciDevice>, numa_node: Option<u32>) -> Distance {
        match (gpu, &self.device.pci) {
            (Some(gpu), Some(pci)) => gpu.distance(pci),
            _ if self.device.numa_node == numa_node => Distance::HostBridge,
            _ => Distance::System,
        }
    }
}

/// Mb/s of `56 Gb/sec (4X FDR)`.
fn megabits(rate: &str) -> Option<u32> {
    let (number, _) = rate.split_once(" Gb/sec")?;
    let (whole, tenths) = number.split_once('.').unwrap_or((number, "0"));
    let whole = whole.parse::<u32>().ok()?.checked_mul(1000)?;
    whole.checked_add(tenths.get(..1)?.parse::<u32>().ok()? * 100)
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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::recorded::inventory;

    #[test]
    fn an_infiniband_port_is_what_the_table_says() {
        let inventory = inventory("connectx3");
        let usable = usable(&inventory);
        let [port] = &usable[..] else { panic!("{usable:?}") };
        let nic = port.nic(&inventory.netdevs);
        assert_eq!((nic.device.as_str(), nic.port, nic.gid_index), ("mlx4_0", 1, Some(0)));
        assert_eq!(nic.gid.as_deref(), Some("fe80::ec0d:9a03:12:3451"));
        assert_eq!(nic.address, "192.168.100.1".parse().ok());
        assert_eq!((nic.mtu, nic.rate_mbps), (None, Some(56_000)));
    }

    #[test]
    fn an_iwarp_port_has_an_address_and_no_gid() {
        let inventory = inventory("siw");
        let nic = usable(&inventory)[0].nic(&inventory.netdevs);
        assert_eq!((nic.gid_index, nic.gid), (None, None));
        assert_eq!((nic.netdev.as_deref(), nic.address), (Some("ens2"), "10.0.0.2".parse().ok()));
        assert_eq!(nic.rate_mbps, None, "the driver says anything");
    }

    #[test]
    fn a_port_that_cannot_be_used_is_no_nic() {
        assert!(usable(&inventory("rxe")).is_empty());
    }

    #[test]
    fn rates_are_read() {
        assert_eq!(megabits("56 Gb/sec (4X FDR)"), Some(56_000));
        assert_eq!(megabits("2.5 Gb/sec (1X SDR)"), Some(2_500));
        assert_eq!((megabits("unknown"), megabits("")), (None, None));
    }
}
