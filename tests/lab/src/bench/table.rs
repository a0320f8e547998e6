//! Harness of the benches: contenders take turns in rounds and give a value for each row; a table of
//! medians, the ratios of the first contender to the others, and the bars.

use std::iter::zip;

use super::series::{Interval, Series};
use crate::LabError;

/// Limit of a row, for the contender that comes first.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(super) enum Bar {
    /// Its median is at most this.
    Median(f64),
    /// None of its values is greater.
    Most(f64),
    /// The median ratio to the contender of this name is at most this.
    RatioAtMost(&'static str, f64),
    /// The median ratio to the contender of this name is at least this.
    RatioAtLeast(&'static str, f64),
    /// The ratio to the better of its peers has a median of at most [`PEER_MEDIAN`], and the 90 %
    /// interval of that median begins at 1.0 or below.
    AsFast,
    /// The ratio to an earlier build has a median of at most [`BUILD_MEDIAN`], and the 90 % interval
    /// of that median begins at 1.0 or below.
    NoSlower,
}

/// Maximum of the median ratio to the better peer.
const PEER_MEDIAN: f64 = 1.10;
/// Maximum of the median ratio to an earlier build.
const BUILD_MEDIAN: f64 = 1.05;

/// One kind of values of all contenders.
#[derive(Debug, Clone)]
pub(super) struct Row {
    pub(super) name: String,
    unit: &'static str,
    /// Amount that is divided by the values where they are shown, while ratios are those of times.
    rate_of: Option<f64>,
    bars: Vec<Bar>,
    /// By contender.
    pub(super) values: Vec<Series>,
}

impl Row {
    pub(super) fn new(name: impl Into<String>, unit: &'static str, bars: &[Bar]) -> Row {
        Row { name: name.into(), unit, rate_of: None, bars: bars.into(), values: Vec::new() }
    }

    /// Shows `amount` per second in place of seconds.
    pub(super) fn rate_of(self, amount: f64) -> Row {
        Row { rate_of: Some(amount), ..self }
    }

    /// Fills in values, by contender, that follow from those of other rows.
    pub(super) fn with_values(self, values: impl Into<Vec<Series>>) -> Row {
        Row { values: values.into(), ..self }
    }

    fn shown(&self, value: f64) -> f64 {
        self.rate_of.map_or(value, |amount| amount / value)
    }

    /// Compares the first contender with another one. A ratio to what is not positive means nothing,
    /// and that of zeros is not told.
    fn ratio(&self, peer: usize) -> Option<Ratio> {
        let (own, peer) = (self.values.first()?, self.values.get(peer)?);
        if peer.values().any(|value| value <= 0.0) || own.values().all(|value| value == 0.0) {
            return None;
        }
        let ratios = own.ratios_to(peer);
        Some(Ratio { median: ratios.median()?, interval: ratios.interval() })
    }

    /// Returns the peer with the least median over all rounds: choosing one in each round would
    /// choose the luckier one.
    fn better_peer(&self) -> Option<usize> {
        let peers = self.values.iter().enumerate().skip(1);
        let medians = peers.filter_map(|(at, peer)| Some((at, peer.median()?)));
        medians.min_by(|a, b| a.1.total_cmp(&b.1)).map(|(at, _)| at)
    }

    /// Returns the contender to which the ratio of this bar is.
    fn peer_of(&self, bar: Bar, names: &[String]) -> Option<usize> {
        match bar {
            Bar::Median(_) | Bar::Most(_) => None,
            Bar::RatioAtMost(name, _) | Bar::RatioAtLeast(name, _) => {
                names.iter().position(|one| one == name)
            }
            Bar::AsFast => self.better_peer(),
            Bar::NoSlower => Some(1),
        }
    }

    fn verdict(&self, bar: Bar, ratio: Option<Ratio>) -> Verdict {
        let own = self.values.first().filter(|own| own.missed() == 0);
        let met = match bar {
            Bar::Median(most) => own.and_then(Series::median).is_some_and(|median| median <= most),
            Bar::Most(most) => own.and_then(|own| own.quantile(1.0)).is_some_and(|of| of <= most),
            Bar::RatioAtMost(_, most) => ratio.is_some_and(|ratio| ratio.median <= most),
            Bar::RatioAtLeast(_, least) => ratio.is_some_and(|ratio| ratio.median >= least),
            Bar::AsFast | Bar::NoSlower => {
                let Some(Ratio { median, interval }) = ratio else { return MISSED };
                let Some(Interval { lower, upper }) = interval else { return TOO_FEW };
                let most = if bar == Bar::AsFast { PEER_MEDIAN } else { BUILD_MEDIAN };
                // A ratio that is not a number counts as slower.
                let met = lower <= 1.0 && median <= most;
                let word = if met { "no slower" } else { "SLOWER" };
                return Verdict { word: if upper < 1.0 { "faster" } else { word }, met };
            }
        };
        if met { MET } else { MISSED }
    }
}

/// Whether a bar is met, and the word for it.
#[derive(Debug, Clone, Copy, PartialEq)]
struct Verdict {
    word: &'static str,
    met: bool,
}

const MET: Verdict = Verdict { word: "met", met: true };
const MISSED: Verdict = Verdict { word: "MISSED", met: false };
const TOO_FEW: Verdict = Verdict { word: "too few rounds", met: false };

/// Ratio of the first contender to another one.
#[derive(Debug, Clone, Copy, PartialEq)]
struct Ratio {
    /// Median of the ratios of the rounds.
    median: f64,
    /// 90 % interval of that median; none with too few rounds.
    interval: Option<Interval>,
}

/// Rounds, in each of which every contender has a turn.
#[derive(Debug, Clone, Copy)]
pub(super) struct Rounds {
    /// Number of rounds that count.
    count: usize,
    /// Whether there is a round 0, which does not count: hosts receive their files in it.
    warm_up: bool,
}

impl Rounds {
    pub(super) fn new(count: usize) -> Rounds {
        Rounds { count, warm_up: true }
    }

    pub(super) fn without_warm_up(count: usize) -> Rounds {
        Rounds { count, warm_up: false }
    }

    /// Returns the turns. Another contender begins each round, so that after-effects of a run disturb
    /// all of them equally often.
    fn turns(self, contenders: usize) -> impl Iterator<Item = Turn> {
        let of_round = move |round| {
            (0..contenders).map(move |turn| Turn { round, contender: (round + turn) % contenders })
        };
        (usize::from(!self.warm_up)..=self.count).flat_map(of_round)
    }
}

/// Turn of one contender in one round.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Turn {
    pub(super) round: usize,
    /// Index of the contender.
    pub(super) contender: usize,
}

