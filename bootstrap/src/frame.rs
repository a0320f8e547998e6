//! Framing of postcard messages in a byte stream: a 4-byte little-endian length, then the message.

use postcard::ser_flavors::Flavor;
use serde::Serialize;
use serde::de::DeserializeOwned;

/// Maximum length of a frame's message, in bytes. It has room for a job with a full environment.
pub const MAX_FRAME: usize = 8 << 20;

/// Maximum amount of output that a login shell may print before the agent's hello, in bytes. The
/// launcher skips this output.
pub const MAX_NOISE: usize = 256 << 10;

/// Error of encoding or decoding a frame.
#[derive(Debug, thiserror::Error)]
pub enum FrameError {
    /// The message is longer than [`MAX_FRAME`]. Contains its length in bytes.
    #[error("frame of {0} bytes, {MAX_FRAME} at most")]
    TooLong(usize),
    /// The bytes of a frame do not decode as a message.
    #[error("unreadable frame of {length} bytes")]
    Unreadable {
        /// Length of the message, in bytes.
        length: usize,
        source: postcard::Error,
    },
    /// The message cannot be serialised.
    #[error("cannot encode a message")]
    Encode(#[source] postcard::Error),
    /// The agent's hello did not arrive within the first [`MAX_NOISE`] bytes.
    #[error("no hello within the first {MAX_NOISE} bytes")]
    NoHello,
}

/// Encodes a message as one frame. Fails if the message is longer than [`MAX_FRAME`] bytes.
pub fn encode<T: Serialize>(message: &T) -> Result<Vec<u8>, FrameError> {
    let frame = postcard::serialize_with_flavor(message, Growing(vec![0; 4]));
    let mut frame = frame.map_err(FrameError::Encode)?;
    let length = frame.len() - 4;
    let prefix = u32::try_from(length).ok().filter(|_| length <= MAX_FRAME);
    let prefix = prefix.ok_or(FrameError::TooLong(length))?;
    frame[..4].copy_from_slice(&prefix.to_le_bytes());
    Ok(frame)
}

/// Bytes to which a message is appended. [`postcard::to_extend`] does so byte by byte, which took an eighth of all the time
/// that ranks' output costs.
struct Growing(Vec<u8>);

impl Flavor for Growing {
    type Output = Vec<u8>;

    fn try_push(&mut self, byte: u8) -> postcard::Result<()> {
        self.0.push(byte);
        Ok(())
    }

    fn try_extend(&mut self, bytes: &[u8]) -> postcard::Result<()> {
        self.0.extend_from_slice(bytes);
        Ok(())
    }

    fn finalize(self) -> postcard::Result<Vec<u8>> {
        Ok(self.0)
    }
}

/// Decoder that turns a byte stream back into messages. The stream may be split anywhere.
#[derive(Debug, Default)]
pub struct FrameReader {
    buffer: Vec<u8>,
    /// Number of bytes at the start of `buffer` that have been decoded.
    taken: usize,
}

impl FrameReader {
    /// Appends bytes that were received.
    pub fn push(&mut self, bytes: &[u8]) {
        // Here rather than after each message, so that a read with many messages moves the rest once.
        if self.taken > 0 {
            self.buffer.drain(..self.taken);
            self.taken = 0;
        }
        self.buffer.extend_from_slice(bytes);
    }

    /// Returns the next message, or `None` if it has not been received completely.
    pub fn next_frame<T: DeserializeOwned>(&mut self) -> Result<Option<T>, FrameError> {
        Ok(self.next_sized()?.map(|(message, _)| message))
    }

    /// Returns the next message and its encoded length in bytes, or `None` if the message has not
    /// been received completely.
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

    /// Returns the received bytes that are not decoded yet, so that another decoder can continue.
    pub fn into_unread(mut self) -> Vec<u8> {
        self.buffer.split_off(self.taken)
    }
}
