//! Results of `lat`, `bw` and `coll`: a table whose rows are printed as they come. Also the summary of these and of
//! `nccl` and `mpi`: the lines below the table, one JSON object, or curves.

use super::Unit;
use super::ceiling::{ABOVE_OF_OTHERS, ABOVE_OF_OURS, Ceiling};
use rlaunch_bootstrap::bench::{BenchHeader, BenchRecord, BenchRow};
use rlaunch_bootstrap::id::Rank;
use rlaunch_engine::run::job_run::StartFacts;
use rlaunch_plot::curves::Curves;
use rlaunch_text::text;
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};
use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use std::{fs, io};

/// Size of messages from which a low bandwidth has a cause, in bytes.
const LARGE: usize = 1 << 20;
/// Collectives whose bus bandwidth a healthy link reaches, because each rank's link carries as much as nccl-tests
/// assumes. The root of the others is their bottleneck.
const LEVEL: [&str; 4] = ["all_reduce", "all_gather", "reduce_scatter", "sendrecv"];

/// Sizes of collectives, as the lines above the rows explain them.
pub(super) const TOTAL: &str = "of all ranks' parts";
pub(super) const VECTOR: &str = "of each rank's vector";

/// Benchmarks whose curves are of times.
const LATENCIES: [&str; 2] = ["lat", "multi_lat"];

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
    let size = match header.bench.as_str() {
        "lat" | "bw" => "of each message",
        _ if header.size_is_total => TOTAL,
        _ => VECTOR,
    };
    let busbw = if is_between_two(header) {
        String::new()
    } else {
        format!("; busbw = {}", formula(header))
    };
    let names = ["# bytes", "elements", "median us", "min us", "99% us"].map(str::to_owned);
    let rates = ["algbw", "busbw"].map(|name| format!("{name} {unit}"));
    let names: Vec<String> = names.into_iter().chain(rates).collect();
    format!(
        "# {name}; {} ranks on {} over {}\n\
         # bytes: {size}; algbw = bytes / median{busbw}\n{}",
        header.ranks,
        places(facts),
        transports(facts).join(" and "),
        cells(&names, header)
    )
}

/// Tells whether messages go between two ranks. They consist of bytes, and load one link: the number of elements and the
/// bus bandwidth are in other columns.
fn is_between_two(header: &BenchHeader) -> bool {
    matches!(header.bench.as_str(), "lat" | "bw")
}

/// Widths of the columns.
const WIDTHS: [usize; 7] = [12, 10, 13, 13, 13, 11, 11];
/// Columns that only collectives have.
const OF_COLLECTIVES: [usize; 2] = [1, 6];

/// Lays out the cells of all columns, of which messages do not show all.
fn cells(cells: &[String], header: &BenchHeader) -> String {
    let is_shown = |at: usize| !is_between_two(header) || !OF_COLLECTIVES.contains(&at);
    let columns = cells.iter().zip(WIDTHS).enumerate().filter(|(at, _)| is_shown(*at));
    let columns = columns.map(|(_, (cell, width))| format!("{cell:>width$}"));
    columns.collect::<Vec<_>>().join(" ") + "\n"
}

fn line(row: &BenchRow, header: &BenchHeader, unit: Unit) -> String {
    let algbw = unit.convert(row.algbw_gb_s);
    let counts = [row.bytes, row.elements].map(|count| count.to_string());
    let numbers = [row.median_us, row.min_us, row.p99_us, algbw, algbw * header.bus_factor];
    let numbers = numbers.map(|number| format!("{number:.3}"));
    cells(&counts.into_iter().chain(numbers).collect::<Vec<_>>(), header)
}

/// Returns the formula of the bus bandwidth, with the value of its factor.
pub(super) fn formula(header: &BenchHeader) -> String {
    match header.formula.as_str() {
        formula @ "algbw" => formula.to_owned(),
        formula => format!("{formula} = algbw * {:.3}", header.bus_factor),
    }
}

