//! Golden tests: rlaunch's decisions for jobs on recorded machines are compared with
//! `launcher/goldens/job-*.txt`.

use crate::run::show;
use rlaunch_bootstrap::inventory::Inventory;
use rlaunch_bootstrap::rank_table::RankTable;
use rlaunch_plan::env::Variable;
use rlaunch_plan::map::RankMap;
use rlaunch_plan::mesh;
use rlaunch_plan::rank_config::{self, RankConfig};
use rlaunch_plan::testing::{
    NAMES, decided, inventory, is_golden, map_of, map_of_named, pair, triangle,
};
use std::fmt::Write as _;

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

fn env(setup: &RankConfig) -> String {
    let line = |default: &Variable| {
        let Variable { name, value, reason } = default;
        format!("{name}={value}  ({reason})\n")
    };
    setup.defaults.iter().map(line).collect()
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

/// Checks that the guide `connectx3` shows the decisions that rlaunch makes for its job.
#[test]
fn a_guide_shows_what_is_decided() {
    let guide = concat!(env!("CARGO_MANIFEST_DIR"), "/../../examples/guides/connectx3/README.md");
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
