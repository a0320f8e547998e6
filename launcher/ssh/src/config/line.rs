//! Lines of a configuration file.

use std::path::Path;
use std::sync::Arc;

use super::ConfigError;

/// Line of a configuration file: its keyword in lower case (`key`), and its value as written (`rest`).
#[derive(Debug)]
pub(super) struct Line {
    pub(super) key: String,
    pub(super) rest: String,
    pub(super) path: Arc<Path>,
    pub(super) number: usize,
}

impl Line {
    pub(super) fn parse(text: &str, path: &Arc<Path>, number: usize) -> Option<Self> {
        let text = text.trim();
        if text.is_empty() || text.starts_with('#') {
            return None;
        }
        let end = text.find(|c: char| c.is_ascii_whitespace() || c == '=').unwrap_or(text.len());
        let (key, rest) = text.split_at(end);
        let rest = rest.trim_start();
        let rest = rest.strip_prefix('=').unwrap_or(rest).trim_start().to_owned();
        let key = key.trim_matches('"').to_ascii_lowercase();
        Some(Self { key, rest, path: Arc::clone(path), number })
    }

    pub(super) fn error(&self, reason: String) -> ConfigError {
        let (path, keyword) = (self.path.to_path_buf(), self.key.clone());
        ConfigError::Value { path, line: self.number, keyword, reason }
    }

    /// Splits the value into words. Quotes group words, a backslash escapes a quote, backslash or space,
    /// and a word that begins with `#` starts a comment. Returns an error if a quote is not closed.
    pub(super) fn words(&self) -> Result<Vec<String>, String> {
        let (mut words, mut word, mut quote) = (Vec::new(), None::<String>, None);
        let mut chars = self.rest.chars().peekable();
        while let Some(c) = chars.next() {
            match (c, quote) {
                ('#', None) if word.is_none() => break,
                (' ' | '\t', None) => words.extend(word.take()),
                (_, Some(open)) if c == open => quote = None,
                ('"' | '\'', None) => {
                    quote = Some(c);
                    word.get_or_insert_default();
                }
                ('\\', _) => {
                    let escapable = |&next: &char| {
                        matches!(next, '"' | '\'' | '\\') || (quote.is_none() && next == ' ')
                    };
                    let literal = chars.next_if(escapable).unwrap_or('\\');
                    word.get_or_insert_default().push(literal);
                }
                _ => word.get_or_insert_default().push(c),
            }
        }
        words.extend(word);
        if quote.is_some() { Err("a quote is not closed".into()) } else { Ok(words) }
    }

    pub(super) fn args(&self) -> Result<Vec<String>, String> {
        let words = self.words()?;
        if words.is_empty() || words.iter().any(String::is_empty) {
            return Err("the value is missing".into());
        }
        Ok(words)
    }

    pub(super) fn one(&self) -> Result<String, String> {
        let mut args = self.args()?;
        if args.len() > 1 {
            return Err(format!("`{}` is an extra value; one is expected", args[1]));
        }
        Ok(args.remove(0))
    }
}
