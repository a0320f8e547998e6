//! Counters of interfaces, RDMA ports and the whole host, and how they are read again.

use crate::node::inventory::Root;
use rlaunch_bootstrap::inventory::diagnostics::{Counter, Diagnostics};
use rlaunch_bootstrap::inventory::net::{Netdev, NetdevKind};

/// Counters of a network interface (Documentation/ABI/testing/sysfs-class-net-statistics).
const OF_INTERFACE: &str = "\
    rx_errors tx_errors rx_dropped tx_dropped rx_crc_errors rx_frame_errors rx_length_errors \
    rx_over_errors rx_fifo_errors rx_missed_errors tx_carrier_errors tx_fifo_errors";
/// Counters of a port that InfiniBand defines (drivers/infiniband/core/sysfs.c).
const OF_PORT: &str = "\
    symbol_error link_error_recovery link_downed port_rcv_errors port_rcv_remote_physical_errors \
    port_rcv_switch_relay_errors port_rcv_constraint_errors port_xmit_constraint_errors \
    port_xmit_discards port_xmit_wait local_link_integrity_errors excessive_buffer_overrun_errors \
    VL15_dropped";
/// Counters of drivers, in this order: mlx5, bnxt_re, rxe, irdma, mlx4, erdma in the kernel and out of it.
const OF_DRIVER: &str = "\
    out_of_sequence out_of_buffer packet_seq_err implied_nak_seq_err local_ack_timeout_err \
    rnr_nak_retry_err duplicate_request resp_local_length_error resp_cqe_error \
    resp_remote_access_errors req_cqe_error req_remote_access_errors \
    req_transport_retries_exceeded req_rnr_retries_exceeded rx_icrc_encapsulated np_cnp_sent \
    np_ecn_marked_roce_packets rp_cnp_handled rp_cnp_ignored roce_slow_restart roce_adp_retrans \
    roce_adp_retrans_to rx_roce_discards rx_roce_errors tx_roce_discards tx_roce_errors \
    seq_err_naks_rcvd max_retry_exceeded rnr_naks_rcvd missing_resp oos_drop_count \
    out_of_seq_request rcvd_rnr_err send_rnr_err rcvd_seq_err retry_exceeded_err \
    retry_rnr_exceeded_err send_err completer_retry_err link_downed ip4InDiscards ip4OutNoRoutes \
    tcpRetransSegs iwRdmaInv RxECNMrkd cnpHandled cnpSent cnpIgnored rq_num_oos rq_num_rnr \
    sq_num_oos sq_num_rnr sq_num_roos sq_num_to sq_num_tree tx_disable_drop_cnt \
    tx_bps_limit_drop_cnt tx_pps_limit_drop_cnt rx_disable_drop_cnt rx_bps_limit_drop_cnt \
    rx_pps_limit_drop_cnt hw_tx_disable_drop_cnt hw_tx_bps_limit_drop_cnt hw_tx_pps_limit_drop_cnt \
    hw_rx_disable_drop_cnt hw_rx_bps_limit_drop_cnt hw_rx_pps_limit_drop_cnt";
/// Counter of packets that the kernel has dropped before their protocol saw them, because the queue of
/// a CPU was full.
const BACKLOG_DROPS: &str = "softnet_dropped";
/// Counters in `/proc/net/snmp` and `/proc/net/netstat`: group and name.
const OF_HOST: &[(&str, &str)] = &[
    ("Udp", "InErrors"),
    ("Udp", "RcvbufErrors"),
    ("Udp", "SndbufErrors"),
    ("Tcp", "RetransSegs"),
    ("TcpExt", "ListenOverflows"),
    ("TcpExt", "ListenDrops"),
];

/// Reads the counters of an interface. Those of software interfaces, of which a host may have
/// hundreds, are not read.
pub(super) fn read_interface(root: &Root, netdev: &Netdev) -> Vec<Counter> {
    match netdev.kind {
        NetdevKind::Loopback | NetdevKind::Virtual | NetdevKind::Bridge => Vec::new(),
        _ => read_statistics(root, &netdev.name),
    }
}

