use super::*;
use crate::disk::Gate;
use rlaunch_copy::{Time, hash};
use std::collections::BTreeMap;
use std::ffi::OsStr;
use std::fs;
use std::os::fd::BorrowedFd;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{MetadataExt, PermissionsExt, symlink};
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use tempfile::TempDir;

const BEFORE: [u8; 32] = [7; 32];
const TIME: Time = Time { secs: 1_700_000_000, nanos: 5 };

/// Disk of a host that dies before a change.
struct Fate(AtomicUsize);

impl Gate for Fate {
    fn before_change(&self) -> io::Result<()> {
        let next = |left: usize| left.checked_sub(1);
        let passed = self.0.fetch_update(Ordering::Relaxed, Ordering::Relaxed, next);
        passed.map(drop).map_err(|_| io::Error::other("the host died"))
    }
}

/// Disk that counts the files which are written to it one by one.
struct Counted(Arc<AtomicUsize>);

impl Gate for Counted {
    fn sync_file(&self, _: BorrowedFd<'_>) -> Result<(), Errno> {
        self.0.fetch_add(1, Ordering::Relaxed);
        Ok(())
    }
}

/// Sealed copy.
struct Copy(TempDir);

impl Copy {
    /// Makes a copy with a file or a link, whose target follows an arrow, for each line.
    fn of(lines: &[(&str, &str)]) -> Copy {
        let copy = Copy(tempfile::tempdir().unwrap());
        for (name, content) in lines {
            let path = copy.place(name);
            fs::create_dir_all(path.parent().unwrap()).unwrap();
            match content.strip_prefix("->") {
                Some(target) => symlink(target, path).unwrap(),
                None => fs::write(path, content).unwrap(),
            }
        }
        copy.seal();
        copy
    }

    fn path(&self) -> PathBuf {
        self.0.path().join("copy")
    }

    fn place(&self, name: &str) -> PathBuf {
        self.path().join(name)
    }

    /// Seals all that is there. Copies have put it there, but for what is named `own`.
    fn seal(&self) {
        let mut all = snapshot(&self.path());
        all.retain(|path, _| !path.to_str().unwrap().contains(".rlaunch-"));
        let mut directories = BTreeMap::new();
        directories.insert(&b""[..], Vec::new());
        for (path, _) in all.iter().filter(|(_, what)| *what == "/") {
            directories.insert(path.as_os_str().as_bytes(), Vec::new());
        }
        for (path, _) in all.iter().filter(|(_, what)| *what != "/") {
            let meta = Meta::of(&self.path().join(path).symlink_metadata().unwrap());
            let (parent, name) = split(path.as_os_str().as_bytes());
            directories.get_mut(parent).unwrap().push(meta.stamp().sealed(name, name != b"own"));
        }
        let directories = directories.into_iter().map(|(path, files)| {
            let place = self.path().join(OsStr::from_bytes(path));
            let mode = Meta::of(&fs::metadata(place).unwrap()).mode;
            SealedDirectory { path, mode, files }
        });
        let seal = Seal { directories: directories.collect() };
        sealing::seal(&self.path(), &seal, &BEFORE).unwrap();
    }

    fn sealed(&self) -> Vec<u8> {
        fs::read(Seal::path(&self.path())).unwrap()
    }

    fn patch(&self, patch: &Patch) -> Result<(), PatchError> {
        super::patch(&self.path(), &self.sealed(), patch)
    }

    /// Patches until the host dies before the change of this number.
    fn patch_until(&self, change: usize, patch: &Patch) -> Result<(), PatchError> {
        self.patch_by(Fate(AtomicUsize::new(change)), patch)
    }

    fn patch_by(&self, gate: impl Gate + 'static, patch: &Patch) -> Result<(), PatchError> {
        let disk = Disk::new(Beneath::open(&self.path()).unwrap(), Box::new(gate));
        patch_on(&disk, &self.path(), &self.sealed(), patch)
    }

