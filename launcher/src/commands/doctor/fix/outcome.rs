//! What came of fixes, by the examination after them.

use crate::commands::doctor::Examination;
use crate::commands::doctor::report::DoctorReport;
use rlaunch_plan::checks::CheckState;
use rlaunch_plan::findings::{CheckId, Finding};
use rlaunch_plan::fixes::PlannedFix;
use rlaunch_text::style::{BAD, DIM, DOUBTFUL, GOOD};
use rlaunch_text::{printable, text};
use serde::Serialize;
use std::fmt::Write as _;

/// What came of a fix.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Outcome {
    /// It would be made.
    Planned,
    /// The fault is gone.
    Fixed,
    /// The change was made, and shows only after this.
    Waits(&'static str),
    /// The change was made, and the fault is there as before: what is seen of it.
    StillThere(String),
    /// The change was not made, or not as a whole.
    Failed(String),
    /// The change was made, and could not be checked: the reason.
    Unproved(&'static str),
    Skipped(&'static str),
}

/// Fix of a fault on some of its hosts, with what came of it.
#[derive(Clone, Debug, Serialize)]
pub(crate) struct FixRecord {
    id: CheckId,
    hosts: Vec<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    device: Option<String>,
    /// `planned`, `fixed`, `waits`, `still_there`, `failed`, `unproved` or `skipped`.
    outcome: &'static str,
    #[serde(skip_serializing_if = "Option::is_none")]
    why: Option<String>,
    /// Whether the next boot of the hosts takes it away.
    until_boot: bool,
    /// Lines that do the same.
    lines: Vec<String>,
    /// Hosts that it changes, which may be others than those with the fault.
    #[serde(skip)]
    changed: Vec<String>,
    #[serde(skip)]
    what: Outcome,
    /// Observation, which tells faults of one id from each other.
    #[serde(skip)]
    seen: String,
}

impl FixRecord {
    pub(super) fn new(fix: &PlannedFix, what: Outcome) -> FixRecord {
        let Finding { id, hosts, device, seen, fixes, .. } = &fix.finding;
        FixRecord {
            id: *id,
            hosts: hosts.clone(),
            device: device.clone(),
            outcome: what.name(),
            why: what.why(),
            until_boot: !fix.is_kept(),
            lines: fixes.iter().flat_map(|fix| fix.lines.clone()).collect(),
            changed: fix.changes().into_iter().map(|(host, _)| host).collect(),
            what,
            seen: seen.clone(),
        }
    }

    pub(super) fn planned(fix: &PlannedFix) -> FixRecord {
        FixRecord::new(fix, Outcome::Planned)
    }

    /// Tells whether this is about the fault of a planned fix, on all of its hosts.
    pub(super) fn is_of(&self, fix: &PlannedFix) -> bool {
        let Finding { id, hosts, device, seen, .. } = &fix.finding;
        let is_here = hosts.is_empty() && self.hosts.is_empty() && *seen == self.seen;
        self.id == *id
            && self.device == *device
            && (is_here || hosts.iter().any(|host| self.hosts.contains(host)))
    }

    pub(super) fn was_tried(&self) -> bool {
        !matches!(self.what, Outcome::Planned | Outcome::Skipped(_))
    }

    /// Lists the hosts whose journals may have something of it. Keys are installed without one.
    pub(super) fn changed_hosts(&self) -> impl Iterator<Item = &str> {
        self.changed.iter().filter(|_| self.was_tried()).map(String::as_str)
    }

    fn place(&self) -> String {
        let hosts = if self.hosts.is_empty() { "here".to_owned() } else { text::list(&self.hosts) };
        match &self.device {
            Some(device) => format!("{hosts} {device}"),
            None => hosts,
        }
    }
}

impl Outcome {
    fn name(&self) -> &'static str {
        match self {
            Outcome::Planned => "planned",
            Outcome::Fixed => "fixed",
            Outcome::Waits(_) => "waits",
            Outcome::StillThere(_) => "still_there",
            Outcome::Failed(_) => "failed",
            Outcome::Unproved(_) => "unproved",
            Outcome::Skipped(_) => "skipped",
        }
    }

    fn why(&self) -> Option<String> {
        match self {
            Outcome::Planned | Outcome::Fixed => None,
            Outcome::Waits(what) => Some(format!("needs {what}")),
            Outcome::StillThere(why) | Outcome::Failed(why) => Some(why.clone()),
            Outcome::Unproved(why) | Outcome::Skipped(why) => Some((*why).to_owned()),
        }
    }

    /// Returns the word for users, in its colour.
    fn word(&self) -> String {
        let word = format!("{:<11}", self.name().replace('_', " "));
        match self {
            Outcome::Fixed => GOOD.paint(&word),
            Outcome::Waits(_) | Outcome::Unproved(_) => DOUBTFUL.paint(&word),
            Outcome::StillThere(_) | Outcome::Failed(_) => BAD.paint(&word),
            Outcome::Planned | Outcome::Skipped(_) => DIM.paint(&word),
        }
    }
}

/// Judges a fix on each of its hosts, and joins those with the same outcome.
pub(super) fn of_fix(
    fix: &PlannedFix,
    failures: &[(String, String)],
    report: &DoctorReport,
    examination: &Examination,
) -> Vec<FixRecord> {
    let whole = &fix.finding.hosts;
    let hosts: Vec<Option<&String>> =
        if whole.is_empty() { vec![None] } else { whole.iter().map(Some).collect() };
    let mut records: Vec<FixRecord> = Vec::new();
    for host in hosts {
        let what = judge(fix, host, failures, report, examination);
        match records.iter_mut().find(|record| record.what == what) {
            Some(record) => record.hosts.extend(host.cloned()),
            None => {
                let record = FixRecord::new(fix, what);
                records.push(FixRecord { hosts: host.into_iter().cloned().collect(), ..record });
            }
        }
    }
    records
}

fn judge(
    fix: &PlannedFix,
    host: Option<&String>,
    failures: &[(String, String)],
    report: &DoctorReport,
    examination: &Examination,
) -> Outcome {
    let own = &fix.finding;
    let is_same = |found: &&Finding| {
        found.id == own.id
            && found.device == own.device
            && match host {
                Some(host) => found.hosts.contains(host),
                None => found.seen == own.seen,
            }
    };
    let mut found = report
        .folded
        .iter()
        .flat_map(|folded| std::iter::once(&folded.finding).chain(&folded.consequences));
    // What is done on one host may be for the fault of another.
    let places: Vec<String> = match fix.changes() {
        changes if changes.iter().any(|(place, _)| Some(place) == host) => {
            host.into_iter().cloned().collect()
        }
        changes if changes.is_empty() => vec![host.cloned().unwrap_or_default()],
        changes => changes.into_iter().map(|(place, _)| place).collect(),
    };
    let failure = failures.iter().find(|(place, _)| places.contains(place));
    let is_unreached = |host: &String| examination.unreached.iter().any(|lost| lost.host == *host);
    let has_run = report
        .states
        .iter()
        .any(|(check, state)| check.id == own.id && !matches!(state, CheckState::NotRun(_)));
    match (found.find(is_same), failure) {
        (_, Some((_, cause))) => Outcome::Failed(cause.clone()),
        (Some(_), None) if fix.waits_for().is_some() => {
            Outcome::Waits(fix.waits_for().unwrap_or_default())
        }
        (Some(found), None) => Outcome::StillThere(found.seen.clone()),
        (None, None) if host.is_some_and(is_unreached) => {
            Outcome::Unproved("the host was not reached afterwards")
        }
        (None, None) if !has_run => Outcome::Unproved("its check did not run again"),
        (None, None) => Outcome::Fixed,
    }
}

/// Writes a line for each.
pub(super) fn to_text(records: &[FixRecord]) -> String {
    let mut out = String::new();
    for record in records {
        let why = record.why.as_ref().map_or(String::new(), |why| format!(": {why}"));
        let until = match record.what {
            Outcome::Fixed if record.until_boot => "  (until the next boot)",
            _ => "",
        };
        let place = printable::message(&format!("{}{why}", record.place()));
        let id = DIM.paint(record.id.as_str());
        let _ = writeln!(out, "{}  {id}  {place}{until}", record.what.word());
    }
    out
}
