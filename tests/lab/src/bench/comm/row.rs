//! Rows of the report: how a program is asked for one, and how it reports one.

use std::fmt;

use crate::LabError;

/// Operation that is measured.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Operation {
    /// Message to a partner and one back.
    Latency,
    /// Messages to a partner, several at a time.
    Bandwidth,
    Barrier,
    /// Sum of vectors of f32, at every rank.
    AllReduce,
}

/// Row of the report: an operation with its length in bytes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct CommRow {
    pub(super) kind: Operation,
    pub(super) bytes: usize,
}

impl CommRow {
    pub(super) const ALL: [CommRow; 6] = [
        CommRow { kind: Operation::Latency, bytes: 8 },
        CommRow { kind: Operation::Bandwidth, bytes: 1 << 20 },
        CommRow { kind: Operation::Barrier, bytes: 0 },
        CommRow { kind: Operation::AllReduce, bytes: 8 },
        CommRow { kind: Operation::AllReduce, bytes: 64 << 10 },
        CommRow { kind: Operation::AllReduce, bytes: 16 << 20 },
    ];

    /// Lists the rows whose names contain `part`.
    pub(super) fn with_name(part: &str) -> Vec<CommRow> {
        CommRow::ALL.into_iter().filter(|row| row.to_string().contains(part)).collect()
    }

    /// Returns the unit in which the row is printed.
    pub(super) fn unit(self) -> &'static str {
        if self.kind == Operation::Bandwidth { "GB/s" } else { "µs" }
    }

    /// Converts the duration of one operation, in seconds, to the row's unit.
    pub(super) fn shown(self, seconds: f64) -> f64 {
        match self.kind {
            // Exact: no message has 2^53 bytes.
            Operation::Bandwidth => self.bytes as f64 / seconds / 1e9,
            _ => seconds * 1e6,
        }
    }
}

/// Formats the row as in the arguments and in the output of programs.
impl fmt::Display for CommRow {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let kind = match self.kind {
            Operation::Latency => "latency",
            Operation::Bandwidth => "bandwidth",
            Operation::Barrier => "barrier",
            Operation::AllReduce => "allreduce",
        };
        write!(f, "{kind}/{}", self.bytes)
    }
}

/// Result of a row.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(super) struct RowTime {
    /// Seconds of one operation.
    pub(super) seconds: f64,
    /// Number of operations in a batch.
    pub(super) count: u64,
}

/// Reads the results of `rows`, in their order, from lines of name, seconds and count.
pub(super) fn read(printed: &str, rows: &[CommRow]) -> Result<Vec<RowTime>, LabError> {
    let of_row = |row: &CommRow| {
        let line = printed.lines().find_map(|line| parse(line, *row));
        line.ok_or_else(|| LabError::Unexpected(format!("no result of {row} in:\n{printed}")))
    };
    rows.iter().map(of_row).collect()
}

fn parse(line: &str, row: CommRow) -> Option<RowTime> {
    let mut words = line.split_whitespace();
    words.next().filter(|name| *name == row.to_string())?;
    let seconds: f64 = words.next()?.parse().ok()?;
    let count = words.next()?.parse().ok()?;
    // Anything else would make ratios meaningless.
    (seconds.is_finite() && seconds > 0.0 && count > 0).then_some(RowTime { seconds, count })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn results_are_read_in_the_order_of_rows() {
        let printed = "welcome\nbarrier/0 1.5e-06 20000\nlatency/8 2.5000e-07 90000\n";
        let rows = [CommRow::ALL[0], CommRow::ALL[2]];
        let measured = read(printed, &rows).unwrap();
        assert_eq!(measured[0], RowTime { seconds: 2.5e-7, count: 90_000 });
        assert_eq!(measured[1], RowTime { seconds: 1.5e-6, count: 20_000 });
    }

    #[test]
    fn a_row_is_not_taken_for_a_longer_name() {
        let printed = "allreduce/65536 1e-5 10\n";
        assert!(read(printed, &[CommRow { kind: Operation::AllReduce, bytes: 6 }]).is_err());
        assert!(read(printed, &[CommRow { kind: Operation::AllReduce, bytes: 65536 }]).is_ok());
    }

    #[test]
    fn what_is_no_measurement_is_an_error() {
        for line in [
            "barrier/0",
            "barrier/0 fast 3",
            "barrier/0 0 3",
            "barrier/0 nan 3",
            "barrier/0 -1 3",
            "barrier/0 inf 3",
            "barrier/0 1e-6",
            "barrier/0 1e-6 0",
            "",
        ] {
            assert!(read(line, &[CommRow::ALL[2]]).is_err(), "{line}");
        }
    }

    #[test]
    fn rows_are_found_by_part_of_their_names() {
        assert_eq!(CommRow::with_name("allreduce").len(), 3);
        assert_eq!(CommRow::with_name("latency/8"), [CommRow::ALL[0]]);
        assert!(CommRow::with_name("broadcast").is_empty());
    }

    #[test]
    fn a_bandwidth_is_shown_in_bytes_and_the_rest_as_time() {
        let row = CommRow { kind: Operation::Bandwidth, bytes: 1_000_000 };
        assert!((row.shown(1e-3) - 1.0).abs() < 1e-9);
        assert!((CommRow::ALL[2].shown(2e-6) - 2.0).abs() < 1e-9);
    }
}
