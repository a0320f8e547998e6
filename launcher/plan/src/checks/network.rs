//! TCP between hosts, names, addresses, proxies and counters of interfaces.

mod pairs;
#[cfg(test)]
mod tests;

use super::cluster::ReachStage;
use super::ssh::{UnreachedReason, unreached};
use super::{Check, Cluster, ClusterHost, Needs};
use crate::findings::{Finding, Fix, Step, id};
use rlaunch_bootstrap::inventory::diagnostics::{Counter, Diagnostics, InterfaceState, OwnName};
use rlaunch_bootstrap::inventory::net::{Netdev, NetdevKind};
use std::net::{IpAddr, Ipv4Addr};

pub(super) const CHECKS: &[Check] = &[
    Check {
        id: id::NET_PAIR,
        about: "every host reaches every other by TCP, with packets of every size",
        needs: Needs::Probes,
        examine: pairs::examine,
        causes: &[id::MESH_SILENT],
        explanation: "\
Symptoms: a job hangs at its start; `Connection refused`, `No route to host`, `Connection timed out` from \
init_process_group, `NCCL WARN socketStartConnect: Connect to 10.0.0.3<41000> failed`.

Agents, NCCL, Gloo and MPI connect the hosts with each other, not only the launcher with each host. The agent of each \
host opened a TCP connection to the agent of every other one and sent a few bytes; the finding names the pairs where \
that failed, and the address that was used. Then it sent 64 KiB, which go in packets as large as the MTU.

No answer usually means a packet filter, sometimes an address of another network. A refusal means that a filter \
rejects, or that the address belongs to another machine. No route means that the hosts' networks are not connected. \
Short messages without full packets mean an MTU that is too large: of 9000 at the interfaces, say, with a switch between \
them that carries 1500. \
--oob-if and --oob-net choose another interface or network for rlaunch.",
    },
    Check {
        id: id::NET_CALLBACK,
        about: "hosts whose shells have no stdin can connect to the launcher",
        needs: Needs::Connections,
        examine: |cluster| unreached(cluster, ReachStage::Callback, &CALLBACK),
        causes: &[],
        explanation: "\
Symptoms: `cannot reach the launcher at 10.0.0.1:21003, and its shell has no stdin`.

Some logins run their command without standard input, such as a forced command with `docker exec` that lacks -i. An \
agent there cannot be talked to over SSH, so it connects to the launcher by TCP, to a port of 21000-21511. The \
addresses that the host tried are in the finding.

Let the connection through the packet filter of the machine where rlaunch runs, choose another interface by --oob-if \
or other ports by --port-range, or give the shell its stdin: docker exec -i.",
    },
    Check {
        id: id::NET_NAME,
        about: "every host's own name leads to one of its addresses",
        needs: Needs::Diagnostics,
        examine: own_name,
        causes: &[],
        explanation: "\
Symptoms: `Connection refused` from 127.0.1.1; Gloo's `connectFullMesh failed`; peers that connect to themselves; \
`socket.gaierror: Name or service not known`.

Programs without an interface to use look up the name of their own host and give the result to \
their peers. Debian and Ubuntu write `127.0.1.1 NAME` into /etc/hosts, which is of no use to \
others; a line that was copied from another machine is worse.

rlaunch names the interface for NCCL, Gloo, TensorPipe and MPI libraries, so these are not affected; programs that \
look their name up themselves are. Write the host's address on the network into /etc/hosts in place of 127.0.1.1.",
    },
    Check {
        id: id::NET_PROXY,
        about: "proxies of the login environment are not used between hosts",
        needs: Needs::Diagnostics,
        examine: proxy,
        causes: &[],
        explanation: "\
Symptoms: JAX's `DEADLINE_EXCEEDED` or `failed to connect to all addresses` at jax.distributed.initialize; Ray and \
TensorFlow servers that cannot be reached; curl answers 403 for a host of the cluster.

gRPC and HTTP libraries send their connections through the proxy of http_proxy and https_proxy, even those to hosts \
of the cluster, which the proxy does not know. The variables were found in the environment of a login, and no_proxy \
is not set.

Set no_proxy to the names and addresses of the hosts where the proxy is set (/etc/environment, ~/.bashrc), or for one \
job: -x no_proxy=a,b,10.0.0.0/8. rlaunch itself uses no proxy.",
    },
    Check {
        id: id::NET_ARP,
        about: "no two interfaces of a host are in one subnet and answer for each other",
        needs: Needs::Diagnostics,
        examine: answers_for_others,
        causes: &[],
        explanation: "\
Symptoms: traffic to one interface arrives at another one; half of the speed of two cables; connections that stop \
when one cable is pulled although the other is in use.

With arp_ignore 0, Linux answers a question for any of its addresses on any interface. If two \
interfaces are in one subnet, peers may learn the wrong hardware address. rlaunch compared the \
addresses of all interfaces that are up; RDMA ports have a check of their own, mesh.duplicate.

Give each interface its own subnet, or bond the two. If they have to share one, set arp_ignore to 1 and arp_announce \
to 2 for both, and rp_filter to 2.",
    },
    Check {
        id: id::NET_ERRORS,
        about: "error counters of network interfaces do not grow",
        needs: Needs::Diagnostics,
        examine: interface_errors,
        causes: &[id::LINK_ERRORS, id::ROCE_LOSS],
        explanation: "\
Symptoms: slow and uneven transfers, retransmissions (`nstat TcpRetransSegs`), link speeds below the card's.

The kernel counts packets that arrived damaged (rx_crc_errors, rx_frame_errors), that did not fit (rx_length_errors) \
and that the card could not store (rx_fifo_errors, rx_missed_errors). rlaunch read the counters of physical \
interfaces twice; the finding names one that grew in between, so errors happen now. Old errors are not reported.

Damaged packets come from a cable, a transceiver or a dirty connector: exchange it. Length errors mean that a peer \
or the switch has another MTU. Missed packets mean that the CPU is too slow: enlarge the ring (`ethtool -G`).",
    },
    Check {
        id: id::NET_UDP_DROPS,
        about: "hosts with soft RoCE do not drop packets for lack of processors",
        needs: Needs::Diagnostics,
        examine: udp_drops,
        causes: &[],
        explanation: "\
Symptoms: `transport retry counter exceeded` (status 12) under load over rxe; bandwidth that collapses when several \
peers send at once.

Soft RoCE (rxe) carries RDMA in UDP packets, which it takes from the kernel before they reach a socket: buffers of \
sockets (rmem_max) and UdpRcvbufErrors do not concern it. Before that, packets wait in a queue of each CPU, and the \
kernel drops those that find it full. rlaunch read the second column of /proc/net/softnet_stat twice, and it grew in \
between. What rxe itself misses is told by roce.loss.

Raise net.core.netdev_max_backlog, give the machine more CPU time, or run fewer ranks. Soft RoCE is meant for tests.",
    },
    Check {
        id: id::NET_RESERVED,
        about: "ports of eRDMA's compat mode are left to it",
        needs: Needs::Diagnostics,
        examine: reserved_ports,
        causes: &[id::ERDMA_PORTS],
        explanation: "\
Symptoms: eRDMA connections fail with ECONNREFUSED or reach the wrong service; `Address already in use` when the \
erdma module is loaded.

In compat mode the driver of Alibaba's eRDMA listens on TCP ports 30608-30623 in the kernel, or on 16 ports from its \
parameter reserve_ports_base on. rlaunch never uses the usual ones and refuses a --port-range with them. Programs that let the kernel choose a port may still get one of \
them if net.ipv4.ip_local_port_range includes them, which the usual 32768-60999 does not.

Move the range, or reserve the ports: `sudo sysctl -w net.ipv4.ip_local_reserved_ports=30608-30623`.",
    },
];

