//! Output of verbs: JSON, and files with pictures, which `--plot` names.

use rlaunch_console::messages;
use rlaunch_plot::{Picture, PlotFile, WriteError};
use rlaunch_text::exit::Exit;
use rlaunch_text::message::Failed;
use serde::Serialize;

/// Formats JSON, with a newline at the end.
pub(super) fn json<T: Serialize + ?Sized>(value: &T) -> Result<String, Failed> {
    let text = serde_json::to_string_pretty(value);
    let cannot_write =
        |error: serde_json::Error| Failed::new(Exit::BUG, format!("cannot write JSON: {error}"));
    text.map(|text| text + "\n").map_err(cannot_write)
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
