//! Reading the user's files: configuration, keys, certificates, known hosts. One that blocks, as on a server that hangs, is
//! given up after some seconds, since all else would wait for it. What is no file, as a named pipe, is refused at once.

use std::collections::BTreeSet;
use std::fs::{self, File, Metadata};
use std::io::{self, ErrorKind, Read};
use std::os::unix::fs::{FileTypeExt, MetadataExt};
use std::path::{Path, PathBuf};
use std::sync::{Mutex, MutexGuard, PoisonError, mpsc};
use std::thread;
use std::time::Duration;
use tokio::runtime::{Handle, RuntimeFlavor};
use zeroize::Zeroizing;

/// Time limit for reading a file.
const LIMIT: Duration = Duration::from_secs(10);
/// Time in which nearly every file is read.
const PROMPT: Duration = Duration::from_millis(20);

/// Content of a file, which is wiped from memory after use.
pub(crate) struct Content {
    pub(crate) metadata: Metadata,
    pub(crate) bytes: Zeroizing<Vec<u8>>,
}

/// Waits for a file. Other tasks of the runtime go on meanwhile: signals, `--timeout`, connections to other hosts.
fn aside<T>(work: impl FnOnce() -> T) -> T {
    match Handle::try_current().map(|handle| handle.runtime_flavor()) {
        Ok(RuntimeFlavor::MultiThread) => tokio::task::block_in_place(work),
        _ => work(),
    }
}

/// Reads a file of at most `longest` bytes.
///
/// # Errors
///
/// [`ErrorKind::Other`], which says the kind, if the path is of something else than a file.
/// [`ErrorKind::TimedOut`] if that takes too long. The file is not read again while it blocks.
pub(crate) fn read(path: &Path, longest: u64) -> io::Result<Content> {
    read_within(path, longest, LIMIT)
}

/// Files that were given up and still block, so that each is waited for once and not for every host.
static GIVEN_UP: Mutex<BTreeSet<PathBuf>> = Mutex::new(BTreeSet::new());

fn given_up() -> MutexGuard<'static, BTreeSet<PathBuf>> {
    GIVEN_UP.lock().unwrap_or_else(PoisonError::into_inner)
}

fn read_within(path: &Path, longest: u64, limit: Duration) -> io::Result<Content> {
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
    let reading = move || {
        // An error means that nobody waits any more.
        let _ = sender.send(read_now(&owned, longest));
        given_up().remove(&owned);
    };
    thread::Builder::new().name("file".to_owned()).spawn(reading)?;
    // Another thread of the runtime costs memory that few starts need.
    let prompt = receiver.recv_timeout(PROMPT.min(limit));
    let read = prompt.or_else(|_| aside(|| receiver.recv_timeout(limit.saturating_sub(PROMPT))));
    read.unwrap_or_else(|_| {
        given_up().insert(path.to_owned());
        // What comes from now on removes it.
        let Ok(read) = receiver.try_recv() else { return Err(late()) };
        given_up().remove(path);
        read
    })
}

/// Returns what is at a path in place of a file; `None` if it is one. The null device is an empty file, and a pipe that this
/// process was started with (`<(…)` of a shell) is read as one.
fn other_kind(path: &Path, metadata: &Metadata) -> Option<&'static str> {
    let kind = metadata.file_type();
    let is_inherited =
        ["/dev/fd", "/proc/self/fd", "/dev/stdin"].iter().any(|at| path.starts_with(at));
    // Device 1:3 is the null device on every Linux.
    let is_null = kind.is_char_device() && metadata.rdev() == 0x103;
    if kind.is_file() || is_null || (is_inherited && kind.is_fifo()) {
        None
    } else if kind.is_fifo() {
        Some("a named pipe")
    } else if kind.is_dir() {
        Some("a directory")
    } else if kind.is_socket() {
        Some("a socket")
    } else {
        Some("a device")
    }
}

