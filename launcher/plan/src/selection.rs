//! Selection of the RDMA ports that a job can use, their addresses, and which of them reach each other: a
//! pure function of the nodes' inventories. In reading order: [`examine`] decides whether a port can be used,
//! [`plan`] finds the networks that a port reaches, and which ports of a job reach each other.

mod gid;
mod plan;
#[cfg(test)]
mod tests;

pub use plan::{Plan, Subnet, UsablePort, is_link_local};

use crate::findings::{CheckId, id};
use plan::Reachability;
use rlaunch_bootstrap::inventory::Inventory;
use rlaunch_bootstrap::inventory::net::Netdev;
use rlaunch_bootstrap::inventory::pci::{Distance, PciDevice};
use rlaunch_bootstrap::inventory::rdma::{
    Gid, LinkLayer, NodeType, Port, PortState, RdmaDevice, Uverbs,
};
use rlaunch_bootstrap::rank_table::{Nic, Transport};
use std::net::IpAddr;
use std::str::FromStr;
use strum::{EnumString, IntoStaticStr, VariantArray};

/// Addressing of a port's queue pairs.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Addressing {
    /// InfiniBand: the LID, and this GID across routers.
    Lid { gid: Option<Gid> },
    /// RoCE: this GID, with the reason for the choice. `others` are GIDs for networks that `gid` is not in.
    Gid { gid: Gid, reason: String, others: Vec<Gid> },
    /// iWARP and similar devices: these IP addresses, through the RDMA connection manager.
    ConnectionManager(Vec<IpAddr>),
}

/// Reason why a port is not used.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Rejection {
    /// The device was not passed to the container in which the node's agent runs.
    #[error("its file in /dev/infiniband is missing: not passed to this container")]
    NotPassed,
    /// The user has no permission to open the device file at this path.
    #[error("{0}: permission denied")]
    Denied(String),
    /// The link has no carrier.
    #[error("DOWN: no carrier")]
    Down,
    /// The link is up, but no subnet manager configured it.
    #[error("INIT: no subnet manager; start opensm on one host of this fabric")]
    NoSubnetManager,
    /// The port belongs to a virtual function that the subnet manager ignores.
    #[error(
        "INIT: no subnet manager has configured this virtual function; it needs a GUID, and \
         the subnet manager virt_enabled"
    )]
    NoVirtualPort,
    /// The port is in this state, for example while a subnet manager configures it.
    #[error("{0}")]
    NotActive(PortState),
    /// The link layer is neither InfiniBand nor Ethernet.
    #[error("neither InfiniBand nor Ethernet")]
    UnknownLayer,
    /// The port's interface has no IP address that RDMA could use.
    #[error("its interface has no address")]
    NoGid,
    /// The port is active, but its interface, which has this name, has no carrier. Soft-iWARP reports such
    /// ports as active.
    #[error("its interface {0} has no carrier")]
    NoCarrier(String),
    /// The port's interface is in another network namespace.
    #[error("its interface is in another network namespace")]
    InterfaceElsewhere,
    /// `--hca` excludes the port.
    #[error("left out by --hca")]
    LeftOut,
    /// `--connect oob` was given, but the device supports only RDMA_CM.
    #[error("takes RDMA_CM only (node type RNIC)")]
    ManagerOnly,
    /// `--gid-index` names this entry of the port's GID table, which is empty.
    #[error("entry {0} of its GID table is empty")]
    EmptyGid(u16),
    /// The port has only GIDs for RoCE v1. Packets of RoCE v1 are not routed, and many switches drop them.
    #[error("only RoCE v1")]
    OnlyRoceV1,
}

