//! Choice of the entry in a RoCE port's GID table. No fixed index works: it is 1, 3 or 5 on one machine and
//! different on the next.
//!
//! The order of preference is that of UCX (`uct_ib_device_select_gid`): RoCE v2 before v1, IPv4 before IPv6,
//! global before link-local; addresses of a container engine's or a hypervisor's bridge come last.

use super::Rejection;
use rlaunch_bootstrap::inventory::net::{Netdev, NetdevKind};
use rlaunch_bootstrap::inventory::rdma::{Gid, GidKind, Port};
use std::cmp::Reverse;
use std::net::IpAddr;

/// Prefixes of names of interfaces that container engines and hypervisors create.
const OVERLAYS: &[&str] = &["docker", "cni", "br-", "veth", "virbr", "tun", "flannel", "cali"];

/// Preference of a GID entry; later variants are better.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Class {
    Overlay,
    LinkLocal,
    Ipv6,
    Ipv4,
}

impl Class {
    fn classify(gid: &Gid, netdev: &Netdev) -> Class {
        let made = OVERLAYS.iter().any(|prefix| netdev.name.starts_with(prefix));
        match gid.ip() {
            _ if made || netdev.kind == NetdevKind::Bridge => Class::Overlay,
            IpAddr::V4(v4) if v4.is_link_local() => Class::LinkLocal,
            IpAddr::V4(_) => Class::Ipv4,
            IpAddr::V6(v6) if v6.is_unicast_link_local() => Class::LinkLocal,
            IpAddr::V6(_) => Class::Ipv6,
        }
    }

    fn reason(self, gid: &Gid, netdev: &Netdev) -> String {
        let (ip, name) = (gid.ip(), &netdev.name);
        match self {
            Class::Ipv4 | Class::Ipv6 => format!("RoCE v2, {ip} of {name}"),
            Class::LinkLocal => format!("RoCE v2, link-local of {name}: no address is better"),
            Class::Overlay => format!("RoCE v2, {ip} of {name}: nothing but a bridge has one"),
        }
    }
}

/// Chooses the GID entry of a RoCE port. Returns it with the reason for the choice, and the port's other
/// entries with global addresses, which are used in other networks.
pub(super) fn choose(
    port: &Port,
    netdevs: &[Netdev],
) -> Result<(Gid, String, Vec<Gid>), Rejection> {
    let with_netdev = |gid| Some((gid, netdev_of(gid, port, netdevs)?));
    let here: Vec<(&Gid, &Netdev)> = port.gids.iter().filter_map(with_netdev).collect();
    let v2 = here.iter().filter(|(gid, _)| gid.kind == GidKind::RoceV2);
    let mut classed: Vec<(Class, &Gid, &Netdev)> =
        v2.map(|(gid, netdev)| (Class::classify(gid, netdev), *gid, *netdev)).collect();
    // Among equal entries, the lowest index is first.
    classed.sort_by_key(|(class, gid, _)| (Reverse(*class), gid.index));
    match classed[..] {
        [(class, best, netdev), ref rest @ ..] => {
            let global = rest.iter().filter(|(class, ..)| *class >= Class::Ipv6);
            let others = global.map(|(_, gid, _)| (*gid).clone()).collect();
            Ok((best.clone(), class.reason(best, netdev), others))
        }
        // An interface that is up has at least link-local entries in its own network namespace.
        [] if port.gids.is_empty() && port.netdev.is_none() => Err(Rejection::InterfaceElsewhere),
        [] if port.gids.is_empty() => Err(Rejection::NoGid),
        [] if here.is_empty() => Err(Rejection::InterfaceElsewhere),
        [] => Err(Rejection::OnlyRoceV1),
    }
}

