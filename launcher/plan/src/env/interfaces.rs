//! Variables that name the network interface for TCP connections between ranks.

use super::Variable;
use rlaunch_bootstrap::inventory::Inventory;
use std::net::IpAddr;

/// Returns the variables that name the interface with this address, by which other nodes reach the node. For
/// NCCL, `=` marks an exact name; without `=`, `eth1` would match `eth10` too.
pub fn variables(inventory: &Inventory, address: IpAddr) -> Vec<Variable> {
    let netdev = inventory.netdev_with_address(address).filter(|_| !address.is_loopback());
    let Some(netdev) = netdev else { return Vec::new() };
    let reason = format!("{address} of {} is how other nodes reach this one", netdev.name);
    let mut set = vec![
        Variable::new("NCCL_SOCKET_IFNAME", format!("={}", netdev.name), &reason),
        Variable::new("GLOO_SOCKET_IFNAME", &*netdev.name, &reason),
        Variable::new("TP_SOCKET_IFNAME", &*netdev.name, &reason),
    ];
    if address.is_ipv6() {
        set.push(Variable::new("NCCL_SOCKET_FAMILY", "AF_INET6", &reason));
    }
    set
}
