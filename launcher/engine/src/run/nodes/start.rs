//! Starting the ranks of all nodes.

use super::Nodes;
use crate::run::rendezvous::Joined;
use rlaunch_bootstrap::id::Rank;
use rlaunch_bootstrap::job::RankSetup;
use rlaunch_bootstrap::protocol::control::{self, ToAgent};
use rlaunch_plan::env::identity;
use rlaunch_plan::job::JobSpec;
use rlaunch_plan::job::apps::{self, RenderedTexts};
use rlaunch_plan::map::RankMap;
use rlaunch_plan::rank_config::RankConfig;
use rlaunch_text::exit::Exit;
use rlaunch_text::message::Failed;

impl Nodes {
    /// Sends every node the order to start its ranks.
    pub(crate) fn start(
        &self,
        job: &JobSpec,
        map: &RankMap,
        joined: &Joined,
    ) -> Result<(), Failed> {
        let (address, port) = joined.master;
        tracing::info!("MASTER_ADDR {address} MASTER_PORT {port}");
        let user_set_vars = apps::vars_set_for_all_apps(&job.apps);
        let mut env = identity::master_variables(address, port, &user_set_vars);
        env.extend(job.restarts.into_iter().flat_map(|restarts| restarts.env(&user_set_vars)));
        let mut filled = RenderedTexts::render_all(job, map, &joined.table)?;
        let awaited = apps::awaited_ports(job, map, &joined.table);
        let mut messages = Vec::with_capacity(self.reached.len());
        for (node, rank_configs) in self.reached.iter().zip(&joined.rank_configs) {
            let rank_setup = |(rank, setup): (&Rank, &RankConfig)| {
                let RenderedTexts { arguments, env, files } =
                    filled.remove(rank).unwrap_or_default();
                RankSetup { rendered_args: arguments, rendered_env: env, files, ..setup.to_setup() }
            };
            let ranks = node.ranks.iter().zip(rank_configs).map(rank_setup).collect();
            let own = awaited.iter().filter(|(looks, _)| *looks == node.id);
            let ports = own.map(|(_, port)| port.clone()).collect();
            let horovod = joined.horovod.get(node.id.index()).copied();
            let message = ToAgent::Start { env: env.clone(), ranks, horovod, ports };
            messages.push(control::encode(&message).map_err(|error| {
                Failed::new(Exit::USAGE, format!("templates do not fit a frame: {error}"))
            })?);
        }
        for (node, message) in self.reached.iter().zip(messages) {
            node.commands.send_frame(message.into());
        }
        Ok(())
    }
}
