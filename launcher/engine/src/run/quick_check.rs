//! `--preflight quick`: faults of the hosts' RDMA ports that a job's inventories show, printed as warnings.

use crate::run::job_run::JobRun;
use rlaunch_bootstrap::inventory::Inventory;
use rlaunch_console::messages;
use rlaunch_plan::checks::{self, Cluster, ClusterHost};
use rlaunch_plan::hosts::Host;
use rlaunch_plan::options::Preflight;
use rlaunch_plan::selection::Plan;
use rlaunch_text::text;
use std::time::Instant;

/// Maximum number of findings that are printed; the rest are only counted.
const MAX_FINDINGS: usize = 3;
/// Maximum number of hosts that the advice names.
const MAX_HOSTS: usize = 8;

/// Prints findings that the job does not state elsewhere, in the first attempt of the job. `nodes` has the inventory and
/// the user id of each node's agent, and `plan` has the ports before any of them was proved.
pub(crate) fn print(job: &JobRun, nodes: &[(&Host, &Inventory, u32)], plan: &Plan) {
    let is_restart = job.restarts.is_some_and(|restarts| restarts.done > 0);
    if job.options.preflight != Preflight::Quick || is_restart {
        return;
    }
    let started = Instant::now();
    for (id, sentence, hint) in warnings(job, nodes, plan) {
        messages::warn_of(id, &sentence);
        hint.iter().for_each(|hint| messages::hint(hint));
    }
    tracing::info!("quick preflight: {:.2} ms", started.elapsed().as_secs_f64() * 1e3);
}

/// Warning: id of its finding, sentence, and advice.
type Warning = (Option<&'static str>, String, Option<String>);

fn warnings(job: &JobRun, nodes: &[(&Host, &Inventory, u32)], plan: &Plan) -> Vec<Warning> {
    let names: Vec<String> = nodes.iter().map(|(host, ..)| host.to_string()).collect();
    let hosts = nodes.iter().zip(&names).map(|((_, inventory, uid), name)| ClusterHost {
        uid: *uid,
        ..ClusterHost::new(name, inventory, None)
    });
    let cluster = Cluster {
        hosts: hosts.collect(),
        plan: Some(plan),
        ports: job.options.ports.clone(),
        transport: job.options.transport,
        in_container: job.reach.container.is_some(),
        ..Cluster::default()
    };
    let found = checks::examine_job(&cluster);
    let shown = found.iter().take(MAX_FINDINGS).map(|folded| {
        let finding = &folded.finding;
        (Some(finding.id.as_str()), finding.message(), finding.hints().into_iter().next())
    });
    let mut warnings: Vec<Warning> = shown.collect();
    let more = found.len().saturating_sub(MAX_FINDINGS);
    if more > 0 {
        let command = match &names[..] {
            names if names.len() <= MAX_HOSTS => format!("rlaunch doctor -H {}", names.join(",")),
            _ => "rlaunch doctor with the same hosts".to_owned(),
        };
        warnings.push((None, format!("{}: {command}", text::count(more, "more finding")), None));
    }
    warnings
}
