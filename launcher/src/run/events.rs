//! `--events`: a log of what happens to a job, for programs. One JSON object per line, written as it
//! happens.
//!
//! Every line has `v` (the version of this schema, 1), `t` (seconds since rlaunch started), `job`
//! (its id) and `event`; the other fields depend on the event, as [`Event`] documents. New events and
//! new fields may appear without a new version; none changes its meaning.

use crate::job::JobSpec;
use crate::plan::map::RankMap;
use rlaunch_bootstrap::env::redacted;
use rlaunch_bootstrap::id::{JobId, Rank};
use rlaunch_bootstrap::job::ExitStatus;
use rlaunch_console::exit::Exit;
use rlaunch_console::messages::Failed;
use serde::Serialize;
use std::fs::{File, OpenOptions};
use std::io::{self, Write};
use std::os::unix::fs::OpenOptionsExt;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Instant;

/// Version of the schema.
const VERSION: u32 = 1;

/// The file that events are written to, if there is one. Clones write to the same file.
#[derive(Clone)]
pub(crate) struct EventLog {
    file: Option<Arc<Mutex<File>>>,
    job: JobId,
    started: Instant,
}

/// Something that happened to a job.
#[derive(Debug, Serialize)]
#[serde(tag = "event", rename_all = "snake_case")]
pub(crate) enum Event {
    /// This job restarts the job `former` (its id), as restart `number` of at most `most`; `after` is
    /// how the former job failed.
    JobRestarted { number: u32, most: u32, former: String, after: String },
    /// The hosts of the job are known. They are about to be reached, or have been reached if their
    /// GPUs had to be counted first.
    JobStarted { program: String, ranks: u32, nodes: usize },
    /// A host was logged in to.
    HostReached { host: String },
    /// The agent on a host has started. `sent_bytes` is 0 if the host had the agent's file already.
    AgentStarted { host: String, hostname: String, pid: u32, sent_bytes: usize },
    /// A phase (`reach`, `prepare`, `join`, `run`) ended after `seconds`.
    Phase { name: &'static str, seconds: f64 },
    /// A rank's process exists.
    RankStarted { rank: u32, host: String, pid: u32 },
    /// A rank ended, by `code` or by `signal`.
    RankExited {
        rank: u32,
        host: String,
        pid: u32,
        #[serde(skip_serializing_if = "Option::is_none")]
        code: Option<i32>,
        #[serde(skip_serializing_if = "Option::is_none")]
        signal: Option<i32>,
    },
    /// Two agents cannot reach each other; the launcher relays their messages.
    EdgeRelayed { parent: String, child: String },
    /// A link that ranks use went down; `text` says between which hosts, when and how.
    LinkDown { text: String },
    /// A link that was down is up again.
    LinkUp { text: String },
    /// Ranks have waited this long at `what` for `missing`.
    Waiting { what: String, seconds: f64, missing: String },
    /// A text that a rank added to this log.
    #[serde(rename = "rank_event")]
    Custom { rank: u32, text: String },
    /// An agent was lost.
    NodeLost { host: String, cause: String },
    /// A node has verified that nothing of the job is left there.
    NodeClean { host: String, helpers_ended: u32, segments_removed: u32 },
    /// The last event of a job. `spoke` says whose `exit_code` it is: `rank` or `launcher`.
    JobEnded { exit_code: u8, spoke: &'static str, message: String },
}

impl Event {
    pub(crate) fn job_started(job: &JobSpec, map: &RankMap) -> Event {
        let program = job.first().argv.first().and_then(|program| program.to_str());
        let program = program.unwrap_or_default().to_owned();
        Event::JobStarted { program, ranks: map.world_size, nodes: map.nodes.len() }
    }

    pub(crate) fn job_ended(ended: &Result<Exit, Failed>) -> Event {
        match ended {
            Ok(exit) => {
                Event::JobEnded { exit_code: exit.0, spoke: "rank", message: String::new() }
            }
            Err(failed) => Event::JobEnded {
                exit_code: failed.exit.0,
                spoke: if failed.by_rank { "rank" } else { "launcher" },
                message: redacted(&failed.message),
            },
        }
    }

    pub(crate) fn rank_exited(rank: Rank, host: String, pid: u32, status: ExitStatus) -> Event {
        let (code, signal) = match status {
            ExitStatus::Code(code) => (Some(code), None),
            ExitStatus::Signal(signal) => (None, Some(signal)),
        };
        Event::RankExited { rank: rank.0, host, pid, code, signal }
    }
}

#[derive(Serialize)]
struct EventLine<'a> {
    v: u32,
    t: f64,
    job: String,
    #[serde(flatten)]
    event: &'a Event,
}

impl EventLog {
    /// Opens `target`: a file, which is replaced, or `fd:N`, a descriptor that this process inherited.
    pub(crate) fn open(target: Option<&str>, job: JobId) -> io::Result<EventLog> {
        let open = |target: &str| match target.strip_prefix("fd:") {
            Some(number) => {
                let number: u32 = number.parse().map_err(io::Error::other)?;
                OpenOptions::new().append(true).open(format!("/dev/fd/{number}"))
            }
            None => {
                OpenOptions::new().write(true).create(true).truncate(true).mode(0o600).open(target)
            }
        };
        let file = target.map(open).transpose()?.map(|file| Arc::new(Mutex::new(file)));
        Ok(EventLog { file, job, started: Instant::now() })
    }

    /// Goes on in the same file with the events of another job.
    pub(crate) fn for_job(self, job: JobId) -> EventLog {
        EventLog { job, ..self }
    }

    /// Writes an event. A reader that has closed the file ends the log, not the job.
    pub(crate) fn emit(&self, event: &Event) {
        let Some(file) = &self.file else { return };
        let t = self.started.elapsed().as_secs_f64();
        let line = EventLine { v: VERSION, t, job: self.job.to_string(), event };
        if let Ok(mut text) = serde_json::to_vec(&line) {
            text.push(b'\n');
            let _ = file.lock().unwrap_or_else(PoisonError::into_inner).write_all(&text);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn records_are_one_object_a_line() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("events");
        let events = EventLog::open(path.to_str(), JobId(5)).unwrap();
        events.emit(&Event::HostReached { host: "a".into() });
        events.emit(&Event::rank_exited(Rank(1), "b".into(), 7, ExitStatus::Signal(11)));
        let events = events.for_job(JobId(6));
        let (former, after) = ("5".into(), "c".into());
        events.emit(&Event::JobRestarted { number: 1, most: 2, former, after });
        let text = std::fs::read_to_string(path).unwrap();
        let lines: Vec<serde_json::Value> =
            text.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
        assert_eq!(lines[0]["event"], "host_reached");
        assert_eq!(lines[1]["signal"], 11);
        assert_eq!(lines[1]["code"], serde_json::Value::Null);
        assert_eq!(lines[1]["v"], VERSION);
        assert_eq!(lines[1]["job"], JobId(5).to_string());
        assert_eq!(lines[2]["event"], "job_restarted");
        assert_eq!(lines[2]["job"], JobId(6).to_string());
    }
}
