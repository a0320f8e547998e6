//! Results of `lat`, `bw` and `coll`: a table whose rows are printed as they come, or one JSON object.

use super::Unit;
use super::ceiling::Ceiling;
use crate::run::job_run::StartFacts;
use rlaunch_bootstrap::bench::{BenchHeader, BenchRecord, BenchRow};
use rlaunch_bootstrap::id::Rank;
use rlaunch_console::text;
use rlaunch_plot::curves::Curves;
use serde::Deserialize;
use serde_json::{Value, json};
use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use std::{fs, io};

/// Size of messages from which a low bandwidth has a cause, in bytes.
const LARGE: usize = 1 << 20;
/// Collectives whose bus bandwidth a healthy link reaches, because each rank's link carries as much as nccl-tests
/// assumes. The root of the others is their bottleneck.
const LEVEL: [&str; 3] = ["all_reduce", "all_gather", "reduce_scatter"];

/// Formatter of the rows of a measurement.
pub(super) struct Table {
    unit: Unit,
    header: Option<BenchHeader>,
}

impl Table {
    pub(super) fn new(unit: Unit) -> Table {
        Table { unit, header: None }
    }

    /// Returns the lines for a record, with a newline after each; `None` for a record without lines of its own.
    pub(super) fn lines(&mut self, record: &BenchRecord, facts: &StartFacts) -> Option<String> {
        match record {
            BenchRecord::Begin(header) => {
                self.header = Some(header.clone());
                Some(begin(header, facts, self.unit))
            }
            BenchRecord::Row(row) => Some(line(row, self.header.as_ref()?, self.unit)),
            _ => None,
        }
    }
}

/// Returns the lines above the rows.
fn begin(header: &BenchHeader, facts: &StartFacts, unit: Unit) -> String {
    let name = match (header.bench.as_str(), &header.op) {
        ("lat", _) => "lat: half of a round trip".to_owned(),
        ("bw", _) => "bw: messages from rank 0 to rank 1, many at once".to_owned(),
        (bench, Some(op)) => format!("{bench}: {op} of {}", header.element),
        (bench, None) => bench.to_owned(),
    };
    let hosts: Vec<String> =
        hosts(facts).into_iter().map(|(host, ranks)| format!("{host}:{ranks}")).collect();
    let size = match header.bench.as_str() {
        "lat" | "bw" => "of each message",
        _ if header.size_is_total => "of all ranks' parts",
        _ => "of each rank's vector",
    };
    let formula = match header.formula.as_str() {
        formula @ "algbw" => formula.to_owned(),
        formula => format!("{formula} = algbw * {:.3}", header.bus_factor),
    };
    let column = |name: &str| format!("{name} {unit}");
    format!(
        "# {name}; {} ranks on {} over {}\n\
         # bytes: {size}; algbw = bytes / median; busbw = {formula}\n\
         {:>12} {:>10} {:>13} {:>13} {:>13} {:>11} {:>11}\n",
        header.ranks,
        hosts.join(","),
        transports(facts).join(" and "),
        "# bytes",
        "elements",
        "median us",
        "min us",
        "99% us",
        column("algbw"),
        column("busbw")
    )
}

fn line(row: &BenchRow, header: &BenchHeader, unit: Unit) -> String {
    let (algbw, bus) = (unit.convert(row.algbw_gb_s), header.bus_factor);
    format!(
        "{:>12} {:>10} {:>13.3} {:>13.3} {:>13.3} {algbw:>11.3} {:>11.3}\n",
        row.bytes,
        row.elements,
        row.median_us,
        row.min_us,
        row.p99_us,
        algbw * bus
    )
}

/// Returns the hosts that have ranks, each with its number of ranks.
fn hosts(facts: &StartFacts) -> Vec<(String, usize)> {
    let count = |node| facts.table.ranks().iter().filter(|row| row.node == node).count();
    let hosts = facts.table.nodes().iter().map(|row| (row.host.clone(), count(row.node)));
    hosts.filter(|(_, count)| *count > 0).collect()
}

/// Returns the names of the transports between the ranks, in alphabetical order.
fn transports(facts: &StartFacts) -> Vec<&'static str> {
    let table = &facts.table;
    let ranks = || (0..table.world_size()).map(Rank);
    let pairs = ranks().flat_map(|a| ranks().filter(move |b| a < *b).map(move |b| (a, b)));
    let pairs = pairs.filter_map(|(a, b)| table.pair(a, b));
    let names = pairs.map(|pair| pair.connect.name());
    names.collect::<BTreeSet<_>>().into_iter().collect()
}

