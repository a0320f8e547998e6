//! State of recorded hosts, and of this one.

use super::*;
use crate::node::inventory::tests::lay_out_recording;
use crate::node::inventory::tests::tree::{self, lay_out};
use rlaunch_bootstrap::inventory::diagnostics::{
    Counter, DeviceFile, KernelSettings, ListeningPort, LogLine, PciAdapter, SharedMemoryDefect,
};

/// Host with a card that has a driver, one that has none, and everything else that is read.
const HOST: &str = r#"
[/proc]
modules = mlx5_core 2609152 1 mlx5_ib, Live 0x0\nib-core 1 0 - Live 0x0\next4 1 0 - Live 0x0\n
cmdline = BOOT_IMAGE=/vmlinuz root=/dev/sda1 iommu=pt\n
meminfo = MemTotal: 2000 kB\nMemFree: 10 kB\nMemAvailable: 1000 kB\n
net/snmp = Ip: A B\nIp: 1 2\nUdp: InDatagrams InErrors RcvbufErrors\nUdp: 9 8 7\n
net/softnet_stat = 00000100 00000002 00000000\n00000100 00000010 00000000\n
net/netstat = TcpExt: SyncookiesSent ListenOverflows\nTcpExt: 1 5\n
self/status = Name:\tx\nUid:\t1000\t1001\t1000\t1000\n

[/proc/sys]
kernel/hostname = gpu7\n
kernel/osrelease = 6.1.0
kernel/yama/ptrace_scope = 1
vm/max_map_count = 65530
net/core/netdev_max_backlog = 1000
net/ipv4/ip_local_port_range = 32768\t60999\n
net/ipv4/ip_local_reserved_ports = 8080,30608-30623\n
net/ipv4/conf/all/arp_ignore = 0
net/ipv4/conf/eth1/arp_ignore = 1
net/ipv4/conf/all/rp_filter = 2
net/ipv4/conf/eth1/rp_filter = 1
net/ipv6/conf/eth1/disable_ipv6 = 1

[/sys/module]
rdma_rxe = 
siw/parameters/loopback_enabled = Y

[/sys/fs/selinux]
enforce = 1

[/etc]
os-release = ID="rocky"\nID_LIKE="rhel centos fedora"\nVERSION_ID="9.4"\n
ufw/ufw.conf = # comment\nENABLED=yes\n

[/sys/devices/pci0000:00/0000:01:00.0]
vendor = 0x15b3
device = 0x1017
class = 0x020000
driver -> /sys/bus/pci/drivers/mlx5_core

[/sys/devices/pci0000:00/0000:02:00.0]
vendor = 0x15b3
device = 0x1021
class = 0x020700

[/sys/devices/pci0000:00/0000:03:00.0]
vendor = 0x8086
device = 0x1234
class = 0x010802

[/sys/bus/pci/devices]
0000:01:00.0 -> /sys/devices/pci0000:00/0000:01:00.0
0000:02:00.0 -> /sys/devices/pci0000:00/0000:02:00.0
0000:03:00.0 -> /sys/devices/pci0000:00/0000:03:00.0

[/sys/devices/pci0000:00/0000:01:00.0/net/eth1]
ifindex = 2
type = 1
operstate = up
flags = 0x1003
carrier = 1
carrier_down_count = 3
statistics/rx_crc_errors = 4
statistics/rx_packets = 400
ecn/roce_np/enable/3 = 1
ecn/roce_np/enable/4 = 0
ecn/roce_rp/enable/5 = 1
device -> /sys/devices/pci0000:00/0000:01:00.0

[/sys/class/net]
eth1 -> /sys/devices/pci0000:00/0000:01:00.0/net/eth1

[/sys/devices/pci0000:00/0000:01:00.0/infiniband/mlx5_0]
node_type = 1: CA
ports/1/link_layer = Ethernet
ports/1/counters/symbol_error = 6
ports/1/counters/link_downed = 1
ports/1/counters/port_rcv_data = 1000
ports/1/hw_counters/out_of_sequence = 2
ports/1/hw_counters/link_downed = 9
device -> /sys/devices/pci0000:00/0000:01:00.0

[/sys/class/infiniband]
mlx5_0 -> /sys/devices/pci0000:00/0000:01:00.0/infiniband/mlx5_0

[/sys/kernel/config/rdma_cm/mlx5_0/ports/1]
default_roce_mode = IB/RoCE v1\n

[/dev/infiniband]
rdma_cm = may not be opened

