//! Hosts whose agents run on the host itself although the user named a container.

use super::sessions::Diagnosed;
use rlaunch_engine::connect::connector::Container;
use rlaunch_plan::checks::cluster::{ReachStage, Unreached};

/// Lists the hosts whose agents are outside of the container.
pub(super) fn outside(wanted: Option<&Container>, hosts: &[Diagnosed]) -> Vec<Unreached> {
    let Some(container) = wanted else { return Vec::new() };
    let judge = |host: &Diagnosed| {
        let is_inside = host.diagnosis.inventory.system.container.is_some();
        let error = container.check_inside(is_inside).err()?;
        let name = host.name.rsplit_once('@').map_or(&*host.name, |(_, name)| name);
        Some(Unreached {
            host: host.name.clone(),
            stage: ReachStage::Landing,
            cause: error.to_string(),
            hints: error.hint(name).into_iter().collect(),
        })
    };
    hosts.iter().filter_map(judge).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use rlaunch_bootstrap::inventory::ContainerKind;
    use rlaunch_bootstrap::protocol::diagnosis::Diagnosis;
    use rlaunch_plan::hosts::Host;

    #[test]
    fn a_login_that_ends_on_the_host() {
        let host = |name: &str, container| {
            let mut diagnosis = Diagnosis::default();
            diagnosis.inventory.system.container = container;
            Diagnosed::recorded(&Host { name: name.into(), ..Host::this_machine() }, diagnosis)
        };
        let hosts = [host("b", Some(ContainerKind::Docker)), host("c", None)];
        assert!(outside(None, &hosts).is_empty());
        let wanted: Container = "forced:mpi".parse().unwrap();
        let found = outside(Some(&wanted), &hosts);
        assert_eq!((found.len(), &*found[0].host), (1, "c"));
        assert!(found[0].cause.starts_with("the login ends on the host"), "{found:?}");
        assert!(found[0].hints[0].contains("authorized_keys of c"), "{found:?}");
    }
}
