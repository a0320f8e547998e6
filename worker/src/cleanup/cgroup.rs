//! Cgroup for a job's ranks on this node. One write kills everything in the cgroup, including
//! processes that are just being forked, and the kernel reports when the cgroup is empty.
//!
//! The cgroup is created below the cgroup of this process, so that the limits of an administrator
//! or scheduler apply, and has no controllers of its own. Agent and guardian stay outside. A cgroup
//! is optional: without one, ranks are found as descendants of the agent.
//!
//! Kills by the kernel's out-of-memory killer are counted for the whole host ([`OomKillCount`]).

use nix::unistd::{Pid, Uid};
use std::fs::{self, File};
use std::os::fd::{AsFd, BorrowedFd};
use std::os::unix::fs::MetadataExt;
use std::path::{Component, Path, PathBuf};

/// Directories at which version 2 of the cgroup file system is mounted: the first on hosts with
/// version 2 alone, the second on hosts that use both versions.
const MOUNTS: [&str; 2] = ["/sys/fs/cgroup", "/sys/fs/cgroup/unified"];
/// Inode of the root cgroup of version 2.
const ROOT: u64 = 1;
/// Inode of the host's own cgroup namespace (`PROC_CGROUP_INIT_INO`).
const OUTERMOST_NAMESPACE: u64 = 0xEFFF_FFFB;
/// Maximum depth of a search through cgroups. No host's hierarchy is as deep as this.
const DEEPEST: usize = 24;

/// Cgroup of a job. Dropping it removes the cgroup if this process has created it.
#[derive(Debug)]
pub(crate) struct Cgroup {
    path: PathBuf,
    /// Open directory of the cgroup, in which ranks are started. `None` for another agent's cgroup
    /// and after [`Cgroup::close`].
    directory: Option<File>,
    is_own: bool,
}

impl Cgroup {
    /// Creates a cgroup for the job below this process's own. `tag` distinguishes agents of the
    /// same job. Returns `None` if that is not permitted, or if the kernel lacks `cgroup.kill`
    /// (before Linux 5.14).
    pub(crate) fn create(job: &str, tag: &str) -> Option<Cgroup> {
        let path = own_directory()?.join(format!("rlaunch-{job}-{tag}"));
        fs::create_dir(&path).ok()?;
        let directory = File::open(&path).ok().filter(|_| path.join("cgroup.kill").exists());
        let cgroup = Cgroup { path, directory, is_own: true };
        // If it cannot be used, it is removed here.
        cgroup.directory.is_some().then_some(cgroup)
    }

    /// Finds the cgroup that an agent with this tag created below this process's own.
    pub(crate) fn find_by_tag(tag: &str) -> Option<Cgroup> {
        let suffix = format!("-{tag}");
        let found = directories(&own_directory()?).find(|path| {
            let name = file_name(path);
            name.starts_with("rlaunch-") && name.ends_with(&suffix)
        });
        found.map(|path| Cgroup { path, directory: None, is_own: false })
    }

    /// Finds all cgroups of this user's job `job`, or of all jobs of this user if `job` is `all`.
    pub(crate) fn find_by_job(job: &str) -> Vec<Cgroup> {
        let mut found = Vec::new();
        for mount in mounts() {
            find_below(mount, job, DEEPEST, &mut found);
        }
        found
    }

    /// Returns the open directory through which a process is started in the cgroup.
    pub(crate) fn directory(&self) -> Option<BorrowedFd<'_>> {
        self.directory.as_ref().map(AsFd::as_fd)
    }

    /// Closes the directory. Ranks that start later are outside the cgroup.
    pub(crate) fn close(&mut self) {
        self.directory = None;
    }

    /// Kills all processes in the cgroup and in those below it, including processes being forked.
    pub(crate) fn kill(&self) {
        // Fails if the cgroup is gone.
        let _ = fs::write(self.path.join("cgroup.kill"), "1");
    }

    /// Tells whether a process exists in the cgroup or in one below it.
    pub(crate) fn is_populated(&self) -> bool {
        let events = fs::read_to_string(self.path.join("cgroup.events")).unwrap_or_default();
        events.lines().any(|line| line == "populated 1")
    }

    /// Returns the processes in the cgroup and in those below it that are visible to this process.
    pub(crate) fn members(&self) -> Vec<Pid> {
        let mut found = Vec::new();
        members_below(&self.path, DEEPEST, &mut found);
        found
    }

    /// Removes the cgroup and all cgroups that ranks have created below it. Cgroups that contain
    /// processes remain.
    pub(crate) fn remove(&self) {
        remove_below(&self.path, DEEPEST);
    }
}

