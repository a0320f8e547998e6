//! Threads of a process with their names and states, from `/proc`.

use crate::waits;
use rlaunch_bootstrap::protocol::inspection::ThreadStack;
use std::fs;

/// Returns the name of a process's program; `None` if the process has ended.
pub(crate) fn name_of(pid: u32) -> Option<String> {
    let name = fs::read_to_string(format!("/proc/{pid}/comm")).ok()?;
    let has_threads = fs::read_dir(format!("/proc/{pid}/task")).is_ok();
    has_threads.then(|| name.trim_end().to_owned())
}

/// Lists the threads of a process without frames; the main thread first.
pub(crate) fn list(pid: u32) -> Vec<ThreadStack> {
    let tasks = fs::read_dir(format!("/proc/{pid}/task")).into_iter().flatten().flatten();
    let mut tids: Vec<u32> =
        tasks.filter_map(|task| task.file_name().to_str()?.parse().ok()).collect();
    tids.sort_by_key(|&tid| (tid != pid, tid));
    tids.into_iter().filter_map(|tid| thread(pid, tid)).collect()
}

fn thread(pid: u32, tid: u32) -> Option<ThreadStack> {
    let stat = fs::read_to_string(format!("/proc/{pid}/task/{tid}/stat")).ok()?;
    let (name, state) = parse_stat(&stat)?;
    let waits_for = waits::of_thread(pid, tid, state);
    Some(ThreadStack { tid, name, state, waits_for, ..ThreadStack::default() })
}

/// Parses `tid (name) state …`. The name may contain anything, including parentheses.
fn parse_stat(stat: &str) -> Option<(String, char)> {
    let (begin, rest) = stat.rsplit_once(')')?;
    let (_, name) = begin.split_once('(')?;
    Some((name.to_owned(), rest.trim_start().chars().next()?))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_main_thread_comes_first() {
        let own = std::process::id();
        let threads = list(own);
        assert_eq!(threads[0].tid, own);
        assert!(name_of(own).is_some() && name_of(u32::MAX).is_none());
    }

    #[test]
    fn a_name_may_contain_anything() {
        assert_eq!(parse_stat("7 (a) (b)) R 1 2"), Some(("a) (b)".to_owned(), 'R')));
        assert_eq!(parse_stat("7 a"), None);
    }
}
