//! Test of all fixes: a fault for each id that rlaunch may fix, what would be done about it, and what would undo that.

use super::cluster::{JudgedProgram, Probe, ProbeKind, ProbeOutcome, ReachStage, Unreached};
use super::faults::dgx;
use super::testing::{Machine, probed, readdress, with_cluster};
use super::{Cluster, find};
use crate::findings::{Action, CheckId, Finding, Fix, id};
use crate::fixes::{PlannedFix, class, is_fixable, script};
use crate::testing::is_golden;
use crate::up::{Facts, UpHost, subnet_manager};
use rlaunch_bootstrap::inventory::Inventory;
use rlaunch_bootstrap::inventory::diagnostics::{
    Counter, DeviceFile, FilterProtocol, Firewall, FirewallRule, InterfaceState, OwnName,
    RdmaPortState, SharedMemoryDefect,
};
use rlaunch_bootstrap::inventory::rdma::{PortState, Uverbs};
use rlaunch_bootstrap::protocol::changes::Change;
use rlaunch_bootstrap::protocol::changes::journal::taken_out;
use std::fmt::Write as _;
use std::os::unix::fs::PermissionsExt;
use std::process::Command;

/// Finds a fault of these machines, after a change to what else is known of them.
fn found(
    id: CheckId,
    machines: &[Machine],
    change: impl for<'a> FnOnce(&mut Cluster<'a>),
) -> Vec<Finding> {
    with_cluster(machines, |mut cluster| {
        change(&mut cluster);
        (find(id.as_str()).unwrap().examine)(&cluster)
    })
}

fn recorded(name: &str) -> Machine {
    Machine::recorded(name)
}

fn of_machines(id: CheckId, machines: &[Machine]) -> Vec<Finding> {
    found(id, machines, |_| ())
}

fn interface(name: &str) -> InterfaceState {
    InterfaceState {
        name: name.into(),
        arp_ignore: Some(0),
        arp_announce: Some(0),
        ..InterfaceState::default()
    }
}

fn set_mtu(inventory: &mut Inventory, of_rdma: u32, of_netdev: u32) {
    let port = &mut inventory.rdma[0].ports[0];
    port.mtu = Some(of_rdma);
    let netdevs = inventory.netdevs.iter_mut().filter(|n| Some(&n.name) == port.netdev.as_ref());
    netdevs.for_each(|netdev| netdev.mtu = of_netdev);
}

/// Returns a machine that drops packets to these ports.
fn filtered(name: &str, read_by: &str, chain: &str, ports: (u16, u16)) -> Machine {
    recorded(name).diagnosed(|state| {
        let rule = FirewallRule {
            text: "drop".into(),
            chain: chain.into(),
            is_input: true,
            protocol: Some(if ports.0 == 4791 { FilterProtocol::Udp } else { FilterProtocol::Tcp }),
            ports: vec![ports],
            ..FirewallRule::default()
        };
        let rules = vec![rule];
        state.firewall = Some(Firewall { read_by: read_by.into(), rules, ..Firewall::default() });
    })
}

fn faults_of_logins() -> Vec<Vec<Finding>> {
    let unreached = Unreached {
        host: "b".into(),
        stage: ReachStage::Login,
        cause: "refused".into(),
        hints: vec!["see there".into()],
    };
    let own_name = OwnName { hostname: "h".into(), addresses: vec!["192.0.2.7".parse().unwrap()] };
    let named = recorded("no-rdma").diagnosed(|state| state.own_name = own_name);
    let slow = recorded("no-rdma");
    vec![
        found(id::SSH_PERMS, &[], |cluster| {
            let reason = "others may read it (mode 644)".to_owned();
            cluster.ssh_files = vec![("/home/u/.ssh/id_ed25519".into(), reason)];
        }),
        found(id::SSH_AUTH, &[], |cluster| cluster.unreached = vec![unreached]),
        found(id::NET_NAME, &[named, recorded("no-rdma")], |cluster| {
            cluster.hosts[0].address = Some("192.168.1.30".parse().unwrap());
            cluster.program = Some(Box::leak(Box::new(JudgedProgram::default())));
        }),
        found(id::CLOCK_OFFSET, &[slow.clone(), slow], |cluster| {
            cluster.hosts[0].clock_offset = Some((-9_000_000, 0));
            cluster.hosts[1].clock_offset = Some((0, 0));
        }),
    ]
}