impl Drop for Cgroup {
    fn drop(&mut self) {
        if self.is_own {
            self.remove();
        }
    }
}

/// Returns the directory of this process's cgroup.
fn own_directory() -> Option<PathBuf> {
    let cgroups = fs::read_to_string("/proc/self/cgroup").ok()?;
    let path = own_path(&cgroups)?;
    // In a container the path may belong to a hierarchy that is not mounted here, so the directory
    // must list this process. On the host itself that is not checked, because the root cgroup of a
    // busy host has thousands of processes.
    let number = |path: &Path| fs::metadata(path).map(|found| found.ino());
    let is_outermost = number(Path::new("/proc/self/ns/cgroup")).ok() == Some(OUTERMOST_NAMESPACE);
    let me = Pid::this().to_string();
    let has_me = |directory: &PathBuf| {
        let members = fs::read_to_string(directory.join("cgroup.procs")).unwrap_or_default();
        members.lines().any(|pid| pid == me)
    };
    mounts().find_map(|mount| {
        let is_whole = is_outermost && number(mount).ok() == Some(ROOT);
        Some(mount.join(path)).filter(|directory| is_whole || has_me(directory))
    })
}

/// Parses `/proc/self/cgroup` and returns the path of the cgroup below the mount point. Returns
/// `None` if the cgroup is outside of the mounted hierarchy.
fn own_path(cgroups: &str) -> Option<&Path> {
    let path = cgroups.lines().find_map(|line| line.strip_prefix("0::/"))?;
    let path = Path::new(path);
    path.components().all(|part| matches!(part, Component::Normal(_))).then_some(path)
}

fn mounts() -> impl Iterator<Item = &'static Path> {
    MOUNTS.iter().map(Path::new).filter(|mount| mount.join("cgroup.procs").exists())
}

fn directories(path: &Path) -> impl Iterator<Item = PathBuf> + use<> {
    let entries = fs::read_dir(path).into_iter().flatten().flatten();
    let entries = entries.filter(|entry| entry.file_type().is_ok_and(|kind| kind.is_dir()));
    entries.map(|entry| entry.path())
}

fn file_name(path: &Path) -> String {
    path.file_name().unwrap_or_default().to_string_lossy().into_owned()
}

fn find_below(path: &Path, job: &str, levels: usize, found: &mut Vec<Cgroup>) {
    for path in directories(path) {
        let is_mine = || fs::metadata(&path).is_ok_and(|m| m.uid() == Uid::effective().as_raw());
        if is_of_job(&file_name(&path), job) && is_mine() {
            found.push(Cgroup { path, directory: None, is_own: false });
        } else if levels > 0 {
            find_below(&path, job, levels - 1, found);
        }
    }
}

/// Tells whether [`Cgroup::create`] has made this name for the job: `rlaunch-JOB-PID-TIME`. The job
/// `all` stands for every job.
fn is_of_job(name: &str, job: &str) -> bool {
    let parts: Vec<&str> = name.split('-').collect();
    let ["rlaunch", of, pid, _time] = parts[..] else { return false };
    let is_job = of.len() == 32 && of.bytes().all(|byte| byte.is_ascii_hexdigit());
    is_job && pid.parse::<u32>().is_ok() && (job == "all" || job == of)
}

