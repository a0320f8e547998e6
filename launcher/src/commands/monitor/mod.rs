//! `rlaunch monitor`: what a running job or hosts do, at a terminal and for Prometheus.
//!
//! | file | subject |
//! |---|---|
//! | `mod.rs` | options; which of the three forms is wanted |
//! | `sample` | where samples come from: a job's launcher, or agents on hosts; the figures between two of them |
//! | `tables` | figures as text |
//! | `page`, `state` | the page at a terminal, which is drawn again and again; what keys change |
//! | `view`, `grid` | its lines; bars, sparklines, and tables that fit |
//! | `history` | the last minute, for sparklines, and the last lines of output |
//! | `prometheus` | a sample in Prometheus's format; the answers to its scrapes |

mod grid;
mod history;
mod page;
mod prometheus;
mod sample;
mod state;
mod tables;
mod view;

use super::agent_session;
use super::found::{self, FoundJob, live_failure};
use super::stop::end_line;
use crate::cli::args::{ConnectArgs, HostListArgs, values};
use crate::cli::command_line::CommandLine;
use crate::cli::host_selection::HostOptions;
use clap::Parser;
use page::PageEnd;
use rlaunch_console::{messages, stdout};
use rlaunch_engine::run::live::client::{LiveError, RunningJob};
use rlaunch_engine::run::signals::ended_by;
use rlaunch_text::exit::Exit;
use rlaunch_text::message::Failed;
use sample::Source;
use std::io::{self, IsTerminal};
use std::net::{Ipv4Addr, SocketAddr};
use std::time::Duration;
use tokio::net::TcpListener;

/// Watch CPUs, memory, and the traffic of RDMA ports and interfaces, of a job or of hosts.
///
/// At a terminal this is a live page, with graphs of the last minute, and keys that show the
/// output of the job or the stack of a rank, open a shell in its place, or end the job; `?` lists them. Traffic comes
/// from the counters of the hardware: bytes and packets per second, and bytes per packet. JOB is its name
/// or id; it may be left out while one job runs here.
#[derive(Debug, Parser)]
#[command(after_help = "\
Examples:
  rlaunch monitor                            the only running job
  rlaunch monitor -H a,b                     hosts, with or without a job
  rlaunch monitor --once                     one table, as text
  rlaunch monitor --listen 127.0.0.1:9101    the same for Prometheus, at /metrics")]
pub(crate) struct MonitorArgs {
    /// Name or id of the job, or the beginning of either; `last` is the newest
    #[arg(
        value_name = "JOB",
        conflicts_with = "hosts",
        allow_negative_numbers = true,
        value_parser = values::parse_listed_job
    )]
    pub(crate) job: Option<String>,

    #[command(flatten)]
    pub(crate) hosts: HostListArgs,

    /// Seconds between two looks
    #[arg(long, value_name = "S", default_value = "1", value_parser = parse_interval)]
    pub(crate) interval: Duration,

    /// Print the figures of one interval, and end
    #[arg(long, conflicts_with = "listen")]
    pub(crate) once: bool,

    /// Answer a Prometheus server at this address; without an address, at 127.0.0.1
    ///
    /// Every user that can connect to the address can read them. It ends with the job.
    #[arg(long, value_name = "[ADDRESS:]PORT", value_parser = parse_address)]
    pub(crate) listen: Option<SocketAddr>,

    #[command(flatten)]
    pub(crate) connect: ConnectArgs,
}

fn parse_interval(text: &str) -> Result<Duration, String> {
    let seconds = text.parse::<f64>().ok().filter(|seconds| (0.1..=3600.0).contains(seconds));
    seconds.map(Duration::from_secs_f64).ok_or_else(|| "seconds, from 0.1 to 3600".to_owned())
}

fn parse_address(text: &str) -> Result<SocketAddr, String> {
    let port = text.strip_prefix(':').unwrap_or(text).parse::<u16>().ok();
    let local = port.map(|port| SocketAddr::from((Ipv4Addr::LOCALHOST, port)));
    local
        .or_else(|| text.parse().ok())
        .ok_or_else(|| "an address, such as 127.0.0.1:9101".to_owned())
}

/// Watches a job or hosts.
pub(super) async fn run(args: MonitorArgs, line: &CommandLine) -> Result<Exit, Failed> {
    if args.listen.is_none() && !args.once {
        check_terminal()?;
    }
    // Before hosts are connected, since it may fail.
    let listener = match args.listen {
        Some(address) => Some(listen(address).await?),
        None => None,
    };
    let mut source = match args.hosts.hosts.is_empty() {
        true => {
            let job = RunningJob::find(args.job.as_deref()).await;
            Source::Job(Box::new(job.map_err(|error| live_failure(&error))?))
        }
        false => open_hosts(&args, line).await?,
    };
    let watched = watch(&args, listener, &mut source).await;
    source.close().await;
    watched
}

