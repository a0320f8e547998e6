//! Speed of each rank and of all ranks, mostly in images per second, and whether the figures are consistent. Also
//! efficiency: the rate per rank of larger runs relative to the smallest run.

use super::log_metrics::throughput::{RankOutput, RateSample, Style, Throughput, Total};
use super::{FindingKind, ReportFinding, agree};
use serde::Serialize;

/// Maximum number of values, from the end of a rank's output, whose mean is the rank's rate.
const LAST: usize = 5;

/// Speed of a job.
#[derive(Clone, Debug, Serialize)]
pub(crate) struct Speed {
    pub(crate) style: Style,
    /// Unit of all rates, such as `images/sec`.
    pub(crate) unit: String,
    /// Number of ranks that worked together, if it is known.
    pub(crate) ranks: Option<u32>,
    pub(crate) rates: Vec<RankRate>,
    /// Sum of `rates`.
    pub(crate) sum: f64,
    /// Totals of all ranks, as ranks printed them.
    pub(crate) printed_totals: Vec<f64>,
    /// Rate of all ranks; `None` if the figures contradict each other or do not tell.
    pub(crate) total: Option<f64>,
}

#[derive(Clone, Debug, PartialEq, Serialize)]
pub(crate) struct RankRate {
    /// Rank; `None` if lines do not name ranks.
    pub(crate) rank: Option<u32>,
    pub(crate) host: Option<String>,
    /// Number of values from which `mean` is computed.
    pub(crate) values: usize,
    pub(crate) mean: f64,
    /// Standard deviation of these values, if there are at least two.
    pub(crate) spread: Option<f64>,
    /// Step of the last value.
    pub(crate) step: Option<u64>,
    /// Loss of the last value.
    pub(crate) loss: Option<f64>,
}

/// Printed rates and totals, before they are compared with each other.
struct PrintedRates {
    rates: Vec<RankRate>,
    totals: Vec<Total>,
    unit: String,
    findings: Vec<ReportFinding>,
    /// Whether `rates` has every rank of the run.
    complete: bool,
}

impl Speed {
    /// Summarizes the rates in the output of a run, and checks that they are consistent. `world` is the
    /// number of ranks, if known; `host_of` names a rank's host. Returns `None` if there are no rates.
    pub(crate) fn assess<'a>(
        throughput: &Throughput,
        world: Option<u32>,
        host_of: impl Fn(u32) -> Option<&'a str>,
    ) -> Option<(Speed, Vec<ReportFinding>)> {
        let style = throughput.style()?;
        let by_rank = throughput.by_rank();
        let mut printed = match (&by_rank[..], throughput.untagged()) {
            ([], Some(output)) => PrintedRates::from_untagged(style, output),
            _ => PrintedRates::from_tagged(&by_rank, world, host_of),
        };
        printed.unit = throughput.unit().to_owned();
        if printed.rates.is_empty() && printed.totals.is_empty() {
            return None;
        }
        Some(match style {
            Style::TfCnn => printed.assess_ranks(world),
            Style::Horovod => printed.assess_devices(world),
            Style::Printed => (printed.speed(style, world, None), printed.findings),
        })
    }
}

