//! Reader of a job's output, while the job runs and after it.

use super::{Decoded, FILE_HEAD, MAGIC, StoredRecord, decode, with_ending};
use std::fs::{self, File};
use std::io;
use std::os::unix::fs::{FileExt, MetadataExt};
use std::path::{Path, PathBuf};

/// Reader of a job's files.
pub struct StoreReader {
    path: PathBuf,
    segment: Segment,
    /// Whether records before those that come next are not kept.
    has_gap: bool,
}

/// One of the files, with what was read of it.
struct Segment {
    file: File,
    number: u32,
    /// Position behind `buffer`.
    read: u64,
    buffer: Vec<u8>,
    /// Length of the records in `buffer` that were taken.
    taken: usize,
}

impl Segment {
    /// Opens a file; `None` if there is none, or the power has failed before the disk had it.
    fn find(path: &Path) -> io::Result<Option<Segment>> {
        let file = match File::open(path) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
            file => file?,
        };
        let mut head = [0; FILE_HEAD];
        match file.read_exact_at(&mut head, 0) {
            Err(error) if error.kind() == io::ErrorKind::UnexpectedEof => return Ok(None),
            read => read?,
        }
        let (magic, number) = head.split_at(MAGIC.len());
        if magic != MAGIC {
            let message = format!("{} is no output of a job", path.display());
            return Err(io::Error::new(io::ErrorKind::InvalidData, message));
        }
        let number = number.try_into().map(u32::from_le_bytes).unwrap_or_default();
        Ok(Some(Segment { file, number, read: FILE_HEAD as u64, buffer: Vec::new(), taken: 0 }))
    }

    /// Returns the next record; `None` at the end of what was written.
    fn next(&mut self) -> io::Result<Option<StoredRecord>> {
        let mut piece = vec![0; 64 << 10];
        loop {
            match decode(&self.buffer[self.taken..]) {
                Decoded::Record(record, length) => {
                    self.taken += length;
                    return Ok(Some(record));
                }
                Decoded::Nothing => return Ok(None),
                Decoded::Part => {}
            }
            self.buffer.drain(..self.taken);
            self.taken = 0;
            let length = self.file.read_at(&mut piece, self.read)?;
            if length == 0 {
                return Ok(None);
            }
            self.buffer.extend_from_slice(&piece[..length]);
            self.read += length as u64;
        }
    }

    /// Tells whether the path is that of another file by now.
    fn is_replaced(&self, path: &Path) -> io::Result<bool> {
        match fs::metadata(path) {
            // The next file comes at once.
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(false),
            found => Ok(found?.ino() != self.file.metadata()?.ino()),
        }
    }
}

impl StoreReader {
    /// Opens the files of a job, at the beginning of what is kept. `None` if there are none.
    pub fn open(path: &Path) -> io::Result<Option<StoreReader>> {
        let newer = Segment::find(path)?;
        let older = Segment::find(&with_ending(path, ".old"))?;
        let Some(segment) = older.or(newer) else { return Ok(None) };
        let has_gap = segment.number > 0;
        Ok(Some(StoreReader { path: path.to_owned(), segment, has_gap }))
    }

    /// Opens the same files again, at their beginning.
    pub fn reopen(&self) -> io::Result<Option<StoreReader>> {
        StoreReader::open(&self.path)
    }

    /// Returns the next record; `None` at the end of what was written so far.
    pub fn next_record(&mut self) -> io::Result<Option<StoredRecord>> {
        loop {
            if std::mem::take(&mut self.has_gap) {
                return Ok(Some(StoredRecord::Dropped));
            }
            if let Some(record) = self.segment.next()? {
                return Ok(Some(record));
            }
            // What was written to the file before it was replaced comes first.
            if !self.segment.is_replaced(&self.path)? {
                return Ok(None);
            }
            if let Some(record) = self.segment.next()? {
                return Ok(Some(record));
            }
            let Some(next) = self.following()? else { return Ok(None) };
            self.has_gap = next.number != self.segment.number + 1;
            self.segment = next;
        }
    }

    /// Opens the file behind this one, or the oldest that is kept.
    fn following(&self) -> io::Result<Option<Segment>> {
        let mut found: Option<Segment> = None;
        for path in [self.path.clone(), with_ending(&self.path, ".old")] {
            let segment = Segment::find(&path)?;
            let is_next = |segment: &Segment| {
                segment.number > self.segment.number
                    && found.as_ref().is_none_or(|found| segment.number < found.number)
            };
            if let Some(segment) = segment.filter(is_next) {
                found = Some(segment);
            }
        }
        Ok(found)
    }

    /// Tells whether nothing more will be written. What was written before may not have been read.
    pub fn is_over(&self) -> bool {
        // Nothing waits for this process's lock on a job that is over.
        self.segment.file.try_lock_shared().is_ok()
    }
}
