//! Answers to `rlaunch doctor`.

use crate::node::diagnostics::{self, HostState, clock};
use crate::node::facts;
use crate::node::inventory::{self, Root};
use rlaunch_bootstrap::inventory::Inventory;
use rlaunch_bootstrap::inventory::net::NetdevKind;
use rlaunch_bootstrap::job::{InterfaceAddress, NodeFacts};
use rlaunch_bootstrap::protocol::diagnosis::Diagnosis;
use std::ffi::OsString;
use std::path::Path;
use std::process::ExitCode;

/// Examines this host and answers the launcher's inquiry, or examines a recorded host.
pub(crate) fn diagnose(recorded: Option<OsString>) -> ExitCode {
    match recorded {
        Some(prefix) => inventory::write(&of_recorded(&Root::recorded(Path::new(&prefix)))),
        None => {
            let HostState { inventory, mut diagnostics, .. } = diagnostics::read(&Root::live());
            diagnostics.clock = clock();
            inventory::write(&Diagnosis {
                facts: facts::read(),
                inventory,
                diagnostics,
                probe_port: None,
            })
        }
    }
}

fn of_recorded(root: &Root) -> Diagnosis {
    let HostState { inventory, diagnostics, .. } = diagnostics::read(root);
    let facts = NodeFacts {
        hostname: diagnostics.own_name.hostname.clone(),
        uid: diagnostics.uid,
        addresses: addresses(&inventory),
        gpus: u32::try_from(inventory::gpus(root)).unwrap_or(u32::MAX),
        ..NodeFacts::default()
    };
    Diagnosis { facts, inventory, diagnostics, probe_port: None }
}

/// Returns the addresses by which other hosts could reach a recorded one.
fn addresses(inventory: &Inventory) -> Vec<InterfaceAddress> {
    let netdevs = inventory.netdevs.iter();
    let netdevs = netdevs.filter(|netdev| netdev.running && netdev.kind != NetdevKind::Loopback);
    let addresses = netdevs.flat_map(|netdev| {
        netdev.addresses.iter().map(|&(address, prefix)| InterfaceAddress {
            interface: netdev.name.clone(),
            address,
            prefix,
        })
    });
    addresses.filter(|own| facts::is_usable(own.address)).collect()
}
