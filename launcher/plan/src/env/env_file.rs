//! `--env-file`: variables of ranks, one on each line, in the syntax of docker and dotenv.
//!
//! A line is `NAME=VALUE`, optionally after `export`; `NAME` alone takes its value from the shell in which
//! rlaunch was started. `#` begins a comment at the start of a line, after a blank in an unquoted value, and
//! after a quoted value. Text in single quotes is literal; double quotes understand `\n`, `\t`, `\r`, `\"`,
//! `\\` and `\$`. Quoted values may span several lines. `$NAME` is not expanded.

use std::fs::File;
use std::io::{self, Read};
use std::path::{Path, PathBuf};

/// Maximum size of a file, in bytes.
const MAX_BYTES: u64 = 1 << 20;

/// Error about a file of variables.
#[derive(Debug, thiserror::Error)]
pub enum EnvFileError {
    #[error("cannot read {}", path.display())]
    Read { path: PathBuf, source: io::Error },
    #[error("{}:{line}: {reason}", path.display())]
    EnvLine { path: PathBuf, line: usize, reason: String },
}

/// Variable in a file of variables.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct EnvLine {
    pub name: String,
    /// Value, or `None` to take the value from the shell in which rlaunch was started.
    pub value: Option<String>,
    /// Number of the line with the name, from 1.
    pub number: usize,
}

pub fn read(path: &Path) -> Result<Vec<EnvLine>, EnvFileError> {
    let read = || {
        let mut text = String::new();
        let length = File::open(path)?.take(MAX_BYTES + 1).read_to_string(&mut text)?;
        if length as u64 > MAX_BYTES {
            return Err(io::Error::other(format!("longer than {} MiB", MAX_BYTES >> 20)));
        }
        Ok(text)
    };
    let text = read().map_err(|source| EnvFileError::Read { path: path.to_owned(), source })?;
    parse(&text).map_err(|(line, reason)| EnvFileError::EnvLine {
        path: path.to_owned(),
        line,
        reason,
    })
}

/// Parses a file's content. The error is the number of a line, from 1, and what is wrong there.
pub fn parse(text: &str) -> Result<Vec<EnvLine>, (usize, String)> {
    let mut reading = Reading { rest: text.strip_prefix('\u{feff}').unwrap_or(text), line: 1 };
    let mut lines = Vec::new();
    while !reading.rest.is_empty() {
        let number = reading.line;
        let parsed = reading.variable();
        lines.extend(parsed.map_err(|reason| (number, reason))?.map(|(name, value)| EnvLine {
            name,
            value,
            number,
        }));
    }
    Ok(lines)
}

struct Reading<'a> {
    rest: &'a str,
    /// Number of the line on which `rest` begins, from 1.
    line: usize,
}

impl<'a> Reading<'a> {
    /// Returns the rest of the line without the newline, and moves past the newline.
    fn rest_of_line(&mut self) -> &'a str {
        let (line, rest) = self.rest.split_once('\n').unwrap_or((self.rest, ""));
        (self.rest, self.line) = (rest, self.line + 1);
        line
    }

    /// Parses the variable that begins on this line, as name and value, and moves past its last line. Returns
    /// `None` for an empty line or a comment.
    fn variable(&mut self) -> Result<Option<(String, Option<String>)>, String> {
        let line = self.rest.split('\n').next().unwrap_or_default();
        let start = line.trim_start();
        if start.is_empty() || start.starts_with('#') {
            self.rest_of_line();
            return Ok(None);
        }
        let bare = start.strip_prefix("export").filter(|bare| bare.starts_with([' ', '\t']));
        let start = bare.map_or(start, str::trim_start);
        let Some((name, value)) = start.split_once('=') else {
            let name = check_name(start.split(" #").next().unwrap_or(start).trim_end())?;
            self.rest_of_line();
            return Ok(Some((name, None)));
        };
        let name = check_name(name.trim_end())?;
        // Blanks may precede a quoted value.
        let inner = value.trim_start_matches([' ', '\t']);
        let value = match inner.chars().next() {
            Some(quote @ ('"' | '\'')) => {
                self.rest = &self.rest[line.len() - inner.len() + 1..];
                self.quoted(quote)?
            }
            _ => {
                self.rest_of_line();
                bare_value(value)
            }
        };
        if value.contains('\0') {
            return Err(format!("the value of {name} has a null byte"));
        }
        Ok(Some((name, Some(value))))
    }

    /// Parses a quoted value, after which only a comment may follow.
    fn quoted(&mut self, quote: char) -> Result<String, String> {
        let mut value = String::new();
        let mut characters = self.rest.char_indices();
        let end = loop {
            let Some((at, character)) = characters.next() else {
                return Err(format!("a quote {quote} that does not end"));
            };
            match character {
                _ if character == quote => break at + 1,
                '\\' if quote == '"' => match characters.next() {
                    Some((_, 'n')) => value.push('\n'),
                    Some((_, 't')) => value.push('\t'),
                    Some((_, 'r')) => value.push('\r'),
                    Some((_, same @ ('"' | '\\' | '$'))) => value.push(same),
                    Some((_, other)) => value.extend(['\\', other]),
                    None => return Err(format!("a quote {quote} that does not end")),
                },
                character => value.push(character),
            }
        };
        let (inside, rest) = self.rest.split_at(end);
        (self.rest, self.line) = (rest, self.line + inside.matches('\n').count());
        let behind = self.rest_of_line().trim();
        if behind.is_empty() || behind.starts_with('#') {
            return Ok(value);
        }
        // The message leaves out the text, which may be part of a secret.
        Err("more stands behind the closing quote".to_owned())
    }
}

