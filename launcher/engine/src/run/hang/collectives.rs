//! Comparison of ranks by their positions in collective operations. It names those that are behind, for which the others
//! wait.

use rlaunch_bootstrap::id::Rank;
use rlaunch_bootstrap::protocol::inspection::{EnteredOperation, GroupPosition, GroupProgress};
use rlaunch_text::{printable, text};
use std::collections::{BTreeMap, BTreeSet};

/// Maximum number of differences, and of agreements, in a report.
const SENTENCES: usize = 8;

/// Sentences about the positions of ranks.
#[derive(Debug, Default, PartialEq, Eq)]
pub struct PositionReport {
    /// Ranks that are behind, missing or in another operation, a sentence each.
    pub differences: Vec<String>,
    /// Groups whose ranks are all at the same position.
    pub(crate) agreements: Vec<String>,
}

/// Compares the ranks of each group. `host` names the host of a rank.
pub fn compare(positions: &[GroupPosition], host: impl Fn(Rank) -> String) -> PositionReport {
    let mut groups: BTreeMap<(&str, u32), Vec<&GroupPosition>> = BTreeMap::new();
    for position in positions {
        groups.entry((&position.group, position.size)).or_default().push(position);
    }
    let mut report = PositionReport::default();
    for ((name, size), positions) in groups {
        let members: BTreeSet<Member> = positions.iter().map(|one| Member::of(one)).collect();
        // A rank with several processes in a group that have no numbers: they cannot be told apart.
        if members.len() < positions.len() {
            continue;
        }
        let group = PositionGroup { name, size, positions, host: &host };
        group.compare_launched(&mut report);
        group.compare_entered(&mut report);
        report.differences.extend(group.missing());
    }
    report.differences.truncate(SENTENCES);
    report.agreements.truncate(SENTENCES);
    report
}

/// Process in a group: a rank, or a process with a number of its own that a launcher in the rank has started. In groups of
/// such processes the order is that of their numbers.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
struct Member {
    started: Option<u32>,
    rank: Rank,
}

impl Member {
    fn of(position: &GroupPosition) -> Member {
        Member { started: position.started, rank: position.rank }
    }
}

/// Group of ranks with their positions.
struct PositionGroup<'a, H> {
    name: &'a str,
    size: u32,
    positions: Vec<&'a GroupPosition>,
    host: &'a H,
}

