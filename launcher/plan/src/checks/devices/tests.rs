use super::super::cluster::{Probe, ProbeKind, ProbeOutcome, ProofFailure};
use super::super::testing::{Machine, line, lines, probed, with_cluster};
use super::*;
use crate::findings::Step;
use crate::selection::{ConnectBy, PortOptions};
use rlaunch_bootstrap::inventory::diagnostics::{DeviceFile, PciAdapter};
use rlaunch_bootstrap::inventory::rdma::Uverbs;

/// Returns a machine with its adapters and modules as a working host has them.
fn working(name: &str, vendor: u16, device: u16, modules: &[&str]) -> Machine {
    Machine::recorded(name).diagnosed(|diagnostics| {
        diagnostics.adapters = vec![PciAdapter {
            address: "0000:c3:00.0".into(),
            vendor,
            device,
            class: 0x02_0700,
            driver: Some("mlx4_core".into()),
            has_rdma: true,
            netdev: None,
        }];
        diagnostics.modules = modules.iter().map(|module| (*module).to_owned()).collect();
    })
}

fn connectx3() -> Machine {
    working("connectx3", 0x15b3, 0x1003, &["ib_core", "mlx4_core", "mlx4_ib"])
}

fn without_device(machine: Machine) -> Machine {
    machine
        .change(|inventory| inventory.rdma.clear())
        .diagnosed(|diagnostics| diagnostics.adapters[0].has_rdma = false)
}

