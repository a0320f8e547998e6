//! Formatting of an error and its causes as one line of text.

use std::error::Error;

/// Formats an error and its sources as `error: cause: cause`. A cause whose text is already
/// contained in the line is left out.
pub fn error_chain(error: &dyn Error) -> String {
    let mut text = error.to_string();
    let mut source = error.source();
    while let Some(cause) = source {
        let cause_text = cause.to_string();
        if !text.contains(&cause_text) {
            text = format!("{text}: {cause_text}");
        }
        source = cause.source();
    }
    text
}
