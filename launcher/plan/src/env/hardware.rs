//! Variables that divide a node's CPUs and GPUs among its ranks.

use super::Variable;
use rlaunch_bootstrap::inventory::{CpuSet, Gpu, GpuVendor, Inventory};
use rlaunch_text::text;

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
