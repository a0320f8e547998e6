//! Client of the sockets of running jobs: finds them and asks them.

use super::directory::{SocketDirectory, SocketName};
use super::messages::{Greeting, JobPhase, JobStatus, Reply, Request, SOCKET_VERSION};
use crate::run::output::OutputPart;
use crate::run::record::{JobRecord, RecordStore, RecordedJob};
use nix::errno::Errno;
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use rlaunch_bootstrap::frame::{self, FrameError, FrameReader};
use rlaunch_bootstrap::protocol::inspection::{Inspection, InspectionResult};
use rlaunch_plan::job::name::{Meant, NamedJob, verb_of};
use rlaunch_text::printable;
use rlaunch_text::shell::without_secrets;
use serde::de::DeserializeOwned;
use std::ffi::{OsStr, OsString};
use std::os::unix::ffi::OsStrExt;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::{Duration, SystemTime, UNIX_EPOCH};
use std::{fmt, fs, io};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::UnixStream;

/// Time limit for a reply. It is longer than nodes have for their answers.
const REPLY_TIMEOUT: Duration = Duration::from_secs(8);
/// Silence after which the launcher may be stopped, in which case no reply will come.
const STOPPED_AFTER: Duration = Duration::from_millis(500);
/// Index of the terminal among the fields of a process's state behind its name, which is 0 without one.
const TTY: usize = 4;
/// Maximum length of a launcher's command line in a message, in characters.
const MAX_COMMAND: usize = 160;

/// Running job that can be asked.
pub struct RunningJob {
    /// Id of the job, 32 hexadecimal digits.
    pub id: String,
    /// Name of the job.
    pub name: String,
    launcher: Option<Launcher>,
    stream: UnixStream,
    frames: FrameReader,
}

/// Process that runs a job. It displays as `pid 4711: rlaunch -H a python3 train.py`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Launcher {
    pub pid: i32,
}

/// Answers of all nodes to a question.
#[derive(Debug)]
pub struct NodeAnswers {
    /// Hosts that have answered, with their answers.
    pub answers: Vec<(String, InspectionResult)>,
    /// Hosts that have not answered in time.
    pub missing: Vec<String>,
}

/// Reason why a running job cannot be found or asked.
#[derive(Debug, thiserror::Error)]
pub enum LiveError {
    #[error("cannot list running jobs")]
    List(#[source] io::Error),
    #[error("no job of yours runs from this machine")]
    NoJob,
    #[error("no job whose name or id begins with {0} runs from this machine")]
    Unknown(String),
    #[error("{} jobs of yours run from this machine: {}", .0.len(), .0.join(", "))]
    Several(Vec<String>),
    #[error("job {job} was started on {machine}")]
    Elsewhere { job: String, machine: String },
    #[error("cannot connect to job {job} at {}", path.display())]
    Connect { job: String, path: PathBuf, source: io::Error },
    #[error(
        "job {job} was started by rlaunch {version}, whose socket this rlaunch does not understand"
    )]
    Version { job: String, version: String },
    #[error("job {0} has ended")]
    Ended(String),
    #[error("job {} does not answer, its launcher is stopped ({launcher})", word_for(job))]
    Stopped { job: String, launcher: Launcher },
    #[error(
        "job {} does not answer within {} s{}", word_for(job), REPLY_TIMEOUT.as_secs(),
        .launcher.map(|launcher| format!(" ({launcher})")).unwrap_or_default()
    )]
    Silent { job: String, launcher: Option<Launcher> },
    #[error("unreadable answer of job {job}")]
    Frame { job: String, source: FrameError },
    #[error("job {job} cannot answer: {why}")]
    Refused { job: String, why: String, launcher: Option<Launcher> },
}

