//! Report of `rlaunch doctor`.

use crate::commands::doctor::fix::FixRecord;
use crate::commands::output;
use rlaunch_console::messages;
use rlaunch_plan::checks::cluster::Proof;
use rlaunch_plan::checks::{Check, CheckState, FoldedFinding, Unread};
use rlaunch_plan::findings::{self, CheckId, Finding, Severity};
use rlaunch_text::exit::Exit;
use rlaunch_text::message::Failed;
use rlaunch_text::style::{DIM, GOOD};
use rlaunch_text::{columns, text};
use serde::Serialize;
use std::fmt::Write as _;

/// Exit codes of `rlaunch doctor`.
pub(super) const WARNINGS: Exit = Exit(1);
const ERRORS: Exit = Exit(2);

/// Result of an examination.
#[derive(Debug)]
pub(super) struct DoctorReport {
    /// Number of hosts, with those that were not reached.
    pub(super) hosts: usize,
    /// Result of the proof of RDMA paths.
    pub(super) proof: Proof,
    /// All checks that were asked for.
    pub(super) states: Vec<(&'static Check, CheckState)>,
    /// Checks that ran and had nothing to judge on some hosts.
    pub(super) partly: Vec<(CheckId, Unread)>,
    pub(super) folded: Vec<FoldedFinding>,
}

/// Report as JSON.
#[derive(Serialize)]
struct JsonReport<'a> {
    hosts: usize,
    /// Each direction of a path counts.
    paths_tested: usize,
    checks: Vec<JsonCheck<'a>>,
    findings: Vec<JsonFinding<'a>>,
    /// What came of `--fix`.
    #[serde(skip_serializing_if = "Option::is_none")]
    fixes: Option<&'a [FixRecord]>,
    errors: usize,
    warnings: usize,
    notes: usize,
}

#[derive(Serialize)]
struct JsonCheck<'a> {
    id: &'static str,
    /// `ran`, `not_applicable` or `not_run`.
    state: &'static str,
    #[serde(skip_serializing_if = "Option::is_none")]
    why: Option<&'a str>,
}

#[derive(Serialize)]
struct JsonFinding<'a> {
    #[serde(flatten)]
    finding: &'a Finding,
    consequences: &'a [Finding],
}

impl<'a> JsonCheck<'a> {
    fn from_state((check, state): &'a (&'static Check, CheckState)) -> JsonCheck<'a> {
        let (state, why) = match state {
            CheckState::Ran => ("ran", None),
            CheckState::NotApplicable(why) => ("not_applicable", Some(*why)),
            CheckState::NotRun(needs) => ("not_run", Some(needs.as_str())),
        };
        JsonCheck { id: check.id.as_str(), state, why }
    }
}

impl JsonFinding<'_> {
    fn from_folded(folded: &FoldedFinding) -> JsonFinding<'_> {
        JsonFinding { finding: &folded.finding, consequences: &folded.consequences }
    }
}

impl DoctorReport {
    /// Returns the exit code; warnings count only if `strict` is set.
    pub(super) fn exit(&self, strict: bool) -> Exit {
        match (self.count(Severity::Error), self.count(Severity::Warning)) {
            (0, 0) => Exit::SUCCESS,
            (0, _) if strict => WARNINGS,
            (0, _) => Exit::SUCCESS,
            _ => ERRORS,
        }
    }

    /// Prints errors and warnings on stderr, and returns an error if there is an error among them.
    pub(super) fn refuse_job(&self) -> Result<(), Failed> {
        let mut errors = Vec::new();
        for FoldedFinding { finding, .. } in &self.folded {
            match finding.severity {
                Severity::Error => errors.push(finding),
                Severity::Warning => {
                    messages::warn_of(Some(finding.id.as_str()), &finding.message());
                    finding.hints().iter().for_each(|hint| messages::hint(hint));
                }
                Severity::Note => {}
            }
        }
        let failed = |finding: &Finding| {
            let message = format!("--preflight full: {}", finding.message());
            let failed = Failed::new(exit_for(finding.id), message);
            let failed = findings::with_finding(failed, Some(finding.id));
            finding.hints().into_iter().fold(failed, |failed, hint| failed.hint(Some(hint)))
        };
        let Some((first, others)) = errors.split_first() else { return Ok(()) };
        others.iter().for_each(|finding| messages::error(&failed(finding)));
        Err(failed(first).hint(Some("--preflight quick starts all the same")))
    }

