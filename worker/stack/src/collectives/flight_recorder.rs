//! torch's flight recorder: a process of torch keeps the last operations of each of its process groups, and writes
//! them to a file when something is written to a pipe.
//!
//! The file is a pickle of dictionaries, lists, strings and numbers
//! (`torch/csrc/distributed/c10d/FlightRecorder.hpp` in the source of torch).

use super::{RankProcess, pickle};
use nix::fcntl::OFlag;
use nix::unistd::geteuid;
use rlaunch_bootstrap::id::Rank;
use rlaunch_bootstrap::protocol::inspection::{EnteredOperation, GroupPosition, GroupProgress};
use serde::Deserialize;
use std::collections::{BTreeMap, BTreeSet};
use std::fs::{self, OpenOptions};
use std::io::{self, Read, Write};
use std::os::unix::fs::{FileTypeExt, MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::thread;
use std::time::{Duration, Instant, SystemTime};

/// Maximum length of a dump in bytes. 2000 operations with stacks take 4 MB.
const MAX_DUMP: u64 = 16 << 20;
/// Part of the paths of files in torch itself, which are not what a user looks for.
const TORCH: &str = "/torch/";
/// Time between two looks at a file that is being written.
const PAUSE: Duration = Duration::from_millis(20);

/// Flight recorder of a process.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Recorder {
    rank: Rank,
    /// Number that a launcher which the rank runs has given to the process; `None` for the rank's own.
    started: Option<u32>,
    pipe: PathBuf,
    /// Paths at one of which the dump is written.
    dumps: Vec<PathBuf>,
}

/// Lists the recorders of these processes, each pipe once: what a rank starts inherits the variables that name its pipe. A
/// launcher that the rank runs has no pipe, and its own number may be that of a process that it has started.
pub(super) fn recorders(processes: &[RankProcess]) -> Vec<Recorder> {
    let mut seen = BTreeSet::new();
    let recorder = |process: &RankProcess| {
        let (pipe, dumps) = process.recorder.clone()?;
        let is_pipe = fs::symlink_metadata(&pipe).is_ok_and(|file| file.file_type().is_fifo());
        (is_pipe && seen.insert(pipe.clone())).then_some(Recorder {
            rank: process.rank,
            started: process.started,
            pipe,
            dumps,
        })
    };
    let (started, own): (Vec<_>, Vec<_>) = processes.iter().partition(|one| one.started.is_some());
    started.into_iter().chain(own).filter_map(recorder).collect()
}

impl Recorder {
    /// Requests a dump and returns the rank's positions from it.
    pub(super) fn positions(&self, deadline: Instant) -> io::Result<Vec<GroupPosition>> {
        let mut seen: Vec<Option<Version>> = self.dumps.iter().map(|path| version(path)).collect();
        // Without a reader this fails, rather than to wait for one.
        let mut pipe = OpenOptions::new()
            .write(true)
            .custom_flags(OFlag::O_NONBLOCK.bits())
            .open(&self.pipe)?;
        pipe.write_all(b"1\n")?;
        drop(pipe);
        while Instant::now() < deadline {
            for (path, seen) in self.dumps.iter().zip(&mut seen) {
                let now = version(path);
                if now == *seen {
                    continue;
                }
                *seen = now;
                // A dump that is being written is not complete, and cannot be read yet.
                if let Ok(positions) = self.read(path) {
                    return Ok(positions);
                }
            }
            thread::sleep(PAUSE);
        }
        Err(io::ErrorKind::TimedOut.into())
    }

    fn read(&self, dump: &Path) -> io::Result<Vec<GroupPosition>> {
        let mut bytes = Vec::new();
        // A path below /tmp may be that of another user, or not a file: it is not followed, waited for or believed.
        let flags = (OFlag::O_NOFOLLOW | OFlag::O_NONBLOCK).bits();
        let file = OpenOptions::new().read(true).custom_flags(flags).open(dump)?;
        let metadata = file.metadata()?;
        if !metadata.is_file() || metadata.uid() != geteuid().as_raw() {
            return Err(io::ErrorKind::PermissionDenied.into());
        }
        file.take(MAX_DUMP).read_to_end(&mut bytes)?;
        let positions = positions(self.rank, &bytes)?.into_iter();
        Ok(positions.map(|own| GroupPosition { started: self.started, ..own }).collect())
    }
}