/// Returns the rate of a TCP connection in Mb/s that was measured beside messages.
pub(super) fn tcp_rate(records: &[BenchRecord]) -> Option<f64> {
    records.iter().find_map(|record| match record {
        BenchRecord::Tcp(rate) => Some(*rate),
        _ => None,
    })
}

/// Returns the points of a curve for which logarithmic axes have room.
pub(super) fn points(points: impl Iterator<Item = (f64, f64)>) -> Vec<(f64, f64)> {
    let is_possible = |number: f64| number > 0.0 && number < 1e15;
    points.filter(|(size, value)| is_possible(*size) && is_possible(*value)).collect()
}

/// Measurement that is over, with what limits it.
pub(super) struct Summary<'a> {
    header: &'a BenchHeader,
    rows: Vec<&'a BenchRow>,
    facts: &'a StartFacts,
    ceiling: Option<Ceiling>,
}

impl<'a> Summary<'a> {
    /// Returns `None` if there are no rows.
    pub(super) fn new(records: &'a [BenchRecord], facts: &'a StartFacts) -> Option<Summary<'a>> {
        let header = records.iter().find_map(|record| match record {
            BenchRecord::Begin(header) => Some(header),
            _ => None,
        })?;
        let rows = records.iter().filter_map(|record| match record {
            BenchRecord::Row(row) => Some(row),
            _ => None,
        });
        let rows: Vec<&BenchRow> = rows.collect();
        let ceiling = ceiling(header, facts).map(|ceiling| ceiling.with_tcp(tcp_rate(records)));
        (!rows.is_empty()).then_some(Summary { header, rows, facts, ceiling })
    }

    /// Returns the highest bus bandwidth of all sizes, in Mb/s.
    fn best(&self) -> f64 {
        let rates = self.rows.iter().map(|row| row.algbw_gb_s * self.header.bus_factor * 8e3);
        rates.fold(0.0, f64::max)
    }

    /// Returns the lines below the rows, with a newline after each.
    pub(super) fn end(&self) -> String {
        let Some(ceiling) = &self.ceiling else { return String::new() };
        let names: Vec<String> = hosts(self.facts).into_iter().map(|(host, _)| host).collect();
        let is_large = self.rows.iter().any(|row| row.bytes >= LARGE);
        let lines = ceiling.judge(self.best(), is_large.then(|| names.join(",")).as_deref());
        lines.iter().map(|line| format!("# {line}\n")).collect()
    }

    pub(super) fn json(&self) -> Value {
        let BenchHeader { bench, element, op, ranks, bus_factor, .. } = self.header;
        let row = |row: &&BenchRow| {
            let mut value = serde_json::to_value(row).unwrap_or_default();
            value["busbw_gb_s"] = json!(row.algbw_gb_s * bus_factor);
            value
        };
        let host = |(host, ranks): &(String, usize)| json!({ "host": host, "ranks": ranks });
        json!({
            "bench": bench,
            "type": element,
            "op": op,
            "ranks": ranks,
            "hosts": hosts(self.facts).iter().map(host).collect::<Vec<_>>(),
            "over": transports(self.facts),
            "busbw_factor": bus_factor,
            "limit": self.ceiling.as_ref().map(|ceiling| ceiling.json(self.best())),
            "rows": self.rows.iter().map(row).collect::<Vec<_>>(),
        })
    }
}

impl Summary<'_> {
    /// Returns curves of this run and of earlier ones: times of `lat`, bus bandwidths of others.
    pub(super) fn curves(&self, unit: Unit, earlier: &[EarlierRun]) -> Curves {
        let is_time = self.header.bench == "lat";
        let value = |row: &PlottedRow| match is_time {
            true => row.median_us,
            false => unit.convert(row.busbw_gb_s),
        };
        let points =
            |rows: &[PlottedRow]| points(rows.iter().map(|row| (row.bytes as f64, value(row))));
        let factor = self.header.bus_factor;
        let own = self.rows.iter().map(|row| PlottedRow {
            bytes: row.bytes,
            median_us: row.median_us,
            busbw_gb_s: row.algbw_gb_s * factor,
        });
        let own: Vec<PlottedRow> = own.collect();
        let earlier = earlier.iter().map(|run| (run.name.clone(), points(&run.rows)));
        let limit = self.ceiling.as_ref().and_then(|ceiling| ceiling.line(unit));
        let hosts: Vec<String> = hosts(self.facts).into_iter().map(|(host, _)| host).collect();
        Curves {
            title: format!(
                "{} on {} over {}",
                self.header.bench,
                text::list(&hosts),
                transports(self.facts).join(" and ")
            ),
            unit: if is_time { "us".to_owned() } else { unit.to_string() },
            is_logarithmic: is_time,
            series: [("this run".to_owned(), points(&own))].into_iter().chain(earlier).collect(),
            limits: limit.into_iter().filter(|_| !is_time).collect(),
        }
    }
}

