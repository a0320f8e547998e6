//! `--env-style`: variables of other launchers, for programs that expect them. These variables are set only
//! on request, since a program that sees them behaves as if the other launcher were running; and Slurm's in its jobs.

use super::Variable;
use crate::options::{EnvStyle, JobView, RankPosition};
use serde::Serialize;
use std::collections::BTreeMap;
use std::net::SocketAddr;

/// Returns a rank's variables in a style. `servers` has the address of each rank's TensorFlow server, by
/// rank.
pub(crate) fn variables(
    style: EnvStyle,
    seen: &JobView<'_>,
    place: RankPosition,
    servers: &[SocketAddr],
) -> Vec<Variable> {
    match style {
        EnvStyle::Tensorflow => tensorflow(place, servers),
        EnvStyle::Slurm => slurm(seen, place),
        // Every rank has its variable.
        EnvStyle::Openmpi => Vec::new(),
    }
}

/// Value of TF_CONFIG as TensorFlow's `TFConfigClusterResolver` reads it.
#[derive(Serialize)]
struct TfConfig {
    cluster: BTreeMap<&'static str, Vec<String>>,
    task: Task,
}

#[derive(Serialize)]
struct Task {
    #[serde(rename = "type")]
    kind: &'static str,
    index: u32,
}

fn tensorflow(place: RankPosition, servers: &[SocketAddr]) -> Vec<Variable> {
    let workers = servers.iter().map(SocketAddr::to_string).collect();
    let config = TfConfig {
        cluster: BTreeMap::from([("worker", workers)]),
        task: Task { kind: "worker", index: place.rank.0 },
    };
    let Ok(text) = serde_json::to_string(&config) else { return Vec::new() };
    vec![Variable::new("TF_CONFIG", text, "--env-style tensorflow")]
}

fn slurm(seen: &JobView<'_>, place: RankPosition) -> Vec<Variable> {
    let nodes = &seen.map.nodes;
    let hosts: Vec<&str> = nodes.iter().map(|node| node.host.name.as_str()).collect();
    let hosts = hosts.join(",");
    let tasks: Vec<String> = nodes.iter().map(|node| node.ranks.len().to_string()).collect();
    let tasks_here = tasks.get(place.node).cloned().unwrap_or_default();
    let tasks = tasks.join(",");
    let set = |name, value: String| Variable::new(name, value, "--env-style slurm");
    let world = seen.map.world_size.to_string();
    vec![
        set("SLURM_JOB_ID", seen.short_id().to_string()),
        set("SLURM_JOBID", seen.short_id().to_string()),
        set("SLURM_STEP_ID", "0".to_owned()),
        set("SLURM_PROCID", place.rank.to_string()),
        set("SLURM_LOCALID", place.local_rank.to_string()),
        set("SLURM_NODEID", place.node.to_string()),
        set("SLURM_NTASKS", world.clone()),
        set("SLURM_NPROCS", world.clone()),
        set("SLURM_NNODES", nodes.len().to_string()),
        set("SLURM_JOB_NUM_NODES", nodes.len().to_string()),
        set("SLURM_NODELIST", hosts.clone()),
        set("SLURM_JOB_NODELIST", hosts.clone()),
        set("SLURM_STEP_NODELIST", hosts),
        set("SLURM_TASKS_PER_NODE", tasks.clone()),
        set("SLURM_NTASKS_PER_NODE", tasks_here),
        // TensorFlow's resolver reads those of the step.
        set("SLURM_STEPID", "0".to_owned()),
        set("SLURM_STEP_NUM_TASKS", world.clone()),
        set("SLURM_STEP_NUM_NODES", nodes.len().to_string()),
        set("SLURM_STEP_TASKS_PER_NODE", tasks),
        set("SLURMD_NODENAME", nodes[place.node].host.name.clone()),
    ]
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::map::RankMap;
    use crate::selection::Plan;
    use rlaunch_bootstrap::id::{JobId, Rank};
    use std::net::IpAddr;

    fn variables_as_text(style: EnvStyle) -> Vec<String> {
        let hosts = crate::hosts::parse(&["a:2,b:1".into()]).unwrap();
        let map = RankMap::by_slot(&hosts, None, false).unwrap();
        let addresses = [[10, 1, 0, 1], [10, 1, 0, 2]].map(IpAddr::from);
        let plan = Plan::default();
        let seen = JobView {
            id: JobId(7),
            map: &map,
            inventories: &[],
            plan: &plan,
            addresses: &addresses,
        };
        let place = RankPosition { rank: Rank(2), node: 1, local_rank: 0 };
        let servers = ["10.1.0.1:21001", "10.1.0.1:21002", "10.1.0.2:21001"];
        let servers = servers.map(|server| server.parse().unwrap());
        let set = variables(style, &seen, place, &servers);
        set.iter().map(|default| format!("{}={}", default.name, default.value)).collect()
    }

    #[test]
    fn tensorflow_is_told_every_server() {
        let config = r#"TF_CONFIG={"cluster":{"worker":["10.1.0.1:21001","10.1.0.1:21002","10.1.0.2:21001"]},"task":{"type":"worker","index":2}}"#;
        assert_eq!(variables_as_text(EnvStyle::Tensorflow), [config]);
    }

    #[test]
    fn slurm_is_what_jax_and_tensorflow_read() {
        let slurm = variables_as_text(EnvStyle::Slurm);
        for wanted in ["SLURM_PROCID=2", "SLURM_LOCALID=0", "SLURM_NTASKS=3", "SLURM_JOB_ID=7"]
            .into_iter()
            .chain(["SLURM_STEP_NUM_TASKS=3", "SLURM_STEP_TASKS_PER_NODE=2,1", "SLURMD_NODENAME=b"])
        {
            assert!(slurm.contains(&wanted.to_owned()), "{wanted}: {slurm:?}");
        }
        assert!(slurm.contains(&"SLURM_STEP_NODELIST=a,b".to_owned()));
    }
}
