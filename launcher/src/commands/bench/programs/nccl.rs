//! Tables of nccl-tests. `rlaunch report` reads the same tables in logs.

use super::parser::{ProgramLine, ProgramRow, TableFacts, TableParser};
use crate::commands::report::log_metrics::collective::{CollectiveTable, SizeRow};
use crate::commands::report::nccl_tests;

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
        let in_rows = nccl_tests::wrong_values(&self.table).map(|finding| finding.text);
        let in_all = || {
            let count = self.table.out_of_bounds.filter(|count| *count > 0)?;
            Some(format!("{count} values were wrong: do not trust this network"))
        };
        in_rows.or_else(in_all)
    }

    fn incomplete(&self) -> Option<String> {
        nccl_tests::average_differs(&self.table).map(|finding| finding.text)
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
}
