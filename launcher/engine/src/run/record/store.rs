//! Store of the records of a user's jobs. The files of the newest [`MAX_RECORDS`] jobs are kept, as
//! `$XDG_STATE_HOME/rlaunch/jobs/ID.NAME.json`: jobs are found by their files' names, without reading them.
//!
//! | file | contents |
//! |---|---|
//! | `store.rs` | [`RecordStore`]: writes, finds and reads records |
//! | `begun.rs` | what a job has if its launcher is killed |
//! | `held_name.rs` | names that users give to jobs |
//! | `machine.rs` | this machine in names of files |
//! | `room.rs` | which records are kept |

use crate::run::output::store::{self, OutputStore, StoreReader};
use crate::run::record::JobRecord;
use memchr::memmem;
use nix::unistd::Uid;
use rlaunch_console::messages;
use rlaunch_console::process_env::{ProcessEnv, check_private, create_state_directory};
use rlaunch_plan::job::JobSpec;
use rlaunch_plan::job::name::{JobName, LAST, Meant, NamedJob};
use std::fmt;
use std::fs::{self, File};
use std::io::{self, BufWriter, Read};
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::time::{Duration, SystemTime};
use tempfile::NamedTempFile;

mod begun;
mod held_name;
mod machine;
mod room;

use begun::BEGUN;
pub(super) use begun::BegunRecord;
pub use held_name::{HeldName, NameClaim};
pub(crate) use machine::machine;

/// Maximum number of records that are kept; older ones are removed.
const MAX_RECORDS: usize = 1000;
/// Maximum size of all that is kept, in bytes.
const MAX_BYTES: u64 = 10 << 30;
/// Beginning of the name of a record that is being written, and of a socket that is being made.
pub(crate) const PARTIAL: &str = ".tmp";
/// Number of bytes at the beginning of a record that are read where its output is not wanted.
const HEAD: u64 = 64 << 10;
/// Beginning of the last field of a record. Within words, quotes have a backslash.
const OUTPUT: &[u8] = br#","output":{"#;
/// Maximum size of a record that is read, in bytes. The output in a record is up to 1 MiB, which JSON's
/// escapes make at most six times longer.
const MAX_SIZE: u64 = 16 << 20;

/// Store with the records of one user's jobs.
pub struct RecordStore {
    directory: PathBuf,
    /// Number of records that are kept.
    most: usize,
    /// Size of all records and output that are kept, in bytes.
    most_bytes: u64,
}

/// Job as the names of its files say it: `ID.NAME`, or `ID` if an older rlaunch wrote them.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct RecordedJob {
    /// Id of the job, 32 hexadecimal digits.
    pub id: String,
    /// Name of the job; may be empty.
    pub name: String,
}

impl RecordedJob {
    fn parse(stem: &str) -> Option<RecordedJob> {
        let (id, name) = stem.split_once('.').unwrap_or((stem, ""));
        let is_name = name.is_empty() || name.parse::<JobName>().is_ok();
        let job = || RecordedJob { id: id.to_owned(), name: name.to_owned() };
        (is_id(id) && is_name).then(job)
    }

    /// Returns the name of the file with its record.
    fn record_name(&self) -> String {
        format!("{self}.json")
    }
}

impl fmt::Display for RecordedJob {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let RecordedJob { id, name } = self;
        if name.is_empty() { write!(f, "{id}") } else { write!(f, "{id}.{name}") }
    }
}

impl NamedJob for RecordedJob {
    fn id(&self) -> &str {
        &self.id
    }

    fn name(&self) -> &str {
        &self.name
    }
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
    #[error("no job of yours has left a record in {}", .0.display())]
    Empty(PathBuf),
    #[error("no record of a job whose name or id begins with {job} in {}", directory.display())]
    Unknown { job: String, directory: PathBuf },
    #[error("the whole output of this job is not kept any more")]
    OutputGone,
    #[error("{job} begins the names or ids of {count} jobs")]
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
            RecordStoreError::Unknown { .. } => {
                Some(format!("`rlaunch jobs -a` lists them; the newest {MAX_RECORDS} are kept"))
            }
            RecordStoreError::OutputGone => Some("-n 100 prints its last lines".into()),
            RecordStoreError::Ambiguous { .. } => Some("give more of the name or id".into()),
            RecordStoreError::Read { .. } => None,
        }
    }
}

