//! Who printed a line, where the launcher has written that in front of it.

/// A line and what its tag says.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Tagged<'a> {
    pub(crate) rank: Option<u32>,
    pub(crate) host: Option<&'a str>,
    pub(crate) text: &'a str,
}

/// Takes off `[1,b] ` as `rlaunch --tag-output` writes it, and `[1,0]<stdout>:` (job, rank) as Open
/// MPI's `--tag-output` does.
pub(crate) fn untag(line: &str) -> Tagged<'_> {
    let untagged = Tagged { rank: None, host: None, text: line };
    tagged(line).unwrap_or(untagged)
}

fn tagged(line: &str) -> Option<Tagged<'_>> {
    let (tag, rest) = line.strip_prefix('[')?.split_once(']')?;
    let (first, second) = tag.split_once(',')?;
    let first = first.parse().ok()?;
    for stream in ["<stdout>:", "<stderr>:"] {
        if let Some(text) = rest.strip_prefix(stream) {
            return Some(Tagged { rank: Some(second.parse().ok()?), host: None, text });
        }
    }
    let text = rest.strip_prefix(' ').or(rest.is_empty().then_some(rest))?;
    let is_host = !second.is_empty() && !second.contains(|c: char| c == ',' || c.is_whitespace());
    is_host.then_some(Tagged { rank: Some(first), host: Some(second), text })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tags_are_taken_off() {
        let said = |rank, host, text| Tagged { rank: Some(rank), host, text };
        assert_eq!(untag("[1,b] a line"), said(1, Some("b"), "a line"));
        assert_eq!(untag("[1,b] "), said(1, Some("b"), ""));
        assert_eq!(untag("[1,0]<stdout>:a line"), said(0, None, "a line"));
        assert_eq!(untag("[1,3]<stderr>:"), said(3, None, ""));
    }

    #[test]
    fn other_lines_are_left_alone() {
        for line in ["", "a line", "[1] a", "[0,1,2] x", "[1,b]c", "[x,b] c", "[1,2]<stdout>", "["]
        {
            assert_eq!(untag(line), Tagged { rank: None, host: None, text: line }, "{line}");
        }
    }
}
