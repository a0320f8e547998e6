//! Text at a terminal goes through the user's pager, if there is one.

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
        // A pager that does not start leaves the text to be printed.
        if let Some((program, arguments)) = words.split_first() {
            let _ = become_pager(program, arguments, text);
        }
    }
    stdout::print_styled(text);
}

/// Chooses the pager's command line; it is empty where the text is to be printed as it is.
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

/// Replaces this process by the pager, which reads the text from a file without a name: no process
/// stays behind, and Ctrl-C is the pager's. Returns only if that fails.
///
/// A failed `exec` leaves SIGPIPE at its default, so no test of this process calls this.
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
        // A text that fits the screen needs no key to leave it.
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
