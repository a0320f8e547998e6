//! Bars and sparklines, in the characters and colours that the terminal has, and a table that fits into its width: columns give
//! way if it is narrow, and graphs share what is left.

use super::history::Recent;
use anstream::{AutoStream, ColorChoice};
use ratatui::style::Style;
use ratatui::text::{Line, Span};
use rlaunch_console::process_env::ProcessEnv;
use std::io;
use std::iter::repeat_n;
use std::ops::Range;

/// Characters between two columns.
const GAP: usize = 2;

/// Column of a table.
#[derive(Clone, Copy, Debug)]
pub(super) struct Column {
    title: &'static str,
    /// Columns with the lowest value give way first, all together.
    importance: u8,
    least: usize,
    /// Greatest width of a graph; `None` for text, which is never cut.
    most: Option<usize>,
}

/// Table of texts and graphs.
#[derive(Debug)]
pub(super) struct Grid<'a> {
    pub(super) columns: &'static [Column],
    /// Each has a cell for each column.
    pub(super) rows: Vec<Vec<Cell<'a>>>,
}

/// Cell of a table.
#[derive(Debug)]
pub(super) struct Cell<'a> {
    content: Content<'a>,
    style: Style,
}

#[derive(Debug)]
enum Content<'a> {
    Text(String),
    Bar(f64),
    Sparkline(Recent<'a>),
}

impl Column {
    pub(super) const fn text(title: &'static str, importance: u8) -> Column {
        Column { title, importance, least: title.len(), most: None }
    }

    pub(super) const fn graph(title: &'static str, importance: u8, most: usize) -> Column {
        Column { title, importance, least: 6, most: Some(most) }
    }

    /// Keeps a column from growing and shrinking with the digits of its values.
    pub(super) const fn at_least(self, least: usize) -> Column {
        Column { least, ..self }
    }
}

impl<'a> Cell<'a> {
    pub(super) fn text(text: impl Into<String>) -> Cell<'a> {
        Cell { content: Content::Text(text.into()), style: Style::new() }
    }

    /// Makes a bar; empty if the share is unknown.
    pub(super) fn bar(share: Option<f64>, style: Style) -> Cell<'a> {
        share.map_or(Cell::text(""), |share| Cell { content: Content::Bar(share), style })
    }

    pub(super) fn sparkline(recent: Option<Recent<'a>>, style: Style) -> Cell<'a> {
        recent.map_or(Cell::text(""), |recent| Cell { content: Content::Sparkline(recent), style })
    }

    pub(super) fn styled(self, style: Style) -> Cell<'a> {
        Cell { style, ..self }
    }

    fn is_empty(&self) -> bool {
        matches!(&self.content, Content::Text(text) if text.is_empty())
    }

    /// Returns the width of a text; graphs have any.
    fn width(&self) -> usize {
        match &self.content {
            Content::Text(text) => text.chars().count(),
            Content::Bar(_) | Content::Sparkline(_) => 0,
        }
    }

    fn shown(&self, look: Look, width: usize) -> String {
        match &self.content {
            Content::Text(text) => look.text(text),
            Content::Bar(share) => look.bar(*share, width),
            Content::Sparkline(recent) => look.sparkline(&recent.parts(width)),
        }
    }
}

impl Grid<'_> {
    /// Makes the line of the header, and those of some rows.
    pub(super) fn lines(&self, look: Look, width: usize, rows: Range<usize>) -> Vec<Line<'static>> {
        let columns = self.fit(width);
        let title = |&(column, width): &(usize, usize)| {
            let (title, wide) = (self.columns[column].title, width + GAP);
            Span::styled(format!("{title:<wide$}"), Style::new().bold())
        };
        let header = Line::from_iter(columns.iter().map(title));
        let line = |row: &Vec<Cell<'_>>| {
            let cells = columns.iter().flat_map(|&(column, width)| {
                let cell = &row[column];
                let shown = cell.shown(look, width);
                let blank = (width + GAP).saturating_sub(shown.chars().count());
                [Span::styled(shown, cell.style), Span::raw(" ".repeat(blank))]
            });
            Line::from_iter(cells)
        };
        std::iter::once(header).chain(self.rows[rows].iter().map(line)).collect()
    }

    /// Chooses the columns for a width. Returns their places with their widths.
    fn fit(&self, width: usize) -> Vec<(usize, usize)> {
        let known = |column: &usize| self.rows.iter().any(|row| !row[*column].is_empty());
        let least = |column: usize| {
            let texts = self.rows.iter().map(|row| row[column].width());
            (column, texts.max().unwrap_or_default().max(self.columns[column].least))
        };
        let mut fitted: Vec<(usize, usize)> =
            (0..self.columns.len()).filter(known).map(least).collect();
        let needed = |fitted: &[(usize, usize)]| {
            let gaps = GAP * fitted.len().saturating_sub(1);
            gaps + fitted.iter().map(|(_, width)| width).sum::<usize>()
        };
        let importance = |(column, _): &(usize, usize)| self.columns[*column].importance;
        while needed(&fitted) > width {
            let lowest = fitted.iter().map(importance).min();
            let kept = fitted.iter().filter(|&column| Some(importance(column)) != lowest);
            let kept: Vec<(usize, usize)> = kept.copied().collect();
            if kept.is_empty() {
                break;
            }
            fitted = kept;
        }
        let left = width.saturating_sub(needed(&fitted));
        self.grow_graphs(&mut fitted, left);
        fitted
    }

    /// Shares `left` characters among the graphs.
    fn grow_graphs(&self, fitted: &mut [(usize, usize)], mut left: usize) {
        let mut grows = true;
        while std::mem::take(&mut grows) {
            for (column, width) in &mut *fitted {
                if left > 0 && self.columns[*column].most.is_some_and(|most| *width < most) {
                    (*width, left, grows) = (*width + 1, left - 1, true);
                }
            }
        }
    }
}