impl<H: Fn(Rank) -> String> PositionGroup<'_, H> {
    /// Compares the numbers of operations that NCCL has launched, kind by kind.
    fn compare_launched(&self, report: &mut PositionReport) {
        let launched = self.positions.iter().filter_map(|position| match &position.progress {
            GroupProgress::Launched(counts) => Some((Member::of(position), counts)),
            _ => None,
        });
        let launched: Vec<_> = launched.collect();
        let kinds: BTreeSet<&str> = launched
            .iter()
            .flat_map(|(_, counts)| counts.iter().map(|(kind, _)| &**kind))
            .collect();
        let mut same = Vec::new();
        for kind in kinds {
            let mut ranks_by_count: BTreeMap<u64, Vec<Member>> = BTreeMap::new();
            for (rank, counts) in &launched {
                let count = counts.iter().find(|(name, _)| name == kind);
                ranks_by_count.entry(count.map_or(0, |(_, count)| *count)).or_default().push(*rank);
            }
            let kind = printable::first_line(kind);
            let Some((most, ahead)) = ranks_by_count.pop_last() else { continue };
            if ranks_by_count.is_empty() {
                same.push(format!("{most} {kind}"));
                continue;
            }
            let behind = ranks_by_count.iter();
            let behind = behind
                .map(|(count, ranks)| format!("{} {count} {kind}", self.name_launching(ranks)));
            let behind = behind.collect::<Vec<_>>().join(", ");
            let ahead = self.ranks(&ahead);
            report
                .differences
                .push(format!("{}: {behind}; {ahead} {most}", self.title("NCCL communicator")));
        }
        if !same.is_empty() && launched.len() > 1 {
            let (title, same) = (self.title("NCCL communicator"), same.join(", "));
            let answered: Vec<Member> = launched.iter().map(|(rank, _)| *rank).collect();
            let ranks = self.name_answered(&answered);
            report.agreements.push(format!("{title}: {ranks} have launched {same}"));
        }
    }

    /// Compares the operations that ranks entered last, from torch's flight recorder.
    fn compare_entered(&self, report: &mut PositionReport) {
        let entered = self.positions.iter().filter_map(|position| match &position.progress {
            GroupProgress::Entered(operation) => Some((Member::of(position), operation)),
            _ => None,
        });
        let mut entered: Vec<(Member, &EnteredOperation)> = entered.collect();
        entered.sort_by_key(|(rank, operation)| (operation.number, *rank));
        let Some((_, last)) = entered.last().copied() else { return };
        let title = self.title("process group");
        let (behind, ahead): (Vec<_>, Vec<_>) =
            entered.iter().copied().partition(|(_, operation)| operation.number < last.number);
        let ranks = |some: &[(Member, &EnteredOperation)]| {
            some.iter().map(|(rank, _)| *rank).collect::<Vec<_>>()
        };
        if let Some((_, theirs)) = behind.last() {
            let (late, early) = (ranks(&behind), self.ranks(&ranks(&ahead)));
            let last_one = if late.len() == 1 { "last" } else { "the last of theirs" };
            let not_entered = if late.len() == 1 { "has not entered" } else { "have not entered" };
            report.differences.push(format!(
                "{title}: {} {not_entered} {}, which {early} entered; {last_one} {}",
                self.ranks(&late),
                describe(last),
                describe(theirs),
            ));
            return;
        }
        let others: Vec<_> =
            ahead.iter().copied().filter(|(_, one)| one.name != last.name).collect();
        if let Some((_, theirs)) = others.last() {
            report.differences.push(format!(
                "{title}: operation {} is {} in {} but {} elsewhere",
                last.number,
                describe(theirs),
                self.ranks(&ranks(&others)),
                describe(last),
            ));
        } else if ahead.len() > 1 {
            let is_complete = ahead.iter().all(|(_, operation)| operation.is_complete);
            let doing = if is_complete { "have completed" } else { "wait in" };
            let ranks = self.name_answered(&ranks(&ahead));
            report.agreements.push(format!("{title}: {ranks} {doing} {}", describe(last)));
        }
    }

    /// Describes ranks whose processes do not answer NCCL.
    fn missing(&self) -> Option<String> {
        let (mut silent, mut dead) = (Vec::new(), Vec::new());
        for position in &self.positions {
            match position.progress {
                GroupProgress::Missing { is_dead: true } => dead.push(Member::of(position)),
                GroupProgress::Missing { is_dead: false } => silent.push(Member::of(position)),
                GroupProgress::Launched(_) | GroupProgress::Entered(_) => {}
            }
        }
        let parts = [(silent, "no answer from"), (dead, "NCCL takes for dead")];
        let parts = parts.iter().filter(|(ranks, _)| !ranks.is_empty());
        let parts: Vec<String> =
            parts.map(|(ranks, what)| format!("{what} {}", self.ranks(ranks))).collect();
        (!parts.is_empty())
            .then(|| format!("{}: {}", self.title("NCCL communicator"), parts.join(", ")))
    }

    fn title(&self, kind: &str) -> String {
        let name = printable::first_line(self.name);
        format!("{kind} {name} of {}", text::count(self.size as usize, "rank"))
    }

    /// Names ranks in ascending order, a single one with its host.
    fn ranks(&self, members: &[Member]) -> String {
        let mut members = members.to_vec();
        members.sort_unstable();
        let started: Vec<u32> = members.iter().filter_map(|member| member.started).collect();
        match members[..] {
            [Member { started: Some(number), rank }] => {
                format!("process {number} of rank {rank} on {}", (self.host)(rank))
            }
            [Member { started: Some(_), .. }, ..] => {
                format!("processes {}", text::ranges(started, super::RANGES))
            }
            _ => {
                let ranks: Vec<Rank> = members.iter().map(|member| member.rank).collect();
                super::name_ranks(&ranks, self.host)
            }
        }
    }

    /// Names the ranks that have answered, which agree.
    fn name_answered(&self, answered: &[Member]) -> String {
        let silent = (self.size as usize).saturating_sub(answered.len());
        match silent {
            0 if answered.iter().all(|member| member.started.is_some()) => {
                "all processes".to_owned()
            }
            0 => "all ranks".to_owned(),
            _ => format!("{} ({silent} without an answer)", self.ranks(answered)),
        }
    }

    /// Names ranks, with the verb for what they have launched.
    fn name_launching(&self, ranks: &[Member]) -> String {
        let verb = if ranks.len() == 1 { "has launched" } else { "have launched" };
        format!("{} {verb}", self.ranks(ranks))
    }
}

