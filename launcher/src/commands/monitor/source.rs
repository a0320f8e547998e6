//! Sources of samples: the launcher of a running job, or agents that are started on hosts.

use super::sample::{HostSample, Sample};
use crate::commands::agent_session::{AgentSession, AgentSessions, AgentStream};
use rlaunch_bootstrap::inventory::traffic::HostCounters;
use rlaunch_bootstrap::protocol::inspection::{Inspection, InspectionResult};
use rlaunch_console::messages;
use rlaunch_engine::connect::options::Reach;
use rlaunch_engine::run::live::client::{LiveError, NodeAnswers, RunningJob};
use rlaunch_plan::hosts::Host;
use rlaunch_text::exit::Exit;
use rlaunch_text::message::Failed;
use std::time::{Duration, Instant};

/// Time limit for the first message of an agent, counted from the end of the login.
const START_TIMEOUT: Duration = Duration::from_secs(20);
/// Time that the agents of hosts have for an answer.
const ANSWER_TIMEOUT: Duration = Duration::from_secs(2);

/// Source of samples.
pub(super) enum Source {
    Job(Box<RunningJob>),
    Hosts(Vec<WatchedHost>),
}

/// Host without a job.
pub(super) struct WatchedHost {
    name: String,
    /// Channel to the agent; `None` once it is closed.
    stream: Option<AgentStream>,
    /// Whether a question is not answered yet. No other one is asked then.
    is_asked: bool,
    /// Counters that the agent has sent at its start, until they are reported.
    first: Option<HostCounters>,
}

impl Source {
    /// Starts agents on hosts. Hosts without an agent are reported, and left out.
    pub(super) async fn hosts(hosts: &[Host], options: &Reach) -> Result<Source, Failed> {
        let opened: Vec<Result<AgentSession<InspectionResult>, _>> =
            AgentSessions::open(hosts, options, "monitor", START_TIMEOUT).await?;
        let (mut watched, mut failed) = (Vec::new(), Vec::new());
        for (host, session) in hosts.iter().zip(opened) {
            match session {
                Ok(AgentSession { name, first, stream, .. }) => {
                    let first = counters(first);
                    watched.push(WatchedHost {
                        name,
                        stream: Some(stream),
                        is_asked: false,
                        first,
                    });
                }
                Err(error) => {
                    let name = host.to_string();
                    let text = format!("{name}: {}", messages::error_chain(&error));
                    failed.push(Failed::new(Exit::HOST, text).hint(error.hint(&name)));
                }
            }
        }
        if watched.is_empty()
            && let Some(first) = failed.pop()
        {
            return Err(first);
        }
        failed.iter().for_each(|failed| messages::warn(&failed.message));
        Ok(Source::Hosts(watched))
    }

    /// Takes a sample.
    pub(super) async fn sample(&mut self) -> Result<Sample, LiveError> {
        match self {
            Source::Job(job) => sample_job(job).await,
            Source::Hosts(hosts) => Ok(sample_hosts(hosts).await),
        }
    }

    /// Waits until the job has ended; for ever if there is none. No sample may be under way. Cancel-safe.
    pub(super) async fn ended(&mut self) -> LiveError {
        match self {
            Source::Job(job) => job.ended().await,
            Source::Hosts(_) => std::future::pending().await,
        }
    }

    /// Ends the agents on hosts.
    pub(super) async fn close(self) {
        if let Source::Hosts(hosts) = self {
            for stream in hosts.into_iter().filter_map(|host| host.stream) {
                stream.close().await;
            }
        }
    }
}

async fn sample_job(job: &mut RunningJob) -> Result<Sample, LiveError> {
    let status = job.status().await?;
    let names = status.hosts.iter().map(|host| host.host.clone());
    let mut hosts: Vec<HostSample> =
        names.map(|host| HostSample { host, ..HostSample::default() }).collect();
    for question in [Inspection::Usage, Inspection::Counters] {
        let NodeAnswers { answers, .. } = match job.inspect(question).await {
            Ok(answers) => answers,
            // Its ranks have not started, or are ending.
            Err(LiveError::Refused { .. }) => break,
            Err(error) => return Err(error),
        };
        for (host, answer) in answers {
            let Some(sample) = hosts.iter_mut().find(|sample| sample.host == host) else {
                continue;
            };
            match answer {
                InspectionResult::Usage(ranks) => sample.ranks.extend(ranks),
                InspectionResult::Counters(counters) => sample.counters = Some(counters),
                InspectionResult::Stacks(_)
                | InspectionResult::Collectives(_)
                | InspectionResult::Failed(_) => {}
            }
        }
    }
    Ok(Sample { at: Instant::now(), job: Some(status), hosts })
}

async fn sample_hosts(hosts: &mut [WatchedHost]) -> Sample {
    for host in hosts.iter_mut() {
        host.ask().await;
    }
    let due = tokio::time::Instant::now() + ANSWER_TIMEOUT;
    let mut samples = Vec::new();
    for host in hosts {
        let counters = tokio::time::timeout_at(due, host.answer()).await.ok().flatten();
        samples.push(HostSample { host: host.name.clone(), counters, ranks: Vec::new() });
    }
    Sample { at: Instant::now(), job: None, hosts: samples }
}

impl WatchedHost {
    async fn ask(&mut self) {
        if self.is_asked || self.first.is_some() {
            return;
        }
        if let Some(stream) = &mut self.stream {
            self.is_asked = stream.send(&Inspection::Counters).await.is_some();
        }
    }

    /// Waits for the answer to the last question. Returns `None` if the agent is gone.
    async fn answer(&mut self) -> Option<HostCounters> {
        if let Some(first) = self.first.take() {
            return Some(first);
        }
        let answer = self.stream.as_mut()?.receive().await;
        self.is_asked = false;
        if answer.is_none() {
            self.stream = None;
        }
        counters(answer?)
    }
}

fn counters(answer: InspectionResult) -> Option<HostCounters> {
    match answer {
        InspectionResult::Counters(counters) => Some(counters),
        _ => None,
    }
}
