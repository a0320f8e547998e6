//! Connection to the debugger at which a rank waits.

use crate::cleanup::processes;
use nix::sys::socket::{AddressFamily, SockFlag, SockType, UnixAddr, connect, socket};
use nix::unistd::{Pid, Uid};
use rlaunch_bootstrap::id::Rank;
use rlaunch_bootstrap::job::ExitStatus;
use rlaunch_bootstrap::protocol::session::{FromSession, SessionError};
use std::fs::{self, File};
use std::io;
use std::os::fd::AsRawFd;
use std::os::unix::net::UnixStream as BlockingStream;
use std::path::{Path, PathBuf};
use tokio::net::UnixStream;

/// Connection to the debugger at which a rank waits: `rlaunch.breakpoint()` in a process of a rank listens at
/// `debug-RANK-PID.sock` in the job's directory, and removes the socket when the program goes on.
pub(super) struct Debugger {
    pub(super) stream: UnixStream,
    pub(super) path: PathBuf,
    /// Process that waits.
    pub(super) pid: Pid,
}

impl Debugger {
    /// Connects to the process of the rank that waits, or to one of them that has no client yet.
    pub(super) fn connect(
        directory: &Path,
        rank: Rank,
        is_taken: impl Fn(&PathBuf) -> bool,
    ) -> Result<Debugger, SessionError> {
        let mut error = SessionError::NotAtBreakpoint;
        for (pid, path) in waiting_processes(directory, rank) {
            if is_taken(&path) {
                error = SessionError::Attached;
                continue;
            }
            match connect_to_socket(directory, &path) {
                Ok(stream) => return Ok(Debugger { stream, path, pid }),
                // The process was killed while it waited.
                Err(cause) if cause.kind() == io::ErrorKind::ConnectionRefused => {
                    let _ = fs::remove_file(&path);
                }
                Err(cause) => {
                    let operation = format!("connect to {}", path.display());
                    error = SessionError::cannot(operation, &cause);
                }
            }
        }
        Err(error)
    }

    /// Tells how the rank goes on after its debugger has closed the connection.
    pub(super) fn outcome(path: &Path, pid: Pid) -> FromSession {
        if !path.exists() {
            // The program went on, maybe to its end already.
            FromSession::Ended(ExitStatus::Code(0))
        } else if processes::is_exiting(pid) {
            FromSession::Failed(SessionError::RankEnded)
        } else {
            FromSession::Detached
        }
    }
}

/// Lists the processes of a rank that wait, by process id, with their sockets.
fn waiting_processes(directory: &Path, rank: Rank) -> Vec<(Pid, PathBuf)> {
    let entries = fs::read_dir(directory).into_iter().flatten().flatten();
    let mut found: Vec<(Pid, PathBuf)> = entries
        .filter_map(|entry| {
            let name = entry.file_name();
            let words = name.to_str()?.strip_prefix("debug-")?.strip_suffix(".sock")?;
            let (of, pid) = words.split_once('-')?;
            let is_of_rank = of.parse() == Ok(rank.0);
            is_of_rank.then_some((Pid::from_raw(pid.parse().ok()?), entry.path()))
        })
        .collect();
    found.sort_unstable();
    found
}

/// Connects to a socket in `directory`, without waiting, and checks that its owner is this user.
fn connect_to_socket(directory: &Path, path: &Path) -> io::Result<UnixStream> {
    let directory = File::open(directory)?;
    // The address of a socket has at most 107 bytes, so it is not the whole path.
    let name = path.file_name().unwrap_or_default();
    let address = Path::new("/proc/self/fd").join(directory.as_raw_fd().to_string()).join(name);
    let flags = SockFlag::SOCK_NONBLOCK | SockFlag::SOCK_CLOEXEC;
    let socket = socket(AddressFamily::Unix, SockType::Stream, flags, None)?;
    connect(socket.as_raw_fd(), &UnixAddr::new(&address)?)?;
    let stream = UnixStream::from_std(BlockingStream::from(socket))?;
    if stream.peer_cred()?.uid() != Uid::effective().as_raw() {
        return Err(io::Error::new(io::ErrorKind::PermissionDenied, "another user listens there"));
    }
    Ok(stream)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::net::UnixListener;

    #[test]
    fn a_program_that_went_on_is_told_from_one_that_was_killed() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("debug-3-7.sock");
        let mut ended = std::process::Command::new("true").spawn().unwrap();
        let pid = Pid::from_raw(ended.id().cast_signed());
        ended.wait().unwrap();
        assert_eq!(Debugger::outcome(&path, pid), FromSession::Ended(ExitStatus::Code(0)));
        drop(UnixListener::bind(&path).unwrap());
        let killed = FromSession::Failed(SessionError::RankEnded);
        assert_eq!(Debugger::outcome(&path, pid), killed);
        assert_eq!(Debugger::outcome(&path, Pid::this()), FromSession::Detached);
    }

    #[tokio::test]
    async fn the_first_process_without_a_client_is_connected() {
        let directory = tempfile::tempdir().unwrap();
        let path = |name: &str| directory.path().join(name);
        let [_first, _second, _other] = ["debug-3-20.sock", "debug-3-7.sock", "debug-31-1.sock"]
            .map(|name| UnixListener::bind(path(name)).unwrap());
        drop(UnixListener::bind(path("debug-3-5.sock")).unwrap());
        let connect = |rank, taken: &[&str]| {
            let taken: Vec<PathBuf> = taken.iter().map(|name| path(name)).collect();
            let connected =
                Debugger::connect(directory.path(), Rank(rank), |path| taken.contains(path));
            connected.map(|debugger| debugger.pid.as_raw())
        };
        assert_eq!(connect(3, &[]), Ok(7));
        assert!(!path("debug-3-5.sock").exists());
        assert_eq!(connect(3, &["debug-3-7.sock"]), Ok(20));
        let both = ["debug-3-7.sock", "debug-3-20.sock"];
        assert_eq!(connect(3, &both), Err(SessionError::Attached));
        assert_eq!(connect(4, &[]), Err(SessionError::NotAtBreakpoint));
    }
}
