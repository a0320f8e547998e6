//! Programs of a job that do not go together.

use super::Title;
use super::render::KNOWN;
use std::io;
use std::path::PathBuf;

/// Why several programs, or templates of one, cannot be meant.
#[derive(Debug, thiserror::Error)]
pub(crate) enum AppError {
    #[error("`--name {0}` is no name: it has letters, digits, `-`, `_` and `.`")]
    Name(String),
    #[error("two programs are called {0}")]
    NameTwice(String),
    #[error("{title} is to start after `{name}`, which no program is called")]
    Unknown { title: Title, name: String, near: Option<String> },
    #[error("`{0}` is no condition: ready:tcp:HOST:PORT")]
    Ready(String),
    #[error("{} cannot start: each waits for another of them", .0.join(", "))]
    Cycle(Vec<String>),
    #[error("{0} has no -np: another program runs on the same hosts behind it")]
    NoRanks(Title),
    #[error("{0} has no slots in its hostfile, and several programs run there")]
    OpenSlots(String),
    #[error("`--template {0}`: FILE:DEST")]
    NoDest(String),
    #[error("cannot read the template {}", path.display())]
    Read { path: PathBuf, source: io::Error },
    #[error("{title}: {what} is no template: {cause}")]
    Syntax { title: Title, what: String, cause: String },
    #[error("{title}: cannot fill in {what} for rank {rank}: {cause}")]
    Fill { title: Title, what: String, rank: u32, cause: String },
    #[error("{title}: {dest} is another file for rank {rank} than for rank {other} of {host}")]
    TwoFiles { title: Title, dest: String, rank: u32, other: u32, host: String },
}

impl AppError {
    /// What could be done about it.
    pub(crate) fn hint(&self) -> Option<String> {
        match self {
            AppError::Unknown { near, name, .. } => Some(match near {
                Some(near) => format!("{near} exists"),
                None => format!("--name {name} before the program that is meant"),
            }),
            AppError::Cycle(_) => Some("one of them has to start without --after".to_owned()),
            AppError::NoRanks(_) => {
                Some("-np N says how many slots are left for the others".to_owned())
            }
            AppError::OpenSlots(host) => Some(format!("`{host} slots=N` says how many it has")),
            AppError::Syntax { .. } => {
                Some("two braces as such are written {{ \"{{\" }}".to_owned())
            }
            AppError::Fill { .. } => Some(format!("known are {KNOWN}")),
            AppError::TwoFiles { .. } => {
                Some("{{rank.index}} in DEST gives each rank its own".to_owned())
            }
            AppError::Name(_)
            | AppError::NameTwice(_)
            | AppError::Ready(_)
            | AppError::NoDest(_)
            | AppError::Read { .. } => None,
        }
    }
}
