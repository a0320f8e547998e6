//! Measurements of rlaunch beside its peers, in one run on one machine. Ratios are reported, since
//! times alone depend on the machine. A *bar* is the limit that a ratio or a time has to meet.
//!
//! | file | what |
//! |---|---|
//! | `launch`, `rendezvous`, `output`, `failure` | launchers beside `mpirun` and `mpiexec.hydra` |
//! | `mpi` | MPI programs under rlaunch and under the launchers of their libraries |
//! | `comm`, `train` | the communicator beside MPI libraries; training beside gloo |
//! | `verbs`, `mesh` | RDMA on guests: beside perftest; cost of proving the mesh |
//! | `inventory` | an agent reading a server's hardware |
//! | `against` | `--against`: this build beside an earlier one |
//! | `launchers`, `testbed` | how each launcher is started, and on which hosts |
//! | `rounds`, `interval` | rounds of a row and its bar; intervals of medians |

pub mod against;
pub mod comm;
pub mod failure;
mod interval;
pub mod inventory;
pub mod launch;
mod launchers;
pub mod mesh;
pub mod mpi;
pub mod output;
pub mod rendezvous;
mod rounds;
pub(crate) mod testbed;
pub mod train;
pub mod verbs;

/// Measured values of one kind, one per round.
#[derive(Debug, Clone, Default)]
pub(crate) struct Series(Vec<f64>);

impl Series {
    pub(crate) fn push(&mut self, value: f64) {
        self.0.push(value);
    }

    /// Multiplies all values, to convert their unit.
    pub(crate) fn scaled(&self, factor: f64) -> Series {
        Series(self.0.iter().map(|value| value * factor).collect())
    }

    /// Returns the number of values.
    pub(crate) fn count(&self) -> usize {
        self.0.len()
    }

    /// Returns the median: the middle value, or the mean of the middle two; `None` without values.
    pub(crate) fn median(&self) -> Option<f64> {
        self.quantile(0.5)
    }

    /// Returns the quantile `part` between 0 (minimum) and 1 (maximum), interpolated between two
    /// values; `None` without values.
    pub(crate) fn quantile(&self, part: f64) -> Option<f64> {
        let mut sorted = self.0.clone();
        sorted.sort_by(f64::total_cmp);
        let place = part.clamp(0.0, 1.0) * sorted.len().saturating_sub(1) as f64;
        // Exact: no series has 2^53 values.
        let (lower, upper) = (place.floor() as usize, place.ceil() as usize);
        let (lower, upper) = (*sorted.get(lower)?, *sorted.get(upper)?);
        Some(lower + (upper - lower) * place.fract())
    }

    /// Formats `median (min–max)` with two decimal places.
    pub(crate) fn summary(&self) -> String {
        self.summary_to(2)
    }

    /// Formats `median (min–max)` with `digits` decimal places.
    pub(crate) fn summary_to(&self, digits: usize) -> String {
        let least = self.0.iter().copied().reduce(f64::min);
        let most = self.0.iter().copied().reduce(f64::max);
        match (self.median(), least, most) {
            (Some(median), Some(least), Some(most)) => {
                format!("{median:.digits$} ({least:.digits$}–{most:.digits$})")
            }
            _ => "–".into(),
        }
    }

    /// Formats `median (min–max)` with three decimal places for small values, and one for large
    /// ones.
    fn summary_by_size(&self) -> String {
        self.summary_to(if self.median().is_some_and(|value| value < 20.0) { 3 } else { 1 })
    }

    /// Returns the median of the ratios to `other` of each round. A disturbance in a round affects
    /// both values of its ratio.
    fn ratio_to(&self, other: &Series) -> Option<f64> {
        self.ratios_to(other).median()
    }

    /// Returns the difference to `other` of each round.
    fn minus(&self, other: &Series) -> Series {
        Series(self.0.iter().zip(&other.0).map(|(own, other)| own - other).collect())
    }

    fn ratios_to(&self, other: &Series) -> Series {
        Series(self.0.iter().zip(&other.0).map(|(own, other)| own / other).collect())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn medians_are_in_the_middle() {
        assert_eq!(Series(vec![3.0, 1.0, 2.0]).median(), Some(2.0));
        assert_eq!(Series(vec![4.0, 1.0, 2.0, 3.0]).median(), Some(2.5));
        assert_eq!(Series::default().median(), None);
        assert_eq!(Series(vec![3.0, 1.0]).summary(), "2.00 (1.00–3.00)");
        assert_eq!(Series::default().summary(), "–");
    }

    #[test]
    fn quantiles_lie_between_values() {
        let ten = Series((0..=10).map(f64::from).collect());
        assert_eq!((ten.quantile(0.1), ten.quantile(0.9)), (Some(1.0), Some(9.0)));
        assert_eq!((ten.quantile(0.0), ten.quantile(1.0)), (Some(0.0), Some(10.0)));
        assert_eq!(Series(vec![1.0, 3.0]).quantile(0.25), Some(1.5));
    }

    #[test]
    fn ratios_are_taken_round_by_round() {
        let own = Series(vec![1.0, 10.0, 1.0]);
        let other = Series(vec![2.0, 20.0, 4.0]);
        assert_eq!(own.ratio_to(&other), Some(0.5));
    }
}
