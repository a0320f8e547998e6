//! Streams that arrive in parts of any size, and inputs that are lists of acts.

use serde::Serialize;
use serde::de::DeserializeOwned;

/// Cuts `data` into parts. Its first byte is their length, with zero for a single part.
pub(crate) fn parts(data: &[u8]) -> impl Iterator<Item = &[u8]> {
    let (cut, rest) = data.split_first().map_or((1, data), |(cut, rest)| (usize::from(*cut), rest));
    rest.chunks(if cut == 0 { usize::MAX } else { cut })
}

/// Returns `bytes` as a stream that [`parts`] leaves whole.
pub(crate) fn whole(bytes: impl IntoIterator<Item = u8>) -> Vec<u8> {
    std::iter::once(0).chain(bytes).collect()
}

/// Decodes `data` to a list of acts, up to the first that does not decode.
pub(crate) fn acts<T: DeserializeOwned>(mut data: &[u8]) -> impl Iterator<Item = T> {
    std::iter::from_fn(move || {
        let (act, rest) = postcard::take_from_bytes(data).ok()?;
        data = rest;
        Some(act)
    })
}

/// Encodes a list of acts for [`acts`].
pub(crate) fn written<T: Serialize>(acts: &[T]) -> Vec<u8> {
    acts.iter().flat_map(|act| postcard::to_stdvec(act).unwrap_or_default()).collect()
}
