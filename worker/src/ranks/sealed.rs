//! Copies of working trees that are what their seals say, and become what a patch makes of them.

use nix::fcntl::{AtFlags, OFlag, open, openat};
use nix::sys::stat::{FileStat, Mode, fstat, fstatat};
use rlaunch_bootstrap::error_chain;
use rlaunch_bootstrap::id::{JobId, NodeId};
use rlaunch_bootstrap::job::below_home;
use rlaunch_bootstrap::job::seal::{Seal, SealedDirectory, SealedFile};
use rlaunch_bootstrap::protocol::control::FoundCopy;
use rlaunch_copy::Patch;
use rlaunch_files::patching;
use std::env;
use std::fs;
use std::os::fd::AsFd;
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

/// Time in which a copy is compared. A larger one, or one on a slow file system, is for the program that copies, which has
/// more time and says how far it is.
const PATIENCE: Duration = Duration::from_secs(10);

/// Copy with a seal, as one node of a job has found it.
#[derive(Debug)]
pub(crate) struct SealedCopy {
    copy: PathBuf,
    /// Bytes of the seal.
    sealed: Vec<u8>,
    found: Option<FoundCopy>,
    /// Stays until all have looked: the next one would look by what its file system remembers of another time.
    _sign: Option<Sign>,
}

/// Link beside a copy that names the node that was the first to look. Only its being there tells whether nodes share the
/// directory: machines whose disks are clones of one have the same seal, file systems, inodes and times. It is removed when
/// this is dropped.
#[derive(Debug)]
struct Sign(PathBuf);

impl Drop for Sign {
    fn drop(&mut self) {
        // One that stays is of a job that has ended.
        let _ = fs::remove_file(&self.0);
    }
}

impl SealedCopy {
    /// Looks whether a copy is what its seal says, unless another node does that, which shares it. To look would make this
    /// node's file system remember files that the other one is about to change.
    pub(crate) fn find(copy: &Path, job: JobId, node: NodeId) -> Option<SealedCopy> {
        let copy = below_home(copy, env::var_os("HOME").as_deref());
        let sealed = fs::read(Seal::path(&copy)).ok()?;
        let (content, seal) = Seal::decode(&sealed)?;
        if content == Seal::UNFINISHED {
            return None;
        }
        let (holder, sign) = leave_sign(&copy, job, node);
        let is_it = holder != node || is_unchanged(&copy, &seal.directories, PATIENCE);
        let found = is_it.then_some(FoundCopy { content, holder });
        Some(SealedCopy { copy, sealed, found, _sign: sign })
    }

    /// Returns what the copy contains, and the first node that has found it; `None` if it is not what its seal says. If that
    /// is another node, that one knows.
    pub(crate) fn found(&self) -> Option<FoundCopy> {
        self.found
    }

    /// Makes the copy what an encoded patch says, if it has not changed since it was found: other hosts may have taken minutes
    /// to be reached.
    ///
    /// # Errors
    ///
    /// Returns the reason as text. The copy is unfinished then, or as it was.
    pub(crate) fn patch(&self, patch: &[u8]) -> Result<(), String> {
        let patch = Patch::decode(patch).map_err(|error| error_chain(&error))?;
        let has_seal = fs::read(Seal::path(&self.copy)).is_ok_and(|sealed| sealed == self.sealed);
        let seal = Seal::decode(&self.sealed).filter(|_| has_seal);
        if !seal.is_some_and(|(_, seal)| is_unchanged(&self.copy, &seal.directories, PATIENCE)) {
            return Err("it has changed since it was looked at".to_owned());
        }
        let patched = patching::patch(&self.copy, &self.sealed, &patch);
        patched.map_err(|error| error_chain(&error))
    }
}

/// Leaves a sign for the other nodes of the job, unless one of them has. Returns the node that has.
fn leave_sign(copy: &Path, job: JobId, node: NodeId) -> (NodeId, Option<Sign>) {
    let place = Seal::holder(copy, job);
    if symlink(node.to_string(), &place).is_ok() {
        remove_signs_of_others(copy, &place);
        return (node, Some(Sign(place)));
    }
    // Where nothing can be written, nothing can be known.
    (holder_in(&place).unwrap_or(node), None)
}

/// Removes what killed agents of earlier jobs have left: one job at a time has the copy.
fn remove_signs_of_others(copy: &Path, own: &Path) {
    let listed = copy.parent().and_then(|directory| fs::read_dir(directory).ok());
    let found = listed.into_iter().flatten().flatten().map(|entry| entry.path());
    for path in found.filter(|path| path != own && Seal::is_holder(path, copy)) {
        let _ = fs::remove_file(path);
    }
}

