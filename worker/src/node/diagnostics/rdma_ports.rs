//! State of RDMA ports.

use super::counters;
use crate::node::inventory::Root;
use rlaunch_bootstrap::inventory::Inventory;
use rlaunch_bootstrap::inventory::diagnostics::RdmaPortState;

pub(super) fn read(root: &Root, inventory: &Inventory) -> Vec<RdmaPortState> {
    let ports = inventory.rdma.iter().flat_map(|device| {
        device.ports.iter().map(move |port| (device.name.as_str(), port.number))
    });
    let state = |(device, port): (&str, u8)| RdmaPortState {
        device: device.to_owned(),
        port,
        cm_roce_mode: connection_manager_mode(root, device, port),
        counters: counters::of_port(root, device, port),
    };
    ports.map(state).collect()
}

/// Returns the RoCE version of the connection manager. The kernel has this file only after a user has
/// made the device's directory; that is left to them.
fn connection_manager_mode(root: &Root, device: &str, port: u8) -> Option<String> {
    root.text(&format!("/sys/kernel/config/rdma_cm/{device}/ports/{port}/default_roce_mode"))
}
