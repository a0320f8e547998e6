//! Table of a test program in the form of rlaunch's own: lines above the rows, rows, and what a summary needs of them.

use super::parser::{ProgramRow, TableFacts};
use super::suite::{Size, Suite, Test};
use crate::commands::bench::Unit;
use crate::commands::bench::table::{MeasuringProgram, SummaryRow, TOTAL, VECTOR, formula, places};
use rlaunch_bootstrap::bench::BenchHeader;
use rlaunch_engine::run::job_run::StartFacts;
use serde_json::json;

/// Test with the facts that its program has printed before the first row.
#[derive(Clone, Debug)]
pub(super) struct Measurement {
    test: &'static Test,
    pub(super) program: MeasuringProgram,
    pub(super) header: BenchHeader,
    /// Factor from the sizes that the program prints to those of the report.
    parts: u64,
}

impl Measurement {
    /// Makes the measurement of a program called `name` on a number of processes.
    pub(super) fn new(
        (suite, test, name): (Suite, &'static Test, &str),
        facts: &TableFacts<'_>,
        processes: u32,
    ) -> Measurement {
        let ranks = facts.ranks.unwrap_or(processes as usize);
        let (formula, bus_factor) = test.bus.formula(ranks);
        let owned = |text: Option<&str>| text.map(str::to_owned);
        Measurement {
            test,
            program: MeasuringProgram {
                name: name.to_owned(),
                suite: suite.name(),
                version: owned(facts.version),
                nccl: owned(facts.nccl),
            },
            header: BenchHeader {
                bench: test.name.to_owned(),
                element: facts.element.unwrap_or_default().to_owned(),
                op: owned(facts.op.or(test.op)),
                ranks,
                size_is_total: matches!(test.size, Size::Total | Size::Part),
                formula: formula.to_owned(),
                bus_factor,
            },
            parts: if test.size == Size::Part { ranks as u64 } else { 1 },
        }
    }

    /// Returns the lines above the rows. Columns are those that the first row has.
    pub(super) fn begin(&self, first: &ProgramRow, facts: &StartFacts, unit: Unit) -> String {
        let size = match self.test.size {
            Size::None => "none",
            Size::Message => "of each message",
            Size::Vector => VECTOR,
            Size::Total | Size::Part => TOTAL,
        };
        let part = match self.parts {
            1 => String::new(),
            parts => format!(", {parts} times the part that {} prints", self.program.name),
        };
        let time = if first.gb_per_s.is_some() { "" } else { "; algbw = bytes / average" };
        let names: Vec<String> = self
            .cells(first, unit)
            .iter()
            .map(|cell| format!("{:>1$}", cell.name, cell.width))
            .collect();
        format!(
            "# {}; {} on {}\n# bytes: {size}{part}{time}; busbw = {}\n{}\n",
            self.title(),
            rlaunch_text::text::count(self.header.ranks, "rank"),
            places(facts),
            formula(&self.header),
            names.join(" ")
        )
    }

    /// Returns what was measured by which program.
    fn title(&self) -> String {
        let BenchHeader { bench, element, op, .. } = &self.header;
        let MeasuringProgram { name, suite, version, nccl } = &self.program;
        let what = match (op, element.as_str()) {
            (Some(op), "") => format!(": {op}"),
            (Some(op), element) => format!(": {op} of {element}"),
            (None, _) => String::new(),
        };
        let version = version.as_ref().map(|version| format!(" {version}")).unwrap_or_default();
        let nccl = nccl.as_ref().map(|nccl| format!(", NCCL {nccl}")).unwrap_or_default();
        format!("{bench}{what}; {name} of {suite}{version}{nccl}")
    }

    pub(super) fn line(&self, row: &ProgramRow, unit: Unit) -> String {
        let cells = self.cells(row, unit);
        let cells = cells.iter().map(|cell| format!("{:>1$}", cell.text, cell.width));
        cells.collect::<Vec<_>>().join(" ") + "\n"
    }

    fn cells(&self, row: &ProgramRow, unit: Unit) -> Vec<Cell> {
        let time = |name, us: Option<f64>| Some(Cell::new(name, 13, format!("{:.3}", us?)));
        let rate = |name: &str, gb_per_s: Option<f64>| {
            let (name, text) =
                (format!("{name} {unit}"), format!("{:.3}", unit.convert(gb_per_s?)));
            Some(Cell::new(&name, 11.max(name.len()), text))
        };
        let count =
            |name, number: Option<u64>, width| Some(Cell::new(name, width, number?.to_string()));
        let rates = self.rates(row);
        let size = Cell::new("# bytes", 12, self.bytes(row).to_string());
        let cells = [
            Some(size),
            count("elements", row.elements, 10),
            time("average us", row.average_us),
            time("min us", row.min_us),
            time("max us", row.max_us),
            rate("algbw", Some(rates.algbw)),
            rate("busbw", Some(rates.busbw)),
            time("in place us", row.in_place_us),
            rate("in place", rates.in_place.map(|(_, busbw)| busbw)),
            row.messages_per_s.map(|rate| Cell::new("messages/s", 13, format!("{rate:.0}"))),
            count("wrong", row.wrong, 7),
        ];
        cells.into_iter().flatten().collect()
    }

    /// Returns the size of a row as reports have it.
    fn bytes(&self, row: &ProgramRow) -> u64 {
        row.bytes.saturating_mul(self.parts)
    }

    fn rates(&self, row: &ProgramRow) -> Rates {
        let bytes = self.bytes(row) as f64;
        let by_time =
            |us: f64| Some(bytes / us / 1e3).filter(|rate| rate.is_finite()).unwrap_or(0.0);
        let algbw = row.gb_per_s.or(row.average_us.map(by_time)).unwrap_or(0.0);
        let factor = self.header.bus_factor;
        let in_place = row.in_place_us.map(by_time).map(|rate| (rate, rate * factor));
        Rates { algbw, busbw: algbw * factor, in_place }
    }

    pub(super) fn summary(&self, row: &ProgramRow) -> SummaryRow {
        let Rates { algbw, busbw, in_place } = self.rates(row);
        let in_place_json = row.in_place_us.zip(in_place).map(|(us, (algbw, busbw))| {
            json!({ "average_us": us, "algbw_gb_s": algbw, "busbw_gb_s": busbw })
        });
        SummaryRow {
            bytes: usize::try_from(self.bytes(row)).unwrap_or(usize::MAX),
            time_us: row.average_us,
            busbw_gb_s: busbw,
            in_place_gb_s: in_place.map(|(_, busbw)| busbw),
            json: json!({
                "bytes": self.bytes(row),
                "elements": row.elements,
                "average_us": row.average_us,
                "min_us": row.min_us,
                "max_us": row.max_us,
                "algbw_gb_s": algbw,
                "busbw_gb_s": busbw,
                "in_place": in_place_json,
                "messages_per_s": row.messages_per_s,
                "iterations": row.iterations,
                "wrong": row.wrong,
            }),
        }
    }
}

/// Cell of a table, with the name of its column.
struct Cell {
    name: String,
    width: usize,
    text: String,
}

impl Cell {
    fn new(name: &str, width: usize, text: String) -> Cell {
        Cell { name: name.to_owned(), width, text }
    }
}

/// Bandwidths of a row, in 10^9 bytes per second.
struct Rates {
    algbw: f64,
    busbw: f64,
    /// Algorithm and bus bandwidth in place.
    in_place: Option<(f64, f64)>,
}

#[cfg(test)]
mod tests {
    use super::*;

