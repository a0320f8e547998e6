//! Inventories of recorded machines, `worker/fixtures/*.tree`.
//!
//! `[/directory]` begins a part; in it `name = text` is a file, with `\n` and `\t`, and
//! `name -> /path` a link.

use super::*;
use rlaunch_bootstrap::inventory::net::NetdevKind;
use rlaunch_bootstrap::inventory::pci::gigabits;
use rlaunch_bootstrap::inventory::rdma::{GidKind, LinkLayer, NodeType, PortState, Uverbs};
use rlaunch_bootstrap::inventory::recording::{Entry, Recording, relative};
use rlaunch_bootstrap::inventory::{Gpu, GpuVendor};
use std::fs;
use std::os::unix::fs::symlink;
use std::path::Path;
use std::time::{Duration, Instant};
use tempfile::TempDir;

fn lay_out(text: &str) -> TempDir {
    let root = tempfile::tempdir().unwrap();
    let mut directory = root.path().to_owned();
    for line in text.lines().filter(|line| !line.is_empty() && !line.starts_with('#')) {
        if let Some(path) = line.strip_prefix('[').and_then(|line| line.strip_suffix(']')) {
            directory = root.path().join(path.trim_start_matches('/'));
            fs::create_dir_all(&directory).unwrap();
        } else if let Some((name, target)) = line.split_once(" -> ") {
            let target = root.path().join(target.trim_start_matches('/'));
            symlink(target, directory.join(name)).unwrap();
        } else {
            let (name, text) = line.split_once(" =").unwrap();
            let path = directory.join(name);
            fs::create_dir_all(path.parent().unwrap()).unwrap();
            let text = text.trim_start().replace("\\n", "\n").replace("\\t", "\t");
            fs::write(path, text).unwrap();
        }
    }
    root
}

fn fixture(name: &str) -> Inventory {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("fixtures").join(name);
    let root = lay_out(&fs::read_to_string(path).unwrap());
    read(&Root::recorded(root.path()))
}

#[test]
fn a_connectx3_behind_four_lanes() {
    let inventory = fixture("connectx3.tree");
    let [card] = &inventory.rdma[..] else { panic!("{:?}", inventory.rdma) };
    assert_eq!((card.name.as_str(), card.node_type), ("mlx4_0", NodeType::ChannelAdapter));
    assert_eq!(card.driver.as_deref(), Some("mlx4_core"));
    assert_eq!(card.firmware.as_deref(), Some("2.42.5000"));
    assert_eq!(card.uverbs, Uverbs::Usable("/dev/infiniband/uverbs0".into()));
    let pci = card.pci.as_ref().unwrap();
    assert_eq!((pci.address.as_str(), pci.numa_node), ("0000:c3:00.0", None));
    let limit = pci.bottleneck().unwrap();
    assert_eq!(limit.address, "0000:00:02.5");
    assert_eq!(gigabits(limit.rate.megabits()), "31.504");
    assert_eq!(gigabits(pci.most().unwrap().megabits()), "63.008");

    let [one, two] = &card.ports[..] else { panic!("{:?}", card.ports) };
    assert_eq!((one.state, one.link_layer), (PortState::Active, LinkLayer::InfiniBand));
    assert_eq!((one.lid, one.sm_lid), (Some(1), Some(1)));
    assert_eq!(one.rate.as_deref(), Some("56 Gb/sec (4X FDR)"));
    assert_eq!((one.gids.len(), one.gid_table_length), (1, 2));
    assert_eq!((two.state, two.physical_state.as_deref()), (PortState::Down, Some("Polling")));
    // Two interfaces of one PCI function: their own numbers tell which is whose.
    let netdevs = [one, two].map(|port| port.netdev.as_deref());
    assert_eq!(netdevs, [Some("ibp195s0"), Some("ibp195s0d1")]);
    // An IPoIB interface's MTU says nothing of the port's.
    assert_eq!([one.mtu, two.mtu], [None, None]);
}

#[test]
fn the_rest_of_that_machine() {
    let inventory = fixture("connectx3.tree");
    let kinds: Vec<_> = inventory.netdevs.iter().map(|n| (n.name.as_str(), n.kind)).collect();
    use NetdevKind::{Ipoib, Loopback, Physical, Thunderbolt};
    let wanted = [
        ("lo", Loopback),
        ("eno1", Physical),
        ("ibp195s0", Ipoib),
        ("ibp195s0d1", Ipoib),
        ("thunderbolt0", Thunderbolt),
    ];
    assert_eq!(kinds, wanted);
    let eno1 = &inventory.netdevs[1];
    assert_eq!((eno1.speed, eno1.running), (Some(2500), true));
    assert_eq!(eno1.addresses, [("192.168.1.11".parse().unwrap(), 24)]);
    assert!(!inventory.netdevs[3].running);
    let [Gpu { vendor: GpuVendor::Amd, pci, .. }] = &inventory.gpus[..] else {
        panic!("{:?}", inventory.gpus)
    };
    assert_eq!(pci.address, "0000:c4:00.0");
    assert_eq!((inventory.cpus.usable(), inventory.cpus.quota), (32, None));
    assert_eq!(inventory.numa_nodes[0].memory, Some(131_072_000 * 1024));
    assert_eq!(inventory.limits.locked_memory, Some(8_388_608));
    assert_eq!(inventory.limits.open_files, Some(1024));
    let system = &inventory.system;
    assert_eq!(system.kernel.as_deref(), Some("6.17.7-300.fc43.x86_64"));
    assert_eq!(system.distribution.as_deref(), Some("Fedora Linux 43 (Workstation Edition)"));
    assert!(!system.peer_memory);
}