impl RecordStore {
    /// Opens the store of this process's user.
    pub fn for_user() -> Result<RecordStore, RecordStoreError> {
        let state = ProcessEnv::current().state_directory();
        state.map(|state| RecordStore::below(&state)).ok_or(RecordStoreError::NoDirectory)
    }

    fn below(state: &Path) -> RecordStore {
        RecordStore {
            directory: state.join("rlaunch/jobs"),
            most: MAX_RECORDS,
            most_bytes: MAX_BYTES,
        }
    }

    /// Stores a record, and makes room for it: removes the oldest jobs beyond [`RecordStore::most`], once they are a twentieth
    /// more, and, after one whose output is kept in a file, beyond [`RecordStore::most_bytes`].
    pub(crate) fn save(&self, record: &JobRecord) -> Result<(), RecordStoreError> {
        let path = self.path(&record.recorded_job());
        let written =
            self.write(record).and_then(|file| file.persist(&path)?.metadata()?.modified());
        let now = written.map_err(|source| RecordStoreError::Write { path, source })?;
        let mut jobs = self.adopt().unwrap_or_default();
        self.date_back(&jobs, &record.job, now);
        // Which are the oldest takes a look at each, so it is asked once for several.
        let is_full = jobs.len() > self.most + self.most / 20;
        if is_full || record.output_file.is_some() {
            jobs = self.jobs();
        }
        if is_full {
            let beyond = jobs.len().saturating_sub(self.most);
            for job in jobs.drain(..beyond).filter(|job| job.id != record.job) {
                self.remove(&job);
            }
            // Ids begin with the time.
            if let Some(oldest) = jobs.iter().min() {
                self.forget_leftovers(&oldest.id, now);
            }
        }
        if record.output_file.is_some() {
            self.bound_size(&jobs, &record.job);
        }
        Ok(())
    }

    /// Creates the file with the whole output of a job.
    pub(crate) fn create_output(&self, job: &JobSpec) -> io::Result<OutputStore> {
        let job = RecordedJob { id: job.id.to_string(), name: job.name.to_string() };
        OutputStore::create(&self.directory, &job.to_string())
    }

    /// Opens the file with the whole output of a job that runs or has ended; `None` if the job kept none.
    pub fn open_output(&self, id: &str) -> Result<Option<StoreReader>, RecordStoreError> {
        let Some(record) = self.record_of(id)? else { return Ok(None) };
        let Some(name) = output_of(&record) else { return Ok(None) };
        let path = self.directory.join(name);
        match StoreReader::open(&path) {
            Ok(None) => Err(RecordStoreError::OutputGone),
            Ok(reader) => Ok(reader),
            Err(source) => Err(RecordStoreError::Read { path, source }),
        }
    }

    /// Reads the record of a job by its whole id; `None` if it has none.
    pub fn of_id(&self, id: &str) -> Result<Option<JobRecord>, RecordStoreError> {
        let job = self.recorded()?.into_iter().find(|job| job.id == id);
        job.map(|job| read(&self.path(&job))).transpose()
    }

    /// Reads the record of a job, or what it has left when it began; `None` if there is neither.
    pub(crate) fn record_of(&self, id: &str) -> Result<Option<JobRecord>, RecordStoreError> {
        if let Some(record) = self.of_id(id)? {
            return Ok(Some(record));
        }
        for entry in fs::read_dir(&self.directory).into_iter().flatten().flatten() {
            let name = entry.file_name();
            if name.to_str().is_some_and(|name| name.starts_with(id) && name.ends_with(BEGUN)) {
                return read(&entry.path()).map(Some);
            }
        }
        Ok(None)
    }

    /// Writes a record, which only its user may read. The file has no name before it is complete, so that no
    /// reader finds a partial record.
    fn write(&self, record: &JobRecord) -> io::Result<NamedTempFile> {
        create_state_directory(&self.directory)?;
        let file = tempfile::Builder::new().prefix(PARTIAL).tempfile_in(&self.directory)?;
        let mut file = BufWriter::new(file);
        serde_json::to_writer(&mut file, record)?;
        Ok(file.into_inner()?)
    }

    /// Gives records of a clock that was ahead of `now` a time before it, so that they do not count as newer than those that
    /// follow. The ids of such jobs, which begin with the time, are greater than that of `job`.
    fn date_back(&self, jobs: &[RecordedJob], job: &str, now: SystemTime) {
        // Some file systems store whole seconds, or two; and another rlaunch may have written a record since.
        const SLACK: Duration = Duration::from_secs(2);
        let (earlier, later) = (now.checked_sub(SLACK), now.checked_add(SLACK));
        let (Some(earlier), Some(later)) = (earlier, later) else { return };
        for ahead in jobs.iter().filter(|other| *other.id > *job) {
            // An error means that another rlaunch has removed the file.
            let _ = File::open(self.path(ahead)).and_then(|file| {
                match file.metadata()?.modified()? {
                    written if written > later => file.set_modified(earlier),
                    _ => Ok(()),
                }
            });
        }
    }

