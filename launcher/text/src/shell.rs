//! Quoting of words for shells.

use std::ffi::OsStr;
use std::fmt::Write;
use std::os::unix::ffi::OsStrExt;

/// Quotes a word for display and for pasting into a shell; a word without special characters stays as it
/// is. The result is a single line: control characters and invalid UTF-8 are escaped in `$'…'`, which bash,
/// zsh and ksh understand.
pub fn quoted(word: &OsStr) -> String {
    let is_plain = |c: char| c.is_ascii_alphanumeric() || "-_./,:=+@%^".contains(c);
    match word.to_str() {
        Some(text) if !text.is_empty() && text.chars().all(is_plain) => text.to_owned(),
        Some(text) if !text.chars().any(char::is_control) => quoted_posix(text),
        _ => format!("$'{}'", escaped(word.as_bytes())),
    }
}

/// Quotes text as one word for any POSIX shell, for use in scripts. The result may have several lines.
pub fn quoted_posix(text: &str) -> String {
    format!("'{}'", text.replace('\'', r"'\''"))
}

fn escaped(bytes: &[u8]) -> String {
    let mut text = String::new();
    for chunk in bytes.utf8_chunks() {
        for c in chunk.valid().chars() {
            match c {
                '\'' | '\\' => text.extend(['\\', c]),
                '\n' => text.push_str("\\n"),
                '\t' => text.push_str("\\t"),
                c if c.is_control() => escape(&mut text, c.encode_utf8(&mut [0; 4]).as_bytes()),
                c => text.push(c),
            }
        }
        escape(&mut text, chunk.invalid());
    }
    text
}

fn escape(text: &mut String, bytes: &[u8]) {
    for byte in bytes {
        let _ = write!(text, "\\x{byte:02x}");
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn words_are_quoted_where_a_shell_would_take_them_apart() {
        let shown = |word: &[u8]| quoted(OsStr::from_bytes(word));
        assert_eq!(shown(b"--lr=0.1"), "--lr=0.1");
        assert_eq!(shown(b""), "''");
        assert_eq!(shown(b"a 'b' $c"), r"'a '\''b'\'' $c'");
        assert_eq!(shown("für".as_bytes()), "'für'");
        assert_eq!(shown(b"it's\nx\\\x1b"), r"$'it\'s\nx\\\x1b'");
        assert_eq!(shown(b"a\xffb"), r"$'a\xffb'");
    }
}
