//! Python with torch for hosts: a virtual environment of this machine's own Python, built once from
//! the package index and kept in the cache. Hosts have it at [`PROGRAM`].

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use nix::sys::statvfs::statvfs;
use sha2::{Digest, Sha256};

use crate::command::background::Background;
use crate::command::{run, spinner};
use crate::{LabError, setup};

/// Path of the interpreter on hosts.
pub const PROGRAM: &str = "/run/rlaunch-python/bin/python";

/// Interpreter that the virtual environment is made of; hosts have it too.
pub(crate) const BASE: &str = "/usr/bin/python3";
/// Packages in the environment. torch depends on libraries for GPUs on every machine.
const PACKAGES: [&str; 2] = ["torch==2.15.0", "numpy==2.4.6"];
/// Script that makes the environment. Arguments: directory, lock file, time limit in seconds,
/// interpreter, packages.
const SCRIPT: &str = include_str!("venv.sh");
/// Time limit of the script in seconds; a minute is usual.
const LIMIT: &str = "900";
/// Free disk space in GiB that the downloads and the environment need together.
const DISK_SPACE: u64 = 12;
/// Number of hexadecimal digits of the recipe's digest in the directory's name.
const DIGITS: usize = 16;

/// Returns the directory of the environment, if it has been built from the current recipe.
pub(crate) fn find() -> Option<PathBuf> {
    Some(place()).filter(|place| place.is_dir())
}

/// Builds the environment unless it exists. Returns its directory.
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

/// Starts building the environment in the background; [`build`] then waits for it. Dropping the
/// handle ends the build. Returns nothing if the environment exists or cannot be built.
pub(crate) fn build_beside() -> Option<Background> {
    if find().is_some() {
        return None;
    }
    // A failure is reported by `build` when the environment is needed.
    Background::start(command().ok()?).ok()
}

fn command() -> Result<Command, LabError> {
    let (place, cache) = (place(), setup::cache());
    fs::create_dir_all(&cache).map_err(LabError::io(format!("make {}", cache.display())))?;
    check_disk_space(&cache)?;
    let mut command = Command::new("sh");
    command.args(["-c", SCRIPT, "venv.sh"]).arg(place).arg(cache.join("python.lock"));
    command.args([LIMIT, BASE]).args(PACKAGES);
    Ok(command)
}

fn check_disk_space(cache: &Path) -> Result<(), LabError> {
    let operation = format!("read the free space of {}", cache.display());
    let disk = statvfs(cache).map_err(LabError::errno(operation))?;
    let free = (disk.blocks_available() * disk.fragment_size()) >> 30;
    if free >= DISK_SPACE {
        return Ok(());
    }
    Err(LabError::Unexpected(format!(
        "a Python with torch needs {DISK_SPACE} GiB in {}, where {free} GiB are free",
        cache.display()
    )))
}

/// Returns the directory of the environment. Its name has a digest of the packages and of the
/// script that installs them.
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
