//! Checks of containers: whether agents run in the container that the user named, and what a container lacks
//! for RDMA and GPUs. For each deficit there is a hint with its remedy.

use crate::connect::connector::Container;
use crate::hosts::Host;
use crate::run::preflight_report::by_finding;
use rlaunch_bootstrap::inventory::rdma::{LinkLayer, RdmaDevice, Uverbs};
use rlaunch_bootstrap::inventory::{ContainerKind, Inventory};
use rlaunch_console::exit::Exit;
use rlaunch_console::messages::{self, Failed};
use rlaunch_console::text;

/// Limit on locked memory, in bytes, below which RDMA programs usually fail. The defaults of container
/// engines and of systemd, 64 KiB and 8 MiB, are lower.
const LOCKED_MEMORY: u64 = 64 << 20;
/// Size of `/dev/shm` that container engines give by default, in bytes.
const SHARED_MEMORY: u64 = 64 << 20;
/// Names of libibverbs providers. The name of a provider's kernel driver begins with the provider's name.
const PROVIDERS: &[&str] = &["mlx4", "mlx5", "erdma", "rxe", "siw"];

/// Requirement of RDMA or GPUs that a node does not meet.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Deficit {
    scope: Scope,
    kind: DeficitKind,
}

/// Kind of system that has a deficit.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Scope {
    Host,
    /// A container, with its engine if that is known.
    Container(Option<ContainerKind>),
}

