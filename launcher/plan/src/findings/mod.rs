//! Findings: what is wrong with hosts or between them, in the words that users read.
//!
//! Each finding has an id, such as `mtu.path`. `rlaunch doctor` and jobs print it, and
//! `rlaunch help ID` explains it. The functions that make findings are in [`crate::checks`].

mod fix;
pub mod id;

pub use fix::{Action, Fix};
pub use id::CheckId;

use rlaunch_text::message::Failed;
use rlaunch_text::style::{self, Paint};
use rlaunch_text::{printable, text};
use serde::Serialize;
use std::fmt::Write as _;

/// Effect of a finding on jobs.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Severity {
    /// A job would fail or hang.
    Error,
    /// A job is likely slow, or its results wrong.
    Warning,
    /// Good to know.
    Note,
}

/// Fault or observation that a check has found.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Finding {
    pub id: CheckId,
    pub severity: Severity,
    /// Hosts that have the fault, in the order of the cluster. Findings that differ only here are merged. Empty
    /// if the fault is the launcher's.
    pub hosts: Vec<String>,
    /// Device, port or interface on these hosts, such as `mlx5_0/1` or `eth1`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub device: Option<String>,
    /// Other host of a fault between two.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub peer: Option<String>,
    /// Observation, such as `RDMA MTU 1024`.
    pub seen: String,
    /// Why it matters to a job.
    pub matters: String,
    /// Steps that fix it, in order.
    pub fix: Vec<Step>,
    /// What rlaunch can do of that itself. Their lines are among the steps.
    #[serde(skip)]
    pub fixes: Vec<Fix>,
}

/// Step of a fix.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Step {
    /// Line to paste into a shell on each of the finding's hosts.
    Run(String),
    /// Line to paste into a shell on this host, which may be another one than the finding's.
    RunOn(String, String),
    /// Line to paste into a shell on the machine where rlaunch runs.
    RunHere(String),
    /// Action that is not a command, such as exchanging a cable.
    Do(String),
}

impl Finding {
    /// Makes a finding of one host, without device, peer and fix.
    pub fn new(
        id: CheckId,
        severity: Severity,
        host: impl Into<String>,
        seen: impl Into<String>,
        matters: impl Into<String>,
    ) -> Finding {
        Finding {
            id,
            severity,
            hosts: vec![host.into()],
            device: None,
            peer: None,
            seen: seen.into(),
            matters: matters.into(),
            fix: Vec::new(),
            fixes: Vec::new(),
        }
    }

    /// Makes a finding of severity [`Severity::Error`].
    pub fn error(
        id: CheckId,
        host: impl Into<String>,
        seen: impl Into<String>,
        matters: impl Into<String>,
    ) -> Finding {
        Finding::new(id, Severity::Error, host, seen, matters)
    }

    pub fn warning(
        id: CheckId,
        host: impl Into<String>,
        seen: impl Into<String>,
        matters: impl Into<String>,
    ) -> Finding {
        Finding::new(id, Severity::Warning, host, seen, matters)
    }

    pub fn note(
        id: CheckId,
        host: impl Into<String>,
        seen: impl Into<String>,
        matters: impl Into<String>,
    ) -> Finding {
        Finding::new(id, Severity::Note, host, seen, matters)
    }

    pub fn device(self, device: impl Into<String>) -> Finding {
        Finding { device: Some(device.into()), ..self }
    }

    pub fn peer(self, peer: impl Into<String>) -> Finding {
        Finding { peer: Some(peer.into()), ..self }
    }

    /// Adds a step to the fix.
    pub fn step(mut self, step: Step) -> Finding {
        self.fix.push(step);
        self
    }

    /// Adds a line to paste on the finding's hosts.
    pub fn run(self, line: impl Into<String>) -> Finding {
        self.step(Step::Run(line.into()))
    }

