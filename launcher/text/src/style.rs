//! Colours of what rlaunch prints. They are legible on light and dark backgrounds: none is black, white or bright.
//!
//! Text is painted after it was made safe by [`crate::printable`], which would show the escape sequences. Whoever prints it
//! removes them where there are no colours.

use anstyle::{AnsiColor, Style};

/// Colour and weight of a word.
#[derive(Clone, Copy, Debug)]
pub struct Paint(Style);

/// What is wrong.
pub const BAD: Paint = Paint(AnsiColor::Red.on_default().bold());
/// What may be wrong.
pub const DOUBTFUL: Paint = Paint(AnsiColor::Yellow.on_default().bold());
/// What works.
pub const GOOD: Paint = Paint(AnsiColor::Green.on_default());
/// What is said besides; what can be typed.
pub const NOTE: Paint = Paint(AnsiColor::Cyan.on_default());
/// Names of hosts, and headings.
pub const BOLD: Paint = Paint(Style::new().bold());
/// Details, and headers of tables.
pub const DIM: Paint = Paint(Style::new().dimmed());

impl Paint {
    pub fn paint(self, word: &str) -> String {
        format!("{}{word}{:#}", self.0, self.0)
    }
}

/// Paints a measurement, in which lines that are no row of its table begin with `#`: those above rows as details. Those
/// below all rows say what came of it, and are shown without the sign.
pub fn measurement(text: &str) -> String {
    let is_row = |line: &&str| !line.starts_with('#');
    let lines: Vec<&str> = text.lines().collect();
    let rows = lines.iter().rposition(is_row).map_or(0, |last| last + 1);
    let paint = |(at, line): (usize, &&str)| match line.strip_prefix('#') {
        Some(_) if at < rows => DIM.paint(line),
        Some(answer) => answer.trim_start().to_owned(),
        None => (*line).to_owned(),
    };
    lines.iter().enumerate().map(paint).map(|line| line + "\n").collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_answer_of_a_measurement_is_no_comment() {
        let text = measurement("# bytes: of each message\n 8 0.12\n# 97 % of the link\n");
        let above = DIM.paint("# bytes: of each message");
        assert_eq!(text, format!("{above}\n 8 0.12\n97 % of the link\n"));
        assert!(text.starts_with("\x1b[2m# "), "{text:?}");
        assert_eq!(measurement("# 97 % of the link\n"), "97 % of the link\n");
        assert_eq!(measurement(""), "");
    }
}