const CALLBACK: UnreachedReason = UnreachedReason {
    id: id::NET_CALLBACK,
    matters: "no job can use this host",
    usual: |_| Step::Do("give its shell stdin, as by docker exec -i".to_owned()),
};

/// Settings with which interfaces answer ARP for their own addresses only.
const ANSWER_FOR_ONESELF: &[(&str, &str)] =
    &[("net.ipv4.conf.all.arp_ignore", "1"), ("net.ipv4.conf.all.arp_announce", "2")];

fn own_name(cluster: &Cluster<'_>) -> Vec<Finding> {
    if cluster.hosts.len() < 2 {
        return Vec::new();
    }
    cluster.diagnosed().filter_map(|(host, state)| judge_name(cluster, host, state)).collect()
}

/// Judges what a host's own name leads to. An address that the host does not have is wrong for
/// every program. Loopback, or no address, is reported only if the user named a program, since
/// rlaunch names the interface for the usual libraries.
fn judge_name(
    cluster: &Cluster<'_>,
    host: &ClusterHost<'_>,
    state: &Diagnostics,
) -> Option<Finding> {
    let OwnName { hostname: name, addresses } = &state.own_name;
    let is_own = |address: &IpAddr| host.inventory.netdev_with_address(*address).is_some();
    let mut outside = addresses.iter().filter(|address| !address.is_loopback());
    let own = host.address.map_or_else(|| "ADDRESS".to_owned(), |address| address.to_string());
    let cure = |found: Finding| {
        let advice =
            format!("in /etc/hosts there, let this be the only line for the name: {own} {name}");
        let fix = host.address.filter(|_| !name.is_empty()).map(|own| Fix::own_name(name, own));
        fix.into_iter().fold(found.advise(advice), Finding::fixed_by)
    };
    if let Some(address) = outside.clone().find(|address| !is_own(address)) {
        let mut others = cluster.hosts.iter().filter(|other| other.name != host.name);
        let other = others.find(|o| o.inventory.netdev_with_address(*address).is_some());
        let whose = match other {
            Some(other) => format!("of {}", other.name),
            None => "which no interface has".to_owned(),
        };
        let comma = if other.is_some() { "" } else { "," };
        let seen = format!("its own name {name} leads to {address}{comma} {whose}");
        let matters = "programs that look it up give their peers a wrong address";
        return Some(cure(Finding::warning(id::NET_NAME, host.name, seen, matters)));
    }
    cluster.program?;
    if outside.next().is_some() {
        return None;
    }
    let seen = match addresses.first() {
        Some(address) => format!("its own name {name} is {address}"),
        None if name.is_empty() || !state.other_name_sources.is_empty() => return None,
        None => format!("its own name {name} has no address"),
    };
    let matters = "rlaunch names the interface for NCCL, Gloo and MPI; programs that look their \
                   name up need an address that peers can reach";
    Some(cure(Finding::note(id::NET_NAME, host.name, seen, matters)))
}

