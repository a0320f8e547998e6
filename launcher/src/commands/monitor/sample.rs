//! Reports of a job or of hosts at one time, what has happened between two of them, and where they come from: the launcher of
//! a running job, or agents that are started on hosts.

use crate::commands::agent_session::{AgentHosts, AgentSession, AgentStream};
use rlaunch_bootstrap::id::Rank;
use rlaunch_bootstrap::inventory::traffic::{GpuUsage, HostCounters, RdmaTraffic, Traffic};
use rlaunch_bootstrap::protocol::inspection::{Inspection, InspectionResult, RankUsage};
use rlaunch_console::messages;
use rlaunch_engine::connect::connector::Reach;
use rlaunch_engine::run::live::PrintedSpeed;
use rlaunch_engine::run::live::client::{LiveError, NodeAnswers, RunningJob};
use rlaunch_engine::run::live::messages::JobStatus;
use rlaunch_plan::hosts::Host;
use rlaunch_text::exit::Exit;
use rlaunch_text::message::Failed;
use std::time::{Duration, Instant};

/// Report of all hosts at one time.
#[derive(Clone, Debug)]
pub(super) struct Sample {
    pub(super) at: Instant,
    /// State of the job; `None` for hosts without one.
    pub(super) job: Option<JobStatus>,
    /// Hosts in the order of nodes.
    pub(super) hosts: Vec<HostSample>,
}

/// Report of a host.
#[derive(Clone, Debug, Default)]
pub(super) struct HostSample {
    pub(super) host: String,
    /// Counters of the host; `None` if it has not answered.
    pub(super) counters: Option<HostCounters>,
    /// Usage of the job's ranks on the host.
    pub(super) ranks: Vec<RankUsage>,
    /// Whether the host's part of the job is over, so that it is not asked any more.
    pub(super) has_ended: bool,
}

/// Activity of all hosts over the time between two samples.
#[derive(Debug)]
pub(super) struct Activity<'a> {
    pub(super) job: Option<&'a JobStatus>,
    pub(super) hosts: Vec<HostActivity<'a>>,
    /// Ranks in ascending order.
    pub(super) ranks: Vec<RankActivity<'a>>,
}

/// Activity of a host.
#[derive(Debug, PartialEq)]
pub(super) struct HostActivity<'a> {
    pub(super) host: &'a str,
    pub(super) answers: bool,
    pub(super) has_ended: bool,
    /// Number of CPUs that were busy on average.
    pub(super) busy_cpus: Option<f64>,
    pub(super) cpus: Option<u32>,
    /// Memory in use, in bytes.
    pub(super) memory_used: Option<u64>,
    pub(super) memory: Option<u64>,
    /// RDMA ports, then network interfaces.
    pub(super) ports: Vec<PortActivity>,
    pub(super) gpus: &'a [GpuUsage],
}

/// Traffic of an RDMA port or a network interface.
#[derive(Debug, PartialEq)]
pub(super) struct PortActivity {
    pub(super) name: String,
    pub(super) is_rdma: bool,
    pub(super) received: Rate,
    pub(super) sent: Rate,
}

/// Traffic in one direction, per second.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub(super) struct Rate {
    pub(super) bytes: Option<f64>,
    pub(super) packets: Option<f64>,
}

/// Activity of a rank.
#[derive(Debug, PartialEq)]
pub(super) struct RankActivity<'a> {
    pub(super) host: &'a str,
    pub(super) usage: &'a RankUsage,
    /// Number of CPUs that its processes used on average.
    pub(super) cpus: Option<f64>,
    /// Share of the time that it waited for other ranks; `None` if it does not use rlaunch's communicator.
    pub(super) waiting: Option<f64>,
    /// Last speed that it has printed.
    pub(super) speed: Option<&'a PrintedSpeed>,
}

