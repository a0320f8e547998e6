//! Golden tests: rlaunch's decisions for jobs on recorded machines are compared with
//! `launcher/goldens/job-*.txt`. Other tests compare texts with golden files by [`is_golden`].

use crate::plan::env::Variable;
use crate::plan::env::nccl::Fabric;
use crate::plan::map::RankMap;
use crate::plan::mesh;
use crate::plan::options::{JobView, Options, UserChoices};
use crate::plan::rank_config::{self, RankConfig};
use crate::plan::selection::{Plan, PortOptions};
use crate::plan::table;
use crate::recorded::inventory;
use crate::run::show;
use rlaunch_bootstrap::id::JobId;
use rlaunch_bootstrap::inventory::Inventory;
use rlaunch_bootstrap::inventory::net::NetdevKind;
use rlaunch_bootstrap::job::NodeFacts;
use rlaunch_bootstrap::rank_table::RankTable;
use std::fmt::Write as _;
use std::net::IpAddr;
use std::path::Path;

const NAMES: [&str; 3] = ["a", "b", "c"];

/// Maps `ranks` ranks to each machine. The machines are the hosts `a`, `b` and `c`.
fn map_of(machines: &[Inventory], ranks: usize) -> RankMap {
    map_of_named(&NAMES[..machines.len()], ranks)
}

pub(crate) fn map_of_named(names: &[&str], ranks: usize) -> RankMap {
    let hosts: Vec<String> = names.iter().map(|name| format!("{name}:{ranks}")).collect();
    let hosts = crate::hosts::parse(&[hosts.join(",")]).unwrap();
    RankMap::by_slot(&hosts, None, false).unwrap()
}

/// Builds the rank table of a job with `ranks` ranks on each machine.
pub(crate) fn table_of(machines: &[Inventory], ranks: usize, plan: &Plan) -> RankTable {
    let (map, options) = (map_of(machines, ranks), Options::default());
    let addresses: Vec<IpAddr> = machines.iter().map(management).collect();
    let inventories = machines;
    let seen = JobView { id: JobId(7), map: &map, inventories, plan, addresses: &addresses };
    let choices = UserChoices { options: &options, env: &[] };
    let fabric = Fabric::new(&map, inventories, plan, &options);
    let ports = vec![vec![21_000, 21_001]; machines.len()];
    let rank_configs = rank_config::decide(&choices, &seen, &fabric, &ports).unwrap();
    table::build(&options, &seen, &vec![&facts(); machines.len()], &rank_configs).unwrap()
}

/// Makes all decisions for a job with default options, and passes them to `then`: each node's rank
/// configurations, the rank table, the user's choices and the network.
pub(crate) fn decided<T>(
    map: &RankMap,
    machines: &[Inventory],
    then: impl FnOnce(&[Vec<RankConfig>], &RankTable, &UserChoices<'_>, &Fabric<'_>) -> T,
) -> T {
    let addresses: Vec<IpAddr> = machines.iter().map(management).collect();
    let (options, plan) = (Options::default(), Plan::new(machines, &PortOptions::default()));
    let inventories = machines;
    let seen = JobView { id: JobId(7), map, inventories, plan: &plan, addresses: &addresses };
    let ports: Vec<Vec<u16>> = (0..machines.len())
        .map(|node| vec![21_000, 21_001][usize::from(node > 0)..].to_vec())
        .collect();
    let choices = UserChoices { options: &options, env: &[] };
    let fabric = Fabric::new(map, inventories, &plan, &options);
    let rank_configs = rank_config::decide(&choices, &seen, &fabric, &ports).unwrap();
    let table =
        table::build(&options, &seen, &vec![&facts(); machines.len()], &rank_configs).unwrap();
    then(&rank_configs, &table, &choices, &fabric)
}

/// Describes where the ranks of a job run and how they reach each other.
fn placed(map: &RankMap, rank_configs: &[Vec<RankConfig>], table: &RankTable) -> String {
    let mesh = mesh::format_table(table, &mesh::Mesh::default());
    format!("{}\n{mesh}", show::placement(map, rank_configs, table))
}

/// Formats all decisions for a job with `ranks` ranks on each machine, as golden files have them.
fn job(machines: &[Inventory], ranks: usize) -> String {
    let map = map_of(machines, ranks);
    decided(&map, machines, |rank_configs, table, choices, fabric| {
        let mut text = placed(&map, rank_configs, table);
        let mut printed: Option<String> = None;
        for (name, rank_configs) in NAMES.iter().zip(rank_configs) {
            let env = env(&rank_configs[0]);
            // Variables are printed only if they differ from those of the host before.
            if printed.as_ref() != Some(&env) {
                let _ = write!(text, "\nfirst rank of {name}\n{env}");
            }
            printed = Some(env);
        }
        let slow = rank_config::slow_network(choices, &map, machines, &fabric.network);
        if let Some((line, hint)) = slow {
            let hint = hint.map(|hint| format!("hint: {hint}\n")).unwrap_or_default();
            let _ = write!(text, "\n{line}\n{hint}");
        }
        text.trim_end().to_owned() + "\n"
    })
}

/// Returns the machine's first address that is not on a loopback interface.
fn management(machine: &Inventory) -> IpAddr {
    let netdevs = machine.netdevs.iter().filter(|n| n.kind != NetdevKind::Loopback);
    netdevs.flat_map(|netdev| &netdev.addresses).next().unwrap().0
}

