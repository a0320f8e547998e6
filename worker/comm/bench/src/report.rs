//! Results as records for the launcher.

use crate::workload::Pattern;
use rlaunch_bootstrap::bench::{BenchHeader, BenchRecord, BenchRow};
use rlaunch_comm::{ElementType, Op};
use std::io::{self, Write};
use std::time::Duration;

/// Minimum duration of a batch.
pub(crate) const BATCH: Duration = Duration::from_micros(200);

/// Writes a record to stdout at once, because the launcher prints rows as they come.
pub(crate) fn write(record: &BenchRecord) -> io::Result<()> {
    let mut line = serde_json::to_vec(record)?;
    line.push(b'\n');
    let mut stdout = io::stdout().lock();
    stdout.write_all(&line)?;
    stdout.flush()
}

/// Describes the measurement of a pattern by `ranks` ranks.
pub(crate) fn header(
    pattern: Pattern,
    (element, op): (ElementType, Op),
    ranks: usize,
) -> BenchHeader {
    BenchHeader {
        bench: pattern.name().to_owned(),
        element: element.name().to_owned(),
        op: pattern.reduces().then(|| op.name().to_owned()),
        ranks,
        size_is_total: pattern.size_is_total(),
        formula: pattern.formula().to_owned(),
        bus_factor: pattern.bus_factor(ranks),
    }
}

/// Summarises batches of `repetitions` each. `times` are the batches' mean times of an operation in
/// seconds, in any order.
pub(crate) fn row(
    (bytes, elements): (usize, usize),
    times: Vec<f64>,
    repetitions: u64,
) -> BenchRow {
    let times = Sorted::new(times);
    let us = |part| times.quantile(part) * 1e6;
    BenchRow {
        bytes,
        elements,
        median_us: us(0.5),
        min_us: us(0.0),
        p99_us: us(0.99),
        algbw_gb_s: bytes as f64 / times.quantile(0.5) / 1e9,
        batches: times.0.len(),
        repetitions,
    }
}

/// Numbers in ascending order.
pub(crate) struct Sorted(Vec<f64>);

impl Sorted {
    pub(crate) fn new(mut numbers: Vec<f64>) -> Sorted {
        numbers.sort_by(f64::total_cmp);
        Sorted(numbers)
    }

    /// Returns a quantile by the nearest-rank method; NaN if there are no numbers. `part` ranges
    /// from 0 for the minimum to 1 for the maximum.
    pub(crate) fn quantile(&self, part: f64) -> f64 {
        let ordinal = (part * self.0.len() as f64).ceil() as usize;
        self.0.get(ordinal.saturating_sub(1)).copied().unwrap_or(f64::NAN)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn quantiles_are_times_that_were_measured() {
        let times = Sorted::new((1..=100).rev().map(f64::from).collect());
        let quantiles = [0.5, 0.0, 0.99].map(|part| times.quantile(part));
        assert_eq!(quantiles, [50.0, 1.0, 99.0]);
        assert_eq!(Sorted::new(vec![3.0]).quantile(0.99), 3.0);
    }

    #[test]
    fn a_row_has_the_bandwidth_at_the_median() {
        let row = row((1 << 20, 1 << 18), vec![1e-3, 1e-3, 5e-3], 1);
        assert_eq!((row.median_us, row.p99_us, row.batches), (1000.0, 5000.0, 3));
        assert!((row.algbw_gb_s - 1.048_576).abs() < 1e-9, "{row:?}");
    }
}
