//! `--fold=numbers`: lines that differ in numbers alone are equal, and these numbers are shown as ranges. Functions that
//! find, mask and merge the numbers of lines.

use std::cmp::Reverse;
use std::ops::Range;

/// Byte that stands for a number in a mask. A digit, since a mask has none that belongs to the line's other bytes.
const PLACE: u8 = b'0';

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
    let texts: Vec<(Value, &[u8])> = texts.map(|text| (value(text), text)).collect();
    let low = texts.iter().min_by(|(one, _), (other, _)| one.cmp(other));
    let high = texts.iter().max_by(|(one, _), (other, _)| one.cmp(other));
    match (low, high) {
        (Some((low, first)), Some((high, last))) if low < high => {
            [first, &b".."[..], last].concat()
        }
        (Some((_, first)), _) => first.to_vec(),
        _ => Vec::new(),
    }
}

/// Value of a number, exact however many digits it has: a step counter may be above 2^53.
#[derive(PartialEq, Eq, PartialOrd, Ord)]
enum Value {
    Negative(Reverse<Magnitude>),
    Zero,
    Positive(Magnitude),
}

/// Power of ten of a number's first digit, and its digits, from the first to the last that is not zero.
type Magnitude = (i64, Vec<u8>);

/// Returns the value of a number that [`numbers`] has found.
fn value(text: &[u8]) -> Value {
    let number = text.strip_prefix(b"-").unwrap_or(text);
    let end = number.iter().position(|byte| matches!(byte, b'e' | b'E'));
    let mantissa = &number[..end.unwrap_or(number.len())];
    let exponent = end.map_or(0, |end| exponent(&number[end + 1..]));
    let whole = mantissa.iter().position(|&byte| byte == b'.').unwrap_or(mantissa.len());
    let digits: Vec<u8> = mantissa.iter().copied().filter(u8::is_ascii_digit).collect();
    let is_counted = |digit: &u8| *digit != b'0';
    let (Some(first), Some(last)) =
        (digits.iter().position(is_counted), digits.iter().rposition(is_counted))
    else {
        return Value::Zero;
    };
    let magnitude = (exponent + whole as i64 - first as i64, digits[first..=last].to_vec());
    if number.len() == text.len() {
        Value::Positive(magnitude)
    } else {
        Value::Negative(Reverse(magnitude))
    }
}

/// Returns an exponent; one beyond all that programs print as a very large one.
fn exponent(text: &[u8]) -> i64 {
    let beyond: i64 = if text.starts_with(b"-") { -(1 << 40) } else { 1 << 40 };
    let parsed = std::str::from_utf8(text).ok().and_then(|text| text.parse::<i32>().ok());
    parsed.map_or(beyond, i64::from)
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
        // A zero byte is no number.
        assert_ne!(mask(b"a\0b\n"), mask(b"a5b\n"));
    }

    #[test]
    fn ranges_are_by_value() {
        assert_eq!(merged(&["t 9 of 8\n", "t 10 of 8\n", "t 1e1 of 8\n"]), "t 9..1e1 of 8\n");
        assert_eq!(merged(&["1.0\n", "1\n"]), "1.0\n");
        assert_eq!(merged(&["-0 -3\n", "0.0 -20\n"]), "-0 -20..-3\n");
        assert_eq!(merged(&["0.05 7\n", "5e-2 0\n", "0.5e-1 -1\n"]), "0.05 -1..7\n");
        assert_eq!(merged(&["alone 3\n"]), "alone 3\n");
    }

    #[test]
    fn numbers_of_any_length_have_their_own_value() {
        let (low, high) = ("9007199254740992", "9007199254740993");
        let lines = [format!("{high}\n"), format!("{low}\n")];
        assert_eq!(merged(&[&lines[0], &lines[1]]), format!("{low}..{high}\n"));
        assert_eq!(merged(&["1e400\n", "1e399\n"]), "1e399..1e400\n");
    }
}
