//! Parser of NCCL's log (NCCL_DEBUG=INFO), which shows the network that each rank used. `--nccl-verify` and
//! `rlaunch report` use this parser.

use rlaunch_bootstrap::id::Rank;
use serde::Serialize;
use std::collections::BTreeMap;
use std::fmt;

/// Text that marks the lines of NCCL's log.
const MARK: &str = " NCCL INFO ";

/// Networks of all ranks, as far as NCCL has logged them.
#[derive(Clone, Debug, Default)]
pub struct Log {
    /// Whether to show the lines of NCCL's log, because the user asked for them.
    shown: bool,
    ranks: BTreeMap<Rank, LoggedNetwork>,
}

/// Network that NCCL uses in one rank.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct LoggedNetwork {
    /// `IB`, `Socket` or a plugin's name; `None` until it is logged.
    network: Option<String>,
    /// Ports such as `rocep26s0:1 RoCE`.
    ports: Vec<String>,
    /// Interface over which NCCL's ranks find each other by TCP, such as `eth0`.
    out_of_band: Option<String>,
    /// Whether NICs access the GPU's memory directly (GPUDirect).
    direct: bool,
}

impl LoggedNetwork {
    /// Tells whether NCCL transfers data by RDMA. Any network but `Socket` counts as RDMA, plugins included.
    pub fn is_rdma(&self) -> bool {
        self.network.as_deref().is_some_and(|network| network != "Socket")
    }

    /// Tells whether NCCL has logged which network it uses.
    pub fn is_known(&self) -> bool {
        self.network.is_some()
    }

    /// Returns the interface over which NCCL's ranks find each other by TCP.
    pub fn out_of_band(&self) -> Option<&str> {
        self.out_of_band.as_deref()
    }

    /// Parses the part of a line after `NCCL INFO`.
    pub fn read(&mut self, words: &str) {
        if let Some(network) = words.strip_prefix("Using network ") {
            self.network = Some(network.trim().to_owned());
        } else if let Some(ports) = words.strip_prefix("NET/IB : Using ") {
            self.ports = ports_of(ports);
            self.out_of_band = interface_of(ports);
        } else if words.contains("GPU Direct RDMA Enabled") || words.contains("/GDRDMA") {
            self.direct = true;
        }
    }
}

/// Parses the ports `mlx5_0:1 IB` and `mlx5_1:1 IB` from `[0]mlx5_0:1/IB [1]mlx5_1:1/IB [RO]; OOB …`.
fn ports_of(text: &str) -> Vec<String> {
    let ports = text.split(';').next().unwrap_or_default();
    let numbered = ports.split_whitespace().filter_map(|word| {
        let (index, port) = word.strip_prefix('[')?.split_once(']')?;
        let is_port = index.parse::<u32>().is_ok() && !port.is_empty();
        is_port.then(|| port.replace('/', " "))
    });
    numbered.collect()
}

/// Parses the name of the interface, here `eth0`, from `…; OOB eth0:10.0.0.1<0>`.
fn interface_of(text: &str) -> Option<String> {
    let (_, address) = text.split_once("; OOB ")?;
    address.split_once(':').map(|(name, _)| name.to_owned())
}

/// Writes the network, as in `IB rocep26s0:1 RoCE, GPUDirect` or `TCP (Socket): RDMA is not used`.
impl fmt::Display for LoggedNetwork {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.network.as_deref() {
            None => f.write_str("NCCL has not said which network it uses"),
            Some("Socket") => f.write_str("TCP (Socket): RDMA is not used"),
            Some(network) => {
                f.write_str(network)?;
                if !self.ports.is_empty() {
                    write!(f, " {}", self.ports.join(", "))?;
                }
                if self.direct { f.write_str(", GPUDirect") } else { Ok(()) }
            }
        }
    }
}

impl Log {
    pub fn new(shown: bool) -> Log {
        Log { shown, ranks: BTreeMap::new() }
    }

    /// Reads whole lines of a rank's output and returns the lines to show.
    pub fn read_lines(&mut self, rank: Rank, data: &[u8]) -> Vec<u8> {
        let mut kept = Vec::with_capacity(data.len());
        for line in data.split_inclusive(|byte| *byte == b'\n') {
            let text = String::from_utf8_lossy(line);
            match text.split_once(MARK) {
                Some((_, words)) => {
                    self.ranks.entry(rank).or_default().read(words.trim_end());
                    if self.shown {
                        kept.extend_from_slice(line);
                    }
                }
                None => kept.extend_from_slice(line),
            }
        }
        kept
    }

    /// Returns the network of a rank; all its fields are empty if nothing was logged.
    pub(crate) fn network_of(&self, rank: Rank) -> LoggedNetwork {
        self.ranks.get(&rank).cloned().unwrap_or_default()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Log of a job of two ranks on eRDMA.
    const IB: &str = "\
iZ2zeg0kcgyxepyc5r63kgZ:17:28 [0] NCCL INFO NET/IB : Using [0]rocep26s0:1/RoCE ; OOB eth0:192.168.8.128<0>
iZ2zeg0kcgyxepyc5r63kgZ:17:28 [0] NCCL INFO Using network IB
";
    const SOCKET: &str = "\
b:17:28 [0] NCCL INFO NET/IB : No device found.
b:17:28 [0] NCCL INFO NET/Socket : Using [0]eth0:10.0.0.2<0>
b:17:28 [0] NCCL INFO Using network Socket
";

    #[test]
    fn the_network_of_each_rank_is_told() {
        let mut log = Log::new(false);
        assert_eq!(log.read_lines(Rank(0), IB.as_bytes()), b"");
        let mixed = format!("step 1\n{SOCKET}step 2\n");
        assert_eq!(log.read_lines(Rank(1), mixed.as_bytes()), b"step 1\nstep 2\n");
        assert_eq!(log.network_of(Rank(0)).to_string(), "IB rocep26s0:1 RoCE");
        assert_eq!(log.network_of(Rank(0)).out_of_band(), Some("eth0"));
        assert!(log.network_of(Rank(0)).is_rdma() && !log.network_of(Rank(1)).is_rdma());
        assert_eq!(log.network_of(Rank(1)).to_string(), "TCP (Socket): RDMA is not used");
        assert!(!log.network_of(Rank(2)).is_rdma());
    }

    #[test]
    fn several_ports_and_gpudirect_are_read() {
        let mut log = Log::new(true);
        let lines = "\
a:1:2 [0] NCCL INFO NET/IB : Using [0]mlx5_0:1/IB [1]mlx5_1:1/IB [RO]; OOB ens3:10.0.0.1<0>
a:1:2 [0] NCCL INFO Using network IB
a:1:2 [0] NCCL INFO Channel 00/0 : 1[0] -> 0[0] [receive] via NET/IB/0/GDRDMA
";
        assert_eq!(log.read_lines(Rank(0), lines.as_bytes()), lines.as_bytes());
        assert_eq!(log.network_of(Rank(0)).to_string(), "IB mlx5_0:1 IB, mlx5_1:1 IB, GPUDirect");
    }

    #[test]
    fn a_plugin_counts_as_rdma() {
        let mut log = Log::new(false);
        log.read_lines(Rank(0), b"a:1:2 [0] NCCL INFO Using network AWS Libfabric\n");
        assert_eq!(log.network_of(Rank(0)).to_string(), "AWS Libfabric");
        assert!(log.network_of(Rank(0)).is_rdma());
    }
}
