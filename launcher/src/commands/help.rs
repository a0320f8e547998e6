//! `rlaunch help`: pages on topics, the help of verbs, and findings explained, by the user's pager at a terminal, where
//! `page` makes them readable.
//!
//! The text of a topic is `launcher/help/TOPIC.md`; that of a finding stands with its check, in [`rlaunch_plan::checks`].

mod page;

use super::invocation::{definition, with_all_options};
use anstream::adapter::strip_str;
use anstream::{AutoStream, ColorChoice};
use clap::Parser;
use rlaunch_client::command;
use rlaunch_console::{stdout, terminal};
use rlaunch_plan::checks::{self, Check};
use rlaunch_text::exit::Exit;
use rlaunch_text::message::Failed;
use rlaunch_text::style::BOLD;
use std::convert::Infallible;
use std::env;
use std::fmt::Write as _;
use std::io::{self, IsTerminal, Seek, Write};
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::Command;

/// Name of a page, its subject, and its text.
type Topic = (&'static str, &'static str, &'static str);

macro_rules! topics {
    ($($word:literal: $about:literal,)*) => {
        &[$(($word, $about, include_str!(concat!("../../help/", $word, ".md")))),*]
    };
}

const TOPICS: &[Topic] = topics! {
    "hosts": "-H, hostfiles, slots, mapping of ranks, what hosts have, cables between them",
    "up": "rlaunch up and down: hosts become a cluster that stays, and what they were",
    "ssh": "how hosts are reached: SSH, keys, jump hosts, ports",
    "env": "the variables of a rank, and which of your shell's are passed on",
    "programs": "several programs, templates, dry runs, commands for ranks",
    "frameworks": "torch, jax, tensorflow, ray, vllm (also each by its name): lines to type",
    "containers": "Docker, Podman, Kubernetes",
    "slurm": "jobs of Slurm and other batch systems",
    "mesh": "RDMA between hosts: which ports reach each other, the test before a job, the watch",
    "nccl": "variables of NCCL and UCX, and whether NCCL uses RDMA",
    "config": "rlaunch.toml, trust, variables, options of other launchers",
    "output": "input and output of ranks, records, reports, benchmarks",
    "copy": "rlaunch push, fetch and --sync: files, directories and models to hosts, and from them",
    "running": "running jobs: what they do, where their ranks are",
    "ends": "how a job ends, exit codes, restarts",
    "security": "trust, encryption, and what other users can see or disturb",
};

/// Words that people look for, and the topic and the section that answer them.
const SECTIONS: [(&str, &str, &str); 11] = [
    ("exit", "ends", "Exit codes"),
    ("hang", "running", "A job that hangs"),
    ("table", "programs", "The rank table"),
    ("mpirun", "programs", "The words of mpirun and mpiexec"),
    ("mpiexec", "programs", "The words of mpirun and mpiexec"),
    ("files", "programs", "Scripts and files that only this machine has"),
    ("torch", "frameworks", "torch"),
    ("jax", "frameworks", "JAX"),
    ("tensorflow", "frameworks", "TensorFlow"),
    ("ray", "frameworks", "Ray"),
    ("vllm", "frameworks", "vLLM"),
];

/// Word for the page with all options of jobs.
const OPTIONS: &str = "options";

/// Begin and end of a comment in a page. Comments are not printed.
const COMMENT: (&str, &str) = ("<!--", "-->");

/// Explain a topic, as env or ssh, a verb, or a finding, as mtu.path; without a word, list topics and verbs.
#[derive(Debug, Parser)]
#[command(after_help = "\
Examples:
  rlaunch help               topics and verbs
  rlaunch help env           the variables of a rank
  rlaunch help options       all options of jobs
  rlaunch help mtu.path      what an error or a finding of rlaunch doctor with this id means
  rlaunch help topo          the same as rlaunch topo --help")]
pub(crate) struct HelpArgs {
    /// Topic, verb or id of a finding; for bench train both words
    #[arg(value_name = "TOPIC|VERB|ID", num_args = 0..=2)]
    pub(crate) words: Vec<String>,
}

/// Prints a page, the help of a verb, or a list of both.
pub(super) fn run(args: &HelpArgs) -> Result<Exit, Failed> {
    match &args.words[..] {
        [] => stdout::print_styled(&contents()),
        [word] if let Some((_, text)) = page(word) => show_formatted(&text),
        [word] if let Some(text) = section(word) => show_formatted(&text),
        [word] if let Some(check) = checks::find(word) => {
            let text = explanation(check);
            show_formatted(&if io::stdout().is_terminal() { format!("# {text}") } else { text });
        }
        [word] if word == OPTIONS => {
            show(&with_all_options().render_long_help().ansi().to_string());
        }
        words => show(&verb_help(words)?),
    }
    Ok(Exit::SUCCESS)
}

/// Formats the page of a check.
fn explanation(check: &Check) -> String {
    let mut text = format!("{}: {}\n", check.id, check.about);
    for paragraph in check.explanation.split("\n\n") {
        text.push('\n');
        text += &wrapped(paragraph);
    }
    if !check.causes.is_empty() {
        let causes: Vec<&str> = check.causes.iter().map(|id| id.as_str()).collect();
        text.push('\n');
        text += &wrapped(&format!("It may cause: {}.", causes.join(", ")));
    }
    text
}

/// Breaks a paragraph into lines that fit a terminal. Lines that begin with spaces, such as commands, stay.
fn wrapped(paragraph: &str) -> String {
    const WIDTH: usize = 80;
    if paragraph.lines().any(|line| line.starts_with("  ")) {
        return format!("{paragraph}\n");
    }
    let mut text = String::new();
    let mut width = 0;
    for word in paragraph.split_whitespace() {
        let length = word.chars().count();
        if width > 0 && width + 1 + length > WIDTH {
            text.push('\n');
            width = 0;
        } else if width > 0 {
            text.push(' ');
            width += 1;
        }
        text += word;
        width += length;
    }
    text.push('\n');
    text
}

/// Lists the names of all topics.
pub(super) fn topic_names() -> impl Iterator<Item = &'static str> {
    TOPICS.iter().map(|(name, _, _)| *name)
}

