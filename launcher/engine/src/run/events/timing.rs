//! `--show timing`: where the time of a start went, by the events of the job.

use super::Event;
use rlaunch_text::columns;
use std::time::Duration;

/// Time of a start so far. All times are counted from the same moment.
#[derive(Debug, Default)]
pub(super) struct StartTiming {
    /// Time at which the attempt began.
    began: Duration,
    /// Phases that have ended: name, duration, and what ended last in it.
    rows: Vec<(&'static str, Duration, String)>,
    /// Last host that was logged in to, and when.
    reached: Option<(Duration, String)>,
    /// Last host whose agent has started.
    agent: String,
    /// Duration of the phase in which the agents join and the paths are proved, and when it ended.
    joined: Option<(Duration, Duration)>,
    /// Part of that in which the paths were proved.
    mesh: Duration,
    ranks: u32,
    ranks_started: u32,
    is_told: bool,
}

impl StartTiming {
    pub(super) fn new(began: Duration) -> StartTiming {
        StartTiming { began, ..StartTiming::default() }
    }

    pub(super) fn mesh_proved(&mut self, duration: Duration) {
        self.mesh = duration;
    }

    /// Notes an event at the time `at`. Returns the table when the last rank has started, or the job has ended before.
    pub(super) fn note(&mut self, at: Duration, event: &Event) -> Option<String> {
        match event {
            Event::JobStarted { ranks, .. } => self.ranks = *ranks,
            Event::HostReached { host } => self.reached = Some((at, host.clone())),
            Event::AgentStarted { host, .. } => self.agent.clone_from(host),
            Event::Phase { name, seconds } => {
                let duration = Duration::try_from_secs_f64(*seconds).unwrap_or_default();
                self.phase_ended(at, name, duration);
            }
            Event::RankStarted { rank, host, .. } => {
                self.ranks_started += 1;
                if self.ranks_started == self.ranks {
                    return self.conclude(at, Some(format!("rank {rank} on {host}")));
                }
            }
            Event::JobEnded { .. } => return self.conclude(at, None),
            _ => {}
        }
        None
    }

    fn phase_ended(&mut self, at: Duration, name: &str, duration: Duration) {
        match (name, self.reached.take()) {
            ("reach", Some((login, host))) => {
                let agent = at.saturating_sub(login).min(duration);
                self.rows.push(("login", duration - agent, host));
                self.rows.push(("agent", agent, self.agent.clone()));
            }
            // On this machine nobody logs in.
            ("reach", None) => self.rows.push(("agent", duration, self.agent.clone())),
            ("prepare", _) => self.rows.push(("inventory", duration, String::new())),
            ("join", _) => self.joined = Some((duration, at)),
            _ => {}
        }
    }

    /// Returns the table, once. `last` is the last rank that has started, `None` if some have not.
    fn conclude(&mut self, at: Duration, last: Option<String>) -> Option<String> {
        if std::mem::replace(&mut self.is_told, true) {
            return None;
        }
        if let Some((duration, ended)) = self.joined {
            let mesh = self.mesh.min(duration);
            self.rows.push(("rendezvous", duration - mesh, String::new()));
            if !mesh.is_zero() {
                self.rows.push(("mesh", mesh, String::new()));
            }
            self.rows.extend(last.map(|last| ("start", at.saturating_sub(ended), last)));
        }
        self.rows.push(("total", at.saturating_sub(self.began), String::new()));
        let mut cells = vec![columns::row(["phase", "seconds", "last"])];
        cells.extend(self.rows.drain(..).map(|(name, duration, last)| {
            vec![name.to_owned(), format!("{:>7.3}", duration.as_secs_f64()), last]
        }));
        Some(columns::lay_out(&cells))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Notes events, each with its time in milliseconds. Returns what is told of the last.
    fn told(timing: &mut StartTiming, events: &[(u64, Event)]) -> Option<String> {
        let mut told = None;
        for (ms, event) in events {
            told = timing.note(Duration::from_millis(*ms), event);
        }
        told
    }

    fn phase(name: &'static str, seconds: f64) -> Event {
        Event::Phase { name, seconds }
    }

    fn rank_started(rank: u32) -> Event {
        Event::RankStarted { rank, host: "b".into(), pid: 7 }
    }

    fn agent_started(host: &str) -> Event {
        let hostname = host.to_owned();
        Event::AgentStarted { host: host.into(), hostname, pid: 7, sent_bytes: 0 }
    }

    #[test]
    fn a_start_is_told_when_its_last_rank_has_started() {
        let mut timing = StartTiming::new(Duration::from_millis(100));
        let started = Event::JobStarted { program: "p".into(), ranks: 2, nodes: 2 };
        let events = [
            (110, started),
            (300, Event::HostReached { host: "a".into() }),
            (400, Event::HostReached { host: "b".into() }),
            (410, agent_started("b")),
            (450, agent_started("a")),
            (450, phase("reach", 0.35)),
            (480, phase("prepare", 0.03)),
            (600, phase("join", 0.12)),
            (620, rank_started(0)),
        ];
        assert_eq!(told(&mut timing, &events), None);
        timing.mesh_proved(Duration::from_millis(40));
        let table = "\
phase       seconds  last
login         0.300  b
agent         0.050  a
inventory     0.030
rendezvous    0.080
mesh          0.040
start         0.050  rank 1 on b
total         0.550
";
        assert_eq!(told(&mut timing, &[(650, rank_started(1))]).as_deref(), Some(table));
        let ended = Event::JobEnded { exit_code: 0, spoke: "rank", message: String::new() };
        assert_eq!(told(&mut timing, &[(700, ended)]), None, "once");
    }

    #[test]
    fn a_start_that_fails_is_told_as_far_as_it_came() {
        let mut timing = StartTiming::new(Duration::ZERO);
        let ended = Event::JobEnded { exit_code: 200, spoke: "launcher", message: String::new() };
        let events = [(5000, phase("reach", 5.0)), (5001, ended)];
        let table = "phase  seconds\nagent    5.000\ntotal    5.001\n";
        assert_eq!(told(&mut timing, &events).as_deref(), Some(table));
    }
}
