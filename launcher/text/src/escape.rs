//! Escape sequences, which are for the terminal and print nothing.

use std::ops::RangeInclusive;

/// Returns the end of the escape sequence that begins at `start`. Of one that is not whole, only its beginning belongs to it,
/// so that no text behind it is lost.
pub fn end(text: &[u8], start: usize) -> usize {
    let behind = |introducer: usize, inner: RangeInclusive<u8>, last: RangeInclusive<u8>| {
        let rest = text.get(start + introducer..).unwrap_or_default();
        let length = rest.iter().take_while(|byte| inner.contains(*byte)).count();
        let has_last = rest.get(length).is_some_and(|byte| last.contains(byte));
        start + introducer + length + usize::from(has_last)
    };
    match text.get(start + 1) {
        Some(b'[') => behind(2, 0x20..=0x3f, 0x40..=0x7e),
        // Links, titles of the window and other strings for the terminal (OSC, DCS, APC, PM, SOS).
        Some(b']' | b'P' | b'_' | b'^' | b'X') => string_end(text, start + 2),
        // Others, such as the choice of a character set. A control character is none of theirs.
        _ => behind(1, 0x20..=0x2f, 0x30..=0x7e),
    }
}

/// Returns the end of a string for the terminal, which a bell or `ESC \` ends; `start` if it has none.
fn string_end(text: &[u8], start: usize) -> usize {
    let rest = text.get(start..).unwrap_or_default();
    let at = rest.iter().position(|byte| matches!(byte, b'\x07' | b'\x1b' | b'\r'));
    match at.map(|at| (at, &rest[at..])) {
        Some((at, [b'\x07', ..])) => start + at + 1,
        Some((at, [b'\x1b', b'\\', ..])) => start + at + 2,
        _ => start,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_sequence_ends_where_the_text_begins() {
        for sequence in [
            "\u{1b}[31m", "\u{1b}[?25l", "\u{1b}(B", "\u{1b}7", "\u{1b}]0;title\u{7}",
            "\u{1b}]8;;http://h/x\u{1b}\\", // Not whole.
            "\u{1b}[1;", "\u{1b}]", "\u{1b}",
        ] {
            let text = format!("a{sequence}äb");
            assert_eq!(&text[end(text.as_bytes(), 1)..], "äb", "{sequence:?}");
        }
    }
}
