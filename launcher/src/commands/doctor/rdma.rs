//! RDMA paths between hosts, tried by the same proof that each job makes.

use super::{Examination, ProbeWhen};
use rlaunch_bootstrap::inventory::Inventory;
use rlaunch_bootstrap::job::WorkingDir;
use rlaunch_console::messages;
use rlaunch_engine::connect::connector::Reach;
use rlaunch_engine::run::job_run::{Launch, Stdio, new_identity};
use rlaunch_engine::run::path_check::{self, MeasuredPath, PathEnd, PathFailure, TriedPath};
use rlaunch_plan::checks::cluster::{Probe, ProbeKind, ProbeOutcome, Proof, ProofFailure};
use rlaunch_plan::hosts::Host;
use rlaunch_plan::job::apps::AppSpec;
use rlaunch_plan::job::name::JobName;
use rlaunch_plan::job::{Identity, JobSpec};
use rlaunch_plan::limit::Limit;
use rlaunch_plan::map::MapBy;
use rlaunch_plan::options::{MeshMode, Preflight};
use rlaunch_plan::selection::{Plan, PortOptions};
use rlaunch_text::exit::Exit;
use rlaunch_text::message::Failed;
use std::time::Duration;

/// Result of the proof where there is nothing to prove.
pub(super) const NO_PATHS: Proof =
    Proof::NotApplicable("no two hosts have RDMA ports that reach each other");

/// Tries all RDMA paths between the hosts, and adds the outcomes to the probes and what came of the proof to the
/// examination.
pub(super) async fn try_paths(
    (probe, limit): (ProbeWhen, Duration),
    hosts: &[Host],
    reach: Reach,
    examination: &mut Examination,
) {
    let inventories: Vec<Inventory> =
        examination.hosts.iter().map(|host| host.diagnosis.inventory.clone()).collect();
    let plan = Plan::new(&inventories, &PortOptions::default());
    examination.proof = if examination.probes.is_none() {
        Proof::NotRun("probes (--probe)".to_owned())
    } else if !examination.unreached.is_empty() {
        Proof::NotRun("every host to be reached".to_owned())
    } else if !plan.connects_any() {
        NO_PATHS
    } else {
        match job(hosts, reach, probe == ProbeWhen::Always) {
            Ok(mut launch) => {
                launch.spec.options.mesh.timeout = limit;
                prove(launch, &inventories, &plan, examination).await
            }
            Err(failed) => Proof::NotRun(failed.message),
        }
    };
}

/// Makes the job whose start proves the paths: one rank on each host. Its program is never started.
fn job(hosts: &[Host], reach: Reach, measure: bool) -> Result<Launch, Failed> {
    let identity = new_identity().map_err(|error| Failed::from_error(Exit::USAGE, &error))?;
    let app = AppSpec::new(vec!["true".into()], WorkingDir::SameAsLauncher("/".into()));
    let identity = Identity { name: JobName::of_verb("doctor"), ..identity };
    let mut job = JobSpec::new(identity, hosts.to_vec(), app);
    job.map_by = MapBy::Ppr(1);
    job.options.map_by = job.map_by;
    job.options.preflight = Preflight::Off;
    job.options.mesh.mode = MeshMode::Full;
    // Measuring takes the whole bandwidth from other jobs, so the user has to ask for it.
    job.options.mesh.measure = measure;
    Ok(Launch { spec: job, reach, stdio: Stdio::Stderr, detaching: None, tree: None })
}

async fn prove(
    launch: Launch,
    inventories: &[Inventory],
    plan: &Plan,
    examination: &mut Examination,
) -> Proof {
    let tried = {
        // The report says what the job would say.
        let _quiet = messages::quiet();
        path_check::try_paths(launch).await
    };
    let tried = match tried {
        Ok(tried) => tried,
        Err(failed) => {
            messages::warn(&format!("RDMA paths were not tried: {}", failed.message));
            return Proof::NotRun(failed.message);
        }
    };
    let names: Vec<String> = examination.hosts.iter().map(|host| host.name.clone()).collect();
    let limit = |host: usize, port: &str| limit(inventories, plan, host, port);
    let measured = tried.measured.iter().filter_map(|path| measured_probe(path, &names, limit));
    let proved = tried.paths.iter().flat_map(|path| probes(path, &names));
    examination.probes.get_or_insert_default().extend(proved.chain(measured));
    // Data goes both ways on each.
    Proof::Tried { paths: tried.paths.len() * 2 }
}

