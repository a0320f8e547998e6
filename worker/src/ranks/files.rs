//! Files that are made for the ranks of this node, and removed at the end of the job: [`JobFiles`]
//! while the job is prepared, [`RankFiles`] when ranks start.

use crate::cleanup::workspace::Workspace;
use crate::console::errln;
use crate::node::delivery::{HelperDownload, Located};
use nix::fcntl::OFlag;
use rlaunch_bootstrap::job::{Job, PreloadFile, Problem, RankFile, ScriptCheck};
use rlaunch_bootstrap::protocol::control::{Helper, HelperFile};
use std::collections::BTreeSet;
use std::ffi::{OsStr, OsString};
use std::fs::{DirBuilder, File, Metadata, OpenOptions};
use std::io::{self, ErrorKind, Read, Write};
use std::os::unix::fs::{DirBuilderExt, OpenOptionsExt, symlink};
use std::path::{Path, PathBuf};

/// The node's copies of `--copy` files, and the job's private directory that contains them.
#[derive(Debug)]
pub(crate) struct JobFiles {
    /// `None` if the directory could not be created, which is allowed only if no files are to be
    /// copied.
    workspace: Option<PathBuf>,
    /// Reason why the directory could not be created.
    workspace_error: Option<String>,
    /// Parent directories that are not usable, with the causes; `None` if the directory is in the best one.
    passed_over: Option<String>,
    /// TMPDIR for ranks; `None` if they keep the host's.
    tmpdir: Option<PathBuf>,
    directory: PathBuf,
    files: Vec<PreloadFile>,
    open: Option<File>,
    received: usize,
    /// The program that copies files; `None` unless ranks run it.
    copier: Option<Copier>,
}

/// Program that copies files, of which there is a link beside the copies of files.
#[derive(Debug)]
enum Copier {
    /// The launcher has not said yet which one it is.
    Awaited,
    Downloading(HelperDownload),
    Placed,
}

impl JobFiles {
    /// Returns the directory that contains the job's private one: the host's TMPDIR, if that is usable.
    pub(super) fn parent(&self) -> &Path {
        self.directory.ancestors().nth(2).unwrap_or(Path::new("/tmp"))
    }

    /// Creates the directories, accessible to this user only.
    pub(crate) fn create(job: &Job, workspace: &Workspace) -> Result<JobFiles, Problem> {
        let has_files = !job.preload.is_empty() || job.runs_copier;
        let workspace_error = workspace.create(job.id).err();
        let made = match (workspace.files(), &workspace_error) {
            (Some(path), _) => path,
            // A job can do without a TMPDIR of its own, but not without its files.
            (None, Some(cause)) if has_files => {
                return Err(Problem::PreloadFailed {
                    operation: "create a directory for the files".to_owned(),
                    cause: cause.clone(),
                });
            }
            (None, _) => Path::new(""),
        };
        let directory = made.join("preload");
        if has_files {
            DirBuilder::new()
                .mode(0o700)
                .create(&directory)
                .map_err(|error| preload_failed("create", &directory, &error))?;
        }
        Ok(JobFiles {
            workspace: workspace.path().map(Path::to_owned),
            workspace_error,
            passed_over: workspace.passed_over().map(str::to_owned),
            tmpdir: workspace.tmpdir().map(Path::to_owned),
            directory,
            files: job.preload.clone(),
            open: None,
            received: 0,
            copier: job.runs_copier.then_some(Copier::Awaited),
        })
    }

    /// Returns the job's private directory, if there is one.
    pub(crate) fn workspace(&self) -> Option<&Path> {
        self.workspace.as_deref()
    }

    /// Returns the reason why there is no private directory, if it could not be created.
    pub(super) fn workspace_error(&self) -> Option<&str> {
        self.workspace_error.as_deref()
    }

    /// Returns the directories in which the private one could not be created, with the causes, if it is in another one.
    pub(super) fn passed_over(&self) -> Option<&str> {
        self.passed_over.as_deref()
    }

