//! Files that are created for ranks at their start and removed at the end of the job.

use crate::console::errln;
use rlaunch_bootstrap::job::RankFile;
use std::collections::BTreeSet;
use std::fs::OpenOptions;
use std::io::{self, ErrorKind, Write};
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};

/// Files that were created for the ranks of this node.
#[derive(Debug, Default)]
pub(crate) struct RankFiles {
    written: BTreeSet<PathBuf>,
}

impl RankFiles {
    /// Creates files, readable by this user only; relative paths are below `directory`. A file that
    /// was created for another rank is not created again. Fails if any other file exists at the
    /// path; that file is left unchanged.
    pub(crate) fn write(&mut self, files: &[RankFile], directory: &Path) -> io::Result<()> {
        for file in files {
            let path = directory.join(&file.path);
            if self.written.contains(&path) {
                continue;
            }
            let made = OpenOptions::new().write(true).create_new(true).mode(0o600).open(&path);
            let mut made = made.map_err(|error| named(&path, &error))?;
            self.written.insert(path.clone());
            made.write_all(&file.content).map_err(|error| named(&path, &error))?;
        }
        Ok(())
    }

    /// Removes all files. A file that is gone already is not an error.
    pub(crate) fn remove(&mut self) {
        for path in std::mem::take(&mut self.written) {
            match std::fs::remove_file(&path) {
                Err(error) if error.kind() != ErrorKind::NotFound => {
                    errln!("rlaunch-worker: cannot remove {}: {error}", path.display());
                }
                _ => {}
            }
        }
    }
}

fn named(path: &Path, error: &io::Error) -> io::Error {
    let cause = match error.kind() {
        ErrorKind::AlreadyExists => "it exists already".to_owned(),
        _ => error.to_string(),
    };
    io::Error::new(error.kind(), format!("cannot create {}: {cause}", path.display()))
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs;
    use std::os::unix::fs::PermissionsExt;

    fn file(path: &str, content: &str) -> RankFile {
        RankFile { path: path.into(), content: content.into() }
    }

    #[test]
    fn they_are_private_shared_by_ranks_and_gone_at_the_end() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("x.yaml");
        let mut files = RankFiles::default();
        for _ in 0..2 {
            files.write(&[file("x.yaml", "a: 1\n")], directory.path()).unwrap();
        }
        assert_eq!(fs::read_to_string(&path).unwrap(), "a: 1\n");
        assert_eq!(path.metadata().unwrap().permissions().mode() & 0o777, 0o600);
        files.remove();
        assert!(!path.exists());
        files.remove();
    }

    #[test]
    fn what_was_there_before_is_left_alone() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("theirs");
        fs::write(&path, "theirs").unwrap();
        let mut files = RankFiles::default();
        let error = files.write(&[file("theirs", "ours")], directory.path()).unwrap_err();
        assert!(error.to_string().ends_with("theirs: it exists already"), "{error}");
        files.remove();
        assert_eq!(fs::read_to_string(&path).unwrap(), "theirs");
    }
}
