//! Results of a measurement between all hosts, as JSON; which hosts and which pairs are slow, by comparison with the others and
//! with an earlier run.

use super::super::Unit;
use super::super::ceiling::{self, Ceiling, RankPort};
use rlaunch_bootstrap::bench::BenchMatrix;
use rlaunch_bootstrap::id::Rank;
use rlaunch_engine::run::job_run::StartFacts;
use rlaunch_plan::limit::Limit;
use rlaunch_text::text;
use serde::{Deserialize, Serialize};
use std::fs;
use std::path::{Path, PathBuf};

/// Version of the JSON. New fields may appear in the same version.
const VERSION: u32 = 1;
/// Part of an earlier bandwidth below which a pair has become slower.
const SLOWER: f64 = 0.85;
/// Multiple of an earlier latency above which a pair has become slower.
const LONGER: f64 = 1.5;

/// Results between all hosts. Tables are indexed by host, the sender first.
#[derive(Debug, Default, Serialize, Deserialize)]
pub(super) struct MeshReport {
    pub(super) v: u32,
    pub(super) bench: String,
    pub(super) hosts: Vec<String>,
    /// Transports between the hosts.
    pub(super) over: Vec<String>,
    #[serde(flatten)]
    pub(super) matrix: BenchMatrix,
    /// Limit of each pair's bandwidth; `None` where it is not known.
    pub(super) limit: Vec<Vec<Option<PairLimit>>>,
    /// Ports of each pair, the sender's first.
    pub(super) ports: Vec<Vec<[String; 2]>>,
    /// Hosts and links that are slower than the rest, in words.
    pub(super) slow: Vec<String>,
    /// Pairs that have become slower than in the earlier run of `--against`; `None` without it.
    pub(super) against: Option<RunComparison>,
}

/// Limit of a pair's bandwidth.
#[derive(Debug, Serialize, Deserialize)]
pub(super) struct PairLimit {
    pub(super) bound: String,
    pub(super) raw_mbps: u32,
    pub(super) usable_mbps: u32,
}

/// Comparison with an earlier run.
#[derive(Debug, Serialize, Deserialize)]
pub(super) struct RunComparison {
    pub(super) file: String,
    /// Number of ordered pairs of hosts that both runs have.
    pub(super) pairs: usize,
    pub(super) slower: Vec<String>,
}

