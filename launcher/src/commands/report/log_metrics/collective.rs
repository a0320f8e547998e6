//! Tables of nccl-tests: time and bandwidth of a collective for each size, out of place and in place.

use serde::Serialize;
use std::collections::BTreeSet;

/// Names of the column of times in the table's header; `-C` prints the CPU's.
const TIMES: [&str; 2] = ["time", "cputime"];
/// Number of columns that stand before those of timings in every version: `size count type redop`.
const LEADING: usize = 4;

/// Output of one run of nccl-tests.
#[derive(Clone, Debug, Default, Serialize)]
pub(crate) struct CollectiveTable {
    /// Name of the test, as `all_reduce_perf`, if this version of nccl-tests prints it.
    pub(crate) test: Option<String>,
    /// Ranks and their hosts.
    pub(crate) devices: Vec<RankDevice>,
    pub(crate) rows: Vec<SizeRow>,
    /// Printed average of all bus bandwidths, in GB/s (10^9 bytes).
    pub(crate) average_busbw: Option<f64>,
    /// Version of nccl-tests, and of the NCCL that it loaded, as far as they are printed.
    #[serde(skip)]
    pub(crate) versions: Versions,
    /// Printed number of wrong values of all rows.
    #[serde(skip)]
    pub(crate) out_of_bounds: Option<u64>,
    /// Number of headers of the table. A run prints one for all ranks.
    #[serde(skip)]
    pub(crate) header_count: usize,
    /// Ranks that printed a header. Only one rank does, unless each ran alone.
    #[serde(skip)]
    pub(crate) printers: BTreeSet<u32>,
    /// Columns of the timings, from the table's header; numbers before it are not rows.
    #[serde(skip)]
    columns: Vec<TimingColumns>,
}

/// Versions in a line like `# nccl-tests version 2.18.3 nccl-headers=23005 nccl-library=23005`.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Versions {
    pub(crate) nccl_tests: Option<String>,
    pub(crate) nccl: Option<String>,
}

/// Columns of one timing.
#[derive(Clone, Copy, Debug)]
struct TimingColumns {
    /// Index of the time; `algbw`, `busbw` and the result of the check follow.
    time: usize,
    /// Whether the check counts wrong values. Old versions of nccl-tests print the largest difference.
    counts_wrong: bool,
}

/// Rank in a line like `#  Rank  0 Group  0 Pid  16 on node-0 device  0 [0x19] NVIDIA H100`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub(crate) struct RankDevice {
    pub(crate) rank: u32,
    pub(crate) host: String,
}

/// Row of the table, for one size.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub(crate) struct SizeRow {
    pub(crate) bytes: u64,
    #[serde(skip)]
    pub(crate) elements: u64,
    /// Type of the elements.
    #[serde(skip)]
    pub(crate) element: String,
    /// Operation of a reduction; `None` for other patterns.
    #[serde(skip)]
    pub(crate) op: Option<String>,
    pub(crate) out_of_place: Timing,
    /// Timing of the operation in place; `None` if the row has only the columns for out of place.
    pub(crate) in_place: Option<Timing>,
}

/// Time, and bandwidths in GB/s (10^9 bytes).
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub(crate) struct Timing {
    pub(crate) time_us: f64,
    pub(crate) algbw: f64,
    pub(crate) busbw: f64,
    /// Number of wrong values; `None` if results were not checked.
    pub(crate) wrong: Option<u64>,
}

impl CollectiveTable {
    /// Adds a line. `rank` is the rank that printed the line, if known.
    pub(crate) fn add_line(&mut self, rank: Option<u32>, line: &str) {
        let line = line.trim();
        match line.strip_prefix('#') {
            Some(comment) => self.add_comment(rank, comment.trim()),
            None => self.rows.extend(row(line, &self.columns)),
        }
    }

    fn add_comment(&mut self, rank: Option<u32>, comment: &str) {
        let columns = timing_columns(comment);
        if !columns.is_empty() {
            self.columns = columns;
            self.header_count += 1;
            self.printers.extend(rank);
        } else if let Some(test) = comment.strip_prefix("Collective test starting:") {
            self.test = Some(test.trim().to_owned());
        } else if let Some(average) = comment.strip_prefix("Avg bus bandwidth") {
            let mut words = average.trim_start_matches([' ', ':']).split_whitespace();
            self.average_busbw = words.next().and_then(number);
        } else if let Some(versions) = comment.strip_prefix("nccl-tests version ") {
            self.versions = self::versions(versions);
        } else if let Some(wrong) = comment.strip_prefix("Out of bounds values") {
            let mut words = wrong.trim_start_matches([' ', ':']).split_whitespace();
            self.out_of_bounds = words.next().and_then(|wrong| wrong.parse().ok());
        } else if comment.starts_with("Rank ") {
            self.devices.extend(device(comment));
        }
    }