impl PrintedRates {
    fn from_tagged<'a>(
        by_rank: &[(u32, &RankOutput)],
        world: Option<u32>,
        host_of: impl Fn(u32) -> Option<&'a str>,
    ) -> PrintedRates {
        let rate = |(rank, output): &(u32, &RankOutput)| {
            let host = host_of(*rank).map(str::to_owned);
            RankRate::from_last(&output.values).map(|rate| RankRate {
                rank: Some(*rank),
                host,
                ..rate
            })
        };
        let rates: Vec<RankRate> = by_rank.iter().filter_map(rate).collect();
        let totals = by_rank.iter().filter_map(|(_, output)| output.totals.last().copied());
        let complete = world.is_some_and(|world| rates.len() == world as usize);
        let (unit, findings) = Default::default();
        PrintedRates { totals: totals.collect(), rates, unit, findings, complete }
    }

    /// Collects rates from lines without tags, which do not name their ranks. Since each rank prints one
    /// value per step, each value of the last step is taken as the rate of a different rank.
    fn from_untagged(style: Style, output: &RankOutput) -> PrintedRates {
        let last = match style {
            Style::TfCnn => last_of_each(output),
            Style::Horovod | Style::Printed => Vec::new(),
        };
        let (totals, unit) = (output.totals.clone(), String::new());
        if last.len() < 2 {
            let rates: Vec<RankRate> = RankRate::from_last(&output.values).into_iter().collect();
            return PrintedRates { rates, totals, unit, findings: Vec::new(), complete: false };
        }
        let rates: Vec<RankRate> = last
            .iter()
            .filter_map(|value| RankRate::from_last(std::slice::from_ref(value)))
            .collect();
        let step = last[0].step.map(|step| format!(", those of step {step},")).unwrap_or_default();
        let text = format!(
            "lines have no rank: only the {} last values{step} can be told apart",
            last.len()
        );
        let unnamed =
            ReportFinding::new(FindingKind::Unnamed, text).hint("rlaunch --tag-output names ranks");
        PrintedRates { rates, totals, unit, findings: vec![unnamed], complete: true }
    }

    fn sum(&self) -> f64 {
        self.rates.iter().map(|rate| rate.mean).sum()
    }

    fn mean_total(&self) -> Option<f64> {
        let sum: f64 = self.totals.iter().map(|total| total.rate).sum();
        (!self.totals.is_empty()).then(|| sum / self.totals.len() as f64)
    }

    /// Assesses output in which each rank prints its own rate.
    fn assess_ranks(mut self, world: Option<u32>) -> (Speed, Vec<ReportFinding>) {
        let found = self
            .ran_separately(world)
            .or_else(|| self.totals_differ())
            .or_else(|| self.sum_differs());
        let trusted = found.is_none();
        self.findings.extend(found);
        let count = u32::try_from(self.rates.len()).unwrap_or(u32::MAX);
        if let Some(world) = world.filter(|world| count < *world && trusted) {
            let text = format!("{count} of {world} ranks printed {}", self.unit);
            self.findings.push(ReportFinding::new(FindingKind::Incomplete, text));
        }
        let mut ranks = world.or(self.complete.then_some(count));
        if ranks.is_none() && self.mean_total().is_some_and(|total| agree(total, self.sum())) {
            ranks = Some(count);
        }
        let total_rate = self.mean_total().or_else(|| self.complete.then(|| self.sum()));
        let speed = self.speed(Style::TfCnn, ranks, total_rate.filter(|_| trusted));
        (speed, self.findings)
    }

    /// Assesses output in which rank 0 prints the rate of a device.
    fn assess_devices(mut self, world: Option<u32>) -> (Speed, Vec<ReportFinding>) {
        let devices = self.totals.last().and_then(|total| total.devices);
        let ran_separately = devices == Some(1) && self.totals.len() > 1;
        let met = devices.zip(world).is_none_or(|(devices, world)| devices == world);
        if ran_separately {
            self.findings.push(separate_finding(self.totals.len()));
        } else if let (false, Some(devices), Some(world)) = (met, devices, world) {
            let text = format!("the log says {devices} devices, but the job had {world} ranks");
            self.findings.push(ReportFinding::new(FindingKind::WorldDiffers, text));
        }
        let total = self.mean_total().filter(|_| !ran_separately && met);
        let speed = self.speed(Style::Horovod, devices.filter(|_| !ran_separately), total);
        (speed, self.findings)
    }

    fn speed(&self, style: Style, ranks: Option<u32>, total: Option<f64>) -> Speed {
        let printed_totals = self.totals.iter().map(|total| total.rate).collect();
        let (unit, rates, sum) = (self.unit.clone(), self.rates.clone(), self.sum());
        Speed { style, unit, ranks, rates, sum, printed_totals, total }
    }

    /// Returns a finding if every printed total is the rate of the rank that printed it, although the run had
    /// other ranks.
    fn ran_separately(&self, world: Option<u32>) -> Option<ReportFinding> {
        let sorted = |mut rates: Vec<f64>| {
            rates.sort_by(f64::total_cmp);
            rates
        };
        let rates = sorted(self.rates.iter().map(|rate| rate.mean).collect());
        let totals = sorted(self.totals.iter().map(|total| total.rate).collect());
        let others = rates.len().max(world.unwrap_or(0) as usize) > 1;
        let own = rates.len() == totals.len() && !totals.is_empty();
        let own = own && rates.iter().zip(&totals).all(|(rate, total)| agree(*rate, *total));
        (others && own).then(|| separate_finding(rates.len()))
    }

    fn totals_differ(&self) -> Option<ReportFinding> {
        let (least, most) = range(self.totals.iter().map(|total| total.rate))?;
        let text = format!("ranks print totals from {least} to {most}: do not trust this log");
        (!agree(least, most)).then(|| ReportFinding::new(FindingKind::TotalsDiffer, text))
    }

    fn sum_differs(&self) -> Option<ReportFinding> {
        let total = self.totals.first().filter(|_| self.complete)?.rate;
        let sum = self.sum();
        let text = format!("ranks sum to {sum:.1}, the log says {total}: do not trust this log");
        (!agree(sum, total)).then(|| ReportFinding::new(FindingKind::SumDiffers, text))
    }
}

