//! Images per second: of each rank, of all, and whether the two fit.

use super::{Kind, Remark, agree};
use crate::commands::report::log_metrics::throughput::{Printed, Style, Throughput, Total, Value};
use serde::Serialize;

/// So many of the last values stand for a rank.
const LAST: usize = 5;

/// How fast a job was; rates are in images per second.
#[derive(Clone, Debug, Serialize)]
pub(crate) struct Speed {
    pub(crate) style: Style,
    /// How many worked together, where that is known.
    pub(crate) ranks: Option<u32>,
    pub(crate) rates: Vec<RankRate>,
    pub(crate) sum: f64,
    /// Totals as they were printed, each already of all ranks.
    pub(crate) printed_totals: Vec<f64>,
    /// What all ranks did together; `None` if the figures contradict each other.
    pub(crate) total: Option<f64>,
}

/// How fast one rank was.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub(crate) struct RankRate {
    /// `None` where nothing says whose it is.
    pub(crate) rank: Option<u32>,
    pub(crate) host: Option<String>,
    /// The mean is of so many values.
    pub(crate) values: usize,
    pub(crate) mean: f64,
    /// Their standard deviation, of two values or more.
    pub(crate) spread: Option<f64>,
    /// Of the last value.
    pub(crate) step: Option<u64>,
    pub(crate) loss: Option<f64>,
}

/// Rates and totals before they are compared.
struct Sheet {
    rates: Vec<RankRate>,
    totals: Vec<Total>,
    remarks: Vec<Remark>,
    /// Whether every rank that worked along is among them.
    complete: bool,
}

impl Speed {
    /// Judges what was printed by `world` ranks, as far as that is known; `None` if it was nothing.
    pub(super) fn of<'a>(
        throughput: &Throughput,
        world: Option<u32>,
        host_of: impl Fn(u32) -> Option<&'a str>,
    ) -> Option<(Speed, Vec<Remark>)> {
        let style = throughput.style()?;
        let by_rank = throughput.by_rank();
        let sheet = match (&by_rank[..], throughput.unsigned()) {
            ([], Some(printed)) => Sheet::unsigned(style, printed),
            _ => Sheet::signed(&by_rank, world, host_of),
        };
        if sheet.rates.is_empty() && sheet.totals.is_empty() {
            return None;
        }
        Some(match style {
            Style::TfCnn => sheet.judge_each(world),
            Style::Horovod => sheet.judge_devices(world),
        })
    }
}