    pub(super) fn is_empty(&self) -> bool {
        self.rows.is_empty()
    }

    /// Returns all timings with their sizes in bytes.
    pub(crate) fn timings(&self) -> impl Iterator<Item = (u64, &Timing)> {
        self.rows.iter().flat_map(|row| {
            std::iter::once(&row.out_of_place).chain(&row.in_place).map(|one| (row.bytes, one))
        })
    }
}

fn number(word: &str) -> Option<f64> {
    word.parse().ok().filter(|number: &f64| number.is_finite() && *number >= 0.0)
}

fn device(comment: &str) -> Option<RankDevice> {
    let mut words = comment.split_whitespace();
    let rank = words.nth(1)?.parse().ok()?;
    let host = words.skip_while(|word| *word != "on").nth(1)?;
    Some(RankDevice { rank, host: host.to_owned() })
}

fn versions(text: &str) -> Versions {
    let mut words = text.split_whitespace();
    let nccl_tests = words.next().map(str::to_owned);
    let nccl = words.find_map(|word| word.strip_prefix("nccl-library=")?.parse::<u32>().ok());
    let nccl = nccl.map(|code| format!("{}.{}.{}", code / 10_000, code / 100 % 100, code % 100));
    Versions { nccl_tests, nccl }
}

/// Finds the columns of timings in a table's header: `size count type redop root`, then once or twice `time algbw busbw
/// #wrong`. Columns that versions of nccl-tests print besides these are skipped.
fn timing_columns(comment: &str) -> Vec<TimingColumns> {
    let names: Vec<&str> = comment.split_whitespace().collect();
    let timings = names.windows(3).enumerate().skip(LEADING).filter(|(_, names)| {
        TIMES.contains(&names[0]) && names[1] == "algbw" && names[2] == "busbw"
    });
    timings
        .map(|(time, _)| {
            let counts_wrong = names.get(time + 3).is_some_and(|name| *name == "#wrong");
            TimingColumns { time, counts_wrong }
        })
        .collect()
}

fn row(line: &str, columns: &[TimingColumns]) -> Option<SizeRow> {
    let words: Vec<&str> = line.split_whitespace().collect();
    let (bytes, elements) = (words.first()?.parse().ok()?, words.get(1)?.parse().ok()?);
    let is_name = |word: &&&str| word.starts_with(|first: char| first.is_ascii_alphabetic());
    let element = words.get(2).filter(is_name)?;
    let op = words.get(3).filter(is_name);
    // Old versions leave the operation blank if there is none.
    let blank = usize::from(op.is_none());
    let mut timings =
        columns.iter().map(|columns| timing(words.get(columns.time - blank..)?, *columns));
    let out_of_place = timings.next()??;
    Some(SizeRow {
        bytes,
        elements,
        element: (*element).to_owned(),
        op: op.filter(|op| **op != "none").map(|op| (*op).to_owned()),
        out_of_place,
        in_place: timings.next().flatten(),
    })
}

/// Reads a timing, whose columns `words` begin with.
fn timing(words: &[&str], columns: TimingColumns) -> Option<Timing> {
    let [time, algbw, busbw, rest @ ..] = words else { return None };
    let (time_us, algbw, busbw) = (number(time)?, number(algbw)?, number(busbw)?);
    // Large counts are printed like `1.04858e+06`.
    let wrong = rest.first().filter(|_| columns.counts_wrong).and_then(|wrong| number(wrong));
    Some(Timing { time_us, algbw, busbw, wrong: wrong.map(|wrong| wrong.round() as u64) })
}

#[cfg(test)]
mod tests {
    use super::*;

    const HEAD: &str = "#       size         count      type   redop    root     time   algbw   busbw #wrong     \
                        time   algbw   busbw #wrong";

    fn read(lines: &[&str]) -> CollectiveTable {
        let mut collective = CollectiveTable::default();
        lines.iter().for_each(|line| collective.add_line(None, line));
        collective
    }

