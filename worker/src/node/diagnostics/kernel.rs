//! Settings of the kernel and of the distribution, and free memory.
//!
//! Lines of the kernel's log that matter to jobs, from the last hour.
//!
//! Kernel modules on RDMA, networks and GPUs, their parameters and device files.

use crate::node::inventory::Root;
use nix::errno::Errno;
use nix::fcntl::OFlag;
use nix::sys::statvfs::statvfs;
use nix::time::{ClockId, clock_gettime};
use rlaunch_bootstrap::inventory::diagnostics::{DeviceFile, KernelSettings, LogLine};
use std::fs::{File, OpenOptions};
use std::io::Read;
use std::os::unix::fs::OpenOptionsExt;
use std::time::{Duration, Instant};

/// Maximum number of words of the kernel's command line.
const MAX_WORDS: usize = 256;

pub(super) fn settings(root: &Root) -> KernelSettings {
    KernelSettings {
        command_line: command_line(root),
        ephemeral_ports: ephemeral_ports(root),
        max_map_count: root.value("/proc/sys/vm/max_map_count"),
        ptrace_scope: root.value("/proc/sys/kernel/yama/ptrace_scope"),
        receive_buffer_max: root.value("/proc/sys/net/core/rmem_max"),
        selinux_enforcing: root.value::<u8>("/sys/fs/selinux/enforce") == Some(1),
        distribution_ids: distribution_ids(&root.text("/etc/os-release").unwrap_or_default()),
        ufw_enabled: setting(&root.text("/etc/ufw/ufw.conf").unwrap_or_default(), "ENABLED")
            .is_some_and(|value| value.eq_ignore_ascii_case("yes")),
    }
}

/// Returns the words of the kernel's command line, without the values of those that may be secret.
fn command_line(root: &Root) -> Vec<String> {
    const PATH: &str = "/proc/cmdline";
    let text = root.asked_text(PATH, || {
        let text = std::fs::read_to_string(PATH).ok()?;
        Some(text.split_whitespace().map(without_secret).collect::<Vec<_>>().join(" "))
    });
    let text = text.unwrap_or_default();
    text.split_whitespace().take(MAX_WORDS).map(str::to_owned).collect()
}

/// Shortens a word like `rd.iscsi.password=x` or `ks=http://me:secret@host/` to its name.
fn without_secret(word: &str) -> &str {
    const SECRET: &[&str] = &["pass", "secret", "token", "key", "user", "auth", "cred"];
    let Some((name, value)) = word.split_once('=') else { return word };
    let is_secret = SECRET.iter().any(|part| name.to_ascii_lowercase().contains(part));
    if is_secret || value.contains("://") || value.contains('@') { name } else { word }
}

fn ephemeral_ports(root: &Root) -> Option<(u16, u16)> {
    let text = root.text("/proc/sys/net/ipv4/ip_local_port_range")?;
    let (first, last) = text.split_once(char::is_whitespace)?;
    Some((first.trim().parse().ok()?, last.trim().parse().ok()?))
}

fn distribution_ids(release: &str) -> Vec<String> {
    let values = ["ID", "ID_LIKE"].into_iter().filter_map(|name| setting(release, name));
    values.flat_map(str::split_whitespace).map(str::to_owned).collect()
}

/// Returns the value of a line like `NAME="value"`.
fn setting<'a>(text: &'a str, name: &str) -> Option<&'a str> {
    let value = |line: &'a str| line.trim().strip_prefix(name)?.strip_prefix('=');
    text.lines().find_map(value).map(|value| value.trim().trim_matches(['"', '\'']))
}

pub(super) fn memory_available(root: &Root) -> Option<u64> {
    memory_field(&root.text("/proc/meminfo")?, "MemAvailable")
}

/// Returns a field of `/proc/meminfo` in bytes.
pub(super) fn memory_field(text: &str, name: &str) -> Option<u64> {
    let line = text.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(':'))?;
    line.split_whitespace().next()?.parse::<u64>().ok()?.checked_mul(1024)
}

/// Returns the space that this user can use in a directory, in bytes. `recorded` is the file of a
/// recording with the number.
pub(super) fn space(root: &Root, recorded: &str, directory: &str) -> Option<u64> {
    let free = || statvfs(directory).map(|stat| stat.blocks_available() * stat.fragment_size());
    let lines = root.socket_lines(recorded, || free().iter().map(u64::to_string).collect());
    lines.first()?.parse().ok()
}

