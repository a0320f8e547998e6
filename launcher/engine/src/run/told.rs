//! What is said once a day and not with every job. `$XDG_STATE_HOME/rlaunch/told` has a file for each line that was said.

use rlaunch_console::messages;
use rlaunch_console::process_env::{ProcessEnv, create_state_directory};
use sha2::{Digest, Sha256};
use std::path::Path;
use std::time::{Duration, SystemTime};
use std::{env, fs, io};

/// Time after which a line is said again.
const SILENCE: Duration = Duration::from_secs(24 * 60 * 60);

/// Prints a line about the working directory dim, unless it was said for the same directory within a day.
pub(crate) fn once(line: &str) {
    let here = env::current_dir().unwrap_or_default();
    let text = format!("{}: {line}\n", here.display());
    let state = ProcessEnv::current().state_directory();
    // Where nothing can be kept, it is said each time.
    if state.is_none_or(|state| is_new(&state.join("rlaunch/told"), &text, SystemTime::now())) {
        messages::dim(line);
    }
}

/// Tells whether `text` was not noted in the directory within a day, and notes it. Forgets texts that are older.
fn is_new(directory: &Path, text: &str, now: SystemTime) -> bool {
    let digest = Sha256::digest(text);
    let name: [u8; 8] = std::array::from_fn(|at| digest[at]);
    let file = directory.join(format!("{:016x}", u64::from_be_bytes(name)));
    if !is_old(&file, now) {
        return false;
    }
    let _ = note(directory, &file, text, now);
    true
}

fn note(directory: &Path, file: &Path, text: &str, now: SystemTime) -> io::Result<()> {
    create_state_directory(directory)?;
    fs::write(file, text)?;
    for entry in fs::read_dir(directory)?.flatten() {
        if is_old(&entry.path(), now) {
            fs::remove_file(entry.path())?;
        }
    }
    Ok(())
}

/// Tells whether a file is missing, a day old, or from the future of a clock that was ahead.
fn is_old(file: &Path, now: SystemTime) -> bool {
    /// Time by which a file may be newer than `now`, which was read before the file was written.
    const AHEAD: Duration = Duration::from_secs(60);
    let modified = fs::metadata(file).and_then(|found| found.modified());
    let age = modified.ok().and_then(|at| (now + AHEAD).duration_since(at).ok());
    age.is_none_or(|age| age >= SILENCE + AHEAD)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_line_is_new_once_a_day() {
        let scratch = tempfile::tempdir().unwrap();
        let directory = scratch.path().join("told");
        // The file is written after the time was read.
        let now = SystemTime::now() - Duration::from_secs(1);
        assert!(is_new(&directory, "a", now));
        assert!(!is_new(&directory, "a", now));
        assert!(is_new(&directory, "b", now));
        let later = now + SILENCE + Duration::from_secs(60);
        assert!(is_new(&directory, "b", later));
        assert_eq!(fs::read_dir(&directory).unwrap().count(), 0, "old ones are kept");
    }
}
