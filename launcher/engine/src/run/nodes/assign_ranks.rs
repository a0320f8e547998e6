//! Assignment of ranks to hosts after their GPUs were counted, and checks of the hosts.

use super::{Nodes, ReachedNode};
use rlaunch_bootstrap::protocol::control::ToAgent;
use rlaunch_plan::hosts::Host;
use rlaunch_plan::job::JobSpec;
use rlaunch_plan::map::{MapBy, RankMap};
use rlaunch_text::exit::Exit;
use rlaunch_text::message::Failed;
use std::collections::HashMap;

/// Maximum number of hosts without enough GPUs that an error names in addition to the first.
const MAX_LINES: usize = 8;

impl Nodes {
    /// Maps ranks to hosts if the number of slots was unknown until GPUs were counted, and ends the agents of
    /// hosts without ranks. Otherwise returns the map `reached` unchanged. Returns an error if two hosts are
    /// one machine, or if with `--map-by gpu` a host has fewer GPUs than ranks.
    pub(crate) fn assign_ranks(
        &mut self,
        job: &JobSpec,
        reached: RankMap,
    ) -> Result<RankMap, Failed> {
        let map = match job.has_slots_from_gpus() {
            false => reached,
            true => {
                let nodes = self.reached.iter();
                let hosts: Vec<Host> =
                    nodes.map(|node| node.host.settled(node.facts.gpus)).collect();
                job.map_ranks_to(&hosts).map_err(|error| Failed::from_error(Exit::USAGE, &error))?
            }
        };
        // Hosts without ranks are the last ones, so the other hosts keep their ids.
        for idle in self.reached.split_off(map.nodes.len().min(self.reached.len())) {
            idle.commands.queue_command(&ToAgent::End { now: true });
        }
        self.events.nodes = self.reached.len();
        for (node, mapped) in self.reached.iter_mut().zip(&map.nodes) {
            (node.host, node.ranks) = (mapped.host.clone(), mapped.ranks.clone());
        }
        self.check_names(job)?;
        self.check_gpus(job)?;
        Ok(map)
    }

    /// Returns an error if two names mean one machine, because its CPUs and GPUs would be assigned twice and
    /// its ranks would have no network between them. With `--oversubscribe` that is no error.
    fn check_names(&self, job: &JobSpec) -> Result<(), Failed> {
        if job.oversubscribe {
            return Ok(());
        }
        let mut seen: HashMap<&str, Vec<&ReachedNode>> = HashMap::new();
        let twins = self.reached.iter().find_map(|node| {
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

    /// Returns an error if, with `--map-by gpu`, a host has fewer GPUs than ranks.
    fn check_gpus(&self, job: &JobSpec) -> Result<(), Failed> {
        if job.map_by != MapBy::Gpu || job.oversubscribe {
            return Ok(());
        }
        let too_few = |node: &&ReachedNode| node.ranks.len() > node.facts.gpus as usize;
        let line = |node: &ReachedNode| {
            format!("{}: {} ranks, {} GPUs", node.host, node.ranks.len(), node.facts.gpus)
        };
        let mut lines = self.reached.iter().filter(too_few).map(line);
        let Some(first) = lines.next() else { return Ok(()) };
        let message = format!("--map-by gpu gives each rank a GPU of its own: {first}");
        let mut failed = Failed::new(Exit::USAGE, message);
        failed.details = lines.take(MAX_LINES).collect();
        Err(failed.hint(Some("--oversubscribe lets ranks share them")))
    }
}
