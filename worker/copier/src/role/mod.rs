//! What the program does: receive and pass on, send, fetch, carry bytes.
//!
//! | file | subject |
//! |---|---|
//! | `rank` | ranks of a push and of a fetch |
//! | `local` | programs on the launcher's machine |
//! | `tree` | a working tree there, and what has changed in it since it was copied |
//! | `answer` | questions about this host |
//! | `shared` | hosts that share the destination |
//! | `pipe` | bytes between stdin, stdout and a port |
//! | `listing` | the manifest, which goes down the chain before anything else |
//! | `chain` | one place in the chain, while it copies |
//! | `files` | files of a place |
//! | `order` | order of the chain, and addresses of neighbours |
//! | `report` | what the launcher is told |

mod answer;
mod chain;
mod files;
mod listing;
mod local;
mod order;
mod pipe;
mod rank;
mod report;
mod shared;
#[cfg(test)]
mod tests;
mod tree;

pub use answer::answer;
pub use local::{fetch, send};
pub use order::order;
pub use pipe::pipe;
pub use rank::{receive, serve};
pub use report::LOCAL;

use crate::files::{OriginalError, StageError, WalkError};
use crate::images::EngineError;
use crate::link::{LinkError, Party};
use rlaunch_bootstrap::security::Secret;
use rlaunch_client::ClientError;
use rlaunch_copy::WireError;
use rlaunch_copy::control::{ImageCopy, Request, TreeLimit};
use std::error::Error;
use std::io::{self, BufRead};
use std::path::PathBuf;
use std::time::Duration;

/// Time in which the launcher's machine has to reach a rank directly.
const CONNECT_DIRECT: Duration = Duration::from_secs(2);
/// Time in which another rank has to connect or to be reached.
const CONNECT: Duration = Duration::from_secs(20);

/// Reason why a program cannot go on.
#[derive(Debug, thiserror::Error)]
pub enum RoleError {
    #[error(transparent)]
    Link(#[from] LinkError),
    #[error("cannot exchange addresses with the other hosts")]
    Client(#[from] ClientError),
    #[error("cannot read what to copy from stdin")]
    Stdin(#[source] io::Error),
    #[error("stdin ended before it was said what to copy")]
    NoRequest,
    #[error("cannot understand what to copy")]
    Request(#[source] serde_json::Error),
    #[error("{0} is not set: this runs only in a job of rlaunch push or fetch")]
    NotARank(&'static str),
    #[error("cannot read the rank table {}", path.display())]
    Table { path: PathBuf, source: io::Error },
    #[error("cannot understand the rank table")]
    BadTable(#[source] serde_json::Error),
    #[error("rank {0} is not in the rank table")]
    NoSuchRank(u32),
    #[error("it was not said which files to send")]
    NoSource,
    #[error("{host} does not listen")]
    NotListening { host: String },
    #[error("{0} is relative to the home directory, but HOME is not set")]
    NoHome(String),
    #[error("{0} is no model in the cache of the Hugging Face hub")]
    Model(String),
    #[error("{path} is large: {files} files that git does not ignore, {bytes} bytes")]
    TooLarge { path: String, files: u64, bytes: u64 },
    /// The files to be copied cannot be listed.
    #[error(transparent)]
    Walk(#[from] WalkError),
    /// The files to be copied cannot be read.
    #[error("{0}")]
    Sources(Box<dyn Error + Send + Sync>),
    #[error(transparent)]
    Original(#[from] OriginalError),
    /// The files at the destination cannot be read or written.
    #[error(transparent)]
    Stage(#[from] StageError),
    #[error("the list of files from {host} cannot be used")]
    Listing { host: String, source: WireError },
    /// What the host before has sent is not what its list of files says, so that host is to blame. With
    /// `--plain` the wire between may be.
    #[error("a part of {path} from {host} is not what it was when the copy began")]
    Damaged { path: String, host: String },
    #[error("{path} is not on this host's disk what was copied")]
    Differs { path: String },
    #[error("{host} sent a part of a file that nobody asked for")]
    Unasked { host: String },
    #[error("{host} sent a message that does not belong there")]
    Unexpected { host: String },
    /// Another host cannot go on, and said why.
    #[error("{host}: {text}")]
    Other { host: String, text: String },
    /// The container engine of the source.
    #[error(transparent)]
    Engine(#[from] EngineError),
    #[error("cannot carry bytes to port {port}")]
    Pipe { port: u16, source: io::Error },
}

impl RoleError {
    /// Returns the error with its causes.
    pub fn text(&self) -> String {
        let mut text = self.to_string();
        let mut cause = self.source();
        while let Some(error) = cause {
            let more = error.to_string();
            // Some errors name their cause themselves.
            if !text.ends_with(&more) {
                text = format!("{text}: {more}");
            }
            cause = error.source();
        }
        text
    }

    /// Returns advice to the user about the error, if there is any.
    pub fn hint(&self) -> Option<String> {
        match self {
            RoleError::Link(error) => error.hint(),
            RoleError::Walk(WalkError::Hub(error)) => Some(error.hint()),
            RoleError::Walk(WalkError::Kernel { path }) => Some(if path.is_file() {
                let path = path.display();
                format!(
                    "`cat {path} >FILE` makes a file of it; from many hosts: `rlaunch --output-dir DIR -H HOSTS cat \
                         {path}`"
                )
            } else {
                "`cat FILE >COPY` makes a file of one of those in it".to_owned()
            }),
            RoleError::Original(error) => error.hint(),
            RoleError::Stage(error) => error.hint(),
            RoleError::Engine(error) => error.hint(),
            RoleError::TooLarge { bytes, .. } => {
                let size = bytes.div_ceil(1 << 30);
                Some(format!(
                    "--sync-limit {size}G copies it all the same; what .gitignore names stays here"
                ))
            }
            RoleError::Damaged { .. } => {
                Some("copy again when nothing writes to it; what is there stays".to_owned())
            }
            RoleError::Differs { path } => {
                Some(format!("a disk may be faulty; remove {path} there and copy again"))
            }
            _ => None,
        }
    }
}

/// What a place in the chain has to know of the request.
#[derive(Clone, Debug)]
struct Settings {
    secret: Secret,
    is_plain: bool,
    streams: u32,
    limit: Option<u64>,
    verify: bool,
    tree: Option<TreeLimit>,
    last: Option<PathBuf>,
    image: Option<ImageCopy>,
}

impl Settings {
    fn of(request: &Request) -> Result<Settings, RoleError> {
        Ok(Settings {
            secret: Secret::from_bytes(request.secret.0),
            is_plain: request.plain,
            streams: request.streams,
            limit: request.limit,
            verify: request.verify,
            tree: request.tree,
            last: request.last.as_ref().map(PathBuf::from),
            image: request.image.clone(),
        })
    }

    fn party(&self, me: u32) -> Party {
        Party { secret: self.secret.clone(), me, is_plain: self.is_plain }
    }
}

/// Reads a line of JSON; `None` at the end.
fn read_line<T: serde::de::DeserializeOwned>(
    input: &mut impl BufRead,
) -> Result<Option<T>, RoleError> {
    let mut line = Vec::new();
    if input.read_until(b'\n', &mut line).map_err(RoleError::Stdin)? == 0 {
        return Ok(None);
    }
    serde_json::from_slice(&line).map(Some).map_err(RoleError::Request)
}