    /// Asserts that the seal has each file and link that is there, as it is but for its name and mode.
    fn has_all_sealed(&self, case: &str) {
        let bytes = self.sealed();
        let (_, Seal { directories }) = Seal::decode(&bytes).unwrap();
        for (path, what) in snapshot(&self.path()) {
            let (parent, name) = split(path.as_os_str().as_bytes());
            if what == "/" || path.to_str().unwrap().contains(".rlaunch-") {
                continue;
            }
            let now = Meta::of(&self.path().join(&path).symlink_metadata().unwrap()).stamp();
            let of = directories.iter().filter(|directory| directory.path == parent);
            let mut files = of.flat_map(|directory| &directory.files);
            let is_it = |file: &SealedFile<'_>| {
                file.name == name && file.is_received && now.is_renamed(&Stamp::of_sealed(file))
            };
            assert!(files.any(is_it), "{case}: {}", path.display());
        }
    }

    /// Asserts that the seal is one of this patch, and of what is there.
    fn is_sealed_by(&self, patch: &Patch) {
        let bytes = self.sealed();
        let (content, Seal { directories }) = Seal::decode(&bytes).unwrap();
        assert_eq!(content, patch.content.0);
        assert!(directories.is_sorted_by_key(|directory| directory.path));
        for directory in directories {
            let place = self.path().join(OsStr::from_bytes(directory.path));
            let mode = Meta::of(&fs::metadata(&place).unwrap()).mode;
            assert_eq!(mode, directory.mode, "{}", place.display());
            assert!(directory.files.is_sorted_by_key(|file| file.name));
            for file in &directory.files {
                let place = place.join(OsStr::from_bytes(file.name));
                let now = Meta::of(&place.symlink_metadata().unwrap()).stamp();
                assert_eq!(now, Stamp::of_sealed(file), "{}", place.display());
            }
        }
    }

    /// Returns the paths of the files and links that are sealed.
    fn sealed_files(&self) -> String {
        let bytes = self.sealed();
        let (_, Seal { directories }) = Seal::decode(&bytes).unwrap();
        let paths = directories.iter().flat_map(|directory| {
            let path = Path::new(OsStr::from_bytes(directory.path));
            directory.files.iter().map(move |file| path.join(OsStr::from_bytes(file.name)))
        });
        paths.map(|path| path.display().to_string()).collect::<Vec<_>>().join(" ")
    }
}

/// Returns the content of files, the targets of links behind an arrow, and a slash for directories.
fn snapshot(root: &Path) -> BTreeMap<PathBuf, String> {
    let mut all = BTreeMap::new();
    let mut left = vec![root.to_owned()];
    while let Some(directory) = left.pop() {
        for entry in fs::read_dir(directory).unwrap() {
            let path = entry.unwrap().path();
            let what = if path.is_symlink() {
                format!("->{}", fs::read_link(&path).unwrap().display())
            } else if path.is_dir() {
                left.push(path.clone());
                "/".to_owned()
            } else {
                fs::read_to_string(&path).unwrap()
            };
            all.insert(path.strip_prefix(root).unwrap().to_owned(), what);
        }
    }
    all
}

fn relative(path: &str) -> RelativePath {
    RelativePath::new(path).unwrap()
}

/// Makes a patch. A slash makes a directory, an arrow a link.
fn patch_of(put: &[(&str, &str)], removed: &[&str], left: &[&str]) -> Patch {
    let entries = put.iter().map(|(path, what)| {
        let (parent, name) =
            path.rsplit_once('/').map_or(("", *path), |(parent, name)| (parent, name));
        let slash = if parent.is_empty() { "" } else { "/" };
        let beside = relative(&format!("{parent}{slash}.{name}.rlaunch-00000007"));
        let (mode, put) = match (*what, what.strip_prefix("->")) {
            ("/", _) => (0o755, Put::Directory),
            (_, Some(target)) => (0o777, Put::Link { beside, target: target.into() }),
            (data, None) => (0o640, Put::File { beside, data: data.into() }),
        };
        PatchEntry { path: relative(path), mode, mtime: TIME, put }
    });
    let paths = |paths: &[&str]| paths.iter().map(|path| relative(path)).collect();
    let (entries, content) = (entries.collect(), hash(b"after"));
    Patch { content, entries, removed: paths(removed), left: paths(left) }
}

const TREE: &[(&str, &str)] =
    &[("a/gone", "old"), ("a/link", "->old"), ("a/x", "old"), ("b/c/d", "old"), ("same", "same")];

fn varied() -> Patch {
    let put = [
        ("a", "/"),
        ("a/link", "->new"),
        ("a/new", "new"),
        ("a/x", "new"),
        ("e", "/"),
        ("e/f", "/"),
        ("e/f/g", "new"),
        ("top", "new"),
    ];
    patch_of(&put, &["a/gone", "b/c/d"], &["b", "b/c"])
}

