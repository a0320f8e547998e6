//! Client of the sockets of running jobs: finds them and asks them.

use super::directory::{SocketDirectory, SocketName};
use super::messages::{Greeting, JobStatus, Reply, Request, SOCKET_VERSION};
use rlaunch_bootstrap::frame::{self, FrameError, FrameReader};
use rlaunch_bootstrap::protocol::inspection::{Inspection, InspectionResult};
use serde::de::DeserializeOwned;
use std::io;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::UnixStream;

/// Time limit for a reply. It is longer than nodes have for their answers.
const REPLY_TIMEOUT: Duration = Duration::from_secs(8);

/// Running job that can be asked.
pub struct RunningJob {
    /// Id of the job, 32 hexadecimal digits.
    pub id: String,
    stream: UnixStream,
    frames: FrameReader,
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
    #[error("no job that begins with {0} runs from this machine")]
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
    #[error("job {job} does not answer within {} s", REPLY_TIMEOUT.as_secs())]
    Silent { job: String },
    #[error("unreadable answer of job {job}")]
    Frame { job: String, source: FrameError },
    #[error("job {job} cannot answer: {why}")]
    Refused { job: String, why: String },
}

impl LiveError {
    /// Returns advice for the user.
    pub fn hint(&self) -> Option<String> {
        match self {
            LiveError::NoJob | LiveError::Unknown(_) => Some(
                "`rlaunch jobs` lists running jobs, `rlaunch jobs -H HOSTS` those on hosts; \
                 `rlaunch report last` shows the last job that has ended"
                    .into(),
            ),
            LiveError::Several(_) => Some("name one by the beginning of its id".into()),
            LiveError::Elsewhere { machine, .. } => {
                Some(format!("its launcher runs on {machine}; ask there"))
            }
            LiveError::Version { .. } => Some("ask with the rlaunch that started it".into()),
            LiveError::Silent { .. } => Some(
                "its launcher may be stopped (Ctrl-Z) or its terminal may block its output".into(),
            ),
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

    /// Connects to the job whose id begins with `job`, or to the only running one.
    pub async fn find(job: Option<&str>) -> Result<RunningJob, LiveError> {
        let (mut jobs, mut failed) = RunningJob::all().await?;
        if let Some(job) = job {
            let prefix = job.to_ascii_lowercase();
            jobs.retain(|found| found.id.starts_with(&prefix));
            failed.retain(|error| error.job().is_some_and(|found| found.starts_with(&prefix)));
        } else {
            failed.retain(|error| !matches!(error, LiveError::Elsewhere { .. }));
        }
        if jobs.len() > 1 {
            return Err(LiveError::Several(jobs.into_iter().map(|job| job.id).collect()));
        }
        match (jobs.pop(), failed.pop(), job) {
            (Some(job), ..) => Ok(job),
            (None, Some(error), _) => Err(error),
            (None, None, Some(job)) => Err(LiveError::Unknown(job.to_owned())),
            (None, None, None) => Err(LiveError::NoJob),
        }
    }

    /// Connects to a job's socket. Returns `None` if the job has ended.
    async fn connect(
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
        let mut running = RunningJob { id: job, stream, frames: FrameReader::default() };
        let greeting: Greeting = match running.receive().await {
            Ok(greeting) => greeting,
            Err(LiveError::Ended(_)) => return Ok(None),
            Err(error) => return Err(error),
        };
        if greeting.socket_version != SOCKET_VERSION {
            let version = greeting.rlaunch;
            return Err(LiveError::Version { job: running.id, version });
        }
        Ok(Some(running))
    }

    /// Returns the state of the job.
    pub async fn status(&mut self) -> Result<JobStatus, LiveError> {
        self.send(&Request::Status).await?;
        match self.receive().await? {
            Reply::Status(status) => Ok(*status),
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
        LiveError::Refused { job: self.id.clone(), why }
    }

    pub async fn send(&mut self, request: &Request) -> Result<(), LiveError> {
        let encoded = frame::encode(request)
            .map_err(|source| LiveError::Frame { job: self.id.clone(), source })?;
        let sent = self.stream.write_all(&encoded).await;
        sent.map_err(|_| LiveError::Ended(self.id.clone()))
    }

    /// Waits for the next message, as long as a reply may take.
    pub async fn receive<T: DeserializeOwned>(&mut self) -> Result<T, LiveError> {
        let received = tokio::time::timeout(REPLY_TIMEOUT, self.next()).await;
        received.unwrap_or_else(|_| Err(LiveError::Silent { job: self.id.clone() }))
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

impl LiveError {
    /// Returns the id of the job that the error is about.
    fn job(&self) -> Option<&str> {
        match self {
            LiveError::Elsewhere { job, .. }
            | LiveError::Connect { job, .. }
            | LiveError::Version { job, .. }
            | LiveError::Silent { job }
            | LiveError::Frame { job, .. }
            | LiveError::Refused { job, .. }
            | LiveError::Ended(job) => Some(job),
            _ => None,
        }
    }
}
