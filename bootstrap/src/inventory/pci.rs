//! PCI devices, the bridges above them, and the data rates of their links.

use serde::{Deserialize, Serialize};
use std::fmt;

/// PCI device with the links between it and its host bridge.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct PciDevice {
    /// Address, such as `0000:c3:00.0`.
    pub address: String,
    /// Vendor id in PCI configuration space.
    pub vendor: Option<u16>,
    /// Device id in PCI configuration space.
    pub device: Option<u16>,
    /// Driver that is bound to the device.
    pub driver: Option<String>,
    /// NUMA node of the device; `None` if the node has only one, or the firmware does not report
    /// it.
    pub numa_node: Option<u32>,
    /// Whether the device caches address translations of the IOMMU (ATS). `None` if the register
    /// was not read, could not be read because that requires root, or does not exist.
    pub ats: Option<bool>,
    /// PCI address of the physical function that a virtual function (SR-IOV) belongs to; `None` for
    /// other devices.
    pub physical_function: Option<String>,
    /// Host bridge above the device, such as `pci0000:00`.
    pub host_bridge: Option<String>,
    /// Upstream links of the device and of every bridge above it, in this order.
    pub links: Vec<PciLink>,
}

/// Link of a device or bridge to the bridge above it.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct PciLink {
    /// PCI address of the device or bridge.
    pub address: String,
    /// Current rate; `None` if the kernel reports no link for the device.
    pub current: Option<LinkRate>,
    /// Maximum rate that the device supports.
    #[serde(rename = "most")]
    pub max: Option<LinkRate>,
    /// Whether the bridge redirects peer-to-peer writes to the host bridge (ACS), which makes them
    /// slow. `None` if the register was not read or requires root.
    pub acs: Option<bool>,
}

/// Speed and width of a PCI link.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct LinkRate {
    /// Speed per lane in tenths of GT/s: 80 is 8.0 GT/s.
    pub speed: u16,
    /// Number of lanes.
    pub width: u8,
}

impl LinkRate {
    /// Parses the kernel's `current_link_speed` (`8.0 GT/s PCIe`) and `current_link_width` (`4`).
    /// Returns `None` if either is not a valid value.
    pub fn parse(speed: &str, width: &str) -> Option<LinkRate> {
        let (whole, tenths) = speed.split_whitespace().next()?.split_once('.')?;
        let speed =
            whole.parse::<u16>().ok()?.checked_mul(10)?.checked_add(tenths.parse().ok()?)?;
        let width = width.trim().parse().ok().filter(|width| (1..=32).contains(width))?;
        (lane(speed) > 0).then_some(LinkRate { speed, width })
    }

    /// Returns the data rate in Mb/s. The arithmetic is that of the kernel (`PCIE_SPEED2MBS_ENC`,
    /// drivers/pci/pci.h), so that the result agrees with `dmesg`.
    pub fn megabits(self) -> u32 {
        lane(self.speed) * u32::from(self.width)
    }
}

/// Returns the data rate of one lane in Mb/s after encoding. `speed` is in tenths of GT/s; the
/// result is 0 if no standard has this speed.
fn lane(speed: u16) -> u32 {
    match speed {
        25 => 2_500 * 8 / 10,
        50 => 5_000 * 8 / 10,
        80 => 8_000 * 128 / 130,
        160 => 16_000 * 128 / 130,
        320 => 32_000 * 128 / 130,
        640 => 64_000,
        _ => 0,
    }
}

/// Formats a rate as `8.0 GT/s PCIe x4`.
impl fmt::Display for LinkRate {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}.{} GT/s PCIe x{}", self.speed / 10, self.speed % 10, self.width)
    }
}

/// Formats Mb/s as Gb/s with three decimals, like the kernel: `31.504`.
pub fn gigabits(megabits: u32) -> String {
    format!("{}.{:03}", megabits / 1000, megabits % 1000)
}

/// Slowest link between a device and its host bridge.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Bottleneck<'a> {
    /// PCI address of the device or bridge at the lower end of the link.
    pub address: &'a str,
    /// Current rate of the link.
    pub rate: LinkRate,
}

impl PciDevice {
    /// Returns the address without the number of the function: all functions of a card share it.
    pub fn slot(&self) -> Option<&str> {
        Some(self.address.rsplit_once('.')?.0)
    }

    /// Returns the slowest link between the device and its host bridge, or `None` if no rate is
    /// known. Among equally slow links, returns the one nearest to the host bridge, as the kernel's
    /// `pcie_bandwidth_available` does.
    pub fn bottleneck(&self) -> Option<Bottleneck<'_>> {
        let links = self.links.iter().filter_map(|link| Some((link, link.current?)));
        let slowest =
            links.reduce(
                |slowest, next| {
                    if next.1.megabits() <= slowest.1.megabits() { next } else { slowest }
                },
            );
        slowest.map(|(link, rate)| Bottleneck { address: &link.address, rate })
    }

    /// Returns the links that exist in hardware. A link has two ends that agree on its rate; where
    /// they do not, a hypervisor made up the bridge and everything above it.
    pub fn real_links(&self) -> &[PciLink] {
        for pair in 0..self.links.len() / 2 {
            let (lower, upper) = (&self.links[2 * pair], &self.links[2 * pair + 1]);
            if let (Some(one), Some(other)) = (lower.current, upper.current)
                && one != other
            {
                return &self.links[..=2 * pair];
            }
        }
        &self.links
    }

    /// Returns the maximum rate that the device's own link supports.
    pub fn max_rate(&self) -> Option<LinkRate> {
        self.links.first()?.max
    }

    /// Returns the distance to `other`: the kind of bridges that data between the two devices must
    /// pass.
    pub fn distance(&self, other: &PciDevice) -> Distance {
        if self.address == other.address {
            return Distance::Same;
        }
        let below = |device: &PciDevice| -> Vec<String> {
            let bridges = device.links.iter().skip(1).rev();
            bridges.map(|link| link.address.clone()).collect()
        };
        let (own, others) = (below(self), below(other));
        let same_bridge = self.host_bridge.is_some() && self.host_bridge == other.host_bridge;
        let shared = own.iter().zip(&others).take_while(|(a, b)| a == b).count();
        let same_node = self.numa_node.is_some() && self.numa_node == other.numa_node;
        if !same_bridge {
            return if same_node { Distance::HostBridge } else { Distance::System };
        }
        if shared == 0 {
            return Distance::HostBridge;
        }
        // Whether both devices are directly below the last switch that they share.
        let below_one = own.len() - shared <= 1 && others.len() - shared <= 1;
        if below_one { Distance::Switch } else { Distance::Switches }
    }
}