    /// Counts findings that are not consequences of others.
    fn count(&self, severity: Severity) -> usize {
        self.folded.iter().filter(|folded| folded.finding.severity == severity).count()
    }

    /// Formats findings, worst first, and a line that sums them up.
    pub(super) fn to_text(&self, verbose: bool) -> String {
        let mut out = String::new();
        for folded in &self.folded {
            out += &folded.finding.to_text();
            for effect in &folded.consequences {
                let id = DIM.paint(effect.id.as_str());
                let _ = writeln!(out, "  so: {id}  {}", effect.sentence());
            }
        }
        if verbose {
            out += &self.passed();
        }
        out + &self.summary()
    }

    /// Lists checks that found nothing, and those that did not run.
    fn passed(&self) -> String {
        let has_found = |check: &&Check| {
            let id = check.id;
            let mut found =
                self.folded.iter().flat_map(|f| f.consequences.iter().chain([&f.finding]));
            found.any(|finding| finding.id == id)
        };
        let mut out = String::new();
        for check in self.ran().filter(|check| !has_found(check)) {
            let mut partly = self.partly.iter().filter(|(id, _)| *id == check.id);
            let except = partly.next().map_or(String::new(), |(_, unread)| {
                format!(" (not checked on {}: needs {})", text::list(&unread.hosts), unread.needs)
            });
            let ok = GOOD.paint("ok");
            let _ = writeln!(out, "{ok}     {}  {}{except}", check.id, check.about);
        }
        for (check, state) in &self.states {
            let why = match state {
                CheckState::Ran => continue,
                CheckState::NotApplicable(why) => format!("not applicable: {why}"),
                CheckState::NotRun(needs) => format!("not run: needs {needs}"),
            };
            let _ = writeln!(out, "{}", DIM.paint(&format!("-      {}  {why}", check.id)));
        }
        out
    }

    /// Lists the checks that ran.
    fn ran(&self) -> impl Iterator<Item = &'static Check> {
        self.states.iter().filter(|(_, state)| *state == CheckState::Ran).map(|(check, _)| *check)
    }

    /// Writes a line such as `3 hosts, 6 paths tested, 41 checks ran, 5 not applicable, 2 not run: 1 error`.
    fn summary(&self) -> String {
        let counted =
            [(Severity::Error, "error"), (Severity::Warning, "warning"), (Severity::Note, "note")]
                .map(|(severity, noun)| (self.count(severity), noun));
        let found = counted.iter().filter(|(count, _)| *count > 0);
        let found: Vec<String> = found.map(|(count, noun)| text::count(*count, noun)).collect();
        let worst = self.folded.iter().map(|folded| folded.finding.severity).min();
        let (ok, found) = match worst {
            None => (GOOD.paint("ok: "), String::new()),
            Some(worst) => (String::new(), format!(": {}", worst.style().paint(&found.join(", ")))),
        };
        let absent = |(_, state): &&(_, CheckState)| matches!(state, CheckState::NotApplicable(_));
        let not_run = |(_, state): &&(_, CheckState)| matches!(state, CheckState::NotRun(_));
        let left_out = [
            (self.states.iter().filter(absent).count(), "not applicable"),
            (self.states.iter().filter(not_run).count(), "not run"),
        ];
        let left_out = left_out.iter().filter(|(count, _)| *count > 0);
        let left_out: String = left_out.map(|(count, word)| format!(", {count} {word}")).collect();
        let tested = match self.proof {
            Proof::Tried { paths } => format!("{} tested", text::count(paths, "path")),
            Proof::NotApplicable(_) => "no RDMA paths".to_owned(),
            Proof::NotRun(_) => "RDMA paths not tested".to_owned(),
        };
        format!(
            "{ok}{}, {tested}, {} ran{left_out}{found}\n",
            text::count(self.hosts, "host"),
            text::count(self.ran().count(), "check")
        )
    }

    /// Writes the report, after fixes with what came of them.
    pub(super) fn to_json(&self, fixes: Option<&[FixRecord]>) -> Result<String, Failed> {
        let report = JsonReport {
            hosts: self.hosts,
            paths_tested: match self.proof {
                Proof::Tried { paths } => paths,
                Proof::NotApplicable(_) | Proof::NotRun(_) => 0,
            },
            checks: self.states.iter().map(JsonCheck::from_state).collect(),
            findings: self.folded.iter().map(JsonFinding::from_folded).collect(),
            fixes,
            errors: self.count(Severity::Error),
            warnings: self.count(Severity::Warning),
            notes: self.count(Severity::Note),
        };
        output::json(&report)
    }
}

