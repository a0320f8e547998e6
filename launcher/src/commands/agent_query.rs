//! Query of the agents of many hosts, outside of any job.
//!
//! The launcher connects to each host, and installs this build of the agent if the host does not have it. The
//! query is the agent's command line, and the agent's output is the answer.

use crate::cli::args::{ConnectArgs, DEFAULT_PORTS, HostListArgs};
use crate::cli::config::LoadedConfig;
use crate::cli::lower;
use rlaunch_bootstrap::protocol::control::{FrameReader, HelloScanner};
use rlaunch_console::progress::Progress;
use rlaunch_console::{messages, open_files};
use rlaunch_engine::connect::agent::deploy::{DeployError, Deployment};
use rlaunch_engine::connect::agent::host_file;
use rlaunch_engine::connect::agent::store::AgentStore;
use rlaunch_engine::connect::callback::Callbacks;
use rlaunch_engine::connect::channel::Incoming;
use rlaunch_engine::connect::connector::{Connector, HostConnection, RemoteCommand};
use rlaunch_plan::hosts::addresses::AddressConstraints;
use rlaunch_plan::hosts::{self, Host};
use rlaunch_text::exit::Exit;
use rlaunch_text::message::Failed;
use serde::de::DeserializeOwned;
use std::ffi::OsString;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

/// Time limit for the answer of a host, counted from the end of the login.
const HOST_TIMEOUT: Duration = Duration::from_secs(20);
/// Time limit for the answer of this machine, whose diagnosis looks at more than a query of hosts does.
const LOCAL_TIMEOUT: Duration = Duration::from_secs(60);
/// Maximum size of an answer, in bytes.
const MAX_ANSWER: usize = 16 << 20;

/// Output of an agent, or the reason why there is none.
pub(super) type Answer = Result<Vec<u8>, Failed>;

/// Queries all hosts at once. `words` is the command line for the agents. Answers are in the order of the
/// hosts.
pub(super) async fn query_hosts(
    hosts: &HostListArgs,
    args: ConnectArgs,
    config: &LoadedConfig,
    words: &str,
) -> Result<Vec<(Host, Answer)>, Failed> {
    let usage = |error: &dyn std::error::Error| Failed::from_error(Exit::USAGE, error);
    let mut hosts = hosts::parse(&hosts.hosts).map_err(|error| usage(&error))?;
    let options = lower::connect_options(args.clone(), config);
    let mut options = options.map_err(|error| usage(&error).hint(error.hint()))?;
    let is_local = options.settle(&hosts);
    if hosts.is_empty() {
        let checked = config.check_no_hosts();
        checked.map_err(|error| usage(&error).hint(error.hint()))?;
        hosts.push(Host::this_machine());
    }
    if is_local {
        let words: Vec<OsString> = words.split(' ').map(OsString::from).collect();
        let host = hosts.swap_remove(0);
        return Ok(vec![(host, query_this_machine(&args, &words).await)]);
    }
    open_files::raise_for(hosts.len()).iter().for_each(|warning| messages::warn(warning));
    let query = Arc::new(Query {
        connector: Connector::new(&options)?,
        deployment: deployment(options.agent, options.agent_dir)?,
        progress: Progress::new(hosts.iter().map(Host::to_string), "connecting"),
        words: words.to_owned(),
    });
    let tasks = hosts.into_iter().map(|host| {
        let query = query.clone();
        (host.to_string(), async move { (query.answer_of(&host).await, host) })
    });
    let answers = query.progress.run_all(tasks).await;
    query.connector.print_new_hosts();
    Ok(answers.into_iter().map(|(answer, host)| (host, answer)).collect())
}

fn deployment(agent: Option<PathBuf>, directory: Option<String>) -> Result<Deployment, Failed> {
    let callbacks = Callbacks::new(AddressConstraints::default(), DEFAULT_PORTS);
    Deployment::new(AgentStore::new(agent), directory, callbacks)
        .map_err(|error| Failed::from_error(Exit::AGENT, &error).hint(error.hint()))
}

