//! Limits of RDMA bandwidth: the rate that the link between two ports and the PCIe links below them allow, before and
//! after the headers of their packets.

use crate::selection;
use rlaunch_bootstrap::inventory::Inventory;
use rlaunch_bootstrap::inventory::pci::{LinkRate, PciDevice};
use rlaunch_bootstrap::rank_table::{Nic, Transport};
use std::fmt;
use std::net::IpAddr;

/// Bytes of an InfiniBand packet besides its data: local header, transport header, two checksums.
const INFINIBAND_OVERHEAD: u32 = 26;
/// Maximum MTU of InfiniBand, in bytes.
const INFINIBAND_MTU: u32 = 4096;
/// Bytes on the wire of a RoCE v2 packet over IPv4 besides its data: Ethernet with preamble, gap and checksum, IP, UDP,
/// transport header, checksum.
const ROCE_OVERHEAD: u32 = 82;
/// Bytes by which an IPv6 header is longer than one of IPv4.
const IPV6_MORE: u32 = 20;
/// Bytes of an Ethernet frame outside of what the MTU of its interface counts: preamble, header, checksum, gap.
const FRAME: u32 = 38;
/// Bytes of an iWARP segment within the interface's MTU besides its data: IP, TCP with timestamps, MPA and DDP.
const IWARP_OVERHEAD: u32 = 20 + 32 + 6 + 14;
/// Bytes of data and of headers in a PCIe packet with the usual maximum payload of 256 bytes.
const PCIE_PACKET: (u32, u32) = (256, 24);
/// Share of the usable rate that healthy hardware reaches with large messages, in percent.
pub const HEALTHY: u32 = 90;

/// Limit of a port's bandwidth in one direction.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Limit {
    pub bound: Bound,
    /// Rate of the link that binds after encoding, in Mb/s.
    pub raw: u32,
    /// Rate of data over that link, which the headers of packets lower, in Mb/s.
    pub usable: u32,
    /// Nominal rate of the port, in Mb/s.
    pub port: u32,
}

/// Link that binds.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Bound {
    /// Link between the ports, with packets of at most `data` bytes of data.
    Port { name: String, data: u32 },
    /// PCIe link of the device or bridge at `address`.
    Pcie { rate: LinkRate, address: String },
}

impl Limit {
    /// Returns the limit of a port: of its own link or of the slowest PCIe link below it. `None` if it is not known:
    /// for emulated devices, for virtual functions, whose share depends on others, and for drivers that report an
    /// arbitrary rate. `path_mtu` is the MTU to the peer, if it is known.
    pub fn new(inventory: &Inventory, nic: &Nic, path_mtu: Option<u32>) -> Option<Limit> {
        let device = inventory.rdma.iter().find(|device| device.name == nic.device)?;
        let known = device.ports.iter().find(|known| known.number == nic.port)?;
        if nic.software || !selection::has_known_rate(device) {
            return None;
        }
        let pci = device.pci.as_ref()?;
        if selection::is_virtual_function(pci) {
            return None;
        }
        let link = link_limit(inventory, selection::rate(device, known), nic, path_mtu)?;
        let pcie = pcie_limit(pci, link.port);
        Some(pcie.into_iter().fold(link, Limit::lower))
    }

    /// Returns the limit that binds first; `self` if both are equal.
    pub fn lower(self, other: Limit) -> Limit {
        if other.usable < self.usable { other } else { self }
    }

    /// Returns the parts of the link's rate and of its usable rate that `megabits` per second are, in percent.
    pub fn shares(&self, megabits: f64) -> (f64, f64) {
        let percent = |whole: u32| megabits * 100.0 / f64::from(whole);
        (percent(self.raw), percent(self.usable))
    }
}

/// Formats the link that binds, as `PCIe 8.0 GT/s x4 at 0000:00:02.5 (port: 56 Gb/s)`.
impl fmt::Display for Limit {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.bound {
            Bound::Port { name, data } => {
                write!(f, "{name} with packets of {data} bytes")
            }
            Bound::Pcie { rate, address } => {
                let (whole, tenths) = (rate.speed / 10, rate.speed % 10);
                let (width, port) = (rate.width, self.port / 1000);
                write!(f, "PCIe {whole}.{tenths} GT/s x{width} at {address} (port: {port} Gb/s)")
            }
        }
    }
}

