//! Store of the records of a user's jobs. The files of the newest [`MAX_RECORDS`] jobs are kept, as
//! `$XDG_STATE_HOME/rlaunch/jobs/ID.NAME.json`: jobs are found by their files' names, without reading them.
//!
//! A launcher that is killed cannot write. So it writes another file when its job begins, `ID.NAME@MACHINE.begun`, which says
//! that it was killed, and holds a lock on it. Whoever lists the records finds the lock free then, and gives the file the
//! name of a record ([`RecordStore::adopt_begun`]).

use crate::run::live::machine;
use crate::run::output::RecordedOutput;
use crate::run::output::store::{self, OutputStore, StoreReader};
use crate::run::record::{JobRecord, RecordedEnd};
use memchr::memmem;
use nix::unistd::Uid;
use rlaunch_console::messages;
use rlaunch_console::process_env::{ProcessEnv, check_private, create_state_directory};
use rlaunch_plan::job::JobSpec;
use rlaunch_plan::job::name::{JobName, LAST, Meant, NamedJob};
use std::collections::HashSet;
use std::fmt;
use std::fs::{self, File, TryLockError};
use std::io::{self, BufWriter, Read};
use std::os::unix::fs::{FileExt, MetadataExt};
use std::path::{Path, PathBuf};
use std::time::{Duration, SystemTime};
use tempfile::NamedTempFile;

/// Maximum number of records that are kept; older ones are removed.
const MAX_RECORDS: usize = 1000;
/// Maximum size of all that is kept, in bytes.
const MAX_BYTES: u64 = 10 << 30;
/// Ends of the names of files that a job leaves.
const ENDINGS: [&str; 3] = [".json", store::ENDING, store::OLD_ENDING];
/// End of the name of a file that a launcher writes when its job begins.
const BEGUN: &str = ".begun";
/// Age at which the file of a job that has begun on another machine is removed, if all records are newer. Few jobs run so long.
const MAX_BEGUN_AGE: Duration = Duration::from_secs(30 * 24 * 60 * 60);
/// Beginning of the name of a record that is being written.
const PARTIAL: &str = ".tmp";
/// Age at which a file that was being written is removed. It gets its name at once.
const MAX_PARTIAL_AGE: Duration = Duration::from_secs(24 * 60 * 60);
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

/// File that becomes the job's record if this process is killed. Dropping it removes the file.
#[derive(Debug)]
pub(super) struct BegunRecord {
    path: PathBuf,
    /// File with the lock, which ends with this process.
    locked: File,
}

