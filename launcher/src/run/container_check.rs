//! Where agents have landed, and what is missing there: a container gives its programs less than
//! its host has, and for each lack there is a flag.

use crate::connect::connector::Container;
use crate::hosts::Host;
use crate::run::preflight_report::by_finding;
use rlaunch_bootstrap::inventory::rdma::{LinkLayer, RdmaDevice, Uverbs};
use rlaunch_bootstrap::inventory::{ContainerKind, Inventory};
use rlaunch_console::exit::Exit;
use rlaunch_console::messages::{self, Failed};
use rlaunch_console::text;

/// What RDMA's users ask to be able to lock, at least, in bytes. RoundTimeouts that are below it are the
/// defaults of engines and of systemd, 64 KiB or 8 MiB.
const LOCKED_MEMORY: u64 = 64 << 20;
/// `/dev/shm` as engines make it, in bytes.
const SHARED_MEMORY: u64 = 64 << 20;
/// Devices' drivers and what libibverbs drives them by, as far as that is told by the name.
const PROVIDERS: &[&str] = &["mlx4", "mlx5", "erdma", "rxe", "siw"];

/// Something that a node lacks.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Lack {
    place: Place,
    what: What,
}

/// What has to be started differently.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Place {
    Host,
    /// A container, and its maker where that shows.
    Container(Option<ContainerKind>),
}

