//! Ranks whose values are far below those of the others.

use rlaunch_bootstrap::id::Rank;

/// Values of ranks, split at their widest gap.
#[derive(Debug, PartialEq)]
pub(super) struct Split {
    /// Ranks below the gap, at most half of all, in ascending order.
    pub(super) low: Vec<Rank>,
    /// Median of their values.
    pub(super) low_median: f64,
    /// Median of the other ranks' values.
    pub(super) high_median: f64,
}

/// Splits ranks at the widest gap between their values, as `gap` measures it for two neighbouring values, the lower one
/// first. Returns `None` if the gap is below `least`, or more than half of the ranks are below it.
pub(super) fn split(
    mut values: Vec<(Rank, f64)>,
    gap: impl Fn(f64, f64) -> f64,
    least: f64,
) -> Option<Split> {
    values.sort_by(|a, b| a.1.total_cmp(&b.1));
    let gaps = values.windows(2).map(|pair| gap(pair[0].1, pair[1].1));
    let (at, widest) = gaps.enumerate().max_by(|a, b| a.1.total_cmp(&b.1))?;
    let (low, high) = values.split_at(at + 1);
    if widest < least || low.len() > high.len() {
        return None;
    }
    let mut ranks: Vec<Rank> = low.iter().map(|(rank, _)| *rank).collect();
    ranks.sort_unstable();
    let median = |values: &[(Rank, f64)]| values[values.len() / 2].1;
    Some(Split { low: ranks, low_median: median(low), high_median: median(high) })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn low(values: &[f64]) -> Vec<u32> {
        let ranks = (0..).map(Rank).zip(values.iter().copied()).collect();
        let split = split(ranks, |low, high| high - low, 0.2);
        split.map(|split| split.low.iter().map(|rank| rank.0).collect()).unwrap_or_default()
    }

    #[test]
    fn the_minority_below_the_gap_is_found() {
        assert_eq!(low(&[0.6, 0.55, 0.02, 0.7]), [2]);
        assert_eq!(low(&[0.6, 0.1, 0.12, 0.7, 0.65]), [1, 2]);
        assert_eq!(low(&[0.05, 0.6]), [0]);
    }

    #[test]
    fn values_that_are_close_have_no_outlier() {
        assert!(low(&[0.1, 0.2, 0.3, 0.4, 0.5]).is_empty());
        assert!(low(&[0.5]).is_empty() && low(&[]).is_empty());
        // One rank that waits longer than all others makes none of them slow.
        assert!(low(&[0.1, 0.1, 0.12, 0.9]).is_empty());
    }
}