#[test]
fn a_patched_copy_is_that_of_the_other_version() {
    let copy = Copy::of(TREE);
    let patch = varied();
    copy.patch(&patch).unwrap();
    let there = snapshot(&copy.path());
    let there: Vec<(&str, &str)> =
        there.iter().map(|(path, what)| (path.to_str().unwrap(), what.as_str())).collect();
    let expected = [
        ("a", "/"),
        ("a/link", "->new"),
        ("a/new", "new"),
        ("a/x", "new"),
        ("e", "/"),
        ("e/f", "/"),
        ("e/f/g", "new"),
        ("same", "same"),
        ("top", "new"),
    ];
    assert_eq!(there, expected);
    for (name, mode) in [("a/x", 0o640), ("e/f/g", 0o640), ("a", 0o755), ("e/f", 0o755)] {
        let found = copy.place(name).metadata().unwrap();
        assert_eq!(found.mode() & 0o7777, mode, "{name}");
        assert_eq!((found.mtime(), found.mtime_nsec()), (TIME.secs, 5), "{name}");
    }
    copy.is_sealed_by(&patch);
    assert_eq!(copy.sealed_files(), "same top a/link a/new a/x e/f/g");
}

/// Before each change of the disk the host dies once.
#[test]
fn a_copy_whose_host_dies_is_unfinished_and_all_its_files_are_whole() {
    let patch = varied();
    let mut finished = 0;
    for change in 0.. {
        let copy = Copy::of(TREE);
        let before = snapshot(&copy.path());
        let patched = copy.patch_until(change, &patch);
        let bytes = copy.sealed();
        let (content, _) = Seal::decode(&bytes).unwrap();
        if patched.is_ok() {
            copy.is_sealed_by(&patch);
            finished = change;
            break;
        }
        // Before the first change nothing is unfinished.
        let expected = if change == 0 { BEFORE } else { Seal::UNFINISHED };
        assert_eq!(content, expected, "change {change}: {patched:?}");
        copy.has_all_sealed(&format!("change {change}"));
        let there = snapshot(&copy.path());
        for (path, what) in &before {
            let name = path.to_str().unwrap();
            let now = there.get(path).map(String::as_str);
            let new = patch.entries.iter().find(|entry| entry.path.as_bytes() == name.as_bytes());
            let new = new.map(|entry| match &entry.put {
                Put::Directory => "/".to_owned(),
                Put::File { data, .. } => String::from_utf8(data.clone()).unwrap(),
                Put::Link { target, .. } => {
                    format!("->{}", String::from_utf8(target.clone()).unwrap())
                }
            });
            let gone = [&patch.removed, &patch.left].into_iter().flatten();
            let is_gone = gone.map(RelativePath::as_bytes).any(|gone| gone == name.as_bytes());
            let may_be = now == Some(what) || now == new.as_deref() && new.is_some();
            assert!(may_be || is_gone && now.is_none(), "change {change}: {name} is {now:?}");
        }
        // What is new has no name before it is whole.
        for name in ["a/new", "e/f/g", "top"] {
            let now = there.get(Path::new(name)).map(String::as_str);
            assert!(matches!(now, None | Some("new")), "change {change}: {name} is {now:?}");
        }
        // The next one does not mind what is left.
        copy.seal();
        copy.patch(&patch).unwrap();
        copy.is_sealed_by(&patch);
    }
    assert!(finished > 30, "{finished}");
}

#[test]
fn what_somebody_has_written_since_stays() {
    let copy = Copy::of(TREE);
    let sealed = copy.sealed();
    fs::write(copy.place("a/gone"), "longer").unwrap();
    fs::write(copy.place("b/own"), "own").unwrap();
    let patch = patch_of(&[("a", "/")], &["a/gone", "b/c/d"], &["b", "b/c"]);
    super::patch(&copy.path(), &sealed, &patch).unwrap();
    assert_eq!(fs::read_to_string(copy.place("a/gone")).unwrap(), "longer");
    assert_eq!(fs::read_to_string(copy.place("b/own")).unwrap(), "own");
    assert!(!copy.place("b/c").exists());
    copy.is_sealed_by(&patch);
    assert_eq!(copy.sealed_files(), "same a/link a/x");
}

