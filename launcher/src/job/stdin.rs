//! `--stdin`: which ranks read standard input, and from where.

use rlaunch_bootstrap::id::Rank;
use rlaunch_console::exit::Exit;
use rlaunch_console::messages::Failed;
use std::convert::Infallible;
use std::fs::File;
use std::io;
use std::os::fd::{AsFd, BorrowedFd};
use std::os::unix::fs::FileTypeExt;
use std::path::PathBuf;
use std::str::FromStr;

/// `--stdin` as it was typed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum StdinArg {
    None,
    All,
    Rank(u32),
    File(PathBuf),
}

impl FromStr for StdinArg {
    type Err = Infallible;

    fn from_str(text: &str) -> Result<StdinArg, Infallible> {
        Ok(match text {
            "none" => StdinArg::None,
            "all" => StdinArg::All,
            _ => match text.parse() {
                Ok(rank) => StdinArg::Rank(rank),
                Err(_) => StdinArg::File(text.into()),
            },
        })
    }
}

/// Ranks that read standard input, and the file it comes from.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Stdin {
    pub(crate) readers: Readers,
    /// In place of this process's own.
    pub(crate) file: Option<PathBuf>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Readers {
    Nobody,
    One(Rank),
    All,
}

/// A `--stdin` that cannot be meant.
#[derive(Debug, thiserror::Error)]
pub(crate) enum StdinError {
    #[error("cannot read {} (--stdin)", path.display())]
    File { path: PathBuf, source: io::Error },
}

impl StdinError {
    /// Says what could be meant.
    pub(crate) fn hint(&self) -> Option<String> {
        Some("--stdin takes a rank, all, none or a file".into())
    }
}

impl Stdin {
    /// Follows the option. Without one, rank 0 reads a pipe or a file; a terminal is left alone, since
    /// reading it from the background would stop the job.
    pub(crate) fn of(asked: Option<&StdinArg>) -> Result<Stdin, StdinError> {
        let own = |readers| Stdin { readers, file: None };
        match asked {
            None if carries_something(io::stdin().as_fd()) => Ok(own(Readers::One(Rank(0)))),
            None | Some(StdinArg::None) => Ok(own(Readers::Nobody)),
            Some(StdinArg::All) => Ok(own(Readers::All)),
            Some(StdinArg::Rank(rank)) => Ok(own(Readers::One(Rank(*rank)))),
            Some(StdinArg::File(path)) => {
                let failed = |source| StdinError::File { path: path.clone(), source };
                let metadata = File::open(path).and_then(|file| file.metadata()).map_err(failed)?;
                if metadata.is_dir() {
                    return Err(failed(io::ErrorKind::IsADirectory.into()));
                }
                Ok(Stdin { readers: Readers::One(Rank(0)), file: Some(path.clone()) })
            }
        }
    }

    /// Returns what another attempt at the same job reads: a file anew, and nothing of what the first has
    /// taken from this process's own.
    pub(crate) fn once_more(self) -> Stdin {
        let readers = if self.file.is_some() { self.readers } else { Readers::Nobody };
        Stdin { readers, ..self }
    }

    /// Whether a rank reads it; the others find nothing.
    pub(crate) fn is_read_by(&self, rank: Rank) -> bool {
        match self.readers {
            Readers::Nobody => false,
            Readers::One(reader) => reader == rank,
            Readers::All => true,
        }
    }

    /// Whether there are so many ranks.
    pub(crate) fn check(&self, ranks: u32) -> Result<(), Failed> {
        match self.readers {
            Readers::One(Rank(rank)) if rank >= ranks => {
                let last = ranks.saturating_sub(1);
                let message = format!("--stdin {rank}: ranks are 0 to {last}");
                let hint = format!("a file of that name is ./{rank}");
                Err(Failed::new(Exit::USAGE, message).hint(Some(hint)))
            }
            _ => Ok(()),
        }
    }
}

/// Whether an inherited stdin is a pipe, a socket or a file, not a terminal or /dev/null.
fn carries_something(stdin: BorrowedFd<'_>) -> bool {
    let file = stdin.try_clone_to_owned().map(File::from);
    let kind = file.and_then(|file| file.metadata()).map(|metadata| metadata.file_type());
    kind.is_ok_and(|kind| kind.is_fifo() || kind.is_socket() || kind.is_file())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn asked(text: &str) -> StdinArg {
        let Ok(asked) = text.parse();
        asked
    }

    #[test]
    fn what_is_typed_is_told_apart() {
        assert_eq!(asked("none"), StdinArg::None);
        assert_eq!(asked("all"), StdinArg::All);
        assert_eq!(asked("3"), StdinArg::Rank(3));
        assert_eq!(asked("./3"), StdinArg::File("./3".into()));
    }

    #[test]
    fn who_reads_is_checked() {
        let three = Stdin::of(Some(&StdinArg::Rank(3))).unwrap();
        assert!(three.is_read_by(Rank(3)) && !three.is_read_by(Rank(0)));
        assert_eq!(three.check(3).unwrap_err().message, "--stdin 3: ranks are 0 to 2");
        assert!(three.check(4).is_ok());
        let all = Stdin::of(Some(&StdinArg::All)).unwrap();
        assert!(all.is_read_by(Rank(7)));
        assert!(!Stdin::of(Some(&StdinArg::None)).unwrap().is_read_by(Rank(0)));
        let missing = Stdin::of(Some(&asked("/no/such/file"))).unwrap_err();
        assert_eq!(missing.to_string(), "cannot read /no/such/file (--stdin)");
        assert!(Stdin::of(Some(&asked("/tmp"))).is_err());
    }

    #[test]
    fn pipes_and_files_carry_something() {
        let (pipe, _other) = io::pipe().unwrap();
        assert!(carries_something(pipe.as_fd()));
        assert!(carries_something(tempfile::tempfile().unwrap().as_fd()));
        assert!(!carries_something(File::open("/dev/null").unwrap().as_fd()));
    }
}
