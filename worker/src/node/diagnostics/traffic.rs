//! Counters of CPUs, memory and traffic, for `rlaunch monitor`.
//!
//! They are read once a second, so only a few small files are.
//!
//! Use of NVIDIA GPUs, for `rlaunch monitor`.
//!
//! NVML is a library that a static program cannot load, so the driver's own program is asked: `nvidia-smi` prints
//! what NVML tells, once a second. It runs only while there are questions.

use super::kernel;
use crate::node::Units;
use crate::node::inventory::Root;
use rlaunch_bootstrap::inventory::traffic::{
    CpuTime, GpuUsage, HostCounters, InterfaceTraffic, RdmaTraffic, Traffic,
};
use std::io::{BufRead, BufReader};
use std::process::{Child, ChildStdout, Command, Stdio};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

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
        at_ms: root.text("/proc/uptime").and_then(|text| uptime_ms(&text)),
        cpu: root.text("/proc/stat").and_then(|text| cpu_time(&text)),
        memory: kernel::memory_field(&memory, "MemTotal"),
        memory_available: kernel::memory_field(&memory, "MemAvailable"),
        rdma_ports: rdma_ports(root),
        interfaces: interfaces(root),
        // A program has to be asked for these.
        gpus: Vec::new(),
    }
}

/// Parses `/proc/uptime`: seconds with two decimal places.
fn uptime_ms(text: &str) -> Option<u64> {
    let seconds = text.split_whitespace().next()?.parse::<f64>().ok()?;
    Some((seconds * 1000.0).round() as u64)
}

