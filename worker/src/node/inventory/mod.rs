//! What this node has, read from the kernel's files below a [`Root`]; no other program is asked.
//!
//! What cannot be read is left out: a container may lack any of it.

mod cpu;
mod gpu;
pub(crate) mod nccl;
mod net;
mod netlink;
mod pci;
mod rdma;
mod root;
mod system;

#[cfg(test)]
mod tests;

pub(crate) use root::Root;

use crate::console::errln;
use rlaunch_bootstrap::inventory::{Cpus, Inventory, ResourceLimits, System};
use rlaunch_bootstrap::protocol::control::{HELLO_MAGIC, encode};
use serde::Serialize;
use std::ffi::OsString;
use std::io::Write;
use std::path::Path;
use std::process::ExitCode;

/// Reads everything.
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

/// Reads what ranks are placed by, and nothing that takes long: every host of a job does this at
/// once, and some of the kernel's files take locks that all of them want. Which processors are
/// threads of one core is a file for each core, and read for those who ask.
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
    let system = if has_rdma { system::of_rdma(root) } else { System::default() };
    // They matter to RDMA, and are what containers are short of.
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

/// How many GPUs there are that ranks could use.
pub(crate) fn gpus(root: &Root) -> usize {
    gpu::count(root)
}

/// Whether there is a GPU that ranks could use.
pub(crate) fn has_gpus(root: &Root) -> bool {
    gpu::is_there(root)
}

/// Writes the inventory of this machine, or of a recorded tree, to stdout.
pub(crate) fn print(recorded: Option<OsString>) -> ExitCode {
    let root = recorded.map_or_else(Root::live, |prefix| Root::recorded(Path::new(&prefix)));
    write(&read(&root))
}

/// Writes what [`read`] reads of this machine to stdout: files, and nothing of this process but its
/// limits.
pub(crate) fn capture() -> ExitCode {
    let root = Root::recording_live();
    read(&root);
    write(&root.recording())
}

/// [`HELLO_MAGIC`] and a frame. A login shell may have printed anything before.
fn write<T: Serialize>(message: &T) -> ExitCode {
    let written = encode(message).map_err(|error| error.to_string()).and_then(|frame| {
        let bytes = [HELLO_MAGIC, &frame].concat();
        std::io::stdout().lock().write_all(&bytes).map_err(|error| error.to_string())
    });
    match written {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            errln!("rlaunch-worker: cannot write the inventory: {error}");
            ExitCode::FAILURE
        }
    }
}
