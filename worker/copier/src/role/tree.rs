//! A working tree on the launcher's machine, and what has changed in it since it was copied.
//!
//! The list of files of the last copy stays in a file here, so that a few small changes are known without asking any host for
//! more than which version it has.

use super::Settings;
use super::report::Reporter;
use crate::files::{Original, OriginalError, path_beside};
use rlaunch_copy::patch::next_list;
use rlaunch_copy::{
    ChunkId, Difference, Entry, Hash, Kind, Manifest, Patch, PatchEntry, Put, RelativePath, hash,
};
use std::fs::{self, OpenOptions};
use std::io::{self, Write};
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};

/// First bytes of a list. Another version of the format has another number.
const MAGIC: &[u8] = b"rlaunch tree 1\n";

/// Working tree that was read.
pub(super) struct ReadTree {
    pub(super) original: Original,
    /// Hash of what it contains.
    pub(super) content: Hash,
    /// What was copied last, if it is something else, with the hash of that.
    last: Option<(Hash, Manifest)>,
    /// File that keeps it.
    place: Option<PathBuf>,
}

impl ReadTree {
    pub(super) fn new(original: Original, settings: &Settings) -> ReadTree {
        let content = original.manifest().content();
        let place = settings.last.clone();
        let last = place.as_deref().and_then(|place| load_other(place, content));
        ReadTree { original, content, last, place }
    }

    /// Returns what makes a copy of a former content one of this tree, and leaves the list of this tree at [`next_list`];
    /// `None` if that is not known, too much, or something changes meanwhile: then all is compared.
    pub(super) fn patch_since(&self, former: Hash, me: &Reporter) -> Option<Patch> {
        let (_, before) = self.last.as_ref().filter(|(content, _)| *content == former)?;
        let manifest = self.original.manifest();
        let Difference { put, removed, left } = Difference::between(before, manifest)?;
        let entries = put.into_iter().map(|at| self.entry(at)).collect::<Result<_, _>>();
        let entries = entries.ok()?;
        if let Some(place) = &self.place {
            report(me, write_next(place, self.content, manifest).map(drop));
        }
        Some(Patch { content: self.content, entries, removed, left })
    }

    /// Reads what a patch has of an entry.
    fn entry(&self, at: usize) -> Result<PatchEntry, OriginalError> {
        let entry = &self.original.manifest().entries[at];
        let changed = || OriginalError::Changed { path: self.original.place(at) };
        let beside = || RelativePath::new(path_beside(entry)).map_err(|_| changed());
        let put = match &entry.kind {
            Kind::Directory => Put::Directory,
            Kind::Link { target } => Put::Link { beside: beside()?, target: target.clone() },
            Kind::File { .. } => {
                let data = self.data(at)?.ok_or_else(changed)?;
                Put::File { beside: beside()?, data }
            }
        };
        let Entry { path, mode, mtime, .. } = entry;
        Ok(PatchEntry { path: path.clone(), mode: *mode, mtime: *mtime, put })
    }

    /// Reads a file; `None` if it is not what it was. The host that gets it does not know its hash.
    fn data(&self, at: usize) -> Result<Option<Vec<u8>>, OriginalError> {
        let manifest = self.original.manifest();
        let (mut data, mut chunk) = (Vec::new(), Vec::new());
        for id in manifest.chunks_of(at).map(ChunkId) {
            self.original.read(id, &mut chunk)?;
            if hash(&chunk) != *manifest.chunk(id).hash {
                return Ok(None);
            }
            data.append(&mut chunk);
        }
        Ok(Some(data))
    }
}

/// Keeps the list of a tree that is copied. Without it, the next change of the tree is found by comparing all of it.
pub(super) fn keep(place: &Path, content: Hash, manifest: &Manifest, me: &Reporter) {
    let written = write_next(place, content, manifest);
    report(me, written.and_then(|next| fs::rename(next, place)));
}

/// Writes a list beside the one whose place it takes. Returns where.
fn write_next(place: &Path, content: Hash, manifest: &Manifest) -> io::Result<PathBuf> {
    let next = next_list(place);
    let mut options = OpenOptions::new();
    options.write(true).create(true).truncate(true).mode(0o600);
    let bytes = [MAGIC, &content.0, &manifest.encode()].concat();
    // Without a sync: half a list is none.
    options.open(&next)?.write_all(&bytes)?;
    Ok(next)
}

fn report(me: &Reporter, kept: io::Result<()>) {
    if let Err(error) = kept {
        me.note(format!("cannot keep the list of the working tree, so more is compared: {error}"));
    }
}

/// Loads a list, unless it is of this content.
fn load_other(place: &Path, content: Hash) -> Option<(Hash, Manifest)> {
    let bytes = fs::read(place).ok()?;
    let (of, body) = bytes.strip_prefix(MAGIC)?.split_first_chunk::<32>()?;
    let of = Hash(*of);
    // What is as it was is not compared.
    if of == content { None } else { Some((of, Manifest::decode(body).ok()?)) }
}

#[cfg(test)]
mod tests {
    use super::super::rank;
    use super::*;
    use rlaunch_copy::control::{Request, Role, Secret, TreeLimit};
    use rlaunch_copy::patch::MAX_BYTES;
    use std::fs::Permissions;
    use std::os::unix::fs::{PermissionsExt, symlink};
    use tempfile::TempDir;

    /// Working tree, beside which its list is kept.
    struct Project {
        scratch: TempDir,
        request: Request,
    }

