//! File with the whole output of a job that has left its terminal, from which `rlaunch logs` shows it.
//!
//! It grows by records: what a rank has printed, in the order in which it came, messages of rlaunch, and for each attempt
//! what is needed to show its output. A record is written before its rank gets credit for more, so that a launcher that is
//! killed loses nothing. Once the file has reached half of [`MAX_BYTES`], it takes the place of the older half, and a new one
//! begins. A disk that is full stops nothing; what was lost is a record too, once there is room again.
//!
//! The launcher holds a lock on the file as long as it lives, which tells readers that more may come.

use super::StreamId;
use rlaunch_bootstrap::id::Rank;
use rlaunch_bootstrap::protocol::control::Stream;
use rlaunch_console::messages;
use rlaunch_console::process_env::create_state_directory;
use rlaunch_plan::map::HostRanks;
use serde::{Deserialize, Serialize};
use std::fs::{self, File, OpenOptions};
use std::io::{self, Write};
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};
use std::sync::mpsc::{Receiver, SyncSender, sync_channel};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread;
use std::time::{Duration, SystemTime};

mod reader;

pub use reader::StoreReader;

/// Maximum size of a job's two files, in bytes.
const MAX_BYTES: u64 = 1 << 30;
/// First bytes of a file. A number follows, which counts the job's files from 0.
const MAGIC: &[u8; 16] = b"rlaunch output 1";
/// Length of what precedes the first record.
const FILE_HEAD: usize = 20;
/// Length of what precedes a record's data: length, kind, rank and time.
const RECORD_HEAD: usize = 17;
/// Maximum length of a record's data. Output comes in far smaller pieces; the hosts of 65,536 ranks are longer.
const MAX_DATA: usize = 16 << 20;
/// Time between two requests to the disk to keep what was written.
const SYNC_INTERVAL: Duration = Duration::from_secs(1);
/// End of the name of the newer file.
pub(crate) const ENDING: &str = ".output";
/// End of the name of the older file.
pub(crate) const OLD_ENDING: &str = ".output.old";
/// End of the name of a file that is about to be the newer one.
pub(crate) const NEW_ENDING: &str = ".output.new";

/// Record of the file.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum StoredRecord {
    /// An attempt at the job begins.
    Attempt(StoredAttempt),
    /// The process of a rank has started.
    Started { rank: Rank, pid: u32 },
    /// Output of a rank. Empty data ends the stream. The time is in microseconds since 1970.
    Output { source: StreamId, at: u64, data: Vec<u8> },
    /// Lines of rlaunch itself.
    Message { at: u64, lines: Vec<u8> },
    /// So many bytes could not be written here.
    Lost(u64),
    /// What was here is not kept any more.
    Dropped,
}

/// What is needed to show the output of an attempt.
#[derive(Clone, Debug, Default, Deserialize, PartialEq, Eq, Serialize)]
pub struct StoredAttempt {
    /// Id of the attempt.
    pub job: String,
    pub hosts: Vec<HostRanks>,
    /// Value of `--tag-output`; empty without it.
    pub tag: String,
    pub no_tag: bool,
    /// Value of `--fold`; empty without it.
    pub fold: String,
    /// Whether ranks write stderr to their stdout.
    pub merged: bool,
}

/// Appends a record to `bytes`.
fn encode(record: &StoredRecord, bytes: &mut Vec<u8>) -> io::Result<()> {
    let mut add = |kind: u8, rank: u32, at: u64, data: &[u8]| -> io::Result<()> {
        let length = u32::try_from(data.len()).map_err(io::Error::other)?;
        bytes.extend(length.to_le_bytes());
        bytes.push(kind);
        bytes.extend(rank.to_le_bytes());
        bytes.extend(at.to_le_bytes());
        bytes.extend(data);
        Ok(())
    };
    match record {
        StoredRecord::Output { source: (rank, Stream::Stdout), at, data } => {
            add(1, rank.0, *at, data)
        }
        StoredRecord::Output { source: (rank, Stream::Stderr), at, data } => {
            add(2, rank.0, *at, data)
        }
        StoredRecord::Message { at, lines } => add(3, 0, *at, lines),
        StoredRecord::Started { rank, pid } => add(4, rank.0, (*pid).into(), &[]),
        StoredRecord::Attempt(attempt) => add(5, 0, 0, &serde_json::to_vec(attempt)?),
        StoredRecord::Lost(count) => add(6, 0, *count, &[]),
        // Readers make it.
        StoredRecord::Dropped => Ok(()),
    }
}

