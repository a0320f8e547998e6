//! Tables that test programs print, as far as reports need them, and their parsers: of nccl-tests, whose tables
//! `rlaunch report` reads in logs too, and of OSU's micro-benchmarks, of which versions differ in their columns:
//!
//! ```text
//! # OSU MPI Allreduce Latency Test v7.4
//! # Datatype: MPI_INT.
//! # Size       Avg Latency(us)   Min Latency(us)   Max Latency(us)  Iterations
//! 4                       2.81              1.89              3.73        1000
//! ```

use crate::commands::report::log_metrics::collective::{CollectiveTable, SizeRow};
use crate::commands::report::nccl;

/// Parser of the output of a test program, line by line.
pub(crate) trait TableParser: Send {
    /// Reads a line, without the newline.
    fn line(&mut self, line: &str) -> ProgramLine;

    /// Returns what the lines so far tell about the measurement.
    fn facts(&self) -> TableFacts<'_>;

    /// Returns a sentence if results were wrong.
    fn wrong(&self) -> Option<String>;

    /// Returns a sentence if the table is not whole.
    fn incomplete(&self) -> Option<String> {
        None
    }
}

/// Meaning of a line.
#[derive(Clone, Debug, PartialEq)]
pub(crate) enum ProgramLine {
    /// Header of the table. A second one is that of another process, which has run alone.
    Header,
    Row(ProgramRow),
    /// Another line of the test program.
    Comment,
    /// Line that does not belong to the table, such as one of a library's log.
    Foreign,
}

/// Row of a table, for one size.
#[derive(Clone, Debug, Default, PartialEq)]
pub(crate) struct ProgramRow {
    /// Size as the program prints it; 0 for a barrier.
    pub(crate) bytes: u64,
    pub(crate) elements: Option<u64>,
    /// Average time of a message or call, in microseconds.
    pub(crate) average_us: Option<f64>,
    /// Lowest average of a rank.
    pub(crate) min_us: Option<f64>,
    /// Highest average of a rank.
    pub(crate) max_us: Option<f64>,
    /// Average time of the operation in place.
    pub(crate) in_place_us: Option<f64>,
    /// Measured bandwidth, in 10^9 bytes per second.
    pub(crate) gb_per_s: Option<f64>,
    pub(crate) messages_per_s: Option<f64>,
    pub(crate) iterations: Option<u64>,
    /// Number of wrong values; `None` if they were not checked, or not counted.
    pub(crate) wrong: Option<u64>,
}

/// Facts that a program prints about its measurement.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct TableFacts<'a> {
    pub(crate) version: Option<&'a str>,
    /// Version of NCCL.
    pub(crate) nccl: Option<&'a str>,
    /// Type of elements.
    pub(crate) element: Option<&'a str>,
    /// Operation of a reduction.
    pub(crate) op: Option<&'a str>,
    /// Number of ranks of the library, which differs from that of processes if a process has several GPUs.
    pub(crate) ranks: Option<usize>,
}

/// Reads a number that a time in microseconds or a rate can be.
fn number(word: &str) -> Option<f64> {
    word.parse().ok().filter(|number| (0.0..1e15).contains(number))
}

/// Parser of the output of nccl-tests.
#[derive(Debug, Default)]
pub(super) struct NcclParser {
    table: CollectiveTable,
}

impl TableParser for NcclParser {
    fn line(&mut self, line: &str) -> ProgramLine {
        let (rows, headers) = (self.table.rows.len(), self.table.header_count);
        self.table.add_line(None, line);
        let text = line.trim_start();
        match self.table.rows.get(rows) {
            Some(row) => ProgramLine::Row(program_row(row)),
            None if self.table.header_count > headers => ProgramLine::Header,
            None if text.is_empty() || text.starts_with('#') => ProgramLine::Comment,
            None => ProgramLine::Foreign,
        }
    }

