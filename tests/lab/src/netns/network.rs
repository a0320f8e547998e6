//! The lab's network: a bridge in the launch node's namespace, and a veth pair for each host.
//!
//! The addresses exist only inside the lab's own namespaces, so a lab cannot reach the machine's
//! network or be reached from it.

use std::net::Ipv4Addr;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::Duration;

use super::names::{LAUNCH, host_address, launch_address};
use super::state::LabPaths;
use crate::command::{feed, run, wait_until};
use crate::{LabError, files};

/// Time limit for the kernel to notice that a cable is plugged in.
const CARRIER: Duration = Duration::from_secs(10);

/// Kind of failure of a host's link.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Cut {
    /// The cable is pulled: both ends lose the carrier.
    Carrier,
    /// A black hole: frames are dropped and neither end notices.
    Silent,
}

/// Makes the launch node's namespace and the bridge.
pub(super) fn create_launch(paths: &LabPaths, net: [u8; 2]) -> Result<(), LabError> {
    let netns = paths.netns(LAUNCH);
    batch(None, "make the launch node's network", &format!("netns add {netns}\n"))?;
    let address = launch_address(net);
    let lines = format!(
        "link set lo up\nlink add br0 type bridge\naddr add {address}/16 dev br0\nlink set br0 up\n"
    );
    batch(Some(&netns), "make the bridge", &lines)
}

/// Makes namespaces and links for hosts, given as (number, name).
pub(super) fn create_hosts(
    paths: &LabPaths,
    net: [u8; 2],
    hosts: &[(usize, String)],
) -> Result<(), LabError> {
    let lines = |line: &dyn Fn(&str) -> String| -> String {
        hosts.iter().map(|(_, name)| line(name)).collect()
    };
    let namespaces = lines(&|host| format!("netns add {}\n", paths.netns(host)));
    batch(None, "make the hosts' networks", &namespaces)?;
    let links = lines(&|host| {
        let (link, netns) = (link(host), paths.netns(host));
        format!(
            "link add {link} type veth peer name eth0 netns {netns}\n\
             link set {link} master br0 up\n"
        )
    });
    batch(Some(&paths.netns(LAUNCH)), "connect the hosts to the bridge", &links)?;
    for (number, host) in hosts {
        let address = host_address(net, *number);
        let lines = format!("link set lo up\naddr add {address}/16 dev eth0\nlink set eth0 up\n");
        batch(Some(&paths.netns(host)), &format!("address host {host}"), &lines)?;
    }
    Ok(())
}

/// Deletes the namespace and the link of one host.
pub(super) fn delete_host(paths: &LabPaths, host: &str) -> Result<(), LabError> {
    // The link is deleted by name, since the kernel deletes what is in a namespace only some time
    // later. It may not exist yet.
    let mut ip = Command::new("ip");
    ip.args(["-n", &paths.netns(LAUNCH), "link", "delete", &link(host)]);
    let _ = ip.stderr(Stdio::null()).status();
    batch(None, &format!("delete host {host}"), &format!("netns del {}\n", paths.netns(host)))
}

/// Cuts the link of `host`.
pub(super) fn cut(paths: &LabPaths, host: &str, kind: Cut) -> Result<(), LabError> {
    match kind {
        Cut::Carrier => set_link(paths, host, "down"),
        Cut::Silent => set_port(paths, host, "disabled"),
    }
}

/// Undoes either kind of cut.
pub(super) fn heal(paths: &LabPaths, host: &str) -> Result<(), LabError> {
    set_link(paths, host, "up")?;
    // The kernel notices the carrier some time later, and until then the port takes no state.
    let forwards = || Ok(set_port(paths, host, "forwarding").is_ok());
    let what = format!("the bridge port of host {host} to forward");
    wait_until(CARRIER, &what, forwards)
}

/// Plugs a cable between two hosts, with both ends set up and without addresses.
pub(super) fn plug(paths: &LabPaths, one: &str, other: &str) -> Result<(), LabError> {
    let [here, there] = [other, one].map(cable);
    let netns = paths.netns(other);
    let lines =
        format!("link add {here} type veth peer name {there} netns {netns}\nlink set {here} up\n");
    let operation = format!("plug a cable between {one} and {other}");
    batch(Some(&paths.netns(one)), &operation, &lines)?;
    batch(Some(&netns), &operation, &format!("link set {there} up\n"))
}

/// Removes the cable between two hosts.
pub(super) fn unplug(paths: &LabPaths, one: &str, other: &str) -> Result<(), LabError> {
    let operation = format!("unplug the cable between {one} and {other}");
    batch(Some(&paths.netns(one)), &operation, &format!("link delete {}\n", cable(other)))
}

/// Returns the name of a host's end of a cable to `other`.
pub(super) fn cable(other: &str) -> String {
    format!("cable-{other}")
}

/// Returns the sysfs directory of an interface of a node, seen through the `/sys` of the node's process.
pub(super) fn end(process: i32, interface: &str) -> PathBuf {
    PathBuf::from(format!("/proc/{process}/root/sys/class/net/{interface}"))
}