fn holder_in(place: &Path) -> Option<NodeId> {
    fs::read_link(place).ok()?.to_str()?.parse().ok().map(NodeId)
}

fn is_unchanged(copy: &Path, directories: &[SealedDirectory<'_>], patience: Duration) -> bool {
    let until = Instant::now() + patience;
    let flags = OFlag::O_PATH | OFlag::O_DIRECTORY | OFlag::O_CLOEXEC;
    let Ok(root) = open(copy, flags, Mode::empty()) else { return false };
    directories.iter().all(|SealedDirectory { path, mode, files }| {
        let path: &[u8] = if path.is_empty() { b"." } else { path };
        let directory = openat(&root, path, flags | OFlag::O_NOFOLLOW, Mode::empty());
        let has_mode = |found: FileStat| (found.st_mode ^ mode) & SealedDirectory::MODE == 0;
        Instant::now() < until
            && directory.is_ok_and(|directory| {
                fstat(&directory).is_ok_and(has_mode)
                    && files.iter().all(|file| {
                        let found =
                            fstatat(directory.as_fd(), file.name, AtFlags::AT_SYMLINK_NOFOLLOW);
                        found.is_ok_and(|found| is_as_sealed(file, &found))
                    })
            })
    })
}

fn is_as_sealed(file: &SealedFile<'_>, found: &FileStat) -> bool {
    let SealedFile { name: _, size, inode, mtime, ctime, is_received: _ } = file;
    u64::try_from(found.st_size) == Ok(*size)
        && found.st_ino == *inode
        && (found.st_mtime, found.st_mtime_nsec) == *mtime
        && (found.st_ctime, found.st_ctime_nsec) == *ctime
}

#[cfg(test)]
mod tests {
    use super::*;
    use rlaunch_copy::{Hash, PatchEntry, Put, RelativePath, Time};
    use std::os::unix::fs::{MetadataExt, PermissionsExt};

    const JOB: JobId = JobId(7);

    fn find(copy: &Path) -> Option<SealedCopy> {
        SealedCopy::find(copy, JOB, NodeId(1)).filter(|copy| copy.found().is_some())
    }

    /// Makes and seals a copy.
    fn make(copy: &Path) {
        fs::create_dir_all(copy.join("tree/empty")).unwrap();
        fs::write(copy.join("tree/x"), "four").unwrap();
        symlink("x", copy.join("tree/link")).unwrap();
        let sealed = Seal { directories: seal(copy) };
        fs::write(Seal::path(copy), sealed.encode(&[7; 32])).unwrap();
    }

    /// Seals a directory with `tree/x` and the link `tree/link`.
    fn seal(copy: &Path) -> Vec<SealedDirectory<'static>> {
        let sealed = |name: &'static str| {
            let found = copy.join("tree").join(name).symlink_metadata().unwrap();
            SealedFile {
                name: name.as_bytes(),
                size: found.len(),
                inode: found.ino(),
                mtime: (found.mtime(), found.mtime_nsec()),
                ctime: (found.ctime(), found.ctime_nsec()),
                is_received: true,
            }
        };
        let directory = |path: &'static str, files| {
            let mode = copy.join(path).symlink_metadata().unwrap().mode();
            SealedDirectory { path: path.as_bytes(), mode, files }
        };
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
        make(&copy);
        assert_eq!(find(&copy).unwrap().found.unwrap().content, [7; 32]);
        assert!(!is_unchanged(&copy, &seal(&copy), Duration::ZERO), "for want of time");
        // What ranks write there.
        fs::write(tree.join("own"), "").unwrap();
        assert!(find(&copy).is_some());
        let old = |name: &str| tree.join(name).with_extension("old");
        let replace = |name: &str, content: &str| {
            fs::rename(tree.join(name), old(name)).unwrap();
            fs::write(tree.join(name), content).unwrap();
        };
        let give = |name: &str, mode| {
            fs::set_permissions(tree.join(name), fs::Permissions::from_mode(mode)).unwrap();
        };
        let changes: [&dyn Fn(); 9] = [
            // The same size, in another file.
            &|| replace("x", "five"),
            &|| fs::write(tree.join("x"), "longer").unwrap(),
            &|| fs::remove_file(tree.join("x")).unwrap(),
            &|| {
                fs::remove_file(tree.join("link")).unwrap();
                symlink("own", tree.join("link")).unwrap();
            },
            &|| fs::remove_dir(tree.join("empty")).unwrap(),
            // Of a directory, of which other times change by what ranks write.
            &|| give("empty", 0o500),
            &|| give("", 0o2755),
            &|| fs::remove_file(Seal::path(&copy)).unwrap(),
            // By a patch that was not finished.
            &|| rlaunch_files::sealing::unseal(&copy).unwrap(),
        ];
        for (number, change) in changes.into_iter().enumerate() {
            change();
            assert!(find(&copy).is_none(), "change {number}");
            fs::remove_dir_all(&copy).unwrap();
            make(&copy);
            fs::write(tree.join("own"), "").unwrap();
            assert!(find(&copy).is_some(), "change {number}");
        }
    }

    #[test]
    fn a_patched_copy_is_found_with_its_new_content() {
        let scratch = tempfile::tempdir().unwrap();
        let copy = scratch.path().join("copy");
        make(&copy);
        let path = |text: &str| RelativePath::new(text).unwrap();
        let put = Put::File { beside: path("tree/.x"), data: b"five".to_vec() };
        let mtime = Time { secs: 1, nanos: 2 };
        let entries = vec![PatchEntry { path: path("tree/x"), mode: 0o600, mtime, put }];
        let (removed, left) = (vec![path("tree/link")], vec![path("tree/empty")]);
        let patch = Patch { content: Hash([8; 32]), entries, removed, left };
        let found = find(&copy).unwrap();
        found.patch(b"no patch").unwrap_err();
        found.patch(&patch.encode()).unwrap();
        drop(found);
        assert_eq!(find(&copy).unwrap().found.unwrap().content, [8; 32]);
        assert_eq!(fs::read_to_string(copy.join("tree/x")).unwrap(), "five");
        assert_eq!(fs::read_dir(copy.join("tree")).unwrap().count(), 1);
    }

    #[test]
    fn a_copy_that_has_changed_since_it_was_found_is_not_patched() {
        let scratch = tempfile::tempdir().unwrap();
        let copy = scratch.path().join("copy");
        let patch =
            Patch { content: Hash([8; 32]), entries: vec![], removed: vec![], left: vec![] };
        let changes: [&dyn Fn(); 3] = [
            &|| fs::write(copy.join("tree/x"), "of a rank").unwrap(),
            &|| fs::remove_dir_all(&copy).unwrap(),
            &|| rlaunch_files::sealing::unseal(&copy).unwrap(),
        ];
        for (number, change) in changes.into_iter().enumerate() {
            let _ = fs::remove_dir_all(&copy);
            make(&copy);
            let found = find(&copy).unwrap();
            change();
            let error = found.patch(&patch.encode()).unwrap_err();
            assert_eq!(error, "it has changed since it was looked at", "change {number}");
            assert_eq!(copy.exists(), number != 1);
        }
    }

    /// What the other ones see of files may be of another time, and after a look it stays that for a while.
    #[test]
    fn only_one_of_the_nodes_that_share_a_copy_looks_at_its_files() {
        let scratch = tempfile::tempdir().unwrap();
        let copy = scratch.path().join("copy");
        let find = |node| SealedCopy::find(&copy, JOB, NodeId(node)).unwrap();
        make(&copy);
        fs::write(copy.join("tree/x"), "of a rank").unwrap();
        let (first, second) = (find(1), find(0));
        assert_eq!(first.found(), None);
        assert_eq!(second.found(), Some(FoundCopy { content: [7; 32], holder: NodeId(1) }));
        drop((first, second));
        assert_eq!(find(0).found(), None);
    }

    #[test]
    fn nodes_that_share_a_copy_know_of_each_other() {
        let (one, clone) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
        let copy = |of: &tempfile::TempDir| of.path().join("copy");
        let sign = |of, node| leave_sign(&copy(of), JOB, NodeId(node));
        let found = [sign(&one, 2), sign(&one, 0), sign(&clone, 1), sign(&one, 3)];
        assert_eq!(found.each_ref().map(|(holder, _)| *holder), [2, 2, 1, 2].map(NodeId));
        drop(found);
        // What the agent of another job has left.
        symlink("5", Seal::holder(&copy(&one), JobId(8))).unwrap();
        assert_eq!(sign(&one, 0).0, NodeId(0));
        for of in [&one, &clone] {
            assert_eq!(fs::read_dir(of.path()).unwrap().count(), 0);
        }
        let nowhere = one.path().join("none/copy");
        assert_eq!(leave_sign(&nowhere, JOB, NodeId(4)).0, NodeId(4));
    }
}
