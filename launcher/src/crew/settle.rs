//! Hosts have been reached, and how many GPUs they have is known: which ranks they run.

use super::{Crew, Node};
use crate::exit::Exit;
use crate::hosts::Host;
use crate::job::JobSpec;
use crate::map::{MapBy, RankMap};
use crate::report::Failed;
use rlaunch_bootstrap::wire::ToAgent;

/// Lines about hosts that lack something; the others are like them.
const MOST_LINES: usize = 8;

impl Crew {
    /// Maps the ranks where slots were still to be counted, and sends those home that get none.
    /// Otherwise nothing changes.
    pub(crate) fn settle(&mut self, job: &JobSpec, reached: RankMap) -> Result<RankMap, Failed> {
        let map = match job.has_open_slots() {
            false => reached,
            true => {
                let nodes = self.nodes.iter();
                let hosts: Vec<Host> =
                    nodes.map(|node| node.host.settled(node.facts.gpus)).collect();
                job.map_onto(&hosts).map_err(|error| Failed::from_error(Exit::USAGE, &error))?
            }
        };
        // Hosts without ranks are the last ones, so those that stay keep their numbers.
        for idle in self.nodes.split_off(map.nodes.len().min(self.nodes.len())) {
            idle.commands.tell(&ToAgent::End { now: true });
        }
        self.events.nodes = self.nodes.len();
        for (node, mapped) in self.nodes.iter_mut().zip(&map.nodes) {
            (node.host, node.ranks) = (mapped.host.clone(), mapped.ranks.clone());
        }
        self.check_gpus(job)?;
        Ok(map)
    }

    /// With `--map-by gpu`, every rank has a GPU of its own.
    fn check_gpus(&self, job: &JobSpec) -> Result<(), Failed> {
        if job.map_by != MapBy::Gpu || job.oversubscribe {
            return Ok(());
        }
        let too_few = |node: &&Node| node.ranks.len() > node.facts.gpus as usize;
        let line = |node: &Node| {
            format!("{}: {} ranks, {} GPUs", node.host, node.ranks.len(), node.facts.gpus)
        };
        let mut lines = self.nodes.iter().filter(too_few).map(line);
        let Some(first) = lines.next() else { return Ok(()) };
        let message = format!("--map-by gpu gives each rank a GPU of its own: {first}");
        let mut failed = Failed::new(Exit::USAGE, message);
        failed.details = lines.take(MOST_LINES).collect();
        Err(failed.hint(Some("--oversubscribe lets ranks share them")))
    }
}
