//! What stands in front of lines, as it is typed.

use crate::tags::tag_pattern::{Pattern, Who};

/// What is taken for a pattern reads the same again, and makes tags of one line.
pub(crate) fn pattern(data: &[u8]) {
    let Ok(text) = std::str::from_utf8(data) else { return };
    let Ok(pattern) = text.parse::<Pattern>() else { return };
    assert_eq!(pattern.to_string(), text);
    assert_eq!(pattern.to_string().parse(), Ok(pattern.clone()));
    let who = Who { rank: u32::MAX, host: "b".into(), local_rank: 0, pid: Some(7) };
    let tag = pattern.fill_in(&who, "12:00");
    assert!(!tag.is_empty() && !tag.contains('\n'));
    // Without a word for it, the time is nowhere.
    assert!(pattern.has_time() || tag == pattern.fill_in(&who, "13:00"));
}

pub(crate) fn pattern_seeds() -> Vec<Vec<u8>> {
    let all = ["[%r,%h] ", "%t %h.%l (%p): ", "100%% of rank %r|", "%"];
    all.iter()
        .chain(&[Pattern::default().to_string().as_str()])
        .map(|s| s.as_bytes().to_vec())
        .collect()
}