/// What ranks had written was what was to be copied, until it was gone here.
#[test]
fn what_no_copy_has_put_there_stays() {
    let copy = Copy::of(&[("a/own", "own"), ("a/x", "old")]);
    let patch = patch_of(&[("a", "/")], &["a/own", "a/x"], &[]);
    copy.patch(&patch).unwrap();
    assert!(copy.place("a/own").exists() && !copy.place("a/x").exists());
    assert_eq!(copy.sealed_files(), "");
    // One that a patch replaces is of a copy from then on.
    let copy = Copy::of(&[("own", "own")]);
    copy.patch(&patch_of(&[("own", "new")], &[], &[])).unwrap();
    copy.patch(&patch_of(&[], &["own"], &[])).unwrap();
    assert!(!copy.place("own").exists());
}

#[test]
fn what_is_in_the_way_stays_and_nothing_is_changed() {
    for (name, put) in [("b", "file"), ("b", "->link"), ("same", "/"), ("a/link", "/")] {
        let copy = Copy::of(TREE);
        let before = (snapshot(&copy.path()), copy.sealed());
        let error = copy.patch(&patch_of(&[(name, put)], &[], &[])).unwrap_err();
        assert!(matches!(error, PatchError::InTheWay(_)), "{name}: {error}");
        assert_eq!((snapshot(&copy.path()), copy.sealed()), before, "{name}");
    }
}

#[test]
fn nothing_is_written_through_links() {
    let copy = Copy::of(TREE);
    let outside = tempfile::tempdir().unwrap();
    fs::remove_dir_all(copy.place("b")).unwrap();
    symlink(outside.path(), copy.place("b")).unwrap();
    copy.patch(&patch_of(&[("b/x", "new")], &[], &[])).unwrap_err();
    assert_eq!(fs::read_dir(outside.path()).unwrap().count(), 0);
    // One in the place of a file is replaced, and one beside it removed.
    let copy = Copy::of(TREE);
    fs::write(outside.path().join("y"), "old").unwrap();
    symlink(outside.path().join("y"), copy.place(".top.rlaunch-00000007")).unwrap();
    symlink(outside.path().join("y"), copy.place("top")).unwrap();
    copy.patch(&patch_of(&[("top", "new")], &[], &[])).unwrap();
    assert_eq!(fs::read_to_string(outside.path().join("y")).unwrap(), "old");
    assert_eq!(fs::read_to_string(copy.place("top")).unwrap(), "new");
}

#[test]
fn directories_may_be_closed_before_and_after() {
    let copy = Copy::of(TREE);
    let set = |mode| fs::set_permissions(copy.place("b/c"), fs::Permissions::from_mode(mode));
    set(0o2555).unwrap();
    let mut patch = patch_of(&[("b/c", "/"), ("b/c/d", "new")], &[], &[]);
    patch.entries[0].mode = 0o555;
    copy.seal();
    copy.patch(&patch).unwrap();
    // The bit that gives files the group of the directory stays.
    assert_eq!(copy.place("b/c").metadata().unwrap().mode() & 0o7777, 0o2555);
    copy.is_sealed_by(&patch);
    set(0o755).unwrap();
}

#[test]
fn files_are_written_to_the_disk_without_what_others_write() {
    const FILES: usize = 50;
    let copy = Copy::of(TREE);
    let names: Vec<String> = (0..FILES).map(|number| format!("{number:03}")).collect();
    let put: Vec<(&str, &str)> = names.iter().map(|name| (name.as_str(), "new")).collect();
    let patch = patch_of(&put, &[], &[]);
    let synced = Arc::new(AtomicUsize::new(0));
    copy.patch_by(Counted(Arc::clone(&synced)), &patch).unwrap();
    assert_eq!(synced.load(Ordering::Relaxed), FILES);
    copy.is_sealed_by(&patch);
}

#[test]
fn half_a_seal_is_not_patched() {
    let copy = Copy::of(TREE);
    let sealed = copy.sealed();
    let error = super::patch(&copy.path(), &sealed[..sealed.len() - 1], &varied()).unwrap_err();
    assert!(matches!(error, PatchError::NoSeal), "{error}");
    // A copy without any is unsealed already.
    fs::remove_file(Seal::path(&copy.path())).unwrap();
    sealing::unseal(&copy.path()).unwrap();
    assert!(!Seal::path(&copy.path()).exists());
}
