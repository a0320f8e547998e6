//! A table that fits into the width of the terminal: columns give way if it is narrow, and graphs share what is left.

use super::graphs::Look;
use super::history::Recent;
use ratatui::style::Style;
use ratatui::text::{Line, Span};
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
}