/// Reason why an earlier run cannot be compared with.
#[derive(Debug, thiserror::Error)]
pub(super) enum ReadError {
    #[error("cannot read {}", .0.display())]
    Read(PathBuf, #[source] std::io::Error),
    #[error("{} is not the output of `rlaunch bench mesh --json`", .0.display())]
    Parse(PathBuf, #[source] serde_json::Error),
    #[error("{}", .0.display())]
    Shape(PathBuf, #[source] ShapeError),
    #[error("{} was measured over {then} with {then_bytes} bytes, this run over {now} with {now_bytes}", path.display())]
    Other { path: PathBuf, then: String, then_bytes: usize, now: String, now_bytes: usize },
}

/// Matrices of the wrong size.
#[derive(Debug, thiserror::Error)]
#[error("the matrices do not have a row and a column for each of {0} hosts")]
pub(super) struct ShapeError(usize);

/// Checks that matrices have a row and a column for each host.
fn check_shape(matrix: &BenchMatrix, hosts: usize) -> Result<(), ShapeError> {
    let is_square =
        |table: &[Vec<f64>]| table.len() == hosts && table.iter().all(|row| row.len() == hosts);
    let is_whole = matrix.at_once.is_empty() || matrix.at_once.len() == hosts;
    match is_square(&matrix.megabits) && is_square(&matrix.latency_us) && is_whole {
        true => Ok(()),
        false => Err(ShapeError(hosts)),
    }
}

impl MeshReport {
    /// Returns an error if the matrices do not have a row and a column for each rank.
    pub(super) fn new(matrix: &BenchMatrix, facts: &StartFacts) -> Result<MeshReport, ShapeError> {
        let ranks = facts.table.ranks();
        let host = |rank: usize| {
            let row = ranks.get(rank).and_then(|row| facts.table.nodes().get(row.node.index()));
            row.map_or_else(|| format!("rank {rank}"), |row| row.host.clone())
        };
        let count = ranks.len();
        check_shape(matrix, count)?;
        let over = pairs(count).filter_map(|pair| transport(facts, pair));
        let mut over: Vec<String> = over.map(str::to_owned).collect();
        over.sort_unstable();
        over.dedup();
        let table = |cell: &dyn Fn(usize, usize) -> Option<PairLimit>| {
            (0..count).map(|a| (0..count).map(|b| cell(a, b)).collect()).collect()
        };
        let mut report = MeshReport {
            v: VERSION,
            bench: "mesh".to_owned(),
            hosts: (0..count).map(host).collect(),
            over,
            matrix: matrix.clone(),
            limit: table(&|a, b| (a != b).then(|| limit(facts, (a, b)).map(PairLimit::from))?),
            ports: (0..count)
                .map(|a| (0..count).map(|b| port_names(facts, (a, b))).collect())
                .collect(),
            slow: Vec::new(),
            against: None,
        };
        report.slow = report.slow_in(Unit::Gigabits);
        Ok(report)
    }

    /// Reads the output of an earlier run.
    pub(super) fn read(path: &Path) -> Result<MeshReport, ReadError> {
        let text = fs::read(path).map_err(|error| ReadError::Read(path.to_owned(), error))?;
        let report: MeshReport = serde_json::from_slice(&text)
            .map_err(|error| ReadError::Parse(path.to_owned(), error))?;
        check_shape(&report.matrix, report.hosts.len())
            .map_err(|error| ReadError::Shape(path.to_owned(), error))?;
        Ok(report)
    }

    pub(super) fn to_json(&self) -> String {
        // Fails only for maps whose keys are not strings, of which there are none.
        serde_json::to_string(self).unwrap_or_default() + "\n"
    }

    /// Finds pairs of hosts that were faster in an earlier run. Returns an error if that run measured something else.
    pub(super) fn compare(&mut self, path: &Path, earlier: &MeshReport) -> Result<(), ReadError> {
        if (&earlier.over, earlier.matrix.bytes) != (&self.over, self.matrix.bytes) {
            let over = |report: &MeshReport| report.over.join(" and ");
            return Err(ReadError::Other {
                path: path.to_owned(),
                then: over(earlier),
                then_bytes: earlier.matrix.bytes,
                now: over(self),
                now_bytes: self.matrix.bytes,
            });
        }
        let was = |host: &String| earlier.hosts.iter().position(|other| other == host);
        let (mut count, mut slower) = (0, Vec::new());
        for (a, b) in pairs(self.hosts.len()) {
            let Some((x, y)) = was(&self.hosts[a]).zip(was(&self.hosts[b])) else { continue };
            count += 1;
            let now = (self.matrix.megabits[a][b], self.matrix.latency_us[a][b]);
            let then = (earlier.matrix.megabits[x][y], earlier.matrix.latency_us[x][y]);
            let (from, to) = (&self.hosts[a], &self.hosts[b]);
            if now.0 < SLOWER * then.0 {
                let (now, then) = (now.0 / 1e3, then.0 / 1e3);
                slower.push((now / then, format!("{from} → {to}: {now:.2} Gb/s, was {then:.2}")));
            }
            if a < b && now.1 > LONGER * then.1 {
                let (now, then) = (now.1, then.1);
                slower.push((then / now, format!("{from} – {to}: {now:.1} us, was {then:.1}")));
            }
        }
        slower.sort_by(|one, other| one.0.total_cmp(&other.0));
        let slower = slower.into_iter().map(|(_, text)| text).collect();
        let file = path.display().to_string();
        self.against = Some(RunComparison { file, pairs: count, slower });
        Ok(())
    }

    fn faults(&self) -> Vec<Fault> {
        let is_limited = pairs(self.hosts.len()).all(|(a, b)| self.limit[a][b].is_some());
        faults(self.hosts.len(), SLOW_PART, |a, b| {
            let speed = self.matrix.megabits[a][b];
            match &self.limit[a][b] {
                Some(limit) if is_limited => speed / f64::from(limit.usable_mbps.max(1)),
                _ => speed,
            }
        })
    }

    fn latency_faults(&self) -> Vec<Fault> {
        let quickness = |a: usize, b: usize| 1.0 / self.matrix.latency_us[a][b].max(f64::EPSILON);
        faults(self.hosts.len(), QUICK_PART, quickness)
    }

    /// Lists the ordered pairs to which a slow host or link gives a low bandwidth.
    pub(super) fn slow_pairs(&self) -> Vec<(usize, usize)> {
        self.affected(&self.faults())
    }

    /// Lists the ordered pairs to which a slow host or link gives a high latency.
    pub(super) fn late_pairs(&self) -> Vec<(usize, usize)> {
        self.affected(&self.latency_faults())
    }

    fn affected(&self, faults: &[Fault]) -> Vec<(usize, usize)> {
        let is_slow = |(a, b): (usize, usize)| {
            faults.iter().any(|fault| match fault {
                Fault::Host(host) => a == *host || b == *host,
                Fault::Group(hosts) => hosts.contains(&a) != hosts.contains(&b),
                Fault::Link(one, other) => (a, b) == (*one, *other) || (b, a) == (*one, *other),
                Fault::OneWay(from, to) => (a, b) == (*from, *to),
            })
        };
        pairs(self.hosts.len()).filter(|pair| is_slow(*pair)).collect()
    }

    /// Describes what is slow, with bandwidths in this unit.
    pub(super) fn slow_in(&self, unit: Unit) -> Vec<String> {
        let speed = |a: usize, b: usize| unit.convert(self.matrix.megabits[a][b] / 8e3);
        let bandwidth =
            Figure { between: &speed, worse: f64::min, verb: "reach", unit: &unit.to_string() };
        let latency = Figure {
            between: &|a, b| self.matrix.latency_us[a][b],
            worse: f64::max,
            verb: "have",
            unit: "us of latency",
        };
        let slow = self.faults().into_iter().map(|fault| self.describe(fault, &bandwidth));
        let late = self.latency_faults().into_iter().map(|fault| self.describe(fault, &latency));
        slow.chain(late).collect()
    }

    fn describe(&self, fault: Fault, figure: &Figure<'_>) -> String {
        let Figure { between, worse, verb, unit } = figure;
        match fault {
            Fault::Host(host) => {
                let others = (0..self.hosts.len()).filter(|other| *other != host);
                let figures = others.map(|other| worse(between(host, other), between(other, host)));
                let median = quantile(figures.collect(), 1, 2);
                format!("host {}: its links {verb} {median:.2} {unit}", self.hosts[host])
            }
            Fault::Group(hosts) => {
                let is_across = |(a, b): &(usize, usize)| hosts.contains(a) != hosts.contains(b);
                let figures = pairs(self.hosts.len()).filter(is_across);
                let median = quantile(figures.map(|(a, b)| between(a, b)).collect(), 1, 2);
                let names: Vec<&str> =
                    hosts.iter().map(|host| self.hosts[*host].as_str()).collect();
                let names = text::list(&names);
                format!("links between {names} and the other hosts: {median:.2} {unit}")
            }
            Fault::Link(a, b) => {
                let [from, to] = &self.ports[a][b];
                let figure = worse(between(a, b), between(b, a));
                format!("link {from} – {to}: {figure:.2} {unit}")
            }
            Fault::OneWay(a, b) => {
                let [from, to] = &self.ports[a][b];
                let figure = between(a, b);
                format!("link {from} → {to}, in this direction only: {figure:.2} {unit}")
            }
        }
    }
}

/// Figure of pairs of hosts by which some are slow, and its words.
struct Figure<'a> {
    between: &'a dyn Fn(usize, usize) -> f64,
    /// Returns the worse of two.
    worse: fn(f64, f64) -> f64,
    /// What links do with it.
    verb: &'a str,
    unit: &'a str,
}

/// Lists the ordered pairs of hosts.
pub(super) fn pairs(hosts: usize) -> impl Iterator<Item = (usize, usize)> {
    (0..hosts).flat_map(move |a| (0..hosts).filter(move |b| *b != a).map(move |b| (a, b)))
}

fn ranks((a, b): (usize, usize)) -> Option<(Rank, Rank)> {
    Some((Rank(u32::try_from(a).ok()?), Rank(u32::try_from(b).ok()?)))
}

fn transport(facts: &StartFacts, pair: (usize, usize)) -> Option<&'static str> {
    let (a, b) = ranks(pair)?;
    facts.table.pair(a, b).map(|pair| pair.connect.name())
}

fn limit(facts: &StartFacts, pair: (usize, usize)) -> Option<Limit> {
    match Ceiling::between(facts, ranks(pair)?, None)? {
        Ceiling::Known(limit) => Some(limit),
        Ceiling::Unknown { .. } => None,
    }
}

/// Names the ports of a pair, as `a mlx5_0/1 (eth1)`, or the addresses if it uses TCP, as `a 10.0.0.1`.
fn port_names(facts: &StartFacts, pair: (usize, usize)) -> [String; 2] {
    let name = |port: &RankPort<'_>| match port.nic {
        Some(nic) => {
            let netdev = nic.netdev.iter().map(|netdev| format!(" ({netdev})"));
            let netdev: String = netdev.collect();
            format!("{} {}/{}{netdev}", port.node.host, nic.device, nic.port)
        }
        None => format!("{} {}", port.node.host, port.node.address),
    };
    let found = ranks(pair).and_then(|ranks| ceiling::ports(facts, ranks));
    found.map_or_else(Default::default, |(_, from, to)| [name(&from), name(&to)])
}