impl Rate {
    /// Returns the mean size of a packet, in bytes.
    pub(super) fn bytes_per_packet(self) -> Option<f64> {
        Some(self.bytes? / self.packets.filter(|packets| *packets > 0.0)?)
    }

    pub(super) fn is_idle(self) -> bool {
        self.bytes.unwrap_or(0.0) == 0.0 && self.packets.unwrap_or(0.0) == 0.0
    }

    /// Computes the rate between two readings. A counter that was reset has no rate.
    fn between(before: Traffic, now: Traffic, seconds: f64) -> Rate {
        let rate = |before: Option<u64>, now: Option<u64>| {
            Some(now?.checked_sub(before?)? as f64 / seconds)
        };
        Rate { bytes: rate(before.bytes, now.bytes), packets: rate(before.packets, now.packets) }
    }
}

impl Sample {
    /// Computes what has happened since the sample `before`.
    pub(super) fn since<'a>(&'a self, before: &Sample) -> Activity<'a> {
        let seconds = (self.at - before.at).as_secs_f64().max(1e-3);
        let earlier = |host: &str| before.hosts.iter().find(|earlier| earlier.host == host);
        let activity = |host: &'a HostSample| {
            host.since(earlier(&host.host).and_then(|earlier| earlier.counters.as_ref()))
        };
        let hosts = self.hosts.iter().map(activity).collect();
        let mut ranks: Vec<RankActivity<'a>> = Vec::new();
        for host in &self.hosts {
            let earlier = earlier(&host.host).map(|host| &host.ranks[..]).unwrap_or_default();
            ranks.extend(host.ranks.iter().map(|usage| {
                let before =
                    earlier.iter().find(|old| (old.rank, old.pid) == (usage.rank, usage.pid));
                let spent = before.and_then(|before| cpu_ms(usage).checked_sub(cpu_ms(before)));
                let share = |ms: u64| ms as f64 / 1e3 / seconds;
                let waited =
                    before.and_then(|before| usage.waited_ms?.checked_sub(before.waited_ms?));
                RankActivity {
                    host: &host.host,
                    usage,
                    cpus: spent.map(share),
                    waiting: waited.map(|ms| share(ms).min(1.0)),
                    speed: self.speed(usage.rank),
                }
            }));
        }
        ranks.sort_by_key(|rank| rank.usage.rank);
        Activity { job: self.job.as_ref(), hosts, ranks }
    }
}

impl Sample {
    /// Returns the last speed that a rank has printed.
    pub(super) fn speed(&self, rank: Rank) -> Option<&PrintedSpeed> {
        let speeds = &self.job.as_ref()?.speeds;
        let at = speeds.binary_search_by_key(&rank.0, |of| of.rank).ok()?;
        Some(&speeds[at].speed)
    }
}

impl HostSample {
    /// Computes what has happened since `before`; `None` if the host did not answer then.
    fn since(&self, before: Option<&HostCounters>) -> HostActivity<'_> {
        let now = self.counters.as_ref();
        let cpu = now.and_then(|now| now.cpu);
        let busy = |before: &HostCounters| {
            let (now, before) = (cpu?, before.cpu?);
            let busy = now.busy_ms.checked_sub(before.busy_ms)? as f64;
            let idle = now.idle_ms.checked_sub(before.idle_ms)? as f64;
            (busy + idle > 0.0).then(|| f64::from(now.cpus) * busy / (busy + idle))
        };
        HostActivity {
            host: &self.host,
            answers: now.is_some(),
            has_ended: self.has_ended,
            busy_cpus: before.and_then(busy),
            cpus: cpu.map(|cpu| cpu.cpus),
            memory_used: now.and_then(|now| now.memory?.checked_sub(now.memory_available?)),
            memory: now.and_then(|now| now.memory),
            ports: now.zip(before).map(|(now, before)| ports(now, before)).unwrap_or_default(),
            gpus: now.map(|now| &now.gpus[..]).unwrap_or_default(),
        }
    }
}