/// Returns the subject and the text of a topic.
pub(super) fn page(word: &str) -> Option<(&'static str, String)> {
    topic(word).map(|(_, about, text)| (*about, without_comments(text)))
}

fn topic(word: &str) -> Option<&'static Topic> {
    TOPICS.iter().find(|(name, ..)| *name == word)
}

/// Returns the section of a topic that answers a word of [`SECTIONS`].
fn section(word: &str) -> Option<String> {
    let (_, topic, heading) = SECTIONS.iter().find(|(name, ..)| *name == word)?;
    let (_, text) = page(topic)?;
    let (_, section) = text.split_once(&format!("\n## {heading}\n"))?;
    let section = section.split("\n## ").next().unwrap_or_default().trim_end();
    Some(format!("# {heading}\n{section}\n\n`rlaunch help {topic}` has more.\n"))
}

/// Removes comments from a page, since they are for its authors.
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
        // A comment on lines of its own leaves one empty line, not two.
        if !line.is_empty() || index > 0 && !lines[index - 1].is_empty() {
            text.push_str(line);
            text.push('\n');
        }
    }
    text
}

fn contents() -> String {
    let heading = |text: &str| format!("{}\n", BOLD.paint(text));
    let mut text = "rlaunch --help explains how to start a job.\n".to_owned();
    text += &heading("Topics of rlaunch help:");
    for (word, about, _) in TOPICS {
        let _ = writeln!(text, "  {word:<12}  {about}");
    }
    let _ = writeln!(
        text,
        "  {OPTIONS:<12}  all options of jobs, also those that rlaunch --help leaves out"
    );
    text += &heading("Verbs, as rlaunch help VERB or rlaunch VERB --help:");
    for verb in definition().get_subcommands().filter(|verb| !verb.is_hide_set()) {
        let about = verb.get_about().map(ToString::to_string).unwrap_or_default();
        let about = about.trim_end_matches('.');
        let _ = writeln!(text, "  {:<12}  {about}", verb.get_name());
    }
    text += &heading("Commands for ranks, within a job:");
    for verb in command::VERBS {
        let _ = writeln!(text, "  {verb:<12}  see rlaunch {verb} --help");
    }
    text
}