impl Rejection {
    /// Returns the id of the finding that the reason states, or `None` if it is a choice of the user's or of no
    /// known cause.
    pub fn id(&self) -> Option<CheckId> {
        Some(match self {
            Rejection::NotPassed => id::DEV_UVERBS,
            Rejection::Denied(_) => id::DEV_PERM,
            Rejection::Down | Rejection::NoCarrier(_) | Rejection::NotActive(_) => id::LINK_DOWN,
            Rejection::NoSubnetManager => id::IB_NO_SM,
            Rejection::NoVirtualPort => id::IB_VF,
            Rejection::NoGid | Rejection::EmptyGid(_) => id::ROCE_GID_EMPTY,
            Rejection::InterfaceElsewhere => id::ROCE_NETDEV,
            Rejection::ManagerOnly => id::IWARP_CM,
            Rejection::OnlyRoceV1 => id::ROCE_NO_V2,
            Rejection::UnknownLayer | Rejection::LeftOut => return None,
        })
    }
}

/// Drivers that report a constant rate, whatever interface they use.
const RATE_UNKNOWN: &[&str] = &["rxe", "siw", "erdma"];

/// Tells whether the driver of a device reports the rate of its link, rather than a constant.
pub(crate) fn has_known_rate(device: &RdmaDevice) -> bool {
    !RATE_UNKNOWN.contains(&device.driver.as_deref().unwrap_or_default())
}

/// Returns a port's rate as the kernel writes it; empty if the port is not active, `unknown` if the
/// driver's rate is meaningless.
pub fn rate<'a>(device: &RdmaDevice, port: &'a Port) -> &'a str {
    match port.state {
        PortState::Active if !has_known_rate(device) => "unknown",
        PortState::Active => port.rate.as_deref().unwrap_or_default(),
        _ => "",
    }
}

/// Options of the user for RDMA ports.
#[derive(Clone, Debug, Default)]
pub struct PortOptions {
    /// `--hca`: ports that may be used.
    pub hca: Option<HcaFilter>,
    /// `--gid-index`: entry to use in every RoCE port's GID table.
    pub gid_index: Option<u16>,
    pub connect: ConnectBy,
}

/// `--connect`: method of connecting queue pairs.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, EnumString, IntoStaticStr, VariantArray)]
#[strum(serialize_all = "kebab-case")]
pub enum ConnectBy {
    /// The method that each device supports
    #[default]
    Auto,
    /// Out of band: endpoints are exchanged over TCP
    Oob,
    /// Through the RDMA connection manager
    #[strum(serialize = "rdma_cm")]
    RdmaCm,
}

/// Drivers of software devices.
const SOFTWARE: &[&str] = &["rxe", "siw"];

/// Lists a node's usable ports, one entry for each address of a port. Entries are in the order of rails,
/// software devices last, whatever the order of the inventory.
pub fn usable(inventory: &Inventory, options: &PortOptions) -> Vec<UsablePort> {
    let ports = sorted_ports(inventory).into_iter().zip(0..);
    let usable = ports.filter_map(|((device, port), rail)| {
        let how = examine_wanted(device, port, &inventory.netdevs, options).ok()?;
        Some(usable_entries(inventory, device, port, rail, &how, options.connect))
    });
    let mut usable: Vec<UsablePort> = usable.flatten().collect();
    // Link-local addresses do not show whether two ports share a network: use them only if there are
    // no others.
    if usable.iter().any(|port| !port.is_link_local()) {
        usable.retain(|port| !port.is_link_local());
    }
    usable
}

/// Lists all ports: hardware by PCI address, then software by name.
pub(crate) fn sorted_ports(inventory: &Inventory) -> Vec<(&RdmaDevice, &Port)> {
    let ports = inventory.rdma.iter().flat_map(|d| d.ports.iter().map(move |port| (d, port)));
    let mut ports: Vec<_> = ports.collect();
    ports.sort_by_key(|(device, port)| {
        let address = device.pci.as_ref().map(|pci| pci.address.as_str());
        (is_software(device), address, device.name.as_str(), port.number)
    });
    ports
}

/// Tells whether a driver emulates the device in software.
pub(crate) fn is_software(device: &RdmaDevice) -> bool {
    device.driver.as_deref().is_some_and(|driver| SOFTWARE.contains(&driver))
}

