//! What the inventories of nodes show before a job runs: whether agents run in the container that the user named, and what a
//! node lacks for RDMA and GPUs; with `--preflight quick`, also faults of RDMA ports. Each deficit is a finding, with a hint
//! how to fix it.

use crate::connect::connector::Reach;
use crate::run::job_run::JobRun;
use rlaunch_bootstrap::inventory::rdma::{RdmaDevice, Uverbs};
use rlaunch_bootstrap::inventory::{ContainerKind, Inventory};
use rlaunch_console::messages;
use rlaunch_plan::checks::{self, Cluster, ClusterHost, POD_RESOURCE, Scope};
use rlaunch_plan::findings::{self, CheckId, Finding, id};
use rlaunch_plan::hosts::Host;
use rlaunch_plan::options::Preflight;
use rlaunch_plan::selection::Plan;
use rlaunch_text::exit::Exit;
use rlaunch_text::message::Failed;
use rlaunch_text::text;
use std::time::Instant;

/// Checks of the catalogue that every job makes.
const CHECKED: &[CheckId] = &[id::CT_NET, id::CT_SHM, id::LIM_MEMLOCK];
/// Names of libibverbs providers. The name of a provider's kernel driver begins with the provider's name.
const PROVIDERS: &[&str] = &["mlx4", "mlx5", "erdma", "rxe", "siw"];

/// Returns an error if agents should run in a container and some agent does not.
pub(crate) fn check_container(reach: &Reach, nodes: &[(&Host, &Inventory)]) -> Result<(), Failed> {
    let mut wrong = nodes.iter().filter_map(|(host, inventory)| {
        let container = reach.container_of(host)?;
        let error = container.check_inside(inventory.system.container.is_some()).err()?;
        Some((format!("{host}: {error}"), error.hint(&host.name)))
    });
    let Some((first, hint)) = wrong.next() else { return Ok(()) };
    let mut failed = Failed::new(Exit::HOST, first).hint(hint);
    failed.details.extend(wrong.map(|(line, _)| line));
    Err(failed)
}

/// Prints the deficits of all nodes, one line for all nodes with an equal deficit. `uids` has the user id of
/// each node's agent.
pub(crate) fn print_deficits(
    reach: &Reach,
    nodes: &[(&Host, &Inventory)],
    uids: impl Iterator<Item = u32>,
) {
    for (host, inventory) in nodes {
        if let Some(kind) = inventory.system.container {
            tracing::info!("{host} is a {kind} container");
        }
    }
    let names: Vec<String> = nodes.iter().map(|(host, _)| host.to_string()).collect();
    let hosts = nodes.iter().zip(&names).zip(uids).map(|(((_, inventory), name), uid)| {
        ClusterHost { uid, ..ClusterHost::new(name, inventory, None) }
    });
    for deficit in deficits(hosts.collect(), reach.container.is_some()) {
        let hosts = text::list(&deficit.hosts);
        let sentence = format!("{hosts}: {} — {}", deficit.seen, deficit.matters);
        messages::warn_of(Some(deficit.id.as_str()), &sentence);
        messages::hint(&describe_fix(&deficit));
    }
}

/// Describes the deficits of one node, each with its fix. The node's agent counts as one of root.
pub fn describe_deficits(inventory: &Inventory) -> Vec<String> {
    let found = deficits(vec![ClusterHost::new("this host", inventory, None)], false);
    found.iter().map(|deficit| format!("{}: {}", deficit.seen, describe_fix(deficit))).collect()
}

/// Finds the deficits of nodes. A node without RDMA and GPUs has none. `entered` tells whether the user wanted
/// the agents in a container.
fn deficits(hosts: Vec<ClusterHost<'_>>, entered: bool) -> Vec<Finding> {
    let cluster = Cluster { hosts, in_container: entered, ..Cluster::default() };
    let checked = CHECKED.iter().filter_map(|id| checks::find(id.as_str()));
    let of_checks = checked.flat_map(|check| (check.examine)(&cluster));
    let of_devices =
        cluster.hosts.iter().flat_map(|host| device_deficits(host, Scope::new(host, &cluster)));
    findings::merge(of_devices.chain(of_checks))
}

