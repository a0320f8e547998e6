//! Payloads of control packets: RTS, CTS, and notices of cancelled collectives.

use crate::transport::{Header, PacketKind, RemoteBuf};
use crate::types::error::LinkError;

/// Payload of [`PacketKind::Rts`]: the length of the message in bytes, and the address to fetch it
/// from, or 0 if the peer cannot fetch it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Rts {
    pub(crate) length: u64,
    pub(crate) address: u64,
}

impl Rts {
    pub(super) const SIZE: usize = 16;

    pub(super) fn encode(self) -> [u8; Rts::SIZE] {
        pair(self.length, self.address)
    }

    pub(crate) fn decode(bytes: &[u8]) -> Result<Rts, LinkError> {
        let [length, address] = words(bytes, "malformed RTS")?;
        Ok(Rts { length, address })
    }
}

impl RemoteBuf {
    pub(super) const SIZE: usize = 16;

    pub(super) fn encode(self) -> [u8; RemoteBuf::SIZE] {
        pair(self.address, self.key)
    }

    /// Decodes the payload of [`PacketKind::Cts`]: memory to write the message to. An empty payload
    /// gives `None`: the message shall be sent as packets.
    pub(crate) fn decode(bytes: &[u8]) -> Result<Option<RemoteBuf>, LinkError> {
        if bytes.is_empty() {
            return Ok(None);
        }
        let [address, key] = words(bytes, "malformed CTS")?;
        Ok(Some(RemoteBuf { address, key }))
    }
}

/// Notice that a collective was cancelled, as sent to all ranks of its communicator.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct OutOfStep {
    /// Context of the communicator's collectives.
    pub(crate) context: u32,
    /// Sequence number of the first collective that cannot complete.
    pub(crate) number: u32,
    /// Rank in the job of the process that cancelled the collective.
    pub(crate) by: usize,
    /// Index of the collective's name in
    /// [`CollectiveKind::NAMES`](crate::collectives::CollectiveKind::NAMES).
    pub(crate) collective: u8,
    /// Rank in the job that caused the cancellation by leaving; `None` if there was another cause.
    pub(crate) left: Option<usize>,
}

/// Number of low bits of a notice's second word that hold the collective's index. The other bits hold
/// `left` plus 1, or 0 for `None`.
const COLLECTIVE: u32 = 8;

impl OutOfStep {
    /// Decodes a notice from a packet's header and payload.
    pub(super) fn decode(header: Header, payload: &[u8]) -> Result<OutOfStep, LinkError> {
        let [by, why] = words(payload, "malformed notice of a cancelled collective")?;
        let Header { context, tag: number, .. } = header;
        let left = ((why >> COLLECTIVE) as usize).checked_sub(1);
        Ok(OutOfStep { context, number, by: by as usize, collective: why as u8, left })
    }

    /// Encodes the notice as header and payload of a packet.
    pub(super) fn encode(self) -> (Header, [u8; 16]) {
        let left = self.left.map_or(0, |rank| rank as u64 + 1);
        let payload = pair(self.by as u64, left << COLLECTIVE | u64::from(self.collective));
        let (kind, context, tag) = (PacketKind::OutOfStep, self.context, self.number);
        (Header { kind, context, tag, transfer: 0, length: payload.len() as u32 }, payload)
    }
}

fn pair(first: u64, second: u64) -> [u8; 16] {
    let mut bytes = [0; 16];
    bytes[..8].copy_from_slice(&first.to_le_bytes());
    bytes[8..].copy_from_slice(&second.to_le_bytes());
    bytes
}

fn words(bytes: &[u8], what: &'static str) -> Result<[u64; 2], LinkError> {
    let ([first, second], []) = bytes.as_chunks::<8>() else {
        return Err(LinkError::Protocol(what));
    };
    Ok([u64::from_le_bytes(*first), u64::from_le_bytes(*second)])
}