impl From<Limit> for PairLimit {
    fn from(limit: Limit) -> PairLimit {
        let bound = limit.to_string();
        PairLimit { bound, raw_mbps: limit.raw, usable_mbps: limit.usable }
    }
}

/// Part of the reference below which a pair is slow. Figures of healthy pairs differ by less, even if software
/// emulates the devices.
const SLOW_PART: f64 = 0.75;
/// The same of the reciprocal of latency, which differs more between healthy pairs: by switches on the way, and by what else
/// the hosts do.
const QUICK_PART: f64 = 0.33;

/// Slow part of a cluster. Hosts are numbered as in the matrix.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Fault {
    /// Most links of this host are slow.
    Host(usize),
    /// Links between these hosts and the others are slow, and those among these hosts are not, as behind a slow uplink
    /// of their switch.
    Group(Vec<usize>),
    /// The link between these hosts is slow in both directions.
    Link(usize, usize),
    /// The link is slow from the first to the second host only.
    OneWay(usize, usize),
}

/// Finds what is slow. `speed` is the speed from one host to another, as a part of the limit where that is known, else
/// in any unit that is the same for all pairs; it is slow below `slow_part` of the reference. Returns nothing for two hosts,
/// of which neither has another link to compare with.
///
/// The reference is the ninth decile of all pairs, so that many slow links do not lower it. As long as the links of some
/// host are slow in the median, the slowest host is named and set aside. Slow links between the remaining hosts are
/// named by themselves.
fn faults(hosts: usize, slow_part: f64, speed: impl Fn(usize, usize) -> f64) -> Vec<Fault> {
    if hosts < 3 {
        return Vec::new();
    }
    let both = |a: usize, b: usize| speed(a, b).min(speed(b, a));
    let all: Vec<usize> = (0..hosts).collect();
    let reference = quantile(pairs_of(&all).map(|(a, b)| both(a, b)).collect(), 9, 10);
    let is_slow = |speed: f64| speed < slow_part * reference;
    let (mut rest, mut slow_hosts) = (all, Vec::new());
    while rest.len() > 2 {
        let of_host = |host: usize| -> Vec<f64> {
            rest.iter().filter(|other| **other != host).map(|other| both(host, *other)).collect()
        };
        let rank = |host: usize| {
            let speeds = of_host(host);
            let sum: f64 = speeds.iter().sum();
            (quantile(speeds, 1, 2), sum)
        };
        let ranked = rest.iter().map(|host| (rank(*host), *host));
        let slowest = ranked.min_by(|(one, _), (other, _)| {
            one.0.total_cmp(&other.0).then(one.1.total_cmp(&other.1))
        });
        let Some((_, host)) = slowest.filter(|((median, _), _)| is_slow(*median)) else { break };
        rest.retain(|other| *other != host);
        slow_hosts.push(host);
    }
    slow_hosts.sort_unstable();
    let among = quantile(pairs_of(&slow_hosts).map(|(a, b)| both(a, b)).collect(), 1, 2);
    let mut found = match slow_hosts.len() > 1 && !is_slow(among) {
        true => vec![Fault::Group(slow_hosts)],
        false => slow_hosts.into_iter().map(Fault::Host).collect(),
    };
    found.extend(pairs_of(&rest).filter_map(|(a, b)| {
        match (is_slow(speed(a, b)), is_slow(speed(b, a))) {
            (true, true) => Some(Fault::Link(a, b)),
            (true, false) => Some(Fault::OneWay(a, b)),
            (false, true) => Some(Fault::OneWay(b, a)),
            (false, false) => None,
        }
    }));
    found
}

