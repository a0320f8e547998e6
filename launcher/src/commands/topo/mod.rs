//! `rlaunch topo`: shows the hardware of hosts, which RDMA ports can be used, and why others cannot.
//!
//! | file | subject |
//! |---|---|
//! | `rdma`, `tree` | `--gids` and `--caps`, `--tree` |

mod rdma;
mod tree;

use super::{agent_session, capture, output};
use crate::cli::args::{ConnectArgs, HostListArgs};
use crate::cli::command_line::CommandLine;
use clap::Parser;
use rlaunch_bootstrap::inventory::net::{Netdev, NetdevKind};
use rlaunch_bootstrap::inventory::pci::{PciDevice, gigabits};
use rlaunch_bootstrap::inventory::rdma::{LinkLayer, Port, RdmaDevice};
use rlaunch_bootstrap::inventory::{Gpu, Inventory};
use rlaunch_console::stdout;
use rlaunch_engine::run::inventory_check;
use rlaunch_plan::hosts::Host;
use rlaunch_plan::picture;
use rlaunch_plan::selection::{self, Addressing};
use rlaunch_plot::PlotFile;
use rlaunch_text::columns::{self, row};
use rlaunch_text::exit::Exit;
use rlaunch_text::message::Failed;
use rlaunch_text::style::{self, Paint};
use rlaunch_text::{printable, text};
use serde::Serialize;
use std::ffi::OsString;
use std::fmt::Write as _;
use std::path::{Path, PathBuf};

const GIB: u64 = 1 << 30;

/// Show what hosts have: processors, RDMA ports and what limits them, GPUs, interfaces.
///
/// The line of an RDMA port says how a job would use it, or why it cannot be used. Nothing on the hosts is changed, and
/// no other program is run.
#[derive(Debug, Parser)]
#[command(after_help = "\
Examples:
  rlaunch topo                    the hosts of rlaunch.toml, or this machine
  rlaunch topo -H a,b             two hosts
  rlaunch topo -H a,b --gids      their GID tables
  rlaunch topo -H a --tree        a tree of bridges, GPUs and NICs
  rlaunch topo -H a --json        everything, for programs
  rlaunch topo -H a,b --plot hw.svg  hosts, devices and networks as a picture
  rlaunch topo --from x.tar       hosts that rlaunch capture has recorded")]
pub(crate) struct TopoArgs {
    #[command(flatten)]
    pub(crate) hosts: HostListArgs,

    /// Show hosts that `rlaunch capture` has recorded
    #[arg(long, value_name = "FILE", conflicts_with = "hosts")]
    pub(crate) from: Option<PathBuf>,

    /// Print GID tables, as `show_gids` does
    #[arg(long, group = "format")]
    pub(crate) gids: bool,

    /// Draw NUMA nodes, bridges, GPUs and NICs
    #[arg(long, group = "format")]
    pub(crate) tree: bool,

    /// Print the capabilities of RDMA devices
    #[arg(long, group = "format")]
    pub(crate) caps: bool,

    /// Print everything as JSON
    #[arg(long, group = "format")]
    pub(crate) json: bool,

    /// Draw NUMA nodes, GPUs, network ports, and the networks between hosts; .svg, .html or .png
    ///
    /// Up to 16 hosts are drawn one by one; of more, hosts that are alike are drawn as one.
    #[arg(long, value_name = "FILE")]
    pub(crate) plot: Option<PlotFile>,

    #[command(flatten)]
    pub(crate) connect: ConnectArgs,
}

/// Output of `--json` for a host.
#[derive(Serialize)]
struct HostInventory<'a> {
    host: &'a str,
    inventory: &'a Inventory,
}

/// Queries all hosts at once, and prints the hardware of each.
pub(super) async fn run(args: TopoArgs, line: &CommandLine) -> Result<Exit, Failed> {
    let format_host: fn(&str, &Inventory) -> String = match &args {
        TopoArgs { gids: true, .. } => rdma::gids,
        TopoArgs { tree: true, .. } => tree::format,
        TopoArgs { caps: true, .. } => rdma::capabilities,
        _ => overview,
    };
    let plot = args.plot.clone();
    output::prepare_plot(plot.as_ref())?;
    let answers = match &args.from {
        Some(archive) => query_recording(archive, &args.connect).await?,
        None => {
            let words = "inventory";
            agent_session::query_hosts(&args.hosts, args.connect, &line.config, words).await?
        }
    };
    let (mut hosts, mut failures, mut missing) = (Vec::new(), Vec::new(), Vec::new());
    for (host, answer) in answers {
        let host = host.to_string();
        match answer.and_then(|answer| agent_session::decode(&answer, &host)) {
            Ok(inventory) => hosts.push((host, inventory)),
            Err(failed) => {
                failures.push(failed);
                missing.push(host);
            }
        }
    }
    let text = match args.json {
        true => as_json(&hosts)?,
        false => hosts.iter().map(|(host, inventory)| format_host(host, inventory)).collect(),
    };
    stdout::print_styled(&painted(&printable::text(&text), args.json));
    if let Some(file) = plot.filter(|_| !hosts.is_empty()) {
        let (names, inventories): (Vec<String>, Vec<Inventory>) = hosts.into_iter().unzip();
        let names: Vec<&str> = names.iter().map(String::as_str).collect();
        let topology = picture::hardware(&names, &inventories, &missing);
        output::write_plot(&file, &topology.title, &[&topology])?;
    }
    agent_session::conclude(failures)
}

