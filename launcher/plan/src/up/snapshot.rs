//! What a host was like when `rlaunch up` had set it up, and what has changed since.

use rlaunch_bootstrap::inventory::Inventory;
use rlaunch_bootstrap::inventory::net::{Netdev, NetdevKind};
use serde::{Deserialize, Serialize};
use std::collections::{BTreeMap, BTreeSet};

/// State of a host, as far as it stays the same between boots.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Snapshot {
    /// What each thing is, as `kernel` and `6.1.0-25-amd64`.
    pub state: BTreeMap<String, String>,
    /// Other ends of cables, by interface.
    pub cables: Cables,
}

/// Host and interface at the other ends of cables, by interface.
pub type Cables = BTreeMap<String, Vec<(String, String)>>;

impl Snapshot {
    /// Takes from an inventory what jobs depend on. Interfaces of software come and go with containers; only those with a
    /// cable count.
    pub fn new(inventory: &Inventory, cables: Cables) -> Snapshot {
        let mut state = BTreeMap::new();
        let mut add = |label: String, value: Option<String>| {
            state.extend(value.map(|value| (label, value)));
        };
        let system = &inventory.system;
        add("kernel".to_owned(), system.kernel.clone());
        for (name, version) in &system.drivers {
            add(format!("driver {name}"), Some(version.clone()));
        }
        for device in &inventory.rdma {
            let name = &device.name;
            add(format!("firmware of {name}"), device.firmware.clone());
            for port in &device.ports {
                add(format!("port {name}/{}", port.number), Some(port.state.to_string()));
            }
        }
        let netdevs = inventory.netdevs.iter();
        for netdev in netdevs.filter(|one| is_card(one) || cables.contains_key(&one.name)) {
            let name = &netdev.name;
            add(format!("addresses of {name}"), Some(addresses(netdev)));
            add(format!("MTU of {name}"), Some(netdev.mtu.to_string()));
            add(
                format!("link of {name}"),
                Some(if netdev.running { "up" } else { "down" }.to_owned()),
            );
        }
        Snapshot { state, cables }
    }

    /// Lists what has changed. Cables to hosts outside of `hosts` are not compared, since those were not asked.
    pub fn changes(&self, now: &Snapshot, hosts: &[String]) -> Vec<String> {
        let (was, is) = (self.all(hosts), now.all(hosts));
        let labels: BTreeSet<&String> = was.keys().chain(is.keys()).collect();
        let change = |label: &String| match (was.get(label), is.get(label)) {
            (Some(was), Some(is)) => (was != is).then(|| format!("{label}: {is}, was {was}")),
            (Some(was), None) => Some(format!("{label}: gone, was {was}")),
            (None, Some(is)) => Some(format!("{label}: {is}, new")),
            (None, None) => None,
        };
        labels.into_iter().filter_map(change).collect()
    }

    fn all(&self, hosts: &[String]) -> BTreeMap<String, String> {
        let mut all = self.state.clone();
        for (interface, ends) in &self.cables {
            let known = ends.iter().filter(|(host, _)| hosts.contains(host));
            let known: Vec<String> = known.map(|(host, end)| format!("{host} {end}")).collect();
            if !known.is_empty() {
                all.insert(format!("cable of {interface}"), format!("to {}", known.join(", ")));
            }
        }
        all
    }
}

fn is_card(netdev: &Netdev) -> bool {
    matches!(
        netdev.kind,
        NetdevKind::Physical | NetdevKind::Thunderbolt | NetdevKind::Ipoib | NetdevKind::Bond
    )
}

/// Lists the IPv4 addresses. Those of IPv6 change by themselves.
fn addresses(netdev: &Netdev) -> String {
    let all = netdev.addresses.iter().filter(|(address, _)| address.is_ipv4());
    let mut all: Vec<String> = all.map(|(address, prefix)| format!("{address}/{prefix}")).collect();
    all.sort();
    if all.is_empty() { "none".to_owned() } else { all.join(", ") }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::inventory;

    fn cables(host: &str) -> Cables {
        BTreeMap::from([("enp1s0f0np0".to_owned(), vec![(host.to_owned(), "eth1".to_owned())])])
    }

    #[test]
    fn every_change_is_named_and_nothing_else() {
        let mut before = inventory("spark");
        before.system.kernel = Some("6.1".to_owned());
        let hosts = ["b", "c"].map(str::to_owned);
        let was = Snapshot::new(&before, cables("b"));
        assert!(was.changes(&was, &hosts).is_empty());
        let mut now = before.clone();
        now.system.kernel = Some("7.0".to_owned());
        now.system.drivers.push(("odd".to_owned(), "1".to_owned()));
        now.rdma[0].firmware = Some("99.1".to_owned());
        let card =
            now.netdevs.iter_mut().find(|one| is_card(one) && !one.addresses.is_empty()).unwrap();
        let name = card.name.clone();
        (card.mtu, card.running) = (1280, !card.running);
        card.addresses.clear();
        // A container's interface, and an address that a router has given for a day.
        now.netdevs.push(Netdev { name: "veth7".to_owned(), ..Netdev::default() });
        let other = now.netdevs.iter_mut().find(|one| is_card(one) && one.name != name).unwrap();
        other.addresses.push(("2001:db8::5".parse().unwrap(), 64));
        let changes = was.changes(&Snapshot::new(&now, cables("c")), &hosts);
        let labels: Vec<&str> =
            changes.iter().map(|line| line.split(':').next().unwrap()).collect();
        let device = format!("firmware of {}", before.rdma[0].name);
        let of_card = ["addresses of", "MTU of", "link of"].map(|what| format!("{what} {name}"));
        let mut expected = vec!["kernel", "driver odd", "cable of enp1s0f0np0", &device];
        expected.extend(of_card.iter().map(String::as_str));
        expected.sort_unstable();
        assert_eq!(labels, expected, "{changes:?}");
        assert!(changes.contains(&"driver odd: 1, new".to_owned()), "{changes:?}");
        assert!(changes.contains(&"cable of enp1s0f0np0: to c eth1, was to b eth1".to_owned()));
        assert!(changes.iter().any(|line| line.starts_with("kernel: 7.0, was 6.1")), "{changes:?}");
    }

    #[test]
    fn a_card_that_is_gone_is_named_and_cables_to_others_are_not() {
        let before = inventory("spark");
        let was = Snapshot::new(&before, cables("b"));
        let mut now = before.clone();
        now.rdma.clear();
        let changes = was.changes(&Snapshot::new(&now, Cables::new()), &[]);
        let gone = format!("firmware of {}: gone, was ", before.rdma[0].name);
        assert!(changes.iter().any(|line| line.starts_with(&gone)), "{changes:?}");
        assert!(!changes.iter().any(|line| line.starts_with("cable")), "{changes:?}");
        let text = serde_json::to_string(&was).unwrap();
        assert_eq!(serde_json::from_str::<Snapshot>(&text).unwrap(), was);
    }
}
