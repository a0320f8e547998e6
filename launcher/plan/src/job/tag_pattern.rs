//! `--tag-output=PATTERN`: the tag at the start of every line of a rank's output.

use std::fmt;
use std::str::FromStr;

/// Maximum length of a pattern, in bytes.
const MAX_BYTES: usize = 256;

/// Parsed pattern of a tag: text with placeholders for the rank, host and time of a line.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TagPattern(Vec<Part>);

#[derive(Clone, Debug, PartialEq, Eq)]
enum Part {
    Text(String),
    Rank,
    Host,
    LocalRank,
    Pid,
    Time,
}

/// Rank that wrote a line, as a tag describes it.
#[derive(Clone, Debug)]
pub struct LineOrigin {
    pub rank: u32,
    /// Host as the user named it.
    pub host: String,
    pub local_rank: u32,
    /// Process id; `None` until the rank has been started.
    pub pid: Option<u32>,
}

/// Error in the value of `--tag-output`.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum PatternError {
    #[error("it is empty")]
    Empty,
    #[error("it is longer than {MAX_BYTES} bytes")]
    TooLong,
    #[error("it has a control character")]
    Control,
    #[error("it ends in %; %% is a plain %")]
    Unfinished,
    #[error(
        "there is no %{0}; there are %r rank, %h host, %l local rank, %p process id, %t time, %%"
    )]
    Unknown(char),
}

impl Default for TagPattern {
    /// Returns `[%r,%h] `, which makes tags like `[1,b] `.
    fn default() -> TagPattern {
        let text = |text: &str| Part::Text(text.to_owned());
        TagPattern(vec![text("["), Part::Rank, text(","), Part::Host, text("] ")])
    }
}

impl FromStr for TagPattern {
    type Err = PatternError;

    fn from_str(text: &str) -> Result<TagPattern, PatternError> {
        if text.is_empty() {
            return Err(PatternError::Empty);
        }
        if text.len() > MAX_BYTES {
            return Err(PatternError::TooLong);
        }
        // A line end would start another line, and a terminal would obey an escape sequence.
        if text.chars().any(|c| c.is_control() && c != '\t') {
            return Err(PatternError::Control);
        }
        let mut pattern = TagPattern(Vec::new());
        let mut chars = text.chars();
        while let Some(c) = chars.next() {
            if c != '%' {
                pattern.add_text(c);
                continue;
            }
            let part = match chars.next().ok_or(PatternError::Unfinished)? {
                'r' => Part::Rank,
                'h' => Part::Host,
                'l' => Part::LocalRank,
                'p' => Part::Pid,
                't' => Part::Time,
                '%' => {
                    pattern.add_text('%');
                    continue;
                }
                unknown => return Err(PatternError::Unknown(unknown)),
            };
            pattern.0.push(part);
        }
        Ok(pattern)
    }
}

/// Formats the pattern as the user types it.
impl fmt::Display for TagPattern {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.iter().try_for_each(|part| match part {
            Part::Text(text) => f.write_str(&text.replace('%', "%%")),
            Part::Rank => f.write_str("%r"),
            Part::Host => f.write_str("%h"),
            Part::LocalRank => f.write_str("%l"),
            Part::Pid => f.write_str("%p"),
            Part::Time => f.write_str("%t"),
        })
    }
}

impl TagPattern {
    fn add_text(&mut self, c: char) {
        match self.0.last_mut() {
            Some(Part::Text(text)) => text.push(c),
            _ => self.0.push(Part::Text(c.to_string())),
        }
    }

    /// Tells whether the pattern has `%t`, the time at which a line was written.
    pub fn has_time(&self) -> bool {
        self.0.contains(&Part::Time)
    }

    /// Formats the tag of a line that was written at `time`, which is empty if unknown. Unknown values are
    /// printed as `-`.
    pub fn format(&self, origin: &LineOrigin, time: &str) -> String {
        let mut tag = String::new();
        for part in &self.0 {
            match part {
                Part::Text(text) => tag.push_str(text),
                Part::Rank => tag.push_str(&origin.rank.to_string()),
                Part::Host => tag.push_str(&origin.host),
                Part::LocalRank => tag.push_str(&origin.local_rank.to_string()),
                Part::Pid => match origin.pid {
                    Some(pid) => tag.push_str(&pid.to_string()),
                    None => tag.push('-'),
                },
                Part::Time => tag.push_str(if time.is_empty() { "-" } else { time }),
            }
        }
        tag
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn filled(pattern: &str) -> Result<String, PatternError> {
        let origin = LineOrigin { rank: 7, host: "b".into(), local_rank: 1, pid: Some(4711) };
        Ok(pattern.parse::<TagPattern>()?.format(&origin, "12:00"))
    }

    #[test]
    fn every_word_is_filled_in() {
        assert_eq!(filled("%r %h %l %p %t|").unwrap(), "7 b 1 4711 12:00|");
        assert_eq!(filled("100%% of %%r: ").unwrap(), "100% of %r: ");
        assert_eq!(filled("plain ").unwrap(), "plain ");
        assert_eq!(filled("ü%rß").unwrap(), "ü7ß");
        assert_eq!("[%r,%h] ".parse(), Ok(TagPattern::default()));
        let unstarted = LineOrigin { rank: 0, host: "a".into(), local_rank: 0, pid: None };
        assert_eq!("%p %t".parse::<TagPattern>().unwrap().format(&unstarted, ""), "- -");
    }

    #[test]
    fn what_is_no_pattern_is_said_to_be_none() {
        assert_eq!(filled(""), Err(PatternError::Empty));
        assert_eq!(filled("x%"), Err(PatternError::Unfinished));
        assert_eq!(filled("%q"), Err(PatternError::Unknown('q')));
        assert_eq!(filled("%r\n"), Err(PatternError::Control));
        assert_eq!(filled("\u{1b}[1m"), Err(PatternError::Control));
        assert_eq!(filled(&"x".repeat(MAX_BYTES + 1)), Err(PatternError::TooLong));
        assert!(filled("%x").unwrap_err().to_string().contains("%l local rank"));
    }

    proptest! {
        #[test]
        fn a_pattern_reads_the_same_again(text in "([a-z ü\t]|%[rhlpt%]){0,40}|\\PC{0,20}") {
            if let Ok(pattern) = text.parse::<TagPattern>() {
                prop_assert_eq!(pattern.to_string().parse(), Ok(pattern.clone()));
                prop_assert_eq!(pattern.to_string(), text);
            }
        }
    }
}