/// Returns the exit code of a job that a finding prevents.
fn exit_for(id: CheckId) -> Exit {
    match id.subject() {
        "ssh" => Exit::HOST,
        "agent" => Exit::AGENT,
        "files" => Exit::FILES,
        "net" | "fw" => Exit::RENDEZVOUS,
        "mpi" => Exit::SINGLETON,
        _ => Exit::MESH,
    }
}

/// Formats the catalogue: a line for each check.
pub(super) fn list(checks: &[&'static Check]) -> String {
    let header = columns::row(["id", "makes sure that"]);
    let rows = checks.iter().map(|check| columns::row([check.id.as_str(), check.about]));
    columns::lay_out(&std::iter::once(header).chain(rows).collect::<Vec<_>>())
}

#[cfg(test)]
mod tests {
    use super::*;
    use rlaunch_plan::checks;

    #[test]
    fn what_could_not_be_read_is_not_ok() {
        let check = |id: &str| checks::find(id).unwrap();
        let hosts = vec!["b".to_owned(), "c".to_owned()];
        let unread = Unread { hosts, is_everywhere: false, needs: "root" };
        let report = DoctorReport {
            hosts: 3,
            proof: crate::commands::doctor::rdma::NO_PATHS,
            states: vec![
                (check("fw.ports"), CheckState::Ran),
                (check("lim.shm"), CheckState::Ran),
                (check("gpu.acs"), CheckState::NotRun("root".to_owned())),
                (check("dev.cq"), CheckState::NotApplicable("rlaunch prevents it")),
            ],
            partly: vec![(check("fw.ports").id, unread)],
            folded: Vec::new(),
        };
        let text = anstream::adapter::strip_str(&report.to_text(true)).to_string();
        let has = |line: &str| assert!(text.lines().any(|own| own == line), "{text}");
        has("-      gpu.acs  not run: needs root");
        has("-      dev.cq  not applicable: rlaunch prevents it");
        let rest = "2 checks ran, 1 not applicable, 1 not run";
        has(&format!("ok: 3 hosts, no RDMA paths, {rest}"));
        has(
            "ok     fw.ports  packet filters let rlaunch's TCP ports through (not checked on b, c: needs root)",
        );
        has("ok     lim.shm  /dev/shm takes files, and has room for the ranks of a host");
        let json = report.to_json(None).unwrap();
        let json: serde_json::Value = serde_json::from_str(&json).unwrap();
        let not_run = serde_json::json!({ "id": "gpu.acs", "state": "not_run", "why": "root" });
        assert_eq!(json["checks"][2], not_run);
        assert_eq!(json["paths_tested"], 0);
        for (proof, tested) in [
            (Proof::Tried { paths: 6 }, "6 paths tested"),
            (Proof::NotRun("probes (--probe)".to_owned()), "RDMA paths not tested"),
        ] {
            let (states, partly, folded) = (Vec::new(), Vec::new(), Vec::new());
            let text = DoctorReport { hosts: 3, proof, states, partly, folded }.summary();
            assert!(text.contains(&format!("3 hosts, {tested}, 0 checks ran")), "{text}");
        }
    }
}
