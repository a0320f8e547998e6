//! Text of a finding as users read it.

use super::{Finding, Severity, Step};
use anstyle::AnsiColor;
use rlaunch_text::{printable, text};
use std::fmt::Write as _;

/// Colours of severities; a stream that is not a terminal gets none.
const ERROR: Paint = Paint(anstyle::Style::new().fg_color(colour(AnsiColor::Red)).bold());
const WARNING: Paint = Paint(anstyle::Style::new().fg_color(colour(AnsiColor::Yellow)).bold());
const NOTE: Paint = Paint(anstyle::Style::new().fg_color(colour(AnsiColor::Cyan)));
/// Maximum number of hosts that a line names.
const MAX_HOSTS: usize = 8;

/// Colour and weight of a word.
#[derive(Clone, Copy, Debug)]
pub struct Paint(anstyle::Style);

const fn colour(colour: AnsiColor) -> Option<anstyle::Color> {
    Some(anstyle::Color::Ansi(colour))
}

impl Paint {
    pub fn paint(self, word: &str) -> String {
        format!("{}{word}{:#}", self.0, self.0)
    }
}

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
            Severity::Error => ERROR,
            Severity::Warning => WARNING,
            Severity::Note => NOTE,
        }
    }
}

impl Finding {
    /// Writes the finding and its fix in several lines, each with a newline.
    pub fn to_text(&self) -> String {
        let style = self.severity.style();
        let word = format!("{:<5}", self.severity.word());
        let mut out = format!("{}  {}  {}\n", style.paint(&word), self.id, self.sentence());
        let mut place: Option<String> = None;
        for step in &self.fix {
            let (on, line) = match step {
                Step::Run(line) => (format!("fix, on {}:", hosts(&self.hosts)), line),
                Step::RunOn(host, line) => (format!("fix, on {host}:"), line),
                Step::RunHere(line) => ("fix, here:".to_owned(), line),
                Step::Do(line) => ("fix:".to_owned(), line),
            };
            if place.as_ref() != Some(&on) {
                let _ = writeln!(out, "  {}", NOTE.paint(&printable::message(&on)));
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
        let matters = match self.matters.is_empty() {
            true => String::new(),
            false => format!(" — {}", self.matters),
        };
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
    use super::super::id;
    use super::*;

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