/// Returns the rate of data that the port `DEVICE/PORT` of a host can carry, in megabits per second.
fn limit(inventories: &[Inventory], plan: &Plan, host: usize, port: &str) -> Option<u32> {
    let ports = plan.ports.get(host)?.iter();
    let port = ports.into_iter().find(|p| format!("{}/{}", p.nic.device, p.nic.port) == port)?;
    Limit::new(inventories.get(host)?, &port.nic, None).map(|limit| limit.usable)
}

/// Makes the probe of a measured path. `limit` returns the limit of a host's port.
fn measured_probe(
    path: &MeasuredPath,
    names: &[String],
    limit: impl Fn(usize, &str) -> Option<u32>,
) -> Option<Probe> {
    let index = |host: &str| names.iter().position(|name| name == host);
    let (from, to) = (index(&path.from.host)?, index(&path.to.host)?);
    let limits = limit(from, &path.from.port).zip(limit(to, &path.to.port));
    Some(Probe {
        from,
        to,
        kind: ProbeKind::Bandwidth { limit: limits.map(|(one, other)| one.min(other)) },
        netdev: path.from.netdev.clone().or_else(|| Some(path.from.port.clone())),
        address: path.to.address,
        outcome: ProbeOutcome::Worked(path.megabits.into()),
    })
}

/// Makes a probe for each direction of a path. One that failed has a probe from the end that says why.
fn probes(path: &TriedPath, names: &[String]) -> Vec<Probe> {
    let index = |host: &str| names.iter().position(|name| name == host);
    let (Some(from), Some(to)) = (index(&path.from.host), index(&path.to.host)) else {
        return Vec::new();
    };
    let outcome = match &path.outcome {
        Ok(nanos) => ProbeOutcome::Worked(nanos / 1000),
        Err(failure) if failure.is_of_size => ProbeOutcome::OnlyShort,
        Err(failure) => ProbeOutcome::Unproved(unproved(failure)),
    };
    let probe = |from, to, own: &PathEnd, other: &PathEnd| Probe {
        from,
        to,
        kind: ProbeKind::Rdma,
        netdev: own.netdev.clone().or_else(|| Some(own.port.clone())),
        address: other.address,
        outcome: outcome.clone(),
    };
    let both = [probe(from, to, &path.from, &path.to), probe(to, from, &path.to, &path.from)];
    match &path.outcome {
        Err(failure) if !failure.is_of_size => {
            let is_told_by_peer = failure.host == path.to.host;
            both.into_iter().skip(usize::from(is_told_by_peer)).take(1).collect()
        }
        _ => both.into(),
    }
}

fn unproved(failure: &PathFailure) -> ProofFailure {
    let PathFailure { finding, cause, hint, is_of_host, .. } = failure.clone();
    ProofFailure { finding, cause, hint, is_of_host }
}

#[cfg(test)]
mod tests {
    use super::*;
    use rlaunch_plan::findings::id;

    fn path(outcome: Result<u64, PathFailure>) -> TriedPath {
        let end = |host: &str, netdev: &str, address: &str| PathEnd {
            host: host.into(),
            port: "mlx5_0/1".into(),
            netdev: Some(netdev.into()),
            address: address.parse().ok(),
        };
        TriedPath { from: end("a", "eth1", "10.0.0.1"), to: end("b", "eth2", "10.0.0.2"), outcome }
    }

    fn failure(is_of_size: bool) -> PathFailure {
        PathFailure {
            finding: id::LIM_MEMLOCK,
            host: "b".into(),
            cause: "prepare: mlx5_0: ibv_reg_mr: memory may not be locked".into(),
            hint: Some("raise the limit".into()),
            is_of_host: true,
            is_of_size,
        }
    }

    #[test]
    fn a_failed_path_is_told_by_the_end_that_knows_why() {
        let names = ["a".to_owned(), "b".to_owned()];
        let probes = |outcome| super::probes(&path(outcome), &names);
        let worked = probes(Ok(41_000));
        assert_eq!(worked.iter().map(|probe| probe.from).collect::<Vec<_>>(), [0, 1]);
        assert_eq!(worked[0].outcome, ProbeOutcome::Worked(41));
        assert_eq!(probes(Err(failure(true))).len(), 2);
        let [failed] = &probes(Err(failure(false)))[..] else { panic!("one probe") };
        assert_eq!((failed.from, failed.to, failed.netdev.as_deref()), (1, 0, Some("eth2")));
        let ProbeOutcome::Unproved(told) = &failed.outcome else { panic!("{failed:?}") };
        assert!(
            told.finding == id::LIM_MEMLOCK
                && told.cause.starts_with("prepare: mlx5_0: ibv_reg_mr")
        );
    }
}
