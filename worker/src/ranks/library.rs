//! rlaunch's library, which this node's ranks link (C) or import (Python): a directory beside the
//! agent's executable in the cache, named by the hash of its content. Looking for a library that is
//! in the cache takes one stat(2).

use crate::node::environment::Environment;
use crate::node::{self, cache};
use flate2::write::ZlibDecoder;
use nix::unistd::gethostname;
use rlaunch_bootstrap::env::{
    BREAKPOINT, LD_LIBRARY_PATH, PYTHONBREAKPOINT, PYTHONPATH, RLAUNCH_LIB,
};
use rlaunch_bootstrap::job::library::{
    ArchivedFile, LIBRARY_PREFIX, LibraryArchive, LibraryName, LibrarySource, MAX_ARCHIVE,
    NodeLibrary, PYTHON,
};
use rlaunch_bootstrap::job::{Application, Job};
use std::fs::{self, DirBuilder, OpenOptions};
use std::io::{self, Write};
use std::os::unix::fs::{DirBuilderExt, OpenOptionsExt};
use std::path::{Path, PathBuf};

/// State of the library for ranks on this node.
pub(crate) enum RankLibrary {
    /// The job names no library, or the library could not be received.
    Absent,
    Ready(PathBuf),
    Downloading(LibraryDownload),
}

impl RankLibrary {
    /// Looks for the library that a job names.
    pub(crate) fn locate(job: &Job) -> RankLibrary {
        match &job.library {
            None => RankLibrary::Absent,
            Some(LibrarySource::Directory(path)) => RankLibrary::Ready(path.clone()),
            Some(LibrarySource::Cached(name)) => {
                let (Some(agent), Some(store)) = (cache::agent_path(), cache::store()) else {
                    return RankLibrary::Absent;
                };
                let kept = store.join(name.directory());
                let places = [agent.with_file_name(name.directory()), kept.clone()];
                let is_there =
                    |path: &PathBuf| cache::check_writers(path).is_ok_and(|found| found.is_dir());
                match places.into_iter().find(is_there) {
                    Some(path) => {
                        // The library was verified before its directory got this name.
                        cache::hold(path.clone());
                        RankLibrary::Ready(path)
                    }
                    None => RankLibrary::Downloading(LibraryDownload::new(*name, kept)),
                }
            }
        }
    }

    /// Returns the library's path, and whether the launcher has to send the library.
    pub(crate) fn location(&self) -> Option<NodeLibrary> {
        match self {
            RankLibrary::Absent => None,
            RankLibrary::Ready(path) => Some(NodeLibrary { path: path.clone(), is_present: true }),
            RankLibrary::Downloading(download) => {
                Some(NodeLibrary { path: download.path.clone(), is_present: false })
            }
        }
    }

    pub(crate) fn is_downloading(&self) -> bool {
        matches!(self, RankLibrary::Downloading(_))
    }

    /// Receives the next part; an empty part is the last. Returns an error text if the library
    /// cannot be stored; ranks then run without it.
    pub(crate) fn receive(&mut self, part: &[u8]) -> Result<(), String> {
        let RankLibrary::Downloading(download) = self else { return Ok(()) };
        match download.receive(part) {
            Ok(false) => Ok(()),
            Ok(true) => {
                *self = RankLibrary::Ready(std::mem::take(&mut download.path));
                Ok(())
            }
            Err(cause) => {
                *self = RankLibrary::Absent;
                Err(cause)
            }
        }
    }

    /// Adds the library to the environment of ranks. Its directories come last on the search paths,
    /// so that a version installed by the user or on the host is preferred.
    pub(crate) fn add_variables(&self, application: &Application, env: &mut Environment) {
        let RankLibrary::Ready(path) = self else { return };
        if !application.env.iter().any(|var| var.name == RLAUNCH_LIB) {
            env.insert(RLAUNCH_LIB.into(), path.into());
        }
        append_directory(env, LD_LIBRARY_PATH, path);
        append_directory(env, PYTHONPATH, &path.join(PYTHON));
        env.entry(PYTHONBREAKPOINT.into()).or_insert_with(|| BREAKPOINT.into());
    }
}

