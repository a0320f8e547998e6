//! Curves over sizes of messages.

use crate::{Canvas, DrawError, Picture};
use plotters::coord::combinators::LogCoord;
use plotters::coord::ranged1d::{AsRangedCoord, Ranged, ValueFormatter};
use plotters::element::{Circle, Cross, EmptyElement, TriangleMarker};
use plotters::prelude::*;

/// Chart whose axis of sizes is logarithmic.
type Chart<'a, 'b, Y> = ChartContext<'a, SVGBackend<'b>, Cartesian2d<LogCoord<f64>, Y>>;

const HEIGHT: u32 = 480;
const FONT: &str = "sans-serif";
/// Colours of series, which also differ in lightness (Okabe and Ito, "Color Universal Design").
const COLOURS: [RGBColor; 6] = [
    RGBColor(0, 114, 178),
    RGBColor(213, 94, 0),
    RGBColor(0, 158, 115),
    RGBColor(204, 121, 167),
    RGBColor(86, 180, 233),
    RGBColor(230, 159, 0),
];
/// Colour of limits.
const LIMIT: RGBColor = RGBColor(60, 60, 60);
/// Length of dashes and of the gaps between them, in pixels, by series; the first has no gaps.
const DASHES: [(i32, i32); 4] = [(1, 0), (8, 4), (3, 3), (12, 3)];

/// Curves over sizes of messages in bytes. The axis of sizes is logarithmic.
#[derive(Clone, Debug, Default)]
pub struct Curves {
    /// Title above the curves.
    pub title: String,
    /// Quantity and unit of the values, such as `GB/s`.
    pub unit: String,
    /// Whether the axis of values is logarithmic, as for times.
    pub is_logarithmic: bool,
    /// Curves with their names. Points are sizes in bytes and values; both must be above 0.
    pub series: Vec<(String, Vec<(f64, f64)>)>,
    /// Limits with their names, drawn as horizontal lines.
    pub limits: Vec<(String, f64)>,
}

impl Curves {
    fn points(&self) -> impl Iterator<Item = (f64, f64)> + '_ {
        self.series.iter().flat_map(|(_, points)| points.iter().copied())
    }

    /// Returns the least and the highest size, and the least and the highest value or limit.
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

    fn draw_with<Y>(&self, canvas: &Canvas<'_>, sizes: [f64; 2], values: Y) -> Result<(), DrawError>
    where
        Y: AsRangedCoord<Value = f64>,
        Y::CoordDescType: ValueFormatter<f64>,
    {
        let wrong = |error| DrawError::new(&error);
        let [first, last] = sizes;
        let across = (first / 1.2..last * 1.2).log_scale().base(2.0);
        let mut chart = ChartBuilder::on(canvas)
            .caption(&self.title, (FONT, 20))
            .margin(12)
            .x_label_area_size(48)
            .y_label_area_size(72)
            .build_cartesian_2d(across, values)
            .map_err(wrong)?;
        chart
            .configure_mesh()
            .light_line_style(WHITE)
            .bold_line_style(RGBColor(225, 225, 225))
            .x_desc("size of messages")
            .y_desc(&self.unit)
            .x_label_formatter(&|size| size_name(*size))
            .y_label_formatter(&|value| value_name(*value))
            .label_style((FONT, 14))
            .axis_desc_style((FONT, 15))
            .draw()
            .map_err(wrong)?;
        self.draw_series(&mut chart)?;
        self.draw_limits(&mut chart, sizes)?;
        chart
            .configure_series_labels()
            .position(SeriesLabelPosition::MiddleLeft)
            .background_style(WHITE.mix(0.85))
            .border_style(RGBColor(180, 180, 180))
            .label_font((FONT, 14))
            .draw()
            .map_err(wrong)
    }

    fn draw_series<'a, 'b: 'a, Y>(&self, chart: &mut Chart<'a, 'b, Y>) -> Result<(), DrawError>
    where
        Y: Ranged<ValueType = f64>,
    {
        let wrong = |error| DrawError::new(&error);
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
                chart.draw_series(LineSeries::new(points.iter().copied(), style)).map_err(wrong)?
            } else {
                let line = DashedLineSeries::new(points.iter().copied(), length, gap, style);
                chart.draw_series(line).map_err(wrong)?
            };
            chart
                .draw_series(points.iter().map(|point| marker(*point)))
                .map_err(wrong)?
                .label(name)
                .legend(move |(x, y)| {
                    EmptyElement::at((x, y))
                        + PathElement::new(vec![(0, 0), (22, 0)], style)
                        + Circle::new((11, 0), size(0, 4), style.filled())
                        + TriangleMarker::new((11, 0), size(1, 6), style.filled())
                        + Cross::new((11, 0), size(2, 4), style)
                });
        }
        Ok(())
    }

    fn draw_limits<'a, 'b: 'a, Y>(
        &self,
        chart: &mut Chart<'a, 'b, Y>,
        sizes: [f64; 2],
    ) -> Result<(), DrawError>
    where
        Y: Ranged<ValueType = f64>,
    {
        let wrong = |error| DrawError::new(&error);
        let [first, last] = sizes;
        for (name, limit) in &self.limits {
            let line = [(first / 1.2, *limit), (last * 1.2, *limit)];
            let style = LIMIT.stroke_width(2);
            chart
                .draw_series(DashedLineSeries::new(line, 6, 6, style))
                .map_err(wrong)?
                .label(name)
                .legend(move |(x, y)| {
                    EmptyElement::at((x, y))
                        + PathElement::new(vec![(0, 0), (8, 0)], style)
                        + PathElement::new(vec![(14, 0), (22, 0)], style)
                });
        }
        Ok(())
    }
}

impl Picture for Curves {
    fn height(&self) -> u32 {
        HEIGHT
    }

    fn draw(&self, canvas: &Canvas<'_>) -> Result<(), DrawError> {
        let nothing = || DrawError("there are no points".to_owned());
        let [first, last, least, most] = self.ranges().ok_or_else(nothing)?;
        if first <= 0.0 || least <= 0.0 || !most.is_finite() {
            return Err(DrawError("sizes and values have to be above 0".to_owned()));
        }
        if self.is_logarithmic {
            self.draw_with(canvas, [first, last], (least / 1.5..most * 1.5).log_scale())
        } else {
            self.draw_with(canvas, [first, last], 0.0..most * 1.1)
        }
    }
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
    fn times_have_a_logarithmic_axis() {
        let series = vec![("lat".to_owned(), vec![(8.0, 1.2), (1024.0, 40.0)])];
        let curves =
            Curves { is_logarithmic: true, unit: "us".into(), series, ..Curves::default() };
        assert!(crate::svg(&[&curves]).is_ok());
    }
}
