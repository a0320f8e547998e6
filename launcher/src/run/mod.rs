//! The life of a job, from agents that know nothing to how it ended: [`live`], `run` and `meet`.
//!
//! | files | subject |
//! |---|---|
//! | `job_run`, `restart` | a job that is being run, with its events and its record; `--max-restarts` |
//! | `crew`, `session` | all nodes together: reached, prepared, started; a node's life on its channel |
//! | `rendezvous`, `mesh` | the tree of agents comes about; the mesh is proved and watched |
//! | `preflight_report`, `container_check` | why nodes cannot run the job; what a container lacks |
//! | `show`, `dry_run` | `--show`; `--dry-run` |
//! | `watch`, `first_failure`, `conclusion`, `signals` | the running job, its first failure, its end in words, signals |
//! | `output`, `stdin` | whole lines from many ranks to one terminal; standard input to ranks |
//! | `events`, `record` | `--events`; what is left of a job |

pub(crate) mod conclusion;
pub(crate) mod container_check;
pub(crate) mod crew;
pub(crate) mod dry_run;
pub(crate) mod events;
pub(crate) mod first_failure;
pub(crate) mod job_run;
pub(crate) mod mesh;
pub(crate) mod output;
pub(crate) mod preflight_report;
pub(crate) mod record;
pub(crate) mod rendezvous;
pub(crate) mod restart;
pub(crate) mod session;
pub(crate) mod show;
pub(crate) mod signals;
pub(crate) mod stdin;
pub(crate) mod watch;

use crate::job::JobSpec;
use crate::job::apps::Order;
use crate::plan::map::RankMap;
use crate::plan::placement_line;
use crew::{Crew, Streams};
use events::Record;
use job_run::JobRun;
use mesh::LinkWatch;
use record::JobRecord;
use rendezvous::{Joined, Relay};
use rlaunch_console::exit::Exit;
use rlaunch_console::messages::Failed;
use rlaunch_console::open_files;
use signals::Signals;
use std::time::Instant;
use tracing::Instrument;
use watch::Watch;

/// Lives a job, and further attempts at it where it may begin again.
pub(crate) async fn live(job: JobSpec) -> Result<Exit, Failed> {
    restart::see_through(job, &mut Signals::install()?).await
}

/// One attempt at a job; with what it leaves, unless it is to leave nothing.
pub(crate) async fn live_recorded(
    job: &JobRun,
    signals: &mut Signals,
) -> (Result<Exit, Failed>, Option<JobRecord>) {
    let ended = run(job, signals).instrument(tracing::info_span!("job", id = %job.id)).await;
    job.events.emit(&Record::job_ended(&ended));
    let record = job.recorder.as_ref().and_then(|recorder| recorder.finish(job, &ended));
    if let Some(record) = &record {
        record::store::keep_or_warn(record);
    }
    (ended, record)
}

/// From a job to how it ended.
async fn run(job: &JobRun, signals: &mut Signals) -> Result<Exit, Failed> {
    let wanted = whom_to_reach(job)?;
    open_files::raise_for(wanted.nodes.len());
    let (gathering, streams, departures) = crew::assemble(job, &wanted);

    let reaching = job.phase("reach", gathering.reach(job, &wanted));
    let mut crew = match unless_ended(reaching, signals).await {
        Ok(crew) => crew,
        Err(failed) => {
            departures.all().await;
            return Err(failed);
        }
    };
    let meeting = meet(job, wanted, &mut crew, streams);
    let met = match unless_ended(meeting, signals).await {
        Ok(Some(met)) => met,
        Ok(None) => {
            crew.dismiss().await;
            return Ok(Exit::SUCCESS);
        }
        Err(failed) => {
            crew.dismiss().await;
            return Err(failed);
        }
    };
    job.phase("run", Watch::new(job, crew, met, signals).see_out()).await
}

/// The nodes of the ranks; or every host, where it takes their GPUs to know how many ranks they run.
fn whom_to_reach(job: &JobRun) -> Result<RankMap, Failed> {
    if job.has_open_slots() {
        return Ok(RankMap::unsettled(&job.hosts));
    }
    let map = job.map_ranks().map_err(|error| Failed::from_error(Exit::USAGE, &error))?;
    announce(job, &map)?;
    Ok(map)
}

/// Once it is known where ranks run, whoever wants to know is told.
fn announce(job: &JobRun, map: &RankMap) -> Result<(), Failed> {
    job.stdin.check(map.world_size)?;
    placement_line::print(map, job.map_by);
    job.events.emit(&Record::job_started(job, map));
    if let Some(recorder) = &job.recorder {
        recorder.mapped(map);
    }
    Ok(())
}

/// Parts of a job that begin with its ranks.
pub(crate) struct Met {
    pub(crate) writer: output::Writer,
    pub(crate) relay: Relay,
    pub(crate) links: LinkWatch,
    pub(crate) order: Order,
    pub(crate) master_port: u16,
}

/// From agents that know nothing to ranks that run; `None` where none is to.
async fn meet(
    job: &JobRun,
    reached: RankMap,
    crew: &mut Crew,
    streams: Streams,
) -> Result<Option<Met>, Failed> {
    let map = crew.settle(job, reached)?;
    if job.has_open_slots() {
        announce(job, &map)?;
    }
    let prepared = job.phase("prepare", crew.prepare(job, &map)).await?;
    let joined = job.phase("join", crew.join(job, &map, &prepared)).await?;
    show::print(job, &map, &joined).await;
    if job.dry_run.is_some() {
        return Ok(None);
    }
    let writer = crew.open(job, &map, streams)?;
    let order = Order::of(job, &map, Instant::now());
    crew.start(job, &map, &joined)?;
    let links = LinkWatch::over(&joined.mesh, &joined.table, &job.options.mesh);
    let Joined { relay, master: (_, master_port), table, setups, libraries, .. } = joined;
    if let Some(recorder) = &job.recorder {
        recorder.decided(table, setups, libraries);
    }
    Ok(Some(Met { writer, relay, links, order, master_port }))
}

/// Goes on with `stage` until the user wants the job to end.
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
