//! A guide is followed: the commands of its README.md are run as they stand there, and what they
//! print is compared with what it says they print.
//!
//! A block is four spaces deep. Lines of it that begin with `$ rlaunch` are commands, the rest is
//! what they print, on stdout and stderr, up to the next command; a `\` at its end continues a
//! command on the next line. Blocks that begin otherwise are for the reader. `…` stands for anything within a line and, alone on a line, for any lines.
//! Blanks are not counted, as columns are as wide as what is in them.

use std::path::Path;

/// A command and what it prints.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Step {
    /// Of the README.
    pub(crate) line: usize,
    /// As a shell takes it.
    pub(crate) command: String,
    /// Line by line.
    pub(crate) printed: Vec<String>,
}

/// Runs every command of `examples/guides/NAME`. `run` gets a shell line in which `rlaunch` is the
/// program at this path, and returns what was printed.
pub(crate) fn follow(name: &str, rlaunch: &str, mut run: impl FnMut(&str) -> String) {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../examples/guides").join(name);
    let text = std::fs::read_to_string(path.join("README.md")).unwrap();
    let steps = steps(&text);
    assert!(!steps.is_empty(), "{name} has no commands");
    for Step { line, command, printed } in steps {
        let found = run(&format!("rlaunch() {{ {rlaunch} \"$@\"; }}\n{{ {command}\n}} 2>&1"));
        // On a busy machine a step may take longer than the second after which it is named.
        let is_wait =
            |line: &&str| line.starts_with("rlaunch: waiting ") && line.contains(" s for: ");
        let lines: Vec<&str> = found.lines().filter(|line| !is_wait(line)).collect();
        let printed: Vec<&str> = printed.iter().map(String::as_str).collect();
        let wanted = printed.join("\n");
        assert!(
            is_as_said(&printed, &lines),
            "{name}/README.md:{line}: $ {command}\nprints\n{found}\nthe guide says\n{wanted}"
        );
    }
}

/// The commands of a guide, in order.
pub(crate) fn steps(text: &str) -> Vec<Step> {
    let mut steps: Vec<Step> = Vec::new();
    let mut is_run = false;
    let mut is_block = false;
    for (line, text) in (1..).zip(text.lines()) {
        let Some(text) = text.strip_prefix("    ") else {
            is_block = false;
            continue;
        };
        let command = text.strip_prefix("$ ").filter(|command| command.starts_with("rlaunch "));
        is_run = if is_block { is_run } else { command.is_some() };
        is_block = true;
        match (command, steps.last_mut()) {
            _ if !is_run => {}
            (_, Some(step)) if step.printed.is_empty() && step.command.ends_with('\\') => {
                step.command.pop();
                step.command.push_str(text.trim_start());
            }
            (Some(command), _) => {
                steps.push(Step { line, command: command.into(), printed: Vec::new() });
            }
            (None, Some(step)) => step.printed.push(text.into()),
            (None, None) => {}
        }
    }
    steps
}

/// Whether these lines are what was said.
pub(crate) fn is_as_said(said: &[&str], found: &[&str]) -> bool {
    match (said.split_first(), found.split_first()) {
        (None, None) => true,
        (Some((line, rest)), _) if line.trim() == "…" => {
            (0..=found.len()).any(|skipped| is_as_said(rest, &found[skipped..]))
        }
        (Some((line, said)), Some((other, found))) => {
            is_line_as_said(line, other) && is_as_said(said, found)
        }
        _ => false,
    }
}

fn is_line_as_said(said: &str, found: &str) -> bool {
    let words = |line: &str| line.split_whitespace().collect::<Vec<_>>().join(" ");
    let (said, found) = (words(said), words(found));
    let mut parts = said.split('…');
    let Some(mut rest) = parts.next().and_then(|first| found.strip_prefix(first)) else {
        return false;
    };
    let mut parts: Vec<&str> = parts.collect();
    let Some(last) = parts.pop() else { return rest.is_empty() };
    for part in parts {
        let Some(at) = rest.find(part) else { return false };
        rest = &rest[at + part.len()..];
    }
    rest.ends_with(last)
}
