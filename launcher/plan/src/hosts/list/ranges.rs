//! Host names with ranges in Slurm's syntax: `n[01-16,20]`, `rack[1-2]n[1-4]`.

/// Maximum number of hosts that the `-H` options or a host file may name.
pub const MAX_HOSTS: usize = 65_536;
/// Maximum number of digits of a number in a range, so that the number fits 64 bits.
const MAX_DIGITS: usize = 18;

/// Error in the ranges of a host name.
#[derive(Debug, PartialEq, Eq, thiserror::Error)]
pub enum RangeError {
    #[error("a bracket is not closed")]
    NotClosed,
    #[error("a bracket is closed that was never opened")]
    NotOpened,
    #[error("`{0}` is neither a number nor a range like 01-16")]
    NoRange(String),
    #[error("`{0}` runs backwards")]
    Backwards(String),
    #[error("more than {MAX_HOSTS} hosts")]
    TooMany,
}

/// Numbers from `first` to `last`, both included, padded with zeros to `digits` digits.
struct Range {
    first: u64,
    last: u64,
    digits: usize,
}

impl Range {
    fn parse(text: &str) -> Result<Range, RangeError> {
        let (first, last) = text.split_once('-').unwrap_or((text, text));
        let number = |digits: &str| {
            let is_number = !digits.is_empty() && digits.bytes().all(|byte| byte.is_ascii_digit());
            let fits = is_number && digits.len() <= MAX_DIGITS;
            digits.parse().ok().filter(|_: &u64| fits)
        };
        let (Some(low), Some(high)) = (number(first), number(last)) else {
            return Err(RangeError::NoRange(text.to_owned()));
        };
        if low > high {
            return Err(RangeError::Backwards(text.to_owned()));
        }
        let digits = if first.starts_with('0') { first.len() } else { 0 };
        Ok(Range { first: low, last: high, digits })
    }

    fn count(&self) -> u64 {
        (self.last - self.first).saturating_add(1)
    }

    fn numbers(&self) -> impl Iterator<Item = String> {
        let digits = self.digits;
        (self.first..=self.last).map(move |number| format!("{number:0digits$}"))
    }
}

/// Splits a list of hosts at the commas that are not in brackets, and trims the entries.
pub fn entries(list: &str) -> impl Iterator<Item = &str> {
    let mut is_inside = false;
    let is_separator = move |letter: char| {
        is_inside = if is_inside { letter != ']' } else { letter == '[' };
        letter == ',' && !is_inside
    };
    list.split(is_separator).map(str::trim)
}

/// Expands a host name with ranges to all names that it stands for. With several ranges these are all
/// combinations, in which the last range varies fastest.
pub fn expand(name: &str) -> Result<Vec<String>, RangeError> {
    let mut parts: Vec<(&str, Vec<Range>)> = Vec::new();
    let mut rest = name;
    while let Some((before, behind)) = rest.split_once('[') {
        let (inside, behind) = behind.split_once(']').ok_or(RangeError::NotClosed)?;
        let ranges = inside.split(',').map(str::trim).map(Range::parse);
        parts.push((before, ranges.collect::<Result<_, _>>()?));
        rest = behind;
    }
    if rest.contains(']') || parts.iter().any(|(before, _)| before.contains(']')) {
        return Err(RangeError::NotOpened);
    }
    let counts = parts.iter().map(|(_, ranges)| {
        ranges.iter().fold(0u64, |count, range| count.saturating_add(range.count()))
    });
    if counts.fold(1u64, u64::saturating_mul) > MAX_HOSTS as u64 {
        return Err(RangeError::TooMany);
    }
    let mut names = vec![String::new()];
    for (before, ranges) in &parts {
        let longer = |name: &String| {
            let numbers = ranges.iter().flat_map(Range::numbers);
            numbers.map(|number| format!("{name}{before}{number}")).collect::<Vec<_>>()
        };
        names = names.iter().flat_map(longer).collect();
    }
    names.iter_mut().for_each(|name| name.push_str(rest));
    Ok(names)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn ranges_keep_their_zeros_and_multiply() {
        assert_eq!(expand("a").unwrap(), ["a"]);
        assert_eq!(expand("n[08-11,20]").unwrap(), ["n08", "n09", "n10", "n11", "n20"]);
        assert_eq!(expand("n[8-11].x").unwrap(), ["n8.x", "n9.x", "n10.x", "n11.x"]);
        assert_eq!(expand("r[1-2]n[0,7]").unwrap(), ["r1n0", "r1n7", "r2n0", "r2n7"]);
        assert_eq!(expand("n[098-101]").unwrap(), ["n098", "n099", "n100", "n101"]);
        assert_eq!(expand("n[0]").unwrap(), ["n0"]);
        assert_eq!(expand("n[00001-65536]").unwrap().len(), MAX_HOSTS);
    }

    #[test]
    fn mistakes_are_named() {
        let error = |name: &str| expand(name).unwrap_err();
        assert_eq!(error("n[1-3"), RangeError::NotClosed);
        assert_eq!(error("n1-3]"), RangeError::NotOpened);
        assert_eq!(error("n]1[1-3]"), RangeError::NotOpened);
        assert_eq!(error("n[3-1]"), RangeError::Backwards("3-1".into()));
        for bad in ["n[]", "n[1-]", "n[a-c]", "n[1,]", "n[-3]", "n[[1]", "n[1-2-3]", "n[+1]"] {
            assert!(matches!(error(bad), RangeError::NoRange(_)), "{bad}");
        }
        assert_eq!(error("n[1-65537]"), RangeError::TooMany);
        assert_eq!(error("n[1-300]m[1-300]"), RangeError::TooMany);
        assert_eq!(error("n[0-999999999999999999,0-999999999999999999]"), RangeError::TooMany);
        assert!(matches!(error("n[0-9999999999999999999]"), RangeError::NoRange(_)));
    }

    #[test]
    fn commas_in_brackets_separate_nothing() {
        let of = |list: &'static str| entries(list).collect::<Vec<_>>();
        assert_eq!(of("a, n[1,2]:4,[fd00::2]:2"), ["a", "n[1,2]:4", "[fd00::2]:2"]);
        assert_eq!(of("n[1,2,b"), ["n[1,2,b"]);
        assert_eq!(of("a],b"), ["a]", "b"]);
        assert_eq!(of(""), [""]);
    }

    proptest! {
        #[test]
        fn a_range_has_the_names_that_counting_gives(first in 0..2000u64, more in 0..50u64, digits in 1..6usize) {
            let text = format!("n[{first:0digits$}-{}]x", first + more);
            // Numbers are padded only where the first begins with a zero.
            let wide = if format!("{first:0digits$}").starts_with('0') { digits } else { 0 };
            let expected: Vec<String> =
                (first..=first + more).map(|n| format!("n{n:0wide$}x")).collect();
            prop_assert_eq!(expand(&text).unwrap(), expected);
        }

        #[test]
        fn anything_is_names_or_an_error(text in "[a0-9,\\[\\]-]{0,24}|.{0,20}") {
            if let Ok(names) = expand(&text) {
                prop_assert!(!names.is_empty() && names.len() <= MAX_HOSTS);
                prop_assert!(names.iter().all(|name| !name.contains(['[', ']'])));
            }
        }
    }
}
