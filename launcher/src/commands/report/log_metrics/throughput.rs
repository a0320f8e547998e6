//! Images per second, as two families of benchmarks print them.
//!
//! tf_cnn_benchmarks, and what prints like it: every rank prints its own rate at some of its steps
//! and at the end a total that is of all ranks already:
//!
//! ```text
//! Step    Img/sec total_loss
//! 10      images/sec: 2100.4 +/- 60.4 (jitter = 189.7)    7.656
//! total images/sec: 8400.46
//! ```
//!
//! Horovod's synthetic benchmarks: rank 0 alone prints, the rate of one device and that times
//! their number:
//!
//! ```text
//! Iter #0: 290.1 img/sec per GPU
//! Total img/sec on 2 GPU(s): 580.3 +-2.4
//! ```

use serde::Serialize;
use std::collections::BTreeMap;

/// Who prints what.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum Style {
    /// Every rank its own rate, and the total of all.
    TfCnn,
    /// Rank 0 the rate of a device, and the total of all.
    Horovod,
}

/// What was printed, by rank; what lines do not say by whom they are is under `None`.
#[derive(Debug, Default)]
pub(crate) struct Throughput {
    style: Option<Style>,
    printed: BTreeMap<Option<u32>, Printed>,
}

/// Of one rank.
#[derive(Clone, Debug, Default)]
pub(crate) struct Printed {
    /// In the order of the lines.
    pub(crate) values: Vec<Value>,
    pub(crate) totals: Vec<Total>,
}

/// A rate on the way.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct Value {
    pub(crate) step: Option<u64>,
    /// In images per second.
    pub(crate) rate: f64,
    pub(crate) loss: Option<f64>,
}

/// The rate of all ranks, as a rank printed it.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct Total {
    /// In images per second.
    pub(crate) rate: f64,
    /// Of so many devices, where that is said.
    pub(crate) devices: Option<u32>,
}

/// What a line says.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Said {
    Value(Value),
    Total(Total),
}

impl Throughput {
    pub(super) fn take(&mut self, rank: Option<u32>, line: &str) {
        let Some((style, said)) = read(line) else { return };
        self.style.get_or_insert(style);
        let printed = self.printed.entry(rank).or_default();
        match said {
            Said::Value(value) => printed.values.push(value),
            Said::Total(total) => printed.totals.push(total),
        }
    }

    pub(super) fn is_empty(&self) -> bool {
        self.printed.is_empty()
    }

    /// `None` if nothing was printed; of two styles in one log it is the first.
    pub(crate) fn style(&self) -> Option<Style> {
        self.style
    }

    /// By rank, if lines say by whom they are.
    pub(crate) fn by_rank(&self) -> Vec<(u32, &Printed)> {
        self.printed.iter().filter_map(|(rank, printed)| Some(((*rank)?, printed))).collect()
    }

    /// What nobody has signed.
    pub(crate) fn unsigned(&self) -> Option<&Printed> {
        self.printed.get(&None)
    }
}

fn read(line: &str) -> Option<(Style, Said)> {
    let line = line.trim();
    tf_cnn(line)
        .map(|said| (Style::TfCnn, said))
        .or_else(|| horovod(line).map(|said| (Style::Horovod, said)))
}

fn tf_cnn(line: &str) -> Option<Said> {
    let (before, after) = line.split_once("images/sec:")?;
    let mut words = after.split_whitespace();
    let rate = rate(words.next()?)?;
    match before.trim() {
        "total" => return Some(Said::Total(Total { rate, devices: None })),
        "" if !after.contains("+/-") => return None,
        _ => {}
    }
    let step = match before.trim() {
        "" => None,
        step => Some(step.parse().ok()?),
    };
    let mut behind = words.skip_while(|word| !word.ends_with(')'));
    let loss = behind.nth(1).and_then(|word| word.parse().ok());
    Some(Said::Value(Value { step, rate, loss }))
}

fn horovod(line: &str) -> Option<Said> {
    if let Some(iteration) = line.strip_prefix("Iter #") {
        let (step, words) = iteration.split_once(": ")?;
        let (number, _device) = words.split_once(" img/sec per ")?;
        let value = Value { step: step.parse().ok(), rate: rate(number)?, loss: None };
        return Some(Said::Value(value));
    }
    let (devices, words) = line.strip_prefix("Total img/sec on ")?.split_once(": ")?;
    let devices = devices.split_whitespace().next()?.parse().ok();
    let rate = rate(words.split_whitespace().next()?)?;
    Some(Said::Total(Total { rate, devices }))
}

/// Numbers that a rate can be.
fn rate(word: &str) -> Option<f64> {
    word.parse().ok().filter(|rate: &f64| rate.is_finite() && *rate >= 0.0)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn value(line: &str) -> Option<(Option<u64>, f64, Option<f64>)> {
        match read(line)?.1 {
            Said::Value(Value { step, rate, loss }) => Some((step, rate, loss)),
            Said::Total(_) => None,
        }
    }

    fn total(line: &str) -> Option<(f64, Option<u32>)> {
        match read(line)?.1 {
            Said::Total(Total { rate, devices }) => Some((rate, devices)),
            Said::Value(_) => None,
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
            assert_eq!(read(line), None, "{line}");
        }
    }
}
