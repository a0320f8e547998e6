//! Network interfaces.

use serde::{Deserialize, Serialize};
use std::fmt;
use std::net::IpAddr;
use std::str::FromStr;

/// A network interface.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Netdev {
    /// `eth0`.
    pub name: String,
    /// The kernel's number for it.
    pub index: u32,
    /// What is behind it.
    pub kind: NetdevKind,
    /// The largest packet, in bytes.
    pub mtu: u32,
    /// In Mb/s; `None` where the driver does not know, or there is no carrier.
    pub speed: Option<u32>,
    /// Whether it can carry data now: up and with a carrier.
    pub running: bool,
    /// The hardware address as the kernel writes it, 6 bytes or 20 for IPoIB.
    pub hardware_address: Option<String>,
    /// The PCI address of its device.
    pub pci: Option<String>,
    /// Which port of that device it is, from 0.
    pub device_port: Option<u16>,
    /// What its driver calls the port, `p0`; interfaces of one port have one name.
    pub port_name: Option<String>,
    /// Its addresses and the leading bits that name their networks.
    pub addresses: Vec<(IpAddr, u8)>,
}

/// What is behind a network interface.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum NetdevKind {
    /// A device of its own.
    Physical,
    /// A cable between two computers: Thunderbolt, USB4.
    Thunderbolt,
    /// IP over InfiniBand.
    Ipoib,
    /// Several interfaces as one.
    Bond,
    /// A bridge, as container engines and hypervisors make them.
    Bridge,
    /// The machine itself.
    Loopback,
    /// A VLAN or another interface upon one.
    Upper,
    /// Made of software alone: veth, tun, dummy.
    #[default]
    Virtual,
}

/// Addresses that an interface leads to.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Route {
    /// The interface.
    pub netdev: String,
    /// The network's address; that of everything is all zeros.
    pub destination: IpAddr,
    /// Its leading bits.
    pub prefix: u8,
    /// Whom packets are handed to; without one, all of the network is on the wire.
    pub gateway: Option<IpAddr>,
}

/// As `ip route` has it: `eth3 10.3.0.0/16 via 10.3.7.0`.
impl fmt::Display for Route {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} {}/{}", self.netdev, self.destination, self.prefix)?;
        self.gateway.map_or(Ok(()), |gateway| write!(f, " via {gateway}"))
    }
}

/// A text that is no route.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("not a route like `eth3 10.3.0.0/16 via 10.3.7.0`")]
pub struct RouteParseError;

impl FromStr for Route {
    type Err = RouteParseError;

    fn from_str(text: &str) -> Result<Route, RouteParseError> {
        let words: Vec<&str> = text.split_whitespace().collect();
        let (netdev, network, gateway) = match words[..] {
            [netdev, network] => (netdev, network, None),
            [netdev, network, "via", gateway] => (netdev, network, Some(gateway)),
            _ => return Err(RouteParseError),
        };
        let (destination, prefix) = network.split_once('/').ok_or(RouteParseError)?;
        let gateway = gateway.map(|text| text.parse().map_err(|_| RouteParseError)).transpose()?;
        let destination = destination.parse().map_err(|_| RouteParseError)?;
        let prefix = prefix.parse().map_err(|_| RouteParseError)?;
        Ok(Route { netdev: netdev.to_owned(), destination, prefix, gateway })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn routes_are_written_as_they_are_read() {
        for text in ["eth3 10.3.0.0/16 via 10.3.7.0", "eth0 ::/0 via fe80::1", "eth0 10.0.0.0/8"] {
            assert_eq!(text.parse::<Route>().unwrap().to_string(), text);
        }
        for text in ["", "eth0", "eth0 10.0.0.0", "eth0 10.0.0.0/8 via", "eth0 x/8 via y"] {
            assert_eq!(text.parse::<Route>(), Err(RouteParseError), "{text}");
        }
    }
}