impl Turn {
    pub(super) fn is_warm_up(self) -> bool {
        self.round == 0
    }
}

/// Results of all contenders.
#[derive(Debug)]
pub(super) struct Table {
    names: Vec<String>,
    pub(super) rows: Vec<Row>,
}

impl Table {
    /// Makes a table for contenders of these names, the one that has bars first.
    pub(super) fn new<S: Into<String>>(
        names: impl IntoIterator<Item = S>,
        rows: impl IntoIterator<Item = Row>,
    ) -> Table {
        let names: Vec<String> = names.into_iter().map(Into::into).collect();
        let mut rows: Vec<Row> = rows.into_iter().collect();
        rows.iter_mut().for_each(|row| row.values.resize(names.len(), Series::default()));
        Table { names, rows }
    }

    /// Calls `act` for each turn and adds the values that it returns, in the order of the rows. Rows
    /// at the end may stay without any.
    pub(super) fn measure(
        &mut self,
        rounds: Rounds,
        mut act: impl FnMut(Turn) -> Result<Vec<Option<f64>>, LabError>,
    ) -> Result<(), LabError> {
        for turn in rounds.turns(self.names.len()) {
            let values = act(turn)?;
            if values.is_empty() {
                continue;
            }
            let word = |(row, value): (&Row, &Option<f64>)| match value {
                Some(value) => format!("{} {:.2} {}", row.name.trim(), row.shown(*value), row.unit),
                None => format!("{} never", row.name.trim()),
            };
            let words: Vec<String> = zip(&self.rows, &values).map(word).collect();
            let (round, name) = (turn.round, &self.names[turn.contender]);
            println!("round {round}: {name:<12} {}", words.join(", "));
            if !turn.is_warm_up() {
                let rows = zip(&mut self.rows, values);
                rows.for_each(|(row, value)| row.values[turn.contender].push(value));
            }
        }
        Ok(())
    }