/// Returns the limit of the link between the port and its peer. `rate` is the kernel's name of its rate.
fn link_limit(
    inventory: &Inventory,
    rate: &str,
    nic: &Nic,
    path_mtu: Option<u32>,
) -> Option<Limit> {
    let netdev = nic.netdev.as_deref();
    let netdev = inventory.netdevs.iter().find(|known| Some(known.name.as_str()) == netdev);
    let is_ethernet = nic.transport != Transport::Infiniband;
    // Names of RDMA's rates have no 1 Gb/s, and round others.
    let speed = netdev.filter(|_| is_ethernet).and_then(|netdev| netdev.speed);
    let nominal = speed.or(nic.rate_mbps)?;
    let is_ipv6 = nic.address.is_some_and(|address| matches!(address, IpAddr::V6(_)));
    let longer = if is_ipv6 { IPV6_MORE } else { 0 };
    let mtu = path_mtu.or(nic.mtu);
    // Bytes of data in a packet; bytes of the packet on the wire.
    let (raw, data, wire) = match nic.transport {
        Transport::Infiniband => {
            // The kernel does not tell the MTU; the largest gives the highest limit.
            let mtu = mtu.unwrap_or(INFINIBAND_MTU);
            let raw = infiniband_rate(rate).unwrap_or(nominal);
            (raw, mtu, mtu.saturating_add(INFINIBAND_OVERHEAD))
        }
        Transport::Roce => (nominal, mtu?, mtu?.saturating_add(ROCE_OVERHEAD + longer)),
        Transport::Iwarp => {
            let frame = netdev?.mtu;
            let data = frame.saturating_sub(IWARP_OVERHEAD + longer);
            (nominal, data, frame.saturating_add(FRAME))
        }
    };
    let kind = match nic.transport {
        Transport::Infiniband => "InfiniBand",
        Transport::Roce => "RoCE",
        Transport::Iwarp => "iWARP",
    };
    let name = format!("{kind} of {} Gb/s", short_gigabits(raw));
    let usable = part(raw, data, wire).max(1);
    Some(Limit { bound: Bound::Port { name, data }, raw: raw.max(1), usable, port: nominal })
}

/// Returns the limit of the slowest PCIe link between a device and the processor; `None` if no link reports its rate.
fn pcie_limit(pci: &PciDevice, port: u32) -> Option<Limit> {
    let real = PciDevice { links: pci.real_links().to_vec(), ..pci.clone() };
    let slowest = real.bottleneck()?;
    let raw = slowest.rate.megabits();
    let bound = Bound::Pcie { rate: slowest.rate, address: slowest.address.to_owned() };
    Some(Limit { bound, raw, usable: pcie_payload(raw), port })
}

/// Returns the rate of the slowest PCIe link between a device and the processor after encoding, in Mb/s, if it is known.
pub(crate) fn pcie_megabits(pci: &PciDevice) -> Option<u32> {
    pcie_limit(pci, 0).map(|limit| limit.raw)
}

/// Returns the part of a PCIe link's rate that is data, in the unit of `rate`.
pub(crate) fn pcie_payload(rate: u32) -> u32 {
    let (data, headers) = PCIE_PACKET;
    part(rate, data, data + headers)
}

/// Returns `rate * numerator / denominator`.
fn part(rate: u32, numerator: u32, denominator: u32) -> u32 {
    let product = u64::from(rate) * u64::from(numerator);
    u32::try_from(product / u64::from(denominator.max(1))).unwrap_or(u32::MAX)
}

/// Returns the data rate after encoding of an InfiniBand link, in Mb/s, from the kernel's name for it, such as
/// `56 Gb/sec (4X FDR)`. Up to QDR, 8 of 10 bits are data; FDR and EDR carry 64 of 66 bits of signals that are faster
/// than the name says (InfiniBand specification, volume 2, chapter 5).
fn infiniband_rate(text: &str) -> Option<u32> {
    let (_, name) = text.split_once('(')?;
    let (lanes, speed) = name.trim_end_matches(')').split_once("X ")?;
    let lane = match speed {
        "SDR" => 2_000,
        "DDR" => 4_000,
        "QDR" => 8_000,
        "FDR10" => 10_000,
        "FDR" => 13_636,
        "EDR" => 25_000,
        "HDR" => 50_000,
        "NDR" => 100_000,
        "XDR" => 200_000,
        _ => return None,
    };
    lanes.parse::<u32>().ok()?.checked_mul(lane)
}