    impl Project {
        fn new() -> Project {
            let scratch = TempDir::new().unwrap();
            fs::create_dir_all(scratch.path().join("tree/src")).unwrap();
            let path = |name: &str| scratch.path().join(name).to_str().unwrap().to_owned();
            let request = Request {
                secret: Secret([7; 32]),
                hosts: Vec::new(),
                plain: false,
                streams: 1,
                destination: "~/x".into(),
                verify: false,
                limit: None,
                role: Role::Source { paths: vec![path("tree")] },
                tree: Some(TreeLimit { files: 1000, bytes: 1 << 30 }),
                last: Some(path("key.1.files")),
                image: None,
            };
            let project = Project { scratch, request };
            project.write("src/x", "old");
            project.write("old", "old");
            project
        }

        fn place(&self, name: &str) -> PathBuf {
            self.scratch.path().join("tree").join(name)
        }

        fn write(&self, name: &str, content: &str) {
            fs::write(self.place(name), content).unwrap();
        }

        fn read(&self) -> ReadTree {
            let Role::Source { paths } = &self.request.role else { unreachable!() };
            let settings = Settings::of(&self.request).unwrap();
            let original = rank::look_and_hash(&me(), paths, &settings).unwrap();
            ReadTree::new(original, &settings)
        }

        /// Keeps the list, as a copy does. Returns what the tree contains.
        fn copied(&self) -> Hash {
            let read = self.read();
            let place = read.place.as_deref().unwrap();
            keep(place, read.content, read.original.manifest(), &me());
            read.content
        }
    }

    fn me() -> Reporter {
        Reporter::new(0, &[], std::io::sink())
    }

    fn paths(patch: &Patch) -> [String; 3] {
        let put: Vec<RelativePath> = patch.entries.iter().map(|entry| entry.path.clone()).collect();
        [&put, &patch.removed, &patch.left]
            .map(|paths| paths.iter().map(ToString::to_string).collect::<Vec<_>>().join(" "))
    }

    #[test]
    fn what_has_changed_since_the_last_copy_is_a_patch() {
        let project = Project::new();
        assert_eq!(project.read().patch_since(hash(b"x"), &me()), None, "nothing was copied");
        let first = project.copied();
        project.write("src/x", "new");
        fs::set_permissions(project.place("src/x"), Permissions::from_mode(0o750)).unwrap();
        fs::remove_file(project.place("old")).unwrap();
        symlink("x", project.place("src/link")).unwrap();
        let read = project.read();
        assert_eq!(read.patch_since(hash(b"x"), &me()), None, "hosts have something else");
        let patch = read.patch_since(first, &me()).unwrap();
        assert_eq!(patch.content, read.content);
        assert_eq!(paths(&patch), ["tree tree/src tree/src/link tree/src/x", "tree/old", ""]);
        assert_eq!(Patch::decode(&patch.encode()), Ok(patch.clone()));
        let Put::File { beside, data } = &patch.entries[3].put else { panic!("{patch:?}") };
        assert_eq!((data.as_slice(), patch.entries[3].mode), (&b"new"[..], 0o750));
        // By this name the next copy finds what is left there.
        assert!(beside.to_string().starts_with("tree/src/.x.rlaunch-"), "{beside}");
        // Until hosts have that, the list is of what they have.
        assert!(project.read().patch_since(first, &me()).is_some());
        let place = read.place.as_deref().unwrap();
        fs::rename(next_list(place), place).unwrap();
        let second = read.content;
        project.write("src/x", "newer");
        assert_eq!(project.read().patch_since(first, &me()), None);
        let patch = project.read().patch_since(second, &me()).unwrap();
        assert_eq!(paths(&patch), ["tree/src tree/src/x", "", ""]);
    }

    #[test]
    fn what_changes_between_reading_and_sending_is_no_patch() {
        let project = Project::new();
        let first = project.copied();
        project.write("src/x", "new");
        let changes: [&dyn Fn(); 3] = [
            &|| project.write("src/x", "other"),
            &|| {
                // Of the same size and time.
                let time = fs::metadata(project.place("src/x")).unwrap().modified().unwrap();
                project.write("src/x", "etc");
                let file = OpenOptions::new().write(true).open(project.place("src/x")).unwrap();
                file.set_modified(time).unwrap();
            },
            &|| fs::remove_file(project.place("src/x")).unwrap(),
        ];
        for (number, change) in changes.into_iter().enumerate() {
            project.write("src/x", "new");
            let read = project.read();
            change();
            assert_eq!(read.patch_since(first, &me()), None, "change {number}");
        }
    }

    #[test]
    fn what_is_large_is_no_patch() {
        let project = Project::new();
        let first = project.copied();
        project.write("src/x", &"x".repeat(MAX_BYTES as usize));
        assert!(project.read().patch_since(first, &me()).is_some());
        let first = project.copied();
        project.write("src/x", &"y".repeat(MAX_BYTES as usize + 1));
        assert_eq!(project.read().patch_since(first, &me()), None);
    }

    #[test]
    fn a_list_is_for_its_user_alone() {
        let project = Project::new();
        project.copied();
        let list = fs::metadata(project.request.last.as_deref().unwrap()).unwrap();
        assert_eq!(list.permissions().mode() & 0o777, 0o600);
    }

    #[test]
    fn half_a_list_is_none() {
        let project = Project::new();
        let first = project.copied();
        project.write("src/x", "new");
        let place = project.request.last.as_deref().unwrap();
        let whole = fs::read(place).unwrap();
        assert!(project.read().patch_since(first, &me()).is_some());
        for length in [0, 10, MAGIC.len() + 31, MAGIC.len() + 32, whole.len() - 1] {
            fs::write(place, &whole[..length]).unwrap();
            assert_eq!(project.read().patch_since(first, &me()), None, "{length}");
        }
    }
}