/// Time of the last write to a file, and the file's length in bytes.
type Version = (SystemTime, u64);

/// Returns the version of a file; `None` if there is no file.
fn version(path: &Path) -> Option<Version> {
    let metadata = fs::metadata(path).ok()?;
    Some((metadata.modified().ok()?, metadata.len()))
}

/// Dump, without what is not read.
#[derive(Debug, Deserialize)]
struct Dump {
    /// Process groups by their names in `entries`.
    #[serde(default)]
    pg_config: BTreeMap<String, GroupConfig>,
    #[serde(default)]
    entries: Vec<Entry>,
}

#[derive(Debug, Deserialize)]
struct GroupConfig {
    /// Ranks, as in `[0, 1]`.
    ranks: String,
}

/// Operation.
#[derive(Debug, Deserialize)]
struct Entry {
    /// Name of the group, and what it is for.
    process_group: (String, String),
    /// Number of the collective operation in its group, from 1.
    collective_seq_id: u64,
    /// Library and operation, as in `nccl:all_reduce`.
    profiling_name: String,
    state: String,
    /// Whether the work is done, which some libraries do not note in the state.
    #[serde(default)]
    retired: bool,
    #[serde(default)]
    is_p2p: bool,
    /// Callers, innermost first.
    #[serde(default)]
    frames: Vec<Frame>,
}

#[derive(Debug, Deserialize)]
struct Frame {
    name: String,
    filename: String,
    line: i64,
}

/// Returns the last collective operation of each group in a dump.
fn positions(rank: Rank, dump: &[u8]) -> io::Result<Vec<GroupPosition>> {
    let value = pickle::read(dump).map_err(io::Error::other)?;
    let Dump { pg_config, entries } = serde_json::from_value(value)?;
    let mut last: BTreeMap<&str, &Entry> = BTreeMap::new();
    for entry in entries.iter().filter(|entry| !entry.is_p2p) {
        let found = last.entry(&entry.process_group.0).or_insert(entry);
        if entry.collective_seq_id >= found.collective_seq_id {
            *found = entry;
        }
    }
    // gloo lists one group, without a name.
    let only = pg_config.values().next().filter(|_| pg_config.len() == 1);
    let size = |name: &str| {
        let config = pg_config.get(name).or(only);
        let ranks = config.map_or("", |config| config.ranks.trim_matches(['[', ']']));
        let ranks = ranks.split(',').filter(|rank| !rank.trim().is_empty()).count();
        u32::try_from(ranks).unwrap_or(u32::MAX)
    };
    let position = |(name, entry): (&str, &Entry)| GroupPosition {
        rank,
        started: None,
        group: group_name(&entry.process_group, pg_config.get(name)),
        size: size(name),
        progress: GroupProgress::Entered(entry.operation()),
    };
    Ok(last.into_iter().map(position).collect())
}

/// Names a group by its purpose where it has one, and by its ranks unless it is that of all ranks: several groups may
/// have the same number.
fn group_name((name, purpose): &(String, String), config: Option<&GroupConfig>) -> String {
    let ranks = config.map(|config| format!(" {}", config.ranks)).unwrap_or_default();
    match purpose.as_str() {
        "" | "undefined" => format!("{name}{ranks}"),
        _ if name == "0" => purpose.clone(),
        _ => format!("{purpose} {name}{ranks}"),
    }
}

impl Entry {
    fn operation(&self) -> EnteredOperation {
        let name = self.profiling_name.rsplit(':').next().unwrap_or_default().to_owned();
        let caller = self.frames.iter().find(|frame| !frame.filename.contains(TORCH));
        let caller = caller.map(|Frame { name, filename, line }| {
            let file = filename.rsplit('/').next().unwrap_or_default();
            format!("{name} {file}:{line}")
        });
        EnteredOperation {
            number: self.collective_seq_id,
            name,
            is_complete: self.state == "completed" || self.retired,
            caller: caller.unwrap_or_default(),
        }
    }
}

#[cfg(test)]
#[path = "flight_recorder_tests.rs"]
mod tests;
