//! Rectangles, texts and lines with their places in pixels, and their drawing.

use super::{LineStyle, Topology};
use crate::{Canvas, DrawError, font};
use plotters::element::{Circle, PathElement, Rectangle};
use plotters::prelude::{BLACK, Color, RGBColor, WHITE};
use plotters::style::TextStyle;
use plotters::style::text_anchor::{HPos, Pos, VPos};

/// Width of a letter of 12 pixels: that of the widest common fonts, on average.
const LETTER: i32 = 7;
/// Height of a text's area.
pub(super) const TEXT_HEIGHT: i32 = 14;

/// Rectangle from its upper left to its lower right corner.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Area {
    pub(super) left: i32,
    pub(super) top: i32,
    pub(super) right: i32,
    pub(super) bottom: i32,
}

/// Part of a picture.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Shape {
    Frame {
        area: Area,
        look: Look,
    },
    Text {
        area: Area,
        text: String,
        size: TextSize,
    },
    /// White text on black: ranks that use a device.
    Label {
        area: Area,
        text: String,
    },
    /// Number of the network at a port.
    Pin {
        area: Area,
        network: usize,
    },
    Line {
        from: (i32, i32),
        to: (i32, i32),
        network: usize,
    },
    /// Point at which a port's line meets that of the network.
    Dot {
        at: (i32, i32),
        network: usize,
    },
}

/// Look of a frame.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Look {
    Host,
    Section,
    /// Grey field of devices below one PCIe switch.
    Switch,
    Device,
    /// Device that ranks use.
    Used,
    /// Port without a carrier.
    Down,
    Rank,
}

/// Size of letters.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum TextSize {
    Title,
    Heading,
    Plain,
}

impl TextSize {
    /// Returns the height of letters in pixels.
    pub(super) fn pixels(self) -> f64 {
        match self {
            TextSize::Title => 17.0,
            TextSize::Heading => 14.0,
            TextSize::Plain => 12.0,
        }
    }
}

impl Area {
    /// Returns an area of this size whose left edge has its middle at `(x, y)`.
    pub(super) fn at(x: i32, y: i32, width: i32, height: i32) -> Area {
        let top = y - height / 2;
        Area { left: x, top, right: x + width, bottom: top + height }
    }

    pub(super) fn middle(self) -> (i32, i32) {
        (i32::midpoint(self.left, self.right), i32::midpoint(self.top, self.bottom))
    }

    #[cfg(test)]
    pub(super) fn overlaps(self, other: Area) -> bool {
        self.left < other.right
            && other.left < self.right
            && self.top < other.bottom
            && other.top < self.bottom
    }

    #[cfg(test)]
    pub(super) fn contains(self, other: Area) -> bool {
        self.left <= other.left
            && other.right <= self.right
            && self.top <= other.top
            && other.bottom <= self.bottom
    }
}

impl Shape {
    /// Returns a text whose left edge has its middle at `(x, y)`, shortened to `width` pixels.
    pub(super) fn text(x: i32, y: i32, text: &str, size: TextSize, width: i32) -> Shape {
        let text = shortened(text, letters_in(width, size));
        let area = Area::at(x, y, text_width(&text, size), TEXT_HEIGHT);
        Shape::Text { area, text, size }
    }
}

/// Returns the width of a text in pixels.
pub(super) fn text_width(text: &str, size: TextSize) -> i32 {
    let letters = i32::try_from(text.chars().count()).unwrap_or(i32::MAX / 100);
    (f64::from(letters * LETTER) * size.pixels() / TextSize::Plain.pixels()).ceil() as i32
}

/// Returns the number of letters that have room in `width` pixels.
pub(super) fn letters_in(width: i32, size: TextSize) -> usize {
    let letters = f64::from(width) * TextSize::Plain.pixels() / size.pixels() / f64::from(LETTER);
    letters.max(0.0) as usize
}

/// Shortens a text to its first letters, with `…` in place of the others.
fn shortened(text: &str, letters: usize) -> String {
    if text.chars().count() <= letters {
        return text.to_owned();
    }
    text.chars().take(letters.saturating_sub(1)).chain(['…']).collect()
}

/// Height of a font in plotters' terms, relative to the font's size in pixels.
const FONT_SCALE: f64 = 1.24;
/// Length of dashes and of the gaps between them, in pixels.
const DASH: (i32, i32) = (5, 4);
const GREY: RGBColor = RGBColor(150, 150, 150);
const DARK: RGBColor = RGBColor(60, 60, 60);
const PALE: RGBColor = RGBColor(222, 222, 222);

/// Draws shapes in their order.
pub(super) fn draw(
    topology: &Topology,
    shapes: &[Shape],
    canvas: &Canvas<'_>,
) -> Result<(), DrawError> {
    let pen = Pen { canvas, topology };
    // Lines are below the numbers and dots at their ends.
    let level = |shape: &&Shape| match shape {
        Shape::Frame { .. } => 0,
        Shape::Line { .. } => 1,
        _ => 2,
    };
    let mut shapes: Vec<&Shape> = shapes.iter().collect();
    shapes.sort_by_key(level);
    shapes.into_iter().try_for_each(|shape| pen.shape(shape))
}