/// Next bytes of a file.
#[derive(Debug, PartialEq, Eq)]
enum Decoded {
    /// A record, and its length in bytes.
    Record(StoredRecord, usize),
    /// A record that is not complete.
    Part,
    /// No record: the power has failed before the disk had it.
    Nothing,
}

fn decode(bytes: &[u8]) -> Decoded {
    let Some((head, rest)) = bytes.split_first_chunk::<RECORD_HEAD>() else { return Decoded::Part };
    let [l0, l1, l2, l3, kind, r0, r1, r2, r3, at @ ..] = *head;
    let length = u32::from_le_bytes([l0, l1, l2, l3]) as usize;
    let (rank, at) = (Rank(u32::from_le_bytes([r0, r1, r2, r3])), u64::from_le_bytes(at));
    if length > MAX_DATA || !(1..=6).contains(&kind) {
        return Decoded::Nothing;
    }
    let Some(data) = rest.get(..length) else { return Decoded::Part };
    let record = match kind {
        1 => StoredRecord::Output { source: (rank, Stream::Stdout), at, data: data.to_vec() },
        2 => StoredRecord::Output { source: (rank, Stream::Stderr), at, data: data.to_vec() },
        3 => StoredRecord::Message { at, lines: data.to_vec() },
        4 => StoredRecord::Started { rank, pid: u32::try_from(at).unwrap_or(0) },
        5 => match serde_json::from_slice(data) {
            Ok(attempt) => StoredRecord::Attempt(attempt),
            Err(_) => return Decoded::Nothing,
        },
        _ => StoredRecord::Lost(at),
    };
    Decoded::Record(record, RECORD_HEAD + length)
}

/// Returns the present time in microseconds since 1970.
fn now() -> u64 {
    let since = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default();
    u64::try_from(since.as_micros()).unwrap_or(u64::MAX)
}

/// Writer of a job's file. Clones share it.
#[derive(Clone, Debug)]
pub struct OutputStore {
    name: String,
    writing: Arc<Mutex<StoreWriter<StoreFiles>>>,
}

impl OutputStore {
    /// Creates the file of a job, `ID.NAME`, in a directory of the user's state.
    pub(crate) fn create(directory: &Path, job: &str) -> io::Result<OutputStore> {
        create_state_directory(directory)?;
        let name = format!("{job}{ENDING}");
        let files = StoreFiles::new(directory.join(&name));
        let writing = StoreWriter::create(files, MAX_BYTES / 2)?;
        Ok(OutputStore { name, writing: Arc::new(Mutex::new(writing)) })
    }

    /// Returns the name of the file in its directory.
    pub(crate) fn file_name(&self) -> &str {
        &self.name
    }

    /// Adds a record. The first error is a warning, further ones are not said.
    pub(crate) fn add(&self, record: &StoredRecord) {
        let failed = self.writing().add(record);
        if let Some(error) = failed {
            messages::warn(&format!(
                "cannot keep the output of the job: {error}; the job goes on without that"
            ));
        }
    }

    pub(crate) fn output(&self, source: StreamId, stamp: Option<u64>, data: &[u8]) {
        let at = stamp.unwrap_or_else(now);
        self.add(&StoredRecord::Output { source, at, data: data.to_vec() });
    }

    pub(crate) fn message(&self, lines: &[u8]) {
        self.add(&StoredRecord::Message { at: now(), lines: lines.to_vec() });
    }

