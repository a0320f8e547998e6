//! PNG by a program of this machine. To draw pixels, every launcher would have to carry a font and a renderer.

use crate::WriteError;
use std::io::Write;
use std::path::Path;
use std::process::{Command, Stdio};

/// Programs that read an SVG from stdin, with the arguments before the path of a PNG.
static CONVERTERS: [Converter; 2] = [
    Converter { program: "rsvg-convert", args: &["--zoom=2", "--output"], prefix: "" },
    // Without the prefix a colon in the path would end the name of a format.
    Converter { program: "magick", args: &["-density", "192", "svg:-"], prefix: "png:" },
];

#[derive(Debug)]
pub(crate) struct Converter {
    program: &'static str,
    args: &'static [&'static str],
    /// Begin of the argument with the path.
    prefix: &'static str,
}

/// Returns the first converter that can be started.
pub(crate) fn converter(path: &Path) -> Result<&'static Converter, WriteError> {
    let is_there = |converter: &&Converter| {
        let mut command = Command::new(converter.program);
        let quiet = command.arg("--version").stdin(Stdio::null());
        quiet.stdout(Stdio::null()).stderr(Stdio::null()).status().is_ok()
    };
    let found = CONVERTERS.iter().find(is_there);
    found.ok_or_else(|| WriteError::NoConverter { path: path.to_owned() })
}

/// Converts an SVG.
pub(crate) fn write(path: &Path, svg: &str) -> Result<(), WriteError> {
    converter(path)?.convert(path, svg)
}

impl Converter {
    fn convert(&self, path: &Path, svg: &str) -> Result<(), WriteError> {
        let failed = |cause: String| WriteError::Convert {
            program: self.program,
            path: path.to_owned(),
            cause,
        };
        let mut place = std::ffi::OsString::from(self.prefix);
        place.push(path);
        let mut command = Command::new(self.program);
        command.args(self.args).arg(place).stdin(Stdio::piped());
        let started = command.stdout(Stdio::null()).stderr(Stdio::piped()).spawn();
        let mut child = started.map_err(|error| failed(error.to_string()))?;
        if let Some(mut stdin) = child.stdin.take() {
            // A program that does not read to the end says why.
            let _ = stdin.write_all(svg.as_bytes());
        }
        let ended = child.wait_with_output().map_err(|error| failed(error.to_string()))?;
        if ended.status.success() {
            return Ok(());
        }
        let words = String::from_utf8_lossy(&ended.stderr);
        Err(failed(match words.trim() {
            "" => ended.status.to_string(),
            words => words.to_owned(),
        }))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn stand_in(script: &'static [&'static str]) -> Converter {
        Converter { program: "sh", args: script, prefix: "" }
    }

    #[test]
    fn the_svg_is_passed_to_the_program() {
        let path = std::env::temp_dir().join(format!("rlaunch-png-{}.png", std::process::id()));
        stand_in(&["-c", "cat > \"$0\""]).convert(&path, "<svg/>").unwrap();
        assert_eq!(std::fs::read_to_string(&path).unwrap(), "<svg/>");
        std::fs::remove_file(&path).unwrap();
    }

    #[test]
    fn a_program_that_fails_is_named_with_its_words() {
        let failed = stand_in(&["-c", "echo no memory >&2; exit 1"]);
        let error = failed.convert(Path::new("a.png"), "<svg/>").unwrap_err();
        assert_eq!(error.to_string(), "sh cannot make a.png: no memory");
        let silent = stand_in(&["-c", "exit 3"]);
        let error = silent.convert(Path::new("a.png"), "<svg/>").unwrap_err();
        assert_eq!(error.to_string(), "sh cannot make a.png: exit status: 3");
    }

    #[test]
    fn without_a_program_it_is_said_what_to_install() {
        let error = WriteError::NoConverter { path: "a.png".into() }.to_string();
        for word in ["a.png", "rsvg-convert", "magick", ".svg"] {
            assert!(error.contains(word), "{error}");
        }
    }
}
