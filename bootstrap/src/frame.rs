//! Frames: messages with their length before them, in a byte stream.

use serde::Serialize;
use serde::de::DeserializeOwned;

/// The longest frame either side accepts, in bytes. A job with a full environment fits.
pub const MAX_FRAME: usize = 8 << 20;

/// The most noise that is skipped before the hello, in bytes.
pub const MAX_NOISE: usize = 256 << 10;

/// The other end broke the protocol.
#[derive(Debug, thiserror::Error)]
pub enum FrameError {
    /// A length beyond [`MAX_FRAME`].
    #[error("frame of {0} bytes, {MAX_FRAME} at most")]
    TooLong(usize),
    /// A body that is no message.
    #[error("unreadable frame of {length} bytes")]
    Unreadable {
        /// Length of the body in bytes.
        length: usize,
        /// Error of the decoder.
        source: postcard::Error,
    },
    /// A message that does not fit a frame.
    #[error("cannot encode a message")]
    Encode(#[source] postcard::Error),
    /// No hello within [`MAX_NOISE`] bytes.
    #[error("no hello within the first {MAX_NOISE} bytes")]
    NoHello,
}

/// A message as one frame, ready to be written.
pub fn encode<T: Serialize>(message: &T) -> Result<Vec<u8>, FrameError> {
    let mut frame = postcard::to_extend(message, vec![0; 4]).map_err(FrameError::Encode)?;
    let length = frame.len() - 4;
    let prefix = u32::try_from(length).ok().filter(|_| length <= MAX_FRAME);
    let prefix = prefix.ok_or(FrameError::TooLong(length))?;
    frame[..4].copy_from_slice(&prefix.to_le_bytes());
    Ok(frame)
}

/// Turns a byte stream, however it is cut, back into messages.
#[derive(Debug, Default)]
pub struct FrameReader {
    buffer: Vec<u8>,
    /// How much of `buffer` has been taken.
    taken: usize,
}

impl FrameReader {
    /// Adds what was read.
    pub fn push(&mut self, bytes: &[u8]) {
        if self.taken > 0 {
            self.buffer.drain(..self.taken);
            self.taken = 0;
        }
        self.buffer.extend_from_slice(bytes);
    }

    /// The next message, once all of it has arrived.
    pub fn next_frame<T: DeserializeOwned>(&mut self) -> Result<Option<T>, FrameError> {
        Ok(self.next_sized()?.map(|(message, _)| message))
    }

    /// The next message with its encoded length, once all of it has arrived.
    pub fn next_sized<T: DeserializeOwned>(&mut self) -> Result<Option<(T, usize)>, FrameError> {
        let Some((prefix, rest)) = self.buffer[self.taken..].split_first_chunk::<4>() else {
            return Ok(None);
        };
        let length = u32::from_le_bytes(*prefix) as usize;
        if length > MAX_FRAME {
            return Err(FrameError::TooLong(length));
        }
        let Some(body) = rest.get(..length) else {
            return Ok(None);
        };
        let message = postcard::from_bytes(body)
            .map_err(|source| FrameError::Unreadable { length, source })?;
        self.taken += 4 + length;
        Ok(Some((message, length)))
    }
}

impl FrameReader {
    /// Returns bytes that were read and not taken: they belong to the next reader.
    pub fn into_unread(mut self) -> Vec<u8> {
        self.buffer.split_off(self.taken)
    }
}
