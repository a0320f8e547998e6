//! Catalogue of what can be wrong with a cluster: pure functions of what is known of its hosts.
//!
//! `rlaunch doctor` runs all checks; each job runs some of those that need nothing but inventories. To add a check: its
//! id in [`crate::findings::id`], a [`Check`] in the file of its subject, and a test there that makes the fault.
//!
//! | file | subject |
//! |---|---|
//! | `cluster` | input of checks: hosts, what was read and probed, the program |
//! | `fold` | findings that are consequences of others |
//! | `jobs` | the checks that each job runs |
//! | `unread` | hosts on which a check had nothing to judge |
//! | `ssh`, `agent` | how hosts are reached, and whether the agent runs there |
//! | `network`, `firewall` | addresses, names and proxies; packet filters and ports |
//! | `packet_filter` | whether a packet filter lets packets pass |
//! | `devices`, `links` | RDMA devices, drivers and device files; cables and carriers |
//! | `infiniband`, `roce`, `mtu`, `mesh` | what each fabric needs; which ports reach each other |
//! | `iwarp`, `erdma` | devices that need the RDMA connection manager; eRDMA's modes |
//! | `pcie`, `gpu` | PCIe links and NUMA nodes; transfers between GPUs and NICs |
//! | `limits`, `containers` | limits of processes; what a container lacks |
//! | `nccl`, `mpi`, `files` | what the program needs |
//! | `peers`, `kernel_log` | hosts that differ from the others; the kernel's own complaints |

mod agent;
pub mod cluster;
mod containers;
mod devices;
mod erdma;
#[cfg(test)]
mod faults;
mod files;
mod firewall;
mod fold;
mod gpu;
#[cfg(test)]
mod hostile;
mod infiniband;
mod iwarp;
mod jobs;
mod kernel_log;
mod limits;
mod links;
mod mesh;
mod mpi;
mod mtu;
mod nccl;
mod network;
mod packet_filter;
mod pcie;
mod peers;
mod roce;
mod ssh;
mod state;
#[cfg(test)]
mod testing;
mod unread;

pub use cluster::{Cluster, ClusterHost};
pub use containers::{POD_RESOURCE, Scope};
pub use fold::{FoldedFinding, fold};
pub use jobs::examine_job;
pub use mpi::unserved_mpi;
pub use state::{CheckState, state};
pub use unread::{Unread, unread};

use crate::findings::{CheckId, Finding};

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
    agent::CHECKS,
    network::CHECKS,
    firewall::CHECKS,
    devices::CHECKS,
    links::CHECKS,
    infiniband::CHECKS,
    roce::CHECKS,
    mtu::CHECKS,
    mesh::CHECKS,
    iwarp::CHECKS,
    erdma::CHECKS,
    pcie::CHECKS,
    gpu::CHECKS,
    limits::CHECKS,
    containers::CHECKS,
    nccl::CHECKS,
    mpi::CHECKS,
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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::findings::id;

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
}
