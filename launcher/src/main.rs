//! `rlaunch -H a,b,c -np 3 python train.py`: the command on the head node.

#![cfg_attr(not(test), warn(clippy::print_stdout, clippy::print_stderr))]

mod cli;
mod commands;
mod connect;
mod console;
#[cfg(test)]
mod goldens;
mod hosts;
mod job;
mod plan;
#[cfg(test)]
mod recorded;
mod run;
mod ssh;

use cli::args::{Args, BenchArgs, Invocation};
use cli::config::Found;
use cli::{help, listing, manual};
use commands::{bench, capture, reap, ssh_config, ssh_setup, topo, trust, verdict};
use console::exit::Exit;
use console::report::Failed;
use console::{log, open_files, report};
use job::JobSpec;
use job::apps::Order;
use plan::map::RankMap;
use plan::placement_line;
use rlaunch_bootstrap::client::command;
use run::crew::{Crew, Streams};
use run::dry_run::DryRun;
use run::events::Record;
use run::mesh::LinkWatch;
use run::record::JobRecord;
use run::rendezvous::{Joined, Relay};
use run::signals::Signals;
use run::watch::Watch;
use run::{crew, dry_run, output, record, restart, show};
use std::process::ExitCode;
use std::time::Instant;
use tracing::Instrument;

fn main() -> ExitCode {
    let invocation = match Invocation::parse_or_explain() {
        Ok(invocation) => invocation,
        Err(misread) => return misread.print().into(),
    };
    if let Invocation::Run(args) = &invocation {
        let output = &args.output;
        if output.quiet {
            report::be_quiet();
        }
        let errors = output.quiet.then_some(tracing::Level::ERROR);
        log::to_stderr(output.verbose, output.log_level.or(errors), output.log_json);
        args.reach.config.found.log();
    }
    let found = invocation.found();
    found.and_then(Found::warning).iter().for_each(|line| report::warn(line));
    let untrusted = found.and_then(Found::trust_hint);
    if let Err(failed) = open_files::begin() {
        failed.print();
        return failed.exit.into();
    }
    let runtime = match runtime() {
        Ok(runtime) => runtime,
        Err(error) => {
            let message = format!("cannot start: {error}");
            let hint = open_files::hint(&message);
            Failed::new(Exit::BUG, message).hint(hint).print();
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
        Invocation::Hostfile(args) => listing::print(&args),
        Invocation::SshConfig(args) => ssh_config::ssh_config(&args),
        Invocation::Completions(args) => manual::completions(&args),
        Invocation::Man(args) => manual::man(&args),
        Invocation::Trust(args) => trust::trust(&args),
        Invocation::Help(args) => help::help(&args),
        Invocation::SshSetup(args) => runtime.block_on(ssh_setup::ssh_setup(args)),
        Invocation::OfRank(words) => return command::run(words.into_iter()),
    };
    let exit = ended.unwrap_or_else(|failed| {
        let failed = if failed.by_rank { failed } else { failed.hint(untrusted) };
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
    let job = specify(args)?;
    match job.dry_run {
        Some(DryRun::Offline) => dry_run::offline(&job),
        Some(DryRun::Agents) | None => live(job).await,
    }
}

/// That of one that measures.
async fn measure(args: BenchArgs) -> Result<Exit, Failed> {
    let (args, what) = bench::job(args)?;
    let job = specify(args)?;
    bench::check(&job, what)?;
    live(job).await
}

fn specify(args: Args) -> Result<JobSpec, Failed> {
    let not_typed = args.reach.config.found.hint();
    JobSpec::from_args(args).map_err(|error| {
        Failed::from_error(error.exit(), &error).hint(error.hint()).hint(not_typed)
    })
}

async fn live(job: JobSpec) -> Result<Exit, Failed> {
    restart::see_through(job, &mut Signals::install()?).await
}

/// One attempt at a job; with what it leaves, unless it is to leave nothing.
async fn live_recorded(
    job: &JobSpec,
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
async fn run(job: &JobSpec, signals: &mut Signals) -> Result<Exit, Failed> {
    let wanted = whom_to_reach(job)?;
    open_files::allow(wanted.nodes.len());
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
fn whom_to_reach(job: &JobSpec) -> Result<RankMap, Failed> {
    if job.has_open_slots() {
        return Ok(RankMap::unsettled(&job.hosts));
    }
    let map = job.map_ranks().map_err(|error| Failed::from_error(Exit::USAGE, &error))?;
    announce(job, &map)?;
    Ok(map)
}

/// Once it is known where ranks run, whoever wants to know is told.
fn announce(job: &JobSpec, map: &RankMap) -> Result<(), Failed> {
    job.stdin.check(map.world_size)?;
    placement_line::print(map, job.map_by);
    job.events.emit(&Record::job_started(job, map));
    if let Some(recorder) = &job.recorder {
        recorder.mapped(map);
    }
    Ok(())
}

/// What has begun with the ranks.
struct Met {
    writer: output::Writer,
    relay: Relay,
    links: LinkWatch,
    order: Order,
    master_port: u16,
}

/// From agents that know nothing to ranks that run; `None` where none is to.
async fn meet(
    job: &JobSpec,
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