/// Appends a directory to the search path in the variable `name`. Keeps all entries of the path,
/// also empty ones, which stand for the working directory.
fn append_directory(env: &mut Environment, name: &str, directory: &Path) {
    let path = env.entry(name.into()).or_default();
    let has_it = std::env::split_paths(path.as_os_str()).any(|entry| entry == directory);
    if has_it {
        return;
    }
    if !path.is_empty() {
        path.push(":");
    }
    path.push(directory);
}

/// Library that is being received.
pub(crate) struct LibraryDownload {
    name: LibraryName,
    path: PathBuf,
    archive: ZlibDecoder<Bounded>,
}

impl LibraryDownload {
    fn new(name: LibraryName, path: PathBuf) -> LibraryDownload {
        LibraryDownload { name, path, archive: ZlibDecoder::new(Bounded(Vec::new())) }
    }

    /// Receives the next part. Returns true once the library is stored.
    fn receive(&mut self, part: &[u8]) -> Result<bool, String> {
        let damaged = |error: &dyn std::fmt::Display| format!("it was damaged on the way: {error}");
        if !part.is_empty() {
            return self.archive.write_all(part).map(|()| false).map_err(|e| damaged(&e));
        }
        self.archive.try_finish().map_err(|error| damaged(&error))?;
        let archive = LibraryArchive::decode(&self.archive.get_ref().0).map_err(|e| damaged(&e))?;
        if archive.name() != self.name || !archive.0.iter().all(ArchivedFile::is_inside) {
            return Err(damaged(&"its content does not match its hash"));
        }
        store(&archive, &self.path).map(|()| true)
    }
}

/// Output of the decoder, limited to [`MAX_ARCHIVE`] bytes.
struct Bounded(Vec<u8>);

impl Write for Bounded {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        if self.0.len() + bytes.len() > MAX_ARCHIVE {
            return Err(io::Error::other(format!("more than {} MiB", MAX_ARCHIVE >> 20)));
        }
        self.0.write(bytes)
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

/// Stores the files in a temporary directory, and renames it to `path` when it is complete.
fn store(archive: &LibraryArchive, path: &Path) -> Result<(), String> {
    // Hosts may share the home directory, so the name includes the host.
    let host = gethostname().unwrap_or_default();
    let new = format!("new.{}.{}", host.to_string_lossy(), std::process::id());
    let new = path.with_extension(new);
    let kept = write_files(archive, &new).and_then(|()| match fs::rename(&new, path) {
        Ok(()) => Ok(()),
        // Another job has stored the same library in the meantime.
        Err(_) if path.is_dir() => {
            cache::check_writers(path).map(drop).map_err(|error| cannot_keep(path, &error))
        }
        Err(error) => Err(cannot_keep(path, &error)),
    });
    // Fails if the directory was moved into place.
    let _ = fs::remove_dir_all(&new);
    kept?;
    cache::hold(path.to_owned());
    trim_beside(path.to_owned());
    Ok(())
}

fn write_files(archive: &LibraryArchive, directory: &Path) -> Result<(), String> {
    for file in &archive.0 {
        let path = directory.join(&file.path);
        let parent = path.parent().unwrap_or(directory);
        // The mode is set explicitly, whatever the umask is.
        let made = DirBuilder::new().recursive(true).mode(0o700).create(parent);
        let mut options = OpenOptions::new();
        made.and_then(|()| options.write(true).create_new(true).mode(0o600).open(&path))
            .and_then(|mut new| new.write_all(&file.content))
            .map_err(|error| cannot_keep(&path, &error))?;
    }
    Ok(())
}

fn cannot_keep(path: &Path, error: &io::Error) -> String {
    format!("cannot keep {}: {error}", path.display())
}

/// Removes old, unused libraries from the cache, in a thread, so that the ranks need not wait.
fn trim_beside(path: PathBuf) {
    let trimming = move || {
        if let Some(beside) = path.parent() {
            cache::trim(beside, |name| name.starts_with(LIBRARY_PREFIX), &path);
        }
    };
    // If no thread can be started, a later job removes them.
    let _ = node::start_thread(None, Box::new(trimming));
}

#[cfg(test)]
mod tests {
    use super::*;
    use flate2::Compression;
    use flate2::write::ZlibEncoder;
    use std::ffi::{OsStr, OsString};