/// Age of the oldest line, in seconds.
const MAX_AGE: u64 = 3600;
/// Maximum number of lines, and maximum length of each in bytes. If there are more, the last ones
/// count.
const MAX_LINES: usize = 200;
const MAX_TEXT: usize = 300;
/// Maximum length of a record (`PRINTK_MESSAGE_MAX`), in bytes.
const MAX_RECORD: usize = 8 << 10;
/// Time limit for reading a log, which may have a million records.
const READ_TIMEOUT: Duration = Duration::from_secs(1);

/// Rows of words in lower case: a line matters if it has all words of a row.
const WANTED: &[&[&str]] = &[
    // GPUs, NVSwitches, and their links
    &["xid ("],
    &["nvrm", "fallen off the bus"],
    &["nvrm", "mismatch"],
    &["amdgpu", "gpu reset"],
    // PCIe
    &["aer:", "error"],
    &["pcie bus error"],
    &["available pcie bandwidth"],
    &["dmar:", "fault"],
    &["io_page_fault"],
    // NICs
    &["mlx5_core", "error"],
    &["mlx5_core", "fail"],
    &["mlx5_core", "timeout"],
    &["mlx5_core", "cable"],
    &["mlx5_core", "power"],
    &["mlx4_core", "error"],
    &["mlx4_core", "fail"],
    &["mlx4_ib", "fail"],
    &["erdma", "error"],
    &["erdma", "fail"],
    &["irdma", "fail"],
    &["bnxt_re", "fail"],
    &["health compromised"],
    &["assert_var"],
    &["poll_health"],
    &["fatal error"],
    &["fw fatal"],
    &["high temperature"],
    &["transmit queue"],
    &["tx timeout"],
    &["netdev watchdog"],
    // Links
    &["mlx5_core", "link down"],
    &["mlx5_core", "link up"],
    &["mlx4_en", "link down"],
    &["mlx4_en", "link up"],
    &["link is down"],
    &["link is up"],
    &["link status definitely"],
    // Memory
    &["out of memory:"],
    &["memory cgroup out of memory"],
    &["oom-kill:"],
];

pub(super) fn read_log(root: &Root) -> Option<Vec<LogLine>> {
    let text = root.asked_text("/kernel-log", || {
        let now = clock_gettime(ClockId::CLOCK_MONOTONIC).ok()?;
        let now = u64::try_from(now.tv_sec()).ok()?;
        let mut log = OpenOptions::new();
        let log = log.read(true).custom_flags(OFlag::O_NONBLOCK.bits()).open("/dev/kmsg").ok()?;
        Some(chosen(records(log), now))
    })?;
    let line = |line: &str| {
        let (age, text) = line.split_once(' ')?;
        Some(LogLine { age: age.parse().ok()?, text: text.to_owned() })
    };
    Some(text.lines().filter_map(line).collect())
}

/// Reads the records of the log, each by a read of its own.
fn records(mut log: File) -> impl Iterator<Item = String> {
    let until = Instant::now() + READ_TIMEOUT;
    let mut buffer = vec![0; MAX_RECORD];
    std::iter::from_fn(move || {
        while Instant::now() < until {
            match log.read(&mut buffer) {
                Ok(length) if length > 0 => {
                    return Some(String::from_utf8_lossy(&buffer[..length]).into_owned());
                }
                // Records were overwritten before they could be read.
                Err(error) if error.raw_os_error() == Some(Errno::EPIPE as i32) => {}
                _ => return None,
            }
        }
        None
    })
}

/// Returns a line `AGE TEXT` for each record that matters.
fn chosen(records: impl Iterator<Item = String>, now: u64) -> String {
    let mut lines: Vec<String> = records.filter_map(|record| line(&record, now)).collect();
    let left_out = lines.len().saturating_sub(MAX_LINES);
    lines.drain(..left_out);
    lines.join("\n")
}

/// Reads a record like `6,1234,5678901,-;text`, where the third number is the time since the start
/// in microseconds, and further lines are details.
fn line(record: &str, now: u64) -> Option<String> {
    let (head, text) = record.split_once(';')?;
    let micros: u64 = head.split(',').nth(2)?.parse().ok()?;
    let age = now.saturating_sub(micros / 1_000_000);
    let text = text.lines().next()?.trim();
    let text = &text[..text.floor_char_boundary(MAX_TEXT)];
    (age <= MAX_AGE && matters(text)).then(|| format!("{age} {text}"))
}

