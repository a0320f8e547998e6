//! Pictures are made and parsed, and layouts are checked: nothing overlaps, and lines do not meet those of
//! other networks.

use super::layout::Layout;
use super::shapes::{Area, Shape};
use super::*;

fn port(name: &str, address: &str, network: Option<usize>) -> PortRow {
    PortRow {
        name: name.into(),
        rate: "400 Gb/s".into(),
        address: address.into(),
        network,
        ..PortRow::default()
    }
}

/// Host with two NUMA nodes, each with a PCIe switch that has two GPUs and two ports. Port `n` is in network
/// `n`; a fifth port is in the next one.
fn server(host: usize, has_ranks: bool) -> HostBox {
    let section = |numa: usize| {
        let device = |n: usize| numa * 2 + n;
        let used = |n: usize| has_ranks.then(|| format!("rank {}", host * 4 + n));
        let gpu = |n: usize| GpuBox {
            name: format!("0000:{n}{n}:00.0 H100"),
            used_by: used(n).filter(|_| n.is_multiple_of(2)),
        };
        let nic = |n: usize| PortRow {
            used_by: used(n),
            ..port(&format!("mlx5_{n}/1 (eth{n})"), &format!("10.{n}.0.{host}/24"), Some(n))
        };
        let ranks = match has_ranks {
            true => vec![format!("rank {} · CPUs 0-31,64-95", host * 4 + numa * 2)],
            false => Vec::new(),
        };
        let group = DeviceGroup {
            is_switch: true,
            ranks,
            gpus: [0, 1].map(|n| gpu(device(n))).to_vec(),
            ports: [0, 1].map(|n| nic(device(n))).to_vec(),
        };
        let label = format!("NUMA node {numa}: CPUs 0-31,64-95, 1008 GiB");
        Section { label, groups: vec![group] }
    };
    let eno1 = PortRow { is_down: host == 3, ..port("eno1", "10.128.0.1/24", Some(4)) };
    let eno1 = DeviceGroup { ports: vec![eno1], ..DeviceGroup::default() };
    let other = Section { label: "NUMA node not known".into(), groups: vec![eno1] };
    HostBox {
        name: format!("node{host:02}"),
        summary: "128 CPUs, 2016 GiB".into(),
        sections: vec![section(0), section(1), other],
    }
}

fn network(number: usize) -> Network {
    let style = [LineStyle::Wide, LineStyle::Plain, LineStyle::Dashed][number % 3];
    Network { text: format!("10.{number}.0.0/24: RoCE v2, 400 Gb/s"), style }
}

fn cluster(hosts: usize, has_ranks: bool) -> Topology {
    Topology {
        title: format!("{hosts} hosts"),
        hosts: (0..hosts).map(|host| server(host, has_ranks)).collect(),
        networks: (0..5).map(network).collect(),
        notes: vec!["3 more hosts are not drawn".into()],
    }
}

/// Ring of hosts with two ports each, whose cables are networks of their own.
fn ring(hosts: usize) -> Topology {
    let host = |host: usize| {
        let ports = [(host + hosts - 1) % hosts, host].map(|n| port("eth", "10.0.0.1/30", Some(n)));
        let group = DeviceGroup { ports: ports.to_vec(), ..DeviceGroup::default() };
        let sections = vec![Section { label: String::new(), groups: vec![group] }];
        HostBox { name: format!("n{host}"), summary: String::new(), sections }
    };
    let hosts: Vec<HostBox> = (0..hosts).map(host).collect();
    let networks = (0..hosts.len()).map(network).collect();
    Topology { title: "ring".into(), hosts, networks, ..Topology::default() }
}

fn svg_texts(topology: &Topology) -> Vec<String> {
    let text = crate::svg(&[topology]).unwrap();
    let document = roxmltree::Document::parse(&text).unwrap();
    let texts = document.descendants().filter(roxmltree::Node::is_text);
    texts.filter_map(|node| node.text()).map(|text| text.trim().to_owned()).collect()
}

/// Checks that texts are inside the picture and do not overlap.
fn check_texts(layout: &Layout) {
    let all = Area { left: 0, top: 0, right: layout.width, bottom: layout.height };
    let area = |shape: &Shape| match shape {
        Shape::Text { area, .. } | Shape::Label { area, .. } | Shape::Pin { area, .. } => {
            Some((*area, format!("{shape:?}")))
        }
        _ => None,
    };
    let texts: Vec<(Area, String)> = layout.shapes.iter().filter_map(area).collect();
    for (index, (area, shape)) in texts.iter().enumerate() {
        assert!(all.contains(*area), "{shape} is outside of {all:?}");
        for (other, other_shape) in &texts[..index] {
            assert!(!area.overlaps(*other), "{shape} is on {other_shape}");
        }
    }
}

/// Checks that lines are straight, and that lines of two networks cross, but do not lie on each other.
fn check_lines(layout: &Layout) {
    let line = |shape: &Shape| match shape {
        Shape::Line { from, to, network } => Some((*from, *to, *network)),
        _ => None,
    };
    let lines: Vec<_> = layout.shapes.iter().filter_map(line).collect();
    for (index, (from, to, network)) in lines.iter().enumerate() {
        assert!(from.0 == to.0 || from.1 == to.1, "{from:?} to {to:?} is not straight");
        for (other_from, other_to, other) in lines[..index].iter().filter(|line| line.2 != *network)
        {
            let is_level = |from: &(i32, i32), to: &(i32, i32)| from.1 == to.1;
            let meet = |a: (i32, i32), b: (i32, i32)| {
                a.0.min(a.1) <= b.0.max(b.1) && b.0.min(b.1) <= a.0.max(a.1)
            };
            let (level, other_level) = (is_level(from, to), is_level(other_from, other_to));
            let is_on_other = match (level, other_level) {
                (true, true) => {
                    from.1 == other_from.1 && meet((from.0, to.0), (other_from.0, other_to.0))
                }
                (false, false) => {
                    from.0 == other_from.0 && meet((from.1, to.1), (other_from.1, other_to.1))
                }
                _ => false,
            };
            assert!(!is_on_other, "networks {network} and {other} share {from:?} to {to:?}");
        }
    }
}