#[test]
fn soft_roce_hangs_at_its_parent() {
    let inventory = fixture("rxe.tree");
    let rxe = &inventory.rdma[0];
    assert_eq!((rxe.driver.as_deref(), rxe.pci.as_ref()), (Some("rxe"), None));
    // The file is there in sysfs, and not in this container's /dev.
    assert_eq!(rxe.uverbs, Uverbs::Missing);
    let port = &rxe.ports[0];
    assert_eq!((port.netdev.as_deref(), port.mtu), (Some("ens2"), Some(1024)));
    let gids: Vec<_> = port.gids.iter().map(|gid| (gid.index, gid.kind)).collect();
    assert_eq!(gids, [(0, GidKind::RoceV2), (1, GidKind::RoceV2)]);
    assert_eq!(port.gids[1].ip(), "10.0.0.2".parse::<std::net::IpAddr>().unwrap());
    assert_eq!(inventory.netdevs[0].pci.as_deref(), Some("0000:00:02.0"));
    assert_eq!(inventory.netdevs[0].speed, None);
    // One processor is allowed, of two; the group grants one and a half.
    assert_eq!((inventory.cpus.usable(), inventory.cpus.quota), (1, Some(1500)));
}

#[test]
fn soft_iwarp_is_found_by_its_mac_address() {
    let siw = &fixture("siw.tree").rdma[0];
    assert_eq!((siw.node_type, siw.driver.as_deref()), (NodeType::Rnic, Some("siw")));
    let port = &siw.ports[0];
    assert_eq!((port.netdev.as_deref(), port.gid_table_length), (Some("ens2"), 1));
    assert!(port.gids[0].is_mac() && port.gids[0].kind == GidKind::Unknown);
}

/// What the launcher's tests start from. `RLAUNCH_BLESS=1` writes it anew.
#[test]
fn what_is_read_is_what_is_published() {
    for name in ["connectx3", "erdma-compat", "erdma-standard", "rxe", "siw", "spark"] {
        let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("fixtures").join(name);
        let path = path.with_extension("json");
        let inventory = fixture(&format!("{name}.tree"));
        if std::env::var_os("RLAUNCH_BLESS").is_some() {
            let text = serde_json::to_string_pretty(&inventory).unwrap();
            fs::write(&path, text + "\n").unwrap();
        }
        let published: Inventory = serde_json::from_slice(&fs::read(&path).unwrap()).unwrap();
        assert_eq!(inventory, published, "{name}");
    }
}

#[test]
fn an_empty_tree_is_an_empty_inventory() {
    let root = lay_out("");
    assert_eq!(read(&Root::recorded(root.path())), Inventory::default());
}

#[test]
fn control_groups_of_either_version_bind() {
    let v1 = "[/proc/self]\ncgroup = 4:cpu,cpuacct:/a/b\\n3:memory:/\\n\n\
        [/sys/fs/cgroup/cpu/a]\ncpu.cfs_quota_us = 250000\ncpu.cfs_period_us = 100000\n\
        [/sys/fs/cgroup/cpu/a/b]\ncpu.cfs_quota_us = -1\ncpu.cfs_period_us = 100000\n\
        [/sys/fs/cgroup/memory]\nmemory.limit_in_bytes = 9223372036854771712\n";
    let root = lay_out(v1);
    let inventory = read(&Root::recorded(root.path()));
    assert_eq!((inventory.cpus.quota, inventory.limits.memory), (Some(2500), None));
    let v2 = "[/proc/self]\ncgroup = 0::/a/b\\n\n\
        [/sys/fs/cgroup/a]\ncpu.max = 400000 100000\nmemory.max = 1000\n\
        [/sys/fs/cgroup/a/b]\ncpu.max = max 100000\nmemory.max = 5000\n";
    let root = lay_out(v2);
    let inventory = read(&Root::recorded(root.path()));
    assert_eq!((inventory.cpus.quota, inventory.limits.memory), (Some(4000), Some(1000)));
}

