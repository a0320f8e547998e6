//! Copies of a working tree on the nodes: agents say what theirs contain. If little has changed since, they get that; else the
//! tree is copied before the nodes prepare.

use super::{Agents, Reached};
use crate::run::job_run::{JobRun, TreeSource};
use crate::run::pump::Pump;
use rlaunch_bootstrap::id::NodeId;
use rlaunch_bootstrap::protocol::control::{FoundCopy, FromAgent, ToAgent};
use rlaunch_console::progress::Progress;
use rlaunch_text::exit::Exit;
use rlaunch_text::message::Failed;
use std::collections::BTreeSet;
use std::iter;
use std::time::Duration;

/// Time limit for agents to look at the files of a copy. A longer node timeout, which says how slow nodes may be, takes
/// precedence.
const CHECK_TIMEOUT: Duration = Duration::from_secs(30);
/// Time limit for agents to change files of a copy: their disks may have a checkpoint to write first.
const PATCH_TIMEOUT: Duration = Duration::from_secs(600);
/// Maximum number of bytes of all patches together, which leave this machine one by one. Programs that copy, which take half
/// a second to start, send bytes once.
const MOST_SENT: usize = 32 << 20;

/// Asks all agents what their copies of the job's working tree contain, if it has one, also those that have not started yet:
/// each looks while other hosts are being reached.
pub(crate) fn check_copies(job: &JobRun, agents: &Agents) {
    let Some(copy) = job.tree_copy() else { return };
    for (number, agent) in (0..).zip(agents.outboxes()) {
        let (copy, job, node) = (copy.clone(), job.spec.id, NodeId(number));
        agent.queue_command(&ToAgent::CheckCopy { copy, job, node });
    }
}

/// Way to bring the copies that agents have found up to date.
#[derive(Debug, PartialEq)]
enum Way {
    /// All are what they have to be.
    Nothing,
    /// These nodes hold copies of one former content, and all others what has to be.
    Patch { former: [u8; 32], holders: Vec<NodeId> },
    /// All are compared with the tree.
    Copy,
}

impl Way {
    fn choose(found: &[Option<FoundCopy>], content: [u8; 32]) -> Way {
        // Only holders have looked, and one may have no rank.
        let is_known = |of: &Option<FoundCopy>| {
            of.is_some_and(|of| found.get(of.holder.index()) == Some(&Some(of)))
        };
        let others = found.iter().flatten().filter(|found| found.content != content);
        let Some(former) = others.clone().next().map(|other| other.content) else {
            return if found.iter().all(is_known) { Way::Nothing } else { Way::Copy };
        };
        let is_former = others.clone().all(|other| other.content == former);
        if !is_former || !found.iter().all(is_known) {
            return Way::Copy;
        }
        let holders: BTreeSet<NodeId> = others.map(|found| found.holder).collect();
        Way::Patch { former, holders: holders.into_iter().collect() }
    }
}

impl Reached {
    /// Sees to it that all nodes have the working tree, of which their agents were asked before. After an error the job is
    /// not tried again: the next attempt would find no tree to bring, and start in what is there.
    pub(crate) async fn sync(
        &self,
        tree: Box<dyn TreeSource>,
        job: &JobRun,
        pump: &mut Pump<'_>,
    ) -> Result<(), Failed> {
        let synced = self.sync_once(tree, job, pump).await;
        synced.map_err(|failed| Failed { may_restart: false, ..failed })
    }

