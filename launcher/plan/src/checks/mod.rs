//! Catalogue of what can be wrong with a cluster: pure functions of what is known of its hosts.
//!
//! `rlaunch doctor` runs all checks, and `rlaunch help ID` explains each. Jobs run only a few of those that need nothing but
//! inventories.
//!
//! To add a check:
//!
//! 1. Add its id to [`crate::findings::id`], a [`Check`] to the file of its subject, and a test there that makes the fault. A
//!    new subject is a file with `CHECKS`, its `mod` line here, and its entry in `CATALOGUE`.
//! 2. If hosts may lack what it reads, or refuse it, add an arm to `input_state` in `state.rs`: without one the check counts as run
//!    on every host.
//! 3. If jobs are to run it, add its id to `OF_USED_PORTS` or `OF_UNUSED_PORTS` here, which are about RDMA ports
//!    ([`examine_job`]), or else to `CHECKED` in `launcher/engine/src/run/inventory_check.rs`.
//! 4. Write `launcher/goldens/checks-ran.txt` anew: the tests of `state.rs` do with `UPDATE_GOLDENS=1`.
//!
//! | file | subject |
//! |---|---|
//! | `cluster` | input of checks: hosts, what was read and probed, the program |
//! | `fold` | findings that are consequences of others |
//! | `state` | whether a check ran, and hosts on which it had nothing to judge |
//! | `ssh` | how hosts are reached, and whether the agent runs there |
//! | `network`, `firewall` | addresses, names and proxies; packet filters and ports |
//! | `devices`, `links` | RDMA devices, drivers and device files; cables and carriers |
//! | `infiniband`, `roce`, `mtu`, `mesh` | what each fabric needs; which ports reach each other |
//! | `erdma` | devices that need the RDMA connection manager; eRDMA's modes |
//! | `pcie`, `gpu` | PCIe links and NUMA nodes; transfers between GPUs and NICs |
//! | `limits`, `containers` | limits of processes; what a container lacks |
//! | `nccl`, `files` | what the program needs |
//! | `peers`, `kernel_log` | hosts that differ from the others; the kernel's own complaints |

pub mod cluster;
mod containers;
mod devices;
mod erdma;
#[cfg(test)]
mod faults;
mod files;
mod firewall;
#[cfg(test)]
mod fixable;
mod fold;
mod gpu;
#[cfg(test)]
mod hostile;
mod infiniband;
mod kernel_log;
mod limits;
mod links;
mod mesh;
mod mtu;
mod nccl;
mod network;
mod pcie;
mod peers;
mod roce;
mod ssh;
mod state;
#[cfg(test)]
mod testing;

pub use cluster::{Cluster, ClusterHost};
pub use containers::{POD_RESOURCE, Scope};
pub use files::unserved_mpi;
pub use fold::{FoldedFinding, fold};
pub use state::{CheckState, Unread, state, unread};

use crate::findings::{self, CheckId, Finding, Severity, id};
use crate::options::Transport;
use crate::selection::{self, Rejection};
use std::collections::BTreeSet;

/// Check of a cluster.
#[derive(Debug)]
pub struct Check {
    pub id: CheckId,
    /// Statement that holds if the check finds nothing, as a sentence without a full stop, such as `every host has a subnet
    /// manager`.
    pub about: &'static str,
    pub needs: Needs,
    /// Finds faults; never fails.
    pub examine: fn(&Cluster<'_>) -> Vec<Finding>,
    /// Faults that this one causes on the same host or link. Their findings are folded into this one's.
    pub causes: &'static [CheckId],
    /// Text of `rlaunch help ID`: symptoms, cause, what was read, how to fix it, with blank lines between
    /// paragraphs.
    pub explanation: &'static str,
}

/// Information that a check needs. Checks without it are not run.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Needs {
    /// Nothing: rlaunch prevents the fault, and the check always passes.
    Nothing,
    /// Results of connecting to the hosts.
    Connections,
    /// Inventories, which every job reads.
    Inventories,
    /// Diagnostics, which only `rlaunch doctor` reads.
    Diagnostics,
    /// Results of probes between hosts.
    Probes,
    /// The program of a job.
    Program,
}

