//! Messages on a connection: a header of 16 bytes, and a body.
//!
//! The header has four 32-bit words: the number of the peer, the tag of the request, the length of the
//! body in bytes, and padding. An answer has the tag of its request. All words are big-endian, except in
//! a client's first header, which has the order of the host.

use super::bfrops::Writer;
use thiserror::Error;

/// Size in bytes of a header.
const HEADER: usize = 16;

/// Maximum size in bytes of the first body, by which a client says which rank it is. Any process of the
/// host can send one; those of Open MPI have 150 bytes.
const FIRST_MAX: usize = 16 * 1024;

/// Maximum size in bytes of the other bodies. The longest requests name all ranks of a job, with 60 bytes
/// each: 16 MiB are enough for 250,000 ranks.
const BODY_MAX: usize = 16 * 1024 * 1024;

/// Message without its header.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Frame {
    /// Tag for the answer.
    pub(super) tag: u32,
    /// Body.
    pub(super) body: Vec<u8>,
}

/// Body is longer than the limit.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
#[error("a message of {0} bytes is too long")]
pub(super) struct TooLong(u32);

/// Bytes of a connection that are not a whole message yet.
#[derive(Debug, Default)]
pub(super) struct Frames {
    /// Whether the first message is complete.
    is_greeted: bool,
    begun: Vec<u8>,
}

impl Frames {
    /// Takes the next message out of `bytes`. Returns `Ok(None)` and keeps the bytes if it is not
    /// complete yet.
    pub(super) fn next(&mut self, bytes: &mut &[u8]) -> Result<Option<Frame>, TooLong> {
        self.take(bytes, HEADER);
        let Some((&header, _)) = self.begun.split_first_chunk::<HEADER>() else { return Ok(None) };
        let [_, _, _, _, t0, t1, t2, t3, n0, n1, n2, n3, ..] = header;
        let (length, max) = if self.is_greeted {
            (u32::from_be_bytes([n0, n1, n2, n3]), BODY_MAX)
        } else {
            (u32::from_ne_bytes([n0, n1, n2, n3]), FIRST_MAX)
        };
        let body = usize::try_from(length).unwrap_or(usize::MAX);
        if body > max {
            return Err(TooLong(length));
        }
        self.take(bytes, HEADER + body);
        if self.begun.len() < HEADER + body {
            return Ok(None);
        }
        self.is_greeted = true;
        let mut body = std::mem::take(&mut self.begun);
        body.drain(..HEADER);
        Ok(Some(Frame { tag: u32::from_be_bytes([t0, t1, t2, t3]), body }))
    }

    /// Moves bytes to `begun` until that has this length.
    fn take(&mut self, bytes: &mut &[u8], length: usize) {
        let missing = length.saturating_sub(self.begun.len());
        let (part, rest) = bytes.split_at_checked(missing).unwrap_or((bytes, &[]));
        self.begun.extend_from_slice(part);
        *bytes = rest;
    }
}

/// Returns a message with its header.
pub(super) fn framed(tag: u32, body: &[u8]) -> Vec<u8> {
    let mut writer = Writer::new();
    writer.i32(0).u32(tag).count(body.len()).u32(0).raw(body);
    writer.into_bytes()
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    /// Returns the first message of a client.
    fn first(body: &[u8]) -> Vec<u8> {
        let length = u32::try_from(body.len()).unwrap().to_ne_bytes();
        [&[255; 8][..], &length, &[0; 4], body].concat()
    }

    #[test]
    fn the_first_length_has_the_order_of_the_host_and_the_others_do_not() {
        let bytes = [first(b"hello"), framed(7, b"x"), framed(8, b"")].concat();
        let mut rest = &bytes[..];
        let mut frames = Frames::default();
        assert_eq!(frames.next(&mut rest).unwrap().unwrap().body, b"hello");
        assert_eq!(frames.next(&mut rest), Ok(Some(Frame { tag: 7, body: b"x".to_vec() })));
        assert_eq!(frames.next(&mut rest), Ok(Some(Frame { tag: 8, body: Vec::new() })));
        assert_eq!(frames.next(&mut rest), Ok(None));
    }

    #[test]
    fn bodies_have_limits() {
        let mut frames = Frames::default();
        let mut header = [0; HEADER];
        header[8..12].copy_from_slice(&(16 * 1024 + 1_u32).to_ne_bytes());
        assert_eq!(frames.next(&mut &header[..]), Err(TooLong(16 * 1024 + 1)));
        let mut frames = Frames { is_greeted: true, begun: Vec::new() };
        let max = u32::try_from(BODY_MAX).unwrap();
        header[8..12].copy_from_slice(&max.to_be_bytes());
        assert_eq!(frames.next(&mut &header[..]), Ok(None));
        let mut frames = Frames { is_greeted: true, begun: Vec::new() };
        header[8..12].copy_from_slice(&(max + 1).to_be_bytes());
        assert_eq!(frames.next(&mut &header[..]), Err(TooLong(max + 1)));
    }

    proptest! {
        #[test]
        fn messages_come_in_any_split(
            bodies in prop::collection::vec(prop::collection::vec(any::<u8>(), 0..40), 1..5),
            splits in prop::collection::vec(1..20_usize, 1..80),
        ) {
            let mut bytes = first(&bodies[0]);
            for (tag, body) in (1..).zip(&bodies[1..]) {
                bytes.extend(framed(tag, body));
            }
            let mut frames = Frames::default();
            let mut found = Vec::new();
            let mut rest = &bytes[..];
            for split in splits.into_iter().chain([bytes.len()]) {
                let (mut part, after) = rest.split_at(split.min(rest.len()));
                rest = after;
                while let Some(frame) = frames.next(&mut part).unwrap() {
                    found.push(frame.body);
                }
                prop_assert!(part.is_empty());
            }
            prop_assert_eq!(found, bodies);
        }
    }
}
