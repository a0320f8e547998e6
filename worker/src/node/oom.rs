//! Detection of kills by the kernel's out-of-memory killer.

use std::fs;

/// Number of processes that the kernel's OOM killer has killed on this host since boot: `oom_kill`
/// of `/proc/vmstat` (since Linux 4.13). `None` if unknown.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct OomKillCount(Option<u64>);

impl OomKillCount {
    pub(crate) fn now() -> OomKillCount {
        OomKillCount(fs::read_to_string("/proc/vmstat").ok().and_then(|text| parse(&text)))
    }

    /// Tells whether the kernel's OOM killer has killed a process since this count was read.
    pub(crate) fn has_grown(self) -> bool {
        matches!((self.0, OomKillCount::now().0), (Some(before), Some(now)) if now > before)
    }
}

fn parse(vmstat: &str) -> Option<u64> {
    vmstat.lines().find_map(|line| line.strip_prefix("oom_kill "))?.parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_count_is_found() {
        assert_eq!(parse("nr_free_pages 12\noom_kill 3\noom_kill_x 4\n"), Some(3));
        assert_eq!(parse("nr_free_pages 12\n"), None);
        assert!(!OomKillCount(None).has_grown());
        assert!(!OomKillCount::now().has_grown());
    }
}
