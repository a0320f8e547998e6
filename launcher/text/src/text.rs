//! Numbers, lists and names, formatted for messages and tables; encodings of files that people write.

use std::fmt::Write;
use std::io::{self, ErrorKind};

/// Maximum number of items that [`list`] names.
const LISTED: usize = 8;
/// Maximum edit distance between a mistyped name and the name that is suggested instead.
const EDITS: usize = 2;

/// Returns a number with its noun, in singular or plural: `1 host`, `2 hosts`, `3 processes`.
pub fn count(number: usize, noun: &str) -> String {
    format!("{number} {}", plural(number, noun))
}

/// Returns `noun` in singular if `number` is 1, else in plural.
pub fn plural(number: usize, noun: &str) -> String {
    match number {
        1 => noun.to_owned(),
        _ if noun.ends_with('s') => format!("{noun}es"),
        _ => format!("{noun}s"),
    }
}

/// Joins items: `a, b, c`. If there are more than 8, names the first 8 and adds `and 12 more`, the number
/// of other items.
pub fn list<T: ToString>(items: &[T]) -> String {
    let mut shown: Vec<String> = items.iter().take(LISTED).map(ToString::to_string).collect();
    if items.len() > LISTED {
        shown.push(format!("and {} more", items.len() - LISTED));
    }
    shown.join(", ")
}

/// Groups items by equal keys, in the order in which the keys first occur.
pub fn grouped<K: PartialEq, T>(items: impl IntoIterator<Item = (K, T)>) -> Vec<(K, Vec<T>)> {
    let mut groups: Vec<(K, Vec<T>)> = Vec::new();
    for (key, item) in items {
        match groups.iter_mut().find(|(known, _)| *known == key) {
            Some((_, members)) => members.push(item),
            None => groups.push((key, vec![item])),
        }
    }
    groups
}

/// Writes ascending numbers as ranges: `0-2,5`. Writes at most `most` ranges, then `and 60 more`, the
/// number of numbers left out.
pub fn ranges(numbers: impl IntoIterator<Item = u32>, most: usize) -> String {
    let mut ranges: Vec<(u32, u32)> = Vec::new();
    for number in numbers {
        match ranges.last_mut() {
            Some((_, last)) if last.checked_add(1) == Some(number) => *last = number,
            _ => ranges.push((number, number)),
        }
    }
    let shown = ranges.iter().take(most).map(|(first, last)| match last - first {
        0 => first.to_string(),
        _ => format!("{first}-{last}"),
    });
    let mut text = shown.collect::<Vec<_>>().join(",");
    let left: u32 = ranges.iter().skip(most).map(|(first, last)| last - first + 1).sum();
    if left > 0 {
        let _ = write!(text, " and {left} more");
    }
    text
}

/// Formats a number of bytes in KiB, rounded up, or from 1 MiB on in MiB: `44 KiB`, `7.8 MiB`.
pub fn size(bytes: u64) -> String {
    if bytes < 1 << 20 { format!("{} KiB", bytes.div_ceil(1 << 10)) } else { mib(bytes) }
}

/// Formats a number of bytes in MiB, with one decimal place: `7.8 MiB`.
pub fn mib(bytes: u64) -> String {
    format!("{:.1} MiB", bytes as f64 / f64::from(1 << 20))
}

/// Formats a time in seconds by its largest unit, rounded down but for the first minute: `3 hours`.
pub fn age(seconds: u64) -> String {
    match seconds {
        0..60 => "a minute".to_owned(),
        60..3600 => count((seconds / 60) as usize, "minute"),
        3600..86_400 => count((seconds / 3600) as usize, "hour"),
        _ => count((seconds / 86_400) as usize, "day"),
    }
}

/// Finds the known name that a mistyped one may mean; see [`nearest_by`].
pub fn nearest<'a>(typed: &str, known: impl IntoIterator<Item = &'a str>) -> Option<&'a str> {
    nearest_by(typed, known, |name| name)
}

