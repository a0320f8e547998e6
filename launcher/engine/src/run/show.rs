//! `--show`: the decisions of the launcher, as text for people or as JSON for programs. The job goes on
//! afterwards.

use crate::connect::agent::library::SHARED;
use crate::run::dry_run;
use crate::run::record::RankPlace;
use crate::run::rendezvous::Joined;
use rlaunch_bootstrap::env::{self as names, redacted_value};
use rlaunch_bootstrap::id::Rank;
use rlaunch_bootstrap::inventory::Inventory;
use rlaunch_bootstrap::job::library::PYTHON;
use rlaunch_bootstrap::job::{EnvRule, EnvVar};
use rlaunch_bootstrap::rank_table::{RankNic, RankTable};
use rlaunch_console::stdout;
use rlaunch_plan::env::{Variable, process_manager};
use rlaunch_plan::hosts::Host;
use rlaunch_plan::job::JobSpec;
use rlaunch_plan::job::apps::AppSpec;
use rlaunch_plan::job::options::{Show, ShowFormat};
use rlaunch_plan::map::{MappedNode, RankMap};
use rlaunch_plan::rank_config::RankConfig;
use rlaunch_plan::{mesh, picture, table};
use rlaunch_text::columns;
use serde::Serialize;
use std::ffi::OsStr;
use std::fmt::Display;
use std::path::{Path, PathBuf};

/// Prints to stdout what `--show` or `--dry-run` asks for, before ranks write to stdout. Waits until a slow
/// reader has taken all of it. Cancel-safe.
pub async fn print(job: &JobSpec, map: &RankMap, inventories: &[Inventory], joined: &Joined) {
    let plan = ShownPlan { job, map, inventories, joined };
    let text = match job.dry_run {
        Some(_) => dry_run::text(&plan),
        None => job.show.iter().map(|show| plan.text(*show)).collect(),
    };
    if text.is_empty() {
        return;
    }
    drop(tokio::task::spawn_blocking(move || stdout::print(&text)).await);
}

/// Job whose decisions are shown.
#[derive(Clone, Copy)]
pub struct ShownPlan<'a> {
    pub job: &'a JobSpec,
    pub map: &'a RankMap,
    /// Inventories by node.
    pub inventories: &'a [Inventory],
    pub joined: &'a Joined,
}

impl ShownPlan<'_> {
    /// Explains a subject of `--show`.
    pub(crate) fn text(&self, show: Show) -> String {
        let ShownPlan { job, map, inventories, joined } = *self;
        match show {
            Show::Placement => placement(map, &joined.rank_configs, &joined.table),
            Show::PlacementPicture => {
                let (configs, table) = (&joined.rank_configs, &joined.table);
                let picture = picture::placement(map, inventories, configs, table);
                let drawn = rlaunch_plot::svg(&[&picture]);
                drawn.unwrap_or_else(|error| format!("{error}\n"))
            }
            Show::Env => {
                let mut rows = vec![columns::row(["rank", "host", "variable", "why"])];
                let variables = variables(job, map, &joined.rank_configs, &joined.libraries);
                rows.extend(variables.into_iter().map(|(rank, host, variable, why)| {
                    vec![rank.to_string(), host.to_string(), variable, why]
                }));
                columns::lay_out(&rows)
            }
            Show::RankTable(ShowFormat::Text) => table::format_table(&joined.table),
            Show::RankTable(ShowFormat::Json) => json(&joined.table),
            Show::Mesh(ShowFormat::Text) => mesh::format_table(&joined.table, &joined.mesh),
            Show::Mesh(ShowFormat::Json) => json(&mesh::json_rows(&joined.table, &joined.mesh)),
        }
    }
}

fn json<T: Serialize>(value: &T) -> String {
    match serde_json::to_string_pretty(value) {
        Ok(text) => format!("{text}\n"),
        Err(error) => format!("cannot be shown: {error}\n"),
    }
}