fn read_statistics(root: &Root, name: &str) -> Vec<Counter> {
    read_files(root, &format!("/sys/class/net/{name}/statistics"), OF_INTERFACE)
}

/// Reads the counters of an RDMA port. One that is in both folders is read from the first.
pub(super) fn read_port(root: &Root, device: &str, port: u8) -> Vec<Counter> {
    let directory = format!("/sys/class/infiniband/{device}/ports/{port}");
    let mut counters = read_files(root, &format!("{directory}/counters"), OF_PORT);
    for counter in read_files(root, &format!("{directory}/hw_counters"), OF_DRIVER) {
        if !counters.iter().any(|other| other.name == counter.name) {
            counters.push(counter);
        }
    }
    counters
}

/// Reads those of the counters `names` that a directory has.
fn read_files(root: &Root, directory: &str, names: &str) -> Vec<Counter> {
    if !root.exists(directory) {
        return Vec::new();
    }
    let read = |name: &str| Some(counter(name, root.value(&format!("{directory}/{name}"))?));
    names.split(' ').filter_map(read).collect()
}

fn counter(name: &str, value: u64) -> Counter {
    Counter { name: name.to_owned(), first: value, last: value }
}

/// Reads the counters of the whole host.
pub(super) fn read_host(root: &Root) -> Vec<Counter> {
    let texts = ["/proc/net/snmp", "/proc/net/netstat"].map(|path| root.text(path));
    let find = |(group, name): &(&str, &str)| {
        let value = texts.iter().flatten().find_map(|text| find_value(text, group, name))?;
        Some(counter(&format!("{group}{name}"), value))
    };
    let drops = backlog_drops(&root.text("/proc/net/softnet_stat").unwrap_or_default());
    let drops = drops.map(|value| counter(BACKLOG_DROPS, value));
    OF_HOST.iter().filter_map(find).chain(drops).collect()
}

/// Adds up the second column of a table of hexadecimal numbers, which has a line for each CPU.
fn backlog_drops(text: &str) -> Option<u64> {
    let dropped = |line: &str| u64::from_str_radix(line.split_whitespace().nth(1)?, 16).ok();
    let drops: Vec<u64> = text.lines().filter_map(dropped).collect();
    (!drops.is_empty()).then(|| drops.iter().sum())
}

/// Finds a value in a table that has two lines for each group: `Udp: InDatagrams NoPorts …`, and
/// the numbers.
fn find_value(text: &str, group: &str, name: &str) -> Option<u64> {
    let mut lines = text.lines().filter_map(|line| line.strip_prefix(group)?.strip_prefix(':'));
    let (names, values) = (lines.next()?, lines.next()?);
    let place = names.split_whitespace().position(|own| own == name)?;
    values.split_whitespace().nth(place)?.parse().ok()
}

/// Reads all counters again and stores their last values. Returns them by the name of the
/// interface, `device/port`, or an empty name for those of the host.
pub(crate) fn read_again(
    root: &Root,
    diagnostics: &mut Diagnostics,
) -> Vec<(String, Vec<Counter>)> {
    let mut all = Vec::new();
    let mut update = |name: String, counters: &mut Vec<Counter>, again: Vec<Counter>| {
        for counter in counters.iter_mut() {
            if let Some(later) = again.iter().find(|later| later.name == counter.name) {
                counter.last = later.last;
            }
        }
        all.push((name, counters.clone()));
    };
    update(String::new(), &mut diagnostics.counters, read_host(root));
    for state in diagnostics.interfaces.iter_mut().filter(|state| !state.counters.is_empty()) {
        update(state.name.clone(), &mut state.counters, read_statistics(root, &state.name));
    }
    for state in diagnostics.rdma_ports.iter_mut().filter(|state| !state.counters.is_empty()) {
        let name = format!("{}/{}", state.device, state.port);
        update(name, &mut state.counters, read_port(root, &state.device, state.port));
    }
    all
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn drops_of_all_cpus_are_added() {
        let text = "0000a1b2 00000003 00000000\n00000010 0000000a 00000001\n";
        assert_eq!(backlog_drops(text), Some(13));
        assert_eq!(backlog_drops(""), None);
    }
}
