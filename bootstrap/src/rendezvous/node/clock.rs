//! Offset between the clocks of a node and of the root.
//!
//! A node asks its parent for the time several times and uses the answer with the shortest round
//! trip. The parent has read its clock between request and answer, so the error of the offset is at
//! most half the round trip (Cristian's algorithm). Offsets and errors add up along the path to the
//! root. No requests are sent until a rank asks for the offset.

use super::{Answer, CallId, ClientId, Node, NodeViolation};
use crate::id::NodeId;
use crate::rendezvous::Time;
use crate::rendezvous::message::Message;
use std::time::Duration;

/// Number of requests to the parent, of which the fastest answer is used.
const ROUNDS: u32 = 4;
/// Time for which a measured offset is used before it is measured again. Clocks drift by about 10
/// µs per second.
const FRESH: Duration = Duration::from_secs(10);
/// Delay before the next request if the parent does not know its offset to the root yet.
const RETRY_AFTER: Duration = Duration::from_millis(20);
/// Error value that stands for an offset that is not known yet.
const UNKNOWN: u64 = u64::MAX;

#[derive(Clone, Copy, Debug)]
struct OffsetEstimate {
    offset: i64,
    error: u64,
}

#[derive(Debug, Default)]
pub(super) struct Clock {
    is_root: bool,
    known: Option<(OffsetEstimate, Time)>,
    best: Option<OffsetEstimate>,
    rounds_left: u32,
    ping_at: Option<Time>,
    in_flight: Option<u64>,
    waiting: Vec<CallId>,
}

impl Clock {
    pub(super) fn new(is_root: bool) -> Clock {
        Clock { is_root, ..Clock::default() }
    }

    pub(super) fn due(&self) -> Option<Time> {
        self.ping_at
    }

    pub(super) fn abandon(&mut self) -> Vec<CallId> {
        self.ping_at = None;
        std::mem::take(&mut self.waiting)
    }

    pub(super) fn forget(&mut self, client: ClientId) {
        self.waiting.retain(|id| id.client != client);
    }

    fn estimate(&self, now: Time) -> Option<OffsetEstimate> {
        if self.is_root {
            return Some(OffsetEstimate { offset: 0, error: 0 });
        }
        self.known.filter(|(_, at)| now.since(*at) < FRESH).map(|(estimate, _)| estimate)
    }

    /// Starts a series of requests to the parent, unless one is in progress.
    fn start_rounds(&mut self, now: Time) {
        if self.rounds_left == 0 {
            self.rounds_left = ROUNDS;
            self.best = None;
            self.ping_at = Some(now);
        }
    }
}

impl Node {
    pub(super) fn answer_clock(&mut self, now: Time, id: CallId) {
        match self.clock.estimate(now) {
            Some(OffsetEstimate { offset, error }) => {
                self.answer(id, Answer::Clock { offset, error });
            }
            None => {
                self.clock.waiting.push(id);
                self.clock.start_rounds(now);
                self.ping_if_due(now);
            }
        }
    }

    pub(super) fn ping_if_due(&mut self, now: Time) {
        if self.clock.ping_at.is_none_or(|at| at > now) {
            return;
        }
        self.clock.ping_at = None;
        if let Some(parent) = self.parent {
            self.clock.in_flight = Some(now.0);
            self.send(parent, Message::Ping { sent: now.0 });
        }
    }

    pub(super) fn on_ping(&mut self, now: Time, from: NodeId, sent: u64) {
        let estimate = self.clock.estimate(now);
        if estimate.is_none() {
            self.clock.start_rounds(now);
            self.ping_if_due(now);
        }
        let OffsetEstimate { offset, error } =
            estimate.unwrap_or(OffsetEstimate { offset: 0, error: UNKNOWN });
        self.send(from, Message::Pong { sent, at: now.0, offset, error });
    }

    pub(super) fn on_pong(
        &mut self,
        now: Time,
        from: NodeId,
        sent: u64,
        at: u64,
        offset: i64,
        error: u64,
    ) -> Result<(), NodeViolation> {
        if self.clock.in_flight.take_if(|in_flight| *in_flight == sent).is_none() {
            return Err(NodeViolation::Unknown { from, message: "pong" });
        }
        if self.aborted.is_some() {
            return Ok(());
        }
        if error == UNKNOWN {
            self.clock.ping_at = Some(now + RETRY_AFTER);
            return Ok(());
        }
        let half_round_trip = now.0.saturating_sub(sent) / 2;
        let middle = sent + half_round_trip;
        let offset = offset.wrapping_add(at.wrapping_sub(middle).cast_signed());
        let estimate = OffsetEstimate { offset, error: error.saturating_add(half_round_trip) };
        if self.clock.best.is_none_or(|best| estimate.error < best.error) {
            self.clock.best = Some(estimate);
        }
        self.clock.rounds_left = self.clock.rounds_left.saturating_sub(1);
        if self.clock.rounds_left > 0 {
            self.clock.ping_at = Some(now);
            self.ping_if_due(now);
            return Ok(());
        }
        self.clock.known = self.clock.best.map(|best| (best, now));
        for id in std::mem::take(&mut self.clock.waiting) {
            if let Some((OffsetEstimate { offset, error }, _)) = self.clock.known {
                self.answer(id, Answer::Clock { offset, error });
            }
        }
        Ok(())
    }
}
