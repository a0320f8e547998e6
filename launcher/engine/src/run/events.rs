//! `--events`: a log of what happens to a job, for programs. It has one JSON object per line, written when
//! the event happens.
//!
//! Every line has `v` (the version of this schema, 1), `t` (seconds since rlaunch started), `job` (the job's
//! id) and `event`; [`Event`] documents the other fields. New events and new fields may appear without a new
//! version, but existing ones do not change their meaning.
//!
//! The table of `--show timing` is made of the same events.

mod timing;

use crate::run::live::LiveStatus;
use nix::errno::Errno;
use nix::fcntl::{FcntlArg, OFlag, fcntl};
use rlaunch_bootstrap::env::redacted;
use rlaunch_bootstrap::id::{JobId, Rank};
use rlaunch_bootstrap::job::ExitStatus;
use rlaunch_console::line_writer::LineWriter;
use rlaunch_console::messages;
use rlaunch_plan::job::JobSpec;
use rlaunch_plan::map::RankMap;
use rlaunch_text::exit::Exit;
use rlaunch_text::message::Failed;
use serde::Serialize;
use std::fs::{self, File, OpenOptions};
use std::io::{self, Seek, SeekFrom, Write};
use std::os::unix::fs::{FileTypeExt, OpenOptionsExt};
use std::sync::{Arc, Mutex, OnceLock, PoisonError};
use std::thread;
use std::time::{Duration, Instant};
use timing::StartTiming;

/// Version of the schema.
const VERSION: u32 = 1;

/// File to which events are written, if `--events` names one, and the state of the job that follows from them.
/// Clones write to the same file.
#[derive(Clone)]
pub struct EventLog {
    target: Option<Target>,
    failure: WriteFailure,
    job: JobId,
    started: Instant,
    status: LiveStatus,
    /// Table of `--show timing`, if it is asked for.
    timing: Option<Arc<Mutex<StartTiming>>>,
}

/// Error that left the file incomplete, the first of all. Clones share it.
#[derive(Clone, Debug)]
struct WriteFailure {
    /// Path of the file.
    target: String,
    message: Arc<OnceLock<String>>,
}

impl WriteFailure {
    /// Takes note of an error, and prints a warning of the first.
    fn note(&self, error: &io::Error) {
        let message = format!("cannot write events to {}: {error}", self.target);
        if self.message.set(message.clone()).is_ok() {
            messages::warn(&message);
        }
    }
}

/// Regular file with whole lines alone.
struct EventFile {
    file: File,
    /// Number of lines that could not be written since the last that could.
    dropped: usize,
}

impl EventFile {
    /// Writes a line. `dropped_line` makes the line that counts those that could not be written before it.
    fn write(&mut self, line: &[u8], dropped_line: impl Fn(usize) -> Vec<u8>) -> io::Result<()> {
        let written = match self.dropped {
            0 => Ok(()),
            count => self.write_whole(&dropped_line(count)).inspect(|()| self.dropped = 0),
        };
        written.and_then(|()| self.write_whole(line)).inspect_err(|_| self.dropped += 1)
    }

    /// Writes a line, or nothing of it.
    fn write_whole(&mut self, line: &[u8]) -> io::Result<()> {
        let mut done = 0;
        while done < line.len() {
            match self.file.write(&line[done..]) {
                Ok(written @ 1..) => done += written,
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                failed => {
                    // Half a line is no reason to fail otherwise.
                    let _ = self.take_back(done);
                    return failed.and(Err(io::ErrorKind::WriteZero.into()));
                }
            }
        }
        Ok(())
    }

    /// Removes the last bytes of the file, unless another process has written behind them.
    fn take_back(&mut self, bytes: usize) -> io::Result<()> {
        let end = self.file.stream_position()?;
        let whole = end.saturating_sub(bytes as u64);
        if self.file.metadata()?.len() == end {
            self.file.set_len(whole)?;
            self.file.seek(SeekFrom::Start(whole))?;
        }
        Ok(())
    }
}

/// Target of events.
#[derive(Clone)]
enum Target {
    File(Arc<Mutex<EventFile>>),
    /// Pipe or another file with a reader, which may not read.
    Reader(Arc<LineWriter>),
}

impl Target {
    fn new(file: File, failure: &WriteFailure, job: JobId, started: Instant) -> io::Result<Target> {
        if file.metadata()?.is_file() {
            return Ok(Target::File(Arc::new(Mutex::new(EventFile { file, dropped: 0 }))));
        }
        let dropped = move |count| line_of(&Event::EventsDropped { count }, job, started);
        let failure = failure.clone();
        let print = move |line: &[u8]| {
            let written = (&file).write_all(line);
            // Other errors are those of a reader that has gone.
            if let Err(error) = &written
                && error.kind() == io::ErrorKind::StorageFull
            {
                failure.note(error);
            }
            written
        };
        Ok(Target::Reader(Arc::new(LineWriter::start(print, dropped))))
    }