fn faults_of_networks() -> Vec<Vec<Finding>> {
    let arp = recorded("no-rdma")
        .change(|inventory| {
            inventory.netdevs[2].addresses = vec![("192.168.1.31".parse().unwrap(), 24)];
            inventory.netdevs[2].running = true;
        })
        .diagnosed(|state| state.interfaces = ["eno1", "eno2"].map(interface).into());
    let reserved = recorded("erdma-compat").diagnosed(|state| {
        state.kernel.ephemeral_ports = Some((1024, 65535));
        state.kernel.reserved_ports = vec![(8080, 8080)];
    });
    let dropping = recorded("rxe").diagnosed(|state| {
        state.counters = vec![Counter { name: "softnet_dropped".into(), first: 1, last: 3 }];
        state.interval_ms = 500;
    });
    let open = || recorded("no-rdma");
    let managed = |change: fn(&mut Machine)| {
        let mut machine = filtered("no-rdma", "nft", "", (1024, 65535));
        change(&mut machine);
        of_machines(id::FW_PORTS, &[machine, open()])
    };
    vec![
        of_machines(id::NET_ARP, &[arp]),
        of_machines(id::NET_RESERVED, &[reserved]),
        of_machines(id::NET_UDP_DROPS, &[dropping]),
        managed(|m| m.diagnostics.firewall.as_mut().unwrap().rules[0].chain = "inet t c".into()),
        managed(|m| m.diagnostics.firewall.as_mut().unwrap().rules[0].chain = "LAST".into()),
        managed(|m| m.diagnostics.kernel.ufw_enabled = true),
        managed(|m| m.diagnostics.services = vec!["firewalld".into()]),
        of_machines(id::FW_ROCE, &[filtered("rxe", "iptables", "INPUT", (4791, 4791)), open()]),
    ]
}

fn faults_of_devices() -> Vec<Vec<Finding>> {
    let unloaded = recorded("dgx").diagnosed(|state| {
        state.modules = vec!["ib_core".into()];
        state.adapters = vec![rlaunch_bootstrap::inventory::diagnostics::PciAdapter {
            address: "0000:c3:00.0".into(),
            vendor: 0x15b3,
            device: 0x1003,
            class: 0x02_0700,
            ..Default::default()
        }];
    });
    let of_siw = |file| recorded("siw").diagnosed(move |state| state.connection_manager = file);
    let with_module = |machine: Machine, module: &str| {
        machine.diagnosed(|state| state.modules = vec![module.into()])
    };
    let debian = |machine: Machine| {
        machine.diagnosed(|state| {
            state.kernel.distribution_ids = vec!["debian".into()];
            state.clock = Some(1);
        })
    };
    let libraries = |names: &[&str]| {
        let names: Vec<(String, String)> =
            names.iter().map(|name| ((*name).to_owned(), "1.14".to_owned())).collect();
        debian(recorded("esxi-vm")).change(|inventory| {
            inventory.system.libraries = names;
            inventory.system.providers = vec!["rxe".into()];
            inventory.rdma[0].uverbs = Uverbs::Usable("/dev/infiniband/uverbs0".into());
        })
    };
    let down = recorded("esxi-vm")
        .change(|inventory| {
            inventory.rdma[0].ports[0].state = PortState::Down;
            inventory.netdevs.iter_mut().for_each(|netdev| netdev.running = false);
        })
        .diagnosed(|state| state.interfaces = vec![interface("ens224")]);
    let unmanaged = debian(recorded("connectx3"))
        .change(|inventory| inventory.rdma[0].ports[0].state = PortState::Init);
    let managed = unmanaged.clone().diagnosed(|state| state.services = vec!["opensm".into()]);
    vec![
        of_machines(id::DEV_MODULE, &[unloaded]),
        of_machines(id::DEV_UVERBS, &[recorded("rxe")]),
        of_machines(id::DEV_UVERBS, &[with_module(recorded("rxe"), "ib_uverbs")]),
        of_machines(id::DEV_RDMA_CM, &[of_siw(DeviceFile::Missing), of_siw(DeviceFile::Denied)]),
        of_machines(id::DEV_RDMA_CM, &[with_module(of_siw(DeviceFile::Missing), "rdma_ucm")]),
        of_machines(id::DEV_LIBRARY, &[libraries(&["librdmacm"])]),
        of_machines(id::DEV_PROVIDER, &[libraries(&["libibverbs"])]),
        of_machines(id::LINK_DOWN, &[down, recorded("esxi-vm")]),
        of_machines(id::IB_NO_SM, &[unmanaged.clone(), unmanaged.clone()]),
        of_machines(id::IB_NO_SM, &[unmanaged, managed]),
    ]
}

