//! The library for ranks: `librlaunch.so` for C, the Python package in `python/rlaunch`, and the files by
//! which torch finds the package's backend. These files are in the directory of the agent's executable, or
//! rlaunch carries them; any of them may be missing.
//!
//! The library's name is a hash of its files. The launcher computes the name while it connects to the hosts,
//! and sends the name to every node. Nodes that lack the library receive it while the agents join the tree.

use super::bundle::{self, Bundle};
use super::store;
use crate::connect::outbox::Outbox;
use bytes::Bytes;
use flate2::Compression;
use flate2::write::ZlibEncoder;
use rlaunch_bootstrap::job::library::{
    ArchivedFile, LibraryArchive, LibraryDigest, LibraryName, LibrarySource, PYTHON,
};
use rlaunch_bootstrap::protocol::control::{self, ToAgent};
use rlaunch_console::messages;
use rlaunch_plan::hosts::Host;
use rlaunch_text::text;
use std::collections::BTreeMap;
use std::fs::File;
use std::io::{self, Read as _};
use std::path::{Path, PathBuf};
use tokio::task::JoinHandle;

/// Shared library for C programs.
pub const SHARED: &str = "librlaunch.so";
/// Name of the Python package, which is in the library's `python` directory.
const PACKAGE: &str = "rlaunch";
/// Files in the `python` directory by which torch finds the package's backend.
const ENTRY_POINT: [&str; 3] =
    ["rlaunch_torch.py", "rlaunch.dist-info/METADATA", "rlaunch.dist-info/entry_points.txt"];
/// Extensions of the package's files that are sent to nodes. Other files, such as Python's caches, are not
/// sent.
const PACKAGE_EXTENSIONS: &[&str] = &["py", "pyi", "so", "typed"];

/// Libraries for ranks that belong to this launcher, by architecture as in `uname -m`.
pub struct RankLibraries {
    /// Path from `--agent`, in whose directory the library is searched.
    agent_option: Option<PathBuf>,
    /// Whether all ranks run on this machine, where they use the library without a copy.
    is_local: bool,
    found: BTreeMap<String, Option<RankLibrary>>,
    /// Background search for this machine's library; `None` once its result is in `found`.
    native: Option<JoinHandle<Option<RankLibrary>>>,
}

/// Library for ranks of one architecture.
#[derive(Clone)]
struct RankLibrary {
    place: LibraryPlace,
    /// Paths relative to the directory of the library.
    files: Vec<String>,
    name: LibraryName,
}

/// Location of a library.
#[derive(Clone)]
enum LibraryPlace {
    Directory(PathBuf),
    /// Directory in the archive that rlaunch carries.
    Bundle(&'static Bundle, String),
}

impl RankLibraries {
    /// Starts a background search for this machine's library, which most hosts can use too. The search
    /// takes a few milliseconds, less than connecting to the hosts.
    pub(crate) fn start_search(agent_option: Option<PathBuf>, is_local: bool) -> RankLibraries {
        let beside = agent_option.clone();
        let search = move || find(beside.as_deref(), std::env::consts::ARCH, is_local);
        let native = Some(tokio::task::spawn_blocking(search));
        RankLibraries { agent_option, is_local, found: BTreeMap::new(), native }
    }

    /// Returns where a node of the architecture `arch` finds the library for its ranks; `None` if this
    /// launcher has no library for `arch`.
    pub(crate) async fn source_for(&mut self, arch: &str) -> Option<LibrarySource> {
        if let Some(native) = self.native.take() {
            // The task fails only if it panics.
            let found = native.await.ok().flatten();
            self.found.insert(std::env::consts::ARCH.to_owned(), found);
        }
        if !self.found.contains_key(arch) {
            let (beside, is_local) = (self.agent_option.clone(), self.is_local);
            let wanted = arch.to_owned();
            let search = move || find(beside.as_deref(), &wanted, is_local);
            let found = tokio::task::spawn_blocking(search).await.ok().flatten();
            if found.is_none() && self.found.values().any(Option::is_some) {
                messages::info(&format!(
                    "no library for ranks on {arch}: `import rlaunch` and {SHARED} are missing there"
                ));
            }
            self.found.insert(arch.to_owned(), found);
        }
        let found = self.found.get(arch)?.as_ref()?;
        Some(match &found.place {
            LibraryPlace::Directory(directory) if self.is_local => {
                LibrarySource::Directory(directory.clone())
            }
            _ => LibrarySource::Cached(found.name),
        })
    }