    /// Says at the end what was lost at last, and lets the disk keep what was written.
    pub(crate) fn finish(&self) {
        let mut writing = self.writing();
        // An error means that not even this has room, or recurs at no later time.
        let _ = writing.say_lost();
        let file = writing.files.file.clone();
        drop(writing);
        let _ = file.map(|file| file.sync_data());
    }

    /// Releases the lock, as seen from another machine.
    #[cfg(test)]
    pub(crate) fn unlock(&self) {
        let _ = self.writing().files.file.as_ref().map(|file| file.unlock());
    }

    fn writing(&self) -> MutexGuard<'_, StoreWriter<StoreFiles>> {
        self.writing.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Files that a writer fills one after the other.
trait Files {
    /// Begins the next file with these bytes; the one before takes the place of the older one. After an error all is as
    /// before.
    fn begin(&mut self, head: &[u8]) -> io::Result<()>;
    /// Appends to the file, and returns how many bytes were written.
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize>;
    /// Cuts the file to a length.
    fn cut(&mut self, length: u64) -> io::Result<()>;
}

/// Writer of records, whole ones alone.
#[derive(Debug)]
struct StoreWriter<F> {
    files: F,
    /// Length at which a file is followed by the next.
    most: u64,
    /// Number of the file, from 0.
    number: u32,
    length: u64,
    /// Bytes of records that could not be written and were not yet said in the file.
    lost: u64,
    /// Whether an error was returned.
    has_failed: bool,
    /// Whether the file ends in a part of a record, so that nothing may follow.
    is_torn: bool,
    /// The attempt whose output is written. It is repeated in each file.
    attempt: Option<StoredRecord>,
    /// Whether the file has it.
    has_attempt: bool,
    buffer: Vec<u8>,
}

impl<F: Files> StoreWriter<F> {
    fn create(files: F, most: u64) -> io::Result<StoreWriter<F>> {
        let mut writer = StoreWriter {
            files,
            most,
            number: 0,
            length: 0,
            lost: 0,
            has_failed: false,
            is_torn: false,
            attempt: None,
            has_attempt: false,
            buffer: Vec::new(),
        };
        writer.begin(0)?;
        Ok(writer)
    }

    fn begin(&mut self, number: u32) -> io::Result<()> {
        self.files.begin(&[&MAGIC[..], &number.to_le_bytes()].concat())?;
        (self.number, self.length, self.has_attempt) = (number, FILE_HEAD as u64, false);
        Ok(())
    }

    /// Adds a record. Returns the first error there has been.
    fn add(&mut self, record: &StoredRecord) -> Option<io::Error> {
        if matches!(record, StoredRecord::Attempt(_)) {
            (self.attempt, self.has_attempt) = (Some(record.clone()), false);
        }
        let error = self.try_add(record).err()?;
        self.lost += match record {
            StoredRecord::Output { data, .. } => data.len() as u64,
            StoredRecord::Message { lines, .. } => lines.len() as u64,
            _ => 0,
        };
        let is_first = !self.has_failed;
        self.has_failed = true;
        is_first.then_some(error)
    }

    fn try_add(&mut self, record: &StoredRecord) -> io::Result<()> {
        if self.is_torn {
            return Err(io::ErrorKind::WriteZero.into());
        }
        if self.length >= self.most {
            self.begin(self.number + 1)?;
        }
        if !self.has_attempt
            && let Some(attempt) = self.attempt.clone()
        {
            self.write_record(&attempt)?;
            self.has_attempt = true;
        }
        self.say_lost()?;
        match record {
            StoredRecord::Attempt(_) => Ok(()),
            record => self.write_record(record),
        }
    }

    /// Writes how much was lost since this was last said. It often has room where output has none.
    fn say_lost(&mut self) -> io::Result<()> {
        if self.lost > 0 && !self.is_torn {
            self.write_record(&StoredRecord::Lost(self.lost))?;
            self.lost = 0;
        }
        Ok(())
    }

    fn write_record(&mut self, record: &StoredRecord) -> io::Result<()> {
        let mut buffer = std::mem::take(&mut self.buffer);
        buffer.clear();
        let written = encode(record, &mut buffer).and_then(|()| self.write_all(&buffer));
        self.buffer = buffer;
        written
    }

