//! Numbers in lines, for `--fold=numbers`.

use std::ops::Range;

/// Byte that stands for a number in a mask. Lines that contain it are not folded with others by mistake, since it
/// stands for itself there.
const PLACE: u8 = 0;

/// Returns a line with a placeholder for each of its numbers.
pub(super) fn mask(line: &[u8]) -> Vec<u8> {
    let mut masked = Vec::with_capacity(line.len());
    let mut end = 0;
    for number in numbers(line) {
        masked.extend_from_slice(&line[end..number.start]);
        masked.push(PLACE);
        end = number.end;
    }
    masked.extend_from_slice(&line[end..]);
    masked
}

/// Merges lines of one mask: numbers that differ become `MIN..MAX`.
pub(super) fn merge(mut lines: Vec<Vec<u8>>) -> Vec<u8> {
    if lines.len() < 2 {
        return lines.pop().unwrap_or_default();
    }
    let mut cursors: Vec<_> = lines.iter().map(|line| (line, numbers(line))).collect();
    let (mut merged, mut end) = (Vec::new(), 0);
    for number in numbers(&lines[0]) {
        merged.extend_from_slice(&lines[0][end..number.start]);
        let texts = cursors.iter_mut().filter_map(|(line, at)| line.get(at.next()?));
        merged.extend_from_slice(&span(texts));
        end = number.end;
    }
    merged.extend_from_slice(&lines[0][end..]);
    merged
}

/// Returns the range of the numbers with these texts.
fn span<'a>(texts: impl Iterator<Item = &'a [u8]>) -> Vec<u8> {
    let value = |text: &[u8]| std::str::from_utf8(text).ok().and_then(|text| text.parse().ok());
    let mut texts: Vec<(f64, &[u8])> =
        texts.map(|text| (value(text).unwrap_or(f64::NAN), text)).collect();
    texts.sort_by(|(one, _), (other, _)| one.total_cmp(other));
    match (texts.first(), texts.last()) {
        (Some((low, first)), Some((high, last))) if low < high => {
            [first, &b".."[..], last].concat()
        }
        (Some((_, first)), _) => first.to_vec(),
        _ => Vec::new(),
    }
}

/// Finds the numbers in a line, such as `7`, `-0.17` or `1e-05`.
fn numbers(line: &[u8]) -> impl Iterator<Item = Range<usize>> + '_ {
    let mut at = 0;
    std::iter::from_fn(move || {
        at += line[at..].iter().position(u8::is_ascii_digit)?;
        let is_negative = line[..at].ends_with(b"-")
            && line[..at - 1].last().is_none_or(|before| b" \t=:([,".contains(before));
        let start = at - usize::from(is_negative);
        at = end_of_number(line, at);
        Some(start..at)
    })
}

/// Returns the end of the number whose first digit is at `start`.
fn end_of_number(line: &[u8], start: usize) -> usize {
    let digits = |from: usize| line[from..].iter().take_while(|byte| byte.is_ascii_digit()).count();
    let mut end = start + digits(start);
    if line.get(end) == Some(&b'.') && digits(end + 1) > 0 {
        end += 1 + digits(end + 1);
    }
    if matches!(line.get(end), Some(b'e' | b'E')) {
        let sign = usize::from(matches!(line.get(end + 1), Some(b'+' | b'-')));
        let exponent = end + 1 + sign;
        if exponent < line.len() && digits(exponent) > 0 {
            end = exponent + digits(exponent);
        }
    }
    end
}

#[cfg(test)]
mod tests {
    use super::*;

    fn found(line: &str) -> Vec<&str> {
        numbers(line.as_bytes()).map(|range| &line[range]).collect()
    }

    fn merged(lines: &[&str]) -> String {
        let lines = lines.iter().map(|line| line.as_bytes().to_vec()).collect();
        String::from_utf8(merge(lines)).unwrap()
    }

    #[test]
    fn numbers_of_all_forms_are_found() {
        assert_eq!(
            found("loss=-0.17 lr 1e-05 2.5E+3 v1.2.3."),
            ["-0.17", "1e-05", "2.5E+3", "1.2", "3"]
        );
        assert_eq!(found("a-7 node03 5e 6e+ 1.\n"), ["7", "03", "5", "6", "1"]);
        assert!(found("none").is_empty() && found("").is_empty());
    }

    #[test]
    fn lines_with_other_words_differ() {
        assert_eq!(mask(b"rank 3 of 8\n"), mask(b"rank 17 of -2.5\n"));
        assert_ne!(mask(b"rank 3 of 8\n"), mask(b"rank 3 of\n"));
    }

    #[test]
    fn ranges_are_by_value() {
        assert_eq!(merged(&["t 9 of 8\n", "t 10 of 8\n", "t 1e1 of 8\n"]), "t 9..1e1 of 8\n");
        assert_eq!(merged(&["1.0\n", "1\n"]), "1.0\n");
        assert_eq!(merged(&["alone 3\n"]), "alone 3\n");
    }
}
