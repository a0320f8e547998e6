//! Hosts that are alike, drawn as one.

use rlaunch_plot::topology::HostBox;

/// Host boxes with the indices of the hosts that each of them stands for.
pub(super) fn groups(boxes: &[HostBox]) -> Vec<Vec<usize>> {
    let mut groups: Vec<Vec<usize>> = Vec::new();
    let are_alike = |one: usize, other: usize| {
        let nameless = |host: usize| (&boxes[host].summary, &boxes[host].sections);
        nameless(one) == nameless(other)
    };
    for host in 0..boxes.len() {
        match groups.iter_mut().find(|group| are_alike(group[0], host)) {
            Some(group) => group.push(host),
            None => groups.push(vec![host]),
        }
    }
    groups
}

/// Minimum number of names that are written as a range.
const RANGE: usize = 3;

/// Writes names, those that differ in a number as lists of hosts have them: `n[001-064], login`.
pub(super) fn folded(names: &[&str]) -> String {
    let mut runs: Vec<NameRun<'_>> = Vec::new();
    for name in names {
        let next = NameRun::new(name);
        match runs.last_mut() {
            Some(run) if run.is_before(&next) => {
                run.last = next.last;
                run.names.push(name);
            }
            _ => runs.push(next),
        }
    }
    runs.iter().map(NameRun::text).collect::<Vec<_>>().join(", ")
}

/// Names that differ in a number, which counts up by one.
struct NameRun<'a> {
    before: &'a str,
    /// Digits of the first and the last number; empty if the name has none.
    first: &'a str,
    last: &'a str,
    after: &'a str,
    names: Vec<&'a str>,
}

impl<'a> NameRun<'a> {
    /// Splits a name at its last number.
    fn new(name: &'a str) -> NameRun<'a> {
        let is_digit = |c: char| c.is_ascii_digit();
        let end = name.rfind(is_digit).map_or(0, |at| at + 1);
        let (head, after) = name.split_at(end);
        let digits = head.trim_end_matches(is_digit).len();
        let (before, number) = head.split_at(digits);
        NameRun { before, first: number, last: number, after, names: vec![name] }
    }

    fn is_before(&self, next: &NameRun<'_>) -> bool {
        let number = |digits: &str| digits.parse::<u64>().ok();
        let is_next = number(self.last).and_then(|last| last.checked_add(1)) == number(next.first);
        (self.before, self.after) == (next.before, next.after)
            && is_next
            && number(next.first).is_some()
            // Numbers with leading zeros all have the same length.
            && (self.last.len() == next.first.len() || !self.first.starts_with('0'))
    }

    fn text(&self) -> String {
        let NameRun { before, first, last, after, names } = self;
        match names.len() {
            ..RANGE => names.join(", "),
            _ => format!("{before}[{first}-{last}]{after}"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_folded_as_users_write_them() {
        assert_eq!(folded(&["n08", "n09", "n10", "login"]), "n[08-10], login");
        assert_eq!(folded(&["n8.x.org", "n9.x.org", "n10.x.org"]), "n[8-10].x.org");
        assert_eq!(folded(&["n08", "n9", "n10"]), "n08, n9, n10");
        assert_eq!(folded(&["n1", "n2", "n4", "a", "b"]), "n1, n2, n4, a, b");
        assert_eq!(folded(&["10.0.0.9", "10.0.0.10", "10.0.0.11"]), "10.0.0.[9-11]");
        assert_eq!(folded(&[]), "");
    }

    #[test]
    fn hosts_are_alike_but_for_their_names() {
        let host = |name: &str, summary: &str| HostBox {
            name: name.into(),
            summary: summary.into(),
            ..HostBox::default()
        };
        let hosts = [host("a", "8 CPUs"), host("b", "4 CPUs"), host("c", "8 CPUs")];
        assert_eq!(groups(&hosts), [vec![0, 2], vec![1]]);
    }
}
