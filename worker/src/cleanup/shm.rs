//! Shared-memory files that killed programs leave in `/dev/shm`.
//!
//! A file is removed if it belongs to this user, its name contains the id of the process that
//! created it, that process is dead, and no process uses the file. Files of other known kinds are
//! only reported, since they may belong to another job. In a container no file is removed, only
//! reported: `/dev/shm` may be shared with the host or other containers, whose processes are not
//! visible. Files that MPI libraries have named to their process manager are known to be the job's,
//! and are always removed. Their names are noted in the job's private directory, so that they are
//! removed with it even if the agent was killed.

use nix::errno::Errno;
use nix::sys::signal::kill;
use nix::unistd::{Pid, Uid};
use std::collections::HashSet;
use std::fs::{self, File, OpenOptions};
use std::io::{self, Read, Write};
use std::os::unix::fs::{MetadataExt, OpenOptionsExt};
use std::path::Path;
use std::time::SystemTime;

const SHM: &str = "/dev/shm";
/// File in the job's private directory that names files in `/dev/shm` to be removed with it, one per
/// line.
const NOTES: &str = "shared-memory";
/// Maximum number of bytes that are read of [`NOTES`].
const MAX_NOTES: u64 = 4 << 20;
/// Name prefixes of files of MPI libraries, NCCL, PSM, PyTorch and Python.
const KINDS: [&str; 6] = ["mpich_shm_", "sm_segment.", "vader_segment.", "psm_", "torch_", "nccl-"];
/// Link target of `/proc/self/ns/pid` in a machine's initial PID namespace, where all processes are
/// visible.
const INITIAL_NAMESPACE: &str = "pid:[4026531836]";

/// Result of a sweep of `/dev/shm`.
#[derive(Debug, Default)]
pub(crate) struct Swept {
    pub(crate) removed: u32,
    /// Names of unused files of a known kind that were not removed, because the process that
    /// created them is unknown or may be alive.
    pub(crate) unclaimed: Vec<String>,
}

/// Removes or reports the unused files of known kinds that were modified since `since`.
pub(crate) fn sweep(since: SystemTime) -> Swept {
    sweep_below(Path::new(SHM), since, sees_every_process())
}

fn sweep_below(directory: &Path, since: SystemTime, sees_all: bool) -> Swept {
    let mut swept = Swept::default();
    let (mut mapped, mut pids) = (None::<String>, None::<HashSet<i32>>);
    for (name, creator) in candidates(directory, since) {
        // Its creator may be alive.
        if creator.is_some_and(|pid| kill(Pid::from_raw(pid), None) != Err(Errno::ESRCH)) {
            continue;
        }
        // Reading the mappings of all processes is slow, so it is done at most once.
        let mapped = mapped.get_or_insert_with(all_mappings);
        let path = directory.join(&name);
        if mapped.contains(&*path.to_string_lossy()) {
            continue;
        }
        // A file created in a container carries the process id of that PID namespace.
        let mut is_dead = |pid| !pids.get_or_insert_with(all_pids).contains(&pid);
        if sees_all && creator.is_some_and(&mut is_dead) && remove_unused(&path) {
            swept.removed += 1;
        } else {
            swept.unclaimed.push(name);
        }
    }
    swept
}

fn sees_every_process() -> bool {
    fs::read_link("/proc/self/ns/pid")
        .is_ok_and(|namespace| namespace == Path::new(INITIAL_NAMESPACE))
}

/// Removes a file unless a process has it open or mapped, even a process that is not visible in
/// this PID namespace. Returns whether the file was removed.
fn remove_unused(path: &Path) -> bool {
    let flags = libc::O_NOFOLLOW | libc::O_NONBLOCK;
    let Ok(file) = OpenOptions::new().read(true).custom_flags(flags).open(path) else {
        return false;
    };
    rlaunch_sys::while_unused(&file, || fs::remove_file(path).is_ok()).unwrap_or(false)
}

/// Returns the ids of all visible processes, including their ids in nested PID namespaces.
fn all_pids() -> HashSet<i32> {
    let of_process = |entry: fs::DirEntry| {
        entry.file_name().to_str()?.parse::<u32>().ok()?;
        let status = fs::read_to_string(entry.path().join("status")).ok()?;
        Some(namespace_pids(&status).collect::<Vec<_>>())
    };
    fs::read_dir("/proc").into_iter().flatten().flatten().filter_map(of_process).flatten().collect()
}

