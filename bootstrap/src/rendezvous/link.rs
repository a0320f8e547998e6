//! One edge of the tree, whatever carries it.
//!
//! An edge begins on a TCP connection and may go on through the launcher, when the connection
//! breaks or never came about. What was on its way when the carrier changed may have arrived or
//! not, so packets are numbered and kept until the other end has confirmed them:
//!
//! ```text
//! carrier up     ──▶  first carrier: packets flow at once
//!                     any later one: Resume{next}, and packets flow from where the other end's
//!                     Resume says
//! Packet{number} ──▶  numbers from 0; one seen before is dropped, one skipped is a violation
//! Confirm{next}  ◀──  now and then, so that what was sent can be forgotten
//! ```

use super::message::{Message, Packet};
use super::payload::Payload;
use serde::{Deserialize, Serialize};
use std::collections::VecDeque;

/// Unconfirmed packets before the other end is owed a [`Head::Confirm`].
const CONFIRM_AFTER: u64 = 32;
/// Unconfirmed bytes before it is.
const CONFIRM_AFTER_BYTES: usize = 256 << 10;

/// What crosses a carrier, but for a packet's payload.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Head {
    /// The next message.
    Packet {
        /// Its number, from 0.
        number: u64,
        /// The message.
        message: Message,
    },
    /// Every packet before this number has arrived.
    Confirm {
        /// The number expected next.
        next: u64,
    },
    /// The first frame on a carrier that is not the edge's first.
    Resume {
        /// The number expected next.
        next: u64,
    },
    /// Nothing to say, but alive.
    Beat,
    /// The sender leaves in order: nothing follows, and nothing is read.
    Leaving,
}

/// A head and its payload.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Frame {
    /// What it is.
    pub head: Head,
    /// A packet's payload.
    pub payload: Payload,
}

impl From<Head> for Frame {
    fn from(head: Head) -> Frame {
        Frame { head, payload: Payload::empty() }
    }
}

/// The other end of an edge broke the rules.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum LinkViolation {
    /// A packet was skipped.
    #[error("packet {got} where {expected} was due")]
    Skipped {
        /// What came.
        got: u64,
        /// What was due.
        expected: u64,
    },
    /// A packet was confirmed that was never sent.
    #[error("packet {confirmed} confirmed of {sent} sent")]
    ConfirmedUnsent {
        /// The number that was said to be expected next.
        confirmed: u64,
        /// How many were sent.
        sent: u64,
    },
    /// Packets were asked for again that had been confirmed.
    #[error("packet {asked} asked for again, {confirmed} were confirmed")]
    AlreadyConfirmed {
        /// The number asked for.
        asked: u64,
        /// What had been confirmed.
        confirmed: u64,
    },
}

/// What an edge has to carry it, named for what it awaits.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Carrier {
    /// There has never been a carrier.
    #[default]
    AwaitFirst,
    /// Packets flow.
    Flowing,
    /// The carrier broke.
    AwaitNext,
    /// There is another carrier, and the other end has not said yet where to go on.
    AwaitResume,
}

/// What can happen to a carrier.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CarrierEvent {
    /// There is one.
    Up,
    /// It broke.
    Down,
    /// There is another in its place.
    Replaced,
    /// The other end has said where to go on.
    Resumed,
}

crate::transitions! {
    Carrier on CarrierEvent {
        AwaitFirst  + Up       => Flowing,
        Flowing     + Down     => AwaitNext,
        Flowing     + Replaced => AwaitResume,
        AwaitNext   + Up       => AwaitResume,
        AwaitResume + Resumed  => Flowing,
        AwaitResume + Down     => AwaitNext,
        AwaitResume + Replaced => AwaitResume,
    }
}

/// One end of an edge.
#[derive(Debug, Default)]
pub struct ReliableLink {
    carrier: Carrier,
    /// Sent and not yet confirmed, the first of them numbered `confirmed`.
    unconfirmed: VecDeque<Packet>,
    confirmed: u64,
    /// The number due next from the other end.
    expected: u64,
    /// What the other end was last told.
    confirmed_to_peer: u64,
    received_bytes: usize,
    /// The other end was told, on this carrier, where to go on.
    resume_sent: bool,
    outgoing: VecDeque<Frame>,
}

