//! `rlaunch report --plot`: rates over steps, and bandwidths of nccl-tests over sizes, several runs in one picture.

use super::input::ReportInput;
use super::log_metrics::collective::CollectiveTable;
use super::log_metrics::throughput::{RankOutput, RateSample, Style, Throughput};
use rlaunch_plot::curves::{Axis, Curves};
use rlaunch_text::text;
use std::collections::BTreeMap;

/// Maximum number of ranks of a single run that have curves of their own.
const MAX_RANKS: usize = 6;

/// Steps, rates and bandwidths from here on are errors, and axes have no room for them.
const MAX_NUMBER: f64 = 1e15;

/// Points of a curve.
type Points = Vec<(f64, f64)>;

/// Draws what inputs have over steps or sizes; empty if they have neither.
pub(super) fn pictures(inputs: &[ReportInput]) -> Vec<Curves> {
    let run = |input: &ReportInput| {
        let (points, ranks) = total_rates(&input.metrics.throughput, named_ranks(input))?;
        Some((format!("{}: {}", input.name, ranks), points))
    };
    let mut pictures = Vec::new();
    let series: Vec<(String, Points)> = inputs.iter().filter_map(run).collect();
    if !series.is_empty() {
        let title = "images per second of all ranks".to_owned();
        pictures.push(rates(title, series));
    }
    if let [only] = inputs {
        pictures.extend(ranks_picture(only));
    }
    let run = |input: &ReportInput| {
        let table = &input.metrics.collective;
        let name = match &table.test {
            Some(test) => format!("{}: {test}", input.name),
            None => input.name.clone(),
        };
        let points = bandwidths(table);
        (!points.is_empty()).then_some((name, points))
    };
    let series: Vec<(String, Points)> = inputs.iter().filter_map(run).collect();
    if !series.is_empty() {
        pictures.push(Curves {
            title: "bus bandwidth of nccl-tests, out of place".to_owned(),
            unit: "GB/s".to_owned(),
            series,
            ..Curves::default()
        });
    }
    pictures
}

fn rates(title: String, series: Vec<(String, Points)>) -> Curves {
    let unit = "images/s".to_owned();
    Curves { title, unit, axis: Axis::Steps, series, ..Curves::default() }
}

/// Returns the number of ranks that a record or tags name; `None` if neither does.
fn named_ranks(input: &ReportInput) -> Option<usize> {
    match &input.job {
        Some(job) => usize::try_from(job.ranks).ok(),
        None => Some(input.metrics.ranks.len()).filter(|ranks| *ranks > 0),
    }
}

/// Sums up the rates of all ranks at each step. Returns the points, and a description of what was summed.
fn total_rates(throughput: &Throughput, named: Option<usize>) -> Option<(Points, String)> {
    // Whether other speeds add up is not known.
    let style = throughput.style().filter(|style| *style != Style::Printed)?;
    let by_rank = throughput.by_rank();
    let mut by_step: BTreeMap<u64, Vec<f64>> = BTreeMap::new();
    let mut devices = None;
    match throughput.untagged() {
        // Each rank prints a value at each step, so all values of a step are those of all ranks.
        Some(output) if by_rank.is_empty() => {
            devices = output.totals.iter().find_map(|total| total.devices);
            for (step, rate) in samples(&output.values) {
                by_step.entry(step).or_default().push(rate);
            }
        }
        _ => {
            for (_, output) in &by_rank {
                devices = devices.or(output.totals.iter().find_map(|total| total.devices));
                for (step, rate) in by_step_of(output) {
                    by_step.entry(step).or_default().push(rate);
                }
            }
        }
    }
    // A step that some ranks did not print has no total.
    let most = by_step.values().map(Vec::len).max()?;
    by_step.retain(|_, rates| rates.len() == most);
    let (factor, described) = match (style, devices) {
        (Style::Horovod, Some(devices)) if most == 1 => {
            (f64::from(devices), text::count(devices as usize, "device"))
        }
        (Style::Horovod, _) => (1.0, text::count(most, "device")),
        (Style::TfCnn | Style::Printed, _) => match named {
            Some(named) if named > most => (1.0, format!("{most} of {named} ranks")),
            _ => (1.0, text::count(most, "rank")),
        },
    };
    let total = |(step, rates): (u64, Vec<f64>)| (step as f64, rates.iter().sum::<f64>() * factor);
    Some((by_step.into_iter().map(total).collect(), described))
}

