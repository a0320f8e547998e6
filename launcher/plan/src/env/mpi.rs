//! Variables for MPI libraries: the interface by which other nodes reach this one, and waiting on busy CPUs.
//! RDMA ports are named by `UCX_NET_DEVICES`, which [`super::nccl`] sets.

use super::Variable;
use rlaunch_bootstrap::inventory::Inventory;
use rlaunch_text::text;
use std::net::IpAddr;

/// Variables that name the interface for TCP, with the library that reads each.
const INTERFACE: [&str; 2] = [
    // Open MPI, transport `tcp`.
    "OMPI_MCA_btl_tcp_if_include",
    // Libfabric's provider `tcp`, which MPICH and Intel MPI use.
    "FI_TCP_IFACE",
];

/// Returns the variables that name the interface with this address. `has_rdma` tells whether variables name
/// RDMA ports; UCX is restricted to the interface only if none do.
pub fn interface(inventory: &Inventory, address: IpAddr, has_rdma: bool) -> Vec<Variable> {
    let netdev = inventory.netdev_with_address(address).filter(|_| !address.is_loopback());
    let Some(netdev) = netdev else { return Vec::new() };
    let reason = format!("{address} of {} is how other nodes reach this one", netdev.name);
    let ucx = (!has_rdma).then_some("UCX_NET_DEVICES");
    let names = INTERFACE.into_iter().chain(ucx);
    names.map(|name| Variable::new(name, &*netdev.name, &reason)).collect()
}

/// Returns the variable by which ranks of Open MPI leave the CPU to others while they wait, for a node with more
/// ranks than CPUs. `mpirun` sets it too; without it, 32 ranks on 2 CPUs needed 90 s instead of 11 s to start.
pub(crate) fn oversubscribed(inventory: &Inventory, ranks: usize) -> Option<Variable> {
    let usable = inventory.cpus.usable();
    (ranks > usable && usable > 0).then(|| {
        let reason = format!("{} share {}", text::count(ranks, "rank"), text::count(usable, "CPU"));
        Variable::new("OMPI_MCA_mpi_yield_when_idle", "1", &reason)
    })
}