impl LiveError {
    /// Returns advice for the user.
    pub fn hint(&self) -> Option<String> {
        match self {
            // `rlaunch jobs` would say the same.
            LiveError::NoJob => Some(
                "`rlaunch jobs -H HOSTS` lists jobs that other machines have started; `rlaunch report last` shows \
                 the last job that has ended"
                    .into(),
            ),
            LiveError::Unknown(_) => Some(
                "`rlaunch jobs` lists running jobs, `rlaunch jobs -H HOSTS` those on hosts; \
                 `rlaunch report last` shows the last job that has ended"
                    .into(),
            ),
            LiveError::Several(_) => Some("give one of these names".into()),
            LiveError::Elsewhere { machine, .. } => {
                Some(format!("its launcher runs on {machine}; ask there"))
            }
            LiveError::Version { .. } => Some("ask with the rlaunch that started it".into()),
            LiveError::Stopped { launcher, .. } => Some(launcher.way_on()),
            LiveError::Silent { .. } => {
                Some("its machine may be overloaded, or its terminal may block its output".into())
            }
            _ => None,
        }
    }
}

impl RunningJob {
    /// Connects to every running job of this process's user, oldest first. Leftover sockets of this machine are removed.
    /// Also returns the jobs that cannot be asked, with the reasons.
    pub async fn all() -> Result<(Vec<RunningJob>, Vec<LiveError>), LiveError> {
        let Some(directory) = SocketDirectory::open().map_err(LiveError::List)? else {
            return Ok((Vec::new(), Vec::new()));
        };
        let names = directory.sockets().map_err(LiveError::List)?;
        let directory = Arc::new(directory);
        let connect = |name: SocketName| {
            let directory = directory.clone();
            tokio::spawn(async move { RunningJob::connect(&directory, &name).await })
        };
        // All at once, since a launcher that is stopped does not answer.
        let connecting: Vec<_> = names.into_iter().map(connect).collect();
        let (mut jobs, mut failed) = (Vec::new(), Vec::new());
        for task in connecting {
            match task.await {
                Ok(Ok(Some(job))) => jobs.push(job),
                Ok(Err(error)) => failed.push(error),
                // A task that panics has printed its message.
                Ok(Ok(None)) | Err(_) => {}
            }
        }
        Ok((jobs, failed))
    }

    /// Connects to the job that `word` means ([`Meant::find`]), or to the only running one. One that a verb has started is
    /// the only one if no job of the user runs.
    pub async fn find(word: Option<&str>) -> Result<RunningJob, LiveError> {
        let (mut jobs, mut failed) = RunningJob::all().await?;
        let names = |jobs: &[RunningJob], found: &[usize]| {
            LiveError::Several(found.iter().map(|at| jobs[*at].name.clone()).collect())
        };
        let Some(word) = word else {
            failed.retain(|error| !matches!(error, LiveError::Elsewhere { .. }));
            if jobs.iter().any(RunningJob::is_of_user) {
                jobs.retain(RunningJob::is_of_user);
            }
            return match (jobs.len(), failed.pop()) {
                (0, Some(error)) if failed.is_empty() => Err(error),
                (0, None) => Err(LiveError::NoJob),
                (1, None) => Ok(jobs.swap_remove(0)),
                // One that cannot be asked, as that of a stopped launcher, may be the one that is meant.
                (_, last) => {
                    let unasked = failed.iter().chain(&last).filter_map(LiveError::name);
                    let names = jobs.iter().map(|job| job.name.clone()).chain(unasked);
                    Err(LiveError::Several(names.collect()))
                }
            };
        };
        match Meant::find(word, &jobs) {
            Meant::One(at) => Ok(jobs.swap_remove(at)),
            Meant::Several(found) => Err(names(&jobs, &found)),
            Meant::Nothing => Err(unasked(word, failed)),
        }
    }

