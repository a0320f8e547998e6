//! Quantiles and distribution of times, in little memory however many times there are.

use hdrhistogram::Histogram;
use rlaunch_bootstrap::bench::MessageTimes;

/// Number of decimal digits of a time that are kept, from 0 to 5.
const DIGITS: u8 = 3;
/// Maximum time in ticks, some minutes. Longer times count as this one.
const MOST: u64 = 1 << 40;
/// Ratio of the bounds of two classes of the distribution.
const CLASS: f64 = 1.25;

/// Times in ticks.
#[derive(Debug)]
pub(super) struct Times(Histogram<u64>);

impl Times {
    pub(super) fn new() -> Times {
        let histogram = Histogram::new_with_max(MOST, DIGITS);
        Times(histogram.unwrap_or_else(|_| unreachable!("{MOST} and {DIGITS} are allowed")))
    }

    #[inline]
    pub(super) fn push(&mut self, ticks: u64) {
        self.0.saturating_record(ticks);
    }

    /// Returns the number of times.
    #[cfg(test)]
    pub(super) fn count(&self) -> u64 {
        self.0.len()
    }

    /// Converts to microseconds. `microseconds` is the time of a tick, for each message.
    pub(super) fn summary(&self, microseconds: f64) -> MessageTimes {
        let at = |quantile: f64| self.0.value_at_quantile(quantile) as f64 * microseconds;
        let classes = self.0.iter_log(1, CLASS).map(|class| {
            (class.value_iterated_to() as f64 * microseconds, class.count_since_last_iteration())
        });
        MessageTimes {
            messages: self.0.len(),
            min_us: self.0.min() as f64 * microseconds,
            typical_us: at(0.5),
            average_us: self.0.mean() * microseconds,
            deviation_us: self.0.stdev() * microseconds,
            p99_us: at(0.99),
            p999_us: at(0.999),
            max_us: self.0.max() as f64 * microseconds,
            distribution: classes.filter(|(_, count)| *count > 0).collect(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn quantiles_are_those_of_the_times() {
        let mut times = Times::new();
        (1..=1000).for_each(|time| times.push(time * 1000));
        let summary = times.summary(1e-3);
        let is_near = |value: f64, expected: f64| (value / expected - 1.0).abs() < 2e-3;
        assert_eq!(summary.messages, 1000);
        assert!(is_near(summary.min_us, 1.0) && is_near(summary.max_us, 1000.0), "{summary:?}");
        assert!(is_near(summary.typical_us, 500.0) && is_near(summary.average_us, 500.5));
        assert!(is_near(summary.p99_us, 990.0) && is_near(summary.p999_us, 999.0), "{summary:?}");
        assert!(is_near(summary.deviation_us, 288.675), "{summary:?}");
        let counts: Vec<u64> = summary.distribution.iter().map(|(_, count)| *count).collect();
        assert_eq!(counts.iter().sum::<u64>(), 1000);
        assert!(counts.iter().all(|count| *count > 0));
        assert!(summary.distribution.is_sorted_by(|one, other| one.0 < other.0));
    }
}