/// Adds up the CPU time in `/proc/stat`. Time of guests is part of the time of their programs.
fn cpu_time(text: &str) -> Option<CpuTime> {
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

fn rdma_ports(root: &Root) -> Vec<RdmaTraffic> {
    let mut ports = Vec::new();
    for device in root.names(DEVICES) {
        let numbers = root.names(&format!("{DEVICES}/{device}/ports"));
        for port in numbers.iter().filter_map(|number| number.parse().ok()) {
            let (received, sent) =
                of_port(root, &format!("{DEVICES}/{device}/ports/{port}")).unwrap_or_default();
            ports.push(RdmaTraffic { device: device.clone(), port, received, sent });
        }
    }
    ports
}

/// Reads what a port has received and sent, from the first source that it has.
fn of_port(root: &Root, directory: &str) -> Option<(Traffic, Traffic)> {
    SOURCES.iter().find_map(|Source { directory: below, names, unit }| {
        let directory = format!("{directory}/{below}");
        // One file tells whether the port has this source.
        let is_there = root.exists(&format!("{directory}/{}", names[1]));
        is_there.then(|| traffic(root, &directory, *names, *unit))
    })
}

/// Reads the counters in a directory, those of bytes in units of `unit` bytes.
fn traffic(root: &Root, directory: &str, names: TrafficNames, unit: u64) -> (Traffic, Traffic) {
    let read = |name| root.value::<u64>(&format!("{directory}/{name}"));
    let [received, received_packets, sent, sent_packets] = names.map(read);
    let traffic = |bytes: Option<u64>, packets| Traffic {
        bytes: bytes.map(|value| value.saturating_mul(unit)),
        packets,
    };
    (traffic(received, received_packets), traffic(sent, sent_packets))
}

fn interfaces(root: &Root) -> Vec<InterfaceTraffic> {
    let mut names = root.names(INTERFACES);
    names.retain(|name| name != "lo");
    if names.len() > MAX_INTERFACES {
        names.retain(|name| root.exists(&format!("{INTERFACES}/{name}/device")));
        names.truncate(MAX_INTERFACES);
    }
    let interface = |name: String| {
        let directory = format!("{INTERFACES}/{name}/statistics");
        let (received, sent) = traffic(root, &directory, OF_INTERFACE, 1);
        InterfaceTraffic { name, received, sent }
    };
    names.into_iter().map(interface).collect()
}

/// Program of the driver.
const PROGRAM: &str = "nvidia-smi";
/// Columns of its output, and its interval in seconds.
const COLUMNS: &str =
    "--query-gpu=index,utilization.gpu,memory.used,memory.total,power.draw,temperature.gpu";
const FORMAT: &str = "--format=csv,noheader,nounits";
const EACH_SECOND: &str = "--loop=1";
/// Time without a question after which the program is left to end: longer than the interval at which Prometheus asks.
const IDLE: Duration = Duration::from_secs(90);
/// Age beyond which a reading is not told.
const MAX_AGE: Duration = Duration::from_secs(5);
/// Time that the first reading may take. Without the driver's persistence mode it takes seconds.
const FIRST: Duration = Duration::from_secs(3);
/// Maximum number of GPUs in an answer, against a program that prints ever new numbers.
const MAX_GPUS: usize = 64;
const MIB: u64 = 1 << 20;

/// Reader of the use of this host's GPUs.
#[derive(Debug)]
pub(crate) struct GpuMonitor {
    program: &'static str,
    shared: Arc<Shared>,
}

/// Readings, and the event that there are some or that there will be none.
#[derive(Debug, Default)]
struct Shared {
    readings: Mutex<Readings>,
    has_changed: Condvar,
}

/// Last readings, and whether there will be others.
#[derive(Debug, Default)]
struct Readings {
    state: ReaderState,
    /// Time of the last question.
    asked: Option<Instant>,
    /// Readings by GPU, each with its time.
    gpus: Vec<(Instant, GpuUsage)>,
}

#[derive(Debug, Default, PartialEq, Eq)]
enum ReaderState {
    /// The program may be started.
    #[default]
    Idle,
    Running,
    /// The program is absent, ended without a reading, or could not be read. It is not started again.
    Failed,
}

impl GpuMonitor {
    /// Makes a monitor, which does nothing until it is asked.
    pub(crate) fn new() -> GpuMonitor {
        GpuMonitor { program: PROGRAM, shared: Arc::default() }
    }

    /// Returns the readings of the last seconds; none at first. If this starts the program, also returns its process, which
    /// ends by itself when it prints more than 90 s after the last question.
    pub(crate) fn read_or_start(&self) -> (Vec<GpuUsage>, Option<Child>) {
        let mut readings = self.shared.lock();
        readings.asked = Some(Instant::now());
        let started = (readings.state == ReaderState::Idle).then(|| self.start(&mut readings));
        let fresh = readings.gpus.iter().filter(|(at, _)| at.elapsed() < MAX_AGE);
        (fresh.map(|(_, gpu)| gpu.clone()).collect(), started.flatten())
    }

    /// Waits for the first reading, unless the host has none.
    pub(crate) fn await_first(&self) {
        let is_awaited = |readings: &mut Readings| {
            readings.gpus.is_empty() && readings.state == ReaderState::Running
        };
        // Without a reading in time there is none to show.
        drop(self.shared.has_changed.wait_timeout_while(self.shared.lock(), FIRST, is_awaited));
    }

    fn start(&self, readings: &mut Readings) -> Option<Child> {
        let mut command = Command::new(self.program);
        command.args([COLUMNS, FORMAT, EACH_SECOND]);
        command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::null());
        let mut child = rlaunch_sys::spawn(&mut command).ok();
        readings.state = match child.as_mut().and_then(|child| child.stdout.take()) {
            None => ReaderState::Failed,
            Some(stdout) => {
                let shared = self.shared.clone();
                // Without a thread the pipe is closed, and the program ends when it prints.
                match thread::Builder::new().spawn(move || read_gpus(stdout, &shared)) {
                    Ok(_) => ReaderState::Running,
                    Err(_) => ReaderState::Failed,
                }
            }
        };
        child
    }
}

/// Keeps what the program prints until it ends or is no longer needed. It ends when it prints to the closed pipe.
fn read_gpus(stdout: ChildStdout, shared: &Shared) {
    for line in BufReader::new(stdout).lines() {
        let Ok(line) = line else { break };
        // A GPU that has failed has a sentence in place of a line; the others go on.
        let Some(gpu) = parse_gpus(&line) else { continue };
        let mut readings = shared.lock();
        readings.gpus.retain(|(_, known)| known.index != gpu.index);
        if readings.gpus.len() < MAX_GPUS {
            readings.gpus.push((Instant::now(), gpu));
            readings.gpus.sort_by_key(|(_, gpu)| gpu.index);
        }
        if readings.asked.is_none_or(|asked| asked.elapsed() > IDLE) {
            readings.state = ReaderState::Idle;
            return;
        }
        drop(readings);
        shared.has_changed.notify_all();
    }
    let mut readings = shared.lock();
    // A program that has worked is started again by the next question.
    let has_worked = !readings.gpus.is_empty();
    readings.gpus.clear();
    readings.state = if has_worked { ReaderState::Idle } else { ReaderState::Failed };
    drop(readings);
    shared.has_changed.notify_all();
}

