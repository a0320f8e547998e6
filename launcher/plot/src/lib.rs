//! Pictures of measurements and of hardware: curves over sizes of messages or over steps, heat maps of
//! pairs of hosts, and hosts with their devices and networks, as SVG or HTML, or as PNG where a program converts them.
//!
//! Colours differ in lightness, curves in their markers and dashes too, and networks in their numbers, so
//! that pictures are readable in print and by colour-blind people.
//!
//! | module | contents |
//! |---|---|
//! | [`curves`] | curves with limits as lines |
//! | [`heat_map`] | a table whose cells are coloured by their values |
//! | [`topology`] | hosts with NUMA nodes, GPUs and ports, and the networks between them |
//!
//! [`PlotFile`] is a file with pictures: SVG, HTML that needs nothing else, or PNG.

pub mod curves;
pub mod heat_map;
mod png;
pub mod topology;

use plotters::coord::Shift;
use plotters::drawing::DrawingAreaErrorKind;
use plotters::prelude::{DrawingArea, IntoDrawingArea, SVGBackend, WHITE};
use plotters::style::{FontDesc, FontFamily, FontStyle, RGBColor};
use std::path::{Path, PathBuf};
use std::str::FromStr;
use std::{fs, io};

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

    /// Draws into an area of at least this size. Returns what is said of parts of the picture.
    ///
    /// # Errors
    ///
    /// Fails if there is nothing to draw.
    fn draw(&self, canvas: &Canvas<'_>) -> Result<Vec<Tip>, DrawError>;
}

/// Text that browsers show while the pointer is over a part of a picture.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Tip {
    /// Left and upper edge in the document, in pixels.
    place: (i32, i32),
    /// Width and height, in pixels.
    size: (i32, i32),
    text: String,
}

impl Tip {
    /// Returns an element of SVG that is not seen.
    fn element(&self) -> String {
        let Tip { place: (x, y), size: (width, height), text } = self;
        format!(
            "<rect x=\"{x}\" y=\"{y}\" width=\"{width}\" height=\"{height}\" fill=\"none\" \
             pointer-events=\"all\"><title>{}</title></rect>\n",
            escaped(text)
        )
    }
}

/// Draws pictures below each other as one SVG document.
///
/// # Errors
///
/// Fails if one of them has nothing to draw.
pub fn svg(pictures: &[&dyn Picture]) -> Result<String, DrawError> {
    let heights: Vec<u32> = pictures.iter().map(|picture| picture.height()).collect();
    let width = pictures.iter().map(|picture| picture.width()).max().unwrap_or(WIDTH);
    let (mut text, mut tips) = (String::new(), Vec::new());
    {
        let backend = SVGBackend::with_string(&mut text, (width, heights.iter().sum()));
        let mut rest = backend.into_drawing_area();
        rest.fill(&WHITE)?;
        for (picture, height) in pictures.iter().zip(&heights) {
            let (canvas, below) = rest.split_vertically(*height);
            tips.extend(picture.draw(&canvas)?);
            rest = below;
        }
        rest.present()?;
    }
    let end = text.rfind("</svg>").unwrap_or(text.len());
    text.insert_str(end, &tips.iter().map(Tip::element).collect::<String>());
    Ok(printable(&text))
}

/// Replaces characters that mean something else in XML and HTML.
fn escaped(text: &str) -> String {
    text.replace('&', "&amp;").replace('<', "&lt;").replace('>', "&gt;")
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

/// Said of any other ending.
const BAD_ENDING: &str = "the name has to end in .svg, .html or .png";

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Format {
    Svg,
    /// Page with the pictures as SVG.
    Html,
    /// The SVG, converted by a program.
    Png,
}

/// Path of a file whose ending gives the format.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PlotFile {
    path: PathBuf,
    format: Format,
}

/// Failure to write a file with pictures.
#[derive(Debug, thiserror::Error)]
pub enum WriteError {
    /// There is nothing to draw.
    #[error(transparent)]
    Draw(#[from] DrawError),
    /// The file cannot be written.
    #[error("cannot write {}: {error}", path.display())]
    Write {
        /// Path of the file.
        path: PathBuf,
        /// Error of the system.
        error: io::Error,
    },
    /// There is no program that makes a PNG.
    #[error(
        "cannot make {}: neither `rsvg-convert` (package librsvg2-bin or librsvg2-tools) nor `magick` \
         (ImageMagick 7) is in PATH: install one, or give a name that ends in .svg or .html",
        path.display()
    )]
    NoConverter {
        /// Path of the file.
        path: PathBuf,
    },
    /// The program that makes a PNG has failed.
    #[error("{program} cannot make {}: {cause}", path.display())]
    Convert {
        /// Name of the program.
        program: &'static str,
        /// Path of the file.
        path: PathBuf,
        /// What the program has said, or its exit status.
        cause: String,
    },
}