/// Writes the steps of a fix in one line.
fn describe_fix(deficit: &Finding) -> String {
    deficit.hints().join("; then ")
}

/// Finds what a container lacks for the use of its RDMA devices.
fn device_deficits(host: &ClusterHost<'_>, scope: Scope) -> Vec<Finding> {
    if scope == Scope::Host {
        Vec::new()
    } else {
        device_files(host, scope).into_iter().chain(missing_software(host, scope)).collect()
    }
}

/// Reason why a deficit of a device matters.
const UNUSED: &str = "RDMA cannot be used";

/// Finds the files of RDMA devices that a container lacks or may not open.
fn device_files(host: &ClusterHost<'_>, scope: Scope) -> Vec<Finding> {
    let devices = &host.inventory.rdma;
    let missing = devices.iter().filter(|device| device.uverbs == Uverbs::Missing);
    let missing: Vec<&str> = missing.map(|device| &*device.name).collect();
    let missing = (!missing.is_empty()).then(|| {
        let seen = format!(
            "{} is in sysfs, but its file in /dev/infiniband is missing in {scope}",
            missing.join(", ")
        );
        let found = Finding::warning(id::DEV_UVERBS, host.name, seen, UNUSED);
        found.advise(scope.needs("--device=/dev/infiniband", POD_RESOURCE))
    });
    let denied = devices.iter().find_map(|device| match &device.uverbs {
        Uverbs::Denied(path) => Some(path),
        _ => None,
    });
    let denied = denied.map(|path| {
        let flag = match scope {
            Scope::Container(Some(ContainerKind::Podman)) => {
                "--group-add keep-groups, as a user of the file's group"
            }
            _ => "--group-add with the number of the file's group",
        };
        let seen = format!("{path} may not be opened in {scope}");
        let found = Finding::warning(id::DEV_PERM, host.name, seen, UNUSED);
        found.advise(scope.needs(flag, POD_RESOURCE))
    });
    missing.into_iter().chain(denied).collect()
}

/// Finds the library or the provider that a container lacks for an RDMA device that it may open.
fn missing_software(host: &ClusterHost<'_>, scope: Scope) -> Option<Finding> {
    const INSTALL: &str = "install in the image: apt-get install libibverbs1 ibverbs-providers, or \
                           the vendor's package; do not mount the host's files";
    let system = &host.inventory.system;
    let usable = |device: &&RdmaDevice| matches!(device.uverbs, Uverbs::Usable(_));
    let mut devices = host.inventory.rdma.iter().filter(usable).peekable();
    devices.peek()?;
    if !system.libraries.iter().any(|(name, _)| name == "libibverbs") {
        let seen = format!("{scope} has no libibverbs");
        let found = Finding::warning(id::DEV_LIBRARY, host.name, seen, UNUSED);
        return Some(found.advise(INSTALL));
    }
    let (device, provider) = devices.find_map(|device| {
        let driver = device.driver.as_deref()?;
        let provider = PROVIDERS.iter().copied().find(|known| driver.starts_with(known))?;
        let is_there = system.providers.iter().any(|there| there == provider);
        (!is_there).then_some((device, provider))
    })?;
    let seen = format!(
        "sysfs shows {}, but libibverbs of {scope} has no provider {provider}",
        device.name
    );
    Some(Finding::warning(id::DEV_PROVIDER, host.name, seen, UNUSED).advise(INSTALL))
}

/// Maximum number of findings that are printed; the rest are only counted.
const MAX_FINDINGS: usize = 3;
/// Maximum number of hosts that the advice names.
const MAX_HOSTS: usize = 8;

/// Prints findings that the job does not state elsewhere, in the first attempt of the job. `nodes` has the inventory and
/// the user id of each node's agent, and `plan` has the ports before any of them was proved.
pub(crate) fn print_quick(job: &JobRun, nodes: &[(&Host, &Inventory, u32)], plan: &Plan) {
    let is_restart = job.spec.restarts.is_some_and(|restarts| restarts.done > 0);
    if job.spec.options.preflight != Preflight::Quick || is_restart {
        return;
    }
    let started = Instant::now();
    for (id, sentence, hint) in quick_warnings(job, nodes, plan) {
        messages::warn_of(id, &sentence);
        hint.iter().for_each(|hint| messages::hint(hint));
    }
    tracing::info!("quick preflight: {:.2} ms", started.elapsed().as_secs_f64() * 1e3);
}