impl Shared {
    fn lock(&self) -> MutexGuard<'_, Readings> {
        self.readings.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Parses a line, in which values that a GPU does not have are words in brackets.
fn parse_gpus(line: &str) -> Option<GpuUsage> {
    let values: Vec<&str> = line.split(',').map(str::trim).collect();
    let [index, busy, used, memory, power, temperature] = values[..] else { return None };
    let bytes = |text: &str| text.parse::<u64>().ok().map(|mib| mib.saturating_mul(MIB));
    Some(GpuUsage {
        index: index.parse().ok()?,
        busy_percent: busy.parse().ok(),
        memory_used: bytes(used),
        memory: bytes(memory),
        power_mw: power.parse::<f64>().ok().map(|watts| (watts * 1e3) as u64),
        temperature: temperature.parse().ok(),
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::node::inventory::tests::tree::{self, lay_out};
    use std::os::unix::fs::PermissionsExt;

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
        assert!(cpu_time("cpu  1 2 3 4\ncpu0 1 2 3 4\n").is_some_and(|cpu| cpu.cpus == 1));
        assert_eq!(cpu_time("cpu  1 2\n"), None);
        assert_eq!(uptime_ms(""), None);
    }

    /// Monitor that asks a script.
    fn monitor(script: &str) -> (tempfile::TempDir, GpuMonitor) {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("nvidia-smi");
        std::fs::write(&path, format!("#!/bin/sh\n{script}\n")).unwrap();
        std::fs::set_permissions(&path, std::fs::Permissions::from_mode(0o700)).unwrap();
        let program = Box::leak(path.display().to_string().into_boxed_str());
        (directory, GpuMonitor { program, shared: Arc::default() })
    }

    fn wait_until(mut done: impl FnMut() -> bool) {
        let deadline = Instant::now() + Duration::from_secs(20);
        while !done() {
            assert!(Instant::now() < deadline, "not within 20 s");
            thread::sleep(Duration::from_millis(5));
        }
    }

    #[test]
    fn lines_are_readings_and_missing_values_are_none() {
        let full = parse_gpus("1, 97, 71234, 81559, 612.34, 63").unwrap();
        let GpuUsage { index, busy_percent, memory_used, power_mw, temperature, .. } = full;
        assert_eq!((index, busy_percent, temperature), (1, Some(97), Some(63)));
        assert_eq!((memory_used, power_mw), (Some(71234 << 20), Some(612_340)));
        let without = parse_gpus("0, [N/A], 3, 16, [Not Supported], 40").unwrap();
        assert_eq!(
            (without.busy_percent, without.power_mw, without.memory),
            (None, None, Some(16 << 20))
        );
        assert!(parse_gpus("No devices were found").is_none());
    }

    #[test]
    fn readings_are_kept_while_the_program_runs() {
        let script = "echo '1, 5, 1, 2, 3, 4'; echo '0, 6, 1, 2, 3, 4'; exec sleep 1000";
        let (_directory, monitor) = monitor(script);
        let (none, child) = monitor.read_or_start();
        assert!(none.is_empty());
        monitor.await_first();
        wait_until(|| monitor.read_or_start().0.len() == 2);
        let (gpus, again) = monitor.read_or_start();
        assert_eq!(gpus.iter().map(|gpu| gpu.index).collect::<Vec<_>>(), [0, 1]);
        assert!(again.is_none(), "one program is enough");
        let mut child = child.unwrap();
        child.kill().unwrap();
        child.wait().unwrap();
    }

    #[test]
    fn a_host_without_a_working_program_is_asked_once() {
        let absent = GpuMonitor { program: "/nonexistent/nvidia-smi", shared: Arc::default() };
        assert!(absent.read_or_start().1.is_none() && absent.read_or_start().1.is_none());
        let (_directory, broken) = monitor("echo 'NVIDIA-SMI has failed'; exit 9");
        let mut child = broken.read_or_start().1.unwrap();
        broken.await_first();
        assert_eq!(broken.shared.lock().state, ReaderState::Failed);
        assert!(broken.read_or_start().1.is_none());
        child.wait().unwrap();
    }
}