    fn path(&self, job: &RecordedJob) -> PathBuf {
        self.directory.join(job.record_name())
    }

    /// Lists the recorded jobs, oldest first; none if they cannot be listed.
    pub fn jobs(&self) -> Vec<RecordedJob> {
        self.existing().unwrap_or_default()
    }

    /// Lists the recorded jobs in no order, without a look at their records.
    pub fn recorded(&self) -> Result<Vec<RecordedJob>, RecordStoreError> {
        self.listed(self.adopt())
    }

    /// Lists the recorded jobs, in no order. Makes records of what killed launchers have begun.
    fn adopt(&self) -> io::Result<Vec<RecordedJob>> {
        let mut jobs = Vec::new();
        check_private(&self.directory, &fs::metadata(&self.directory)?)?;
        for entry in fs::read_dir(&self.directory)? {
            let name = entry?.file_name();
            let Some(name) = name.to_str() else { continue };
            let job = name.strip_suffix(".json").and_then(RecordedJob::parse);
            jobs.extend(job.or_else(|| self.adopt_begun(name)));
        }
        Ok(jobs)
    }

    /// Lists the recorded jobs with the times at which the records were written.
    fn adopt_and_date(&self) -> io::Result<Vec<(SystemTime, RecordedJob)>> {
        // Another rlaunch may have removed a file.
        let written = |job: &RecordedJob| fs::metadata(self.path(job))?.modified();
        let dated = |job: RecordedJob| Some((written(&job).ok()?, job));
        Ok(self.adopt()?.into_iter().filter_map(dated).collect())
    }

    /// Reads the newest record.
    pub fn last(&self) -> Result<JobRecord, RecordStoreError> {
        self.find(LAST)
    }

    /// Reads the record of the job that `word` means ([`Meant::find`]).
    pub fn find(&self, word: &str) -> Result<JobRecord, RecordStoreError> {
        let jobs = self.existing()?;
        let (job, directory) = (word.to_owned(), self.directory.clone());
        match Meant::find(word, &jobs) {
            Meant::One(at) => read(&self.path(&jobs[at])),
            Meant::Several(found) => Err(RecordStoreError::Ambiguous { job, count: found.len() }),
            Meant::Nothing if word == LAST => Err(RecordStoreError::Empty(directory)),
            Meant::Nothing => Err(RecordStoreError::Unknown { job, directory }),
        }
    }

    /// Reads the newest `count` records, oldest first, as a rule without the ranks' output. Records that cannot be read are
    /// left out.
    pub fn newest(&self, count: usize) -> Vec<JobRecord> {
        let jobs = self.jobs();
        let newest = &jobs[jobs.len().saturating_sub(count)..];
        let head = |job: &RecordedJob| read_head(open_of(Uid::effective(), &self.path(job)).ok()?);
        newest.iter().filter_map(head).collect()
    }

    /// Lists the recorded jobs, oldest first.
    fn existing(&self) -> Result<Vec<RecordedJob>, RecordStoreError> {
        self.listed(self.adopt_and_date()).map(in_order)
    }

    /// A directory that is not there has no records.
    fn listed<J>(&self, jobs: io::Result<Vec<J>>) -> Result<Vec<J>, RecordStoreError> {
        match jobs {
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(Vec::new()),
            Err(source) => Err(RecordStoreError::Read { path: self.directory.clone(), source }),
            Ok(jobs) => Ok(jobs),
        }
    }
}

/// Returns jobs in the order of their times.
fn in_order(mut jobs: Vec<(SystemTime, RecordedJob)>) -> Vec<RecordedJob> {
    jobs.sort_unstable();
    // A record that was adopted may be listed again.
    jobs.dedup();
    jobs.into_iter().map(|(_, job)| job).collect()
}

/// Stores a record in the store of this process's user. A failure is only a warning, since the job itself is over; a short
/// record then takes the place of what the job has `begun`.
pub(super) fn save_or_warn(record: &JobRecord, begun: Option<&BegunRecord>) {
    if let Err(error) = RecordStore::for_user().and_then(|store| store.save(record)) {
        let is_kept = begun.is_some_and(|begun| begun.conclude(record).is_ok());
        let rest = if is_kept { "; one without output is kept" } else { "" };
        messages::warn(&format!("{}{rest}", messages::error_chain(&error)));
        error.hint().iter().for_each(|hint| messages::hint(hint));
    }
}

