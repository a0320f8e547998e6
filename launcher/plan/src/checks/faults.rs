//! Tests of the whole catalogue: recorded machines have no faults, and a single fault comes first, with what follows from
//! it below.

use super::testing::{Machine, line, with_cluster};
use super::{CheckState, catalogue, fold, state};
use crate::findings::{self, Severity};
use crate::testing::triangle;
use rlaunch_bootstrap::inventory::diagnostics::{
    Counter, DeviceFile, InterfaceState, ListeningPort, PciAdapter, RdmaPortState,
};
use rlaunch_bootstrap::inventory::rdma::{Port, PortState, RdmaDevice, Uverbs};
use rlaunch_bootstrap::inventory::{InstalledLibrary, Inventory};

/// Runs all checks and folds what they find; each line has its consequences after `<`.
fn examined(machines: &[Machine]) -> Vec<(Severity, String)> {
    with_cluster(machines, |cluster| {
        let checks = catalogue().filter(|check| state(check, &cluster) == CheckState::Ran);
        let found = checks.flat_map(|check| (check.examine)(&cluster));
        let folded = fold(&findings::merge(found), &cluster);
        let line = |folded: super::FoldedFinding| {
            let effects = folded.consequences.iter().map(|finding| finding.id.as_str());
            let effects: Vec<&str> = effects.collect();
            (folded.finding.severity, format!("{} < {}", line(&folded.finding), effects.join(" ")))
        };
        folded.into_iter().map(line).collect()
    })
}

/// Gives a recorded machine the diagnostics of a healthy host.
pub(super) fn healthy(machine: Machine) -> Machine {
    let inventory = machine.inventory.clone();
    machine.diagnosed(|diagnostics| {
        diagnostics.connection_manager = DeviceFile::Usable;
        let interface = |name: &String| InterfaceState {
            name: name.clone(),
            is_up: true,
            has_carrier: Some(true),
            carrier_losses: Some(1),
            arp_ignore: Some(0),
            arp_announce: Some(0),
            rp_filter: Some(0),
            ..InterfaceState::default()
        };
        diagnostics.interfaces = inventory.netdevs.iter().map(|n| interface(&n.name)).collect();
        let ports = inventory.rdma.iter().flat_map(|d| d.ports.iter().map(move |p| (d, p)));
        let port = |(device, port): (&RdmaDevice, &Port)| RdmaPortState {
            device: device.name.clone(),
            port: port.number,
            ..RdmaPortState::default()
        };
        diagnostics.rdma_ports = ports.map(port).collect();
        let adapter = |device: &RdmaDevice| {
            let pci = device.pci.as_ref()?;
            Some(PciAdapter {
                address: pci.address.clone(),
                vendor: pci.vendor?,
                device: pci.device?,
                class: 0x02_0000,
                driver: pci.driver.clone(),
                has_rdma: true,
                netdev: None,
            })
        };
        diagnostics.adapters = inventory.rdma.iter().filter_map(adapter).collect();
        let modules =
            ["erdma", "ib_core", "ib_uverbs", "mlx4_ib", "mlx5_core", "mlx5_ib", "nvidia"];
        diagnostics.modules = modules.map(str::to_owned).into();
        diagnostics.kernel.command_line = vec!["quiet".to_owned(), "iommu=pt".to_owned()];
    })
}

fn recorded(name: &str) -> Machine {
    healthy(Machine::recorded(name))
}

/// Returns an eight-GPU server without faults.
pub(super) fn dgx() -> Machine {
    let cleared = Machine::recorded("dgx").change(|inventory| {
        let devices = inventory.rdma.iter_mut().filter_map(|device| device.pci.as_mut());
        devices.flat_map(|pci| &mut pci.links).for_each(|link| link.acs = Some(false));
    });
    healthy(cleared)
}

/// Returns three hosts with a cable between any two and a NCCL that finds the cables.
fn cabled() -> Vec<Machine> {
    let machine = |inventory: Inventory| {
        let library = InstalledLibrary { version: "2.30.7".into(), path: "/nccl".into() };
        healthy(Machine { inventory, ..Machine::default() })
            .change(|inventory| inventory.system.nccl = Some(library))
    };
    triangle().map(machine).into()
}

#[test]
fn recorded_machines_are_healthy() {
    let names = "\
        amd-apu bond connectx3 dual-port erdma-compat erdma-standard esxi-vm macvlan-pod no-rdma \
        siw sriov";
    let names: Vec<&str> = names.split(' ').collect();
    let clusters =
        names.iter().map(|name| vec![recorded(name); 3]).chain([vec![dgx(); 2], cabled()]);
    for (name, machines) in names.iter().chain(&["dgx", "triangle"]).zip(clusters) {
        for machines in [&machines[..], &machines[..1]] {
            let found = examined(machines);
            let bad: Vec<_> =
                found.iter().filter(|(severity, _)| *severity != Severity::Note).collect();
            assert!(bad.is_empty(), "{name}: {bad:#?}");
        }
    }
}

/// Takes the link of a host's device away.
fn cut(machines: &mut [Machine], host: usize, device: &str) {
    let inventory = &mut machines[host].inventory;
    let device = inventory.rdma.iter_mut().find(|known| known.name == device).unwrap();
    for port in &mut device.ports {
        port.state = PortState::Down;
        let netdevs = inventory.netdevs.iter_mut();
        netdevs.filter(|n| Some(&n.name) == port.netdev.as_ref()).for_each(|n| n.running = false);
    }
}

