//! The head's side of the guests' networks: a namespace with a bridge for each network and a tap
//! for each cable.

use std::process::Command;

use super::state::{VmPaths, VmRecord};
use super::topology::{FABRIC_MTU, MANAGEMENT, head_address, tap};
use crate::LabError;
use crate::command::run;
use crate::netns::network::batch;

/// Makes the namespace, the bridges and the taps of all guests.
pub(super) fn create(paths: &VmPaths, record: &VmRecord) -> Result<(), LabError> {
    let netns = paths.netns();
    batch(None, "make the head's network", &format!("netns add {netns}\n"))?;
    let head = head_address();
    let mut lines = format!(
        "link set lo up\nlink add {MANAGEMENT} type bridge\naddr add {head}/24 dev {MANAGEMENT}\n\
         link set {MANAGEMENT} up\n"
    );
    for bridge in record.topology.fabric() {
        lines += &format!("link add {bridge} type bridge\nlink set {bridge} mtu {FABRIC_MTU} up\n");
    }
    for guest in 1..=record.guests {
        for (interface, cable) in record.topology.cables(guest).iter().enumerate() {
            let (tap, bridge) = (tap(guest, interface), cable.bridge);
            lines += &format!("tuntap add dev {tap} mode tap\nlink set {tap} master {bridge}\n");
            if interface > 0 {
                lines += &format!("link set {tap} mtu {FABRIC_MTU}\n");
            }
            lines += &format!("link set {tap} up\n");
        }
    }
    batch(Some(&netns), "make bridges and cables", &lines)
}

/// Makes a command that runs in the head's namespace; the caller appends the program and its
/// arguments.
pub(super) fn enter(paths: &VmPaths) -> Command {
    let mut command = Command::new("nsenter");
    command.arg(format!("--net={}", paths.netns_file().display())).arg("--");
    command
}

/// Sets the head's end of a cable `up` or `down`.
pub(super) fn set_tap(
    paths: &VmPaths,
    guest: usize,
    interface: usize,
    state: &str,
) -> Result<(), LabError> {
    let tap = tap(guest, interface);
    let mut ip = Command::new("ip");
    ip.args(["-n", &paths.netns(), "link", "set", &tap, state]);
    run(&format!("set {tap} {state}"), &mut ip).map(drop)
}