/// Lists the ranks in order, with their hosts and configurations.
fn ranks<'a>(
    map: &'a RankMap,
    rank_configs: &'a [Vec<RankConfig>],
) -> impl Iterator<Item = (Rank, &'a Host, &'a RankConfig)> {
    let node_ranks = |(node, rank_configs): (&'a MappedNode, &'a Vec<RankConfig>)| {
        node.ranks.iter().zip(rank_configs).map(|(&rank, config)| (rank, &node.host, config))
    };
    let mut ranks: Vec<_> = map.nodes.iter().zip(rank_configs).flat_map(node_ranks).collect();
    ranks.sort_by_key(|(rank, ..)| *rank);
    ranks.into_iter()
}

/// Writes the placement as a table: hosts, CPUs and the nearest devices, as far as they are known.
pub fn placement(map: &RankMap, rank_configs: &[Vec<RankConfig>], table: &RankTable) -> String {
    let mut rows = vec![columns::row(["rank", "host", "cpus", "numa", "gpu", "nics", "why"])];
    rows.extend(rank_places(map, rank_configs, table).into_iter().map(|place| {
        vec![
            place.rank.to_string(),
            place.host,
            place.cpus.unwrap_or_else(|| "all".to_owned()),
            place.numa_node.map(|node| node.to_string()).unwrap_or_default(),
            place.gpu.unwrap_or_default(),
            place.nics,
            place.why,
        ]
    }));
    columns::lay_out(&rows)
}

/// Returns the placement of each rank, by rank.
pub(crate) fn rank_places(
    map: &RankMap,
    rank_configs: &[Vec<RankConfig>],
    table: &RankTable,
) -> Vec<RankPlace> {
    let place = |(rank, host, config): (Rank, &Host, &RankConfig)| RankPlace {
        rank: rank.0,
        host: host.to_string(),
        cpus: config.placement.cpus.as_ref().map(ToString::to_string),
        numa_node: config.placement.numa_node,
        gpu: config.gpu.clone(),
        nics: nearest_nics(table, rank),
        why: config.placement.reason.clone(),
    };
    ranks(map, rank_configs).map(place).collect()
}

/// Writes a rank's nearest NICs and their distance, as in `mlx5_0,mlx5_1 PIX`. The distance is in the terms
/// of `nvidia-smi topo -m`.
fn nearest_nics(table: &RankTable, rank: Rank) -> String {
    let Some(row) = table.ranks().get(rank.index()) else { return String::new() };
    let Some(first) = row.nics.first() else { return String::new() };
    let name = |own: &RankNic| {
        let nics = &table.nodes().get(row.node.index())?.nics;
        Some(nics.get(own.nic as usize)?.device.as_str())
    };
    let nearest = row.nics.iter().take_while(|own| own.distance == first.distance);
    let mut names: Vec<&str> = nearest.filter_map(name).collect();
    names.dedup();
    let names = names.join(",");
    // The distance is unknown if the rank has neither a GPU nor a NUMA node.
    let is_somewhere = row.gpu.is_some() || row.numa_node.is_some();
    if is_somewhere { format!("{names} {}", first.distance) } else { names }
}

/// Variable of a rank: rank, host, `NAME=VALUE`, reason.
pub(crate) type VariableRow<'a> = (u32, &'a Host, String, String);

