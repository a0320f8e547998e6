//! Place of the legend: where it hides least of the curves.

use super::Axis;
use plotters::chart::SeriesLabelPosition;

/// Size of the area with curves, in pixels, nearly.
const AREA: (f64, f64) = (860.0, 370.0);
/// Width of a letter, and of all that is beside the names, in pixels.
const LETTER: f64 = 7.0;
const BESIDE: f64 = 70.0;
/// Height of a name, and of the border around all of them, in pixels.
const LINE: f64 = 20.0;
const BORDER: f64 = 20.0;
/// Number of parts of a line between two points that are looked at.
const PARTS: u32 = 8;

/// Places with their left and lower edges: 0 and 1 are the ends of an axis, and the legend is within both.
const PLACES: [(SeriesLabelPosition, f64, f64); 6] = [
    (SeriesLabelPosition::MiddleLeft, 0.0, 0.5),
    (SeriesLabelPosition::LowerRight, 1.0, 0.0),
    (SeriesLabelPosition::UpperLeft, 0.0, 1.0),
    (SeriesLabelPosition::MiddleRight, 1.0, 0.5),
    (SeriesLabelPosition::LowerLeft, 0.0, 0.0),
    (SeriesLabelPosition::UpperRight, 1.0, 1.0),
];

/// Returns the place for a legend with these names. Points of curves are parts of both axes, 0 to 1. Among places that
/// are equally good, the usual one of the axis is taken: bandwidths rise with the size, and rates over steps begin near
/// their mean.
pub(super) fn place<'a>(
    axis: Axis,
    names: impl Iterator<Item = &'a str>,
    curves: &[Vec<(f64, f64)>],
) -> SeriesLabelPosition {
    let letters: Vec<usize> = names.map(|name| name.chars().count()).collect();
    let longest = letters.iter().max().copied().unwrap_or(0) as f64;
    let width = ((longest * LETTER + BESIDE) / AREA.0).min(1.0);
    let height = ((letters.len() as f64 * LINE + BORDER) / AREA.1).min(1.0);
    let hidden = |(_, x, y): &(SeriesLabelPosition, f64, f64)| {
        let (left, bottom) = (x * (1.0 - width), y * (1.0 - height));
        let is_hidden = |(x, y): &(f64, f64)| {
            (left..=left + width).contains(x) && (bottom..=bottom + height).contains(y)
        };
        curves.iter().flat_map(|points| along(points)).filter(is_hidden).count()
    };
    let usual = match axis {
        Axis::Sizes => 0,
        Axis::Steps => 1,
    };
    let order = [usual].into_iter().chain((0..PLACES.len()).filter(|place| *place != usual));
    let best = order.min_by_key(|place| hidden(&PLACES[*place])).unwrap_or(usual);
    PLACES[best].0.clone()
}

/// Lists points along a curve.
fn along(points: &[(f64, f64)]) -> impl Iterator<Item = (f64, f64)> {
    let between = points.iter().zip(points.iter().skip(1)).flat_map(|(from, to)| {
        (0..PARTS).map(move |part| {
            let part = f64::from(part) / f64::from(PARTS);
            (from.0 + (to.0 - from.0) * part, from.1 + (to.1 - from.1) * part)
        })
    });
    between.chain(points.last().copied())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn placed(axis: Axis, curves: &[Vec<(f64, f64)>]) -> SeriesLabelPosition {
        place(axis, ["np1.log: 1 rank", "np4.log: 4 ranks"].into_iter(), curves)
    }

    #[test]
    fn the_legend_is_where_no_curve_is() {
        let level = |y: f64| vec![(0.0, y), (1.0, y)];
        let lower = SeriesLabelPosition::LowerRight;
        assert_eq!(placed(Axis::Steps, &[level(0.9), level(0.5)]), lower);
        assert_eq!(placed(Axis::Steps, &[level(0.9)]), lower);
        let low = placed(Axis::Steps, &[level(0.9), level(0.05)]);
        assert_eq!(low, SeriesLabelPosition::MiddleLeft);
        let rising = vec![(0.0, 0.0), (0.4, 0.1), (1.0, 0.9)];
        assert_eq!(placed(Axis::Sizes, &[rising]), SeriesLabelPosition::MiddleLeft);
    }

    #[test]
    fn names_longer_than_the_picture_have_a_place() {
        let name = "x".repeat(500);
        let curves = [vec![(0.0, 0.0), (1.0, 1.0)]];
        assert_eq!(
            place(Axis::Steps, [name.as_str()].into_iter(), &curves),
            SeriesLabelPosition::LowerRight
        );
    }
}
