//! Probes between hosts: which are made, and what came of them.

use super::Diagnosed;
use rlaunch_bootstrap::inventory::Inventory;
use rlaunch_bootstrap::inventory::diagnostics::{Counter, Diagnostics};
use rlaunch_bootstrap::protocol::diagnosis::{
    InquiryAnswer, ProbeRequest, ProgramInquiry, ProgramReport,
};
use rlaunch_bootstrap::rank_table::Transport;
use rlaunch_plan::checks::cluster::{JudgedProgram, Probe, ProbeKind, ProbeOutcome, ProgramOnHost};
use rlaunch_plan::selection::{Plan, PortOptions};
use std::collections::BTreeMap;
use std::net::{IpAddr, SocketAddr};

/// Bytes of an IP packet beyond the payload that a RoCE v2 queue pair sends at its MTU, without the header of IP: UDP,
/// base transport header, RDMA extended header, and checksum.
const ROCE_OVERHEAD: u32 = 8 + 12 + 16 + 4;

/// Plans a TCP probe for each pair of hosts in both directions, and a UDP probe for each pair of RDMA ports that
/// reach each other by IP.
pub(super) fn plan(hosts: &[&Diagnosed], inventories: &[Inventory]) -> Vec<(Probe, ProbeRequest)> {
    let ports = Plan::new(inventories, &PortOptions::default()).ports;
    let mut planned = Vec::new();
    for (from, to) in pairs(hosts.len()) {
        let Some(port) = hosts[to].diagnosis.probe_port else { continue };
        if let Some(address) = hosts[to].address() {
            let probe = probe((from, to), ProbeKind::Tcp, None, Some(address));
            planned.push((probe, ProbeRequest::Tcp { to: SocketAddr::new(address, port) }));
        }
        for (own, other) in ports[from].iter().flat_map(|a| ports[to].iter().map(move |b| (a, b))) {
            let is_ip = own.nic.transport != Transport::Infiniband && own.should_reach(other);
            let (Some(netdev), Some(source), Some(target)) =
                (&own.nic.netdev, own.nic.address, other.nic.address)
            else {
                continue;
            };
            if !is_ip {
                continue;
            }
            let packet = packet_size(own.nic.mtu, other.nic.mtu, target);
            let probe =
                probe((from, to), ProbeKind::PathMtu(packet), Some(netdev.clone()), Some(target));
            let to = SocketAddr::new(target, port);
            let netdev = netdev.clone();
            planned.push((probe, ProbeRequest::Udp { from: source, netdev, to, packet }));
        }
    }
    planned
}

/// Returns the size of the IP packets that two ports exchange at their common RDMA MTU, in bytes.
fn packet_size(one: Option<u32>, other: Option<u32>, target: IpAddr) -> u32 {
    let header = if target.is_ipv6() { 40 } else { 20 };
    one.into_iter().chain(other).min().unwrap_or(1024) + ROCE_OVERHEAD + header
}

fn pairs(count: usize) -> impl Iterator<Item = (usize, usize)> {
    let all = (0..count).flat_map(move |from| (0..count).map(move |to| (from, to)));
    all.filter(|(from, to)| from != to)
}

fn probe(
    (from, to): (usize, usize),
    kind: ProbeKind,
    netdev: Option<String>,
    address: Option<IpAddr>,
) -> Probe {
    Probe { from, to, kind, netdev, address, outcome: ProbeOutcome::Silent }
}

/// Joins planned probes with the answers of the hosts that made them. A probe is left out if its host gave no
/// answer, and also if its target gave none: the agent there may not have learned the token, or have ended, so that
/// silence says nothing about the network.
pub(super) fn outcomes(
    planned: &[(Probe, ProbeRequest)],
    answers: &[Option<InquiryAnswer>],
) -> Vec<Probe> {
    let mut made = Vec::new();
    for (from, answer) in answers.iter().enumerate() {
        let own = planned.iter().filter(|(probe, _)| probe.from == from);
        let results = answer.iter().flat_map(|answer| &answer.probes);
        let joined = own
            .zip(results)
            .map(|((probe, _), result)| Probe { outcome: result.clone().into(), ..probe.clone() });
        let is_sure = |probe: &Probe| answers.get(probe.to).is_some_and(Option::is_some);
        made.extend(joined.filter(is_sure));
    }
    made
}

