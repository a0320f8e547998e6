//! Files of one place in the chain: those that are copied, or those that a copy makes.

use super::report::{INTERVAL, Reporter};
use super::{RoleError, Settings};
use crate::files::walk::hub::{self, HubModel};
use crate::files::{How, Index, Original, Part, Stage, Walk, WalkError, hashing, manifest, walk};
use crate::images::{self, Engine};
use crate::meter::Meter;
use rlaunch_bootstrap::env as names;
use rlaunch_copy::control::{ImageCopy, Report, TreeLimit};
use rlaunch_copy::{ChunkId, ChunkSet, Manifest, RelativePath, hash};
use std::cell::Cell;
use std::env;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Instant;

/// Word that names a model in the cache of the Hugging Face hub.
const HUB: &str = "hf:";

pub(super) enum Files {
    /// Those of the host that they come from.
    Original(Original),
    /// Those of a host that they go to.
    Stage(Box<Stage>),
}

impl Files {
    /// Returns the meter of what is done with them.
    pub(super) fn meter(&self) -> Arc<Meter> {
        match self {
            Files::Original(_) => Arc::default(),
            Files::Stage(stage) => Arc::clone(stage.meter()),
        }
    }

    /// Finds chunks that are there. All of a source are.
    pub(super) fn scan(&self, found: &mut dyn FnMut(ChunkSet)) -> Result<(), RoleError> {
        match self {
            Files::Original(_) => Ok(()),
            Files::Stage(stage) => Ok(stage.scan(found)?),
        }
    }

    /// Reads a chunk into `buffer`, which then has nothing else.
    pub(super) fn read(&self, id: ChunkId, buffer: &mut Vec<u8>) -> Result<(), RoleError> {
        match self {
            Files::Original(original) => Ok(original.read(id, buffer)?),
            Files::Stage(stage) => Ok(stage.read(id, buffer)?),
        }
    }

    /// Writes a chunk that was checked. Nothing is written to a source.
    pub(super) fn write(&self, id: ChunkId, bytes: &[u8]) -> Result<(), RoleError> {
        match self {
            Files::Original(_) => Ok(()),
            Files::Stage(stage) => Ok(stage.write(id, bytes)?),
        }
    }

    /// Gives files their names.
    pub(super) fn finish(&self, me: &Reporter) -> Result<(), RoleError> {
        if let Files::Stage(stage) = self {
            stage.finish()?.notes.into_iter().for_each(|note| me.note(note));
        }
        Ok(())
    }

    /// Reads all files again and compares them with the manifest.
    pub(super) fn verify(&self) -> Result<(), RoleError> {
        let wrong = match self {
            Files::Original(original) => wrong_of(original)?,
            Files::Stage(stage) => stage.verify(hashing::threads()).into_iter().next(),
        };
        wrong.map_or(Ok(()), |path| Err(RoleError::Differs { path: path.to_string() }))
    }

    /// Begins to make the files of a manifest.
    pub(super) fn stage(
        destination: &Path,
        manifest: Arc<Manifest>,
        settings: &Settings,
    ) -> Result<Files, RoleError> {
        let is_kept = settings.image.is_none();
        let mut stage = Stage::open(destination, manifest, is_kept)?;
        if settings.verify {
            // No file is taken for what it was.
            stage.distrust();
        }
        if settings.tree.is_some() {
            stage.unseal()?;
            stage.prune_at_end();
        }
        Ok(Files::Stage(Box::new(stage)))
    }

    /// Lets agents tell by themselves that a copy of a working tree, which is whole, has not changed since.
    pub(super) fn seal(&self, settings: &Settings, me: &Reporter) {
        if let (Files::Stage(stage), Some(_)) = (self, settings.tree)
            && let Err(error) = stage.seal()
        {
            me.note(format!("cannot seal the copy, which is compared again next time: {error}"));
        }
    }
}

/// Returns a file that is no longer what was sent.
fn wrong_of(original: &Original) -> Result<Option<RelativePath>, RoleError> {
    let manifest = original.manifest();
    let mut bytes = Vec::new();
    for id in (0..manifest.chunk_count()).map(ChunkId) {
        let place = manifest.chunk(id);
        original.read(id, &mut bytes)?;
        if hash(&bytes) != *place.hash {
            return Ok(Some(manifest.entries[place.entry].path.clone()));
        }
    }
    Ok(None)
}