/// Runs this machine's agent on the files that `rlaunch capture` has recorded, and returns an answer for each
/// recorded host.
async fn query_recording(
    archive: &Path,
    connect: &ConnectArgs,
) -> Result<Vec<(Host, agent_session::Answer)>, Failed> {
    let (directory, names) = capture::unpack(archive)?;
    let mut answers = Vec::new();
    for name in names {
        let words = [OsString::from("inventory"), directory.path().join(&name).into()];
        let answer = agent_session::query_this_machine(connect, &words).await;
        answers.push((Host { name, ..Host::this_machine() }, answer));
    }
    Ok(answers)
}

/// Paints the names of hosts, headers of tables and states of ports, unless the text is JSON.
fn painted(text: &str, is_json: bool) -> String {
    const STATES: [(&str, Paint); 3] =
        [(" ACTIVE ", style::GOOD), (" DOWN ", style::DOUBTFUL), ("  down  ", style::DOUBTFUL)];
    if is_json {
        return text.to_owned();
    }
    let paint = |line: &str| {
        let is_header = ["  port  ", "  interface  "].iter().any(|word| line.starts_with(word));
        match line.split_once(": ") {
            Some((host, rest)) if !line.starts_with(' ') => {
                format!("{}: {rest}\n", style::BOLD.paint(host))
            }
            _ if is_header => format!("{}\n", style::DIM.paint(line)),
            _ => {
                let state = |line: String, (word, paint): &(&str, Paint)| {
                    line.replacen(word, &paint.paint(word), 1)
                };
                STATES.iter().fold(line.to_owned(), state) + "\n"
            }
        }
    };
    text.lines().map(paint).collect()
}

fn as_json(hosts: &[(String, Inventory)]) -> Result<String, Failed> {
    let hosts: Vec<HostInventory<'_>> =
        hosts.iter().map(|(host, inventory)| HostInventory { host, inventory }).collect();
    output::json(&hosts)
}

/// Formats the output without `--gids`, `--caps`, `--tree` and `--json`: summary, RDMA ports, GPUs, and
/// interfaces.
fn overview(host: &str, inventory: &Inventory) -> String {
    let mut text = format!("{host}: {}\n", summary(inventory));
    let mut rows = vec![row([
        "port", "driver", "link", "state", "rate", "mtu", "interface", "addresses", "use",
    ])];
    let ports = |device: &'_ RdmaDevice| -> Vec<Vec<String>> {
        device.ports.iter().map(|port| port_row(device, port, &inventory.netdevs)).collect()
    };
    rows.extend(inventory.rdma.iter().flat_map(ports));
    match rows.len() {
        1 => text += "  no RDMA device\n",
        _ => indent(&mut text, &columns::lay_out(&rows)),
    }
    for device in &inventory.rdma {
        let _ = writeln!(text, "  {}", location(device));
    }
    for (name, devices) in shared_ports(inventory) {
        let _ = writeln!(text, "  {}: one physical port, {name}", devices.join(", "));
    }
    for gpu in &inventory.gpus {
        let _ = writeln!(text, "  gpu {}: {}{}", gpu.pci.address, model(gpu), link(&gpu.pci));
    }
    for line in system(inventory) {
        let _ = writeln!(text, "  {line}");
    }
    indent(&mut text, &interfaces(inventory));
    text
}

/// Returns the model of a GPU, or its vendor if the driver does not report the model.
fn model(gpu: &Gpu) -> &str {
    gpu.model.as_deref().unwrap_or(gpu.vendor.name())
}

