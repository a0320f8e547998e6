//! Finds in NCCL's log which network each process uses.

use rlaunch_plan::env::nccl::LoggedNetwork;
use std::collections::{BTreeMap, BTreeSet};

/// Texts that mark a line of NCCL's log.
const MARKS: [&str; 2] = [" NCCL INFO ", " NCCL WARN "];

/// Processes that printed lines of NCCL's log, and connections that NCCL could not make.
#[derive(Debug, Default)]
pub(crate) struct NcclNetworks {
    processes: BTreeMap<Process, ProcessLog>,
    failed: BTreeSet<FailedPair>,
}

/// Process that printed a line of NCCL's log. The line begins with `host:pid:tid [device]`; the rank comes
/// from the launcher's tag.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
struct Process {
    rank: Option<u32>,
    host: String,
    pid: u32,
}

/// Facts from the lines of one process.
#[derive(Clone, Debug, Default)]
struct ProcessLog {
    /// Ranks of the process. It may have several, one for each of its GPUs.
    ranks: BTreeSet<u32>,
    network: LoggedNetwork,
}

#[derive(Clone, Debug)]
pub(crate) struct ProcessNetwork<'a> {
    /// Ranks of the process, as far as they are known.
    pub(crate) ranks: Vec<u32>,
    pub(crate) host: &'a str,
    pub(crate) pid: u32,
    pub(crate) network: &'a LoggedNetwork,
}

/// Local and remote GID between which NCCL could not make a connection.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct FailedPair {
    pub(crate) local: String,
    pub(crate) remote: String,
}

impl NcclNetworks {
    pub(super) fn add_line(&mut self, rank: Option<u32>, line: &str) {
        self.failed.extend(failed_pair(line));
        let Some((before, words)) = MARKS.iter().find_map(|mark| line.split_once(mark)) else {
            return;
        };
        let Some((host, pid)) = process(before) else { return };
        let process = Process { rank, host: host.to_owned(), pid };
        let log = self.processes.entry(process).or_default();
        log.ranks.extend(rank.or_else(|| rank_of(words)));
        log.network.read(words.trim_end());
    }

    pub(super) fn is_empty(&self) -> bool {
        self.processes.is_empty() && self.failed.is_empty()
    }

    /// Lists the processes whose network is known, in the order of their ranks.
    pub(crate) fn by_process(&self) -> Vec<ProcessNetwork<'_>> {
        let known = self.processes.iter().filter(|(_, log)| log.network.is_known());
        let mut networks: Vec<ProcessNetwork<'_>> = known
            .map(|(process, log)| ProcessNetwork {
                ranks: log.ranks.iter().copied().collect(),
                host: &process.host,
                pid: process.pid,
                network: &log.network,
            })
            .collect();
        networks.sort_by(|one, other| {
            (&one.ranks, one.host, one.pid).cmp(&(&other.ranks, other.host, other.pid))
        });
        networks
    }

    pub(crate) fn failed(&self) -> impl Iterator<Item = &FailedPair> {
        self.failed.iter()
    }
}

/// Parses the host and the process id in `node-0:17:28 [0]`, at the end of a text.
fn process(before: &str) -> Option<(&str, u32)> {
    let mut words = before.split_whitespace().rev();
    let name = words.find(|word| word.matches(':').count() == 2)?;
    let (name, _thread) = name.rsplit_once(':')?;
    let (host, pid) = name.rsplit_once(':')?;
    Some((host, pid.parse().ok()?))
}

/// Finds the rank in text of NCCL's log like `comm 0x55d0 rank 1 nranks 2 cudaDev 0`.
fn rank_of(words: &str) -> Option<u32> {
    let mut words = words.split_whitespace().skip_while(|word| *word != "comm");
    words.find(|word| *word == "rank")?;
    let rank = words.next()?.parse().ok()?;
    words.next().filter(|word| word.eq_ignore_ascii_case("nranks"))?;
    Some(rank)
}

/// Parses a line like `Call to ibv_modify_qp failed with 110 …, local GID ::ffff:192.168.100.1, remote GID
/// …`.
fn failed_pair(line: &str) -> Option<FailedPair> {
    let (_, details) = line.split_once("ibv_modify_qp failed")?;
    let gid = |name| {
        // The search is from the end, since `local GID index 3` may precede `local GID ::ffff:…`.
        let (_, gid) = details.rsplit_once(name)?;
        gid.split([',', ' ']).find(|word| !word.is_empty()).map(str::to_owned)
    };
    Some(FailedPair { local: gid("local GID ")?, remote: gid("remote GID ")? })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(lines: &[&str]) -> NcclNetworks {
        let mut networks = NcclNetworks::default();
        lines.iter().for_each(|line| networks.add_line(None, line));
        networks
    }

    #[test]
    fn processes_are_told_apart() {
        let networks = read(&[
            "n:17:28 [0] NCCL INFO NET/IB : Using [0]rocep26s0:1/RoCE ; OOB eth0:192.168.8.128<0>",
            "n:18:27 [1] NCCL INFO Using network Socket",
            "n:17:28 [0] NCCL INFO Using network IB",
            "n:17:28 [0] NCCL INFO comm 0x7f9c rank 1 nranks 2 cudaDev 0 busId 5000 - Init COMPLETE",
            "n:18:27 [1] NCCL INFO ncclCommInitRank comm 0x55 rank 0 nRanks 2 cudaDev 1",
            "n:19:1 [1] NCCL INFO NCCL_DEBUG set by environment to INFO",
        ]);
        let by_process = networks.by_process();
        let found: Vec<(Vec<u32>, u32, String)> = by_process
            .iter()
            .map(|used| (used.ranks.clone(), used.pid, used.network.to_string()))
            .collect();
        let expected = [
            (vec![0], 18, "TCP (Socket): RDMA is not used".to_owned()),
            (vec![1], 17, "IB rocep26s0:1 RoCE".to_owned()),
        ];
        assert_eq!(found, expected);
    }

    #[test]
    fn a_connection_across_two_networks_is_noticed() {
        let line = "n:1:2 [0] misc/ibvwrap.cc:262 NCCL WARN Call to ibv_modify_qp failed with 110 \
                    Connection timed out, on dev mlx5_0:1, curr state INIT, next state RTR, local \
                    GID index 3, local GID ::ffff:192.168.100.1, remote GID ::ffff:192.168.101.3";
        let networks = read(&[line, line, "n:1:2 [0] NCCL WARN Call to ibv_modify_qp failed"]);
        let failed: Vec<&FailedPair> = networks.failed().collect();
        let (local, remote) = ("::ffff:192.168.100.1".into(), "::ffff:192.168.101.3".into());
        assert_eq!(failed, [&FailedPair { local, remote }]);
        assert!(networks.by_process().is_empty() && !networks.is_empty());
    }
}