/// Lists the pairs of some hosts.
fn pairs_of(hosts: &[usize]) -> impl Iterator<Item = (usize, usize)> + '_ {
    hosts.iter().enumerate().flat_map(|(index, a)| hosts[index + 1..].iter().map(|b| (*a, *b)))
}

/// Returns the number at the part `numerator / denominator` of the sorted numbers, the higher one of two that are
/// equally near; 0 if there are none.
pub(super) fn quantile(mut numbers: Vec<f64>, numerator: usize, denominator: usize) -> f64 {
    numbers.sort_by(f64::total_cmp);
    let last = numbers.len().saturating_sub(1);
    numbers.get((numbers.len() * numerator / denominator).min(last)).copied().unwrap_or_default()
}

#[cfg(test)]
pub(super) mod tests {
    use super::*;
    use proptest::prelude::*;

    /// Makes a report of hosts a, b, c … with these bandwidths in Gb/s, and latencies of 5 us.
    pub(in super::super) fn report(gigabits: &[&[f64]]) -> MeshReport {
        let hosts = gigabits.len();
        let names: Vec<String> = ('a'..='z').take(hosts).map(|name| name.to_string()).collect();
        let megabits = gigabits.iter().map(|row| row.iter().map(|speed| speed * 1e3).collect());
        let latency =
            (0..hosts).map(|a| (0..hosts).map(|b| if a == b { 0.0 } else { 5.0 }).collect());
        let ports = names.iter().map(|from| {
            names.iter().map(|to| [format!("{from} mlx5_0/1"), format!("{to} mlx5_0/1")]).collect()
        });
        let mut report = MeshReport {
            v: VERSION,
            bench: "mesh".to_owned(),
            over: vec!["RDMA".to_owned()],
            matrix: BenchMatrix {
                bytes: 1 << 20,
                megabits: megabits.collect(),
                latency_us: latency.collect(),
                at_once: if hosts > 2 { vec![150e3; hosts] } else { Vec::new() },
            },
            limit: (0..hosts).map(|_| (0..hosts).map(|_| None).collect()).collect(),
            ports: ports.collect(),
            hosts: names,
            slow: Vec::new(),
            against: None,
        };
        report.slow = report.slow_in(Unit::Gigabits);
        report
    }