    async fn sync_once(
        &self,
        mut tree: Box<dyn TreeSource>,
        job: &JobRun,
        pump: &mut Pump<'_>,
    ) -> Result<(), Failed> {
        let here = iter::once("this machine".to_owned());
        let reading = Progress::new(here, "reading the working tree");
        let content = pump.run_unless_ended(reading.report_while(tree.content())).await?;
        let names: Vec<String> = self.nodes.iter().map(|node| node.host.to_string()).collect();
        let all: Vec<NodeId> = self.nodes.iter().map(|node| node.id).collect();
        let progress = Progress::new(names.iter().cloned(), "comparing the working tree");
        let limit = CHECK_TIMEOUT.max(job.spec.node_timeout());
        let answers = self.answers(pump, &all, limit, &progress, |_, _, message| match message {
            FromAgent::CopyChecked(found) => Some(found),
            _ => None,
        });
        let found = progress.report_while(answers).await?;
        let is_there = match Way::choose(&found, content) {
            Way::Nothing => true,
            Way::Patch { former, holders } => {
                let patch = reading.report_while(tree.patch(former));
                let patch = pump.run_unless_ended(patch).await?;
                match patch {
                    Some(patch) if patch.len() * holders.len() <= MOST_SENT => {
                        let limit = PATCH_TIMEOUT.max(limit);
                        let is_patched = self.patch(patch, &holders, limit, pump).await?;
                        if is_patched {
                            tree.patched();
                        }
                        is_patched
                    }
                    Some(_) | None => false,
                }
            }
            Way::Copy => false,
        };
        let shared = if is_there {
            let holders: Vec<NodeId> = found.iter().flatten().map(|found| found.holder).collect();
            sharers(&names, &holders)
        } else {
            pump.leave_signals_to(tree.bring()).await?
        };
        if let Some(tree) = &job.spec.tree {
            // An attempt before has the same.
            let _ = tree.shared.set(shared);
        }
        Ok(())
    }

    /// Lets nodes patch their copies. Returns false if any could not: the program that copies finds out why.
    async fn patch(
        &self,
        patch: Vec<u8>,
        holders: &[NodeId],
        limit: Duration,
        pump: &mut Pump<'_>,
    ) -> Result<bool, Failed> {
        let message = ToAgent::PatchCopy(patch);
        for holder in holders {
            pump.agents.queue_command(*holder, &message);
        }
        let names = holders.iter().map(|holder| pump.host(*holder));
        let progress = Progress::new(names, "changing the copy of the working tree");
        let answers = self.answers(pump, holders, limit, &progress, |_, node, message| {
            let FromAgent::CopyPatched { failed } = message else { return None };
            Some(failed.map(|why| (node, why)))
        });
        let failed = progress.report_while(answers).await.map_err(|failed| {
            let is_late = failed.exit == Exit::AGENT;
            failed.hint(is_late.then_some("the same command compares all files of it"))
        })?;
        for (node, why) in failed.iter().flatten() {
            tracing::info!("{host}: no patch of the copy: {why}", host = pump.host(*node));
        }
        Ok(failed.iter().all(Option::is_none))
    }
}

/// Returns the hosts whose copy is that of another one, with the latter: the first by node that has the same holder.
fn sharers(names: &[String], holders: &[NodeId]) -> Vec<(String, String)> {
    let first = |holder: &NodeId| holders.iter().position(|other| other == holder).unwrap_or(0);
    let pairs = names.iter().zip(holders).map(|(name, holder)| (name, &names[first(holder)]));
    pairs.filter(|(name, first)| name != first).map(|(a, b)| (a.clone(), b.clone())).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_copies_of_one_former_content_are_patched() {
        let found = |content: u8, holder| {
            Some(FoundCopy { content: [content; 32], holder: NodeId(holder) })
        };
        let patch = |former: u8, holders: &[u32]| Way::Patch {
            former: [former; 32],
            holders: holders.iter().copied().map(NodeId).collect(),
        };
        for (copies, expected) in [
            (vec![found(7, 0), found(7, 1)], Way::Nothing),
            (vec![found(7, 0), None], Way::Copy),
            (vec![found(6, 0), None], Way::Copy),
            (vec![found(6, 0), found(5, 1)], Way::Copy),
            (vec![found(6, 0), found(6, 1)], patch(6, &[0, 1])),
            // Nodes that share a copy have one of them patch it, and what is right stays.
            (vec![found(6, 1), found(6, 1), found(7, 2)], patch(6, &[1])),
            // The node that has looked is not there, or has found something else.
            (vec![found(6, 5)], Way::Copy),
            (vec![found(7, 5)], Way::Copy),
            (vec![found(7, 1), None], Way::Copy),
            (vec![found(6, 1), found(7, 1)], Way::Copy),
            (vec![found(6, 1), found(6, 0)], Way::Copy),
            (vec![found(7, 1), found(7, 0)], Way::Copy),
        ] {
            assert_eq!(Way::choose(&copies, [7; 32]), expected, "{copies:?}");
        }
    }

    #[test]
    fn hosts_with_one_holder_share_a_copy() {
        let names = ["a", "b", "c", "d"].map(str::to_owned);
        let holders = [0, 2, 2, 9].map(NodeId);
        assert_eq!(sharers(&names, &holders), [("c".to_owned(), "b".to_owned())]);
    }
}