#[derive(Clone, Debug, PartialEq, Eq)]
enum DeficitKind {
    /// The device files of these devices are missing.
    Files(Vec<String>),
    /// The device file at this path may not be opened.
    Denied(String),
    /// Only this many bytes may be locked.
    LockedMemory(u64),
    /// `/dev/shm` has only this many bytes.
    SharedMemory(u64),
    /// The network interfaces of these devices are in another network namespace.
    Network(Vec<String>),
    /// libibverbs is not installed.
    Libibverbs,
    /// libibverbs has no provider for this device.
    Provider { device: String, provider: &'static str },
}

/// Returns an error if agents should run in a container and some agent does not.
pub(crate) fn check(
    wanted: Option<&Container>,
    nodes: &[(&Host, &Inventory)],
) -> Result<(), Failed> {
    let Some(container) = wanted else { return Ok(()) };
    let is_in = |inventory: &Inventory| inventory.system.container.is_some();
    let wrong = nodes.iter().map(|(host, inventory)| {
        let checked = container.check_inside(is_in(inventory));
        checked.map_err(|error| (format!("{host}: {error}"), error.hint(&host.name)))
    });
    let mut wrong = wrong.filter_map(Result::err);
    let Some((first, hint)) = wrong.next() else { return Ok(()) };
    let mut failed = Failed::new(Exit::HOST, first).hint(hint);
    failed.details.extend(wrong.map(|(line, _)| line));
    Err(failed)
}

/// Prints the deficits of all nodes, one line for all nodes with an equal deficit. `uids` has the user id of
/// each node's agent.
pub(crate) fn print_deficits(
    wanted: Option<&Container>,
    nodes: &[(&Host, &Inventory)],
    uids: impl Iterator<Item = u32>,
) {
    for (host, inventory) in nodes {
        if let Some(kind) = inventory.system.container {
            tracing::info!("{host} is a {kind} container");
        }
    }
    let node_deficits = |((host, inventory), uid): ((_, &Inventory), u32)| {
        let deficits = deficits(inventory, wanted.is_some(), uid);
        deficits.into_iter().map(move |deficit| (host, deficit))
    };
    let deficits: Vec<(&Host, Deficit)> =
        nodes.iter().copied().zip(uids).flat_map(node_deficits).collect();
    let found: Vec<(&Host, &Deficit)> =
        deficits.iter().map(|(host, deficit)| (*host, deficit)).collect();
    for (deficit, hosts) in by_finding(&found) {
        messages::info(&format!("{}: {deficit}", text::list(&hosts)));
        messages::hint(&deficit.remedy());
    }
}

/// Lists the deficits of a node. A node without RDMA and GPUs has none. `entered` tells whether the user
/// wanted the agent in a container; `uid` is the agent's user id.
pub(crate) fn deficits(inventory: &Inventory, entered: bool, uid: u32) -> Vec<Deficit> {
    let kind = inventory.system.container;
    let scope = match kind.is_some() || entered {
        true => Scope::Container(kind),
        false => Scope::Host,
    };
    let mut deficits: Vec<DeficitKind> = Vec::new();
    if scope != Scope::Host {
        deficits.extend(files(&inventory.rdma));
        deficits.extend(network(&inventory.rdma));
        deficits.extend(software(inventory));
    }
    let is_usable = |device: &RdmaDevice| matches!(device.uverbs, Uverbs::Usable(_));
    let limit = inventory.limits.locked_memory.filter(|&limit| limit < LOCKED_MEMORY);
    // Root may lock any amount on a host, but usually not in a container.
    if inventory.rdma.iter().any(is_usable) && (scope != Scope::Host || uid != 0) {
        deficits.extend(limit.map(DeficitKind::LockedMemory));
    }
    let has_use = !inventory.rdma.is_empty() || !inventory.gpus.is_empty();
    let shared = inventory.limits.shared_memory.filter(|&bytes| bytes <= SHARED_MEMORY);
    if scope != Scope::Host && has_use {
        deficits.extend(shared.map(DeficitKind::SharedMemory));
    }
    deficits.into_iter().map(|kind| Deficit { scope, kind }).collect()
}

fn files(devices: &[RdmaDevice]) -> Vec<DeficitKind> {
    let missing = devices.iter().filter(|device| device.uverbs == Uverbs::Missing);
    let missing: Vec<String> = missing.map(|device| device.name.clone()).collect();
    let denied = devices.iter().find_map(|device| match &device.uverbs {
        Uverbs::Denied(path) => Some(DeficitKind::Denied(path.clone())),
        _ => None,
    });
    let missing = (!missing.is_empty()).then_some(DeficitKind::Files(missing));
    missing.into_iter().chain(denied).collect()
}

fn network(devices: &[RdmaDevice]) -> Option<DeficitKind> {
    let is_elsewhere = |device: &&RdmaDevice| {
        let mut ports = device.ports.iter();
        ports.any(|port| port.link_layer == LinkLayer::Ethernet && port.netdev.is_none())
    };
    let names: Vec<String> =
        devices.iter().filter(is_elsewhere).map(|device| device.name.clone()).collect();
    (!names.is_empty()).then_some(DeficitKind::Network(names))
}

fn software(inventory: &Inventory) -> Option<DeficitKind> {
    let usable = |device: &&RdmaDevice| matches!(device.uverbs, Uverbs::Usable(_));
    let mut devices = inventory.rdma.iter().filter(usable).peekable();
    devices.peek()?;
    if !inventory.system.libraries.iter().any(|(name, _)| name == "libibverbs") {
        return Some(DeficitKind::Libibverbs);
    }
    devices.find_map(|device| {
        let driver = device.driver.as_deref()?;
        let provider = PROVIDERS.iter().copied().find(|known| driver.starts_with(known))?;
        let is_there = inventory.system.providers.iter().any(|there| there == provider);
        (!is_there).then(|| DeficitKind::Provider { device: device.name.clone(), provider })
    })
}

impl Deficit {
    /// Returns a hint with the change that removes the deficit.
    pub(crate) fn remedy(&self) -> String {
        let (engine, on_kubernetes) = match self.scope {
            Scope::Host => {
                return "on the host: echo '* - memlock unlimited' | sudo tee \
                 /etc/security/limits.d/rdma.conf, then log in anew; under systemd \
                 LimitMEMLOCK=infinity"
                    .to_owned();
            }
            Scope::Container(kind) => (
                kind.filter(|kind| *kind != ContainerKind::Kubernetes),
                kind == Some(ContainerKind::Kubernetes),
            ),
        };
        let engine = engine.unwrap_or(ContainerKind::Docker);
        let flag = match (&self.kind, on_kubernetes) {
            (DeficitKind::Libibverbs | DeficitKind::Provider { .. }, _) => {
                return "install in the image: apt-get install libibverbs1 ibverbs-providers, or \
                        the vendor's package; do not mount the host's files"
                    .to_owned();
            }
            (DeficitKind::Denied(_), false) if engine == ContainerKind::Podman => {
                "--group-add keep-groups, as a user of the file's group"
            }
            (DeficitKind::Files(_), false) => "--device=/dev/infiniband",
            (DeficitKind::Denied(_), false) => "--group-add with the number of the file's group",
            (DeficitKind::LockedMemory(_), false) => "--ulimit memlock=-1",
            (DeficitKind::SharedMemory(_), false) => "--ipc=host or --shm-size=1g",
            (DeficitKind::Network(_), false) => "--net=host",
            (DeficitKind::Files(_) | DeficitKind::Denied(_), true) => {
                "the resource of the device plugin, as rdma/hca: 1 or aliyun/erdma: 1"
            }
            (DeficitKind::LockedMemory(_), true) => "securityContext.capabilities.add: [IPC_LOCK]",
            (DeficitKind::SharedMemory(_), true) => {
                "a volume emptyDir: {medium: Memory} mounted at /dev/shm"
            }
            (DeficitKind::Network(_), true) => "hostNetwork: true",
        };
        match on_kubernetes {
            true => format!("the pod needs {flag}"),
            false => format!("{engine} run needs {flag}"),
        }
    }
}

impl std::fmt::Display for Deficit {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let here = match self.scope {
            Scope::Host => "this host".to_owned(),
            Scope::Container(None) => "this container".to_owned(),
            Scope::Container(Some(kind)) => format!("this {kind} container"),
        };
        match &self.kind {
            DeficitKind::Files(devices) => write!(
                f,
                "{} is in sysfs, but its file in /dev/infiniband is missing in {here}",
                devices.join(", ")
            ),
            DeficitKind::Denied(path) => write!(f, "{path} may not be opened in {here}"),
            DeficitKind::LockedMemory(bytes) => {
                write!(
                    f,
                    "{here} may lock only {} of memory: registering buffers fails",
                    size(*bytes)
                )
            }
            DeficitKind::SharedMemory(bytes) => {
                write!(f, "/dev/shm of {here} has only {}: ranks may run out of it", size(*bytes))
            }
            DeficitKind::Network(devices) => write!(
                f,
                "{here} has its own network namespace, but the addresses of {} are in the host's",
                devices.join(", ")
            ),
            DeficitKind::Libibverbs => write!(f, "{here} has no libibverbs: RDMA cannot be used"),
            DeficitKind::Provider { device, provider } => {
                write!(
                    f,
                    "sysfs shows {device}, but libibverbs of {here} has no provider {provider}"
                )
            }
        }
    }
}