pub(crate) fn facts() -> NodeFacts {
    NodeFacts {
        hostname: "h".into(),
        arch: "x86_64".into(),
        pid: 1,
        guardian: 1,
        uid: 0,
        addresses: vec![],
        ssh_address: None,
        gpus: 0,
        machine: String::new(),
    }
}

fn env(setup: &RankConfig) -> String {
    let line = |default: &Variable| {
        let Variable { name, value, reason } = default;
        format!("{name}={value}  ({reason})\n")
    };
    setup.defaults.iter().map(line).collect()
}

/// Asserts that a text equals `launcher/goldens/NAME.txt`. With `UPDATE_GOLDENS=1` the text is written to
/// that file instead; review the changes before you commit them.
pub(crate) fn is_golden(name: &str, printed: &str) {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("goldens");
    let path = path.join(format!("{name}.txt"));
    if std::env::var_os("UPDATE_GOLDENS").is_some_and(|value| value == "1") {
        std::fs::write(&path, printed).unwrap();
        return;
    }
    let golden = std::fs::read_to_string(&path).unwrap_or_default();
    assert_eq!(printed, golden, "{name}; UPDATE_GOLDENS=1 updates the file");
}

fn check(name: &str, machines: &[Inventory], ranks: usize) {
    is_golden(&format!("job-{name}"), &job(machines, ranks));
}

/// Checks a job on `count` copies of one machine. The copies have equal addresses, which does not affect the
/// selection of ports.
fn several(name: &str, count: usize, ranks: usize) {
    check(name, &vec![inventory(name); count], ranks);
}

#[test]
fn a_pair_with_infiniband() {
    several("connectx3", 2, 1);
    several("sriov", 2, 1);
}

#[test]
fn a_triangle_of_cables() {
    check("triangle", &triangle(), 1);
}

#[test]
fn erdma_in_both_modes() {
    several("erdma-compat", 2, 1);
    several("erdma-standard", 2, 1);
    check("erdma-mixed", &["erdma-compat", "erdma-standard"].map(inventory), 1);
    several("ack-node", 2, 2);
}

#[test]
fn servers() {
    several("dgx", 2, 8);
    several("dual-port", 2, 2);
    several("bond", 2, 1);
    several("esxi-vm", 2, 1);
}

#[test]
fn machines_without_rdma() {
    several("no-rdma", 2, 2);
    several("amd-apu", 2, 1);
    several("container", 2, 1);
}

/// Returns three machines of one kind, with a cable and a separate subnet between any two.
pub(crate) fn triangle() -> [Inventory; 3] {
    let titanic = inventory("spark");
    let readdressed = |first: [u8; 4], second: [u8; 4]| {
        let mut node = titanic.clone();
        let renamed = |address: IpAddr| match address {
            IpAddr::V4(v4) if v4.octets()[..3] == [192, 168, 100] => IpAddr::from(first),
            IpAddr::V4(v4) if v4.octets()[..3] == [192, 168, 101] => IpAddr::from(second),
            address => address,
        };
        node.netdevs.iter_mut().flat_map(|n| &mut n.addresses).for_each(|a| a.0 = renamed(a.0));
        for gid in node.rdma.iter_mut().flat_map(|d| &mut d.ports).flat_map(|p| &mut p.gids) {
            if let IpAddr::V4(v4) = renamed(gid.ip()) {
                gid.value = v4.to_ipv6_mapped();
            }
        }
        node.routes.clear();
        node
    };
    let iceberg = readdressed([192, 168, 100, 3], [192, 168, 102, 2]);
    let carpathia = readdressed([192, 168, 102, 3], [192, 168, 101, 3]);
    [titanic, iceberg, carpathia]
}

/// Returns the two machines of `examples/guides/connectx3`, which differ only in their addresses.
pub(crate) fn pair() -> [Inventory; 2] {
    let pc1 = inventory("connectx3");
    let mut pc2 = pc1.clone();
    for address in pc2.netdevs.iter_mut().flat_map(|netdev| &mut netdev.addresses) {
        address.0 = match address.0 {
            IpAddr::V4(v4) if !v4.is_loopback() => IpAddr::from((u32::from(v4) + 1).to_be_bytes()),
            address => address,
        };
    }
    [pc1, pc2]
}

/// Checks that the guide `connectx3` shows the decisions that rlaunch makes for its job.
#[test]
fn a_guide_shows_what_is_decided() {
    let guide = concat!(env!("CARGO_MANIFEST_DIR"), "/../examples/guides/connectx3/README.md");
    let guide = std::fs::read_to_string(guide).unwrap();
    let machines = pair();
    let map = map_of_named(&["pc1", "pc2"], 1);
    let (placed, env) = decided(&map, &machines, |rank_configs, table, _, _| {
        (placed(&map, rank_configs, table), rank_configs[0][0].defaults.clone())
    });
    let tables = placed.split("\n\n").map(str::trim_end);
    for line in tables.flat_map(str::lines) {
        assert!(guide.contains(&format!("    {line}\n")), "not in the guide: {line}");
    }
    for Variable { name, value, .. } in env.iter().filter(|v| v.name.starts_with("NCCL_IB")) {
        assert!(guide.contains(&format!("{name}={value}")), "not in the guide: {name}={value}");
    }
}
