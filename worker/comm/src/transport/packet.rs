//! What crosses a link: packets of a header of 16 bytes and a payload.

use crate::types::error::LinkError;

/// What a packet is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub(crate) enum PacketKind {
    /// A whole message.
    Eager = 1,
    /// A message that waits until it is wanted; the payload is an [`Rts`].
    Rts = 2,
    /// The message of this transfer is wanted; the payload says where it may be written to, if there
    /// is one.
    Cts = 3,
    /// The next bytes of a transfer.
    Data = 4,
    /// The transfer is over; its sender may use the memory again.
    Fin = 5,
    /// The peer has nothing to say any more.
    Bye = 6,
    /// The message of this transfer is where its sender was told to write it.
    Written = 7,
    /// The message of this transfer was given up. Its receiver answers with [`PacketKind::Fin`]
    /// unless it has done so before.
    Withdrawn = 8,
    /// The collective with this context and this number was given up; the payload says by which rank,
    /// which collective it was, and why.
    OutOfStep = 9,
}

/// Bits of a context.
pub(crate) const CONTEXT: u32 = 28;

/// Says what the payload behind it is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Header {
    /// What the packet is.
    pub(crate) kind: PacketKind,
    /// The communicator, and whether a collective of it speaks. [`CONTEXT`] bits.
    pub(crate) context: u32,
    /// The message's tag, or the collective's number.
    pub(crate) tag: u32,
    /// Of the message, chosen by its sender; 0 for eager messages.
    pub(crate) transfer: u32,
    /// Of the payload that follows, in bytes.
    pub(crate) length: u32,
}

impl Header {
    /// In bytes.
    pub(crate) const SIZE: usize = 16;

    /// Two words, the first of which is never 0.
    #[inline]
    pub(crate) fn to_words(self) -> [u64; 2] {
        let first = u64::from(self.length)
            | u64::from(self.kind as u8) << 32
            | u64::from(self.context) << (u64::BITS - CONTEXT);
        [first, u64::from(self.tag) | u64::from(self.transfer) << 32]
    }

    /// Fails with words that no rlaunch has made.
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