/// Parses a line such as `NSpid: 4711 12 1`: the ids of a process, from this PID namespace inwards.
fn namespace_pids(status: &str) -> impl Iterator<Item = i32> {
    let line = status.lines().find_map(|line| line.strip_prefix("NSpid:"));
    line.unwrap_or_default().split_ascii_whitespace().filter_map(|number| number.parse().ok())
}

/// Removes shared-memory files of this job's communicators, which remain if a rank never attached,
/// and the files in `segments`, which MPI libraries of ranks have named. Must be called when no
/// process of the job is left. Returns the number of removed files.
pub(crate) fn sweep_job(job: &str, segments: &[String]) -> u32 {
    sweep_job_below(Path::new(SHM), job, segments)
}

fn sweep_job_below(directory: &Path, job: &str, segments: &[String]) -> u32 {
    let prefix = format!("rlaunch-{job}-");
    let files = fs::read_dir(directory).into_iter().flatten().flatten();
    let is_its = |entry: &fs::DirEntry| {
        entry.file_name().to_str().is_some_and(|name| name.starts_with(&prefix))
    };
    let removed = files.filter(is_its).filter(|entry| fs::remove_file(entry.path()).is_ok());
    removed.count() as u32 + remove_named(directory, segments.iter().map(String::as_str))
}

/// Removes this user's files of these names. Returns the number of removed files.
fn remove_named<'a>(directory: &Path, names: impl Iterator<Item = &'a str>) -> u32 {
    let mine = Uid::effective().as_raw();
    let paths = names.filter(|name| !name.contains('/')).map(|name| directory.join(name));
    let is_mine = |path: &Path| {
        path.symlink_metadata().is_ok_and(|file| file.is_file() && file.uid() == mine)
    };
    paths.filter(|path| is_mine(path) && fs::remove_file(path).is_ok()).count() as u32
}

/// Notes that a file in `/dev/shm` belongs to the job with this private directory, for
/// [`sweep_noted`].
pub(crate) fn note_for_removal(workspace: &Path, name: &str) -> io::Result<()> {
    let path = workspace.join(NOTES);
    let mut notes = OpenOptions::new().append(true).create(true).mode(0o600).open(path)?;
    notes.write_all(format!("{name}\n").as_bytes())
}

/// Removes the files in `/dev/shm` that belong to the job with this private directory. Must be called
/// when no process of the job is left.
pub(crate) fn sweep_noted(workspace: &Path) {
    sweep_noted_below(Path::new(SHM), workspace);
}

fn sweep_noted_below(directory: &Path, workspace: &Path) -> u32 {
    let mut notes = String::new();
    let read = File::open(workspace.join(NOTES))
        .and_then(|file| file.take(MAX_NOTES).read_to_string(&mut notes));
    read.map_or(0, |_| remove_named(directory, notes.lines()))
}

/// Returns this user's files of known kinds that were modified since `since`, each with the process
/// id in its name, if any.
fn candidates(directory: &Path, since: SystemTime) -> Vec<(String, Option<i32>)> {
    let mine = Uid::effective().as_raw();
    let mut found = Vec::new();
    for entry in fs::read_dir(directory).into_iter().flatten().flatten() {
        let Ok(name) = entry.file_name().into_string() else { continue };
        if !KINDS.iter().any(|kind| name.starts_with(kind)) {
            continue;
        }
        let Ok(metadata) = entry.metadata() else { continue };
        let recent = metadata.modified().is_ok_and(|modified| modified >= since);
        if metadata.is_file() && metadata.uid() == mine && recent {
            let creator = creator(&name);
            found.push((name, creator));
        }
    }
    found
}

/// Returns the process id in a name of the form `torch_PID_NUMBER_NUMBER`. No other known name
/// contains a process id.
fn creator(name: &str) -> Option<i32> {
    name.strip_prefix("torch_")?.split('_').next()?.parse().ok()
}