[/]
services = firewalld\nopensm\n
listeners = 22\n30610 812 my server\n
kernel-log = 12 mlx5_core 0000:01:00.0 eth1: Link down\n
own-addresses = 127.0.1.1\n
other-name-sources = dns\n
proxy-variables = https_proxy\n
flow-control = eth1 9\n
tmp-available = 1000\n
shared-memory-available = 2000\n
shared-memory-error = 30\n
python = python 3.11\ntorch 2.4.0\n
"#;

fn read_text(text: &str) -> Diagnostics {
    read(&Root::recorded(lay_out(text).path())).diagnostics
}

#[test]
fn kernel_and_modules_are_read() {
    let state = read_text(HOST);
    assert_eq!((state.uid, state.clock), (1001, None));
    assert_eq!(state.modules, ["ib_core", "mlx5_core", "rdma_rxe", "siw"]);
    assert_eq!(state.module_parameters, [("siw.loopback_enabled".to_owned(), "Y".to_owned())]);
    assert_eq!(state.connection_manager, DeviceFile::Denied);
    let words = |text: &str| text.split(' ').map(str::to_owned).collect::<Vec<_>>();
    let wanted = KernelSettings {
        command_line: words("BOOT_IMAGE=/vmlinuz root=/dev/sda1 iommu=pt"),
        ephemeral_ports: Some((32768, 60999)),
        reserved_ports: vec![(8080, 8080), (30_608, 30_623)],
        max_map_count: Some(65530),
        ptrace_scope: Some(1),
        backlog_max: Some(1000),
        selinux_enforcing: true,
        distribution_ids: words("rocky rhel centos fedora"),
        ufw_enabled: true,
    };
    assert_eq!(state.kernel, wanted);
    let space = (state.memory_available, state.tmp_available, state.shared_memory_available);
    assert_eq!(space, (Some(1_024_000), Some(1000), Some(2000)));
    assert_eq!(state.shared_memory_defect, Some(SharedMemoryDefect::ReadOnly));
}

#[test]
fn open_modules_of_nvidia_are_told_from_others() {
    let open = |files: &str| read_text(files).nvidia_open;
    let version = |kind: &str| {
        format!("[/proc/driver/nvidia]\nversion = NVRM version: NVIDIA UNIX {kind}  535.183.01\n")
    };
    assert_eq!(open(&version("Open Kernel Module for x86_64")), Some(true));
    assert_eq!(open(&version("x86_64 Kernel Module")), Some(false));
    assert_eq!(open("[/sys/module/nvidia]\ntaint = POE\n"), Some(false));
    assert_eq!(open("[/sys/module/nvidia]\ntaint = OE\n"), Some(true));
    assert_eq!(open(HOST), None);
}

#[test]
fn cards_without_a_driver_are_listed() {
    let state = read_text(HOST);
    let card = |address: &str, device, class| PciAdapter {
        address: address.to_owned(),
        vendor: 0x15b3,
        device,
        class,
        ..PciAdapter::default()
    };
    let driven = PciAdapter {
        driver: Some("mlx5_core".to_owned()),
        has_rdma: true,
        netdev: Some("eth1".to_owned()),
        ..card("0000:01:00.0", 0x1017, 0x02_0000)
    };
    assert_eq!(state.adapters, [driven, card("0000:02:00.0", 0x1021, 0x02_0700)]);
}

fn counter(name: &str, value: u64) -> Counter {
    Counter { name: name.to_owned(), first: value, last: value }
}

#[test]
fn interfaces_and_ports_are_read() {
    let state = read_text(HOST);
    let [eth1] = &state.interfaces[..] else { panic!("{:?}", state.interfaces) };
    assert_eq!((eth1.is_up, eth1.has_carrier, eth1.carrier_losses), (true, Some(true), Some(3)));
    assert_eq!(eth1.counters, [counter("rx_crc_errors", 4)]);
    assert_eq!((eth1.arp_ignore, eth1.arp_announce, eth1.rp_filter), (Some(1), None, Some(2)));
    assert!(eth1.ipv6_disabled);
    assert_eq!(eth1.roce_ecn, Some((vec![3], vec![5])));
    assert_eq!(eth1.pfc, Some(vec![0, 3]));
    let [port] = &state.rdma_ports[..] else { panic!("{:?}", state.rdma_ports) };
    assert_eq!((port.device.as_str(), port.port), ("mlx5_0", 1));
    assert_eq!(port.cm_roce_mode.as_deref(), Some("IB/RoCE v1"));
    // The counter that both folders have is that of InfiniBand.
    let wanted = [("symbol_error", 6), ("link_downed", 1), ("out_of_sequence", 2)];
    assert_eq!(port.counters, wanted.map(|(name, value)| counter(name, value)));
    let wanted = [
        ("UdpInErrors", 8),
        ("UdpRcvbufErrors", 7),
        ("TcpExtListenOverflows", 5),
        ("softnet_dropped", 18),
    ];
    assert_eq!(state.counters, wanted.map(|(name, value)| counter(name, value)));
}

