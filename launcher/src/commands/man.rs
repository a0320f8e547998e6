//! `rlaunch man`: manual pages of rlaunch, of its verbs and of help topics.

use super::help;
use super::invocation::definition;
use clap::Parser;
use clap_mangen::roff::{Inline, Roff, bold, roman};
use rlaunch_console::stdout;
use rlaunch_text::exit::Exit;
use rlaunch_text::message::Failed;
use std::fs;
use std::io::{self, IsTerminal};
use std::path::{Path, PathBuf};

/// Show the manual page of rlaunch, of one of its verbs, or of a topic.
///
/// At a terminal man shows it, or the pager where there is no man; a pipe or a file gets its source.
#[derive(Debug, Parser)]
#[command(after_help = "\
Examples:
  rlaunch man                                       read it
  rlaunch man topo                                  that of a verb
  rlaunch man env                                   that of a topic of rlaunch help
  rlaunch man --all ~/.local/share/man              install those of all verbs and topics")]
pub(crate) struct ManArgs {
    /// Verb or topic, as topo or env; for bench train both words
    #[arg(value_name = "VERB|TOPIC", num_args = 0..=2)]
    pub(crate) words: Vec<String>,

    /// Write the pages of all verbs and topics, into man1 and man7 of this directory
    #[arg(long, value_name = "DIRECTORY", conflicts_with = "words")]
    pub(crate) all: Option<PathBuf>,
}

pub(super) fn run(args: &ManArgs) -> Result<Exit, Failed> {
    match &args.all {
        Some(directory) => write_all(directory)?,
        None => {
            let page = page(&args.words)?;
            if io::stdout().is_terminal() {
                let options = ["-l", "-"].map(str::to_owned);
                // Where man is missing, help has the same text.
                let _ = help::become_pager("man", &options, &String::from_utf8_lossy(&page));
                help::show_page(&args.words)?;
            } else {
                stdout::write(&page);
            }
        }
    }
    Ok(Exit::SUCCESS)
}

/// Writes all pages into the sections of `directory`.
fn write_all(directory: &Path) -> Result<(), Failed> {
    let write = |section: u8, words: &[String]| {
        let name = std::iter::once("rlaunch").chain(words.iter().map(String::as_str));
        let name = name.collect::<Vec<_>>().join("-");
        let folder = directory.join(format!("man{section}"));
        let path = folder.join(format!("{name}.{section}"));
        let written = page(words)
            .map(|page| fs::create_dir_all(&folder).and_then(|()| fs::write(&path, page)))?;
        written.map_err(|error| {
            Failed::new(Exit::FILES, format!("cannot write {}: {error}", path.display()))
        })
    };
    let mut whole = definition();
    whole.build();
    verbs(&whole, &[]).iter().try_for_each(|words| write(1, words))?;
    help::topic_names().try_for_each(|topic| write(7, &[topic.to_owned()]))
}

/// Lists the words of a command and of all its verbs. `words` are those of the command.
fn verbs(command: &clap::Command, words: &[String]) -> Vec<Vec<String>> {
    let is_shown = |verb: &&clap::Command| verb.get_name() != "help" && !verb.is_hide_set();
    let own = command.get_subcommands().filter(is_shown);
    let below = own.flat_map(|verb| {
        let words = [words, &[verb.get_name().to_owned()]].concat();
        verbs(verb, &words)
    });
    std::iter::once(words.to_vec()).chain(below).collect()
}

fn page(words: &[String]) -> Result<Vec<u8>, Failed> {
    if let [topic] = words
        && let Some((about, text)) = help::page(topic)
    {
        return Ok(render(topic, about, &text).into_bytes());
    }
    let mut whole = definition();
    whole.build();
    let mut command = &whole;
    for word in words {
        command = command.find_subcommand(word).ok_or_else(|| {
            let known = command.get_subcommands().filter(|verb| !verb.is_hide_set());
            let known: Vec<&str> = known.map(clap::Command::get_name).collect();
            let known: Vec<&str> = known.into_iter().filter(|name| *name != "help").collect();
            let message = format!("`{word}` is not a verb or a topic of rlaunch");
            let failed = Failed::new(Exit::USAGE, message);
            failed.hint((!known.is_empty()).then(|| format!("verbs are {}", known.join(", "))))
        })?;
    }
    let mut page = Vec::new();
    let source = format!("rlaunch {}", env!("CARGO_PKG_VERSION"));
    let written = clap_mangen::Man::new(command.clone()).source(source).render(&mut page);
    written.map_err(|error| Failed::from_error(Exit::BUG, &error))?;
    Ok(page)
}