    /// Returns the bus bandwidths of a table, and the numbers of wrong values.
    fn busbw(lines: &[&str]) -> Vec<(f64, Option<u64>)> {
        read(lines).timings().map(|(_, timing)| (timing.busbw, timing.wrong)).collect()
    }

    #[test]
    fn rows_are_read_by_their_header() {
        let both =
            "536870912 134217728 float sum -1 5202.3 103.20 193.50 0 5377.7 99.83 187.19 N/A";
        assert_eq!(busbw(&[HEAD, both]), [(193.50, Some(0)), (187.19, None)]);
        let many = "34359738368 8589934592 float sum -1 875713 39.24 68.66 1.04858e+06";
        assert_eq!(busbw(&[HEAD, many, "1 2 3 4 5 6 7 8 9", "done"]), [(68.66, Some(1_048_580))]);
        assert_eq!(busbw(&[HEAD, "1024 256 float sum -1 31.2 0.03", "1024 256 float sum -1"]), []);
    }

    #[test]
    fn rows_of_several_versions_are_read() {
        let old = "# size count type redop time algbw busbw error time algbw busbw error";
        let row = "1024 256 float sum 31.2 0.03 0.06 0e+00 30.9 0.03 0.07 1e-07";
        assert_eq!(busbw(&[old, row]), [(0.06, None), (0.07, None)]);
        // With -C and -T.
        let stamped = "# size count type redop root cputime algbw busbw #wrong cputime algbw busbw #wrong timestamp";
        let row = "1024 256 float sum -1 31 0.03 0.06 0 30 0.03 0.07 0 2026-07-09 16:03:21";
        assert_eq!(busbw(&[stamped, row]), [(0.06, Some(0)), (0.07, Some(0))]);
        // With -I.
        let iterations = "# size count type redop root time algbw busbw #wrong i_min i_max i_p99 i_cv% \
                          time algbw busbw #wrong i_min i_max i_p99 i_cv%";
        let row = "1024 256 float sum -1 31.2 0.03 0.06 0 30.1 40.2 40.2 9.5 30.9 0.03 0.07 2 30.1 40.2 40.2 9.5";
        assert_eq!(busbw(&[iterations, row]), [(0.06, Some(0)), (0.07, Some(2))]);
    }

    #[test]
    fn a_blank_operation_moves_the_columns() {
        let row = "1024 256 float -1 31.2 0.03 0.06 0 30.9 0.03 0.07 3";
        assert_eq!(busbw(&[HEAD, row]), [(0.06, Some(0)), (0.07, Some(3))]);
        let blank = read(&[HEAD, row]).rows.remove(0);
        assert_eq!((blank.elements, &*blank.element, blank.op), (256, "float", None));
        let none = "1024 256 half none -1 31.2 0.03 0.06 0 30.9 0.03 0.07 0";
        assert_eq!(read(&[HEAD, none]).rows[0].op, None);
        let sum = "1024 256 half sum -1 31.2 0.03 0.06 0 30.9 0.03 0.07 0";
        assert_eq!(read(&[HEAD, sum]).rows[0].op.as_deref(), Some("sum"));
    }

    #[test]
    fn what_stands_around_them_is_read() {
        let read = read(&[
            "#  Rank  0 Group  0 Pid     16 on node-0 device  0 [0x19] NVIDIA H100 80GB HBM3",
            "#   Rank  1 Pid   9228 on  node-1 device  1 [0x06] Tesla V100",
            "# Collective test starting: all_reduce_perf",
            "# Avg bus bandwidth    : 194.675 ",
            "# nccl-tests version 2.18.3 nccl-headers=23005 nccl-library=23005",
            "# Out of bounds values : 12 FAILED",
        ]);
        let device = |rank, host: &str| RankDevice { rank, host: host.to_owned() };
        assert_eq!(read.devices, [device(0, "node-0"), device(1, "node-1")]);
        assert_eq!(read.test.as_deref(), Some("all_reduce_perf"));
        assert_eq!((read.average_busbw, read.out_of_bounds), (Some(194.675), Some(12)));
        let versions = [read.versions.nccl_tests.as_deref(), read.versions.nccl.as_deref()];
        assert_eq!(versions, [Some("2.18.3"), Some("2.30.5")]);
        assert!(read.is_empty());
    }

    #[test]
    fn numbers_without_a_head_are_no_rows() {
        let row = "1024 256 float sum -1 31.2 0.03 0.06 0";
        assert!(read(&[row]).is_empty());
        assert!(!read(&[HEAD, row]).is_empty());
    }
}