    /// Returns the TMPDIR for ranks, unless they keep the host's.
    pub(super) fn tmpdir(&self) -> Option<&Path> {
        self.tmpdir.as_deref()
    }

    /// Returns the directory of the copies, if there are any.
    pub(super) fn directory(&self) -> Option<&Path> {
        let has_files = !self.files.is_empty() || self.copier.is_some();
        has_files.then_some(&*self.directory)
    }

    /// Tells whether every file has arrived.
    pub(crate) fn is_complete(&self) -> bool {
        let has_copier = matches!(self.copier, None | Some(Copier::Placed));
        self.received == self.files.len() && has_copier
    }

    /// Looks for the program that copies files among those that this node keeps. Returns whether the launcher has to send
    /// it.
    pub(crate) fn locate_copier(&mut self, file: HelperFile) -> Result<bool, Problem> {
        match HelperDownload::locate(Helper::Copier, file).map_err(copier_failed)? {
            Located::Cached(path) => self.place_copier(&path).map(|()| false),
            Located::Missing(download) => {
                self.copier = Some(Copier::Downloading(download));
                Ok(true)
            }
        }
    }

    /// Takes a part of that program; an empty part ends it.
    pub(crate) fn receive_copier(&mut self, part: &[u8]) -> Result<(), Problem> {
        let Some(Copier::Downloading(download)) = &mut self.copier else { return Ok(()) };
        match download.receive(part).map_err(copier_failed)? {
            Some(path) => self.place_copier(&path),
            None => Ok(()),
        }
    }

    fn place_copier(&mut self, path: &Path) -> Result<(), Problem> {
        let link = self.directory.join(Helper::Copier.name());
        symlink(path, &link).map_err(|error| preload_failed("create", &link, &error))?;
        self.copier = Some(Copier::Placed);
        Ok(())
    }

    /// Appends a part to the current file; an empty part ends the file.
    pub(crate) fn receive(&mut self, index: u32, data: &[u8]) -> Result<(), Problem> {
        let spec = self.files.get(self.received).filter(|_| index as usize == self.received);
        let Some(spec) = spec else {
            return Err(Problem::PreloadFailed {
                operation: format!("receive part of file {index}"),
                cause: format!("expected file {}", self.received),
            });
        };
        let path = self.directory.join(&spec.name);
        let file = match &mut self.open {
            Some(file) => file,
            None => self.open.insert(
                OpenOptions::new()
                    .write(true)
                    .create_new(true)
                    .mode(spec.mode & 0o777)
                    .open(&path)
                    .map_err(|error| preload_failed("create", &path, &error))?,
            ),
        };
        file.write_all(data).map_err(|error| preload_failed("write", &path, &error))?;
        if data.is_empty() {
            self.open = None;
            self.received += 1;
        }
        Ok(())
    }

    /// Replaces arguments that name a preloaded file with the path of its copy. `own` has the
    /// indices of the application's files.
    pub(super) fn redirect(&self, argv: &mut [OsString], own: &[u32]) {
        let copier = self.copier.as_ref().map(|_| OsStr::new(Helper::Copier.name()));
        for argument in argv {
            let file = self.named(argument, own).map(|file| file.name.as_os_str());
            let is_copier = |name: &&OsStr| argument.as_os_str() == *name;
            if let Some(name) = file.or(copier.filter(is_copier)) {
                *argument = self.directory.join(name).into();
            }
        }
    }

    /// Tells whether a script is one of the application's files.
    pub(super) fn redirects(&self, script: &ScriptCheck, own: &[u32]) -> bool {
        self.named(script.path.as_os_str(), own).is_some()
    }

    /// Finds the file that an argument names, with or without `./` in front.
    pub(super) fn named(&self, argument: &OsStr, own: &[u32]) -> Option<&PreloadFile> {
        let bare = argument.to_str().and_then(|text| text.strip_prefix("./")).map(OsStr::new);
        let mut files = own.iter().filter_map(|&index| self.files.get(index as usize));
        files.find(|file| {
            let names = [file.typed_path.as_os_str(), &file.name];
            names.contains(&argument) || bare.is_some_and(|bare| names.contains(&bare))
        })
    }
}

