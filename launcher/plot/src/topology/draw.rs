//! Drawing of shapes at the places that the layout gave them.

use super::layout::Layout;
use super::shapes::{Area, Look, Shape, TextSize};
use super::{LineStyle, Topology};
use crate::{Canvas, DrawError, font};
use plotters::element::{Circle, PathElement, Rectangle};
use plotters::prelude::{BLACK, Color, RGBColor, WHITE};
use plotters::style::TextStyle;
use plotters::style::text_anchor::{HPos, Pos, VPos};

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
    layout: &Layout,
    canvas: &Canvas<'_>,
) -> Result<(), DrawError> {
    let pen = Pen { canvas, topology };
    // Lines are below the numbers and dots at their ends.
    let level = |shape: &&Shape| match shape {
        Shape::Frame { .. } => 0,
        Shape::Line { .. } => 1,
        _ => 2,
    };
    let mut shapes: Vec<&Shape> = layout.shapes.iter().collect();
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
