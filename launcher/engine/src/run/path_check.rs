//! Proof of the RDMA paths between hosts, without starting a rank: `rlaunch doctor` reports the results.

use super::hosts_to_reach;
use super::job_run::{JobRun, Launch};
use super::nodes::{self, Connecting};
use super::pump::Pump;
use super::signals::Signals;
use rlaunch_bootstrap::protocol::mesh::ProofStep;
use rlaunch_bootstrap::rank_table::{NicId, RankTable};
use rlaunch_plan::findings::CheckId;
use rlaunch_plan::mesh::outcome::{Failure, ProofOutcome};
use rlaunch_plan::mesh::{Mesh, ProofResult, finding_of, hint_of};
use rlaunch_text::message::Failed;
use std::net::IpAddr;

/// RDMA path between two hosts that was tried. Paths are between ports, so there may be several for two hosts.
#[derive(Clone, Debug)]
pub struct TriedPath {
    pub from: PathEnd,
    pub to: PathEnd,
    /// Round-trip time in nanoseconds, or the reason why the path does not work.
    pub outcome: Result<u64, PathFailure>,
}

/// Path whose bandwidth was measured.
#[derive(Clone, Debug)]
pub struct MeasuredPath {
    pub from: PathEnd,
    pub to: PathEnd,
    /// Bandwidth of RDMA writes, in megabits per second.
    pub megabits: u32,
}

/// All paths that were tried, and those that were measured.
#[derive(Clone, Debug)]
pub struct TriedPaths {
    pub paths: Vec<TriedPath>,
    pub measured: Vec<MeasuredPath>,
}

/// End of a path.
#[derive(Clone, Debug)]
pub struct PathEnd {
    pub host: String,
    /// Device and port, as in `mlx5_0/1`.
    pub port: String,
    pub netdev: Option<String>,
    pub address: Option<IpAddr>,
}

/// Reason why a path does not work.
#[derive(Clone, Debug)]
pub struct PathFailure {
    pub finding: CheckId,
    /// Host whose end of the path reported the cause.
    pub host: String,
    /// Step and the system's error, in one line.
    pub cause: String,
    pub hint: Option<String>,
    /// Whether the host failed by itself, before it needed its peer.
    pub is_of_host: bool,
    /// Whether short packets pass.
    pub is_of_size: bool,
}

/// Connects to the hosts of a job, proves the paths between them, and disconnects. With the option `measure` of
/// the mesh, also measures the bandwidth of each cable.
pub async fn try_paths(launch: Launch) -> Result<TriedPaths, Failed> {
    let mut signals = Signals::install()?;
    let job = JobRun::first(launch)?;
    let map = hosts_to_reach(&job)?;
    let (connecting, _stdio, mut pump) = nodes::open_sessions(&job.spec, map, &mut signals);
    let tried = tried(&job, connecting, &mut pump).await;
    pump.shutdown().await;
    tried
}

async fn tried(
    job: &JobRun,
    connecting: Connecting,
    pump: &mut Pump<'_>,
) -> Result<TriedPaths, Failed> {
    let reached = connecting.reach(job, pump).await?;
    let reached = reached.assign_ranks(&job.spec, pump)?;
    let prepared = reached.prepare(job, pump).await?;
    let joined = prepared.join(job, pump).await?;
    let measured = joined.mesh.measured.iter().filter_map(|&(from, to, megabits)| {
        let (from, to) = (path_end(&joined.table, from)?, path_end(&joined.table, to)?);
        Some(MeasuredPath { from, to, megabits })
    });
    Ok(TriedPaths { measured: measured.collect(), paths: paths(&joined.mesh, &joined.table) })
}

fn path_end(table: &RankTable, nic: NicId) -> Option<PathEnd> {
    let node = table.nodes().get(nic.node.index())?;
    let port = node.nics.get(nic.nic as usize)?;
    Some(PathEnd {
        host: node.host.clone(),
        port: format!("{}/{}", port.device, port.port),
        netdev: port.netdev.clone(),
        address: port.address,
    })
}

/// Lists the paths with their last outcome. A path between two ports is listed once.
fn paths(mesh: &Mesh, table: &RankTable) -> Vec<TriedPath> {
    let end = |nic: NicId| path_end(table, nic);
    let mut seen = Vec::new();
    let mut found = Vec::new();
    for result in mesh.results.iter().rev() {
        let nics = result.proof.nics();
        if seen.contains(&nics) {
            continue;
        }
        seen.push(nics);
        let (Some(from), Some(to)) = (end(nics.0), end(nics.1)) else { continue };
        let outcome = match &result.outcome {
            // A lowered MTU means that packets of the port's own MTU were lost.
            ProofOutcome::Up(proof) if !mesh.lowered.contains(&nics) => {
                Ok(proof.round_trip_ns.into())
            }
            ProofOutcome::Up(_) => Err(first_failure(mesh, nics, table)),
            ProofOutcome::Failed(failure) => Err(path_failure(result, failure, table)),
        };
        found.push(TriedPath { from, to, outcome });
    }
    found.reverse();
    found
}

/// Returns the failure because of which the MTU between two NICs was lowered.
fn first_failure(mesh: &Mesh, nics: (NicId, NicId), table: &RankTable) -> PathFailure {
    let mut own = mesh.results.iter().filter(|result| result.proof.nics() == nics);
    let failed = own.find_map(|result| match &result.outcome {
        ProofOutcome::Failed(failure) => Some(path_failure(result, failure, table)),
        ProofOutcome::Up(_) => None,
    });
    failed.unwrap_or_else(|| PathFailure {
        finding: rlaunch_plan::findings::id::MTU_PATH,
        host: String::new(),
        cause: String::new(),
        hint: None,
        is_of_host: false,
        is_of_size: true,
    })
}

fn path_failure(result: &ProofResult, failure: &Failure, table: &RankTable) -> PathFailure {
    let host = table.nodes().get(failure.node.index()).map_or("", |row| &row.host);
    let fault = &failure.fault;
    PathFailure {
        finding: finding_of(failure),
        host: host.to_owned(),
        cause: format!("{}: {}", fault.step, fault.cause),
        hint: hint_of(table, &result.proof, failure),
        is_of_host: fault.step == ProofStep::Prepare && !fault.awaited_peer,
        is_of_size: failure.is_of_size(),
    }
}
