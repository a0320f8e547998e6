//! The ranks' last output. A node reports its end behind all output of its ranks, so a reader that does not read holds
//! the report back. What such a reader has not read is dropped when the user wants the job to end, or when nodes
//! had their time to report; then their reports come.

use super::{Action, Supervisor};
use rlaunch_bootstrap::id::Rank;
use rlaunch_bootstrap::rendezvous::rank_set::RankSet;
use std::time::{Duration, Instant};

/// Time that the last output has after the last rank has exited, if the user has asked to end the job.
const LAST_OUTPUT_TIMEOUT: Duration = Duration::from_secs(1);
/// Time that nodes have to report their end after their output was dropped.
const REPORT_TIMEOUT: Duration = Duration::from_secs(1);

/// State of the ranks' last output.
#[derive(Default)]
pub(super) struct LastOutput {
    exited: RankSet,
    /// Whether the user has asked to end the job.
    is_hurried: bool,
    /// Time at which the output is dropped.
    pub(super) due: Option<Instant>,
    is_dropped: bool,
}

impl LastOutput {
    /// Tells whether the user waits for the end of the job, so that a reader gets no more time.
    pub(super) fn is_hurried(&self) -> bool {
        self.is_hurried
    }
}

impl Supervisor<'_> {
    /// Handles the user's request to end the job. If only output is waited for, that is given up at once.
    pub(super) fn hurry_output(&mut self, now: Instant) {
        self.last_output.is_hurried = true;
        if self.awaits_only_output() {
            self.drop_output();
        } else {
            self.limit_output(now);
        }
    }

    /// Counts a rank that has exited.
    pub(super) fn count_exited(&mut self, now: Instant, rank: Rank) {
        self.last_output.exited.insert(rank);
        self.limit_output(now);
    }

    /// Handles the end of the time that nodes had to report their end. Returns whether they have a little more, because
    /// their output was dropped.
    pub(super) fn drop_late_output(&mut self, now: Instant) -> bool {
        let was_dropped = self.last_output.is_dropped;
        self.drop_output();
        if !was_dropped {
            self.set_end_deadline(now, REPORT_TIMEOUT);
        }
        !was_dropped
    }

    pub(super) fn drop_output(&mut self) {
        self.last_output.due = None;
        if !std::mem::replace(&mut self.last_output.is_dropped, true) {
            self.actions.push_back(Action::DropOutput);
        }
    }

    fn limit_output(&mut self, now: Instant) {
        let is_due = self.last_output.is_hurried && !self.last_output.is_dropped;
        if is_due && self.awaits_only_output() {
            self.last_output.due.get_or_insert(now + LAST_OUTPUT_TIMEOUT);
        }
    }

    /// Tells whether all ranks of nodes that have not reported their end have exited.
    fn awaits_only_output(&self) -> bool {
        let mut waiting = self.nodes.iter().zip(&self.ends).filter(|(_, end)| end.is_none());
        waiting
            .all(|(node, _)| node.ranks.iter().all(|rank| self.last_output.exited.contains(*rank)))
    }
}