/// Returns the hosts with their numbers of ranks, as `a:2,b:1`.
pub(super) fn places(facts: &StartFacts) -> String {
    let places = hosts(facts).into_iter().map(|(host, ranks)| format!("{host}:{ranks}"));
    places.collect::<Vec<_>>().join(",")
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
    /// Program of others that measured; `None` if it was rlaunch's own.
    program: Option<MeasuringProgram>,
    rows: Vec<SummaryRow>,
    facts: &'a StartFacts,
    ceiling: Option<Ceiling>,
}

/// Program of others that has measured.
#[derive(Clone, Debug, Serialize)]
pub(super) struct MeasuringProgram {
    pub(super) name: String,
    /// Project that the program belongs to.
    pub(super) suite: &'static str,
    /// Version of the project, if the program prints it.
    pub(super) version: Option<String>,
    /// Version of NCCL, if the program prints it.
    pub(super) nccl: Option<String>,
}

/// Row of a measurement, as a summary needs it.
#[derive(Clone, Debug)]
pub(super) struct SummaryRow {
    pub(super) bytes: usize,
    /// Median or average time, if it was measured.
    pub(super) time_us: Option<f64>,
    pub(super) busbw_gb_s: f64,
    /// Bus bandwidth of the operation in place, if it was measured.
    pub(super) in_place_gb_s: Option<f64>,
    /// Row for `--json`.
    pub(super) json: Value,
}

impl<'a> Summary<'a> {
    /// Summarizes what rlaunch's own program has measured. Returns `None` if there are no rows.
    pub(super) fn new(records: &'a [BenchRecord], facts: &'a StartFacts) -> Option<Summary<'a>> {
        let header = records.iter().find_map(|record| match record {
            BenchRecord::Begin(header) => Some(header),
            _ => None,
        })?;
        let rows = records.iter().filter_map(|record| match record {
            BenchRecord::Row(row) => Some(summary_row(row, header.bus_factor)),
            _ => None,
        });
        let rows: Vec<SummaryRow> = rows.collect();
        let ceiling = ceiling(header, facts).map(|ceiling| ceiling.with_tcp(tcp_rate(records)));
        (!rows.is_empty()).then_some(Summary { header, program: None, rows, facts, ceiling })
    }

    /// Summarizes what a program of others has measured. Returns `None` if there are no rows.
    pub(super) fn of_program(
        program: MeasuringProgram,
        header: &'a BenchHeader,
        rows: Vec<SummaryRow>,
        facts: &'a StartFacts,
    ) -> Option<Summary<'a>> {
        let ceiling = ceiling(header, facts);
        let program = Some(program);
        (!rows.is_empty()).then_some(Summary { header, program, rows, facts, ceiling })
    }

    /// Returns the highest bus bandwidth of all sizes, in Mb/s.
    fn best(&self) -> f64 {
        let rates = self.rows.iter().flat_map(|row| {
            [Some(row.busbw_gb_s), row.in_place_gb_s].into_iter().flatten().map(|rate| rate * 8e3)
        });
        rates.fold(0.0, f64::max)
    }

    /// Returns the lines below the rows, with a newline after each.
    pub(super) fn end(&self) -> String {
        let Some(ceiling) = &self.ceiling else { return String::new() };
        let names: Vec<String> = hosts(self.facts).into_iter().map(|(host, _)| host).collect();
        let is_large = self.rows.iter().any(|row| row.bytes >= LARGE);
        let above = if self.program.is_some() { ABOVE_OF_OTHERS } else { ABOVE_OF_OURS };
        let lines = ceiling.judge(self.best(), is_large.then(|| names.join(",")).as_deref(), above);
        lines.iter().map(|line| format!("# {line}\n")).collect()
    }

    pub(super) fn json(&self) -> Value {
        let BenchHeader { bench, element, op, ranks, bus_factor, .. } = self.header;
        let host = |(host, ranks): &(String, usize)| json!({ "host": host, "ranks": ranks });
        let mut value = json!({
            "bench": bench,
            "type": Some(element).filter(|element| !element.is_empty()),
            "op": op,
            "ranks": ranks,
            "hosts": hosts(self.facts).iter().map(host).collect::<Vec<_>>(),
            "over": self.transports(),
            "busbw_factor": bus_factor,
            "limit": self.ceiling.as_ref().map(|ceiling| ceiling.json(self.best())),
            "rows": self.rows.iter().map(|row| &row.json).collect::<Vec<_>>(),
        });
        if let Some(program) = &self.program {
            value["program"] = json!(program);
        }
        value
    }

    /// Returns the transports between the ranks. None are known of a program that chooses its own.
    fn transports(&self) -> Vec<&'static str> {
        if self.program.is_some() { Vec::new() } else { transports(self.facts) }
    }
}

