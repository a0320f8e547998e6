//! Output of results, as a table or as JSON.

use crate::pattern::Pattern;
use rlaunch_bootstrap::env;
use rlaunch_bootstrap::id::Rank;
use rlaunch_bootstrap::rank_table::{PairTransport, RankTable};
use rlaunch_comm::{ElementType, Op};
use serde_json::{Value, json};
use std::collections::BTreeSet;
use std::time::Duration;

/// Results of the measurement for one size.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Row {
    /// Size in bytes of all ranks' parts together if [`Pattern::size_is_total`], or else of one
    /// message or vector.
    pub(crate) bytes: usize,
    pub(crate) elements: usize,
    /// For each batch, the mean time of an operation in seconds; sorted in ascending order.
    times: Vec<f64>,
    /// Number of repetitions in each batch.
    pub(crate) repetitions: u64,
}

impl Row {
    pub(crate) fn new(bytes: usize, elements: usize, mut times: Vec<f64>, repetitions: u64) -> Row {
        times.sort_by(f64::total_cmp);
        Row { bytes, elements, times, repetitions }
    }

    /// Returns a quantile of the times in seconds, by the nearest-rank method. `part` ranges from 0
    /// for the minimum to 1 for the maximum.
    fn quantile(&self, part: f64) -> f64 {
        let ordinal = (part * self.times.len() as f64).ceil() as usize;
        self.times.get(ordinal.saturating_sub(1)).copied().unwrap_or(f64::NAN)
    }

    pub(crate) fn median(&self) -> f64 {
        self.quantile(0.5)
    }

    /// Returns the algorithm bandwidth at the median time, in units of 10^9 bytes per second.
    pub(crate) fn algbw(&self) -> f64 {
        self.bytes as f64 / self.median() / 1e9
    }
}

/// Properties of a measurement that its output contains: the pattern, the ranks and their hosts.
pub(crate) struct Report {
    pub(crate) pattern: Pattern,
    pub(crate) element: ElementType,
    pub(crate) op: Op,
    pub(crate) ranks: usize,
    /// Hosts of the job that have ranks, each with its number of ranks.
    pub(crate) hosts: Vec<(String, usize)>,
    /// Names of the transports between the ranks.
    pub(crate) transports: Vec<&'static str>,
}

impl Report {
    /// Fills in hosts and transports from the rank table, if there is one.
    pub(crate) fn describe(&mut self) {
        let path = std::env::var_os(env::RLAUNCH_RANK_TABLE);
        let bytes = path.and_then(|path| std::fs::read(path).ok());
        let table = bytes.and_then(|bytes| serde_json::from_slice::<RankTable>(&bytes).ok());
        let Some(table) = table else { return };
        let count = |node| table.ranks().iter().filter(|row| row.node == node).count();
        let hosts = table.nodes().iter().map(|row| (row.host.clone(), count(row.node)));
        self.hosts = hosts.filter(|(_, count)| *count > 0).collect();
        let ranks = || (0..table.world_size()).map(Rank);
        let pairs = ranks().flat_map(|a| ranks().filter(move |b| a < *b).map(move |b| (a, b)));
        let transports =
            pairs.filter_map(|(a, b)| table.pair(a, b)).map(|pair| match pair.connect {
                PairTransport::SharedMemory => "shared memory",
                PairTransport::Tcp => "TCP",
                PairTransport::Rdma | PairTransport::RdmaCm => "RDMA",
            });
        self.transports = transports.collect::<BTreeSet<_>>().into_iter().collect();
    }