fn verb_help(words: &[String]) -> Result<String, Failed> {
    let mut whole = definition();
    whole.build();
    let mut command = &mut whole;
    for word in words {
        command = command.find_subcommand_mut(word).ok_or_else(|| {
            let topics: Vec<&str> = TOPICS.iter().map(|(word, ..)| *word).collect();
            let message = format!("`{word}` is not a topic, a verb or a finding of rlaunch");
            let hint = format!(
                "topics: {}; `rlaunch help` lists verbs as well, `rlaunch doctor --list` findings",
                topics.join(", ")
            );
            Failed::new(Exit::USAGE, message).hint(Some(hint))
        })?;
    }
    Ok(command.render_long_help().ansi().to_string())
}

/// Prints a topic, or the help of a verb or of rlaunch.
pub(super) fn show_page(words: &[String]) -> Result<(), Failed> {
    let of_topic = match words {
        [word] => page(word).map(|(_, text)| text),
        _ => None,
    };
    let text = of_topic.map_or_else(|| verb_help(words), Ok)?;
    show_formatted(&text);
    Ok(())
}

/// Prints a page, and at a terminal as that shows it best.
fn show_formatted(page: &str) {
    if io::stdout().is_terminal() {
        show(&page::format(page, terminal::columns()));
    } else {
        show(page);
    }
}

/// Prints a text. At a terminal this process becomes the pager, and does not return.
fn show(text: &str) {
    if io::stdout().is_terminal() {
        let variable = |name| env::var(name).ok();
        let words = pager(variable("PAGER").as_deref(), variable("TERM").as_deref());
        // If the pager cannot be started, the text is printed without it.
        if let Some((program, arguments)) = words.split_first() {
            let _ = become_pager(program, arguments, text);
        }
    }
    stdout::print_styled(text);
}

/// Returns the pager's command line from the variables PAGER and TERM; empty if the text is to be printed
/// without a pager.
fn pager(named: Option<&str>, terminal: Option<&str>) -> Vec<String> {
    if terminal.is_none_or(|name| name.is_empty() || name == "dumb") {
        return Vec::new();
    }
    match named.map(str::trim) {
        Some("cat") => Vec::new(),
        Some(command) => shlex::split(command).unwrap_or_default(),
        None => ["less", "-R"].map(str::to_owned).into(),
    }
}

