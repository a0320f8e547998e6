//! Storage of records: `$XDG_STATE_HOME/rlaunch/jobs/JOB.json`, for the newest [`MAX_RECORDS`] jobs.

use super::JobRecord;
use rlaunch_console::messages;
use rlaunch_console::process_env::ProcessEnv;
use std::fs::{self, DirBuilder, File};
use std::io::{self, BufWriter, Read};
use std::os::unix::fs::DirBuilderExt;
use std::path::{Path, PathBuf};

/// Maximum number of records that are kept; older ones are removed.
const MAX_RECORDS: usize = 50;
/// Maximum size of a record that is read, in bytes. The output in a record is up to 1 MiB, which JSON's
/// escapes make at most six times longer.
const MAX_SIZE: u64 = 16 << 20;

/// Store with the records of one user's jobs.
pub struct RecordStore {
    directory: PathBuf,
}

/// Error in writing, finding or reading a record.
#[derive(Debug, thiserror::Error)]
pub enum RecordStoreError {
    #[error("no directory for records: neither XDG_STATE_HOME nor HOME names one")]
    NoDirectory,
    #[error("cannot write the job's record to {}", path.display())]
    Write { path: PathBuf, source: io::Error },
    #[error("cannot read {}", path.display())]
    Read { path: PathBuf, source: io::Error },
    #[error("no job has left a record in {}", .0.display())]
    Empty(PathBuf),
    #[error("no record of a job that begins with {job} in {}", directory.display())]
    Unknown { job: String, directory: PathBuf },
    #[error("{job} begins the ids of {count} jobs")]
    Ambiguous { job: String, count: usize },
}

impl RecordStoreError {
    pub fn hint(&self) -> Option<String> {
        match self {
            RecordStoreError::NoDirectory | RecordStoreError::Write { .. } => {
                Some("XDG_STATE_HOME=DIR keeps records elsewhere, --no-record keeps none".into())
            }
            RecordStoreError::Empty(_) => Some(
                "every job leaves a record when it is over, unless it is run with --no-record"
                    .into(),
            ),
            RecordStoreError::Unknown { .. } => Some(format!(
                "the newest {MAX_RECORDS} are kept; rlaunch report last reads the last"
            )),
            RecordStoreError::Ambiguous { .. } => Some("give more of the id".into()),
            RecordStoreError::Read { .. } => None,
        }
    }
}

impl RecordStore {
    /// Opens the store of this process's user.
    pub fn for_user() -> Result<RecordStore, RecordStoreError> {
        let state = ProcessEnv::current().state();
        state.map(|state| RecordStore::below(&state)).ok_or(RecordStoreError::NoDirectory)
    }

    fn below(state: &Path) -> RecordStore {
        RecordStore { directory: state.join("rlaunch/jobs") }
    }

    /// Stores a record, and removes the oldest ones beyond [`MAX_RECORDS`].
    pub(crate) fn save(&self, record: &JobRecord) -> Result<(), RecordStoreError> {
        let path = self.path(&record.job);
        self.write(record, &path)
            .map_err(|source| RecordStoreError::Write { path: path.clone(), source })?;
        let mut jobs = self.jobs().unwrap_or_default();
        let old = jobs.len().saturating_sub(MAX_RECORDS);
        // Errors are ignored: another rlaunch may have removed the file, and any other error recurs with the
        // next record.
        jobs.drain(..old).for_each(|job| drop(fs::remove_file(self.path(&job))));
        Ok(())
    }

    /// Writes a record, which only its user may read. The file gets its name when it is complete, so that no
    /// reader finds a partial record.
    fn write(&self, record: &JobRecord, path: &Path) -> io::Result<()> {
        DirBuilder::new().recursive(true).mode(0o700).create(&self.directory)?;
        let mut file = BufWriter::new(tempfile::NamedTempFile::new_in(&self.directory)?);
        serde_json::to_writer(&mut file, record)?;
        file.into_inner()?.persist(path)?;
        Ok(())
    }

    fn path(&self, job: &str) -> PathBuf {
        self.directory.join(format!("{job}.json"))
    }

    /// Lists the ids of recorded jobs, oldest first. Ids sort by time, since they begin with it.
    fn jobs(&self) -> io::Result<Vec<String>> {
        let mut jobs = Vec::new();
        for entry in fs::read_dir(&self.directory)? {
            let name = entry?.file_name();
            let job = name.to_str().and_then(|name| name.strip_suffix(".json"));
            jobs.extend(job.filter(|job| is_id(job)).map(str::to_owned));
        }
        jobs.sort_unstable();
        Ok(jobs)
    }

    /// Reads the newest record.
    pub fn last(&self) -> Result<JobRecord, RecordStoreError> {
        let jobs = self.existing()?;
        let last = jobs.last().ok_or_else(|| RecordStoreError::Empty(self.directory.clone()))?;
        read(&self.path(last))
    }

