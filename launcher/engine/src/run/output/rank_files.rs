//! `--output-dir`: the output of each rank in files of its own, byte for byte.

use super::{StreamId, stream_name};
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

impl FileError {
    fn making(path: &Path, source: io::Error) -> FileError {
        FileError { operation: "make", path: path.to_owned(), source }
    }
}

impl RankFiles {
    /// Makes the directory and, in place of existing files, empty files for `ranks` ranks. With `merged`
    /// there are no files for stderr. Existing files are emptied once all can be written; if one cannot, nothing that was
    /// made stays.
    pub fn create(directory: &Path, ranks: u32, merged: bool) -> Result<RankFiles, FileError> {
        let streams: &[Stream] =
            if merged { &[Stream::Stdout] } else { &[Stream::Stdout, Stream::Stderr] };
        let of_rank = |rank| directory.join(format!("rank.{rank}"));
        let mut made = Vec::new();
        let mut paths = (0..ranks).map(of_rank);
        let tried = paths.try_for_each(|path| make_files(&path, streams, &mut made));
        if let Err(error) = tried {
            made.iter().rev().for_each(|path| remove_made(path));
            return Err(error);
        }
        for path in (0..ranks).map(of_rank) {
            empty_files(&path, streams)?;
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

/// Makes what is not there of a rank's directory and its files, and opens those that are there. Adds to `made` what it has
/// made, other than directories above.
fn make_files(
    directory: &Path,
    streams: &[Stream],
    made: &mut Vec<PathBuf>,
) -> Result<(), FileError> {
    let is_new = !directory.exists();
    fs::create_dir_all(directory).map_err(|source| FileError::making(directory, source))?;
    made.extend(is_new.then(|| directory.to_owned()));
    for stream in streams {
        let path = directory.join(stream_name(*stream));
        let is_new = path.symlink_metadata().is_err();
        // Without its content, so that a file of an earlier job is there if another one cannot be made.
        let opened = OpenOptions::new().append(true).create(true).open(&path);
        opened.map_err(|source| FileError::making(&path, source))?;
        made.extend(is_new.then_some(path));
    }
    Ok(())
}

/// Empties a rank's files, and removes that of a stream that has none this time.
fn empty_files(directory: &Path, streams: &[Stream]) -> Result<(), FileError> {
    for stream in [Stream::Stdout, Stream::Stderr] {
        let path = directory.join(stream_name(stream));
        if streams.contains(&stream) {
            File::create(&path).map_err(|source| FileError::making(&path, source))?;
        } else {
            let _ = fs::remove_file(path);
        }
    }
    Ok(())
}

/// Removes a file or directory that was made, unless others have put files into it.
fn remove_made(path: &Path) {
    let _ = if path.is_dir() { fs::remove_dir(path) } else { fs::remove_file(path) };
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
        let refused = |merged, obstacle: &str| {
            let error = RankFiles::create(scratch.path(), 4, merged).err().unwrap();
            let sentence = format!("cannot make {}", path(obstacle).display());
            assert_eq!(error.to_string(), sentence);
            assert!(!path("rank.0").exists() && !path("rank.3").exists());
            assert!(!path("rank.1/stderr").exists());
            assert_eq!(fs::read(path("rank.1/stdout")).unwrap(), b"of an earlier job");
        };
        refused(false, "rank.2");
        fs::remove_file(path("rank.2")).unwrap();
        fs::create_dir_all(path("rank.2/stdout")).unwrap();
        refused(false, "rank.2/stdout");
        refused(true, "rank.2/stdout");
        fs::rename(path("rank.2/stdout"), path("rank.2/stderr")).unwrap();
        refused(false, "rank.2/stderr");
        assert!(path("rank.2/stderr").exists() && !path("rank.2/stdout").exists());
        // Without files of stderr nothing is in the way.
        assert!(RankFiles::create(scratch.path(), 4, true).is_ok());
        assert_eq!(fs::read(path("rank.1/stdout")).unwrap(), b"");
    }

    #[test]
    fn a_directory_that_cannot_be_made_is_named() {
        let file = tempfile::NamedTempFile::new().unwrap();
        let error = RankFiles::create(file.path(), 1, false).err().unwrap().to_string();
        assert_eq!(error, format!("cannot make {}/rank.0", file.path().display()));
    }
}
