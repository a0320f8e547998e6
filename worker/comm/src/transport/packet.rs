//! Packets: a header of 16 bytes, then a payload.
//!
//! A short message is one [`Eager`](PacketKind::Eager) packet. A long message is sent in
//! these steps, in which all packets have the same transfer id:
//!
//! 1. The sender sends [`Rts`](PacketKind::Rts) with the length and, if the receiver can fetch, the
//!    address of the message.
//! 2. Once the receiver's program has called a matching receive, the receiver either fetches the
//!    bytes and sends [`Fin`](PacketKind::Fin), or sends [`Cts`](PacketKind::Cts), with an address
//!    of its own if the sender can write.
//! 3. After a CTS the sender writes the bytes and sends [`Written`](PacketKind::Written), or sends
//!    them as [`Data`](PacketKind::Data) packets.
//!
//! [`Withdrawn`](PacketKind::Withdrawn) cancels a message after its RTS.

use crate::types::error::LinkError;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub(crate) enum PacketKind {
    /// Complete short message.
    Eager = 1,
    /// Request to send, which announces a long message. The payload is an encoded `Rts` of the
    /// [engine](crate::progress): length and address of the message.
    Rts = 2,
    /// Clear to send: the receiver has a buffer for the message of this transfer. The payload has
    /// the address of the buffer, if the link supports writes.
    Cts = 3,
    /// Next bytes of the message of this transfer.
    Data = 4,
    /// Report that the receiver has fetched the message of this transfer; the sender may reuse its
    /// memory.
    Fin = 5,
    /// Goodbye: the sender sends nothing more on this link.
    Bye = 6,
    /// Report that the message of this transfer was written to the address in the CTS.
    Written = 7,
    /// Report that the sender cancelled the message of this transfer. The receiver answers with
    /// [`PacketKind::Fin`] unless it has sent one for this transfer already.
    Withdrawn = 8,
    /// Report that a rank has cancelled all collectives of the communicator from the number in
    /// [`Header::tag`] on. The payload tells which rank, in which collective, and why.
    OutOfStep = 9,
}

/// Length of [`Header::context`] in bits.
pub(crate) const CONTEXT: u32 = 28;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Header {
    pub(crate) kind: PacketKind,
    /// Context id, [`CONTEXT`] bits long. It identifies the communicator, and tells whether the
    /// packet belongs to a collective.
    pub(crate) context: u32,
    /// Tag of the message. In a collective, the number of the collective.
    pub(crate) tag: u32,
    /// Transfer id that the message's sender chose; 0 for eager messages.
    pub(crate) transfer: u32,
    /// Length of the payload in bytes.
    pub(crate) length: u32,
}

impl Header {
    /// Size of a header in bytes.
    pub(crate) const SIZE: usize = 16;

    /// Encodes the header as two words; the first is never 0.
    #[inline]
    pub(crate) fn to_words(self) -> [u64; 2] {
        let first = u64::from(self.length)
            | u64::from(self.kind as u8) << 32
            | u64::from(self.context) << (u64::BITS - CONTEXT);
        [first, u64::from(self.tag) | u64::from(self.transfer) << 32]
    }

    /// Decodes a header. Fails if the packet kind is unknown.
    #[inline]
    pub(crate) fn from_words(words: [u64; 2]) -> Result<Header, LinkError> {
        let kind = match (words[0] >> 32) as u8 & 0xf {
            1 => PacketKind::Eager,
            2 => PacketKind::Rts,
            3 => PacketKind::Cts,
            4 => PacketKind::Data,
            5 => PacketKind::Fin,
            6 => PacketKind::Bye,
            7 => PacketKind::Written,
            8 => PacketKind::Withdrawn,
            9 => PacketKind::OutOfStep,
            other => return Err(LinkError::UnknownPacket(other)),
        };
        Ok(Header {
            kind,
            context: (words[0] >> (u64::BITS - CONTEXT)) as u32,
            tag: words[1] as u32,
            transfer: (words[1] >> 32) as u32,
            length: words[0] as u32,
        })
    }
}