/// Runs this machine's agent with the arguments `words`, and returns its output.
pub(super) async fn query_this_machine(args: &ConnectArgs, words: &[OsString]) -> Answer {
    let deployment = deployment(args.agent.clone(), args.agent_dir.clone())?;
    let failed = |operation: &str, error: &dyn std::error::Error| {
        Failed::new(Exit::AGENT, format!("cannot {operation}: {}", messages::error_chain(error)))
    };
    let no_place = |error: std::io::Error| {
        failed("keep a copy of the agent", &error).hint(Some(host_file::PLACES))
    };
    let agent = deployment.native().local_path().map_err(no_place)?;
    let mut command = tokio::process::Command::new(&agent);
    command.args(words).stderr(std::process::Stdio::inherit()).kill_on_drop(true);
    let late = |_| Failed::new(Exit::AGENT, late_answer(LOCAL_TIMEOUT));
    let ended = tokio::time::timeout(LOCAL_TIMEOUT, command.output()).await.map_err(late)?;
    let run = |error: std::io::Error| failed(&format!("run {}", agent.display()), &error);
    Ok(ended.map_err(run)?.stdout)
}

fn late_answer(limit: Duration) -> String {
    format!("no answer of the agent within {} s", limit.as_secs())
}

/// Query to several hosts, and the state that their connections share.
struct Query {
    connector: Connector,
    deployment: Deployment,
    progress: Progress,
    words: String,
}

impl Query {
    async fn answer_of(&self, host: &Host) -> Answer {
        // The login is outside of `HOST_TIMEOUT`. It has its own time limit, which does not run while the
        // user types a passphrase.
        let failed = |cause: &str, hint: Option<String>| {
            Failed::new(Exit::HOST, format!("{host}: {cause}")).hint(hint)
        };
        let connection = self.connector.connect(host, &self.progress).await.map_err(|error| {
            failed(&messages::error_chain(&error), error.hint(&host.to_string()))
        })?;
        let answer = tokio::time::timeout(HOST_TIMEOUT, self.run_agent(host, connection)).await;
        let answer = answer.unwrap_or_else(|_| Err((late_answer(HOST_TIMEOUT), None)));
        answer.map_err(|(cause, hint)| failed(&cause, hint))
    }

    /// Runs the agent. An error has a hint, if there is one.
    async fn run_agent(
        &self,
        host: &Host,
        connection: HostConnection,
    ) -> Result<Vec<u8>, (String, Option<String>)> {
        let text =
            |error: &DeployError| (messages::error_chain(error), error.hint(&host.to_string()));
        self.progress.set_stage(&host.to_string(), connection.stage());
        let placed = self.deployment.ensure_installed(&connection).await;
        let agent = placed.map_err(|error| text(&connection.explain(error)))?;
        let command = RemoteCommand::Exec(&agent, &self.words);
        let channel = connection.exec(&command).await;
        let mut channel = channel.map_err(|error| text(&error.into()))?;
        let mut answer = Vec::new();
        while let Some(incoming) = channel.next().await {
            if let Incoming::Data(bytes) = incoming {
                answer.extend_from_slice(&bytes);
            }
            if answer.len() > MAX_ANSWER {
                let cause = format!("the answer is longer than {} MiB", MAX_ANSWER >> 20);
                return Err((cause, None));
            }
        }
        connection.close().await;
        Ok(answer)
    }
}

/// Combines the failures of all hosts into one; returns success if there are none.
pub(super) fn conclude(failures: Vec<Failed>) -> Result<Exit, Failed> {
    let mut failures = failures.into_iter();
    let Some(mut first) = failures.next() else { return Ok(Exit::SUCCESS) };
    for failed in failures {
        first.details.push(failed.message);
        first = failed.hints.into_iter().fold(first, |first, hint| first.hint(Some(hint)));
    }
    Err(first)
}

/// Decodes an answer: the agent's `HELLO_MAGIC` and one frame. A login shell may have printed text before
/// them.
pub(super) fn decode<T: DeserializeOwned>(answer: &[u8], host: &str) -> Result<T, Failed> {
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
        Failed::new(Exit::AGENT, format!("{host}: no answer of the agent, only {words:?}"))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_no_answer_is_quoted() {
        let error = decode::<u32>(b"Welcome!\nlogin is closed\n", "a").unwrap_err();
        assert_eq!(error.message, "a: no answer of the agent, only \"login is closed\"");
    }
}