fn members_below(path: &Path, levels: usize, found: &mut Vec<Pid>) {
    let members = fs::read_to_string(path.join("cgroup.procs")).unwrap_or_default();
    // A process of a PID namespace that is not visible here is listed as 0.
    let pids = members.lines().filter_map(|pid| pid.parse().ok()).filter(|&pid| pid > 0);
    found.extend(pids.map(Pid::from_raw));
    if levels > 0 {
        directories(path).for_each(|path| members_below(&path, levels - 1, found));
    }
}

fn remove_below(path: &Path, levels: usize) {
    // A cgroup with children cannot be removed.
    if fs::remove_dir(path).is_err() && levels > 0 {
        directories(path).for_each(|path| remove_below(&path, levels - 1));
        let _ = fs::remove_dir(path);
    }
}

/// Number of processes that the kernel's OOM killer has killed on this host since boot: `oom_kill`
/// of `/proc/vmstat` (since Linux 4.13). `None` if unknown.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct OomKillCount(Option<u64>);

impl OomKillCount {
    pub(crate) fn now() -> OomKillCount {
        OomKillCount(
            fs::read_to_string("/proc/vmstat").ok().and_then(|text| parse_oom_kills(&text)),
        )
    }

    /// Tells whether the kernel's OOM killer has killed a process since this count was read.
    pub(crate) fn has_grown(self) -> bool {
        matches!((self.0, OomKillCount::now().0), (Some(before), Some(now)) if now > before)
    }
}

fn parse_oom_kills(vmstat: &str) -> Option<u64> {
    vmstat.lines().find_map(|line| line.strip_prefix("oom_kill "))?.parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_cgroup_outside_of_what_is_mounted_is_left_alone() {
        let path = |text| own_path(text).map(Path::to_owned);
        assert_eq!(path("1:cpu:/\n0::/user.slice/a\n"), Some("user.slice/a".into()));
        assert_eq!(path("0::/\n"), Some("".into()));
        assert_eq!(path("0::/../../other\n"), None);
        assert_eq!(path("4:memory:/x\n"), None);
    }

    #[test]
    fn only_a_jobs_name_is_taken_for_one() {
        let job = "0123456789abcdef0123456789abcdef";
        let name = format!("rlaunch-{job}-4711-18e9e9aa4fe64244");
        assert!(is_of_job(&name, job) && is_of_job(&name, "all"));
        assert!(!is_of_job(&name, &job.replace('0', "1")));
        for other in ["rlaunch-lab-test", "rlaunch-lab-4711-1", "hosts", ""] {
            assert!(!is_of_job(other, "all"), "{other}");
        }
    }

    /// Skipped where this machine does not permit creating cgroups.
    #[test]
    fn what_is_in_it_is_killed_and_it_goes() {
        let job = "fedcba98765432100123456789abcdef";
        let tag = format!("{}-1", std::process::id());
        let Some(cgroup) = Cgroup::create(job, &tag) else { return };
        assert!(Cgroup::create(job, &tag).is_none(), "another agent's cgroup was taken over");
        assert!(!cgroup.is_populated());
        let mut child = std::process::Command::new("sleep").arg("60").spawn().unwrap();
        fs::create_dir(cgroup.path.join("below")).unwrap();
        fs::write(cgroup.path.join("below/cgroup.procs"), child.id().to_string()).unwrap();
        assert!(cgroup.is_populated());
        assert_eq!(cgroup.members(), [Pid::from_raw(child.id().cast_signed())]);
        drop(cgroup);
        let found = Cgroup::find_by_tag(&tag).unwrap();
        found.kill();
        child.wait().unwrap();
        assert!(!found.is_populated());
        assert_eq!(Cgroup::find_by_job(job).len(), 1);
        found.remove();
        assert!(Cgroup::find_by_tag(&tag).is_none());
    }

    #[test]
    fn the_count_is_found() {
        assert_eq!(parse_oom_kills("nr_free_pages 12\noom_kill 3\noom_kill_x 4\n"), Some(3));
        assert_eq!(parse_oom_kills("nr_free_pages 12\n"), None);
        assert!(!OomKillCount(None).has_grown());
        assert!(!OomKillCount::now().has_grown());
    }
}