    fn measurement(suite: Suite, name: &str, facts: &TableFacts<'_>) -> Measurement {
        let test = suite.test(name).unwrap();
        Measurement::new((suite, test, test.program), facts, 4)
    }

    /// Returns names and texts of the cells of a row.
    fn cells(measurement: &Measurement, row: &ProgramRow, unit: Unit) -> Vec<String> {
        let cells = measurement.cells(row, unit);
        cells.iter().map(|cell| format!("{}={}", cell.name, cell.text)).collect()
    }

    #[test]
    fn a_row_of_nccl_tests_has_both_ways() {
        let facts = TableFacts {
            version: Some("2.18.3"),
            nccl: Some("2.30.5"),
            element: Some("float"),
            op: Some("sum"),
            ranks: Some(4),
        };
        let measurement = measurement(Suite::NcclTests, "all_reduce", &facts);
        let title = "all_reduce: sum of float; all_reduce_perf of nccl-tests 2.18.3, NCCL 2.30.5";
        assert_eq!(measurement.title(), title);
        let row = ProgramRow {
            bytes: 1 << 20,
            elements: Some(1 << 18),
            average_us: Some(1000.0),
            in_place_us: Some(2000.0),
            wrong: Some(0),
            ..ProgramRow::default()
        };
        let expected = [
            "# bytes=1048576",
            "elements=262144",
            "average us=1000.000",
            "algbw MiB/s=1000.000",
            "busbw MiB/s=1500.000",
            "in place us=2000.000",
            "in place MiB/s=750.000",
            "wrong=0",
        ];
        assert_eq!(cells(&measurement, &row, Unit::Mebibytes), expected);
        let json = measurement.summary(&row).json;
        assert_eq!(json["in_place"]["average_us"], 2000.0);
        let busbw = json["busbw_gb_s"].as_f64().unwrap();
        assert!((busbw - 1.572_864).abs() < 1e-9, "{busbw}");
    }

    /// OSU prints the part of one rank, and sums up both directions.
    #[test]
    fn sizes_and_rates_of_osu_become_those_of_reports() {
        let gather = measurement(Suite::Osu, "all_gather", &TableFacts::default());
        let row = ProgramRow {
            bytes: 1000,
            average_us: Some(4.0),
            min_us: Some(3.0),
            ..ProgramRow::default()
        };
        let expected = [
            "# bytes=4000",
            "average us=4.000",
            "min us=3.000",
            "algbw GB/s=1.000",
            "busbw GB/s=0.750",
        ];
        assert_eq!(cells(&gather, &row, Unit::Gigabytes), expected);
        let both = measurement(Suite::Osu, "bibw", &TableFacts::default());
        let row = ProgramRow { bytes: 1000, gb_per_s: Some(20.0), ..ProgramRow::default() };
        let expected = ["# bytes=1000", "algbw GB/s=20.000", "busbw GB/s=10.000"];
        assert_eq!(cells(&both, &row, Unit::Gigabytes), expected);
        assert_eq!(both.title(), "bibw; osu_bibw of OSU Micro-Benchmarks");
    }

    #[test]
    fn no_number_makes_a_rate_that_is_not_one() {
        let barrier = measurement(Suite::Osu, "barrier", &TableFacts::default());
        let row = ProgramRow { average_us: Some(0.0), ..ProgramRow::default() };
        assert!(cells(&barrier, &row, Unit::Gigabytes).contains(&"busbw GB/s=0.000".to_owned()));
        let gather = measurement(Suite::Osu, "all_gather", &TableFacts::default());
        let row = ProgramRow { bytes: u64::MAX, average_us: Some(1e-300), ..ProgramRow::default() };
        let summary = gather.summary(&row);
        assert_eq!((summary.busbw_gb_s, &summary.json["bytes"]), (0.0, &u64::MAX.into()));
    }
}