/// Limits what a node sends to `rate`, or to nothing without one. Frames between hosts pass the
/// bridge, but not its own interface: what is sent by that comes from the launch node.
pub(super) fn shape(paths: &LabPaths, node: &str, rate: Option<&str>) -> Result<(), LabError> {
    let interface = if node == LAUNCH { "br0" } else { "eth0" };
    let mut tc = Command::new("tc");
    tc.args(["-n", &paths.netns(node), "qdisc"]);
    match rate {
        // A burst is at least what the kernel passes on at once.
        Some(rate) => tc.args([
            "replace", "dev", interface, "root", "tbf", "rate", rate, "burst", "256kb", "latency",
            "50ms",
        ]),
        None => tc.args(["delete", "dev", interface, "root"]),
    };
    run(&format!("shape the link of {node}"), &mut tc).map(drop)
}

/// Returns the number of bytes that the interface of an end has received and sent.
pub(super) fn bytes_carried(end: &Path) -> Result<u64, LabError> {
    let count = |name: &str| -> Result<u64, LabError> {
        let path = end.join("statistics").join(name);
        let text = files::read(&path)?;
        let wrong = |_| LabError::Unexpected(format!("{} contains {text:?}", path.display()));
        text.trim().parse().map_err(wrong)
    };
    Ok(count("rx_bytes")? + count("tx_bytes")?)
}

/// Returns whether an end of a link carries frames. The kernel reports changes of the carrier with
/// a delay of up to a second, and drops frames until then.
pub(super) fn is_operational(end: &Path) -> bool {
    std::fs::read_to_string(end.join("operstate")).is_ok_and(|state| state.trim() == "up")
}

/// Flushes `host` from the neighbour table of every node. A node that tried to reach it during the
/// cut would otherwise treat its address as unreachable for some more seconds.
pub(super) fn forget_neighbours(
    paths: &LabPaths,
    host: &str,
    address: Ipv4Addr,
) -> Result<(), LabError> {
    let own = paths.netns(host);
    for netns in namespaces(paths) {
        let which = if netns == own { "all".into() } else { address.to_string() };
        let mut ip = Command::new("ip");
        ip.args(["-n", &netns, "neigh", "flush", "to", &which]);
        run(&format!("make {netns} forget {host}"), &mut ip)?;
    }
    Ok(())
}

/// Lists the lab's network namespaces, by their names, so that they are found even if the record is
/// lost.
pub(super) fn namespaces(paths: &LabPaths) -> Vec<String> {
    let prefix = paths.netns_prefix();
    let entries = std::fs::read_dir("/run/netns").into_iter().flatten().flatten();
    entries
        .filter_map(|entry| entry.file_name().into_string().ok())
        .filter(|name| name.starts_with(&prefix))
        .collect()
}

/// Lists the processes in the network namespace `netns`.
pub(super) fn processes(netns: &str) -> Vec<i32> {
    let Ok(output) = Command::new("ip").args(["netns", "pids", netns]).output() else {
        return Vec::new();
    };
    String::from_utf8_lossy(&output.stdout).lines().filter_map(|line| line.parse().ok()).collect()
}

/// Deletes network namespaces, and with them the links between them.
pub(crate) fn delete(namespaces: &[String]) -> Result<(), LabError> {
    let lines: String = namespaces.iter().map(|name| format!("netns del {name}\n")).collect();
    batch(None, "delete the lab's networks", &lines)?;
    // Removes the directory if it is empty: then it was made for the lab.
    let _ = std::fs::remove_dir("/run/netns");
    Ok(())
}

/// Returns the namespace file of a node, for `nsenter`.
pub(super) fn namespace_file(paths: &LabPaths, node: &str) -> String {
    Path::new("/run/netns").join(paths.netns(node)).display().to_string()
}

/// Returns the name of the bridge's end of the link to `host`.
pub(super) fn link(host: &str) -> String {
    format!("to-{host}")
}

fn set_link(paths: &LabPaths, host: &str, state: &str) -> Result<(), LabError> {
    let mut ip = Command::new("ip");
    ip.args(["-n", &paths.netns(LAUNCH), "link", "set", &link(host), state]);
    run(&format!("set the link of host {host} {state}"), &mut ip).map(drop)
}

fn set_port(paths: &LabPaths, host: &str, state: &str) -> Result<(), LabError> {
    let mut bridge = Command::new("ip");
    bridge.args(["netns", "exec", &paths.netns(LAUNCH), "bridge", "link", "set", "dev"]);
    bridge.args([&link(host), "state", state]);
    run(&format!("set the bridge port of host {host} to {state}"), &mut bridge).map(drop)
}

/// Runs many lines of commands by one `ip` process.
pub(crate) fn batch(netns: Option<&str>, operation: &str, lines: &str) -> Result<(), LabError> {
    let mut ip = Command::new("ip");
    if let Some(netns) = netns {
        ip.args(["-n", netns]);
    }
    feed(operation, ip.args(["-batch", "-"]), lines).map(drop)
}
