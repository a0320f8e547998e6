//! Wildcard patterns of OpenSSH's configuration files and of shells.

/// Tells whether `text` matches `pattern`: `*` stands for any text, `?` for any one character.
pub fn matches(pattern: &str, text: &str) -> bool {
    let units = pattern.chars().map(|c| match c {
        '*' => Unit::Any,
        '?' => Unit::One,
        c => Unit::Char(c),
    });
    fits(&units.collect::<Vec<_>>(), text)
}

/// Tells whether `text` matches a comma-separated list of patterns: it must match at least one pattern
/// without a leading `!`, and no pattern that follows a `!`.
pub fn matches_list(list: &str, text: &str) -> bool {
    let mut found = false;
    for pattern in list.split(',') {
        match pattern.strip_prefix('!') {
            Some(pattern) if matches(pattern, text) => return false,
            Some(_) => {}
            None => found |= matches(pattern, text),
        }
    }
    found
}

/// Tells whether a file name matches a glob(7) pattern. Besides `*` and `?`, the pattern may have classes,
/// such as `[a-z]` and `[!a]`, and escaped characters, such as `\*`.
pub fn matches_file_name(pattern: &str, name: &str) -> bool {
    // As in shells, a wildcard does not match a leading dot.
    (pattern.starts_with('.') || !name.starts_with('.')) && fits(&glob_units(pattern), name)
}

/// Element of a parsed pattern: `*`, `?`, a character, or a class such as `[!a-z]`.
enum Unit {
    Any,
    One,
    Char(char),
    Class { negated: bool, ranges: Vec<(char, char)> },
}

impl Unit {
    fn takes(&self, c: char) -> bool {
        match self {
            Self::Any | Self::One => true,
            Self::Char(own) => *own == c,
            Self::Class { negated, ranges } => {
                ranges.iter().any(|(low, high)| (*low..=*high).contains(&c)) != *negated
            }
        }
    }
}

/// Tells whether a parsed pattern matches the whole text. Each `*` matches as little as possible at first,
/// and only the last `*` is extended after a mismatch, so that no pattern takes exponential time.
fn fits(units: &[Unit], text: &str) -> bool {
    let text: Vec<char> = text.chars().collect();
    let (mut at, mut unit) = (0, 0);
    let mut star = None;
    while at < text.len() {
        match units.get(unit) {
            Some(Unit::Any) => {
                star = Some((unit + 1, at));
                unit += 1;
            }
            Some(one) if one.takes(text[at]) => {
                (at, unit) = (at + 1, unit + 1);
            }
            _ => {
                let Some((after, from)) = star else { return false };
                (at, unit) = (from + 1, after);
                star = Some((after, from + 1));
            }
        }
    }
    units[unit..].iter().all(|unit| matches!(unit, Unit::Any))
}

fn glob_units(pattern: &str) -> Vec<Unit> {
    let mut units = Vec::new();
    let mut rest = pattern.chars();
    while let Some(c) = rest.next() {
        units.push(match c {
            '*' => Unit::Any,
            '?' => Unit::One,
            '\\' => Unit::Char(rest.next().unwrap_or('\\')),
            '[' => match class(rest.as_str()) {
                Some((unit, after)) => {
                    rest = after.chars();
                    unit
                }
                None => Unit::Char('['),
            },
            c => Unit::Char(c),
        });
    }
    units
}

/// Parses the class at the beginning of `text`, which starts after the `[`. Returns the class and the text
/// after it; `None` if no `]` ends the class.
fn class(text: &str) -> Option<(Unit, &str)> {
    let inner = text.strip_prefix(['!', '^']);
    let (negated, inner) = (inner.is_some(), inner.unwrap_or(text));
    // A `]` in first place belongs to the class and does not end it.
    let first = inner.chars().next()?.len_utf8();
    let end = first + inner[first..].find(']')?;
    let mut ranges = Vec::new();
    let mut members = inner[..end].chars().peekable();
    while let Some(low) = members.next() {
        let dash = members.next_if_eq(&'-').is_some();
        match (dash, members.peek().copied()) {
            (true, Some(high)) => {
                ranges.push((low, high));
                members.next();
            }
            (true, None) => ranges.extend([(low, low), ('-', '-')]),
            (false, _) => ranges.push((low, low)),
        }
    }
    Some((Unit::Class { negated, ranges }, &inner[end + 1..]))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn wildcards() {
        let yes = [("*", ""), ("a*", "a"), ("a?c", "abc"), ("*.b.*", "a.b.b.c"), ("ü?", "üx")];
        let no = [("?", ""), ("a?", "a"), ("*.b", "a.b.c"), ("a", "A"), ("[a]", "a"), ("", "a")];
        for (pattern, text) in yes {
            assert!(matches(pattern, text), "{pattern} {text}");
        }
        for (pattern, text) in no {
            assert!(!matches(pattern, text), "{pattern} {text}");
        }
        let stars = "a*".repeat(200) + "c";
        assert!(!matches(&stars, &"a".repeat(10_000)));
    }

    #[test]
    fn lists() {
        assert!(matches_list("a*,!ab,c", "ac") && matches_list("x,c", "c"));
        assert!(!matches_list("a*,!ab", "ab") && !matches_list("!ab", "x"));
    }

    #[test]
    fn file_names() {
        for (pattern, name) in [("[0-9]*", "10-a"), ("[!a]?", "bc"), ("[]x]", "]"), ("[a-]", "-")] {
            assert!(matches_file_name(pattern, name), "{pattern} {name}");
        }
        for (pattern, name) in
            [("*", ".a"), ("[0-9]", "a"), ("[!a]", "a"), ("\\*", "a"), ("[", "a")]
        {
            assert!(!matches_file_name(pattern, name), "{pattern} {name}");
        }
    }
}