/// Kinds of distance between two PCI devices, shortest first. The names in parentheses are those of
/// `nvidia-smi topo -m`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Distance {
    /// Both are the same device.
    Same,
    /// One switch is between the devices (PIX).
    Switch,
    /// Several switches are between the devices, but no host bridge (PXB).
    Switches,
    /// One host bridge is between the devices, or two host bridges of one NUMA node (PHB, NODE).
    HostBridge,
    /// The devices belong to different NUMA nodes (SYS).
    System,
}

impl fmt::Display for Distance {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Distance::Same => "SELF",
            Distance::Switch => "PIX",
            Distance::Switches => "PXB",
            Distance::HostBridge => "PHB",
            Distance::System => "SYS",
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn rate(speed: u16, width: u8) -> LinkRate {
        LinkRate { speed, width }
    }

    /// Makes a device below the bridges `way`, whose last element is the device itself.
    fn device(host_bridge: &str, numa_node: u32, way: &[&str]) -> PciDevice {
        let link = |address: &&str| PciLink { address: (*address).into(), ..PciLink::default() };
        PciDevice {
            address: (*way.last().unwrap()).into(),
            numa_node: Some(numa_node),
            host_bridge: Some(host_bridge.into()),
            links: way.iter().rev().map(link).collect(),
            ..PciDevice::default()
        }
    }

    #[test]
    fn rates_are_the_kernels() {
        let of = |speed, width| gigabits(LinkRate::parse(speed, width).unwrap().megabits());
        assert_eq!(of("8.0 GT/s PCIe", "4"), "31.504");
        assert_eq!(of("8.0 GT/s PCIe", "8"), "63.008");
        assert_eq!(of("2.5 GT/s PCIe", "1"), "2.000");
        assert_eq!(of("5.0 GT/s", "8"), "32.000");
        assert_eq!(of("16.0 GT/s PCIe", "16"), "252.048");
        assert_eq!(of("32.0 GT/s PCIe", "16"), "504.112");
        for (speed, width) in [("Unknown", "4"), ("8.0 GT/s PCIe", "0"), ("8.0 GT/s PCIe", "255")] {
            assert_eq!(LinkRate::parse(speed, width), None);
        }
        assert_eq!(rate(80, 4).to_string(), "8.0 GT/s PCIe x4");
    }

    #[test]
    fn of_equal_links_the_highest_is_the_limit() {
        let mut card = device("pci0000:00", 0, &["0000:00:02.5", "0000:c3:00.0"]);
        card.links[0] =
            PciLink { current: Some(rate(80, 4)), max: Some(rate(80, 8)), ..card.links[0].clone() };
        card.links[1].current = Some(rate(80, 4));
        let limit = card.bottleneck().unwrap();
        assert_eq!(
            (limit.address, gigabits(limit.rate.megabits())),
            ("0000:00:02.5", "31.504".into())
        );
        assert_eq!(gigabits(card.max_rate().unwrap().megabits()), "63.008");
        card.links[1].current = Some(rate(160, 4));
        assert_eq!(card.bottleneck().unwrap().address, "0000:c3:00.0");
    }

    #[test]
    fn distances_are_those_of_nvidia_smi() {
        let gpu = device(
            "pci0000:00",
            0,
            &["0000:00:01.0", "0000:01:00.0", "0000:02:08.0", "0000:03:00.0"],
        );
        let near = device(
            "pci0000:00",
            0,
            &["0000:00:01.0", "0000:01:00.0", "0000:02:10.0", "0000:04:00.0"],
        );
        let behind = device(
            "pci0000:00",
            0,
            &[
                "0000:00:01.0", "0000:01:00.0", "0000:02:14.0", "0000:05:00.0", "0000:06:00.0",
                "0000:07:00.0",
            ],
        );
        let other_port = device("pci0000:00", 0, &["0000:00:03.0", "0000:09:00.0"]);
        let other_bridge = device("pci0000:40", 0, &["0000:40:01.0", "0000:41:00.0"]);
        let far = device("pci0000:80", 1, &["0000:80:01.0", "0000:81:00.0"]);
        let distances = [&gpu, &near, &behind, &other_port, &other_bridge, &far]
            .map(|other| gpu.distance(other));
        use Distance::{HostBridge, Same, Switch, Switches, System};
        assert_eq!(distances, [Same, Switch, Switches, HostBridge, HostBridge, System]);
        for other in [&near, &behind, &other_port, &other_bridge, &far] {
            assert_eq!(other.distance(&gpu), gpu.distance(other));
        }
    }
}