fn proxy(cluster: &Cluster<'_>) -> Vec<Finding> {
    let finding = |(host, state): (&ClusterHost<'_>, &Diagnostics)| {
        let lower = |name: &String| name.to_ascii_lowercase();
        let mut names = state.proxy_variables.iter().map(lower);
        let has_exceptions = names.clone().any(|name| name == "no_proxy");
        let set = names.find(|name| name != "no_proxy" && name.ends_with("_proxy"))?;
        let seen = format!("logins get {set}, and no_proxy is not set");
        let matters = "JAX and other users of gRPC would reach the other hosts by the proxy";
        let found = Finding::note(id::NET_PROXY, host.name, seen, matters);
        let names: Vec<&str> = cluster.hosts.iter().map(|host| host.name).collect();
        let job = format!("for a job: -x no_proxy={},localhost", names.join(","));
        (!has_exceptions).then(|| found.advise(job))
    };
    if cluster.hosts.len() < 2 {
        return Vec::new();
    }
    cluster.diagnosed().filter_map(finding).collect()
}

fn answers_for_others(cluster: &Cluster<'_>) -> Vec<Finding> {
    let finding = |(host, state): (&ClusterHost<'_>, &Diagnostics)| {
        let own: Vec<&Netdev> = plain_interfaces(host).collect();
        let pairs = own.iter().enumerate().flat_map(|(at, one)| {
            own[at + 1..]
                .iter()
                .filter_map(move |other| Some((*one, *other, shared_subnet(one, other)?)))
        });
        let mut answering = pairs.filter(|(one, other, _)| {
            [one, other].iter().all(|netdev| answers_for_all(&state.interfaces, &netdev.name))
        });
        let (one, other, subnet) = answering.next()?;
        let seen = format!("{} and {} are both in {subnet}, arp_ignore 0", one.name, other.name);
        let matters = "packets for one may arrive at the other";
        let found = Finding::note(id::NET_ARP, host.name, seen, matters);
        Some(found.fixed_by(Fix::sysctl("arp", ANSWER_FOR_ONESELF)))
    };
    cluster.diagnosed().filter_map(finding).collect()
}

