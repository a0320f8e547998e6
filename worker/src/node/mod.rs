//! This host: its inventory and facts, what is wrong with it, environments for ranks, limits, and the
//! cache of rlaunch's builds and helper programs.

pub(crate) mod cache;
pub(crate) mod delivery;
pub(crate) mod diagnostics;
pub(crate) mod elf;
pub(crate) mod environment;
pub(crate) mod inventory;
pub(crate) mod slurm_task;

use inventory::{Root, ip_address, prefix_length};
use nix::ifaddrs::getifaddrs;
use nix::net::if_::InterfaceFlags;
use nix::unistd::{SysconfVar, Uid, gethostname, sysconf};
use rlaunch_bootstrap::job::{InterfaceAddress, NodeFacts};
use std::net::IpAddr;
use std::sync::{Arc, Mutex, PoisonError};
use std::{io, thread};

/// Units of the numbers in `/proc/stat` and `/proc/PID/stat`.
pub(crate) struct Units {
    pub(crate) ticks_per_second: u64,
    pub(crate) page_size: u64,
}

impl Units {
    /// Asks the C library for them.
    pub(crate) fn of_system() -> Units {
        let read = |name, default| {
            let value = sysconf(name).ok().flatten().and_then(|value| u64::try_from(value).ok());
            value.filter(|value| *value > 0).unwrap_or(default)
        };
        Units {
            ticks_per_second: read(SysconfVar::CLK_TCK, 100),
            page_size: read(SysconfVar::PAGE_SIZE, 4096),
        }
    }
}

/// Runs work in a thread of its own. Runs it at once, in the caller's, if no thread can be started: glibc starts
/// threads by clone3(2), which seccomp filters of older container engines forbid.
pub(crate) fn in_thread(work: impl FnOnce() + Send + 'static) {
    run_in_thread(Box::new(work));
}

/// Work for a thread. It is boxed, since what starts a thread is some kilobytes of code for each kind of work.
pub(crate) type Work = Box<dyn FnOnce() + Send>;

fn run_in_thread(work: Work) {
    // A failed start takes what it is given with it.
    let work = Arc::new(Mutex::new(Some(work)));
    let shared = Arc::clone(&work);
    if start_thread(None, Box::new(move || run_once(&shared))).is_err() {
        run_once(&work);
    }
}

fn run_once(work: &Mutex<Option<Work>>) {
    let work = work.lock().unwrap_or_else(PoisonError::into_inner).take();
    if let Some(work) = work {
        work();
    }
}

/// Starts a thread, with a stack of this size in bytes or the usual one.
pub(crate) fn start_thread(stack: Option<usize>, work: Work) -> io::Result<()> {
    let thread = thread::Builder::new();
    let thread = if let Some(size) = stack { thread.stack_size(size) } else { thread };
    thread.spawn(work).map(drop)
}

/// Reads the facts about this node that the agent sends in its first frame. Facts that cannot be read are left empty.
pub(crate) fn facts() -> NodeFacts {
    NodeFacts {
        hostname: gethostname().map(|name| name.to_string_lossy().into_owned()).unwrap_or_default(),
        arch: std::env::consts::ARCH.to_owned(),
        pid: std::process::id(),
        guardian: std::os::unix::process::parent_id(),
        uid: Uid::effective().as_raw(),
        addresses: addresses(),
        ssh_address: std::env::var("SSH_CONNECTION").ok().and_then(|value| ssh_address(&value)),
        gpus: u32::try_from(inventory::count_gpus(&Root::live())).unwrap_or(u32::MAX),
        machine: machine().unwrap_or_default(),
    }
}

/// Returns an identifier of this host: the kernel's boot id and the namespaces of this process,
/// since containers of one machine share the boot id and may share some namespaces.
fn machine() -> Option<String> {
    let boot = std::fs::read_to_string("/proc/sys/kernel/random/boot_id").ok()?;
    let mut machine = boot.trim().to_owned();
    for kind in ["net", "pid", "uts"] {
        let namespace = std::fs::read_link(format!("/proc/self/ns/{kind}")).ok()?;
        machine = format!("{machine} {}", namespace.display());
    }
    Some(machine)
}

/// Parses `SSH_CONNECTION`: `client-address client-port server-address server-port`.
fn ssh_address(value: &str) -> Option<IpAddr> {
    value.split(' ').nth(2)?.parse().ok().filter(|address| is_usable(*address))
}

fn addresses() -> Vec<InterfaceAddress> {
    let up = |flags: InterfaceFlags| {
        flags.contains(InterfaceFlags::IFF_UP) && !flags.contains(InterfaceFlags::IFF_LOOPBACK)
    };
    let interfaces = getifaddrs().into_iter().flatten().filter(|entry| up(entry.flags));
    let mut found = Vec::new();
    for entry in interfaces {
        let Some(address) = entry.address.as_ref().and_then(ip_address) else { continue };
        if is_usable(address) {
            let prefix = prefix_length(entry.netmask.as_ref().and_then(ip_address));
            found.push(InterfaceAddress { interface: entry.interface_name, address, prefix });
        }
    }
    found
}

/// Tells whether other nodes can use the address, that is, it is not loopback, link-local or
/// unspecified.
pub(crate) fn is_usable(address: IpAddr) -> bool {
    match address {
        IpAddr::V4(v4) => !v4.is_loopback() && !v4.is_link_local() && !v4.is_unspecified(),
        IpAddr::V6(v6) => !v6.is_loopback() && !v6.is_unicast_link_local() && !v6.is_unspecified(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_ssh_address_is_the_third_word() {
        assert_eq!(ssh_address("192.0.2.1 4711 192.0.2.7 22"), "192.0.2.7".parse().ok());
        assert_eq!(ssh_address("127.0.0.1 4711 127.0.1.1 22"), None);
        assert_eq!(ssh_address("fe80::1 1 fd00::2 22"), "fd00::2".parse().ok());
        assert_eq!(ssh_address("rubbish"), None);
    }

    #[test]
    fn an_agent_knows_the_machine_again() {
        let (one, two) = (facts(), facts());
        assert!(one.is_same_host(&two), "{one:?} {two:?}");
        let elsewhere = NodeFacts { hostname: "elsewhere".into(), ..two.clone() };
        assert!(!one.is_same_host(&elsewhere));
        let silent = NodeFacts { machine: String::new(), ..two };
        assert!(!silent.is_same_host(&silent));
    }

    #[test]
    fn loopback_is_never_reported() {
        assert!(facts().addresses.iter().all(|a| !a.address.is_loopback()));
    }
}
