//! Report about ranks that make no progress: ranks at the same place are one group, and the first line names the
//! smaller groups, for which the others wait.

use rlaunch_bootstrap::id::Rank;
use rlaunch_bootstrap::protocol::inspection::{
    ProcessStacks, RankStacks, RankUsage, ThreadStack, Wait,
};
use rlaunch_console::{printable, text};

/// Number of frames of a group that are named.
const FRAMES: usize = 3;
/// Number of groups that are listed.
const GROUPS: usize = 8;
/// Number of ranges of ranks that are named in a group.
const RANGES: usize = 8;

/// Ranks that are at the same place.
#[derive(Debug, PartialEq, Eq)]
struct Group {
    ranks: Vec<Rank>,
    place: String,
}

/// Describes the ranks: first the sentence about those for which the others wait, then a line for each group. `host`
/// names the host of a rank.
pub(crate) fn describe(
    stacks: &[RankStacks],
    host: impl Fn(Rank) -> String,
) -> (String, Vec<String>) {
    let groups = groups(stacks);
    let named = |group: &Group| match group.ranks[..] {
        [rank] => format!("rank {rank} on {}", host(rank)),
        _ => {
            let ranks = text::ranges(group.ranks.iter().map(|rank| rank.0), RANGES);
            format!("ranks {ranks}")
        }
    };
    let lines =
        groups.iter().take(GROUPS).map(|group| format!("{}: {}", named(group), group.place));
    let mut lines: Vec<String> = lines.collect();
    if groups.len() > GROUPS {
        lines.push(format!("and {} more groups of ranks", groups.len() - GROUPS));
    }
    let sentence = match &groups[..] {
        [] => "no rank can be looked at".to_owned(),
        [all] if all.ranks.len() == 1 => format!("{} is at {}", named(all), all.place),
        [all] => format!("all ranks are at the same place: {}", all.place),
        [most, rest @ ..] => {
            let total: usize = groups.iter().map(|group| group.ranks.len()).sum();
            let is_majority = most.ranks.len() * 2 > total;
            let fewer = if is_majority { rest } else { &groups[..] };
            let fewer =
                fewer.iter().take(3).map(|group| format!("{}: {}", named(group), group.place));
            fewer.collect::<Vec<_>>().join("; ")
        }
    };
    (sentence, lines)
}

/// Describes the state of a rank in one line.
pub(crate) fn describe_state(usage: &RankUsage, host: &str) -> String {
    let RankUsage { rank, pid, processes, user_ms, system_ms, resident, state } = usage;
    let doing = match state {
        'R' => "running",
        'S' => "waiting",
        'D' => "waiting in the kernel",
        'T' | 't' => "stopped",
        'Z' | 'X' => "ended",
        _ => "in an unknown state",
    };
    let cpu = (user_ms + system_ms) as f64 / 1e3;
    let processes = text::count(*processes as usize, "process");
    let memory = text::mib(*resident);
    format!("rank {rank} on {host} (pid {pid}): {doing}, {processes}, {cpu:.1} s of CPU, {memory}")
}

/// Groups ranks by their places, largest group first.
fn groups(stacks: &[RankStacks]) -> Vec<Group> {
    let mut groups: Vec<Group> = Vec::new();
    for RankStacks { rank, processes } in stacks {
        let place = place(processes);
        match groups.iter_mut().find(|group| group.place == place) {
            Some(group) => group.ranks.push(*rank),
            None => groups.push(Group { ranks: vec![*rank], place }),
        }
    }
    groups.iter_mut().for_each(|group| group.ranks.sort_unstable());
    groups.sort_by_key(|group| (usize::MAX - group.ranks.len(), group.ranks.first().copied()));
    groups
}

/// Describes the place where a rank is: the main thread of its innermost process with frames, or of its own process.
fn place(processes: &[ProcessStacks]) -> String {
    let main = |process: &'_ ProcessStacks| process.threads.first().cloned();
    let with_frames = processes.iter().rev().filter_map(main).find(|t| !t.frames.is_empty());
    let Some(thread) = with_frames.or_else(|| processes.last().and_then(main)) else {
        return "no thread can be read".to_owned();
    };
    let frames = frames(&thread);
    let doing = describe_thread(&thread);
    let program = processes.last().map(|process| printable::first_line(&process.program));
    match frames.is_empty() {
        true => format!("{} {doing}", program.unwrap_or_default()),
        false => format!("{frames} ({doing})"),
    }
}

