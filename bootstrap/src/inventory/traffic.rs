//! Counters of a whole host: what its CPUs, its memory, its GPUs and its network ports do.
//!
//! `rlaunch monitor` reads them again and again and shows how they grow.

use serde::{Deserialize, Serialize};

/// Counters of a host at one time.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct HostCounters {
    /// Time at which they were read, in milliseconds since the start of the host; `None` if
    /// unknown.
    pub at_ms: Option<u64>,
    /// CPU time of all CPUs since the start of the host; `None` if unknown.
    pub cpu: Option<CpuTime>,
    /// Memory of the host, in bytes; `None` if unknown.
    pub memory: Option<u64>,
    /// Memory that programs can still get without swapping, in bytes; `None` if unknown.
    pub memory_available: Option<u64>,
    pub rdma_ports: Vec<RdmaTraffic>,
    pub interfaces: Vec<InterfaceTraffic>,
    /// Use of NVIDIA GPUs, where the host has their driver.
    pub gpus: Vec<GpuUsage>,
}

/// Use of a GPU. Values that a GPU does not report are `None`.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct GpuUsage {
    /// Number of the GPU, as in `nvidia-smi`.
    pub index: u32,
    /// Share of the last sample period in which a kernel ran, in per cent, 0 to 100.
    pub busy_percent: Option<u32>,
    /// Memory in use, in bytes.
    pub memory_used: Option<u64>,
    /// Memory of the GPU, in bytes.
    pub memory: Option<u64>,
    /// Power that it draws, in milliwatts.
    pub power_mw: Option<u64>,
    /// Temperature, in degrees Celsius.
    pub temperature: Option<u32>,
}

/// CPU time of all CPUs of a host.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct CpuTime {
    pub cpus: u32,
    /// Time in which CPUs ran programs or the kernel, in milliseconds.
    pub busy_ms: u64,
    /// Time in which CPUs had nothing to run, in milliseconds.
    pub idle_ms: u64,
}

/// Traffic of an RDMA port since its counters were reset.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct RdmaTraffic {
    pub device: String,
    pub port: u8,
    pub received: Traffic,
    pub sent: Traffic,
}

/// Traffic of a network interface since it was made.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct InterfaceTraffic {
    pub name: String,
    pub received: Traffic,
    pub sent: Traffic,
}

/// Bytes and packets in one direction. Drivers do not count all of them: soft RoCE counts packets
/// alone.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Traffic {
    /// Number of bytes; `None` if they are not counted.
    pub bytes: Option<u64>,
    /// Number of packets; `None` if they are not counted.
    pub packets: Option<u64>,
}
