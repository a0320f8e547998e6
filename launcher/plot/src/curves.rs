//! Curves over sizes of messages, or over steps of a program.

use crate::{COLOURS, Canvas, DrawError, Picture, Tip};
use plotters::coord::ranged1d::{AsRangedCoord, Ranged, ValueFormatter};
use plotters::element::{Circle, Cross, DashedPathElement, EmptyElement, TriangleMarker};
use plotters::prelude::*;

/// Chart with curves.
type Chart<'a, 'b, X, Y> = ChartContext<'a, SVGBackend<'b>, Cartesian2d<X, Y>>;

const HEIGHT: u32 = 480;
const FONT: &str = "sans-serif";
/// Colour of limits.
const LIMIT: RGBColor = RGBColor(60, 60, 60);
/// Length of dashes and of the gaps between them, in pixels, by series; the first has no gaps.
const DASHES: [(i32, i32); 4] = [(1, 0), (8, 4), (3, 3), (12, 3)];

/// Number of points of a curve that are marked, at most twice as many.
const MARKED: usize = 25;
/// Width and height of the area around a marked point in which a pointer shows its values, in pixels.
const POINTER: i32 = 14;
/// Size of the area with curves, in pixels, nearly.
const PLOT_AREA: (f64, f64) = (860.0, 370.0);
/// Width of a letter, and of all that is beside the names in the legend, in pixels.
const LETTER: f64 = 7.0;
const BESIDE: f64 = 70.0;
/// Height of a name in the legend, and of the border around all of them, in pixels.
const LINE: f64 = 20.0;
const BORDER: f64 = 20.0;
/// Number of parts of a line between two points that are looked at.
const PARTS: u32 = 8;
/// Places of the legend with their left and lower edges: 0 and 1 are the ends of an axis, and the legend is within both.
const PLACES: [(SeriesLabelPosition, f64, f64); 6] = [
    (SeriesLabelPosition::MiddleLeft, 0.0, 0.5),
    (SeriesLabelPosition::LowerRight, 1.0, 0.0),
    (SeriesLabelPosition::UpperLeft, 0.0, 1.0),
    (SeriesLabelPosition::MiddleRight, 1.0, 0.5),
    (SeriesLabelPosition::LowerLeft, 0.0, 0.0),
    (SeriesLabelPosition::UpperRight, 1.0, 1.0),
];

/// Quantity over which curves are drawn.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Axis {
    /// Sizes of messages in bytes, on a logarithmic axis.
    #[default]
    Sizes,
    /// Steps of a program, on a linear axis.
    Steps,
    /// Numbers of ranks, on a linear axis.
    Ranks,
}

/// Curves over sizes of messages, or over steps of a program.
#[derive(Clone, Debug, Default)]
pub struct Curves {
    /// Title above the curves.
    pub title: String,
    /// Quantity and unit of the values, such as `GB/s`.
    pub unit: String,
    /// Quantity of the horizontal axis.
    pub axis: Axis,
    /// Whether the axis of values is logarithmic, as for times.
    pub is_logarithmic: bool,
    /// Whether a linear axis of values begins near the least value and not at 0, so that small differences are seen.
    pub is_close: bool,
    /// Curves with their names. Points are sizes in bytes or steps, and values; sizes must be above 0, and so
    /// must be values on a logarithmic axis.
    pub series: Vec<(String, Vec<(f64, f64)>)>,
    /// Limits with their names, drawn as horizontal lines.
    pub limits: Vec<(String, f64)>,
}

