//! Pictures of measurements and of hardware: curves over sizes of messages or over steps, heat maps of
//! pairs of hosts, and hosts with their devices and networks, as SVG or HTML.
//!
//! Colours differ in lightness, curves in their markers and dashes too, and networks in their numbers, so
//! that pictures are readable in print and by colour-blind people.
//!
//! | module | contents |
//! |---|---|
//! | [`curves`] | curves with limits as lines |
//! | [`heat_map`] | a table whose cells are coloured by their values |
//! | [`topology`] | hosts with NUMA nodes, GPUs and ports, and the networks between them |
//! | [`file`](mod@file) | formats of files |

pub mod curves;
pub mod file;
pub mod heat_map;
pub mod topology;

use plotters::coord::Shift;
use plotters::drawing::DrawingAreaErrorKind;
use plotters::prelude::{DrawingArea, IntoDrawingArea, SVGBackend, WHITE};
use plotters::style::{FontDesc, FontFamily, FontStyle, RGBColor};

/// Width of a picture of measurements in pixels.
const WIDTH: u32 = 960;
/// Colours of lines, which also differ in lightness (Okabe and Ito, "Color Universal Design").
const COLOURS: [RGBColor; 6] = [
    RGBColor(0, 114, 178),
    RGBColor(213, 94, 0),
    RGBColor(0, 158, 115),
    RGBColor(204, 121, 167),
    RGBColor(86, 180, 233),
    RGBColor(230, 159, 0),
];

/// Drawing area of a picture.
type Canvas<'a> = DrawingArea<SVGBackend<'a>, Shift>;

/// Failure to draw, for example because there are no points.
#[derive(Debug, thiserror::Error)]
#[error("cannot draw the picture: {0}")]
pub struct DrawError(String);

impl From<DrawingAreaErrorKind<std::io::Error>> for DrawError {
    fn from(error: DrawingAreaErrorKind<std::io::Error>) -> DrawError {
        DrawError(error.to_string())
    }
}

/// Something that can be drawn.
pub trait Picture {
    /// Width in pixels.
    fn width(&self) -> u32 {
        WIDTH
    }

    /// Height in pixels.
    fn height(&self) -> u32;

    /// Draws into an area of at least this size.
    ///
    /// # Errors
    ///
    /// Fails if there is nothing to draw.
    fn draw(&self, canvas: &Canvas<'_>) -> Result<(), DrawError>;
}

/// Draws pictures below each other as one SVG document.
///
/// # Errors
///
/// Fails if one of them has nothing to draw.
pub fn svg(pictures: &[&dyn Picture]) -> Result<String, DrawError> {
    let heights: Vec<u32> = pictures.iter().map(|picture| picture.height()).collect();
    let width = pictures.iter().map(|picture| picture.width()).max().unwrap_or(WIDTH);
    let mut text = String::new();
    {
        let backend = SVGBackend::with_string(&mut text, (width, heights.iter().sum()));
        let mut rest = backend.into_drawing_area();
        rest.fill(&WHITE)?;
        for (picture, height) in pictures.iter().zip(&heights) {
            let (canvas, below) = rest.split_vertically(*height);
            picture.draw(&canvas)?;
            rest = below;
        }
        rest.present()?;
    }
    Ok(printable(&text))
}

/// Returns the font of heat maps and topologies, with a size in the terms of plotters.
fn font(size: f64) -> FontDesc<'static> {
    FontDesc::new(FontFamily::SansSerif, size, FontStyle::Normal)
}

/// Replaces characters that XML does not allow. Names of hosts, devices and files may contain them.
fn printable(text: &str) -> String {
    let is_allowed = |c: &char| {
        matches!(c, '\n' | '\t') || (!c.is_control() && !matches!(c, '\u{fffe}' | '\u{ffff}'))
    };
    text.chars().map(|c| if is_allowed(&c) { c } else { '?' }).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_with_control_characters_make_no_bad_document() {
        let names = vec!["a\u{1b}[31m".to_owned(), "b\0\u{ffff}<&".to_owned()];
        let cells = vec![vec![0.0, 1.0], vec![2.0, 0.0]];
        let map = heat_map::HeatMap { names, cells, ..heat_map::HeatMap::default() };
        let text = svg(&[&map]).unwrap();
        let document = roxmltree::Document::parse(&text).unwrap();
        let mut texts = document.descendants().filter_map(|node| node.text());
        assert!(texts.any(|text| text.trim() == "b??<&"), "{text}");
    }
}
