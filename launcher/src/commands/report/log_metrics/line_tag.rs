//! Tags that launchers write in front of lines, with the rank that printed the line.

/// Line that was split at its tag: `text` is the line after the tag; `rank` and `host` are what the tag says, `None`
/// if it does not.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct TaggedLine<'a> {
    pub(super) rank: Option<u32>,
    pub(super) host: Option<&'a str>,
    pub(super) text: &'a str,
}

/// Splits off a tag: `[1,b] ` (rank, host), which `rlaunch --tag-output` writes, or `[1,0]<stdout>:` (job,
/// rank) of Open MPI's `--tag-output`.
pub(super) fn split_tag(line: &str) -> TaggedLine<'_> {
    let untagged = TaggedLine { rank: None, host: None, text: line };
    tagged(line).unwrap_or(untagged)
}

fn tagged(line: &str) -> Option<TaggedLine<'_>> {
    let (tag, rest) = line.strip_prefix('[')?.split_once(']')?;
    let (first, second) = tag.split_once(',')?;
    let first = first.parse().ok()?;
    for stream in ["<stdout>:", "<stderr>:"] {
        if let Some(text) = rest.strip_prefix(stream) {
            return Some(TaggedLine { rank: Some(second.parse().ok()?), host: None, text });
        }
    }
    let text = rest.strip_prefix(' ').or(rest.is_empty().then_some(rest))?;
    let is_host = !second.is_empty() && !second.contains(|c: char| c == ',' || c.is_whitespace());
    is_host.then_some(TaggedLine { rank: Some(first), host: Some(second), text })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tags_are_taken_off() {
        let tagged = |rank, host, text| TaggedLine { rank: Some(rank), host, text };
        assert_eq!(split_tag("[1,b] a line"), tagged(1, Some("b"), "a line"));
        assert_eq!(split_tag("[1,b] "), tagged(1, Some("b"), ""));
        assert_eq!(split_tag("[1,0]<stdout>:a line"), tagged(0, None, "a line"));
        assert_eq!(split_tag("[1,3]<stderr>:"), tagged(3, None, ""));
    }

    #[test]
    fn other_lines_are_left_alone() {
        for line in ["", "a line", "[1] a", "[0,1,2] x", "[1,b]c", "[x,b] c", "[1,2]<stdout>", "["]
        {
            assert_eq!(
                split_tag(line),
                TaggedLine { rank: None, host: None, text: line },
                "{line}"
            );
        }
    }
}
