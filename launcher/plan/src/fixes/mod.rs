//! Which faults `rlaunch doctor --fix` may fix, and what it would do about those that were found.
//!
//! What is done about a fault is with the check that finds it ([`Fix`]). Here is whether rlaunch may do it unasked, and in
//! which order. Nothing here connects to a host.

mod class;
#[cfg(test)]
mod tests;

pub use class::{Class, class, is_fixable};

use crate::checks::FoldedFinding;
use crate::findings::{Action, CheckId, Finding, Fix};
use rlaunch_bootstrap::protocol::changes::Change;
use rlaunch_text::text;
use std::collections::BTreeSet;
use std::fmt::Write as _;

/// Fault with what rlaunch would do about it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PlannedFix {
    pub finding: Finding,
    pub class: Class,
}

/// Lists what rlaunch would do about these findings, in their order. `wanted` limits it to some ids; empty means all.
///
/// A consequence is left for later if something is done about its cause: it may go away with it.
pub fn plan(found: &[FoldedFinding], wanted: &[CheckId]) -> Vec<PlannedFix> {
    let mut planned: Vec<PlannedFix> = Vec::new();
    for folded in found {
        let of_cause = planned_fix(&folded.finding, wanted);
        let of_effects = folded.consequences.iter().filter(|_| of_cause.is_none());
        let of_effects = of_effects.filter_map(|finding| planned_fix(finding, wanted));
        for fix in of_cause.iter().cloned().chain(of_effects) {
            if !planned.iter().any(|known| known.does_the_same(&fix)) {
                planned.push(fix);
            }
        }
    }
    planned
}

fn planned_fix(finding: &Finding, wanted: &[CheckId]) -> Option<PlannedFix> {
    let is_wanted = wanted.is_empty() || wanted.contains(&finding.id);
    let class = class(finding.id);
    let may_be_done = matches!(class, Class::Safe | Class::Asked(_));
    (is_wanted && may_be_done && !finding.fixes.is_empty())
        .then(|| PlannedFix { finding: finding.clone(), class })
}

impl PlannedFix {
    pub fn id(&self) -> CheckId {
        self.finding.id
    }

    /// Returns the hosts where something is done, with what is done there, in order.
    pub fn changes(&self) -> Vec<(String, Vec<Change>)> {
        let mut all: Vec<(String, Vec<Change>)> = Vec::new();
        let mut add = |host: &String, changes: &[Change]| match all
            .iter_mut()
            .find(|(known, _)| known == host)
        {
            Some((_, known)) => known.extend_from_slice(changes),
            None => all.push((host.clone(), changes.to_vec())),
        };
        for fix in &self.finding.fixes {
            match &fix.action {
                Action::Change(changes) => {
                    self.finding.hosts.iter().for_each(|host| add(host, changes));
                }
                Action::ChangeOn(host, changes) => add(host, changes),
                Action::RunHere | Action::InstallKey => {}
            }
        }
        all
    }

    /// Returns the lines that are to run on the launcher's machine.
    pub fn lines_here(&self) -> Vec<&str> {
        let here = self.finding.fixes.iter().filter(|fix| fix.action == Action::RunHere);
        here.flat_map(|fix| fix.lines.iter().map(String::as_str)).collect()
    }

    /// Returns the hosts on which the user's key is to be installed.
    pub fn hosts_without_key(&self) -> &[String] {
        let installs = |fix: &Fix| fix.action == Action::InstallKey;
        match self.finding.fixes.iter().any(installs) {
            true => &self.finding.hosts,
            false => &[],
        }
    }

    /// Tells whether all of it lasts beyond the next boot of its hosts.
    pub fn is_kept(&self) -> bool {
        self.finding.fixes.iter().all(Fix::is_kept)
    }

    /// Returns what has to happen before a new examination can see the effect, if anything.
    pub fn waits_for(&self) -> Option<&'static str> {
        self.finding.fixes.iter().find_map(|fix| fix.waits_for)
    }

    /// Returns where it is, as in `c eth1`.
    pub fn place(&self) -> String {
        let hosts = text::list(&self.finding.hosts);
        let device = self.finding.device.as_deref().unwrap_or_default();
        let here = if hosts.is_empty() && device.is_empty() { "here" } else { "" };
        let space = if hosts.is_empty() || device.is_empty() { "" } else { " " };
        format!("{hosts}{here}{space}{device}")
    }

    /// Returns what was seen, and where.
    pub fn seen(&self) -> String {
        format!("{} on {}: {}", self.id(), self.place(), self.finding.seen)
    }

    fn does_the_same(&self, other: &PlannedFix) -> bool {
        let is_key = !self.hosts_without_key().is_empty();
        let nothing = self.changes().is_empty() && self.lines_here().is_empty() && !is_key;
        !nothing
            && self.changes() == other.changes()
            && self.lines_here() == other.lines_here()
            && self.hosts_without_key() == other.hosts_without_key()
    }
}

/// Writes a script for each host that does what is planned, without a way back.
pub fn script(planned: &[PlannedFix]) -> String {
    let mut text = String::new();
    let hosts: Vec<String> = planned.iter().flat_map(PlannedFix::changes).map(|(h, _)| h).collect();
    let mut written: BTreeSet<&String> = BTreeSet::new();
    let here: Vec<&PlannedFix> = planned.iter().filter(|fix| fix.changes().is_empty()).collect();
    if !here.is_empty() {
        text.push_str("# here\n");
    }
    for fix in here {
        let _ = writeln!(text, "# {}", fix.id());
        fix.lines_here().iter().for_each(|line| text.extend([line, "\n"]));
        if !fix.hosts_without_key().is_empty() {
            let _ = writeln!(text, "rlaunch ssh-setup -H {}", fix.hosts_without_key().join(","));
        }
    }
    for host in hosts.iter().filter(|host| written.insert(host)) {
        let _ = writeln!(text, "# on {host}, as root");
        for fix in planned {
            let changes = fix.changes().into_iter().filter(|(on, _)| on == host);
            let changes: Vec<Change> = changes.flat_map(|(_, changes)| changes).collect();
            if !changes.is_empty() {
                let _ = writeln!(text, "# {}", fix.id());
            }
            changes.iter().for_each(|change| {
                let _ = writeln!(text, "{change}");
            });
        }
    }
    text
}