/// Files that are to be sent, by name and metadata.
#[derive(Clone)]
pub(super) struct Looked {
    path: String,
    /// Directory below the destination; `None` for the destination itself.
    at: Option<RelativePath>,
    walk: Walk,
}

impl Looked {
    /// Tells whether the files are still what they were.
    pub(super) fn is_unchanged(&self) -> bool {
        self.walk.is_unchanged()
    }
}

/// Looks at the files and directories that are to be sent, each of which goes below the destination
/// by its own name.
pub(super) fn look(
    paths: &[String],
    tree: Option<TreeLimit>,
    me: &Reporter,
) -> Result<Vec<Looked>, RoleError> {
    let look = |path: &String| {
        let looked = match tree {
            Some(limit) => look_at_tree(path, limit, me),
            None => look_at(path),
        }?;
        let left_out = looked.walk.left_out.len();
        if left_out > 0 {
            let what = "sockets, pipes, devices or files of the kernel";
            me.note(format!("{left_out} {what} below {path} are not copied"));
        }
        Ok(looked)
    };
    paths.iter().map(look).collect()
}

/// Hashes what is not known yet, and reports how far that is.
pub(super) fn original(
    looked: Vec<Looked>,
    settings: &Settings,
    me: &Reporter,
) -> Result<Original, RoleError> {
    let total = looked.iter().map(|looked| looked.walk.bytes()).sum();
    let progress = reading(me, total);
    let parts = looked.into_iter().map(|looked| part(looked, settings, &progress, me));
    let parts: Result<Vec<Part>, RoleError> = parts.collect();
    Original::new(parts?).map_err(|error| RoleError::Sources(error.into()))
}

/// Looks at a working tree.
fn look_at_tree(path: &str, limit: TreeLimit, me: &Reporter) -> Result<Looked, RoleError> {
    let place = below_home(path)?;
    let walk = match walk(&place, &How::Git) {
        // A directory that git ignores has no files for it.
        Ok(walk) if walk.entries.is_empty() => walk_without_git(&place),
        Err(WalkError::NoGit | WalkError::NoRepository { .. }) => walk_without_git(&place),
        walk => walk,
    }?;
    let (files, bytes) = (walk.files() as u64, walk.bytes());
    if files > limit.files || bytes > limit.bytes {
        me.report(&Report::TooLarge { files, bytes });
        return Err(RoleError::TooLarge { path: path.to_owned(), files, bytes });
    }
    Ok(Looked { path: path.to_owned(), at: name_of_directory(&place)?, walk })
}

fn walk_without_git(place: &Path) -> Result<Walk, WalkError> {
    walk(place, &How::Ignore)
}

fn look_at(path: &str) -> Result<Looked, RoleError> {
    let (place, how, at) = match path.strip_prefix(HUB) {
        Some(_) => {
            let unknown = || RoleError::Model(path.to_owned());
            let model = HubModel::parse(path).ok_or_else(unknown)?;
            let cache = hub::cache(|name| env::var_os(name)).ok_or_else(unknown)?;
            (cache, How::Hub(model), None)
        }
        None => {
            let place = below_home(path)?;
            let at = name_of_directory(&place)?;
            (place, How::All, at)
        }
    };
    Ok(Looked { path: path.to_owned(), at, walk: walk(&place, &how)? })
}

/// Returns what takes the number of bytes that have been read, and reports at intervals how many of `total` it were.
fn reading(me: &Reporter, total: u64) -> impl Fn(u64) {
    let (read, reported) = (Cell::new(0), Cell::new(Instant::now()));
    move |bytes| {
        read.set(read.get() + bytes);
        if reported.get().elapsed() >= INTERVAL {
            reported.set(Instant::now());
            me.report(&Report::Reading { rank: me.rank(), bytes: read.get(), total });
        }
    }
}

