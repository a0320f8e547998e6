//! How much of the smallest run's rate per rank larger runs keep. Only runs that were measured are
//! compared, never a figure that somebody claims.

use serde::Serialize;

/// A run that was measured.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub(crate) struct Run {
    pub(crate) source: String,
    pub(crate) ranks: u32,
    /// Of all ranks, in images per second.
    pub(crate) total: f64,
}

/// Runs by size.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub(crate) struct Scaling {
    /// Smallest first; that is what the others are compared with.
    pub(crate) runs: Vec<Step>,
}

/// A run beside the smallest.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub(crate) struct Step {
    #[serde(flatten)]
    pub(crate) run: Run,
    pub(crate) per_rank: f64,
    /// Rate per rank as part of the smallest run's: 1 is perfect.
    pub(crate) efficiency: f64,
}

impl Run {
    pub(crate) fn per_rank(&self) -> f64 {
        self.total / f64::from(self.ranks.max(1))
    }
}

impl Scaling {
    /// `None` unless there are runs of two sizes.
    pub(crate) fn of(runs: Vec<Run>) -> Option<Scaling> {
        let scaling = Scaling::beside_smallest(runs);
        let (least, most) = (scaling.runs.first()?, scaling.runs.last()?);
        (least.run.ranks < most.run.ranks).then_some(scaling)
    }

    /// The smallest is there as well, and perhaps alone.
    pub(crate) fn beside_smallest(mut runs: Vec<Run>) -> Scaling {
        runs.retain(|run| run.total > 0.0);
        runs.sort_by_key(|run| run.ranks);
        let base = runs.first().map_or(1.0, Run::per_rank);
        let step = |run: Run| {
            let per_rank = run.per_rank();
            Step { run, per_rank, efficiency: per_rank / base }
        };
        Scaling { runs: runs.into_iter().map(step).collect() }
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
        let scaling = Scaling::of(vec![run(4, 360.0), run(1, 100.0), run(2, 200.0)]).unwrap();
        let said: Vec<(u32, f64)> =
            scaling.runs.iter().map(|step| (step.run.ranks, step.efficiency)).collect();
        assert_eq!(said, [(1, 1.0), (2, 1.0), (4, 0.9)]);
    }

    #[test]
    fn nothing_is_said_of_a_single_size() {
        assert_eq!(Scaling::of(vec![run(2, 1.0), run(2, 2.0)]), None);
        assert_eq!(Scaling::of(vec![run(1, 0.0), run(2, 2.0)]), None);
        assert_eq!(Scaling::of(vec![]), None);
    }
}
