//! Journal of the changes to a host: what was, what is, when, and by which command.
//!
//! A line has time and number of the change and a few words, all of them for whoever reads the file, and behind a tab the
//! [`Record`] as agents encode messages:
//!
//! ```text
//! 1764474880 3 rlaunch up: write /etc/hosts⇥\x80\x80\xaf\xc9\x06\x03\x00\nrlaunch up\x00\n/etc/hosts\xa4\x03...
//! 1764474880 3 done⇥\x80\x80\xaf\xc9\x06\x03\x01\x00
//! ```
//!
//! Text stays as it is there, with its length before it, which may look like a letter or like `\n` (10). Backslashes, control
//! characters and bytes that are no UTF-8 are written as `\\`, `\n`, `\r`, `\t` or `\xNN`.
//!
//! A change has up to three lines. The first is on the disk before the change is made, so that whatever happens later, it
//! can be undone. To undo one that was not made, or is undone already, costs nothing.
//!
//! The running system is changed before the file that sets it again at boot. The other way round, a boot between the two would
//! make the change, and nothing would say what was there before.

use super::{Change, ChangeOutcome, JournalState, UndoneChange};
use serde::{Deserialize, Serialize};

/// Line of a journal. Journals keep it by position: later versions add no fields.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Record {
    /// Seconds since 1970.
    pub time: u64,
    /// Number of the change.
    pub id: u64,
    pub event: Event,
}

/// Event in the life of a change. Journals keep it by position, and later versions read those of earlier ones: they add
/// variants at the end, never fields. The same holds for all that it consists of.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Event {
    /// It is about to be made.
    Begun {
        /// Command of the user.
        by: String,
        change: Change,
        was: Was,
    },
    /// It was made.
    Done {
        /// Former state, if it is known better than before the change.
        was: Option<Was>,
    },
    /// It was not made, or not as a whole.
    Failed {
        cause: String,
    },
    Undone,
}

/// State before a change, to which undoing it leads back. Journals keep it by position: later versions add variants at the end,
/// never fields.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Was {
    /// Nothing that could be restored.
    Nothing,
    NoFile {
        /// Directories that are made for the file, each in the one before.
        directories: Vec<String>,
    },
    File {
        mode: u32,
        user: u32,
        group: u32,
        content: String,
    },
    /// Output of the line that saves.
    Saved(String),
    /// State of the network, as the agent encodes it.
    Network(Vec<u8>),
    /// Output of the line that saves, in the boot with this id.
    SavedInBoot {
        boot: String,
        saved: String,
    },
}

impl Record {
    /// Writes the record as a line of the journal.
    pub fn to_line(&self) -> String {
        // Fails for sequences of unknown length, and there are none.
        let bytes = postcard::to_stdvec(self).unwrap_or_default();
        let words = match &self.event {
            Event::Begun { by, change, .. } => format!("{by}: {}", change.title()),
            Event::Done { .. } => "done".to_owned(),
            Event::Failed { cause } => format!("failed: {cause}"),
            Event::Undone => "undone".to_owned(),
        };
        let words = words.replace(char::is_control, " ");
        format!("{} {} {words}\t{}\n", self.time, self.id, escaped(&bytes))
    }

    /// Reads a line, without its end. Returns `None` if it is of a later version, or damaged. A part of a line may be left
    /// before it, where a disk has refused the rest.
    pub fn from_line(line: &[u8]) -> Option<Record> {
        let tab = line.iter().rposition(|byte| *byte == b'\t')?;
        let bytes = unescaped(line.get(tab + 1..)?)?;
        let (record, rest) = postcard::take_from_bytes(&bytes).ok()?;
        rest.is_empty().then_some(record)
    }
}