    /// Writes all bytes, or none.
    fn write_all(&mut self, bytes: &[u8]) -> io::Result<()> {
        let mut left = bytes;
        while !left.is_empty() {
            let error = match self.files.write(left) {
                Ok(count @ 1..) => {
                    left = &left[count..];
                    continue;
                }
                Ok(0) => io::Error::from(io::ErrorKind::WriteZero),
                Err(error) if error.kind() == io::ErrorKind::Interrupted => continue,
                Err(error) => error,
            };
            self.is_torn = left.len() < bytes.len() && self.files.cut(self.length).is_err();
            return Err(error);
        }
        self.length += bytes.len() as u64;
        Ok(())
    }
}

/// Files of a job on the disk.
#[derive(Debug)]
struct StoreFiles {
    path: PathBuf,
    /// `None` before the first begins.
    file: Option<Arc<File>>,
    /// Sender of what was written to the thread that waits for the disk.
    written: SyncSender<Arc<File>>,
}

impl StoreFiles {
    fn new(path: PathBuf) -> StoreFiles {
        let (written, files) = sync_channel(1);
        // Without the thread, the system writes to the disk in its own time.
        let _ = thread::Builder::new().name("store".into()).spawn(move || sync_all(&files));
        StoreFiles { path, file: None, written }
    }
}

/// Lets the disk keep what was written, until the writer has gone.
fn sync_all(files: &Receiver<Arc<File>>) {
    while let Ok(file) = files.recv() {
        // An error is one of a later write too.
        let _ = file.sync_data();
        drop(file);
        thread::sleep(SYNC_INTERVAL);
    }
}

fn with_ending(path: &Path, ending: &str) -> PathBuf {
    let mut name = path.as_os_str().to_owned();
    name.push(ending);
    name.into()
}

impl Files for StoreFiles {
    fn begin(&mut self, head: &[u8]) -> io::Result<()> {
        let new = with_ending(&self.path, ".new");
        // It is there if the disk was full before.
        let _ = fs::remove_file(&new);
        let mut file = OpenOptions::new().append(true).create_new(true).mode(0o600).open(&new)?;
        file.write_all(head)?;
        // The lock comes before the name, so that no reader takes the job for one that is over.
        file.try_lock().map_err(io::Error::other)?;
        match fs::rename(&self.path, with_ending(&self.path, ".old")) {
            // It is the first file, or the one before has the name already.
            Err(error) if error.kind() == io::ErrorKind::NotFound => {}
            renamed => renamed?,
        }
        fs::rename(&new, &self.path)?;
        self.file = Some(Arc::new(file));
        Ok(())
    }

    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        let Some(file) = &self.file else { return Err(io::ErrorKind::NotFound.into()) };
        let count = (&**file).write(bytes)?;
        // A full channel means that the thread comes to this file anyway.
        let _ = self.written.try_send(file.clone());
        Ok(count)
    }

