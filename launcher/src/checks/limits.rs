//! Limits of a rank's process.

use super::{Check, Cluster, ClusterHost, Needs};
use crate::findings::{Finding, id};
use rlaunch_bootstrap::inventory::rdma::Uverbs;

pub(super) const CHECKS: &[Check] = &[Check {
    id: id::LIM_MEMLOCK,
    about: "processes may lock the memory that RDMA needs",
    needs: Needs::Inventories,
    examine: locked_memory,
    causes: &[id::MESH_SILENT],
    explanation: "\
Symptoms: `ibv_reg_mr failed: Cannot allocate memory`, `ibv_create_cq: ENOMEM`; a program works for root and \
fails for users, or works in a terminal and fails when it is started over SSH.

A NIC reads and writes memory that must not move, so RDMA programs lock their buffers. The limit on locked \
memory (RLIMIT_MEMLOCK) is 64 KiB in older container engines and 8 MiB under systemd, which is less than one \
buffer of NCCL. rlaunch reads the limit of the agent's process, which ranks inherit; `ulimit -l` in your own \
terminal may say something else.

On a host, raise the limit in /etc/security/limits.d and log in anew; services need LimitMEMLOCK=infinity. For a \
container, start it with --ulimit memlock=-1.",
}];

/// Limit on locked memory, in bytes, below which RDMA programs usually fail.
const LOCKED_MEMORY: u64 = 64 << 20;

fn locked_memory(cluster: &Cluster<'_>) -> Vec<Finding> {
    let finding = |host: &ClusterHost<'_>| {
        let limit = host.inventory.limits.locked_memory.filter(|limit| *limit < LOCKED_MEMORY)?;
        let mut devices = host.inventory.rdma.iter();
        let has_use = devices.any(|device| matches!(device.uverbs, Uverbs::Usable(_)));
        let is_container = host.inventory.system.container.is_some() || cluster.in_container;
        // Root may lock any amount on a host, but usually not in a container.
        let is_limited = has_use && (is_container || host.uid != 0);
        let seen = format!("{} of memory may be locked", super::size(limit));
        let found =
            Finding::error(id::LIM_MEMLOCK, host.name, seen, "registering RDMA buffers fails");
        is_limited.then(|| match is_container {
            true => found.advise("start the container with --ulimit memlock=-1"),
            false => found
                .run("echo '* - memlock unlimited' | sudo tee /etc/security/limits.d/rdma.conf")
                .advise("log in anew; services need LimitMEMLOCK=infinity"),
        })
    };
    cluster.hosts.iter().filter_map(finding).collect()
}

#[cfg(test)]
mod tests {
    use super::super::testing::{Machine, lines};
    use super::*;

    #[test]
    fn users_need_more_locked_memory_than_systemd_gives() {
        let machine = |limit: Option<u64>, uid: u32| {
            Machine::recorded("rxe")
                .uid(uid)
                .change(|inventory| inventory.limits.locked_memory = limit)
        };
        let found = |machine: Machine| lines(locked_memory, &[machine]);
        let expected =
            "error lim.memlock a: 8 MiB of memory may be locked — registering RDMA buffers fails";
        assert_eq!(found(machine(Some(8 << 20), 1000)), [expected]);
        assert!(found(machine(Some(8 << 20), 0)).is_empty());
        assert!(found(machine(None, 1000)).is_empty());
        assert!(found(machine(Some(8 << 20), 1000).change(|i| i.rdma.clear())).is_empty());
    }
}