impl Curves {
    fn points(&self) -> impl Iterator<Item = (f64, f64)> + '_ {
        self.series.iter().flat_map(|(_, points)| points.iter().copied())
    }

    /// Returns the least and the highest size or step, and the least and the highest value or limit.
    fn ranges(&self) -> Option<[f64; 4]> {
        let limits = self.limits.iter().map(|(_, limit)| *limit);
        let values = || self.points().map(|(_, value)| value).chain(limits.clone());
        let sizes = || self.points().map(|(size, _)| size);
        let least = |numbers: &mut dyn Iterator<Item = f64>| numbers.reduce(f64::min);
        let most = |numbers: &mut dyn Iterator<Item = f64>| numbers.reduce(f64::max);
        Some([
            least(&mut sizes())?,
            most(&mut sizes())?,
            least(&mut values())?,
            most(&mut values())?,
        ])
    }

    /// Returns the place of the legend, for axes with these ends.
    fn legend_place(&self, across: [f64; 2], up: [f64; 2]) -> SeriesLabelPosition {
        let part = |value: f64, [first, last]: [f64; 2], is_logarithmic: bool| {
            let scale = |value: f64| if is_logarithmic { value.ln() } else { value };
            (scale(value) - scale(first)) / (scale(last) - scale(first))
        };
        let (x, y) = (self.axis == Axis::Sizes, self.is_logarithmic);
        let point = |(at, value): &(f64, f64)| (part(*at, across, x), part(*value, up, y));
        let series = self.series.iter().map(|(_, points)| points.iter().map(point).collect());
        let limits = self.limits.iter().map(|(_, limit)| {
            let limit = part(*limit, up, y);
            vec![(0.0, limit), (1.0, limit)]
        });
        let curves: Vec<Vec<(f64, f64)>> = series.chain(limits).collect();
        let names = self.series.iter().map(|(name, _)| name);
        let names = names.chain(self.limits.iter().map(|(name, _)| name));
        free_place(self.axis, names.map(String::as_str), &curves)
    }

    /// Draws over an axis that has these ends, with values between `low` and `high`.
    fn draw_over<X>(
        &self,
        canvas: &Canvas<'_>,
        across: X,
        edges: [f64; 2],
        [low, high]: [f64; 2],
    ) -> Result<Vec<Tip>, DrawError>
    where
        X: AsRangedCoord<Value = f64>,
        X::CoordDescType: ValueFormatter<f64>,
    {
        let across = (across, edges);
        if self.is_logarithmic {
            self.draw_with(canvas, across, ((low..high).log_scale(), [low, high]))
        } else {
            self.draw_with(canvas, across, (low..high, [low, high]))
        }
    }

    /// Draws with these axes, which have these ends.
    fn draw_with<X, Y>(
        &self,
        canvas: &Canvas<'_>,
        (across, edges): (X, [f64; 2]),
        (values, range): (Y, [f64; 2]),
    ) -> Result<Vec<Tip>, DrawError>
    where
        X: AsRangedCoord<Value = f64>,
        X::CoordDescType: ValueFormatter<f64>,
        Y: AsRangedCoord<Value = f64>,
        Y::CoordDescType: ValueFormatter<f64>,
    {
        let quantity = match self.axis {
            Axis::Sizes => "size of messages",
            Axis::Steps => "step",
            Axis::Ranks => "ranks",
        };
        let mut chart = ChartBuilder::on(canvas)
            .caption(&self.title, (FONT, 20))
            .margin(12)
            .x_label_area_size(48)
            .y_label_area_size(72)
            .build_cartesian_2d(across, values)?;
        chart
            .configure_mesh()
            .light_line_style(WHITE)
            .bold_line_style(RGBColor(225, 225, 225))
            .x_desc(quantity)
            .y_desc(&self.unit)
            .x_label_formatter(&|value| self.name_across(*value))
            .y_label_formatter(&|value| value_name(*value))
            .label_style((FONT, 14))
            .axis_desc_style((FONT, 15))
            .draw()?;
        self.draw_series(&mut chart)?;
        self.draw_limits(&mut chart, edges)?;
        chart
            .configure_series_labels()
            .position(self.legend_place(edges, range))
            .background_style(WHITE.mix(0.85))
            .border_style(RGBColor(180, 180, 180))
            .label_font((FONT, 14))
            .draw()?;
        Ok(self.tips(&chart))
    }

    /// Formats a value of the horizontal axis.
    fn name_across(&self, value: f64) -> String {
        match self.axis {
            Axis::Sizes => size_name(value),
            Axis::Steps | Axis::Ranks => value_name(value),
        }
    }

    /// Describes the points that are marked.
    fn tips<X, Y>(&self, chart: &Chart<'_, '_, X, Y>) -> Vec<Tip>
    where
        X: Ranged<ValueType = f64>,
        Y: Ranged<ValueType = f64>,
    {
        let tip = |name: &str, point: &(f64, f64)| {
            let (x, y) = chart.backend_coord(point);
            let text = format!(
                "{name}: {}: {} {}",
                self.name_across(point.0),
                value_name(point.1),
                self.unit
            );
            let place = (x - POINTER / 2, y - POINTER / 2);
            Tip { place, size: (POINTER, POINTER), text: text.trim_end().to_owned() }
        };
        let of_series = |(name, points): &(String, Vec<(f64, f64)>)| -> Vec<Tip> {
            marked(points).map(|point| tip(name, point)).collect()
        };
        self.series.iter().flat_map(of_series).collect()
    }

    fn draw_series<'a, 'b: 'a, X, Y>(
        &self,
        chart: &mut Chart<'a, 'b, X, Y>,
    ) -> Result<(), DrawError>
    where
        X: Ranged<ValueType = f64>,
        Y: Ranged<ValueType = f64>,
    {
        for (index, (name, points)) in self.series.iter().enumerate() {
            let style = COLOURS[index % COLOURS.len()].stroke_width(2);
            let (length, gap) = DASHES[index % DASHES.len()];
            // All shapes have one type, so those of other series have no size.
            let size = move |shape: usize, size: i32| if index % 3 == shape { size } else { 0 };
            let marker = move |place| {
                EmptyElement::at(place)
                    + Circle::new((0, 0), size(0, 4), style.filled())
                    + TriangleMarker::new((0, 0), size(1, 6), style.filled())
                    + Cross::new((0, 0), size(2, 4), style)
            };
            if gap == 0 {
                chart.draw_series(LineSeries::new(points.iter().copied(), style))?
            } else {
                let line = DashedLineSeries::new(points.iter().copied(), length, gap, style);
                chart.draw_series(line)?
            };
            let markers = marked(points).map(|point| marker(*point));
            chart.draw_series(markers)?.label(name).legend(move |(x, y)| {
                // A dash as long as the sample is a line without gaps.
                let length = if gap == 0 { 22 } else { length };
                EmptyElement::at((x, y))
                    + DashedPathElement::new(vec![(0, 0), (22, 0)], length, gap, style)
                    + Circle::new((11, 0), size(0, 4), style.filled())
                    + TriangleMarker::new((11, 0), size(1, 6), style.filled())
                    + Cross::new((11, 0), size(2, 4), style)
            });
        }
        Ok(())
    }

    fn draw_limits<'a, 'b: 'a, X, Y>(
        &self,
        chart: &mut Chart<'a, 'b, X, Y>,
        [first, last]: [f64; 2],
    ) -> Result<(), DrawError>
    where
        X: Ranged<ValueType = f64>,
        Y: Ranged<ValueType = f64>,
    {
        for (name, limit) in &self.limits {
            let line = [(first, *limit), (last, *limit)];
            let style = LIMIT.stroke_width(2);
            chart.draw_series(DashedLineSeries::new(line, 6, 6, style))?.label(name).legend(
                move |(x, y)| {
                    EmptyElement::at((x, y))
                        + PathElement::new(vec![(0, 0), (8, 0)], style)
                        + PathElement::new(vec![(14, 0), (22, 0)], style)
                },
            );
        }
        Ok(())
    }
}

