//! Inventories of recorded machines, and of this one.

mod machines;
pub(crate) mod tree;

use super::*;
use rlaunch_bootstrap::inventory::net::NetdevKind;
use rlaunch_bootstrap::inventory::pci::PciDevice;
use rlaunch_bootstrap::inventory::recording::{RecordedEntry, Recording, relative};
use std::fs;
use std::os::unix::fs::symlink;
use tempfile::TempDir;
use tree::{fixture, lay_out};

/// Compares the inventories of recorded machines with those that the launcher's tests use.
/// `RLAUNCH_BLESS=1` writes the latter again.
#[test]
fn what_is_read_is_what_is_published() {
    for name in tree::all() {
        let path = tree::directory().join(&name).with_extension("json");
        let inventory = fixture(&name);
        if std::env::var_os("RLAUNCH_BLESS").is_some() {
            let text = serde_json::to_string_pretty(&inventory).unwrap();
            fs::write(&path, text + "\n").unwrap();
        }
        let published: Inventory = serde_json::from_slice(&fs::read(&path).unwrap()).unwrap();
        assert_eq!(inventory, published, "{name}");
    }
}

#[test]
fn as_many_gpus_are_counted_as_are_read() {
    let counts = tree::all().into_iter().map(|name| {
        let recorded = tree::recorded(&name);
        let root = Root::recorded(recorded.path());
        let count = count_gpus(&root);
        assert_eq!(count, read_for_job(&root, false).gpus.len(), "{name}");
        count
    });
    assert_eq!(counts.max(), Some(8));
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

fn forget_capabilities(pci: &mut PciDevice) {
    pci.ats = None;
    pci.links.iter_mut().for_each(|link| link.acs = None);
}

/// The inventory for placing ranks must be a part of the full one.
#[test]
fn a_job_is_told_the_part_that_matters() {
    for name in tree::all() {
        let root = tree::recorded(&name);
        let root = Root::recorded(root.path());
        let (mut all, part) = (read(&root), read_for_job(&root, false));
        if all.rdma.is_empty() {
            continue;
        }
        // Slow parts, which are not read for placing ranks.
        all.cpus.cores.clear();
        all.rdma.iter_mut().filter_map(|device| device.pci.as_mut()).for_each(forget_capabilities);
        assert_eq!((&part.cpus, &part.rdma), (&all.cpus, &all.rdma));
        assert_eq!(part.netdevs, all.netdevs);
        let cpus = |inventory: &Inventory| -> Vec<String> {
            inventory.numa_nodes.iter().map(|node| node.cpus.to_string()).collect()
        };
        assert_eq!(cpus(&part), cpus(&all));
    }
    let text = "[/]\naddresses = lo 127.0.0.1/8\\neth0 10.0.0.2/24\\neth0 fd00::2/64\\neth1 10.1.0.2/24\\n\n\
                [/sys/class/net/eth0]\noperstate = up\n[/sys/class/net/eth1]\noperstate = down\n";
    let root = lay_out(text);
    let part = read_for_job(&Root::recorded(root.path()), false);
    let read = part.netdevs.iter();
    let read: Vec<_> =
        read.map(|n| (n.name.as_str(), n.kind, n.addresses.len(), n.running)).collect();
    let (loopback, other) = (NetdevKind::Loopback, NetdevKind::Virtual);
    let expected =
        [("lo", loopback, 1, false), ("eth0", other, 2, true), ("eth1", other, 1, false)];
    assert_eq!(read, expected);
}

/// Describes a machine with two sockets, each with two switches, each with two GPUs and two NICs.
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
fn a_large_server_is_read_in_few_looks() {
    let root = lay_out(&large_server());
    let root = Root::recorded(root.path()).with_recorder();
    let inventory = read(&root);
    // One read per GID entry and some more; a scan out of control would take many more.
    assert!(root.reads() < 4000, "{}", root.reads());
    assert_eq!((inventory.gpus.len(), inventory.rdma.len()), (8, 8));
    for (gpu, nic) in inventory.gpus.iter().zip(&inventory.rdma) {
        let nic = nic.pci.as_ref().unwrap();
        let nearest =
            inventory.rdma.iter().map(|n| gpu.pci.distance(n.pci.as_ref().unwrap())).min();
        assert_eq!(nearest, Some(gpu.pci.distance(nic)));
        assert_eq!(gpu.pci.numa_node, nic.numa_node);
    }
}

#[test]
fn a_list_of_capabilities_may_be_broken() {
    let device = "/sys/devices/pci0000:00/0000:00:01.0/0000:01:00.0";
    let ats = |config: &str| {
        let text = format!(
            "[{device}]\nvendor = 0x10de\nclass = 0x030200\nconfig = hex@{config}\n\
             [/sys/bus/pci/devices]\n0000:01:00.0 -> {device}\n"
        );
        let root = lay_out(&text);
        read(&Root::recorded(root.path())).gpus[0].pci.ats
    };
    assert_eq!(ats("100:0f00010000000080"), Some(true));
    assert_eq!(ats("100:0f00010000000000"), Some(false));
    // Lists that point to themselves, to the standard capabilities, beyond the end, and to a device
    // that is gone.
    assert_eq!(ats("100:0100011000000000"), None);
    assert_eq!(ats("100:0100010400000000"), None);
    assert_eq!(ats("100:0100012000000000"), None);
    assert_eq!(ats("100:ffffffffffffffff"), None);
    assert_eq!((ats("3c:00000000"), ats("fc:00000000")), (None, None));
}

/// Writes a recording to a directory, as `rlaunch capture` does.
pub(crate) fn lay_out_recording(recording: &Recording) -> TempDir {
    let root = tree::directory_in_memory();
    for (path, entry) in recording.entries() {
        let place = root.path().join(path.trim_start_matches('/'));
        fs::create_dir_all(place.parent().unwrap()).unwrap();
        match entry {
            RecordedEntry::Directory => fs::create_dir_all(place).unwrap(),
            RecordedEntry::File(bytes) => fs::write(place, bytes).unwrap(),
            RecordedEntry::Link(target) => symlink(relative(path, target), place).unwrap(),
        }
    }
    root
}

#[test]
fn a_recording_of_this_machine_says_the_same() {
    let root = Root::recording_live();
    let live = read(&root);
    let recorded = lay_out_recording(&root.recording());
    let recorded = read(&Root::recorded(recorded.path()));
    assert_eq!(recorded, live);
}

#[test]
fn a_recording_of_a_recorded_machine_says_the_same() {
    for name in tree::all() {
        let root = tree::recorded(&name);
        let root = Root::recorded(root.path()).with_recorder();
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
