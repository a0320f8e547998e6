//! Counters of lost and damaged packets that grow while rlaunch looks.

use super::{Cluster, ClusterHost, Finding, id};
use rlaunch_bootstrap::inventory::diagnostics::{Counter, Diagnostics, InterfaceState};
use rlaunch_bootstrap::inventory::net::NetdevKind;

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

/// Counter of packets that the kernel dropped before their protocol saw them, the second column of
/// `/proc/net/softnet_stat`.
const BACKLOG_DROPS: &str = "softnet_dropped";

pub(super) fn interface_errors(cluster: &Cluster<'_>) -> Vec<Finding> {
    let of_host = |(host, state): (&ClusterHost<'_>, &Diagnostics)| {
        let interfaces = state.interfaces.iter().filter(|interface| is_hardware(host, interface));
        let finding = |interface: &InterfaceState| {
            let (counter, advice) = growing(&interface.counters)?;
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
fn growing(counters: &[Counter]) -> Option<(&Counter, &'static str)> {
    // rx_errors is the sum of the others, so the others are looked at first.
    [LENGTH, MISSED, DAMAGED].into_iter().find_map(|(names, advice)| {
        let counter = names.iter().find_map(|name| {
            counters.iter().find(|counter| counter.name == *name && counter.growth() > 0)
        })?;
        Some((counter, advice))
    })
}

pub(super) fn udp_drops(cluster: &Cluster<'_>) -> Vec<Finding> {
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
        Some(
            found
                .run("sudo sysctl -w net.core.netdev_max_backlog=10000")
                .advise("or give the machine more processors, or run fewer ranks on it"),
        )
    };
    cluster.diagnosed().filter_map(finding).collect()
}

/// Writes a time in seconds, as in `1` or `0.5`.
fn seconds(milliseconds: u32) -> String {
    (f64::from(milliseconds) / 1000.0).to_string()
}