/// Returns the finding that `ranks` ranks ran as separate jobs of one rank each.
fn separate_finding(ranks: usize) -> ReportFinding {
    let text = match ranks {
        1 => "the printed total is the rate of one rank: it ran alone".to_owned(),
        ranks => format!("{ranks} ranks print totals that are their own rates: each ran alone"),
    };
    let hint = "ranks did not form one job: a Horovod that is built with MPI alone needs a launcher that serves its MPI \
                library, as rlaunch does";
    ReportFinding::new(FindingKind::Alone, text).hint(hint)
}

/// Returns the minimum and the maximum; `None` if there are no values.
pub(crate) fn range(values: impl Iterator<Item = f64>) -> Option<(f64, f64)> {
    values.fold(None, |range, value| match range {
        None => Some((value, value)),
        Some((least, most)) => Some((value.min(least), value.max(most))),
    })
}

/// Returns the last value of each rank: all values of the last step. If values have no steps, returns as many
/// values from the end as there are totals, because each rank prints one total.
fn last_of_each(output: &RankOutput) -> Vec<RateSample> {
    let values = &output.values;
    match values.iter().filter_map(|value| value.step).max() {
        Some(last) => values.iter().filter(|value| value.step == Some(last)).copied().collect(),
        None => values[values.len().saturating_sub(output.totals.len())..].to_vec(),
    }
}

impl RankRate {
    /// Returns the mean and the standard deviation of the last values, [`LAST`] at most; `None` if there are
    /// no values.
    fn from_last(values: &[RateSample]) -> Option<RankRate> {
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

/// Run of a program, with its number of ranks and its rate.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub(crate) struct Run {
    pub(crate) source: String,
    pub(crate) ranks: u32,
    /// Rate of all ranks, in images per second.
    pub(crate) total: f64,
}

#[derive(Clone, Debug, PartialEq, Serialize)]
pub(crate) struct Scaling {
    /// Runs in ascending order of their numbers of ranks. Each is compared with the first.
    pub(crate) runs: Vec<ScaledRun>,
}

/// Run, and its comparison with the smallest run.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub(crate) struct ScaledRun {
    #[serde(flatten)]
    pub(crate) run: Run,
    pub(crate) per_rank: f64,
    /// Rate per rank relative to the smallest run; 1 is perfect.
    pub(crate) efficiency: f64,
}

impl Run {
    pub(crate) fn per_rank(&self) -> f64 {
        self.total / f64::from(self.ranks.max(1))
    }
}

impl Scaling {
    /// Compares runs; returns `None` unless at least two of them have different numbers of ranks.
    pub(crate) fn between_sizes(runs: Vec<Run>) -> Option<Scaling> {
        let scaling = Scaling::new(runs);
        let (least, most) = (scaling.runs.first()?, scaling.runs.last()?);
        (least.run.ranks < most.run.ranks).then_some(scaling)
    }

    /// Compares runs with the smallest one, which may be the only one. Runs without a rate are left out.
    pub(crate) fn new(mut runs: Vec<Run>) -> Scaling {
        runs.retain(|run| run.total > 0.0);
        runs.sort_by_key(|run| run.ranks);
        let base = runs.first().map_or(1.0, Run::per_rank);
        let scaled = |run: Run| {
            let per_rank = run.per_rank();
            ScaledRun { run, per_rank, efficiency: per_rank / base }
        };
        Scaling { runs: runs.into_iter().map(scaled).collect() }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn run(ranks: u32, total: f64) -> Run {
        Run { source: format!("np{ranks}"), ranks, total }
    }

    #[test]
    fn efficiency_is_against_the_smallest_run() {
        let scaling =
            Scaling::between_sizes(vec![run(4, 360.0), run(1, 100.0), run(2, 200.0)]).unwrap();
        let efficiencies: Vec<(u32, f64)> =
            scaling.runs.iter().map(|step| (step.run.ranks, step.efficiency)).collect();
        assert_eq!(efficiencies, [(1, 1.0), (2, 1.0), (4, 0.9)]);
    }

    #[test]
    fn nothing_is_said_of_a_single_size() {
        assert_eq!(Scaling::between_sizes(vec![run(2, 1.0), run(2, 2.0)]), None);
        assert_eq!(Scaling::between_sizes(vec![run(1, 0.0), run(2, 2.0)]), None);
        assert_eq!(Scaling::between_sizes(vec![]), None);
    }
}
