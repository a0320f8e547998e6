//! `rlaunch reap`: ends by hand what a job left on its hosts.

use crate::agent::deliver::Delivery;
use crate::agent::store::{AGENT, Store};
use crate::args::ReapArgs;
use crate::channel::{AgentChannel, Incoming};
use crate::exit::Exit;
use crate::hosts::{self, Host};
use crate::job::Reach;
use crate::report::{self, Failed};
use crate::ssh::Ssh;
use std::io::Write;
use std::sync::Arc;
use std::time::Duration;
use tokio::task::JoinSet;

/// How long one host may take, from the login to its answer.
const HOST_TIMEOUT: Duration = Duration::from_secs(20);

/// Reaps on every host at once and prints one line for each.
pub(crate) async fn reap(args: ReapArgs) -> Result<Exit, Failed> {
    let usage = |error: &dyn std::error::Error| Failed::from_error(Exit::USAGE, error);
    let hosts = hosts::parse(&args.hosts).map_err(|error| usage(&error))?;
    let reach = Reach::from_args(args.reach).map_err(|error| usage(&error))?;
    let store = Store::new(reach.agent.clone());
    let delivery = Delivery::new(store, reach.agent_dir.clone())
        .map_err(|error| Failed::from_error(Exit::AGENT, &error).hint(error.hint()))?;
    let job = args.job.unwrap_or_else(|| "all".to_owned());
    if hosts::are_local(&hosts) {
        let agent = delivery.native().path.clone();
        let status = tokio::process::Command::new(agent).args(["reap", &job]).status().await;
        let status = status.map_err(|error| Failed::from_error(Exit::AGENT, &error))?;
        return Ok(if status.success() { Exit::SUCCESS } else { Exit::AGENT });
    }
    let way = Arc::new((Ssh::of(&reach)?, delivery));
    let mut tasks = JoinSet::new();
    for host in hosts {
        tasks.spawn(on_host(way.clone(), host, job.clone()));
    }
    let mut failures = Vec::new();
    for (host, outcome) in tasks.join_all().await {
        match outcome {
            // A reader that has gone does not need it.
            Ok(words) => drop(writeln!(std::io::stdout(), "{host}: {words}")),
            Err(failed) => failures.push(failed),
        }
    }
    let Some(mut first) = failures.pop() else { return Ok(Exit::SUCCESS) };
    first.details.extend(failures.into_iter().map(|failed| failed.message));
    Err(first)
}

async fn on_host(
    way: Arc<(Ssh, Delivery)>,
    host: Host,
    job: String,
) -> (Host, Result<String, Failed>) {
    let words = tokio::time::timeout(HOST_TIMEOUT, words_of(&way.0, &way.1, &host, &job)).await;
    let late = |_| Err(format!("no answer within {} s", HOST_TIMEOUT.as_secs()));
    let words = words.unwrap_or_else(late).and_then(|words| match words.strip_prefix("left: ") {
        Some(left) => Err(format!("could not end {left}")),
        None => Ok(words),
    });
    let failed = |cause| Failed::new(Exit::HOST, format!("{host}: {cause}"));
    let words = words.map_err(failed);
    (host, words)
}

/// The last line that the host's agent prints. A host without this build of the agent is given it
/// first: the job may have been another build's.
async fn words_of(
    ssh: &Ssh,
    delivery: &Delivery,
    host: &Host,
    job: &str,
) -> Result<String, String> {
    let text = |error: &dyn std::error::Error| report::chain(error);
    let connection = ssh.connect(host).await.map_err(|error| text(&error))?;
    let agent = delivery.place(&connection).await.map_err(|error| text(&error))?;
    let channel = connection.exec(&format!("exec {agent} reap {job}")).await;
    let mut channel = AgentChannel::over_ssh(channel.map_err(|error| text(&error))?);
    let mut words = String::new();
    while let Some(incoming) = channel.next().await {
        if let Incoming::Data(bytes) = incoming {
            words.push_str(&String::from_utf8_lossy(&bytes));
        }
    }
    connection.close().await;
    let last = words.lines().last().map(str::to_owned);
    last.ok_or_else(|| format!("{AGENT} said nothing"))
}