/// Stores the second reading of counters.
pub(super) fn update_counters(diagnostics: &mut Diagnostics, answer: &InquiryAnswer) {
    let second: BTreeMap<&str, &Vec<Counter>> =
        answer.counters.iter().map(|(name, counters)| (name.as_str(), counters)).collect();
    let update = |counters: &mut Vec<Counter>, name: &str| {
        for counter in counters.iter_mut() {
            let later = second.get(name).into_iter().flat_map(|later| later.iter());
            if let Some(later) = later.clone().find(|later| later.name == counter.name) {
                counter.last = later.last;
            }
        }
    };
    update(&mut diagnostics.counters, "");
    for interface in &mut diagnostics.interfaces {
        update(&mut interface.counters, &interface.name);
    }
    for port in &mut diagnostics.rdma_ports {
        update(&mut port.counters, &format!("{}/{}", port.device, port.port));
    }
    diagnostics.interval_ms = answer.interval_ms;
}

/// Summarises what a host has of the program.
pub(super) fn program_on_host(report: &ProgramReport) -> ProgramOnHost {
    let missing = report.files.iter().filter(|(_, digest)| digest.is_none());
    let missing = missing.map(|(path, _)| (path.clone(), "it does not exist".to_owned()));
    let unserved = report.mpi_library.clone().zip(report.unserved_mpi.clone());
    ProgramOnHost {
        is_absent: report.program.is_none(),
        missing: missing.collect(),
        unserved_mpi: unserved,
        horovod_mpi_only: report.horovod_mpi_only,
    }
}

/// Finds files of the program that this machine has, and those that have different contents on different hosts.
pub(super) fn program(
    inquiry: ProgramInquiry,
    reports: &[(String, Option<ProgramReport>)],
) -> JudgedProgram {
    let mut by_file: BTreeMap<&str, BTreeMap<&str, Vec<String>>> = BTreeMap::new();
    for (host, report) in reports {
        for (path, digest) in report.iter().flat_map(|report| &report.files) {
            if let Some(digest) = digest {
                by_file.entry(path).or_default().entry(digest).or_default().push(host.clone());
            }
        }
    }
    let differing = by_file.into_iter().filter(|(_, digests)| digests.len() > 1);
    let differing =
        differing.map(|(path, digests)| (path.to_owned(), digests.into_values().collect()));
    let ProgramInquiry { words, directory } = inquiry;
    let is_here = |word: &&String| directory.path.join(word).is_file();
    let files_here = words.iter().filter(is_here).cloned().collect();
    JudgedProgram { words, files_here, differing: differing.collect() }
}

#[cfg(test)]
mod tests {
    use super::*;
    use rlaunch_bootstrap::protocol::diagnosis::ProbeResult;
    use std::net::Ipv4Addr;

    #[test]
    fn words_are_files_here_or_differ() {
        let here = tempfile::tempdir().unwrap();
        std::fs::write(here.path().join("x.json"), "").unwrap();
        let words = ["python3", "t.py", "x.json", "y.json"].map(str::to_owned).to_vec();
        let with = |digest: &str| {
            let files = vec![("t.py".to_owned(), Some(digest.to_owned()))];
            Some(ProgramReport { files, ..ProgramReport::default() })
        };
        let host = |name: &str, report| (name.to_owned(), report);
        let reports = [host("a", with("0")), host("b", with("1")), host("c", None)];
        let inquiry = ProgramInquiry { words, directory: here.path().to_owned().into() };
        let judged = program(inquiry, &reports);
        assert_eq!(judged.files_here, ["x.json"]);
        let groups = vec![vec!["a".to_owned()], vec!["b".to_owned()]];
        assert_eq!(judged.differing, [("t.py".to_owned(), groups)]);
    }

    #[test]
    fn packets_are_as_long_as_those_of_roce() {
        let size = |target: &str| packet_size(Some(4096), Some(1024), target.parse().unwrap());
        assert_eq!((size("10.0.0.1"), size("fd00::1")), (1024 + 60, 1024 + 80));
    }

    #[test]
    fn silence_of_an_agent_that_gave_no_answer_is_no_finding() {
        let to = SocketAddr::new(IpAddr::V4(Ipv4Addr::LOCALHOST), 1);
        let tcp = |ends| (probe(ends, ProbeKind::Tcp, None, None), ProbeRequest::Tcp { to });
        let planned: Vec<_> = pairs(3).map(tcp).collect();
        let answer = |probes| Some(InquiryAnswer { probes, ..InquiryAnswer::default() });
        let worked = ProbeResult::Worked { micros: 9 };
        let answers = [
            answer(vec![ProbeResult::Silent, ProbeResult::Silent]),
            answer(vec![worked, ProbeResult::Silent]),
            None,
        ];
        let made = outcomes(&planned, &answers);
        let ends: Vec<_> = made.iter().map(|probe| (probe.from, probe.to)).collect();
        assert_eq!(ends, [(0, 1), (1, 0)]);
        let found: Vec<_> = made.into_iter().map(|probe| probe.outcome).collect();
        assert_eq!(found, [ProbeOutcome::Silent, ProbeOutcome::Worked(9)]);
    }
}
