//! Copies of working trees that are what their seals say.

use nix::fcntl::{AtFlags, OFlag, open, openat};
use nix::sys::stat::{FileStat, Mode, fstatat};
use rlaunch_bootstrap::job::below_home;
use rlaunch_bootstrap::job::seal::{Seal, SealedDirectory, SealedFile};
use std::env;
use std::fs;
use std::os::fd::AsFd;
use std::path::Path;
use std::time::{Duration, Instant};

/// Time in which a copy is compared. A larger one, or one on a slow file system, is for the program that copies, which has
/// more time and says how far it is.
const PATIENCE: Duration = Duration::from_secs(10);

/// Returns the host of a copy's seal, if the copy has this content and nothing that belongs to it has changed since.
pub(crate) fn host_of(copy: &Path, content: &[u8; 32]) -> Option<String> {
    let copy = below_home(copy, env::var_os("HOME").as_deref());
    let seal = Seal::decode(&fs::read(Seal::path(&copy)).ok()?, content)?;
    is_unchanged(&copy, &seal.directories, PATIENCE).then_some(seal.host)
}

fn is_unchanged(copy: &Path, directories: &[SealedDirectory], patience: Duration) -> bool {
    let until = Instant::now() + patience;
    let flags = OFlag::O_PATH | OFlag::O_DIRECTORY | OFlag::O_CLOEXEC;
    let Ok(root) = open(copy, flags, Mode::empty()) else { return false };
    directories.iter().all(|SealedDirectory { path, files }| {
        let path: &[u8] = if path.is_empty() { b"." } else { path };
        let directory = openat(&root, path, flags | OFlag::O_NOFOLLOW, Mode::empty());
        Instant::now() < until
            && directory.is_ok_and(|directory| {
                files.iter().all(|file| {
                    let found = fstatat(
                        directory.as_fd(),
                        file.name.as_slice(),
                        AtFlags::AT_SYMLINK_NOFOLLOW,
                    );
                    found.is_ok_and(|found| is_as_sealed(file, &found))
                })
            })
    })
}

fn is_as_sealed(file: &SealedFile, found: &FileStat) -> bool {
    let SealedFile { name: _, size, inode, mtime, ctime } = file;
    u64::try_from(found.st_size) == Ok(*size)
        && found.st_ino == *inode
        && (found.st_mtime, found.st_mtime_nsec) == *mtime
        && (found.st_ctime, found.st_ctime_nsec) == *ctime
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::{MetadataExt, symlink};

    /// Seals a directory with `tree/x` and the link `tree/link`.
    fn seal(copy: &Path) -> Vec<SealedDirectory> {
        let sealed = |name: &str| {
            let found = copy.join("tree").join(name).symlink_metadata().unwrap();
            SealedFile {
                name: name.into(),
                size: found.len(),
                inode: found.ino(),
                mtime: (found.mtime(), found.mtime_nsec()),
                ctime: (found.ctime(), found.ctime_nsec()),
            }
        };
        let directory = |path: &str, files| SealedDirectory { path: path.into(), files };
        vec![
            directory("", Vec::new()),
            directory("tree", vec![sealed("link"), sealed("x")]),
            directory("tree/empty", Vec::new()),
        ]
    }

    #[test]
    fn a_copy_is_unchanged_until_something_of_it_is_another() {
        let scratch = tempfile::tempdir().unwrap();
        let copy = scratch.path().join("copy");
        let tree = copy.join("tree");
        let make = || {
            fs::create_dir_all(tree.join("empty")).unwrap();
            fs::write(tree.join("x"), "four").unwrap();
            symlink("x", tree.join("link")).unwrap();
            let sealed = Seal { host: "a".into(), directories: seal(&copy) };
            fs::write(Seal::path(&copy), sealed.encode(&[7; 32])).unwrap();
        };
        make();
        assert_eq!(host_of(&copy, &[7; 32]).as_deref(), Some("a"));
        assert_eq!(host_of(&copy, &[8; 32]), None, "another content");
        assert!(!is_unchanged(&copy, &seal(&copy), Duration::ZERO), "for want of time");
        // What ranks write there.
        fs::write(tree.join("own"), "").unwrap();
        assert!(host_of(&copy, &[7; 32]).is_some());
        let old = |name: &str| tree.join(name).with_extension("old");
        let replace = |name: &str, content: &str| {
            fs::rename(tree.join(name), old(name)).unwrap();
            fs::write(tree.join(name), content).unwrap();
        };
        let changes: [&dyn Fn(); 6] = [
            // The same size, in another file.
            &|| replace("x", "five"),
            &|| fs::write(tree.join("x"), "longer").unwrap(),
            &|| fs::remove_file(tree.join("x")).unwrap(),
            &|| {
                fs::remove_file(tree.join("link")).unwrap();
                symlink("own", tree.join("link")).unwrap();
            },
            &|| fs::remove_dir(tree.join("empty")).unwrap(),
            &|| fs::remove_file(Seal::path(&copy)).unwrap(),
        ];
        for (number, change) in changes.into_iter().enumerate() {
            change();
            assert_eq!(host_of(&copy, &[7; 32]), None, "change {number}");
            fs::remove_dir_all(&copy).unwrap();
            make();
            fs::write(tree.join("own"), "").unwrap();
            assert!(host_of(&copy, &[7; 32]).is_some(), "change {number}");
        }
    }
}