/// Lists interfaces of hardware that can send and do not belong to RDMA ports.
fn plain_interfaces<'a>(host: &ClusterHost<'a>) -> impl Iterator<Item = &'a Netdev> + use<'a> {
    let of_rdma: Vec<String> =
        host.rdma_ports().filter_map(|(_, port)| port.netdev.clone()).collect();
    let netdevs = host.inventory.netdevs.iter();
    netdevs.filter(move |netdev| {
        netdev.running && netdev.kind == NetdevKind::Physical && !of_rdma.contains(&netdev.name)
    })
}

fn answers_for_all(interfaces: &[InterfaceState], name: &str) -> bool {
    interfaces.iter().any(|state| state.name == name && state.arp_ignore == Some(0))
}

/// Returns the IPv4 subnet that two interfaces share, such as `10.0.0.0/24`.
fn shared_subnet(one: &Netdev, other: &Netdev) -> Option<String> {
    let subnets = |netdev: &Netdev| {
        let v4 = |(address, prefix): &(IpAddr, u8)| match address {
            IpAddr::V4(address) if (1..32).contains(prefix) && !address.is_link_local() => {
                let mask = u32::MAX << (32 - u32::from(*prefix));
                Some((Ipv4Addr::from_bits(address.to_bits() & mask), *prefix))
            }
            _ => None,
        };
        netdev.addresses.iter().filter_map(v4).collect::<Vec<_>>()
    };
    let others = subnets(other);
    let common = subnets(one).into_iter().find(|subnet| others.contains(subnet))?;
    Some(format!("{}/{}", common.0, common.1))
}

fn reserved_ports(cluster: &Cluster<'_>) -> Vec<Finding> {
    let finding = |(host, state): (&ClusterHost<'_>, &Diagnostics)| {
        let mut devices = host.inventory.rdma.iter();
        let device = devices.find(|device| device.driver.as_deref() == Some("erdma"))?;
        let (first, last) = super::erdma::compat_ports(state);
        let (lowest, highest) = state.kernel.ephemeral_ports?;
        let reserved = &state.kernel.reserved_ports;
        // The kernel writes neighbours as one range.
        let is_reserved = reserved.iter().any(|(from, to)| *from <= first && last <= *to);
        if lowest > last || highest < first || is_reserved {
            return None;
        }
        // A new value replaces the old one.
        let ranges = reserved.iter().copied().chain([(first, last)]);
        let ranges: Vec<String> = ranges.map(|(from, to)| format!("{from}-{to}")).collect();
        let ranges = ranges.join(",");
        let setting = [("net.ipv4.ip_local_reserved_ports", &*ranges)];
        let seen = format!(
            "the range from which the kernel chooses ports {lowest}-{highest} includes {first}-{last}"
        );
        let matters = "eRDMA's compat mode listens on these ports in the kernel";
        let found = Finding::warning(id::NET_RESERVED, host.name, seen, matters);
        Some(found.device(&*device.name).fixed_by(Fix::sysctl("erdma-ports", &setting)))
    };
    cluster.diagnosed().filter_map(finding).collect()
}

