//! Text of other programs, made safe for a terminal.
//!
//! A message may quote text from a host, a command or a file. Such text can contain escape sequences that
//! change the clipboard or the window title, characters that reverse the direction of a line, or a thousand
//! lines. The functions here make such characters visible and shorten long text. The output of ranks does
//! not pass through here: it is printed unchanged.

use rlaunch_bootstrap::shell_safe::is_invisible;
use std::borrow::Cow;
use std::fmt::Write;
use std::ops::RangeInclusive;

/// Maximum length of text quoted from another program, in characters.
pub const LONGEST_QUOTE: usize = 300;
/// Maximum length of a line of a message, in characters; even an RSA key of 16384 bits is shorter.
const LONGEST_LINE: usize = 4096;
/// Maximum length of a message, in bytes, beyond which further lines are left out.
const LONGEST_MESSAGE: usize = 256 << 10;

/// Returns the first line of another program's text: without spaces at its ends, shortened to
/// [`LONGEST_QUOTE`], and escaped.
pub fn first_line(text: &str) -> String {
    let text = text.trim();
    let first = text.lines().next().unwrap_or_default();
    escaped(&bounded(first.trim_end(), LONGEST_QUOTE)).into_owned()
}

/// Escapes invisible characters other than tabs and line breaks, in text of any length; `"\r\n"` becomes
/// `"\n"`. JSON text keeps its meaning, because escapes such as `\u202e` are valid in JSON strings.
pub fn text(text: &str) -> Cow<'_, str> {
    if text.lines().all(|line| !line.contains(is_escaped)) && !text.contains('\r') {
        return Cow::Borrowed(text);
    }
    let shown = |line: &str| {
        let (line, end) = match line.strip_suffix('\n') {
            // Windows line ends in `"\r\n"`.
            Some(line) => (line.strip_suffix('\r').unwrap_or(line), "\n"),
            None => (line, ""),
        };
        format!("{}{end}", escaped(line))
    };
    Cow::Owned(text.split_inclusive('\n').map(shown).collect())
}

/// Shortens and escapes each line of a message, and the message. Lines after the first are indented, so that quoted text
/// cannot look like a separate message.
pub fn message(words: &str) -> String {
    let mut lines = words.split('\n').map(|line| bounded(line, LONGEST_LINE));
    let mut joined = lines.next().unwrap_or_default().into_owned();
    for line in lines {
        if joined.len() > LONGEST_MESSAGE {
            joined.push_str("\n  …");
            break;
        }
        let indent = if line.is_empty() || line.starts_with(' ') { "" } else { "  " };
        let _ = write!(joined, "\n{indent}{line}");
    }
    text(&joined).into_owned()
}

/// What the standard library puts before the system's words on a name that cannot be looked up.
const LOOKUP: &str = "failed to lookup address information: ";

/// Removes from a message what Rust's standard library adds to the system's words, such as ` (os error 2)`.
pub fn without_codes(text: &str) -> String {
    const CODE: &str = " (os error ";
    let text = text.replace(LOOKUP, "");
    let (mut plain, mut rest) = (String::with_capacity(text.len()), text.as_str());
    while let Some((before, after)) = rest.split_once(CODE) {
        plain.push_str(before);
        rest = match after.split_once(')') {
            Some((code, after)) if code.parse::<i32>().is_ok() => after,
            _ => {
                plain.push_str(CODE);
                after
            }
        };
    }
    plain + rest
}

fn bounded(line: &str, most: usize) -> Cow<'_, str> {
    match line.char_indices().nth(most) {
        Some((end, _)) => Cow::Owned(format!("{}…", &line[..end])),
        None => Cow::Borrowed(line),
    }
}

/// Replaces ASCII control characters other than tabs by escapes such as `\x1b`, and other invisible
/// characters by escapes such as `\u202e`, which are also valid in JSON. The form `\x1b` does not occur in
/// JSON text, which has no unescaped ASCII control characters.
fn escaped(line: &str) -> Cow<'_, str> {
    if !line.contains(is_escaped) {
        return Cow::Borrowed(line);
    }
    let mut shown = String::with_capacity(line.len() + 16);
    for c in line.chars() {
        let _ = match c {
            '\t' => write!(shown, "{c}"),
            '\0'..' ' => write!(shown, "\\x{:02x}", u32::from(c)),
            c if is_invisible(c) => {
                let mut units = [0; 2];
                let mut units = c.encode_utf16(&mut units).iter();
                units.try_for_each(|unit| write!(shown, "\\u{unit:04x}"))
            }
            c => write!(shown, "{c}"),
        };
    }
    Cow::Owned(shown)
}