impl Needs {
    /// Names what is needed, for checks that could not run.
    pub fn words(self) -> &'static str {
        match self {
            Needs::Nothing => "nothing",
            Needs::Connections => "connections",
            Needs::Inventories => "an inventory",
            Needs::Diagnostics => "diagnostics",
            Needs::Probes => "probes (--probe)",
            Needs::Program => "a program (-- PROGRAM)",
        }
    }
}

/// All checks, by subject.
const CATALOGUE: &[&[Check]] = &[
    ssh::CHECKS,
    network::CHECKS,
    firewall::CHECKS,
    devices::CHECKS,
    links::CHECKS,
    infiniband::CHECKS,
    roce::CHECKS,
    mtu::CHECKS,
    mesh::CHECKS,
    erdma::CHECKS,
    pcie::CHECKS,
    gpu::CHECKS,
    limits::CHECKS,
    containers::CHECKS,
    nccl::CHECKS,
    files::CHECKS,
    peers::CHECKS,
    kernel_log::CHECKS,
];

/// Lists all checks, in the order of the catalogue.
pub fn catalogue() -> impl Iterator<Item = &'static Check> {
    CATALOGUE.iter().flat_map(|subject| subject.iter())
}

/// Returns the check with this id.
pub fn find(id: &str) -> Option<&'static Check> {
    catalogue().find(|check| check.id.as_str() == id)
}

/// Quotes a name that comes from a host, so that a shell takes it for one word.
fn quoted(name: &str) -> String {
    rlaunch_text::shell::quoted(name.as_ref())
}

/// Returns the first two numbers of a version, as of a kernel or driver.
fn version(text: &str) -> Option<(u32, u32)> {
    let mut numbers = text.split(|c: char| !c.is_ascii_digit());
    Some((numbers.next()?.parse().ok()?, numbers.next()?.parse().ok()?))
}

/// Writes a number of bytes, as in `64 KiB`, `8 MiB` or `3.5 GiB`.
fn size(bytes: u64) -> String {
    match bytes {
        0..1_048_576 => format!("{} KiB", bytes >> 10),
        1_048_576..1_073_741_824 => format!("{} MiB", bytes >> 20),
        _ => format!("{:.1} GiB", bytes as f64 / f64::from(1_u32 << 30)),
    }
}

/// Checks about ports that could be used and are not. A job itself says which hosts have no usable port, and which
/// two RDMA does not connect.
const OF_UNUSED_PORTS: &[CheckId] = &[
    id::IB_NO_SM,
    id::IB_VF,
    id::ROCE_GID_EMPTY,
    id::ROCE_NO_V2,
    id::ROCE_VERSIONS,
    id::ROCE_NETDEV,
];
/// Checks about ports that are used.
const OF_USED_PORTS: &[CheckId] = &[id::MTU_MISMATCH, id::PCIE_DEGRADED];
/// Maximum number of usable ports. With more, comparing each with each would delay the job.
const MAX_PORTS: usize = 256;

/// Returns errors and warnings that a job does not state in other words, worst first. Empty if the job uses no RDMA.
pub fn examine_job(cluster: &Cluster<'_>) -> Vec<FoldedFinding> {
    let ports = cluster.plan.map_or(&[][..], |plan| &plan.ports);
    let with_rdma = ports.iter().filter(|ports| !ports.is_empty()).count();
    let count: usize = ports.iter().map(Vec::len).sum();
    if with_rdma < 2 || cluster.transport == Transport::Tcp || count > MAX_PORTS {
        return Vec::new();
    }
    let stated = hosts_without_rdma(cluster);
    let is_new = |finding: &Finding| {
        let is_stated = finding.hosts.iter().any(|host| stated.contains(host.as_str()));
        !(is_stated && OF_UNUSED_PORTS.contains(&finding.id))
    };
    let checks = OF_UNUSED_PORTS.iter().chain(OF_USED_PORTS);
    let checks = checks.filter_map(|id| find(id.as_str()));
    let found = checks.flat_map(|check| (check.examine)(cluster));
    let found = found.filter(|finding| {
        finding.severity <= Severity::Warning && is_new(finding) && is_wanted(cluster, finding)
    });
    fold(&findings::merge(found), cluster)
}