    fn facts(&self) -> TableFacts<'_> {
        let first = self.table.rows.first();
        let devices = self.table.devices.len();
        TableFacts {
            version: self.table.versions.nccl_tests.as_deref(),
            nccl: self.table.versions.nccl.as_deref(),
            element: first.map(|row| row.element.as_str()),
            op: first.and_then(|row| row.op.as_deref()),
            ranks: Some(devices).filter(|devices| *devices > 0),
        }
    }

    fn wrong(&self) -> Option<String> {
        let in_rows = nccl::wrong_values(&self.table).map(|finding| finding.text);
        let in_all = || {
            let count = self.table.out_of_bounds.filter(|count| *count > 0)?;
            Some(format!("{count} values were wrong: do not trust this network"))
        };
        in_rows.or_else(in_all)
    }

    fn incomplete(&self) -> Option<String> {
        nccl::average_differs(&self.table).map(|finding| finding.text)
    }
}

fn program_row(row: &SizeRow) -> ProgramRow {
    let timings = || [Some(&row.out_of_place), row.in_place.as_ref()].into_iter().flatten();
    let wrong = timings().filter_map(|timing| timing.wrong).reduce(u64::saturating_add);
    ProgramRow {
        bytes: row.bytes,
        elements: Some(row.elements),
        average_us: Some(row.out_of_place.time_us),
        in_place_us: row.in_place.map(|timing| timing.time_us),
        wrong,
        ..ProgramRow::default()
    }
}

/// Parser of the output of one of OSU's programs.
#[derive(Debug, Default)]
pub(super) struct OsuParser {
    version: Option<String>,
    element: Option<String>,
    columns: Vec<Column>,
    /// First size at which the program's own check of the results failed.
    failed_at: Option<u64>,
}

/// Column of a table.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Column {
    Size,
    Average,
    Minimum,
    Maximum,
    /// Bandwidth in MB/s, which are 10^6 bytes per second.
    Bandwidth,
    MessageRate,
    Iterations,
    Validation,
    Other,
}

impl Column {
    /// Returns the column with this name, whose spaces and case differ between versions.
    fn named(name: &str) -> Column {
        let name: String = name.split_whitespace().collect();
        match name.to_ascii_lowercase().as_str() {
            "size" => Column::Size,
            "latency(us)" | "avglatency(us)" => Column::Average,
            "minlatency(us)" => Column::Minimum,
            "maxlatency(us)" => Column::Maximum,
            "bandwidth(mb/s)" | "mb/s" => Column::Bandwidth,
            "messages/s" => Column::MessageRate,
            "iterations" => Column::Iterations,
            "validation" => Column::Validation,
            _ => Column::Other,
        }
    }
}

/// Finds the columns of a header, whose names are two spaces or more apart. Returns none if the line is not a header,
/// or is that of a table with other figures, such as the overlap of computation.
fn columns(header: &str) -> Vec<Column> {
    let names = header.split("  ").map(str::trim).filter(|name| !name.is_empty());
    let columns: Vec<Column> = names.map(Column::named).collect();
    let is_figure = |column: &Column| matches!(column, Column::Average | Column::Bandwidth);
    if columns.iter().any(is_figure) { columns } else { Vec::new() }
}

impl TableParser for OsuParser {
    fn line(&mut self, line: &str) -> ProgramLine {
        let line = line.trim();
        let comment = line.strip_prefix('#').map(str::trim);
        let text = comment.unwrap_or(line);
        if let Some((_, version)) = text.split_once(" Test v").filter(|_| text.starts_with("OSU "))
        {
            self.version = version.split_whitespace().next().map(str::to_owned);
            return ProgramLine::Comment;
        }
        if let Some(element) = text.strip_prefix("Datatype:").filter(|_| comment.is_some()) {
            let element = element.trim().trim_end_matches('.');
            self.element = (!element.is_empty()).then(|| element.to_owned());
            return ProgramLine::Comment;
        }
        let columns = columns(text);
        if !columns.is_empty() {
            self.columns = columns;
            return ProgramLine::Header;
        }
        match row(line, &self.columns) {
            _ if comment.is_some() || line.is_empty() => ProgramLine::Comment,
            Some(row) => {
                if row.wrong.is_some_and(|wrong| wrong > 0) {
                    self.failed_at.get_or_insert(row.bytes);
                }
                ProgramLine::Row(row)
            }
            None => ProgramLine::Foreign,
        }
    }

