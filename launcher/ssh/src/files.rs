//! Reading the user's files: configuration, keys, certificates, known hosts. One that blocks, as a pipe into which nobody
//! writes or a file on a server that hangs, is given up after some seconds, since all else would wait for it.

use std::collections::BTreeSet;
use std::fs::{File, Metadata};
use std::io::{self, ErrorKind, Read};
use std::path::{Path, PathBuf};
use std::sync::{Mutex, PoisonError, mpsc};
use std::thread;
use std::time::Duration;
use zeroize::Zeroizing;

/// Time limit for reading a file.
const LIMIT: Duration = Duration::from_secs(10);

/// Content of a file, which is wiped from memory after use.
pub(crate) struct Content {
    pub(crate) metadata: Metadata,
    pub(crate) bytes: Zeroizing<Vec<u8>>,
}

/// Reads a file of at most `longest` bytes.
///
/// # Errors
///
/// [`ErrorKind::TimedOut`] if that takes too long. The file is then not read again.
pub(crate) fn read(path: &Path, longest: u64) -> io::Result<Content> {
    read_within(path, longest, LIMIT)
}

fn read_within(path: &Path, longest: u64, limit: Duration) -> io::Result<Content> {
    /// Files that were given up, so that each is waited for once and not for every host.
    static GIVEN_UP: Mutex<BTreeSet<PathBuf>> = Mutex::new(BTreeSet::new());
    let given_up = || GIVEN_UP.lock().unwrap_or_else(PoisonError::into_inner);

    let late = || {
        let text = format!("it cannot be read within {} s", limit.as_secs());
        io::Error::new(ErrorKind::TimedOut, text)
    };
    if given_up().contains(path) {
        return Err(late());
    }
    let (sender, receiver) = mpsc::channel();
    let owned = path.to_owned();
    // A thread that waits for ever does not keep the process from its end.
    let reading = move || drop(sender.send(read_now(&owned, longest)));
    thread::Builder::new().name("file".to_owned()).spawn(reading)?;
    receiver.recv_timeout(limit).unwrap_or_else(|_| {
        given_up().insert(path.to_owned());
        Err(late())
    })
}

fn read_now(path: &Path, longest: u64) -> io::Result<Content> {
    let file = File::open(path)?;
    let metadata = file.metadata()?;
    let mut bytes = Zeroizing::new(Vec::new());
    file.take(longest + 1).read_to_end(&mut bytes)?;
    if bytes.len() as u64 > longest {
        let most = match longest >> 10 {
            kib @ ..1024 => format!("{kib} KiB"),
            kib => format!("{} MiB", kib >> 10),
        };
        return Err(io::Error::other(format!("longer than {most}")));
    }
    Ok(Content { metadata, bytes })
}

/// Tells whether a file is missing, by the error of reading it.
pub(crate) fn is_missing(error: &io::Error) -> bool {
    matches!(error.kind(), ErrorKind::NotFound | ErrorKind::NotADirectory)
}

/// Returns advice on a file that cannot be read; `None` if the error says it.
pub(crate) fn hint(path: &Path, error: &io::Error) -> Option<String> {
    let path = path.display();
    Some(match error.kind() {
        ErrorKind::Other => return None,
        ErrorKind::TimedOut => format!(
            "it is a pipe into which nobody writes, or on a file server that hangs; \
             `ls -lL {path}` shows it"
        ),
        _ => format!("make {path} readable for you"),
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use nix::sys::stat::Mode;
    use nix::unistd::mkfifo;
    use std::fs;
    use std::time::Instant;

    const SHORT: Duration = Duration::from_millis(200);

    #[test]
    fn a_pipe_without_a_writer_is_waited_for_once() {
        let directory = tempfile::tempdir().unwrap();
        let pipe = directory.path().join("pipe");
        mkfifo(&pipe, Mode::S_IRWXU).unwrap();
        let error = read_within(&pipe, 9, SHORT).map(drop).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::TimedOut);
        let advice = hint(&pipe, &error).unwrap();
        assert!(advice.contains("a pipe into which nobody writes"), "{advice}");
        let again = Instant::now();
        let error = read(&pipe, 9).map(drop).unwrap_err();
        assert_eq!(error.to_string(), "it cannot be read within 10 s");
        assert!(again.elapsed() < LIMIT / 2, "{:?}", again.elapsed());
    }

    #[test]
    fn a_pipe_with_a_writer_is_read_as_a_file_is() {
        let directory = tempfile::tempdir().unwrap();
        let pipe = directory.path().join("pipe");
        mkfifo(&pipe, Mode::S_IRWXU).unwrap();
        let into = pipe.clone();
        let writing = thread::spawn(move || fs::write(into, "Host a\n"));
        assert_eq!(&read(&pipe, 9).unwrap().bytes[..], b"Host a\n");
        writing.join().unwrap().unwrap();
        let error = read(Path::new("/dev/zero"), 4 << 20).map(drop).unwrap_err();
        assert_eq!(error.to_string(), "longer than 4 MiB");
        assert!(is_missing(&read(&pipe.join("x"), 9).map(drop).unwrap_err()));
    }
}
