//! Measurements of both builds, and the verdict: faster, no slower, or slower.

use std::fmt;

use super::{Build, Turn};
use crate::bench::Series;
use crate::bench::interval::Interval;

/// Ratio of equally fast builds; the 90 % interval of the ratio has to contain it or be below it.
const REACHED: f64 = 1.00;
/// Maximum of the median ratio.
const MEDIAN_BAR: f64 = 1.05;

/// Measurements of one kind of both builds, one per round.
#[derive(Debug)]
pub(in crate::bench) struct ComparisonRow {
    name: String,
    unit: &'static str,
    this: Series,
    earlier: Series,
    /// Whether this build must not be slower in this row.
    has_bar: bool,
}

impl ComparisonRow {
    /// Makes a row in which this build must not be slower.
    pub(in crate::bench) fn new(name: impl Into<String>, unit: &'static str) -> ComparisonRow {
        let (this, earlier) = (Series::default(), Series::default());
        ComparisonRow { name: name.into(), unit, this, earlier, has_bar: true }
    }

    /// Makes a row that is printed without a verdict.
    pub(in crate::bench) fn without_bar(
        name: impl Into<String>,
        unit: &'static str,
    ) -> ComparisonRow {
        ComparisonRow { has_bar: false, ..ComparisonRow::new(name, unit) }
    }

    /// Adds the value of a turn, unless it is a warm-up.
    pub(in crate::bench) fn note(&mut self, turn: &Turn<'_>, value: f64) {
        if turn.counts() {
            self.push(turn.build, value);
        }
    }

    pub(in crate::bench) fn push(&mut self, build: Build, value: f64) {
        match build {
            Build::This => self.this.push(value),
            Build::Earlier => self.earlier.push(value),
        }
    }

    fn comparison(&self) -> Option<Comparison> {
        Comparison::from_ratios(&self.this.ratios_to(&self.earlier))
    }

    /// Returns whether the row has no bar or meets it.
    fn passes(&self) -> bool {
        let no_slower =
            |one: Comparison| matches!(one.verdict(), Verdict::Faster | Verdict::NoSlower);
        !self.has_bar || self.comparison().is_some_and(no_slower)
    }
}

/// Formats `name unit this earlier ratio interval verdict` in columns.
impl fmt::Display for ComparisonRow {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (this, earlier) = (self.this.summary_by_size(), self.earlier.summary_by_size());
        write!(f, "{:<30}{:<5}{this:>26}{earlier:>26}", self.name, self.unit)?;
        let Some(comparison) = self.comparison() else { return Ok(()) };
        let ends = |of: Interval| format!("{:.3}–{:.3}", of.lower, of.upper);
        let interval = comparison.interval.map_or("–".into(), ends);
        let verdict = if self.has_bar { comparison.verdict().word() } else { "" };
        write!(f, "{:>9.3}  {interval:<13}  {verdict}", comparison.median)
    }
}

/// Prints a table of rows; returns whether this build is not slower in any row with a bar.
pub(in crate::bench) fn print(rows: &[ComparisonRow]) -> bool {
    println!("{:<35}{:>26}{:>26}{:>9}  90 % interval", "", "this build", "earlier", "ratio");
    rows.iter().for_each(|row| println!("{}", format!("{row}").trim_end()));
    let slower = rows.iter().filter(|row| !row.passes()).count();
    let bars = rows.iter().filter(|row| row.has_bar).count();
    println!("rows that are not slower: {} of {bars}", bars - slower);
    slower == 0
}

/// Ratio of this build to the earlier one in a row.
#[derive(Debug, Clone, Copy, PartialEq)]
struct Comparison {
    /// Median of the ratios of the rounds.
    median: f64,
    /// 90 % interval of the median; `None` with too few rounds.
    interval: Option<Interval>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Verdict {
    Faster,
    NoSlower,
    Slower,
    TooFewRounds,
}

impl Verdict {
    fn word(self) -> &'static str {
        match self {
            Verdict::Faster => "faster",
            Verdict::NoSlower => "no slower",
            Verdict::Slower => "SLOWER",
            Verdict::TooFewRounds => "too few rounds",
        }
    }
}