/// Fault of one host: the id that is to come first, healthy machines, and what makes the fault on the second one.
type Fault = (&'static str, Vec<Machine>, fn(&mut Vec<Machine>));

fn faults() -> Vec<Fault> {
    [faults_of_devices(), faults_of_networks(), faults_of_hosts()].concat()
}

fn three(name: &str) -> Vec<Machine> {
    vec![recorded(name); 3]
}

fn faults_of_devices() -> Vec<Fault> {
    vec![
        ("link.down", cabled(), |m| cut(m, 1, "rocep1s0f1")),
        ("link.down", three("esxi-vm"), |m| cut(m, 1, "mlx5_0")),
        ("link.errors", three("esxi-vm"), |m| {
            let counter = Counter { name: "symbol_error".into(), first: 1, last: 9 };
            m[1].diagnostics.rdma_ports[0].counters.push(counter);
        }),
        ("dev.module", three("esxi-vm"), |m| {
            m[1].inventory.rdma.clear();
            m[1].diagnostics.adapters[0].has_rdma = false;
            m[1].diagnostics.modules.retain(|module| module != "mlx5_ib");
        }),
        ("dev.absent", vec![dgx(); 2], |m| {
            m[1].inventory.rdma.clear();
            m[1].diagnostics.adapters.clear();
        }),
        ("dev.uverbs", three("esxi-vm"), |m| m[1].inventory.rdma[0].uverbs = Uverbs::Missing),
        ("dev.perm", three("connectx3"), |m| {
            m[1].inventory.rdma[0].uverbs = Uverbs::Denied("/dev/infiniband/uverbs0".into());
        }),
        ("dev.rdma-cm", three("siw"), |m| {
            m[1].diagnostics.connection_manager = DeviceFile::Missing;
        }),
        ("dev.library", three("siw"), |m| {
            m[1].inventory.system.libraries = vec![("librdmacm".into(), "1.3".into())];
        }),
    ]
}

fn faults_of_networks() -> Vec<Fault> {
    vec![
        ("ib.no-sm", three("connectx3"), |m| {
            m.iter_mut().for_each(|m| m.inventory.rdma[0].ports[0].state = PortState::Init);
        }),
        ("ib.no-sm", three("ibsim"), |_| ()),
        ("roce.link-local", three("esxi-vm"), |m| {
            let inventory = &mut m[1].inventory;
            inventory.rdma[0].ports[0].gids.truncate(2);
            inventory
                .netdevs
                .iter_mut()
                .filter(|n| n.name == "ens224")
                .for_each(|n| n.addresses.clear());
        }),
        ("roce.no-v2", three("esxi-vm"), |m| {
            m[1].inventory.rdma[0].ports[0].gids.retain(|gid| gid.index % 2 == 0);
        }),
        ("mtu.mismatch", three("esxi-vm"), |m| {
            let inventory = &mut m[1].inventory;
            inventory.rdma[0].ports[0].mtu = Some(1024);
            inventory.netdevs.iter_mut().filter(|n| n.name == "ens224").for_each(|n| n.mtu = 1500);
        }),
        ("mesh.subnet", three("esxi-vm"), |m| {
            let inventory = &mut m[1].inventory;
            let moved = std::net::Ipv4Addr::new(10, 77, 0, 1);
            let gids = inventory.rdma[0].ports[0].gids.iter_mut();
            gids.filter(|gid| gid.value.to_ipv4_mapped().is_some())
                .for_each(|gid| gid.value = moved.to_ipv6_mapped());
            let netdev = inventory.netdevs.iter_mut().find(|n| n.name == "ens224").unwrap();
            netdev.addresses = vec![(moved.into(), 24)];
        }),
    ]
}

fn faults_of_hosts() -> Vec<Fault> {
    vec![
        ("erdma.mixed", three("erdma-compat"), |m| m[1] = recorded("erdma-standard")),
        ("erdma.ports", three("erdma-compat"), |m| {
            m[1].diagnostics.listeners =
                vec![ListeningPort { port: 30_610, process: Some((812, "nginx".into())) }];
        }),
        ("pcie.degraded", vec![dgx(); 2], |m| {
            let links = &mut m[1].inventory.rdma[3].pci.as_mut().unwrap().links;
            for link in links.iter_mut().take(2) {
                link.current.as_mut().unwrap().width = 4;
            }
        }),
        ("gpu.acs", vec![dgx(); 2], |m| {
            m[1].inventory.rdma[0].pci.as_mut().unwrap().links[1].acs = Some(true);
        }),
        ("gpu.driver", vec![dgx(); 2], |m| {
            m[1].inventory.gpus.iter_mut().for_each(|gpu| gpu.pci.driver = None);
        }),
        ("nccl.old", cabled(), |m| {
            m[1].inventory.system.nccl.as_mut().unwrap().version = "2.28.9".into();
        }),
    ]
}

/// opensm configures the simulated fabric.
#[test]
fn a_subnet_manager_cures_the_simulated_fabric() {
    let configured = three("ibsim").into_iter().enumerate().map(|(number, machine)| {
        machine.change(|inventory| {
            let port = &mut inventory.rdma[0].ports[0];
            (port.state, port.sm_lid) = (PortState::Active, Some(1));
            port.lid = u16::try_from(number + 4).ok();
        })
    });
    let found = examined(&configured.collect::<Vec<_>>());
    assert!(found.iter().all(|(severity, _)| *severity == Severity::Note), "{found:#?}");
}

#[test]
fn a_single_fault_comes_first_and_explains_the_others() {
    for (id, mut machines, make) in faults() {
        make(&mut machines);
        let found = examined(&machines);
        let (severity, first) = found.first().unwrap_or_else(|| panic!("{id}: nothing found"));
        assert_eq!(first.split(' ').nth(1), Some(id), "{found:#?}");
        assert!(*severity != Severity::Note, "{found:#?}");
        let others = found.iter().skip(1).filter(|(other, _)| other == severity);
        assert_eq!(others.count(), 0, "{found:#?}");
    }
}
