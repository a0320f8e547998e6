//! Hosts whose value differs from that of most hosts.

use crate::findings::{CheckId, Finding, Severity, merge};
use rlaunch_text::text;

/// Maximum number of groups that one finding lists.
const MAX_GROUPS: usize = 4;

/// Value that is compared, and how much a difference matters.
pub(super) struct Comparison {
    id: CheckId,
    what: String,
    severity: Severity,
    matters: &'static str,
    /// Advice; `None` if the value can be made the usual one.
    cure: Option<&'static str>,
}

impl Comparison {
    /// Makes a comparison whose differences are notes. `what` names the value, as in `kernel`.
    pub(super) fn new(id: CheckId, what: &str) -> Comparison {
        let (what, severity) = (what.to_owned(), Severity::Note);
        let matters = "hosts of one cluster are usually alike";
        Comparison { id, what, severity, matters, cure: None }
    }

    /// Makes differences warnings, with the reason.
    pub(super) fn breaks_jobs(self, matters: &'static str) -> Comparison {
        Comparison { severity: Severity::Warning, matters, ..self }
    }

    /// Gives advice for a value that no setting or package changes.
    pub(super) fn cured_by(self, cure: &'static str) -> Comparison {
        Comparison { cure: Some(cure), ..self }
    }

    /// Compares the values of hosts. Hosts without a value are left out. If no value has more hosts than each
    /// of the others, there is one note about all of them.
    pub(super) fn findings<'a>(
        &self,
        values: impl Iterator<Item = (&'a str, Option<String>)>,
    ) -> Vec<Finding> {
        let mut groups: Vec<(String, Vec<&str>)> = Vec::new();
        for (host, value) in values {
            let Some(value) = value else { continue };
            match groups.iter_mut().find(|(known, _)| *known == value) {
                Some((_, hosts)) => hosts.push(host),
                None => groups.push((value, vec![host])),
            }
        }
        if groups.len() < 2 {
            return Vec::new();
        }
        groups.sort_by_key(|(_, hosts)| std::cmp::Reverse(hosts.len()));
        match &groups[..] {
            [first, second, ..] if first.1.len() == second.1.len() => {
                vec![self.tie_finding(&groups)]
            }
            [usual, odd @ ..] => {
                merge(odd.iter().flat_map(|group| self.odd_findings(usual, group)))
            }
            [] => Vec::new(),
        }
    }

    fn tie_finding(&self, groups: &[(String, Vec<&str>)]) -> Finding {
        let shown = groups.iter().take(MAX_GROUPS);
        let shown: Vec<String> =
            shown.map(|(value, hosts)| format!("{value} on {}", text::list(hosts))).collect();
        let more = match groups.len().checked_sub(MAX_GROUPS) {
            Some(more) if more > 0 => format!(", and {more} more"),
            _ => String::new(),
        };
        let seen = format!("{}: {}{more}", self.what, shown.join(", "));
        let hosts = groups.iter().flat_map(|(_, hosts)| hosts);
        let hosts = hosts.map(|host| (*host).to_owned()).collect();
        Finding { hosts, ..Finding::note(self.id, "", seen, self.matters) }
    }

    fn odd_findings(
        &self,
        (usual, many): &(String, Vec<&str>),
        (value, few): &(String, Vec<&str>),
    ) -> Vec<Finding> {
        let have = if many.len() == 1 { "has" } else { "have" };
        let seen = format!("{} {value} where {} {have} {usual}", self.what, text::list(many));
        let finding = |host: &&str| {
            Finding::new(self.id, self.severity, *host, seen.clone(), self.matters)
                .advise(self.cure.map_or_else(|| format!("make it {usual}"), str::to_owned))
        };
        few.iter().map(finding).collect()
    }
}
