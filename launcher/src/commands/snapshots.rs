//! What `rlaunch up` has left on hosts: `$XDG_STATE_HOME/rlaunch/up` has a file for each, which `rlaunch doctor --since-up`
//! compares with.

use rlaunch_console::process_env::{ProcessEnv, create_state_directory};
use rlaunch_plan::up::Snapshot;
use rlaunch_text::exit::Exit;
use rlaunch_text::message::Failed;
use std::fs;
use std::io::{self, ErrorKind, Write};
use std::path::PathBuf;

/// Directory of snapshots.
pub(super) struct Snapshots {
    directory: PathBuf,
}

impl Snapshots {
    /// Returns those of this user; fails if there is no state directory.
    pub(super) fn of_user() -> Result<Snapshots, Failed> {
        let state = ProcessEnv::current().state_directory();
        let none = || {
            let message = "no directory for snapshots: neither XDG_STATE_HOME nor HOME names one";
            Failed::new(Exit::FILES, message)
        };
        Ok(Snapshots { directory: state.ok_or_else(none)?.join("rlaunch/up") })
    }

    pub(super) fn write(&self, host: &str, snapshot: &Snapshot) -> Result<(), Failed> {
        let write = || -> io::Result<()> {
            create_state_directory(&self.directory)?;
            let mut file = tempfile::NamedTempFile::new_in(&self.directory)?;
            serde_json::to_writer(&mut file, snapshot)?;
            file.write_all(b"\n")?;
            file.persist(self.path(host))?;
            Ok(())
        };
        write().map_err(|error| self.failed("write", host, &error))
    }

    /// Returns the snapshot of a host; `None` if there is none.
    pub(super) fn read(&self, host: &str) -> Result<Option<Snapshot>, Failed> {
        let read = || -> io::Result<Option<Snapshot>> {
            match fs::read(self.path(host)) {
                Ok(text) => Ok(Some(serde_json::from_slice(&text)?)),
                Err(error) if error.kind() == ErrorKind::NotFound => Ok(None),
                Err(error) => Err(error),
            }
        };
        read().map_err(|error| self.failed("read", host, &error))
    }

    fn failed(&self, operation: &str, host: &str, error: &io::Error) -> Failed {
        let path = self.path(host);
        let message = format!("{host}: cannot {operation} {}: {error}", path.display());
        Failed::new(Exit::FILES, message)
            .hint(Some("`rlaunch up` with the same hosts writes it anew"))
    }

    /// Returns the path of a host's file. Users write the names of hosts, which may have any character.
    fn path(&self, host: &str) -> PathBuf {
        let plain = |byte: u8| match byte {
            b'a'..=b'z' | b'A'..=b'Z' | b'0'..=b'9' | b'-' | b'_' | b'.' => {
                char::from(byte).to_string()
            }
            _ => format!("%{byte:02x}"),
        };
        self.directory.join(host.bytes().map(plain).collect::<String>() + ".json")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_snapshot_is_kept_for_each_host() {
        let state = tempfile::tempdir().unwrap();
        let store = Snapshots { directory: state.path().join("rlaunch/up") };
        assert_eq!(store.read("a").unwrap(), None);
        let mut snapshot = Snapshot::default();
        snapshot.state.insert("kernel".into(), "6".into());
        for host in ["a", "../b", "fd00::1"] {
            store.write(host, &snapshot).unwrap();
            assert_eq!(store.read(host).unwrap().as_ref(), Some(&snapshot), "{host}");
        }
        let count = fs::read_dir(&store.directory).unwrap().count();
        assert_eq!(count, 3, "all are in the directory");
        fs::write(store.path("a"), "{").unwrap();
        let failed = store.read("a").unwrap_err();
        assert!(failed.message.starts_with("a: cannot read "), "{failed:?}");
    }
}
