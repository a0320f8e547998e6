//! Settings of the kernel and of the distribution, and free memory.

use crate::node::inventory::Root;
use nix::errno::Errno;
use nix::sys::statvfs::statvfs;
use rlaunch_bootstrap::inventory::diagnostics::{KernelSettings, SharedMemoryDefect};
use std::fs::OpenOptions;
use std::os::unix::fs::OpenOptionsExt;

/// Maximum number of words of the kernel's command line.
const MAX_WORDS: usize = 256;

pub(super) fn read_settings(root: &Root) -> KernelSettings {
    KernelSettings {
        command_line: command_line(root),
        ephemeral_ports: ephemeral_ports(root),
        reserved_ports: reserved_ports(root),
        max_map_count: root.value("/proc/sys/vm/max_map_count"),
        ptrace_scope: root.value("/proc/sys/kernel/yama/ptrace_scope"),
        backlog_max: root.value("/proc/sys/net/core/netdev_max_backlog"),
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

/// Returns the ranges of a list such as `8080,30608-30623`.
fn reserved_ports(root: &Root) -> Vec<(u16, u16)> {
    let text = root.text("/proc/sys/net/ipv4/ip_local_reserved_ports").unwrap_or_default();
    let range = |word: &str| {
        let (first, last) = word.split_once('-').unwrap_or((word, word));
        Some((first.parse().ok()?, last.parse().ok()?))
    };
    text.trim().split(',').filter_map(range).collect()
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
pub(super) fn free_space(root: &Root, recorded: &str, directory: &str) -> Option<u64> {
    let free = || statvfs(directory).map(|stat| stat.blocks_available() * stat.fragment_size());
    let lines = root.asked_lines(recorded, || free().iter().map(u64::to_string).collect());
    lines.first()?.parse().ok()
}

/// Says why files cannot be made in `/dev/shm`. A recording has the number of the error.
pub(super) fn shared_memory_defect(root: &Root) -> Option<SharedMemoryDefect> {
    let code = || try_file("/dev/shm").map(|code| code.to_string());
    let lines = root.asked_lines("/shared-memory-error", || code().into_iter().collect());
    match Errno::from_raw(lines.first()?.parse().ok()?) {
        Errno::ENOENT | Errno::ENOTDIR => Some(SharedMemoryDefect::Missing),
        Errno::EROFS => Some(SharedMemoryDefect::ReadOnly),
        Errno::EACCES | Errno::EPERM => Some(SharedMemoryDefect::Denied),
        // An empty file takes no space.
        Errno::ENOSPC => Some(SharedMemoryDefect::NoInodes),
        // Some file systems do not make files without a name.
        _ => None,
    }
}

/// Makes a file without a name in a directory, which is gone at once. Returns the number of the error.
fn try_file(directory: &str) -> Option<i32> {
    let mut options = OpenOptions::new();
    let made = options.write(true).mode(0o600).custom_flags(libc::O_TMPFILE).open(directory);
    made.err().and_then(|error| error.raw_os_error())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_directory_without_files_says_why() {
        assert_eq!(try_file("/nonexistent"), Some(libc::ENOENT));
        // Not even root makes a file there.
        assert!(try_file("/proc/self").is_some());
        let made = tempfile::tempdir().unwrap();
        let tried = try_file(made.path().to_str().unwrap());
        assert!(matches!(tried, None | Some(libc::EOPNOTSUPP | libc::EISDIR)), "{tried:?}");
        assert_eq!(std::fs::read_dir(made.path()).unwrap().count(), 0, "a file is left");
    }

    #[test]
    fn secrets_are_left_out() {
        let short = |word| without_secret(word);
        assert_eq!(short("rd.iscsi.password=x"), "rd.iscsi.password");
        assert_eq!(short("ks=http://me:secret@host/"), "ks");
        assert_eq!(short("root=UUID=1-2"), "root=UUID=1-2");
        assert_eq!((short("iommu=pt"), short("quiet")), ("iommu=pt", "quiet"));
    }
}