/// Canvas with the networks' styles.
struct Pen<'a, 'b> {
    canvas: &'a Canvas<'b>,
    topology: &'a Topology,
}

impl Pen<'_, '_> {
    fn shape(&self, shape: &Shape) -> Result<(), DrawError> {
        match shape {
            Shape::Frame { area, look } => self.frame(*area, *look),
            Shape::Text { area, text, size } => self.text(text, *size, *area, BLACK, HPos::Left),
            Shape::Label { area, text } => {
                self.filled(*area, BLACK)?;
                self.text(text, TextSize::Plain, *area, WHITE, HPos::Center)
            }
            Shape::Pin { area, network } => {
                self.filled(*area, WHITE)?;
                self.outline(*area, self.colour(*network), 2, false)?;
                let number = (network + 1).to_string();
                self.text(&number, TextSize::Plain, *area, BLACK, HPos::Center)
            }
            Shape::Line { from, to, network } => self.line(*from, *to, *network),
            Shape::Dot { at, network } => {
                let style = self.colour(*network).filled();
                Ok(self.canvas.draw(&Circle::new(*at, 4, style))?)
            }
        }
    }

    fn frame(&self, area: Area, look: Look) -> Result<(), DrawError> {
        match look {
            Look::Host => {
                self.filled(area, WHITE)?;
                self.outline(area, DARK, 2, false)
            }
            Look::Section => self.outline(area, GREY, 1, false),
            Look::Switch => self.filled(area, PALE),
            Look::Rank => {
                self.filled(area, WHITE)?;
                self.outline(area, BLACK, 1, false)
            }
            Look::Device => {
                self.filled(area, WHITE)?;
                self.outline(area, GREY, 1, false)
            }
            Look::Used => {
                self.filled(area, WHITE)?;
                self.outline(area, BLACK, 2, false)
            }
            Look::Down => {
                self.filled(area, WHITE)?;
                self.outline(area, DARK, 1, true)
            }
        }
    }

    fn colour(&self, network: usize) -> RGBColor {
        crate::COLOURS[network % crate::COLOURS.len()]
    }

    fn filled(&self, area: Area, colour: RGBColor) -> Result<(), DrawError> {
        let corners = [(area.left, area.top), (area.right, area.bottom)];
        Ok(self.canvas.draw(&Rectangle::new(corners, colour.filled()))?)
    }

    fn outline(
        &self,
        area: Area,
        colour: RGBColor,
        width: u32,
        is_dashed: bool,
    ) -> Result<(), DrawError> {
        let Area { left, top, right, bottom } = area;
        let corners = [(left, top), (right, top), (right, bottom), (left, bottom), (left, top)];
        if !is_dashed {
            return self.path(corners.to_vec(), colour, width);
        }
        let edges = corners.iter().zip(&corners[1..]);
        edges.into_iter().try_for_each(|(from, to)| self.dashes(*from, *to, colour, width))
    }

    fn line(&self, from: (i32, i32), to: (i32, i32), network: usize) -> Result<(), DrawError> {
        let style = self.topology.networks.get(network).map(|network| network.style);
        let colour = self.colour(network);
        match style {
            Some(LineStyle::Wide) => self.path(vec![from, to], colour, 4),
            Some(LineStyle::Plain) | None => self.path(vec![from, to], colour, 2),
            Some(LineStyle::Dashed) => self.dashes(from, to, colour, 2),
        }
    }

    /// Draws dashes along a horizontal or vertical line.
    fn dashes(
        &self,
        from: (i32, i32),
        to: (i32, i32),
        colour: RGBColor,
        width: u32,
    ) -> Result<(), DrawError> {
        let (x, y) = (to.0 - from.0, to.1 - from.1);
        let length = x.abs().max(y.abs());
        let at = |step: i32| {
            let step = step.min(length);
            (from.0 + x.signum() * step, from.1 + y.signum() * step)
        };
        let (dash, gap) = DASH;
        let starts = (0..length).step_by(usize::try_from(dash + gap).unwrap_or(1));
        starts
            .map(|start| vec![at(start), at(start + dash)])
            .try_for_each(|dash| self.path(dash, colour, width))
    }

    fn path(&self, points: Vec<(i32, i32)>, colour: RGBColor, width: u32) -> Result<(), DrawError> {
        let path = PathElement::new(points, colour.stroke_width(width));
        Ok(self.canvas.draw(&path)?)
    }

    fn text(
        &self,
        text: &str,
        size: TextSize,
        area: Area,
        colour: RGBColor,
        align: HPos,
    ) -> Result<(), DrawError> {
        let (middle, y) = area.middle();
        // Viewers put the middle of small letters there, above which capitals and digits reach.
        let y = y + 1;
        let x = match align {
            HPos::Left => area.left,
            HPos::Center => middle,
            HPos::Right => area.right,
        };
        let font = font(size.pixels() * FONT_SCALE);
        let style = TextStyle::from(font).color(&colour).pos(Pos::new(align, VPos::Center));
        Ok(self.canvas.draw_text(text, &style, (x, y))?)
    }
}