/// Describes the container, versions, limits, and transfers between NICs and GPUs, as far as they are known.
fn system(inventory: &Inventory) -> Vec<String> {
    let (system, limits) = (&inventory.system, &inventory.limits);
    let versions = system.drivers.iter().chain(&system.libraries);
    let versions: Vec<String> =
        versions.map(|(name, version)| format!("{name} {version}")).collect();
    let bytes =
        |what: &str, bytes: Option<u64>| bytes.map(|bytes| format!("{what} {}", size(bytes)));
    let limits = [
        bytes("locked memory", limits.locked_memory),
        bytes("memory", limits.memory),
        bytes("/dev/shm", limits.shared_memory),
    ];
    let limits: Vec<String> = limits.into_iter().flatten().collect();
    let mut lines = Vec::new();
    lines.extend(system.container.map(|kind| format!("this is a {kind} container")));
    if !versions.is_empty() {
        lines.push(format!("versions: {}", versions.join(", ")));
    }
    if !limits.is_empty() {
        lines.push(format!("limits: {}", limits.join(", ")));
    }
    if system.peer_memory {
        lines.push("a driver lets NICs read and write the memory of GPUs".to_owned());
    }
    if system.iommu && !inventory.gpus.is_empty() && !inventory.rdma.is_empty() {
        lines
            .push("an IOMMU is active: transfers between NICs and GPUs may pass through it".into());
    }
    // The inventory does not have the user's id. With 0, which is root, the limit of locked memory is a
    // deficit only in a container.
    lines.extend(inventory_check::describe_deficits(inventory));
    lines
}

/// Formats a size: `8.0 MiB`.
fn size(bytes: u64) -> String {
    const MIB: u64 = 1 << 20;
    let (unit, name) = match bytes {
        GIB.. => (GIB, "GiB"),
        MIB.. => (MIB, "MiB"),
        _ => (1 << 10, "KiB"),
    };
    format!("{:.1} {name}", bytes as f64 / unit as f64)
}

/// Returns the physical ports that several devices share, by name, and the names of these devices. A card
/// that occupies two PCI slots has such ports.
fn shared_ports(inventory: &Inventory) -> Vec<(&str, Vec<&str>)> {
    let mut ports: Vec<((&str, &str), Vec<&str>)> = Vec::new();
    for device in &inventory.rdma {
        let netdev = device.ports.iter().find_map(|port| port.netdev.as_deref());
        let netdev = inventory.netdevs.iter().find(|candidate| Some(&*candidate.name) == netdev);
        let name = netdev.and_then(|netdev| netdev.port_name.as_deref());
        let Some(key) = device.image_guid.as_deref().zip(name) else { continue };
        match ports.iter_mut().find(|(known, _)| *known == key) {
            Some((_, devices)) => devices.push(&device.name),
            None => ports.push((key, vec![&device.name])),
        }
    }
    ports.retain(|(_, devices)| devices.len() > 1);
    ports.into_iter().map(|((_, name), devices)| (name, devices)).collect()
}

fn indent(text: &mut String, lines: &str) {
    for line in lines.lines() {
        let _ = writeln!(text, "  {line}");
    }
}

/// Summarizes a host: `Debian GNU/Linux 12 (bookworm), kernel 6.1.0, 2 of 4 CPUs, 1 NUMA node, 7.8 GiB`.
fn summary(inventory: &Inventory) -> String {
    let system = &inventory.system;
    let kernel = system.kernel.as_ref().map(|kernel| format!("kernel {kernel}"));
    let (usable, online) = (inventory.cpus.usable(), inventory.cpus.online.len());
    let cpus = match usable < online {
        true => format!("{usable} of {online} CPUs"),
        false => text::count(usable, "CPU"),
    };
    let nodes = inventory.numa_nodes.len();
    let memory = inventory.numa_nodes.iter().filter_map(|node| node.memory);
    let memory = memory.fold(0, u64::saturating_add);
    let memory = (memory > 0).then(|| format!("{:.1} GiB", memory as f64 / GIB as f64));
    let numa = (nodes > 0).then(|| text::count(nodes, "NUMA node"));
    let parts = [system.distribution.clone(), kernel, Some(cpus), numa, memory];
    parts.into_iter().flatten().collect::<Vec<_>>().join(", ")
}

fn port_row(device: &RdmaDevice, port: &Port, netdevs: &[Netdev]) -> Vec<String> {
    let driver = device.driver.clone().unwrap_or_default();
    let link = match port.link_layer {
        LinkLayer::InfiniBand => "InfiniBand",
        LinkLayer::Ethernet => "Ethernet",
        LinkLayer::Unknown => "",
    };
    let physical = port.physical_state.as_deref().unwrap_or_default();
    let netdev = port.netdev.clone().unwrap_or_default();
    let behind = netdevs.iter().find(|candidate| candidate.name == netdev);
    vec![
        format!("{}/{}", device.name, port.number),
        driver,
        link.to_owned(),
        format!("{} {physical}", port.state).trim_end().to_owned(),
        selection::rate(device, port).to_owned(),
        port.mtu.map(|mtu| mtu.to_string()).unwrap_or_default(),
        netdev,
        behind.map(addresses).unwrap_or_default(),
        usage(device, port, netdevs),
    ]
}