    /// Reads the record of the only job with an id that begins with `job`.
    pub fn find(&self, job: &str) -> Result<JobRecord, RecordStoreError> {
        let mut jobs = self.existing()?;
        let job = job.to_ascii_lowercase();
        jobs.retain(|known| known.starts_with(&job));
        match &jobs[..] {
            [found] => read(&self.path(found)),
            [] => Err(RecordStoreError::Unknown { job, directory: self.directory.clone() }),
            many => Err(RecordStoreError::Ambiguous { job, count: many.len() }),
        }
    }

    /// Reads all records, oldest first. Records that cannot be read are left out.
    pub fn all(&self) -> Vec<JobRecord> {
        let jobs = self.jobs().unwrap_or_default();
        jobs.iter().filter_map(|job| read(&self.path(job)).ok()).collect()
    }

    fn existing(&self) -> Result<Vec<String>, RecordStoreError> {
        let read = |source| RecordStoreError::Read { path: self.directory.clone(), source };
        match self.jobs() {
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(Vec::new()),
            jobs => jobs.map_err(read),
        }
    }
}

/// Stores a record in the store of this process's user. A failure is only a warning, since the job itself is
/// over.
pub(crate) fn save_or_warn(record: &JobRecord) {
    if let Err(error) = RecordStore::for_user().and_then(|store| store.save(record)) {
        messages::warn(&messages::error_chain(&error));
        error.hint().iter().for_each(|hint| messages::hint(hint));
    }
}

/// Tells whether `text` may be the id of a job, or the first 6 or more characters of one.
pub fn begins_id(text: &str) -> bool {
    (6..=32).contains(&text.len()) && text.bytes().all(|byte| byte.is_ascii_hexdigit())
}

fn is_id(text: &str) -> bool {
    text.len() == 32 && begins_id(text)
}

fn read(path: &Path) -> Result<JobRecord, RecordStoreError> {
    let read = || {
        let mut text = Vec::new();
        File::open(path)?.take(MAX_SIZE).read_to_end(&mut text)?;
        Ok(serde_json::from_slice(&text)?)
    };
    read().map_err(|source| RecordStoreError::Read { path: path.to_owned(), source })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::run::record::{RecordedEnd, RecordedOutput};
    use std::os::unix::fs::PermissionsExt;

    fn record(number: u32) -> JobRecord {
        JobRecord {
            v: 1,
            job: format!("{number:032x}"),
            started: 0.0,
            seconds: 1.0,
            argv: vec!["rlaunch".into()],
            program: vec!["true".into()],
            hosts: vec![],
            placement: vec![],
            environment: vec![],
            output: RecordedOutput::default(),
            end: RecordedEnd {
                exit_code: 0,
                spoke: "rank".into(),
                message: String::new(),
                details: Vec::new(),
            },
        }
    }

    #[test]
    fn the_newest_are_kept_for_their_user_alone() {
        let state = tempfile::tempdir().unwrap();
        let store = RecordStore::below(state.path());
        assert!(matches!(store.last(), Err(RecordStoreError::Empty(_))));
        let count = u32::try_from(MAX_RECORDS).unwrap() + 3;
        (0..count).for_each(|number| store.save(&record(number)).unwrap());
        assert_eq!(store.last().unwrap().job, record(count - 1).job);
        let jobs: Vec<String> = store.all().into_iter().map(|record| record.job).collect();
        let expected: Vec<String> = (3..count).map(|number| record(number).job).collect();
        assert_eq!(jobs, expected);
        let mode = |path: &Path| fs::metadata(path).unwrap().permissions().mode() & 0o777;
        assert_eq!(mode(&store.directory), 0o700);
        assert_eq!(mode(&store.path(&record(9).job)), 0o600);
    }

    #[test]
    fn jobs_are_found_by_how_their_ids_begin() {
        let state = tempfile::tempdir().unwrap();
        let store = RecordStore::below(state.path());
        [0x1, 0x2].iter().for_each(|number| store.save(&record(*number)).unwrap());
        assert_eq!(store.find(&record(2).job.to_ascii_uppercase()).unwrap().job, record(2).job);
        let error = |job: &str| store.find(job).unwrap_err().to_string();
        assert_eq!(error("000000"), "000000 begins the ids of 2 jobs");
        assert!(error("abcdef").starts_with("no record of a job that begins with abcdef in /"));
    }

    #[test]
    fn what_cannot_be_written_is_said() {
        let state = tempfile::tempdir().unwrap();
        fs::write(state.path().join("rlaunch"), "a file").unwrap();
        let error = RecordStore::below(state.path()).save(&record(1)).unwrap_err();
        assert!(error.to_string().starts_with("cannot write the job's record to /"), "{error}");
        assert!(error.hint().unwrap().contains("--no-record"));
    }
}