    /// Returns an error of a regular file; those of others are noted when they occur.
    fn write(
        &self,
        line: Vec<u8>,
        is_droppable: bool,
        dropped_line: impl Fn(usize) -> Vec<u8>,
    ) -> io::Result<()> {
        match self {
            Target::File(file) => {
                let mut file = file.lock().unwrap_or_else(PoisonError::into_inner);
                return file.write(&line, dropped_line);
            }
            Target::Reader(writer) if is_droppable => writer.write(line),
            Target::Reader(writer) => writer.write_always(line),
        }
        Ok(())
    }
}

/// Makes the line for an event; an empty one if it cannot be written as JSON.
fn line_of(event: &Event, job: JobId, started: Instant) -> Vec<u8> {
    let t = started.elapsed().as_secs_f64();
    let line = EventLine { v: VERSION, t, job: job.to_string(), event };
    let mut text = serde_json::to_vec(&line).unwrap_or_default();
    if !text.is_empty() {
        text.push(b'\n');
    }
    text
}

/// Event of a job.
#[derive(Debug, Serialize)]
#[serde(tag = "event", rename_all = "snake_case")]
pub enum Event {
    /// This job is a restart of the job with the id `former`: restart `number` of at most `most`. `after` is
    /// the error message of the former job.
    JobRestarted { number: u32, most: u32, former: String, after: String },
    /// Ranks are mapped to hosts. Connecting to these hosts begins now, or is already done if their GPUs had
    /// to be counted first.
    JobStarted { program: String, ranks: u32, nodes: usize },
    /// rlaunch has logged in to a host.
    HostReached { host: String },
    /// The agent on a host has started. `sent_bytes` is the size of the agent's file, or 0 if the host had
    /// the file already.
    AgentStarted { host: String, hostname: String, pid: u32, sent_bytes: usize },
    /// A phase (`reach`, `prepare`, `join`, `run`) ended after `seconds`.
    Phase { name: &'static str, seconds: f64 },
    /// The process of a rank has started.
    RankStarted { rank: u32, host: String, pid: u32 },
    /// A rank exited with `code`, or was killed by `signal`.
    RankExited {
        rank: u32,
        host: String,
        pid: u32,
        #[serde(skip_serializing_if = "Option::is_none")]
        code: Option<i32>,
        #[serde(skip_serializing_if = "Option::is_none")]
        signal: Option<i32>,
    },
    /// The connection between two neighbours in the tree of agents broke. The launcher relays their messages
    /// from now on.
    EdgeRelayed { parent: String, child: String },
    /// An RDMA link that ranks use went down. `text` names the hosts, the time and the symptom.
    LinkDown { text: String },
    /// An RDMA link that was down is up again.
    LinkUp { text: String },
    /// The job has made no progress for `seconds`. `text` names the ranks for which the others wait; `groups` has a
    /// line for the ranks at each place.
    Hang { seconds: u64, text: String, groups: Vec<String> },
    /// These ranks have been slower than the others over the time of `--straggler-report`. `text` names their hosts, and
    /// compares them with the others.
    Stragglers { ranks: Vec<u32>, text: String },
    /// Ranks have waited for `seconds` in the operation `what`, because the ranks in `missing` have not
    /// joined it.
    Waiting { what: String, seconds: f64, missing: String },
    /// A rank added a text to this log.
    #[serde(rename = "rank_event")]
    Custom { rank: u32, text: String },
    /// A node was lost, for the reason in `cause`.
    NodeLost { host: String, cause: String },
    /// A node has ended its ranks and cleaned up. `helpers_ended` counts leftovers, which are processes that
    /// outlived their rank; `segments_removed` counts files in /dev/shm.
    NodeClean { host: String, helpers_ended: u32, segments_removed: u32 },
    /// The reader of this log was so far behind, or the file system so full, that `count` events were dropped.
    EventsDropped { count: usize },
    /// The job is over; this is its last event. `spoke` is `rank` if `exit_code` comes from a rank, otherwise
    /// `launcher`.
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

/// Time in which a named pipe gets a reader.
const READER: Duration = Duration::from_secs(5);

/// Opens a file, or a named pipe that has a reader or gets one in time. Opening a pipe without a reader would block for ever.
fn open_file(path: &str, patience: Duration) -> io::Result<File> {
    let mut options = OpenOptions::new();
    options.write(true).create(true).truncate(true).mode(0o600);
    if !fs::metadata(path).is_ok_and(|found| found.file_type().is_fifo()) {
        return options.open(path);
    }
    options.create(false).custom_flags(OFlag::O_NONBLOCK.bits());
    let until = Instant::now() + patience;
    loop {
        match options.open(path) {
            Err(error) if error.raw_os_error() == Some(Errno::ENXIO as i32) => {
                if Instant::now() >= until {
                    return Err(io::Error::other("it is a pipe that nobody reads"));
                }
                thread::sleep(Duration::from_millis(20));
            }
            Err(error) => return Err(error),
            Ok(pipe) => {
                fcntl(&pipe, FcntlArg::F_SETFL(OFlag::empty()))?;
                return Ok(pipe);
            }
        }
    }
}

impl EventLog {
    /// Opens `target`: the path of a file, which is replaced, or `fd:N` for a descriptor that this process
    /// inherited. Without a target, events are dropped.
    pub fn open(target: Option<&str>, job: JobId) -> io::Result<EventLog> {
        let open = |target: &str| match target.strip_prefix("fd:") {
            Some(number) => {
                let number: u32 = number.parse().map_err(io::Error::other)?;
                OpenOptions::new().append(true).open(format!("/dev/fd/{number}"))
            }
            None => open_file(target, READER),
        };
        let started = Instant::now();
        let file = target.map(open).transpose()?;
        let name = target.unwrap_or_default().to_owned();
        let failure = WriteFailure { target: name, message: Arc::default() };
        let target = file.map(|file| Target::new(file, &failure, job, started)).transpose()?;
        Ok(EventLog { target, failure, job, started, status: LiveStatus::new(), timing: None })
    }

    /// Returns a log that writes the events of another job, which starts now, to the same file.
    pub fn for_job(self, job: JobId) -> EventLog {
        EventLog { job, status: LiveStatus::new(), timing: None, ..self }
    }

    /// Makes the log print where the time of the start went, counted from now on.
    #[must_use]
    pub(crate) fn with_timing(self) -> EventLog {
        let timing = StartTiming::new(self.started.elapsed());
        EventLog { timing: Some(Arc::new(Mutex::new(timing))), ..self }
    }

    /// Notes how long the proof of RDMA paths took.
    pub(crate) fn mesh_proved(&self, duration: Duration) {
        if let Some(timing) = &self.timing {
            timing.lock().unwrap_or_else(PoisonError::into_inner).mesh_proved(duration);
        }
    }

    fn note_timing(&self, event: &Event) {
        let Some(timing) = &self.timing else { return };
        let at = self.started.elapsed();
        let table = timing.lock().unwrap_or_else(PoisonError::into_inner).note(at, event);
        if let Some(table) = table {
            table.lines().for_each(messages::line);
        }
    }

    /// Returns the state of the job.
    pub fn status(&self) -> &LiveStatus {
        &self.status
    }

    /// Writes an event. A job goes on if the reader of its events has gone, or if they cannot be written:
    /// [`EventLog::conclude`] tells.
    pub(crate) fn emit(&self, event: &Event) {
        match event {
            Event::Phase { name, .. } => self.status.phase_ended(name),
            Event::RankStarted { .. } => self.status.rank_started(),
            Event::RankExited { .. } => self.status.rank_exited(),
            // The status counts nothing else.
            _ => {}
        }
        self.note_timing(event);
        let Some(target) = &self.target else { return };
        let is_droppable = !matches!(event, Event::JobEnded { .. } | Event::JobRestarted { .. });
        let line = |event: &Event| line_of(event, self.job, self.started);
        let dropped = |count| line(&Event::EventsDropped { count });
        if let Err(error) = target.write(line(event), is_droppable, dropped) {
            self.failure.note(&error);
        }
    }

    /// Makes a success an error if events could not be written.
    pub(crate) fn conclude(&self, ended: Result<Exit, Failed>) -> Result<Exit, Failed> {
        match self.failure.message.get() {
            Some(message) if ended.as_ref().is_ok_and(|exit| *exit == Exit::SUCCESS) => {
                Err(Failed::new(Exit::FILES, message.clone()))
            }
            _ => ended,
        }
    }

    /// Tells whether events wait for their reader.
    pub(crate) fn is_behind(&self) -> bool {
        matches!(&self.target, Some(Target::Reader(writer)) if writer.is_behind())
    }

    /// Returns the line that tells the user, after the job, that its reader is waited for.
    pub(crate) fn wait_line(&self) -> String {
        format!(
            "the job is over; waiting for the reader of {} to take its events; Ctrl-C leaves them",
            self.failure.target
        )
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::run::live::messages::JobPhase;

    #[test]
    fn a_log_without_a_target_keeps_the_state_of_the_job() {
        let events = EventLog::open(None, JobId(5)).unwrap();
        let state = || {
            let now = events.status().report("5".into(), "x".into(), Vec::new());
            (now.phase, now.ranks_started, now.ranks_ended)
        };
        assert_eq!(state(), (JobPhase::Connecting, 0, 0));
        events.emit(&Event::HostReached { host: "a".into() });
        assert_eq!(state(), (JobPhase::Connecting, 0, 0));
        for (name, phase) in [
            ("reach", JobPhase::Preparing),
            ("prepare", JobPhase::Joining),
            ("join", JobPhase::Running),
            ("run", JobPhase::Running),
        ] {
            events.emit(&Event::Phase { name, seconds: 0.1 });
            assert_eq!(state(), (phase, 0, 0), "{name}");
        }
        events.emit(&Event::RankStarted { rank: 1, host: "a".into(), pid: 7 });
        assert_eq!(state(), (JobPhase::Running, 1, 0));
        events.emit(&Event::rank_exited(Rank(1), "a".into(), 7, ExitStatus::Code(0)));
        assert_eq!(state(), (JobPhase::Running, 1, 1));
    }

    #[test]
    fn a_pipe_is_opened_once_somebody_reads_it() {
        let scratch = tempfile::tempdir().unwrap();
        let pipe = scratch.path().join("pipe");
        nix::unistd::mkfifo(&pipe, nix::sys::stat::Mode::S_IRWXU).unwrap();
        let error = open_file(pipe.to_str().unwrap(), Duration::ZERO).unwrap_err();
        assert_eq!(error.to_string(), "it is a pipe that nobody reads");
        let path = pipe.clone();
        let reader = thread::spawn(move || fs::read_to_string(path).unwrap());
        let mut opened = open_file(pipe.to_str().unwrap(), Duration::from_secs(60)).unwrap();
        opened.write_all(b"all").unwrap();
        drop(opened);
        assert_eq!(reader.join().unwrap(), "all");
    }

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

    #[test]
    fn a_reader_that_does_not_read_is_waited_for_by_name() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("events");
        nix::unistd::mkfifo(&path, nix::sys::stat::Mode::S_IRWXU).unwrap();
        // Both ends, so that neither open waits.
        let reader = OpenOptions::new().read(true).write(true).open(&path).unwrap();
        let events = EventLog::open(path.to_str(), JobId(5)).unwrap();
        let text = "x".repeat(128 << 10);
        events.emit(&Event::LinkDown { text: text.clone() });
        assert!(events.is_behind());
        assert!(events.wait_line().contains(&format!("the reader of {}", path.display())));
        let mut taken = vec![0; text.len()];
        io::Read::read_exact(&mut &reader, &mut taken).unwrap();
        while events.is_behind() {
            std::thread::yield_now();
        }
    }

    #[test]
    fn a_log_that_cannot_be_written_is_said_at_the_end() {
        let events = EventLog::open(Some("/dev/full"), JobId(5)).unwrap();
        let concluded = |events: &EventLog, exit| {
            let ended = events.conclude(Ok(exit));
            ended.map_err(|failed| (failed.exit, failed.message))
        };
        assert_eq!(concluded(&events, Exit::SUCCESS), Ok(Exit::SUCCESS));
        events.emit(&Event::HostReached { host: "a".into() });
        while events.is_behind() {
            std::thread::yield_now();
        }
        let message = "cannot write events to /dev/full: No space left on device (os error 28)";
        assert_eq!(concluded(&events, Exit::SUCCESS), Err((Exit::FILES, message.to_owned())));
        // Another error is worse.
        assert_eq!(concluded(&events, Exit(7)), Ok(Exit(7)));

        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("events");
        let mut events = EventLog::open(path.to_str(), JobId(5)).unwrap();
        let file = File::open(&path).unwrap();
        events.target = Some(Target::File(Arc::new(Mutex::new(EventFile { file, dropped: 0 }))));
        events.emit(&Event::HostReached { host: "a".into() });
        let (exit, message) = concluded(&events, Exit::SUCCESS).unwrap_err();
        assert!(exit == Exit::FILES && message.contains("Bad file descriptor"), "{message}");
    }

    #[test]
    fn a_file_has_whole_lines_alone_and_counts_what_it_lacks() {
        let mut file = EventFile { file: tempfile::tempfile().unwrap(), dropped: 0 };
        let count = |count: usize| format!("{count} dropped\n").into_bytes();
        file.write(b"one\n", count).unwrap();
        // The disk is full after two bytes.
        file.file.write_all(b"tw").unwrap();
        file.take_back(2).unwrap();
        file.dropped = 1;
        file.write(b"three\n", count).unwrap();
        file.write(b"four\n", count).unwrap();
        file.file.rewind().unwrap();
        let text = io::read_to_string(&mut file.file).unwrap();
        assert_eq!(text, "one\n1 dropped\nthree\nfour\n");
    }
}
