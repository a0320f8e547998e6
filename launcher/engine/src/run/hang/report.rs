//! Report about ranks that make no progress: ranks at the same place are one group, and the first line names the
//! smaller groups, for which the others wait.

use super::place::{self, WaitKind};
use rlaunch_bootstrap::id::Rank;
use rlaunch_bootstrap::protocol::inspection::{ProcessStacks, RankStacks, RankUsage, ThreadStack};
use rlaunch_text::{printable, text};
use std::collections::BTreeSet;

/// Number of frames of a group that are named.
const FRAMES: usize = 3;
/// Number of groups that are listed.
const GROUPS: usize = 8;

/// Ranks that are at the same place.
#[derive(Debug)]
struct Group {
    ranks: Vec<Rank>,
    /// Frames, or the name of the program.
    place: String,
    /// Kind of wait, and the objects that the ranks wait for.
    waits: (WaitKind, BTreeSet<String>),
    has_frames: bool,
}

impl Group {
    /// Describes where the ranks are and what they do.
    fn describe(&self) -> String {
        let doing = place::describe_wait(&self.waits.0, &self.waits.1);
        if self.has_frames {
            format!("{} ({doing})", self.place)
        } else {
            format!("{} {doing}", self.place).trim_end().to_owned()
        }
    }

    /// Describes the group in one line. `host` names the host of a rank.
    fn line(&self, host: impl Fn(Rank) -> String) -> String {
        format!("{}: {}", super::name_ranks(&self.ranks, host), self.describe())
    }
}

/// Describes the ranks: first the sentence about those for which the others wait, then a line for each group. `host`
/// names the host of a rank.
pub fn describe(stacks: &[RankStacks], host: impl Fn(Rank) -> String) -> (String, Vec<String>) {
    let groups = groups(stacks);
    let sentence = match &groups[..] {
        [] => "no rank can be looked at".to_owned(),
        [all] if all.ranks.len() == 1 => {
            format!("{} is at {}", super::name_ranks(&all.ranks, &host), all.describe())
        }
        [all] => format!("all ranks are at the same place: {}", all.describe()),
        [_, rest @ ..] => {
            let fewer = if has_majority(&groups) { rest } else { &groups[..] };
            let fewer = fewer.iter().take(3).map(|group| group.line(&host));
            fewer.collect::<Vec<_>>().join("; ")
        }
    };
    (sentence, list_groups(&groups, &host))
}

/// Lists the groups of ranks, a line each: first those that are not where most ranks are.
pub fn list(stacks: &[RankStacks], host: impl Fn(Rank) -> String) -> Vec<String> {
    let mut groups = groups(stacks);
    if !has_majority(&groups) {
        return list_groups(&groups, host);
    }
    let most = groups.remove(0);
    let mut lines = list_groups(&groups, &host);
    lines.push(most.line(&host));
    lines
}

/// Tells whether most ranks are in the first group.
fn has_majority(groups: &[Group]) -> bool {
    let total: usize = groups.iter().map(|group| group.ranks.len()).sum();
    groups.first().is_some_and(|most| most.ranks.len() * 2 > total)
}

fn list_groups(groups: &[Group], host: impl Fn(Rank) -> String) -> Vec<String> {
    let mut lines: Vec<String> =
        groups.iter().take(GROUPS).map(|group| group.line(&host)).collect();
    if groups.len() > GROUPS {
        lines.push(format!("and {} more groups of ranks", groups.len() - GROUPS));
    }
    lines
}

