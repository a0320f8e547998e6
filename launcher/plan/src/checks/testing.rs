//! Clusters for tests of checks, made of recorded machines.

use super::cluster::Probe;
use super::{Cluster, ClusterHost};
use crate::findings::{Finding, Severity};
use crate::selection::{Plan, PortOptions};
use rlaunch_bootstrap::inventory::Inventory;
use rlaunch_bootstrap::inventory::diagnostics::Diagnostics;

/// Host of a test.
#[derive(Clone, Debug, Default)]
pub(super) struct Machine {
    pub(super) inventory: Inventory,
    pub(super) diagnostics: Diagnostics,
}

impl Machine {
    /// Returns the machine recorded in `worker/fixtures/NAME.tree`, with empty diagnostics.
    pub(super) fn recorded(name: &str) -> Machine {
        let inventory = crate::testing::inventory(name);
        Machine { inventory, ..Machine::default() }
    }

    /// Changes the inventory.
    pub(super) fn change(mut self, change: impl FnOnce(&mut Inventory)) -> Machine {
        change(&mut self.inventory);
        self
    }

    /// Changes the diagnostics.
    pub(super) fn diagnosed(mut self, change: impl FnOnce(&mut Diagnostics)) -> Machine {
        change(&mut self.diagnostics);
        self
    }

    pub(super) fn uid(mut self, uid: u32) -> Machine {
        self.diagnostics.uid = uid;
        self
    }
}

/// Moves an interface of a host and its GID to another address.
pub(super) fn readdress(inventory: &mut Inventory, from: &str, to: &str) {
    let [from, to] = [from, to].map(|text| text.parse::<std::net::IpAddr>().unwrap());
    let addresses = inventory.netdevs.iter_mut().flat_map(|netdev| &mut netdev.addresses);
    addresses.filter(|(address, _)| *address == from).for_each(|(address, _)| *address = to);
    let ports = inventory.rdma.iter_mut().flat_map(|device| &mut device.ports);
    for gid in ports.flat_map(|port| &mut port.gids).filter(|gid| gid.ip() == from) {
        let std::net::IpAddr::V4(v4) = to else { panic!("{to}") };
        gid.value = v4.to_ipv6_mapped();
    }
}

/// Runs `then` on a cluster of machines called `a`, `b`, `c` and so on, which may be changed before.
pub(super) fn with_cluster<T>(machines: &[Machine], then: impl FnOnce(Cluster<'_>) -> T) -> T {
    const NAMES: [&str; 8] = ["a", "b", "c", "d", "e", "f", "g", "h"];
    let inventories: Vec<Inventory> = machines.iter().map(|m| m.inventory.clone()).collect();
    let plan = Plan::new(&inventories, &PortOptions::default());
    let hosts = NAMES.into_iter().zip(machines).map(cluster_host).collect();
    then(Cluster { hosts, plan: Some(&plan), ..Cluster::default() })
}

fn cluster_host<'a>((name, machine): (&'static str, &'a Machine)) -> ClusterHost<'a> {
    let host = ClusterHost::new(name, &machine.inventory, &machine.diagnostics);
    ClusterHost { uid: machine.diagnostics.uid, ..host }
}

/// Runs a check and writes each finding as `SEVERITY ID HOSTS[ DEVICE][ → PEER]: SEEN — WHY`.
pub(super) fn lines(
    examine: fn(&Cluster<'_>) -> Vec<Finding>,
    machines: &[Machine],
) -> Vec<String> {
    with_cluster(machines, |cluster| examine(&cluster).iter().map(line).collect())
}

/// Runs a check on a cluster whose hosts made these probes.
pub(super) fn probed(
    examine: fn(&Cluster<'_>) -> Vec<Finding>,
    machines: &[Machine],
    probes: &[Probe],
) -> Vec<Finding> {
    with_cluster(machines, |cluster| {
        let Cluster { hosts, plan, .. } = cluster;
        examine(&Cluster { hosts, plan, probes: Some(probes), ..Cluster::default() })
    })
}

/// Writes a finding in one line.
pub(super) fn line(finding: &Finding) -> String {
    let severity = match finding.severity {
        Severity::Error => "error",
        Severity::Warning => "warn",
        Severity::Note => "note",
    };
    let device = finding.device.iter().map(|device| format!(" {device}"));
    let peer = finding.peer.iter().map(|peer| format!(" → {peer}"));
    let place: String = device.chain(peer).collect();
    let hosts = finding.hosts.join(",");
    format!("{severity} {} {hosts}{place}: {} — {}", finding.id, finding.seen, finding.matters)
}

/// Runs all checks of the catalogue that can run and writes each finding like [`lines`].
pub(super) fn all_lines(machines: &[Machine]) -> Vec<String> {
    with_cluster(machines, |cluster| {
        let checks = super::catalogue()
            .filter(|check| super::state(check, &cluster) == super::CheckState::Ran);
        let found = checks.flat_map(|check| (check.examine)(&cluster));
        crate::findings::merge(found).iter().map(line).collect()
    })
}
