//! A Python with torch for hosts: a virtual environment of this machine's own Python, built once
//! from the package index and kept in the cache. Hosts see it where [`PROGRAM`] is.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use nix::sys::statvfs::statvfs;
use sha2::{Digest, Sha256};

use crate::command::background::Background;
use crate::command::{run, spinner};
use crate::{LabError, setup};

/// Its interpreter, as hosts have it.
pub const PROGRAM: &str = "/run/rlaunch-python/bin/python";

/// The Python that it is made of, which hosts have too.
pub(crate) const BASE: &str = "/usr/bin/python3";
/// What is in it; torch brings its libraries for GPUs, wherever it is installed.
const PACKAGES: [&str; 2] = ["torch==2.15.0", "numpy==2.4.6"];
/// Makes it. Arguments: directory, lock, seconds, Python, packages...
const SCRIPT: &str = include_str!("venv.sh");
/// For how long that may go on, in seconds: a minute is usual.
const LIMIT: &str = "900";
/// What has to be free on the disk, in GiB: what is downloaded, and what is made of it.
const ROOM: u64 = 12;
/// How many digits of the digest are in the name.
const DIGITS: usize = 16;

/// The environment of today's recipe, if it has been built.
pub(crate) fn find() -> Option<PathBuf> {
    Some(place()).filter(|place| place.is_dir())
}

/// Builds it if need be.
pub(crate) fn build() -> Result<PathBuf, LabError> {
    if let Some(place) = find() {
        return Ok(place);
    }
    let mut command = command()?;
    println!("building a Python with torch in {} (once, about two minutes)", place().display());
    let progress = spinner("building a Python with torch");
    let built = run("build a Python with torch", &mut command);
    progress.finish_and_clear();
    built.map(|_| place())
}

/// Starts building it beside whatever else is done; [`build`] waits for it then. The handle ends it
/// when dropped. Nothing where it is built, or cannot be.
pub(crate) fn build_beside() -> Option<Background> {
    if find().is_some() {
        return None;
    }
    // That it fails is found out, and shown, by whoever needs it.
    Background::start(command().ok()?).ok()
}

fn command() -> Result<Command, LabError> {
    let (place, cache) = (place(), setup::cache());
    fs::create_dir_all(&cache).map_err(LabError::io(format!("make {}", cache.display())))?;
    has_room(&cache)?;
    let mut command = Command::new("sh");
    command.args(["-c", SCRIPT, "venv.sh"]).arg(place).arg(cache.join("python.lock"));
    command.args([LIMIT, BASE]).args(PACKAGES);
    Ok(command)
}

fn has_room(cache: &Path) -> Result<(), LabError> {
    let operation = format!("see how much room {} has", cache.display());
    let disk = statvfs(cache).map_err(LabError::errno(operation))?;
    let free = (disk.blocks_available() * disk.fragment_size()) >> 30;
    if free >= ROOM {
        return Ok(());
    }
    Err(LabError::Unexpected(format!(
        "a Python with torch wants {ROOM} GiB in {}, where {free} GiB are free",
        cache.display()
    )))
}

/// Named by a digest of all that decides what it is like.
fn place() -> PathBuf {
    setup::cache().join(name(&PACKAGES))
}

fn name(packages: &[&str]) -> String {
    let mut digest = Sha256::new();
    for part in packages.iter().chain(&[SCRIPT, BASE]) {
        digest.update((part.len() as u64).to_le_bytes());
        digest.update(part);
    }
    let digits = digest.finalize();
    let digits = digits[..DIGITS / 2].iter().map(|byte| format!("{byte:02x}"));
    digits.fold("python-".to_owned(), |name, byte| name + &byte)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn another_recipe_has_another_name() {
        let one = name(&["torch==2.15.0", "numpy"]);
        assert_eq!(one.len(), "python-".len() + DIGITS);
        assert_ne!(one, name(&["torch==2.14.0", "numpy"]));
        assert_ne!(one, name(&["torch==2.15.0n", "umpy"]));
    }
}
