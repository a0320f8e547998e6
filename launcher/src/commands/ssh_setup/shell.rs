//! Words for a shell.

/// `text` as one word of sh(1), whatever it holds.
pub(super) fn quote(text: &str) -> String {
    format!("'{}'", text.replace('\'', r"'\''"))
}
