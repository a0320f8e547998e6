//! Variables that follow from a node's hardware: its CPUs and GPUs, which its ranks share, and its network interface.

use super::Variable;
use crate::options::RankPosition;
use rlaunch_bootstrap::env::JAX_LOCAL_DEVICE_IDS;
use rlaunch_bootstrap::inventory::{CpuSet, Gpu, GpuVendor, Inventory};
use rlaunch_text::text;
use std::net::IpAddr;

/// Variables that name the interface for TCP of MPI libraries, with the library that reads each.
const MPI_INTERFACE: [&str; 2] = [
    // Open MPI, transport `tcp`.
    "OMPI_MCA_btl_tcp_if_include",
    // Libfabric's provider `tcp`, which MPICH and Intel MPI use.
    "FI_TCP_IFACE",
];

/// Returns the variable that limits OpenMP's threads to a rank's share of the CPUs. By default every rank
/// would start a thread for each CPU of the node.
pub fn threads(inventory: &Inventory, ranks: usize, bound: Option<&CpuSet>) -> Variable {
    let usable = inventory.cpus.usable();
    let share = (usable / ranks.max(1)).max(1);
    let own = bound.map(CpuSet::len).filter(|&own| own > 0 && own < share);
    let reason = match own {
        Some(own) => format!("the rank is bound to {own} of {usable} CPUs"),
        None => format!("{usable} CPUs for {} of this node", text::count(ranks, "rank")),
    };
    Variable::new("OMP_NUM_THREADS", own.unwrap_or(share).to_string(), &reason)
}

/// Returns the variables that restrict a rank to its GPU, which has this index in the inventory. For NVIDIA
/// GPUs, a further variable makes CUDA number them by PCI address; otherwise the number could mean another
/// GPU.
pub fn gpu_mask(inventory: &Inventory, gpu: &Gpu, index: usize) -> Vec<Variable> {
    let of_vendor = inventory.gpus[..index].iter().filter(|other| other.vendor == gpu.vendor);
    let number = of_vendor.count().to_string();
    let reason = format!("--gpu-mask: GPU {}", gpu.pci.address);
    match gpu.vendor {
        GpuVendor::Nvidia => vec![
            Variable::new("CUDA_DEVICE_ORDER", "PCI_BUS_ID", &reason),
            Variable::new("CUDA_VISIBLE_DEVICES", number, &reason),
        ],
        GpuVendor::Amd => vec![Variable::new("HIP_VISIBLE_DEVICES", number, &reason)],
    }
}

/// Returns the variable that gives a rank of JAX its GPUs, where these are not the one with the number of its local rank: it
/// has several, or sees one alone.
pub(crate) fn jax_devices(
    inventory: &Inventory,
    ranks: usize,
    place: RankPosition,
    is_masked: bool,
) -> Option<Variable> {
    let gpus = inventory.gpus.len();
    let each = gpus / ranks.max(1);
    let (own, reason) = if is_masked && gpus > 0 {
        (0..1, "--gpu-mask: the rank sees one GPU".to_owned())
    } else if each > 1 && each * ranks == gpus {
        let first = place.local_rank * each;
        let ranks = text::count(ranks, "rank");
        (first..first + each, format!("{gpus} GPUs for {ranks} of this node, if it runs JAX"))
    } else {
        return None;
    };
    let numbers: Vec<String> = own.map(|gpu| gpu.to_string()).collect();
    Some(Variable::new(JAX_LOCAL_DEVICE_IDS, numbers.join(","), &reason))
}

/// Returns the variables that name the interface with this address, by which other nodes reach the node. For
/// NCCL, `=` marks an exact name; without `=`, `eth1` would match `eth10` too. `has_rdma` tells whether variables name
/// RDMA ports; UCX is restricted to the interface only if none do.
pub fn interface(inventory: &Inventory, address: IpAddr, has_rdma: bool) -> Vec<Variable> {
    let netdev = inventory.netdev_with_address(address).filter(|_| !address.is_loopback());
    let Some(netdev) = netdev else { return Vec::new() };
    let reason = format!("{address} of {} is how other nodes reach this one", netdev.name);
    let mut set = vec![
        Variable::new("NCCL_SOCKET_IFNAME", format!("={}", netdev.name), &reason),
        Variable::new("GLOO_SOCKET_IFNAME", &*netdev.name, &reason),
        Variable::new("TP_SOCKET_IFNAME", &*netdev.name, &reason),
    ];
    if address.is_ipv6() {
        set.push(Variable::new("NCCL_SOCKET_FAMILY", "AF_INET6", &reason));
    }
    let ucx = (!has_rdma).then_some("UCX_NET_DEVICES");
    let names = MPI_INTERFACE.into_iter().chain(ucx);
    set.extend(names.map(|name| Variable::new(name, &*netdev.name, &reason)));
    set
}

/// Variables by which MPI libraries copy messages by way of shared memory: Open MPI 4 and MPICH from 4.2 on. Both take for granted
/// that ranks may read from each other's memory; where they may not, the former writes a line for each attempt and waits for
/// ever, and the latter aborts. Open MPI 5 and Intel MPI notice it.
const THROUGH_SHARED_MEMORY: [(&str, &str); 2] =
    [("OMPI_MCA_btl_vader_single_copy_mechanism", "none"), ("MPIR_CVAR_CH4_CMA_ENABLE", "0")];

pub(crate) fn single_copy(inventory: &Inventory) -> Vec<Variable> {
    if !inventory.system.denies_memory_reads {
        return Vec::new();
    }
    let reason = "processes may not read each other's memory here, as in containers of Docker";
    THROUGH_SHARED_MEMORY.map(|(name, value)| Variable::new(name, value, reason)).into()
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn mpi_copies_twice_where_memory_cannot_be_read() {
        let mut inventory = Inventory::default();
        assert!(single_copy(&inventory).is_empty());
        inventory.system.denies_memory_reads = true;
        let set = single_copy(&inventory).into_iter().map(|of| format!("{}={}", of.name, of.value));
        let expected =
            ["OMPI_MCA_btl_vader_single_copy_mechanism=none", "MPIR_CVAR_CH4_CMA_ENABLE=0"];
        assert_eq!(set.collect::<Vec<_>>(), expected);
    }
}