    /// Prints medians, ratios and bars; returns whether every bar is met.
    pub(super) fn print(&self, title: &str) -> bool {
        self.print_medians(title);
        println!("ratios of {}, 90 % interval", self.names.first().map_or("", String::as_str));
        let met: Vec<bool> = self.measured().flat_map(|row| self.print_row(row)).collect();
        if !met.is_empty() {
            let count = met.iter().filter(|met| **met).count();
            println!("bars that are met: {count} of {}", met.len());
        }
        met.into_iter().all(|met| met)
    }

    pub(super) fn print_medians(&self, title: &str) {
        println!("\n{title}, median (min–max)");
        print!("{:<46}", "");
        self.names.iter().for_each(|name| print!(" {name:>26}"));
        println!();
        for row in self.measured() {
            print!("{:<38} {:<7}", row.name, row.unit);
            for of in &row.values {
                print!(" {:>26}", of.map(|value| row.shown(value)).summary());
            }
            println!();
        }
    }

    /// Lists the rows that have values.
    fn measured(&self) -> impl Iterator<Item = &Row> {
        self.rows.iter().filter(|row| !row.values.iter().all(Series::is_empty))
    }

    /// Prints the ratios and the bars of a row.
    fn print_row(&self, row: &Row) -> Vec<bool> {
        let mut met = Vec::new();
        let mut judge = |bar: Bar, ratio| {
            let verdict = row.verdict(bar, ratio);
            met.push(verdict.met);
            match bar {
                Bar::Median(most) | Bar::Most(most) | Bar::RatioAtMost(_, most) => {
                    println!("(at most {most}: {})", verdict.word);
                }
                Bar::RatioAtLeast(_, least) => println!("(at least {least}: {})", verdict.word),
                Bar::AsFast | Bar::NoSlower => println!("{}", verdict.word),
            }
        };
        for (peer, name) in self.names.iter().enumerate().skip(1) {
            let is_of = |bar: &&Bar| row.peer_of(**bar, &self.names) == Some(peer);
            let (ratio, bar) = (row.ratio(peer), row.bars.iter().find(is_of));
            if ratio.is_none() && bar.is_none() {
                continue;
            }
            let median = ratio.map_or("–".into(), |ratio| format!("{:.3}", ratio.median));
            let ends = |of: Interval| format!("{:.3}–{:.3}", of.lower, of.upper);
            let interval = ratio.and_then(|ratio| ratio.interval).map_or("–".into(), ends);
            print!("{:<38} to {name:<14} {median:>7}  {interval:<14} ", row.name);
            match bar {
                Some(bar) => judge(*bar, ratio),
                None => println!(),
            }
        }
        for bar in row.bars.iter().filter(|bar| matches!(bar, Bar::Median(_) | Bar::Most(_))) {
            print!("{:<38} {:<7} ", row.name, row.unit);
            judge(*bar, None);
        }
        met
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn row(bar: Bar, values: &[&[f64]]) -> Row {
        let values = values.iter().map(|of| of.iter().copied().collect()).collect();
        Row { values, ..Row::new("wall", "s", &[bar]) }
    }

    fn verdict(bar: Bar, values: &[&[f64]]) -> Verdict {
        let (row, names) = (row(bar, values), ["rlaunch", "a", "b"].map(str::to_owned));
        row.verdict(bar, row.peer_of(bar, &names).and_then(|peer| row.ratio(peer)))
    }

    /// Verdict on a build that takes this in each round where the earlier one takes 1.
    fn of_build(own: &[f64]) -> &'static str {
        verdict(Bar::NoSlower, &[own, &vec![1.0; own.len()]]).word
    }