fn faults_of_fabrics() -> Vec<Vec<Finding>> {
    let roce = |mode: &str, ecn| {
        let interface = InterfaceState { roce_ecn: ecn, ..interface("ens224") };
        let cm_roce_mode = Some(mode.to_owned());
        let device = "mlx5_0".to_owned();
        recorded("esxi-vm").diagnosed(|state| {
            state.interfaces = vec![interface];
            state.rdma_ports =
                vec![RdmaPortState { device, port: 1, cm_roce_mode, counters: Vec::new() }];
        })
    };
    let sized = |of_rdma, of_netdev| {
        recorded("esxi-vm").change(|inventory| set_mtu(inventory, of_rdma, of_netdev))
    };
    let probe = Probe {
        from: 0,
        to: 1,
        kind: ProbeKind::PathMtu(4156),
        netdev: Some("ens224".into()),
        address: Some("192.168.111.11".parse().unwrap()),
        outcome: ProbeOutcome::OnlyShort,
    };
    let of_path = |machines: &[Machine]| {
        let examine = find(id::MTU_PATH.as_str()).unwrap().examine;
        probed(examine, machines, std::slice::from_ref(&probe))
    };
    let double = recorded("dual-port").change(|inventory| {
        readdress(inventory, "192.168.20.21", "192.168.10.22");
    });
    let double = double
        .diagnosed(|state| state.interfaces = ["ens3f0np0", "ens3f1np1"].map(interface).into());
    vec![
        of_machines(id::ROCE_CM_MODE, &[roce("IB/RoCE v1", None)]),
        of_machines(id::ROCE_ECN, &vec![roce("RoCE v2", Some((vec![3], vec![]))); 3][..]),
        of_machines(id::MTU_RDMA, &[sized(1024, 1500)]),
        of_machines(id::MTU_MISMATCH, &[sized(1024, 1500), sized(4096, 9000)]),
        of_path(&[sized(4096, 9000), sized(4096, 9000)]),
        of_path(&[sized(4096, 1500), sized(4096, 9000)]),
        of_machines(id::MESH_DUPLICATE, &[double]),
    ]
}

