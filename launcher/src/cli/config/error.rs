//! What is wrong with `rlaunch.toml` or a variable that stands for an option, and where.

use std::fmt;
use std::io;
use std::path::{Path, PathBuf};

/// The file's name where it is looked for.
pub(crate) const FILE: &str = "rlaunch.toml";

/// The command that makes an untrusted file count.
const TRUST: &str = "`rlaunch trust` shows what the file does and trusts it";

/// Where something was written.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Place {
    /// In a file, at this line, from 1.
    Line(PathBuf, usize),
    /// In the variable of this name.
    Variable(String),
}

impl fmt::Display for Place {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Place::Line(path, line) => write!(f, "{}:{line}", path.display()),
            Place::Variable(name) => f.write_str(name),
        }
    }
}

/// Why defaults cannot be taken.
#[derive(Debug, thiserror::Error)]
pub(crate) enum ConfigError {
    #[error("cannot read {}", path.display())]
    Read { path: PathBuf, source: io::Error },
    /// Found, and others may have written it.
    #[error("{} is not read: {reason}, and it can name commands to run", path.display())]
    Distrusted { path: PathBuf, reason: String },
    #[error("{place}: {reason}")]
    Wrong { place: Place, reason: String },
    #[error("{place}: unknown key `{key}`{}", known(near.as_deref(), all))]
    Unknown {
        place: Place,
        key: String,
        /// The known key that is nearest to it.
        near: Option<String>,
        /// What there is, where that is short.
        all: &'static [&'static str],
    },
    #[error("{} has no profile `{name}`{}", path.display(), profiles(has))]
    NoProfile { path: PathBuf, name: String, has: Vec<String> },
    #[error("profile `{0}`: there is no rlaunch.toml to have it")]
    NoFile(String),
    #[error("profile `{name}` of {} does not count: the file is not trusted", path.display())]
    UntrustedProfile { path: PathBuf, name: String },
    /// Nothing else names any, and this machine is not what the file's writer meant.
    #[error("the only hosts are those of {}, which is not trusted", path.display())]
    UntrustedHosts { path: PathBuf },
    #[error("no directory for what is trusted: neither XDG_STATE_HOME nor HOME names one")]
    NoState,
    #[error("cannot record what is trusted in {}", path.display())]
    Record { path: PathBuf, source: io::Error },
    #[error("{} is not trusted", .0.display())]
    NotTrusted(PathBuf),
    #[error("{}: there is no such file", .0.display())]
    Missing(PathBuf),
    #[error("{}: only a {FILE} needs trust, where a working directory has one", .0.display())]
    NeedsNoTrust(PathBuf),
}

fn known(near: Option<&str>, all: &[&str]) -> String {
    match (near, all) {
        (Some(near), _) => format!(": `{near}` exists"),
        (None, []) => String::new(),
        (None, all) => format!(": there are {}", all.join(", ")),
    }
}

fn profiles(has: &[String]) -> String {
    if has.is_empty() { String::new() } else { format!(": it has {}", has.join(", ")) }
}

impl ConfigError {
    /// Something at a line of a file.
    pub(crate) fn at(path: &Path, line: usize, reason: impl Into<String>) -> ConfigError {
        ConfigError::Wrong { place: Place::Line(path.to_owned(), line), reason: reason.into() }
    }

    /// What the user can do.
    pub(crate) fn hint(&self) -> Option<String> {
        match self {
            ConfigError::Read { .. } => Some("--cluster none goes without a file".into()),
            ConfigError::Distrusted { path, .. } => Some(format!(
                "chmod go-w {0}, if it is yours; --cluster {0} reads it all the same, --cluster \
                 none goes without",
                path.display()
            )),
            ConfigError::UntrustedProfile { .. } => Some(TRUST.into()),
            ConfigError::UntrustedHosts { .. } => {
                Some("-H names other hosts, as -H localhost for this machine".into())
            }
            ConfigError::NoState | ConfigError::Record { .. } => {
                Some(format!("--cluster {FILE} reads a file without asking for trust"))
            }
            ConfigError::NotTrusted(_) => Some("`rlaunch trust --list` has what is".into()),
            ConfigError::NeedsNoTrust(path) => {
                Some(format!("--cluster {} takes it as it is, since you name it", path.display()))
            }
            ConfigError::Unknown { near: None, all: [], .. } => {
                Some("`rlaunch --help` has the options, each a key by its long name".into())
            }
            ConfigError::NoFile(_) => Some(format!(
                "--cluster FILE names one; otherwise ./{FILE} or ~/.config/rlaunch/{FILE} is read"
            )),
            ConfigError::Unknown { .. }
            | ConfigError::NoProfile { .. }
            | ConfigError::Missing(_)
            | ConfigError::Wrong { .. } => None,
        }
    }
}
