//! What was measured, as a table or as JSON.

use crate::act::Act;
use rlaunch_bootstrap::env;
use rlaunch_bootstrap::id::Rank;
use rlaunch_bootstrap::rank_table::{PairTransport, RankTable};
use rlaunch_comm::{ElementType, Op};
use serde_json::{Value, json};
use std::collections::BTreeSet;
use std::time::Duration;

/// A size, and how long it took.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Row {
    /// As the act counts it.
    pub(crate) bytes: usize,
    pub(crate) elements: usize,
    /// In seconds, of one act each; in order.
    times: Vec<f64>,
    /// Acts in each batch.
    pub(crate) repetitions: u64,
}

impl Row {
    pub(crate) fn new(bytes: usize, elements: usize, mut times: Vec<f64>, repetitions: u64) -> Row {
        times.sort_by(f64::total_cmp);
        Row { bytes, elements, times, repetitions }
    }

    /// The time below which this part of all are: the nearest one that was measured.
    fn quantile(&self, part: f64) -> f64 {
        let place = (part * self.times.len() as f64).ceil() as usize;
        self.times.get(place.saturating_sub(1)).copied().unwrap_or(f64::NAN)
    }

    pub(crate) fn median(&self) -> f64 {
        self.quantile(0.5)
    }

    /// GB/s, of 10^9 bytes, at the median time.
    pub(crate) fn algbw(&self) -> f64 {
        self.bytes as f64 / self.median() / 1e9
    }
}

/// What is measured, and among whom.
pub(crate) struct Subject {
    pub(crate) act: Act,
    pub(crate) element: ElementType,
    pub(crate) op: Op,
    pub(crate) ranks: usize,
    /// `a`, and how many ranks it has.
    pub(crate) hosts: Vec<(String, usize)>,
    /// By what ranks reach each other.
    pub(crate) over: Vec<&'static str>,
}

impl Subject {
    /// Fills in what the rank table says of hosts and ways; outside of rlaunch there is none.
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
        let ways = pairs.filter_map(|(a, b)| table.pair(a, b)).map(|pair| match pair.connect {
            PairTransport::SharedMemory => "shared memory",
            PairTransport::Tcp => "TCP",
            PairTransport::Rdma | PairTransport::RdmaCm => "RDMA",
        });
        self.over = ways.collect::<BTreeSet<_>>().into_iter().collect();
    }

    /// What stands above the rows.
    pub(crate) fn head(&self) -> String {
        let name = match self.act {
            Act::Latency => "lat: half of a round trip".to_owned(),
            Act::Bandwidth => "bw: messages from rank 0 to rank 1, many at once".to_owned(),
            act if act.reduces() => format!("{}: {} of {}", act.name(), self.op, self.element),
            act => act.name().to_owned(),
        };
        let hosts: Vec<String> =
            self.hosts.iter().map(|(host, ranks)| format!("{host}:{ranks}")).collect();
        let (ranks, hosts, over) = (self.ranks, hosts.join(","), self.over.join(" and "));
        let of = match self.act {
            Act::Latency | Act::Bandwidth => "of each message",
            act if act.is_of_all() => "of all ranks' parts",
            Act::Collective(_) => "of each rank's vector",
        };
        let formula = match self.act.formula() {
            formula @ "algbw" => formula.to_owned(),
            formula => format!("{formula} = algbw * {:.3}", self.act.bus_factor(ranks)),
        };
        format!(
            "# {name}; {ranks} ranks on {hosts} over {over}\n\
             # bytes: {of}; algbw = bytes / median; busbw = {formula}\n\
             {:>12} {:>10} {:>13} {:>13} {:>13} {:>11} {:>11}",
            "# bytes", "elements", "median us", "min us", "99% us", "algbw GB/s", "busbw GB/s"
        )
    }

    pub(crate) fn line(&self, row: &Row) -> String {
        let us = |part| row.quantile(part) * 1e6;
        let bus = row.algbw() * self.act.bus_factor(self.ranks);
        let (median, least, most) = (us(0.5), us(0.0), us(0.99));
        let (bytes, elements, algbw) = (row.bytes, row.elements, row.algbw());
        format!(
            "{bytes:>12} {elements:>10} {median:>13.3} {least:>13.3} {most:>13.3} {algbw:>11.3} \
             {bus:>11.3}"
        )
    }

    pub(crate) fn json(&self, rows: &[Row]) -> Value {
        let factor = self.act.bus_factor(self.ranks);
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
            "bench": self.act.name(),
            "type": self.element.name(),
            "op": self.act.reduces().then_some(self.op.name()),
            "ranks": self.ranks,
            "hosts": self.hosts.iter().map(host).collect::<Vec<_>>(),
            "over": self.over,
            "busbw_factor": factor,
            "rows": rows.iter().map(row).collect::<Vec<_>>(),
        })
    }
}

/// The least time of a batch: the clock and the barrier before it take some of it.
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
        let act = Act::named("all_reduce").unwrap();
        let (element, op) = (ElementType::F32, Op::Sum);
        let (hosts, over) = (vec![("a".into(), 4)], vec!["shared memory"]);
        let subject = Subject { act, element, op, ranks: 4, hosts, over };
        let row = Row::new(1 << 20, 1 << 18, vec![1e-3], 1);
        let line = subject.line(&row);
        let words: Vec<&str> = line.split_whitespace().collect();
        let times = ["1000.000"; 3];
        assert_eq!(words[..2], ["1048576", "262144"]);
        assert_eq!((&words[2..5], &words[5..]), (&times[..], &["1.049", "1.573"][..]));
        assert_eq!(subject.json(&[row])["rows"][0]["bytes"], 1 << 20);
    }
}
