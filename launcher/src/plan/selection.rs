//! Which RDMA ports a job can use, how each is addressed, and which of them reach each other: a pure
//! function of what the agents have found. In reading order: [`examine`] says of a port whether it
//! can be used, [`network`] where it leads, [`Plan`] which ports of a job meet.

mod gid;
mod hca;
mod network;
mod plan;
#[cfg(test)]
mod tests;

pub(crate) use hca::HcaFilter;
pub(crate) use network::Reachable;
pub(crate) use plan::Plan;

use network::Leads;
use rlaunch_bootstrap::inventory::Inventory;
use rlaunch_bootstrap::inventory::net::Netdev;
use rlaunch_bootstrap::inventory::pci::{Distance, PciDevice};
use rlaunch_bootstrap::inventory::rdma::{
    Gid, LinkLayer, NodeType, Port, PortState, RdmaDevice, Uverbs,
};
use rlaunch_bootstrap::rank_table::{Nic, Transport};
use std::fmt;
use std::net::IpAddr;

/// How queue pairs of a port find each other.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Addressing {
    /// InfiniBand: by LID, and by this GID across routers.
    Lid { gid: Option<Gid> },
    /// RoCE: by this GID, chosen for this reason; in networks that it is not in, by others.
    Gid { gid: Gid, reason: String, others: Vec<Gid> },
    /// iWARP, and what behaves like it: by these IP addresses, through the RDMA connection manager.
    ConnectionManager(Vec<IpAddr>),
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
    /// A virtual function whose link is up, and that the subnet manager leaves alone.
    NoVirtualPort,
    /// A subnet manager is at it, or the kernel says something else.
    NotActive(PortState),
    /// Neither InfiniBand nor Ethernet.
    UnknownLayer,
    /// RoCE needs an address on the port's interface.
    NoGid,
    /// The port says that it is active, and its interface knows better: Soft-iWARP.
    NoCarrier(String),
    /// What the port's addresses are for is in another network namespace.
    InterfaceElsewhere,
    /// `--hca` leaves it out.
    LeftOut,
    /// `--connect oob`, and it knows the connection manager alone.
    ManagerOnly,
    /// `--gid-index` names an entry that is empty.
    EmptyGid(u16),
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
            Rejection::NoVirtualPort => f.write_str(
                "INIT: no subnet manager has configured this virtual function; it needs a GUID, and \
                 the subnet manager virt_enabled",
            ),
            Rejection::NotActive(state) => write!(f, "{state}"),
            Rejection::UnknownLayer => f.write_str("neither InfiniBand nor Ethernet"),
            Rejection::NoGid => f.write_str("its interface has no address"),
            Rejection::NoCarrier(netdev) => write!(f, "its interface {netdev} has no carrier"),
            Rejection::InterfaceElsewhere => {
                f.write_str("its interface is in another network namespace")
            }
            Rejection::LeftOut => f.write_str("left out by --hca"),
            Rejection::ManagerOnly => f.write_str("takes RDMA_CM only (node type RNIC)"),
            Rejection::EmptyGid(index) => write!(f, "entry {index} of its GID table is empty"),
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

/// What the user wants of RDMA ports.
#[derive(Clone, Debug, Default)]
pub(crate) struct PortWishes {
    /// Which may be used.
    pub(crate) hca: Option<HcaFilter>,
    /// Which entry of every RoCE port's GID table.
    pub(crate) gid_index: Option<u16>,
    pub(crate) connect: ConnectBy,
}

/// How queue pairs find each other.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, clap::ValueEnum)]
pub(crate) enum ConnectBy {
    /// As each device takes it
    #[default]
    Auto,
    /// Out of band: what each has to know of the other goes over TCP
    Oob,
    /// By the RDMA connection manager
    #[value(name = "rdma_cm")]
    RdmaCm,
}

/// Drivers whose devices are made of software.
const SOFTWARE: &[&str] = &["rxe", "siw"];