/// Renders a topic as a manual page in roff. `text` is Markdown with these elements: headings, paragraphs,
/// items that begin with `- `, lines indented by four spaces, and `code`.
fn render(topic: &str, about: &str, text: &str) -> String {
    let mut page = Roff::new();
    let source = format!("rlaunch {}", env!("CARGO_PKG_VERSION"));
    page.control("TH", [&*format!("rlaunch-{topic}"), "7", "\"\"", &source]);
    page.control("SH", ["NAME"]).text([roman(format!("rlaunch-{topic} - {about}"))]);
    page.control("SH", ["DESCRIPTION"]);
    let mut lines = text.lines().peekable();
    while let Some(line) = lines.next() {
        if let Some(heading) = line.strip_prefix("## ") {
            page.control("SH", [heading]);
        } else if let Some(code) = line.strip_prefix("    ") {
            page.control("PP", []).control("RS", ["4"]).control("nf", []);
            page.text([roman(code)]);
            while let Some(code) = lines.next_if(|line| line.starts_with("    ") || line.is_empty())
            {
                page.text([roman(code.trim_start_matches("    "))]);
            }
            page.control("fi", []).control("RE", []);
        } else if !line.is_empty() && !line.starts_with("# ") {
            let mut paragraph = line.to_owned();
            while let Some(more) = lines.next_if(|line| continues(line)) {
                paragraph.push(' ');
                paragraph.push_str(more.trim_start());
            }
            match paragraph.strip_prefix("- ") {
                Some(item) => page.control("IP", ["\\(bu", "2"]).text(inlines(item)),
                None => page.control("PP", []).text(inlines(&paragraph)),
            };
        }
    }
    page.render()
}

/// Tells whether a line continues the paragraph or item before it.
fn continues(line: &str) -> bool {
    !line.is_empty() && !["- ", "#", "    "].iter().any(|begin| line.starts_with(begin))
}

/// Splits a text into plain text and `code`, which is bold.
fn inlines(text: &str) -> Vec<Inline> {
    let parts = text.split('`').enumerate().filter(|(_, part)| !part.is_empty());
    parts.map(|(at, part)| if at % 2 == 0 { roman(part) } else { bold(part) }).collect()
}

/// Options that must not appear in any help or completion.
#[cfg(test)]
pub(super) const HIDDEN: [&str; 7] = [
    "ignored", "remark", "interfaces", "nnodes", "allow-run-as-root", "get-stack-traces",
    "report-state-on-timeout",
];

#[cfg(test)]
mod tests {
    use super::*;

    fn text(bytes: Vec<u8>) -> String {
        String::from_utf8(bytes).unwrap()
    }

    #[test]
    fn all_pages_are_written() {
        let directory = tempfile::tempdir().unwrap();
        write_all(directory.path()).unwrap();
        for page in ["man1/rlaunch.1", "man1/rlaunch-bench-train.1", "man7/rlaunch-ssh.7"] {
            let text = fs::read_to_string(directory.path().join(page)).unwrap();
            assert!(text.contains(".TH rlaunch"), "{page}: {text}");
        }
        let verbs = definition().get_subcommands().filter(|verb| !verb.is_hide_set()).count();
        assert!(fs::read_dir(directory.path().join("man1")).unwrap().count() > verbs);
    }

    #[test]
    fn pages_say_what_help_says() {
        let all = text(page(&[]).unwrap());
        for wanted in [".TH rlaunch 1", "\\-\\-map\\-by", "rlaunch\\-topo(1)", "EXTRA"] {
            assert!(all.contains(wanted), "{wanted} in {all}");
        }
        for hidden in HIDDEN {
            assert!(!all.contains(&format!("\\-\\-{}", hidden.replace('-', "\\-"))), "{hidden}");
        }
        let words = |line: &str| line.split(' ').map(str::to_owned).collect::<Vec<_>>();
        let topo = text(page(&words("topo")).unwrap());
        assert!(topo.contains("\\-\\-gids") && topo.contains(".TH rlaunch-topo 1"), "{topo}");
        assert!(text(page(&words("bench train")).unwrap()).contains("\\-\\-np"));
        let ssh = text(page(&words("ssh")).unwrap());
        assert!(ssh.contains(".TH rlaunch-ssh 7") && ssh.contains("\\fBProxyJump\\fR"), "{ssh}");
        let failed = page(&words("tipo")).unwrap_err();
        assert_eq!(failed.message, "`tipo` is not a verb or a topic of rlaunch");
        assert!(failed.hints[0].contains("topo"), "{failed:?}");
    }

    #[test]
    fn each_form_of_text_has_its_request() {
        let text = "# Title\n\nFirst `-H`\nline.\n\n## Part\n\n- one\n  item\n- two\n\n    $ a\n\n    .b\n";
        let page = render("x", "about it", text);
        let (_, page) = page.split_once(".TH ").unwrap();
        let wanted = format!(
            "rlaunch-x 7 \"\" \"rlaunch {}\"\n.SH NAME\nrlaunch\\-x \\- about it\n.SH DESCRIPTION\n.PP\n\
             First \\fB\\-H\\fR line.\n.SH Part\n.IP \\(bu 2\none item\n.IP \\(bu 2\ntwo\n.PP\n.RS 4\n.nf\n\
             $ a\n\n\\&.b\n.fi\n.RE\n",
            env!("CARGO_PKG_VERSION")
        );
        assert_eq!(page, wanted);
    }
}
