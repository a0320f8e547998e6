//! Inventory of this node, read from the kernel's files below a [`Root`] without starting other
//! programs. What cannot be read, as in many containers, is left out.
//!
//! | file | contents |
//! |---|---|
//! | `root.rs` | the live machine, or a recorded one |
//! | `cpu.rs`, `gpu.rs`, `pci.rs` | processors and NUMA nodes, GPUs, PCI devices and their bridges |
//! | `net.rs`, `rdma.rs`, `netlink.rs` | interfaces, routes, RDMA devices and their ports |
//! | `nccl.rs`, `horovod.rs` | the NCCL and the Horovod that a program would load |
//! | `system.rs` | limits, versions, container |

mod cpu;
mod gpu;
pub(crate) mod horovod;
pub(crate) mod nccl;
mod net;
mod netlink;
mod pci;
mod rdma;
mod root;
mod system;

#[cfg(test)]
pub(crate) mod tests;

pub(crate) use netlink::flow_control;
pub(crate) use root::Root;

use crate::console::errln;
use rlaunch_bootstrap::inventory::{Cpus, Inventory, ResourceLimits, System};
use rlaunch_bootstrap::protocol::control::{HELLO_MAGIC, encode};
use serde::Serialize;
use std::ffi::OsString;
use std::io::Write;
use std::path::Path;
use std::process::ExitCode;

/// Reads the full inventory.
pub(crate) fn read(root: &Root) -> Inventory {
    let netdevs = net::read(root);
    let mut gpus = gpu::read(root);
    let mut rdma = rdma::read(root, &netdevs);
    for pci in gpus.iter_mut().map(|gpu| &mut gpu.pci) {
        pci::read_capabilities(root, pci);
    }
    for pci in rdma.iter_mut().filter_map(|device| device.pci.as_mut()) {
        pci::read_capabilities(root, pci);
    }
    let cpus = cpu::read(root);
    Inventory {
        cpus: Cpus { cores: cpu::cores(root, &cpus.online).unwrap_or_default(), ..cpus },
        numa_nodes: cpu::numa_nodes(root).into_iter().map(|n| cpu::with_memory(root, n)).collect(),
        limits: system::limits(root),
        gpus,
        rdma,
        routes: net::routes(root, &netdevs),
        netdevs,
        system: system::read(root),
    }
}

/// Reads the part of the inventory that is needed to place ranks, and nothing slow: every host of a
/// job does this at once, and some files take global locks in the kernel. The hardware threads of
/// each core are read only if `with_cores` is set, since that takes a file per core.
pub(crate) fn read_for_job(root: &Root, with_cores: bool) -> Inventory {
    let (netdevs, routes) = match rdma::is_there(root) {
        true => {
            let netdevs = net::read(root);
            let routes = net::routes(root, &netdevs);
            (netdevs, routes)
        }
        false => (net::addressed(root), Vec::new()),
    };
    let (container, has_rdma) = (system::container(root), rdma::is_there(root));
    let system = if has_rdma { system::read_rdma_software(root) } else { System::default() };
    // RDMA needs locked memory, and containers often have low limits.
    let limits = match container.is_some() || has_rdma {
        true => system::limits(root),
        false => ResourceLimits::default(),
    };
    let cpus = cpu::read(root);
    let cores = with_cores.then(|| cpu::cores(root, &cpus.online)).flatten().unwrap_or_default();
    Inventory {
        cpus: Cpus { cores, ..cpus },
        numa_nodes: cpu::numa_nodes(root),
        gpus: gpu::driven(root),
        rdma: rdma::read(root, &netdevs),
        netdevs,
        routes,
        limits,
        system: System { container, ..system },
    }
}

/// Returns a field of `/proc/self/status`.
pub(crate) fn status(root: &Root, name: &str) -> Option<String> {
    system::status(root, name)
}

/// Counts the GPUs that ranks can use.
pub(crate) fn gpus(root: &Root) -> usize {
    gpu::count(root)
}

/// Tells whether this machine has a GPU that ranks can use.
pub(crate) fn has_gpus(root: &Root) -> bool {
    gpu::is_there(root)
}

/// Writes the inventory of this machine, or of a recorded one, to stdout.
pub(crate) fn print(recorded: Option<OsString>) -> ExitCode {
    let root = recorded.map_or_else(Root::live, |prefix| Root::recorded(Path::new(&prefix)));
    write(&read(&root))
}

/// Writes a message as [`HELLO_MAGIC`] and a frame. The marker ends what a login shell may have
/// printed before.
pub(crate) fn write<T: Serialize>(message: &T) -> ExitCode {
    let written = encode(message).map_err(|error| error.to_string()).and_then(|frame| {
        let bytes = [HELLO_MAGIC, &frame].concat();
        let mut stdout = std::io::stdout().lock();
        let written = stdout.write_all(&bytes).and_then(|()| stdout.flush());
        written.map_err(|error| error.to_string())
    });
    match written {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            errln!("rlaunch-worker: cannot write to stdout: {error}");
            ExitCode::FAILURE
        }
    }
}
