//! Files that ranks have written in the copy of a working tree.

use rlaunch_bootstrap::protocol::control::WrittenFiles;
use rustix::fs::{AtFlags, CWD, FileType, Mode, OFlags, RawDir, Stat, openat, statat};
use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt;
use std::path::Path;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

/// Time for a look at all files; the agent does nothing else meanwhile.
const PATIENCE: Duration = Duration::from_secs(1);
/// Number of files that are named.
const NAMED: usize = 3;
/// Directory in which Python keeps what it has compiled, which nobody fetches.
const COMPILED: &[u8] = b"__pycache__";
/// Size of the buffer for names of a directory, in bytes.
const NAMES: usize = 32 << 10;

/// Finds the files below a directory that were written or made since a time, by the clock of this host. Of thousands, each
/// costs a system call and no memory: all nodes of a job look at the same time.
pub(super) fn since(top: &Path, since: SystemTime) -> WrittenFiles {
    let since = since.duration_since(UNIX_EPOCH).unwrap_or_default();
    let since =
        (i64::try_from(since.as_secs()).unwrap_or(i64::MAX), i64::from(since.subsec_nanos()));
    // The time at which a file was last changed cannot be set to another one.
    let is_new = |of: &Stat| (of.st_ctime, i64::try_from(of.st_ctime_nsec).unwrap_or(0)) >= since;
    let mut found = WrittenFiles::default();
    let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
    let Ok(root) = openat(CWD, top, flags, Mode::empty()) else { return found };
    let mut names = Vec::with_capacity(NAMES);
    let (began, mut left) = (Instant::now(), vec![b".".to_vec()]);
    while let Some(directory) = left.pop() {
        let opened = openat(&root, &*directory, flags | OFlags::NOFOLLOW, Mode::empty());
        let Ok(opened) = opened else { continue };
        let mut entries = RawDir::new(&opened, names.spare_capacity_mut());
        while let Some(Ok(entry)) = entries.next() {
            if began.elapsed() > PATIENCE {
                found.is_part = true;
                return found;
            }
            let name = entry.file_name();
            let stat = || statat(&opened, name, AtFlags::SYMLINK_NOFOLLOW).ok();
            let kind = match entry.file_type() {
                // Some file systems do not say.
                FileType::Unknown => stat().map(|of| FileType::from_raw_mode(of.st_mode)),
                known => Some(known),
            };
            match kind {
                Some(FileType::Directory)
                    if !matches!(name.to_bytes(), b"." | b".." | COMPILED) =>
                {
                    left.push(below(&directory, name.to_bytes()));
                }
                Some(FileType::RegularFile) => {
                    let Some(stat) = stat().filter(is_new) else { continue };
                    note(&mut found, &stat, &below(&directory, name.to_bytes()));
                }
                _ => {}
            }
        }
    }
    found
}

/// Returns the path of what is in a directory, of which `.` is the one at the top.
fn below(directory: &[u8], name: &[u8]) -> Vec<u8> {
    if directory == b"." { name.to_vec() } else { [directory, name].join(&b'/') }
}

fn note(found: &mut WrittenFiles, stat: &Stat, path: &[u8]) {
    found.files += 1;
    found.bytes += u64::try_from(stat.st_size).unwrap_or(0);
    if found.names.len() < NAMED {
        found.names.push(OsStr::from_bytes(path).to_string_lossy().into_owned());
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs;
    use std::os::unix::fs::MetadataExt;

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