impl ReliableLink {
    /// Sends a packet, or keeps it until there is something to carry it.
    pub fn send(&mut self, packet: Packet) {
        if self.carrier == Carrier::Flowing {
            let number = self.confirmed + self.unconfirmed.len() as u64;
            let head = Head::Packet { number, message: packet.message.clone() };
            self.outgoing.push_back(Frame { head, payload: packet.payload.clone() });
        }
        self.unconfirmed.push_back(packet);
    }

    /// There is a carrier, or another than before. Frames for the one before are void.
    pub fn carrier_up(&mut self) {
        let first = self.carrier == Carrier::AwaitFirst;
        let replaced = matches!(self.carrier, Carrier::Flowing | Carrier::AwaitResume);
        self.apply(if replaced { CarrierEvent::Replaced } else { CarrierEvent::Up });
        self.outgoing.clear();
        self.resume_sent = false;
        if first && self.unconfirmed.is_empty() {
            // The other end of a relayed edge hears of it only by what comes over it.
            self.outgoing.push_back(Head::Beat.into());
        } else if first {
            self.send_unconfirmed();
        } else {
            self.send_resume();
        }
    }

    fn send_resume(&mut self) {
        self.resume_sent = true;
        self.confirmed_to_peer = self.expected;
        self.outgoing.push_back(Head::Resume { next: self.expected }.into());
    }

    /// The carrier broke.
    pub fn carrier_down(&mut self) {
        self.apply(CarrierEvent::Down);
        self.outgoing.clear();
    }

    /// Whether something carries the edge.
    pub fn is_carried(&self) -> bool {
        !matches!(self.carrier, Carrier::AwaitFirst | Carrier::AwaitNext)
    }

    /// A frame came by the present carrier; returns the packet in it unless it was seen before.
    pub fn receive(&mut self, frame: Frame) -> Result<Option<Packet>, LinkViolation> {
        match frame.head {
            Head::Beat | Head::Leaving => Ok(None),
            Head::Confirm { next } => self.forget_before(next).map(|()| None),
            Head::Resume { next } => {
                if next < self.confirmed {
                    let confirmed = self.confirmed;
                    return Err(LinkViolation::AlreadyConfirmed { asked: next, confirmed });
                }
                self.forget_before(next)?;
                // What is this end's first carrier may be the other end's second.
                if !self.resume_sent {
                    self.send_resume();
                }
                if self.carrier == Carrier::AwaitResume {
                    self.apply(CarrierEvent::Resumed);
                    self.send_unconfirmed();
                }
                Ok(None)
            }
            Head::Packet { number, message } => {
                if number < self.expected {
                    return Ok(None);
                }
                if number > self.expected {
                    let expected = self.expected;
                    return Err(LinkViolation::Skipped { got: number, expected });
                }
                self.expected += 1;
                self.received_bytes += frame.payload.len();
                self.confirm_if_due();
                Ok(Some(Packet { message, payload: frame.payload }))
            }
        }
    }

    /// The next frame for the present carrier.
    pub fn poll_frame(&mut self) -> Option<Frame> {
        self.outgoing.pop_front()
    }

    /// Keeps an idle edge alive; also confirms what has come.
    pub fn beat(&mut self) {
        if self.carrier == Carrier::Flowing {
            let head =
                if self.confirmed_to_peer == self.expected { Head::Beat } else { self.confirm() };
            self.outgoing.push_back(head.into());
        }
    }

    /// How many packets are kept for the other end.
    pub fn unconfirmed(&self) -> usize {
        self.unconfirmed.len()
    }

    fn apply(&mut self, event: CarrierEvent) {
        // What is not in the table changes nothing: a carrier that breaks twice is broken.
        if let Some(next) = self.carrier.after(event) {
            self.carrier = next;
        }
    }

    fn send_unconfirmed(&mut self) {
        for (number, packet) in (self.confirmed..).zip(&self.unconfirmed) {
            let head = Head::Packet { number, message: packet.message.clone() };
            self.outgoing.push_back(Frame { head, payload: packet.payload.clone() });
        }
    }

    fn forget_before(&mut self, next: u64) -> Result<(), LinkViolation> {
        let sent = self.confirmed + self.unconfirmed.len() as u64;
        if next > sent {
            return Err(LinkViolation::ConfirmedUnsent { confirmed: next, sent });
        }
        // An old confirmation tells nothing new.
        while self.confirmed < next {
            self.unconfirmed.pop_front();
            self.confirmed += 1;
        }
        Ok(())
    }

