//! State of network interfaces.

use super::counters;
use crate::node::inventory::{Root, flow_control};
use rlaunch_bootstrap::inventory::Inventory;
use rlaunch_bootstrap::inventory::diagnostics::InterfaceState;
use rlaunch_bootstrap::inventory::net::{Netdev, NetdevKind};

const DIRECTORY: &str = "/sys/class/net";
/// File of a recording with the priorities that have flow control; each line is `NAME BITS`.
const FLOW_CONTROL: &str = "/flow-control";
/// Flag of an interface that is administratively up (IFF_UP).
const UP: u64 = 1;

pub(super) fn read(root: &Root, inventory: &Inventory) -> Vec<InterfaceState> {
    let netdevs = &inventory.netdevs;
    let lines = root.socket_lines(FLOW_CONTROL, || {
        let physical = netdevs.iter().filter(|netdev| netdev.kind == NetdevKind::Physical);
        let bits = |netdev: &Netdev| Some((netdev.name.clone(), flow_control(&netdev.name)?));
        physical.filter_map(bits).map(|(name, bits)| format!("{name} {bits}")).collect()
    });
    let pfc_of = |name: &str| {
        let bits = lines.iter().find_map(|line| line.strip_prefix(name)?.strip_prefix(' '))?;
        let bits: u8 = bits.parse().ok()?;
        Some((0..8).filter(|priority| bits & 1 << priority != 0).collect())
    };
    netdevs.iter().map(|netdev| state(root, netdev, pfc_of(&netdev.name))).collect()
}

fn state(root: &Root, netdev: &Netdev, pfc: Option<Vec<u8>>) -> InterfaceState {
    let file = |file: &str| format!("{DIRECTORY}/{}/{file}", netdev.name);
    let setting = |name: &str| {
        let of = |place: &str| root.value::<u8>(&format!("/proc/sys/net/ipv4/conf/{place}/{name}"));
        of(&netdev.name).max(of("all"))
    };
    let disable_ipv6 = format!("/proc/sys/net/ipv6/conf/{}/disable_ipv6", netdev.name);
    InterfaceState {
        name: netdev.name.clone(),
        is_up: root.hex(&file("flags")).map_or(netdev.running, |flags| flags & UP != 0),
        // The kernel refuses to tell while the interface is down.
        has_carrier: root.value::<u8>(&file("carrier")).map(|carrier| carrier == 1),
        carrier_losses: root.value(&file("carrier_down_count")),
        counters: counters::of_interface(root, netdev),
        arp_ignore: setting("arp_ignore"),
        arp_announce: setting("arp_announce"),
        rp_filter: setting("rp_filter"),
        ipv6_disabled: root.value::<u8>(&disable_ipv6) == Some(1),
        roce_ecn: (netdev.kind == NetdevKind::Physical).then(|| ecn(root, &file("ecn"))).flatten(),
        pfc,
    }
}

/// Returns the priorities with congestion control at the notification point and at the reaction
/// point.
fn ecn(root: &Root, directory: &str) -> Option<(Vec<u8>, Vec<u8>)> {
    if !root.exists(directory) {
        return None;
    }
    let enabled = |point: &str| {
        let is_on = |priority: &u8| {
            root.value::<u8>(&format!("{directory}/{point}/enable/{priority}")) == Some(1)
        };
        (0..8).filter(is_on).collect()
    };
    Some((enabled("roce_np"), enabled("roce_rp")))
}
