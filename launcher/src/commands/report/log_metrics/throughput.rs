//! Images per second in the formats of two families of benchmarks, or what else a program prints as its speed.
//!
//! tf_cnn_benchmarks and programs with its format: each rank prints its own rate at some of its steps, and at the end
//! the total of all ranks:
//!
//! ```text
//! Step    Img/sec total_loss
//! 10      images/sec: 2100.4 +/- 60.4 (jitter = 189.7)    7.656
//! total images/sec: 8400.46
//! ```
//!
//! Horovod's synthetic benchmarks: only rank 0 prints, the rate of one device and this rate times the number of
//! devices:
//!
//! ```text
//! Iter #0: 290.1 img/sec per GPU
//! Total img/sec on 2 GPU(s): 580.3 +-2.4
//! ```
//!
//! Output without such lines may have other speeds, such as `12.3it/s`, `1.5 s/it` or `tokens/sec: 4100`
//! ([`PrintedSpeed`]).

use rlaunch_engine::run::live::PrintedSpeed;
use serde::Serialize;
use std::collections::BTreeMap;

/// Format of the lines with rates.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum Style {
    /// Each rank prints its own rate and the total of all ranks.
    TfCnn,
    /// Rank 0 prints the rate of a device and the total of all devices.
    Horovod,
    /// Some ranks print a speed in a unit of their own. Whether it is that of the rank or of all is not known.
    Printed,
}

/// Unit of the benchmarks.
const IMAGES: &str = "images/sec";
/// Maximum number of other units in which speeds are kept.
const MAX_UNITS: usize = 16;

/// Rates by rank. Rates in lines without a rank are under `None`.
#[derive(Debug, Default)]
pub(crate) struct Throughput {
    style: Option<Style>,
    outputs: BTreeMap<Option<u32>, RankOutput>,
    /// Speeds in lines of other formats, by unit.
    others: BTreeMap<String, BTreeMap<Option<u32>, RankOutput>>,
}

/// Rates that one rank printed, in the order of lines.
#[derive(Clone, Debug, Default)]
pub(crate) struct RankOutput {
    pub(crate) values: Vec<RateSample>,
    pub(crate) totals: Vec<Total>,
}

/// Rate of a rank or device at one step.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct RateSample {
    pub(crate) step: Option<u64>,
    /// Images per second.
    pub(crate) rate: f64,
    pub(crate) loss: Option<f64>,
}

/// Rate of all ranks together, as one rank printed it.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct Total {
    /// Images per second.
    pub(crate) rate: f64,
    /// Number of devices, if it is printed.
    pub(crate) devices: Option<u32>,
}

#[derive(Clone, Copy, Debug, PartialEq)]
enum LineMetric {
    Rate(RateSample),
    Total(Total),
}

impl Throughput {
    pub(super) fn add_line(&mut self, rank: Option<u32>, line: &str) {
        let Some((style, metric)) = parse(line) else { return self.add_other(rank, line) };
        self.style.get_or_insert(style);
        let output = self.outputs.entry(rank).or_default();
        match metric {
            LineMetric::Rate(rate) => output.values.push(rate),
            LineMetric::Total(total) => output.totals.push(total),
        }
    }

    fn add_other(&mut self, rank: Option<u32>, line: &str) {
        let Some(speed) = PrintedSpeed::last_in(line.as_bytes()) else { return };
        let (rate, unit) = speed.per_second();
        if rate.is_finite() && (self.others.len() < MAX_UNITS || self.others.contains_key(&unit)) {
            let output = self.others.entry(unit).or_default().entry(rank).or_default();
            output.values.push(RateSample { step: None, rate, loss: None });
        }
    }

    pub(super) fn is_empty(&self) -> bool {
        self.outputs.is_empty() && self.others.is_empty()
    }

    /// Returns the format of the first line with a rate of a benchmark, or that of other speeds; `None` if there is
    /// no rate.
    pub(crate) fn style(&self) -> Option<Style> {
        self.style.or((!self.others.is_empty()).then_some(Style::Printed))
    }

    /// Returns the unit of the rates.
    pub(crate) fn unit(&self) -> &str {
        self.chosen().0
    }

    /// Returns the rates of benchmarks, or those in the unit that was printed most often, with their unit.
    fn chosen(&self) -> (&str, &BTreeMap<Option<u32>, RankOutput>) {
        let most = self.others.iter().max_by_key(|(_, outputs)| {
            outputs.values().map(|output| output.values.len()).sum::<usize>()
        });
        match most.filter(|_| self.outputs.is_empty()) {
            Some((unit, outputs)) => (unit.as_str(), outputs),
            None => (IMAGES, &self.outputs),
        }
    }

