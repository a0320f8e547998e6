//! `rlaunch help`: pages on what is no option, and what `--help` says of each verb.

use crate::cli::args::{self, HelpArgs};
use crate::console::exit::Exit;
use crate::console::report::Failed;
use std::fmt::Write as _;
use std::io::Write as _;

/// A page: its word, what it is about, and its text.
const TOPICS: &[(&str, &str, &str)] = &[(
    "security",
    "trust, encryption, and what others can see or disturb",
    include_str!("../../help/security.md"),
)];

const COMMENT: (&str, &str) = ("<!--", "-->");

/// Prints a page, the help of a verb, or which there are.
pub(crate) fn help(args: &HelpArgs) -> Result<Exit, Failed> {
    let text = match &args.words[..] {
        [] => contents(),
        [topic] if page(topic).is_some() => page(topic).unwrap_or_default(),
        words => of_verb(words)?,
    };
    // A reader that leaves is no failure.
    let _ = anstream::stdout().lock().write_all(text.as_bytes());
    Ok(Exit::SUCCESS)
}

fn page(topic: &str) -> Option<String> {
    let (_, _, text) = TOPICS.iter().find(|(word, ..)| *word == topic)?;
    Some(without_comments(text))
}

/// The text as it is read: comments are for those who write it.
fn without_comments(text: &str) -> String {
    let mut rest = text;
    let mut shown = String::with_capacity(text.len());
    while let Some((before, after)) = rest.split_once(COMMENT.0) {
        shown.push_str(before);
        rest = after.split_once(COMMENT.1).map_or("", |(_, after)| after);
    }
    shown.push_str(rest);
    let lines: Vec<&str> = shown.lines().map(str::trim_end).collect();
    let mut text = String::new();
    for (index, line) in lines.iter().enumerate() {
        // A comment that had lines of its own leaves one empty line, not two.
        if !line.is_empty() || index > 0 && !lines[index - 1].is_empty() {
            text.push_str(line);
            text.push('\n');
        }
    }
    text
}

fn contents() -> String {
    let mut text = "rlaunch --help says how a job is started. Topics of rlaunch help:\n".to_owned();
    for (word, about, _) in TOPICS {
        let _ = writeln!(text, "  {word:<12}  {about}");
    }
    text.push_str("Verbs, as rlaunch help VERB or rlaunch VERB --help:\n");
    for verb in args::definition().get_subcommands() {
        let about = verb.get_about().map(ToString::to_string).unwrap_or_default();
        let about = about.trim_end_matches('.');
        let _ = writeln!(text, "  {:<12}  {about}", verb.get_name());
    }
    text
}

fn of_verb(words: &[String]) -> Result<String, Failed> {
    let mut whole = args::definition();
    whole.build();
    let mut command = &mut whole;
    for word in words {
        command = command.find_subcommand_mut(word).ok_or_else(|| {
            let topics: Vec<&str> = TOPICS.iter().map(|(word, ..)| *word).collect();
            let message = format!("rlaunch help knows no `{word}`");
            let hint = format!("topics: {}; `rlaunch help` lists verbs as well", topics.join(", "));
            Failed::new(Exit::USAGE, message).hint(Some(hint))
        })?;
    }
    Ok(command.render_long_help().ansi().to_string())
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::path::Path;

    fn words(line: &str) -> Vec<String> {
        line.split_whitespace().map(str::to_owned).collect()
    }

    /// Items of a page with their comments: from "- " to the next, or to an empty line.
    fn claims(text: &str) -> Vec<String> {
        let mut claims: Vec<String> = Vec::new();
        let mut inside = false;
        for line in text.lines() {
            match line {
                line if line.starts_with("- ") => {
                    claims.push(line.to_owned());
                    inside = true;
                }
                "" => inside = false,
                line if inside => {
                    let claim = claims.last_mut().expect("an item has begun");
                    claim.push(' ');
                    claim.push_str(line.trim());
                }
                _ => {}
            }
        }
        claims
    }

    #[test]
    fn every_claim_names_a_test_that_exists() {
        let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("..");
        for (topic, _, text) in TOPICS {
            let claims = claims(text);
            assert!(!claims.is_empty(), "{topic}");
            for claim in claims {
                let tests: Vec<&str> = claim
                    .split(COMMENT.0)
                    .filter_map(|part| part.split_once(COMMENT.1)?.0.trim().strip_prefix("test: "))
                    .collect();
                assert!(!tests.is_empty(), "no test for: {claim}");
                for test in tests {
                    let (file, function) = test.rsplit_once("::").expect(test);
                    let source = std::fs::read_to_string(root.join(file)).expect(test);
                    assert!(source.contains(&format!("fn {function}(")), "{test} does not exist");
                }
            }
        }
    }

    #[test]
    fn comments_are_not_printed() {
        let text =
            "# A\n\n<!-- two\n lines -->\n\n- one <!-- test: x -->\n  more <!-- y --> of it\n";
        assert_eq!(without_comments(text), "# A\n\n- one\n  more  of it\n");
        assert_eq!(without_comments("a <!-- open"), "a\n");
        let page = page("security").unwrap();
        assert!(!page.contains(COMMENT.0) && page.lines().all(|line| line.len() <= 105), "{page}");
    }

    #[test]
    fn topics_and_verbs_are_found() {
        assert!(contents().contains("  security ") && contents().contains("  topo "));
        assert!(of_verb(&words("topo")).unwrap().contains("--gids"));
        assert!(of_verb(&words("bench train")).unwrap().contains("--np"));
        let failed = of_verb(&words("securty")).unwrap_err();
        assert_eq!(failed.message, "rlaunch help knows no `securty`");
        assert!(failed.hints[0].contains("security"), "{failed:?}");
    }
}
