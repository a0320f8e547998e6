//! State of a node that `rlaunch doctor` judges and no job needs: counters, kernel settings, driver
//! modules, the firewall, the kernel's log, versions of Python packages.
//!
//! The agent reads it from files of the kernel, and without changing anything. Anything that cannot
//! be read is `None` or an empty list, never a guess.

use serde::{Deserialize, Serialize};
use std::net::IpAddr;

/// Diagnostics of one node.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Diagnostics {
    /// Effective user id of the agent.
    pub uid: u32,
    /// PCI functions that are network or InfiniBand controllers (class 02 or 0c06), with or without
    /// a driver, in order of their addresses.
    pub adapters: Vec<PciAdapter>,
    /// Names of loaded kernel modules and of those built into the kernel, with `_` in place of `-`,
    /// sorted. Only those on RDMA, networks and GPUs are listed.
    pub modules: Vec<String>,
    /// Parameters of RDMA modules, such as `erdma.compat_mode`, in order of their names.
    pub module_parameters: Vec<(String, String)>,
    /// Device file `/dev/infiniband/rdma_cm` of the RDMA connection manager.
    pub connection_manager: DeviceFile,
    pub kernel: KernelSettings,
    /// State of network interfaces, in the order of `Inventory::netdevs`.
    pub interfaces: Vec<InterfaceState>,
    /// State of RDMA ports, in the order of the inventory.
    pub rdma_ports: Vec<RdmaPortState>,
    /// Host-wide network counters such as `UdpRcvbufErrors`.
    pub counters: Vec<Counter>,
    /// Whether NVIDIA's driver consists of its open kernel modules; `None` if it is not loaded, or
    /// does not say so.
    #[serde(default)]
    pub nvidia_open: Option<bool>,
    /// Whether the files are there by which programs reach GPUs (`/dev/nvidiactl`, or `/dev/kfd` of AMD); `None` of a recorded
    /// host.
    #[serde(default)]
    pub gpu_files: Option<bool>,
    /// Names of running services that matter to jobs, such as `opensm` and `firewalld`, sorted.
    pub services: Vec<String>,
    /// TCP ports on which processes of this host listen.
    pub listeners: Vec<ListeningPort>,
    /// Packet filter; `None` if this user may not read it.
    pub firewall: Option<Firewall>,
    /// Lines of the kernel's log from the last hour that matter to jobs; `None` if this user may not
    /// read it.
    pub kernel_log: Option<Vec<LogLine>>,
    /// Names of this host and the addresses to which it resolves them.
    pub own_name: OwnName,
    /// Sources of host names in `/etc/nsswitch.conf` that the agent could not ask, such as `dns`;
    /// empty if it has asked all. If there are any, programs may get addresses for names where the
    /// agent gets none.
    #[serde(default)]
    pub other_name_sources: Vec<String>,
    /// Names of variables of the login environment that point to a proxy, such as `https_proxy`, and
    /// whether `no_proxy` is set.
    pub proxy_variables: Vec<String>,
    /// Memory that can be allocated now, in bytes.
    pub memory_available: Option<u64>,
    /// Space that this user can use in `/tmp`, in bytes.
    pub tmp_available: Option<u64>,
    /// Space that is free in `/dev/shm`, in bytes.
    pub shared_memory_available: Option<u64>,
    /// Why the agent's user cannot make files in `/dev/shm`; `None` if it can, or for another reason.
    #[serde(default)]
    pub shared_memory_defect: Option<SharedMemoryDefect>,
    /// Time since the epoch at which the agent read its clock, in microseconds; `None` for a
    /// recorded host.
    pub clock: Option<u64>,
    /// Names and versions of Python and its packages that jobs use, such as `torch` and `horovod`.
    pub python: Vec<(String, String)>,
    /// Time between the two readings of each counter, in milliseconds; 0 if counters were read
    /// once.
    pub interval_ms: u32,
}

/// Reason why files cannot be made in `/dev/shm`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum SharedMemoryDefect {
    /// It does not exist.
    Missing,
    /// It is mounted read-only.
    ReadOnly,
    /// Its mode does not permit it.
    Denied,
    /// It has as many files as it may have (inodes), whatever their sizes.
    NoInodes,
}

/// Network controller on the PCI bus.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct PciAdapter {
    /// PCI address, such as `0000:c3:00.0`.
    pub address: String,
    /// PCI vendor, such as 0x15b3 for NVIDIA (Mellanox).
    pub vendor: u16,
    /// PCI device number.
    pub device: u16,
    /// PCI class, such as 0x020000 for Ethernet and 0x020700 for InfiniBand.
    pub class: u32,
    /// Driver that has bound the function.
    pub driver: Option<String>,
    /// Whether the kernel has an RDMA device for this function.
    pub has_rdma: bool,
    /// Name of the first network interface of the function.
    pub netdev: Option<String>,
}

/// Device file, and whether the agent's user may use it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum DeviceFile {
    /// It may be opened.
    Usable,
    /// It may not be opened.
    Denied,
    /// It does not exist.
    #[default]
    Missing,
}