fn all_mappings() -> String {
    let maps = |entry: fs::DirEntry| {
        entry.file_name().to_str()?.parse::<u32>().ok()?;
        fs::read_to_string(entry.path().join("maps")).ok()
    };
    fs::read_dir("/proc").into_iter().flatten().flatten().filter_map(maps).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_that_carry_a_process_are_read() {
        assert_eq!(creator("torch_4711_123_0"), Some(4711));
        assert_eq!(creator("torch_x"), None);
        assert_eq!(creator("nccl-abcdef"), None);
    }

    #[test]
    fn a_process_has_a_number_in_each_namespace() {
        let status = "Name:\tsh\nPid:\t4711\nNSpid:\t4711\t12\t1\nNSpgid:\t9\n";
        assert!(namespace_pids(status).eq([4711, 12, 1]));
        assert_eq!(namespace_pids("Name:\tsh\n").count(), 0);
        assert!(all_pids().contains(&Pid::this().as_raw()));
    }

    /// Process id that cannot exist: Linux assigns ids below 2^22.
    const DEAD: i32 = 5_000_000;

    #[test]
    fn a_file_of_a_dead_process_goes_unless_it_is_in_use() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join(format!("torch_{DEAD}_1_0"));
        fs::write(&path, "").unwrap();
        let sweep = |sees_all| sweep_below(dir.path(), SystemTime::UNIX_EPOCH, sees_all);
        let other = OpenOptions::new().write(true).open(&path).unwrap();
        assert_eq!(sweep(true).removed, 0);
        drop(other);
        let in_container = sweep(false);
        assert_eq!((in_container.removed, in_container.unclaimed.len()), (0, 1));
        // Some kernels report every file in memory as in use.
        let swept = sweep(true);
        assert_eq!(swept.removed as usize + swept.unclaimed.len(), 1);
        assert_eq!(path.exists(), swept.removed == 0);
    }

    #[test]
    fn a_file_of_a_living_process_is_left_alone() {
        let dir = tempfile::tempdir().unwrap();
        fs::write(dir.path().join(format!("torch_{}_1_0", Pid::this())), "").unwrap();
        let swept = sweep_below(dir.path(), SystemTime::UNIX_EPOCH, true);
        assert_eq!((swept.removed, swept.unclaimed.len()), (0, 0));
    }

    #[test]
    fn segments_of_a_job_go_with_it() {
        let dir = tempfile::tempdir().unwrap();
        for name in ["rlaunch-ab-0.0", "rlaunch-abc-0.0", "sm_segment.0", "sm_segment.1"] {
            fs::write(dir.path().join(name), "").unwrap();
        }
        let segments = ["sm_segment.0".to_owned(), "gone".to_owned()];
        assert_eq!(sweep_job_below(dir.path(), "ab", &segments), 2);
        for other in ["rlaunch-abc-0.0", "sm_segment.1"] {
            assert!(dir.path().join(other).exists(), "{other}");
        }
    }

    #[test]
    fn what_is_noted_for_a_job_goes_with_its_directory() {
        let (dir, workspace) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
        assert_eq!(sweep_noted_below(dir.path(), workspace.path()), 0);
        let other = workspace.path().join("other");
        fs::write(&other, "").unwrap();
        std::os::unix::fs::symlink(&other, dir.path().join("link")).unwrap();
        fs::create_dir(dir.path().join("directory")).unwrap();
        for name in ["mine", "too", "left"] {
            fs::write(dir.path().join(name), "").unwrap();
        }
        let outside = format!("../{}", other.display());
        for name in ["mine", "gone", "link", "directory", "", "..", &outside, "too"] {
            note_for_removal(workspace.path(), name).unwrap();
        }
        assert_eq!(sweep_noted_below(dir.path(), workspace.path()), 2);
        let mut left: Vec<_> =
            fs::read_dir(dir.path()).unwrap().map(|e| e.unwrap().file_name()).collect();
        left.sort();
        assert_eq!(left, ["directory", "left", "link"]);
        assert!(other.exists());
    }

    #[test]
    fn only_known_kinds_of_this_user_are_looked_at() {
        let dir = tempfile::tempdir().unwrap();
        for name in ["torch_1_2_3", "nccl-x", "somebody's"] {
            fs::write(dir.path().join(name), "").unwrap();
        }
        let mut found = candidates(dir.path(), SystemTime::UNIX_EPOCH);
        found.sort();
        assert_eq!(found, [("nccl-x".into(), None), ("torch_1_2_3".into(), Some(1))]);
        let later = SystemTime::now() + std::time::Duration::from_secs(60);
        assert!(candidates(dir.path(), later).is_empty());
    }
}