fn read_now(path: &Path, longest: u64) -> io::Result<Content> {
    // Opening a named pipe would wait for a writer.
    if let Some(kind) = other_kind(path, &fs::metadata(path)?) {
        return Err(io::Error::other(format!("it is {kind}, and no file")));
    }
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
    use std::io::Write;
    use std::os::fd::AsRawFd;
    use std::time::Instant;

    const SHORT: Duration = Duration::from_millis(200);

    /// Returns the path of this process's own descriptor, as a shell puts it in the place of `<(…)`.
    fn own(descriptor: &impl AsRawFd) -> PathBuf {
        format!("/dev/fd/{}", descriptor.as_raw_fd()).into()
    }

    #[test]
    fn a_file_that_blocks_is_waited_for_once() {
        let (reader, writer) = nix::unistd::pipe().unwrap();
        // A path that no other test reads, since it is given up for the whole process.
        let pipe = PathBuf::from(format!("/proc/self/fd/{}", reader.as_raw_fd()));
        let error = read_within(&pipe, 9, SHORT).map(drop).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::TimedOut);
        let advice = hint(&pipe, &error).unwrap();
        assert!(advice.contains("a pipe into which nobody writes"), "{advice}");
        let again = Instant::now();
        let error = read(&pipe, 9).map(drop).unwrap_err();
        assert_eq!(error.to_string(), "it cannot be read within 10 s");
        assert!(again.elapsed() < LIMIT / 2, "{:?}", again.elapsed());
        // A server that answers again.
        drop(writer);
        while let Err(error) = read(&pipe, 9).map(drop) {
            assert_eq!(error.kind(), ErrorKind::TimedOut);
            assert!(again.elapsed() < 6 * LIMIT, "{:?}", again.elapsed());
            thread::sleep(Duration::from_millis(10));
        }
    }

    #[test]
    fn a_pipe_that_this_process_was_given_is_read_as_a_file_is() {
        let (reader, writer) = nix::unistd::pipe().unwrap();
        File::from(writer).write_all(b"Host a\n").unwrap();
        assert_eq!(&read(&own(&reader), 9).unwrap().bytes[..], b"Host a\n");
        let directory = tempfile::tempdir().unwrap();
        let long = directory.path().join("long");
        File::create(&long).unwrap().set_len((4 << 20) + 1).unwrap();
        let error = read(&long, 4 << 20).map(drop).unwrap_err();
        assert_eq!(error.to_string(), "longer than 4 MiB");
        assert!(is_missing(&read(&long.join("x"), 9).map(drop).unwrap_err()));
    }

    #[test]
    fn what_is_no_file_is_refused_at_once() {
        let directory = tempfile::tempdir().unwrap();
        let [pipe, socket] = ["pipe", "socket"].map(|name| directory.path().join(name));
        mkfifo(&pipe, Mode::S_IRWXU).unwrap();
        let _listener = std::os::unix::net::UnixListener::bind(&socket).unwrap();
        let began = Instant::now();
        for (path, kind) in [
            (pipe.as_path(), "a named pipe"),
            (socket.as_path(), "a socket"),
            (directory.path(), "a directory"),
            (Path::new("/dev/zero"), "a device"),
        ] {
            let error = read(path, 9).map(drop).unwrap_err();
            assert_eq!(error.to_string(), format!("it is {kind}, and no file"));
            assert_eq!(hint(path, &error), None);
        }
        assert!(began.elapsed() < LIMIT / 2, "{:?}", began.elapsed());
        assert!(read(Path::new("/dev/null"), 9).unwrap().bytes.is_empty());
    }

    /// As many files block as the runtime has threads.
    #[test]
    fn a_file_that_blocks_holds_nothing_else_up() {
        let mut builder = tokio::runtime::Builder::new_multi_thread();
        let runtime = builder.worker_threads(1).enable_time().build().unwrap();
        let (reader, writer) = nix::unistd::pipe().unwrap();
        let reading = runtime.spawn(async move { read(&own(&reader), 9).map(drop) });
        // The writer goes by a task of the only thread.
        let ending = runtime.spawn(async move {
            tokio::time::sleep(SHORT).await;
            drop(writer);
        });
        let began = Instant::now();
        runtime.block_on(async { tokio::join!(reading, ending) }).0.unwrap().unwrap();
        assert!(began.elapsed() < LIMIT / 2, "{:?}", began.elapsed());
    }
}