    fn cut(&mut self, length: u64) -> io::Result<()> {
        let Some(file) = &self.file else { return Ok(()) };
        file.set_len(length)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use std::os::unix::fs::MetadataExt;

    fn output(rank: u32, text: &str) -> StoredRecord {
        let source = (Rank(rank), Stream::Stdout);
        StoredRecord::Output { source, at: 5, data: text.as_bytes().to_vec() }
    }

    fn attempt(job: &str) -> StoredRecord {
        StoredRecord::Attempt(StoredAttempt { job: job.into(), ..StoredAttempt::default() })
    }

    fn read_all(reader: &mut StoreReader) -> Vec<StoredRecord> {
        std::iter::from_fn(|| reader.next_record().unwrap()).collect()
    }

    /// A directory as those of states are, and a writer in it whose files are so long.
    fn writer(most: u64) -> (tempfile::TempDir, PathBuf, StoreWriter<StoreFiles>) {
        let place = tempfile::tempdir().unwrap();
        let path = place.path().join("x.output");
        let writer = StoreWriter::create(StoreFiles::new(path.clone()), most).unwrap();
        (place, path, writer)
    }

    #[test]
    fn what_is_written_is_read_while_the_job_runs_and_after_it() {
        let (_place, path, mut writer) = writer(MAX_BYTES);
        assert_eq!(fs::metadata(&path).unwrap().mode() & 0o777, 0o600);
        let mut reader = StoreReader::open(&path).unwrap().unwrap();
        assert_eq!(reader.next_record().unwrap(), None);
        let first = [attempt("1"), StoredRecord::Started { rank: Rank(1), pid: 7 }];
        first.iter().for_each(|record| assert!(writer.add(record).is_none()));
        assert_eq!(read_all(&mut reader), first);
        let lines = b"restart\n".to_vec();
        let second = [output(1, "a\n"), output(1, ""), StoredRecord::Message { at: 9, lines }];
        second.iter().for_each(|record| assert!(writer.add(record).is_none()));
        assert!(!reader.is_over());
        assert_eq!(read_all(&mut reader), second);
        // As when its process is killed; the thread that waits for the disk may still have the file.
        writer.files.file.as_ref().unwrap().unlock().unwrap();
        assert!(reader.is_over());
        assert_eq!(reader.next_record().unwrap(), None);
    }

    #[test]
    fn the_older_half_gives_way_and_that_is_said() {
        let (_place, path, mut writer) = writer(100);
        let mut following = StoreReader::open(&path).unwrap().unwrap();
        let mut followed = Vec::new();
        writer.add(&attempt("1"));
        let lines: Vec<StoredRecord> =
            (0..40).map(|number| output(0, &format!("line {number}\n"))).collect();
        for line in &lines {
            writer.add(line);
            followed.extend(read_all(&mut following));
        }
        assert!(writer.number > 3);
        followed.retain(|record| *record != attempt("1"));
        assert_eq!(followed, lines);
        let mut read = read_all(&mut StoreReader::open(&path).unwrap().unwrap());
        assert_eq!(read[..2], [StoredRecord::Dropped, attempt("1")]);
        read.retain(|record| lines.contains(record));
        assert!((2..20).contains(&read.len()), "{}", read.len());
        assert_eq!(read, lines[40 - read.len()..]);
        // It was not looked at for long.
        for line in &lines {
            writer.add(line);
        }
        assert_eq!(following.next_record().unwrap(), Some(StoredRecord::Dropped));
        assert_eq!(read_all(&mut following).last(), lines.last());
    }

    /// File on a disk with little room.
    #[derive(Default)]
    struct SmallDisk {
        bytes: Vec<u8>,
        room: usize,
        cannot_cut: bool,
    }

    impl Files for SmallDisk {
        fn begin(&mut self, head: &[u8]) -> io::Result<()> {
            self.bytes = head.to_vec();
            Ok(())
        }

        fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
            let length = bytes.len().min(self.room.saturating_sub(self.bytes.len()));
            if length == 0 {
                return Err(io::ErrorKind::StorageFull.into());
            }
            self.bytes.extend_from_slice(&bytes[..length]);
            Ok(length)
        }

        fn cut(&mut self, length: u64) -> io::Result<()> {
            if self.cannot_cut {
                return Err(io::ErrorKind::Other.into());
            }
            self.bytes.truncate(usize::try_from(length).unwrap());
            Ok(())
        }
    }

    fn records(mut bytes: &[u8]) -> Vec<StoredRecord> {
        let mut found = Vec::new();
        while let Decoded::Record(record, length) = decode(bytes) {
            found.push(record);
            bytes = &bytes[length..];
        }
        found
    }