impl Comparison {
    /// Summarises the ratios of rounds. Returns `None` without rounds.
    fn from_ratios(ratios: &Series) -> Option<Comparison> {
        Some(Comparison { median: ratios.median()?, interval: Interval::from_series(ratios) })
    }

    /// Returns the verdict. A ratio that is not a number counts as slower.
    fn verdict(&self) -> Verdict {
        let Some(Interval { lower, upper }) = self.interval else { return Verdict::TooFewRounds };
        if upper < REACHED {
            Verdict::Faster
        } else if lower <= REACHED && self.median <= MEDIAN_BAR {
            Verdict::NoSlower
        } else {
            Verdict::Slower
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn row(this: &[f64], earlier: &[f64]) -> ComparisonRow {
        let mut row = ComparisonRow::new("wall", "s");
        this.iter().for_each(|value| row.push(Build::This, *value));
        earlier.iter().for_each(|value| row.push(Build::Earlier, *value));
        row
    }

    fn verdict(ratios: &[f64]) -> Verdict {
        Comparison::from_ratios(&Series(ratios.to_vec())).unwrap().verdict()
    }

    #[test]
    fn ratios_are_of_this_build_to_the_earlier_one_round_by_round() {
        // The machine is ten times slower in every other round.
        let row = row(&[1.1, 11.0, 1.1, 11.0, 1.1], &[1.0, 10.0, 1.0, 10.0, 1.0]);
        let comparison = row.comparison().unwrap();
        let interval = comparison.interval.unwrap();
        for value in [comparison.median, interval.lower, interval.upper] {
            assert!((value - 1.1).abs() < 1e-9, "{comparison:?}");
        }
        assert!(!row.passes());
        assert!(row.to_string().ends_with("1.100  1.100–1.100    SLOWER"), "{row}");
    }

    #[test]
    fn a_row_is_no_slower_by_interval_and_median() {
        assert_eq!(verdict(&[1.0; 15]), Verdict::NoSlower);
        assert_eq!(verdict(&[0.99; 15]), Verdict::Faster);
        // Certainly slower, though only a little.
        assert_eq!(verdict(&[1.01; 15]), Verdict::Slower);
        // Perhaps not slower; a little slower in most rounds.
        let mut ratios = [1.04; 15];
        ratios[..4].fill(1.0);
        assert_eq!(verdict(&ratios), Verdict::NoSlower);
        ratios[3] = 1.001;
        assert_eq!(verdict(&ratios), Verdict::Slower);
        // Perhaps not slower; much slower in most rounds.
        ratios = [1.06; 15];
        ratios[..4].fill(0.9);
        assert_eq!(verdict(&ratios), Verdict::Slower);
    }

    #[test]
    fn a_row_is_faster_where_its_whole_interval_is() {
        let mut ratios = [0.9; 15];
        ratios[..3].fill(1.2);
        assert_eq!(verdict(&ratios), Verdict::Faster);
        ratios[3] = 1.0;
        assert_eq!(verdict(&ratios), Verdict::NoSlower);
    }

    #[test]
    fn what_cannot_be_said_is_no_success() {
        assert_eq!(verdict(&[0.5; 4]), Verdict::TooFewRounds);
        assert!(!row(&[1.0; 4], &[2.0; 4]).passes());
        assert!(!row(&[], &[]).passes());
        assert_eq!(verdict(&[f64::NAN; 15]), Verdict::Slower);
        assert!(!row(&[1.0; 15], &[0.0; 15]).passes());
        assert!(row(&[1.0; 15], &[2.0; 15]).passes());
    }

    #[test]
    fn a_row_without_a_bar_is_only_shown() {
        let mut row = ComparisonRow::without_bar("memory", "MiB");
        row.push(Build::This, 9.0);
        row.push(Build::Earlier, 3.0);
        assert!(row.passes());
        assert!(row.to_string().contains("3.000  –"), "{row}");
    }
}