/// What a job is planned by is part of what there is.
#[test]
fn a_job_is_told_the_part_that_matters() {
    for name in ["connectx3.tree", "rxe.tree", "siw.tree"] {
        let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("fixtures").join(name);
        let root = lay_out(&fs::read_to_string(path).unwrap());
        let root = Root::recorded(root.path());
        let (all, part) = (read(&root), read_for_job(&root));
        assert_eq!((&part.cpus, &part.rdma), (&all.cpus, &all.rdma));
        assert_eq!(part.netdevs, all.netdevs);
        let cpus = |inventory: &Inventory| -> Vec<String> {
            inventory.numa_nodes.iter().map(|node| node.cpus.to_string()).collect()
        };
        assert_eq!(cpus(&part), cpus(&all));
    }
    let root = lay_out("[/]\naddresses = lo 127.0.0.1/8\\neth0 10.0.0.2/24\\neth0 fd00::2/64\\n");
    let part = read_for_job(&Root::recorded(root.path()));
    let names: Vec<_> = part.netdevs.iter().map(|n| (n.name.as_str(), n.addresses.len())).collect();
    assert_eq!(names, [("lo", 1), ("eth0", 2)]);
}

/// Two sockets, below each two switches with two GPUs and two NICs.
fn large_server() -> String {
    let mut text = String::new();
    let mut links = String::from("[/sys/class/infiniband]\n");
    let mut devices = String::from("[/sys/bus/pci/devices]\n");
    for number in 0..8 {
        let socket = number / 4;
        let bus = 0x10 + 0x40 * socket;
        let switch = number / 2 % 2;
        let up = format!(
            "/sys/devices/pci0000:{bus:02x}/0000:{bus:02x}:0{switch}.0/0000:{:02x}:00.0",
            bus + 1 + 8 * switch
        );
        for (slot, vendor, class) in [(0, "0x10de", "0x030200"), (8, "0x15b3", "0x020700")] {
            let slot = slot + number % 2;
            let address = format!("0000:{:02x}:00.0", bus + 2 + 8 * switch + slot % 4);
            let address =
                if vendor == "0x15b3" { address.replace(":00.0", ":00.1") } else { address };
            let path = format!("{up}/0000:{:02x}:{slot:02x}.0/{address}", bus + 2 + 8 * switch);
            text +=
                &format!("[{path}]\nvendor = {vendor}\nclass = {class}\nnuma_node = {socket}\n");
            devices += &format!("{address} -> {path}\n");
            if vendor == "0x15b3" {
                let device = format!("{path}/infiniband/mlx5_{number}");
                text += &format!("[{device}]\nnode_type = 1: CA\ndevice -> {path}\n");
                links += &format!("mlx5_{number} -> {device}\n");
                for slot in 0..256 {
                    let value = if slot == 0 { "fe80::1" } else { "::" };
                    text += &format!("ports/1/gids/{slot} = {value}\n");
                }
            }
        }
    }
    text + &links + &devices
}

#[test]
fn a_large_server_is_read_in_a_moment() {
    let root = lay_out(&large_server());
    let root = Root::recorded(root.path());
    let start = Instant::now();
    let inventory = read(&root);
    // Far above what it takes, so that a busy machine does not matter; far below a scan gone wild.
    assert!(start.elapsed() < Duration::from_secs(2), "{:?}", start.elapsed());
    assert_eq!((inventory.gpus.len(), inventory.rdma.len()), (8, 8));
    for (gpu, nic) in inventory.gpus.iter().zip(&inventory.rdma) {
        let nic = nic.pci.as_ref().unwrap();
        let nearest =
            inventory.rdma.iter().map(|n| gpu.pci.distance(n.pci.as_ref().unwrap())).min();
        assert_eq!(nearest, Some(gpu.pci.distance(nic)));
        assert_eq!(gpu.pci.numa_node, nic.numa_node);
    }
}

/// Lays a recording out as `rlaunch capture` does.
fn lay_out_recording(recording: &Recording) -> TempDir {
    let root = tempfile::tempdir().unwrap();
    for (path, entry) in recording.entries() {
        let place = root.path().join(path.trim_start_matches('/'));
        fs::create_dir_all(place.parent().unwrap()).unwrap();
        match entry {
            Entry::Directory => fs::create_dir_all(place).unwrap(),
            Entry::File(bytes) => fs::write(place, bytes).unwrap(),
            Entry::Link(target) => symlink(relative(path, target), place).unwrap(),
        }
    }
    root
}

#[test]
fn a_recording_of_this_machine_says_the_same() {
    let root = Root::watched();
    let mut live = read(&root);
    let recorded = lay_out_recording(&root.recording());
    let recorded = read(&Root::recorded(recorded.path()));
    // Only the machine itself knows how large its /dev/shm is.
    live.limits.shared_memory = None;
    assert_eq!(recorded, live);
}

#[test]
fn a_recording_of_a_recorded_machine_says_the_same() {
    for name in ["connectx3.tree", "erdma-compat.tree", "rxe.tree", "siw.tree", "spark.tree"] {
        let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("fixtures").join(name);
        let root = lay_out(&fs::read_to_string(path).unwrap());
        let root = Root::recorded(root.path()).watching();
        let first = read(&root);
        let second = lay_out_recording(&root.recording());
        assert_eq!(read(&Root::recorded(second.path())), first, "{name}");
    }
}

#[test]
fn this_machine_has_a_processor() {
    let inventory = read(&Root::live());
    assert!(inventory.cpus.usable() >= 1 && !inventory.cpus.allowed.is_empty());
    assert!(inventory.netdevs.iter().any(|netdev| netdev.kind == NetdevKind::Loopback));
}
