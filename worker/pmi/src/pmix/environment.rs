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
    let mut variables = Vec::new();
    let mut add = |name: &str, value: &str| variables.push((name.to_owned(), value.to_owned()));
    add("PMIX_NAMESPACE", &place.namespace);
    add("PMIX_RANK", &place.rank.to_string());
    add("PMIX_SERVER_URI3", &format!("rlaunch.{};tcp4://127.0.0.1:{port}", place.node));
    add("PMIX_SECURITY_MODE", "native");
    add("PMIX_BFROP_BUFFER_TYPE", "PMIX_BFROP_BUFFER_NON_DESC");
    add("PMIX_GDS_MODULE", "hash");
    add("PMIX_HOSTNAME", &place.host);
    add("PMIX_SERVER_TMPDIR", directory);
    add("PMIX_SYSTEM_TMPDIR", directory);
    add("PMIX_VERSION", VERSION);
    // Open MPI 4 takes itself for a program without launcher unless it has the address of a daemon. It
    // never uses the address.
    add("OMPI_MCA_orte_local_daemon_uri", "1.0;tcp://127.0.0.1:1");
    variables
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
