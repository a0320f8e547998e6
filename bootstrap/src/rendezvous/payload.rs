//! Payloads of messages: byte strings that share memory.
//!
//! A node sends the data of a gather to its parent, its children and its ranks, each time combined
//! with other data. Payloads are concatenated without copying their bytes, so a gather of any size
//! costs a node only a few pointers per neighbour.

use bytes::Bytes;
use std::fmt;
use std::sync::Arc;

/// Maximum number of pieces for which concatenation copies the list of pieces. Longer lists are
/// shared.
const FLAT: usize = 64;

/// Byte string that consists of pieces of shared memory.
#[derive(Clone, Default)]
pub struct Payload {
    pieces: Vec<Piece>,
    length: usize,
}

#[derive(Clone)]
enum Piece {
    Bytes(Bytes),
    Shared(Arc<Payload>),
}

impl Payload {
    /// Makes an empty payload.
    pub fn empty() -> Payload {
        Payload::default()
    }

    /// Returns the length in bytes.
    pub fn len(&self) -> usize {
        self.length
    }

    /// Tells whether the payload is empty.
    pub fn is_empty(&self) -> bool {
        self.length == 0
    }

    /// Concatenates payloads without copying their bytes.
    pub fn join<'a>(parts: impl IntoIterator<Item = &'a Payload>) -> Payload {
        let mut joined = Payload::empty();
        for part in parts {
            joined.length += part.length;
            if part.pieces.len() <= FLAT && joined.pieces.len() <= FLAT {
                joined.pieces.extend_from_slice(&part.pieces);
            } else {
                joined.pieces.push(Piece::Shared(Arc::new(part.clone())));
            }
        }
        joined
    }

    /// Moves the list of pieces into shared memory, so that a clone of the payload costs one
    /// pointer.
    #[must_use]
    pub fn shared(self) -> Payload {
        if self.pieces.len() < 2 {
            return self;
        }
        let length = self.length;
        Payload { pieces: vec![Piece::Shared(Arc::new(self))], length }
    }

    /// Returns an iterator over the pieces in order.
    pub fn chunks(&self) -> Chunks<'_> {
        Chunks { left: vec![self.pieces.iter()] }
    }

    /// Copies all pieces into one vector.
    pub fn to_vec(&self) -> Vec<u8> {
        let mut bytes = Vec::with_capacity(self.length);
        for chunk in self.chunks() {
            bytes.extend_from_slice(chunk);
        }
        bytes
    }
}

/// Iterator over the pieces of a [`Payload`].
pub struct Chunks<'a> {
    left: Vec<std::slice::Iter<'a, Piece>>,
}

impl<'a> Iterator for Chunks<'a> {
    type Item = &'a Bytes;

    fn next(&mut self) -> Option<&'a Bytes> {
        loop {
            match self.left.last_mut()?.next() {
                None => drop(self.left.pop()),
                Some(Piece::Bytes(bytes)) => return Some(bytes),
                Some(Piece::Shared(payload)) => self.left.push(payload.pieces.iter()),
            }
        }
    }
}

impl From<Bytes> for Payload {
    fn from(bytes: Bytes) -> Payload {
        let length = bytes.len();
        let pieces = if length == 0 { Vec::new() } else { vec![Piece::Bytes(bytes)] };
        Payload { pieces, length }
    }
}

impl From<Vec<u8>> for Payload {
    fn from(bytes: Vec<u8>) -> Payload {
        Bytes::from(bytes).into()
    }
}

impl PartialEq for Payload {
    fn eq(&self, other: &Payload) -> bool {
        self.length == other.length && self.to_vec() == other.to_vec()
    }
}

impl Eq for Payload {}

impl fmt::Debug for Payload {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Payload({} bytes)", self.length)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn joining_keeps_the_order() {
        let parts: Vec<Payload> = (0..300_u16).map(|n| n.to_le_bytes().to_vec().into()).collect();
        let expected: Vec<u8> = (0..300_u16).flat_map(u16::to_le_bytes).collect();
        let (front, back) = parts.split_at(150);
        let joined = Payload::join([&Payload::join(front).shared(), &Payload::join(back)]);
        assert_eq!(joined.len(), 600);
        assert_eq!(joined.to_vec(), expected);
        assert_eq!(joined, Payload::from(expected));
    }

    #[test]
    fn nothing_joined_is_nothing() {
        assert!(Payload::join([&Payload::empty(), &Vec::new().into()]).is_empty());
        assert_eq!(Payload::empty().chunks().count(), 0);
    }

    #[test]
    fn bytes_are_shared_not_copied() {
        let part = Payload::from(vec![7; 100]);
        let joined = Payload::join([&part, &part]).shared();
        let chunks: Vec<*const u8> = joined.chunks().map(|chunk| chunk.as_ptr()).collect();
        assert_eq!(chunks[0], chunks[1]);
    }
}
