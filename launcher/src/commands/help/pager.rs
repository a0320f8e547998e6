//! Prints text by the user's pager, if standard output is a terminal.

use anstream::adapter::strip_str;
use anstream::{AutoStream, ColorChoice};
use rlaunch_console::stdout;
use std::convert::Infallible;
use std::env;
use std::io::{self, IsTerminal, Seek, Write};
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::Command;

/// Prints a text. At a terminal this process becomes the pager, and does not return.
pub(super) fn show(text: &str) {
    if io::stdout().is_terminal() {
        let variable = |name| env::var(name).ok();
        let words = pager(variable("PAGER").as_deref(), variable("TERM").as_deref());
        // If the pager cannot be started, the text is printed without it.
        if let Some((program, arguments)) = words.split_first() {
            let _ = become_pager(program, arguments, text);
        }
    }
    stdout::print_styled(text);
}

/// Returns the pager's command line from the variables PAGER and TERM; empty if the text is to be printed
/// without a pager.
fn pager(named: Option<&str>, terminal: Option<&str>) -> Vec<String> {
    if terminal.is_none_or(|name| name.is_empty() || name == "dumb") {
        return Vec::new();
    }
    match named.map(str::trim) {
        Some("cat") => Vec::new(),
        Some(command) => shlex::split(command).unwrap_or_default(),
        None => ["less", "-R"].map(str::to_owned).into(),
    }
}

/// Replaces this process by the pager, so that no other process is left and Ctrl-C reaches the pager alone.
/// The pager reads the text from an unlinked file. Returns only if the pager cannot be started.
///
/// A failed `exec` leaves SIGPIPE at its default, so tests must not call this.
fn become_pager(program: &str, arguments: &[String], text: &str) -> io::Result<Infallible> {
    let is_less = Path::new(program).file_name().is_some_and(|name| name == "less");
    let is_colourful = AutoStream::choice(&io::stdout()) != ColorChoice::Never;
    let mut file = tempfile::tempfile()?;
    match is_less && is_colourful {
        true => file.write_all(text.as_bytes())?,
        false => write!(file, "{}", strip_str(text))?,
    }
    file.rewind()?;
    let mut command = Command::new(program);
    if env::var_os("LESS").is_none() {
        // With the option F, less exits at once if the text fits the screen.
        command.env("LESS", "FRX");
    }
    Err(command.args(arguments).stdin(file).exec())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_pager_is_the_users_or_less_or_none() {
        let xterm = Some("xterm");
        assert_eq!(pager(None, xterm), ["less", "-R"]);
        assert_eq!(pager(Some("most -w"), xterm), ["most", "-w"]);
        assert_eq!(pager(Some("'/opt/my less' -S"), xterm), ["/opt/my less", "-S"]);
        for plain in [Some(""), Some(" "), Some("cat"), Some("'unclosed")] {
            assert!(pager(plain, xterm).is_empty(), "{plain:?}");
        }
        for terminal in [None, Some(""), Some("dumb")] {
            assert!(pager(Some("less"), terminal).is_empty(), "{terminal:?}");
        }
    }
}
