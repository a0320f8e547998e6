//! Command lines: words quoted for shells, and values of secrets left out of records and errors.

use rlaunch_bootstrap::env::{is_secret, redacted, redacted_value};
use std::ffi::{OsStr, OsString};
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

/// Options of mpiexec that are followed by the name and the value of a variable, as two words.
const VARIABLES: [&str; 3] = ["-env", "-genv", "--genv"];

/// Replaces secret values in a command line. A value is secret if its name suggests that, as in
/// `-x API_KEY=…`, `--env=API_KEY=…`, `--token=…`, `--token …`, `-token …` or `-genv API_KEY …`; passwords
/// in URLs are secret as well.
pub fn without_secrets(words: &[OsString]) -> Vec<String> {
    let mut kept: Vec<String> = Vec::with_capacity(words.len());
    let (mut is_value, mut of_variable) = (false, false);
    for word in words {
        let word = word.to_string_lossy();
        let is_variable = kept.last().is_some_and(|last| VARIABLES.contains(&last.as_str()));
        // `-xNAME` takes its value from the environment, and the next word is the program.
        let is_option = word.len() > 2 && word.starts_with('-') && !word.starts_with("-x");
        let can_name = is_option || is_variable;
        let names_secret = can_name && !word.contains('=') && is_secret(&word);
        kept.push(if is_value && (of_variable || !word.starts_with('-')) {
            redacted_value(kept.last().map_or("", String::as_str), &word)
        } else {
            redacted(&word)
        });
        is_value = names_secret;
        of_variable = is_variable;
    }
    kept
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

    fn kept(line: &str) -> String {
        let words: Vec<OsString> = line.split(' ').map(OsString::from).collect();
        without_secrets(&words).join(" ")
    }

    #[test]
    fn values_of_secrets_are_left_out() {
        let hidden = "(set, 3 chars)";
        assert_eq!(kept("-x HF_TOKEN=a=b p"), format!("-x HF_TOKEN={hidden} p"));
        assert_eq!(kept("-xHF_TOKEN=a=b p"), format!("-xHF_TOKEN={hidden} p"));
        assert_eq!(kept("--env=API_KEY=abc p"), format!("--env=API_KEY={hidden} p"));
        assert_eq!(kept("p --api-key abc --lr 1"), format!("p --api-key {hidden} --lr 1"));
        assert_eq!(kept("-genv API_KEY abc p"), format!("-genv API_KEY {hidden} p"));
        assert_eq!(kept("-env API_KEY -bc p"), format!("-env API_KEY {hidden} p"));
        assert_eq!(
            kept("-genv A b -genv API_KEY=abc"),
            format!("-genv A b -genv API_KEY={hidden}")
        );
        assert_eq!(kept("p --api-key=abc"), format!("p --api-key={hidden}"));
        assert_eq!(
            kept("p -db-pwd abc --to pg://u:abc@d"),
            format!("p -db-pwd {hidden} --to pg://u:{hidden}@d")
        );
        assert_eq!(kept("p {\"password\":\"a\"}"), "p {\"password\":(set, 4 chars)");
    }

    #[test]
    fn all_else_stays() {
        for line in [
            "rlaunch -H a:2,b -x A=1 p --lr=0.1", "p --token --lr 1", "-x HF_TOKEN p",
            "-xHF_TOKEN p",
        ] {
            assert_eq!(kept(line), line);
        }
    }
}