    /// Connects to a job's socket, and makes sure that it answers. Returns `None` if the job has ended.
    pub(super) async fn connect(
        directory: &SocketDirectory,
        name: &SocketName,
    ) -> Result<Option<RunningJob>, LiveError> {
        let job = name.job.clone();
        if !name.is_here() {
            return Err(LiveError::Elsewhere { job, machine: name.machine.clone() });
        }
        let stream = match UnixStream::connect(directory.address(name)).await {
            Ok(stream) => stream,
            // The launcher was killed before it could remove its socket.
            Err(error) if error.kind() == io::ErrorKind::ConnectionRefused => {
                directory.remove(name);
                return Ok(None);
            }
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
            Err(source) => {
                return Err(LiveError::Connect { job, path: directory.path(name), source });
            }
        };
        let launcher = Launcher::at_other_end(&stream);
        let frames = FrameReader::default();
        let mut running = RunningJob { id: job, name: String::new(), launcher, stream, frames };
        let greeting = match running.greeting().await {
            Ok(greeting) => greeting,
            Err(LiveError::Ended(_)) => return Ok(None),
            Err(error) => return Err(error),
        };
        if greeting.socket_version != SOCKET_VERSION {
            let version = greeting.rlaunch;
            return Err(LiveError::Version { job: running.id, version });
        }
        // An error means that the launcher has closed the connection, after its last message.
        let _ = running.send(&Request::Status).await;
        match running.receive().await {
            Ok(Reply::Status(status)) => Ok(Some(RunningJob { name: status.name, ..running })),
            Ok(other) => Err(running.unexpected(other)),
            Err(LiveError::Ended(_)) => Ok(None),
            Err(error) => Err(error),
        }
    }

    /// Tells whether no verb has started the job for itself.
    pub fn is_of_user(&self) -> bool {
        verb_of(&self.name).is_none()
    }

    /// Returns the state of the job.
    pub async fn status(&mut self) -> Result<JobStatus, LiveError> {
        self.send(&Request::Status).await?;
        match self.receive().await? {
            Reply::Status(status) => Ok(*status),
            other => Err(self.unexpected(other)),
        }
    }

    /// Returns the output of the ranks from `position` on, which is 0 for all of it.
    pub async fn output(&mut self, position: u64) -> Result<OutputPart, LiveError> {
        self.send(&Request::Output { position }).await?;
        match self.receive().await? {
            Reply::Output(part) => Ok(part),
            other => Err(self.unexpected(other)),
        }
    }

    /// Asks the agents of all nodes.
    pub async fn inspect(&mut self, what: Inspection) -> Result<NodeAnswers, LiveError> {
        self.send(&Request::Inspect(what)).await?;
        let mut answers = Vec::new();
        loop {
            match self.receive().await? {
                Reply::Node { host, result } => answers.push((host, result)),
                Reply::Complete { missing } => return Ok(NodeAnswers { answers, missing }),
                other => return Err(self.unexpected(other)),
            }
        }
    }

    /// Ends the job, as SIGTERM of the user does.
    pub async fn end(&mut self) -> Result<(), LiveError> {
        self.send(&Request::End).await?;
        match self.receive().await? {
            Reply::Ending => Ok(()),
            other => Err(self.unexpected(other)),
        }
    }

    /// Returns the process that runs the job; `None` if it is not to be seen from here.
    pub fn launcher(&self) -> Option<Launcher> {
        self.launcher
    }

    /// Waits until the job has ended. No request may be under way. Cancel-safe.
    pub async fn ended(&mut self) -> LiveError {
        loop {
            match self.next::<Reply>().await {
                // An answer to no question.
                Ok(_) => {}
                Err(error) => return error,
            }
        }
    }

    fn unexpected(&self, reply: Reply) -> LiveError {
        let why = match reply {
            Reply::Refused(why) => why,
            _ => "its answer belongs to another question".to_owned(),
        };
        LiveError::Refused { job: self.id.clone(), why, launcher: self.launcher }
    }

    pub async fn send(&mut self, request: &Request) -> Result<(), LiveError> {
        let encoded = frame::encode(request)
            .map_err(|source| LiveError::Frame { job: self.id.clone(), source })?;
        let sent = self.stream.write_all(&encoded).await;
        sent.map_err(|_| LiveError::Ended(self.id.clone()))
    }