    fn archive(content: &[u8]) -> LibraryArchive {
        let files = [("librlaunch.so", content), ("python/rlaunch/__init__.py", b"x = 1\n")];
        let file = |(path, content): (&str, &[u8])| ArchivedFile {
            path: path.into(),
            content: content.into(),
        };
        LibraryArchive(files.map(file).into())
    }

    fn packed(archive: &LibraryArchive) -> Vec<u8> {
        let mut encoder = ZlibEncoder::new(Vec::new(), Compression::fast());
        encoder.write_all(&archive.encode().unwrap()).unwrap();
        encoder.finish().unwrap()
    }

    /// Receives `bytes` in parts as the library `name`, to be stored in the directory `beside`.
    fn receive(
        beside: &Path,
        name: LibraryName,
        bytes: &[u8],
    ) -> (RankLibrary, Result<(), String>) {
        let path = beside.join(name.directory());
        let mut library = RankLibrary::Downloading(LibraryDownload::new(name, path));
        let mut parts = bytes.chunks(7).chain(std::iter::once(&[][..]));
        let all = parts.try_for_each(|part| library.receive(part));
        (library, all)
    }

    #[test]
    fn a_library_arrives_whole_or_not_at_all() {
        let beside = tempfile::tempdir().unwrap();
        let good = archive(b"ELF");
        let (library, received) = receive(beside.path(), good.name(), &packed(&good));
        received.unwrap();
        let RankLibrary::Ready(path) = library else { panic!("it is not here") };
        assert_eq!(fs::read(path.join("librlaunch.so")).unwrap(), b"ELF");
        assert_eq!(fs::read(path.join("python/rlaunch/__init__.py")).unwrap(), b"x = 1\n");

        let other = archive(b"other");
        let mut cut = packed(&other);
        cut.truncate(cut.len() / 2);
        let mut outside = archive(b"x");
        outside.0[1].path = "../outside".into();
        for (name, bytes) in [
            (other.name(), packed(&good)),
            (other.name(), cut),
            (outside.name(), packed(&outside)),
            (other.name(), b"nothing of the kind".into()),
        ] {
            let (library, received) = receive(beside.path(), name, &bytes);
            assert!(received.unwrap_err().contains("damaged"));
            assert!(matches!(library, RankLibrary::Absent));
        }
        assert_eq!(fs::read_dir(beside.path()).unwrap().count(), 1, "part of a library was left");
    }

    #[test]
    fn one_that_unpacks_to_too_much_is_refused() {
        let beside = tempfile::tempdir().unwrap();
        let huge = archive(&vec![0; MAX_ARCHIVE]);
        let (_, received) = receive(beside.path(), huge.name(), &packed(&huge));
        assert!(received.unwrap_err().contains("more than 64 MiB"));
    }

    #[test]
    fn two_at_once_both_end_well() {
        let beside = tempfile::tempdir().unwrap();
        let library = archive(b"ELF");
        for _ in 0..2 {
            receive(beside.path(), library.name(), &packed(&library)).1.unwrap();
        }
        assert_eq!(fs::read_dir(beside.path()).unwrap().count(), 1);
    }

    #[test]
    fn a_library_that_others_may_write_to_is_not_loaded() {
        let beside = tempfile::tempdir().unwrap();
        let library = archive(b"ELF");
        let (_, received) = receive(beside.path(), library.name(), &packed(&library));
        received.unwrap();
        let path = beside.path().join(library.name().directory());
        fs::set_permissions(&path, std::os::unix::fs::PermissionsExt::from_mode(0o777)).unwrap();
        let (found, received) = receive(beside.path(), library.name(), &packed(&library));
        assert!(matches!(found, RankLibrary::Absent));
        let cause = received.unwrap_err();
        assert!(cause.ends_with("other users can write to it (mode 777)"), "{cause}");
    }

    #[test]
    fn search_paths_keep_what_they_had() {
        let mut env = Environment::new();
        for (name, value) in [("A", "/x::/y"), ("B", ""), ("C", "/lib:/z")] {
            env.insert(name.into(), value.into());
        }
        for name in ["A", "B", "C", "D"] {
            append_directory(&mut env, name, Path::new("/lib"));
        }
        let values: Vec<&OsStr> = env.values().map(OsString::as_os_str).collect();
        assert_eq!(values, ["/x::/y:/lib", "/lib", "/lib:/z", "/lib"]);
    }
}
