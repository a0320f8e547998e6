//! What is repeated, and what its time says about bandwidth.

use rlaunch_comm::raw::CollectiveKind;

/// One thing that ranks do together.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Act {
    /// A message from rank 0 to rank 1 and one back; the time is that of one way.
    Latency,
    /// Messages from rank 0 to rank 1, many on their way at once; the time is that of one.
    Bandwidth,
    /// A collective.
    Collective(CollectiveKind),
}

impl Act {
    /// By the name that `rlaunch bench` gives it.
    pub(crate) fn named(name: &str) -> Option<Act> {
        let root = 0;
        let kinds = [
            CollectiveKind::Barrier,
            CollectiveKind::Broadcast { root },
            CollectiveKind::Reduce { root },
            CollectiveKind::AllReduce,
            CollectiveKind::Gather { root },
            CollectiveKind::Scatter { root },
            CollectiveKind::AllGather,
            CollectiveKind::ReduceScatter,
            CollectiveKind::AllToAll,
        ];
        match name {
            "lat" => Some(Act::Latency),
            "bw" => Some(Act::Bandwidth),
            _ => kinds.into_iter().find(|kind| kind.name() == name).map(Act::Collective),
        }
    }

    pub(crate) fn name(self) -> &'static str {
        match self {
            Act::Latency => "lat",
            Act::Bandwidth => "bw",
            Act::Collective(kind) => kind.name(),
        }
    }

    /// Whether elements are reduced, so that their type and the operation matter.
    pub(crate) fn reduces(self) -> bool {
        let reduces = |kind| {
            matches!(
                kind,
                CollectiveKind::Reduce { .. }
                    | CollectiveKind::AllReduce
                    | CollectiveKind::ReduceScatter
            )
        };
        matches!(self, Act::Collective(kind) if reduces(kind))
    }

    /// Whether a size is that of all ranks' parts together.
    pub(crate) fn is_of_all(self) -> bool {
        use CollectiveKind::{AllGather, AllToAll, Gather, ReduceScatter, Scatter};
        matches!(
            self,
            Act::Collective(Gather { .. } | Scatter { .. } | AllGather | ReduceScatter | AllToAll)
        )
    }

    /// What busbw is, as a formula of `n` ranks.
    pub(crate) fn formula(self) -> &'static str {
        match self {
            Act::Collective(CollectiveKind::AllReduce) => "algbw * 2 (n - 1) / n",
            act if act.is_of_all() => "algbw * (n - 1) / n",
            _ => "algbw",
        }
    }

    /// What algbw is multiplied with to have busbw: how much of the data crosses the narrowest link
    /// of each rank, whatever the number of ranks.
    pub(crate) fn bus_factor(self, ranks: usize) -> f64 {
        let n = ranks.max(1) as f64;
        match self {
            Act::Collective(CollectiveKind::AllReduce) => 2.0 * (n - 1.0) / n,
            act if act.is_of_all() => (n - 1.0) / n,
            _ => 1.0,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_understood() {
        for name in [
            "lat",
            "bw",
            "barrier",
            "broadcast",
            "reduce",
            "all_reduce",
            "gather",
            "scatter",
            "all_gather",
            "reduce_scatter",
            "all_to_all",
        ] {
            assert_eq!(Act::named(name).unwrap().name(), name);
        }
        assert_eq!(Act::named("allreduce"), None);
    }

    #[test]
    fn bus_bandwidth_is_what_each_link_carries() {
        let factor = |name, ranks| Act::named(name).unwrap().bus_factor(ranks);
        // A ring of 4 ranks passes on 3 quarters twice.
        assert_eq!(factor("all_reduce", 4), 1.5);
        assert_eq!(factor("all_reduce", 1), 0.0);
        for name in ["all_gather", "reduce_scatter", "all_to_all", "gather", "scatter"] {
            assert_eq!(factor(name, 4), 0.75, "{name}");
        }
        for name in ["lat", "bw", "broadcast", "reduce"] {
            assert_eq!(factor(name, 4), 1.0, "{name}");
        }
    }
}
