//! One question to the agents of many hosts, outside of any job: each is reached, given this build
//! of the agent if it has another, and asked by words on its command line.

use crate::agent::deliver::Delivery;
use crate::agent::store::Store;
use crate::args::ReachArgs;
use crate::channel::{AgentChannel, Incoming};
use crate::exit::Exit;
use crate::hosts::{self, Host};
use crate::job::Reach;
use crate::report::{self, Failed};
use crate::ssh::Ssh;
use crate::waiting::Roster;
use std::sync::Arc;
use std::time::Duration;
use tokio::task::JoinSet;

/// How long one host may take, from the login to its answer.
const HOST_TIMEOUT: Duration = Duration::from_secs(20);
/// The longest answer, in bytes.
const LONGEST: usize = 16 << 20;

/// What an agent printed, or why there is nothing.
pub(crate) type Answer = Result<Vec<u8>, Failed>;

/// Asks every host at once; answers are in the order of the hosts.
pub(crate) async fn every_host(
    hosts: &[String],
    reach: ReachArgs,
    words: &str,
) -> Result<Vec<(Host, Answer)>, Failed> {
    let usage = |error: &dyn std::error::Error| Failed::from_error(Exit::USAGE, error);
    let hosts = hosts::parse(hosts).map_err(|error| usage(&error))?;
    let reach = Reach::from_args(reach).map_err(|error| usage(&error))?;
    let store = Store::new(reach.agent.clone());
    let delivery = Delivery::new(store, reach.agent_dir.clone())
        .map_err(|error| Failed::from_error(Exit::AGENT, &error).hint(error.hint()))?;
    if hosts::are_local(&hosts) {
        let host = hosts.into_iter().next().unwrap_or_else(Host::this_machine);
        return Ok(vec![(host, this_machine(&delivery, words).await)]);
    }
    let roster = Roster::new(hosts.iter().map(Host::to_string), "connecting");
    let way = Arc::new(Way { ssh: Ssh::of(&reach)?, delivery, roster, words: words.to_owned() });
    let mut tasks = JoinSet::new();
    for (index, host) in hosts.into_iter().enumerate() {
        let way = way.clone();
        tasks.spawn(async move { (index, way.answer_of(&host).await, host) });
    }
    let mut answers = way.roster.while_waiting(tasks.join_all()).await;
    answers.sort_by_key(|(index, ..)| *index);
    Ok(answers.into_iter().map(|(_, answer, host)| (host, answer)).collect())
}

async fn this_machine(delivery: &Delivery, words: &str) -> Answer {
    let agent = delivery.native().path.clone();
    let mut command = tokio::process::Command::new(agent);
    command.args(words.split(' ')).stderr(std::process::Stdio::inherit());
    let failed = |error| Failed::from_error(Exit::AGENT, &error);
    Ok(command.output().await.map_err(failed)?.stdout)
}

/// What every host's way shares.
struct Way {
    ssh: Ssh,
    delivery: Delivery,
    roster: Roster,
    words: String,
}

impl Way {
    async fn answer_of(&self, host: &Host) -> Answer {
        let answer = tokio::time::timeout(HOST_TIMEOUT, self.answer(host)).await;
        self.roster.arrived(&host.to_string());
        let late = |_| Err(format!("no answer within {} s", HOST_TIMEOUT.as_secs()));
        let failed = |cause| Failed::new(Exit::HOST, format!("{host}: {cause}"));
        answer.unwrap_or_else(late).map_err(failed)
    }

    async fn answer(&self, host: &Host) -> Result<Vec<u8>, String> {
        let text = |error: &dyn std::error::Error| report::chain(error);
        let connection = self.ssh.connect(host).await.map_err(|error| text(&error))?;
        self.roster.set(&host.to_string(), "ssh authenticated, no answer");
        let agent = self.delivery.place(&connection).await.map_err(|error| text(&error))?;
        let channel = connection.exec(&format!("exec {agent} {}", self.words)).await;
        let mut channel = AgentChannel::over_ssh(channel.map_err(|error| text(&error))?);
        let mut answer = Vec::new();
        while let Some(incoming) = channel.next().await {
            if let Incoming::Data(bytes) = incoming {
                answer.extend_from_slice(&bytes);
            }
            if answer.len() > LONGEST {
                return Err(format!("more than {} MiB of an answer", LONGEST >> 20));
            }
        }
        connection.close().await;
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