fn usage(device: &RdmaDevice, port: &Port, netdevs: &[Netdev]) -> String {
    match selection::examine(device, port, netdevs) {
        Ok(Addressing::Lid { .. }) => format!(
            "LID {}, subnet manager {}",
            port.lid.unwrap_or_default(),
            port.sm_lid.unwrap_or_default()
        ),
        Ok(Addressing::Gid { gid, reason, .. }) => format!("GID {}: {reason}", gid.index),
        Ok(Addressing::ConnectionManager(_)) => "RDMA_CM only".to_owned(),
        Err(rejection) => format!("no: {rejection}"),
    }
}

/// Describes the PCI address of a device and the speed of its link.
fn location(device: &RdmaDevice) -> String {
    let firmware = device.firmware.as_ref().map(|version| format!(", firmware {version}"));
    let firmware = firmware.unwrap_or_default();
    match &device.pci {
        Some(pci) => format!("{} at {}{}{firmware}", device.name, pci.address, link(pci)),
        None => format!("{}: software{firmware}", device.name),
    }
}

/// Describes the link of a device, as the kernel's `pcie_print_link_status` does.
fn link(pci: &PciDevice) -> String {
    let mut text = String::new();
    if let Some(limit) = pci.bottleneck() {
        let (rate, address) = (limit.rate, limit.address);
        let _ = write!(text, ": {} Gb/s by {rate}", gigabits(rate.megabits()));
        let most = pci.max_rate().filter(|most| most.megabits() > rate.megabits());
        if let Some(most) = most {
            let capable = gigabits(most.megabits());
            let _ = write!(text, " at {address} (capable of {capable} Gb/s with {most})");
        }
    }
    if let Some(node) = pci.numa_node {
        let _ = write!(text, ", NUMA node {node}");
    }
    text
}

/// Formats a table of the interfaces that could carry TCP between hosts.
fn interfaces(inventory: &Inventory) -> String {
    let mut rows = vec![row(["interface", "kind", "speed", "mtu", "addresses"])];
    for netdev in &inventory.netdevs {
        let kind = match netdev.kind {
            NetdevKind::Loopback | NetdevKind::Virtual if netdev.addresses.is_empty() => continue,
            NetdevKind::Loopback => continue,
            NetdevKind::Physical => "physical",
            NetdevKind::Thunderbolt => "thunderbolt",
            NetdevKind::Ipoib => "IPoIB",
            NetdevKind::Bond => "bond",
            NetdevKind::Bridge => "bridge",
            NetdevKind::Upper => "upper",
            NetdevKind::Virtual => "virtual",
        };
        let speed = match (netdev.running, netdev.speed) {
            (false, _) => "down".to_owned(),
            (true, Some(speed)) => format!("{speed} Mb/s"),
            (true, None) => String::new(),
        };
        let mtu = netdev.mtu.to_string();
        rows.push(row([&netdev.name, kind, &speed, &mtu, &addresses(netdev)]));
    }
    columns::lay_out(&rows)
}

fn addresses(netdev: &Netdev) -> String {
    let text = |(address, prefix): &(std::net::IpAddr, u8)| format!("{address}/{prefix}");
    netdev.addresses.iter().map(text).collect::<Vec<_>>().join(" ")
}

#[cfg(test)]
mod tests {
    use super::*;
    use rlaunch_plan::testing::inventory;
    use rlaunch_plan::testing::is_golden;

    #[test]
    fn colours_change_no_text() {
        let text = overview("pc1", &inventory("connectx3"));
        let shown = painted(&text, false);
        assert!(shown.starts_with(&style::BOLD.paint("pc1")), "{shown}");
        assert!(shown.contains(&style::GOOD.paint(" ACTIVE ")), "{shown}");
        assert_eq!(anstream::adapter::strip_str(&shown).to_string(), text);
        assert_eq!(painted("{\n  \"a\": 1\n}\n", true), "{\n  \"a\": 1\n}\n");
    }

    /// Compares overviews with `launcher/goldens`.
    #[test]
    fn overviews_of_recorded_machines() {
        let machines = [
            ("pc1", "connectx3"),
            ("pc2", "amd-apu"),
            ("old1", "no-rdma"),
            ("vm1", "rxe"),
            ("vm2", "siw"),
            ("titanic", "spark"),
            ("ecs1", "erdma-standard"),
            ("ecs1", "erdma-compat"),
            ("iZ2zeg0kcgyxepyc5r63kgZ", "ack-node"),
            ("vm1", "esxi-vm"),
            ("c1", "container"),
            ("pod1", "macvlan-pod"),
            ("dgx1", "dgx"),
            ("n1", "dual-port"),
            ("n2", "sriov"),
            ("n3", "bond"),
        ];
        for (host, name) in machines {
            is_golden(&format!("overview-{name}"), &overview(host, &inventory(name)));
        }
    }
}
