//! Files of jobs that have begun. A launcher that is killed cannot write. So it writes another file when its job begins,
//! `ID.NAME@MACHINE.begun`, which says that it was killed, and holds a lock on it. Whoever lists the records finds the lock
//! free then, and gives the file the name of a record ([`RecordStore::adopt_begun`]).

use super::machine::machine;
use super::{RecordStore, RecordedJob};
use crate::run::output::RecordedOutput;
use crate::run::record::{JobRecord, RecordedEnd};
use rlaunch_plan::job::name::JobName;
use std::fs::{self, File, TryLockError};
use std::io;
use std::os::unix::fs::FileExt;
use std::path::PathBuf;

/// End of the name of a file that a launcher writes when its job begins.
pub(super) const BEGUN: &str = ".begun";

/// File that becomes the job's record if this process is killed. Dropping it removes the file.
#[derive(Debug)]
pub(in crate::run::record) struct BegunRecord {
    pub(super) path: PathBuf,
    /// File with the lock, which ends with this process.
    locked: File,
}

impl BegunRecord {
    /// Makes the file the record of the job. It is a short one, for which the file has room on a disk that is full.
    pub(super) fn conclude(&self, record: &JobRecord) -> io::Result<()> {
        let RecordedOutput { first, left_out_bytes, last } = &record.output;
        let kept: usize = first.iter().chain(last).map(|chunk| chunk.text.len()).sum();
        let left_out_bytes = left_out_bytes + kept as u64;
        let short = JobRecord {
            placement: Vec::new(),
            environment: Vec::new(),
            phases: Vec::new(),
            end: RecordedEnd { details: Vec::new(), ..record.end.clone() },
            output: RecordedOutput { left_out_bytes, ..RecordedOutput::default() },
            ..record.clone()
        };
        let text = serde_json::to_vec(&short)?;
        self.locked.write_all_at(&text, 0)?;
        self.locked.set_len(text.len() as u64)?;
        fs::rename(&self.path, self.path.with_file_name(record.recorded_job().record_name()))
    }
}

impl Drop for BegunRecord {
    fn drop(&mut self) {
        // An error means that the user has removed the file.
        let _ = fs::remove_file(&self.path);
    }
}

impl RecordStore {
    /// Stores the record of a job that begins.
    pub(in crate::run::record) fn begin(&self, record: &JobRecord) -> io::Result<BegunRecord> {
        let file = self.write(record)?;
        // The lock comes before the name, so that no other rlaunch finds the file unlocked.
        file.as_file().try_lock().map_err(io::Error::other)?;
        let path = self.directory.join(format!("{}{}", record.recorded_job(), begun_suffix()));
        let locked = file.persist(&path)?;
        Ok(BegunRecord { path, locked })
    }

    /// Makes the file of a job that has begun its record, if its launcher is no more. Returns the job then.
    pub(super) fn adopt_begun(&self, file_name: &str) -> Option<RecordedJob> {
        if !file_name.ends_with(BEGUN) {
            return None;
        }
        // Locks of other machines may not be seen here.
        let job = file_name.strip_suffix(&begun_suffix()).and_then(RecordedJob::parse)?;
        let (begun, record) = (self.directory.join(file_name), self.path(&job));
        File::open(&begun).ok()?.try_lock_shared().ok()?;
        if record.exists() {
            // The launcher was killed when it had written the record.
            let _ = fs::remove_file(&begun);
        } else {
            fs::rename(&begun, &record).ok()?;
        }
        Some(job)
    }

    /// Returns the job of this machine that has this name and runs; `None` if there is none, or if it keeps no record.
    pub fn running_as(&self, name: &JobName) -> Option<RecordedJob> {
        let runs = |job: &RecordedJob| {
            let begun = self.directory.join(format!("{job}{}", begun_suffix()));
            let tried = File::open(begun).map(|file| file.try_lock_shared());
            // Where files cannot be locked, no process holds a lock.
            matches!(tried, Ok(Err(TryLockError::WouldBlock)))
        };
        let mut named = self.begun().into_iter().filter(|job| job.name == name.as_str());
        named.find(runs)
    }

