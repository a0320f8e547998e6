//! Pictures of measurements: curves over sizes of messages, and heat maps of pairs of hosts, as SVG,
//! PNG or HTML.
//!
//! Colours differ in lightness, and curves in their markers and dashes too, so that pictures are
//! readable in print and by colour-blind people.
//!
//! | module | contents |
//! |---|---|
//! | [`curves`] | curves with limits as lines |
//! | [`heat_map`] | a table whose cells are coloured by their values |
//! | [`file`](mod@file) | formats of files |

pub mod curves;
pub mod file;
pub mod heat_map;

use plotters::coord::Shift;
use plotters::drawing::DrawingAreaErrorKind;
use plotters::prelude::{DrawingArea, IntoDrawingArea, SVGBackend, WHITE};

/// Width of a picture in pixels.
const WIDTH: u32 = 960;

/// Drawing area of a picture.
type Canvas<'a> = DrawingArea<SVGBackend<'a>, Shift>;

/// Failure to draw, for example because there are no points.
#[derive(Debug, thiserror::Error)]
#[error("cannot draw the picture: {0}")]
pub struct DrawError(String);

impl DrawError {
    fn new(error: &DrawingAreaErrorKind<impl std::error::Error + Send + Sync>) -> DrawError {
        DrawError(error.to_string())
    }
}

/// Something that can be drawn.
pub trait Picture {
    /// Height in pixels at the width of [`svg`].
    fn height(&self) -> u32;

    /// Draws into an area of this height.
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
    let mut text = String::new();
    {
        let backend = SVGBackend::with_string(&mut text, (WIDTH, heights.iter().sum()));
        let mut rest = backend.into_drawing_area();
        rest.fill(&WHITE).map_err(|error| DrawError::new(&error))?;
        for (picture, height) in pictures.iter().zip(&heights) {
            let (canvas, below) = rest.split_vertically(*height);
            picture.draw(&canvas)?;
            rest = below;
        }
        rest.present().map_err(|error| DrawError::new(&error))?;
    }
    Ok(text)
}