fn matters(text: &str) -> bool {
    let text = text.to_ascii_lowercase();
    WANTED.iter().any(|words| words.iter().all(|word| text.contains(word)))
}

/// Modules that are reported.
const MODULES: &[&str] = &[
    "8021q",
    "amdgpu",
    "bnxt_en",
    "bnxt_re",
    "bonding",
    "bridge",
    "cxgb4",
    "efa",
    "erdma",
    "gdrdrv",
    "hns_roce_hw_v2",
    "i40e",
    "ib_cm",
    "ib_core",
    "ib_ipoib",
    "ib_iser",
    "ib_mad",
    "ib_umad",
    "ib_uverbs",
    "ice",
    "ionic_rdma",
    "ip_set",
    "ip_tables",
    "irdma",
    "iw_cm",
    "iw_cxgb4",
    "mana_ib",
    "mlx4_core",
    "mlx4_en",
    "mlx4_ib",
    "mlx5_core",
    "mlx5_ib",
    "nf_conntrack",
    "nf_tables",
    "nft_compat",
    "nouveau",
    "nv_peer_mem",
    "nvidia",
    "nvidia_fs",
    "nvidia_modeset",
    "nvidia_peermem",
    "nvidia_uvm",
    "ocrdma",
    "qedr",
    "rdma_cm",
    "rdma_rxe",
    "rdma_ucm",
    "rpcrdma",
    "siw",
    "thunderbolt_net",
    "usnic_verbs",
    "vmw_pvrdma",
    "x_tables",
];
/// Modules whose parameters are reported.
const WITH_PARAMETERS: &[&str] = &[
    "erdma",
    "ib_core",
    "ib_ipoib",
    "irdma",
    "mlx4_core",
    "mlx4_en",
    "mlx4_ib",
    "mlx5_core",
    "mlx5_ib",
    "nvidia_peermem",
    "rdma_rxe",
    "siw",
];
/// Maximum length of a parameter's value, in characters.
const MAX_VALUE: usize = 100;

/// Returns the wanted modules that are loaded or built into the kernel, sorted; empty if the kernel's
/// lists cannot be read.
pub(super) fn loaded_modules(root: &Root) -> Vec<String> {
    let (loaded, built_in) = (root.text("/proc/modules"), built_in(root));
    if loaded.is_none() && built_in.is_none() {
        return Vec::new();
    }
    let (loaded, built_in) = (loaded.unwrap_or_default(), built_in.unwrap_or_default());
    let loaded = loaded.lines().filter_map(|line| line.split(' ').next());
    let names: Vec<String> = loaded.chain(built_in.iter().map(String::as_str)).map(named).collect();
    let is_there = |name: &&&str| {
        // Modules built into the kernel are listed here if they have parameters.
        names.iter().any(|own| own == **name) || root.exists(&format!("/sys/module/{name}"))
    };
    MODULES.iter().filter(is_there).map(|name| (*name).to_owned()).collect()
}

/// Returns the wanted modules in the kernel's list of those that are built in, which has lines like
/// `kernel/net/bridge/bridge.ko`.
fn built_in(root: &Root) -> Option<Vec<String>> {
    let release = root.text("/proc/sys/kernel/osrelease")?;
    let list = root.asked_text("/built-in-modules", || {
        let path = format!("/lib/modules/{release}/modules.builtin");
        let text = std::fs::read_to_string(path).ok()?;
        let files = text.lines().filter_map(|line| line.rsplit('/').next()?.strip_suffix(".ko"));
        let wanted = files.map(named).filter(|name| MODULES.contains(&name.as_str()));
        Some(wanted.collect::<Vec<String>>().join("\n"))
    })?;
    Some(list.lines().map(str::to_owned).collect())
}

/// Tells whether a module is in the kernel. Returns `None` if that cannot be known, as in a container
/// without the kernel's lists.
pub(super) fn is_loaded(root: &Root, module: &str) -> Option<bool> {
    if !root.exists("/proc/modules") {
        // This kernel loads no modules, so that asking for one loads none.
        return Some(true);
    }
    if loaded_modules(root).iter().any(|name| name == module) {
        Some(true)
    } else {
        built_in(root).map(|_| false)
    }
}

/// Writes a module's name as the kernel does.
fn named(name: &str) -> String {
    name.replace('-', "_")
}