    /// Returns the lines above the rows of the table.
    pub(crate) fn header(&self) -> String {
        let name = match self.pattern {
            Pattern::Latency => "lat: half of a round trip".to_owned(),
            Pattern::Bandwidth => "bw: messages from rank 0 to rank 1, many at once".to_owned(),
            pattern if pattern.reduces() => {
                format!("{}: {} of {}", pattern.name(), self.op, self.element)
            }
            pattern => pattern.name().to_owned(),
        };
        let hosts: Vec<String> =
            self.hosts.iter().map(|(host, ranks)| format!("{host}:{ranks}")).collect();
        let (ranks, hosts, transports) =
            (self.ranks, hosts.join(","), self.transports.join(" and "));
        let of = match self.pattern {
            Pattern::Latency | Pattern::Bandwidth => "of each message",
            pattern if pattern.size_is_total() => "of all ranks' parts",
            Pattern::Collective(_) => "of each rank's vector",
        };
        let formula = match self.pattern.formula() {
            formula @ "algbw" => formula.to_owned(),
            formula => format!("{formula} = algbw * {:.3}", self.pattern.bus_factor(ranks)),
        };
        format!(
            "# {name}; {ranks} ranks on {hosts} over {transports}\n\
             # bytes: {of}; algbw = bytes / median; busbw = {formula}\n\
             {:>12} {:>10} {:>13} {:>13} {:>13} {:>11} {:>11}",
            "# bytes", "elements", "median us", "min us", "99% us", "algbw GB/s", "busbw GB/s"
        )
    }

    pub(crate) fn line(&self, row: &Row) -> String {
        let us = |part| row.quantile(part) * 1e6;
        let bus = row.algbw() * self.pattern.bus_factor(self.ranks);
        let (median, least, most) = (us(0.5), us(0.0), us(0.99));
        let (bytes, elements, algbw) = (row.bytes, row.elements, row.algbw());
        format!(
            "{bytes:>12} {elements:>10} {median:>13.3} {least:>13.3} {most:>13.3} {algbw:>11.3} \
             {bus:>11.3}"
        )
    }

    pub(crate) fn json(&self, rows: &[Row]) -> Value {
        let factor = self.pattern.bus_factor(self.ranks);
        let row = |row: &Row| {
            let us = |part| row.quantile(part) * 1e6;
            json!({
                "bytes": row.bytes,
                "elements": row.elements,
                "median_us": us(0.5),
                "min_us": us(0.0),
                "p99_us": us(0.99),
                "algbw_gb_s": row.algbw(),
                "busbw_gb_s": row.algbw() * factor,
                "batches": row.times.len(),
                "repetitions": row.repetitions,
            })
        };
        let host = |(host, ranks): &(String, usize)| json!({ "host": host, "ranks": ranks });
        json!({
            "bench": self.pattern.name(),
            "type": self.element.name(),
            "op": self.pattern.reduces().then_some(self.op.name()),
            "ranks": self.ranks,
            "hosts": self.hosts.iter().map(host).collect::<Vec<_>>(),
            "over": self.transports,
            "busbw_factor": factor,
            "rows": rows.iter().map(row).collect::<Vec<_>>(),
        })
    }
}

/// Minimum duration of a batch.
pub(crate) const BATCH: Duration = Duration::from_micros(200);

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn quantiles_are_times_that_were_measured() {
        let row = Row::new(8, 2, (1..=100).rev().map(f64::from).collect(), 1);
        assert_eq!((row.median(), row.quantile(0.0), row.quantile(0.99)), (50.0, 1.0, 99.0));
        assert_eq!(Row::new(8, 2, vec![3.0], 1).quantile(0.99), 3.0);
    }

    #[test]
    fn a_line_has_both_bandwidths() {
        let pattern = Pattern::from_name("all_reduce").unwrap();
        let (element, op) = (ElementType::F32, Op::Sum);
        let (hosts, transports) = (vec![("a".into(), 4)], vec!["shared memory"]);
        let report = Report { pattern, element, op, ranks: 4, hosts, transports };
        let row = Row::new(1 << 20, 1 << 18, vec![1e-3], 1);
        let line = report.line(&row);
        let words: Vec<&str> = line.split_whitespace().collect();
        let times = ["1000.000"; 3];
        assert_eq!(words[..2], ["1048576", "262144"]);
        assert_eq!((&words[2..5], &words[5..]), (&times[..], &["1.049", "1.573"][..]));
        assert_eq!(report.json(&[row])["rows"][0]["bytes"], 1 << 20);
    }
}
