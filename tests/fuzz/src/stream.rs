//! Streams that arrive in parts of any size.

/// Cuts `data` into parts. Its first byte is their length, with zero for a single part.
pub(crate) fn parts(data: &[u8]) -> impl Iterator<Item = &[u8]> {
    let (cut, rest) = data.split_first().map_or((1, data), |(cut, rest)| (usize::from(*cut), rest));
    rest.chunks(if cut == 0 { usize::MAX } else { cut })
}

/// Returns `bytes` as a stream that [`parts`] leaves whole.
pub(crate) fn whole(bytes: impl IntoIterator<Item = u8>) -> Vec<u8> {
    std::iter::once(0).chain(bytes).collect()
}