/// Lists the variables that rlaunch sets for each rank, with the reasons. A value from the shell in which
/// rlaunch was started, or from `-x`, takes precedence and is marked as the user's. Variables that a host
/// sets itself are not known here. Values that look like secrets are replaced.
pub fn variables<'a>(
    job: &JobSpec,
    map: &'a RankMap,
    rank_configs: &'a [Vec<RankConfig>],
    libraries: &[Option<PathBuf>],
) -> Vec<VariableRow<'a>> {
    let library_of = |rank| libraries.get(map.node_of(rank)?.id.index())?.as_ref();
    let mut rows = Vec::new();
    let world_size = ranks(map, rank_configs).count();
    for (rank, host, config) in ranks(map, rank_configs) {
        let AppSpec { env, user_set_vars, .. } = job.application_of(map, rank);
        let yours = |name: &str| env.iter().find(|var| var.name == name);
        let explained = config.defaults.iter().filter(|default| !default.reason.is_empty());
        let mut push = |variable, why| rows.push((rank.0, host, variable, why));
        for Variable { name, value, reason } in explained {
            let (value, why) = match yours(name) {
                Some(var) => {
                    (var.value.to_string_lossy().into_owned(), user_reason(var).to_owned())
                }
                None => (value.clone(), reason.clone()),
            };
            push(format!("{name}={}", redacted_value(name, &value)), why);
        }
        let library_rows = library_of(rank).map(|path| library(path, yours));
        for [variable, why] in library_rows.into_iter().flatten() {
            push(variable, why);
        }
        let served = (world_size > 1).then(|| process_manager::rows(job.mpi));
        for [variable, why] in served.into_iter().flatten() {
            push(variable.to_owned(), why.to_owned());
        }
        let is_known = |name: &str| config.defaults.iter().any(|default| default.name == name);
        let asked = |name: &OsStr| user_set_vars.iter().any(|asked| name == asked.as_str());
        for var in env.iter().filter(|var| configures_library(&var.name) || asked(&var.name)) {
            let (name, value) = (var.name.to_string_lossy(), var.value.to_string_lossy());
            if !is_known(&name) {
                push(format!("{name}={}", redacted_value(&name, &value)), user_reason(var).into());
            }
        }
        if job.login && !asked(OsStr::new(names::PATH)) {
            push(names::PATH.into(), "(host): as a login shell there has it".into());
        }
    }
    rows
}

/// Returns the reason for a variable that comes from the shell in which rlaunch was started, or from `-x`.
fn user_reason(var: &EnvVar) -> &'static str {
    match var.rule {
        EnvRule::Default => "(yours) where the host sets none",
        EnvRule::Set | EnvRule::PathBefore | EnvRule::PathAfter => "(yours)",
    }
}

/// Lists the variables by which a rank finds its library, with the reasons. `yours` returns the user's own
/// value of a variable.
fn library<'a>(path: &Path, yours: impl Fn(&str) -> Option<&'a EnvVar>) -> Vec<[String; 2]> {
    let (path, python) = (path.display(), path.join(PYTHON));
    let own = match yours(names::RLAUNCH_LIB) {
        Some(var) => [format!("{}={}", names::RLAUNCH_LIB, var.value.display()), "(yours)".into()],
        None => [
            format!("{}={path}", names::RLAUNCH_LIB),
            format!("where {SHARED} is, for those who load it by its path"),
        ],
    };
    let appended = |name: &str, path: &dyn Display, why: &str| {
        [format!("{name}+=:{path}"), format!("{why}; what you or the host have there comes first")]
    };
    let finds = format!("programs that are linked with {SHARED} find it");
    let mut rows = vec![
        own,
        appended(names::LD_LIBRARY_PATH, &path, &finds),
        appended(names::PYTHONPATH, &python.display(), "`import rlaunch` finds it"),
    ];
    if yours(names::PYTHONBREAKPOINT).is_none() {
        let why = "`breakpoint()` waits for `rlaunch attach`, where the host sets none".to_owned();
        rows.push([format!("{}={}", names::PYTHONBREAKPOINT, names::BREAKPOINT), why]);
    }
    rows
}

/// Tells whether a variable configures a library for which rlaunch sets variables too.
fn configures_library(name: &OsStr) -> bool {
    const PREFIXES: &[&str] = &["NCCL_", "UCX_", "GLOO_", "HOROVOD_", "TP_SOCKET_", "OMP_NUM_"];
    PREFIXES.iter().any(|prefix| name.as_encoded_bytes().starts_with(prefix.as_bytes()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_cannot_be_shown_is_refused() {
        assert_eq!("rank-table".parse(), Ok(Show::RankTable(ShowFormat::Text)));
        assert_eq!("rank-table=json".parse(), Ok(Show::RankTable(ShowFormat::Json)));
        assert_eq!("mesh=json".parse(), Ok(Show::Mesh(ShowFormat::Json)));
        assert_eq!("placement".parse(), Ok(Show::Placement));
        assert_eq!("placement=svg".parse(), Ok(Show::PlacementPicture));
        assert!("placement=json".parse::<Show>().is_err());
        assert!("rank-table=xml".parse::<Show>().is_err());
        assert!("".parse::<Show>().is_err());
    }
}
