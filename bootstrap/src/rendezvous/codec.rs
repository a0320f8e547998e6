//! Framing of messages with large payloads, between neighbouring agents in the tree and between a
//! rank and its agent. The *head* of a frame is the message without its payload.
//!
//! ```text
//! head length: u32, little endian, at most MAX_HEAD
//! payload length: u32, little endian, bounded by the size of the job
//! head, encoded with postcard
//! payload
//! ```

use bytes::{Bytes, BytesMut};
use serde::Serialize;
use serde::de::DeserializeOwned;
use std::marker::PhantomData;

/// Maximum length of a head, in bytes. The longest heads contain the call counts of many ranks that
/// ended together.
pub const MAX_HEAD: usize = 1 << 20;

/// Length of the two lengths before a head, in bytes.
const PREFIX: usize = 8;

/// Error of encoding or decoding a frame.
#[derive(Debug, thiserror::Error)]
pub enum CodecError {
    /// The head is longer than its limit allows.
    #[error("head of {length} bytes, {limit} at most")]
    HeadTooLong {
        /// Length of the head, in bytes.
        length: usize,
        /// Limit that was exceeded, in bytes.
        limit: usize,
    },
    /// The payload is longer than its limit allows.
    #[error("payload of {length} bytes, {limit} at most")]
    PayloadTooLong {
        /// Length of the payload, in bytes.
        length: usize,
        /// Limit that was exceeded, in bytes.
        limit: usize,
    },
    /// The bytes of the head do not decode as a message.
    #[error("unreadable head of {length} bytes")]
    Unreadable {
        /// Length of the head, in bytes.
        length: usize,
        source: postcard::Error,
    },
    /// The head cannot be serialised.
    #[error("cannot encode a head")]
    Encode(#[source] postcard::Error),
}

/// Encodes the beginning of a frame: the two lengths and the head. The caller must append the
/// payload of `length` bytes.
pub fn encode_head<T: Serialize>(head: &T, length: usize) -> Result<Vec<u8>, CodecError> {
    let mut bytes = postcard::to_extend(head, vec![0; PREFIX]).map_err(CodecError::Encode)?;
    let head = bytes.len() - PREFIX;
    let head_length = u32::try_from(head).ok().filter(|_| head <= MAX_HEAD);
    let head_length =
        head_length.ok_or(CodecError::HeadTooLong { length: head, limit: MAX_HEAD })?;
    let limit = u32::MAX as usize;
    let payload_length =
        u32::try_from(length).map_err(|_| CodecError::PayloadTooLong { length, limit })?;
    bytes[..4].copy_from_slice(&head_length.to_le_bytes());
    bytes[4..PREFIX].copy_from_slice(&payload_length.to_le_bytes());
    Ok(bytes)
}

/// Decoder that turns a byte stream back into frames. The stream may be split anywhere. Memory is
/// allocated for received bytes only, never for announced lengths.
#[derive(Debug)]
pub struct Decoder<T> {
    buffer: BytesMut,
    head_limit: usize,
    payload_limit: usize,
    head: PhantomData<T>,
}

impl<T: DeserializeOwned> Decoder<T> {
    /// Makes a decoder that accepts payloads of at most `payload_limit` bytes.
    pub fn new(payload_limit: usize) -> Decoder<T> {
        let (buffer, head_limit) = (BytesMut::new(), MAX_HEAD);
        Decoder { buffer, head_limit, payload_limit, head: PhantomData }
    }

    /// Sets the maximum length of a head in bytes, in place of [`MAX_HEAD`].
    pub fn with_head_limit(self, head_limit: usize) -> Decoder<T> {
        Decoder { head_limit, ..self }
    }

    /// Sets the maximum length of the payloads that follow, in bytes.
    pub fn set_payload_limit(&mut self, payload_limit: usize) {
        self.payload_limit = payload_limit;
    }

    /// Appends bytes that were received.
    pub fn push(&mut self, bytes: &[u8]) {
        self.buffer.extend_from_slice(bytes);
    }

    /// Returns the next head and payload, or `None` if they have not been received completely.
    pub fn next_frame(&mut self) -> Result<Option<(T, Bytes)>, CodecError> {
        let Some((head, rest)) = self.buffer.split_first_chunk() else { return Ok(None) };
        let Some(length) = rest.first_chunk() else { return Ok(None) };
        let head = u32::from_le_bytes(*head) as usize;
        let length = u32::from_le_bytes(*length) as usize;
        if head > self.head_limit {
            return Err(CodecError::HeadTooLong { length: head, limit: self.head_limit });
        }
        if length > self.payload_limit {
            return Err(CodecError::PayloadTooLong { length, limit: self.payload_limit });
        }
        if self.buffer.len() < PREFIX + head + length {
            return Ok(None);
        }
        let mut frame = self.buffer.split_to(PREFIX + head + length).freeze();
        let payload = frame.split_off(PREFIX + head);
        let head = postcard::from_bytes(&frame[PREFIX..])
            .map_err(|source| CodecError::Unreadable { length: head, source })?;
        Ok(Some((head, payload)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::id::Rank;
    use crate::rendezvous::link::{Frame, Head};
    use crate::rendezvous::message::{CollectiveId, CollectiveKind, Message};
    use crate::rendezvous::payload::Payload;

    fn frames() -> Vec<Frame> {
        let operation =
            CollectiveId { kind: CollectiveKind::Gather, name: "weights".into(), sequence: 7 };
        let arrived = Head::Packet { number: 3, message: Message::Arrived(operation) };
        let payload = Payload::join([&vec![1; 1000].into(), &vec![2; 70_000].into()]);
        let ranks = [Rank(1), Rank(2), Rank(9)].into_iter().collect();
        let here = Head::Packet { number: 4, message: Message::TableReceived { ranks } };
        vec![Head::Beat.into(), Frame { head: arrived, payload }, here.into()]
    }

    fn bytes(frame: &Frame) -> Vec<u8> {
        let mut bytes = encode_head(&frame.head, frame.payload.len()).unwrap();
        bytes.extend(frame.payload.to_vec());
        bytes
    }

    #[test]
    fn frames_survive_any_cut() {
        let sent = frames();
        let stream: Vec<u8> = sent.iter().flat_map(bytes).collect();
        for size in [1, 7, 8, 9, 1000, stream.len()] {
            let mut decoder = Decoder::new(1 << 20);
            let mut got = Vec::new();
            for part in stream.chunks(size) {
                decoder.push(part);
                while let Some((head, payload)) = decoder.next_frame().unwrap() {
                    got.push(Frame { head, payload: payload.into() });
                }
            }
            assert_eq!(got, sent, "cut at {size}");
        }
    }

    #[test]
    fn hostile_lengths_are_refused_before_memory_is_taken() {
        let mut decoder = Decoder::<Head>::new(100);
        decoder.push(&[1, 0, 0, 0, 101, 0, 0, 0]);
        assert!(matches!(
            decoder.next_frame(),
            Err(CodecError::PayloadTooLong { length: 101, .. })
        ));
        let mut decoder = Decoder::<Head>::new(100);
        decoder.push(&[0, 0, 0, 1, 0, 0, 0, 0]);
        assert!(matches!(decoder.next_frame(), Err(CodecError::HeadTooLong { .. })));
        let mut decoder = Decoder::<Head>::new(100);
        decoder.push(&[1, 0, 0, 0, 0, 0, 0, 0, 99]);
        assert!(matches!(decoder.next_frame(), Err(CodecError::Unreadable { length: 1, .. })));
    }
}