/// Checks that the page can be drawn.
fn check_terminal() -> Result<(), Failed> {
    let lack = if !(io::stdout().is_terminal() && io::stdin().is_terminal()) {
        "needs a terminal"
    } else if std::env::var_os("TERM").is_some_and(|term| term == "dumb") {
        "needs a terminal that places its cursor, and TERM is `dumb`"
    } else {
        return Ok(());
    };
    let failed = Failed::new(Exit::USAGE, format!("the page of `rlaunch monitor` {lack}"));
    Err(failed.hint(Some("--once prints one table, --listen serves Prometheus")))
}

async fn watch(
    args: &MonitorArgs,
    listener: Option<TcpListener>,
    source: &mut Source,
) -> Result<Exit, Failed> {
    let name = match &*source {
        Source::Job(job) => job.name.clone(),
        Source::Hosts(_) => String::new(),
    };
    if let Some(listener) = listener {
        return conclude(&name, prometheus::serve(&listener, source).await).await;
    }
    if args.once {
        return match print_once(source, args.interval).await {
            Ok(()) => Ok(Exit::SUCCESS),
            Err(error) => conclude(&name, error).await,
        };
    }
    let shown = page::show(source, args.interval).await;
    match shown.map_err(|error| stdout::or_broken_pipe(&io::stdout(), error)) {
        Ok(PageEnd::Quit) => Ok(Exit::SUCCESS),
        Ok(PageEnd::Signalled(signal)) => Err(ended_by(signal, "")),
        Ok(PageEnd::Job(error)) => conclude(&name, error).await,
        // The terminal is gone.
        Err(error) if error.kind() == io::ErrorKind::BrokenPipe => Ok(Exit::READER_GONE),
        Err(error) => Err(Failed::new(Exit::FILES, format!("cannot use the terminal: {error}"))),
    }
}

async fn listen(address: SocketAddr) -> Result<TcpListener, Failed> {
    let listener = TcpListener::bind(address).await;
    let listener = listener.map_err(|error| {
        Failed::new(Exit::USAGE, format!("cannot listen at {address}: {error}"))
            .hint(Some("another --listen PORT may be free"))
    })?;
    let address = listener.local_addr().unwrap_or(address);
    messages::info(&format!("metrics at http://{address}/metrics"));
    Ok(listener)
}

async fn open_hosts(args: &MonitorArgs, line: &CommandLine) -> Result<Source, Failed> {
    let options = HostOptions {
        lists: &args.hosts.hosts,
        files: &[],
        exclude: &[],
        table: &line.config.hosts,
    };
    let (hosts, options) = agent_session::select_hosts(&options, &args.connect, line)?;
    Source::hosts(&hosts, &options).await
}

async fn print_once(source: &mut Source, interval: Duration) -> Result<(), LiveError> {
    let before = source.sample().await?;
    tokio::time::sleep(interval).await;
    let now = source.sample().await?;
    let activity = now.since(&before);
    let job = activity.job.map(tables::describe_job).unwrap_or_default();
    let ranks = match activity.ranks.is_empty() {
        true => String::new(),
        false => format!("\n{}", tables::ranks(&activity.ranks)),
    };
    stdout::print(&format!("{job}{}{ranks}", tables::hosts(&activity)));
    Ok(())
}

/// Ends a watch that the source has ended. `name` is that of the job.
async fn conclude(name: &str, error: LiveError) -> Result<Exit, Failed> {
    match error {
        LiveError::Ended(id) => {
            let record = match found::at_once(&id).await {
                Ok(Some(FoundJob::Ended(record))) => Some(record),
                _ => None,
            };
            messages::info(&end_line(name, "ended", record.as_deref()));
            Ok(Exit::SUCCESS)
        }
        error => Err(live_failure(&error)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_port_alone_is_on_this_machine() {
        let parse = |text: &str| parse_address(text).map(|address| address.to_string());
        assert_eq!(parse("9101"), Ok("127.0.0.1:9101".into()));
        assert_eq!(parse(":9101"), Ok("127.0.0.1:9101".into()));
        assert_eq!(parse("10.0.0.1:9101"), Ok("10.0.0.1:9101".into()));
        assert_eq!(parse("[::1]:9101"), Ok("[::1]:9101".into()));
        assert!(parse("x").is_err() && parse("99999").is_err());
        assert!(parse_interval("0").is_err() && parse_interval("nan").is_err());
        assert_eq!(parse_interval("0.5"), Ok(Duration::from_millis(500)));
    }

    #[test]
    fn hosts_and_a_job_exclude_each_other() {
        let parse = |line: &str| MonitorArgs::try_parse_from(line.split(' '));
        assert!(parse("monitor 019a -H a").is_err());
        assert_eq!(parse("monitor -H a,b").unwrap().hosts.hosts, ["a,b"]);
    }
}
