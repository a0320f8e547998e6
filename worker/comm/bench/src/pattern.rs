//! Communication patterns, and the conversion of their times to bandwidth.

use rlaunch_comm::raw::CollectiveKind;

/// Pattern of communication that is repeated and timed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Pattern {
    /// A message from rank 0 to rank 1, and then one back. The time is half of the round trip.
    Latency,
    /// Messages from rank 0 to rank 1, many in progress at once. The time is the mean per message.
    Bandwidth,
    Collective(CollectiveKind),
}

impl Pattern {
    /// Finds a pattern by its name in `rlaunch bench`.
    pub(crate) fn from_name(name: &str) -> Option<Pattern> {
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
            "lat" => Some(Pattern::Latency),
            "bw" => Some(Pattern::Bandwidth),
            _ => kinds.into_iter().find(|kind| kind.name() == name).map(Pattern::Collective),
        }
    }

    pub(crate) fn name(self) -> &'static str {
        match self {
            Pattern::Latency => "lat",
            Pattern::Bandwidth => "bw",
            Pattern::Collective(kind) => kind.name(),
        }
    }

    /// Tells whether the pattern reduces elements, so that their type and the operation matter.
    pub(crate) fn reduces(self) -> bool {
        let reduces = |kind| {
            matches!(
                kind,
                CollectiveKind::Reduce { .. }
                    | CollectiveKind::AllReduce
                    | CollectiveKind::ReduceScatter
            )
        };
        matches!(self, Pattern::Collective(kind) if reduces(kind))
    }

    /// Tells whether the size given for a measurement is the size of all ranks' parts together,
    /// rather than the size of one vector or message.
    pub(crate) fn size_is_total(self) -> bool {
        use CollectiveKind::{AllGather, AllToAll, Gather, ReduceScatter, Scatter};
        matches!(
            self,
            Pattern::Collective(
                Gather { .. } | Scatter { .. } | AllGather | ReduceScatter | AllToAll
            )
        )
    }

    /// Returns the formula of the bus bandwidth for `n` ranks, as text for the output; `algbw` is
    /// the algorithm bandwidth.
    pub(crate) fn formula(self) -> &'static str {
        match self {
            Pattern::Collective(CollectiveKind::AllReduce) => "algbw * 2 (n - 1) / n",
            pattern if pattern.size_is_total() => "algbw * (n - 1) / n",
            _ => "algbw",
        }
    }

    /// Returns the ratio of bus bandwidth to algorithm bandwidth, as nccl-tests defines them. It is
    /// the number of bytes that must cross each rank's link, divided by the size of the data. For
    /// any number of ranks, bus bandwidth can be compared with the bandwidth of the link.
    pub(crate) fn bus_factor(self, ranks: usize) -> f64 {
        let n = ranks.max(1) as f64;
        match self {
            Pattern::Collective(CollectiveKind::AllReduce) => 2.0 * (n - 1.0) / n,
            pattern if pattern.size_is_total() => (n - 1.0) / n,
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
            assert_eq!(Pattern::from_name(name).unwrap().name(), name);
        }
        assert_eq!(Pattern::from_name("allreduce"), None);
    }

    #[test]
    fn bus_bandwidth_is_what_each_link_carries() {
        let factor = |name, ranks| Pattern::from_name(name).unwrap().bus_factor(ranks);
        // In a ring of 4 ranks, 3 quarters of the data cross each link twice.
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