/// Counters of packets that arrived damaged, and advice.
const DAMAGED: (&[&str], &str) = (
    &["rx_crc_errors", "rx_frame_errors", "rx_errors", "tx_carrier_errors", "tx_errors"],
    "exchange the cable or transceiver, or clean its connectors; then look again",
);
/// Counters of packets that did not fit, and advice.
const LENGTH: (&[&str], &str) = (
    &["rx_length_errors", "rx_over_errors"],
    "a peer or the switch has another MTU: `ip link` there and here",
);
/// Counters of packets that the card could not store, and advice.
const MISSED: (&[&str], &str) = (
    &["rx_fifo_errors", "rx_missed_errors"],
    "the CPU is too slow for the packets: `ethtool -g` shows how large the ring may be, `ethtool -G` enlarges it",
);

/// Packets that may wait for a CPU, where the kernel's default of 1000 is too few.
const BACKLOG: u64 = 10_000;

/// Counter of packets that the kernel dropped before their protocol saw them, the second column of
/// `/proc/net/softnet_stat`.
const BACKLOG_DROPS: &str = "softnet_dropped";

fn interface_errors(cluster: &Cluster<'_>) -> Vec<Finding> {
    let of_host = |(host, state): (&ClusterHost<'_>, &Diagnostics)| {
        let interfaces = state.interfaces.iter().filter(|interface| is_hardware(host, interface));
        let finding = |interface: &InterfaceState| {
            let (counter, advice) = growing_errors(&interface.counters)?;
            let seen = format!(
                "{} grew by {} in {} s",
                counter.name,
                counter.growth(),
                seconds(state.interval_ms)
            );
            let matters = "packets are lost and sent again";
            let found = Finding::warning(id::NET_ERRORS, host.name, seen, matters);
            Some(found.device(&*interface.name).advise(advice))
        };
        interfaces.filter_map(finding).collect::<Vec<_>>()
    };
    cluster.diagnosed().flat_map(of_host).collect()
}

fn is_hardware(host: &ClusterHost<'_>, interface: &InterfaceState) -> bool {
    let mut netdevs = host.inventory.netdevs.iter();
    netdevs.any(|netdev| {
        netdev.name == interface.name
            && matches!(netdev.kind, NetdevKind::Physical | NetdevKind::Thunderbolt)
    })
}

/// Returns the most telling counter of errors that grew, with advice.
fn growing_errors(counters: &[Counter]) -> Option<(&Counter, &'static str)> {
    // rx_errors is the sum of the others, so the others are looked at first.
    [LENGTH, MISSED, DAMAGED].into_iter().find_map(|(names, advice)| {
        let counter = names.iter().find_map(|name| {
            counters.iter().find(|counter| counter.name == *name && counter.growth() > 0)
        })?;
        Some((counter, advice))
    })
}

fn udp_drops(cluster: &Cluster<'_>) -> Vec<Finding> {
    let finding = |(host, state): (&ClusterHost<'_>, &Diagnostics)| {
        let mut devices = host.inventory.rdma.iter();
        let has_rxe = devices.any(|device| device.driver.as_deref() == Some("rxe"));
        // rxe takes its packets before they reach a socket, so that UdpRcvbufErrors does not count them.
        let mut counters = state.counters.iter().filter(|counter| counter.name == BACKLOG_DROPS);
        let counter = counters.find(|counter| has_rxe && counter.growth() > 0)?;
        let seen = format!(
            "the kernel dropped {} packets in {} s for lack of space in a CPU's queue",
            counter.growth(),
            seconds(state.interval_ms)
        );
        let matters = "soft RoCE sends every lost packet again";
        let found = Finding::warning(id::NET_UDP_DROPS, host.name, seen, matters);
        let others = "give the machine more processors, or run fewer ranks on it";
        // A queue that is longer already would become shorter.
        Some(if state.kernel.backlog_max.is_some_and(|packets| packets >= BACKLOG) {
            found.advise(others)
        } else {
            let packets = BACKLOG.to_string();
            let setting = [("net.core.netdev_max_backlog", &*packets)];
            found.fixed_by(Fix::sysctl("backlog", &setting)).advise(format!("or {others}"))
        })
    };
    cluster.diagnosed().filter_map(finding).collect()
}

/// Writes a time in seconds, as in `1` or `0.5`.
fn seconds(milliseconds: u32) -> String {
    (f64::from(milliseconds) / 1000.0).to_string()
}
