//! `rlaunch -H a,b,c -np 3 python train.py`: the command on the head node.

#![cfg_attr(not(test), warn(clippy::print_stdout, clippy::print_stderr))]

mod agent;
mod apps;
mod args;
mod ask;
mod bench;
mod callback;
mod capture;
mod channel;
mod columns;
mod conclusion;
mod crew;
mod env_style;
mod events;
mod exit;
mod figures;
mod first_failure;
#[cfg(test)]
mod goldens;
mod held_ports;
mod horovod;
mod hostfile;
mod hosts;
mod job;
mod landing;
mod log;
mod map;
mod mesh;
mod mpijob;
mod nccl;
mod oob;
mod output;
mod placement;
mod rank_env;
mod reach;
mod reap;
mod record;
#[cfg(test)]
mod recorded;
mod refusal;
mod rendezvous;
mod report;
mod route;
mod selection;
mod session;
mod setup;
mod show;
mod signals;
mod ssh;
mod ssh_config;
mod ssh_setup;
mod table;
mod topo;
mod verdict;
mod waiting;
mod watch;

use apps::Order;
use args::{Args, BenchArgs, Invocation};
use crew::Crew;
use events::Record;
use exit::Exit;
use job::JobSpec;
use map::RankMap;
use mesh::LinkWatch;
use record::JobRecord;
use rendezvous::{Joined, Relay};
use report::Failed;
use rlaunch_bootstrap::client::command;
use signals::Signals;
use std::process::ExitCode;
use std::time::Instant;
use tracing::Instrument;
use watch::Watch;

fn main() -> ExitCode {
    let invocation = match Invocation::parse_or_explain() {
        Ok(invocation) => invocation,
        Err(error) => {
            let _ = error.print();
            let asked_for = !error.use_stderr();
            return if asked_for { Exit::SUCCESS } else { Exit::USAGE }.into();
        }
    };
    if let Invocation::Run(args) = &invocation {
        let output = &args.output;
        log::to_stderr(output.verbose, output.log_level, output.log_json);
    }
    let runtime = match runtime() {
        Ok(runtime) => runtime,
        Err(error) => {
            Failed::new(Exit::BUG, format!("cannot start: {error}")).print();
            return Exit::BUG.into();
        }
    };
    let ended = match invocation {
        Invocation::Run(args) => runtime.block_on(launch(*args)),
        Invocation::Reap(args) => runtime.block_on(reap::reap(args)),
        Invocation::Topo(args) => runtime.block_on(topo::topo(args)),
        Invocation::Capture(args) => runtime.block_on(capture::capture(args)),
        Invocation::Bench(args) => runtime.block_on(measure(*args)),
        Invocation::Train(args) => runtime.block_on(bench::train::train(*args)),
        Invocation::Report(args) => verdict::report(&args),
        Invocation::SshConfig(args) => ssh_config::ssh_config(&args),
        Invocation::SshSetup(args) => runtime.block_on(ssh_setup::ssh_setup(args)),
        Invocation::OfRank(words) => return command::run(words.into_iter()),
    };
    let exit = ended.unwrap_or_else(|failed| {
        failed.print();
        failed.exit
    });
    ssh::passphrase::restore_terminal();
    // Whatever still looks up a name or writes to a stopped terminal is not waited for.
    runtime.shutdown_background();
    exit.into()
}

/// A few threads do: what costs time is cryptography, and what costs memory is every thread's own
/// heap.
fn runtime() -> std::io::Result<tokio::runtime::Runtime> {
    const MOST_THREADS: usize = 4;
    let threads = std::thread::available_parallelism().map_or(1, usize::from).min(MOST_THREADS);
    tokio::runtime::Builder::new_multi_thread().worker_threads(threads).enable_all().build()
}

/// The life of a job.
async fn launch(args: Args) -> Result<Exit, Failed> {
    live(specify(args)?).await
}

/// That of one that measures.
async fn measure(args: BenchArgs) -> Result<Exit, Failed> {
    let (args, what) = bench::job(args)?;
    let job = specify(args)?;
    bench::check(&job, what)?;
    live(job).await
}

fn specify(args: Args) -> Result<JobSpec, Failed> {
    JobSpec::from_args(args)
        .map_err(|error| Failed::from_error(error.exit(), &error).hint(error.hint()))
}

async fn live(job: JobSpec) -> Result<Exit, Failed> {
    let (ended, _record) = live_recorded(&job).await;
    ended
}

/// The same; with what it leaves, unless it is to leave nothing.
async fn live_recorded(job: &JobSpec) -> (Result<Exit, Failed>, Option<JobRecord>) {
    let ended = run(job).instrument(tracing::info_span!("job", id = %job.id)).await;
    job.events.emit(&Record::job_ended(&ended));
    let record = job.recorder.as_ref().and_then(|recorder| recorder.finish(job, &ended));
    if let Some(record) = &record {
        record::store::keep_or_warn(record);
    }
    (ended, record)
}

/// From a job to how it ended.
async fn run(job: &JobSpec) -> Result<Exit, Failed> {
    let map = job.map_ranks().map_err(|error| Failed::from_error(Exit::USAGE, &error))?;
    map.warn_of_unused();
    job.events.emit(&Record::job_started(job, &map));
    let mut signals = Signals::install()
        .map_err(|error| Failed::new(Exit::BUG, format!("cannot catch signals: {error}")))?;
    let (gathering, writer, departures) = crew::assemble(job, &map);

    let reaching = job.phase("reach", gathering.reach(job, &map));
    let mut crew = match unless_ended(reaching, &mut signals).await {
        Ok(crew) => crew,
        Err(failed) => {
            departures.all().await;
            return Err(failed);
        }
    };
    let meeting = meet(job, &map, &mut crew);
    let (relay, links) = match unless_ended(meeting, &mut signals).await {
        Ok(met) => met,
        Err(failed) => {
            crew.dismiss().await;
            return Err(failed);
        }
    };
    let order = Order::of(job, &map, Instant::now());
    let watch = Watch::new(job, crew, (relay, links), order, &mut signals, writer);
    job.phase("run", watch.see_out()).await
}

/// From agents that know nothing to ranks that run.
async fn meet(job: &JobSpec, map: &RankMap, crew: &mut Crew) -> Result<(Relay, LinkWatch), Failed> {
    let prepared = job.phase("prepare", crew.prepare(job, map)).await?;
    let joined = job.phase("join", crew.join(job, map, &prepared)).await?;
    show::print(job, map, &joined).await;
    crew.start(job, map, &joined)?;
    let links = LinkWatch::over(&joined.mesh, &joined.table, &job.options.mesh);
    let Joined { relay, table, setups, libraries, .. } = joined;
    if let Some(recorder) = &job.recorder {
        recorder.decided(table, setups, libraries);
    }
    Ok((relay, links))
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
