//! Source of the kernel's files: `/`, or a recording of a machine.

use nix::errno::Errno;
use nix::unistd::{AccessFlags, access};
use rlaunch_bootstrap::inventory::recording::{RecordedEntry, Recording};
use std::cell::{OnceCell, RefCell};
use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::os::unix::fs::FileExt;
use std::path::{Component, Path, PathBuf};
use std::str::FromStr;

/// Maximum number of bytes of a file that are used.
const MAX_FILE: usize = 256 << 10;
/// Content that a recording has for a device file that may not be opened.
const DENIED: &[u8] = b"may not be opened";

/// Directory below which all paths are read.
#[derive(Debug)]
pub(crate) struct Root {
    prefix: PathBuf,
    is_live: bool,
    /// Entries that were read so far; `None` if they are not recorded.
    recorder: Option<RefCell<Recorder>>,
    control_groups: OnceCell<Option<String>>,
}

/// Recorded entries, by the path under which they were requested.
#[derive(Debug, Default)]
struct Recorder {
    entries: BTreeMap<String, RecordedEntry>,
    listed: BTreeSet<String>,
    #[cfg(test)]
    reads: usize,
}

impl Root {
    /// Returns the root of this machine.
    pub(crate) fn live() -> Root {
        Root { prefix: "/".into(), is_live: true, recorder: None, control_groups: OnceCell::new() }
    }

    /// Returns the root of this machine. Everything that is read is recorded for
    /// [`Root::recording`].
    pub(crate) fn recording_live() -> Root {
        Root::live().with_recorder()
    }

    /// Records everything that is read from now on.
    pub(crate) fn with_recorder(self) -> Root {
        Root { recorder: Some(RefCell::default()), ..self }
    }

    /// Returns the root of a recorded machine.
    pub(crate) fn recorded(prefix: &Path) -> Root {
        let prefix = prefix.canonicalize().unwrap_or_else(|_| prefix.to_owned());
        Root { prefix, is_live: false, recorder: None, control_groups: OnceCell::new() }
    }

    /// Returns the content of `/proc/self/cgroup`, which is read only once, since every limit needs
    /// it.
    pub(crate) fn control_groups(&self) -> Option<&str> {
        self.control_groups.get_or_init(|| self.text("/proc/self/cgroup")).as_deref()
    }

    /// Converts a path of the machine into a path below this root.
    pub(crate) fn path(&self, path: &str) -> PathBuf {
        self.prefix.join(path.trim_start_matches('/'))
    }

    /// Records an entry. If the path was recorded before, the more detailed entry is kept.
    fn record(&self, path: &str, entry: impl FnOnce() -> RecordedEntry) {
        let Some(recorder) = &self.recorder else { return };
        let (mut recorder, entry) = (recorder.borrow_mut(), entry());
        #[cfg(test)]
        {
            recorder.reads += 1;
        }
        let says_more = match recorder.entries.get(path) {
            None => true,
            Some(RecordedEntry::Directory) => matches!(entry, RecordedEntry::Link(_)),
            Some(RecordedEntry::File(bytes)) => bytes.is_empty(),
            Some(RecordedEntry::Link(_)) => false,
        };
        if says_more {
            recorder.entries.insert(path.to_owned(), entry);
        }
    }

    /// Records a part of a file.
    fn record_part(&self, path: &str, offset: usize, part: &[u8]) {
        let Some(recorder) = &self.recorder else { return };
        let mut recorder = recorder.borrow_mut();
        let entry =
            recorder.entries.entry(path.to_owned()).or_insert(RecordedEntry::File(Vec::new()));
        if let RecordedEntry::File(bytes) = entry {
            bytes.resize(bytes.len().max(offset + part.len()), 0);
            bytes[offset..offset + part.len()].copy_from_slice(part);
        }
    }

    /// Returns a recording of everything that was read. [`Root::recorded`] can read the same
    /// inventory from it.
    pub(crate) fn recording(self) -> Recording {
        let recorder = self.recorder.map(RefCell::into_inner).unwrap_or_default();
        Recording::from_entries(&recorder.entries, &recorder.listed)
    }

    /// Returns the number of successful reads.
    #[cfg(test)]
    pub(crate) fn reads(&self) -> usize {
        self.recorder.as_ref().map_or(0, |recorder| recorder.borrow().reads)
    }

    /// Reads a file as text without its trailing newline. `None` if it cannot be read, as empty
    /// sysfs entries often cannot.
    pub(crate) fn text(&self, path: &str) -> Option<String> {
        let bytes = fs::read(self.path(path)).ok()?;
        self.record(path, || RecordedEntry::File(bytes.clone()));
        let text = String::from_utf8_lossy(bytes.get(..MAX_FILE).unwrap_or(&bytes)).into_owned();
        Some(text.trim_end().to_owned())
    }