    #[test]
    fn a_slow_cable_is_named_by_its_ports() {
        let report = report(&[&[0.0, 96.0, 95.0], &[96.0, 0.0, 40.0], &[95.0, 41.0, 0.0]]);
        assert_eq!(report.slow, ["link b mlx5_0/1 – c mlx5_0/1: 40.00 Gb/s"]);
    }

    #[test]
    fn a_host_that_is_late_is_named_though_its_bandwidth_is_that_of_the_rest() {
        let mut report = report(&[&[0.0, 96.0, 95.0], &[96.0, 0.0, 95.0], &[95.0, 95.0, 0.0]]);
        let rows = [[0.0, 6.72, 1433.6], [6.72, 0.0, 1420.94], [1433.6, 1420.94, 0.0]];
        report.matrix.latency_us = rows.map(Vec::from).to_vec();
        assert_eq!(
            report.slow_in(Unit::Gigabits),
            ["host c: its links have 1433.60 us of latency"]
        );
        assert_eq!((report.slow_pairs().len(), report.late_pairs().len()), (0, 4));
        // Healthy pairs differ by less.
        report.matrix.latency_us = vec![vec![5.0, 5.0, 13.0], vec![5.0; 3], vec![13.0, 5.0, 5.0]];
        assert!(report.slow_in(Unit::Gigabits).is_empty());
    }