/// Returns the hosts without a usable port, and those that RDMA does not connect with all others.
fn hosts_without_rdma<'a>(cluster: &Cluster<'a>) -> BTreeSet<&'a str> {
    let Some(plan) = cluster.plan else { return BTreeSet::new() };
    let pairs = plan.unconnected_pairs().into_iter().flat_map(|(one, other)| [one, other]);
    let nodes = plan.nodes_without_ports().chain(pairs);
    nodes.filter_map(|node| Some(cluster.hosts.get(node)?.name)).collect()
}

/// Tells whether a finding is about a whole host, or about an RDMA port that the user has not left
/// out.
fn is_wanted(cluster: &Cluster<'_>, finding: &Finding) -> bool {
    let Some(name) = &finding.device else { return true };
    let hosts =
        cluster.hosts.iter().filter(|host| finding.hosts.iter().any(|own| own == host.name));
    let mut ports = hosts
        .flat_map(|host| host.rdma_ports().map(move |port| (host, port)))
        .filter(|(_, (device, port))| {
            *name == device.name
                || *name == format!("{}/{}", device.name, port.number)
                || port.netdev.as_ref() == Some(name)
                || device.pci.as_ref().is_some_and(|pci| pci.address == *name)
        })
        .map(|(host, (device, port))| {
            let netdevs = &host.inventory.netdevs;
            let examined = selection::examine_wanted(device, port, netdevs, &cluster.ports);
            examined.err() != Some(Rejection::LeftOut)
        });
    ports.any(|is_wanted| is_wanted)
}

#[cfg(test)]
mod tests {
    use super::testing::{Machine, line, with_cluster};
    use super::*;
    use crate::selection::{Plan, PortOptions};
    use crate::testing::triangle;
    use rlaunch_bootstrap::inventory::Inventory;

    /// Makes sure that checks of faults that rlaunch prevents only explain them; the code that prevents them has the tests.
    #[test]
    fn what_rlaunch_prevents_is_explained_and_never_found() {
        let prevented: Vec<&Check> =
            catalogue().filter(|check| check.needs == Needs::Nothing).collect();
        let ids: Vec<&str> = prevented.iter().map(|check| check.id.as_str()).collect();
        assert_eq!(ids, ["dev.cq", "iwarp.backlog", "rc.receive", "nccl.prefix", "nccl.ports"]);
        let machines = [testing::Machine::recorded("siw"), testing::Machine::recorded("dgx")];
        for check in prevented {
            assert!(testing::lines(check.examine, &machines).is_empty(), "{}", check.id);
            assert!(check.explanation.contains("rlaunch prevents"), "{}", check.id);
        }
    }

    #[test]
    fn each_id_has_one_check_that_explains_it() {
        let ids: Vec<CheckId> = catalogue().map(|check| check.id).collect();
        for id in id::ALL {
            assert_eq!(ids.iter().filter(|known| *known == id).count(), 1, "{id}");
        }
        for check in catalogue() {
            assert!(check.about.len() <= 90 && !check.about.ends_with('.'), "{}", check.id);
            assert!(check.explanation.len() > 100, "{}", check.id);
        }
    }

    /// Runs the checks of a job with these options.
    fn found(machines: &[Machine], ports: &PortOptions, transport: Transport) -> Vec<String> {
        let inventories: Vec<Inventory> = machines.iter().map(|m| m.inventory.clone()).collect();
        let plan = Plan::new(&inventories, ports);
        with_cluster(machines, |mut cluster| {
            cluster.hosts.iter_mut().for_each(|host| host.diagnostics = None);
            let (ports, plan) = (ports.clone(), Some(&plan));
            let cluster = Cluster { ports, transport, plan, ..cluster };
            examine_job(&cluster).iter().map(|folded| line(&folded.finding)).collect()
        })
    }