/// Settings of the kernel, from `/proc`.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct KernelSettings {
    /// Words of the kernel's command line.
    pub command_line: Vec<String>,
    /// `net.ipv4.ip_local_port_range`: first and last port.
    pub ephemeral_ports: Option<(u16, u16)>,
    /// `net.ipv4.ip_local_reserved_ports`: ranges of ports, first and last, that the kernel does not choose.
    #[serde(default)]
    pub reserved_ports: Vec<(u16, u16)>,
    pub max_map_count: Option<u64>,
    /// `kernel.yama.ptrace_scope`; `None` without Yama.
    pub ptrace_scope: Option<u8>,
    /// `net.core.netdev_max_backlog`, in packets; `None` where it cannot be read, as in network namespaces.
    pub backlog_max: Option<u64>,
    /// Whether SELinux enforces its policy.
    pub selinux_enforcing: bool,
    /// `ID=` of `/etc/os-release`, such as `debian`; and the words of `ID_LIKE=`.
    pub distribution_ids: Vec<String>,
    /// Whether ufw is enabled by its configuration.
    pub ufw_enabled: bool,
}

/// State of a network interface.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct InterfaceState {
    pub name: String,
    /// Whether the interface is administratively up.
    pub is_up: bool,
    /// Whether the link has a carrier; `None` if the interface is down or does not report it.
    pub has_carrier: Option<bool>,
    /// Number of times that the carrier was lost since the interface was made.
    pub carrier_losses: Option<u64>,
    /// Counters of errors and drops, such as `rx_crc_errors`.
    pub counters: Vec<Counter>,
    /// The larger of the values of `arp_ignore` for this interface and for `all`, as the kernel
    /// uses it.
    pub arp_ignore: Option<u8>,
    /// The larger of the two values of `arp_announce`.
    pub arp_announce: Option<u8>,
    /// The larger of the two values of `rp_filter`.
    pub rp_filter: Option<u8>,
    pub ipv6_disabled: bool,
    /// Priorities for which RoCE congestion control is enabled at the notification point and at the
    /// reaction point; `None` if the driver does not have these files, which come with MLNX_OFED.
    pub roce_ecn: Option<(Vec<u8>, Vec<u8>)>,
    /// Priorities with priority flow control; `None` if unknown.
    pub pfc: Option<Vec<u8>>,
}

/// State of an RDMA port.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct RdmaPortState {
    pub device: String,
    pub port: u8,
    /// RoCE version that the connection manager uses by default, such as `RoCE v2`; `None` if
    /// configfs has no directory for the device.
    pub cm_roce_mode: Option<String>,
    /// Counters of errors, from `counters` and `hw_counters`.
    pub counters: Vec<Counter>,
}

/// Counter with its value when the agent began, and its value at the end.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Counter {
    /// Name that the kernel uses.
    pub name: String,
    pub first: u64,
    /// Last value; equal to the first if the counter was read once.
    pub last: u64,
}

impl Counter {
    /// Returns by how much the counter grew while the agent ran.
    pub fn growth(&self) -> u64 {
        self.last.saturating_sub(self.first)
    }
}

/// Listening TCP socket.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ListeningPort {
    /// TCP port.
    pub port: u16,
    /// Process that has the socket, if this user may see it: pid and name.
    pub process: Option<(u32, String)>,
}

/// Packet filter of a host, as far as it affects packets that arrive.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Firewall {
    /// Program by which it was read: `nft` or `iptables`.
    pub read_by: String,
    /// Whether packets that match no rule of an input chain are dropped or rejected.
    pub drops_by_default: bool,
    /// Chain that drops by default: family, table and chain for nft, as in `inet filter input`, or
    /// the name of the chain for iptables; empty if unknown.
    #[serde(default)]
    pub chain: String,
    /// Base chain that drops by default, in the form of [`FirewallRule::base`].
    #[serde(default)]
    pub base: u32,
    /// Rules that drop, reject or accept packets in input and output chains, in order. If several
    /// base chains drop by default, all but the first have a rule at their end that does so.
    pub rules: Vec<FirewallRule>,
}

/// Rule of a packet filter.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct FirewallRule {
    /// Rule as its program prints it, shortened to 200 bytes.
    pub text: String,
    /// Chain of the rule, in the form of [`Firewall::chain`]; empty if unknown.
    #[serde(default)]
    pub chain: String,
    /// Number of the base chain, in order of priority, from which packets get to the rule. A packet
    /// has to be accepted in each base chain that it meets.
    #[serde(default)]
    pub base: u32,
    /// Whether the rule is about packets that arrive; otherwise about packets that leave.
    pub is_input: bool,
    /// Whether the rule accepts packets; otherwise it drops or rejects them.
    pub accepts: bool,
    /// Protocol to which the rule is limited.
    pub protocol: Option<FilterProtocol>,
    /// Destination ports to which the rule is limited, first and last; empty if it is not limited.
    pub ports: Vec<(u16, u16)>,
    /// Interface to which the rule is limited.
    pub interface: Option<String>,
    /// Whether the rule has a condition that this reading does not understand, such as a set.
    pub has_other_conditions: bool,
}

/// Protocol of a packet filter's rule.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum FilterProtocol {
    Tcp,
    Udp,
    Icmp,
    Other,
}

/// Line of the kernel's log.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct LogLine {
    /// Age of the line in seconds when it was read.
    pub age: u32,
    /// Text, shortened to 300 bytes.
    pub text: String,
}

/// Names of a host as it sees them itself.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct OwnName {
    /// Result of `gethostname`.
    pub hostname: String,
    /// Addresses to which the host resolves this name; empty if it cannot.
    pub addresses: Vec<IpAddr>,
}