/// Parses an unquoted value, without a comment and trailing blanks.
fn bare_value(text: &str) -> String {
    let comment = text
        .char_indices()
        .find(|&(at, character)| character == '#' && text[..at].ends_with(char::is_whitespace));
    let value = comment.map_or(text, |(at, _)| &text[..at]);
    value.trim().to_owned()
}

fn check_name(name: &str) -> Result<String, String> {
    let is_bad = |c: char| c.is_whitespace() || c.is_control() || matches!(c, '"' | '\'');
    if name.is_empty() {
        return Err("a variable's name is missing".to_owned());
    }
    if name.contains(is_bad) {
        return Err(format!("{name:?} is no name of a variable"));
    }
    Ok(name.to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn parsed(text: &str) -> Vec<(String, Option<String>)> {
        parse(text).unwrap().into_iter().map(|line| (line.name, line.value)).collect()
    }

    #[test]
    fn lines_are_read_as_docker_and_dotenv_have_them() {
        let text = "\u{feff}# a comment\n\nA=1\nB = two words # said\r\nexport C=#x#y\n  D=\n\
                    E='a $b \\n # c' # d\nF=\"a\\n\\\"b\\\" \\$c \\d\"\nG='one\ntwo'\nHERE\nI=a=b\n\
                    J= # none\nexported=7\nK=\"last\"";
        let expected = [
            ("A", "1"),
            ("B", "two words"),
            ("C", "#x#y"),
            ("D", ""),
            ("E", "a $b \\n # c"),
            ("F", "a\n\"b\" $c \\d"),
            ("G", "one\ntwo"),
            ("HERE", "(none)"),
            ("I", "a=b"),
            ("J", ""),
            ("exported", "7"),
            ("K", "last"),
        ];
        let expected = expected
            .map(|(name, value)| (name.to_owned(), (value != "(none)").then(|| value.to_owned())));
        assert_eq!(parsed(text), expected);
        // A value of two lines does not shift the line number of the next name.
        let numbers: Vec<usize> = parse(text).unwrap().iter().map(|line| line.number).collect();
        assert_eq!(numbers, [3, 4, 5, 6, 7, 8, 9, 11, 12, 13, 14, 15]);
    }

    #[test]
    fn mistakes_are_named_with_their_line() {
        let parse_error = |text: &str| parse(text).unwrap_err();
        assert_eq!(parse_error("A=1\n=2\n"), (2, "a variable's name is missing".to_owned()));
        assert_eq!(parse_error("A B=2\n"), (1, "\"A B\" is no name of a variable".to_owned()));
        assert_eq!(parse_error("\nA='x\n\n"), (2, "a quote ' that does not end".to_owned()));
        assert_eq!(parse_error("A=\"x\\"), (1, "a quote \" that does not end".to_owned()));
        assert_eq!(parse_error("A='x'y\n"), (1, "more stands behind the closing quote".to_owned()));
        assert!(parse_error("A=\0\n").1.contains("null byte"));
        let error = read(Path::new("/no/such.env")).unwrap_err();
        assert_eq!(error.to_string(), "cannot read /no/such.env");
    }

    proptest! {
        #[test]
        fn what_is_written_in_quotes_comes_back(values in prop::collection::vec("[^\0\r]{0,20}", 0..6)) {
            let quoted = |value: &String| {
                value.replace('\\', "\\\\").replace('"', "\\\"").replace('$', "\\$")
            };
            let lines = values.iter().zip(1..).map(|(v, n)| format!("V{n}=\"{}\"\n", quoted(v)));
            let read: Vec<_> = parsed(&lines.collect::<String>());
            let read: Vec<String> = read.into_iter().filter_map(|(_, value)| value).collect();
            prop_assert_eq!(read, values);
        }

        #[test]
        fn whatever_is_wrong_is_on_a_line_of_the_file(text in "[A-C =\"'#\\\\\n]{0,40}") {
            if let Err((line, _)) = parse(&text) {
                prop_assert!((1..=text.lines().count()).contains(&line));
            }
        }
    }
}