fn fixes(examine: fn(&Cluster<'_>) -> Vec<Finding>, machines: &[Machine]) -> Vec<Step> {
    with_cluster(machines, |cluster| examine(&cluster).remove(0).fix)
}

fn run(line: &str) -> Step {
    Step::Run(line.to_owned())
}

/// Returns the steps that load a module, now and at each boot.
fn kept(module: &str) -> [Step; 2] {
    let keep = format!("echo {module} | sudo tee /etc/modules-load.d/rlaunch-{module}.conf");
    [run(&format!("sudo modprobe {module}")), run(&keep)]
}

#[test]
fn a_missing_module_is_named() {
    let fault = without_device(connectx3()).diagnosed(|d| d.modules.retain(|m| m != "mlx4_ib"));
    let machines = [connectx3(), fault.clone()];
    let expected = "error dev.module b 0000:c3:00.0: 15b3:1003 has no RDMA device: the module mlx4_ib is not \
                    loaded — RDMA cannot be used";
    let module = adapters::MODULE.examine;
    assert_eq!(lines(module, &machines), [expected]);
    assert_eq!(fixes(module, &machines), kept("mlx4_ib"));
    assert!(lines(adapters::ABSENT.examine, &machines).is_empty());
    assert!(lines(module, &[connectx3(), connectx3()]).is_empty());
    let with_id = |vendor, device, driver: Option<&str>| {
        let fault = fault.clone().diagnosed(|diagnostics| {
            let adapter = &mut diagnostics.adapters[0];
            (adapter.vendor, adapter.device) = (vendor, device);
            (adapter.driver, adapter.class) = (driver.map(str::to_owned), 0x02_0000);
        });
        lines(module, &[fault])
    };
    for (vendor, device, driver, module) in [
        (0x15b3, 0x1021, Some("mlx5_core"), "mlx5_ib"),
        (0x8086, 0x1592, Some("ice"), "irdma"),
        (0x1ded, 0x107f, None, "erdma"),
        (0x14e4, 0x1750, Some("bnxt_en"), "bnxt_re"),
    ] {
        let found = with_id(vendor, device, driver);
        assert!(found[0].contains(&format!("the module {module} is not")), "{found:?}");
        assert!(found[0].starts_with("warn "), "no other host has RDMA: {found:?}");
    }
    for (vendor, device, driver) in [
        (0x14e4, 0x165f, Some("tg3")),
        (0x8086, 0x125c, Some("igc")),
        (0x15b3, 0x1021, Some("vfio-pci")),
    ] {
        assert!(with_id(vendor, device, driver).is_empty());
    }
}

/// The second function of a bond has no RDMA device, and its module is loaded.
#[test]
fn a_module_that_is_loaded_without_a_device_is_not_a_fault() {
    let bond = Machine::recorded("bond").diagnosed(|diagnostics| {
        diagnostics.modules = vec!["mlx5_core".into(), "mlx5_ib".into()];
        let adapter = PciAdapter { vendor: 0x15b3, device: 0x101d, ..PciAdapter::default() };
        diagnostics.adapters = vec![adapter];
    });
    assert!(lines(adapters::MODULE.examine, &[bond.clone(), bond]).is_empty());
}

#[test]
fn a_host_without_rdma_is_only_named_beside_hosts_with_it() {
    let none = || Machine::recorded("no-rdma");
    let absent = adapters::ABSENT.examine;
    assert!(lines(absent, &[none(), none()]).is_empty());
    let machines = [connectx3(), none()];
    let expected = "warn dev.absent b: no PCI function that could be an RDMA device — the other hosts have RDMA; \
                    data to and from this one goes by TCP";
    assert_eq!(lines(absent, &machines), [expected]);
    assert_eq!(fixes(absent, &machines)[1], run("echo 1 | sudo tee /sys/bus/pci/rescan"));
    let soft = [Machine::recorded("siw"), none()];
    let Step::Run(line) = &fixes(absent, &soft)[0] else { panic!("not a line") };
    assert!(line.contains("type siw netdev INTERFACE"), "{line}");
}

#[test]
fn ofed_without_connectx_3_is_told_from_a_missing_module() {
    let fault = |version: &str| {
        without_device(connectx3())
            .change(|i| i.system.drivers = vec![("mlx5_core".into(), version.into())])
            .diagnosed(|diagnostics| {
                diagnostics.modules = vec!["mlx5_core".into()];
                diagnostics.adapters[0].driver = None;
                diagnostics.kernel.distribution_ids = vec!["ubuntu".into()];
            })
    };
    let (dropped, module) = (adapters::DROPPED.examine, adapters::MODULE.examine);
    let machines = [fault("5.4-3.1.0")];
    let expected = "error dev.dropped a 0000:c3:00.0: MLNX_OFED 5.4-3.1.0 has no driver for 15b3:1003 (ConnectX-3) \
                    — RDMA cannot be used";
    assert_eq!(lines(dropped, &machines), [expected]);
    assert!(lines(module, &machines).is_empty());
    let fix = fixes(dropped, &machines);
    assert_eq!(
        fix[..2],
        [run("sudo ofed_uninstall.sh --force"), run("sudo apt-get install -y rdma-core")]
    );
    let older = [fault("5.0-0")];
    assert!(lines(dropped, &older).is_empty());
    assert_eq!(lines(module, &older).len(), 1);
}

#[test]
fn device_files_that_are_missing_or_denied_are_named() {
    let files = access::UVERBS.examine;
    let expected = "error dev.uverbs a rxe0: rxe0 is in sysfs without a file in /dev/infiniband — RDMA cannot be used";
    assert_eq!(lines(files, &[Machine::recorded("rxe")]), [expected]);
    assert_eq!(fixes(files, &[Machine::recorded("rxe")]), kept("ib_uverbs"));
    let loaded =
        Machine::recorded("rxe").diagnosed(|state| state.modules = vec!["ib_uverbs".into()]);
    let Step::Run(made) = &fixes(files, &[loaded])[1] else { panic!("no line") };
    assert!(made.starts_with("for d in /sys/class/infiniband_verbs/uverbs*; "), "{made}");
    let container = Machine::recorded("rxe")
        .change(|inventory| inventory.system.container = Some(ContainerKind::Docker));
    let flag = Step::Do("start the container with docker run --device=/dev/infiniband".into());
    assert_eq!(fixes(files, &[container]), [flag]);
    let partly = lines(files, &[Machine::recorded("container")]);
    assert!(partly[0].starts_with("note dev.uverbs a mlx5_1: "), "{partly:?}");
    assert!(lines(files, &[Machine::recorded("ack-node")]).is_empty(), "its port is down as well");
    assert!(lines(files, &[Machine::recorded("siw")]).is_empty());

    let permission = access::PERMISSION.examine;
    let denied = Machine::recorded("siw").uid(1000).change(|inventory| {
        inventory.rdma[0].uverbs = Uverbs::Denied("/dev/infiniband/uverbs0".into());
    });
    let expected =
        "error dev.perm a: user 1000 may not open /dev/infiniband/uverbs0 — RDMA cannot be used";
    assert_eq!(lines(permission, std::slice::from_ref(&denied)), [expected]);
    let fix = fixes(permission, std::slice::from_ref(&denied));
    assert_eq!(fix[0], run("ls -l /dev/infiniband/uverbs0  # names its group"));
    assert!(fix.iter().all(|step| !matches!(step, Step::Run(line) if line.contains("usermod"))));
    let podman =
        denied.change(|inventory| inventory.system.container = Some(ContainerKind::Podman));
    let Step::Do(flag) = &fixes(permission, &[podman])[0] else { panic!("not an advice") };
    assert!(flag.contains("podman run --group-add keep-groups"), "{flag}");
    assert!(lines(permission, &[Machine::recorded("siw")]).is_empty());
}

#[test]
fn the_connection_manager_is_needed_by_some_devices() {
    let with = |name: &str, file: DeviceFile| {
        Machine::recorded(name).diagnosed(|diagnostics| diagnostics.connection_manager = file)
    };
    let manager = access::CONNECTION_MANAGER.examine;
    let machines = [with("siw", DeviceFile::Missing)];
    let expected = "error dev.rdma-cm a: /dev/infiniband/rdma_cm is missing — siw0 connects only through the RDMA \
                    connection manager";
    assert_eq!(lines(manager, &machines), [expected]);
    assert_eq!(fixes(manager, &machines), kept("rdma_ucm"));
    assert!(lines(manager, &[with("siw", DeviceFile::Usable)]).is_empty());
    let roce = [with("esxi-vm", DeviceFile::Missing)];
    assert!(lines(manager, &roce).is_empty());
    let wanted = with_cluster(&roce, |mut cluster| {
        cluster.ports = PortOptions { connect: ConnectBy::RdmaCm, ..PortOptions::default() };
        manager(&cluster).remove(0).matters
    });
    assert_eq!(wanted, "--connect rdma_cm needs it");
}

#[test]
fn libraries_are_missed_only_where_they_were_looked_for() {
    let (library, provider) = (access::LIBRARY.examine, access::PROVIDER.examine);
    let with = |libraries: &[&str], providers: &[&str]| {
        let libraries = libraries.iter().map(|name| ((*name).to_owned(), "1.14".to_owned()));
        let (libraries, providers) = (
            libraries.collect::<Vec<_>>(),
            providers.iter().map(|name| (*name).to_owned()).collect::<Vec<_>>(),
        );
        Machine::recorded("esxi-vm")
            .change(|inventory| {
                (inventory.system.libraries, inventory.system.providers) = (libraries, providers);
            })
            .diagnosed(|diagnostics| diagnostics.kernel.distribution_ids = vec!["debian".into()])
    };
    assert!(lines(library, &[with(&[], &[])]).is_empty());
    let found = lines(library, &[with(&["libcuda"], &[])]);
    assert_eq!(found, ["error dev.library a: no libibverbs — RDMA cannot be used"]);
    assert_eq!(
        fixes(library, &[with(&["libcuda"], &[])]),
        [run("sudo apt-get install -y ibverbs-providers")]
    );
    let live = with(&[], &[]).diagnosed(|diagnostics| diagnostics.clock = Some(1));
    assert_eq!(lines(library, &[live]).len(), 1);
    let whole = with(&["libibverbs"], &["mlx5", "rxe"]);
    assert!(lines(library, std::slice::from_ref(&whole)).is_empty());
    assert!(lines(provider, &[whole]).is_empty());
    let found = lines(provider, &[with(&["libibverbs"], &["rxe"])]);
    let expected = "error dev.provider a mlx5_0: libibverbs has no provider mlx5 for mlx5_0 — programs see no device";
    assert_eq!(found, [expected]);
}

#[test]
fn queue_pairs_are_counted_for_a_rank_per_gpu() {
    let with = |limits_sel: &str| {
        let machine = Machine::recorded("dgx")
            .change(|inventory| inventory.rdma[0].driver = Some("irdma".into()));
        machine.diagnosed(|diagnostics| {
            diagnostics.module_parameters = vec![("irdma.limits_sel".into(), limits_sel.into())];
        })
    };
    let found = lines(queue_pairs, &vec![with("0"); 4]);
    let expected = "error dev.qp a mlx5_0: at most 128 queue pairs with limits_sel=0, 192 needed for a rank per GPU — \
                    creating queue pairs fails";
    assert_eq!((found.len(), found[0].as_str()), (4, expected));
    assert!(lines(queue_pairs, &vec![with("3"); 4]).is_empty());
    assert!(lines(queue_pairs, &vec![with("0"); 2]).is_empty());
    assert!(lines(queue_pairs, &vec![Machine::recorded("dgx"); 4]).is_empty(), "other drivers");
}

/// The proof asks the device.
#[test]
fn too_few_queue_pairs_are_told_by_the_proof() {
    let cause = "prepare: rocep1s0: 300 queue pairs are needed, the device has 124".to_owned();
    let hint = "load irdma with a larger limits_sel";
    let failure =
        ProofFailure { finding: id::DEV_QP, cause, hint: Some(hint.into()), is_of_host: true };
    let probe = |to| Probe {
        from: 0,
        to,
        kind: ProbeKind::Rdma,
        netdev: None,
        address: None,
        outcome: ProbeOutcome::Unproved(failure.clone()),
    };
    let machines = vec![Machine::recorded("dgx"); 3];
    let found = crate::findings::merge(probed(queue_pairs, &machines, &[probe(1), probe(2)]));
    let expected = "error dev.qp a: the test of RDMA failed: prepare: rocep1s0: 300 queue pairs are needed, the device has 124 — \
                    RDMA cannot be used there";
    assert_eq!(found.iter().map(line).collect::<Vec<_>>(), [expected]);
    assert_eq!(found[0].fix, [Step::Do(hint.into())]);
}

#[test]
fn what_queue_pairs_lack_is_said_where_gpus_are() {
    let found = lines(capabilities, &[Machine::recorded("ack-node")]);
    let expected = "note dev.caps a rocep26s0: eRDMA has no datagram queue pairs in its iWARP and compat modes — NIXL and UCX's \
                    ud transports do not start";
    assert_eq!(found, [expected]);
    let iwarp = Machine::recorded("siw").change(|inventory| {
        inventory.rdma[0].driver = Some("iw_cxgb4".into());
        inventory.gpus = crate::testing::inventory("dgx").gpus;
    });
    let expected = "note dev.caps a siw0: iWARP's queue pairs connect by the RDMA connection manager alone — NCCL's verbs \
                    transport does not work";
    assert_eq!(lines(capabilities, &[iwarp]), [expected]);
    for name in ["siw", "erdma-standard", "dgx", "connectx3"] {
        assert!(lines(capabilities, &[Machine::recorded(name)]).is_empty(), "{name}");
    }
}