    /// Waits for the launcher's greeting. A launcher that is stopped, which may be for hours, is not waited for.
    async fn greeting(&mut self) -> Result<Greeting, LiveError> {
        match tokio::time::timeout(STOPPED_AFTER, self.next()).await {
            Ok(greeting) => greeting,
            Err(_) if self.launcher.is_some_and(Launcher::is_stopped) => Err(self.silent()),
            Err(_) => self.receive().await,
        }
    }

    /// Waits for the next message, as long as a reply may take.
    pub async fn receive<T: DeserializeOwned>(&mut self) -> Result<T, LiveError> {
        let received = tokio::time::timeout(REPLY_TIMEOUT, self.next()).await;
        received.unwrap_or_else(|_| Err(self.silent()))
    }

    /// Returns the error for a launcher that does not answer.
    fn silent(&self) -> LiveError {
        let (job, launcher) = (self.id.clone(), self.launcher);
        match launcher {
            Some(launcher) if launcher.is_stopped() => LiveError::Stopped { job, launcher },
            _ => LiveError::Silent { job, launcher },
        }
    }

    /// Waits for the next message, without a time limit. Cancel-safe.
    pub async fn next<T: DeserializeOwned>(&mut self) -> Result<T, LiveError> {
        let mut buffer = Vec::with_capacity(16 << 10);
        loop {
            let frame = self.frames.next_frame();
            match frame.map_err(|source| LiveError::Frame { job: self.id.clone(), source })? {
                Some(message) => return Ok(message),
                None => buffer.clear(),
            }
            match self.stream.read_buf(&mut buffer).await {
                Ok(1..) => self.frames.push(&buffer),
                Ok(0) | Err(_) => return Err(LiveError::Ended(self.id.clone())),
            }
        }
    }
}

/// Returns the reason why the job that `word` means cannot be asked, from those of all jobs.
fn unasked(word: &str, mut failed: Vec<LiveError>) -> LiveError {
    let ids = failed.iter().map(|error| error.job().unwrap_or_default());
    let jobs: Vec<RecordedJob> = ids.map(begun_job).collect();
    match Meant::find(word, &jobs) {
        Meant::One(at) => failed.swap_remove(at),
        Meant::Several(found) => failed.swap_remove(found[found.len() - 1]),
        Meant::Nothing => LiveError::Unknown(word.to_owned()),
    }
}

/// Returns the word by which a running job that does not say its name is named to the user.
fn word_for(id: &str) -> String {
    let job = begun_job(id);
    if job.name.is_empty() { job.id } else { job.name }
}

/// Returns the state of a job whose launcher is stopped, from what it has written when it began.
fn stopped_status(record: JobRecord, launcher: Launcher) -> JobStatus {
    let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default().as_secs_f64();
    JobStatus {
        ranks: record.ranks(),
        job: record.job,
        name: record.name,
        pid: launcher.pid.unsigned_abs(),
        program: record.program,
        started: record.started,
        seconds: (now - record.started).max(0.0),
        phase: JobPhase::Stopped,
        hosts: record.hosts,
        ranks_started: 0,
        ranks_ended: 0,
        last_output: None,
        speeds: Vec::new(),
    }
}

/// Returns a running job that does not say its name, by the name that its file has.
fn begun_job(id: &str) -> RecordedJob {
    let begun = RecordStore::for_user().map(|store| store.begun()).unwrap_or_default();
    let known = begun.into_iter().find(|job| job.id == id);
    known.unwrap_or_else(|| RecordedJob { id: id.to_owned(), name: String::new() })
}

impl NamedJob for RunningJob {
    fn id(&self) -> &str {
        &self.id
    }

    fn name(&self) -> &str {
        &self.name
    }
}

impl LiveError {
    /// Returns the word by which the job that the error is about is named to the user.
    fn name(&self) -> Option<String> {
        self.job().map(word_for)
    }

