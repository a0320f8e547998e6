//! `rlaunch topo --gids`: GID tables of RDMA ports.

use super::indent;
use rlaunch_bootstrap::inventory::Inventory;
use rlaunch_bootstrap::inventory::rdma::{GidKind, LinkLayer};
use rlaunch_text::columns::{self, row};

/// Formats the GID tables of a host as MLNX_OFED's `show_gids` does.
pub(super) fn format(host: &str, inventory: &Inventory) -> String {
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

#[cfg(test)]
mod tests {
    use super::*;
    use rlaunch_plan::testing::inventory;
    use rlaunch_plan::testing::is_golden;

    #[test]
    fn gid_tables_are_those_of_show_gids() {
        is_golden("gids-rxe", &format("vm1", &inventory("rxe")));
    }
}