/// Parts of a block, from one eighth on, for the end of a bar.
const EIGHTHS: [char; 7] = ['▏', '▎', '▍', '▌', '▋', '▊', '▉'];
/// Heights of a sparkline.
const UNICODE_LEVELS: [char; 8] = ['▁', '▂', '▃', '▄', '▅', '▆', '▇', '█'];
const ASCII_LEVELS: [char; 8] = ['_', '.', ':', '-', '=', '+', '*', '#'];
/// Share from which on a memory is shown as nearly full.
const NEARLY_FULL: f64 = 0.9;

/// What the terminal can show.
#[derive(Clone, Copy, Debug)]
pub(super) struct Look {
    pub(super) has_colours: bool,
    pub(super) is_unicode: bool,
}

impl Look {
    /// Returns what this process's stdout can show.
    pub(super) fn of_stdout(env: &ProcessEnv) -> Look {
        let has_colours = AutoStream::choice(&io::stdout()) != ColorChoice::Never;
        Look { has_colours, is_unicode: is_utf8(env) }
    }

    /// Draws a bar of `width` characters, of which `share` are filled.
    pub(super) fn bar(self, share: f64, width: usize) -> String {
        let (block, rest, steps) = if self.is_unicode { ('█', '░', 8) } else { ('#', '.', 1) };
        let filled = (share.clamp(0.0, 1.0) * (width * steps) as f64).round() as usize;
        let part = (filled % steps).checked_sub(1).map(|eighth| EIGHTHS[eighth]);
        let mut bar: String = repeat_n(block, filled / steps).chain(part).collect();
        let left = width.saturating_sub(bar.chars().count());
        bar.extend(repeat_n(rest, left));
        bar
    }

    /// Draws values as heights, from 0 to the highest of them. Unknown values are blank.
    pub(super) fn sparkline(self, values: &[Option<f64>]) -> String {
        let levels = if self.is_unicode { UNICODE_LEVELS } else { ASCII_LEVELS };
        let highest = values.iter().flatten().copied().fold(0.0, f64::max);
        let level = |value: f64| {
            let height = if highest > 0.0 { (8.0 * value / highest).ceil() as usize } else { 0 };
            levels[height.saturating_sub(1).min(levels.len() - 1)]
        };
        values.iter().map(|value| value.map_or(' ', level)).collect()
    }

    /// Returns the text, without characters that the terminal lacks.
    pub(super) fn text(self, text: &str) -> String {
        let ascii = |c| match c {
            '↑' => Some('^'),
            '↓' => Some('v'),
            '…' => Some('~'),
            '°' => None,
            c => Some(if c.is_ascii() { c } else { '?' }),
        };
        if self.is_unicode { text.to_owned() } else { text.chars().filter_map(ascii).collect() }
    }

    pub(super) fn bar_style(self) -> Style {
        if self.has_colours { Style::new().green() } else { Style::new() }
    }

    /// Returns the style of a bar that is better not full.
    pub(super) fn memory_style(self, share: Option<f64>) -> Style {
        let is_nearly_full = share.is_some_and(|share| share >= NEARLY_FULL);
        if self.has_colours && is_nearly_full { Style::new().red() } else { self.bar_style() }
    }

    pub(super) fn sparkline_style(self) -> Style {
        if self.has_colours { Style::new().cyan() } else { Style::new() }
    }

    /// Returns the style of what stands out. Yellow text could not be read on a light background.
    pub(super) fn striking_style(self) -> Style {
        if self.has_colours { Style::new().black().on_yellow() } else { Style::new().bold() }
    }
}

/// Tells whether the locale's characters are in UTF-8.
fn is_utf8(env: &ProcessEnv) -> bool {
    // The first one that is set decides, as in setlocale(3).
    let locale = ["LC_ALL", "LC_CTYPE", "LANG"].into_iter().find_map(|name| env.variable(name));
    let locale = locale.map(|locale| locale.to_string_lossy().to_ascii_lowercase());
    locale.is_some_and(|locale| locale.contains("utf-8") || locale.contains("utf8"))
}