    /// Returns the state of a job whose launcher is stopped, as far as its record tells; `None` for other errors.
    pub fn stopped(&self) -> Option<JobStatus> {
        let LiveError::Stopped { job, launcher } = self else { return None };
        let record = RecordStore::for_user().ok()?.record_of(job).ok()??;
        Some(stopped_status(record, *launcher))
    }

    /// Returns the id of the job that the error is about.
    fn job(&self) -> Option<&str> {
        match self {
            LiveError::Elsewhere { job, .. }
            | LiveError::Connect { job, .. }
            | LiveError::Version { job, .. }
            | LiveError::Stopped { job, .. }
            | LiveError::Silent { job, .. }
            | LiveError::Frame { job, .. }
            | LiveError::Refused { job, .. }
            | LiveError::Ended(job) => Some(job),
            _ => None,
        }
    }
}

impl Launcher {
    /// Returns the process that listens at the other end; `None` if it is not to be seen from here, as from another
    /// container.
    fn at_other_end(stream: &UnixStream) -> Option<Launcher> {
        let pid = stream.peer_cred().ok()?.pid()?;
        (pid > 0).then_some(Launcher { pid })
    }

    /// Ends the job in whatever phase it is, as SIGTERM of the user does. A stopped process goes on to do so.
    pub fn end(self) -> io::Result<()> {
        self.signal(Signal::SIGTERM)?;
        if self.is_stopped() { self.signal(Signal::SIGCONT) } else { Ok(()) }
    }

    /// Kills the process. Agents end the ranks of a launcher that is gone.
    pub fn kill(self) -> io::Result<()> {
        self.signal(Signal::SIGKILL)
    }

    fn signal(self, signal: Signal) -> io::Result<()> {
        match kill(Pid::from_raw(self.pid), signal) {
            // It has ended meanwhile.
            Ok(()) | Err(Errno::ESRCH) => Ok(()),
            Err(error) => Err(error.into()),
        }
    }

    /// Tells whether the process was stopped, as by Ctrl-Z, and has not gone on.
    fn is_stopped(self) -> bool {
        self.stat().first().is_some_and(|state| state == "T")
    }

    /// Returns what lets a stopped process go on. One that was started with -d has no terminal.
    fn way_on(self) -> String {
        let Launcher { pid } = self;
        match self.stat().get(TTY).map(String::as_str) {
            Some("0") => format!("`kill -CONT {pid}` lets it go on"),
            _ => format!("`fg` in its terminal lets it go on, or kill -CONT {pid}"),
        }
    }

    /// Returns the fields of the process's state in proc(5) behind its name; none if it is not to be seen.
    fn stat(self) -> Vec<String> {
        let stat = fs::read_to_string(format!("/proc/{}/stat", self.pid)).unwrap_or_default();
        // The name may have parentheses and blanks in it.
        let fields = stat.rsplit_once(')').map_or("", |(_, fields)| fields);
        fields.split_ascii_whitespace().map(str::to_owned).collect()
    }

    fn command(self) -> Option<String> {
        let line = fs::read(format!("/proc/{}/cmdline", self.pid)).ok()?;
        let words = line.split(|&byte| byte == 0).map(|word| OsStr::from_bytes(word).to_owned());
        let words: Vec<OsString> = words.filter(|word| !word.is_empty()).collect();
        let line = printable::first_line(&without_secrets(&words).join(" "));
        (!line.is_empty()).then(|| line.chars().take(MAX_COMMAND).collect())
    }
}