impl Picture for Curves {
    fn height(&self) -> u32 {
        HEIGHT
    }

    fn draw(&self, canvas: &Canvas<'_>) -> Result<Vec<Tip>, DrawError> {
        let nothing = || DrawError("there are no points".to_owned());
        let [first, last, least, most] = self.ranges().ok_or_else(nothing)?;
        let needs_positive = [
            (first, self.axis == Axis::Sizes),
            (least, self.axis == Axis::Sizes || self.is_logarithmic),
        ];
        let is_wrong = |(value, is_needed): &(f64, bool)| *is_needed && *value <= 0.0;
        if needs_positive.iter().any(is_wrong) || !most.is_finite() {
            return Err(DrawError("sizes and values have to be above 0".to_owned()));
        }
        let up = match (self.is_logarithmic, self.is_close) {
            (true, _) => decades(least, most),
            (false, true) => {
                // Equal values have a range too.
                let margin = ((most - least) / 4.0).max(most.abs() / 1e3).max(f64::MIN_POSITIVE);
                [(least - margin).max(0.0), most + margin]
            }
            (false, false) => [0.0, most.max(f64::MIN_POSITIVE) * 1.1],
        };
        match self.axis {
            Axis::Sizes => {
                let edges = [first / 1.2, last * 1.2];
                self.draw_over(canvas, (edges[0]..edges[1]).log_scale().base(2.0), edges, up)
            }
            Axis::Steps | Axis::Ranks => {
                let margin = ((last - first) / 50.0).max(0.5);
                let edges = [first - margin, last + margin];
                self.draw_over(canvas, edges[0]..edges[1], edges, up)
            }
        }
    }
}

