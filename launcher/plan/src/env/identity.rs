//! Variables that tell a rank its number and the address of rank 0, and a rank of MPI where its process manager is.

use super::Variable;
use crate::job::JobSpec;
use crate::map::RankMap;
use crate::program::Starter;
use rlaunch_bootstrap::env as names;
use rlaunch_bootstrap::id::{LocalRank, NodeId, Rank};
use rlaunch_bootstrap::job::MpiInterfaces;
use std::net::{IpAddr, SocketAddr};

/// Name of the group of all ranks, as torchrun has it.
const ROLE: &str = "default";

/// Returns the variables that tell a rank its numbers, without those that the user set. A service gets only those whose names
/// no other launcher has: what it runs would take the numbers of the service for its own.
pub(crate) fn rank_variables(
    job: &JobSpec,
    map: &RankMap,
    node: NodeId,
    local: LocalRank,
) -> Vec<(String, String)> {
    let Some(mapped) = map.nodes.get(node.index()) else { return Vec::new() };
    let number = mapped.ranks.get(local.index()).copied().unwrap_or(Rank(0));
    let (rank, local, id) = (number.to_string(), local.to_string(), job.id.to_string());
    let local_size = mapped.ranks.len().to_string();
    let (world, group) = (map.world_size.to_string(), node.to_string());
    let groups = map.nodes.len().to_string();
    let [done, max] = job.restarts.map_or([0, 0], |restarts| [restarts.done, restarts.max]);
    let [done, max] = [done, max].map(|count| count.to_string());
    let own = [
        (names::RLAUNCH_RANK, &*rank),
        (names::RLAUNCH_JOB_ID, &*id),
        (names::RLAUNCH_HOST, &*mapped.host.name),
        (names::RLAUNCH_NODES, &*groups),
    ];
    let restarts = job.restarts.map(|_| (names::RLAUNCH_RESTART_COUNT, &*done));
    let shared = [
        (names::RANK, &*rank),
        (names::WORLD_SIZE, &*world),
        (names::LOCAL_RANK, &*local),
        (names::LOCAL_WORLD_SIZE, &*local_size),
        (names::GROUP_RANK, &*group),
        (names::NODE_RANK, &*group),
        (names::GROUP_WORLD_SIZE, &*groups),
        (names::LOCAL_SIZE, &*local_size),
        (names::CROSS_RANK, &*group),
        (names::CROSS_SIZE, &*groups),
        (names::ROLE_RANK, &*rank),
        (names::ROLE_WORLD_SIZE, &*world),
        (names::ROLE_NAME, ROLE),
        (names::TORCHELASTIC_RUN_ID, &*id),
        (names::TORCHELASTIC_RESTART_COUNT, &*done),
        (names::TORCHELASTIC_MAX_RESTARTS, &*max),
        (names::OMPI_RANK, &*rank),
        (names::OMPI_SIZE, &*world),
        (names::OMPI_LOCAL_RANK, &*local),
        (names::OMPI_LOCAL_SIZE, &*local_size),
        (names::OMPI_NODE_RANK, &*local),
        (names::OMPI_UNIVERSE_SIZE, &*world),
    ];
    let of_pmi = [
        (names::PMI_RANK, &*rank),
        (names::PMI_SIZE, &*world),
        (names::MPI_LOCAL_RANK, &*local),
        (names::MPI_LOCAL_SIZE, &*local_size),
    ];
    let of_pmi = of_pmi.into_iter().filter(|_| job.mpi != MpiInterfaces::None);
    let is_service = job.starter_of(map, number).is_some_and(Starter::is_service);
    let of_ranks = shared.into_iter().chain(of_pmi).filter(|_| !is_service);
    let user_set_vars = &job.application_of(map, number).user_set_vars;
    let is_open = |(name, _): &(&str, &str)| !user_set_vars.iter().any(|set| set == name);
    let all = own.into_iter().chain(restarts).chain(of_ranks).filter(is_open);
    all.map(|(name, value)| (name.to_owned(), value.to_owned())).collect()
}

/// Returns the variables for the address of rank 0.
pub(crate) fn master_variables(address: IpAddr, port: u16) -> Vec<Variable> {
    const MASTER: &str = "on rank 0's node, where the other nodes have reached it";
    const HNP: &str = "JAX does not start in ranks that seem to be mpirun's without it";
    // Of the address that JAX takes from this one, only its form matters: JAX has the other from its own variable.
    let uri = match address {
        IpAddr::V4(v4) => format!("1.0;tcp://{v4}:0"),
        IpAddr::V6(v6) => format!("1.0;tcp6://[{v6}]:0"),
    };
    vec![
        Variable::new(names::MASTER_ADDR, address.to_string(), MASTER),
        Variable::new(names::MASTER_PORT, port.to_string(), MASTER),
        // A job uses either PyTorch or JAX, so both can have the same port.
        Variable::new(
            names::JAX_COORDINATOR_ADDRESS,
            SocketAddr::new(address, port).to_string(),
            MASTER,
        ),
        Variable::new(names::OMPI_HNP_URI, uri, HNP),
    ]
}