#[derive(Clone, Debug, PartialEq, Eq)]
enum What {
    /// Files of these devices are not there.
    Files(Vec<String>),
    /// A device's file may not be opened.
    Denied(String),
    /// So many bytes may be locked.
    LockedMemory(u64),
    /// So many bytes are shared.
    SharedMemory(u64),
    /// These devices' interfaces are not in this network.
    Network(Vec<String>),
    /// A library to use devices by.
    Libibverbs,
    /// What drives this device.
    Provider { device: String, provider: &'static str },
}

/// An agent on a host that was to be in a container is an error.
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

/// Says what nodes lack, one sentence for all that lack the same; `uids` are of their agents.
pub(crate) fn tell(
    wanted: Option<&Container>,
    nodes: &[(&Host, &Inventory)],
    uids: impl Iterator<Item = u32>,
) {
    for (host, inventory) in nodes {
        if let Some(kind) = inventory.system.container {
            tracing::info!("{host} is a {kind} container");
        }
    }
    let of_node = |((host, inventory), uid): ((_, &Inventory), u32)| {
        let lacks = of(inventory, wanted.is_some(), uid);
        lacks.into_iter().map(move |lack| (host, lack))
    };
    let lacks: Vec<(&Host, Lack)> = nodes.iter().copied().zip(uids).flat_map(of_node).collect();
    let found: Vec<(&Host, &Lack)> = lacks.iter().map(|(host, lack)| (*host, lack)).collect();
    for (lack, hosts) in by_finding(&found) {
        messages::info(&format!("{}: {lack}", text::list(&hosts)));
        messages::hint(&lack.cure());
    }
}

/// What a node lacks. Nothing is said of one without RDMA or GPUs: what runs there does without.
pub(crate) fn of(inventory: &Inventory, entered: bool, uid: u32) -> Vec<Lack> {
    let kind = inventory.system.container;
    let place = match kind.is_some() || entered {
        true => Place::Container(kind),
        false => Place::Host,
    };
    let mut lacks: Vec<What> = Vec::new();
    if place != Place::Host {
        lacks.extend(files(&inventory.rdma));
        lacks.extend(network(&inventory.rdma));
        lacks.extend(software(inventory));
    }
    let is_usable = |device: &RdmaDevice| matches!(device.uverbs, Uverbs::Usable(_));
    let limit = inventory.limits.locked_memory.filter(|&limit| limit < LOCKED_MEMORY);
    // Root of a host may lock what it likes; that of a container usually may not.
    if inventory.rdma.iter().any(is_usable) && (place != Place::Host || uid != 0) {
        lacks.extend(limit.map(What::LockedMemory));
    }
    let has_use = !inventory.rdma.is_empty() || !inventory.gpus.is_empty();
    let shared = inventory.limits.shared_memory.filter(|&bytes| bytes <= SHARED_MEMORY);
    if place != Place::Host && has_use {
        lacks.extend(shared.map(What::SharedMemory));
    }
    lacks.into_iter().map(|what| Lack { place, what }).collect()
}

fn files(devices: &[RdmaDevice]) -> Vec<What> {
    let missing = devices.iter().filter(|device| device.uverbs == Uverbs::Missing);
    let missing: Vec<String> = missing.map(|device| device.name.clone()).collect();
    let denied = devices.iter().find_map(|device| match &device.uverbs {
        Uverbs::Denied(path) => Some(What::Denied(path.clone())),
        _ => None,
    });
    let missing = (!missing.is_empty()).then_some(What::Files(missing));
    missing.into_iter().chain(denied).collect()
}

fn network(devices: &[RdmaDevice]) -> Option<What> {
    let is_elsewhere = |device: &&RdmaDevice| {
        let mut ports = device.ports.iter();
        ports.any(|port| port.link_layer == LinkLayer::Ethernet && port.netdev.is_none())
    };
    let names: Vec<String> =
        devices.iter().filter(is_elsewhere).map(|device| device.name.clone()).collect();
    (!names.is_empty()).then_some(What::Network(names))
}

fn software(inventory: &Inventory) -> Option<What> {
    let usable = |device: &&RdmaDevice| matches!(device.uverbs, Uverbs::Usable(_));
    let mut devices = inventory.rdma.iter().filter(usable).peekable();
    devices.peek()?;
    if !inventory.system.libraries.iter().any(|(name, _)| name == "libibverbs") {
        return Some(What::Libibverbs);
    }
    devices.find_map(|device| {
        let driver = device.driver.as_deref()?;
        let provider = PROVIDERS.iter().copied().find(|known| driver.starts_with(known))?;
        let is_there = inventory.system.providers.iter().any(|there| there == provider);
        (!is_there).then(|| What::Provider { device: device.name.clone(), provider })
    })
}

impl Lack {
    /// What the user can do.
    pub(crate) fn cure(&self) -> String {
        let (engine, on_kubernetes) = match self.place {
            Place::Host => {
                return "on the host: echo '* - memlock unlimited' | sudo tee \
                 /etc/security/limits.d/rdma.conf, then log in anew; under systemd \
                 LimitMEMLOCK=infinity"
                    .to_owned();
            }
            Place::Container(kind) => (
                kind.filter(|kind| *kind != ContainerKind::Kubernetes),
                kind == Some(ContainerKind::Kubernetes),
            ),
        };
        let engine = engine.unwrap_or(ContainerKind::Docker);
        let flag = match (&self.what, on_kubernetes) {
            (What::Libibverbs | What::Provider { .. }, _) => {
                return "into the image: apt-get install libibverbs1 ibverbs-providers, or the \
                        vendor's package; never the host's files"
                    .to_owned();
            }
            (What::Denied(_), false) if engine == ContainerKind::Podman => {
                "--group-add keep-groups, as a user of the file's group"
            }
            (What::Files(_), false) => "--device=/dev/infiniband",
            (What::Denied(_), false) => "--group-add with the number of the file's group",
            (What::LockedMemory(_), false) => "--ulimit memlock=-1",
            (What::SharedMemory(_), false) => "--ipc=host or --shm-size=1g",
            (What::Network(_), false) => "--net=host",
            (What::Files(_) | What::Denied(_), true) => {
                "the resource of the device plugin, as rdma/hca: 1 or aliyun/erdma: 1"
            }
            (What::LockedMemory(_), true) => "securityContext.capabilities.add: [IPC_LOCK]",
            (What::SharedMemory(_), true) => {
                "a volume emptyDir: {medium: Memory} mounted at /dev/shm"
            }
            (What::Network(_), true) => "hostNetwork: true",
        };
        match on_kubernetes {
            true => format!("the pod needs {flag}"),
            false => format!("{engine} run needs {flag}"),
        }
    }
}

impl std::fmt::Display for Lack {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let here = match self.place {
            Place::Host => "this host".to_owned(),
            Place::Container(None) => "this container".to_owned(),
            Place::Container(Some(kind)) => format!("this {kind} container"),
        };
        match &self.what {
            What::Files(devices) => write!(
                f,
                "{} is in sysfs, and its file in /dev/infiniband is not in {here}",
                devices.join(", ")
            ),
            What::Denied(path) => write!(f, "{path} may not be opened in {here}"),
            What::LockedMemory(bytes) => {
                write!(f, "{here} may lock {} of memory: registering buffers fails", size(*bytes))
            }
            What::SharedMemory(bytes) => {
                write!(f, "/dev/shm of {here} has {}: ranks may run out of it", size(*bytes))
            }
            What::Network(devices) => write!(
                f,
                "{here} has a network of its own, and the addresses of {} belong to the host's",
                devices.join(", ")
            ),
            What::Libibverbs => write!(f, "{here} has no libibverbs: RDMA cannot be used"),
            What::Provider { device, provider } => {
                write!(f, "sysfs shows {device}, and libibverbs of {here} has no {provider}")
            }
        }
    }
}