/// Returns the place at which a legend with these names hides least of the curves, whose points are parts of both axes,
/// 0 to 1. Among places that are equally good, the usual one of the axis is taken: bandwidths rise with the size, and
/// rates over steps begin near their mean.
fn free_place<'a>(
    axis: Axis,
    names: impl Iterator<Item = &'a str>,
    curves: &[Vec<(f64, f64)>],
) -> SeriesLabelPosition {
    let letters: Vec<usize> = names.map(|name| name.chars().count()).collect();
    let longest = letters.iter().max().copied().unwrap_or(0) as f64;
    let width = ((longest * LETTER + BESIDE) / PLOT_AREA.0).min(1.0);
    let height = ((letters.len() as f64 * LINE + BORDER) / PLOT_AREA.1).min(1.0);
    let hidden = |(_, x, y): &(SeriesLabelPosition, f64, f64)| {
        let (left, bottom) = (x * (1.0 - width), y * (1.0 - height));
        let is_hidden = |(x, y): &(f64, f64)| {
            (left..=left + width).contains(x) && (bottom..=bottom + height).contains(y)
        };
        curves.iter().flat_map(|points| along(points)).filter(is_hidden).count()
    };
    let usual = match axis {
        Axis::Sizes | Axis::Ranks => 0,
        Axis::Steps => 1,
    };
    let order = [usual].into_iter().chain((0..PLACES.len()).filter(|place| *place != usual));
    let best = order.min_by_key(|place| hidden(&PLACES[*place])).unwrap_or(usual);
    PLACES[best].0.clone()
}