impl Sheet {
    fn signed<'a>(
        by_rank: &[(u32, &Printed)],
        world: Option<u32>,
        host_of: impl Fn(u32) -> Option<&'a str>,
    ) -> Sheet {
        let rate = |(rank, printed): &(u32, &Printed)| {
            let host = host_of(*rank).map(str::to_owned);
            RankRate::of(&printed.values).map(|rate| RankRate { rank: Some(*rank), host, ..rate })
        };
        let rates: Vec<RankRate> = by_rank.iter().filter_map(rate).collect();
        let totals = by_rank.iter().filter_map(|(_, printed)| printed.totals.last().copied());
        let complete = world.is_some_and(|world| rates.len() == world as usize);
        Sheet { totals: totals.collect(), rates, remarks: Vec::new(), complete }
    }

    /// Several ranks without names can be told apart where they stop: each prints a last value.
    fn unsigned(style: Style, printed: &Printed) -> Sheet {
        let last = match style {
            Style::TfCnn => last_of_each(printed),
            Style::Horovod => Vec::new(),
        };
        let totals = printed.totals.clone();
        if last.len() < 2 {
            let rates: Vec<RankRate> = RankRate::of(&printed.values).into_iter().collect();
            return Sheet { rates, totals, remarks: Vec::new(), complete: false };
        }
        let rates: Vec<RankRate> =
            last.iter().filter_map(|value| RankRate::of(std::slice::from_ref(value))).collect();
        let step = last[0].step.map(|step| format!(", those of step {step},")).unwrap_or_default();
        let text = format!(
            "no line says which rank printed it: of all values only the {} last{step} can be told \
             apart",
            last.len()
        );
        let unnamed = Remark::new(Kind::Unnamed, text).hint("rlaunch --tag-output names ranks");
        Sheet { rates, totals, remarks: vec![unnamed], complete: true }
    }

    fn sum(&self) -> f64 {
        self.rates.iter().map(|rate| rate.mean).sum()
    }

    fn mean_total(&self) -> Option<f64> {
        let sum: f64 = self.totals.iter().map(|total| total.rate).sum();
        (!self.totals.is_empty()).then(|| sum / self.totals.len() as f64)
    }

    /// Where each rank prints its own rate.
    fn judge_each(mut self, world: Option<u32>) -> (Speed, Vec<Remark>) {
        let found =
            self.alone(world).or_else(|| self.totals_differ()).or_else(|| self.sum_differs());
        let trusted = found.is_none();
        self.remarks.extend(found);
        let count = u32::try_from(self.rates.len()).unwrap_or(u32::MAX);
        if let Some(world) = world.filter(|world| count < *world && trusted) {
            let text = format!("{count} of {world} ranks printed images/sec");
            self.remarks.push(Remark::new(Kind::Incomplete, text));
        }
        let mut ranks = world.or(self.complete.then_some(count));
        if ranks.is_none() && self.mean_total().is_some_and(|total| agree(total, self.sum())) {
            ranks = Some(count);
        }
        let of_all = self.mean_total().or_else(|| self.complete.then(|| self.sum()));
        let speed = self.speed(Style::TfCnn, ranks, of_all.filter(|_| trusted));
        (speed, self.remarks)
    }

    /// Where rank 0 prints the rate of a device.
    fn judge_devices(mut self, world: Option<u32>) -> (Speed, Vec<Remark>) {
        let devices = self.totals.last().and_then(|total| total.devices);
        let alone = devices == Some(1) && self.totals.len() > 1;
        let met = devices.zip(world).is_none_or(|(devices, world)| devices == world);
        if alone {
            self.remarks.push(alone_remark(self.totals.len()));
        } else if let (false, Some(devices), Some(world)) = (met, devices, world) {
            let text = format!("the log says {devices} devices, and the job had {world} ranks");
            self.remarks.push(Remark::new(Kind::WorldDiffers, text));
        }
        let total = self.mean_total().filter(|_| !alone && met);
        let speed = self.speed(Style::Horovod, devices.filter(|_| !alone), total);
        (speed, self.remarks)
    }

    fn speed(&self, style: Style, ranks: Option<u32>, total: Option<f64>) -> Speed {
        let printed_totals = self.totals.iter().map(|total| total.rate).collect();
        Speed { style, ranks, rates: self.rates.clone(), sum: self.sum(), printed_totals, total }
    }

    /// Every total is the rate of the rank that printed it, and there were others.
    fn alone(&self, world: Option<u32>) -> Option<Remark> {
        let sorted = |mut rates: Vec<f64>| {
            rates.sort_by(f64::total_cmp);
            rates
        };
        let rates = sorted(self.rates.iter().map(|rate| rate.mean).collect());
        let totals = sorted(self.totals.iter().map(|total| total.rate).collect());
        let others = rates.len().max(world.unwrap_or(0) as usize) > 1;
        let own = rates.len() == totals.len() && !totals.is_empty();
        let own = own && rates.iter().zip(&totals).all(|(rate, total)| agree(*rate, *total));
        (others && own).then(|| alone_remark(rates.len()))
    }

    fn totals_differ(&self) -> Option<Remark> {
        let (least, most) = range(self.totals.iter().map(|total| total.rate))?;
        let text = format!("ranks print totals from {least} to {most}: do not trust this log");
        (!agree(least, most)).then(|| Remark::new(Kind::TotalsDiffer, text))
    }

    fn sum_differs(&self) -> Option<Remark> {
        let total = self.totals.first().filter(|_| self.complete)?.rate;
        let sum = self.sum();
        let text = format!("ranks sum to {sum:.1}, the log says {total}: do not trust this log");
        (!agree(sum, total)).then(|| Remark::new(Kind::SumDiffers, text))
    }
}

/// `4 ranks print totals that are their own rates: each was alone`
fn alone_remark(ranks: usize) -> Remark {
    let text = match ranks {
        1 => "the total that is printed is one rank's own rate: it was alone".to_owned(),
        ranks => format!("{ranks} ranks print totals that are their own rates: each was alone"),
    };
    let hint =
        "ranks have not found each other: a Horovod that is built for MPI alone needs mpirun";
    Remark::new(Kind::Alone, text).hint(hint)
}

/// The least and the most.
pub(super) fn range(values: impl Iterator<Item = f64>) -> Option<(f64, f64)> {
    values.fold(None, |range, value| match range {
        None => Some((value, value)),
        Some((least, most)) => Some((value.min(least), value.max(most))),
    })
}

/// The values of the last step; without steps as many as there are totals.
fn last_of_each(printed: &Printed) -> Vec<Value> {
    let values = &printed.values;
    match values.iter().filter_map(|value| value.step).max() {
        Some(last) => values.iter().filter(|value| value.step == Some(last)).copied().collect(),
        None => values[values.len().saturating_sub(printed.totals.len())..].to_vec(),
    }
}

impl RankRate {
    /// Of the last values.
    fn of(values: &[Value]) -> Option<RankRate> {
        let last = &values[values.len().saturating_sub(LAST)..];
        let newest = last.last()?;
        let count = last.len() as f64;
        let mean = last.iter().map(|value| value.rate).sum::<f64>() / count;
        let squares: f64 = last.iter().map(|value| (value.rate - mean).powi(2)).sum();
        Some(RankRate {
            rank: None,
            host: None,
            values: last.len(),
            mean,
            spread: (last.len() > 1).then(|| (squares / (count - 1.0)).sqrt()),
            step: newest.step,
            loss: newest.loss,
        })
    }
}