    /// Reads `N` bytes of a file at an offset. Returns `None` if the file is shorter. A recording
    /// has zeros in place of those parts of the file that were not read.
    pub(crate) fn bytes_at<const N: usize>(&self, path: &str, offset: u16) -> Option<[u8; N]> {
        let mut bytes = [0; N];
        fs::File::open(self.path(path)).ok()?.read_exact_at(&mut bytes, offset.into()).ok()?;
        self.record_part(path, usize::from(offset), &bytes);
        Some(bytes)
    }

    /// Reads a file that holds one value.
    pub(crate) fn value<T: FromStr>(&self, path: &str) -> Option<T> {
        self.text(path)?.trim().parse().ok()
    }

    /// Reads a file that holds a hexadecimal number like `0x15b3`.
    pub(crate) fn hex(&self, path: &str) -> Option<u64> {
        u64::from_str_radix(self.text(path)?.trim().trim_start_matches("0x"), 16).ok()
    }

    /// Lists the names in a directory, sorted; names that are numbers are sorted by value.
    pub(crate) fn names(&self, path: &str) -> Vec<String> {
        let entries = fs::read_dir(self.path(path)).into_iter().flatten().flatten();
        self.record(path, || RecordedEntry::Directory);
        let mut names: Vec<String> =
            entries.filter_map(|entry| entry.file_name().into_string().ok()).collect();
        names.sort_by_cached_key(|name| (name.parse::<u64>().ok(), name.clone()));
        if let Some(recorder) = &self.recorder {
            recorder.borrow_mut().listed.extend(names.iter().map(|name| format!("{path}/{name}")));
        }
        names
    }

    pub(crate) fn exists(&self, path: &str) -> bool {
        let metadata = fs::metadata(self.path(path));
        if let Ok(metadata) = &metadata {
            let empty = || RecordedEntry::File(Vec::new());
            self.record(
                path,
                || if metadata.is_dir() { RecordedEntry::Directory } else { empty() },
            );
        }
        metadata.is_ok()
    }

    /// Tells whether this user may read and write a device. Returns `None` if the device does not
    /// exist. A recording has a file with the answer in place of the device.
    pub(crate) fn may_open(&self, path: &str) -> Option<bool> {
        let may = if self.is_live {
            match access(&self.path(path), AccessFlags::R_OK | AccessFlags::W_OK) {
                Err(Errno::ENOENT) => return None,
                result => result.is_ok(),
            }
        } else {
            fs::read(self.path(path)).ok()? != DENIED
        };
        let words = if may { b"may be opened" as &[u8] } else { DENIED };
        self.record(path, || RecordedEntry::File(words.to_vec()));
        Some(may)
    }

    /// Resolves links and returns the result as a path of the machine.
    pub(crate) fn real(&self, path: &str) -> Option<String> {
        let real = self.path(path).canonicalize().ok()?;
        let inside = real.strip_prefix(&self.prefix).ok()?;
        let real = format!("/{}", inside.to_str()?);
        if real != path {
            self.record(path, || RecordedEntry::Link(real.clone()));
        }
        self.record(&real, || RecordedEntry::Directory);
        Some(real)
    }

    /// Returns the last component of a link's target, whether or not the target exists.
    pub(crate) fn link_name(&self, path: &str) -> Option<String> {
        let target = fs::read_link(self.path(path)).ok()?;
        match target.components().next_back()? {
            Component::Normal(name) => {
                let name = name.to_str()?.to_owned();
                self.record(path, || RecordedEntry::Link(format!("/links/{name}")));
                Some(name)
            }
            _ => None,
        }
    }

    /// Returns the text that `ask` gets from the kernel or from a program; `None` if it gets none. For
    /// a recorded machine, returns the content of the file at `path`. Only [`MAX_FILE`] bytes of the
    /// text are used.
    pub(crate) fn asked_text(
        &self,
        path: &str,
        ask: impl FnOnce() -> Option<String>,
    ) -> Option<String> {
        if !self.is_live {
            return self.text(path);
        }
        let mut text = ask()?;
        text.truncate(text.floor_char_boundary(MAX_FILE));
        text.truncate(text.trim_end().len());
        self.record(path, || RecordedEntry::File(text.clone().into_bytes()));
        Some(text)
    }

    /// Tells whether this is the machine itself, not a recorded one.
    pub(crate) fn is_live(&self) -> bool {
        self.is_live
    }

    /// Returns the lines that `ask` gets from the kernel by system calls or from many files. For a
    /// recorded machine, returns the lines of the file at `path`.
    pub(crate) fn asked_lines(&self, path: &str, ask: impl FnOnce() -> Vec<String>) -> Vec<String> {
        if !self.is_live {
            let text = self.text(path).unwrap_or_default();
            return text.lines().map(str::to_owned).collect();
        }
        let lines = ask();
        self.record(path, || {
            RecordedEntry::File(
                lines.iter().flat_map(|line| [line, "\n"]).collect::<String>().into_bytes(),
            )
        });
        lines
    }
}
