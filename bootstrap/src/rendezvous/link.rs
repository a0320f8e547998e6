//! Reliable link over one edge of the tree, which survives a change of the connection below it.
//!
//! The *carrier* of an edge is the connection below it: a TCP connection or, if that breaks or
//! cannot be made, a relay through the launcher. Frames that are in transit when the carrier
//! changes may be lost, so packets are numbered, and kept until the other end confirms them:
//!
//! ```text
//! first carrier    packets are sent immediately
//! later carrier    Resume{next} is sent; packets continue from the other end's Resume
//! Packet{number}   numbers from 0; duplicates are dropped, a gap is a violation
//! Confirm{next}    sent occasionally, so that the other end can drop confirmed packets
//! ```

use super::message::{Message, Packet};
use super::payload::Payload;
use serde::{Deserialize, Serialize};
use std::collections::VecDeque;

/// Number of received packets after which the link confirms them.
const CONFIRM_AFTER: u64 = 32;
/// Number of received payload bytes after which the link confirms the packets.
const CONFIRM_AFTER_BYTES: usize = 256 << 10;

/// Head of a frame: its content without the payload.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Head {
    /// Message to the other end.
    Packet {
        /// Number of the packet; each end counts its packets from 0.
        number: u64,
        /// Message without its payload.
        message: Message,
    },
    /// Confirmation that all packets before `next` were received.
    Confirm {
        /// Number of the next packet that the sender of this frame expects.
        next: u64,
    },
    /// Request to continue with packet `next`: the first frame on every carrier except the first
    /// carrier.
    Resume {
        /// Number of the next packet that the sender of this frame expects.
        next: u64,
    },
    /// Sign of life, without content.
    Beat,
    /// Orderly end of the edge: the sender neither sends nor reads anything after it.
    Leaving,
}

/// Unit of transmission on an edge of the tree: a head and its payload.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Frame {
    /// Content of the frame without the payload.
    pub head: Head,
    /// Payload of a [`Head::Packet`]; empty for other heads.
    pub payload: Payload,
}

impl From<Head> for Frame {
    fn from(head: Head) -> Frame {
        Frame { head, payload: Payload::empty() }
    }
}

/// Violation of the protocol by the other end of an edge of the tree.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum LinkViolation {
    /// The other end left out a packet.
    #[error("packet {got} instead of {expected}")]
    Skipped {
        /// Number of the packet that was received.
        got: u64,
        /// Number of the packet that was expected.
        expected: u64,
    },
    /// The other end confirmed a packet that was never sent.
    #[error("packet {confirmed} confirmed of {sent} sent")]
    ConfirmedUnsent {
        /// Number of the packet that the other end expects next.
        confirmed: u64,
        /// Number of packets sent to the other end.
        sent: u64,
    },
    /// The other end asks for a packet that it has confirmed before.
    #[error("resumption requested at packet {asked}, but {confirmed} were confirmed")]
    AlreadyConfirmed {
        /// Number of the packet that the other end expects next.
        asked: u64,
        /// Number of packets that the other end has confirmed.
        confirmed: u64,
    },
}

/// State of the connection below an edge of the tree.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Carrier {
    /// There has been no carrier yet. Packets wait.
    #[default]
    AwaitFirst,
    /// The carrier is in use: packets are sent.
    Flowing,
    /// The carrier broke. Packets wait for the next one.
    AwaitNext,
    /// There is a new carrier. Packets wait for the other end's Resume.
    AwaitResume,
}

/// Event that changes the state of a [`Carrier`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CarrierEvent {
    /// A carrier became available.
    Up,
    /// The carrier in use broke.
    Down,
    /// Another carrier took the place of the one in use.
    Replaced,
    /// The other end's Resume arrived on the new carrier.
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

/// One end of an edge of the tree.
#[derive(Debug, Default)]
pub struct ReliableLink {
    carrier: Carrier,
    /// Packets that are not confirmed, whether they have been sent or are waiting. The first of
    /// them has the number `confirmed`.
    unconfirmed: VecDeque<Packet>,
    confirmed: u64,
    /// Number of the next packet that is expected from the other end.
    expected: u64,
    /// Value of `expected` that was last sent to the other end.
    confirmed_to_peer: u64,
    received_bytes: usize,
    /// Whether a Resume was sent on the current carrier.
    resume_sent: bool,
    outgoing: VecDeque<Frame>,
}

impl ReliableLink {
    /// Queues a packet for the current carrier. Without a carrier the packet waits.
    pub fn send(&mut self, packet: Packet) {
        if self.carrier == Carrier::Flowing {
            let number = self.confirmed + self.unconfirmed.len() as u64;
            let head = Head::Packet { number, message: packet.message.clone() };
            self.outgoing.push_back(Frame { head, payload: packet.payload.clone() });
        }
        self.unconfirmed.push_back(packet);
    }

    /// Starts using a new carrier. Drops frames that were queued for the previous carrier;
    /// unconfirmed packets are sent again.
    pub fn carrier_up(&mut self) {
        let first = self.carrier == Carrier::AwaitFirst;
        let replaced = matches!(self.carrier, Carrier::Flowing | Carrier::AwaitResume);
        self.apply(if replaced { CarrierEvent::Replaced } else { CarrierEvent::Up });
        self.outgoing.clear();
        self.resume_sent = false;
        if first && self.unconfirmed.is_empty() {
            // The other end of a relayed edge detects the relay only when a frame arrives.
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

    /// Stops using a carrier that broke. Drops the frames that were queued for it; packets are
    /// kept.
    pub fn carrier_down(&mut self) {
        self.apply(CarrierEvent::Down);
        self.outgoing.clear();
    }

    /// Handles a frame from the current carrier. Returns the packet in the frame; `None` if the
    /// frame has no packet, or one that was received before.
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
                // The carrier that is the first for this end may be a later one for the other end.
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

    /// Returns the next frame to send on the current carrier, or `None` if there is none.
    pub fn poll_frame(&mut self) -> Option<Frame> {
        self.outgoing.pop_front()
    }

    /// Queues a confirmation if there are received packets to confirm, otherwise a sign of life.
    /// Does nothing unless the carrier is in use.
    pub fn beat(&mut self) {
        if self.carrier == Carrier::Flowing {
            let head =
                if self.confirmed_to_peer == self.expected { Head::Beat } else { self.confirm() };
            self.outgoing.push_back(head.into());
        }
    }

    /// Returns the number of packets that the other end has not confirmed.
    pub fn unconfirmed(&self) -> usize {
        self.unconfirmed.len()
    }

    fn apply(&mut self, event: CarrierEvent) {
        // Events without an entry in the table are ignored, such as a second failure of the same
        // carrier.
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
        // A confirmation that is older than the last one has no effect.
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

    /// Delivers up to `limit` frames in each direction. The remaining frames are lost with the
    /// carrier.
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