/// Returns the interface of a GID entry; `None` if the interface is in another network namespace. If the
/// kernel does not name an interface, the result is the port's interface, provided that it has the entry's
/// address.
fn netdev_of<'a>(gid: &Gid, port: &Port, netdevs: &'a [Netdev]) -> Option<&'a Netdev> {
    let named = |name: &String| netdevs.iter().find(|netdev| netdev.name == *name);
    match &gid.netdev {
        Some(name) => named(name),
        None => {
            let netdev = named(port.netdev.as_ref()?)?;
            let has_it = netdev.addresses.iter().any(|(address, _)| *address == gid.ip());
            has_it.then_some(netdev)
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use rlaunch_bootstrap::inventory::rdma::{LinkLayer, PortState};

    fn netdev(name: &str, addresses: &[&str]) -> Netdev {
        let address = |text: &&str| (text.parse().unwrap(), 24);
        Netdev {
            name: name.into(),
            index: 2,
            kind: NetdevKind::Physical,
            mtu: 1500,
            speed: None,
            running: true,
            hardware_address: None,
            pci: None,
            device_port: None,
            port_name: None,
            addresses: addresses.iter().map(address).collect(),
        }
    }

    /// Makes a port from GID entries `index kind address interface`; the interface is optional.
    fn port(entries: &[&str]) -> Port {
        let gid = |entry: &&str| {
            let words: Vec<&str> = entry.split(' ').collect();
            let kind = if words[1] == "v2" { GidKind::RoceV2 } else { GidKind::IbOrRoceV1 };
            let value = words[2].parse().unwrap();
            let netdev = words.get(3).map(|name| (*name).to_owned());
            Gid { index: words[0].parse().unwrap(), value, kind, netdev }
        };
        Port {
            number: 1,
            state: PortState::Active,
            physical_state: None,
            link_layer: LinkLayer::Ethernet,
            lid: None,
            sm_lid: None,
            rate: None,
            mtu: Some(1024),
            netdev: Some("eth0".into()),
            gid_table_length: 16,
            gids: entries.iter().map(gid).collect(),
        }
    }

    fn chosen(entries: &[&str]) -> Result<(u16, String), Rejection> {
        let netdevs = [netdev("eth0", &["10.0.0.2"]), netdev("docker0", &["172.17.0.1"])];
        choose(&port(entries), &netdevs).map(|(gid, reason, _)| (gid.index, reason))
    }

    #[test]
    fn version_2_of_an_ipv4_address_is_best_wherever_it_is() {
        for index in [1, 3, 5] {
            let best = format!("{index} v2 ::ffff:10.0.0.2 eth0");
            let entries = [
                "0 v1 fe80::1 eth0", "2 v1 ::ffff:10.0.0.2 eth0", "4 v2 fe80::1 eth0",
                "6 v2 fd00::2 eth0", &best, "9 v2 ::ffff:172.17.0.1 docker0",
            ];
            let (found, reason) = chosen(&entries).unwrap();
            assert_eq!((found, reason.as_str()), (index, "RoCE v2, 10.0.0.2 of eth0"));
        }
    }

    #[test]
    fn what_is_left_is_taken_in_order() {
        let index = |entries: &[&str]| chosen(entries).unwrap().0;
        assert_eq!(index(&["1 v2 fe80::1 eth0", "4 v2 fd00::2 eth0"]), 4);
        assert_eq!(index(&["1 v2 ::ffff:172.17.0.1 docker0", "4 v2 fe80::1 eth0"]), 4);
        assert_eq!(index(&["1 v2 ::ffff:172.17.0.1 docker0"]), 1);
        assert_eq!(index(&["3 v2 fd00::2 eth0", "7 v2 fd00::3 eth0"]), 3);
    }

    #[test]
    fn addresses_of_other_networks_are_kept() {
        let entries = [
            "0 v2 fe80::1 eth0", "2 v2 fd00::2 eth0", "3 v2 ::ffff:10.0.0.2 eth0",
            "4 v1 fd00::2 eth0",
        ];
        let netdevs = [netdev("eth0", &["10.0.0.2", "fd00::2"])];
        let (best, _, others) = choose(&port(&entries), &netdevs).unwrap();
        let others: Vec<u16> = others.iter().map(|gid| gid.index).collect();
        assert_eq!((best.index, others), (3, vec![2]));
    }

    #[test]
    fn an_entry_of_another_namespace_is_none() {
        assert_eq!(chosen(&["1 v2 ::ffff:10.0.0.9 net1"]), Err(Rejection::InterfaceElsewhere));
        assert_eq!(chosen(&["1 v2 ::ffff:10.0.0.2"]).unwrap().0, 1);
        assert_eq!(chosen(&["1 v2 ::ffff:10.0.0.9"]), Err(Rejection::InterfaceElsewhere));
    }

    #[test]
    fn what_is_missing_is_said() {
        assert_eq!(chosen(&[]), Err(Rejection::NoGid));
        assert_eq!(chosen(&["0 v1 fe80::1 eth0"]), Err(Rejection::OnlyRoceV1));
    }
}
