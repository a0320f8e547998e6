//! Environment of ranks that use PMIx.

use crate::layout::RankPlace;

/// Variables of other launchers that a rank must not inherit. A client takes the dialect, and the server,
/// of the first address that it finds; this server speaks only that of version 3.
pub const REMOVED: [&str; 6] = [
    "PMIX_SERVER_URI61",
    "PMIX_SERVER_URI51",
    "PMIX_SERVER_URI41",
    "PMIX_SERVER_URI4",
    "PMIX_SERVER_URI21",
    "PMIX_SERVER_URI2",
];

/// Version of PMIx that the server passes itself off as, so that newer clients speak the dialect of
/// version 3.
const VERSION: &str = "3.2.5";

/// Returns the variables by which a rank finds the agent's port on 127.0.0.1. `directory` is a folder for
/// temporary files of the job.
pub fn environment(place: &RankPlace, port: u16, directory: &str) -> Vec<(String, String)> {
    let address = format!("rlaunch.{};tcp4://127.0.0.1:{port}", place.node);
    let variables = [
        ("PMIX_NAMESPACE", place.namespace.clone()),
        ("PMIX_RANK", place.rank.to_string()),
        ("PMIX_SERVER_URI3", address),
        ("PMIX_SECURITY_MODE", "native".to_owned()),
        ("PMIX_BFROP_BUFFER_TYPE", "PMIX_BFROP_BUFFER_NON_DESC".to_owned()),
        ("PMIX_GDS_MODULE", "hash".to_owned()),
        ("PMIX_HOSTNAME", place.host.clone()),
        ("PMIX_SERVER_TMPDIR", directory.to_owned()),
        ("PMIX_SYSTEM_TMPDIR", directory.to_owned()),
        ("PMIX_VERSION", VERSION.to_owned()),
        // Open MPI 4 takes itself for a program without launcher unless it has the address of a daemon.
        // It never uses the address.
        ("OMPI_MCA_orte_local_daemon_uri", "1.0;tcp://127.0.0.1:1".to_owned()),
    ];
    variables.map(|(name, value)| (name.to_owned(), value)).into()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing;

    #[test]
    fn a_rank_learns_its_place_and_its_server() {
        let layout = testing::layout(&[&[0, 1], &[2, 3]], 1);
        let variables = environment(&layout.place(3).unwrap(), 5000, "/tmp/job");
        let text: Vec<String> =
            variables.iter().map(|(name, value)| format!("{name}={value}")).collect();
        assert_eq!(
            text,
            [
                "PMIX_NAMESPACE=job",
                "PMIX_RANK=3",
                "PMIX_SERVER_URI3=rlaunch.1;tcp4://127.0.0.1:5000",
                "PMIX_SECURITY_MODE=native",
                "PMIX_BFROP_BUFFER_TYPE=PMIX_BFROP_BUFFER_NON_DESC",
                "PMIX_GDS_MODULE=hash",
                "PMIX_HOSTNAME=host1",
                "PMIX_SERVER_TMPDIR=/tmp/job",
                "PMIX_SYSTEM_TMPDIR=/tmp/job",
                "PMIX_VERSION=3.2.5",
                "OMPI_MCA_orte_local_daemon_uri=1.0;tcp://127.0.0.1:1",
            ]
        );
        assert!(!variables.iter().any(|(name, _)| REMOVED.contains(&&**name)));
    }
}
