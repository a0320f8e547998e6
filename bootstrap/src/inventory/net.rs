//! Network interfaces and routes.

use serde::{Deserialize, Serialize};
use std::fmt;
use std::net::IpAddr;
use std::str::FromStr;

/// Network interface.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Netdev {
    /// Name, such as `eth0`.
    pub name: String,
    /// Index that the kernel has given to the interface.
    pub index: u32,
    /// Kind of device behind the interface.
    pub kind: NetdevKind,
    /// Maximum size of a packet, in bytes.
    pub mtu: u32,
    /// Speed in Mb/s; `None` if the driver does not report it or the link is down.
    pub speed: Option<u32>,
    /// Whether the interface is up and has a carrier, so that it can send.
    pub running: bool,
    /// Hardware address as the kernel prints it: 6 bytes, or 20 for IPoIB.
    pub hardware_address: Option<String>,
    /// PCI address of the device behind the interface; `None` for a software device.
    pub pci: Option<String>,
    /// Index of the device's port that the interface belongs to, from 0.
    pub device_port: Option<u16>,
    /// Driver's name for the port, such as `p0`. All interfaces of one port have the same name.
    pub port_name: Option<String>,
    /// IP addresses, each with the length of its network prefix in bits.
    pub addresses: Vec<(IpAddr, u8)>,
}

/// Kind of device behind a network interface.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum NetdevKind {
    /// Network card or another hardware device.
    Physical,
    /// Direct cable between two computers: Thunderbolt or USB4.
    Thunderbolt,
    /// IP over InfiniBand.
    Ipoib,
    /// Several interfaces bonded into one.
    Bond,
    /// Software bridge, such as those of container engines and hypervisors.
    Bridge,
    Loopback,
    /// VLAN, or another interface on top of an existing one.
    Upper,
    /// Software device, such as veth, tun or dummy.
    #[default]
    Virtual,
}

/// Route to a network through an interface.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Route {
    pub netdev: String,
    /// Address of the destination network; all zeros for the default route.
    pub destination: IpAddr,
    /// Length of the network prefix, in bits.
    pub prefix: u8,
    /// Router that receives the packets; `None` if the network is directly connected.
    pub gateway: Option<IpAddr>,
}

/// Formats a route like `ip route`: `eth3 10.3.0.0/16 via 10.3.7.0`.
impl fmt::Display for Route {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} {}/{}", self.netdev, self.destination, self.prefix)?;
        self.gateway.map_or(Ok(()), |gateway| write!(f, " via {gateway}"))
    }
}

/// Error of parsing a text that is not a route.
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
