//! Run of a job, from its hosts to its exit code. [`run_job`], `run` and `start_ranks` take the steps in
//! order.
//!
//! | files | subject |
//! |---|---|
//! | `job_run` | attempts at a job, with event log and record; `--max-restarts` |
//! | `nodes`, `session` | all nodes together: connecting, assigning ranks, preparing, starting; the launcher's stdio; the session with one agent |
//! | `rendezvous`, `links` | agents join a tree and RDMA paths are proved; the paths are monitored while ranks run |
//! | `preflight_report`, `inventory_check` | why nodes cannot run the job; what inventories show, such as what a container lacks |
//! | `helper_upload` | programs that nodes need for the proof of paths, and for stacks |
//! | `path_check` | RDMA paths proved for `rlaunch doctor` |
//! | `show` | `--show`; `--dry-run` |
//! | `supervisor`, `driver` | the running job: a state machine that decides, and the I/O around it |
//! | `outcome`, `signals` | the rank that failed first, exit code and message; signals of the user |
//! | `output`, `stdin` | whole lines from many ranks to one terminal; standard input to ranks |
//! | `hang`, `stragglers` | `--hang-timeout`: a job that makes no progress; `--straggler-report`: ranks that are slow |
//! | `live` | the socket at which a running job is asked (`rlaunch jobs`) |
//! | `events`, `record` | `--events`; files about a job that `rlaunch report` reads |

mod driver;
pub mod events;
#[cfg(test)]
mod golden_tests;
pub mod hang;
mod helper_upload;
pub mod inventory_check;
pub mod job_run;
mod links;
pub mod live;
mod nodes;
mod outcome;
pub mod output;
pub mod path_check;
mod preflight_report;
pub mod record;
mod rendezvous;
mod session;
pub mod show;
pub mod signals;
mod stdin;
mod stragglers;
mod supervisor;

use events::Event;
use job_run::{JobRun, Launch, StartFacts};
use links::LinkMonitor;
use nodes::{Nodes, PendingStdio};
use rendezvous::Joined;
use rlaunch_console::{messages, open_files};
use rlaunch_plan::job::apps::StartOrder;
use rlaunch_plan::map::{self, RankMap};
use rlaunch_text::exit::Exit;
use rlaunch_text::message::Failed;
use show::ShownPlan;
use signals::Signals;
use std::io::{self, IsTerminal};
use std::time::Instant;
use supervisor::PhaseStates;

/// Runs a job, and restarts it after failures as often as `--max-restarts` allows.
pub async fn run_job(launch: Launch) -> Result<Exit, Failed> {
    let mut signals = Signals::install()?;
    let ended = job_run::run_with_restarts(launch, &mut signals).await;
    // Their number decides how long the last messages wait for their reader.
    signals.take_pending().await;
    ended
}

/// Takes the steps of one attempt at a job.
async fn run(job: &JobRun, signals: &mut Signals) -> Result<Exit, Failed> {
    let map = hosts_to_reach(job)?;
    open_files::raise_for(map.nodes.len()).iter().for_each(|warning| messages::warn(warning));
    let (connecting, stdio, sessions_closed) = nodes::prepare_sessions(&job.spec, &map);

    let reaching = job.phase("reach", connecting.reach(job, &map));
    let mut nodes = match unless_ended(reaching, signals).await {
        Ok(nodes) => nodes,
        Err(failed) => {
            sessions_closed.shutdown().await;
            return Err(failed);
        }
    };
    let starting = start_ranks(job, map, &mut nodes, stdio);
    let started = match unless_ended(starting, signals).await {
        Ok(Some(started)) => started,
        Ok(None) => {
            nodes.shutdown().await;
            return Ok(Exit::SUCCESS);
        }
        Err(failed) => {
            nodes.shutdown().await;
            return Err(failed);
        }
    };
    job.phase("run", driver::run_to_completion(job, nodes, started, signals)).await
}

/// Returns the nodes to connect to: hosts with their ranks, or all hosts without ranks if their GPUs must be
/// counted before ranks can be mapped.
fn hosts_to_reach(job: &JobRun) -> Result<RankMap, Failed> {
    if job.spec.has_slots_from_gpus() {
        return Ok(RankMap::all_hosts(&job.spec.hosts));
    }
    let map = job.spec.map_ranks().map_err(|error| Failed::from_error(Exit::USAGE, &error))?;
    announce(job, &map)?;
    Ok(map)
}

/// Prints, logs and records the placement of the ranks. Returns an error if `--stdin` names a rank that does
/// not exist.
fn announce(job: &JobRun, map: &RankMap) -> Result<(), Failed> {
    job.spec.stdin.check(map.world_size)?;
    let line = map::placement_line(map, job.spec.map_by, io::stderr().is_terminal());
    messages::print(line.as_slice());
    job.events.status().mapped(map);
    job.events.emit(&Event::job_started(&job.spec, map));
    if let Some(recorder) = &job.recorder {
        recorder.mapped(map);
    }
    Ok(())
}

/// Parts of a job that exist once its ranks are being started.
struct Started {
    writer: output::OutputWriter,
    phase_states: PhaseStates,
    master_port: u16,
}

/// Prepares the nodes that were reached, joins them in a tree and starts their ranks. Returns `None` for a
/// dry run, which starts no rank.
async fn start_ranks(
    job: &JobRun,
    reached: RankMap,
    nodes: &mut Nodes,
    stdio: PendingStdio,
) -> Result<Option<Started>, Failed> {
    let map = nodes.assign_ranks(&job.spec, reached)?;
    if job.spec.has_slots_from_gpus() {
        announce(job, &map)?;
    }
    let prepared = job.phase("prepare", nodes.prepare(job, &map)).await?;
    let joined = job.phase("join", nodes.join(job, &map, &prepared)).await?;
    let Joined { table, mesh, rank_configs, libraries, .. } = &joined;
    let shown = ShownPlan {
        job: &job.spec,
        map: &map,
        inventories: &prepared.inventories,
        table,
        mesh,
        rank_configs,
        libraries,
    };
    show::print(&shown).await;
    if job.spec.dry_run.is_some() {
        return Ok(None);
    }
    if let Some(facts) = &job.facts {
        let (table, inventories) = (joined.table.clone(), prepared.inventories.clone());
        // An error would mean a second call, which an attempt does not make.
        let _ = facts.set(StartFacts { table, inventories });
    }
    let writer = nodes.open_stdio(job, &map, stdio)?;
    let order = StartOrder::new(&job.spec, &map, Instant::now());
    nodes.order_start(&job.spec, &map, &joined)?;
    let Joined { relay, master: (_, master_port), table, mesh, rank_configs, libraries, .. } =
        joined;
    let links = LinkMonitor::new(&mesh, &table, &job.spec.options.mesh, Instant::now());
    if let Some(recorder) = &job.recorder {
        recorder.starting(table, rank_configs, libraries);
    }
    let phase_states = PhaseStates { relay, links, order };
    Ok(Some(Started { writer, phase_states, master_port }))
}

/// Runs a stage of the job before ranks are started. Returns an error if the user ends the job meanwhile.
async fn unless_ended<T>(
    stage: impl Future<Output = Result<T, Failed>>,
    signals: &mut Signals,
) -> Result<T, Failed> {
    tokio::select! {
        done = stage => done,
        signal = signals.end() => {
            let message = format!("ended by {signal} before any rank was started");
            Err(Failed::new(Exit::signal(signal as i32), message))
        }
    }
}