/// Computes the traffic between two readings of a host, by the host's own clock.
fn ports(now: &HostCounters, before: &HostCounters) -> Vec<PortActivity> {
    let passed = now.at_ms.zip(before.at_ms).and_then(|(now, before)| now.checked_sub(before));
    let Some(seconds) = passed.filter(|ms| *ms > 0).map(|ms| ms as f64 / 1e3) else {
        return Vec::new();
    };
    let rate = |before, now| Rate::between(before, now, seconds);
    let rdma = now.rdma_ports.iter().filter_map(|port| {
        let is_same = |old: &&RdmaTraffic| (&old.device, old.port) == (&port.device, port.port);
        let old = before.rdma_ports.iter().find(is_same)?;
        Some(PortActivity {
            name: format!("{}/{}", port.device, port.port),
            is_rdma: true,
            received: rate(old.received, port.received),
            sent: rate(old.sent, port.sent),
        })
    });
    let interfaces = now.interfaces.iter().filter_map(|interface| {
        let old = before.interfaces.iter().find(|old| old.name == interface.name)?;
        Some(PortActivity {
            name: interface.name.clone(),
            is_rdma: false,
            received: rate(old.received, interface.received),
            sent: rate(old.sent, interface.sent),
        })
    });
    rdma.chain(interfaces).collect()
}

/// Returns the CPU time of a rank's processes, in milliseconds.
pub(super) fn cpu_ms(usage: &RankUsage) -> u64 {
    usage.user_ms.saturating_add(usage.system_ms)
}

/// Time limit for the first message of an agent, counted from its start.
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
            AgentHosts::open(hosts, options, "monitor", START_TIMEOUT).await?;
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
        let NodeAnswers { answers, missing } = match job.inspect(question).await {
            Ok(answers) => answers,
            // Its ranks have not started, or are ending.
            Err(LiveError::Refused { .. }) => break,
            Err(error) => return Err(error),
        };
        for sample in &mut hosts {
            let is_host = |host: &String| *host == sample.host;
            sample.has_ended =
                !answers.iter().any(|(host, _)| is_host(host)) && !missing.iter().any(is_host);
        }
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
        samples.push(HostSample { host: host.name.clone(), counters, ..HostSample::default() });
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

#[cfg(test)]
pub(super) mod tests {
    use super::*;
    use rlaunch_bootstrap::inventory::traffic::{CpuTime, InterfaceTraffic};
    use rlaunch_engine::run::live::messages::{JobPhase, LastOutput, RankSpeed};
    use std::time::Duration;

    fn traffic(bytes: u64, packets: u64) -> Traffic {
        Traffic { bytes: Some(bytes), packets: Some(packets) }
    }

    pub(in super::super) fn usage(rank: u32, user_ms: u64) -> RankUsage {
        let (pid, processes, system_ms) = (100 + rank, 2, 0);
        RankUsage {
            rank: Rank(rank),
            pid,
            processes,
            user_ms,
            system_ms,
            main_us: 1000 * user_ms,
            main_runs: 0,
            resident: 1 << 30,
            state: 'R',
            waited_ms: Some(user_ms / 2),
        }
    }

    pub(in super::super) fn job() -> JobStatus {
        JobStatus {
            job: "019a".into(),
            name: "amber-fox".into(),
            pid: 1,
            program: vec!["sh".into(), "-c".into(), "echo \"a\\\nb\"".into()],
            started: 1.5,
            seconds: 3.0,
            phase: JobPhase::Running,
            hosts: Vec::new(),
            ranks: 2,
            ranks_started: 2,
            ranks_ended: 1,
            last_output: Some(LastOutput { rank: 0, seconds_ago: 0.5 }),
            speeds: vec![RankSpeed {
                rank: 1,
                speed: PrintedSpeed { value: 812.5, unit: "images/s".into() },
                seconds_ago: 0.5,
            }],
        }
    }

