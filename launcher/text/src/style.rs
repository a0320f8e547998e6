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

/// Paints lines that begin with `#`, such as those around a table of measurements, as details.
pub fn dim_comments(text: &str) -> String {
    let paint = |line: &str| match line.strip_suffix('\n') {
        Some(comment) if line.starts_with('#') => format!("{}\n", DIM.paint(comment)),
        _ => line.to_owned(),
    };
    text.split_inclusive('\n').map(paint).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn comments_alone_are_dim() {
        let text = dim_comments("# bytes: of each message\n 8 0.12\n");
        assert_eq!(text, format!("{}\n 8 0.12\n", DIM.paint("# bytes: of each message")));
        assert!(text.starts_with("\x1b[2m# "), "{text:?}");
    }
}
