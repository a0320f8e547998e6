//! Output of verbs: JSON, measurements, and files with pictures, which `--plot` names.

use rlaunch_console::{messages, stdout};
use rlaunch_plot::{Picture, PlotFile, WriteError};
use rlaunch_text::exit::Exit;
use rlaunch_text::message::Failed;
use rlaunch_text::{printable, style};
use serde::Serialize;
use std::io::{self, IsTerminal};

/// Formats JSON, with a newline at the end.
pub(super) fn json<T: Serialize + ?Sized>(value: &T) -> Result<String, Failed> {
    let text = serde_json::to_string_pretty(value);
    let cannot_write =
        |error: serde_json::Error| Failed::new(Exit::BUG, format!("cannot write JSON: {error}"));
    text.map(|text| text + "\n").map_err(cannot_write)
}

/// Prints a measurement: in a file all lines but rows of its table are comments, at a terminal what came of it is none.
pub(super) fn print_measurement(text: &str) {
    if io::stdout().is_terminal() {
        stdout::print_styled(&style::measurement(&printable::text(text)));
    } else {
        stdout::print(text);
    }
}

/// Makes sure that the file for a picture can be written, before hosts are made busy.
pub(super) fn prepare_plot(file: Option<&PlotFile>) -> Result<(), Failed> {
    file.map_or(Ok(()), PlotFile::prepare).map_err(|error| failed(&error))
}

/// Writes pictures, and says so. `title` is that of an HTML page.
pub(super) fn write_plot(
    file: &PlotFile,
    title: &str,
    pictures: &[&dyn Picture],
) -> Result<(), Failed> {
    file.write(title, pictures).map_err(|error| failed(&error))?;
    messages::info(&format!("wrote {}", file.path().display()));
    Ok(())
}

fn failed(error: &WriteError) -> Failed {
    Failed::from_error(Exit::FILES, error)
}
