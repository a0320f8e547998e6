//! Environment of ranks that use PMI-1.

use crate::layout::RankPlace;

/// Variables of other launchers that a rank must not inherit: clients prefer `PMI_FD` to `PMI_PORT`, and
/// the others make a rank believe that a rank has spawned it, or that Hydra or a debugger runs it.
pub const REMOVED: [&str; 4] = ["PMI_FD", "PMI_SPAWNED", "PMI_TOTALVIEW", "HYDI_CONTROL_FD"];

/// Returns the variables by which a rank finds the agent's port on 127.0.0.1.
pub fn environment(place: &RankPlace, port: u16) -> Vec<(String, String)> {
    let mut variables = identity(place);
    variables.extend(contact(place, port));
    variables
}

/// Returns the variables by which a rank finds the agent's port on 127.0.0.1, if its MPI library may be
/// one that uses PMIx and is offered PMIx as well. Rank and size are left out, since the server tells
/// them; MPICH 5 fails if it finds both interfaces, unless `MPIR_CVAR_PMI_VERSION` says which to use.
pub fn environment_beside_pmix(place: &RankPlace, port: u16) -> Vec<(String, String)> {
    let mut variables = contact(place, port);
    variables.push(("MPIR_CVAR_PMI_VERSION".to_owned(), "1".to_owned()));
    variables
}

fn contact(place: &RankPlace, port: u16) -> Vec<(String, String)> {
    vec![
        ("PMI_PORT".to_owned(), format!("127.0.0.1:{port}")),
        ("PMI_ID".to_owned(), place.pmi_id.to_string()),
    ]
}

/// Returns the variables that say which rank this is, and which interface MPICH 5 is to use.
fn identity(place: &RankPlace) -> Vec<(String, String)> {
    let mut variables = Vec::new();
    let mut add = |name: &str, value: String| variables.push((name.to_owned(), value));
    add("PMI_RANK", place.rank.to_string());
    add("PMI_SIZE", place.world_size.to_string());
    add("MPI_LOCALRANKID", place.local_rank.to_string());
    add("MPI_LOCALNRANKS", place.local_size.to_string());
    add("MPIR_CVAR_PMI_VERSION", "1".to_owned());
    variables
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::layout::{JobLayout, NodeLayout};

    #[test]
    fn a_rank_learns_its_place_and_its_secret() {
        let node = |ranks: &[u32]| NodeLayout { host: String::new(), ranks: ranks.to_vec() };
        let nodes = vec![node(&[0, 1]), node(&[2, 3, 4])];
        let pmi_ids = vec![70, 80, 90];
        let layout = JobLayout { nodes, here: 1, pmi_ids, ..JobLayout::default() };
        let text = |variables: Vec<(String, String)>| {
            variables.iter().map(|(name, value)| format!("{name}={value}")).collect::<Vec<_>>()
        };
        let place = layout.place(3).unwrap();
        let identity = [
            "PMI_RANK=3",
            "PMI_SIZE=5",
            "MPI_LOCALRANKID=1",
            "MPI_LOCALNRANKS=3",
            "MPIR_CVAR_PMI_VERSION=1",
        ];
        let contact = ["PMI_PORT=127.0.0.1:5000", "PMI_ID=80"];
        assert_eq!(text(environment(&place, 5000)), [&identity[..], &contact].concat());
        let beside = text(environment_beside_pmix(&place, 5000));
        assert_eq!(beside, [&contact[..], &["MPIR_CVAR_PMI_VERSION=1"]].concat());
        assert_eq!(layout.place(0), None);
    }
}