    /// Returns the output of each rank, from lines whose tags name a rank.
    pub(crate) fn by_rank(&self) -> Vec<(u32, &RankOutput)> {
        self.chosen().1.iter().filter_map(|(rank, output)| Some(((*rank)?, output))).collect()
    }

    /// Returns the output in lines without a tag that names a rank.
    pub(crate) fn untagged(&self) -> Option<&RankOutput> {
        self.chosen().1.get(&None)
    }
}

/// Parses a line in one of the formats, of which [`PrintedSpeed`] knows how rates are written.
fn parse(line: &str) -> Option<(Style, LineMetric)> {
    let line = line.trim();
    let PrintedSpeed { value, unit } = PrintedSpeed::last_in(line.as_bytes())?;
    match &*unit {
        "images/sec" => Some((Style::TfCnn, tf_cnn(line, value)?)),
        "img/sec" => Some((Style::Horovod, horovod(line, value)?)),
        _ => None,
    }
}

fn tf_cnn(line: &str, rate: f64) -> Option<LineMetric> {
    let (before, after) = line.split_once("images/sec:")?;
    let step = match before.trim() {
        "total" => return Some(LineMetric::Total(Total { rate, devices: None })),
        "" if !after.contains("+/-") => return None,
        "" => None,
        step => Some(step.parse().ok()?),
    };
    let mut behind = after.split_whitespace().skip_while(|word| !word.ends_with(')'));
    let loss = behind.nth(1).and_then(|word| word.parse().ok());
    Some(LineMetric::Rate(RateSample { step, rate, loss }))
}

fn horovod(line: &str, rate: f64) -> Option<LineMetric> {
    if let Some(iteration) = line.strip_prefix("Iter #") {
        let (step, words) = iteration.split_once(": ")?;
        if !words.contains(" img/sec per ") {
            return None;
        }
        return Some(LineMetric::Rate(RateSample { step: step.parse().ok(), rate, loss: None }));
    }
    let devices = line.strip_prefix("Total img/sec on ")?.split_whitespace().next()?;
    Some(LineMetric::Total(Total { rate, devices: devices.parse().ok() }))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn value(line: &str) -> Option<(Option<u64>, f64, Option<f64>)> {
        match parse(line)?.1 {
            LineMetric::Rate(RateSample { step, rate, loss }) => Some((step, rate, loss)),
            LineMetric::Total(_) => None,
        }
    }

    fn total(line: &str) -> Option<(f64, Option<u32>)> {
        match parse(line)?.1 {
            LineMetric::Total(Total { rate, devices }) => Some((rate, devices)),
            LineMetric::Rate(_) => None,
        }
    }

    #[test]
    fn rates_are_read() {
        let line = "100\timages/sec: 2100.2 +/- 20.2 (jitter = 30.3)\t7.501";
        assert_eq!(value(line), Some((Some(100), 2100.2, Some(7.501))));
        let line = "1 images/sec: 9.5 +/- 0.0 (jitter = 0.0) 7.738 0.001 0.005";
        assert_eq!(value(line), Some((Some(1), 9.5, Some(7.738))));
        let line = "images/sec: 123.4 +/- 1.2 (jitter = 3.4)";
        assert_eq!(value(line), Some((None, 123.4, None)));
        assert_eq!(value("Iter #3: 290.1 img/sec per GPU"), Some((Some(3), 290.1, None)));
        // As the live status of a job reads it.
        assert_eq!(value("Iter #3: 1,290.1 img/sec per GPU"), Some((Some(3), 1290.1, None)));
    }

    #[test]
    fn totals_are_read() {
        assert_eq!(total("total images/sec: 8400.46"), Some((8400.46, None)));
        assert_eq!(total("Total img/sec on 2 GPU(s): 580.3 +-2.4"), Some((580.3, Some(2))));
    }

    #[test]
    fn other_lines_are_none() {
        for line in [
            "Step\tImg/sec\ttotal_loss",
            "images/sec: 12",
            "x images/sec: 12 +/- 1",
            "1 images/sec: nan +/- nan (jitter = nan) nan",
            "total images/sec: -1",
            "total images/sec:",
            "Iter #: img/sec per GPU",
            "Img/sec per GPU: 290.1 +-1.2",
            "Total img/sec on",
        ] {
            assert_eq!(parse(line), None, "{line}");
        }
    }
}
