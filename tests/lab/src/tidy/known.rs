//! Known exceptions from the rules. Tidy fails if one is not needed any more, so the list only
//! shrinks. The number is the maximum size of the violation: lines, bytes, places, or top-level
//! modules of a cycle.

use super::finding::{Known, Rule};

/// The list.
pub(super) const KNOWN: &[Known] = &[Known::kept(
    Rule::TypeTwice,
    "worker/comm",
    &[("LazyRdma", 2)],
    "one of two, with RDMA and without it",
)];