    /// Sends the library to the nodes in `lacking`, in the background. Each entry has the host, its
    /// architecture and the queue to its agent. The ranks of a node start once the library has arrived.
    pub fn send(&self, lacking: Vec<(Host, String, Outbox)>) {
        let mut by_arch: BTreeMap<String, Vec<(Host, Outbox)>> = BTreeMap::new();
        for (host, arch, commands) in lacking {
            by_arch.entry(arch).or_default().push((host, commands));
        }
        for (arch, nodes) in by_arch {
            let Some(found) = self.found.get(&arch).cloned().flatten() else { continue };
            // Compression would block the runtime.
            tokio::task::spawn_blocking(move || found.send(&nodes));
        }
    }
}

impl RankLibrary {
    fn send(&self, nodes: &[(Host, Outbox)]) {
        let packed = self.pack().inspect_err(|error| {
            messages::warn(&format!("cannot read the library for ranks: {error}"));
        });
        // If the library cannot be read, only the part that marks the end is sent, so that no node waits
        // for the library.
        let packed = packed.unwrap_or_default();
        let frames = frames(&packed).unwrap_or_default();
        for (_, commands) in nodes {
            frames.iter().for_each(|frame| commands.send_frame(frame.clone()));
        }
        let hosts: Vec<&Host> = nodes.iter().map(|(host, _)| host).collect();
        let (hosts, size) = (text::list(&hosts), text::mib(packed.len() as u64));
        tracing::info!("library sent to {hosts} ({size} each)");
    }

    fn pack(&self) -> io::Result<Vec<u8>> {
        let file = |path: &String| {
            let content = match &self.place {
                LibraryPlace::Directory(directory) => std::fs::read(directory.join(path))?,
                LibraryPlace::Bundle(bundle, directory) => {
                    bundle.read(&format!("{directory}/{path}"))?
                }
            };
            Ok(ArchivedFile { path: path.clone(), content })
        };
        let mut encoder = ZlibEncoder::new(Vec::new(), Compression::default());
        LibraryArchive::write(self.files.iter().map(file), &mut encoder)?;
        encoder.finish()
    }
}

/// Encodes the compressed archive as frames: its parts, then an empty part that marks the end.
fn frames(packed: &[u8]) -> io::Result<Vec<Bytes>> {
    let parts = control::file_parts(packed)
        .map(|part| control::encode(&ToAgent::LibraryPart(part.to_vec())));
    parts.map(|frame| frame.map(Bytes::from).map_err(io::Error::other)).collect()
}

/// Finds the library in the first directory that has files for this architecture, or among the files that rlaunch
/// carries. `None` if there is no such directory or its files cannot be read.
fn find(agent_option: Option<&Path>, arch: &str, is_local: bool) -> Option<RankLibrary> {
    let searched = store::library_directories(agent_option, arch);
    let found = searched.iter().find_map(|directory| {
        let files = files_in(directory, arch);
        let is_trusted = |file| agent_option.is_some() || store::is_trusted(&directory.join(file));
        (!files.is_empty() && files.iter().all(is_trusted)).then_some((directory, files))
    });
    let Some((directory, files)) = found else {
        // The files that rlaunch carries belong to its own agent.
        let carried = if agent_option.is_none() { in_bundle(arch) } else { None };
        if carried.is_none() {
            let searched: Vec<_> = searched.iter().map(|path| path.display()).collect();
            let searched = text::list(&searched);
            tracing::info!("no library for ranks on {arch} among {searched}: they do without");
        }
        return carried;
    };
    // A library that is used without a copy needs no name.
    let name = if is_local { Ok(LibraryName([0; 32])) } else { content_name(directory, &files) };
    match name {
        Ok(name) => {
            Some(RankLibrary { place: LibraryPlace::Directory(directory.clone()), files, name })
        }
        Err(error) => {
            messages::warn(&format!("cannot read the library for ranks: {error}"));
            None
        }
    }
}

/// Describes where the library for an architecture is; `None` if there is none.
pub fn place_of(agent_option: Option<&Path>, arch: &str) -> Option<String> {
    let found = find(agent_option, arch, false)?;
    let (name, files) = (found.name.directory(), text::count(found.files.len(), "file"));
    Some(match &found.place {
        LibraryPlace::Directory(directory) => format!("{} ({files}, {name})", directory.display()),
        LibraryPlace::Bundle(_, directory) => format!("{directory} in rlaunch ({files}, {name})"),
    })
}

/// Finds the library among the files that rlaunch carries.
fn in_bundle(arch: &str) -> Option<RankLibrary> {
    // An archive that cannot be read is an error in the search for the agent.
    let bundle = Bundle::own().ok().flatten()?;
    let found = bundle.index.libraries.get(arch)?;
    let place = LibraryPlace::Bundle(bundle, bundle::directory_of(arch));
    Some(RankLibrary { place, files: found.files.clone(), name: found.name })
}

/// Returns the name and the files of the library in a directory; `None` if it has none.
pub(super) fn describe(
    directory: &Path,
    arch: &str,
) -> io::Result<Option<(LibraryName, Vec<String>)>> {
    let files = files_in(directory, arch);
    if files.is_empty() {
        return Ok(None);
    }
    Ok(Some((content_name(directory, &files)?, files)))
}

/// Lists the library's files, as sorted paths relative to `directory`. They are sorted so that the same
/// files have the same hash.
fn files_in(directory: &Path, arch: &str) -> Vec<String> {
    let is_for_it = |path: &Path| {
        store::architecture_of(path).is_ok_and(|found| found.is_ok_and(|found| found == arch))
    };
    let mut files = Vec::new();
    if is_for_it(&directory.join(SHARED)) {
        files.push(SHARED.to_owned());
    }
    let package = format!("{PYTHON}/{PACKAGE}");
    let entries = std::fs::read_dir(directory.join(&package)).into_iter().flatten().flatten();
    for entry in entries {
        let path = entry.path();
        let extension = path.extension().and_then(|extension| extension.to_str());
        let travels = extension.is_some_and(|extension| PACKAGE_EXTENSIONS.contains(&extension));
        if travels && path.is_file() && (extension != Some("so") || is_for_it(&path)) {
            files.push(format!("{package}/{}", entry.file_name().to_string_lossy()));
        }
    }
    let beside = ENTRY_POINT.map(|file| format!("{PYTHON}/{file}"));
    files.extend(beside.into_iter().filter(|file| directory.join(file).is_file()));
    files.sort_unstable();
    files
}

/// Names a library by what its files contain, so that hosts keep one copy of each build.
fn content_name(directory: &Path, files: &[String]) -> io::Result<LibraryName> {
    let mut digest = LibraryDigest::default();
    let mut part = vec![0; 64 << 10];
    for path in files {
        let mut file = File::open(directory.join(path))?;
        digest.begin(path, file.metadata()?.len());
        loop {
            let read = file.read(&mut part)?;
            if read == 0 {
                break;
            }
            digest.update(&part[..read]);
        }
    }
    Ok(digest.finish())
}

#[cfg(test)]
mod tests {
    use super::*;
    use flate2::read::ZlibDecoder;