/// Describes the state of a rank in one line.
pub(crate) fn describe_state(usage: &RankUsage, host: &str) -> String {
    let RankUsage { rank, pid, processes, user_ms, system_ms, resident, state, .. } = usage;
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

/// Groups ranks by their places, largest group first. Ranks that wait in the same way, each for an object of its own,
/// are at the same place.
fn groups(stacks: &[RankStacks]) -> Vec<Group> {
    let mut groups: Vec<Group> = Vec::new();
    for RankStacks { rank, processes } in stacks {
        let found = group_of(*rank, processes);
        let is_same = |group: &&mut Group| {
            group.place == found.place
                && group.waits.0 == found.waits.0
                && group.has_frames == found.has_frames
        };
        match groups.iter_mut().find(is_same) {
            Some(group) => {
                group.ranks.push(*rank);
                group.waits.1.extend(found.waits.1);
            }
            None => groups.push(found),
        }
    }
    groups.iter_mut().for_each(|group| group.ranks.sort_unstable());
    groups.sort_by_key(|group| (usize::MAX - group.ranks.len(), group.ranks.first().copied()));
    groups
}

/// Makes the group of a rank.
fn group_of(rank: Rank, processes: &[ProcessStacks]) -> Group {
    let thread = place::working_thread(processes);
    let (kind, object) = thread.map_or_else(place::unknown_wait, place::wait_of);
    let frames = thread.map(name_frames).unwrap_or_default();
    let has_frames = !frames.is_empty();
    let program = || {
        let process = thread.and_then(|thread| place::process_of(thread, processes));
        let unread = || processes.iter().find(|process| process.problem.is_some());
        let Some(process) = process.or_else(unread).or(processes.first()) else {
            return "a process that cannot be read".to_owned();
        };
        let program = printable::first_line(&process.program);
        match &process.problem {
            Some(problem) if thread.is_none() => {
                format!("{program}: {}", printable::first_line(problem))
            }
            _ => program,
        }
    };
    let place = if has_frames { frames } else { program() };
    Group { ranks: vec![rank], place, waits: (kind, object.into_iter().collect()), has_frames }
}

/// Lists the innermost frames of a thread that stay while it waits. Frames of an interpreter are preferred to native ones.
fn name_frames(thread: &ThreadStack) -> String {
    let named = place::steady_frames(thread).into_iter().take(FRAMES).map(|frame| {
        let file = frame.file.rsplit('/').next().unwrap_or_default();
        let at = if frame.line > 0 { format!(":{}", frame.line) } else { String::new() };
        printable::first_line(&format!("{} {file}{at}", frame.function))
    });
    named.collect::<Vec<_>>().join(" < ")
}

#[cfg(test)]
mod tests {
    use super::*;
    use rlaunch_bootstrap::protocol::inspection::{StackFrame, Wait};

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
        let waits = || Some(Wait::Socket { peer: None, owner: None });
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

    #[test]
    fn the_minority_is_listed_first() {
        let all = [stacks(0, "f", None), stacks(1, "g", None), stacks(2, "f", None)];
        let lines = list(&all, |rank| format!("h{rank}"));
        assert_eq!(
            lines,
            ["rank 1 on h1: g train.py:41 (runs)", "ranks 0,2: f train.py:41 (runs)"]
        );
        let lines = list(&all[..2], |rank| format!("h{rank}"));
        assert!(lines[0].starts_with("rank 0 on h0: f") && lines.len() == 2, "{lines:?}");
    }

    #[test]
    fn ranks_that_wait_for_different_peers_are_at_the_same_place() {
        let waits = |rank: u32| {
            let peer = Some(format!("10.0.0.{rank}:4711"));
            stacks(rank, "recv", Some(Wait::Socket { peer, owner: None }))
        };
        let all: Vec<RankStacks> = (1..=5).map(waits).collect();
        let (sentence, lines) = described(&all);
        assert!(sentence.starts_with("all ranks are at the same place: recv "), "{sentence}");
        let end = "(waits for 10.0.0.1:4711, 10.0.0.2:4711, 10.0.0.3:4711 and 2 more)";
        assert!(lines.len() == 1 && lines[0].ends_with(end), "{lines:?}");
    }

    #[test]
    fn a_rank_that_cannot_be_read_is_said_so() {
        let unread = RankStacks { rank: Rank(0), processes: Vec::new() };
        assert_eq!(described(&[unread]).1, ["rank 0 on h0: a process that cannot be read"]);
        let problem = Some("its threads could not be listed in time".to_owned());
        let late = ProcessStacks { program: "train".into(), problem, ..ProcessStacks::default() };
        let line = "rank 0 on h0: train: its threads could not be listed in time";
        for processes in [vec![late.clone()], vec![ProcessStacks::default(), late]] {
            assert_eq!(described(&[RankStacks { rank: Rank(0), processes }]).1, [line]);
        }
    }
}
