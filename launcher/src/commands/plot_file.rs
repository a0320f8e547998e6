//! Files with pictures, which `--plot` names.

use rlaunch_plot::Picture;
use rlaunch_plot::file::{PlotFile, WriteError};
use rlaunch_text::exit::Exit;
use rlaunch_text::message::Failed;

/// Makes sure that the file for a picture can be written, before hosts are made busy.
pub(super) fn prepare(file: Option<&PlotFile>) -> Result<(), Failed> {
    file.map_or(Ok(()), PlotFile::prepare).map_err(|error| failed(&error))
}

/// Writes pictures. `title` is that of an HTML page.
pub(super) fn write(file: &PlotFile, title: &str, pictures: &[&dyn Picture]) -> Result<(), Failed> {
    file.write(title, pictures).map_err(|error| failed(&error))
}

fn failed(error: &WriteError) -> Failed {
    Failed::from_error(Exit::FILES, error)
}
