//! Findings of tidy, and known exceptions.

use std::collections::BTreeSet;
use std::fmt;
use std::panic::Location;
use std::path::{Path, PathBuf};

/// Kind of violation.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Rule {
    /// A top-level module uses one that is not below it. The subject is `from → to`.
    Upward,
    /// A top-level module uses itself through others. The subject is the top-level module.
    Cycle,
    /// The declared order and the existing top-level modules differ. The subject is the top-level
    /// module.
    Undeclared,
    /// A file has too many lines. The subject is the file.
    LongFile,
    /// A function has too many lines. The subject is the function, with the type that has it.
    LongFunction,
    /// Several types have one name. The subject is the name.
    TypeTwice,
    /// A name or text has a word that was given up. The subject is the name, or the word.
    GivenUp,
    /// A page of text is too long. The subject is the file.
    LongPage,
    /// A code map differs from the folders. The subject is the path.
    CodeMap,
    /// A doc comment begins as a fragment. There is no subject.
    DocOpening,
    /// A doc comment has a word that leaves open which thing is meant. There is no subject.
    VagueWord,
    /// An exception has no finding.
    Needless,
}

impl Rule {
    /// Returns whether one exception covers all findings of a subject, rather than one.
    fn is_per_place(self) -> bool {
        matches!(self, Rule::Upward | Rule::GivenUp | Rule::DocOpening | Rule::VagueWord)
    }

    fn name(self) -> &'static str {
        match self {
            Rule::Upward => "the edge",
            Rule::Cycle => "the cycle through",
            Rule::Undeclared => "the undeclared folder",
            Rule::LongFile => "the long file",
            Rule::LongFunction => "the long function",
            Rule::TypeTwice => "types called",
            Rule::GivenUp => "the name",
            Rule::LongPage => "the long page",
            Rule::CodeMap => "the code map's",
            Rule::DocOpening => "doc comments that begin as fragments",
            Rule::VagueWord => "vague words",
            Rule::Needless => "the exception",
        }
    }
}

/// Violation of a rule.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Finding {
    pub(super) file: PathBuf,
    pub(super) line: usize,
    pub(super) rule: Rule,
    /// Folder of the crate; empty if the violation belongs to no crate.
    pub(super) krate: String,
    pub(super) subject: String,
    /// Size of the violation: lines, bytes, places, or top-level modules of a cycle.
    pub(super) size: usize,
    pub(super) what: String,
    pub(super) remedy: String,
}

impl fmt::Display for Finding {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Finding { file, line, what, remedy, .. } = self;
        write!(f, "{}:{line}: {what} — {remedy}", file.display())
    }
}

/// Exceptions from a rule in one crate.
#[derive(Debug, Clone)]
pub(super) struct Known {
    rule: Rule,
    krate: &'static str,
    /// Subjects, each with the maximum size of the violation.
    subjects: &'static [(&'static str, usize)],
    is_kept: bool,
    line: u32,
}

impl Known {
    /// Lists violations that are still to be fixed; `_why` is for readers of the table.
    #[track_caller]
    pub(super) const fn to_mend(
        rule: Rule,
        krate: &'static str,
        subjects: &'static [(&'static str, usize)],
        _why: &'static str,
    ) -> Known {
        let line = Location::caller().line();
        Known { rule, krate, subjects, is_kept: false, line }
    }

    /// Lists violations that stay.
    #[track_caller]
    pub(super) const fn kept(
        rule: Rule,
        krate: &'static str,
        subjects: &'static [(&'static str, usize)],
        why: &'static str,
    ) -> Known {
        Known { is_kept: true, ..Known::to_mend(rule, krate, subjects, why) }
    }
}

/// Findings, and numbers of exceptions.
#[derive(Debug, Default)]
pub(super) struct TidyReport {
    pub(super) findings: Vec<Finding>,
    /// Number of exceptions that are to be fixed.
    pub(super) to_mend: usize,
    /// Number of exceptions that stay.
    pub(super) kept: usize,
}

/// Removes findings that known exceptions cover. An exception that covers nothing is a finding
/// itself, so that the table only shrinks. `looked_at` are the folders of the checked crates.
pub(super) fn judge<'a>(
    mut findings: Vec<Finding>,
    known: impl Iterator<Item = &'a Known>,
    table: &Path,
    looked_at: &BTreeSet<&str>,
) -> TidyReport {
    let mut report = TidyReport::default();
    findings.sort();
    findings.dedup();
    for entry in known.filter(|entry| looked_at.contains(entry.krate)) {
        for (subject, most) in entry.subjects {
            let is_meant = |finding: &Finding| {
                (finding.rule, &*finding.krate, &*finding.subject)
                    == (entry.rule, entry.krate, *subject)
            };
            if let Some(at) = findings.iter().position(|f| is_meant(f) && f.size <= *most) {
                findings.remove(at);
                if entry.rule.is_per_place() {
                    findings.retain(|finding| !is_meant(finding) || finding.size > *most);
                }
                let count = if entry.is_kept { &mut report.kept } else { &mut report.to_mend };
                *count += 1;
            } else if let Some(grown) = findings.iter_mut().find(|f| is_meant(f)) {
                grown.what += &format!(", which was {most} at most");
            } else {
                report.findings.push(needless(entry, subject, table));
            }
        }
    }
    report.findings.extend(findings);
    report.findings.sort();
    report
}

fn needless(entry: &Known, subject: &str, table: &Path) -> Finding {
    let krate = entry.krate.to_owned();
    Finding {
        file: table.into(),
        line: entry.line as usize,
        rule: Rule::Needless,
        what: format!("{} `{subject}` of {krate} is no longer there", entry.rule.name()),
        krate,
        subject: subject.to_owned(),
        size: 1,
        remedy: "remove it from this table".into(),
    }
}
