//! Tables of pairs of hosts whose cells are coloured by their values.

use crate::{Canvas, DrawError, Picture, Tip, WIDTH, font};
use plotters::element::Rectangle;
use plotters::prelude::{BLACK, Color, RGBColor, WHITE};
use plotters::style::TextStyle;
use plotters::style::text_anchor::{HPos, Pos, VPos};

/// Height of the title, in pixels.
const TITLE: u32 = 44;
/// Space for names at the left of the cells, in pixels.
const NAMES: u32 = 110;
/// Space for names above the cells, in pixels.
const HEADER: u32 = 32;
/// Space at the right and below, in pixels.
const MARGIN: u32 = 24;
/// Minimum height of a cell beside which its host is named, in pixels.
const NAMED: u32 = 11;
/// Maximum height of a cell, in pixels.
const CELL: u32 = 44;
/// Minimum width and height of a cell in which its value is written.
const WRITTEN: (u32, u32) = (38, 16);
/// Maximum number of letters of a name.
const LETTERS: usize = 14;
/// Width of a letter, in pixels.
const LETTER: u32 = 8;
/// Maximum number of hosts, for which a cell is two pixels wide.
const MAX_HOSTS: usize = 400;
/// Part of the median by which values differ from it that have the first and the last colour. Equal links look equal then,
/// however little they differ, and a slow one does not.
const SPAN: f64 = 0.2;
/// Colours of the lowest and highest value, and between: lightness falls evenly, so that the map is
/// readable without colours (Cividis, Nuñez, Anderton and Renslow 2018).
const COLOURS: [RGBColor; 5] = [
    RGBColor(253, 231, 76),
    RGBColor(187, 173, 108),
    RGBColor(124, 123, 120),
    RGBColor(65, 77, 107),
    RGBColor(0, 34, 78),
];

/// Table of values from each host to each other host.
#[derive(Clone, Debug, Default)]
pub struct HeatMap {
    /// Title above the table.
    pub title: String,
    /// Names of hosts.
    pub names: Vec<String>,
    /// Values, by row and column; the diagonal is not drawn.
    pub cells: Vec<Vec<f64>>,
    /// Cells that get a red frame.
    pub marked: Vec<(usize, usize)>,
    /// Whether low values are dark, as for times, of which high ones are bad.
    pub is_reversed: bool,
}

impl HeatMap {
    fn cell_height(&self) -> u32 {
        let hosts = u32::try_from(self.names.len().max(1)).unwrap_or(u32::MAX);
        ((WIDTH - NAMES - MARGIN) / hosts).clamp(2, CELL)
    }

    /// Returns the median of the values off the diagonal.
    fn median(&self) -> Option<f64> {
        let cells = self.cells.iter().enumerate();
        let values = cells.flat_map(|(a, row)| {
            row.iter().enumerate().filter(move |(b, _)| *b != a).map(|(_, value)| *value)
        });
        let mut values: Vec<f64> = values.collect();
        values.sort_by(f64::total_cmp);
        values.get(values.len() / 2).copied()
    }

    /// Returns the colour of a value, and whether it is dark.
    fn colour(&self, value: f64, median: f64) -> (RGBColor, bool) {
        let (least, most) = (median * (1.0 - SPAN), median * (1.0 + SPAN));
        let part = if most > least { (value - least) / (most - least) } else { 1.0 };
        let part = if self.is_reversed { 1.0 - part } else { part };
        let place = part.clamp(0.0, 1.0) * (COLOURS.len() - 1) as f64;
        let below = (place as usize).min(COLOURS.len() - 2);
        let rest = place - below as f64;
        let mix = |one: u8, other: u8| {
            (f64::from(one) + (f64::from(other) - f64::from(one)) * rest).round() as u8
        };
        let (one, other) = (COLOURS[below], COLOURS[below + 1]);
        (RGBColor(mix(one.0, other.0), mix(one.1, other.1), mix(one.2, other.2)), part > 0.45)
    }

