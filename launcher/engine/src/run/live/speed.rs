//! Speed of a program as its output tells it, such as `images/sec: 812.1`, `12.3it/s`, or `3.2 s/it`.

use serde::{Deserialize, Serialize};

/// Number of bytes at the end of an output in which speeds are looked for.
const TAIL: usize = 4 << 10;
/// Maximum length of a unit in bytes.
const MAX_UNIT: usize = 32;
/// Units of time after the slash of a rate.
const PER: [&str; 5] = ["s", "sec", "secs", "second", "seconds"];
/// Units of time before the slash of a duration, such as `s/it`.
const TIMES: [&str; 5] = ["us", "ms", "s", "sec", "seconds"];
/// Parts of a program's work, after the slash of a duration.
const STEPS: [&str; 6] = ["it", "iter", "iteration", "step", "batch", "sample"];

/// Speed that a rank has printed.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct PrintedSpeed {
    /// Above 0.
    pub value: f64,
    /// Unit with its slash, as the program prints it.
    pub unit: String,
}

impl PrintedSpeed {
    /// Finds the last speed in an output. Amounts of data per second are left out, since they are those of downloads.
    pub fn last_in(output: &[u8]) -> Option<PrintedSpeed> {
        let tail = &output[output.len().saturating_sub(TAIL)..];
        memchr::memrchr_iter(b'/', tail).find_map(|slash| PrintedSpeed::at(tail, slash))
    }

    /// Returns the number of steps per second, or of whatever the program counts. Speeds of one unit can be compared by
    /// it: more is faster.
    pub fn rate(&self) -> f64 {
        let is_duration = self.unit.split_once('/').is_some_and(|(_, step)| STEPS.contains(&step));
        if is_duration { 1.0 / self.value } else { self.value }
    }

    /// Returns the number per second of what the program counts, and its unit, as in `it/s`. What programs print as
    /// `it/s` and as `s/it`, or as `tokens/sec` and as `tokens/s`, is the same then.
    pub fn per_second(&self) -> (f64, String) {
        let (before, behind) = self.unit.split_once('/').unwrap_or((self.unit.as_str(), "s"));
        if !STEPS.contains(&behind) {
            return (self.value, format!("{before}/s"));
        }
        let per_unit = match before {
            "us" => 1e6,
            "ms" => 1e3,
            _ => 1.0,
        };
        (per_unit / self.value, format!("{behind}/s"))
    }

    /// Parses the speed whose unit has its slash at an index of `text`.
    fn at(text: &[u8], slash: usize) -> Option<PrintedSpeed> {
        let is_letter = |byte: &u8| byte.is_ascii_alphabetic() || *byte == b'_';
        let (head, rest) = (&text[..slash], &text[slash + 1..]);
        let counted = head.iter().rev().take_while(|byte| is_letter(byte)).count();
        let (head, counted) = head.split_at(head.len() - counted);
        let (per, rest) = rest.split_at(rest.iter().take_while(|byte| is_letter(byte)).count());
        let (counted, per) = (std::str::from_utf8(counted).ok()?, std::str::from_utf8(per).ok()?);
        let is_rate = PER.contains(&per) && !counted.is_empty() && !is_data(counted);
        let is_duration = TIMES.contains(&counted) && STEPS.contains(&per);
        if !is_rate && !is_duration {
            return None;
        }
        // `/tmp/s 7` is no rate.
        let bare = || if is_rate { None } else { after(rest, false) };
        let told = behind_devices(rest);
        // In `1 images/sec: nan` the number is a step's.
        if is_no_number(told) {
            return None;
        }
        let value = after(told, true).or_else(|| before(head)).or_else(bare)?;
        let is_speed = value.is_finite() && value > 0.0 && counted.len() + per.len() < MAX_UNIT;
        is_speed.then(|| PrintedSpeed { value, unit: format!("{counted}/{per}") })
    }
}

/// Tells whether a unit is an amount of data, such as `MiB`, `Gbit` or `bytes`.
fn is_data(unit: &str) -> bool {
    let unit = unit.trim_start_matches(['k', 'K', 'M', 'G', 'T']);
    matches!(unit.trim_start_matches('i'), "B" | "b" | "bit" | "bits" | "bytes" | "byte")
}

/// Returns what follows the devices that a total is of: `img/sec on 2 GPU(s): 580.3`.
fn behind_devices(rest: &[u8]) -> &[u8] {
    let devices = rest.strip_prefix(b" on ").unwrap_or_default();
    let colon = memchr::memchr(b':', &devices[..devices.len().min(MAX_UNIT)]);
    colon.map_or(rest, |colon| &rest[b" on ".len() + colon..])
}

/// Parses the number after a unit. With `separated` a colon or an equals sign must stand between them.
fn after(rest: &[u8], separated: bool) -> Option<f64> {
    let rest = rest.trim_ascii_start();
    let rest = match rest.split_first() {
        Some((b':' | b'=', rest)) => rest.trim_ascii_start(),
        _ if separated => return None,
        _ => rest,
    };
    let length = rest.iter().take_while(|byte| is_of_number(byte)).count();
    number(&rest[..length])
}