    #[test]
    fn an_earlier_run_is_compared_by_the_names_of_hosts() {
        let mut earlier = report(&[&[0.0, 96.0, 95.0], &[96.0, 0.0, 94.0], &[95.0, 94.0, 0.0]]);
        earlier.hosts = ["c", "b", "a"].map(str::to_owned).to_vec();
        let text = earlier.to_json();
        let file = tempfile::NamedTempFile::new().unwrap();
        fs::write(file.path(), text).unwrap();
        let mut earlier = MeshReport::read(file.path()).unwrap();
        let mut now = report(&[&[0.0, 50.0], &[93.0, 0.0]]);
        now.matrix.latency_us = vec![vec![0.0, 9.0], vec![9.0, 0.0]];
        now.compare(file.path(), &earlier).unwrap();
        let against = now.against.as_ref().unwrap();
        assert_eq!(against.pairs, 2);
        assert_eq!(against.slower, ["a → b: 50.00 Gb/s, was 94.00", "a – b: 9.0 us, was 5.0"]);
        earlier.matrix.bytes = 64;
        let error = now.compare(Path::new("x.json"), &earlier).unwrap_err().to_string();
        let expected =
            "x.json was measured over RDMA with 64 bytes, this run over RDMA with 1048576";
        assert_eq!(error, expected);
    }

    #[test]
    fn what_is_not_a_report_is_said() {
        let file = tempfile::NamedTempFile::new().unwrap();
        fs::write(file.path(), "{}").unwrap();
        let error = MeshReport::read(file.path()).unwrap_err().to_string();
        assert!(error.ends_with("is not the output of `rlaunch bench mesh --json`"), "{error}");
        let mut whole = report(&[&[0.0, 1.0], &[1.0, 0.0]]);
        whole.matrix.megabits.pop();
        fs::write(file.path(), whole.to_json()).unwrap();
        assert!(matches!(MeshReport::read(file.path()), Err(ReadError::Shape(..))));
        let error = MeshReport::read(Path::new("/x/y.json")).unwrap_err().to_string();
        assert_eq!(error, "cannot read /x/y.json");
    }

    /// Finds the faults of a cluster whose links have speed 100, but for those of which `is_slow` says so.
    fn found(hosts: usize, is_slow: impl Fn(usize, usize) -> bool) -> Vec<Fault> {
        faults(hosts, SLOW_PART, |a, b| if is_slow(a, b) { 40.0 } else { 100.0 })
    }

    #[test]
    fn a_slow_cable_is_told_from_a_slow_host() {
        assert_eq!(found(3, |a, b| a + b == 1), [Fault::Link(0, 1)]);
        assert_eq!(found(3, |a, b| (a, b) == (2, 1)), [Fault::OneWay(2, 1)]);
        assert_eq!(found(3, |a, b| a == 0 || b == 0), [Fault::Host(0)]);
        assert_eq!(found(3, |_, _| false), []);
        assert_eq!(found(2, |_, _| true), [], "nothing to compare with");
    }

    #[test]
    fn several_faults_do_not_hide_each_other() {
        let slow =
            |one: usize, other: usize| move |a, b| a == one || b == one || a == other || b == other;
        assert_eq!(found(16, slow(3, 9)), [Fault::Host(3), Fault::Host(9)]);
        assert_eq!(found(4, slow(0, 2)), [Fault::Host(0), Fault::Host(2)]);
        let host_and_cable = |a, b| a == 0 || b == 0 || (a, b) == (1, 2) || (a, b) == (2, 1);
        assert_eq!(found(4, host_and_cable), [Fault::Host(0), Fault::Link(1, 2)]);
    }

    #[test]
    fn a_slow_uplink_is_one_fault() {
        let found = found(8, |a, b| (a < 3) != (b < 3));
        assert_eq!(found, [Fault::Group(vec![0, 1, 2])]);
    }

    proptest! {
        #[test]
        fn noise_hides_no_fault(
            hosts in 3_usize..12,
            host in 0_usize..12,
            peer in 1_usize..12,
            is_host: bool,
            noise in proptest::collection::vec(0.9_f64..1.0, 144),
        ) {
            let host = host % hosts;
            let peer = (host + 1 + peer % (hosts - 1)) % hosts;
            let speed = |a: usize, b: usize| {
                let is_slow = if is_host {
                    a == host || b == host
                } else {
                    (a, b) == (host, peer) || (b, a) == (host, peer)
                };
                noise[a * 12 + b] * if is_slow { 50.0 } else { 100.0 }
            };
            let (low, high) = (host.min(peer), host.max(peer));
            let expected = if is_host { Fault::Host(host) } else { Fault::Link(low, high) };
            prop_assert_eq!(faults(hosts, SLOW_PART, speed), [expected]);
        }
    }
}