/// Returns the name of the file with the whole output of a job. The name is a word of a file, and must not lead elsewhere.
fn output_of(record: &JobRecord) -> Option<&str> {
    let name = record.output_file.as_deref()?;
    name.strip_suffix(store::ENDING).and_then(RecordedJob::parse).map(|_| name)
}

/// Tells whether `text` may be the id of a job, or the first 6 or more characters of one.
pub fn begins_id(text: &str) -> bool {
    (6..=32).contains(&text.len()) && text.bytes().all(|byte| byte.is_ascii_hexdigit())
}

fn is_id(text: &str) -> bool {
    text.len() == 32 && begins_id(text)
}

fn read(path: &Path) -> Result<JobRecord, RecordStoreError> {
    read_of(Uid::effective(), path)
        .map_err(|source| RecordStoreError::Read { path: path.to_owned(), source })
}

fn read_of(user: Uid, path: &Path) -> io::Result<JobRecord> {
    let mut text = Vec::new();
    open_of(user, path)?.take(MAX_SIZE).read_to_end(&mut text)?;
    Ok(serde_json::from_slice(&text)?)
}

/// Opens a record that this user has written: its command may be run again.
fn open_of(user: Uid, path: &Path) -> io::Result<File> {
    let file = File::open(path)?;
    let owner = file.metadata()?.uid();
    if owner != user.as_raw() {
        let message = format!("it belongs to another user (uid {owner})");
        return Err(io::Error::new(io::ErrorKind::PermissionDenied, message));
    }
    Ok(file)
}

