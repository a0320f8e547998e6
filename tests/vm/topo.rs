//! `rlaunch topo`, compared with the output of the guests' own tools, field by field.

use crate::support::{Field, Undo, list, text};
use crate::tools;
use serde_json::Value;
use std::collections::BTreeSet;

/// Asserts that a port in the inventory has the state, link layer, MTU and addresses that
/// `ibv_devinfo` printed. `place` names the port in messages.
fn compare_port(place: &str, port: &Value, described: &tools::Described) {
    let state = format!("PORT_{}", text(&port["state"]).to_uppercase());
    assert_eq!(state, described.field("state"), "{place}");
    let layer = text(&port["link_layer"]);
    assert!(layer.eq_ignore_ascii_case(described.field("link_layer")), "{place}: {layer}");
    for (ours, theirs) in [
        ("number", "port"),
        ("mtu", "active_mtu"),
        ("lid", "port_lid"),
        ("sm_lid", "sm_lid"),
        ("gid_table_length", "gid_tbl_len"),
    ] {
        assert_eq!(port[ours].to_string(), described.field(theirs), "{place}: {ours}");
    }
}

fn compare_rdma(field: &Field, guest: &str, inventory: &Value) {
    let devices = tools::devices(field, guest);
    let rdma = list(&inventory["rdma"]);
    let names: BTreeSet<String> = rdma.iter().map(|device| text(&device["name"])).collect();
    assert_eq!(names, devices.keys().cloned().collect(), "{guest}");
    for device in rdma {
        let name = text(&device["name"]);
        let (described, place) = (&devices[&name], format!("{guest}: {name}"));
        assert_eq!(device["node_guid"], described.field("node_guid"), "{place}");
        // Devices made of software have no firmware, and libibverbs prints zeros.
        let firmware = device["firmware"].as_str().unwrap_or("0.0.0");
        assert_eq!(firmware, described.field("fw_ver"), "{place}");
        let transport = match text(&device["node_type"]).as_str() {
            "channel_adapter" => "InfiniBand",
            "rnic" => "iWARP",
            other => panic!("{place}: {other}"),
        };
        assert_eq!(transport, described.field("transport"), "{place}");
        let ports = list(&device["ports"]);
        assert_eq!(ports.len().to_string(), described.field("phys_port_cnt"), "{place}");
        compare_port(&place, &ports[0], described);
        // iWARP does not use GIDs, and `ibv_devinfo` prints none for its devices.
        if transport == "InfiniBand" {
            let gid = |gid: &Value| {
                let kind = match text(&gid["kind"]).as_str() {
                    "roce_v2" => "RoCE v2",
                    other => panic!("{place}: {other}"),
                };
                (gid["index"].as_u64().unwrap(), text(&gid["value"]), kind.to_owned())
            };
            let gids: Vec<_> = list(&ports[0]["gids"]).iter().map(gid).collect();
            assert_eq!(gids, described.gids, "{place}");
            assert!(!gids.is_empty(), "{place}");
        }
    }
}

#[test]
fn what_is_found_is_what_the_guests_own_tools_print() {
    let field = Field::new();
    for (guest, inventory) in field.inventories("n1,n2") {
        compare_rdma(&field, &guest, &inventory);
        compare_links(&field, &guest, &inventory);
        compare_cards(&field, &guest, &inventory);
        compare_interfaces(&field, &guest, &inventory);
    }
}

#[test]
fn a_smaller_mtu_is_seen() {
    let field = Field::new();
    let mtu = |inventory: &Value| inventory["rdma"][0]["ports"][0]["mtu"].clone();
    let back = Undo(|| field.lab.set_mtu("n1", "eth1", 4200));
    field.lab.set_mtu("n1", "eth1", 1500).unwrap();
    let (guest, inventory) = field.inventories("n1").remove(0);
    assert_eq!(mtu(&inventory), 1024);
    compare_rdma(&field, &guest, &inventory);
    drop(back);
    assert_eq!(mtu(&field.inventories("n1")[0].1), 4096);
}

fn compare_links(field: &Field, guest: &str, inventory: &Value) {
    let links = tools::links(field, guest);
    for device in list(&inventory["rdma"]) {
        let name = text(&device["name"]);
        let (link, port) = (&links[&name], &device["ports"][0]);
        assert_eq!(port["number"], link["port"], "{guest}: {name}");
        assert_eq!(port["netdev"], link["netdev"], "{guest}: {name}");
        let state = text(&port["state"]).to_uppercase();
        assert_eq!(link["state"], state, "{guest}: {name}");
        let physical = text(&link["physical_state"]).replace('_', "");
        let ours = text(&port["physical_state"]);
        assert!(ours.eq_ignore_ascii_case(&physical), "{guest}: {name}: {ours} {physical}");
        // Each device has its own file.
        let verbs = text(&device["uverbs"]["usable"]);
        let class = format!("/sys/class/infiniband_verbs/{}", verbs.rsplit('/').next().unwrap());
        assert_eq!(field.on(guest, &format!("cat {class}/ibdev")).trim(), name);
    }
}

fn compare_cards(field: &Field, guest: &str, inventory: &Value) {
    let listed = field.on(guest, "lspci -Dnmm");
    let fields = listed.lines().map(|line| line.split_whitespace().collect::<Vec<_>>());
    // PCI class 02 is for network cards.
    let cards = fields.filter(|words| words[1].starts_with("\"02"));
    let cards: BTreeSet<&str> = cards.map(|words| words[0]).collect();
    let netdevs = list(&inventory["netdevs"]).iter();
    let ours = netdevs.filter_map(|netdev| Some((netdev, netdev["pci"].as_str()?)));
    let ours: Vec<_> = ours.collect();
    assert_eq!(ours.iter().map(|(_, pci)| *pci).collect::<BTreeSet<_>>(), cards, "{guest}");
    assert_eq!(ours.len(), 3, "{guest}");
    let long = field.on(guest, "lspci -Dvv");
    for (netdev, pci) in ours {
        let card = long.split("\n\n").find(|card| card.starts_with(pci)).unwrap();
        let driver = "Kernel driver in use: virtio-pci";
        assert!(card.contains("Ethernet controller") && card.contains(driver), "{card}");
        let name = field.on(guest, &format!("ls /sys/bus/pci/devices/{pci}/virtio*/net"));
        assert_eq!(Some(name.trim()), netdev["name"].as_str(), "{guest}");
    }
}

fn compare_interfaces(field: &Field, guest: &str, inventory: &Value) {
    let listed: Value = serde_json::from_str(&field.on(guest, "ip -j addr")).unwrap();
    let (netdevs, listed) = (list(&inventory["netdevs"]), list(&listed));
    assert_eq!(netdevs.len(), listed.len(), "{guest}");
    for (netdev, listed) in netdevs.iter().zip(listed) {
        for (ours, theirs) in [
            ("name", "ifname"),
            ("index", "ifindex"),
            ("mtu", "mtu"),
            ("hardware_address", "address"),
        ] {
            assert_eq!(netdev[ours], listed[theirs], "{guest}: {ours}");
        }
        let ours = list(&netdev["addresses"]).iter();
        let ours: BTreeSet<String> =
            ours.map(|pair| format!("{} {}", text(&pair[0]), pair[1])).collect();
        let theirs = list(&listed["addr_info"]).iter();
        let theirs: BTreeSet<String> =
            theirs.map(|info| format!("{} {}", text(&info["local"]), info["prefixlen"])).collect();
        assert_eq!(ours, theirs, "{guest}");
        let up = listed["operstate"] != "DOWN";
        assert_eq!(netdev["running"], up, "{guest}: {netdev}");
    }
}
