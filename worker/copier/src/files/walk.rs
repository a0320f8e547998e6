//! Which files of a directory are copied.
//!
//! A [`Walk`] only looks at names and metadata; [`super::manifest`] reads files. Links are copied as
//! links, and never followed below the directory. Sockets, pipes and devices are left out, and so are
//! files that an unfinished copy has left, and those of /proc and the like, whose content the kernel makes when they are
//! read: they have no size before.

pub mod hub;

use super::beneath::Beneath;
use super::meta::Meta;
use super::unfinished::is_staging_name;
use hub::HubModel;
use rlaunch_copy::RelativePath;
use rustix::fs::FileType;
use std::collections::HashMap;
use std::ffi::OsStr;
use std::fs::{self, Metadata};
use std::io;
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

/// Variables by which a caller, such as a hook, points git at another repository than that of the
/// directory that git runs in.
const GIT_VARIABLES: &[&str] = &[
    "GIT_DIR", "GIT_WORK_TREE", "GIT_INDEX_FILE", "GIT_COMMON_DIR", "GIT_OBJECT_DIRECTORY",
    "GIT_ALTERNATE_OBJECT_DIRECTORIES", "GIT_NAMESPACE", "GIT_PREFIX", "GIT_LITERAL_PATHSPECS",
    "GIT_CONFIG_PARAMETERS", "GIT_CONFIG_COUNT",
];

/// Which files are copied.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum How {
    /// All.
    All,
    /// Those of a git working tree that git tracks, or would if they were added, and those of its
    /// submodules.
    Git,
    /// Those that no `.gitignore` and no `.ignore` excludes, where git is not installed or the
    /// directory is in no repository.
    Ignore,
    /// Those of a model in the Hugging Face hub's cache, which is the directory.
    Hub(HubModel),
}

/// Files, directories and links of a directory.
#[derive(Clone, Debug)]
pub struct Walk {
    /// Directory that paths are relative to. If a file is copied, the directory that it is in.
    pub root: PathBuf,
    /// What the root was like before it was listed; `None` if a file is copied.
    top: Option<Meta>,
    /// In the order of a manifest.
    pub entries: Vec<Found>,
    /// Sockets, pipes, devices and files that the kernel makes, which are not copied.
    pub left_out: Vec<RelativePath>,
}