/// Lists the points of a curve that are marked.
fn marked(points: &[(f64, f64)]) -> impl Iterator<Item = &(f64, f64)> {
    points.iter().step_by((points.len() / MARKED).max(1))
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

/// Returns the powers of ten around positive values: a logarithmic axis has labels at these alone.
fn decades(least: f64, most: f64) -> [f64; 2] {
    let (first, last) = (least.log10().floor(), most.log10().ceil());
    let last = if last > first { last } else { first + 1.0 };
    // A power of ten that is rounded must not fall off the axis.
    [10_f64.powf(first) * 0.999, 10_f64.powf(last) * 1.001]
}

/// Formats a size in bytes as `512`, `64K` or `4M`.
fn size_name(size: f64) -> String {
    let units = [(f64::from(1 << 30), "G"), (f64::from(1 << 20), "M"), (1024.0, "K")];
    let unit = units.into_iter().find(|(unit, _)| size >= *unit);
    match unit {
        Some((unit, name)) => format!("{}{name}", value_name(size / unit)),
        None => value_name(size),
    }
}

/// Formats a number with as many decimals as it needs, two at most.
fn value_name(value: f64) -> String {
    let text = format!("{value:.2}");
    text.trim_end_matches('0').trim_end_matches('.').to_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn labels_are_short() {
        assert_eq!([8.0, 1024.0, 65536.0, 4_194_304.0].map(size_name), ["8", "1K", "64K", "4M"]);
        assert_eq!([0.5, 10.0, 12.25, 0.0].map(value_name), ["0.5", "10", "12.25", "0"]);
    }

    #[test]
    fn names_and_limits_are_in_the_picture() {
        let points: Vec<(f64, f64)> =
            (3..20).map(|power| (f64::from(1 << power), f64::from(power))).collect();
        let curves = Curves {
            title: "bw: a to b".into(),
            unit: "GB/s".into(),
            series: vec![("today".into(), points.clone()), ("before".into(), points)],
            limits: vec![("PCIe 8.0 GT/s x4".into(), 21.0)],
            ..Curves::default()
        };
        let text = crate::svg(&[&curves]).unwrap();
        let document = roxmltree::Document::parse(&text).unwrap();
        let texts: Vec<&str> = document
            .descendants()
            .filter(roxmltree::Node::is_text)
            .filter_map(|node| node.text())
            .collect();
        for wanted in ["bw: a to b", "GB/s", "today", "before", "PCIe 8.0 GT/s x4", "32K"] {
            assert!(texts.iter().any(|text| text.trim() == wanted), "{wanted}: {texts:?}");
        }
    }

    #[test]
    fn without_points_there_is_no_picture() {
        let error = crate::svg(&[&Curves::default()]).unwrap_err().to_string();
        assert_eq!(error, "cannot draw the picture: there are no points");
        let series = vec![("zero".to_owned(), vec![(8.0, 0.0)])];
        assert!(crate::svg(&[&Curves { series, ..Curves::default() }]).is_err());
    }

    #[test]
    fn steps_have_a_linear_axis() {
        let points: Vec<(f64, f64)> = (0..=100).map(|step| (f64::from(step), 500.0)).collect();
        let series = vec![("np1.log: 1 rank".to_owned(), points)];
        let unit = "images/s".to_owned();
        let curves = Curves { axis: Axis::Steps, unit, series, ..Curves::default() };
        let text = crate::svg(&[&curves]).unwrap();
        let document = roxmltree::Document::parse(&text).unwrap();
        let texts: Vec<&str> =
            document.descendants().filter_map(|node| node.text()).map(str::trim).collect();
        for wanted in ["step", "images/s", "np1.log: 1 rank", "0", "50", "100", "500"] {
            assert!(texts.contains(&wanted), "{wanted}: {texts:?}");
        }
        let markers = text.matches("<circle").count();
        assert!((MARKED..=2 * MARKED + 2).contains(&markers), "{markers}");
    }

    #[test]
    fn small_differences_are_seen_on_a_close_axis() {
        let series = vec![("rank 0".to_owned(), vec![(1.0, 498.0), (10.0, 499.0)])];
        let curves = Curves { axis: Axis::Steps, is_close: true, series, ..Curves::default() };
        let text = crate::svg(&[&curves]).unwrap();
        let document = roxmltree::Document::parse(&text).unwrap();
        let texts: Vec<&str> =
            document.descendants().filter_map(|node| node.text()).map(str::trim).collect();
        let labels: Vec<f64> = texts.iter().filter_map(|text| text.parse().ok()).collect();
        let close = labels.iter().filter(|label| (497.0..500.0).contains(*label)).count();
        assert!(close > 2 && !texts.contains(&"100"), "{texts:?}");
    }

    #[test]
    fn a_single_step_and_a_rate_of_0_are_drawn() {
        let series = vec![("stalled".to_owned(), vec![(10.0, 0.0)])];
        let curves = Curves { axis: Axis::Steps, series, ..Curves::default() };
        assert!(crate::svg(&[&curves]).is_ok());
    }

    #[test]
    fn times_have_a_logarithmic_axis() {
        let series = vec![("lat".to_owned(), vec![(8.0, 1.2), (1024.0, 40.0)])];
        let curves =
            Curves { is_logarithmic: true, unit: "us".into(), series, ..Curves::default() };
        assert!(crate::svg(&[&curves]).is_ok());
    }

    #[test]
    fn times_of_less_than_a_decade_have_labels() {
        let has_labels = |least: f64, most: f64, labels: &[&str]| {
            let series = vec![("lat".to_owned(), vec![(8.0, least), (1024.0, most)])];
            let curves =
                Curves { is_logarithmic: true, unit: "us".into(), series, ..Curves::default() };
            let svg = crate::svg(&[&curves]).unwrap();
            labels.iter().all(|label| svg.lines().any(|line| line.trim() == *label))
        };
        assert!(has_labels(0.12, 0.6, &["0.1", "1"]));
        assert!(has_labels(1.0, 1.0, &["1", "10"]));
        assert!(has_labels(0.5, 3.0, &["0.1", "1", "10"]));
    }

    fn placed(axis: Axis, curves: &[Vec<(f64, f64)>]) -> SeriesLabelPosition {
        free_place(axis, ["np1.log: 1 rank", "np4.log: 4 ranks"].into_iter(), curves)
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
            free_place(Axis::Steps, [name.as_str()].into_iter(), &curves),
            SeriesLabelPosition::LowerRight
        );
    }
}