    /// Describes a cell, as `n1 → n2: 40.0, 42 % of the median`.
    fn words(&self, row: usize, column: usize, value: f64, median: f64) -> String {
        let name = |at: usize| self.names.get(at).map_or("?", String::as_str);
        let cell = format!("{} → {}: {}", name(row), name(column), number(value));
        if median > 0.0 {
            format!("{cell}, {:.0} % of the median", value * 100.0 / median)
        } else {
            cell
        }
    }
}

/// Shortens a name to its last letters, by which hosts of a cluster differ.
fn short(name: &str, letters: usize) -> String {
    let length = name.chars().count();
    if length <= letters {
        return name.to_owned();
    }
    let rest = name.chars().skip(length + 1 - letters.max(1));
    ['…'].into_iter().chain(rest).collect()
}

impl Picture for HeatMap {
    fn height(&self) -> u32 {
        let hosts = u32::try_from(self.names.len()).unwrap_or(u32::MAX);
        TITLE + HEADER + hosts.saturating_mul(self.cell_height()) + MARGIN
    }

    fn draw(&self, canvas: &Canvas<'_>) -> Result<Vec<Tip>, DrawError> {
        let nothing = || DrawError("there are no pairs of hosts".to_owned());
        let median = self.median().ok_or_else(nothing)?;
        let hosts = self.names.len();
        if hosts > MAX_HOSTS {
            let text = format!("{hosts} hosts do not fit into it, {MAX_HOSTS} do");
            return Err(DrawError(text));
        }
        let count = u32::try_from(hosts).unwrap_or(u32::MAX).max(1);
        let (width, height) = ((WIDTH - NAMES - MARGIN) / count, self.cell_height());
        let (left, top) = (NAMES, TITLE + HEADER);
        let at = |column: usize, row: usize| {
            let column = u32::try_from(column).unwrap_or(u32::MAX);
            let row = u32::try_from(row).unwrap_or(u32::MAX);
            let place = (left + column * width, top + row * height);
            (i32::try_from(place.0).unwrap_or(i32::MAX), i32::try_from(place.1).unwrap_or(i32::MAX))
        };
        let centred = |colour: &'static RGBColor| {
            TextStyle::from(font(13.0)).color(colour).pos(Pos::new(HPos::Center, VPos::Center))
        };
        let half = (i32::try_from(width / 2).unwrap_or(0), i32::try_from(height / 2).unwrap_or(0));
        let title =
            TextStyle::from(font(20.0)).color(&BLACK).pos(Pos::new(HPos::Center, VPos::Top));
        let middle = i32::try_from(WIDTH / 2).unwrap_or(0);
        canvas.draw_text(&self.title, &title, (middle, 12))?;
        let letters_above = usize::try_from(width / LETTER).unwrap_or(LETTERS).min(LETTERS);
        let letters = f64::from(height.saturating_sub(1).min(13));
        let right =
            TextStyle::from(font(letters)).color(&BLACK).pos(Pos::new(HPos::Right, VPos::Center));
        for (index, name) in self.names.iter().enumerate().filter(|_| height >= NAMED) {
            let (x, y) = at(0, index);
            canvas.draw_text(&short(name, LETTERS), &right, (x - 8, y + half.1))?;
        }
        for (index, name) in self.names.iter().enumerate().filter(|_| width >= WRITTEN.0) {
            let (x, y) = at(index, 0);
            canvas.draw_text(
                &short(name, letters_above),
                &centred(&BLACK),
                (x + half.0, y - 14),
            )?;
        }
        let (base, mut tips) = (canvas.get_base_pixel(), Vec::new());
        let pairs = (0..hosts).flat_map(|a| (0..hosts).map(move |b| (a, b)));
        for (row, column) in pairs.filter(|(a, b)| a != b) {
            let value = self.cells.get(row).and_then(|cells| cells.get(column)).copied();
            let Some(value) = value else { return Err(nothing()) };
            let (colour, is_dark) = self.colour(value, median);
            let (start, end) = (at(column, row), at(column + 1, row + 1));
            let inside = (end.0 - 1, end.1 - 1);
            canvas.draw(&Rectangle::new([start, inside], colour.filled()))?;
            tips.push(Tip {
                place: (base.0 + start.0, base.1 + start.1),
                size: (end.0 - start.0, end.1 - start.1),
                text: self.words(row, column, value, median),
            });
            if width >= WRITTEN.0 && height >= WRITTEN.1 {
                let style = centred(if is_dark { &WHITE } else { &BLACK });
                let place = (start.0 + half.0, start.1 + half.1);
                canvas.draw_text(&number(value), &style, place)?;
            }
        }
        for &(row, column) in &self.marked {
            let (start, end) = (at(column, row), at(column + 1, row + 1));
            let frame = RGBColor(220, 0, 0).stroke_width(3);
            canvas.draw(&Rectangle::new([start, (end.0 - 1, end.1 - 1)], frame))?;
        }
        Ok(tips)
    }
}

