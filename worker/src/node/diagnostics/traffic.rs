//! Counters of CPUs, memory and traffic, for `rlaunch monitor`.
//!
//! They are read once a second, so only a few small files are.

use super::kernel;
use crate::node::Units;
use crate::node::inventory::Root;
use rlaunch_bootstrap::decimal;
use rlaunch_bootstrap::inventory::traffic::{
    CpuTime, HostCounters, InterfaceTraffic, RdmaTraffic, Traffic,
};

const INTERFACES: &str = "/sys/class/net";
const DEVICES: &str = "/sys/class/infiniband";
/// Maximum number of interfaces that are read. Hosts of containers have hundreds.
const MAX_INTERFACES: usize = 64;

/// Names of counters: received bytes and packets, sent bytes and packets.
type TrafficNames = [&'static str; 4];

/// Counters of traffic that drivers have. A port has those of one of these sources.
struct Source {
    /// Directory below that of the port.
    directory: &'static str,
    names: TrafficNames,
    /// Number of bytes that the counters of bytes count as one.
    unit: u64,
}

/// Sources in order of preference.
const SOURCES: &[Source] = &[
    // Defined by InfiniBand, which counts words of 4 bytes: mlx4, mlx5, hfi1, qib.
    Source {
        directory: "counters",
        names: ["port_rcv_data", "port_rcv_packets", "port_xmit_data", "port_xmit_packets"],
        unit: 4,
    },
    // erdma of Alibaba's package, and in the kernel.
    Source {
        directory: "hw_counters",
        names: ["hw_rx_bytes_cnt", "hw_rx_packets_cnt", "hw_tx_bytes_cnt", "hw_tx_packets_cnt"],
        unit: 1,
    },
    Source {
        directory: "hw_counters",
        names: ["rx_bytes_cnt", "rx_packets_cnt", "tx_bytes_cnt", "tx_packets_cnt"],
        unit: 1,
    },
    // efa and bnxt_re.
    Source {
        directory: "hw_counters",
        names: ["rx_bytes", "rx_pkts", "tx_bytes", "tx_pkts"],
        unit: 1,
    },
    // irdma
    Source {
        directory: "hw_counters",
        names: ["ip4InOctets", "ip4InPkts", "ip4OutOctets", "ip4OutPkts"],
        unit: 1,
    },
    // Soft RoCE, which counts packets alone.
    Source { directory: "hw_counters", names: ["", "rcvd_pkts", "", "sent_pkts"], unit: 1 },
];

/// Counters of a network interface (Documentation/ABI/testing/sysfs-class-net-statistics).
const OF_INTERFACE: TrafficNames = ["rx_bytes", "rx_packets", "tx_bytes", "tx_packets"];

/// Reads the counters of a host.
pub(crate) fn read(root: &Root) -> HostCounters {
    let memory = root.text("/proc/meminfo").unwrap_or_default();
    HostCounters {
        at_ms: root.text("/proc/uptime").and_then(|text| parse_uptime_ms(&text)),
        cpu: root.text("/proc/stat").and_then(|text| parse_cpu_time(&text)),
        memory: kernel::memory_field(&memory, "MemTotal"),
        memory_available: kernel::memory_field(&memory, "MemAvailable"),
        rdma_ports: read_rdma_ports(root),
        interfaces: read_interfaces(root),
        // A program has to be asked for these.
        gpus: Vec::new(),
    }
}

/// Parses `/proc/uptime`: seconds with two decimal places.
fn parse_uptime_ms(text: &str) -> Option<u64> {
    decimal::thousandths(text.split_whitespace().next()?)
}

/// Adds up the CPU time in `/proc/stat`. Time of guests is part of the time of their programs.
fn parse_cpu_time(text: &str) -> Option<CpuTime> {
    let all = text.lines().find_map(|line| line.strip_prefix("cpu "))?;
    let ticks: Vec<u64> = all.split_whitespace().map_while(|word| word.parse().ok()).collect();
    let [user, nice, system, idle, rest @ ..] = &ticks[..] else { return None };
    // Columns that old kernels do not have: iowait, irq, softirq, steal.
    let column = |place: usize| rest.get(place).copied().unwrap_or_default();
    let is_cpu = |line: &&str| {
        line.strip_prefix("cpu").is_some_and(|rest| rest.starts_with(|c: char| c.is_ascii_digit()))
    };
    let cpus = text.lines().filter(is_cpu).count();
    let to_ms = |ticks: u64| ticks.saturating_mul(1000) / Units::of_system().ticks_per_second;
    Some(CpuTime {
        cpus: u32::try_from(cpus).unwrap_or(u32::MAX),
        busy_ms: to_ms(user + nice + system + column(1) + column(2) + column(3)),
        idle_ms: to_ms(idle + column(0)),
    })
}

fn read_rdma_ports(root: &Root) -> Vec<RdmaTraffic> {
    let mut ports = Vec::new();
    for device in root.names(DEVICES) {
        let numbers = root.names(&format!("{DEVICES}/{device}/ports"));
        for port in numbers.iter().filter_map(|number| number.parse().ok()) {
            let (received, sent) =
                read_port(root, &format!("{DEVICES}/{device}/ports/{port}")).unwrap_or_default();
            ports.push(RdmaTraffic { device: device.clone(), port, received, sent });
        }
    }
    ports
}

/// Reads what a port has received and sent, from the first source that it has.
fn read_port(root: &Root, directory: &str) -> Option<(Traffic, Traffic)> {
    SOURCES.iter().find_map(|Source { directory: below, names, unit }| {
        let directory = format!("{directory}/{below}");
        // One file tells whether the port has this source.
        let is_there = root.exists(&format!("{directory}/{}", names[1]));
        is_there.then(|| read_traffic(root, &directory, *names, *unit))
    })
}

/// Reads the counters in a directory, those of bytes in units of `unit` bytes.
fn read_traffic(
    root: &Root,
    directory: &str,
    names: TrafficNames,
    unit: u64,
) -> (Traffic, Traffic) {
    let read = |name| root.value::<u64>(&format!("{directory}/{name}"));
    let [received, received_packets, sent, sent_packets] = names.map(read);
    let traffic = |bytes: Option<u64>, packets| Traffic {
        bytes: bytes.map(|value| value.saturating_mul(unit)),
        packets,
    };
    (traffic(received, received_packets), traffic(sent, sent_packets))
}

fn read_interfaces(root: &Root) -> Vec<InterfaceTraffic> {
    let mut names = root.names(INTERFACES);
    names.retain(|name| name != "lo");
    if names.len() > MAX_INTERFACES {
        names.retain(|name| root.exists(&format!("{INTERFACES}/{name}/device")));
        names.truncate(MAX_INTERFACES);
    }
    let interface = |name: String| {
        let directory = format!("{INTERFACES}/{name}/statistics");
        let (received, sent) = read_traffic(root, &directory, OF_INTERFACE, 1);
        InterfaceTraffic { name, received, sent }
    };
    names.into_iter().map(interface).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::node::inventory::tests::tree::{self, lay_out};

    const HOST: &str = r#"
[/proc]
uptime = 100.25 200.00\n
stat = cpu  100 10 50 800 40 0 5 5 30 0\ncpu0 50 5 25 400 20 0 3 2 15 0\ncpu1 50 5 25 400 20 0 2 3 15 0\nintr 5\n
meminfo = MemTotal: 2000 kB\nMemFree: 10 kB\nMemAvailable: 1000 kB\n

[/sys/class/infiniband/mlx5_0/ports/1]
counters/port_rcv_data = 100
counters/port_rcv_packets = 7
counters/port_xmit_data = 250
counters/port_xmit_packets = 9

[/sys/class/infiniband/erdma_0/ports/1]
hw_counters/hw_rx_bytes_cnt = 5000
hw_counters/hw_rx_packets_cnt = 50
hw_counters/hw_tx_bytes_cnt = 6000
hw_counters/hw_tx_packets_cnt = 60

[/sys/class/infiniband/rxe0/ports/1]
hw_counters/rcvd_pkts = 3
hw_counters/sent_pkts = 4

[/sys/class/infiniband/siw0/ports/1]
state = 4: ACTIVE

[/sys/class/net/eth0/statistics]
rx_bytes = 1000
rx_packets = 10
tx_bytes = 2000
tx_packets = 20

[/sys/class/net/lo/statistics]
rx_bytes = 1
"#;

    fn traffic(bytes: Option<u64>, packets: Option<u64>) -> Traffic {
        Traffic { bytes, packets }
    }

    #[test]
    fn a_host_counts_cpus_memory_and_traffic() {
        let root = lay_out(HOST);
        let counters = read(&Root::recorded(root.path()));
        assert_eq!(counters.at_ms, Some(100_250));
        let ticks = Units::of_system().ticks_per_second;
        let cpu = CpuTime { cpus: 2, busy_ms: 170_000 / ticks, idle_ms: 840_000 / ticks };
        assert_eq!(counters.cpu, Some(cpu));
        assert_eq!(counters.memory, Some(2000 << 10));
        assert_eq!(counters.memory_available, Some(1000 << 10));
        let [eth0] = &counters.interfaces[..] else { panic!("{counters:?}") };
        assert_eq!(eth0.received, traffic(Some(1000), Some(10)));
        assert_eq!(eth0.sent, traffic(Some(2000), Some(20)));
    }

    #[test]
    fn drivers_count_in_different_files_and_units() {
        let root = lay_out(HOST);
        let ports = read(&Root::recorded(root.path())).rdma_ports;
        let seen: Vec<_> =
            ports.iter().map(|port| (&port.device[..], port.received, port.sent)).collect();
        let nothing = Traffic::default();
        let expected = [
            ("erdma_0", traffic(Some(5000), Some(50)), traffic(Some(6000), Some(60))),
            ("mlx5_0", traffic(Some(400), Some(7)), traffic(Some(1000), Some(9))),
            ("rxe0", traffic(None, Some(3)), traffic(None, Some(4))),
            ("siw0", nothing, nothing),
        ];
        assert_eq!(seen, expected);
    }

    #[test]
    fn recorded_machines_have_a_row_for_each_port() {
        for name in tree::all() {
            let root = tree::recorded(&name);
            let root = Root::recorded(root.path());
            let ports: usize =
                crate::node::inventory::read(&root).rdma.iter().map(|d| d.ports.len()).sum();
            assert_eq!(read(&root).rdma_ports.len(), ports, "{name}");
        }
    }

    #[test]
    fn this_host_has_a_clock_and_cpus() {
        let counters = read(&Root::live());
        assert!(counters.at_ms > Some(0) && counters.memory > Some(1 << 20), "{counters:?}");
        assert!(counters.cpu.is_some_and(|cpu| cpu.cpus > 0 && cpu.idle_ms > 0), "{counters:?}");
    }

    #[test]
    fn columns_of_old_kernels_are_enough() {
        assert!(parse_cpu_time("cpu  1 2 3 4\ncpu0 1 2 3 4\n").is_some_and(|cpu| cpu.cpus == 1));
        assert_eq!(parse_cpu_time("cpu  1 2\n"), None);
        assert_eq!(parse_uptime_ms(""), None);
    }
}