/// Lists variables of all ranks by which other programs know their numbers, with the reasons: as a name, or a pattern for names.
pub fn rank_rows(interfaces: MpiInterfaces) -> Vec<[&'static str; 2]> {
    const TORCH: [[&str; 2]; 3] = [
        [
            names::TORCHELASTIC_RUN_ID,
            "torch and Lightning take the ranks for torchrun's, and their address",
        ],
        ["ROLE_*", "its numbers in torchrun's only role"],
        [
            names::TORCHELASTIC_ERROR_FILE,
            "(host): torch writes the error of a `main` with @record there, and rlaunch repeats it",
        ],
    ];
    const PMI: [&str; 2] = [
        names::PMI_RANK,
        "its number by the name of MPICH and Intel MPI; PMI_SIZE and MPI_LOCAL* tell the rest",
    ];
    let of_pmi = (interfaces != MpiInterfaces::None).then_some(PMI);
    TORCH.into_iter().chain(of_pmi).collect()
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
    use crate::job::Identity;
    use crate::job::apps::AppSpec;
    use crate::job::name::JobName;
    use crate::job::options::Restarts;
    use crate::program;
    use rlaunch_bootstrap::id::JobId;
    use rlaunch_bootstrap::job::WorkingDir;
    use rlaunch_bootstrap::security::{Secret, Token};
    use std::collections::BTreeMap;
    use std::ffi::OsString;

    fn job(line: &str) -> JobSpec {
        let argv: Vec<OsString> = line.split(' ').map(OsString::from).collect();
        let starter = program::read(&argv).starter;
        let (secret, token) = (Secret::from_bytes([1; _]), Token([2; _]));
        let identity = Identity { id: JobId(1), name: JobName::from_bits(3), secret, token };
        let hosts = crate::hosts::parse(&["a:2,b".into()]).unwrap();
        let app = AppSpec::new(argv, WorkingDir::SameAsLauncher("/".into()));
        let mut job = JobSpec::new(identity, hosts, app);
        job.options.starters = vec![starter];
        job
    }

    fn variables(job: &JobSpec, node: u32) -> BTreeMap<String, String> {
        let map = job.map_ranks().unwrap();
        rank_variables(job, &map, NodeId(node), LocalRank(0)).into_iter().collect()
    }

    #[test]
    fn variables_of_the_user_are_left_alone() {
        let mut job = job("python3 x.py");
        job.apps[0].user_set_vars = vec!["RANK".to_owned()];
        let own = variables(&job, 1);
        assert_eq!((own["LOCAL_RANK"].as_str(), own["PMI_RANK"].as_str()), ("0", "2"));
        assert!(!own.contains_key("RANK"));
    }

    #[test]
    fn a_rank_has_its_numbers_by_the_names_of_other_launchers() {
        let mut job = job("python3 x.py");
        let own = variables(&job, 1);
        let id = job.id.to_string();
        for (name, value) in [
            ("PMI_SIZE", "3"),
            ("MPI_LOCALRANKID", "0"),
            ("MPI_LOCALNRANKS", "1"),
            ("OMPI_UNIVERSE_SIZE", "3"),
            ("ROLE_RANK", "2"),
            ("ROLE_WORLD_SIZE", "3"),
            ("ROLE_NAME", "default"),
            ("TORCHELASTIC_RUN_ID", &id),
            ("TORCHELASTIC_RESTART_COUNT", "0"),
            ("TORCHELASTIC_MAX_RESTARTS", "0"),
        ] {
            assert_eq!(own.get(name).map(String::as_str), Some(value), "{name}");
        }
        assert!(!own.contains_key("RLAUNCH_RESTART_COUNT"));
        job.restarts = Restarts::up_to(3).next();
        job.mpi = MpiInterfaces::None;
        let own = variables(&job, 0);
        assert_eq!(own["TORCHELASTIC_MAX_RESTARTS"], "3");
        assert_eq!(
            (&*own["TORCHELASTIC_RESTART_COUNT"], &*own["RLAUNCH_RESTART_COUNT"]),
            ("1", "1")
        );
        assert!(!own.keys().any(|name| name.starts_with("PMI_")), "--mpi none");
    }

    #[test]
    fn a_service_is_no_rank_for_other_programs() {
        for line in ["ray start --head", "vllm serve m", "dask worker a"] {
            let own = variables(&job(line), 1);
            let names: Vec<&str> = own.keys().map(String::as_str).collect();
            let expected = ["RLAUNCH_HOST", "RLAUNCH_JOB_ID", "RLAUNCH_NODES", "RLAUNCH_RANK"];
            assert_eq!(names, expected, "{line}");
        }
        assert!(variables(&job("torchrun x.py"), 1).contains_key("RANK"));
    }

    #[test]
    fn jax_is_told_an_address_in_the_form_of_open_mpi() {
        let uri = |address: &str| {
            let all = master_variables(address.parse().unwrap(), 29_500);
            all.into_iter().find(|own| own.name == names::OMPI_HNP_URI).unwrap().value
        };
        assert_eq!(uri("10.1.0.1"), "1.0;tcp://10.1.0.1:0");
        assert_eq!(uri("fd00::1"), "1.0;tcp6://[fd00::1]:0");
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
