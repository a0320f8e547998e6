//! Tables of nccl-tests: were results right, and is the average that of the table?

use super::{Kind, Remark, agree};
use crate::commands::report::log_metrics::collective::Collective;

pub(super) fn remarks(collective: &Collective) -> Vec<Remark> {
    wrong_values(collective).into_iter().chain(average_differs(collective)).collect()
}

fn wrong_values(collective: &Collective) -> Option<Remark> {
    let wrong =
        collective.measured().filter_map(|(bytes, measured)| Some((bytes, measured.wrong?)));
    let wrong: Vec<(u64, u64)> = wrong.filter(|(_, wrong)| *wrong > 0).collect();
    let (bytes, _) = wrong.first()?;
    let count: u64 = wrong.iter().fold(0, |sum, (_, wrong)| sum.saturating_add(*wrong));
    let text =
        format!("{count} values were wrong, first at {bytes} bytes: do not trust this network");
    Some(Remark::new(Kind::WrongValues, text))
}

fn average_differs(collective: &Collective) -> Option<Remark> {
    let printed = collective.average_busbw?;
    let count = collective.measured().count() as f64;
    let mean = collective.measured().map(|(_, measured)| measured.busbw).sum::<f64>() / count;
    // Where all is tiny, rounding is more than the tolerance.
    let is_rounding = (printed - mean).abs() < 0.01;
    let text = format!(
        "the table's bus bandwidths are {mean:.2} GB/s on average, the log says {printed}: lines \
         are missing"
    );
    (!is_rounding && !agree(printed, mean)).then(|| Remark::new(Kind::AverageDiffers, text))
}