    #[test]
    fn a_full_disk_is_said_once_and_what_was_lost_is_a_record() {
        let disk = SmallDisk { room: 1000, ..SmallDisk::default() };
        let mut writer = StoreWriter::create(disk, MAX_BYTES).unwrap();
        assert!(writer.add(&output(0, "a\n")).is_none());
        // Not even the record of what is lost has room.
        writer.files.room = writer.files.bytes.len() + 1;
        let long = "x".repeat(60);
        let error = writer.add(&output(0, &long)).unwrap();
        assert_eq!(error.kind(), io::ErrorKind::StorageFull);
        assert!(writer.add(&output(0, &long)).is_none());
        writer.files.room = 1000;
        assert!(writer.add(&output(0, "b\n")).is_none());
        let expected = [output(0, "a\n"), StoredRecord::Lost(120), output(0, "b\n")];
        assert_eq!(records(&writer.files.bytes[FILE_HEAD..]), expected);
    }

    #[test]
    fn what_is_lost_until_the_end_is_said_where_output_has_no_room() {
        let disk = SmallDisk { room: 60, ..SmallDisk::default() };
        let mut writer = StoreWriter::create(disk, MAX_BYTES).unwrap();
        assert!(writer.add(&output(0, &"x".repeat(60))).is_some());
        writer.say_lost().unwrap();
        writer.say_lost().unwrap();
        assert_eq!(records(&writer.files.bytes[FILE_HEAD..]), [StoredRecord::Lost(60)]);
    }

    #[test]
    fn an_attempt_that_found_no_room_is_written_later() {
        let disk = SmallDisk { room: 30, ..SmallDisk::default() };
        let mut writer = StoreWriter::create(disk, MAX_BYTES).unwrap();
        assert!(writer.add(&attempt("1")).is_some());
        writer.files.room = 1000;
        writer.add(&output(0, "a\n"));
        assert_eq!(records(&writer.files.bytes[FILE_HEAD..]), [attempt("1"), output(0, "a\n")]);
    }

    #[test]
    fn nothing_follows_a_part_that_cannot_be_removed() {
        let disk = SmallDisk { room: 50, cannot_cut: true, ..SmallDisk::default() };
        let mut writer = StoreWriter::create(disk, MAX_BYTES).unwrap();
        assert!(writer.add(&output(0, "much more than there is room for\n")).is_some());
        let length = writer.files.bytes.len();
        writer.files.room = 1000;
        writer.add(&output(0, "b\n"));
        assert_eq!(writer.files.bytes.len(), length);
    }

    #[test]
    fn a_power_cut_leaves_what_was_whole() {
        let (_place, path, mut writer) = writer(MAX_BYTES);
        writer.add(&output(0, "a\n"));
        let whole = writer.length;
        writer.add(&output(0, "b\n"));
        for (length, rest) in [(writer.length - 1, 0), (whole + 3, 0), (whole, 40)] {
            let file = OpenOptions::new().write(true).open(&path).unwrap();
            file.set_len(length).unwrap();
            // Some file systems leave zeros.
            file.set_len(length + rest).unwrap();
            let read = read_all(&mut StoreReader::open(&path).unwrap().unwrap());
            assert_eq!(read, [output(0, "a\n")]);
        }
        fs::write(&path, &MAGIC[..5]).unwrap();
        assert!(StoreReader::open(&path).unwrap().is_none());
        fs::write(&path, "something else, and longer").unwrap();
        assert!(StoreReader::open(&path).err().unwrap().to_string().contains("no output of a job"));
    }

    proptest! {
        #[test]
        fn records_are_read_back_however_many_bytes_are_there(
            texts in prop::collection::vec(prop::collection::vec(any::<u8>(), 0..20), 0..8),
            cut in any::<prop::sample::Index>(),
        ) {
            let source = (Rank(3), Stream::Stderr);
            let record = |data| StoredRecord::Output { source, at: 5, data };
            let all: Vec<StoredRecord> = texts.into_iter().map(record).collect();
            let mut bytes = Vec::new();
            all.iter().for_each(|record| encode(record, &mut bytes).unwrap());
            prop_assert_eq!(&records(&bytes), &all);
            let part = records(&bytes[..cut.index(bytes.len() + 1)]);
            prop_assert_eq!(&part[..], &all[..part.len()]);
        }

        #[test]
        fn no_bytes_are_too_strange(bytes in prop::collection::vec(any::<u8>(), 0..80)) {
            records(&bytes);
        }
    }
}