/// Formats a number with three significant digits.
fn number(value: f64) -> String {
    match value.abs() {
        large if large >= 100.0 => format!("{value:.0}"),
        medium if medium >= 10.0 => format!("{value:.1}"),
        _ => format!("{value:.2}"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn map(hosts: usize) -> HeatMap {
        let cell = |a: usize, b: usize| if a == b { 0.0 } else { 90.0 + (a * b % 7) as f64 };
        HeatMap {
            title: "bandwidth in Gb/s".into(),
            names: (0..hosts).map(|host| format!("node{host:02}")).collect(),
            cells: (0..hosts).map(|a| (0..hosts).map(|b| cell(a, b)).collect()).collect(),
            marked: vec![(1, 2)],
            is_reversed: false,
        }
    }

    #[test]
    fn cells_have_their_values() {
        let text = crate::svg(&[&map(4)]).unwrap();
        let document = roxmltree::Document::parse(&text).unwrap();
        let texts: Vec<&str> = document
            .descendants()
            .filter(roxmltree::Node::is_text)
            .filter_map(|node| node.text())
            .collect();
        let written = texts.iter().filter(|text| text.trim() == "90.0").count();
        assert_eq!(written, 6, "the first row and the first column: {texts:?}");
        let names = texts.iter().filter(|text| text.trim() == "node03").count();
        assert_eq!(names, 2, "{texts:?}");
    }

    #[test]
    fn many_hosts_fit() {
        let map = map(64);
        assert!(map.height() < 1200, "{}", map.height());
        assert!(crate::svg(&[&map, &map]).is_ok());
    }

    #[test]
    fn dark_cells_are_high_or_low() {
        let mut map = map(3);
        let lightness = |map: &HeatMap, value| {
            let (RGBColor(red, green, blue), _) = map.colour(value, 10.0);
            u32::from(red) + u32::from(green) + u32::from(blue)
        };
        assert!(lightness(&map, 8.0) > lightness(&map, 10.0));
        assert!(lightness(&map, 10.0) > lightness(&map, 12.0));
        map.is_reversed = true;
        assert!(lightness(&map, 8.0) < lightness(&map, 12.0));
    }

    #[test]
    fn links_that_differ_little_look_alike_and_a_slow_one_does_not() {
        let map = HeatMap {
            names: vec!["a".into(), "b".into(), "c".into()],
            cells: vec![vec![0.0, 95.0, 96.0], vec![96.0, 0.0, 40.0], vec![96.0, 96.0, 0.0]],
            ..HeatMap::default()
        };
        assert_eq!(map.median(), Some(96.0));
        let green = |value| i32::from(map.colour(value, 96.0).0.1);
        assert!((green(95.0) - green(96.0)).abs() < 10);
        assert_eq!(map.colour(40.0, 96.0).0, COLOURS[0]);
        let text = crate::svg(&[&map]).unwrap();
        roxmltree::Document::parse(&text).unwrap();
        assert!(text.contains("<title>b → c: 40.0, 42 % of the median</title>"), "{text}");
    }

    #[test]
    fn names_keep_the_letters_that_differ() {
        assert_eq!(short("gpu-cluster-node01", 12), "…ster-node01");
        assert_eq!(short("node01", 12), "node01");
    }

    #[test]
    fn numbers_have_three_digits() {
        assert_eq!([123.4, 45.67, 1.234].map(number), ["123", "45.7", "1.23"]);
    }
}
