//! Efficiency: rate per rank of larger runs relative to the smallest run.

use serde::Serialize;

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
