//! Which network NCCL says it uses, by process.

use crate::plan::nccl::Use;
use std::collections::{BTreeMap, BTreeSet};

/// By what each line of NCCL's is known.
const MARKS: [&str; 2] = [" NCCL INFO ", " NCCL WARN "];

/// Processes that have said something, and connections that NCCL could not make.
#[derive(Debug, Default)]
pub(crate) struct Networks {
    processes: BTreeMap<Process, Said>,
    failed: BTreeSet<FailedPair>,
}

/// As NCCL begins its lines, `host:pid:tid [device]`; the rank is the launcher's word.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
struct Process {
    rank: Option<u32>,
    host: String,
    pid: u32,
}

#[derive(Clone, Debug, Default)]
struct Said {
    /// A process may be several, one for each of its GPUs.
    ranks: BTreeSet<u32>,
    network: Use,
}

/// What one process uses.
#[derive(Clone, Debug)]
pub(crate) struct ProcessUse<'a> {
    /// Those that it is, where anybody has said.
    pub(crate) ranks: Vec<u32>,
    pub(crate) host: &'a str,
    pub(crate) pid: u32,
    pub(crate) network: &'a Use,
}

/// Two GIDs that NCCL could not connect.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct FailedPair {
    pub(crate) local: String,
    pub(crate) remote: String,
}

impl Networks {
    pub(super) fn take(&mut self, rank: Option<u32>, line: &str) {
        self.failed.extend(failed_pair(line));
        let Some((before, words)) = MARKS.iter().find_map(|mark| line.split_once(mark)) else {
            return;
        };
        let Some((host, pid)) = process(before) else { return };
        let process = Process { rank, host: host.to_owned(), pid };
        let said = self.processes.entry(process).or_default();
        said.ranks.extend(rank.or_else(|| rank_of(words)));
        said.network.read(words.trim_end());
    }

    pub(super) fn is_empty(&self) -> bool {
        self.processes.is_empty() && self.failed.is_empty()
    }

    /// In the order of ranks; those that have not said which network they use are left out.
    pub(crate) fn uses(&self) -> Vec<ProcessUse<'_>> {
        let known = self.processes.iter().filter(|(_, said)| said.network.is_known());
        let mut uses: Vec<ProcessUse<'_>> = known
            .map(|(process, said)| ProcessUse {
                ranks: said.ranks.iter().copied().collect(),
                host: &process.host,
                pid: process.pid,
                network: &said.network,
            })
            .collect();
        uses.sort_by(|one, other| {
            (&one.ranks, one.host, one.pid).cmp(&(&other.ranks, other.host, other.pid))
        });
        uses
    }

    pub(crate) fn failed(&self) -> impl Iterator<Item = &FailedPair> {
        self.failed.iter()
    }
}

/// `node-0:17:28 [0]`, whatever stands before it.
fn process(before: &str) -> Option<(&str, u32)> {
    let mut words = before.split_whitespace().rev();
    let name = words.find(|word| word.matches(':').count() == 2)?;
    let (name, _thread) = name.rsplit_once(':')?;
    let (host, pid) = name.rsplit_once(':')?;
    Some((host, pid.parse().ok()?))
}

/// `comm 0x55d0 rank 1 nranks 2 cudaDev 0`.
fn rank_of(words: &str) -> Option<u32> {
    let mut words = words.split_whitespace().skip_while(|word| *word != "comm");
    words.find(|word| *word == "rank")?;
    let rank = words.next()?.parse().ok()?;
    words.next().filter(|word| word.eq_ignore_ascii_case("nranks"))?;
    Some(rank)
}

/// `Call to ibv_modify_qp failed with 110 …, local GID ::ffff:192.168.100.1, remote GID …`.
fn failed_pair(line: &str) -> Option<FailedPair> {
    let (_, details) = line.split_once("ibv_modify_qp failed")?;
    let gid = |name| {
        // `local GID index 3` comes before it.
        let (_, gid) = details.rsplit_once(name)?;
        gid.split([',', ' ']).find(|word| !word.is_empty()).map(str::to_owned)
    };
    Some(FailedPair { local: gid("local GID ")?, remote: gid("remote GID ")? })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(lines: &[&str]) -> Networks {
        let mut networks = Networks::default();
        lines.iter().for_each(|line| networks.take(None, line));
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
        let uses = networks.uses();
        let said: Vec<(Vec<u32>, u32, String)> = uses
            .iter()
            .map(|used| (used.ranks.clone(), used.pid, used.network.to_string()))
            .collect();
        let expected = [
            (vec![0], 18, "TCP (Socket): RDMA is not used".to_owned()),
            (vec![1], 17, "IB rocep26s0:1 RoCE".to_owned()),
        ];
        assert_eq!(said, expected);
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
        assert!(networks.uses().is_empty() && !networks.is_empty());
    }
}
