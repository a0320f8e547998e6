//! Files that ranks have written in the copy of a working tree.

use rlaunch_bootstrap::protocol::control::WrittenFiles;
use std::ffi::OsStr;
use std::fs::{self, Metadata};
use std::os::unix::fs::MetadataExt;
use std::path::Path;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

/// Time for a look at all files; the agent does nothing else meanwhile.
const PATIENCE: Duration = Duration::from_secs(1);
/// Number of files that are named.
const NAMED: usize = 3;
/// Directory in which Python keeps what it has compiled, which nobody fetches.
const COMPILED: &str = "__pycache__";

/// Finds the files below a directory that were written or made since a time, by the clock of this host.
pub(super) fn since(top: &Path, since: SystemTime) -> WrittenFiles {
    let since = since.duration_since(UNIX_EPOCH).unwrap_or_default();
    let since =
        (i64::try_from(since.as_secs()).unwrap_or(i64::MAX), i64::from(since.subsec_nanos()));
    // The time at which a file was last changed cannot be set to another one.
    let is_new = |of: &Metadata| (of.ctime(), of.ctime_nsec()) >= since;
    let mut found = WrittenFiles::default();
    let (began, mut left) = (Instant::now(), vec![top.to_owned()]);
    while let Some(directory) = left.pop() {
        for entry in fs::read_dir(&directory).into_iter().flatten().flatten() {
            if began.elapsed() > PATIENCE {
                found.is_part = true;
                return found;
            }
            let Ok(kind) = entry.file_type() else { continue };
            if kind.is_dir() {
                if entry.file_name() != OsStr::new(COMPILED) {
                    left.push(entry.path());
                }
                continue;
            }
            let Some(metadata) = entry.metadata().ok().filter(|of| kind.is_file() && is_new(of))
            else {
                continue;
            };
            found.files += 1;
            found.bytes += metadata.len();
            if found.names.len() < NAMED
                && let Ok(name) = entry.path().strip_prefix(top)
            {
                found.names.push(name.to_string_lossy().into_owned());
            }
        }
    }
    found
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_was_there_before_was_not_written() {
        let top = tempfile::tempdir().unwrap();
        let put = |name: &str| {
            let path = top.path().join(name);
            fs::create_dir_all(path.parent().unwrap()).unwrap();
            fs::write(path, "four").unwrap();
        };
        put("old");
        put("changed");
        put("runs/old");
        let time = |name: &str| {
            let metadata = fs::metadata(top.path().join(name)).unwrap();
            let nanos = u32::try_from(metadata.ctime_nsec()).unwrap();
            UNIX_EPOCH + Duration::new(metadata.ctime().cast_unsigned(), nanos)
        };
        let before = time("runs/old");
        put("tick");
        // The clock of a file system ticks.
        while time("tick") == before {
            std::thread::sleep(Duration::from_millis(1));
            put("tick");
        }
        let begin = time("tick");
        fs::remove_file(top.path().join("tick")).unwrap();
        put("changed");
        put("runs/7/model");
        put("src/__pycache__/x.pyc");
        let found = since(top.path(), begin);
        assert_eq!((found.files, found.bytes, found.is_part), (2, 8, false), "{found:?}");
        let mut names = found.names;
        names.sort();
        assert_eq!(names, ["changed", "runs/7/model"]);
        assert_eq!(since(&top.path().join("none"), begin), WrittenFiles::default());
    }
}