/// Lists the innermost frames of a thread. Frames of an interpreter are preferred to native ones, and those of the
/// user's program to those of libraries.
fn frames(thread: &ThreadStack) -> String {
    let has_interpreter = thread.frames.iter().any(|frame| !frame.native);
    let frames = thread.frames.iter().filter(|frame| frame.native != has_interpreter);
    let named = frames.take(FRAMES).map(|frame| {
        let file = frame.file.rsplit('/').next().unwrap_or_default();
        let at = if frame.line > 0 { format!(":{}", frame.line) } else { String::new() };
        printable::first_line(&format!("{} {file}{at}", frame.function))
    });
    named.collect::<Vec<_>>().join(" < ")
}

/// Describes what a thread does: whether it runs, or what it waits for.
pub(crate) fn describe_thread(thread: &ThreadStack) -> String {
    let waits = match &thread.waits_for {
        None if thread.state == 'T' => "stopped".to_owned(),
        None if thread.state == 'D' => "waits in the kernel".to_owned(),
        None => "runs".to_owned(),
        Some(Wait::Futex) => "waits for a lock or another thread".to_owned(),
        Some(Wait::Socket { peer: Some(peer) }) => format!("waits for {peer}"),
        Some(Wait::Socket { peer: None }) => "waits at a socket".to_owned(),
        Some(Wait::Pipe { name }) => format!("waits for the pipe {name}"),
        Some(Wait::File { path }) => format!("waits for {path}"),
        Some(Wait::Rdma) => "waits for RDMA".to_owned(),
        Some(Wait::Descriptors) => "waits for one of several descriptors".to_owned(),
        Some(Wait::Sleep) => "sleeps".to_owned(),
        Some(Wait::Child) => "waits for a child process".to_owned(),
        Some(Wait::Stopped) => "is stopped by a signal".to_owned(),
        Some(Wait::Kernel { channel }) => format!("waits in {channel}"),
    };
    printable::first_line(&waits)
}

#[cfg(test)]
mod tests {
    use super::*;
    use rlaunch_bootstrap::protocol::inspection::StackFrame;

    fn stacks(rank: u32, function: &str, wait: Option<Wait>) -> RankStacks {
        let file = "/home/u/train.py".to_owned();
        let frames = vec![StackFrame { function: function.into(), file, line: 41, native: false }];
        let state = if wait.is_some() { 'S' } else { 'R' };
        let thread = ThreadStack { state, frames, waits_for: wait, ..ThreadStack::default() };
        let processes = vec![ProcessStacks { threads: vec![thread], ..ProcessStacks::default() }];
        RankStacks { rank: Rank(rank), processes }
    }

    fn described(stacks: &[RankStacks]) -> (String, Vec<String>) {
        describe(stacks, |rank| format!("h{rank}"))
    }

    #[test]
    fn the_minority_is_named_first() {
        let waits = || Some(Wait::Socket { peer: None });
        let all =
            [stacks(0, "reduce", waits()), stacks(1, "read", None), stacks(2, "reduce", waits())];
        let (sentence, lines) = described(&all);
        assert_eq!(sentence, "rank 1 on h1: read train.py:41 (runs)");
        assert_eq!(lines[0], "ranks 0,2: reduce train.py:41 (waits at a socket)");
        assert_eq!(lines.len(), 2);
    }

    #[test]
    fn ranks_that_are_all_at_one_place_have_no_minority() {
        let all = [stacks(0, "f", Some(Wait::Sleep)), stacks(1, "f", Some(Wait::Sleep))];
        let (sentence, lines) = described(&all);
        assert_eq!(sentence, "all ranks are at the same place: f train.py:41 (sleeps)");
        assert_eq!(lines, ["ranks 0-1: f train.py:41 (sleeps)"]);
        assert_eq!(described(&[]).0, "no rank can be looked at");
    }

    #[test]
    fn without_a_majority_all_are_named() {
        let (sentence, _) = described(&[stacks(0, "f", None), stacks(1, "g", Some(Wait::Stopped))]);
        assert!(sentence.starts_with("rank 0 on h0: f") && sentence.contains("; rank 1 on h1: g"));
    }
}