/// Reads a record without the output behind its head; with it where the head is longer, or an older rlaunch has put the output
/// before other fields. `None` if it cannot be read.
fn read_head(file: File) -> Option<JobRecord> {
    let mut text = Vec::new();
    (&file).take(HEAD).read_to_end(&mut text).ok()?;
    let head = memmem::find(&text, OUTPUT).map(|end| [&text[..end], b"}"].concat());
    if let Some(record) = head.and_then(|head| serde_json::from_slice(&head).ok()) {
        return Some(record);
    }
    file.take(MAX_SIZE).read_to_end(&mut text).ok()?;
    serde_json::from_slice(&text).ok()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::run::output::RecordedOutput;
    use crate::run::record::tests::record;
    use std::os::unix::fs::PermissionsExt;

    #[test]
    fn output_is_found_by_the_record_and_before_it() {
        let state = tempfile::tempdir().unwrap();
        let store = RecordStore::below(state.path());
        fs::create_dir_all(&store.directory).unwrap();
        let first = record(1).recorded_job().to_string();
        let output = OutputStore::create(&store.directory, &first).unwrap();
        let output_file = Some(output.file_name().to_owned());
        let restarted = JobRecord { output_file, ..record(2) };
        let found = |id: &str| store.open_output(id).unwrap().is_some();
        let begun = store.begin(&restarted).unwrap();
        assert!(found(&record(2).job) && !found(&record(1).job));
        store.save(&restarted).unwrap();
        drop(begun);
        assert!(found(&record(2).job));
        let elsewhere = JobRecord { output_file: Some("../x.output".into()), ..record(3) };
        store.save(&elsewhere).unwrap();
        assert!(!found(&record(3).job));
        fs::remove_file(store.directory.join(output.file_name())).unwrap();
        let gone = store.open_output(&record(2).job).err().unwrap();
        assert!(gone.to_string().ends_with("not kept any more"), "{gone}");
    }

    #[test]
    fn what_another_user_may_have_written_is_refused() {
        let state = tempfile::tempdir().unwrap();
        let store = RecordStore::below(state.path());
        store.save(&record(1)).unwrap();
        let path = store.path(&record(1).recorded_job());
        let (owner, another) = (Uid::effective(), Uid::from_raw(Uid::effective().as_raw() + 1));
        assert!(read_of(owner, &path).is_ok());
        let error = read_of(another, &path).unwrap_err().to_string();
        assert!(error.contains("belongs to another user"), "{error}");
        fs::set_permissions(&store.directory, fs::Permissions::from_mode(0o1777)).unwrap();
        assert!(matches!(store.last(), Err(RecordStoreError::Read { .. })));
        assert!(store.newest(9).is_empty() && store.save(&record(2)).is_err());
        assert!(store.open_output(&record(1).job).is_err());
    }

    #[test]
    fn records_of_a_clock_that_was_ahead_give_way() {
        let state = tempfile::tempdir().unwrap();
        let store = RecordStore { most: 9, ..RecordStore::below(state.path()) };
        let ahead = SystemTime::now() + Duration::from_secs(86_400);
        for number in 1000..1009 {
            store.save(&record(number)).unwrap();
            let file = File::open(store.path(&record(number).recorded_job())).unwrap();
            file.set_modified(ahead).unwrap();
        }
        for number in [1, 2] {
            store.save(&record(number)).unwrap();
            assert_eq!(store.last().unwrap().job, record(number).job);
        }
        let jobs = store.jobs();
        assert_eq!(jobs.len(), 9);
        assert_eq!(jobs[7..], [record(1).recorded_job(), record(2).recorded_job()]);
    }

    #[test]
    fn jobs_are_found_by_how_their_names_and_ids_begin() {
        let state = tempfile::tempdir().unwrap();
        let store = RecordStore::below(state.path());
        [0x1, 0x2].iter().for_each(|number| store.save(&record(*number)).unwrap());
        assert_eq!(store.find(&record(2).job.to_ascii_uppercase()).unwrap().job, record(2).job);
        assert_eq!(store.find("name-1").unwrap().job, record(1).job);
        let error = |job: &str| store.find(job).unwrap_err().to_string();
        assert_eq!(error("000000"), "000000 begins the names or ids of 2 jobs");
        let unknown = "no record of a job whose name or id begins with abcdef in /";
        assert!(error("abcdef").starts_with(unknown));
        // An older rlaunch has left it.
        let old = store.directory.join(format!("{:0>32}.json", 3));
        fs::write(old, serde_json::to_vec(&record(3)).unwrap()).unwrap();
        assert_eq!(store.find(&record(3).job).unwrap().job, record(3).job);
        assert_eq!(store.jobs().len(), 3);
    }

    #[test]
    fn the_newest_of_a_thousand_is_found_at_once() {
        let state = tempfile::tempdir().unwrap();
        let store = RecordStore::below(state.path());
        store.save(&record(0)).unwrap();
        for number in 1..1000 {
            // What is not wanted is not read.
            fs::write(store.path(&record(number).recorded_job()), "{").unwrap();
        }
        store.save(&record(1000)).unwrap();
        assert_eq!(store.last().unwrap().job, record(1000).job);
        assert_eq!(store.find("name-1000").unwrap().job, record(1000).job);
    }

    #[test]
    fn a_list_of_jobs_reads_no_output() {
        let state = tempfile::tempdir().unwrap();
        let store = RecordStore::below(state.path());
        let output = RecordedOutput { left_out_bytes: 5, ..RecordedOutput::default() };
        let word = r#"{},"output":{"first":["#.to_owned();
        let saved = JobRecord { program: vec![word], output: output.clone(), ..record(1) };
        store.save(&saved).unwrap();
        let path = store.path(&saved.recorded_job());
        let text = fs::read_to_string(&path).unwrap();
        let end = text.rfind(r#""output":{"#).unwrap();
        // What follows is neither read nor missed.
        fs::write(&path, format!("{}not JSON", &text[..end + 12])).unwrap();
        let listed = store.newest(1);
        assert_eq!((&listed[0].program, &listed[0].end), (&saved.program, &saved.end));
        assert!(store.find(&saved.job).is_err());

        // As older versions wrote it, and one with a long head.
        let mut old = serde_json::to_value(record(2)).unwrap();
        old["output"] = serde_json::to_value(&output).unwrap();
        let end = old.as_object_mut().unwrap().remove("end").unwrap();
        let text = old.to_string();
        let text = format!("{},\"end\":{end}}}", text.strip_suffix('}').unwrap());
        fs::write(store.path(&record(2).recorded_job()), text).unwrap();
        let argv = vec!["x".repeat(usize::try_from(HEAD).unwrap())];
        store.save(&JobRecord { argv, ..record(3) }).unwrap();
        let listed: Vec<String> = store.newest(2).into_iter().map(|record| record.job).collect();
        assert_eq!(listed, [record(2).job, record(3).job]);
        assert_eq!(store.of_id(&record(2).job).unwrap().unwrap().output, output);
        assert!(store.of_id(&record(9).job).unwrap().is_none());
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
