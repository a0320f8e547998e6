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
/// Maximum number of ranges that a host puts into one [`Message::Want`]: they fit in a head.
pub const MAX_RANGES: usize = 4096;
/// Length of a part of a manifest but for the last one, in bytes: it fits in a head.
pub const PART: usize = 60 << 10;
/// Maximum lengths of host and text that [`Message::failed`] keeps, in bytes.
const MAX_TEXT: usize = 4096;

/// Error of a frame that cannot be encoded or decoded.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum WireError {
    #[error("message of {0} bytes, {MAX_HEAD} at most")]
    Head(usize),
    #[error("message with {0} bytes of payload, which must be those of a chunk")]
    Payload(usize),
    #[error("unreadable message of {0} bytes")]
    Unreadable(usize),
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
        let both = u64::from_le_bytes(prefix);
        let lengths = Lengths { head: both as u32 as usize, payload: (both >> 32) as u32 as usize };
        if lengths.head > MAX_HEAD {
            return Err(WireError::Head(lengths.head));
        }
        if lengths.payload as u64 > CHUNK {
            return Err(WireError::Payload(lengths.payload));
        }
        Ok(lengths)
    }

    /// Returns the length of the whole frame.
    pub fn frame(self) -> usize {
        PREFIX + self.head + self.payload
    }

    fn encode(self) -> [u8; PREFIX] {
        (self.head as u64 | ((self.payload as u64) << 32)).to_le_bytes()
    }
}

impl Message {
    /// Makes a message about a host that cannot go on; a long text is cut.
    pub fn failed(host: &str, text: &str) -> Message {
        let cut = |text: &str| text[..text.floor_char_boundary(MAX_TEXT)].to_owned();
        Message::Failed { host: cut(host), text: cut(text) }
    }

    /// Encodes prefix and head of a frame, which `payload` bytes are to follow.
    pub fn encode(&self, payload: usize) -> Result<Vec<u8>, WireError> {
        self.check(payload)?;
        let mut frame = postcard::to_extend(self, vec![0; PREFIX])
            .map_err(|_| WireError::Unreadable(payload))?;
        let head = frame.len() - PREFIX;
        if head > MAX_HEAD {
            return Err(WireError::Head(head));
        }
        frame[..PREFIX].copy_from_slice(&Lengths { head, payload }.encode());
        Ok(frame)
    }

    /// Decodes the head of a frame whose payload has `payload` bytes.
    pub fn decode(head: &[u8], payload: usize) -> Result<Message, WireError> {
        let Ok((message, [])) = postcard::take_from_bytes::<Message>(head) else {
            return Err(WireError::Unreadable(head.len()));
        };
        message.check(payload)?;
        Ok(message)
    }

    fn check(&self, payload: usize) -> Result<(), WireError> {
        let is_chunk = matches!(self, Message::Chunk { .. });
        if (payload > 0) != is_chunk || payload as u64 > CHUNK {
            return Err(WireError::Payload(payload));
        }
        let Message::Want(ranges) = self else { return Ok(()) };
        let filled = ranges.iter().all(|range| range.start < range.end);
        let ordered = ranges.windows(2).all(|pair| pair[0].end <= pair[1].start);
        if filled && ordered { Ok(()) } else { Err(WireError::Ranges) }
    }
}

/// Returns the frame that received bytes begin with, or `None` if it has not come completely.
pub fn split(bytes: &[u8]) -> Result<Option<Frame<'_>>, WireError> {
    let Some((prefix, rest)) = bytes.split_first_chunk::<PREFIX>() else { return Ok(None) };
    let lengths = Lengths::decode(*prefix)?;
    if rest.len() < lengths.head + lengths.payload {
        return Ok(None);
    }
    let (head, rest) = rest.split_at(lengths.head);
    let message = Message::decode(head, lengths.payload)?;
    Ok(Some(Frame { message, payload: &rest[..lengths.payload], length: lengths.frame() }))
}

/// Cuts a manifest into messages.
pub fn manifest_parts(manifest: &Manifest) -> impl Iterator<Item = Message> + use<> {
    let encoded = manifest.encode();
    // At least one, since even that of no entries has their number.
    let count = encoded.len().div_ceil(PART);
    (0..count).map(move |index| {
        let start = index * PART;
        let end = encoded.len().min(start + PART);
        Message::Manifest { part: encoded[start..end].to_vec(), last: index + 1 == count }
    })
}

/// Manifest of which parts have come.
#[derive(Debug, Default)]
pub struct Assembly(Vec<u8>);