/// The ports of a node that can be used, one entry for each address of a port. Their order
/// is that of rails, software behind hardware, whatever the order of the inventory.
pub(crate) fn usable(inventory: &Inventory, wishes: &PortWishes) -> Vec<Reachable> {
    let ports = in_order(inventory).into_iter().zip(0..);
    let usable = ports.filter_map(|((device, port), rail)| {
        let how = examine_wanted(device, port, &inventory.netdevs, wishes).ok()?;
        Some(ends(inventory, (device, port), rail, &how, wishes.connect))
    });
    let mut usable: Vec<Reachable> = usable.flatten().collect();
    // Whether two link-local addresses are on one wire nobody can tell: they are for want of others.
    if usable.iter().any(|port| !port.is_link_local()) {
        usable.retain(|port| !port.is_link_local());
    }
    usable
}

/// Every port: hardware by PCI address, then software by name.
fn in_order(inventory: &Inventory) -> Vec<(&RdmaDevice, &Port)> {
    let ports = inventory.rdma.iter().flat_map(|d| d.ports.iter().map(move |port| (d, port)));
    let mut ports: Vec<_> = ports.collect();
    ports.sort_by_key(|(device, port)| {
        let address = device.pci.as_ref().map(|pci| pci.address.as_str());
        (is_software(device), address, device.name.as_str(), port.number)
    });
    ports
}

fn is_software(device: &RdmaDevice) -> bool {
    device.driver.as_deref().is_some_and(|driver| SOFTWARE.contains(&driver))
}

/// A port as the rank table has it: once for each address, the preferred one first.
fn ends(
    inventory: &Inventory,
    (device, port): (&RdmaDevice, &Port),
    rail: u32,
    how: &Addressing,
    connect: ConnectBy,
) -> Vec<Reachable> {
    let end = |transport, gid: Option<&Gid>, address: Option<IpAddr>| {
        let netdev = gid.and_then(|gid| gid.netdev.as_ref()).or(port.netdev.as_ref());
        let leads = match (transport, address, netdev) {
            (Transport::Infiniband, ..) => {
                // The prefix that a subnet manager gives where nobody has set another.
                let prefix = gid.map_or(0xfe80_0000_0000_0000, Gid::subnet_prefix);
                Leads::Subnet(prefix)
            }
            (_, Some(address), Some(netdev)) => Leads::out_of(inventory, netdev, address),
            _ => Leads::Nowhere,
        };
        let nic = Nic {
            device: device.name.clone(),
            port: port.number,
            rail,
            transport,
            software: is_software(device),
            by_manager: transport == Transport::Iwarp || connect == ConnectBy::RdmaCm,
            gid_index: gid.map(|gid| gid.index),
            gid: gid.map(|gid| gid.value.to_string()),
            netdev: netdev.cloned(),
            address,
            networks: leads.networks(),
            mtu: port.mtu,
            rate_mbps: megabits(rate(device, port)),
        };
        Reachable { nic, leads, cut_off: Vec::new() }
    };
    match how {
        Addressing::Lid { gid } => {
            // InfiniBand's GID is made of a GUID; an address, if any, is IPoIB's.
            let netdev = inventory.netdevs.iter().find(|n| Some(&n.name) == port.netdev.as_ref());
            let address = netdev.and_then(|netdev| Some(netdev.addresses.first()?.0));
            vec![end(Transport::Infiniband, gid.as_ref(), address)]
        }
        Addressing::Gid { gid, others, .. } => {
            let gids = std::iter::once(gid).chain(others);
            gids.map(|gid| end(Transport::Roce, Some(gid), Some(gid.ip()))).collect()
        }
        Addressing::ConnectionManager(addresses) => {
            addresses.iter().map(|address| end(Transport::Iwarp, None, Some(*address))).collect()
        }
    }
}

