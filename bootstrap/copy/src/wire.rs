//! Messages between two neighbours of the chain.
//!
//! A frame is a prefix of [`PREFIX`] bytes (the lengths of head and payload as two little-endian
//! 32-bit numbers), the head (a [`Message`] by postcard), and the payload, which only chunks have.

use std::ops::Range;

use serde::{Deserialize, Serialize};

use crate::chunks::{CHUNK, ChunkId};
use crate::manifest::{MAX_ENCODED, Manifest, ManifestError};

/// Length of a frame's prefix, in bytes.
pub const PREFIX: usize = 8;
/// Maximum length of a frame's head, in bytes.
pub const MAX_HEAD: usize = 64 << 10;
/// Maximum number of ranges of one [`Message::Want`].
pub const MAX_RANGES: usize = 4096;
/// Maximum length of a part of a manifest, in bytes.
pub const MAX_PART: usize = 60 << 10;
/// Maximum length of a text of [`Message::Failed`], in bytes; a longer one is cut.
pub const MAX_TEXT: usize = 4096;

/// Error of a frame that cannot be encoded or decoded.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum WireError {
    #[error("frame with a head of {0} bytes, {MAX_HEAD} at most")]
    Head(usize),
    #[error("frame with a payload of {0} bytes, {CHUNK} at most")]
    Payload(usize),
    #[error("unreadable message of {0} bytes")]
    Unreadable(usize),
    #[error("message with {0} bytes of payload that it must not have, or without the one it needs")]
    NoPayload(usize),
    #[error("ranges of chunks that are empty, overlap or are not in order")]
    Ranges,
    #[error("list of files from the host before")]
    Manifest(#[from] ManifestError),
}

/// Message from one neighbour of the chain to the other.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Message {
    /// Downstream: a part of the encoded manifest. See [`manifest_parts`] and [`Assembly`].
    Manifest {
        #[serde(with = "serde_bytes")]
        part: Vec<u8>,
        last: bool,
    },
    /// Upstream: chunks that are lacking, in order.
    Want(Vec<Range<u32>>),
    /// Upstream: nothing more will be wanted.
    WantEnd,
    /// Downstream: the chunk that is the payload.
    Chunk { id: ChunkId },
    /// Upstream: this host and all after it have all files under their names.
    Have,
    /// Both ways: a host cannot go on. It is passed on to both ends of the chain.
    Failed { host: String, text: String },
    /// Both ways: still there.
    Beat,
}

/// Lengths of the parts of a frame, in bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Lengths {
    pub head: usize,
    pub payload: usize,
}

/// Frame within received bytes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Frame<'a> {
    pub message: Message,
    pub payload: &'a [u8],
    /// Length of the whole frame, in bytes.
    pub length: usize,
}

impl Lengths {
    /// Decodes the prefix of a frame.
    pub fn decode(prefix: [u8; PREFIX]) -> Result<Lengths, WireError> {
        todo!()
    }
}

impl Message {
    /// Encodes prefix and head of a frame, which `payload` bytes are to follow.
    pub fn encode(&self, payload: usize) -> Result<Vec<u8>, WireError> {
        todo!()
    }

    /// Decodes the head of a frame whose payload has `payload` bytes.
    pub fn decode(head: &[u8], payload: usize) -> Result<Message, WireError> {
        todo!()
    }
}

/// Returns the frame that received bytes begin with, or `None` if it has not come completely.
pub fn split(bytes: &[u8]) -> Result<Option<Frame<'_>>, WireError> {
    todo!()
}

/// Cuts a manifest into messages.
pub fn manifest_parts(manifest: &Manifest) -> impl Iterator<Item = Message> {
    let encoded = manifest.encode();
    std::iter::empty()
}

/// Manifest of which parts have come.
#[derive(Debug, Default)]
pub struct Assembly(Vec<u8>);

impl Assembly {
    /// Adds a part of [`Message::Manifest`]. Returns the manifest after the last one.
    pub fn push(&mut self, part: &[u8], last: bool) -> Result<Option<Manifest>, WireError> {
        todo!()
    }
}
