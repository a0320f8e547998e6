//! Where the kernel's files are: `/`, or a recording of them.

use nix::errno::Errno;
use nix::unistd::{AccessFlags, access};
use rlaunch_bootstrap::inventory::recording::{RecordedEntry, Recording};
use std::cell::{OnceCell, RefCell};
use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::os::unix::fs::FileExt;
use std::path::{Component, Path, PathBuf};
use std::str::FromStr;

/// The longest file that is read, in bytes: what the kernel says in one is shorter.
const MAX_FILE: usize = 256 << 10;
/// In a recording: a device that may not be opened.
const DENIED: &[u8] = b"may not be opened";

/// A directory below which everything is looked for.
#[derive(Debug)]
pub(crate) struct Root {
    prefix: PathBuf,
    is_live: bool,
    /// What has been read, when that is wanted.
    recorder: Option<RefCell<Recorder>>,
    control_groups: OnceCell<Option<String>>,
}

/// Paths as they were asked for.
#[derive(Debug, Default)]
struct Recorder {
    entries: BTreeMap<String, RecordedEntry>,
    listed: BTreeSet<String>,
    #[cfg(test)]
    reads: usize,
}

impl Root {
    /// This machine.
    pub(crate) fn live() -> Root {
        Root { prefix: "/".into(), is_live: true, recorder: None, control_groups: OnceCell::new() }
    }

    /// This machine, with everything that is read kept for [`Root::recording`].
    pub(crate) fn recording_live() -> Root {
        Root::live().with_recorder()
    }

    /// The same, and what is read is kept.
    pub(super) fn with_recorder(self) -> Root {
        Root { recorder: Some(RefCell::default()), ..self }
    }

    /// A recorded tree.
    pub(crate) fn recorded(prefix: &Path) -> Root {
        let prefix = prefix.canonicalize().unwrap_or_else(|_| prefix.to_owned());
        Root { prefix, is_live: false, recorder: None, control_groups: OnceCell::new() }
    }

    /// Reads `/proc/self/cgroup`, once: every limit is looked up in it.
    pub(super) fn control_groups(&self) -> Option<&str> {
        self.control_groups.get_or_init(|| self.text("/proc/self/cgroup")).as_deref()
    }

    /// Where a path of the machine is.
    pub(super) fn path(&self, path: &str) -> PathBuf {
        self.prefix.join(path.trim_start_matches('/'))
    }

    /// Keeps what was read; of one path, what says more.
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

    /// Keeps a part of a file.
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

    /// Everything that was read, as a tree that [`Root::recorded`] reads the same from.
    pub(crate) fn recording(self) -> Recording {
        let recorder = self.recorder.map(RefCell::into_inner).unwrap_or_default();
        Recording::from_entries(&recorder.entries, &recorder.listed)
    }

    /// How often something was read that is there.
    #[cfg(test)]
    pub(super) fn reads(&self) -> usize {
        self.recorder.as_ref().map_or(0, |recorder| recorder.borrow().reads)
    }

    /// A file's text without the end of its last line; `None` when it cannot be read, as entries
    /// that are empty often cannot.
    pub(super) fn text(&self, path: &str) -> Option<String> {
        let bytes = fs::read(self.path(path)).ok()?;
        self.record(path, || RecordedEntry::File(bytes.clone()));
        let text = String::from_utf8_lossy(bytes.get(..MAX_FILE).unwrap_or(&bytes)).into_owned();
        Some(text.trim_end().to_owned())
    }

    /// So many bytes of a file; `None` when it ends before. The rest is not read, and in a recording
    /// it is zeros.
    pub(super) fn bytes_at<const N: usize>(&self, path: &str, offset: u16) -> Option<[u8; N]> {
        let mut bytes = [0; N];
        fs::File::open(self.path(path)).ok()?.read_exact_at(&mut bytes, offset.into()).ok()?;
        self.record_part(path, usize::from(offset), &bytes);
        Some(bytes)
    }

    /// A file that is one value.
    pub(super) fn value<T: FromStr>(&self, path: &str) -> Option<T> {
        self.text(path)?.trim().parse().ok()
    }

    /// A file that is a hexadecimal number, `0x15b3`.
    pub(super) fn hex(&self, path: &str) -> Option<u64> {
        u64::from_str_radix(self.text(path)?.trim().trim_start_matches("0x"), 16).ok()
    }

    /// The names in a directory, in order; numbers in theirs.
    pub(super) fn names(&self, path: &str) -> Vec<String> {
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

    pub(super) fn exists(&self, path: &str) -> bool {
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

    /// Whether this user may read and write a device; `None` when it is not there. In a recording,
    /// devices are files that say what may be done.
    pub(super) fn may_open(&self, path: &str) -> Option<bool> {
        let may = match self.is_live {
            true => match access(&self.path(path), AccessFlags::R_OK | AccessFlags::W_OK) {
                Err(Errno::ENOENT) => return None,
                result => result.is_ok(),
            },
            false => fs::read(self.path(path)).ok()? != DENIED,
        };
        let words = if may { b"may be opened" as &[u8] } else { DENIED };
        self.record(path, || RecordedEntry::File(words.to_vec()));
        Some(may)
    }

    /// Where a link or a directory really is, as a path of the machine.
    pub(super) fn real(&self, path: &str) -> Option<String> {
        let real = self.path(path).canonicalize().ok()?;
        let inside = real.strip_prefix(&self.prefix).ok()?;
        let real = format!("/{}", inside.to_str()?);
        if real != path {
            self.record(path, || RecordedEntry::Link(real.clone()));
        }
        self.record(&real, || RecordedEntry::Directory);
        Some(real)
    }

    /// The last component of where a link leads, whether or not anything is there.
    pub(super) fn link_name(&self, path: &str) -> Option<String> {
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

    /// What the kernel says over sockets, line by line: in a recording it is a file of this name.
    pub(super) fn socket_lines(
        &self,
        path: &str,
        ask: impl FnOnce() -> Vec<String>,
    ) -> Vec<String> {
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