/// Describes an operation, as in `all_reduce 42 (step train.py:88)`.
fn describe(EnteredOperation { number, name, caller, .. }: &EnteredOperation) -> String {
    let name = printable::first_line(name);
    match caller.as_str() {
        "" => format!("{name} {number}"),
        caller => format!("{name} {number} ({})", printable::first_line(caller)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn launched(rank: u32, counts: &[(&str, u64)]) -> GroupPosition {
        let counts = counts.iter().map(|(kind, count)| ((*kind).to_owned(), *count)).collect();
        position(rank, "0x5b1c", GroupProgress::Launched(counts))
    }

    fn entered(rank: u32, number: u64, name: &str) -> GroupPosition {
        let caller = "step train.py:88".to_owned();
        let operation = EnteredOperation { number, name: name.into(), is_complete: false, caller };
        position(rank, "default_pg", GroupProgress::Entered(operation))
    }

    fn position(rank: u32, group: &str, progress: GroupProgress) -> GroupPosition {
        GroupPosition { rank: Rank(rank), started: None, group: group.into(), size: 4, progress }
    }

    fn compared(positions: &[GroupPosition]) -> PositionReport {
        compare(positions, |rank| format!("h{rank}"))
    }

    #[test]
    fn a_rank_that_has_launched_less_is_named() {
        let found = compared(&[
            launched(0, &[("AllReduce", 42), ("Broadcast", 1)]),
            launched(1, &[("AllReduce", 42), ("Broadcast", 1)]),
            launched(2, &[("AllReduce", 41), ("Broadcast", 1)]),
        ]);
        let title = "NCCL communicator 0x5b1c of 4 ranks";
        let behind = format!("{title}: rank 2 on h2 has launched 41 AllReduce; ranks 0-1 42");
        assert_eq!(found.differences, [behind]);
        assert_eq!(
            found.agreements,
            [format!("{title}: ranks 0-2 (1 without an answer) have launched 1 Broadcast")]
        );
    }

    #[test]
    fn a_rank_that_has_not_entered_an_operation_is_named_with_its_last_one() {
        let found = compared(&[
            entered(0, 42, "all_reduce"),
            entered(1, 41, "all_reduce"),
            entered(2, 42, "all_reduce"),
        ]);
        assert_eq!(
            found.differences,
            ["process group default_pg of 4 ranks: rank 1 on h1 has not entered all_reduce 42 \
              (step train.py:88), which ranks 0,2 entered; last all_reduce 41 (step train.py:88)"]
        );
        assert!(found.agreements.is_empty());
    }

    #[test]
    fn ranks_in_different_operations_are_named() {
        let found = compared(&[
            entered(0, 42, "broadcast"),
            entered(1, 42, "all_reduce"),
            entered(2, 42, "all_reduce"),
        ]);
        assert_eq!(
            found.differences,
            [
                "process group default_pg of 4 ranks: operation 42 is broadcast 42 (step train.py:88) in \
              rank 0 on h0 but all_reduce 42 (step train.py:88) elsewhere"
            ]
        );
    }

    #[test]
    fn ranks_at_the_same_position_agree() {
        let two = [entered(0, 42, "all_reduce"), entered(1, 42, "all_reduce")];
        let title = "process group default_pg of 4 ranks: ranks 0-1 (2 without an answer)";
        let line = format!("{title} wait in all_reduce 42 (step train.py:88)");
        assert_eq!(compared(&two).agreements, [line]);
        let all: Vec<_> = (0..4).map(|rank| entered(rank, 42, "all_reduce")).collect();
        let found = compared(&all);
        assert_eq!(
            found.agreements,
            [
                "process group default_pg of 4 ranks: all ranks wait in all_reduce 42 (step train.py:88)"
            ]
        );
        assert!(found.differences.is_empty());
        assert_eq!(compared(&[]), PositionReport::default());
        // Processes that a rank has started itself are not told apart.
        let twice = [entered(0, 41, "all_reduce"), entered(0, 42, "all_reduce")];
        assert_eq!(compared(&twice), PositionReport::default());
    }

    #[test]
    fn processes_that_a_rank_has_started_are_compared_by_their_numbers() {
        let started = |rank, started, number| GroupPosition {
            started: Some(started),
            ..entered(rank, number, "all_reduce")
        };
        // Two torchrun, each of which has started two processes.
        let positions =
            |late| [started(0, 0, 42), started(0, 1, 42), started(1, 2, late), started(1, 3, 42)];
        let title = "process group default_pg of 4 ranks";
        let at = "(step train.py:88)";
        assert_eq!(
            compared(&positions(41)).differences,
            [format!(
                "{title}: process 2 of rank 1 on h1 has not entered all_reduce 42 {at}, which processes 0-1,3 \
                 entered; last all_reduce 41 {at}"
            )]
        );
        let agreement = format!("{title}: all processes wait in all_reduce 42 {at}");
        assert_eq!(compared(&positions(42)).agreements, [agreement]);
    }

    #[test]
    fn ranks_that_do_not_answer_are_named() {
        let missing = |rank, is_dead| position(rank, "0x1", GroupProgress::Missing { is_dead });
        let found = compared(&[missing(0, false), missing(3, true)]);
        assert_eq!(
            found.differences,
            [
                "NCCL communicator 0x1 of 4 ranks: no answer from rank 0 on h0, NCCL takes for dead rank 3 on h3"
            ]
        );
    }
}
