//! `--output-dir`: the output of each rank in files of its own, byte for byte.

use super::{StreamId, stream_name};
use nix::errno::Errno;
use rlaunch_bootstrap::protocol::control::Stream;
use std::collections::{HashSet, VecDeque};
use std::fs::{self, File, OpenOptions};
use std::io::{self, Write};
use std::path::{Path, PathBuf};

/// Maximum number of files that are open at the same time. At this limit, the file that was opened first is
/// closed before another is opened.
const MAX_OPEN: usize = 128;

/// Output files of all ranks.
pub struct RankFiles {
    directory: PathBuf,
    open: VecDeque<(StreamId, File)>,
    /// Streams with a file that could not be written. Nothing more is written to such a file.
    failed: HashSet<StreamId>,
    /// First error in writing a file.
    error: Option<FileError>,
}

/// Error in making a file or directory, or in writing a file.
#[derive(Debug, thiserror::Error)]
#[error("cannot {operation} {}", path.display())]
pub struct FileError {
    /// `make` or `write`.
    operation: &'static str,
    path: PathBuf,
    source: io::Error,
}

impl RankFiles {
    /// Makes the directory and, in place of existing files, empty files for `ranks` ranks. With `merged`
    /// there are no files for stderr. Directories of ranks that were made are removed if another cannot be made; files
    /// in those that were there may be empty then.
    pub fn create(directory: &Path, ranks: u32, merged: bool) -> Result<RankFiles, FileError> {
        let streams: &[Stream] =
            if merged { &[Stream::Stdout] } else { &[Stream::Stdout, Stream::Stderr] };
        let of_rank = |rank| directory.join(format!("rank.{rank}"));
        // Before files of an earlier job are emptied.
        if let Some(path) = (0..ranks).map(of_rank).find(|path| path.exists() && !path.is_dir()) {
            return Err(FileError { operation: "make", path, source: Errno::EEXIST.into() });
        }
        let mut made = Vec::new();
        for path in (0..ranks).map(of_rank) {
            if !path.is_dir() {
                made.push(path.clone());
            }
            if let Err(error) = make_files(&path, streams) {
                made.iter().for_each(|path| remove_files(path));
                return Err(error);
            }
        }
        Ok(RankFiles {
            directory: directory.to_owned(),
            open: VecDeque::new(),
            failed: HashSet::new(),
            error: None,
        })
    }

    /// Appends output of a rank to its file. Returns an error only when a file cannot be written for the
    /// first time, so that a job reports one error, whatever the number of files.
    pub fn add(&mut self, source: StreamId, data: &[u8]) -> Option<&FileError> {
        if data.is_empty() || self.failed.contains(&source) {
            return None;
        }
        let written = self.file(source).and_then(|file| file.write_all(data));
        let error = written.err()?;
        self.failed.insert(source);
        if self.error.is_some() {
            return None;
        }
        let path = self.path(source);
        Some(self.error.insert(FileError { operation: "write", path, source: error }))
    }

    /// Returns the first error in writing a file, if there was one.
    pub(crate) fn into_error(self) -> Option<FileError> {
        self.error
    }

    fn path(&self, (rank, stream): StreamId) -> PathBuf {
        self.directory.join(format!("rank.{rank}")).join(stream_name(stream))
    }

    fn file(&mut self, source: StreamId) -> io::Result<&mut File> {
        let at = match self.open.iter().position(|(known, _)| *known == source) {
            Some(at) => at,
            None => {
                let file = OpenOptions::new().append(true).open(self.path(source))?;
                if self.open.len() >= MAX_OPEN {
                    self.open.pop_front();
                }
                self.open.push_back((source, file));
                self.open.len() - 1
            }
        };
        let gone = || io::Error::from(io::ErrorKind::NotFound);
        self.open.get_mut(at).map(|(_, file)| file).ok_or_else(gone)
    }
}

/// Makes a rank's directory, with empty files for these streams alone.
fn make_files(directory: &Path, streams: &[Stream]) -> Result<(), FileError> {
    let failed =
        |path: &Path, source| FileError { operation: "make", path: path.to_owned(), source };
    fs::create_dir_all(directory).map_err(|source| failed(directory, source))?;
    let _ = fs::remove_file(directory.join(stream_name(Stream::Stderr)));
    for stream in streams {
        let path = directory.join(stream_name(*stream));
        File::create(&path).map_err(|source| failed(&path, source))?;
    }
    Ok(())
}