/// How far a device is from a rank's GPU, or else from its NUMA node.
pub(crate) fn distance(
    device: &RdmaDevice,
    gpu: Option<&PciDevice>,
    numa_node: Option<u32>,
) -> Distance {
    match (gpu, &device.pci) {
        (Some(gpu), Some(pci)) => gpu.distance(pci),
        _ if device.numa_node == numa_node => Distance::HostBridge,
        _ => Distance::System,
    }
}

/// Mb/s of `56 Gb/sec (4X FDR)`.
fn megabits(rate: &str) -> Option<u32> {
    let (number, _) = rate.split_once(" Gb/sec")?;
    let (whole, tenths) = number.split_once('.').unwrap_or((number, "0"));
    let whole = whole.parse::<u32>().ok()?.checked_mul(1000)?;
    whole.checked_add(tenths.get(..1)?.parse::<u32>().ok()? * 100)
}

/// Whether a port can be used and may be, and how.
pub(crate) fn examine_wanted(
    device: &RdmaDevice,
    port: &Port,
    netdevs: &[Netdev],
    wishes: &PortWishes,
) -> Result<Addressing, Rejection> {
    if wishes.hca.as_ref().is_some_and(|hca| !hca.lets(device, port)) {
        return Err(Rejection::LeftOut);
    }
    match (examine(device, port, netdevs)?, wishes) {
        (Addressing::ConnectionManager(_), PortWishes { connect: ConnectBy::Oob, .. }) => {
            Err(Rejection::ManagerOnly)
        }
        (Addressing::Gid { .. }, PortWishes { gid_index: Some(index), .. }) => {
            let gid = port.gids.iter().find(|gid| gid.index == *index).cloned();
            let gid = gid.ok_or(Rejection::EmptyGid(*index))?;
            Ok(Addressing::Gid { gid, reason: "--gid-index".to_owned(), others: Vec::new() })
        }
        (how, _) => Ok(how),
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
            let is_virtual = device.pci.as_ref().is_some_and(|pci| pci.physical_function.is_some());
            return Err(match is_virtual {
                true => Rejection::NoVirtualPort,
                false => Rejection::NoSubnetManager,
            });
        }
        state => return Err(Rejection::NotActive(state)),
    }
    match &device.uverbs {
        Uverbs::Usable(_) => {}
        Uverbs::Denied(path) => return Err(Rejection::Denied(path.clone())),
        Uverbs::Missing => return Err(Rejection::NotPassed),
    }
    let netdev = netdevs.iter().find(|netdev| Some(&netdev.name) == port.netdev.as_ref());
    if let Some(netdev) = netdev.filter(|netdev| !netdev.running)
        && port.link_layer == LinkLayer::Ethernet
    {
        return Err(Rejection::NoCarrier(netdev.name.clone()));
    }
    match (device.node_type, port.link_layer) {
        (NodeType::Rnic, _) => addresses_of(port, netdevs).map(Addressing::ConnectionManager),
        (_, LinkLayer::InfiniBand) => {
            let gid = port.gids.iter().find(|gid| gid.index == 0).cloned();
            Ok(Addressing::Lid { gid })
        }
        (_, LinkLayer::Ethernet) => {
            let (gid, reason, others) = gid::choose(port, netdevs)?;
            Ok(Addressing::Gid { gid, reason, others })
        }
        (_, LinkLayer::Unknown) => Err(Rejection::UnknownLayer),
    }
}

/// The addresses by which the connection manager finds a port.
fn addresses_of(port: &Port, netdevs: &[Netdev]) -> Result<Vec<IpAddr>, Rejection> {
    let netdev = netdevs.iter().find(|netdev| Some(&netdev.name) == port.netdev.as_ref());
    let addresses = &netdev.ok_or(Rejection::InterfaceElsewhere)?.addresses;
    let global = addresses.iter().map(|(address, _)| *address);
    let global: Vec<IpAddr> = global.filter(|address| !network::is_link_local(*address)).collect();
    if global.is_empty() { Err(Rejection::NoGid) } else { Ok(global) }
}