impl BegunRecord {
    /// Makes the file the record of the job. It is a short one, for which the file has room on a disk that is full.
    fn conclude(&self, record: &JobRecord) -> io::Result<()> {
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
    #[error("no job has left a record in {}", .0.display())]
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

    /// Stores a record, and makes room for it: removes the oldest jobs beyond [`RecordStore::most`] and, after one whose
    /// output is kept in a file, beyond [`RecordStore::most_bytes`].
    pub(crate) fn save(&self, record: &JobRecord) -> Result<(), RecordStoreError> {
        let path = self.path(&record.recorded_job());
        let written =
            self.write(record).and_then(|file| file.persist(&path)?.metadata()?.modified());
        let now = written.map_err(|source| RecordStoreError::Write { path, source })?;
        let mut jobs = self.jobs_until(now);
        let beyond = jobs.len().saturating_sub(self.most);
        for job in jobs.drain(..beyond).filter(|job| job.id != record.job) {
            self.remove(&job);
        }
        // Ids begin with the time.
        if let Some(oldest) = jobs.iter().min().filter(|_| beyond > 0) {
            self.forget_leftovers(&oldest.id, now);
        }
        if record.output_file.is_some() {
            self.bound_size(&jobs, &record.job);
        }
        Ok(())
    }

    /// Removes what a job has left, and returns the size of that. Output stays until the last attempt at the job gives way.
    fn remove(&self, job: &RecordedJob) -> u64 {
        let path = self.path(job);
        let record = read(&path).ok();
        let output = record.as_ref().and_then(output_of).map(str::to_owned);
        let next = record.and_then(|record| record.next);
        let freed = removed(&path);
        if next.is_some_and(|next| self.has(&next)) {
            return freed;
        }
        freed + self.remove_output(&output.unwrap_or_else(|| format!("{job}{}", store::ENDING)))
    }

    /// Removes the output of a job, and returns its size. Keeps what a launcher still writes.
    fn remove_output(&self, name: &str) -> u64 {
        let newer = self.directory.join(name);
        if File::open(&newer).is_ok_and(|file| file.try_lock_shared().is_err() || self.fills(name))
        {
            return 0;
        }
        let old = name.strip_suffix(store::ENDING).unwrap_or(name);
        removed(&newer) + removed(&self.directory.join(format!("{old}{}", store::OLD_ENDING)))
    }

    /// Tells whether a job that has begun names this file of output. Locks of other machines may not be seen here.
    fn fills(&self, output: &str) -> bool {
        let entries = fs::read_dir(&self.directory).into_iter().flatten().flatten();
        let mut begun = entries.filter(|entry| entry.path().to_string_lossy().ends_with(BEGUN));
        begun.any(|entry| read(&entry.path()).is_ok_and(|job| output_of(&job) == Some(output)))
    }

    /// Tells whether a job has a record, or has begun.
    fn has(&self, id: &str) -> bool {
        let entries = fs::read_dir(&self.directory).into_iter().flatten().flatten();
        let mut names = entries.filter_map(|entry| entry.file_name().into_string().ok());
        names.any(|name| name.starts_with(id) && [".json", BEGUN].iter().any(|e| name.ends_with(e)))
    }

    /// Tells whether one of `jobs` is a later attempt at a job, whose output is in the file of the first.
    fn has_later_attempt(&self, first: &RecordedJob, jobs: &[RecordedJob]) -> bool {
        let output = format!("{first}{}", store::ENDING);
        let is_later = |job: &&RecordedJob| job.name == first.name && job.id > first.id;
        let mut later: Vec<&RecordedJob> = jobs.iter().filter(is_later).collect();
        // The next attempt is among the first of that name: ids begin with the time.
        later.sort_unstable();
        let names = |record: JobRecord| output_of(&record) == Some(output.as_str());
        later.into_iter().any(|job| read(&self.path(job)).is_ok_and(names))
    }

    /// Removes what the oldest of `jobs` have left, until all files together have [`RecordStore::most_bytes`], and output
    /// without a record. Keeps what the job `kept` has left.
    fn bound_size(&self, jobs: &[RecordedJob], kept: &str) {
        let (mut total, mut found) = (0_u64, HashSet::new());
        for entry in fs::read_dir(&self.directory).into_iter().flatten().flatten() {
            let name = entry.file_name();
            let of_job = |ending: &&str| name.to_str().and_then(|name| name.strip_suffix(*ending));
            let job = ENDINGS.iter().find_map(of_job).and_then(RecordedJob::parse);
            if let Some((job, metadata)) = job.zip(entry.metadata().ok()) {
                total += metadata.len();
                found.insert(job);
            }
        }
        let begun = self.begun();
        // Another rlaunch may have written a record since `jobs` were listed.
        for job in found.iter().filter(|job| !begun.contains(job) && !self.path(job).exists()) {
            if !self.has_later_attempt(job, jobs) {
                // A job that has just begun holds a lock.
                let freed = self.remove_output(&format!("{job}{}", store::ENDING));
                total = total.saturating_sub(freed);
            }
        }
        for job in jobs.iter().filter(|job| job.id != kept) {
            if total <= self.most_bytes {
                return;
            }
            total = total.saturating_sub(self.remove(job));
        }
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
    fn record_of(&self, id: &str) -> Result<Option<JobRecord>, RecordStoreError> {
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

    /// Removes what launchers that were killed have left: files that they were writing, and those of jobs of other machines
    /// that began before the job `oldest` and long ago. Such a job may still run; on this machine only jobs that run have
    /// such files.
    fn forget_leftovers(&self, oldest: &str, now: SystemTime) {
        let here = begun_suffix();
        for entry in fs::read_dir(&self.directory).into_iter().flatten().flatten() {
            let name = entry.file_name();
            let Some(name) = name.to_str() else { continue };
            let is_begun = name.ends_with(BEGUN) && !name.ends_with(&here) && name < oldest;
            let is_partial = name.starts_with(PARTIAL) || name.ends_with(store::NEW_ENDING);
            let most = if is_begun {
                MAX_BEGUN_AGE
            } else if is_partial {
                MAX_PARTIAL_AGE
            } else {
                continue;
            };
            let written = entry.metadata().and_then(|found| found.modified());
            let age = written.ok().and_then(|at| now.duration_since(at).ok());
            if age.is_some_and(|age| age > most) {
                removed(&entry.path());
            }
        }
    }

    /// Stores the record of a job that begins.
    pub(super) fn begin(&self, record: &JobRecord) -> io::Result<BegunRecord> {
        let file = self.write(record)?;
        // The lock comes before the name, so that no other rlaunch finds the file unlocked.
        file.as_file().try_lock().map_err(io::Error::other)?;
        let path = self.directory.join(format!("{}{}", record.recorded_job(), begun_suffix()));
        let locked = file.persist(&path)?;
        Ok(BegunRecord { path, locked })
    }

    /// Makes the file of a job that has begun its record, if its launcher is no more. Returns the job then.
    fn adopt_begun(&self, file_name: &str) -> Option<RecordedJob> {
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

    /// Writes a record, which only its user may read. The file has no name before it is complete, so that no
    /// reader finds a partial record.
    fn write(&self, record: &JobRecord) -> io::Result<NamedTempFile> {
        create_state_directory(&self.directory)?;
        let file = tempfile::Builder::new().prefix(PARTIAL).tempfile_in(&self.directory)?;
        let mut file = BufWriter::new(file);
        serde_json::to_writer(&mut file, record)?;
        Ok(file.into_inner()?)
    }

    /// Lists the recorded jobs, oldest first. Gives records of a clock that was ahead of `now` a time before it, so that they
    /// do not count as newer than those that follow.
    fn jobs_until(&self, now: SystemTime) -> Vec<RecordedJob> {
        // Some file systems store whole seconds, or two; and another rlaunch may have written a record since.
        const SLACK: Duration = Duration::from_secs(2);
        let (earlier, later) = (now.checked_sub(SLACK), now.checked_add(SLACK));
        let (Some(earlier), Some(later)) = (earlier, later) else { return self.jobs() };
        let mut jobs = self.adopt_and_date().unwrap_or_default();
        for (at, job) in jobs.iter_mut().filter(|(at, _)| *at > later) {
            // An error means that another rlaunch has removed the file.
            let _ = File::open(self.path(job)).and_then(|file| file.set_modified(earlier));
            *at = earlier;
        }
        in_order(jobs)
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

    /// Returns the job of this machine that has this name and runs; `None` if there is none, or if it keeps no record.
    pub fn running_as(&self, name: &JobName) -> Option<RecordedJob> {
        let runs = |job: &RecordedJob| {
            let begun = self.directory.join(format!("{job}{}", begun_suffix()));
            let tried = File::open(begun).map(|file| file.try_lock_shared());
            // Where nothing can be locked, nobody holds a lock.
            matches!(tried, Ok(Err(TryLockError::WouldBlock)))
        };
        let mut named = self.begun().into_iter().filter(|job| job.name == name.as_str());
        named.find(runs)
    }

    /// Lists jobs that have begun and left no record yet, on any machine, in no order.
    pub(crate) fn begun(&self) -> Vec<RecordedJob> {
        let entries = fs::read_dir(&self.directory).into_iter().flatten().flatten();
        let begun = |entry: fs::DirEntry| {
            let name = entry.file_name();
            let (job, _) = name.to_str()?.strip_suffix(BEGUN)?.split_once('@')?;
            RecordedJob::parse(job)
        };
        entries.filter_map(begun).collect()
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

/// Removes a file, and returns its size. Errors are ignored: another rlaunch may have removed it, and any other error recurs
/// with the next record.
fn removed(path: &Path) -> u64 {
    let size = fs::metadata(path).map_or(0, |found| found.len());
    fs::remove_file(path).map_or(0, |()| size)
}

/// Returns the end of the name of a file that a launcher on this machine writes when its job begins.
fn begun_suffix() -> String {
    format!("@{}{BEGUN}", machine())
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
    use crate::run::output::RecordedChunk;
    use crate::run::record::tests::record;
    use std::os::unix::fs::PermissionsExt;

    #[test]
    fn the_newest_are_kept_for_their_user_alone() {
        let state = tempfile::tempdir().unwrap();
        let store = RecordStore { most: 9, ..RecordStore::below(state.path()) };
        assert!(matches!(store.last(), Err(RecordStoreError::Empty(_))));
        fs::create_dir_all(&store.directory).unwrap();
        fs::set_permissions(&store.directory, fs::Permissions::from_mode(0o700)).unwrap();
        let begun = |number: u32, machine: &str| {
            store.directory.join(format!("{}@{machine}{BEGUN}", record(number).job))
        };
        let left = |name: &str| store.directory.join(name);
        let files = [
            (begun(1, "another"), 31),
            (begun(1, "busy"), 29),
            (begun(7, "another"), 31),
            (left(".tmpOld"), 2),
            (left(".tmpNew"), 0),
            (left("x.output.new"), 2),
        ];
        for (path, days) in &files {
            let at = SystemTime::now() - Duration::from_secs(days * 86_400);
            File::create(path).unwrap().set_modified(at).unwrap();
        }
        let count = 9 + 3;
        let running = store.begin(&record(0)).unwrap();
        (0..count).for_each(|number| store.save(&record(number)).unwrap());
        assert_eq!(store.last().unwrap().job, record(count - 1).job);
        let jobs: Vec<String> = store.newest(99).into_iter().map(|record| record.job).collect();
        assert!(running.path.exists());
        let expected: Vec<String> = (3..count).map(|number| record(number).job).collect();
        assert_eq!(jobs, expected);
        let is_kept = files.map(|(path, _)| path.exists());
        assert_eq!(is_kept, [false, true, true, false, true, false]);
        let mode = |path: &Path| fs::metadata(path).unwrap().permissions().mode() & 0o777;
        assert_eq!(mode(&store.directory), 0o700);
        assert_eq!(mode(&store.path(&record(9).recorded_job())), 0o600);
        let newest = store.newest(1);
        assert_eq!(newest[0].job, record(count - 1).job);
    }

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

    #[test]
    fn the_oldest_gives_way_to_what_is_too_large() {
        let state = tempfile::tempdir().unwrap();
        let store = RecordStore { most_bytes: 20_000, ..RecordStore::below(state.path()) };
        (1..4).for_each(|number| store.save(&record(number)).unwrap());
        let output = |number: u32, ending: &str| {
            store.directory.join(format!("{}{ending}", record(number).recorded_job()))
        };
        for (number, ending) in
            [(1, store::ENDING), (1, store::OLD_ENDING), (2, store::ENDING), (9, store::ENDING)]
        {
            fs::write(output(number, ending), vec![0; 9000]).unwrap();
        }
        let running = OutputStore::create(&store.directory, &record(8).recorded_job().to_string());
        store.save(&JobRecord { output_file: Some("output".into()), ..record(4) }).unwrap();
        let jobs: Vec<String> = store.jobs().into_iter().map(|job| job.name).collect();
        assert_eq!(jobs, ["name-2", "name-3", "name-4"]);
        // Its launcher was killed before the job had a record.
        assert!(!output(1, store::OLD_ENDING).exists() && !output(9, store::ENDING).exists());
        assert!(output(2, store::ENDING).exists() && output(8, store::ENDING).exists());
        drop(running);
    }

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
    fn output_outlives_the_record_of_the_first_attempt() {
        let state = tempfile::tempdir().unwrap();
        let store = RecordStore { most: 2, most_bytes: 0, ..RecordStore::below(state.path()) };
        let attempt = |number: u32, next: Option<u32>| JobRecord {
            name: "amber-fox".into(),
            output_file: Some(format!("{}.amber-fox{}", record(1).job, store::ENDING)),
            next: next.map(|next| record(next).job),
            ..record(number)
        };
        let first = attempt(1, Some(2));
        let output = OutputStore::create(&store.directory, &first.recorded_job().to_string());
        let output = output.unwrap();
        let path = store.directory.join(output.file_name());
        let old = store.directory.join(format!("{}{}", first.recorded_job(), store::OLD_ENDING));
        fs::write(&old, "").unwrap();
        let of_another = || JobRecord { output_file: Some("output".into()), ..record(9) };
        store.save(&first).unwrap();
        // Nothing but the lock keeps the output.
        store.save(&of_another()).unwrap();
        assert!(!store.path(&first.recorded_job()).exists() && path.exists() && old.exists());
        // The launcher is on another machine, whose lock is not seen here.
        output.unlock();
        let begun = store.begin(&attempt(2, None)).unwrap();
        store.save(&of_another()).unwrap();
        assert!(path.exists() && old.exists());
        // The job is over, and the record of its last attempt keeps the output as long as itself.
        store.save(&attempt(2, None)).unwrap();
        drop(begun);
        let large = RecordStore { most: 2, ..RecordStore::below(state.path()) };
        large.save(&of_another()).unwrap();
        assert!(path.exists() && large.open_output(&record(2).job).unwrap().is_some());
        (10..12).for_each(|number| store.save(&record(number)).unwrap());
        assert!(!path.exists() && !old.exists());
    }

    #[test]
    fn output_stays_while_the_next_attempt_has_a_record() {
        let state = tempfile::tempdir().unwrap();
        let store = RecordStore { most: 1, ..RecordStore::below(state.path()) };
        fs::create_dir_all(&store.directory).unwrap();
        let first = record(1);
        let output_file = Some(format!("{}{}", first.recorded_job(), store::ENDING));
        let path = store.directory.join(output_file.as_deref().unwrap());
        fs::write(&path, "output").unwrap();
        let next = Some(record(2).job);
        store.save(&JobRecord { output_file: output_file.clone(), next, ..first }).unwrap();
        store.save(&JobRecord { output_file, name: "name-1".into(), ..record(2) }).unwrap();
        assert!(path.exists() && store.jobs().len() == 1);
        store.save(&record(3)).unwrap();
        assert!(!path.exists());
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
