//! Quoting of words for shells, and words that were meant for one.

use rlaunch_bootstrap::env::redacted;
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

/// Words that are typed like programs but are part of shells. Few systems also have files of these names.
const OF_SHELLS: &[&str] = &[
    ".", "[[", "alias", "builtin", "cd", "command", "eval", "export", "for", "if", "module",
    "popd", "pushd", "set", "source", "time", "trap", "type", "ulimit", "umask", "unset", "wait",
    "while",
];

/// Returns advice on a program that does not exist, if it was meant for a shell: a line of several words, a
/// variable that is set before a program, or a builtin.
pub fn advice(program: &OsStr) -> Option<String> {
    let text = program.to_str()?;
    let shown = redacted(text);
    let is_of_lines = |c: char| c.is_whitespace() || "|&;<>$`".contains(c);
    if text.contains(is_of_lines) || text.starts_with('~') {
        let line = quoted(shown.as_ref());
        return Some(format!("it is one word; if it is a line for a shell: bash -c {line}"));
    }
    if let Some((name, _)) = text.split_once('=').filter(|(name, _)| is_variable(name)) {
        let word = quoted(shown.as_ref());
        return Some(format!("-x sets {name} for the ranks: rlaunch -x {word} PROGRAM"));
    }
    // Login shells alone know how to load modules.
    let options = if text == "module" { "-lc" } else { "-c" };
    let is_of_shells = OF_SHELLS.contains(&text);
    is_of_shells.then(|| format!("only shells understand `{text}`: bash {options} '{text} …'"))
}

fn is_variable(name: &str) -> bool {
    let is_part = |c: char| c.is_ascii_alphanumeric() || c == '_';
    !name.is_empty() && name.chars().all(is_part) && !name.starts_with(|c: char| c.is_ascii_digit())
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
    fn what_was_meant_for_a_shell_is_named() {
        let advice = |program: &str| advice(program.as_ref()).unwrap_or_default();
        for line in ["cd /tmp && ls", "python3 train.py", "ls|wc", "$HOME/bin/x", "~/x", "A=1 x"] {
            let expected = format!(": bash -c '{line}'");
            assert!(advice(line).ends_with(&expected), "{line}: {}", advice(line));
        }
        assert!(advice("FOO=1").ends_with(": rlaunch -x FOO=1 PROGRAM"), "{}", advice("FOO=1"));
        assert!(!advice("API_KEY=abc").contains("abc"), "{}", advice("API_KEY=abc"));
        assert!(advice("cd").ends_with(": bash -c 'cd …'"), "{}", advice("cd"));
        for other in ["python3", "./run.sh", "/opt/x-1.2+b", "1=2", "a-b=c", "=x", "/a=c", "cds"] {
            assert_eq!(advice(other), "", "{other}");
        }
    }

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
