//! Output of a test program while it runs: rows are printed as they come, in a table of the form of rlaunch's own, and other
//! programs' lines pass through. Also what a summary needs of the rows, and what the output comes to.

use super::parser::{ProgramLine, ProgramRow, TableFacts, TableParser};
use super::suite::{Size, Suite, Test};
use crate::commands::bench::records::LineReader;
use crate::commands::bench::table::{
    MeasuringProgram, Summary, SummaryRow, TOTAL, VECTOR, formula, places,
};
use crate::commands::bench::{ResultArgs, Unit};
use crate::commands::report::nccl::ONE_JOB;
use rlaunch_bootstrap::bench::BenchHeader;
use rlaunch_console::stdout;
use rlaunch_engine::run::job_run::StartFacts;
use rlaunch_text::exit::Exit;
use rlaunch_text::message::Failed;
use serde_json::json;
use std::io::{self, Write};
use std::path::Path;

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

/// Reader of a test program's output.
pub(super) struct ProgramReader {
    suite: Suite,
    test: &'static Test,
    /// Name of the program in messages.
    name: String,
    unit: Unit,
    /// Whether rows are printed as they come.
    is_shown: bool,
    parser: Box<dyn TableParser>,
    /// Number of headers of tables.
    headers: usize,
    /// Known from the first row on.
    measurement: Option<Measurement>,
    rows: Vec<ProgramRow>,
}

/// Reason why a table is not a measurement.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum TableFault {
    /// Ranks did not find each other, so each has measured alone.
    Alone,
    /// Sentence about wrong results.
    Wrong(String),
}

