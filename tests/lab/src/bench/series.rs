//! Measured values, and what is said of them: median, quantiles, and the 90 % interval of the median.

use std::iter::zip;

/// Values of one kind, one per round; none where the round gave none.
#[derive(Debug, Clone, Default, PartialEq)]
pub(crate) struct Series(Vec<Option<f64>>);

impl FromIterator<f64> for Series {
    fn from_iter<I: IntoIterator<Item = f64>>(values: I) -> Series {
        Series(values.into_iter().map(Some).collect())
    }
}

impl Series {
    pub(crate) fn push(&mut self, value: impl Into<Option<f64>>) {
        self.0.push(value.into());
    }

    /// Returns whether there was no round.
    pub(super) fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    pub(super) fn values(&self) -> impl Iterator<Item = f64> + '_ {
        self.0.iter().flatten().copied()
    }

    /// Returns the number of values.
    pub(crate) fn count(&self) -> usize {
        self.values().count()
    }

    /// Returns the number of rounds without a value.
    pub(crate) fn missed(&self) -> usize {
        self.0.len() - self.count()
    }

    fn sorted(&self) -> Vec<f64> {
        let mut sorted: Vec<f64> = self.values().collect();
        sorted.sort_by(f64::total_cmp);
        sorted
    }

    /// Returns the median: the middle value, or the mean of the middle two; `None` without values.
    pub(crate) fn median(&self) -> Option<f64> {
        self.quantile(0.5)
    }

    /// Returns the quantile `part` between 0 (minimum) and 1 (maximum), interpolated between two
    /// values; `None` without values.
    pub(crate) fn quantile(&self, part: f64) -> Option<f64> {
        let sorted = self.sorted();
        let place = part.clamp(0.0, 1.0) * sorted.len().saturating_sub(1) as f64;
        // Exact: no series has 2^53 values.
        let (lower, upper) = (place.floor() as usize, place.ceil() as usize);
        let (lower, upper) = (*sorted.get(lower)?, *sorted.get(upper)?);
        Some(lower + (upper - lower) * place.fract())
    }

    /// Formats `median (min–max)`, with more digits for small values, and the number of rounds
    /// without a value.
    pub(crate) fn summary(&self) -> String {
        let quantiles = [0.5, 0.0, 1.0].map(|part| self.quantile(part));
        let [Some(median), Some(least), Some(most)] = quantiles else {
            return if self.is_empty() { "–" } else { "never" }.into();
        };
        let digits = if median.abs() < 20.0 { 3 } else { 1 };
        let mut text = format!("{median:.digits$} ({least:.digits$}–{most:.digits$})");
        if self.missed() > 0 {
            text += &format!(", {} of {} never", self.missed(), self.0.len());
        }
        text
    }

    pub(super) fn map(&self, change: impl Fn(f64) -> f64) -> Series {
        Series(self.0.iter().map(|value| value.map(&change)).collect())
    }

    /// Returns the difference to `other` of each round.
    pub(super) fn minus(&self, other: &Series) -> Series {
        self.paired(other, |own, other| own - other)
    }

    /// Returns the ratio to `other` of each round. A disturbance in a round affects both values of
    /// its ratio.
    pub(crate) fn ratios_to(&self, other: &Series) -> Series {
        self.paired(other, |own, other| own / other)
    }

    fn paired(&self, other: &Series, join: impl Fn(f64, f64) -> f64) -> Series {
        zip(&self.0, &other.0).filter_map(|(own, other)| Some(join((*own)?, (*other)?))).collect()
    }

    /// Returns the 90 % interval of the median, or `None` with too few values.
    pub(super) fn interval(&self) -> Option<Interval> {
        let sorted = self.sorted();
        let beyond = values_beyond(sorted.len())?;
        Some(Interval { lower: *sorted.get(beyond)?, upper: *sorted.iter().nth_back(beyond)? })
    }
}

/// Maximum probability that the true median is below a 90 % interval, and that it is above.
const BEYOND: f64 = 0.05;
/// Minimum number of values for a 90 % interval.
pub(super) const FEWEST: usize = 5;

/// 90 % interval of a median by order statistics, so each end is a value of the series. It makes no
/// assumption on the distribution: each value is below the true median with probability 1/2.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(super) struct Interval {
    pub(super) lower: f64,
    pub(super) upper: f64,
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

    fn series(values: &[f64]) -> Series {
        values.iter().copied().collect()
    }

    #[test]
    fn a_summary_tells_what_came_never() {
        assert_eq!(series(&[3.0, 1.0]).summary(), "2.000 (1.000–3.000)");
        assert_eq!(series(&[30.0, 10.0]).summary(), "20.0 (10.0–30.0)");
        assert_eq!(Series::default().summary(), "–");
        assert_eq!(Series(vec![None, Some(1.0)]).summary(), "1.000 (1.000–1.000), 1 of 2 never");
        assert_eq!(Series(vec![None, None]).summary(), "never");
    }

    #[test]
    fn ratios_are_taken_round_by_round() {
        let own = series(&[1.0, 10.0, 1.0]);
        assert_eq!(own.ratios_to(&series(&[2.0, 20.0, 4.0])), series(&[0.5, 0.5, 0.25]));
        // A round in which one of them has no value is left out.
        let other = Series(vec![Some(2.0), None, Some(4.0)]);
        assert_eq!(own.ratios_to(&other), series(&[0.5, 0.25]));
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
        let interval = |values: &[f64]| series(values).interval().map(|of| (of.lower, of.upper));
        assert_eq!(interval(&[5.0, 4.0, 3.0, 2.0, 1.0]), Some((1.0, 5.0)));
        assert_eq!(interval(&[1.0; 4]), None);
        // Three of 15 values are below the fourth and three above the twelfth, in whatever order
        // they came.
        let values: Vec<f64> = (0..15).map(|at| f64::from(at * 7 % 15 + 1)).collect();
        assert_eq!(interval(&values), Some((4.0, 12.0)));
    }
}
