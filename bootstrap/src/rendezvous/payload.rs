//! Payloads of messages: byte strings that share memory; and the data of a gather.
//!
//! A node sends the data of a gather to its parent, its children and its ranks, each time combined
//! with other data. Payloads are concatenated without copying their bytes, so a gather of any size
//! costs a node only a few pointers per neighbour.

use crate::id::Rank;
use bytes::{Buf, Bytes};
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

/// Length of a record's two numbers, before its blob, in bytes.
pub const RECORD_HEADER: usize = 8;

/// Encodes the blob of one rank as a record.
pub fn gather_record(rank: Rank, blob: &[u8]) -> Payload {
    let length = u32::try_from(blob.len()).unwrap_or(u32::MAX);
    let mut record = Vec::with_capacity(RECORD_HEADER + blob.len());
    record.extend_from_slice(&rank.0.to_le_bytes());
    record.extend_from_slice(&length.to_le_bytes());
    record.extend_from_slice(blob);
    record.into()
}

/// Encoded records of all ranks, in any order. A record has this form:
///
/// ```text
/// rank: u32, little endian    length: u32, little endian    blob: `length` bytes
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Gathered(pub Payload);

/// Error of decoding the records of a gather.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum GatherError {
    /// The last record is incomplete.
    #[error("the last record is incomplete")]
    CutOff,
    /// The record belongs to a rank that does not exist or has another record.
    #[error("unexpected record of rank {0}")]
    Unexpected(Rank),
    /// This rank has no record.
    #[error("no record of rank {0}")]
    Missing(Rank),
}

impl Gathered {
    /// Returns the blobs of all ranks, indexed by rank. Fails unless each of the `world_size` ranks
    /// has exactly one record.
    pub fn by_rank(&self, world_size: u32) -> Result<Vec<Bytes>, GatherError> {
        let mut blobs: Vec<Option<Bytes>> = vec![None; world_size as usize];
        let mut rest = RecordReader { chunks: self.0.chunks(), chunk: Bytes::new() };
        while let Some(header) = rest.take(RECORD_HEADER)? {
            let mut header = header;
            let (rank, length) = (Rank(header.get_u32_le()), header.get_u32_le() as usize);
            let blob = if length == 0 { Some(Bytes::new()) } else { rest.take(length)? };
            let place = blobs.get_mut(rank.index()).filter(|place| place.is_none());
            *place.ok_or(GatherError::Unexpected(rank))? = Some(blob.ok_or(GatherError::CutOff)?);
        }
        let ranks = (0..world_size).map(Rank);
        ranks.zip(blobs).map(|(rank, blob)| blob.ok_or(GatherError::Missing(rank))).collect()
    }
}

struct RecordReader<'a> {
    chunks: Chunks<'a>,
    chunk: Bytes,
}

impl RecordReader<'_> {
    /// Returns the next `length` bytes, or `None` at the end of the payload. Copies the bytes only
    /// if they span several pieces of the payload.
    fn take(&mut self, length: usize) -> Result<Option<Bytes>, GatherError> {
        while self.chunk.is_empty() {
            match self.chunks.next() {
                Some(chunk) => self.chunk = chunk.clone(),
                None => return Ok(None),
            }
        }
        if self.chunk.len() >= length {
            return Ok(Some(self.chunk.split_to(length)));
        }
        let mut joined = Vec::new();
        while joined.len() < length {
            if self.chunk.is_empty() {
                self.chunk = self.chunks.next().ok_or(GatherError::CutOff)?.clone();
            }
            let part = self.chunk.len().min(length - joined.len());
            joined.extend_from_slice(&self.chunk.split_to(part));
        }
        Ok(Some(joined.into()))
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

    fn gathered(parts: &[Payload]) -> Gathered {
        Gathered(Payload::join(parts))
    }

    #[test]
    fn records_are_sorted_by_rank() {
        let parts = [
            gather_record(Rank(2), b"two"),
            gather_record(Rank(0), b""),
            gather_record(Rank(1), b"1"),
        ];
        let blobs = gathered(&parts).by_rank(3).unwrap();
        assert_eq!(blobs, [Bytes::new(), Bytes::from("1"), Bytes::from("two")]);
    }

    #[test]
    fn records_survive_any_cut() {
        let parts = [gather_record(Rank(1), b"abc"), gather_record(Rank(0), b"defgh")];
        let whole = Payload::join(&parts).to_vec();
        for size in 1..whole.len() {
            let parts: Vec<Payload> = whole.chunks(size).map(|c| c.to_vec().into()).collect();
            let blobs = gathered(&parts).by_rank(2).unwrap();
            assert_eq!(blobs, [Bytes::from("defgh"), Bytes::from("abc")], "cut at {size}");
        }
    }

    #[test]
    fn what_is_not_one_of_every_rank_is_refused() {
        let one = gather_record(Rank(0), b"x");
        let error = |parts: &[Payload]| gathered(parts).by_rank(2).unwrap_err();
        assert_eq!(error(std::slice::from_ref(&one)), GatherError::Missing(Rank(1)));
        assert_eq!(error(&[one.clone(), one.clone()]), GatherError::Unexpected(Rank(0)));
        assert_eq!(error(&[gather_record(Rank(2), b"")]), GatherError::Unexpected(Rank(2)));
        assert_eq!(error(&[vec![1, 0, 0, 0, 9, 0, 0, 0, 1].into()]), GatherError::CutOff);
        assert_eq!(error(&[vec![1, 0].into()]), GatherError::CutOff);
    }
}