/// Replaces this process by the pager, so that no other process is left and Ctrl-C reaches the pager alone.
/// The pager reads the text from an unlinked file. Returns only if the pager cannot be started.
///
/// A failed `exec` leaves SIGPIPE at its default, so tests must not call this.
pub(super) fn become_pager(
    program: &str,
    arguments: &[String],
    text: &str,
) -> io::Result<Infallible> {
    let is_less = Path::new(program).file_name().is_some_and(|name| name == "less");
    let is_colourful = AutoStream::choice(&io::stdout()) != ColorChoice::Never;
    let mut file = tempfile::tempfile()?;
    match is_less && is_colourful {
        true => file.write_all(text.as_bytes())?,
        false => write!(file, "{}", strip_str(text))?,
    }
    file.rewind()?;
    let mut command = Command::new(program);
    if env::var_os("LESS").is_none() {
        // With the option F, less exits at once if the text fits the screen.
        command.env("LESS", "FRX");
    }
    Err(command.args(arguments).stdin(file).exec())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn words(line: &str) -> Vec<String> {
        line.split_whitespace().map(str::to_owned).collect()
    }

    /// Returns the items of a page with their comments. An item extends from "- " to the next one, or to an
    /// empty line.
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
    fn every_claim_on_security_names_a_test_that_exists() {
        let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("..");
        let (_, _, text) = topic("security").unwrap();
        let claims = claims(text);
        assert!(!claims.is_empty());
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

    #[test]
    fn comments_are_not_printed() {
        let text =
            "# A\n\n<!-- two\n lines -->\n\n- one <!-- test: x -->\n  more <!-- y --> of it\n";
        assert_eq!(without_comments(text), "# A\n\n- one\n  more  of it\n");
        assert_eq!(without_comments("a <!-- open"), "a\n");
    }

    /// Checks that the lines of each page fit a terminal, except for quoted output.
    #[test]
    fn pages_are_readable_at_a_terminal() {
        for (word, _, text) in TOPICS {
            let page = without_comments(text);
            let is_text = |line: &&str| !line.starts_with("    ");
            let long: Vec<&str> = page.lines().filter(is_text).filter(|l| l.len() > 105).collect();
            assert!(page.starts_with("# ") && long.is_empty(), "{word}: {long:?}");
            assert!(!page.contains(COMMENT.0), "{word}");
            assert_eq!(page.matches('`').count() % 2, 0, "{word}");
        }
    }

    /// Checks that README.md is short, since details belong in topics, and that it names every topic.
    #[test]
    fn the_readme_is_short_and_names_every_topic() {
        let readme = include_str!("../../../README.md");
        assert!(readme.len() <= 10_240, "README.md has {} bytes", readme.len());
        for (word, ..) in TOPICS {
            assert!(readme.contains(&format!("`rlaunch help {word}`")), "{word}");
        }
    }

    #[test]
    fn findings_are_explained_in_lines_that_fit() {
        for check in checks::catalogue() {
            let text = explanation(check);
            assert!(text.starts_with(&format!("{}: ", check.id)), "{text}");
            let is_prose = |line: &&str| !line.starts_with("  ");
            let long =
                text.lines().skip(1).filter(is_prose).find(|line| line.chars().count() > 105);
            assert_eq!(long, None, "{}", check.id);
        }
        assert_eq!(wrapped("one  two\nthree"), "one two three\n");
    }

    #[test]
    fn topics_and_verbs_are_found() {
        for word in TOPICS.iter().map(|(word, ..)| *word).chain(["topo", "barrier"]) {
            assert!(contents().contains(&format!("  {word} ")), "{word}");
        }
        assert!(contents().contains("  options ") && !contents().contains("  ssh-config "));
        assert!(verb_help(&words("ssh-config")).is_ok(), "old words go on working");
        assert!(verb_help(&words("topo")).unwrap().contains("--gids"));
        assert!(verb_help(&words("bench train")).unwrap().contains("--np"));
        for (word, topic, heading) in SECTIONS {
            let text = section(word).expect(heading);
            assert!(text.starts_with(&format!("# {heading}\n\n")), "{text}");
            assert!(!text.contains("\n## "), "{text}");
            assert!(text.ends_with(&format!("\n\n`rlaunch help {topic}` has more.\n")), "{text}");
            assert!(page(word).is_none() && verb_help(&words(word)).is_err(), "{word}");
        }
        assert!(section("exit").unwrap().contains("124: `--timeout`"));
        let failed = verb_help(&words("securty")).unwrap_err();
        assert_eq!(failed.message, "`securty` is not a topic, a verb or a finding of rlaunch");
        assert!(failed.hints[0].contains("security"), "{failed:?}");
    }

    #[test]
    fn a_pager_is_the_users_or_less_or_none() {
        let xterm = Some("xterm");
        assert_eq!(pager(None, xterm), ["less", "-R"]);
        assert_eq!(pager(Some("most -w"), xterm), ["most", "-w"]);
        assert_eq!(pager(Some("'/opt/my less' -S"), xterm), ["/opt/my less", "-S"]);
        for plain in [Some(""), Some(" "), Some("cat"), Some("'unclosed")] {
            assert!(pager(plain, xterm).is_empty(), "{plain:?}");
        }
        for terminal in [None, Some(""), Some("dumb")] {
            assert!(pager(Some("less"), terminal).is_empty(), "{terminal:?}");
        }
    }
}
