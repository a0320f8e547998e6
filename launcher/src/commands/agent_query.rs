//! One question to the agents of many hosts, outside of any job: each is reached, given this build
//! of the agent if it has another, and asked by words on its command line.

use crate::cli::args::ReachArgs;
use crate::cli::lower;
use crate::connect::agent::deploy::Deployment;
use crate::connect::agent::store::AgentStore;
use crate::connect::callback::Callbacks;
use crate::connect::channel::Incoming;
use crate::connect::connector::{Connector, HostConnection, RemoteCommand};
use crate::hosts::addresses::Choice;
use crate::hosts::{self, Host};
use rlaunch_bootstrap::job::PortRange;
use rlaunch_bootstrap::protocol::control::{FrameReader, HelloScanner};
use rlaunch_console::exit::Exit;
use rlaunch_console::messages::{self, Failed};
use rlaunch_console::open_files;
use rlaunch_console::progress::Progress;
use serde::de::DeserializeOwned;
use std::ffi::OsString;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

/// How long one host may take after the login until its answer is there.
const HOST_TIMEOUT: Duration = Duration::from_secs(20);
/// The longest answer, in bytes.
const LONGEST: usize = 16 << 20;

/// Where hosts without stdin get their agent: what a job's `--port-range` is without one.
const CALLBACK_PORTS: PortRange = PortRange { first: 21000, last: 21511 };

/// What an agent printed, or why there is nothing.
pub(crate) type Answer = Result<Vec<u8>, Failed>;

/// Asks every host at once; answers are in the order of the hosts.
pub(crate) async fn every_host(
    hosts: &[String],
    reach: ReachArgs,
    words: &str,
) -> Result<Vec<(Host, Answer)>, Failed> {
    let usage = |error: &dyn std::error::Error| Failed::from_error(Exit::USAGE, error);
    let mut hosts = hosts::parse(hosts).map_err(|error| usage(&error))?;
    let given = reach.clone();
    let mut reach =
        lower::connect_options(reach).map_err(|error| usage(&error).hint(error.hint()))?;
    let is_local = reach.settle(&hosts);
    if hosts.is_empty() {
        let checked = given.config.found.check_no_hosts();
        checked.map_err(|error| usage(&error).hint(error.hint()))?;
        hosts.push(Host::this_machine());
    }
    if is_local {
        let words: Vec<OsString> = words.split(' ').map(OsString::from).collect();
        let host = hosts.swap_remove(0);
        return Ok(vec![(host, this_machine(&given, &words).await)]);
    }
    open_files::raise_for(hosts.len()).iter().for_each(|warning| messages::warn(warning));
    let delivery = delivery(reach.agent.clone(), reach.agent_dir.clone())?;
    let progress = Progress::new(hosts.iter().map(Host::to_string), "connecting");
    let way = Arc::new(Way {
        routes: Connector::new(&reach)?,
        delivery,
        progress,
        words: words.to_owned(),
    });
    let tasks = hosts.into_iter().map(|host| {
        let way = way.clone();
        (host.to_string(), async move { (way.answer_of(&host).await, host) })
    });
    let answers = way.progress.run_all(tasks).await;
    way.routes.print_new_hosts();
    Ok(answers.into_iter().map(|(answer, host)| (host, answer)).collect())
}

fn delivery(agent: Option<PathBuf>, directory: Option<String>) -> Result<Deployment, Failed> {
    let callbacks = Callbacks::new(Choice::default(), CALLBACK_PORTS);
    Deployment::new(AgentStore::new(agent), directory, callbacks)
        .map_err(|error| Failed::from_error(Exit::AGENT, &error).hint(error.hint()))
}

/// What this machine's own agent answers.
pub(crate) async fn this_machine(reach: &ReachArgs, words: &[OsString]) -> Answer {
    let delivery = delivery(reach.agent.clone(), reach.agent_dir.clone())?;
    let mut command = tokio::process::Command::new(&delivery.native().path);
    command.args(words).stderr(std::process::Stdio::inherit());
    let failed = |error| Failed::from_error(Exit::AGENT, &error);
    Ok(command.output().await.map_err(failed)?.stdout)
}

/// What every host's way shares.
struct Way {
    routes: Connector,
    delivery: Deployment,
    progress: Progress,
    words: String,
}

impl Way {
    async fn answer_of(&self, host: &Host) -> Answer {
        // A login has a deadline of its own, which waits for a passphrase to be typed.
        let answer = match self.routes.connect(host, &self.progress).await {
            Ok(route) => tokio::time::timeout(HOST_TIMEOUT, self.answer(host, route)).await,
            Err(error) => Ok(Err(messages::error_chain(&error))),
        };
        let late = |_| Err(format!("no answer within {} s", HOST_TIMEOUT.as_secs()));
        let failed = |cause| Failed::new(Exit::HOST, format!("{host}: {cause}"));
        answer.unwrap_or_else(late).map_err(failed)
    }

    async fn answer(&self, host: &Host, route: HostConnection) -> Result<Vec<u8>, String> {
        let text = |error: &dyn std::error::Error| messages::error_chain(error);
        self.progress.set_stage(&host.to_string(), route.stage());
        let placed = self.delivery.place(&route).await;
        let agent = placed.map_err(|error| text(&route.explain(error)))?;
        let command = RemoteCommand::Exec(&agent, &self.words);
        let mut channel = route.exec(&command).await.map_err(|error| text(&error))?;
        let mut answer = Vec::new();
        while let Some(incoming) = channel.next().await {
            if let Incoming::Data(bytes) = incoming {
                answer.extend_from_slice(&bytes);
            }
            if answer.len() > LONGEST {
                return Err(format!("more than {} MiB of an answer", LONGEST >> 20));
            }
        }
        route.close().await;
        Ok(answer)
    }
}

/// The failures of all hosts as one.
pub(crate) fn conclude(failures: Vec<Failed>) -> Result<Exit, Failed> {
    let mut failures = failures.into_iter();
    let Some(mut first) = failures.next() else { return Ok(Exit::SUCCESS) };
    first.details.extend(failures.map(|failed| failed.message));
    Err(first)
}

/// Behind what a login shell prints comes the agent's mark, and behind that a frame.
pub(crate) fn decode<T: DeserializeOwned>(answer: &[u8], host: &str) -> Result<T, Failed> {
    let mut scanner = HelloScanner::default();
    let found = scanner.push(answer).ok().flatten();
    let decoded = found.and_then(|frame| {
        let mut frames = FrameReader::default();
        frames.push(&frame);
        frames.next_frame().ok().flatten()
    });
    decoded.ok_or_else(|| {
        let noise = scanner.noise();
        let words = noise.lines().last().unwrap_or("nothing");
        Failed::new(Exit::AGENT, format!("{host}: the agent said {words:?}"))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_no_answer_is_quoted() {
        let error = decode::<u32>(b"Welcome!\nlogin is closed\n", "a").unwrap_err();
        assert_eq!(error.message, "a: the agent said \"login is closed\"");
    }
}
