//! Pages of `rlaunch help` at a terminal: no signs of Markdown, headings and commands in colours, lines as wide as it is.

use rlaunch_text::style::{BOLD, NOTE};

/// Width of lines where the terminal's is not known.
const DEFAULT_WIDTH: usize = 80;
/// Width beyond which lines are hard to read.
const MAX_WIDTH: usize = 100;
/// Width below which words would hardly fit.
const MIN_WIDTH: usize = 40;

/// Formats a page in Markdown for a terminal with this number of columns. Lines that are indented, such as commands and
/// their output, stay as they are.
pub(super) fn format(page: &str, columns: Option<u16>) -> String {
    let width = columns.map_or(DEFAULT_WIDTH, usize::from).clamp(MIN_WIDTH, MAX_WIDTH);
    let mut paragraph = Paragraph { width, ..Paragraph::default() };
    let mut shown = String::new();
    for line in page.lines() {
        let is_item = line.starts_with("- ");
        // Further lines of an item are indented as its text.
        let continues = paragraph.is_item && line.starts_with("  ") && !line.starts_with("   ");
        let is_verbatim = line.starts_with("  ") && !continues;
        let heading = line.strip_prefix('#').map(|line| line.trim_start_matches('#').trim());
        if is_item || is_verbatim || line.is_empty() || heading.is_some() {
            shown += &paragraph.take();
        }
        match heading {
            Some(heading) => shown += &BOLD.paint(&heading.replace('`', "")),
            None if is_verbatim || line.is_empty() => shown += line,
            None => {
                paragraph.is_item |= is_item;
                paragraph.text += line;
                paragraph.text.push('\n');
                continue;
            }
        }
        shown.push('\n');
    }
    shown + &paragraph.take()
}

/// Lines that are filled anew: a paragraph, or an item of a list.
#[derive(Default)]
struct Paragraph {
    text: String,
    is_item: bool,
    width: usize,
}

impl Paragraph {
    /// Returns the lines so far, filled, and begins anew.
    fn take(&mut self) -> String {
        let text = std::mem::take(&mut self.text);
        let is_item = std::mem::take(&mut self.is_item);
        let indent = if is_item { 2 } else { 0 };
        let (mut filled, mut at, mut is_code) = (String::new(), 0, false);
        for word in text.split_whitespace() {
            let length = word.chars().filter(|letter| *letter != '`').count();
            if at > 0 && at + 1 + length > self.width {
                filled.push('\n');
                filled += &" ".repeat(indent);
                at = indent;
            } else if at > 0 {
                filled.push(' ');
                at += 1;
            }
            filled += &painted(word, &mut is_code);
            at += length;
        }
        if !filled.is_empty() {
            filled.push('\n');
        }
        filled
    }
}

/// Paints what is between backticks in a word, and removes them. `is_code` tells whether the word begins between two.
fn painted(word: &str, is_code: &mut bool) -> String {
    let mut text = String::new();
    for (index, part) in word.split('`').enumerate() {
        *is_code ^= index > 0;
        text += &if *is_code && !part.is_empty() { NOTE.paint(part) } else { part.to_owned() };
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;
    use anstream::adapter::strip_str;

    fn plain(page: &str, columns: u16) -> String {
        strip_str(&format(page, Some(columns))).to_string()
    }

    #[test]
    fn a_page_is_filled_to_the_width_and_has_no_markdown() {
        let page = "# About `x`\n\nOne two three four five six seven eight nine ten\neleven.\n\n\
                    - `--a B`: an item that goes on and on, further\n  than a line\n- two\n\n    $ as it is, however long this line may be\n";
        let expected = "About x\n\nOne two three four five six seven eight\nnine ten eleven.\n\n\
                        - --a B: an item that goes on and on,\n  further than a line\n- two\n\n    $ as it is, however long this line may be\n";
        assert_eq!(plain(page, 40), expected);
        assert!(plain(page, 80).contains("nine ten eleven.\n"));
    }

    #[test]
    fn headings_are_bold_and_code_is_coloured_word_by_word() {
        let shown = format("## A heading\nrun `rlaunch jobs`.\n", None);
        let code = format!("{} {}.", NOTE.paint("rlaunch"), NOTE.paint("jobs"));
        assert_eq!(shown, format!("{}\nrun {code}\n", BOLD.paint("A heading")));
    }

    #[test]
    fn no_line_of_a_page_is_wider_than_the_terminal() {
        for topic in super::super::topic_names() {
            let (_, page) = super::super::page(topic).unwrap();
            let shown = plain(&page, 80);
            let is_text = |line: &&str| !line.starts_with("    ");
            // A word may be longer than a line, as an address is.
            let long = |line: &&str| line.chars().count() > 80 && line.trim().contains(' ');
            let is_odd = |line: &&str| long(line) || line.contains('`') || line.starts_with('#');
            let found = shown.lines().filter(is_text).find(is_odd);
            assert_eq!(found, None, "{topic}");
        }
    }
}