/// `64 KiB`, `8 MiB`.
fn size(bytes: u64) -> String {
    if bytes >= 1 << 20 { format!("{} MiB", bytes >> 20) } else { format!("{} KiB", bytes >> 10) }
}

#[cfg(test)]
mod tests {
    use super::*;
    use rlaunch_bootstrap::inventory::rdma::Port;

    /// A container with a device that can be used, and all that it needs.
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

    fn said(change: impl FnOnce(&mut Inventory)) -> Vec<String> {
        let mut inventory = whole();
        change(&mut inventory);
        let lacks = of(&inventory, false, 0);
        lacks.iter().map(|lack| format!("{lack} | {}", lack.cure())).collect()
    }

    #[test]
    fn each_lack_is_named_with_the_flag_that_gives_it() {
        assert_eq!(said(|_| ()), Vec::<String>::new());
        let one = |change: fn(&mut Inventory)| {
            let mut lacks = said(change);
            assert_eq!(lacks.len(), 1, "{lacks:?}");
            lacks.remove(0)
        };
        let memlock = one(|inventory| inventory.limits.locked_memory = Some(64 << 10));
        assert_eq!(
            memlock,
            "this docker container may lock 64 KiB of memory: registering buffers fails | docker \
             run needs --ulimit memlock=-1"
        );
        let shm = one(|inventory| inventory.limits.shared_memory = Some(64 << 20));
        assert_eq!(
            shm,
            "/dev/shm of this docker container has 64 MiB: ranks may run out of it | docker run \
             needs --ipc=host or --shm-size=1g"
        );
        let net = one(|inventory| inventory.rdma[0].ports[0].netdev = None);
        assert_eq!(
            net,
            "this docker container has a network of its own, and the addresses of mlx5_0 belong \
             to the host's | docker run needs --net=host"
        );
        let provider = one(|inventory| inventory.system.providers.clear());
        assert!(provider.starts_with("sysfs shows mlx5_0, and libibverbs of"), "{provider}");
        assert!(provider.contains("apt-get install libibverbs1 ibverbs-providers"), "{provider}");
        let library = one(|inventory| inventory.system.libraries.clear());
        assert!(library.contains("no libibverbs"), "{library}");
        let device = one(|inventory| inventory.rdma[0].uverbs = Uverbs::Missing);
        assert_eq!(
            device,
            "mlx5_0 is in sysfs, and its file in /dev/infiniband is not in this docker container \
             | docker run needs --device=/dev/infiniband"
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
            said(|inventory| {
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
        assert_eq!(said(bare), Vec::<String>::new());
        let host = |inventory: &mut Inventory| {
            inventory.system.container = None;
            inventory.limits.locked_memory = Some(8 << 20);
            inventory.limits.shared_memory = Some(1 << 20);
            inventory.system.libraries.clear();
        };
        assert_eq!(said(host), Vec::<String>::new());
        let mut inventory = whole();
        host(&mut inventory);
        let lacks = of(&inventory, false, 1000);
        assert_eq!(lacks.len(), 1);
        assert!(lacks[0].cure().contains("limits.d"), "{}", lacks[0].cure());
    }
}