/// Writes a size, as in `64 KiB` or `8 MiB`.
fn size(bytes: u64) -> String {
    if bytes >= 1 << 20 { format!("{} MiB", bytes >> 20) } else { format!("{} KiB", bytes >> 10) }
}

#[cfg(test)]
mod tests {
    use super::*;
    use rlaunch_bootstrap::inventory::rdma::Port;

    /// Returns the inventory of a container with a usable device and without deficits.
    fn whole() -> Inventory {
        let rdma = vec![crate::recorded::inventory("connectx3").rdma[0].clone()];
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
        let deficits = deficits(&inventory, false, 0);
        deficits.iter().map(|deficit| format!("{deficit} | {}", deficit.remedy())).collect()
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
            "this docker container may lock only 64 KiB of memory: registering buffers fails | \
             docker run needs --ulimit memlock=-1"
        );
        let shm = one(|inventory| inventory.limits.shared_memory = Some(64 << 20));
        assert_eq!(
            shm,
            "/dev/shm of this docker container has only 64 MiB: ranks may run out of it | docker \
             run needs --ipc=host or --shm-size=1g"
        );
        let net = one(|inventory| inventory.rdma[0].ports[0].netdev = None);
        assert_eq!(
            net,
            "this docker container has its own network namespace, but the addresses of mlx5_0 are \
             in the host's | docker run needs --net=host"
        );
        let provider = one(|inventory| inventory.system.providers.clear());
        assert!(provider.starts_with("sysfs shows mlx5_0, but libibverbs of"), "{provider}");
        assert!(provider.contains("apt-get install libibverbs1 ibverbs-providers"), "{provider}");
        let library = one(|inventory| inventory.system.libraries.clear());
        assert!(library.contains("no libibverbs"), "{library}");
        let device = one(|inventory| inventory.rdma[0].uverbs = Uverbs::Missing);
        assert_eq!(
            device,
            "mlx5_0 is in sysfs, but its file in /dev/infiniband is missing in this docker \
             container | docker run needs --device=/dev/infiniband"
        );
    }

    #[test]
    fn an_agent_outside_of_the_container_is_an_error() {
        let wanted: Container = "forced:mpicont".parse().unwrap();
        let (inside, mut outside) = (whole(), whole());
        outside.system.container = None;
        let host = |name: &str| Host { name: name.into(), ..Host::this_machine() };
        let (b, c) = (host("b"), host("c"));
        assert!(check(Some(&wanted), &[(&b, &inside)]).is_ok());
        assert!(check(None, &[(&b, &outside)]).is_ok());
        let failed = check(Some(&wanted), &[(&b, &inside), (&c, &outside)]).unwrap_err();
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
        let deficits = deficits(&inventory, false, 1000);
        assert_eq!(deficits.len(), 1);
        assert!(deficits[0].remedy().contains("limits.d"), "{}", deficits[0].remedy());
    }
}
