//! State of this host that `rlaunch doctor` reads, and counters that `rlaunch monitor` reads. Facts that
//! cannot be read are left out.
//!
//! Everything is read through a [`Root`], as the inventory is, so that a recorded host gives the same
//! answer. Three programs are run: the user's login shell, for its environment; `getent`, for the
//! address of this host's name; and, if the user is root, those that print the rules of the packet
//! filter. Nothing on the host is changed: no kernel module is loaded, no directory is made.
//!
//! | file | contents |
//! |---|---|
//! | `kernel.rs`, `kernel_log.rs` | settings of the kernel and of the distribution, free memory; the kernel's log |
//! | `modules.rs` | kernel modules and their parameters |
//! | `interfaces.rs` | network interfaces, RDMA ports, network cards without a driver |
//! | `own_name.rs` | this host's own name |
//! | `counters.rs` | counters of errors and drops, and how they are read again |
//! | `traffic.rs`, `gpu_monitor.rs` | counters of CPUs, memory, traffic and GPUs, for `rlaunch monitor` |
//! | `processes.rs` | running services, listening sockets |
//! | `firewall/` | the packet filter |
//! | `python.rs` | Python and its packages |
//! | `program.rs`, `background.rs` | time limits for programs, and for whatever else may take long |

mod background;
mod counters;
mod firewall;
mod gpu_monitor;
mod interfaces;
mod kernel;
mod kernel_log;
mod modules;
mod own_name;
mod processes;
mod program;
pub(crate) mod python;
mod traffic;

#[cfg(test)]
mod tests;

pub(crate) use counters::read_again;
pub(crate) use gpu_monitor::GpuMonitor;
pub(crate) use traffic::read as read_traffic;

use crate::console;
use crate::node::environment::{self, Variables};
use crate::node::inventory::{self, Root};
use background::Background;
use python::Interpreter;
use rlaunch_bootstrap::inventory::Inventory;
use rlaunch_bootstrap::inventory::diagnostics::Diagnostics;
use std::ffi::OsStr;
use std::process::ExitCode;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

/// Time limit for the login shell, and time in which one that takes longer is killed.
const LOGIN_TIMEOUT: Duration = Duration::from_secs(3);
const KILL_TIME: Duration = Duration::from_millis(500);

/// Inventory and state of a host.
#[derive(Debug)]
pub(crate) struct HostState {
    pub(crate) inventory: Inventory,
    pub(crate) diagnostics: Diagnostics,
    /// Environment of a login; empty for a recorded host or if the login shell gives none.
    pub(crate) login: Variables,
    /// Time at which counters were read.
    pub(crate) counted_at: Instant,
}

/// Reads inventory and state of a host. Takes up to [`LOGIN_TIMEOUT`] longer than the inventory.
pub(crate) fn read(root: &Root) -> HostState {
    let login = root.is_live().then(|| Background::start(login_environment));
    let own_addresses = own_name::start_look_up(root);
    let mut inventory = inventory::read(root);
    let counted_at = Instant::now();
    let diagnostics = Diagnostics {
        uid: effective_uid(root),
        adapters: interfaces::read_adapters(root, &inventory),
        modules: modules::list_loaded(root),
        module_parameters: modules::read_parameters(root),
        connection_manager: modules::find_connection_manager(root),
        kernel: kernel::read_settings(root),
        nvidia_open: modules::is_nvidia_open(root),
        gpu_files: modules::find_gpu_files(root),
        interfaces: interfaces::read(root, &inventory),
        rdma_ports: interfaces::read_rdma_ports(root, &inventory),
        counters: counters::read_host(root),
        services: processes::list_services(root),
        listeners: processes::list_listeners(root),
        firewall: firewall::read(root),
        kernel_log: kernel_log::read(root),
        memory_available: kernel::memory_available(root),
        tmp_available: kernel::free_space(root, "/tmp-available", "/tmp"),
        shared_memory_available: kernel::free_space(root, "/shared-memory-available", "/dev/shm"),
        shared_memory_defect: kernel::shared_memory_defect(root),
        ..Diagnostics::default()
    };
    let login =
        login.and_then(|login| login.wait(LOGIN_TIMEOUT + KILL_TIME)).flatten().unwrap_or_default();
    let interpreter = Interpreter::find(&login);
    inventory.system.nccl = python::nccl(root, &inventory, interpreter.as_ref(), &login);
    let (own_name, other_name_sources) = own_name::read(root, own_addresses);
    let diagnostics = Diagnostics {
        own_name,
        other_name_sources,
        proxy_variables: proxy_variables(root, &login),
        python: python::packages(root, interpreter.as_ref()),
        ..diagnostics
    };
    HostState { inventory, diagnostics, login, counted_at }
}

/// Returns the time since the epoch in microseconds.
pub(crate) fn unix_micros() -> Option<u64> {
    u64::try_from(SystemTime::now().duration_since(UNIX_EPOCH).ok()?.as_micros()).ok()
}

/// Writes a recording of the files that [`read`] reads on this machine to stdout. About this
/// process, the recording includes only its limits, status and control groups; about others, their
/// names, if they are services or listen on ports that jobs need.
pub(crate) fn capture() -> ExitCode {
    let root = Root::recording_live();
    read(&root);
    console::write_message(&root.recording())
}

fn login_environment() -> Option<Variables> {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().ok()?;
    // A shell that takes longer is killed, because this process may end before the limit of a login.
    let asking = async { tokio::time::timeout(LOGIN_TIMEOUT, environment::of_login()).await };
    runtime.block_on(asking).ok()?.ok()
}

/// Returns the effective user id, which is the second of the four.
fn effective_uid(root: &Root) -> u32 {
    let ids = inventory::read_status(root, "Uid");
    ids.and_then(|ids| ids.split_whitespace().nth(1)?.parse().ok()).unwrap_or_default()
}

/// Returns the names of variables that point to a proxy or away from it.
fn proxy_variables(root: &Root, login: &Variables) -> Vec<String> {
    const WANTED: &[&str] = &["http_proxy", "https_proxy", "all_proxy", "grpc_proxy", "no_proxy"];
    let is_wanted = |name: &str| WANTED.iter().any(|wanted| wanted.eq_ignore_ascii_case(name));
    let names = || {
        let set = login.iter().filter(|(_, value)| !value.is_empty());
        let names = set.filter_map(|(name, _)| name.to_str()).filter(|name| is_wanted(name));
        names.map(str::to_owned).collect()
    };
    root.asked_lines("/proxy-variables", names)
}

/// Returns the value of a variable, or an empty text.
pub(crate) fn variable<'a>(login: &'a Variables, name: &str) -> &'a OsStr {
    let found = login.iter().find(|(own, _)| own == name);
    found.map_or(OsStr::new(""), |(_, value)| value)
}
