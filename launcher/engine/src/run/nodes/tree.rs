//! Copies of a working tree on the nodes: agents say whether theirs is what it has to be, and if any is not the tree is copied
//! before the nodes prepare.

use super::Reached;
use crate::run::job_run::{JobRun, TreeSource};
use crate::run::pump::Pump;
use rlaunch_bootstrap::id::NodeId;
use rlaunch_bootstrap::protocol::control::{FromAgent, ToAgent};
use rlaunch_console::progress::Progress;
use rlaunch_text::message::Failed;
use std::iter;
use std::time::Duration;

/// Time limit for agents to look at the files of a copy. A longer node timeout, which says how slow nodes may be, takes
/// precedence.
const CHECK_TIMEOUT: Duration = Duration::from_secs(30);

impl Reached {
    /// Sees to it that all nodes have the working tree. After an error the job is not tried again: the next attempt would
    /// find no tree to bring, and start in what is there.
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
        for node in self.nodes.iter().map(|node| node.id) {
            let (copy, job) = (tree.copy(), job.spec.id);
            let question = ToAgent::CheckCopy { copy, content, job, node };
            pump.agents.queue_command(node, &question);
        }
        let names: Vec<String> = self.nodes.iter().map(|node| node.host.to_string()).collect();
        let progress = Progress::new(names.iter().cloned(), "comparing the working tree");
        let limit = CHECK_TIMEOUT.max(job.spec.node_timeout());
        let answers = self.answers(pump, limit, &progress, |_, _, message| match message {
            FromAgent::CopyChecked { holder } => Some(holder),
            _ => None,
        });
        let answers = progress.report_while(answers).await?;
        // An agent whose copy is not what it has to be names no holder.
        let shared = match answers.into_iter().collect::<Option<Vec<NodeId>>>() {
            Some(holders) => sharers(&names, &holders),
            None => pump.leave_signals_to(tree.bring()).await?,
        };
        if let Some(tree) = &job.spec.tree {
            // An attempt before has the same.
            let _ = tree.shared.set(shared);
        }
        Ok(())
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
    fn hosts_with_one_holder_share_a_copy() {
        let names = ["a", "b", "c", "d"].map(str::to_owned);
        let holders = [0, 2, 2, 9].map(NodeId);
        assert_eq!(sharers(&names, &holders), [("c".to_owned(), "b".to_owned())]);
    }
}