/// Writes bytes on one line, in which text stays as it is.
fn escaped(bytes: &[u8]) -> String {
    let mut text = String::with_capacity(bytes.len());
    for chunk in bytes.utf8_chunks() {
        for c in chunk.valid().chars() {
            match c {
                '\\' | '\n' | '\r' | '\t' => text.extend(c.escape_default()),
                c if c.is_control() => {
                    push_numbers(&mut text, c.encode_utf8(&mut [0; 4]).as_bytes());
                }
                c => text.push(c),
            }
        }
        push_numbers(&mut text, chunk.invalid());
    }
    text
}

fn push_numbers(text: &mut String, bytes: &[u8]) {
    bytes.iter().for_each(|byte| text.push_str(&format!("\\x{byte:02x}")));
}

/// Undoes [`escaped`]. Returns `None` for what it does not write.
fn unescaped(text: &[u8]) -> Option<Vec<u8>> {
    let mut rest = text.iter().copied();
    let mut bytes = Vec::with_capacity(text.len());
    let digit = |byte: Option<u8>| u8::try_from(char::from(byte?).to_digit(16)?).ok();
    while let Some(byte) = rest.next() {
        bytes.push(match byte {
            b'\\' => match rest.next()? {
                b'\\' => b'\\',
                b'n' => b'\n',
                b'r' => b'\r',
                b't' => b'\t',
                b'x' => digit(rest.next())? << 4 | digit(rest.next())?,
                _ => return None,
            },
            byte => byte,
        });
    }
    (escaped(&bytes).as_bytes() == text).then_some(bytes)
}

/// Host that changes. All but `append` may have happened in part if they fail.
pub trait ChangedHost {
    /// Returns what is there before a change, or `None` if the change is in effect already.
    fn look(&mut self, change: &Change) -> Result<Option<Was>, String>;

    /// Makes a change. May return what is to be restored, if that is known better than before.
    fn make(&mut self, change: &Change, was: &Was) -> Result<Option<Was>, String>;

    /// Restores what was before a change. It may have been restored already.
    fn restore(&mut self, change: &Change, was: &Was) -> Result<(), String>;

    /// Appends a line to the journal, and returns when it is on the disk.
    fn append(&mut self, record: &Record) -> Result<(), String>;

    /// Removes the journal.
    fn clear(&mut self) -> Result<(), String>;
}

/// Change that is not undone.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Entry {
    id: u64,
    time: u64,
    by: String,
    change: Change,
    was: Was,
}

/// Changes of a host that are to be undone, in the order in which they were made.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Journal {
    entries: Vec<Entry>,
    next_id: u64,
    unreadable: u32,
    was_torn: bool,
}

impl Journal {
    /// Reads a journal. Returns it with the length of its whole lines in bytes: what follows them was cut off while it was
    /// written, so that nothing was done about it.
    pub fn parse(bytes: &[u8]) -> (Journal, usize) {
        let whole = bytes.iter().rposition(|byte| *byte == b'\n').map_or(0, |at| at + 1);
        let mut journal = Journal { was_torn: whole < bytes.len(), ..Journal::default() };
        let lines = bytes.get(..whole).unwrap_or_default().split(|byte| *byte == b'\n');
        for line in lines.filter(|line| !line.is_empty()) {
            match Record::from_line(line) {
                Some(record) => journal.note(record),
                None => journal.unreadable += 1,
            }
        }
        (journal, whole)
    }

    fn note(&mut self, record: Record) {
        let Record { time, id, event } = record;
        self.next_id = self.next_id.max(id.saturating_add(1));
        match event {
            Event::Begun { by, change, was } => {
                self.entries.push(Entry { id, time, by, change, was });
            }
            Event::Done { was: Some(was) } => {
                let entry = self.entries.iter_mut().find(|entry| entry.id == id);
                entry.into_iter().for_each(|entry| entry.was = was.clone());
            }
            // A later change may bring this one back, as a file does at boot. So this one is forgotten only after that, and
            // undone again behind it.
            Event::Undone => drop(self.entries.pop_if(|last| last.id == id)),
            Event::Done { was: None } | Event::Failed { .. } => {}
        }
    }

