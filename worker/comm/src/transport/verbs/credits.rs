//! How many messages the peer has room for: numbers alone, no device.
//!
//! A message that finds no slot is lost, or sent again after a long pause. So each end counts what
//! it has sent and what of that the peer has taken out of its slots, which the peer says along with
//! each message, and when half of its slots are to be told of and it has nothing to say, by a
//! message that says nothing else. One slot is kept for those: two ends whose slots are all full
//! still tell each other when that changes.

use crate::types::error::LinkError;

/// What one end knows of both.
#[derive(Clone, Copy, Debug)]
pub(super) struct Credits {
    /// The peer's slots.
    theirs: u32,
    /// This end's.
    own: u32,
    /// Messages to the peer; it has taken so many of them. Both begin anew after the last number.
    sent: u32,
    taken: u32,
    /// Messages of the peer that were taken; it was told of so many.
    received: u32,
    returned: u32,
    /// The peer has to speak first.
    waits_for_peer: bool,
}

impl Credits {
    /// Of two ends with so many slots, of which at least two each. An end that `waits_for_peer` sends
    /// nothing before the peer has.
    pub(super) fn new(theirs: u32, own: u32, waits_for_peer: bool) -> Credits {
        Credits { theirs, own, sent: 0, taken: 0, received: 0, returned: 0, waits_for_peer }
    }

    fn under_way(&self) -> u32 {
        self.sent.wrapping_sub(self.taken)
    }

    /// Whether a message may be sent.
    pub(super) fn may_send(&self) -> bool {
        !self.waits_for_peer && self.under_way() + 1 < self.theirs
    }

    /// Whether a message may be sent that says nothing but how many were taken.
    pub(super) fn may_send_credits(&self) -> bool {
        !self.waits_for_peer && self.under_way() < self.theirs
    }

    /// Whether it is time for one.
    pub(super) fn is_due(&self) -> bool {
        self.received.wrapping_sub(self.returned) >= (self.own / 2).max(1)
    }

    /// A message goes; what it says along with it.
    pub(super) fn on_send(&mut self) -> u32 {
        self.sent = self.sent.wrapping_add(1);
        self.returned = self.received;
        self.returned
    }

    /// A message has come, and this with it.
    pub(super) fn on_receive(&mut self, said: u32) -> Result<(), LinkError> {
        if said.wrapping_sub(self.taken) > self.under_way() {
            return Err(LinkError::Protocol("it has taken more messages than were sent"));
        }
        self.taken = said;
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

    /// What is on the wire: what was taken, and a number if it says anything else.
    type Message = (u32, Option<u32>);

    struct End {
        credits: Credits,
        /// What its peer has sent, in its slots.
        slots: VecDeque<Message>,
        sent: u32,
        received: u32,
    }

    impl End {
        fn new(theirs: u32, own: u32, waits_for_peer: bool) -> End {
            let credits = Credits {
                sent: u32::MAX - 7,
                taken: u32::MAX - 7,
                ..Credits::new(theirs, own, waits_for_peer)
            };
            let credits = Credits { received: u32::MAX - 7, returned: u32::MAX - 7, ..credits };
            End { credits, slots: VecDeque::new(), sent: 0, received: 0 }
        }

        /// Sends its next number if it may.
        fn on_send(&mut self, last: u32, to: &mut End) {
            if self.sent < last && self.credits.may_send() {
                let said = self.credits.on_send();
                to.slots.push_back((said, Some(self.sent)));
                self.sent += 1;
            }
        }

        fn tells(&mut self, to: &mut End) {
            if self.credits.is_due() && self.credits.may_send_credits() {
                to.slots.push_back((self.credits.on_send(), None));
            }
        }

        fn takes(&mut self) {
            let Some((said, number)) = self.slots.pop_front() else { return };
            self.credits.on_receive(said).unwrap();
            if let Some(number) = number {
                assert_eq!(number, self.received, "in order");
                self.received += 1;
            }
        }
    }

    /// However the two take turns, with however few slots, and if one of them has nothing to say.
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
                    2 => one.takes(),
                    3 => other.takes(),
                    4 => one.tells(&mut other),
                    _ => other.tells(&mut one),
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

    /// A word for each half of the slots, none for a word.
    #[test]
    fn two_who_have_nothing_to_say_fall_silent() {
        let (mut one, mut other) = (End::new(8, 8, false), End::new(8, 8, false));
        one.on_send(1, &mut other);
        other.takes();
        other.tells(&mut one);
        assert!(one.slots.is_empty(), "a single message need not be told of");
        for _ in 0..3 {
            one.on_send(4, &mut other);
            other.takes();
        }
        for _ in 0..20 {
            other.tells(&mut one);
            one.takes();
            one.tells(&mut other);
            other.takes();
        }
        assert_eq!(other.credits.sent.wrapping_sub(u32::MAX - 7), 1);
        assert_eq!(one.credits.under_way(), 0);
    }

    #[test]
    fn who_has_taken_what_was_not_sent_is_refused() {
        let mut credits = Credits::new(4, 4, false);
        credits.on_send();
        assert!(credits.on_receive(2).is_err());
        assert!(credits.on_receive(u32::MAX).is_err());
        assert!(credits.on_receive(1).is_ok());
        assert!(credits.on_receive(0).is_err(), "nothing is given back");
    }
}
