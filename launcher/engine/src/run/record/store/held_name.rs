//! Names that users give to jobs (`--job-name`): of jobs that start at the same moment, one has it.
//!
//! The launcher locks `NAME@MACHINE.name` beside the records for as long as its job lasts; the file has the job's id.

use super::machine::machine;
use crate::run::record::RecordStore;
use rlaunch_bootstrap::id::JobId;
use rlaunch_console::process_env::create_state_directory;
use rlaunch_plan::job::name::JobName;
use std::fs::{self, File, OpenOptions, TryLockError};
use std::io::{self, Write};
use std::os::unix::fs::{MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

/// Time within which the process that has locked the file writes its job's id to it.
const AT_ONCE: Duration = Duration::from_secs(1);

/// Name that no other job of this user on this machine takes. Dropping it, or the end of this process, gives it back.
#[derive(Debug)]
pub struct HeldName {
    path: PathBuf,
    /// File with the lock, which ends with this process.
    _locked: File,
}

impl Drop for HeldName {
    fn drop(&mut self) {
        // Before the lock ends: whoever locks the removed file sees that it is ([`is_at`]).
        let _ = fs::remove_file(&self.path);
    }
}

/// Outcome of an attempt to take a name.
#[derive(Debug)]
pub enum NameClaim {
    Held(HeldName),
    /// Id of the job that has it; empty if it cannot be read.
    Taken(String),
}

impl RecordStore {
    /// Takes a name for a job of this process. Fails where nothing can be written or locked.
    pub fn hold_name(&self, name: &JobName, job: JobId) -> io::Result<NameClaim> {
        create_state_directory(&self.directory)?;
        let path = self.directory.join(format!("{name}@{}.name", machine()));
        loop {
            let mut options = OpenOptions::new();
            let mut file = options
                .read(true)
                .write(true)
                .create(true)
                .truncate(false)
                .mode(0o600)
                .open(&path)?;
            match file.try_lock() {
                // It was given back in between.
                Ok(()) if !is_at(&file, &path)? => {}
                // A launcher that was killed has left it. Nobody is to read its job's id any more.
                Ok(()) if file.metadata()?.len() > 0 => fs::remove_file(&path)?,
                Ok(()) => {
                    file.write_all(job.to_string().as_bytes())?;
                    return Ok(NameClaim::Held(HeldName { path, _locked: file }));
                }
                Err(TryLockError::WouldBlock) => return Ok(NameClaim::Taken(id_in(&path))),
                Err(TryLockError::Error(error)) => return Err(error),
            }
        }
    }
}

/// Tells whether a path leads to this file.
fn is_at(file: &File, path: &Path) -> io::Result<bool> {
    let own = file.metadata()?;
    match fs::metadata(path) {
        Ok(found) => Ok((found.dev(), found.ino()) == (own.dev(), own.ino())),
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(false),
        Err(error) => Err(error),
    }
}

/// Reads the id, once it is there.
fn id_in(path: &Path) -> String {
    let due = Instant::now() + AT_ONCE;
    loop {
        let id = fs::read_to_string(path).unwrap_or_default();
        if !id.is_empty() || Instant::now() >= due {
            return id;
        }
        std::thread::sleep(Duration::from_millis(5));
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::Barrier;
    use std::thread;

    fn claim(store: &RecordStore, job: u128) -> NameClaim {
        store.hold_name(&"night".parse().unwrap(), JobId(job)).unwrap()
    }

    #[test]
    fn one_of_many_that_start_at_once_has_the_name() {
        let state = tempfile::tempdir().unwrap();
        let store = RecordStore::below(state.path());
        for round in 0..20 {
            let (together, claimed) = (Barrier::new(8), Barrier::new(8));
            let claims: Vec<Option<String>> = thread::scope(|scope| {
                let start = |number: u128| {
                    let (store, together, claimed) = (&store, &together, &claimed);
                    scope.spawn(move || {
                        together.wait();
                        let claim = claim(store, number);
                        claimed.wait();
                        match claim {
                            NameClaim::Held(_) => None,
                            NameClaim::Taken(id) => Some(id),
                        }
                    })
                };
                let starting: Vec<_> = (0..8).map(|number| start(100 * round + number)).collect();
                starting.into_iter().map(|start| start.join().unwrap()).collect()
            });
            let holders: Vec<usize> = (0..8).filter(|number| claims[*number].is_none()).collect();
            let [holder] = holders[..] else { panic!("{claims:?}") };
            let id = JobId(100 * round + holder as u128).to_string();
            assert!(claims.iter().flatten().all(|told| *told == id), "{id}: {claims:?}");
        }
    }

    #[test]
    fn what_a_killed_launcher_has_left_is_in_nobody_s_way() {
        let state = tempfile::tempdir().unwrap();
        let store = RecordStore::below(state.path());
        let NameClaim::Held(killed) = claim(&store, 1) else { panic!("it is free") };
        killed._locked.unlock().unwrap();
        let NameClaim::Held(_held) = claim(&store, 2) else { panic!("nobody has it") };
        let NameClaim::Taken(id) = claim(&store, 3) else { panic!("it is held") };
        assert_eq!(id, JobId(2).to_string());
    }
}