/// Earlier run, from the output of `--json`.
#[derive(Debug)]
pub(super) struct EarlierRun {
    /// Name of the file.
    name: String,
    rows: Vec<PlottedRow>,
}

/// Row of `--json`, as far as curves show it.
#[derive(Debug, Deserialize)]
struct PlottedRow {
    bytes: usize,
    median_us: f64,
    busbw_gb_s: f64,
}

/// Output of `--json`, as far as curves show it.
#[derive(Deserialize)]
struct EarlierOutput {
    bench: String,
    rows: Vec<PlottedRow>,
}

/// Reason why an earlier run cannot be drawn.
#[derive(Debug, thiserror::Error)]
pub(super) enum EarlierError {
    #[error("cannot read {}", .0.display())]
    Read(PathBuf, #[source] io::Error),
    #[error("{} is not the output of `rlaunch bench lat|bw|coll --json`", .0.display())]
    Parse(PathBuf, #[source] serde_json::Error),
    #[error("{} is of `rlaunch bench {then}`, not of {now}", path.display())]
    Other { path: PathBuf, then: String, now: String },
}

impl EarlierRun {
    /// Reads the output of an earlier run of the same benchmark.
    pub(super) fn read(path: &Path, bench: &str) -> Result<EarlierRun, EarlierError> {
        let text = fs::read(path).map_err(|error| EarlierError::Read(path.to_owned(), error))?;
        let output: EarlierOutput = serde_json::from_slice(&text)
            .map_err(|error| EarlierError::Parse(path.to_owned(), error))?;
        if output.bench != bench {
            let (then, now) = (output.bench, bench.to_owned());
            return Err(EarlierError::Other { path: path.to_owned(), then, now });
        }
        let name = path.display().to_string();
        Ok(EarlierRun { name, rows: output.rows })
    }
}

/// Returns the bound of the measurement's bandwidth: of the path between the two ranks of `bw`, or of the narrowest
/// path between neighbours of a collective with one rank on each host. `None` for `lat`, where ranks share a port, and
/// for collectives that do not load all links alike.
fn ceiling(header: &BenchHeader, facts: &StartFacts) -> Option<Ceiling> {
    let ranks = facts.table.world_size();
    match header.bench.as_str() {
        "bw" => Ceiling::between(facts, (Rank(0), Rank(1)), None),
        bench
            if LEVEL.contains(&bench)
                && ranks > 1
                && hosts(facts).iter().all(|(_, ranks)| *ranks == 1) =>
        {
            let neighbours = (0..ranks).map(|rank| (Rank(rank), Rank((rank + 1) % ranks)));
            let bounds = neighbours.map(|pair| Ceiling::between(facts, pair, None));
            bounds.collect::<Option<Vec<_>>>()?.into_iter().reduce(Ceiling::lower)
        }
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_line_has_both_bandwidths_in_the_unit_asked_for() {
        let header = BenchHeader {
            bench: "all_reduce".into(),
            element: "f32".into(),
            op: Some("sum".into()),
            ranks: 4,
            size_is_total: false,
            formula: "algbw * 2 (n - 1) / n".into(),
            bus_factor: 1.5,
        };
        let row = BenchRow {
            bytes: 1 << 20,
            elements: 1 << 18,
            median_us: 1000.0,
            min_us: 900.0,
            p99_us: 1200.0,
            algbw_gb_s: 1.048_576,
            batches: 10,
            repetitions: 1,
        };
        for (unit, rates) in [
            (Unit::Gigabytes, ["1.049", "1.573"]),
            (Unit::Gigabits, ["8.389", "12.583"]),
            (Unit::Mebibytes, ["1000.000", "1500.000"]),
        ] {
            let line = line(&row, &header, unit);
            let words: Vec<&str> = line.split_whitespace().collect();
            assert_eq!(words[..5], ["1048576", "262144", "1000.000", "900.000", "1200.000"]);
            assert_eq!(words[5..], rates);
        }
    }
}