/// Tells whether a value stands after a unit that is no number or infinite.
fn is_no_number(rest: &[u8]) -> bool {
    let Some((b':' | b'=', value)) = rest.trim_ascii_start().split_first() else { return false };
    let first = value.trim_ascii_start().get(..3).unwrap_or_default();
    first.eq_ignore_ascii_case(b"nan") || first.eq_ignore_ascii_case(b"inf")
}

/// Parses the number before a unit. What is glued to a word, such as `v2`, is none.
fn before(head: &[u8]) -> Option<f64> {
    let head = head.trim_ascii_end();
    let length = head.iter().rev().take_while(|byte| is_of_number(byte)).count();
    let (front, text) = head.split_at(head.len() - length);
    if front.last().is_some_and(u8::is_ascii_alphabetic) { None } else { number(text) }
}

fn is_of_number(byte: &u8) -> bool {
    byte.is_ascii_digit() || b".,_+-eE".contains(byte)
}

/// Parses a number as programs print it: `1205.5`, `1,205.5`, `1_205`, `1,5` (a comma that no three digits follow), `1.2e+03`.
fn number(text: &[u8]) -> Option<f64> {
    let text = std::str::from_utf8(text).ok()?.trim_end_matches(['.', ',', 'e', 'E', '+', '-']);
    let text = if text.starts_with("..") { text.trim_start_matches('.') } else { text };
    let (mantissa, exponent) = text.split_at(text.find(['e', 'E']).unwrap_or(text.len()));
    let whole = mantissa.split_once('.').map_or(mantissa, |(whole, _)| whole);
    let is_grouped = whole.split(',').skip(1).all(|group| group.len() == 3);
    let mantissa = match mantissa.split_once(',') {
        _ if mantissa
            .rsplit('.')
            .next()
            .is_some_and(|part| part.len() < mantissa.len() && part.contains(',')) =>
        {
            return None;
        }
        Some((whole, part)) if !is_grouped && !part.contains([',', '.']) => {
            format!("{whole}.{part}")
        }
        Some(_) if !is_grouped => return None,
        _ => mantissa.replace(',', ""),
    };
    format!("{}{exponent}", mantissa.replace('_', "")).parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn last(output: &str) -> Option<(f64, String)> {
        PrintedSpeed::last_in(output.as_bytes()).map(|speed| (speed.value, speed.unit))
    }

    #[test]
    fn speeds_of_common_programs_are_found() {
        for (line, value, unit) in [
            ("10\timages/sec: 813.1 +/- 0.0 (jitter = 0.0)\t7.9\n", 813.1, "images/sec"),
            ("Iter #3: 1,205.5 img/sec per GPU\n", 1205.5, "img/sec"),
            ("Total img/sec on 2 GPU(s): 580.3 +-2.4", 580.3, "img/sec"),
            (" 12%|#  | 10/80 [00:10<01:20,  12.31it/s, loss=0.3]\r", 12.31, "it/s"),
            (" 12%|#  | 10/80 [00:10<01:20, 1.52s/it]\r", 1.52, "s/it"),
            ("| epoch 1 | lr 20.00 | ms/batch 11.50 | loss 5.1", 11.5, "ms/batch"),
            ("tokens/s=90210.\n", 90210.0, "tokens/s"),
            ("1.2e+04 tokens/s", 12_000.0, "tokens/s"),
            ("tokens/sec: 1.2e4, loss 3", 12_000.0, "tokens/sec"),
            ("2e-3 s/it", 0.002, "s/it"),
            ("it/s: .5", 0.5, "it/s"),
            ("1_234 tok/s", 1234.0, "tok/s"),
            ("1,5 it/s", 1.5, "it/s"),
            ("5 images/s\n6 images/s\nsaved /tmp/s 7\n", 6.0, "images/s"),
        ] {
            assert_eq!(last(line), Some((value, unit.to_owned())), "{line}");
        }
    }

    #[test]
    fn other_slashes_are_no_speeds() {
        for line in [
            "epoch 3/10 loss 0.5",
            "/usr/s 5",
            "12/s",
            "downloaded at 120.5 MB/s",
            "3 GiB/s",
            "0 images/s",
            "images/s: none",
            "and/or 7",
            "7 aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa/s",
            "/",
            "",
        ] {
            assert_eq!(last(line), None, "{line}");
        }
    }

    #[test]
    fn one_speed_has_one_unit() {
        let per_second = |value, unit: &str| PrintedSpeed { value, unit: unit.into() }.per_second();
        for (value, unit, expected) in [
            (4.0, "it/s", (4.0, "it/s")),
            (0.25, "s/it", (4.0, "it/s")),
            (20.0, "ms/batch", (50.0, "batch/s")),
            (7.0, "tokens/sec", (7.0, "tokens/s")),
        ] {
            assert_eq!(per_second(value, unit), (expected.0, expected.1.to_owned()), "{unit}");
        }
    }

    #[test]
    fn a_shorter_step_is_faster() {
        let rate = |value, unit: &str| PrintedSpeed { value, unit: unit.into() }.rate();
        assert_eq!((rate(2.0, "s/it"), rate(2.0, "it/s")), (0.5, 2.0));
    }
}