fn faults_of_hosts() -> Vec<Vec<Finding>> {
    let compat = || recorded("erdma-compat");
    let with_gpus = compat().change(|inventory| {
        inventory.gpus = crate::testing::inventory("ack-node").gpus;
        set_mtu(inventory, 1024, 1500);
    });
    let shared = |defect| {
        let machine = recorded("no-rdma");
        let machine = machine.diagnosed(|state| state.shared_memory_defect = Some(defect));
        of_machines(id::LIM_SHM, &[machine])
    };
    let of_user = recorded("siw").uid(1000);
    vec![
        of_machines(id::ERDMA_STANDARD, &[recorded("erdma-standard")]),
        of_machines(id::ERDMA_MIXED, &[recorded("erdma-standard"), compat()]),
        of_machines(id::ERDMA_MTU, &[with_gpus]),
        of_machines(
            id::GPU_DRIVER,
            &[dgx().change(|i| i.gpus.iter_mut().for_each(|gpu| gpu.pci.driver = None)), dgx()],
        ),
        of_machines(
            id::GPU_PEERMEM,
            &[dgx().change(|inventory| {
                inventory.system.peer_memory = false;
                inventory.system.kernel = Some("5.4.0".into());
                inventory.system.drivers = vec![("nvidia".into(), "535.183.01".into())];
            })],
        ),
        of_machines(
            id::LIM_MEMLOCK,
            &[of_user.change(|inventory| inventory.limits.locked_memory = Some(8 << 20))],
        ),
        of_machines(
            id::LIM_SHM,
            &[recorded("no-rdma").change(|i| i.limits.shared_memory = Some(1 << 20))],
        ),
        shared(SharedMemoryDefect::Missing),
        shared(SharedMemoryDefect::ReadOnly),
        shared(SharedMemoryDefect::Denied),
        shared(SharedMemoryDefect::NoInodes),
        of_machines(
            id::LIM_MAPS,
            &[dgx().diagnosed(|state| state.kernel.max_map_count = Some(1000))],
        ),
        of_machines(
            id::LIM_FILES,
            &[recorded("no-rdma").change(|i| i.limits.open_files = Some(512))],
        ),
    ]
}

fn all_faults() -> Vec<Finding> {
    let of_hosts = [faults_of_logins(), faults_of_networks(), faults_of_devices()];
    let all = of_hosts.into_iter().chain([faults_of_fabrics(), faults_of_hosts()]).flatten();
    all.map(|found| found.into_iter().next().unwrap_or_else(|| panic!("no fault"))).collect()
}

/// Writes what is done about a fault, with what is kept before and what undoes it.
fn picture(finding: &Finding) -> String {
    let mut text = format!("{}  {}\n", finding.id, finding.sentence());
    for fix in &finding.fixes {
        let until = if fix.is_kept() { "" } else { "  (until the next boot)" };
        let what = match &fix.action {
            Action::Change(_) => "on each host".to_owned(),
            Action::ChangeOn(host, _) => format!("on {host}"),
            Action::RunHere => "here".to_owned(),
            Action::InstallKey => "ssh-setup".to_owned(),
        };
        let _ = writeln!(text, "  {what}{until}");
        fix.lines.iter().for_each(|line| text += &format!("    $ {line}\n"));
        for change in fix.changes() {
            text += &change
                .to_string()
                .lines()
                .fold(String::new(), |text, line| text + "    # " + line + "\n");
            if let Change::Run { save, undo, .. } | Change::RunUntilBoot { save, undo, .. } = change
            {
                let lines = [("was ", save), ("undo", undo)];
                for (word, line) in lines.into_iter().filter_map(|(w, l)| Some((w, l.as_ref()?))) {
                    let _ = writeln!(text, "      {word}  {line}");
                }
            }
        }
        fix.waits_for.iter().for_each(|what| text += &format!("    waits for {what}\n"));
    }
    text + "\n"
}

#[test]
fn each_fault_that_rlaunch_may_fix_has_a_fix() {
    let all = all_faults();
    for id in id::ALL.iter().filter(|id| is_fixable(**id)) {
        assert!(all.iter().any(|finding| finding.id == *id), "{id}");
    }
    for finding in &all {
        assert!(is_fixable(finding.id) && !finding.fixes.is_empty(), "{finding:?}");
    }
    is_golden("fixes", &all.iter().map(picture).collect::<String>());
}

