//! Errors in the options of a job's programs.

use super::AppTitle;
use super::render::PLACEHOLDERS;
use std::io;
use std::path::PathBuf;

/// Error in the names, conditions, hosts or templates of programs.
#[derive(Debug, thiserror::Error)]
pub enum AppError {
    #[error("`--name {0}` is not a name of letters, digits, `-`, `_` and `.`")]
    Name(String),
    #[error("two programs are called {0}")]
    NameTwice(String),
    #[error("{title} is to start after `{name}`, but no program has that name")]
    UnknownName { title: AppTitle, name: String, nearest: Option<String> },
    #[error("`{0}` is not a condition of the form ready:tcp:HOST:PORT")]
    Ready(String),
    #[error("{} cannot start: each waits for another", .0.join(", "))]
    Cycle(Vec<String>),
    #[error("{0} has no -np, but another program follows on the same hosts")]
    NoRanks(AppTitle),
    #[error("{0} has no number of slots in the hostfile, but several programs run on it")]
    SlotsFromGpus(String),
    #[error("`--template {0}` is not of the form FILE:DEST")]
    NoDest(String),
    #[error("cannot read the template {}", path.display())]
    Read { path: PathBuf, source: io::Error },
    #[error("{title}: {what} is not a valid template: {cause}")]
    Syntax { title: AppTitle, what: String, cause: String },
    #[error("{title}: cannot replace placeholders in {what} for rank {rank}: {cause}")]
    Fill { title: AppTitle, what: String, rank: u32, cause: String },
    #[error(
        "{title}: {dest} would have other content for rank {rank} than for rank {other} on {host}"
    )]
    TwoFiles { title: AppTitle, dest: String, rank: u32, other: u32, host: String },
}

impl AppError {
    pub fn hint(&self) -> Option<String> {
        match self {
            AppError::UnknownName { nearest, name, .. } => Some(match nearest {
                Some(nearest) => format!("{nearest} exists"),
                None => format!("--name {name} goes before the program that is meant"),
            }),
            AppError::Cycle(_) => Some("one of them must not have --after".to_owned()),
            AppError::NoRanks(_) => {
                Some("with -np N the other slots are left for the programs behind it".to_owned())
            }
            AppError::SlotsFromGpus(host) => Some(format!("write `{host} slots=N` there")),
            AppError::Syntax { .. } => Some("for two literal braces write {{ \"{{\" }}".to_owned()),
            AppError::Fill { .. } => Some(format!("placeholders are {PLACEHOLDERS}")),
            AppError::TwoFiles { .. } => {
                Some("{{rank.index}} in DEST gives each rank a file of its own".to_owned())
            }
            AppError::Name(_)
            | AppError::NameTwice(_)
            | AppError::Ready(_)
            | AppError::NoDest(_)
            | AppError::Read { .. } => None,
        }
    }
}
