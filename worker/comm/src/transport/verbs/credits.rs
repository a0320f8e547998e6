//! Flow control by credits: an end of a link sends a message only if a receive buffer (slot) of the
//! peer is free for it. This module only counts, and does not touch the device.
//!
//! A message that finds no posted receive is lost, or resent only after a long pause (RNR retry).
//! So each end counts the messages that it has sent and how many of them the peer has consumed.
//! Each message carries the sender's count of consumed messages. When half of an end's slots have
//! been consumed since its last report, and the end has nothing else to send, it sends a message
//! with only the count. One slot is reserved for such messages, so that two ends whose slots are
//! all full can still report to each other.

use crate::types::LinkError;

/// Counts of messages and slots at one end of a link.
#[derive(Clone, Copy, Debug)]
pub(super) struct Credits {
    /// Number of receive slots of the peer.
    peer_slots: u32,
    /// Number of receive slots of this end.
    own_slots: u32,
    /// Number of messages sent to the peer, and how many of them the peer has consumed. Both wrap
    /// around.
    sent: u32,
    consumed: u32,
    /// Number of messages consumed from the peer, and how many of them were reported to the peer.
    /// Both wrap around.
    received: u32,
    returned: u32,
    /// Whether this end must not send before it has received the peer's first message.
    waits_for_peer: bool,
}

impl Credits {
    /// Makes the counts of an end with `own_slots` receive slots, whose peer has `peer_slots`; both
    /// have at least 2. With `waits_for_peer` this end sends nothing before it has received the
    /// peer's first message.
    pub(super) fn new(peer_slots: u32, own_slots: u32, waits_for_peer: bool) -> Credits {
        Credits {
            peer_slots,
            own_slots,
            sent: 0,
            consumed: 0,
            received: 0,
            returned: 0,
            waits_for_peer,
        }
    }

    fn in_flight(&self) -> u32 {
        self.sent.wrapping_sub(self.consumed)
    }

    /// Returns whether a message with a packet may be sent: the peer has a free slot besides the
    /// reserved slot, and this end need not wait for the peer's first message.
    pub(super) fn may_send(&self) -> bool {
        !self.waits_for_peer && self.in_flight() + 1 < self.peer_slots
    }

    /// Returns whether a message with only the count may be sent, possibly into the reserved slot.
    pub(super) fn may_send_credits(&self) -> bool {
        !self.waits_for_peer && self.in_flight() < self.peer_slots
    }

    /// Returns whether half of this end's slots have been consumed since its last report.
    pub(super) fn is_due(&self) -> bool {
        self.received.wrapping_sub(self.returned) >= (self.own_slots / 2).max(1)
    }

    /// Counts a sent message, and returns the count of consumed messages that the message must
    /// carry.
    pub(super) fn on_send(&mut self) -> u32 {
        self.sent = self.sent.wrapping_add(1);
        self.returned = self.received;
        self.returned
    }

