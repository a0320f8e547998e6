//! Cables, interfaces and addresses of guests, computed from their numbers, which start at 1.

use std::net::Ipv4Addr;

use clap::ValueEnum;
use serde::{Deserialize, Serialize};

/// Maximum number of guests of a lab; each is an emulated computer.
pub const MAX_GUESTS: usize = 16;

/// MTU of fabric links: room for an RDMA packet with 4096 bytes of data.
pub(super) const FABRIC_MTU: u32 = 4200;

/// Bridge that connects every `eth0` and the head.
pub(super) const MANAGEMENT: &str = "mgmt";

/// Topology of the fabric, beside the management network.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, ValueEnum)]
#[serde(rename_all = "snake_case")]
pub enum Topology {
    /// One switch for all: `eth1` of guest K is 10.88.0.K.
    Star,
    /// Three guests without a switch: a cable and a /24 network for each pair.
    Triangle,
}

/// Interface of a guest, and the other end of its cable.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Cable {
    /// Bridge at the other end; a cable between two guests is a bridge with two ports.
    pub(super) bridge: &'static str,
    pub(super) address: Ipv4Addr,
}

/// Cables of the triangle: both guests, the bridge, and the third octet of the network.
const TRIANGLE: [([usize; 2], &str, u8); 3] =
    [([1, 2], "l12", 101), ([1, 3], "l13", 100), ([2, 3], "l23", 102)];

impl Topology {
    /// Checks that a lab of this topology can have this number of guests.
    pub(super) fn check(self, guests: usize) -> Result<(), String> {
        match self {
            Topology::Triangle if guests != 3 => Err("a triangle has 3 guests".into()),
            Topology::Star if !(1..=MAX_GUESTS).contains(&guests) => {
                Err(format!("a star has 1 to {MAX_GUESTS} guests"))
            }
            _ => Ok(()),
        }
    }

    /// Lists the fabric's bridges.
    pub(super) fn fabric(self) -> Vec<&'static str> {
        match self {
            Topology::Star => vec!["fabric"],
            Topology::Triangle => TRIANGLE.iter().map(|(_, bridge, _)| *bridge).collect(),
        }
    }

    /// Lists the interfaces of a guest: `eth0` for management, then those of the fabric.
    pub(super) fn cables(self, guest: usize) -> Vec<Cable> {
        let mut cables = vec![Cable { bridge: MANAGEMENT, address: management_address(guest) }];
        match self {
            Topology::Star => {
                let address = Ipv4Addr::new(10, 88, 0, octet(guest));
                cables.push(Cable { bridge: "fabric", address });
            }
            Topology::Triangle => {
                for (ends, bridge, network) in TRIANGLE {
                    let Some(end) = ends.iter().position(|end| *end == guest) else { continue };
                    let address = Ipv4Addr::new(192, 168, network, 2 + octet(end));
                    cables.push(Cable { bridge, address });
                }
            }
        }
        cables
    }

    /// Returns guest and interface at both ends of a cable, or at one end if the other is a switch.
    pub(super) fn ends(self, guest: usize, interface: usize) -> Vec<(usize, usize)> {
        let cables = self.cables(guest);
        let shared = self == Topology::Triangle && interface > 0;
        let Some(cable) = cables.get(interface).filter(|_| shared) else {
            return vec![(guest, interface)];
        };
        let of = |guest: usize| {
            let cables = self.cables(guest).into_iter();
            cables.enumerate().map(move |(interface, cable)| (guest, interface, cable.bridge))
        };
        let ends = (1..=3).flat_map(of).filter(|(_, _, bridge)| *bridge == cable.bridge);
        ends.map(|(guest, interface, _)| (guest, interface)).collect()
    }
}

/// Returns the name of guest `number`.
pub(super) fn guest_name(number: usize) -> String {
    format!("n{number}")
}

/// Returns the number of the guest called `name`, or nothing if no guest has that name.
pub(super) fn guest_number(name: &str) -> Option<usize> {
    let number = name.strip_prefix('n')?.parse().ok()?;
    ((1..=MAX_GUESTS).contains(&number) && guest_name(number) == name).then_some(number)
}

/// Returns the number of the interface called `name`, or nothing if no interface has that name.
pub(super) fn interface_number(name: &str) -> Option<usize> {
    let number: usize = name.strip_prefix("eth")?.parse().ok()?;
    (format!("eth{number}") == name).then_some(number)
}

/// Returns the address of a guest on the management network.
pub(super) fn management_address(guest: usize) -> Ipv4Addr {
    Ipv4Addr::new(10, 77, 0, octet(guest))
}

/// Returns the head's address on the management network.
pub(super) fn head_address() -> Ipv4Addr {
    Ipv4Addr::new(10, 77, 0, 254)
}

/// Returns the MAC address of an interface, which identifies it from outside.
pub(super) fn hardware_address(guest: usize, interface: usize) -> String {
    format!("52:54:00:{:02x}:{:02x}:01", octet(guest), octet(interface))
}

/// Returns the name of the head's end of a cable.
pub(super) fn tap(guest: usize, interface: usize) -> String {
    format!("tap{guest}-{interface}")
}

fn octet(number: usize) -> u8 {
    u8::try_from(number).unwrap_or(u8::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn guests_have_the_addresses_of_their_cables() {
        let addresses = |topology: Topology, guest| {
            let cables = topology.cables(guest).into_iter();
            cables.map(|cable| format!("{} {}", cable.bridge, cable.address)).collect::<Vec<_>>()
        };
        let of = |guest| addresses(Topology::Triangle, guest);
        assert_eq!(of(1), ["mgmt 10.77.0.1", "l12 192.168.101.2", "l13 192.168.100.2"]);
        assert_eq!(of(2), ["mgmt 10.77.0.2", "l12 192.168.101.3", "l23 192.168.102.2"]);
        assert_eq!(of(3), ["mgmt 10.77.0.3", "l13 192.168.100.3", "l23 192.168.102.3"]);
        assert_eq!(addresses(Topology::Star, 7), ["mgmt 10.77.0.7", "fabric 10.88.0.7"]);
    }

    #[test]
    fn a_cable_has_two_ends_unless_one_is_a_switch() {
        assert_eq!(Topology::Triangle.ends(1, 1), [(1, 1), (2, 1)]);
        assert_eq!(Topology::Triangle.ends(3, 1), [(1, 2), (3, 1)]);
        assert_eq!(Topology::Triangle.ends(3, 2), [(2, 2), (3, 2)]);
        assert_eq!(Topology::Triangle.ends(3, 0), [(3, 0)]);
        assert_eq!(Topology::Star.ends(3, 1), [(3, 1)]);
    }
}
