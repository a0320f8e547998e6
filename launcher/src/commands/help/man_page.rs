//! Topics of `rlaunch help` as manual pages: `rlaunch-TOPIC(7)`.

use clap_mangen::roff::{Inline, Roff, bold, roman};

/// Renders a topic as a manual page in roff. `text` is Markdown with these elements: headings, paragraphs,
/// items that begin with `- `, lines indented by four spaces, and `code`.
pub(super) fn render(topic: &str, about: &str, text: &str) -> String {
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

#[cfg(test)]
mod tests {
    use super::*;

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
