//! PCI devices, the bridges above them, and what their links can carry.

use serde::{Deserialize, Serialize};
use std::fmt;

/// A device and the way up to its host bridge.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct PciDevice {
    /// `0000:c3:00.0`.
    pub address: String,
    /// As hexadecimal digits.
    pub vendor: Option<u16>,
    /// As hexadecimal digits.
    pub device: Option<u16>,
    /// The driver that is bound to it.
    pub driver: Option<String>,
    /// `None` where there is but one node, or the firmware does not say.
    pub numa_node: Option<u32>,
    /// Whether it asks the IOMMU for translations itself and keeps them (ATS); `None` where that
    /// cannot be read, which takes root, or was not asked.
    pub ats: Option<bool>,
    /// The function that a virtual one (SR-IOV) is a part of.
    pub physical_function: Option<String>,
    /// `pci0000:00`.
    pub host_bridge: Option<String>,
    /// The device and every bridge above it, the device first.
    pub links: Vec<PciLink>,
}

/// The upper side of a device or a bridge.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct PciLink {
    /// Whose it is.
    pub address: String,
    /// What it runs at; `None` where it has no link of its own.
    pub current: Option<LinkRate>,
    /// What it could run at.
    pub most: Option<LinkRate>,
    /// Of a bridge: whether it sends what one device writes to another up to the host bridge first
    /// (ACS), which is slow; `None` as with [`PciDevice::ats`].
    pub acs: Option<bool>,
}

/// Speed and width of a link.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct LinkRate {
    /// Tenths of a gigatransfer per second and lane: 80 is 8.0 GT/s.
    pub speed: u16,
    /// Lanes.
    pub width: u8,
}

impl LinkRate {
    /// From `current_link_speed` (`8.0 GT/s PCIe`) and `current_link_width` (`4`); `None` when the
    /// kernel does not know either.
    pub fn parse(speed: &str, width: &str) -> Option<LinkRate> {
        let (whole, tenths) = speed.split_whitespace().next()?.split_once('.')?;
        let speed =
            whole.parse::<u16>().ok()?.checked_mul(10)?.checked_add(tenths.parse().ok()?)?;
        let width = width.trim().parse().ok().filter(|width| (1..=32).contains(width))?;
        (lane(speed) > 0).then_some(LinkRate { speed, width })
    }

    /// What it carries in Mb/s, computed from the kernel's own integers
    /// (`PCIE_SPEED2MBS_ENC`, drivers/pci/pci.h), so that figures agree with `dmesg`.
    pub fn megabits(self) -> u32 {
        lane(self.speed) * u32::from(self.width)
    }
}

/// Mb/s of a lane after its encoding; 0 for a speed that no standard has.
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

/// `8.0 GT/s PCIe x4`.
impl fmt::Display for LinkRate {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}.{} GT/s PCIe x{}", self.speed / 10, self.speed % 10, self.width)
    }
}

/// Mb/s as the kernel prints them: `31.504`.
pub fn gigabits(megabits: u32) -> String {
    format!("{}.{:03}", megabits / 1000, megabits % 1000)
}

/// The link that a device's traffic is limited by.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Bottleneck<'a> {
    /// Whose link it is.
    pub address: &'a str,
    /// What it runs at.
    pub rate: LinkRate,
}

impl PciDevice {
    /// The slowest link on the way up; of equals the highest, as `pcie_bandwidth_available` has it.
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

    /// What the device itself could do.
    pub fn max_rate(&self) -> Option<LinkRate> {
        self.links.first()?.most
    }

    /// How far `other` is, by what data would have to pass.
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
        match (same_bridge, shared) {
            (true, 0) | (false, _) if same_bridge || same_node => Distance::HostBridge,
            (false, _) => Distance::System,
            // Both hang at the switch that they share last.
            (true, _) if own.len() - shared <= 1 && others.len() - shared <= 1 => Distance::Switch,
            (true, _) => Distance::Switches,
        }
    }
}

/// How far two devices are, nearest first; in brackets what `nvidia-smi topo -m` calls it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Distance {
    /// It is the same device.
    Same,
    /// One switch lies between (PIX).
    Switch,
    /// Several switches, and no host bridge (PXB).
    Switches,
    /// A host bridge, or two of one NUMA node (PHB, NODE).
    HostBridge,
    /// Another NUMA node (SYS).
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

    /// A device below these bridges, the highest first.
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
        card.links[0] = PciLink {
            current: Some(rate(80, 4)),
            most: Some(rate(80, 8)),
            ..card.links[0].clone()
        };
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
                "0000:00:01.0",
                "0000:01:00.0",
                "0000:02:14.0",
                "0000:05:00.0",
                "0000:06:00.0",
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