impl FromStr for PlotFile {
    type Err = String;

    fn from_str(text: &str) -> Result<PlotFile, String> {
        let path = PathBuf::from(text);
        let ending = path.extension().and_then(|ending| ending.to_str()).unwrap_or_default();
        let format = match ending.to_ascii_lowercase().as_str() {
            "svg" => Format::Svg,
            "html" | "htm" => Format::Html,
            "png" => Format::Png,
            _ => return Err(BAD_ENDING.to_owned()),
        };
        Ok(PlotFile { path, format })
    }
}

impl PlotFile {
    /// Returns the path of the file.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Makes sure that the file can be written, before anything is measured. Changes nothing.
    ///
    /// # Errors
    ///
    /// Fails if the file cannot be opened for writing, or if nothing makes a PNG.
    pub fn prepare(&self) -> Result<(), WriteError> {
        if self.format == Format::Png {
            png::converter(&self.path)?;
        }
        let is_new = !self.path.exists();
        let opened = fs::OpenOptions::new().append(true).create(true).open(&self.path);
        let tried = opened.and_then(|_| if is_new { fs::remove_file(&self.path) } else { Ok(()) });
        tried.map_err(|error| WriteError::Write { path: self.path.clone(), error })
    }

    /// Draws pictures below each other and writes the file. `title` is that of an HTML page.
    ///
    /// # Errors
    ///
    /// Fails if there is nothing to draw, or if the file cannot be written.
    pub fn write(&self, title: &str, pictures: &[&dyn Picture]) -> Result<(), WriteError> {
        let svg = svg(pictures)?;
        let text = match self.format {
            Format::Svg => svg,
            Format::Html => page(title, &svg),
            Format::Png => return png::write(&self.path, &svg),
        };
        let wrong = |error| WriteError::Write { path: self.path.clone(), error };
        fs::write(&self.path, text).map_err(wrong)
    }
}

/// Returns a page that contains the SVG and loads nothing. The pictures have their titles; that of the page is seen in
/// tabs and bookmarks.
fn page(title: &str, svg: &str) -> String {
    let title = escaped(title);
    format!(
        "<!DOCTYPE html>\n<html lang=\"en\">\n<head>\n<meta charset=\"utf-8\">\n<title>{title}</title>\n\
         <style>body {{ margin: 2em; font-family: sans-serif; }}</style>\n</head>\n<body>\n{svg}\n</body>\n\
         </html>\n"
    )
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::curves::Curves;

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

    #[test]
    fn the_ending_gives_the_format() {
        let format = |text: &str| text.parse::<PlotFile>().map(|file| file.format);
        assert_eq!(format("a.svg"), Ok(Format::Svg));
        assert_eq!(format("dir/a.SVG"), Ok(Format::Svg));
        assert_eq!(format("a.html"), Ok(Format::Html));
        assert_eq!(format("a.png"), Ok(Format::Png));
        for other in ["a.jpg", "a.pdf", "svg", "a"] {
            let error = format(other).unwrap_err();
            assert!(error.contains(".svg, .html or .png"), "{error}");
        }
    }

    #[test]
    fn a_file_that_cannot_be_written_is_known_before() {
        let file: PlotFile = "/nonexistent/a.svg".parse().unwrap();
        let error = file.prepare().unwrap_err().to_string();
        assert!(error.starts_with("cannot write /nonexistent/a.svg: "), "{error}");
        let path = std::env::temp_dir().join(format!("rlaunch-plot-{}.svg", std::process::id()));
        let file: PlotFile = path.to_str().unwrap().parse().unwrap();
        file.prepare().unwrap();
        assert!(!path.exists());
    }

    #[test]
    fn each_format_is_what_its_name_says() {
        let series = vec![("bw".to_owned(), vec![(8.0, 1.0), (1024.0, 9.0)])];
        let curves = Curves { title: "a < b".into(), series, ..Curves::default() };
        let svg = svg(&[&curves]).unwrap();
        roxmltree::Document::parse(&svg).unwrap();
        let page = page("a < b", &svg);
        assert!(page.contains("<title>a &lt; b</title>") && page.contains("<svg "), "{page}");
        let shown = page.split_once("<body>").unwrap().1;
        assert_eq!(shown.matches("a &lt; b").count(), 1, "the title is there once: {shown}");
        assert!(shown.contains("<title>bw: 1K: 9</title>"), "{shown}");
        assert!(
            !page.contains("http://") || page.matches("http://").count() == 1,
            "only a namespace"
        );
    }
}
