//! Run of a job, from its hosts to its exit code. [`run_job`], `run` and `phases` take the steps in order.
//!
//! | files | subject |
//! |---|---|
//! | `job_run` | attempts at a job, with event log and record; `--max-restarts` |
//! | `detach`, `logout` | `--detach`: a launcher that leaves its terminal, and the user's login |
//! | `pump`, `loss` | what happens to an attempt: events of nodes, signals, `--timeout`; how a node was lost |
//! | `nodes`, `session` | all nodes together: connecting, assigning ranks, preparing; the session with one agent |
//! | `rendezvous`, `links` | agents join a tree and RDMA paths are proved; the paths are monitored while ranks run |
//! | `start` | the launcher's stdio, and the order to start ranks |
//! | `preflight_report`, `inventory_check` | why nodes cannot run the job; what inventories show, such as what a container lacks |
//! | `told` | what is said once a day |
//! | `path_check` | RDMA paths proved for `rlaunch doctor` |
//! | `show` | `--show`; `--dry-run` |
//! | `supervisor`, `driver` | the running job: a state machine that decides, and the I/O around it |
//! | `first_failure`, `outcome`, `signals` | the rank that failed first; exit code and message; signals of the user |
//! | `output`, `stdin` | whole lines from many ranks to one terminal; standard input to ranks |
//! | `hang`, `stragglers` | `--hang-timeout`: a job that makes no progress; `--straggler-report`: ranks that are slow |
//! | `live` | the socket at which a running job is asked (`rlaunch jobs`) |
//! | `notify` | `--notify`: a command at the end of the job |
//! | `events`, `record` | `--events`, `--show timing`; files about a job that `rlaunch report` reads |

pub mod detach;
mod driver;
pub mod events;
mod first_failure;
#[cfg(test)]
mod golden_tests;
pub mod hang;
pub mod inventory_check;
pub mod job_run;
mod links;
pub mod live;
mod logout;
mod loss;
mod nodes;
mod notify;
mod outcome;
pub mod output;
pub mod path_check;
#[cfg(test)]
mod phase_tests;
mod preflight_report;
mod pump;
pub mod record;
mod rendezvous;
mod session;
pub mod show;
pub mod signals;
mod start;
mod stdin;
mod stragglers;
mod supervisor;
mod told;

use driver::Ended;
use events::Event;
use job_run::{JobRun, Launch};
use nodes::{PendingStdio, Reached};
use pump::Pump;
use rlaunch_console::{limits, messages};
use rlaunch_plan::map::{self, RankMap};
use rlaunch_text::exit::Exit;
use rlaunch_text::message::Failed;
use signals::Signals;

/// Runs a job, and restarts it after failures as often as `--max-restarts` allows.
pub async fn run_job(launch: Launch) -> Result<Exit, Failed> {
    let mut signals = Signals::install()?;
    let ended = job_run::run_with_restarts(launch, &mut signals).await;
    // Their number decides how long the last messages wait for their reader.
    signals.count_pending().await;
    ended
}

/// Makes one attempt at a job, whose sessions are closed however its phases end.
async fn run(job: &JobRun, signals: &mut Signals) -> Result<Exit, Failed> {
    let map = hosts_to_reach(job)?;
    limits::raise_for(map.nodes.len()).iter().for_each(|warning| messages::warn(warning));
    let (connecting, stdio, mut pump) = nodes::open_sessions(&job.spec, map, signals);
    nodes::check_copies(job, &pump.agents);
    let reached = job.phase("reach", connecting.reach(job, &mut pump)).await;
    let ended = match reached {
        Ok(reached) => phases(job, reached, stdio, &mut pump).await,
        Err(failed) => Err(failed),
    };
    pump.shutdown().await;
    match ended? {
        Some(ended) => ended.conclude(job, signals).await,
        None => Ok(Exit::SUCCESS),
    }
}

/// Takes the phases of an attempt after the first. Returns `None` for a dry run, which starts no rank.
async fn phases(
    job: &JobRun,
    reached: Reached,
    stdio: PendingStdio,
    pump: &mut Pump<'_>,
) -> Result<Option<Ended>, Failed> {
    let reached = reached.assign_ranks(&job.spec, pump)?;
    if job.spec.has_slots_from_gpus() {
        announce(job, &reached.map)?;
    }
    if let Some(tree) = job.take_tree() {
        job.phase("sync", reached.sync(tree, job, pump)).await?;
    }
    let prepared = job.phase("prepare", reached.prepare(job, pump)).await?;
    let joined = job.phase("join", prepared.join(job, pump)).await?;
    joined.show(job, pump).await?;
    if job.spec.dry_run.is_some() {
        return Ok(None);
    }
    let running = joined.start(job, stdio, &pump.agents)?;
    Ok(Some(job.phase("run", running.run_to_completion(job, pump)).await))
}

/// Returns the nodes to connect to: hosts with their ranks, or all hosts without ranks if their GPUs must be
/// counted before ranks can be mapped.
fn hosts_to_reach(job: &JobRun) -> Result<RankMap, Failed> {
    if job.spec.has_slots_from_gpus() {
        return Ok(RankMap::all_hosts(&job.spec.hosts));
    }
    let map = job.spec.map_ranks().map_err(|error| job.spec.mapping_failed(&error))?;
    announce(job, &map)?;
    Ok(map)
}

/// Prints, logs and records the placement of the ranks. Returns an error if `--stdin` names a rank that does
/// not exist.
fn announce(job: &JobRun, map: &RankMap) -> Result<(), Failed> {
    job.spec.stdin.check(map.world_size)?;
    let line = map::placement_line(map, job.spec.map_by, job.spec.oversubscribe);
    messages::print(line.as_slice());
    messages::print(&job.spec.notes(map));
    job.events.status().mapped(map);
    job.events.emit(&Event::job_started(&job.spec, map));
    if let Some(recorder) = &job.recorder {
        recorder.mapped(&job.spec, map);
    }
    Ok(())
}