#[cfg(test)]
mod tests {
    use super::super::history::tests::recent;
    use super::*;

    const LOOK: Look = Look { has_colours: false, is_unicode: false };
    const COLUMNS: [Column; 4] = [
        Column::text("HOST", 9),
        Column::text("CPUS", 8).at_least(6),
        Column::graph("", 1, 10),
        Column::text("NONE", 5),
    ];

    fn lines(width: usize) -> Vec<String> {
        let row = |host: &str, share| {
            let bar = Cell::bar(share, Style::new());
            vec![Cell::text(host), Cell::text("3 of 4"), bar, Cell::text("")]
        };
        let rows = vec![row("a", Some(0.5)), row("b", None)];
        let lines = Grid { columns: &COLUMNS, rows }.lines(LOOK, width, 0..2);
        lines.iter().map(|line| line.to_string().trim_end().to_owned()).collect()
    }

    #[test]
    fn graphs_give_way_and_take_what_is_left() {
        assert_eq!(lines(80), ["HOST  CPUS", "a     3 of 4  #####.....", "b     3 of 4"]);
        assert_eq!(lines(22), ["HOST  CPUS", "a     3 of 4  ####....", "b     3 of 4"]);
        assert_eq!(lines(20), ["HOST  CPUS", "a     3 of 4  ###...", "b     3 of 4"]);
        assert_eq!(lines(19), ["HOST  CPUS", "a     3 of 4", "b     3 of 4"]);
        assert_eq!(lines(11), ["HOST", "a", "b"]);
        assert_eq!(lines(0), ["HOST", "a", "b"]);
    }

    #[test]
    fn a_sparkline_is_as_wide_as_its_column() {
        static COLUMNS: [Column; 1] = [Column::graph("60 s", 1, 12)];
        let values: Vec<f64> = (1..=60).map(f64::from).collect();
        let line = recent(&values, |recent| {
            let rows = vec![vec![Cell::sparkline(Some(recent), Style::new())]];
            Grid { columns: &COLUMNS, rows }.lines(LOOK, 12, 0..1).remove(1).to_string()
        });
        assert_eq!(line.trim_end(), "_..:--=++*##");
    }

    const UNICODE: Look = Look { has_colours: true, is_unicode: true };
    const ASCII: Look = Look { has_colours: false, is_unicode: false };

    #[test]
    fn a_bar_has_its_width() {
        let bars = [0.0, 0.31, 0.5, 1.0, 7.0, f64::NAN].map(|share| UNICODE.bar(share, 4));
        assert_eq!(bars, ["░░░░", "█▎░░", "██░░", "████", "████", "░░░░"]);
        assert_eq!([0.0, 0.4, 1.0].map(|share| ASCII.bar(share, 4)), ["....", "##..", "####"]);
        assert_eq!(UNICODE.bar(0.5, 0), "");
    }

    #[test]
    fn a_sparkline_goes_from_nothing_to_its_highest_value() {
        let values = [None, Some(0.0), Some(1.0), Some(50.0), Some(100.0)];
        assert_eq!(UNICODE.sparkline(&values), " ▁▁▄█");
        assert_eq!(ASCII.sparkline(&values), " __-#");
        assert_eq!(UNICODE.sparkline(&[Some(0.0); 3]), "▁▁▁");
    }

    #[test]
    fn without_colours_what_stands_out_is_bold() {
        assert_eq!(ASCII.striking_style(), Style::new().bold());
        let plain = [ASCII.bar_style(), ASCII.memory_style(Some(1.0)), ASCII.sparkline_style()];
        assert_eq!(plain, [Style::new(); 3]);
        assert_ne!(UNICODE.memory_style(Some(0.95)), UNICODE.memory_style(Some(0.5)));
    }

    #[test]
    fn the_locale_tells_whether_blocks_can_be_shown() {
        let is_unicode = |variables: &[(&str, &str)]| {
            let variables = variables.iter().map(|(name, value)| (name.into(), value.into()));
            is_utf8(&ProcessEnv { variables: variables.collect(), ..ProcessEnv::default() })
        };
        assert!(is_unicode(&[("LANG", "en_US.UTF-8")]) && is_unicode(&[("LC_ALL", "C.utf8")]));
        assert!(!is_unicode(&[]) && !is_unicode(&[("LANG", "en_US.UTF-8"), ("LC_ALL", "C")]));
        assert!(is_unicode(&[("LANG", "C"), ("LC_CTYPE", "C.UTF-8"), ("LC_ALL", "")]));
        assert_eq!(ASCII.text("↑↓ 60 °C a…é"), "^v 60 C a~?");
    }
}
