//! `rlaunch topo --caps`: capabilities of RDMA devices.
//!
//! The kernel has no files for capabilities. The table is from the sources of drivers (rdma-core providers/*,
//! the kernel's rxe_param.h, eRDMA's ibv_devinfo). Devices with other drivers have `?`.

use super::indent;
use rlaunch_bootstrap::inventory::Inventory;
use rlaunch_bootstrap::inventory::rdma::NodeType;
use rlaunch_text::columns::{self, row};

struct Capabilities {
    /// Beginning of the driver's name.
    driver: &'static str,
    /// Support for unreliable datagram queue pairs (UD).
    datagrams: bool,
    shared_receive_queues: bool,
    write_with_immediate: bool,
    atomics: bool,
}

const DRIVERS: &[Capabilities] = &[
    capabilities("mlx4", [true, true, true, true]),
    capabilities("mlx5", [true, true, true, true]),
    capabilities("erdma", [false, false, true, true]),
    capabilities("rxe", [true, true, true, true]),
    capabilities("siw", [false, true, false, false]),
];

const fn capabilities(driver: &'static str, can: [bool; 4]) -> Capabilities {
    let [datagrams, shared_receive_queues, write_with_immediate, atomics] = can;
    Capabilities { driver, datagrams, shared_receive_queues, write_with_immediate, atomics }
}

pub(super) fn format(host: &str, inventory: &Inventory) -> String {
    let mut rows =
        vec![row(["device", "driver", "connect", "ud", "srq", "write with immediate", "atomics"])];
    for device in &inventory.rdma {
        let driver = device.driver.as_deref().unwrap_or_default();
        let known = DRIVERS.iter().find(|known| driver.starts_with(known.driver));
        let can = |capability: fn(&Capabilities) -> bool| match known.map(capability) {
            Some(true) => "yes",
            Some(false) => "no",
            None => "?",
        };
        let connect = match device.node_type {
            NodeType::Rnic => "RDMA_CM only",
            NodeType::ChannelAdapter => "out of band, RDMA_CM",
            NodeType::Other => "?",
        };
        rows.push(row([
            &device.name,
            driver,
            connect,
            can(|known| known.datagrams),
            can(|known| known.shared_receive_queues),
            can(|known| known.write_with_immediate),
            can(|known| known.atomics),
        ]));
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
    use rlaunch_plan::testing::inventory;

    #[test]
    fn capabilities_are_those_of_drivers() {
        assert_eq!(
            format("vm2", &inventory("siw")),
            "\
vm2:
  device  driver  connect       ud  srq  write with immediate  atomics
  siw0    siw     RDMA_CM only  no  yes  no                    no
"
        );
        let mut unknown = inventory("siw");
        unknown.rdma[0].driver = Some("efa".into());
        assert!(format("x", &unknown).contains("?"));
        assert_eq!(format("old1", &inventory("no-rdma")), "old1:\n  no RDMA device\n");
    }
}