/// Subnet prefix of InfiniBand unless the subnet manager sets another.
const DEFAULT_SUBNET_PREFIX: u64 = 0xfe80_0000_0000_0000;

/// Makes a port's entries for the rank table: one for each address, the preferred one first.
fn usable_entries(
    inventory: &Inventory,
    device: &RdmaDevice,
    port: &Port,
    rail: u32,
    how: &Addressing,
    connect: ConnectBy,
) -> Vec<UsablePort> {
    let end = |transport: Transport, gid: Option<&Gid>, address: Option<IpAddr>| {
        let netdev = gid.and_then(|gid| gid.netdev.as_ref()).or(port.netdev.as_ref());
        let reachability = match (address, netdev) {
            _ if transport == Transport::Infiniband => {
                Reachability::Subnet(gid.map_or(DEFAULT_SUBNET_PREFIX, Gid::subnet_prefix))
            }
            (Some(address), Some(netdev)) => {
                Reachability::from_interface(inventory, netdev, address)
            }
            _ => Reachability::Nowhere,
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
            networks: reachability.networks(),
            mtu: port.mtu,
            rate_mbps: megabits(rate(device, port)),
        };
        UsablePort { nic, reachability, failed_proofs: Vec::new() }
    };
    match how {
        Addressing::Lid { gid } => {
            // A GID of InfiniBand is made from a GUID; an IP address, if any, is that of IPoIB.
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

/// Returns the distance of a device from a rank's GPU, or from its NUMA node if it has no GPU.
pub fn distance(device: &RdmaDevice, gpu: Option<&PciDevice>, numa_node: Option<u32>) -> Distance {
    match (gpu, &device.pci) {
        (Some(gpu), Some(pci)) => gpu.distance(pci),
        _ if device.numa_node == numa_node => Distance::HostBridge,
        _ => Distance::System,
    }
}

/// Parses a rate such as `56 Gb/sec (4X FDR)` into Mb/s.
pub fn megabits(rate: &str) -> Option<u32> {
    let (number, _) = rate.split_once(" Gb/sec")?;
    let (whole, tenths) = number.split_once('.').unwrap_or((number, "0"));
    let whole = whole.parse::<u32>().ok()?.checked_mul(1000)?;
    whole.checked_add(tenths.get(..1)?.parse::<u32>().ok()? * 100)
}

/// Determines a port's addressing under the user's options, or why the port is not used.
pub(crate) fn examine_wanted(
    device: &RdmaDevice,
    port: &Port,
    netdevs: &[Netdev],
    options: &PortOptions,
) -> Result<Addressing, Rejection> {
    if options.hca.as_ref().is_some_and(|hca| !hca.allows(device, port)) {
        return Err(Rejection::LeftOut);
    }
    match (examine(device, port, netdevs)?, options) {
        (Addressing::ConnectionManager(_), PortOptions { connect: ConnectBy::Oob, .. }) => {
            Err(Rejection::ManagerOnly)
        }
        (Addressing::Gid { .. }, PortOptions { gid_index: Some(index), .. }) => {
            let gid = port.gids.iter().find(|gid| gid.index == *index).cloned();
            let gid = gid.ok_or(Rejection::EmptyGid(*index))?;
            Ok(Addressing::Gid { gid, reason: "--gid-index".to_owned(), others: Vec::new() })
        }
        (how, _) => Ok(how),
    }
}

/// PCI device numbers of virtual functions of adapters by NVIDIA (Mellanox).
const VIRTUAL_FUNCTIONS: &[u16] =
    &[0x1002, 0x1004, 0x1012, 0x1014, 0x1016, 0x1018, 0x101a, 0x101c, 0x101e, 0xa2d3];

/// Tells whether a device is a virtual function. In a virtual machine only its number says so, since the physical
/// function is not there.
pub(crate) fn is_virtual_function(pci: &PciDevice) -> bool {
    let is_numbered = pci.vendor == Some(0x15b3)
        && pci.device.is_some_and(|device| VIRTUAL_FUNCTIONS.contains(&device));
    pci.physical_function.is_some() || is_numbered
}

/// Determines a port's addressing regardless of the user's options, or why the port cannot be used.
pub fn examine(
    device: &RdmaDevice,
    port: &Port,
    netdevs: &[Netdev],
) -> Result<Addressing, Rejection> {
    match port.state {
        PortState::Active => {}
        PortState::Down => return Err(Rejection::Down),
        PortState::Init if port.link_layer == LinkLayer::InfiniBand => {
            let is_virtual = device.pci.as_ref().is_some_and(is_virtual_function);
            return Err(if is_virtual {
                Rejection::NoVirtualPort
            } else {
                Rejection::NoSubnetManager
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
        (NodeType::Rnic, _) => addresses_of(netdev).map(Addressing::ConnectionManager),
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

/// Lists the addresses by which the RDMA connection manager finds a port: those of its interface except
/// link-local ones.
fn addresses_of(netdev: Option<&Netdev>) -> Result<Vec<IpAddr>, Rejection> {
    let addresses = &netdev.ok_or(Rejection::InterfaceElsewhere)?.addresses;
    let global = addresses.iter().map(|(address, _)| *address);
    let global: Vec<IpAddr> = global.filter(|address| !is_link_local(*address)).collect();
    if global.is_empty() { Err(Rejection::NoGid) } else { Ok(global) }
}

/// Filter of RDMA ports, parsed from `--hca`, in the syntax of NCCL_IB_HCA (NCCL, src/misc/utils.cc):
/// `[^][=]DEVICE[:PORT],…`.
///
/// `^` excludes the listed ports. `=` compares whole device names; without it, a listed name is a prefix, so
/// that `mlx5_1` matches `mlx5_10`. The third and fourth field of NCCL's syntax, rail and plane, are accepted
/// but ignored.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct HcaFilter {
    excludes: bool,
    exact: bool,
    /// Names of devices, or prefixes of names unless `exact`, each with a port number or `None` for all
    /// ports.
    entries: Vec<(String, Option<u8>)>,
}

/// Maximum number of entries, the same as in NCCL.
const MAX_ENTRIES: usize = 32;

impl FromStr for HcaFilter {
    type Err = String;

    fn from_str(text: &str) -> Result<HcaFilter, String> {
        let (excludes, rest) = text.strip_prefix('^').map_or((false, text), |rest| (true, rest));
        let (exact, rest) = rest.strip_prefix('=').map_or((false, rest), |rest| (true, rest));
        let entries: Vec<_> = rest.split(',').map(parse_hca_entry).collect::<Result<_, _>>()?;
        if entries.len() > MAX_ENTRIES {
            return Err(format!("at most {MAX_ENTRIES} devices, as NCCL has it"));
        }
        Ok(HcaFilter { excludes, exact, entries })
    }
}

fn parse_hca_entry(text: &str) -> Result<(String, Option<u8>), String> {
    let mut parts = text.split(':');
    let device = parts.next().unwrap_or_default();
    if device.is_empty() {
        return Err("devices like mlx5_0 or mlx5_0:1, with commas between".to_owned());
    }
    let port = parts.next().map(str::parse).transpose();
    let port = port.ok().filter(|port| *port != Some(0));
    Ok((device.to_owned(), port.ok_or_else(|| format!("`{text}`: ports are numbers from 1"))?))
}

impl HcaFilter {
    /// Tells whether a port may be used.
    pub fn allows(&self, device: &RdmaDevice, port: &Port) -> bool {
        let names = |(name, number): &(String, Option<u8>)| {
            let is_device =
                device.name == *name || !self.exact && device.name.starts_with(name.as_str());
            is_device && number.is_none_or(|number| number == port.number)
        };
        self.entries.iter().any(names) != self.excludes
    }
}