fn copier_failed(cause: String) -> Problem {
    Problem::PreloadFailed { operation: format!("keep {}", Helper::Copier.name()), cause }
}

fn preload_failed(operation: &str, path: &Path, error: &io::Error) -> Problem {
    Problem::PreloadFailed {
        operation: format!("{operation} {}", path.display()),
        cause: error.to_string(),
    }
}

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
            let mut made = made.map_err(|error| cannot_create(&path, &error))?;
            self.written.insert(path.clone());
            made.write_all(&file.content).map_err(|error| cannot_create(&path, &error))?;
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

/// Returns the content of a regular file of at most `limit` bytes that is not empty; `None` of anything else. It is read while
/// others wait, so it must not be one that waits itself, such as a pipe.
pub(super) fn read_small(path: &Path, limit: usize) -> Option<Vec<u8>> {
    let flags = (OFlag::O_NOFOLLOW | OFlag::O_NONBLOCK).bits();
    let file = OpenOptions::new().read(true).custom_flags(flags).open(path).ok()?;
    file.metadata().ok().filter(Metadata::is_file)?;
    let mut content = Vec::new();
    file.take(limit as u64 + 1).read_to_end(&mut content).ok()?;
    (!content.is_empty() && content.len() <= limit).then_some(content)
}

fn cannot_create(path: &Path, error: &io::Error) -> io::Error {
    let cause = match error.kind() {
        ErrorKind::AlreadyExists => "it exists already".to_owned(),
        _ => error.to_string(),
    };
    io::Error::new(error.kind(), format!("cannot create {}: {cause}", path.display()))
}

#[cfg(test)]
mod tests {
    use super::*;
    use sha2::{Digest, Sha256};
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
    fn only_a_small_regular_file_is_read() {
        let directory = tempfile::tempdir().unwrap();
        let path = |name: &str| directory.path().join(name);
        fs::write(path("small"), "{}").unwrap();
        fs::write(path("long"), "12345").unwrap();
        fs::write(path("empty"), "").unwrap();
        symlink("small", path("link")).unwrap();
        nix::unistd::mkfifo(&path("pipe"), nix::sys::stat::Mode::S_IRWXU).unwrap();
        assert_eq!(read_small(&path("small"), 4), Some(b"{}".to_vec()));
        for none in ["long", "empty", "link", "pipe", "missing", ""] {
            assert_eq!(read_small(&path(none), 4), None, "{none}");
        }
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

    #[test]
    fn the_copier_is_a_link_to_what_the_node_keeps() {
        let directory = tempfile::tempdir().unwrap();
        let mut files = JobFiles {
            workspace: None,
            workspace_error: None,
            passed_over: None,
            tmpdir: None,
            directory: directory.path().to_owned(),
            files: Vec::new(),
            open: None,
            received: 0,
            copier: Some(Copier::Awaited),
        };
        let content = b"#!/bin/true\n# copies\n";
        let (sha256, size) = (Sha256::digest(content).into(), content.len() as u64);
        let wanted = HelperFile { sha256, size };
        assert!(!files.is_complete());
        assert!(files.locate_copier(wanted.clone()).unwrap(), "it is kept already");
        files.receive_copier(content).unwrap();
        assert!(!files.is_complete());
        files.receive_copier(&[]).unwrap();
        assert!(files.is_complete());
        let mut argv = vec![OsString::from("rlaunch-copier"), "receive".into()];
        files.redirect(&mut argv, &[]);
        assert_eq!(
            argv,
            [directory.path().join("rlaunch-copier").into(), OsString::from("receive")]
        );
        assert_eq!(fs::read(&argv[0]).unwrap(), content);
        // The next job has it at once.
        let link = Path::new(&argv[0]);
        let kept = fs::read_link(link).unwrap();
        fs::remove_file(link).unwrap();
        assert!(!files.locate_copier(wanted).unwrap());
        assert_eq!(fs::read_link(link).unwrap(), kept);
        fs::remove_file(kept).unwrap();
    }
}
