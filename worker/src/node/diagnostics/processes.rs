//! Running services, and TCP ports on which processes listen.

use crate::node::inventory::Root;
use rlaunch_bootstrap::inventory::diagnostics::ListeningPort;
use std::fs;
use std::ops::RangeInclusive;

/// Services that are reported, by the names that the kernel has for their processes, which it cuts
/// to 15 bytes.
const SERVICES: &[(&str, &str)] = &[
    ("chronyd", "chronyd"),
    ("dcgm-exporter", "dcgm-exporter"),
    ("firewalld", "firewalld"),
    ("ibacm", "ibacm"),
    ("irqbalance", "irqbalance"),
    ("iwpmd", "iwpmd"),
    ("lldpad", "lldpad"),
    ("ntpd", "ntpd"),
    ("nv-fabricmanage", "nv-fabricmanager"),
    ("nv-hostengine", "nv-hostengine"),
    ("nvidia-imex", "nvidia-imex"),
    ("nvidia-persiste", "nvidia-persistenced"),
    ("opensm", "opensm"),
    ("phc2sys", "phc2sys"),
    ("ptp4l", "ptp4l"),
    ("systemd-resolve", "systemd-resolved"),
    ("systemd-timesyn", "systemd-timesyncd"),
    ("tuned", "tuned"),
];
/// State of a listening socket in the kernel's table.
const LISTENING: &str = "0A";
/// Ports for which the process is looked up, which takes a file for each descriptor of each
/// process: those of eRDMA's compat mode, and those of jobs.
const OWNED_PORTS: [RangeInclusive<u16>; 2] = [30608..=30623, 21000..=21511];
/// Maximum number of descriptors that are looked at.
const MAX_DESCRIPTORS: usize = 200_000;

/// Returns the names of running services, sorted.
pub(super) fn list_services(root: &Root) -> Vec<String> {
    root.asked_lines("/services", || {
        let names = processes().filter_map(|pid| service_name(&process_name(pid)?));
        let mut names: Vec<&str> = names.collect();
        names.sort_unstable();
        names.dedup();
        names.into_iter().map(str::to_owned).collect()
    })
}

fn service_name(process: &str) -> Option<&'static str> {
    SERVICES.iter().find(|(cut, _)| *cut == process).map(|(_, name)| *name)
}

fn processes() -> impl Iterator<Item = u32> {
    let entries = fs::read_dir("/proc").into_iter().flatten().flatten();
    entries.filter_map(|entry| entry.file_name().to_str()?.parse().ok())
}

fn process_name(pid: u32) -> Option<String> {
    Some(fs::read_to_string(format!("/proc/{pid}/comm")).ok()?.trim_end().to_owned())
}

/// Returns the listening TCP ports, sorted, with the processes of those that jobs need.
pub(super) fn list_listeners(root: &Root) -> Vec<ListeningPort> {
    let lines = root.asked_lines("/listeners", || {
        let tables = ["/proc/net/tcp", "/proc/net/tcp6"].map(fs::read_to_string);
        let sockets = tables.iter().flatten().flat_map(|table| parse_listening(table));
        let mut ports: Vec<(u16, u64)> = sockets.collect();
        ports.sort_unstable();
        ports.dedup_by_key(|(port, _)| *port);
        let is_wanted = |port: u16| OWNED_PORTS.iter().any(|range| range.contains(&port));
        let wanted = ports.iter().filter(|(port, _)| is_wanted(*port));
        let owners = find_owners(&wanted.map(|(_, inode)| *inode).collect::<Vec<u64>>());
        let line =
            |(port, inode): &(u16, u64)| match owners.iter().find(|(socket, ..)| socket == inode) {
                Some((_, pid, name)) => format!("{port} {pid} {name}"),
                None => port.to_string(),
            };
        ports.iter().map(line).collect()
    });
    lines.iter().filter_map(|line| parse_listener(line)).collect()
}

/// Parses `PORT PID NAME` or `PORT`.
fn parse_listener(line: &str) -> Option<ListeningPort> {
    let mut words = line.splitn(3, ' ');
    let port = words.next()?.parse().ok()?;
    let pid = words.next().and_then(|pid| pid.parse().ok());
    Some(ListeningPort { port, process: pid.zip(words.next().map(str::to_owned)) })
}

/// Returns the ports and inodes of listening sockets from the kernel's table, which has lines like
/// `0: 0100007F:5208 00000000:0000 0A 00000000:00000000 00:00000000 00000000 1000 0 4711 …`.
fn parse_listening(table: &str) -> Vec<(u16, u64)> {
    let socket = |line: &str| {
        let words: Vec<&str> = line.split_ascii_whitespace().collect();
        let &[_, local, _, state, _, _, _, _, _, inode, ..] = &words[..] else { return None };
        let (_, port) = local.rsplit_once(':')?;
        let port = u16::from_str_radix(port, 16).ok()?;
        (state == LISTENING).then_some((port, inode.parse().ok()?))
    };
    table.lines().filter_map(socket).collect()
}

/// Finds the processes that have sockets open, as far as this user may see them: inode of the socket,
/// pid, name.
fn find_owners(inodes: &[u64]) -> Vec<(u64, u32, String)> {
    let mut owners: Vec<(u64, u32, String)> = Vec::new();
    let mut left = MAX_DESCRIPTORS;
    for pid in processes() {
        if owners.len() == inodes.len() || left == 0 {
            break;
        }
        let descriptors = fs::read_dir(format!("/proc/{pid}/fd")).into_iter().flatten().flatten();
        for descriptor in descriptors.take(left) {
            left -= 1;
            let Some(inode) = fs::read_link(descriptor.path()).ok().and_then(|link| {
                let inode = link.to_str()?.strip_prefix("socket:[")?.strip_suffix(']')?;
                inode.parse::<u64>().ok()
            }) else {
                continue;
            };
            if inodes.contains(&inode) && !owners.iter().any(|(known, ..)| *known == inode) {
                owners.push((inode, pid, process_name(pid).unwrap_or_default()));
            }
        }
    }
    owners
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::net::TcpListener;

    #[test]
    fn a_listening_socket_is_found_with_its_process() {
        let socket = TcpListener::bind("127.0.0.1:0").unwrap();
        let port = socket.local_addr().unwrap().port();
        let table = fs::read_to_string("/proc/net/tcp").unwrap();
        let (_, inode) = *parse_listening(&table).iter().find(|(own, _)| *own == port).unwrap();
        let owners = find_owners(&[inode]);
        assert_eq!((owners.len(), owners[0].0, owners[0].1), (1, inode, std::process::id()));
        drop(socket);
        let table = fs::read_to_string("/proc/net/tcp").unwrap();
        assert!(!parse_listening(&table).contains(&(port, inode)));
    }

    #[test]
    fn a_listener_of_a_recording_is_read() {
        let process = Some((812, "my server".to_owned()));
        assert_eq!(
            parse_listener("30610 812 my server"),
            Some(ListeningPort { port: 30610, process })
        );
        assert_eq!(parse_listener("22"), Some(ListeningPort { port: 22, process: None }));
        assert_eq!(parse_listener("x"), None);
    }

    #[test]
    fn services_have_their_whole_names() {
        assert_eq!(service_name("nv-fabricmanage"), Some("nv-fabricmanager"));
        assert_eq!(service_name("bash"), None);
        assert!(SERVICES.iter().all(|(cut, name)| cut.len() <= 15 && name.starts_with(cut)));
    }
}
