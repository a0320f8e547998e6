//! Confidence interval of a median by order statistics. It makes no assumption on the distribution:
//! each value is below the true median with probability 1/2.

use super::Series;

/// Maximum probability that the true median is below a 90 % interval, and that it is above.
const BEYOND: f64 = 0.05;
/// Minimum number of values for a 90 % interval.
pub(super) const FEWEST: usize = 5;

/// 90 % interval of a median; each end is a value of the series.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(super) struct Interval {
    pub(super) lower: f64,
    pub(super) upper: f64,
}

impl Interval {
    /// Returns the interval, or `None` with too few values.
    pub(super) fn from_series(series: &Series) -> Option<Interval> {
        let mut sorted = series.0.clone();
        sorted.sort_by(f64::total_cmp);
        let beyond = values_beyond(sorted.len())?;
        let (lower, upper) = (sorted.get(beyond)?, sorted.iter().nth_back(beyond)?);
        Some(Interval { lower: *lower, upper: *upper })
    }
}

/// Returns how many of `count` values are below the lower end of the interval; as many are above
/// its upper end. This is the largest k such that k or fewer values are on one side of the true
/// median with a probability of at most [`BEYOND`]. Returns `None` if the probability is greater
/// even for k = 0.
fn values_beyond(count: usize) -> Option<usize> {
    let mut chance = 0.5_f64.powi(i32::try_from(count).ok()?);
    let mut total = 0.0;
    let mut most = None;
    for k in 0..count {
        total += chance;
        if total > BEYOND {
            break;
        }
        most = Some(k);
        // The binomial probability of k + 1 of `count` follows from that of k.
        chance *= (count - k) as f64 / (k + 1) as f64;
    }
    most
}

#[cfg(test)]
mod tests {
    use super::*;

    fn interval(values: &[f64]) -> Option<(f64, f64)> {
        Interval::from_series(&Series(values.to_vec()))
            .map(|interval| (interval.lower, interval.upper))
    }

    #[test]
    fn the_interval_begins_where_tables_say() {
        // Tables of the sign test, one-sided at 5 %; ranks start at 1.
        for (count, rank) in [(5, 1), (7, 1), (8, 2), (10, 2), (11, 3), (15, 4), (20, 6), (30, 11)]
        {
            assert_eq!(values_beyond(count).map(|beyond| beyond + 1), Some(rank), "{count}");
        }
        assert_eq!(values_beyond(FEWEST - 1), None);
        assert!(values_beyond(FEWEST).is_some());
        assert_eq!(values_beyond(0), None);
    }

    #[test]
    fn both_ends_have_as_many_values_beyond_them() {
        assert_eq!(interval(&[5.0, 4.0, 3.0, 2.0, 1.0]), Some((1.0, 5.0)));
        assert_eq!(interval(&[1.0; 4]), None);
        // Three of 15 values are below the fourth and three above the twelfth, in whatever order
        // they came.
        let values: Vec<f64> = (0..15).map(|at| f64::from(at * 7 % 15 + 1)).collect();
        assert_eq!(interval(&values), Some((4.0, 12.0)));
        let mirrored: Vec<f64> = values.iter().map(|value| -value).collect();
        assert_eq!(interval(&mirrored), Some((-12.0, -4.0)));
    }
}
