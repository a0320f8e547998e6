//! Opening and reading of configuration files, whoever owns them.

use nix::fcntl::OFlag;
use rlaunch_text::text;
use std::fs::{File, OpenOptions};
use std::io::{self, Read};
use std::os::unix::fs::OpenOptionsExt;
use std::path::Path;

/// Maximum size of a configuration file, in bytes.
const MAX_FILE: u64 = 1 << 20;
const NONBLOCK: i32 = OFlag::O_NONBLOCK.bits();

/// Opens a file for reading. The call does not block if the file is a named pipe without a writer.
pub(super) fn open(path: &Path) -> io::Result<File> {
    OpenOptions::new().read(true).custom_flags(NONBLOCK).open(path)
}

/// Reads the text of a configuration file.
pub(super) fn read_text(file: File) -> io::Result<String> {
    let mut bytes = Vec::new();
    let length = file.take(MAX_FILE + 1).read_to_end(&mut bytes)?;
    if length as u64 > MAX_FILE {
        return Err(io::Error::other(format!("longer than {} MiB", MAX_FILE >> 20)));
    }
    text::utf8(bytes)
}