/// File, directory or link.
#[derive(Clone, Debug)]
pub struct Found {
    pub path: RelativePath,
    pub meta: Meta,
    pub kind: FoundKind,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub enum FoundKind {
    Directory,
    File,
    Link { target: Vec<u8> },
}

/// Error of a directory whose files cannot be listed.
#[derive(Debug, thiserror::Error)]
pub enum WalkError {
    #[error("{} does not exist", path.display())]
    Missing { path: PathBuf },
    #[error("cannot read {}: {cause}", path.display())]
    Read { path: PathBuf, cause: io::Error },
    #[error("{} is neither a file nor a directory", path.display())]
    Special { path: PathBuf },
    #[error("the kernel makes {} when it is read, so there is no file to copy", path.display())]
    Kernel { path: PathBuf },
    #[error("{} is too long a path", path.display())]
    Path { path: PathBuf },
    #[error("git is not installed")]
    NoGit,
    #[error("{} is not in a git repository", directory.display())]
    NoRepository { directory: PathBuf },
    #[error("git cannot list the files of {}: {text}", directory.display())]
    Git { directory: PathBuf, text: String },
    #[error("cannot list files: {0}")]
    Ignore(#[from] ignore::Error),
    #[error(transparent)]
    Hub(#[from] hub::HubError),
}

impl Walk {
    /// Returns the number of files.
    pub fn files(&self) -> usize {
        self.entries.iter().filter(|found| found.kind == FoundKind::File).count()
    }

    /// Returns the number of bytes of all files.
    pub fn bytes(&self) -> u64 {
        let files = self.entries.iter().filter(|found| found.kind == FoundKind::File);
        files.map(|found| found.meta.size).sum()
    }

    /// Returns where a file is.
    pub fn place(&self, path: &RelativePath) -> PathBuf {
        self.root.join(OsStr::from_bytes(path.as_bytes()))
    }

    /// Tells whether all that was found is what it was, and nothing has come or gone in these directories. A file that comes
    /// into one of which nothing is copied is not seen.
    pub fn is_unchanged(&self) -> bool {
        let is_same = |now: Meta, then: &Meta| now.stamp() == then.stamp();
        let has_top =
            |then: &Meta| fs::metadata(&self.root).is_ok_and(|now| is_same(Meta::of(&now), then));
        // A directory that is gone must not be made.
        if !self.top.as_ref().is_none_or(has_top) {
            return false;
        }
        let Ok(beneath) = Beneath::open(&self.root) else { return false };
        self.entries.iter().all(|found| {
            let now = beneath.look(found.path.as_bytes()).ok().flatten();
            now.is_some_and(|now| is_same(now.meta, &found.meta))
        })
    }
}

/// Lists what is copied of a directory, or the one file that `root` is. A link is followed if it is
/// `root` itself.
pub fn walk(root: &Path, how: &How) -> Result<Walk, WalkError> {
    let metadata = match fs::metadata(root) {
        Err(cause) if cause.kind() == io::ErrorKind::NotFound => {
            return Err(WalkError::Missing { path: root.to_owned() });
        }
        metadata => metadata.map_err(|cause| read_error(root, cause))?,
    };
    if is_of_kernel(root) == Some(true) {
        return Err(WalkError::Kernel { path: root.to_owned() });
    }
    if metadata.is_file() {
        return one_file(root, &metadata);
    }
    if !metadata.is_dir() {
        return Err(WalkError::Special { path: root.to_owned() });
    }
    let mut collected = Collected::new(root, Meta::of(&metadata))?;
    match how {
        How::All => everything(&mut collected, Vec::new())?,
        How::Git => of_git(&mut collected)?,
        How::Ignore => not_ignored(&mut collected)?,
        How::Hub(model) => hub::collect(&mut collected, model)?,
    }
    Ok(collected.into_walk())
}

fn one_file(path: &Path, metadata: &Metadata) -> Result<Walk, WalkError> {
    // The name is that of the link, if it is one. `..` and `/` are no files.
    let (Some(name), Some(parent)) = (path.file_name(), path.parent()) else {
        return Err(WalkError::Special { path: path.to_owned() });
    };
    let relative = relative(parent, name.as_bytes())?;
    let found = Found { path: relative, meta: Meta::of(metadata), kind: FoundKind::File };
    // The parent of a name alone is empty.
    let root = if parent.as_os_str().is_empty() { Path::new(".") } else { parent };
    Ok(Walk { root: root.to_owned(), top: None, entries: vec![found], left_out: Vec::new() })
}

/// What has been found so far.
pub(super) struct Collected {
    root: PathBuf,
    /// The same, opened: to look from there is half as much work as by whole paths.
    beneath: Beneath,
    top: Meta,
    entries: Vec<Found>,
    left_out: Vec<RelativePath>,
    /// What has been added or looked at, and whether it is a directory.
    seen: HashMap<Vec<u8>, bool>,
    /// Devices on which files were found, and whether the kernel makes them.
    of_kernel: HashMap<u64, bool>,
}

impl Collected {
    fn new(root: &Path, top: Meta) -> Result<Collected, WalkError> {
        Ok(Collected {
            root: root.to_owned(),
            beneath: Beneath::open(root).map_err(|cause| read_error(root, cause))?,
            top,
            entries: Vec::new(),
            left_out: Vec::new(),
            seen: HashMap::new(),
            of_kernel: HashMap::new(),
        })
    }

    pub(super) fn root(&self) -> &Path {
        &self.root
    }

    /// Returns where something is.
    pub(super) fn place(&self, path: &[u8]) -> PathBuf {
        self.root.join(OsStr::from_bytes(path))
    }

    /// Returns the paths and the targets of the links below a directory.
    pub(super) fn links_below(&self, directory: &[u8]) -> Vec<(Vec<u8>, Vec<u8>)> {
        let below = |path: &[u8]| {
            path.strip_prefix(directory).is_some_and(|rest| rest.first() == Some(&b'/'))
        };
        let links = self.entries.iter().filter_map(|found| match &found.kind {
            FoundKind::Link { target } => Some((found.path.as_bytes(), target)),
            FoundKind::Directory | FoundKind::File => None,
        });
        let links = links.filter(|(path, _)| below(path));
        links.map(|(path, target)| (path.to_vec(), target.clone())).collect()
    }

    fn into_walk(self) -> Walk {
        let Collected { root, top, mut entries, mut left_out, .. } = self;
        entries.sort_unstable_by(|a, b| a.path.cmp(&b.path));
        // What is named one by one may also be in a directory that is listed.
        entries.dedup_by(|a, b| a.path == b.path);
        left_out.sort_unstable();
        Walk { root, top: Some(top), entries, left_out }
    }

    /// Adds what is at a path and the directories that it is in, unless it does not exist. Returns
    /// whether it is a directory.
    ///
    /// A path through a link is one that does not exist: what it leads to is elsewhere.
    pub(super) fn add_with_parents(&mut self, path: &[u8]) -> Result<bool, WalkError> {
        let slashes = path.iter().enumerate().filter(|(_, byte)| **byte == b'/');
        for (slash, _) in slashes {
            if !self.add(&path[..slash])? {
                return Ok(false);
            }
        }
        self.add(path)
    }

    /// Adds what is at a path, whose directory has been added. Returns whether it is a directory.
    fn add(&mut self, path: &[u8]) -> Result<bool, WalkError> {
        if let Some(is_directory) = self.seen.get(path) {
            return Ok(*is_directory);
        }
        let is_directory = match self.beneath.look(path) {
            Ok(Some(seen)) => self.add_found(path, seen.file_type, seen.meta)?,
            Ok(None) => false,
            Err(cause) => return Err(read_error(&self.place(path), cause.into())),
        };
        self.seen.insert(path.to_vec(), is_directory);
        Ok(is_directory)
    }

    fn is_of_kernel(&mut self, path: &RelativePath, device: u64) -> bool {
        if let Some(known) = self.of_kernel.get(&device) {
            return *known;
        }
        // A file that is gone says nothing of the others.
        let is_of_kernel = is_of_kernel(&self.place(path.as_bytes()));
        if let Some(is_of_kernel) = is_of_kernel {
            self.of_kernel.insert(device, is_of_kernel);
        }
        is_of_kernel.unwrap_or(false)
    }

    fn add_found(
        &mut self,
        path: &[u8],
        file_type: FileType,
        meta: Meta,
    ) -> Result<bool, WalkError> {
        let path = relative(&self.root, path)?;
        let kind = match file_type {
            FileType::Directory => FoundKind::Directory,
            FileType::Symlink => {
                let place = self.place(path.as_bytes());
                match fs::read_link(&place) {
                    Ok(target) => FoundKind::Link { target: target.into_os_string().into_vec() },
                    Err(cause) if is_gone(&cause) => return Ok(false),
                    Err(cause) => return Err(read_error(&place, cause)),
                }
            }
            FileType::RegularFile if !self.is_of_kernel(&path, meta.device) => FoundKind::File,
            _ => {
                self.left_out.push(path);
                return Ok(false);
            }
        };
        let is_directory = kind == FoundKind::Directory;
        self.entries.push(Found { path, meta, kind });
        Ok(is_directory)
    }
}

/// Tells whether a path is in a file system whose files the kernel makes when they are read; `None` if it is gone.
fn is_of_kernel(place: &Path) -> Option<bool> {
    const PROC: i64 = 0x9fa0;
    const SYS: i64 = 0x6265_6572;
    const CGROUP: i64 = 0x27_e0eb;
    const CGROUP2: i64 = 0x6367_7270;
    const DEBUG: i64 = 0x6462_6720;
    const TRACE: i64 = 0x7472_6163;
    const SECURITY: i64 = 0x7363_6673;
    const CONFIG: i64 = 0x6265_6570;
    let all = [PROC, SYS, CGROUP, CGROUP2, DEBUG, TRACE, SECURITY, CONFIG];
    rustix::fs::statfs(place).ok().map(|about| all.contains(&about.f_type))
}

/// Adds everything below a directory, which has been added.
pub(super) fn everything(collected: &mut Collected, directory: Vec<u8>) -> Result<(), WalkError> {
    let mut left = vec![directory];
    while let Some(directory) = left.pop() {
        let place = collected.place(&directory);
        let listing = match fs::read_dir(&place) {
            // Removed since its name was read.
            Err(cause) if is_gone(&cause) && !directory.is_empty() => continue,
            listing => listing.map_err(|cause| read_error(&place, cause))?,
        };
        for entry in listing {
            let entry = entry.map_err(|cause| read_error(&place, cause))?;
            let name = entry.file_name();
            if is_staging_name(name.as_bytes()) {
                continue;
            }
            let metadata = match entry.metadata() {
                Err(cause) if is_gone(&cause) => continue,
                metadata => metadata.map_err(|cause| read_error(&entry.path(), cause))?,
            };
            let path = joined(&directory, name.as_bytes());
            let file_type = FileType::from_raw_mode(metadata.mode());
            if collected.add_found(&path, file_type, Meta::of(&metadata))? {
                left.push(path);
            }
        }
    }
    Ok(())
}

/// Adds the files that git tracks or would track.
fn of_git(collected: &mut Collected) -> Result<(), WalkError> {
    let root = collected.root().to_owned();
    let absolute = fs::canonicalize(&root).map_err(|cause| read_error(&root, cause))?;
    // Without the variables above, git finds a repository in no other way.
    if !absolute.ancestors().any(|directory| directory.join(".git").exists()) {
        return Err(WalkError::NoRepository { directory: root });
    }
    let mut repositories = vec![Vec::new()];
    while let Some(repository) = repositories.pop() {
        for listed in listed_by_git(&collected.place(&repository))? {
            // A repository that is in this one without being its submodule ends in a slash.
            let name = listed.strip_suffix(b"/").unwrap_or(&listed);
            let last = name.rsplit(|byte| *byte == b'/').next().unwrap_or(name);
            let path = joined(&repository, name);
            if is_staging_name(last) || collected.seen.contains_key(&path) {
                continue;
            }
            let is_directory = collected.add_with_parents(&path)?;
            // A submodule that is not checked out is an empty directory.
            if is_directory && collected.place(&path).join(".git").exists() {
                repositories.push(path);
            }
        }
    }
    Ok(())
}

/// Asks git for the files of a repository. Runs no command that the repository's configuration names.
fn listed_by_git(directory: &Path) -> Result<Vec<Vec<u8>>, WalkError> {
    let mut git = Command::new("git");
    git.args(["-c", "core.fsmonitor=false", "ls-files", "-z", "--cached", "--others"]);
    git.arg("--exclude-standard").current_dir(directory).stdin(Stdio::null());
    for variable in GIT_VARIABLES {
        git.env_remove(variable);
    }
    let output = match git.output() {
        Err(cause) if cause.kind() == io::ErrorKind::NotFound => return Err(WalkError::NoGit),
        output => output.map_err(|cause| WalkError::Git {
            directory: directory.to_owned(),
            text: cause.to_string(),
        })?,
    };
    if !output.status.success() {
        let text = String::from_utf8_lossy(&output.stderr).trim().replace('\n', "; ");
        return Err(WalkError::Git { directory: directory.to_owned(), text });
    }
    let names = output.stdout.split(|byte| *byte == 0).filter(|name| !name.is_empty());
    Ok(names.map(<[u8]>::to_vec).collect())
}

/// Adds the files that no `.gitignore` excludes.
fn not_ignored(collected: &mut Collected) -> Result<(), WalkError> {
    let root = collected.root().to_owned();
    let mut builder = ignore::WalkBuilder::new(&root);
    // Hidden files belong to a project, and what is above it does not.
    builder.hidden(false).parents(false).require_git(false).follow_links(false);
    builder.filter_entry(|entry| entry.file_name() != ".git");
    for entry in builder.build() {
        let entry = match entry {
            Err(error) if error.io_error().is_some_and(is_gone) => continue,
            entry => entry?,
        };
        // The directory itself is relative to itself without any name.
        let Ok(path) = entry.path().strip_prefix(&root) else { continue };
        let path = path.as_os_str().as_bytes();
        if !path.is_empty() && !is_staging_name(entry.file_name().as_bytes()) {
            collected.add_with_parents(path)?;
        }
    }
    Ok(())
}

/// Tells whether something does not exist, or no longer does.
pub(super) fn is_gone(cause: &io::Error) -> bool {
    matches!(cause.kind(), io::ErrorKind::NotFound | io::ErrorKind::NotADirectory)
}

pub(super) fn read_error(path: &Path, cause: io::Error) -> WalkError {
    WalkError::Read { path: path.to_owned(), cause }
}

/// Appends a name to the path of a directory, which is empty for the root.
pub(super) fn joined(directory: &[u8], name: &[u8]) -> Vec<u8> {
    if directory.is_empty() { name.to_vec() } else { [directory, name].join(&b'/') }
}

fn relative(root: &Path, path: &[u8]) -> Result<RelativePath, WalkError> {
    let place = || root.join(OsStr::from_bytes(path));
    RelativePath::new(path).map_err(|_| WalkError::Path { path: place() })
}

#[cfg(test)]
#[path = "walk_tests.rs"]
mod tests;
