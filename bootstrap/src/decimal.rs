//! Decimal numbers with a fraction, such as `1.5`, without floating-point numbers: parsing and
//! formatting those would be a hundredth of the agent.

use std::time::Duration;

/// Parses a number without a sign and without an exponent. Returns its whole part and the billionths of its fraction.
fn parse(text: &str) -> Option<(u64, u32)> {
    let (whole, part) = text.split_once('.').unwrap_or((text, ""));
    let is_number = |digits: &str| digits.bytes().all(|digit| digit.is_ascii_digit());
    if whole.len() + part.len() == 0 || !is_number(whole) || !is_number(part) {
        return None;
    }
    let whole = if whole.is_empty() { 0 } else { whole.parse().ok()? };
    let digits = part.bytes().chain(std::iter::repeat(b'0')).take(9);
    Some((whole, digits.fold(0, |sum, digit| sum * 10 + u32::from(digit - b'0'))))
}

/// Parses a number of seconds.
pub fn seconds(text: &str) -> Option<Duration> {
    parse(text.trim()).map(|(whole, billionths)| Duration::new(whole, billionths))
}

/// Parses a number, in thousandths; further digits are left out.
pub fn thousandths(text: &str) -> Option<u64> {
    let (whole, billionths) = parse(text.trim())?;
    whole.checked_mul(1000)?.checked_add(u64::from(billionths / 1_000_000))
}

/// Formats a time as seconds, without zeros at the end.
pub fn in_seconds(time: Duration) -> String {
    let text = format!("{}.{:09}", time.as_secs(), time.subsec_nanos());
    text.trim_end_matches('0').trim_end_matches('.').to_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_have_a_fraction_or_none() {
        for (text, nanos) in [("1.5", 1_500_000_000), (" 3 ", 3_000_000_000), (".25", 250_000_000)]
        {
            assert_eq!(seconds(text), Some(Duration::from_nanos(nanos)), "{text}");
        }
        assert_eq!((thousandths("612.34"), thousandths("7.")), (Some(612_340), Some(7000)));
        assert_eq!(thousandths("0.1239999999999"), Some(123));
        for wrong in ["", ".", "-1", "1e3", "nan", "1.2.3", "1,5", "99999999999999999999"] {
            assert_eq!(seconds(wrong), None, "{wrong}");
        }
        assert_eq!(thousandths("18446744073709551615"), None);
    }

    #[test]
    fn times_are_shown_without_needless_zeros() {
        let shown = [300_000, 20, 1500, 0].map(|ms| in_seconds(Duration::from_millis(ms)));
        assert_eq!(shown, ["300", "0.02", "1.5", "0"]);
    }
}
