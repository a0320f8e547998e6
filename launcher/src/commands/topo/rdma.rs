//! `rlaunch topo --gids` and `--caps`: GID tables of RDMA ports, and capabilities of RDMA devices.
//!
//! The kernel has no files for capabilities. The table of capabilities is from the sources of drivers
//! (rdma-core providers/*, the kernel's rxe_param.h, eRDMA's ibv_devinfo). Devices with other drivers have `?`.

use super::indent;
use rlaunch_bootstrap::inventory::Inventory;
use rlaunch_bootstrap::inventory::rdma::{GidKind, LinkLayer, NodeType};
use rlaunch_text::columns::{self, row};

/// Formats the GID tables of a host as MLNX_OFED's `show_gids` does.
pub(super) fn gids(host: &str, inventory: &Inventory) -> String {
    let mut rows = vec![row(["dev", "port", "index", "gid", "ipv4", "ver", "interface"])];
    for device in &inventory.rdma {
        for (port, gid) in device.ports.iter().flat_map(|p| p.gids.iter().map(move |g| (p, g))) {
            let groups = gid.value.segments().map(|group| format!("{group:04x}"));
            let ipv4 = gid.value.to_ipv4_mapped().map(|v4| v4.to_string()).unwrap_or_default();
            let version = match (gid.kind, port.link_layer) {
                (GidKind::RoceV2, _) => "v2",
                (GidKind::IbOrRoceV1, LinkLayer::Ethernet) => "v1",
                _ => "",
            };
            let netdev = gid.netdev.as_ref().or(port.netdev.as_ref());
            rows.push(row([
                &device.name,
                &port.number.to_string(),
                &gid.index.to_string(),
                &groups.join(":"),
                &ipv4,
                version,
                netdev.map_or("", String::as_str),
            ]));
        }
    }
    let mut text = format!("{host}:\n");
    match rows.len() {
        1 => text += "  no GID\n",
        _ => indent(&mut text, &columns::lay_out(&rows)),
    }
    text
}

/// Columns of [`DRIVERS`]: unreliable datagrams, shared receive queues, writes with immediate data, and atomics.
const CAPABILITIES: [&str; 4] = ["ud", "srq", "write with immediate", "atomics"];

/// Beginnings of drivers' names, and whether the driver has each of the [`CAPABILITIES`].
const DRIVERS: &[(&str, [bool; 4])] = &[
    ("mlx4", [true, true, true, true]),
    ("mlx5", [true, true, true, true]),
    ("erdma", [false, false, true, true]),
    ("rxe", [true, true, true, true]),
    ("siw", [false, true, false, false]),
];

/// Formats the capabilities of a host's devices as a table, with `?` for those of an unknown driver.
pub(super) fn capabilities(host: &str, inventory: &Inventory) -> String {
    let line = |device: &str, driver: &str, connect: &str, capabilities: [&str; 4]| {
        let mut cells = row([device, driver, connect]);
        cells.extend(row(capabilities));
        cells
    };
    let mut rows = vec![line("device", "driver", "connect", CAPABILITIES)];
    for device in &inventory.rdma {
        let driver = device.driver.as_deref().unwrap_or_default();
        let known = DRIVERS.iter().find(|(name, _)| driver.starts_with(name));
        let shown = |has: bool| if has { "yes" } else { "no" };
        let capabilities = known.map_or(["?"; 4], |(_, has)| has.map(shown));
        let connect = match device.node_type {
            NodeType::Rnic => "RDMA_CM only",
            NodeType::ChannelAdapter => "out of band, RDMA_CM",
            NodeType::Other => "?",
        };
        rows.push(line(&device.name, driver, connect, capabilities));
    }
    let mut text = format!("{host}:\n");
    match rows.len() {
        1 => text += "  no RDMA device\n",
        _ => indent(&mut text, &columns::lay_out(&rows)),
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;
    use rlaunch_plan::testing::{inventory, is_golden};

    #[test]
    fn gid_tables_are_those_of_show_gids() {
        is_golden("gids-rxe", &gids("vm1", &inventory("rxe")));
    }

    #[test]
    fn capabilities_are_those_of_drivers() {
        assert_eq!(
            capabilities("vm2", &inventory("siw")),
            "\
vm2:
  device  driver  connect       ud  srq  write with immediate  atomics
  siw0    siw     RDMA_CM only  no  yes  no                    no
"
        );
        let mut unknown = inventory("siw");
        unknown.rdma[0].driver = Some("efa".into());
        assert!(capabilities("x", &unknown).contains("?"));
        assert_eq!(capabilities("old1", &inventory("no-rdma")), "old1:\n  no RDMA device\n");
    }
}
