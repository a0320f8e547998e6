//! Variables that tell a rank its number and the address of rank 0, and a rank of MPI where its process manager is.

use crate::map::RankMap;
use rlaunch_bootstrap::env as names;
use rlaunch_bootstrap::id::{JobId, LocalRank, NodeId, Rank};
use rlaunch_bootstrap::job::MpiInterfaces;
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

/// Lists the variables by which MPI libraries find their process manager, the agent, for a rank of a job of several
/// ranks: as `NAME=VALUE` or a pattern for names, with the reasons. The agents set them when ranks start, so their
/// values are not known here. Some contain secrets.
pub fn process_manager_rows(interfaces: MpiInterfaces) -> Vec<[&'static str; 2]> {
    const PMIX: [[&str; 2]; 2] = [
        ["PMIX_*", "for Open MPI, if the program may use it; some values are secret"],
        ["OMPI_MCA_orte_local_daemon_uri=1.0;tcp://127.0.0.1:1", "Open MPI 4 looks for PMIX_*"],
    ];
    const PMI1: [[&str; 2]; 2] = [
        ["PMI_*", "for MPICH and Intel MPI, if the program may use them; some values are secret"],
        ["MPIR_CVAR_PMI_VERSION=1", "MPICH 5 looks for PMI_*"],
    ];
    match interfaces {
        MpiInterfaces::Auto => [PMIX, PMI1].concat(),
        MpiInterfaces::Pmix => PMIX.into(),
        MpiInterfaces::Pmi1 => PMI1.into(),
        MpiInterfaces::None => Vec::new(),
    }
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

    #[test]
    fn the_user_chooses_what_is_listed() {
        let names = |interfaces| -> Vec<&str> {
            process_manager_rows(interfaces).into_iter().map(|[name, _]| name).collect()
        };
        let listed = [MpiInterfaces::Pmix, MpiInterfaces::Pmi1].map(names);
        assert_eq!(listed[0][0], "PMIX_*");
        assert_eq!(listed[1], ["PMI_*", "MPIR_CVAR_PMI_VERSION=1"]);
        assert_eq!(names(MpiInterfaces::Auto), listed.concat());
        assert!(names(MpiInterfaces::None).is_empty());
    }
}