/// Makes files of an image, in the directory that is there for that. Returns where they are.
pub(super) fn save_image(image: &ImageCopy, me: &Reporter) -> Result<String, RoleError> {
    let place =
        image.scratch.as_ref().map_or_else(image_place, |named| Ok(PathBuf::from(named)))?;
    let engine = Engine::named(&image.engine);
    let progress = reading(me, image.size);
    let saved = images::save(&engine, &image.name, image.size, &image.left_out, &place, &progress)?;
    Ok(saved.display().to_string())
}

/// Returns where a rank has the files of an image: in the job's directory, which is removed however the job ends.
pub(super) fn image_place() -> Result<PathBuf, RoleError> {
    let place = env::var_os(names::RLAUNCH_PRELOAD_DIR).map(PathBuf::from);
    place.ok_or(RoleError::NotARank(names::RLAUNCH_PRELOAD_DIR))
}

fn part(
    looked: Looked,
    settings: &Settings,
    progress: &impl Fn(u64),
    me: &Reporter,
) -> Result<Part, RoleError> {
    let Looked { path, at, walk } = looked;
    // Nobody asks again for files that are there for one copy.
    let mut index = if settings.image.is_some() { Index::none() } else { Index::load(&walk.root) };
    if settings.verify {
        // So that all files are read.
        index.clear();
    }
    let manifest = manifest(&walk, &mut index, hashing::threads(), progress);
    let manifest = manifest.map_err(|error| RoleError::Sources(error.into()))?;
    if let Err(error) = index.save() {
        me.note(format!(
            "cannot note what {path} contains, so it is read again next time: {error}"
        ));
    }
    Ok(Part { at, root: walk.root, manifest })
}

/// Returns the name that a directory has at the destination; `None` for a file, whose name is in its manifest, and
/// for `/`.
fn name_of_directory(place: &Path) -> Result<Option<RelativePath>, RoleError> {
    if !place.is_dir() {
        return Ok(None);
    }
    // `.` and `..` have names elsewhere.
    let name = match place.file_name() {
        Some(name) => Some(name.to_owned()),
        None => {
            place.canonicalize().ok().and_then(|place| place.file_name().map(ToOwned::to_owned))
        }
    };
    let name = name.map(|name| RelativePath::new(name.as_bytes()));
    name.transpose().map_err(|error| RoleError::Sources(error.into()))
}

/// Returns where a path leads that is below the home directory if it is relative or begins with `~/`.
pub(super) fn below_home(path: &str) -> Result<PathBuf, RoleError> {
    let rest = if path == "~" { "" } else { path.strip_prefix("~/").unwrap_or(path) };
    let rest = Path::new(rest);
    if rest.is_absolute() && !path.starts_with('~') {
        return Ok(rest.to_owned());
    }
    let home = env::var_os("HOME").map(PathBuf::from).filter(|home| home.is_absolute());
    // A second slash after the tilde is only a slash.
    let below = rest.strip_prefix("/").unwrap_or(rest);
    home.map(|home| home.join(below)).ok_or_else(|| RoleError::NoHome(path.to_owned()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn relative_paths_begin_in_the_home_directory() {
        let home = PathBuf::from(env::var_os("HOME").unwrap());
        for (path, below) in [("~/a/b", "a/b"), ("a", "a"), ("~", ""), ("~//etc", "etc")] {
            assert_eq!(below_home(path).unwrap(), home.join(below), "{path}");
        }
        assert_eq!(below_home("/etc").unwrap(), Path::new("/etc"));
    }

    #[test]
    fn a_directory_keeps_its_name_and_a_file_has_it_already() {
        let place = tempfile::tempdir().unwrap();
        std::fs::create_dir(place.path().join("tree")).unwrap();
        std::fs::write(place.path().join("file"), "x").unwrap();
        let name = |path: &str| {
            let name = name_of_directory(&place.path().join(path)).unwrap();
            name.map(|name| name.to_string())
        };
        for path in ["tree", "tree/", "tree/."] {
            assert_eq!(name(path).as_deref(), Some("tree"), "{path}");
        }
        assert_eq!(name("tree/..").as_deref(), place.path().file_name().and_then(|n| n.to_str()));
        assert_eq!(name("file"), None);
        assert_eq!(name_of_directory(Path::new("/")).unwrap(), None);
    }
}
