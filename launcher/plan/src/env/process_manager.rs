//! Variables by which MPI libraries find their process manager, the agent. The agents set them when ranks
//! start, so their values are not known here. Some contain secrets.

use rlaunch_bootstrap::job::MpiInterfaces;

/// Lists the variables for a rank of a job of several ranks, as `NAME=VALUE` or a pattern for names, with
/// the reasons.
pub fn rows(interfaces: MpiInterfaces) -> Vec<[&'static str; 2]> {
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
    fn the_user_chooses_what_is_listed() {
        let names = |interfaces| -> Vec<&str> {
            rows(interfaces).into_iter().map(|[name, _]| name).collect()
        };
        let listed = [MpiInterfaces::Pmix, MpiInterfaces::Pmi1].map(names);
        assert_eq!(listed[0][0], "PMIX_*");
        assert_eq!(listed[1], ["PMI_*", "MPIR_CVAR_PMI_VERSION=1"]);
        assert_eq!(names(MpiInterfaces::Auto), listed.concat());
        assert!(names(MpiInterfaces::None).is_empty());
    }
}
