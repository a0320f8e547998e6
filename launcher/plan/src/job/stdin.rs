//! `--stdin`: which ranks read standard input, and the source of that input.

use rlaunch_bootstrap::id::Rank;
use rlaunch_text::exit::Exit;
use rlaunch_text::message::Failed;
use std::convert::Infallible;
use std::fs::{self, File, FileType};
use std::io;
use std::os::fd::{AsFd, BorrowedFd};
use std::os::unix::fs::FileTypeExt;
use std::path::PathBuf;
use std::str::FromStr;

/// Value of `--stdin`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum StdinArg {
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

/// Source and readers of standard input.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Stdin {
    pub readers: Readers,
    /// File to read in place of this process's own standard input.
    pub file: Option<PathBuf>,
}

/// Ranks that read standard input. The others have /dev/null.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Readers {
    None,
    One(Rank),
    All,
}

impl Readers {
    pub fn has(self, rank: Rank) -> bool {
        match self {
            Readers::None => false,
            Readers::One(reader) => reader == rank,
            Readers::All => true,
        }
    }
}

#[derive(Debug, thiserror::Error)]
pub enum StdinError {
    #[error("cannot read {} (--stdin)", path.display())]
    File { path: PathBuf, source: io::Error },
}

impl StdinError {
    pub fn hint(&self) -> Option<String> {
        Some("--stdin takes a rank, all, none or a file".into())
    }
}

impl Stdin {
    /// Determines the source and the readers of standard input from the value of `--stdin`. Without the
    /// option, rank 0 reads standard input if that is a pipe, a socket or a file. A terminal is not read,
    /// since reading it would stop an rlaunch that runs in the background.
    pub fn from_option(option: Option<&StdinArg>) -> Result<Stdin, StdinError> {
        let own = |readers| Stdin { readers, file: None };
        match option {
            None if has_data(io::stdin().as_fd()) => Ok(own(Readers::One(Rank(0)))),
            None | Some(StdinArg::None) => Ok(own(Readers::None)),
            Some(StdinArg::All) => Ok(own(Readers::All)),
            Some(StdinArg::Rank(rank)) => Ok(own(Readers::One(Rank(*rank)))),
            Some(StdinArg::File(path)) => {
                let failed = |source| StdinError::File { path: path.clone(), source };
                let kind = fs::metadata(path).map_err(failed)?.file_type();
                if kind.is_dir() {
                    return Err(failed(io::ErrorKind::IsADirectory.into()));
                }
                // Opening a named pipe would wait for its writer, who would lose his reader right after.
                if !kind.is_fifo() {
                    File::open(path).map_err(failed)?;
                }
                Ok(Stdin { readers: Readers::One(Rank(0)), file: Some(path.clone()) })
            }
        }
    }

    /// Does the same for a job that outlives its terminal. Without the option it reads a file alone: whoever writes to a pipe
    /// may be gone before it.
    pub fn of_detached(option: Option<&StdinArg>) -> Result<Stdin, StdinError> {
        match option {
            None if !is_file(io::stdin().as_fd()) => Stdin::from_option(Some(&StdinArg::None)),
            option => Stdin::from_option(option),
        }
    }

    /// Returns the standard input of a restarted job. A file is read again. Without a file no rank reads
    /// standard input, since the first attempt may have consumed it.
    pub fn for_restart(self) -> Stdin {
        let readers = if self.file.is_some() { self.readers } else { Readers::None };
        Stdin { readers, ..self }
    }

    pub fn is_read_by(&self, rank: Rank) -> bool {
        self.readers.has(rank)
    }

    /// Returns an error if `--stdin` names a rank that does not exist in a job of `ranks` ranks.
    pub fn check(&self, ranks: u32) -> Result<(), Failed> {
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

/// Tells whether an inherited stdin is a pipe, a socket or a file, and not a terminal or /dev/null.
fn has_data(stdin: BorrowedFd<'_>) -> bool {
    kind_of(stdin).is_ok_and(|kind| kind.is_fifo() || kind.is_socket() || kind.is_file())
}

fn is_file(stdin: BorrowedFd<'_>) -> bool {
    kind_of(stdin).is_ok_and(|kind| kind.is_file())
}

fn kind_of(stdin: BorrowedFd<'_>) -> io::Result<FileType> {
    Ok(File::from(stdin.try_clone_to_owned()?).metadata()?.file_type())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parsed(text: &str) -> StdinArg {
        let Ok(value) = text.parse();
        value
    }

    #[test]
    fn what_is_typed_is_told_apart() {
        assert_eq!(parsed("none"), StdinArg::None);
        assert_eq!(parsed("all"), StdinArg::All);
        assert_eq!(parsed("3"), StdinArg::Rank(3));
        assert_eq!(parsed("./3"), StdinArg::File("./3".into()));
    }

    #[test]
    fn who_reads_is_checked() {
        let three = Stdin::from_option(Some(&StdinArg::Rank(3))).unwrap();
        assert!(three.is_read_by(Rank(3)) && !three.is_read_by(Rank(0)));
        assert_eq!(three.check(3).unwrap_err().message, "--stdin 3: ranks are 0 to 2");
        assert!(three.check(4).is_ok());
        let all = Stdin::from_option(Some(&StdinArg::All)).unwrap();
        assert!(all.is_read_by(Rank(7)));
        assert!(!Stdin::from_option(Some(&StdinArg::None)).unwrap().is_read_by(Rank(0)));
        let missing = Stdin::from_option(Some(&parsed("/no/such/file"))).unwrap_err();
        assert_eq!(missing.to_string(), "cannot read /no/such/file (--stdin)");
        assert!(Stdin::from_option(Some(&parsed("/tmp"))).is_err());
    }

    #[test]
    fn pipes_and_files_carry_something() {
        let (pipe, _other) = io::pipe().unwrap();
        assert!(has_data(pipe.as_fd()));
        assert!(has_data(tempfile::tempfile().unwrap().as_fd()));
        assert!(is_file(tempfile::tempfile().unwrap().as_fd()) && !is_file(pipe.as_fd()));
        assert!(!has_data(File::open("/dev/null").unwrap().as_fd()));
    }
}