/// Removes a rank's directory, unless it contains files of others.
fn remove_files(directory: &Path) {
    for stream in [Stream::Stdout, Stream::Stderr] {
        let _ = fs::remove_file(directory.join(stream_name(stream)));
    }
    let _ = fs::remove_dir(directory);
}

#[cfg(test)]
mod tests {
    use super::*;
    use rlaunch_bootstrap::id::Rank;

    #[test]
    fn every_stream_has_its_file_however_many_there_are() {
        let scratch = tempfile::tempdir().unwrap();
        let directory = scratch.path().join("new/er");
        // More streams than are held open, and files of an earlier job.
        let ranks = u32::try_from(MAX_OPEN).unwrap();
        fs::create_dir_all(directory.join("rank.0")).unwrap();
        fs::write(directory.join("rank.0/stdout"), "of an earlier job").unwrap();
        let mut files = RankFiles::create(&directory, ranks, false).unwrap();
        for part in [&b"one"[..], b"\xff\0", b"", b"two\n"] {
            for rank in (0..ranks).map(Rank) {
                assert!(files.add((rank, Stream::Stdout), part).is_none());
                assert!(files.add((rank, Stream::Stderr), &part[part.len() / 2..]).is_none());
            }
        }
        assert!(files.into_error().is_none());
        for rank in 0..ranks {
            let read =
                |name: &str| fs::read(directory.join(format!("rank.{rank}/{name}"))).unwrap();
            assert_eq!(read("stdout"), b"one\xff\0two\n");
            assert_eq!(read("stderr"), b"ne\0o\n");
        }
    }

    #[test]
    fn what_cannot_be_written_is_said_once() {
        let scratch = tempfile::tempdir().unwrap();
        let mut files = RankFiles::create(scratch.path(), 2, true).unwrap();
        assert!(!scratch.path().join("rank.0/stderr").exists());
        fs::remove_dir_all(scratch.path().join("rank.1")).unwrap();
        let (here, gone) = ((Rank(0), Stream::Stdout), (Rank(1), Stream::Stdout));
        let error = files.add(gone, b"x").map(ToString::to_string);
        let path = scratch.path().join("rank.1/stdout");
        assert_eq!(error, Some(format!("cannot write {}", path.display())));
        assert!(files.add(gone, b"x").is_none());
        assert!(files.add(here, b"x").is_none());
        assert!(files.into_error().is_some());
        assert_eq!(fs::read(scratch.path().join("rank.0/stdout")).unwrap(), b"x");
    }

    #[test]
    fn what_stands_in_the_way_leaves_no_other_files_made_or_emptied() {
        let scratch = tempfile::tempdir().unwrap();
        let path = |name: &str| scratch.path().join(name);
        fs::create_dir(path("rank.1")).unwrap();
        fs::write(path("rank.1/stdout"), "of an earlier job").unwrap();
        fs::write(path("rank.2"), "").unwrap();
        let error = RankFiles::create(scratch.path(), 4, false).err().unwrap();
        assert_eq!(error.to_string(), format!("cannot make {}", path("rank.2").display()));
        assert!(!path("rank.0").exists() && !path("rank.3").exists());
        assert_eq!(fs::read(path("rank.1/stdout")).unwrap(), b"of an earlier job");
        // This obstacle is found only when the file is to be made.
        fs::remove_file(path("rank.2")).unwrap();
        fs::create_dir_all(path("rank.2/stdout")).unwrap();
        let error = RankFiles::create(scratch.path(), 4, false).err().unwrap();
        assert_eq!(error.to_string(), format!("cannot make {}", path("rank.2/stdout").display()));
        assert!(!path("rank.0").exists() && path("rank.2/stdout").exists());
    }

    #[test]
    fn a_directory_that_cannot_be_made_is_named() {
        let file = tempfile::NamedTempFile::new().unwrap();
        let error = RankFiles::create(file.path(), 1, false).err().unwrap().to_string();
        assert_eq!(error, format!("cannot make {}/rank.0", file.path().display()));
    }
}