/// Warning: id of its finding, sentence, and advice.
type Warning = (Option<&'static str>, String, Option<String>);

/// Makes a warning of each finding, up to [`MAX_FINDINGS`], and one that counts the rest.
fn quick_warnings(job: &JobRun, nodes: &[(&Host, &Inventory, u32)], plan: &Plan) -> Vec<Warning> {
    let names: Vec<String> = nodes.iter().map(|(host, ..)| host.to_string()).collect();
    let hosts = nodes.iter().zip(&names).map(|((_, inventory, uid), name)| ClusterHost {
        uid: *uid,
        ..ClusterHost::new(name, inventory, None)
    });
    let cluster = Cluster {
        hosts: hosts.collect(),
        plan: Some(plan),
        ports: job.spec.options.ports.clone(),
        transport: job.spec.options.transport,
        in_container: job.reach.container.is_some(),
        ..Cluster::default()
    };
    let found = checks::examine_job(&cluster);
    let shown = found.iter().take(MAX_FINDINGS).map(|folded| {
        let finding = &folded.finding;
        (Some(finding.id.as_str()), finding.message(), finding.hints().into_iter().next())
    });
    let mut warnings: Vec<Warning> = shown.collect();
    let more = found.len().saturating_sub(MAX_FINDINGS);
    if more > 0 {
        let command = if names.len() <= MAX_HOSTS {
            format!("rlaunch doctor -H {}", names.join(","))
        } else {
            "rlaunch doctor with the same hosts".to_owned()
        };
        warnings.push((None, format!("{}: {command}", text::count(more, "more finding")), None));
    }
    warnings
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::connect::connector::Container;
    use rlaunch_bootstrap::inventory::rdma::{LinkLayer, Port};

    /// Returns the inventory of a container with a usable device and without deficits.
    fn whole() -> Inventory {
        let rdma = vec![rlaunch_plan::testing::inventory("connectx3").rdma[0].clone()];
        let mut inventory = Inventory { rdma, ..Inventory::default() };
        let device = &mut inventory.rdma[0];
        (device.name, device.driver) = ("mlx5_0".into(), Some("mlx5_core".into()));
        device.uverbs = Uverbs::Usable("/dev/infiniband/uverbs0".into());
        for Port { link_layer, netdev, .. } in &mut device.ports {
            (*link_layer, *netdev) = (LinkLayer::Ethernet, Some("eth1".into()));
        }
        inventory.limits.shared_memory = Some(1 << 30);
        inventory.system.container = Some(ContainerKind::Docker);
        inventory.system.libraries = vec![("libibverbs".into(), "1.14".into())];
        inventory.system.providers = vec!["mlx5".into()];
        inventory
    }

    fn printed(change: impl FnOnce(&mut Inventory)) -> Vec<String> {
        let mut inventory = whole();
        change(&mut inventory);
        found(&inventory, 0)
    }

    fn found(inventory: &Inventory, uid: u32) -> Vec<String> {
        let host = ClusterHost { uid, ..ClusterHost::new("b", inventory, None) };
        let deficit = |found: &Finding| {
            format!("{}: {} — {} | {}", found.id, found.seen, found.matters, describe_fix(found))
        };
        deficits(vec![host], false).iter().map(deficit).collect()
    }

    #[test]
    fn each_lack_is_named_with_the_flag_that_gives_it() {
        assert_eq!(printed(|_| ()), Vec::<String>::new());
        let one = |change: fn(&mut Inventory)| {
            let mut deficits = printed(change);
            assert_eq!(deficits.len(), 1, "{deficits:?}");
            deficits.remove(0)
        };
        let memlock = one(|inventory| inventory.limits.locked_memory = Some(64 << 10));
        assert_eq!(
            memlock,
            "lim.memlock: this docker container may lock only 64 KiB of memory — registering buffers \
             fails | docker run needs --ulimit memlock=-1"
        );
        let shm = one(|inventory| inventory.limits.shared_memory = Some(64 << 20));
        assert_eq!(
            shm,
            "ct.shm: /dev/shm of this docker container has only 64 MiB — ranks may run out of it | \
             docker run needs --ipc=host or --shm-size=1g"
        );
        let net = one(|inventory| inventory.rdma[0].ports[0].netdev = None);
        assert_eq!(
            net,
            "ct.net: this docker container has its own network namespace, but the addresses of mlx5_0 \
             are in the host's — RDMA cannot be used | docker run needs --net=host"
        );
        let provider = one(|inventory| inventory.system.providers.clear());
        assert!(
            provider.starts_with("dev.provider: sysfs shows mlx5_0, but libibverbs of"),
            "{provider}"
        );
        assert!(provider.contains("apt-get install libibverbs1 ibverbs-providers"), "{provider}");
        let library = one(|inventory| inventory.system.libraries.clear());
        assert!(library.contains("no libibverbs"), "{library}");
        let device = one(|inventory| inventory.rdma[0].uverbs = Uverbs::Missing);
        assert_eq!(
            device,
            "dev.uverbs: mlx5_0 is in sysfs, but its file in /dev/infiniband is missing in this docker \
             container — RDMA cannot be used | docker run needs --device=/dev/infiniband"
        );
    }

    #[test]
    fn an_agent_outside_of_the_container_is_an_error() {
        let wanted: Container = "forced:mpicont".parse().unwrap();
        let (inside, mut outside) = (whole(), whole());
        outside.system.container = None;
        let host = |name: &str| Host { name: name.into(), ..Host::this_machine() };
        let (b, c) = (host("b"), host("c"));
        let nothing = Reach::default();
        let wanted = Reach { container: Some(wanted), ..Reach::default() };
        assert!(check_container(&wanted, &[(&b, &inside)]).is_ok());
        assert!(check_container(&nothing, &[(&b, &outside)]).is_ok());
        let failed = check_container(&wanted, &[(&b, &inside), (&c, &outside)]).unwrap_err();
        let expected = "c: the login ends on the host and not in the container mpicont";
        assert!(failed.message.starts_with(expected), "{}", failed.message);
        assert_eq!(failed.exit, Exit::HOST);
        assert!(failed.hints[0].contains("authorized_keys of c"), "{:?}", failed.hints);
    }

    #[test]
    fn every_engine_has_its_own_words() {
        let denied = |kind| {
            printed(|inventory| {
                inventory.system.container = Some(kind);
                inventory.rdma[0].uverbs = Uverbs::Denied("/dev/infiniband/uverbs0".into());
            })
        };
        let podman = denied(ContainerKind::Podman);
        assert!(podman[0].contains("podman run needs --group-add keep-groups"), "{podman:?}");
        let pod = denied(ContainerKind::Kubernetes);
        assert!(pod[0].contains("the pod needs the resource of the device plugin"), "{pod:?}");
    }

    #[test]
    fn nothing_is_said_where_nothing_is_needed() {
        let bare = |inventory: &mut Inventory| {
            inventory.rdma.clear();
            inventory.limits.shared_memory = Some(64 << 20);
            inventory.limits.locked_memory = Some(64 << 10);
        };
        assert_eq!(printed(bare), Vec::<String>::new());
        let host = |inventory: &mut Inventory| {
            inventory.system.container = None;
            inventory.limits.locked_memory = Some(8 << 20);
            inventory.limits.shared_memory = Some(1 << 20);
            inventory.system.libraries.clear();
        };
        assert_eq!(printed(host), Vec::<String>::new());
        let mut inventory = whole();
        host(&mut inventory);
        assert_eq!(
            found(&inventory, 1000),
            [
                "lim.memlock: a process of this login may lock only 8 MiB of memory — registering buffers fails | on b: \
              printf '%s\\n' '* - memlock unlimited' | sudo tee /etc/security/limits.d/90-rlaunch-memlock.conf; then log in \
              anew; under systemd LimitMEMLOCK=infinity"
            ]
        );
    }
}