    /// Adds what rlaunch can do itself, and its lines.
    pub(crate) fn fixed_by(mut self, fix: Fix) -> Finding {
        self.fix.extend(fix.lines.iter().cloned().map(|line| match &fix.action {
            Action::ChangeOn(host, _) => Step::RunOn(host.clone(), line),
            Action::RunHere => Step::RunHere(line),
            Action::Change(_) | Action::InstallKey => Step::Run(line),
        }));
        self.fixes.push(fix);
        self
    }

    /// Adds an action that is not a command.
    pub fn advise(self, text: impl Into<String>) -> Finding {
        self.step(Step::Do(text.into()))
    }

    /// Tells whether the finding is about this host, or about a link to it.
    pub(crate) fn concerns(&self, host: &str) -> bool {
        self.hosts.iter().any(|own| own == host) || self.peer.as_deref() == Some(host)
    }

    /// Tells whether two findings differ only in their hosts, so that one line can report both.
    pub(crate) fn is_alike(&self, other: &Finding) -> bool {
        self.id == other.id
            && self.severity == other.severity
            && self.device == other.device
            && self.peer == other.peer
            && self.seen == other.seen
            && self.matters == other.matters
            && self.fix == other.fix
            && self.fixes == other.fixes
    }
}

/// Adds the id of the finding that an error states, so that the user can look it up.
pub fn with_finding(failed: Failed, id: Option<CheckId>) -> Failed {
    failed.finding(id.map(CheckId::as_str))
}

/// Merges findings that differ only in their hosts. The first of them keeps its place.
pub fn merge(findings: impl IntoIterator<Item = Finding>) -> Vec<Finding> {
    let mut merged: Vec<Finding> = Vec::new();
    for finding in findings {
        match merged.iter_mut().find(|known| known.is_alike(&finding)) {
            Some(known) => {
                let new = finding.hosts.into_iter();
                let new: Vec<String> = new.filter(|host| !known.hosts.contains(host)).collect();
                known.hosts.extend(new);
            }
            None => merged.push(finding),
        }
    }
    merged
}

/// Maximum number of hosts that a line names.
const MAX_HOSTS: usize = 8;

impl Severity {
    /// Returns the word that begins a finding's line.
    pub fn word(self) -> &'static str {
        match self {
            Severity::Error => "error",
            Severity::Warning => "warn",
            Severity::Note => "note",
        }
    }

    pub fn style(self) -> Paint {
        match self {
            Severity::Error => style::BAD,
            Severity::Warning => style::DOUBTFUL,
            Severity::Note => style::NOTE,
        }
    }
}

impl Finding {
    /// Writes the finding and its fix in several lines, each with a newline.
    pub fn to_text(&self) -> String {
        let word = self.severity.style().paint(&format!("{:<5}", self.severity.word()));
        let sentence = self.sentence();
        let named = printable::message(&hosts(&self.hosts));
        let rest = sentence.strip_prefix(&named).filter(|_| !named.is_empty());
        let painted = rest.map(|rest| style::BOLD.paint(&named) + rest);
        let sentence = painted.unwrap_or(sentence);
        let mut out = format!("{word}  {}  {sentence}\n", style::DIM.paint(self.id.as_str()));
        let mut place: Option<String> = None;
        for step in &self.fix {
            let (on, line) = match step {
                Step::Run(line) => (format!("fix, on {}:", hosts(&self.hosts)), line),
                Step::RunOn(host, line) => (format!("fix, on {host}:"), line),
                Step::RunHere(line) => ("fix, here:".to_owned(), line),
                Step::Do(line) => ("fix:".to_owned(), line),
            };
            if place.as_ref() != Some(&on) {
                let _ = writeln!(out, "  {}", style::NOTE.paint(&printable::message(&on)));
                place = Some(on);
            }
            for line in line.lines() {
                let _ = writeln!(out, "    {}", printable::text(line));
            }
        }
        out
    }

    /// Writes in one line where the fault is, what was seen, and why it matters, in columns.
    pub fn sentence(&self) -> String {
        self.line("  ")
    }