/// Lists steps and rates. Values without a step are numbered in their order.
fn samples(values: &[RateSample]) -> impl Iterator<Item = (u64, f64)> {
    let numbered = (1..).zip(values);
    let numbered = numbered.map(|(order, sample)| (sample.step.unwrap_or(order), sample.rate));
    numbered.filter(|(step, rate)| (*step as f64) < MAX_NUMBER && *rate < MAX_NUMBER)
}

/// Returns a rank's rates by step. Of a step that occurs again, as after a restart, the last rate counts.
fn by_step_of(output: &RankOutput) -> BTreeMap<u64, f64> {
    samples(&output.values).collect()
}

/// Draws the rates of a run's ranks: of each, or the range of all if they are many.
fn ranks_picture(input: &ReportInput) -> Option<Curves> {
    let throughput = &input.metrics.throughput;
    if throughput.style() == Some(Style::Printed) {
        return None;
    }
    let by_rank = throughput.by_rank();
    let points = |output: &RankOutput| -> Points {
        by_step_of(output).into_iter().map(|(step, rate)| (step as f64, rate)).collect()
    };
    let series: Vec<(String, Points)> = match by_rank.len() {
        0 | 1 => return None,
        2..=MAX_RANKS => {
            by_rank.iter().map(|(rank, out)| (format!("rank {rank}"), points(out))).collect()
        }
        _ => range_of_ranks(&by_rank),
    };
    let series: Vec<_> = series.into_iter().filter(|(_, points)| !points.is_empty()).collect();
    let name = &input.name;
    let title = format!("{name}: images per second of each rank (axis not from 0)");
    (series.len() > 1).then(|| Curves { is_close: true, ..rates(title, series) })
}

/// Returns the lowest, the middle and the highest rate at each step.
fn range_of_ranks(by_rank: &[(u32, &RankOutput)]) -> Vec<(String, Points)> {
    let mut by_step: BTreeMap<u64, Vec<f64>> = BTreeMap::new();
    for (step, rate) in by_rank.iter().flat_map(|(_, output)| by_step_of(output)) {
        by_step.entry(step).or_default().push(rate);
    }
    by_step.values_mut().for_each(|rates| rates.sort_by(f64::total_cmp));
    let curve = |name: &str, pick: fn(&[f64]) -> Option<&f64>| {
        let point = |(step, rates): (&u64, &Vec<f64>)| Some((*step as f64, *pick(rates)?));
        (name.to_owned(), by_step.iter().filter_map(point).collect())
    };
    vec![
        curve("fastest rank", <[f64]>::last),
        curve("middle of all ranks", |rates| rates.get(rates.len() / 2)),
        curve("slowest rank", <[f64]>::first),
    ]
}

/// Returns the bus bandwidths of a table over sizes. Sizes that occur again, as with several cycles, keep the last one.
fn bandwidths(table: &CollectiveTable) -> Points {
    let is_possible = |number: f64| number > 0.0 && number < MAX_NUMBER;
    let rows = table.rows.iter();
    let rows =
        rows.filter(|row| is_possible(row.bytes as f64) && is_possible(row.out_of_place.busbw));
    let by_size: BTreeMap<u64, f64> = rows.map(|row| (row.bytes, row.out_of_place.busbw)).collect();
    by_size.into_iter().map(|(bytes, busbw)| (bytes as f64, busbw)).collect()
}