/// Formats Mb/s as Gb/s with as many decimals as it has, at most one: `100`, `54.5`.
pub(crate) fn short_gigabits(megabits: u32) -> String {
    match (megabits + 50) / 100 {
        tenths if tenths % 10 == 0 => (tenths / 10).to_string(),
        tenths => format!("{}.{}", tenths / 10, tenths % 10),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::selection::{PortOptions, usable};
    use crate::testing::inventory;

    fn limit(inventory: &Inventory) -> Option<Limit> {
        let ports = usable(inventory, &PortOptions::default());
        Limit::new(inventory, &ports.first()?.nic, None)
    }

    /// Formats shares of a limit with one decimal each.
    fn shares(limit: &Limit, megabits: f64) -> String {
        let (raw, usable) = limit.shares(megabits);
        format!("{raw:.1} {usable:.1}")
    }

    #[test]
    fn a_pair_of_connectx3_is_bound_by_four_lanes() {
        let limit = limit(&inventory("connectx3")).unwrap();
        assert_eq!(limit.to_string(), "PCIe 8.0 GT/s x4 at 0000:00:02.5 (port: 56 Gb/s)");
        assert_eq!((limit.raw, limit.usable), (31_504, 28_803));
        // `ib_write_bw` of 64 KiB measured 3293.56 MiB/s.
        assert_eq!(shares(&limit, 3293.56 * 1.048_576 * 8.0), "87.7 95.9");
    }

    #[test]
    fn a_link_of_100_gigabits_is_bound_by_its_own_packets() {
        let limit = limit(&inventory("dual-port")).unwrap();
        assert_eq!(limit.raw, 100_000, "{limit:?}");
        // 12 GB/s between two hosts of the triangle.
        let (raw, usable) = limit.shares(96_000.0);
        assert!(raw == 96.0 && usable > 96.0 && usable <= 104.0, "{limit:?} {usable}");
    }

    #[test]
    fn a_riser_of_one_lane_is_named() {
        let mut machine = inventory("connectx3");
        let pci = machine.rdma[0].pci.as_mut().unwrap();
        pci.links[0].current = Some(LinkRate { speed: 25, width: 1 });
        pci.links[1].current = Some(LinkRate { speed: 25, width: 1 });
        let address = pci.links[1].address.clone();
        let limit = limit(&machine).unwrap();
        let text = format!("PCIe 2.5 GT/s x1 at {address} (port: 56 Gb/s)");
        assert_eq!((limit.to_string(), limit.raw), (text, 2000));
    }

    #[test]
    fn the_slower_of_link_and_pcie_counts() {
        let mut machine = inventory("dgx");
        let whole = limit(&machine).unwrap();
        assert!(matches!(whole.bound, Bound::Port { .. }), "{whole:?}");
        let links = machine.rdma.iter_mut().filter_map(|device| device.pci.as_mut());
        links
            .flat_map(|pci| &mut pci.links)
            .for_each(|link| link.current = Some(LinkRate { speed: 160, width: 4 }));
        let narrow = limit(&machine).unwrap();
        assert!(narrow.usable < whole.usable / 2, "{narrow:?}");
    }

    #[test]
    fn limits_of_software_and_of_shared_cards_are_not_known() {
        for name in ["rxe", "siw", "erdma-compat", "erdma-standard"] {
            assert_eq!(limit(&inventory(name)), None, "{name}");
        }
        let machine = inventory("sriov");
        let ports = usable(&machine, &PortOptions::default());
        let function = ports.iter().find(|port| port.nic.device == "ibp65s0v1").unwrap();
        assert_eq!(Limit::new(&machine, &function.nic, None), None);
    }

    #[test]
    fn kernel_names_of_rates_are_known() {
        for (text, rate) in [
            ("56 Gb/sec (4X FDR)", Some(54_544)),
            ("40 Gb/sec (4X QDR)", Some(32_000)),
            ("40 Gb/sec (4X FDR10)", Some(40_000)),
            ("10 Gb/sec (4X SDR)", Some(8_000)),
            ("100 Gb/sec (4X EDR)", Some(100_000)),
            ("800 Gb/sec (4X XDR)", Some(800_000)),
            ("10 Gb/sec", None),
        ] {
            assert_eq!(infiniband_rate(text), rate, "{text}");
        }
    }
}