/// A shell that reads a script stops at its first mistake.
#[test]
fn all_lines_are_right_for_a_shell() {
    let is_right = |line: &str| {
        let output = Command::new("sh").args(["-n", "-c", line]).output().unwrap();
        assert!(output.status.success(), "{line}: {}", String::from_utf8_lossy(&output.stderr));
    };
    for finding in all_faults() {
        for fix in &finding.fixes {
            fix.lines.iter().for_each(|line| is_right(line));
            for change in fix.changes() {
                is_right(&change.to_string());
                if let Change::Run { save, undo, .. } | Change::RunUntilBoot { save, undo, .. } =
                    change
                {
                    save.iter().chain(undo).for_each(|line| is_right(line));
                }
            }
        }
        let planned = PlannedFix { class: class(finding.id), finding };
        is_right(&script(&[planned]));
    }
}

/// Leads the name `h` to an address in a text of `/etc/hosts`, by the line that a host runs.
fn with_own_name(before: &str, address: &str) -> String {
    let fix = Fix::own_name("h", address.parse().unwrap());
    let [Change::Edit { path, line }] = fix.changes() else { panic!("{fix:?}") };
    assert_eq!(path, "/etc/hosts");
    let directory = tempfile::tempdir().unwrap();
    let file = directory.path().join("hosts");
    std::fs::write(&file, before).unwrap();
    let hosts = std::fs::File::open(&file).unwrap();
    let output = Command::new("sh").args(["-c", line]).stdin(hosts).output().unwrap();
    assert!(output.status.success(), "{output:?}");
    String::from_utf8(output.stdout).unwrap()
}

#[test]
fn an_own_name_leaves_its_other_lines() {
    let before = "127.0.0.1 localhost h\n127.0.1.1\th.lab h  # of the installer\n192.0.2.7 h\n# 192.0.2.9 h\n::1 ip6 h2\n";
    let after = with_own_name(before, "10.0.0.5");
    let expected = "10.0.0.5 h\n127.0.0.1 localhost\n127.0.1.1 h.lab # of the installer\n# 192.0.2.9 h\n::1 ip6 h2\n";
    assert_eq!(after, expected);
    assert_eq!(with_own_name(&after, "10.0.0.5"), after);
    assert_eq!(
        with_own_name("127.0.0.1 localhost\n", "10.0.0.5"),
        "127.0.0.1 localhost\n10.0.0.5 h\n"
    );
}

/// What others add meanwhile stays when it is undone, and so does the full name when it is done.
#[test]
fn an_own_name_keeps_the_full_one_and_others_lines() {
    let before = "127.0.0.1 localhost\n127.0.1.1 h.lab h # of the installer\n::1 ip6\n";
    let after = with_own_name(before, "10.0.0.5");
    assert_eq!(after, "127.0.0.1 localhost\n10.0.0.5 h.lab h\n::1 ip6\n");
    let since = format!("{after}10.0.0.9 other\n");
    assert_eq!(taken_out(before, &after, &since), Some(format!("{before}10.0.0.9 other\n")));
}

