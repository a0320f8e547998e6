//! Shared-memory files that killed programs leave in `/dev/shm`.
//!
//! Removed are those that say which process made them, when that process is dead, the file is this
//! user's and nobody maps it. Those of a known kind that name no process are reported instead:
//! they may belong to another job.

use nix::unistd::Uid;
use std::fs;
use std::os::unix::fs::MetadataExt;
use std::path::Path;
use std::time::SystemTime;

const SHM: &str = "/dev/shm";
/// How MPI libraries, NCCL, PSM, PyTorch and Python name their files.
const KINDS: [&str; 6] = ["mpich_shm_", "sm_segment.", "vader_segment.", "psm_", "torch_", "nccl-"];

/// What a sweep found.
#[derive(Debug, Default)]
pub(crate) struct Swept {
    pub(crate) removed: u32,
    /// Unmapped files of a known kind that name no process.
    pub(crate) unclaimed: Vec<String>,
}

/// Looks at files made since `since`.
pub(crate) fn sweep(since: SystemTime) -> Swept {
    let mut swept = Swept::default();
    let mut mapped: Option<String> = None;
    for (name, maker) in candidates(Path::new(SHM), since) {
        if maker.is_some_and(|pid| Path::new(&format!("/proc/{pid}")).exists()) {
            continue;
        }
        // Reading every process's mappings is dear, so it is done once and only if need be.
        let mapped = mapped.get_or_insert_with(all_mappings);
        if mapped.contains(&format!("{SHM}/{name}")) {
            continue;
        }
        if maker.is_none() {
            swept.unclaimed.push(name);
        } else if fs::remove_file(Path::new(SHM).join(&name)).is_ok() {
            swept.removed += 1;
        }
    }
    swept
}

/// Removes what communicators of this job left because a rank never came; nobody of the job is alive.
pub(crate) fn sweep_job(job: &str) -> u32 {
    sweep_job_below(Path::new(SHM), job)
}

fn sweep_job_below(directory: &Path, job: &str) -> u32 {
    let prefix = format!("rlaunch-{job}-");
    let files = fs::read_dir(directory).into_iter().flatten().flatten();
    let is_its = |entry: &fs::DirEntry| {
        entry.file_name().to_str().is_some_and(|name| name.starts_with(&prefix))
    };
    let removed = files.filter(is_its).filter(|entry| fs::remove_file(entry.path()).is_ok());
    removed.count() as u32
}

/// This user's files of a known kind made since then, with the process that their name gives.
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
            let maker = maker(&name);
            found.push((name, maker));
        }
    }
    found
}

/// `torch_PID_NUMBER_NUMBER` is the one kind whose names carry a process.
fn maker(name: &str) -> Option<i32> {
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
        assert_eq!(maker("torch_4711_123_0"), Some(4711));
        assert_eq!(maker("torch_x"), None);
        assert_eq!(maker("nccl-abcdef"), None);
    }

    #[test]
    fn segments_of_a_job_go_with_it() {
        let dir = tempfile::tempdir().unwrap();
        for name in ["rlaunch-ab-0.0", "rlaunch-abc-0.0"] {
            fs::write(dir.path().join(name), "").unwrap();
        }
        assert_eq!(sweep_job_below(dir.path(), "ab"), 1);
        assert!(dir.path().join("rlaunch-abc-0.0").exists());
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
