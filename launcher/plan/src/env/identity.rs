//! Variables that tell a rank its number and the address of rank 0.

use crate::map::RankMap;
use rlaunch_bootstrap::env as names;
use rlaunch_bootstrap::id::{JobId, LocalRank, NodeId, Rank};
use std::net::{IpAddr, SocketAddr};

/// Returns the variables that tell a rank its numbers, without those in `user_set_vars`, which the user set.
pub(crate) fn rank_variables(
    job: JobId,
    map: &RankMap,
    node: NodeId,
    local: LocalRank,
    user_set_vars: &[String],
) -> Vec<(String, String)> {
    let Some(mapped) = map.nodes.get(node.index()) else { return Vec::new() };
    let rank = mapped.ranks.get(local.index()).copied().unwrap_or(Rank(0)).to_string();
    let local = local.to_string();
    let local_size = mapped.ranks.len().to_string();
    let (world, group) = (map.world_size.to_string(), node.to_string());
    let groups = map.nodes.len().to_string();
    let all = [
        (names::RANK, &rank),
        (names::WORLD_SIZE, &world),
        (names::LOCAL_RANK, &local),
        (names::LOCAL_WORLD_SIZE, &local_size),
        (names::GROUP_RANK, &group),
        (names::NODE_RANK, &group),
        (names::GROUP_WORLD_SIZE, &groups),
        (names::LOCAL_SIZE, &local_size),
        (names::CROSS_RANK, &group),
        (names::CROSS_SIZE, &groups),
        (names::OMPI_RANK, &rank),
        (names::OMPI_SIZE, &world),
        (names::OMPI_LOCAL_RANK, &local),
        (names::OMPI_LOCAL_SIZE, &local_size),
        (names::OMPI_NODE_RANK, &local),
        (names::RLAUNCH_RANK, &rank),
        (names::RLAUNCH_JOB_ID, &job.to_string()),
        (names::RLAUNCH_HOST, &mapped.host.name),
        (names::RLAUNCH_NODES, &groups),
    ];
    without(user_set_vars, all.into_iter().map(|(name, value)| (name.to_owned(), value.clone())))
}

/// Returns the variables for the address of rank 0, without those in `user_set_vars`, which the user set.
pub fn master_variables(
    address: IpAddr,
    port: u16,
    user_set_vars: &[String],
) -> Vec<(String, String)> {
    let all = [
        (names::MASTER_ADDR, address.to_string()),
        (names::MASTER_PORT, port.to_string()),
        // A job uses either PyTorch or JAX, so both can have the same port.
        (names::JAX_COORDINATOR_ADDRESS, SocketAddr::new(address, port).to_string()),
    ];
    without(user_set_vars, all.into_iter().map(|(name, value)| (name.to_owned(), value)))
}

fn without(
    user_set_vars: &[String],
    all: impl Iterator<Item = (String, String)>,
) -> Vec<(String, String)> {
    all.filter(|(name, _)| !user_set_vars.contains(name)).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn variables_of_the_user_are_left_alone() {
        let map = RankMap::by_slot(&crate::hosts::parse(&["a:2,b".into()]).unwrap(), None, false);
        let user_set_vars = ["RANK".to_owned()];
        let own = rank_variables(JobId(1), &map.unwrap(), NodeId(0), LocalRank(1), &user_set_vars);
        assert!(own.contains(&("LOCAL_RANK".into(), "1".into())));
        assert!(!own.iter().any(|(name, _)| name == "RANK"));
    }
}
