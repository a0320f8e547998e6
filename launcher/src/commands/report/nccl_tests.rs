//! Checks of nccl-tests' tables: wrong results, averages that are not those of the table, and ranks that ran alone.

use super::log_metrics::collective::CollectiveTable;
use super::{FindingKind, ReportFinding, agree};

/// Way to make one job of ranks that ran alone, as the text of a hint.
pub(crate) const ONE_JOB: &str = "nccl-tests form one job if they are built with `make MPI=1` and an MPI library that \
    the hosts have";

pub(super) fn findings(collective: &CollectiveTable) -> Vec<ReportFinding> {
    // The rows of several tables are mixed.
    let average = || average_differs(collective);
    let whole = ran_alone(collective).or_else(average);
    wrong_values(collective).into_iter().chain(whole).collect()
}

/// Returns a finding if several ranks printed a table, although rank 0 does so for all.
fn ran_alone(collective: &CollectiveTable) -> Option<ReportFinding> {
    let printers = collective.printers.len();
    let text = format!("{printers} ranks printed a table of their own: each ran alone");
    (printers > 1).then(|| ReportFinding::new(FindingKind::Alone, text).hint(ONE_JOB))
}

/// Returns a finding if results were wrong.
pub(crate) fn wrong_values(collective: &CollectiveTable) -> Option<ReportFinding> {
    let wrong = collective.timings().filter_map(|(bytes, timing)| Some((bytes, timing.wrong?)));
    let wrong: Vec<(u64, u64)> = wrong.filter(|(_, wrong)| *wrong > 0).collect();
    let (bytes, _) = wrong.first()?;
    let count: u64 = wrong.iter().fold(0, |sum, (_, wrong)| sum.saturating_add(*wrong));
    let text =
        format!("{count} values were wrong, first at {bytes} bytes: do not trust this network");
    Some(ReportFinding::new(FindingKind::WrongValues, text))
}

/// Returns a finding if the printed average is not that of the rows.
pub(crate) fn average_differs(collective: &CollectiveTable) -> Option<ReportFinding> {
    let printed = collective.average_busbw?;
    let count = collective.timings().count() as f64;
    let mean = collective.timings().map(|(_, timing)| timing.busbw).sum::<f64>() / count;
    // Rounding of tiny bandwidths may exceed the tolerance.
    let is_rounding = (printed - mean).abs() < 0.01;
    let text = format!(
        "the bus bandwidths of the table have an average of {mean:.2} GB/s, but the log says \
         {printed}: lines are missing"
    );
    (!is_rounding && !agree(printed, mean))
        .then(|| ReportFinding::new(FindingKind::AverageDiffers, text))
}