fn is_escaped(c: char) -> bool {
    c != '\t' && is_invisible(c)
}

/// Returns the end of the escape sequence that begins at `start`. Of one that is not whole, only its beginning belongs to it,
/// so that no text behind it is lost.
pub fn escape_end(text: &[u8], start: usize) -> usize {
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
    use proptest::prelude::*;

    #[test]
    fn escapes_are_seen_and_do_nothing() {
        let clipboard = "\u{1b}]52;c;eA==\u{7}";
        assert_eq!(first_line(clipboard), "\\x1b]52;c;eA==\\x07");
        // The single C1 control character U+009D begins the same sequence on some terminals.
        assert_eq!(first_line("\u{9d}52;c;eA==\u{9c}"), "\\u009d52;c;eA==\\u009c");
        assert_eq!(first_line("a\u{202e}b\u{2066}c\u{7f}"), "a\\u202eb\\u2066c\\u007f");
        assert_eq!(first_line("\u{e0041}"), "\\udb40\\udc41");
        assert_eq!(first_line("  one\r\ntwo"), "one");
        assert_eq!(first_line("x\ry"), "x\\x0dy");
        assert_eq!(first_line("Zugriff für 日本語\tok"), "Zugriff für 日本語\tok");
        assert_eq!(first_line(&"é".repeat(400)), "é".repeat(LONGEST_QUOTE) + "…");
    }

    #[test]
    fn lines_stay_lines_and_none_pretends_to_be_a_heading() {
        assert_eq!(text("a\r\nb\n\u{1b}c\n"), "a\nb\n\\x1bc\n");
        assert_eq!(text(&"x".repeat(5000)), "x".repeat(5000));
        assert_eq!(message(&"x".repeat(5000)), "x".repeat(LONGEST_LINE) + "…");
        let long = message(&"x\n".repeat(10 << 20));
        assert!(long.len() < LONGEST_MESSAGE + 100 && long.ends_with("x\n  …"), "{}", long.len());
        assert_eq!(message("cause\nerror: no"), "cause\n  error: no");
        assert_eq!(message("run:\n  a\n  b"), "run:\n  a\n  b");
    }

    #[test]
    fn json_says_the_same_afterwards() {
        let value = "\u{9b}31m \u{7f} \u{202e} \u{e0041} \u{1b} é \n";
        let json = serde_json::to_string_pretty(&[value]).unwrap();
        let back: Vec<String> = serde_json::from_str(&text(&json)).unwrap();
        assert_eq!(back, [value]);
    }

    proptest! {
        #[test]
        fn nothing_hidden_is_left_of_anything(words in any::<String>()) {
            let seen = |c: char| c == '\n' || !is_escaped(c);
            prop_assert!(text(&words).chars().all(seen));
            prop_assert!(message(&words).chars().all(seen));
            let line = first_line(&words);
            prop_assert!(line.chars().all(|c| c != '\n' && seen(c)));
        }
    }

    #[test]
    fn errors_are_told_in_the_systems_words() {
        for (text, plain) in [
            ("x: No such file or directory (os error 2)", "x: No such file or directory"),
            ("refused (os error 111), nor to b: late (os error 110)", "refused, nor to b: late"),
            ("failed to lookup address information: unknown", "unknown"),
            ("odd (os error x), odder (os error 1", "odd (os error x), odder (os error 1"),
        ] {
            assert_eq!(without_codes(text), plain);
        }
    }

    #[test]
    fn a_sequence_ends_where_the_text_begins() {
        for sequence in [
            "\u{1b}[31m", "\u{1b}[?25l", "\u{1b}(B", "\u{1b}7", "\u{1b}]0;title\u{7}",
            "\u{1b}]8;;http://h/x\u{1b}\\", // Not whole.
            "\u{1b}[1;", "\u{1b}]", "\u{1b}",
        ] {
            let text = format!("a{sequence}äb");
            assert_eq!(&text[escape_end(text.as_bytes(), 1)..], "äb", "{sequence:?}");
        }
    }
}