/// Returns the parameters of RDMA modules, such as `erdma.compat_mode`, with their values.
pub(super) fn module_parameters(root: &Root) -> Vec<(String, String)> {
    let of_module = |module: &&str| {
        let directory = format!("/sys/module/{module}/parameters");
        let names = if root.exists(&directory) { root.names(&directory) } else { Vec::new() };
        let read = move |name: String| {
            // Some may be written only.
            let value = root.text(&format!("{directory}/{name}"))?;
            Some((name, value.chars().take(MAX_VALUE).collect::<String>()))
        };
        let read: Vec<(String, String)> = names.into_iter().filter_map(read).collect();
        read.into_iter()
            .map(|(name, value)| (format!("{module}.{name}"), value))
            .collect::<Vec<_>>()
    };
    let mut parameters: Vec<_> = WITH_PARAMETERS.iter().flat_map(of_module).collect();
    parameters.sort_unstable();
    parameters
}

/// Tells whether NVIDIA's driver consists of its open kernel modules. Only these are not proprietary,
/// which the kernel notes as the taint `P`.
pub(super) fn nvidia_open(root: &Root) -> Option<bool> {
    match root.text("/proc/driver/nvidia/version") {
        Some(version) => Some(version.contains("Open Kernel Module")),
        None => root.text("/sys/module/nvidia/taint").map(|taint| !taint.contains('P')),
    }
}

/// Looks for the device file of the RDMA connection manager.
pub(super) fn connection_manager(root: &Root) -> DeviceFile {
    match root.may_open("/dev/infiniband/rdma_cm") {
        Some(true) => DeviceFile::Usable,
        Some(false) => DeviceFile::Denied,
        None => DeviceFile::Missing,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn secrets_are_left_out() {
        let short = |word| without_secret(word);
        assert_eq!(short("rd.iscsi.password=x"), "rd.iscsi.password");
        assert_eq!(short("ks=http://me:secret@host/"), "ks");
        assert_eq!(short("root=UUID=1-2"), "root=UUID=1-2");
        assert_eq!((short("iommu=pt"), short("quiet")), ("iommu=pt", "quiet"));
    }

    #[test]
    fn lines_that_matter_are_chosen() {
        for text in [
            "NVRM: Xid (PCI:0000:3b:00): 79, pid='<unknown>', GPU has fallen off the bus.",
            "nvidia-nvswitch3: SXid (PCI:0000:c1:00.0): 20034, Fatal, Link 30 LTSSM Fault Up",
            "pcieport 0000:00:01.0: AER: Corrected error received: 0000:01:00.0",
            "mlx5_core 0000:c3:00.0: poll_health:735:(pid 0): Fatal error 1 detected",
            "mlx5_core 0000:c3:00.0 ens1np0: Link down",
            "ixgbe 0000:01:00.0 eth0: NIC Link is Down",
            "Out of memory: Killed process 4711 (python3) total-vm:1kB",
        ] {
            assert_eq!(line(&format!("3,7,5000000,-;{text}\n"), 9), Some(format!("4 {text}")));
        }
        for text in [
            "ata1: SATA link up 6.0 Gbps (SStatus 133 SControl 300)",
            "IPv6: ADDRCONFIG(NETDEV_CHANGE): eth0: link becomes ready",
            "mlx5_core 0000:c3:00.0: firmware version: 22.31.1014",
            "mlx5_core 0000:c3:00.0: E-Switch: Total vports 2",
        ] {
            assert_eq!(line(&format!("6,7,5000000,-;{text}"), 9), None, "{text}");
        }
    }

    #[test]
    fn old_and_broken_records_are_left_out() {
        let record = "3,7,5000000,-;oom-kill:x\n SUBSYSTEM=x";
        assert_eq!(line(record, 3605), Some("3600 oom-kill:x".to_owned()));
        assert_eq!(line(record, 3606), None);
        for record in ["", ";", "3;oom-kill:", "3,7,x,-;oom-kill:", "3,7,5000000,-"] {
            assert_eq!(line(record, 9), None, "{record}");
        }
        let long = format!("3,7,5,-;oom-kill:{}", "ä".repeat(500));
        assert!(line(&long, 0).unwrap().len() <= MAX_TEXT + 2);
        let many = chosen((0..300).map(|n| format!("3,7,{n}000000,-;oom-kill:{n}")), 300);
        let ages: Vec<&str> = many.lines().collect();
        assert_eq!((ages.len(), ages[0], ages[199]), (200, "200 oom-kill:100", "1 oom-kill:299"));
    }
}
