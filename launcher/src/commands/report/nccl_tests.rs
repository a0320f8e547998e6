//! Checks of nccl-tests' tables: wrong results, and averages that are not those of the table.

use super::log_metrics::collective::CollectiveTable;
use super::{Finding, FindingKind, agree};

pub(super) fn findings(collective: &CollectiveTable) -> Vec<Finding> {
    wrong_values(collective).into_iter().chain(average_differs(collective)).collect()
}

fn wrong_values(collective: &CollectiveTable) -> Option<Finding> {
    let wrong = collective.timings().filter_map(|(bytes, timing)| Some((bytes, timing.wrong?)));
    let wrong: Vec<(u64, u64)> = wrong.filter(|(_, wrong)| *wrong > 0).collect();
    let (bytes, _) = wrong.first()?;
    let count: u64 = wrong.iter().fold(0, |sum, (_, wrong)| sum.saturating_add(*wrong));
    let text =
        format!("{count} values were wrong, first at {bytes} bytes: do not trust this network");
    Some(Finding::new(FindingKind::WrongValues, text))
}

fn average_differs(collective: &CollectiveTable) -> Option<Finding> {
    let printed = collective.average_busbw?;
    let count = collective.timings().count() as f64;
    let mean = collective.timings().map(|(_, timing)| timing.busbw).sum::<f64>() / count;
    // Rounding of tiny bandwidths may exceed the tolerance.
    let is_rounding = (printed - mean).abs() < 0.01;
    let text = format!(
        "the bus bandwidths of the table have an average of {mean:.2} GB/s, but the log says \
         {printed}: lines are missing"
    );
    (!is_rounding && !agree(printed, mean)).then(|| Finding::new(FindingKind::AverageDiffers, text))
}