/// Runs what is done about a missing subnet manager, and what undoes it, by programs that note how they are called. Returns
/// the notes of both, and what the undoing says if it fails. `present` are the files that are there before: `opensm`, `active`
/// and `enabled`; `needed`, if another package needs opensm.
fn with_manager(present: &[&str]) -> (String, String, String) {
    let directory = tempfile::tempdir().unwrap();
    let at = |name: &str| directory.path().join(name);
    let program = |name: &str, text: &str| {
        std::fs::write(at(name), format!("#!/bin/sh\ncd {}\n{text}\n", at("").display())).unwrap();
        std::fs::set_permissions(at(name), PermissionsExt::from_mode(0o755)).unwrap();
    };
    program("apt-get", "echo apt-get $1 >> notes; cp apt-get opensm");
    let dpkg =
        "case $1 in -s) ;; *) echo dpkg $1 >> notes; [ ! -e needed ] || exit 1; rm opensm ;; esac";
    program("dpkg", dpkg);
    let systemctl = "case \"$*\" in *opensmd*) exit 5 ;; *is-active*) [ -e active ]; exit ;; *is-enabled*) [ -e enabled ]; exit ;; esac
        echo $* >> notes
        case $1 in enable) touch enabled active ;; disable) rm enabled ;; stop) [ -e stuck ] || rm active ;; esac";
    program("systemctl", systemctl);
    present.iter().for_each(|name| program(name, ""));
    let path = format!("{}:/usr/bin:/bin", directory.path().display());
    let run = |line: &str, saved: &str| {
        let mut command = Command::new("sh");
        command.args(["-c", line]).env("PATH", &path).env("SAVED", saved);
        let output = command.output().unwrap();
        let says = String::from_utf8(output.stderr.clone()).unwrap();
        assert_eq!(output.status.success(), says.is_empty(), "{line}: {output:?}");
        let notes = std::fs::read_to_string(at("notes")).unwrap_or_default();
        let _ = std::fs::remove_file(at("notes"));
        (String::from_utf8(output.stdout).unwrap(), notes, says)
    };
    let fix = Fix::subnet_manager(None);
    let [Change::Run { line, save: Some(save), undo: Some(undo) }] = fix.changes() else {
        panic!("{fix:?}")
    };
    let (saved, ..) = run(save, "");
    let (_, made, says) = run(line, "");
    assert_eq!(says, "", "{line}");
    let (_, undone, says) = run(undo, saved.trim_end());
    for name in ["opensm", "active", "enabled"].iter().filter(|_| says.is_empty()) {
        assert_eq!(at(name).exists(), present.contains(name), "{name}: {made}{undone}");
    }
    (made, undone, says)
}

#[test]
fn a_subnet_manager_is_installed_and_leaves_what_was_there() {
    let (made, undone, _) = with_manager(&[]);
    assert_eq!(made, "apt-get install\nenable --now opensm\n");
    assert_eq!(undone, "stop opensm\ndisable opensm\ndpkg -r\n");
    let (made, undone, _) = with_manager(&["opensm"]);
    assert_eq!((&*made, &*undone), ("enable --now opensm\n", "stop opensm\ndisable opensm\n"));
    let (_, undone, _) = with_manager(&["opensm", "enabled"]);
    assert_eq!(undone, "stop opensm\n");
    let (_, undone, _) = with_manager(&["opensm", "enabled", "active"]);
    assert_eq!(undone, "", "it ran before");
}

#[test]
fn what_is_left_of_a_subnet_manager_is_said() {
    let (_, undone, says) = with_manager(&["needed"]);
    assert_eq!(
        (&*undone, &*says),
        ("stop opensm\ndisable opensm\ndpkg -r\n", "opensm stays installed\n")
    );
    let (_, undone, says) = with_manager(&["opensm", "stuck"]);
    assert_eq!((&*undone, &*says), ("stop opensm\n", "opensm still runs\n"));
}

/// Both ways to a subnet manager are one.
#[test]
fn up_starts_the_subnet_manager_that_doctor_starts() {
    let unmanaged = recorded("connectx3")
        .change(|inventory| inventory.rdma[0].ports[0].state = PortState::Init);
    let found = of_machines(id::IB_NO_SM, &[unmanaged]).remove(0);
    let planned = PlannedFix { class: class(found.id), finding: found };
    let waiting = UpHost {
        name: "a".into(),
        facts: Facts { waits_for_manager: true, ..Facts::default() },
        ..UpHost::default()
    };
    let step = subnet_manager(&[waiting]);
    assert_eq!(step.changes().unwrap(), [planned.changes().remove(0).1]);
}