#[test]
fn processes_names_and_the_log_are_read() {
    let state = read_text(HOST);
    assert_eq!(state.services, ["firewalld", "opensm"]);
    let process = Some((812, "my server".to_owned()));
    let wanted =
        [ListeningPort { port: 22, process: None }, ListeningPort { port: 30610, process }];
    assert_eq!(state.listeners, wanted);
    let text = "mlx5_core 0000:01:00.0 eth1: Link down".to_owned();
    assert_eq!(state.kernel_log, Some(vec![LogLine { age: 12, text }]));
    assert_eq!(state.own_name.hostname, "gpu7");
    assert_eq!(state.own_name.addresses, [std::net::IpAddr::from([127, 0, 1, 1])]);
    assert_eq!(state.other_name_sources, ["dns"]);
    assert_eq!(state.proxy_variables, ["https_proxy"]);
    assert_eq!(state.python.len(), 2);
    assert_eq!(state.firewall, None);
}

#[test]
fn counters_are_read_again() {
    let root = lay_out(HOST);
    let source = Root::recorded(root.path());
    let mut state = read(&source).diagnostics;
    let place = root.path().join("sys/class/infiniband/mlx5_0/ports/1/counters/symbol_error");
    std::fs::write(place, "16\n").unwrap();
    let again = read_again(&source, &mut state);
    let names: Vec<&str> = again.iter().map(|(name, _)| name.as_str()).collect();
    assert_eq!(names, ["", "eth1", "mlx5_0/1"]);
    let symbol_error = Counter { last: 16, ..counter("symbol_error", 6) };
    assert_eq!(again[2].1[..2], [symbol_error.clone(), counter("link_downed", 1)]);
    assert_eq!(state.rdma_ports[0].counters[0], symbol_error);
}

/// Recordings that were made for inventories alone have nothing else.
#[test]
fn what_was_not_recorded_is_left_out() {
    for name in tree::all() {
        let root = tree::recorded(&name);
        let HostState { inventory, diagnostics, login, .. } = read(&Root::recorded(root.path()));
        assert_eq!(inventory, inventory::read(&Root::recorded(root.path())), "{name}");
        assert!(login.is_empty());
        assert_eq!(diagnostics.interfaces.len(), inventory.netdevs.len(), "{name}");
        let nothing = Diagnostics {
            adapters: diagnostics.adapters.clone(),
            modules: diagnostics.modules.clone(),
            connection_manager: diagnostics.connection_manager,
            interfaces: diagnostics.interfaces.clone(),
            rdma_ports: diagnostics.rdma_ports.clone(),
            kernel: diagnostics.kernel.clone(),
            module_parameters: diagnostics.module_parameters.clone(),
            ..Diagnostics::default()
        };
        assert_eq!(diagnostics, nothing, "{name}");
        let has_state = |state: &rlaunch_bootstrap::inventory::diagnostics::InterfaceState| {
            let netdev = inventory.netdevs.iter().find(|netdev| netdev.name == state.name);
            netdev.is_some_and(|netdev| !netdev.running || state.is_up)
        };
        assert!(diagnostics.interfaces.iter().all(has_state), "{name}");
    }
    assert_eq!(read_text(""), Diagnostics::default());
}

#[test]
fn a_recording_of_a_host_says_the_same() {
    let first = lay_out(HOST);
    let root = Root::recorded(first.path()).with_recorder();
    let one = read(&root);
    let second = lay_out_recording(&root.recording());
    let two = read(&Root::recorded(second.path()));
    assert_eq!((two.diagnostics, two.inventory), (one.diagnostics, one.inventory));
}

#[test]
fn a_recording_of_this_host_says_the_same() {
    let root = Root::recording_live();
    let live = read(&root);
    let recorded = lay_out_recording(&root.recording());
    let mut recorded = read(&Root::recorded(recorded.path()));
    assert_eq!(recorded.inventory, live.inventory);
    // Recordings do without device files.
    assert_eq!(recorded.diagnostics.gpu_files, None);
    recorded.diagnostics.gpu_files = live.diagnostics.gpu_files;
    assert_eq!(recorded.diagnostics, live.diagnostics);
    assert!(live.diagnostics.memory_available > Some(1 << 20));
    assert!(!live.diagnostics.own_name.hostname.is_empty());
}