    /// Creates the files of a library, and other files that must not be sent.
    fn lay_out(directory: &Path) {
        let package = directory.join("python/rlaunch");
        std::fs::create_dir_all(package.join("__pycache__")).unwrap();
        let library = std::env::current_exe().unwrap();
        std::os::unix::fs::symlink(&library, directory.join(SHARED)).unwrap();
        std::fs::write(package.join("__init__.py"), "x = 1\n").unwrap();
        std::fs::write(package.join("_rlaunch.abi3.so"), "for no machine").unwrap();
        std::fs::write(package.join("__init__.py.orig"), "x = 0\n").unwrap();
        let info = directory.join("python/rlaunch.dist-info");
        std::fs::create_dir(&info).unwrap();
        std::fs::write(info.join("METADATA"), "Name: rlaunch\n").unwrap();
        std::fs::write(info.join("RECORD"), "").unwrap();
    }

    #[test]
    fn what_is_sent_has_the_name_that_was_told() {
        let directory = tempfile::tempdir().unwrap();
        lay_out(directory.path());
        let agent_option = directory.path().join("rlaunch-worker");
        let found = find(Some(&agent_option), std::env::consts::ARCH, false).unwrap();
        let files =
            ["librlaunch.so", "python/rlaunch.dist-info/METADATA", "python/rlaunch/__init__.py"];
        assert_eq!(found.files, files);
        let packed = found.pack().unwrap();
        let mut bytes = Vec::new();
        ZlibDecoder::new(&packed[..]).read_to_end(&mut bytes).unwrap();
        assert_eq!(LibraryArchive::decode(&bytes).unwrap().name(), found.name);
        let parts = frames(&packed).unwrap();
        assert_eq!(parts.len(), packed.len().div_ceil(control::MAX_FILE_CHUNK) + 1);
    }

    #[test]
    fn another_file_gives_another_name() {
        let directory = tempfile::tempdir().unwrap();
        lay_out(directory.path());
        let agent_option = directory.path().join("rlaunch-worker");
        let name = || find(Some(&agent_option), std::env::consts::ARCH, false).unwrap().name;
        let first = name();
        std::fs::write(directory.path().join("python/rlaunch/__init__.py"), "x = 2\n").unwrap();
        assert_ne!(name(), first);
    }

    #[test]
    fn a_library_for_other_machines_is_none() {
        let directory = tempfile::tempdir().unwrap();
        std::fs::write(directory.path().join(SHARED), "for no machine").unwrap();
        let agent_option = directory.path().join("rlaunch-worker");
        assert!(find(Some(&agent_option), std::env::consts::ARCH, false).is_none());
    }
}
