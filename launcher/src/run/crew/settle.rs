//! Hosts have been reached, and how many GPUs they have is known: which ranks they run.

use super::{Crew, Node};
use crate::hosts::Host;
use crate::job::JobSpec;
use crate::plan::map::{MapBy, RankMap};
use rlaunch_bootstrap::protocol::control::ToAgent;
use rlaunch_console::exit::Exit;
use rlaunch_console::messages::Failed;
use std::collections::HashMap;

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
        self.check_names(job)?;
        self.check_gpus(job)?;
        Ok(map)
    }

    /// One host under two names would have its processors and GPUs given out twice, and its ranks
    /// would have no network between them. Only those who share things knowingly go on.
    fn check_names(&self, job: &JobSpec) -> Result<(), Failed> {
        if job.oversubscribe {
            return Ok(());
        }
        let mut seen: HashMap<&str, Vec<&Node>> = HashMap::new();
        let twins = self.nodes.iter().find_map(|node| {
            let earlier = seen.entry(&node.facts.machine).or_default();
            let twin = earlier.iter().find(|twin| twin.facts.is_same_host(&node.facts)).copied();
            earlier.push(node);
            Some((twin?, node))
        });
        let Some((node, other)) = twins else { return Ok(()) };
        let (first, second) = (&node.host.name, &other.host.name);
        let ranks = node.ranks.len() + other.ranks.len();
        let message =
            format!("{first} and {second} are one machine ({}), named twice", node.facts.hostname);
        let hint = format!(
            "name it once, as {first}:{ranks} with -H or `{first} slots={ranks}` in a hostfile; \
             --oversubscribe runs the ranks as those of two hosts"
        );
        Err(Failed::new(Exit::USAGE, message).hint(Some(hint)))
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