    /// Makes two samples of two hosts, two seconds apart. The second host answers the first time only.
    pub(in super::super) fn samples() -> [Sample; 2] {
        let at = Instant::now();
        let counters = |at_ms, cpu, received, sent| HostCounters {
            at_ms: Some(at_ms),
            cpu: Some(cpu),
            memory: Some(8 << 30),
            memory_available: Some(6 << 30),
            rdma_ports: vec![
                RdmaTraffic { device: "erdma_0".into(), port: 1, received, sent },
                RdmaTraffic {
                    device: "rxe0".into(),
                    port: 1,
                    received: Traffic { bytes: None, packets: received.packets },
                    sent: Traffic::default(),
                },
            ],
            interfaces: vec![InterfaceTraffic { name: "eth0".into(), ..Default::default() }],
            gpus: vec![GpuUsage {
                index: 1,
                busy_percent: Some(97),
                memory_used: Some(70 << 30),
                memory: Some(80 << 30),
                power_mw: Some(612_340),
                temperature: None,
            }],
        };
        let cpu = |busy_ms, idle_ms| CpuTime { cpus: 4, busy_ms, idle_ms };
        let host = |name: &str, counters, ranks| HostSample {
            host: name.into(),
            counters,
            ranks,
            has_ended: false,
        };
        let first = counters(1000, cpu(0, 0), traffic(0, 0), traffic(5, 5));
        let second = counters(3000, cpu(6000, 2000), traffic(2_826_000, 2000), traffic(5, 5));
        let before = vec![
            host("a", Some(first.clone()), vec![usage(1, 500), usage(0, 0)]),
            host("b", Some(first), Vec::new()),
        ];
        let now = vec![
            host("a", Some(second), vec![usage(1, 2500), usage(0, 3000)]),
            host("b", None, Vec::new()),
        ];
        [
            Sample { at, job: None, hosts: before },
            Sample { at: at + Duration::from_secs(2), job: None, hosts: now },
        ]
    }

    #[test]
    fn rates_are_differences_over_time() {
        let [before, now] = samples();
        let activity = now.since(&before);
        let cpus: Vec<_> =
            activity.ranks.iter().map(|rank| (rank.usage.rank.0, rank.cpus)).collect();
        assert_eq!(cpus, [(0, Some(1.5)), (1, Some(1.0))]);
        let waiting: Vec<_> = activity.ranks.iter().map(|rank| rank.waiting).collect();
        assert_eq!(waiting, [Some(0.75), Some(0.5)]);
        let [a, b] = &activity.hosts[..] else { panic!() };
        assert_eq!((a.busy_cpus, a.cpus, a.memory_used), (Some(3.0), Some(4), Some(2 << 30)));
        let [erdma, rxe, eth0] = &a.ports[..] else { panic!("{a:?}") };
        assert_eq!(erdma.received, Rate { bytes: Some(1_413_000.0), packets: Some(1000.0) });
        assert_eq!(erdma.received.bytes_per_packet(), Some(1413.0));
        assert!(erdma.sent.is_idle() && eth0.received.is_idle() && !erdma.received.is_idle());
        assert_eq!(rxe.received, Rate { bytes: None, packets: Some(1000.0) });
        assert_eq!((rxe.received.bytes_per_packet(), erdma.sent.bytes_per_packet()), (None, None));
        assert!(!b.answers && b.ports.is_empty() && b.busy_cpus.is_none());
    }

    #[test]
    fn a_counter_that_was_reset_has_no_rate() {
        let rate = Rate::between(traffic(100, 100), traffic(50, 200), 1.0);
        assert_eq!(rate, Rate { bytes: None, packets: Some(100.0) });
        let [before, mut now] = samples();
        // Another process of the same rank: the job was restarted.
        now.hosts[0].ranks[0].pid = 7;
        assert_eq!(now.since(&before).ranks[1].cpus, None);
    }
}