fn check(topology: &Topology) -> Layout {
    let layout = Layout::new(topology);
    check_texts(&layout);
    check_lines(&layout);
    for host in &topology.hosts {
        let is_name =
            |shape: &&Shape| matches!(shape, Shape::Text { text, .. } if *text == host.name);
        assert_eq!(layout.shapes.iter().filter(is_name).count(), 1, "{}", host.name);
    }
    let ports = topology.hosts.iter().flat_map(HostBox::ports);
    let connected = ports.filter(|port| port.network.is_some()).count();
    let dots = layout.shapes.iter().filter(|shape| matches!(shape, Shape::Dot { .. })).count();
    assert_eq!(dots, connected, "each port meets the line of its network");
    layout
}

#[test]
fn nothing_overlaps() {
    for hosts in [1, 2, 3, 4, 7, 16] {
        check(&cluster(hosts, false));
        check(&cluster(hosts, true));
        check(&ring(hosts + 2));
    }
}

#[test]
fn sixteen_hosts_have_two_columns() {
    let layout = check(&cluster(16, true));
    let lone = check(&cluster(2, true));
    assert!(lone.width < 1000, "{}", lone.width);
    assert!(layout.width < 1800 && layout.height < 2400, "{} {}", layout.width, layout.height);
    let left = |name: &str| {
        let is_name = |shape: &&Shape| matches!(shape, Shape::Text { text, .. } if text == name);
        match layout.shapes.iter().find(is_name) {
            Some(Shape::Text { area, .. }) => area.left,
            _ => panic!("{name}"),
        }
    };
    assert_eq!(left("node00"), left("node07"));
    assert!(left("node08") > left("node07"));
    assert_eq!(left("node08"), left("node15"));
}

#[test]
fn hosts_devices_ranks_and_networks_are_named() {
    let texts = svg_texts(&cluster(2, true));
    let wanted = [
        "2 hosts", "node00", "node01", "128 CPUs, 2016 GiB",
        "NUMA node 1: CPUs 0-31,64-95, 1008 GiB", "rank 6 · CPUs 0-31,64-95", "0000:33:00.0 H100",
        "mlx5_3/1 (eth3)", "10.3.0.1/24", "400 Gb/s", "rank 7", "10.4.0.0/24: RoCE v2, 400 Gb/s",
        "3 more hosts are not drawn", "devices below one PCIe switch", "device that no rank uses",
    ];
    for wanted in wanted {
        assert!(texts.iter().any(|text| text == wanted), "{wanted}: {texts:?}");
    }
    assert!(!texts.iter().any(|text| text.contains('…')), "{texts:?}");
    let without = svg_texts(&cluster(2, false));
    assert!(!without.iter().any(|text| text.contains("rank")), "{without:?}");
}

#[test]
fn each_format_is_written_and_read() {
    let topology = cluster(1, true);
    let layout = Layout::new(&topology);
    let write = |ending: &str| {
        let name = format!("rlaunch-topology-{}.{ending}", std::process::id());
        let path = std::env::temp_dir().join(name);
        let file: crate::PlotFile = path.to_str().unwrap().parse().unwrap();
        file.write(&topology.title, &[&topology]).unwrap();
        let text = std::fs::read_to_string(&path).unwrap();
        std::fs::remove_file(&path).unwrap();
        text
    };
    let svg = write("svg");
    let document = roxmltree::Document::parse(&svg).unwrap();
    assert_eq!(document.root_element().attribute("width"), Some(&*layout.width.to_string()));
    assert_eq!(document.root_element().attribute("height"), Some(&*layout.height.to_string()));
    let html = write("html");
    assert!(html.contains("<title>1 hosts</title>") && html.contains(&svg), "{html}");
}

#[test]
fn long_texts_are_shortened() {
    let mut topology = cluster(1, false);
    topology.hosts[0].name = "n".repeat(300);
    topology.hosts[0].sections[0].groups[0].ports[0].name = "x".repeat(300);
    topology.networks[0].text = "y".repeat(300);
    topology.notes = vec!["word ".repeat(100)];
    let layout = Layout::new(&topology);
    check_texts(&layout);
    assert!(layout.width < 1200, "{}", layout.width);
}

#[test]
fn more_networks_than_tracks_have_numbers() {
    let mut topology = cluster(3, false);
    for host in &mut topology.hosts {
        let ports = (0..40).map(|n| port(&format!("eth{n}"), "", Some(n))).collect();
        host.sections[0].groups = vec![DeviceGroup { ports, ..DeviceGroup::default() }];
        host.sections.truncate(1);
    }
    topology.networks = (0..40).map(network).collect();
    let texts = svg_texts(&topology);
    assert!(texts.iter().any(|text| text.starts_with("16 of the networks")), "{texts:?}");
    assert_eq!(texts.iter().filter(|text| *text == "40").count(), 4, "three ports and the legend");
    check_texts(&Layout::new(&topology));
}

#[test]
fn without_hosts_there_is_no_picture() {
    let error = crate::svg(&[&Topology::default()]).unwrap_err().to_string();
    assert_eq!(error, "cannot draw the picture: there are no hosts");
}