/// Converts a row of rlaunch's own program.
fn summary_row(row: &BenchRow, bus_factor: f64) -> SummaryRow {
    let busbw_gb_s = row.algbw_gb_s * bus_factor;
    let mut json = serde_json::to_value(row).unwrap_or_default();
    json["busbw_gb_s"] = json!(busbw_gb_s);
    let time_us = Some(row.median_us);
    SummaryRow { bytes: row.bytes, time_us, busbw_gb_s, in_place_gb_s: None, json }
}

/// Curve with its name. Points are sizes in bytes, and times or bandwidths.
type Curve = (String, Vec<(f64, f64)>);

impl Summary<'_> {
    /// Returns curves of this run and of earlier ones: bus bandwidths, or times if only these were measured, as by
    /// `lat`.
    pub(super) fn curves(&self, unit: Unit, earlier: &[EarlierRun]) -> Curves {
        let is_time = LATENCIES.contains(&self.header.bench.as_str());
        let value = |time_us: Option<f64>, busbw_gb_s: f64| match is_time {
            true => time_us.unwrap_or(0.0),
            false => unit.convert(busbw_gb_s),
        };
        let own =
            self.rows.iter().map(|row| (row.bytes as f64, value(row.time_us, row.busbw_gb_s)));
        let in_place = self
            .rows
            .iter()
            .filter_map(|row| Some((row.bytes as f64, unit.convert(row.in_place_gb_s?))));
        let own = [("this run", points(own)), ("this run, in place", points(in_place))];
        let own = own.map(|(name, points)| (name.to_owned(), points));
        let earlier = earlier.iter().map(|run| {
            let rows = run.rows.iter();
            let rows = rows.map(|row| (row.bytes as f64, value(row.time_us, row.busbw_gb_s)));
            (run.name.clone(), points(rows))
        });
        let has_points = |(name, points): &Curve| name == "this run" || !points.is_empty();
        let by = match &self.program {
            Some(program) => format!("by {}", program.name),
            None => format!("over {}", self.transports().join(" and ")),
        };
        let limit = self.ceiling.as_ref().and_then(|ceiling| ceiling.line(unit));
        let hosts: Vec<String> = hosts(self.facts).into_iter().map(|(host, _)| host).collect();
        Curves {
            title: format!("{} on {} {by}", self.header.bench, text::list(&hosts)),
            unit: if is_time { "us".to_owned() } else { unit.to_string() },
            is_logarithmic: is_time,
            series: own.into_iter().chain(earlier).filter(has_points).collect(),
            limits: limit.into_iter().filter(|_| !is_time).collect(),
            ..Curves::default()
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
    #[serde(alias = "median_us", alias = "average_us")]
    time_us: Option<f64>,
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
    #[error("{} is not the output of `rlaunch bench lat|bw|coll|nccl|mpi --json`", .0.display())]
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
/// path between neighbours of a collective with one rank on each host. `None` for latencies, where ranks share a port,
/// and for collectives that do not load all links alike.
fn ceiling(header: &BenchHeader, facts: &StartFacts) -> Option<Ceiling> {
    let ranks = facts.table.world_size();
    match header.bench.as_str() {
        "bw" | "bibw" | "mbw_mr" if ranks == 2 => Ceiling::between(facts, (Rank(0), Rank(1)), None),
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
            let message = BenchHeader { bench: "lat".into(), bus_factor: 1.0, ..header.clone() };
            let line = super::line(&row, &message, unit);
            let words: Vec<&str> = line.split_whitespace().collect();
            assert_eq!(words, ["1048576", "1000.000", "900.000", "1200.000", rates[0]]);
        }
    }
}