    fn facts(&self) -> TableFacts<'_> {
        TableFacts {
            version: self.version.as_deref(),
            element: self.element.as_deref(),
            ..TableFacts::default()
        }
    }

    fn wrong(&self) -> Option<String> {
        let bytes = self.failed_at?;
        Some(format!("results were wrong, first at {bytes} bytes: do not trust this network"))
    }
}

/// Reads a row. Returns `None` if a column is missing or is not a number.
fn row(line: &str, columns: &[Column]) -> Option<ProgramRow> {
    let mut words = line.split_whitespace();
    let mut row = ProgramRow::default();
    for column in columns {
        let word = words.next()?;
        match column {
            Column::Size => row.bytes = word.parse().ok()?,
            Column::Average => row.average_us = Some(number(word)?),
            Column::Minimum => row.min_us = Some(number(word)?),
            Column::Maximum => row.max_us = Some(number(word)?),
            Column::Bandwidth => row.gb_per_s = Some(number(word)? / 1e3),
            Column::MessageRate => row.messages_per_s = Some(number(word)?),
            Column::Iterations => row.iterations = Some(word.parse().ok()?),
            Column::Validation => row.wrong = Some(u64::from(word != "Pass")),
            Column::Other => {}
        }
    }
    // Names of some columns on the right, which are figures, stand so close in the header that they look like one.
    let is_whole = words.all(|word| number(word).is_some());
    (is_whole && !columns.is_empty()).then_some(row)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::commands::bench::programs::suite::Suite;

    const LOG: &str = include_str!("../../../../fixtures/nccl-tests-mpi.log");

    fn read(text: &str) -> (NcclParser, Vec<ProgramLine>) {
        let mut parser = NcclParser::default();
        let lines = text.lines().map(|line| parser.line(line)).collect();
        (parser, lines)
    }

    fn rows(lines: &[ProgramLine]) -> Vec<&ProgramRow> {
        let rows = lines.iter().filter_map(|line| match line {
            ProgramLine::Row(row) => Some(row),
            _ => None,
        });
        rows.collect()
    }

    #[test]
    fn a_log_is_read_without_rest() {
        let (parser, lines) = read(LOG);
        let first = ProgramRow {
            bytes: 500_000,
            elements: Some(125_000),
            average_us: Some(188.69),
            in_place_us: Some(187.07),
            wrong: Some(0),
            ..ProgramRow::default()
        };
        let rows = rows(&lines);
        assert_eq!((rows.len(), rows[0]), (11, &first));
        assert_eq!(lines.iter().filter(|line| **line == ProgramLine::Header).count(), 1);
        assert!(!lines.contains(&ProgramLine::Foreign));
        let facts = TableFacts {
            version: Some("2.18.3"),
            nccl: Some("2.30.5"),
            element: Some("float"),
            op: Some("sum"),
            ranks: Some(4),
        };
        assert_eq!(parser.facts(), facts);
        assert_eq!((parser.wrong(), parser.incomplete()), (None, None));
    }

    /// Bandwidths of reports follow from sizes and times, as nccl-tests' own do.
    #[test]
    fn the_printed_bandwidths_follow_from_the_times() {
        let (parser, lines) = read(LOG);
        let (_, factor) = Suite::NcclTests.test("all_reduce").unwrap().bus.formula(4);
        for (row, printed) in rows(&lines).iter().zip(&parser.table.rows) {
            let busbw = row.bytes as f64 / row.average_us.unwrap() / 1e3 * factor;
            assert!((busbw - printed.out_of_place.busbw).abs() < 0.01, "{busbw} {printed:?}");
        }
    }

    #[test]
    fn lines_of_nccls_log_are_foreign() {
        let log =
            "a:10:20 [0] NCCL INFO NET/IB : Using [0]mlx5_0:1/RoCE [RO]; OOB eth0:10.0.0.1<0>";
        assert_eq!(NcclParser::default().line(log), ProgramLine::Foreign);
        assert_eq!(NcclParser::default().line("  "), ProgramLine::Comment);
    }

    #[test]
    fn wrong_values_are_counted_in_rows_and_in_all() {
        let rows =
            LOG.replace("   188.69    2.65    3.97       0", "   188.69    2.65    3.97       7");
        let (parser, _) = read(&rows);
        let sentence = "7 values were wrong, first at 500000 bytes: do not trust this network";
        assert_eq!(parser.wrong().as_deref(), Some(sentence));
        let all = LOG.replace("values : 0 OK", "values : 3 FAILED");
        let sentence = "3 values were wrong: do not trust this network";
        assert_eq!(read(&all).0.wrong().as_deref(), Some(sentence));
    }

    #[test]
    fn a_lost_row_is_noticed() {
        let lost: Vec<&str> = LOG.lines().filter(|line| !line.contains(" 1500000 ")).collect();
        let incomplete = read(&lost.join("\n")).0.incomplete().unwrap();
        assert!(incomplete.ends_with("lines are missing"), "{incomplete}");
    }

    fn read_osu(text: &str) -> (OsuParser, Vec<ProgramLine>) {
        let mut parser = OsuParser::default();
        let lines = text.lines().map(|line| parser.line(line)).collect();
        (parser, lines)
    }

    /// Returns the rows of a table, and asserts that it has one header and no foreign lines.
    fn osu_rows(text: &str) -> Vec<ProgramRow> {
        let (_, lines) = read_osu(text);
        assert_eq!(lines.iter().filter(|line| **line == ProgramLine::Header).count(), 1, "{text}");
        assert!(!lines.contains(&ProgramLine::Foreign), "{text}");
        let rows = lines.into_iter().filter_map(|line| match line {
            ProgramLine::Row(row) => Some(row),
            _ => None,
        });
        rows.collect()
    }

    fn time(bytes: u64, us: f64) -> ProgramRow {
        ProgramRow { bytes, average_us: Some(us), ..ProgramRow::default() }
    }

    #[test]
    fn latencies_of_old_and_new_versions_are_read() {
        let old = "# OSU MPI Latency Test v3.1.1\n\
                   # Size            Latency (us)\n\
                   0                        19.23\n\
                   1                        19.57\n";
        assert_eq!(osu_rows(old), [time(0, 19.23), time(1, 19.57)]);
        assert_eq!(read_osu(old).0.facts().version, Some("3.1.1"));
        let new = "\n# OSU MPI Latency Test v7.5\n# Datatype: MPI_CHAR.\n# Size       Avg Latency(us)\n\
                   1                       1.67\n4194304               378.02\n";
        assert_eq!(osu_rows(new), [time(1, 1.67), time(4 << 20, 378.02)]);
        let facts = read_osu(new).0;
        assert_eq!((facts.facts().version, facts.facts().element), (Some("7.5"), Some("MPI_CHAR")));
    }

    #[test]
    fn bandwidths_and_rates_of_messages_are_read() {
        let bandwidth = |bytes, gb_per_s, messages_per_s| ProgramRow {
            bytes,
            gb_per_s: Some(gb_per_s),
            messages_per_s,
            ..ProgramRow::default()
        };
        let bw = "# OSU MPI-CUDA Bandwidth Test v7.4\n# Send Buffer on DEVICE (D) and Receive Buffer on DEVICE (D)\n\
                  # Datatype: MPI_CHAR.\n# Size      Bandwidth (MB/s)\n\
                  1                       2.50\n4194304             27161.25\n";
        assert_eq!(osu_rows(bw), [bandwidth(1, 0.0025, None), bandwidth(4 << 20, 27.16125, None)]);
        let rate = "# OSU MPI Multiple Bandwidth / Message Rate Test v5.6.3\n\
                    # [ pairs: 1 ] [ window size: 64 ]\n\
                    # Size                  MB/s        Messages/s\n\
                    1                       4.25        4235302.84\n";
        assert_eq!(osu_rows(rate), [bandwidth(1, 0.004_25, Some(4_235_302.84))]);
    }

    #[test]
    fn collectives_are_read_with_and_without_their_full_format() {
        let short = "# OSU MPI Allreduce Latency Test v5.4.1\n# Size       Avg Latency(us)\n\
                     4                       7.93\n1048576              2173.25\n";
        assert_eq!(osu_rows(short), [time(4, 7.93), time(1 << 20, 2173.25)]);
        let full = "# OSU MPI Allgather Latency Test v7.4\n# Datatype: MPI_CHAR.\n\
                    # Size       Avg Latency(us)   Min Latency(us)   Max Latency(us)  Iterations\n\
                    1                       2.81              1.89              3.73          10\n";
        let row = ProgramRow {
            min_us: Some(1.89),
            max_us: Some(3.73),
            iterations: Some(10),
            ..time(1, 2.81)
        };
        assert_eq!(osu_rows(full), [row]);
        let barrier = "# OSU MPI Barrier Latency Test v5.8\n# Avg Latency(us)\n             8.32\n";
        assert_eq!(osu_rows(barrier), [time(0, 8.32)]);
        let tails = "# OSU MPI Latency Test v7.4\n\
                     # Size       Avg Latency(us)  P50 Tail Lat(us)  P90 Tail Lat(us)\n\
                     8                       1.70              1.68              1.80\n";
        assert_eq!(osu_rows(tails), [time(8, 1.7)]);
    }

    #[test]
    fn results_that_are_wrong_are_said() {
        let text = "# OSU MPI Latency Test v7.2\n# Size       Avg Latency(us)        Validation\n\
                    1                       1.67              Pass\n\
                    2                       1.67              Fail\n4    1.70   Fail\n";
        let wrong: Vec<Option<u64>> = osu_rows(text).iter().map(|row| row.wrong).collect();
        assert_eq!(wrong, [Some(0), Some(1), Some(1)]);
        let sentence = "results were wrong, first at 2 bytes: do not trust this network";
        assert_eq!(read_osu(text).0.wrong().as_deref(), Some(sentence));
        assert_eq!(read_osu(&text.replace("Fail", "Pass")).0.wrong(), None);
    }

    #[test]
    fn other_lines_are_foreign() {
        let text = "[node01:1] UCX  WARN  transport 'rc' is not available\n\
                    # Size       Avg Latency(us)\n8 torn\n8\nMPI startup(): 1 2 3\n8 -1\n8 NaN\n-8 1.0\n8 1.0 and more\n";
        let (_, lines) = read_osu(text);
        let foreign = lines.iter().filter(|line| **line == ProgramLine::Foreign).count();
        assert_eq!(foreign, 8, "{lines:?}");
        let overlap = "# OSU MPI Non-blocking Allreduce Latency Test v7.4\n\
                       # Size           Overall(us)       Compute(us)    Pure Comm.(us)        Overlap(%)\n\
                       4                       4.93              2.02              1.98              0.00\n";
        let (_, lines) = read_osu(overlap);
        let expected = [ProgramLine::Comment, ProgramLine::Comment, ProgramLine::Foreign];
        assert_eq!(lines, expected);
    }
}