    /// Counts a received message that carries the peer's count `consumed`. Fails if the peer claims
    /// to have consumed more messages than this end has sent.
    pub(super) fn on_receive(&mut self, consumed: u32) -> Result<(), LinkError> {
        if consumed.wrapping_sub(self.consumed) > self.in_flight() {
            return Err(LinkError::Protocol(
                "it claims to have consumed more messages than were sent",
            ));
        }
        self.consumed = consumed;
        self.waits_for_peer = false;
        self.received = self.received.wrapping_add(1);
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::transport::sim::Dice;
    use std::collections::VecDeque;

    /// Message between the ends: the count of consumed messages, and the number of the packet, if
    /// the message has one.
    type Message = (u32, Option<u32>);

    struct End {
        credits: Credits,
        /// Messages from the peer that are not consumed yet.
        slots: VecDeque<Message>,
        sent: u32,
        received: u32,
    }

    impl End {
        fn new(peer_slots: u32, own_slots: u32, waits_for_peer: bool) -> End {
            let credits = Credits {
                sent: u32::MAX - 7,
                consumed: u32::MAX - 7,
                ..Credits::new(peer_slots, own_slots, waits_for_peer)
            };
            let credits = Credits { received: u32::MAX - 7, returned: u32::MAX - 7, ..credits };
            End { credits, slots: VecDeque::new(), sent: 0, received: 0 }
        }

        /// Sends the next packet if the credits allow it. Packets are numbered; `last` packets are
        /// sent in all.
        fn on_send(&mut self, last: u32, to: &mut End) {
            if self.sent < last && self.credits.may_send() {
                let consumed = self.credits.on_send();
                to.slots.push_back((consumed, Some(self.sent)));
                self.sent += 1;
            }
        }

        fn send_credits(&mut self, to: &mut End) {
            if self.credits.is_due() && self.credits.may_send_credits() {
                to.slots.push_back((self.credits.on_send(), None));
            }
        }

        fn consume(&mut self) {
            let Some((consumed, number)) = self.slots.pop_front() else { return };
            self.credits.on_receive(consumed).unwrap();
            if let Some(number) = number {
                assert_eq!(number, self.received, "in order");
                self.received += 1;
            }
        }
    }

    /// Checks many orders of steps with many numbers of slots, also with ends that send no packets.
    #[test]
    fn nothing_is_lost_and_nobody_waits_for_ever() {
        for seed in 0..2000 {
            let mut dice = Dice::new(seed);
            let slots = [2 + dice.below(7) as u32, 2 + dice.below(7) as u32];
            let lasts = [dice.below(60) as u32, dice.below(60) as u32];
            let waits_for_peer = dice.below(2) == 0;
            let mut one = End::new(slots[1], slots[0], false);
            let mut other = End::new(slots[0], slots[1], waits_for_peer);
            if waits_for_peer {
                other.slots.push_back((one.credits.on_send(), None));
            }
            let mut steps = 0;
            while one.received < lasts[1] || other.received < lasts[0] {
                match dice.below(6) {
                    0 => one.on_send(lasts[0], &mut other),
                    1 => other.on_send(lasts[1], &mut one),
                    2 => one.consume(),
                    3 => other.consume(),
                    4 => one.send_credits(&mut other),
                    _ => other.send_credits(&mut one),
                }
                assert!(
                    one.slots.len() <= slots[0] as usize,
                    "seed {seed}: a message without a slot"
                );
                assert!(
                    other.slots.len() <= slots[1] as usize,
                    "seed {seed}: a message without a slot"
                );
                steps += 1;
                assert!(steps < 100_000, "seed {seed}: they wait for each other");
            }
        }
    }

    /// Messages with only the count are sent whenever half of the slots are consumed, and never in
    /// answer to each other.
    #[test]
    fn two_who_have_nothing_to_say_fall_silent() {
        let (mut one, mut other) = (End::new(8, 8, false), End::new(8, 8, false));
        one.on_send(1, &mut other);
        other.consume();
        other.send_credits(&mut one);
        assert!(one.slots.is_empty(), "a single message need not be reported");
        for _ in 0..3 {
            one.on_send(4, &mut other);
            other.consume();
        }
        for _ in 0..20 {
            other.send_credits(&mut one);
            one.consume();
            one.send_credits(&mut other);
            other.consume();
        }
        assert_eq!(other.credits.sent.wrapping_sub(u32::MAX - 7), 1);
        assert_eq!(one.credits.in_flight(), 0);
    }

    #[test]
    fn who_has_taken_what_was_not_sent_is_refused() {
        let mut credits = Credits::new(4, 4, false);
        credits.on_send();
        assert!(credits.on_receive(2).is_err());
        assert!(credits.on_receive(u32::MAX).is_err());
        assert!(credits.on_receive(1).is_ok());
        assert!(credits.on_receive(0).is_err(), "a count never decreases");
    }
}
