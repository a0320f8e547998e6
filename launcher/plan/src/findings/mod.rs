//! Findings: what is wrong with hosts or between them, in the words that users read.
//!
//! Each finding has an id, such as `mtu.path`. `rlaunch doctor` and jobs print it, and
//! `rlaunch help ID` explains it. The functions that make findings are in [`crate::checks`].
//!
//! | file | subject |
//! |---|---|
//! | `id` | ids of all findings |
//! | `text` | a finding as users read it |

pub mod id;
mod text;

pub use id::CheckId;

use rlaunch_text::message::Failed;
use serde::Serialize;

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
    }
}

/// Adds the id of the finding that an error states, so that the user can look it up.
pub fn mark(failed: Failed, id: Option<CheckId>) -> Failed {
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
}