    fn confirm_if_due(&mut self) {
        let due = self.expected - self.confirmed_to_peer >= CONFIRM_AFTER;
        if self.carrier == Carrier::Flowing && (due || self.received_bytes >= CONFIRM_AFTER_BYTES) {
            let head = self.confirm();
            self.outgoing.push_back(head.into());
        }
    }

    fn confirm(&mut self) -> Head {
        self.confirmed_to_peer = self.expected;
        self.received_bytes = 0;
        Head::Confirm { next: self.expected }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn packet(sent: u64) -> Packet {
        Message::Ping { sent }.into()
    }

    fn number(packet: &Packet) -> u64 {
        let Message::Ping { sent } = packet.message else { panic!("{packet:?}") };
        sent
    }

    /// Carries up to `limit` frames each way; what is left is lost with the carrier.
    fn carry(a: &mut ReliableLink, b: &mut ReliableLink, limit: usize) -> (Vec<u64>, Vec<u64>) {
        let (mut at_a, mut at_b) = (Vec::new(), Vec::new());
        for _ in 0..limit {
            if let Some(frame) = a.poll_frame() {
                at_b.extend(b.receive(frame).unwrap().iter().map(number));
            }
            if let Some(frame) = b.poll_frame() {
                at_a.extend(a.receive(frame).unwrap().iter().map(number));
            }
        }
        (at_a, at_b)
    }

    #[test]
    fn packets_survive_any_number_of_carriers() {
        for lost_after in 0..40 {
            let (mut a, mut b) = (ReliableLink::default(), ReliableLink::default());
            let (mut at_a, mut at_b) = (Vec::new(), Vec::new());
            for round in 0..5 {
                for n in 0..10 {
                    a.send(packet(round * 10 + n));
                    b.send(packet(1000 + round * 10 + n));
                }
                a.carrier_up();
                b.carrier_up();
                let limit = if round == 4 { 200 } else { lost_after };
                let (to_a, to_b) = carry(&mut a, &mut b, limit);
                at_a.extend(to_a);
                at_b.extend(to_b);
                if round % 2 == 0 {
                    a.carrier_down();
                }
                b.carrier_down();
            }
            assert_eq!(at_b, (0..50).collect::<Vec<_>>(), "lost after {lost_after}");
            assert_eq!(at_a, (1000..1050).collect::<Vec<_>>(), "lost after {lost_after}");
        }
    }

    #[test]
    fn what_is_confirmed_is_forgotten() {
        let (mut a, mut b) = (ReliableLink::default(), ReliableLink::default());
        a.carrier_up();
        b.carrier_up();
        for n in 0..1000 {
            a.send(packet(n));
            carry(&mut a, &mut b, 4);
        }
        assert!(a.unconfirmed() < 2 * CONFIRM_AFTER as usize, "{}", a.unconfirmed());
        b.beat();
        carry(&mut a, &mut b, 4);
        assert_eq!(a.unconfirmed(), 0);
    }

    #[test]
    fn faults_of_the_other_end_are_named() {
        let mut link = ReliableLink::default();
        link.carrier_up();
        let skipped = Head::Packet { number: 3, message: Message::Table };
        let error = link.receive(skipped.into()).unwrap_err();
        assert_eq!(error, LinkViolation::Skipped { got: 3, expected: 0 });
        let error = link.receive(Head::Confirm { next: 1 }.into()).unwrap_err();
        assert_eq!(error, LinkViolation::ConfirmedUnsent { confirmed: 1, sent: 0 });
        link.send(packet(0));
        link.receive(Head::Confirm { next: 1 }.into()).unwrap();
        let error = link.receive(Head::Resume { next: 0 }.into()).unwrap_err();
        assert_eq!(error, LinkViolation::AlreadyConfirmed { asked: 0, confirmed: 1 });
        assert_eq!(
            link.receive(Head::Packet { number: 0, message: Message::Table }.into())
                .map(|p| p.is_some()),
            Ok(true)
        );
        assert_eq!(
            link.receive(Head::Packet { number: 0, message: Message::Table }.into()),
            Ok(None)
        );
    }

    #[test]
    fn the_carriers_states() {
        assert_eq!(
            Carrier::graph(),
            "AwaitFirst -- Up -> Flowing\n\
             Flowing -- Down -> AwaitNext\n\
             Flowing -- Replaced -> AwaitResume\n\
             AwaitNext -- Up -> AwaitResume\n\
             AwaitResume -- Resumed -> Flowing\n\
             AwaitResume -- Down -> AwaitNext\n\
             AwaitResume -- Replaced -> AwaitResume\n"
        );
    }
}
