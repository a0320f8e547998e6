//! Rounds of a row, and whether the row meets its bar: rlaunch is as fast as the better of its
//! peers.

use super::Series;
use super::interval::Interval;

/// Maximum of the median ratio.
const MEDIAN_BAR: f64 = 1.10;
/// Maximum of the lower end of the interval of the median ratio.
const LOWER_BAR: f64 = 1.0;

/// Seconds of a row in each round, for each contender, rlaunch first.
#[derive(Debug, Default, Clone)]
pub(super) struct Rounds(pub(super) Vec<Series>);

/// Comparison of rlaunch with the better of its peers.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(super) struct PeerComparison {
    /// Index of the better peer among the contenders.
    pub(super) better: usize,
    /// Median of the ratios of the rounds.
    pub(super) median: f64,
    /// Lower end of the 90 % interval of that median; none with too few rounds.
    pub(super) lower: Option<f64>,
}

impl PeerComparison {
    pub(super) fn meets_bar(&self) -> bool {
        self.median <= MEDIAN_BAR && self.lower.is_some_and(|lower| lower <= LOWER_BAR)
    }
}

impl Rounds {
    pub(super) fn new(contenders: usize) -> Rounds {
        Rounds(vec![Series::default(); contenders])
    }

    /// Compares rlaunch with the better peer; `None` without rounds. The better peer is the one
    /// with the smaller median over all rounds: choosing one in each round would choose the luckier
    /// one.
    pub(super) fn comparison(&self) -> Option<PeerComparison> {
        let (own, peers) = self.0.split_first()?;
        let peers = peers.iter().enumerate();
        let medians = peers.filter_map(|(at, peer)| Some((at + 1, peer, peer.median()?)));
        let (better, peer, least) = medians.min_by(|a, b| a.2.total_cmp(&b.2))?;
        if peer.count() != own.count() {
            // One of them failed in some round, so values cannot be paired.
            return Some(PeerComparison { better, median: own.median()? / least, lower: None });
        }
        let ratios = own.ratios_to(peer);
        let lower = Interval::from_series(&ratios).map(|interval| interval.lower);
        Some(PeerComparison { better, median: ratios.median()?, lower })
    }

    /// Prints the row with its name and unit; `shown` converts seconds to that unit.
    pub(super) fn print(
        &self,
        (name, unit): (&str, &str),
        shown: impl Fn(f64) -> f64,
        names: &[&str],
        has_bar: bool,
    ) {
        let shown = |series: &Series| {
            Series(series.0.iter().map(|time| shown(*time)).collect()).summary_by_size()
        };
        print!("{name:<20}{unit:<5}");
        self.0.iter().map(shown).for_each(|one| print!("{one:>28}"));
        let Some(comparison) = self.comparison() else { return println!() };
        let lower = comparison.lower.map_or("–".into(), |lower| format!("{lower:.3}"));
        let word = match (has_bar, comparison.lower) {
            (false, _) => "",
            (true, None) => "too few rounds",
            (true, Some(_)) if comparison.meets_bar() => "met",
            (true, Some(_)) => "MISSED",
        };
        let better = names.get(comparison.better).copied().unwrap_or_default();
        println!("{:>8.3} from {lower:<6} of {better:<11}{word}", comparison.median);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn series(values: &[f64]) -> Series {
        Series(values.to_vec())
    }

    #[test]
    fn the_better_peer_is_the_one_with_the_lesser_median() {
        // One lucky round does not make a peer the better one.
        let rounds = [&[1.0, 1.0, 1.0], &[4.0, 4.0, 0.1], &[2.0, 2.0, 2.0], &[3.0, 3.0, 3.0]];
        let comparison = Rounds(rounds.map(|one| series(one)).to_vec()).comparison().unwrap();
        assert_eq!((comparison.better, comparison.median, comparison.lower), (2, 0.5, None));
        assert_eq!(Rounds::new(3).comparison(), None);
    }

    #[test]
    fn a_peer_that_failed_sometimes_is_compared_by_medians() {
        let rounds = Rounds(vec![series(&[3.0; 6]), Series::default(), series(&[2.0; 5])]);
        let comparison = rounds.comparison().unwrap();
        assert_eq!((comparison.better, comparison.median, comparison.lower), (2, 1.5, None));
    }

    #[test]
    fn a_row_holds_by_both_of_its_bars() {
        let comparison = |own: &[f64]| {
            let peer = series(&vec![1.0; own.len()]);
            let slow = series(&vec![9.0; own.len()]);
            Rounds(vec![series(own), peer, slow]).comparison().unwrap()
        };
        assert!(comparison(&[0.9; 15]).meets_bar());
        assert!(comparison(&[1.0; 15]).meets_bar());
        // Certainly slower, though only a little.
        assert!(!comparison(&[1.05; 15]).meets_bar());
        // Perhaps no slower, but too slow in most rounds.
        let mut own = [1.2; 15];
        own[..4].fill(0.9);
        assert!(!comparison(&own).meets_bar());
        own[4..].fill(1.09);
        assert!(comparison(&own).meets_bar());
        own[3] = 1.01;
        assert!(!comparison(&own).meets_bar());
        // Too few rounds to say.
        assert!(!comparison(&[0.5; 4]).meets_bar());
    }
}
