//! `--events`: what happened, for programs. One JSON object per line, written as it happens.
//!
//! Every line has `v` (the version of this schema, 1), `t` (seconds since rlaunch started), `job`
//! (its id) and `event`; the rest depends on the event, as [`Record`] documents. New events and
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

/// Where records go; nowhere unless asked for. Clones write to the same place.
#[derive(Clone)]
pub(crate) struct Events {
    file: Option<Arc<Mutex<File>>>,
    job: JobId,
    started: Instant,
}

/// Something that happened.
#[derive(Debug, Serialize)]
#[serde(tag = "event", rename_all = "snake_case")]
pub(crate) enum Record<'a> {
    /// It takes the place of a former job (its id), for the `number`th time of `most`, because of
    /// what happened to that one.
    JobRestarted { number: u32, most: u32, former: &'a str, after: &'a str },
    /// It is known which hosts the job runs on. It is about to reach them, or has reached them
    /// when it takes their GPUs to know how many ranks they run.
    JobStarted { program: &'a str, ranks: u32, nodes: usize },
    /// A host let us in.
    HostReached { host: &'a str },
    /// An agent spoke. `sent_bytes` is 0 when it was there already.
    AgentStarted { host: &'a str, hostname: &'a str, pid: u32, sent_bytes: usize },
    /// A phase (`reach`, `prepare`, `join`, `run`) ended after `seconds`.
    Phase { name: &'a str, seconds: f64 },
    /// A rank's process exists.
    RankStarted { rank: u32, host: &'a str, pid: u32 },
    /// A rank ended, by `code` or by `signal`.
    RankExited {
        rank: u32,
        host: &'a str,
        pid: u32,
        #[serde(skip_serializing_if = "Option::is_none")]
        code: Option<i32>,
        #[serde(skip_serializing_if = "Option::is_none")]
        signal: Option<i32>,
    },
    /// Two agents cannot reach each other; the launcher carries what they have to say.
    EdgeRelayed { parent: &'a str, child: &'a str },
    /// A link that ranks use went down: who, when and how.
    LinkDown { text: &'a str },
    /// It is up again.
    LinkUp { text: &'a str },
    /// Ranks have waited this long at `what` for `missing`.
    Waiting { what: &'a str, seconds: f64, missing: &'a str },
    /// What a rank put into the record.
    RankEvent { rank: u32, text: &'a str },
    /// An agent was lost.
    NodeLost { host: &'a str, cause: &'a str },
    /// A node has verified that nothing of the job is left there.
    NodeClean { host: &'a str, helpers_ended: u32, segments_removed: u32 },
    /// The last record of a job. `spoke` says whose `exit_code` it is: `rank` or `launcher`.
    JobEnded { exit_code: u8, spoke: &'a str, message: String },
}

impl<'a> Record<'a> {
    pub(crate) fn job_started(job: &'a JobSpec, map: &RankMap) -> Self {
        let program =
            job.first().argv.first().and_then(|program| program.to_str()).unwrap_or_default();
        Record::JobStarted { program, ranks: map.world_size, nodes: map.nodes.len() }
    }

    pub(crate) fn job_ended(ended: &'a Result<Exit, Failed>) -> Self {
        match ended {
            Ok(exit) => {
                Record::JobEnded { exit_code: exit.0, spoke: "rank", message: String::new() }
            }
            Err(failed) => {
                let spoke = if failed.by_rank { "rank" } else { "launcher" };
                Record::JobEnded {
                    exit_code: failed.exit.0,
                    spoke,
                    message: redacted(&failed.message),
                }
            }
        }
    }

    pub(crate) fn rank_exited(rank: Rank, host: &'a str, pid: u32, status: ExitStatus) -> Self {
        let (code, signal) = match status {
            ExitStatus::Code(code) => (Some(code), None),
            ExitStatus::Signal(signal) => (None, Some(signal)),
        };
        Record::RankExited { rank: rank.0, host, pid, code, signal }
    }
}

#[derive(Serialize)]
struct Line<'a> {
    v: u32,
    t: f64,
    job: String,
    #[serde(flatten)]
    record: &'a Record<'a>,
}

impl Events {
    /// Opens `target`: a file, which is replaced, or `fd:N`, a descriptor this process was given.
    pub(crate) fn open(target: Option<&str>, job: JobId) -> io::Result<Events> {
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
        Ok(Events { file, job, started: Instant::now() })
    }

    /// The same place, for records of another job.
    pub(crate) fn of_job(self, job: JobId) -> Events {
        Events { job, ..self }
    }

    /// Writes a record. A reader that went away stops the records and not the job.
    pub(crate) fn emit(&self, record: &Record<'_>) {
        let Some(file) = &self.file else { return };
        let t = self.started.elapsed().as_secs_f64();
        let line = Line { v: VERSION, t, job: self.job.to_string(), record };
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
        let events = Events::open(path.to_str(), JobId(5)).unwrap();
        events.emit(&Record::HostReached { host: "a" });
        events.emit(&Record::rank_exited(Rank(1), "b", 7, ExitStatus::Signal(11)));
        let events = events.of_job(JobId(6));
        events.emit(&Record::JobRestarted { number: 1, most: 2, former: "5", after: "c" });
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
