//! Tables of nccl-tests: time and bandwidth of a collective for each size, out of place and in place.

use serde::Serialize;

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
    /// Whether the table's header was found; numbers before it are not rows.
    #[serde(skip)]
    has_header: bool,
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
    pub(super) fn add_line(&mut self, line: &str) {
        let line = line.trim();
        match line.strip_prefix('#') {
            Some(comment) => self.add_comment(comment.trim()),
            None if self.has_header => self.rows.extend(row(line)),
            None => {}
        }
    }

    fn add_comment(&mut self, comment: &str) {
        if comment.contains("algbw") && comment.contains("busbw") {
            self.has_header = true;
        } else if let Some(test) = comment.strip_prefix("Collective test starting:") {
            self.test = Some(test.trim().to_owned());
        } else if let Some(average) = comment.strip_prefix("Avg bus bandwidth") {
            let mut words = average.trim_start_matches([' ', ':']).split_whitespace();
            self.average_busbw = words.next().and_then(number);
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

/// Parses a row: `size count type redop root`, then once or twice `time algbw busbw #wrong`. Older versions
/// of nccl-tests print no `root`.
fn row(line: &str) -> Option<SizeRow> {
    let words: Vec<&str> = line.split_whitespace().collect();
    let (bytes, _count) = (words.first()?.parse().ok()?, words.get(1)?.parse::<u64>().ok()?);
    let is_type = |word: &&str| word.starts_with(|first: char| first.is_ascii_alphabetic());
    words.get(2).filter(|word| is_type(word))?;
    let measured = match words.len() {
        8 | 12 => &words[4..],
        9 | 13 => &words[5..],
        _ => return None,
    };
    let mut measured = measured.chunks(4).map(|words| {
        let [time, algbw, busbw, wrong] = words else { return None };
        let (time_us, algbw, busbw) = (number(time)?, number(algbw)?, number(busbw)?);
        Some(Timing { time_us, algbw, busbw, wrong: wrong.parse().ok() })
    });
    let out_of_place = measured.next()??;
    Some(SizeRow { bytes, out_of_place, in_place: measured.next().flatten() })
}

#[cfg(test)]
mod tests {
    use super::*;

    const HEAD: &str =
        "#       size         count      type   redop    root     time   algbw   busbw";

    fn read(lines: &[&str]) -> CollectiveTable {
        let mut collective = CollectiveTable::default();
        lines.iter().for_each(|line| collective.add_line(line));
        collective
    }

    #[test]
    fn rows_of_several_versions_are_read() {
        let both = "536870912 134217728 float sum -1 5202.3 103.20 193.50 0 5377.7 99.83 187.19 0";
        let one = "34359738368 8589934592 float sum -1 875713 39.24 68.66 0";
        let rootless = "1024 256 float sum 31.2 0.03 0.06 0e+00 30.9 0.03 0.06 N/A";
        let read = read(&[HEAD, both, one, rootless, "1 2 3 4 5 6 7 8 9", "done"]);
        let busbw: Vec<f64> = read.timings().map(|(_, timing)| timing.busbw).collect();
        assert_eq!(busbw, [193.50, 187.19, 68.66, 0.06, 0.06]);
        assert_eq!(read.rows[0].out_of_place.wrong, Some(0));
        assert_eq!(read.rows[1].in_place, None);
        assert_eq!(read.rows[2].in_place.unwrap().wrong, None);
    }

    #[test]
    fn what_stands_around_them_is_read() {
        let read = read(&[
            "#  Rank  0 Group  0 Pid     16 on node-0 device  0 [0x19] NVIDIA H100 80GB HBM3",
            "#   Rank  1 Pid   9228 on  node-1 device  1 [0x06] Tesla V100",
            "# Collective test starting: all_reduce_perf",
            "# Avg bus bandwidth    : 194.675 ",
        ]);
        let device = |rank, host: &str| RankDevice { rank, host: host.to_owned() };
        assert_eq!(read.devices, [device(0, "node-0"), device(1, "node-1")]);
        assert_eq!(read.test.as_deref(), Some("all_reduce_perf"));
        assert_eq!(read.average_busbw, Some(194.675));
        assert!(read.is_empty());
    }

    #[test]
    fn numbers_without_a_head_are_no_rows() {
        let row = "1024 256 float sum -1 31.2 0.03 0.06 0";
        assert!(read(&[row]).is_empty());
        assert!(!read(&[HEAD, row]).is_empty());
    }
}
