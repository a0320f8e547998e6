//! Place and names of the sockets of running jobs: `$XDG_STATE_HOME/rlaunch/jobs/JOB@HOST.sock`, beside the
//! records of jobs that are over.
//!
//! The directory may lie on a file system that several machines share, so the name has the machine's name: a
//! socket is reachable only on the machine whose process listens.

use crate::run::record::{PARTIAL, machine};
use nix::fcntl::OFlag;
use nix::sys::stat::Mode;
use rlaunch_console::process_env::{ProcessEnv, check_private, create_state_directory};
use std::fs::{self, File};
use std::io;
use std::os::fd::AsRawFd;
use std::os::unix::fs::{OpenOptionsExt, PermissionsExt};
use std::path::{Path, PathBuf};
use tokio::net::UnixListener;

/// Directory with the sockets of a user's running jobs, held open.
#[derive(Debug)]
pub(crate) struct SocketDirectory {
    path: PathBuf,
    open: File,
}

/// Name of a socket.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct SocketName {
    /// Id of the job, 32 hexadecimal digits.
    pub job: String,
    /// Name of the machine on which the launcher runs.
    pub machine: String,
}

impl SocketDirectory {
    /// Opens the directory of this process's user, and creates it if it is missing.
    pub(crate) fn create() -> io::Result<SocketDirectory> {
        let path = Self::path_for_user()?;
        create_state_directory(&path)?;
        Self::open_at(path)
    }

    /// Opens the directory of this process's user. Returns `None` if it does not exist, because the user has never run
    /// a job.
    pub(crate) fn open() -> io::Result<Option<SocketDirectory>> {
        match Self::open_at(Self::path_for_user()?) {
            Ok(directory) => Ok(Some(directory)),
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
            Err(error) => Err(error),
        }
    }

    fn path_for_user() -> io::Result<PathBuf> {
        let state = ProcessEnv::current().state_directory();
        let none = || io::Error::other("neither XDG_STATE_HOME nor HOME names a directory");
        Ok(state.ok_or_else(none)?.join("rlaunch/jobs"))
    }

    /// Opens a directory, and checks that no other user can create files in it.
    pub(super) fn open_at(path: PathBuf) -> io::Result<SocketDirectory> {
        let open =
            File::options().read(true).custom_flags(OFlag::O_DIRECTORY.bits()).open(&path)?;
        check_private(&path, &open.metadata()?)?;
        Ok(SocketDirectory { path, open })
    }

    /// Returns a short path by which a socket can be bound or connected: an address of a Unix socket has at most 107
    /// bytes, and the path of a home directory may be longer.
    pub(crate) fn address(&self, name: &SocketName) -> PathBuf {
        self.short_path(&name.file_name())
    }

    fn short_path(&self, file_name: &str) -> PathBuf {
        let directory = format!("/proc/self/fd/{}", self.open.as_raw_fd());
        Path::new(&directory).join(file_name)
    }

    /// Returns the path of a socket, for messages.
    pub(crate) fn path(&self, name: &SocketName) -> PathBuf {
        self.path.join(name.file_name())
    }

    /// Lists the sockets, oldest job first. Ids of jobs sort by time, since they begin with it.
    pub(crate) fn sockets(&self) -> io::Result<Vec<SocketName>> {
        let mut found = Vec::new();
        for entry in fs::read_dir(&self.path)? {
            found.extend(entry?.file_name().to_str().and_then(SocketName::parse));
        }
        found.sort_unstable();
        Ok(found)
    }

    /// Makes the socket of a job, for its user alone, and listens. The socket gets its name only then: whoever finds a
    /// socket without a listener takes its launcher for killed, and removes it.
    pub(crate) fn listen(&self, name: &SocketName) -> io::Result<UnixListener> {
        let partial = self.short_path(&format!("{PARTIAL}{}", name.job));
        let listener = UnixListener::bind(&partial)?;
        let mode = Mode::S_IRUSR | Mode::S_IWUSR;
        let named = fs::set_permissions(&partial, fs::Permissions::from_mode(mode.bits()))
            .and_then(|()| fs::rename(&partial, self.address(name)));
        if let Err(error) = named {
            let _ = fs::remove_file(&partial);
            return Err(error);
        }
        Ok(listener)
    }

    /// Removes a socket. Errors are ignored: another rlaunch may have removed it.
    pub(crate) fn remove(&self, name: &SocketName) {
        let _ = fs::remove_file(self.address(name));
    }
}

impl SocketName {
    /// Makes the name of a job's socket on this machine.
    pub(crate) fn here(job: String) -> SocketName {
        SocketName { job, machine: machine() }
    }

    /// Tells whether the launcher runs on this machine.
    pub(crate) fn is_here(&self) -> bool {
        self.machine == machine()
    }

    fn file_name(&self) -> String {
        format!("{}@{}.sock", self.job, self.machine)
    }

    fn parse(file_name: &str) -> Option<SocketName> {
        let (job, machine) = file_name.strip_suffix(".sock")?.split_once('@')?;
        let is_id = job.len() == 32 && job.bytes().all(|b| matches!(b, b'0'..=b'9' | b'a'..=b'f'));
        let name = || SocketName { job: job.to_owned(), machine: machine.to_owned() };
        (is_id && !machine.is_empty()).then(name)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_of_sockets_are_read_back() {
        let name = SocketName::here("0123456789abcdef0123456789abcdef".to_owned());
        assert_eq!(SocketName::parse(&name.file_name()), Some(name.clone()));
        assert!(name.is_here());
        for other in ["x.json", "5@a.sock", "0123456789abcdef0123456789abcdef@.sock"] {
            assert_eq!(SocketName::parse(other), None, "{other}");
        }
    }

    #[test]
    fn a_directory_that_others_can_write_to_is_refused() {
        let directory = tempfile::tempdir().unwrap();
        assert!(SocketDirectory::open_at(directory.path().to_owned()).is_ok());
        fs::set_permissions(directory.path(), fs::Permissions::from_mode(0o777)).unwrap();
        let error = SocketDirectory::open_at(directory.path().to_owned()).unwrap_err();
        assert!(error.to_string().contains("other users"), "{error}");
    }

    /// Sockets are looked for while they are made. Each must be there afterwards.
    #[tokio::test]
    async fn no_look_takes_a_socket_that_is_being_made_for_a_leftover() {
        let place = tempfile::tempdir().unwrap();
        let open = || SocketDirectory::open_at(place.path().to_owned()).unwrap();
        let (directory, looking) = (open(), open());
        let (stop, stopped) = std::sync::mpsc::channel::<()>();
        let looks = std::thread::spawn(move || {
            while stopped.try_recv().is_err() {
                for name in looking.sockets().unwrap() {
                    let refused = std::os::unix::net::UnixStream::connect(looking.address(&name));
                    if refused.is_err_and(|e| e.kind() == io::ErrorKind::ConnectionRefused) {
                        looking.remove(&name);
                    }
                }
            }
        });
        let gone = (0..300_u32).filter(|number| {
            let name = SocketName::here(format!("{number:032x}"));
            let listener = directory.listen(&name).unwrap();
            let is_there = directory.address(&name).exists();
            directory.remove(&name);
            drop(listener);
            !is_there
        });
        let gone = gone.count();
        stop.send(()).unwrap();
        looks.join().unwrap();
        assert_eq!((gone, fs::read_dir(place.path()).unwrap().count()), (0, 0));
    }
}
