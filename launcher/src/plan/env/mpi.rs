//! Variables by which MPI libraries choose their network: the interface by which other nodes reach this one.
//! RDMA ports are named by `UCX_NET_DEVICES`, which [`super::nccl`] sets.

use super::Variable;
use rlaunch_bootstrap::inventory::Inventory;
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
pub(crate) fn variables(inventory: &Inventory, address: IpAddr, has_rdma: bool) -> Vec<Variable> {
    let netdev = inventory.netdev_with_address(address).filter(|_| !address.is_loopback());
    let Some(netdev) = netdev else { return Vec::new() };
    let reason = format!("{address} of {} is how other nodes reach this one", netdev.name);
    let ucx = (!has_rdma).then_some("UCX_NET_DEVICES");
    let names = INTERFACE.into_iter().chain(ucx);
    names.map(|name| Variable::new(name, &*netdev.name, &reason)).collect()
}