impl ProgramReader {
    pub(super) fn new(
        (suite, test): (Suite, &'static Test),
        program: &Path,
        results: &ResultArgs,
    ) -> ProgramReader {
        let name = program.file_name().unwrap_or(program.as_os_str());
        ProgramReader {
            suite,
            test,
            name: name.to_string_lossy().into_owned(),
            unit: results.report,
            is_shown: !results.json,
            parser: suite.parser(),
            headers: 0,
            measurement: None,
            rows: Vec::new(),
        }
    }

    /// Summarizes the rows. Returns `None` if there are none, or if they are not a measurement of all ranks.
    pub(super) fn summary<'a>(&'a self, facts: &'a StartFacts) -> Option<Summary<'a>> {
        let measurement = self.measurement.as_ref().filter(|_| self.headers < 2)?;
        let rows = self.rows.iter().map(|row| measurement.summary(row)).collect();
        Summary::of_program(measurement.program.clone(), &measurement.header, rows, facts)
    }

    pub(super) fn fault(&self) -> Option<TableFault> {
        match self.headers {
            0 | 1 => self.parser.wrong().map(TableFault::Wrong),
            _ => Some(TableFault::Alone),
        }
    }

    /// Returns a sentence if rows are missing.
    pub(super) fn incomplete(&self) -> Option<String> {
        self.parser.incomplete().filter(|_| self.headers < 2 && !self.rows.is_empty())
    }

    /// Returns the result of the measurement, whose job has `ended`.
    pub(super) fn verdict(&self, ended: Result<Exit, Failed>) -> Result<Exit, Failed> {
        let name = &self.name;
        match (self.fault(), ended) {
            (Some(TableFault::Alone), _) => {
                let failed = format!("each rank of {name} has printed a table: each ran alone");
                let hint = match self.suite {
                    Suite::NcclTests => ONE_JOB,
                    Suite::Osu => {
                        "`rlaunch help programs` lists the MPI libraries that ranks find each other by"
                    }
                };
                Err(Failed::new(Exit::SINGLETON, failed).hint(Some(hint)))
            }
            (Some(TableFault::Wrong(what)), ended) => {
                // The program may have failed because of this.
                let of_rank = ended.err().filter(|failed| failed.by_rank);
                let exit = of_rank.map_or(Exit::ABORTED, |failed| failed.exit);
                let hint = "`rlaunch doctor -H … --probe` looks for links with errors";
                Err(Failed::new(exit, format!("{name}: {what}")).hint(Some(hint)))
            }
            (None, Ok(Exit::SUCCESS)) if self.rows.is_empty() => {
                let failed = format!("{name} has printed no table of {}", self.suite.name());
                let hint = "arguments after -- may change its form; a line for each size is read";
                Err(Failed::new(Exit::FILES, failed).hint(Some(hint)))
            }
            (None, ended) => ended,
        }
    }

    /// Prints a row, after the lines above the rows if it is the first.
    fn show(&mut self, row: &ProgramRow, facts: &StartFacts) -> io::Result<()> {
        let mut text = String::new();
        let measurement = self.measurement.get_or_insert_with(|| {
            let processes = facts.table.world_size();
            let program = (self.suite, self.test, self.name.as_str());
            let measurement = Measurement::new(program, &self.parser.facts(), processes);
            text = measurement.begin(row, facts, self.unit);
            measurement
        });
        text += &measurement.line(row, self.unit);
        if self.is_shown { stdout::try_print(&text) } else { Ok(()) }
    }
}

impl LineReader for ProgramReader {
    fn take(&mut self, line: &[u8], facts: Option<&StartFacts>) -> io::Result<()> {
        let text = String::from_utf8_lossy(line);
        match self.parser.line(text.trim_end_matches(['\n', '\r'])) {
            ProgramLine::Header => {
                self.headers += 1;
                // There is nothing to measure if ranks run alone.
                if self.headers < 2 { Ok(()) } else { Err(io::ErrorKind::InvalidData.into()) }
            }
            ProgramLine::Row(row) => {
                let shown = facts.map_or(Ok(()), |facts| self.show(&row, facts));
                self.rows.push(row);
                shown
            }
            ProgramLine::Comment => Ok(()),
            ProgramLine::Foreign => {
                // If nothing reads stderr, the measurement goes on.
                let _ = io::stderr().lock().write_all(line);
                Ok(())
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use rlaunch_plan::selection::{Plan, PortOptions};
    use rlaunch_plan::testing;

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
            "# bytes=1048576", "elements=262144", "average us=1000.000", "algbw MiB/s=1000.000",
            "busbw MiB/s=1500.000", "in place us=2000.000", "in place MiB/s=750.000", "wrong=0",
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
            "# bytes=4000", "average us=4.000", "min us=3.000", "algbw GB/s=1.000",
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

    const NCCL_LOG: &str = include_str!("../../../../fixtures/nccl-tests-mpi.log");
    const REDUCTION: &str = "# OSU MPI Allreduce Latency Test v7.4\n# Datatype: MPI_INT.\n\
        # Size       Avg Latency(us)   Min Latency(us)   Max Latency(us)  Iterations\n\
        4                      11.69             10.01             12.50        1000\n\
        1048576               120.00            118.00            121.50         100\n";

    fn reader(suite: Suite, test: &str) -> ProgramReader {
        let test = suite.test(test).unwrap();
        let results =
            ResultArgs { report: Unit::Gigabytes, plot: None, with: Vec::new(), json: true };
        ProgramReader::new((suite, test), Path::new(test.program), &results)
    }

    fn take(reader: &mut ProgramReader, text: &str, facts: Option<&StartFacts>) -> io::Result<()> {
        text.split_inclusive('\n').try_for_each(|line| reader.take(line.as_bytes(), facts))
    }

    /// Returns the facts of a job with a rank on each of three hosts, between which there are cables.
    fn triangle() -> StartFacts {
        let inventories = testing::triangle();
        let plan = Plan::new(&inventories, &PortOptions::default());
        let table = testing::table_of(&inventories, 1, &plan);
        StartFacts { table, inventories: inventories.into() }
    }

    #[test]
    fn a_table_is_reported_like_that_of_rlaunchs_own_program() {
        let facts = triangle();
        let mut reader = reader(Suite::Osu, "all_reduce");
        take(&mut reader, REDUCTION, Some(&facts)).unwrap();
        let measurement = reader.measurement.as_ref().unwrap();
        let begin = measurement.begin(&reader.rows[0], &facts, Unit::Gigabytes);
        let lines = reader.rows.iter().map(|row| measurement.line(row, Unit::Gigabytes));
        let summary = reader.summary(&facts).unwrap();
        let text = begin + &lines.collect::<String>() + &summary.end();
        testing::is_golden("bench-mpi", &text);
        let json = summary.json();
        assert_eq!((&json["ranks"], &json["op"]), (&3.into(), &"sum".into()));
        assert!(json["limit"]["percent_of_usable"].as_f64().is_some_and(|share| share > 0.0));
        assert!(reader.verdict(Ok(Exit::SUCCESS)).is_ok());
    }

    #[test]
    fn ranks_that_run_alone_end_the_job() {
        let mut reader = reader(Suite::NcclTests, "all_reduce");
        take(&mut reader, NCCL_LOG, Some(&triangle())).unwrap();
        assert!(reader.fault().is_none());
        take(&mut reader, NCCL_LOG, Some(&triangle())).unwrap_err();
        assert_eq!(reader.fault(), Some(TableFault::Alone));
        assert!(reader.summary(&triangle()).is_none());
        let failed = reader.verdict(Err(Failed::new(Exit::READER_GONE, ""))).unwrap_err();
        assert_eq!(failed.exit, Exit::SINGLETON);
        assert!(failed.message.contains("each ran alone"), "{failed:?}");
    }

    #[test]
    fn wrong_results_are_an_error() {
        let mut reader = reader(Suite::NcclTests, "all_reduce");
        take(&mut reader, &NCCL_LOG.replace("values : 0 OK", "values : 3 FAILED"), None).unwrap();
        let failed = reader.verdict(Ok(Exit::SUCCESS)).unwrap_err();
        let sentence = "all_reduce_perf: 3 values were wrong: do not trust this network";
        assert_eq!((failed.exit, failed.message.as_str()), (Exit::ABORTED, sentence));
        let of_rank = Failed { by_rank: true, ..Failed::new(Exit(3), "rank 0 exited with 3") };
        let failed = reader.verdict(Err(of_rank)).unwrap_err();
        assert_eq!((failed.exit, failed.message.as_str()), (Exit(3), sentence));
    }

    #[test]
    fn a_program_without_a_table_has_failed() {
        let mut reader = reader(Suite::Osu, "lat");
        take(&mut reader, "# OSU MPI Latency Test v7.4\nhello\n", None).unwrap();
        let failed = reader.verdict(Ok(Exit::SUCCESS)).unwrap_err();
        let sentence = "osu_latency has printed no table of OSU Micro-Benchmarks";
        assert_eq!((failed.exit, failed.message.as_str()), (Exit::FILES, sentence));
        let failed = reader.verdict(Err(Failed::new(Exit::TIMEOUT, "late"))).unwrap_err();
        assert_eq!(failed.exit, Exit::TIMEOUT);
        assert_eq!(reader.incomplete(), None);
    }
}