/// Finds the candidate whose name is nearest to the mistyped name `typed`: it differs by at most 2 edits, which are fewer
/// than the letters of `typed`, or begins with `typed` if that has at least 3 bytes. `None` if there is no such candidate.
/// `name` returns the name of a candidate.
pub fn nearest_by<T>(
    typed: &str,
    candidates: impl IntoIterator<Item = T>,
    name: impl Fn(&T) -> &str,
) -> Option<T> {
    let distance = |candidate: &T| strsim::levenshtein(name(candidate), typed);
    // As many edits as letters make any word of any other.
    let edits = EDITS.min(typed.chars().count().saturating_sub(1));
    let is_near = |candidate: &T| {
        distance(candidate) <= edits || (typed.len() > 2 && name(candidate).starts_with(typed))
    };
    candidates.into_iter().filter(is_near).min_by_key(distance)
}

/// Tells whether one letter too many, too few or wrong, or two that changed places, make the difference.
pub fn is_one_edit(one: &str, other: &str) -> bool {
    strsim::damerau_levenshtein(one, other) == 1
}

/// Decodes a text in UTF-8. The error names the encoding of some editors of Windows, and what converts it.
pub fn utf8(bytes: Vec<u8>) -> io::Result<String> {
    refuse_utf16(&bytes)?;
    let wrong = |_| io::Error::new(ErrorKind::InvalidData, "it is not in UTF-8");
    String::from_utf8(bytes).map_err(wrong)
}

/// Refuses a text in UTF-16. Every second byte of such a text is zero, which no error about a line would show.
pub fn refuse_utf16(bytes: &[u8]) -> io::Result<()> {
    if bytes.starts_with(&[0xff, 0xfe]) || bytes.starts_with(&[0xfe, 0xff]) {
        let cause = "it is in UTF-16: `iconv -f UTF-16 -t UTF-8` converts it";
        return Err(io::Error::other(cause));
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nouns_follow_their_number() {
        assert_eq!([count(1, "host"), count(0, "host")], ["1 host", "0 hosts"]);
        assert_eq!(count(2, "helper process"), "2 helper processes");
    }

    #[test]
    fn long_lists_end_in_a_count() {
        assert_eq!(list(&["a", "b"]), "a, b");
        assert_eq!(list(&[0; 20]), "0, 0, 0, 0, 0, 0, 0, 0, and 12 more");
    }

    #[test]
    fn consecutive_numbers_are_a_range() {
        assert_eq!(ranges([0, 1, 2, 5, u32::MAX], usize::MAX), "0-2,5,4294967295");
        assert_eq!(ranges([0, 2, 4, 6, 7, 9], 2), "0,2 and 4 more");
        assert_eq!(ranges([], 4), "");
    }

    #[test]
    fn a_near_name_is_found_and_a_far_one_is_not() {
        let known = ["transport", "timeout", "tag-output"];
        assert_eq!(nearest("tiemout", known), Some("timeout"));
        assert_eq!(nearest("tran", known), Some("transport"));
        assert_eq!(nearest("xyz", known), None);
        assert_eq!(nearest("J", ["np"]), None);
        assert_eq!([nearest("xy", ["np"]), nearest("pn", ["np"])], [None; 2]);
        assert_eq!(nearest("n", ["np"]), None);
        assert_eq!(nearest("npp", ["np"]), Some("np"));
    }

    #[test]
    fn a_text_in_another_encoding_says_what_converts_it() {
        assert_eq!(utf8("ä".into()).unwrap(), "ä");
        for bytes in [&b"\xff\xfea\0"[..], b"\xfe\xff\0a"] {
            let error = utf8(bytes.to_vec()).unwrap_err().to_string();
            assert!(error.contains("`iconv -f UTF-16 -t UTF-8`"), "{error}");
        }
        assert_eq!(utf8(b"\xe4".to_vec()).unwrap_err().kind(), ErrorKind::InvalidData);
    }
}
