//! `rlaunch -H a,b,c -np 3 python train.py`: the command on the head node.

mod agent;
mod args;
mod channel;
mod crew;
mod exit;
mod first_failure;
mod hosts;
mod job;
mod map;
mod master;
mod output;
mod rank_env;
mod refusal;
mod report;
mod session;
mod signals;
mod ssh;
mod waiting;
mod watch;

use args::Args;
use exit::Exit;
use job::JobSpec;
use map::RankMap;
use report::Failed;
use signals::Signals;
use std::process::ExitCode;
use watch::Watch;

fn main() -> ExitCode {
    let args = match Args::parse_or_explain() {
        Ok(args) => args,
        Err(error) => {
            let _ = error.print();
            let asked_for = !error.use_stderr();
            return if asked_for { Exit::SUCCESS } else { Exit::USAGE }.into();
        }
    };
    log_to_stderr(args.verbose);
    let runtime = match tokio::runtime::Runtime::new() {
        Ok(runtime) => runtime,
        Err(error) => {
            Failed::new(Exit::BUG, format!("cannot start: {error}")).print();
            return Exit::BUG.into();
        }
    };
    let exit = runtime.block_on(launch(args)).unwrap_or_else(|failed| {
        failed.print();
        failed.exit
    });
    // Whatever still looks up a name or writes to a stopped terminal is not waited for.
    runtime.shutdown_background();
    exit.into()
}

/// The life of a job.
async fn launch(args: Args) -> Result<Exit, Failed> {
    let job = JobSpec::from_args(args)
        .map_err(|error| Failed::from_error(error.exit(), &error).hint(error.hint()))?;
    let map = RankMap::by_slot(&job.hosts, job.ranks, job.oversubscribe)
        .map_err(|error| Failed::from_error(Exit::USAGE, &error))?;
    map.warn_of_unused();
    let mut signals = Signals::install()
        .map_err(|error| Failed::new(Exit::BUG, format!("cannot catch signals: {error}")))?;
    let (gathering, writer) = crew::assemble(&job, &map);
    let mut crew = unless_ended(gathering.reach(&job, &map), &mut signals).await?;
    let port = unless_ended(crew.prepare(&job, &map), &mut signals).await;
    if let Err(failed) = port.and_then(|port| crew.start(&job, port)) {
        crew.dismiss().await;
        return Err(failed);
    }
    Watch::new(crew, job.kill_after, &mut signals, writer).see_out().await
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

/// `-v` says what happens, `-vv` in detail, `RLAUNCH_LOG` takes a filter of tracing's.
fn log_to_stderr(verbose: u8) {
    use tracing_subscriber::EnvFilter;
    let level = match verbose {
        0 => "warn",
        1 => "rlaunch=info",
        _ => "rlaunch=debug",
    };
    let filter = EnvFilter::try_from_env("RLAUNCH_LOG").unwrap_or_else(|_| EnvFilter::new(level));
    tracing_subscriber::fmt()
        .with_env_filter(filter)
        .with_writer(std::io::stderr)
        .with_ansi(anstream::AutoStream::choice(&std::io::stderr()) != anstream::ColorChoice::Never)
        .with_target(false)
        .init();
}