    /// Writes the sentence as the text of a message, such as `n2 rxe0/1: no link — RDMA needs it`.
    pub fn message(&self) -> String {
        self.line(": ")
    }

    /// Writes the fix as hints of a message, one for each step.
    pub fn hints(&self) -> Vec<String> {
        let hint = |step: &Step| match step {
            Step::Run(line) => format!("on {}: {line}", hosts(&self.hosts)),
            Step::RunOn(host, line) => format!("on {host}: {line}"),
            Step::RunHere(line) => format!("here: {line}"),
            Step::Do(line) => line.clone(),
        };
        self.fix.iter().map(hint).collect()
    }

    /// Writes place, observation and consequence in one line, with `gap` after the place.
    fn line(&self, gap: &str) -> String {
        let mut place = self.place();
        if !place.is_empty() {
            place.push_str(gap);
        }
        let matters =
            if self.matters.is_empty() { String::new() } else { format!(" — {}", self.matters) };
        printable::message(&format!("{place}{}{matters}", self.seen))
    }

    /// Writes hosts, device and peer.
    fn place(&self) -> String {
        let mut place = hosts(&self.hosts);
        if let Some(device) = &self.device {
            let space = if place.is_empty() { "" } else { " " };
            let _ = write!(place, "{space}{device}");
        }
        if let Some(peer) = &self.peer {
            let _ = write!(place, " → {peer}");
        }
        place
    }
}

fn hosts(hosts: &[String]) -> String {
    match hosts.len().checked_sub(MAX_HOSTS) {
        Some(more) if more > 0 => {
            format!("{} and {more} more", text::list(&hosts[..MAX_HOSTS]))
        }
        _ => text::list(hosts),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn findings_that_differ_only_in_hosts_are_one() {
        let finding =
            |host: &str, seen: &str| Finding::error(id::LIM_MEMLOCK, host, seen, "x").run("y");
        let merged = merge([finding("a", "64 KiB"), finding("b", "8 MiB"), finding("c", "64 KiB")]);
        let hosts: Vec<_> = merged.iter().map(|finding| finding.hosts.join(",")).collect();
        assert_eq!(hosts, ["a,c", "b"]);
        assert!(merged[0].concerns("c") && !merged[0].concerns("b"));
    }

    fn plain(finding: &Finding) -> String {
        anstream::adapter::strip_str(&finding.to_text()).to_string()
    }

    #[test]
    fn a_finding_says_where_what_why_and_how_to_cure_it() {
        let finding = Finding::error(id::DEV_MODULE, "b", "15b3:1003 has no RDMA device", "x")
            .device("0000:01:00.0")
            .run("sudo modprobe mlx4_ib")
            .run("rdma link")
            .advise("reboot");
        let expected = "error  dev.module  b 0000:01:00.0  15b3:1003 has no RDMA device — x\n  fix, \
                        on b:\n    sudo modprobe mlx4_ib\n    rdma link\n  fix:\n    reboot\n";
        assert_eq!(plain(&finding), expected);
    }

    #[test]
    fn many_hosts_are_counted() {
        let mut finding = Finding::note(id::ODD_KERNEL, "h1", "6.1", "");
        finding.hosts = (1..=10).map(|n| format!("h{n}")).collect();
        assert!(plain(&finding).contains("h8 and 2 more  6.1\n"), "{}", plain(&finding));
    }

    /// Checks that text from a host cannot move the cursor or begin a new line.
    #[test]
    fn control_characters_are_not_printed() {
        let finding = Finding::note(id::LOG_NIC, "a", "\u{1b}[2J\nnote  x", "");
        let finding = finding.run("a\u{1b}b").step(Step::RunOn("\u{1b}c\nnote".into(), "x".into()));
        let raw = finding.to_text();
        for sequence in ["\u{1b}[2J", "\u{1b}b", "\u{1b}c"] {
            assert!(!raw.contains(sequence), "{raw:?}");
        }
        let text = plain(&finding);
        assert_eq!(text.lines().filter(|line| line.starts_with("note")).count(), 1, "{text:?}");
    }
}