    fn in_job(machines: &[Machine]) -> Vec<String> {
        found(machines, &PortOptions::default(), Transport::Auto)
    }

    fn cabled() -> Vec<Machine> {
        triangle().map(|inventory| Machine { inventory, ..Machine::default() }).into()
    }

    #[test]
    fn jobs_on_recorded_machines_print_nothing() {
        let names = "\
            ack-node amd-apu bond connectx3 container dgx dual-port erdma-compat erdma-standard \
            esxi-vm macvlan-pod no-rdma rxe siw spark sriov";
        let names: Vec<&str> = names.split(' ').collect();
        let machines: Vec<Machine> = names.iter().map(|name| Machine::recorded(name)).collect();
        for (name, machine) in names.iter().zip(&machines) {
            assert_eq!(in_job(&vec![machine.clone(); 3]), [""; 0], "{name}");
        }
        assert_eq!(in_job(&cabled()), [""; 0]);
        // For hosts that have little in common, the job itself says that RDMA does not connect
        // them.
        for machines in machines.windows(2) {
            assert_eq!(in_job(machines), [""; 0], "{machines:?}");
        }
    }

    fn smaller() -> Vec<Machine> {
        let small = Machine::recorded("esxi-vm").change(|inventory| {
            inventory.rdma[0].ports[0].mtu = Some(1024);
            let netdevs = inventory.netdevs.iter_mut();
            netdevs.filter(|netdev| netdev.name == "ens224").for_each(|netdev| netdev.mtu = 1500);
        });
        vec![Machine::recorded("esxi-vm"), small, Machine::recorded("esxi-vm")]
    }

    #[test]
    fn a_fault_of_a_path_in_use_is_one_line() {
        let lines = in_job(&smaller());
        assert_eq!(lines.len(), 1, "{lines:?}");
        assert!(lines[0].starts_with("warn mtu.mismatch b mlx5_0/1: "), "{lines:?}");
        let tcp = found(&smaller(), &PortOptions::default(), Transport::Tcp);
        assert_eq!(tcp, [""; 0]);
        assert_eq!(in_job(&smaller()[..1]), [""; 0]);
    }

    #[test]
    fn a_narrow_pcie_link_is_said_unless_its_port_is_left_out() {
        let narrow = Machine::recorded("dgx").change(|inventory| {
            let links = &mut inventory.rdma[3].pci.as_mut().unwrap().links;
            links.iter_mut().take(2).for_each(|link| link.current.as_mut().unwrap().width = 4);
        });
        let name = narrow.inventory.rdma[3].name.clone();
        let machines = [Machine::recorded("dgx"), narrow];
        let lines = in_job(&machines);
        assert!(lines.len() == 1 && lines[0].starts_with("warn pcie.degraded b"), "{lines:?}");
        let hca = Some(format!("^={name}").parse().unwrap());
        let ports = PortOptions { hca, ..PortOptions::default() };
        assert_eq!(found(&machines, &ports, Transport::Auto), [""; 0]);
    }

    #[test]
    fn what_a_job_states_itself_is_not_repeated() {
        let old = Machine::recorded("esxi-vm").change(|inventory| {
            inventory.rdma[0].ports[0].gids.retain(|gid| gid.index % 2 == 0);
        });
        let machines = [Machine::recorded("esxi-vm"), Machine::recorded("esxi-vm"), old];
        let check = find(id::ROCE_NO_V2.as_str()).unwrap();
        let all = with_cluster(&machines, |cluster| (check.examine)(&cluster));
        assert!(all.len() == 1 && all[0].severity <= Severity::Warning, "{all:?}");
        assert_eq!(in_job(&machines), [""; 0]);
    }
}
