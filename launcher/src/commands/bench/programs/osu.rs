//! Tables of OSU's micro-benchmarks, of which versions differ in their columns:
//!
//! ```text
//! # OSU MPI Allreduce Latency Test v7.4
//! # Datatype: MPI_INT.
//! # Size       Avg Latency(us)   Min Latency(us)   Max Latency(us)  Iterations
//! 4                       2.81              1.89              3.73        1000
//! ```

use super::parser::{ProgramLine, ProgramRow, TableFacts, TableParser, number};

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

    fn read(text: &str) -> (OsuParser, Vec<ProgramLine>) {
        let mut parser = OsuParser::default();
        let lines = text.lines().map(|line| parser.line(line)).collect();
        (parser, lines)
    }

    /// Returns the rows of a table, and asserts that it has one header and no foreign lines.
    fn rows(text: &str) -> Vec<ProgramRow> {
        let (_, lines) = read(text);
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
        assert_eq!(rows(old), [time(0, 19.23), time(1, 19.57)]);
        assert_eq!(read(old).0.facts().version, Some("3.1.1"));
        let new = "\n# OSU MPI Latency Test v7.5\n# Datatype: MPI_CHAR.\n# Size       Avg Latency(us)\n\
                   1                       1.67\n4194304               378.02\n";
        assert_eq!(rows(new), [time(1, 1.67), time(4 << 20, 378.02)]);
        let facts = read(new).0;
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
        assert_eq!(rows(bw), [bandwidth(1, 0.0025, None), bandwidth(4 << 20, 27.16125, None)]);
        let rate = "# OSU MPI Multiple Bandwidth / Message Rate Test v5.6.3\n\
                    # [ pairs: 1 ] [ window size: 64 ]\n\
                    # Size                  MB/s        Messages/s\n\
                    1                       4.25        4235302.84\n";
        assert_eq!(rows(rate), [bandwidth(1, 0.004_25, Some(4_235_302.84))]);
    }

    #[test]
    fn collectives_are_read_with_and_without_their_full_format() {
        let short = "# OSU MPI Allreduce Latency Test v5.4.1\n# Size       Avg Latency(us)\n\
                     4                       7.93\n1048576              2173.25\n";
        assert_eq!(rows(short), [time(4, 7.93), time(1 << 20, 2173.25)]);
        let full = "# OSU MPI Allgather Latency Test v7.4\n# Datatype: MPI_CHAR.\n\
                    # Size       Avg Latency(us)   Min Latency(us)   Max Latency(us)  Iterations\n\
                    1                       2.81              1.89              3.73          10\n";
        let row = ProgramRow {
            min_us: Some(1.89),
            max_us: Some(3.73),
            iterations: Some(10),
            ..time(1, 2.81)
        };
        assert_eq!(rows(full), [row]);
        let barrier = "# OSU MPI Barrier Latency Test v5.8\n# Avg Latency(us)\n             8.32\n";
        assert_eq!(rows(barrier), [time(0, 8.32)]);
        let tails = "# OSU MPI Latency Test v7.4\n\
                     # Size       Avg Latency(us)  P50 Tail Lat(us)  P90 Tail Lat(us)\n\
                     8                       1.70              1.68              1.80\n";
        assert_eq!(rows(tails), [time(8, 1.7)]);
    }

    #[test]
    fn results_that_are_wrong_are_said() {
        let text = "# OSU MPI Latency Test v7.2\n# Size       Avg Latency(us)        Validation\n\
                    1                       1.67              Pass\n\
                    2                       1.67              Fail\n4    1.70   Fail\n";
        let wrong: Vec<Option<u64>> = rows(text).iter().map(|row| row.wrong).collect();
        assert_eq!(wrong, [Some(0), Some(1), Some(1)]);
        let sentence = "results were wrong, first at 2 bytes: do not trust this network";
        assert_eq!(read(text).0.wrong().as_deref(), Some(sentence));
        assert_eq!(read(&text.replace("Fail", "Pass")).0.wrong(), None);
    }

    #[test]
    fn other_lines_are_foreign() {
        let text = "[node01:1] UCX  WARN  transport 'rc' is not available\n\
                    # Size       Avg Latency(us)\n8 torn\n8\nMPI startup(): 1 2 3\n8 -1\n8 NaN\n-8 1.0\n8 1.0 and more\n";
        let (_, lines) = read(text);
        let foreign = lines.iter().filter(|line| **line == ProgramLine::Foreign).count();
        assert_eq!(foreign, 8, "{lines:?}");
        let overlap = "# OSU MPI Non-blocking Allreduce Latency Test v7.4\n\
                       # Size           Overall(us)       Compute(us)    Pure Comm.(us)        Overlap(%)\n\
                       4                       4.93              2.02              1.98              0.00\n";
        let (_, lines) = read(overlap);
        let expected = [ProgramLine::Comment, ProgramLine::Comment, ProgramLine::Foreign];
        assert_eq!(lines, expected);
    }
}