impl fmt::Display for Launcher {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "pid {}", self.pid)?;
        self.command().map_or(Ok(()), |command| write!(f, ": {command}"))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::process::ExitStatusExt;
    use std::process::Command;
    use std::thread::sleep;

    /// Where no job runs, `rlaunch jobs` says just that.
    #[test]
    fn no_hint_leads_to_the_same_answer() {
        let hint = LiveError::NoJob.hint().unwrap();
        assert!(!hint.contains("`rlaunch jobs`") && hint.contains("`rlaunch jobs -H"), "{hint}");
    }

    #[test]
    fn a_stopped_launcher_is_told_by_its_process() {
        let mut child = Command::new("sleep").arg("60").spawn().unwrap();
        let launcher = Launcher { pid: i32::try_from(child.id()).unwrap() };
        let signal = |signal| kill(Pid::from_raw(launcher.pid), signal).unwrap();
        let becomes = |stopped: bool| {
            (0..500).any(|_| {
                sleep(Duration::from_millis(10));
                launcher.is_stopped() == stopped
            })
        };
        let was_stopped = launcher.is_stopped();
        signal(Signal::SIGSTOP);
        let is_stopped = becomes(true);
        let shown = launcher.to_string();
        signal(Signal::SIGCONT);
        let goes_on = becomes(false);
        child.kill().unwrap();
        child.wait().unwrap();
        assert!(!was_stopped && is_stopped && goes_on);
        assert_eq!(shown, format!("pid {}: sleep 60", launcher.pid));
        assert!(!launcher.is_stopped());
    }

    #[test]
    fn only_a_job_with_a_terminal_is_told_to_go_to_its_foreground() {
        let mut child = Command::new("setsid").args(["sleep", "60"]).spawn().unwrap();
        let launcher = Launcher { pid: i32::try_from(child.id()).unwrap() };
        // Before setsid(2) it may have the terminal of this test.
        let has_none = (0..500).any(|_| {
            sleep(Duration::from_millis(10));
            launcher.way_on() == format!("`kill -CONT {}` lets it go on", launcher.pid)
        });
        child.kill().unwrap();
        child.wait().unwrap();
        assert!(has_none && launcher.way_on().contains("`fg`"));
    }

    #[test]
    fn a_stopped_job_is_listed_as_its_record_has_it() {
        let record: JobRecord = serde_json::from_value(serde_json::json!({
            "v": 1, "job": "5", "name": "amber-fox", "started": 9.0, "seconds": 0.0, "argv": [],
            "program": ["true"], "hosts": [{ "host": "a", "ranks": [0, 1] }], "placement": [],
            "environment": [], "end": { "exit_code": 137, "spoke": "launcher", "message": "" },
        }))
        .unwrap();
        let status = stopped_status(record, Launcher { pid: 7 });
        assert_eq!((status.name.as_str(), status.pid), ("amber-fox", 7));
        assert_eq!((status.phase.word(), status.ranks, status.hosts.len()), ("stopped", 2, 1));
        assert!(status.seconds > 0.0);
    }

    /// SIGTERM alone would wait until somebody lets the process go on.
    #[test]
    fn a_stopped_launcher_goes_on_to_end() {
        let mut child = Command::new("sleep").arg("60").spawn().unwrap();
        let launcher = Launcher { pid: i32::try_from(child.id()).unwrap() };
        launcher.signal(Signal::SIGSTOP).unwrap();
        while !launcher.is_stopped() {
            sleep(Duration::from_millis(10));
        }
        launcher.end().unwrap();
        let ended = child.wait().unwrap();
        assert_eq!(ended.signal(), Some(Signal::SIGTERM as i32));
    }

    /// The other end of the connection is this process, which is not stopped.
    #[tokio::test(start_paused = true)]
    async fn a_launcher_that_is_only_slow_has_its_time() {
        let (here, _other) = UnixStream::pair().unwrap();
        let launcher = Launcher::at_other_end(&here);
        assert_eq!(launcher.unwrap().pid, Pid::this().as_raw());
        let frames = FrameReader::default();
        let mut job =
            RunningJob { id: "5".into(), name: "x".into(), launcher, stream: here, frames };
        let began = tokio::time::Instant::now();
        let error = job.greeting().await.unwrap_err();
        assert!(matches!(error, LiveError::Silent { .. }), "{error}");
        assert!(began.elapsed() >= STOPPED_AFTER + REPLY_TIMEOUT);
    }
}