impl Assembly {
    /// Adds a part of [`Message::Manifest`]. Returns the manifest after the last one.
    pub fn push(&mut self, part: &[u8], last: bool) -> Result<Option<Manifest>, WireError> {
        if self.0.len() + part.len() > MAX_ENCODED {
            return Err(ManifestError::TooLong.into());
        }
        self.0.extend_from_slice(part);
        if !last {
            return Ok(None);
        }
        let encoded = std::mem::take(&mut self.0);
        Ok(Some(Manifest::decode(&encoded)?))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::manifest::{Entry, Kind, RelativePath, Time};
    use crate::{Hash, hash};
    use proptest::prelude::*;

    fn manifest(files: u32, chunks: usize) -> Manifest {
        let entry = |number: u32| Entry {
            path: RelativePath::new(format!("file-{number}")).unwrap(),
            mode: 0o600,
            mtime: Time { secs: -1, nanos: 0 },
            kind: Kind::File {
                size: chunks as u64 * CHUNK,
                chunks: vec![hash(&number.to_le_bytes()); chunks],
                sparse: false,
            },
        };
        Manifest::new((0..files).map(entry).collect()).unwrap()
    }

    fn messages() -> Vec<(Message, Vec<u8>)> {
        let want =
            (0..MAX_RANGES as u32).map(|index| u32::MAX - 2 * index - 1..u32::MAX - 2 * index);
        let want: Vec<_> = want.rev().collect();
        vec![
            (Message::Manifest { part: vec![7; PART], last: false }, Vec::new()),
            (Message::Want(want), Vec::new()),
            (Message::WantEnd, Vec::new()),
            (Message::Chunk { id: ChunkId(u32::MAX) }, vec![3; CHUNK as usize]),
            (Message::Have, Vec::new()),
            (Message::failed(&"h".repeat(9999), &"é".repeat(9999)), Vec::new()),
            (Message::Beat, Vec::new()),
        ]
    }

    #[test]
    fn the_longest_messages_survive_their_way() {
        let mut stream = Vec::new();
        for (message, payload) in messages() {
            stream.extend(message.encode(payload.len()).unwrap());
            stream.extend(payload);
        }
        let mut at = 0;
        for (message, payload) in messages() {
            let frame = split(&stream[at..]).unwrap().unwrap();
            assert_eq!((frame.message, frame.payload), (message, &payload[..]));
            at += frame.length;
        }
        assert_eq!(at, stream.len());
    }

    #[test]
    fn a_part_of_a_frame_is_waited_for() {
        let mut frame = Message::Chunk { id: ChunkId(5) }.encode(3).unwrap();
        frame.extend([1, 2, 3]);
        for end in 0..frame.len() {
            assert_eq!(split(&frame[..end]), Ok(None), "{end}");
        }
        let lengths = Lengths::decode(*frame.first_chunk().unwrap()).unwrap();
        assert_eq!(lengths.frame(), frame.len());
    }

    #[test]
    fn only_chunks_have_a_payload_and_it_is_no_longer_than_one() {
        let chunk = Message::Chunk { id: ChunkId(0) };
        let most = CHUNK as usize;
        for (message, payload) in [(&chunk, 0), (&chunk, most + 1), (&Message::Beat, 1)] {
            assert_eq!(message.encode(payload), Err(WireError::Payload(payload)));
            let head = postcard::to_stdvec(message).unwrap();
            assert_eq!(Message::decode(&head, payload), Err(WireError::Payload(payload)));
        }
        let prefix = Lengths { head: 1, payload: most + 1 }.encode();
        assert_eq!(split(&prefix), Err(WireError::Payload(most + 1)));
        let prefix = Lengths { head: MAX_HEAD + 1, payload: 0 }.encode();
        assert_eq!(split(&prefix), Err(WireError::Head(MAX_HEAD + 1)));
        let long = Message::Manifest { part: vec![0; MAX_HEAD], last: true };
        assert!(matches!(long.encode(0), Err(WireError::Head(_))));
    }

    #[test]
    fn ranges_are_filled_and_in_order() {
        let range = |start: u32, end: u32| start..end;
        let one = |range: Range<u32>| Vec::from([range]);
        let refused = [one(3..3), one(range(5, 4)), vec![0..3, 2..4], vec![4..5, 0..1]];
        for ranges in refused {
            let message = Message::Want(ranges);
            assert_eq!(message.encode(0), Err(WireError::Ranges));
            let head = postcard::to_stdvec(&message).unwrap();
            assert_eq!(Message::decode(&head, 0), Err(WireError::Ranges));
        }
        assert!(Message::Want(vec![0..3, 3..4, 9..u32::MAX]).encode(0).is_ok());
    }

    #[test]
    fn nothing_follows_a_message_in_its_head() {
        let mut head = postcard::to_stdvec(&Message::Beat).unwrap();
        head.push(0);
        assert_eq!(Message::decode(&head, 0), Err(WireError::Unreadable(2)));
        assert_eq!(Message::decode(&[], 0), Err(WireError::Unreadable(0)));
    }

    #[test]
    fn a_manifest_comes_in_parts() {
        for (files, chunks) in [(0, 0), (1, 1), (3, 5000)] {
            let sent = manifest(files, chunks);
            let mut assembly = Assembly::default();
            let mut came = None;
            for message in manifest_parts(&sent) {
                assert!(came.is_none());
                let frame = message.encode(0).unwrap();
                let Message::Manifest { part, last } = split(&frame).unwrap().unwrap().message
                else {
                    panic!("{message:?}");
                };
                came = assembly.push(&part, last).unwrap();
            }
            assert_eq!(came, Some(sent));
        }
        let nonsense = Assembly::default().push(&[1, 0xff], true);
        assert_eq!(nonsense, Err(WireError::Manifest(ManifestError::Unreadable)));
    }

    #[test]
    fn a_hash_is_its_bytes() {
        assert_eq!(postcard::to_stdvec(&Hash([9; 32])).unwrap(), [&[32][..], &[9; 32]].concat());
    }

    proptest! {
        #[test]
        fn any_bytes_are_decoded_without_a_panic(
            head in prop::collection::vec(any::<u8>(), 0..200), payload in 0_usize..3,
        ) {
            let mut bytes = Lengths { head: head.len(), payload }.encode().to_vec();
            bytes.extend(&head);
            bytes.extend(vec![0; payload]);
            if let Ok(Some(frame)) = split(&bytes) {
                let again = frame.message.encode(payload).unwrap();
                prop_assert_eq!(Message::decode(&again[PREFIX..], payload), Ok(frame.message));
            }
        }
    }
}