    #[test]
    fn which_contender_begins_rotates() {
        let contenders = |rounds: Rounds, number| -> Vec<usize> {
            rounds.turns(number).map(|turn| turn.contender).collect()
        };
        assert_eq!(contenders(Rounds::new(2), 2), [0, 1, 1, 0, 0, 1]);
        assert_eq!(contenders(Rounds::without_warm_up(1), 3), [1, 2, 0]);
    }

    #[test]
    fn the_better_peer_is_the_one_with_the_lesser_median() {
        // One lucky round does not make a peer the better one.
        let values: [&[f64]; 4] = [&[1.0; 3], &[4.0, 4.0, 0.1], &[2.0; 3], &[3.0; 3]];
        let row = row(Bar::AsFast, &values);
        assert_eq!(row.better_peer(), Some(2));
        assert_eq!(row.ratio(2), Some(Ratio { median: 0.5, interval: None }));
        assert_eq!(Row::new("", "", &[]).better_peer(), None);
    }

    #[test]
    fn a_build_is_no_slower_by_interval_and_median() {
        assert_eq!(of_build(&[1.0; 15]), "no slower");
        assert_eq!(of_build(&[0.99; 15]), "faster");
        // Certainly slower, though only a little.
        assert_eq!(of_build(&[1.01; 15]), "SLOWER");
        // Perhaps not slower; a little slower in most rounds.
        let mut ratios = [1.04; 15];
        ratios[..4].fill(1.0);
        assert_eq!(of_build(&ratios), "no slower");
        ratios[3] = 1.001;
        assert_eq!(of_build(&ratios), "SLOWER");
        // Perhaps not slower; much slower in most rounds.
        ratios = [1.06; 15];
        ratios[..4].fill(0.9);
        assert_eq!(of_build(&ratios), "SLOWER");
    }

    #[test]
    fn what_cannot_be_said_is_no_success() {
        assert_eq!(of_build(&[0.5; 4]), "too few rounds");
        assert_eq!(of_build(&[f64::NAN; 15]), "SLOWER");
        for bar in [Bar::NoSlower, Bar::AsFast, Bar::RatioAtMost("a", 1.0), Bar::Median(1.0)] {
            assert!(!verdict(bar, &[&[], &[]]).met, "{bar:?}");
        }
        // A peer that takes no time is not compared.
        assert!(!verdict(Bar::NoSlower, &[&[1.0; 15], &[0.0; 15]]).met);
        assert!(!verdict(Bar::RatioAtMost("a", 9.0), &[&[1.0, 1.0], &[2.0, -0.1]]).met);
    }

    #[test]
    fn a_bar_is_missed_by_the_median_or_by_a_round_without_a_value() {
        assert!(verdict(Bar::Median(0.15), &[&[0.1, 0.11, 2.0]]).met);
        assert!(!verdict(Bar::Median(0.15), &[&[0.1, 0.21]]).met);
        assert!(!verdict(Bar::Most(0.15), &[&[0.1, 0.11, 2.0]]).met);
        let mut late = row(Bar::Median(0.15), &[&[0.1, 0.1]]);
        late.values[0].push(None);
        assert!(!late.verdict(Bar::Median(0.15), None).met);
    }

    #[test]
    fn ratios_have_bars_by_name() {
        let values: [&[f64]; 3] = [&[1.0], &[2.0], &[4.0]];
        assert!(verdict(Bar::RatioAtMost("b", 0.25), &values).met);
        assert!(!verdict(Bar::RatioAtMost("a", 0.25), &values).met);
        assert!(verdict(Bar::RatioAtLeast("a", 0.5), &values).met);
        assert!(!verdict(Bar::RatioAtLeast("b", 0.5), &values).met);
    }
}