    /// Returns the number of the next change. Those from here on are made later.
    pub fn next_id(&self) -> u64 {
        self.next_id
    }

    pub fn state(&self) -> JournalState {
        JournalState {
            pending: u32::try_from(self.entries.len()).unwrap_or(u32::MAX),
            unreadable: self.unreadable,
            was_torn: self.was_torn,
        }
    }

    /// Makes a change, unless it is in effect already.
    pub fn apply(
        &mut self,
        host: &mut impl ChangedHost,
        change: &Change,
        by: &str,
        time: u64,
    ) -> ChangeOutcome {
        let was = match host.look(change) {
            Ok(Some(was)) => was,
            Ok(None) => return ChangeOutcome::Already,
            Err(cause) => return ChangeOutcome::Failed(cause),
        };
        let id = self.next_id;
        let event = Event::Begun { by: by.to_owned(), change: change.clone(), was: was.clone() };
        let begun = Record { time, id, event };
        if let Err(cause) = host.append(&begun) {
            return ChangeOutcome::Failed(format!("cannot write the journal: {cause}"));
        }
        self.note(begun);
        let (event, outcome) = match host.make(change, &was) {
            Ok(was) => (Event::Done { was }, ChangeOutcome::Made),
            Err(cause) => (Event::Failed { cause: cause.clone() }, ChangeOutcome::Failed(cause)),
        };
        let ended = Record { time, id, event };
        // If it cannot be written, the change is undone as one that has begun.
        let _ = host.append(&ended);
        self.note(ended);
        outcome
    }

    /// Lists the changes from this one on that are to be undone, the last one first.
    pub fn pending(&self, from: u64) -> Vec<u64> {
        let ids = self.entries.iter().map(|entry| entry.id).filter(|id| *id >= from);
        ids.rev().collect()
    }

    /// Undoes a change; `None` if there is none with this number.
    pub fn undo(
        &mut self,
        host: &mut impl ChangedHost,
        id: u64,
        time: u64,
    ) -> Option<UndoneChange> {
        let Entry { change, was, by, time: made, .. } =
            self.entries.iter().find(|entry| entry.id == id)?.clone();
        let restored = host.restore(&change, &was);
        if restored.is_ok() {
            let record = Record { id, time, event: Event::Undone };
            // If it cannot be written, it is undone once more later.
            let _ = host.append(&record);
            self.note(record);
        }
        Some(UndoneChange { change, by, time: made, failure: restored.err() })
    }

    /// Removes the journal if nothing in it can be undone any more.
    pub fn clear(&mut self, host: &mut impl ChangedHost) -> Result<(), String> {
        if self.entries.is_empty() && self.unreadable == 0 {
            host.clear()?;
            *self = Journal::default();
        }
        Ok(())
    }
}

/// Takes a change out of a file that others have changed since: `was` is the content before the change, `ours` the one after
/// it, `present` the one now. Returns `None` if what the change has put in is not there once, as it was.
pub fn taken_out(was: &str, ours: &str, present: &str) -> Option<String> {
    if present == ours || present == was {
        return Some(was.to_owned());
    }
    let lines = |text: &str| text.split_inclusive('\n').map(str::to_owned).collect::<Vec<_>>();
    let (before, after) = (lines(was), lines(ours));
    let head = before.iter().zip(&after).take_while(|(one, other)| one == other).count();
    let rest = before.len().min(after.len()) - head;
    let pairs = before.iter().rev().zip(after.iter().rev());
    let tail = pairs.take(rest).take_while(|(one, other)| one == other).count();
    let removed = before.get(head..before.len() - tail)?.concat();
    let inserted = after.get(head..after.len() - tail)?.concat();
    let (first, last) = present.split_once(&inserted).filter(|_| !inserted.is_empty())?;
    (!last.contains(&inserted)).then(|| format!("{first}{removed}{last}"))
}

#[cfg(test)]
mod tests;