    /// Lists jobs that have begun and left no record yet, on any machine, in no order.
    pub fn begun(&self) -> Vec<RecordedJob> {
        let entries = fs::read_dir(&self.directory).into_iter().flatten().flatten();
        let begun = |entry: fs::DirEntry| {
            let name = entry.file_name();
            let (job, _) = name.to_str()?.strip_suffix(BEGUN)?.split_once('@')?;
            RecordedJob::parse(job)
        };
        entries.filter_map(begun).collect()
    }
}

/// Returns the end of the name of a file that a launcher on this machine writes when its job begins.
pub(super) fn begun_suffix() -> String {
    format!("@{}{BEGUN}", machine())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::run::output::RecordedChunk;
    use crate::run::record::tests::record;

    #[test]
    fn the_record_of_a_killed_launcher_is_there_once_it_is_dead() {
        let state = tempfile::tempdir().unwrap();
        let store = RecordStore::below(state.path());
        let killed = JobRecord { end: RecordedEnd::killed(), ..record(2) };
        store.save(&record(1)).unwrap();
        let begun = store.begin(&killed).unwrap();
        assert_eq!(store.last().unwrap().job, record(1).job);
        assert!(store.find(&killed.job).is_err());
        let running_as = |name: &str| store.running_as(&name.parse().unwrap());
        assert_eq!(running_as("name-2"), Some(killed.recorded_job()));
        assert_eq!(running_as("name-1"), None);
        // The lock goes with the process, the file stays.
        begun.locked.unlock().unwrap();
        assert_eq!(running_as("name-2"), None);
        let last = store.last().unwrap();
        assert_eq!((&last.job, last.end.exit_code), (&record(2).job, 137));
        assert!(last.end.is_killed() && !record(1).end.is_killed());
        assert!(last.end.message.contains("killed"), "{}", last.end.message);
        assert!(!begun.path.exists() && store.path(&record(2).recorded_job()).exists());
    }

    #[test]
    fn a_job_that_is_over_leaves_one_record() {
        let state = tempfile::tempdir().unwrap();
        let store = RecordStore::below(state.path());
        let begun = store.begin(&JobRecord { end: RecordedEnd::killed(), ..record(1) }).unwrap();
        store.save(&record(1)).unwrap();
        // The launcher is killed between the two.
        begun.locked.unlock().unwrap();
        assert_eq!(store.last().unwrap().end.exit_code, 0);
        drop(store.begin(&record(1)).unwrap());
        let files = fs::read_dir(&store.directory).unwrap().count();
        assert_eq!((files, store.newest(9).len()), (1, 1));
    }

    #[test]
    fn a_job_that_ends_on_a_full_disk_has_a_short_record() {
        let state = tempfile::tempdir().unwrap();
        let store = RecordStore::below(state.path());
        let begun = store.begin(&JobRecord { end: RecordedEnd::killed(), ..record(1) }).unwrap();
        let chunk = RecordedChunk { rank: 0, stream: "stdout".into(), text: "four".into() };
        let output = RecordedOutput { left_out_bytes: 5, last: vec![chunk], first: vec![] };
        let details = vec!["rank 0: \"x\"".to_owned()];
        let end = RecordedEnd { exit_code: 3, details, ..record(1).end };
        begun.conclude(&JobRecord { end, output, ..record(1) }).unwrap();
        drop(begun);
        let kept = store.find(&record(1).job).unwrap();
        assert_eq!((kept.end.exit_code, kept.end.is_killed()), (3, false));
        let left_out = RecordedOutput { left_out_bytes: 9, ..RecordedOutput::default() };
        assert_eq!((kept.output, kept.end.details.len()), (left_out, 0));
        assert_eq!(fs::read_dir(&store.directory).unwrap().count(), 1);
    }
}
