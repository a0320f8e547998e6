//! Errors in `rlaunch.toml` and in variables `RLAUNCH_NAME`, with the file and line or the variable's name.

use nix::unistd::Uid;
use std::path::{Path, PathBuf};
use std::{fmt, io};

/// Name of a configuration file in the working directory and in ~/.config/rlaunch.
pub(crate) const FILE: &str = "rlaunch.toml";

/// Hint for settings that have no effect without trust.
const TRUST: &str = "`rlaunch trust` shows what the file does and trusts it";

/// Place at which the user made a setting.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum SettingOrigin {
    /// Line of a file, from 1.
    Line(PathBuf, usize),
    /// Environment variable with this name.
    Variable(String),
}

impl fmt::Display for SettingOrigin {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            SettingOrigin::Line(path, line) => write!(f, "{}:{line}", path.display()),
            SettingOrigin::Variable(name) => f.write_str(name),
        }
    }
}

/// Formats a path as a user would type it: a file in the working directory has `./` in front.
pub(super) fn display_path(path: &Path) -> String {
    let here = path.parent().is_some_and(|parent| parent.as_os_str().is_empty());
    format!("{}{}", if here { "./" } else { "" }, path.display())
}

/// Error in a configuration file, in a variable, or in the store of trusted files.
#[derive(Debug, thiserror::Error)]
pub(crate) enum ConfigError {
    #[error("cannot read {}", path.display())]
    Read { path: PathBuf, source: io::Error },
    /// Other users may have written the file.
    #[error("{} is not read: {reason}, and it can name commands to run", path.display())]
    Distrusted { path: PathBuf, reason: String },
    #[error("{origin}: {reason}")]
    Invalid { origin: SettingOrigin, reason: String },
    #[error("{origin}: unknown key `{key}`{}", suggestion(nearest.as_deref(), known))]
    UnknownKey {
        origin: SettingOrigin,
        key: String,
        /// Known key with a similar name.
        nearest: Option<String>,
        /// All known keys, if there are only a few; otherwise empty.
        known: &'static [&'static str],
    },
    #[error("{} has no profile `{name}`{}", path.display(), profile_names(has))]
    NoProfile { path: PathBuf, name: String, has: Vec<String> },
    #[error("there is no profile `{0}`, since there is no rlaunch.toml")]
    NoFile(String),
    #[error("profile `{name}` of {} has no effect: the file is not trusted", path.display())]
    UntrustedProfile { path: PathBuf, name: String },
    /// Only an untrusted file names hosts. The job must not run on this machine instead.
    #[error("no hosts are named but in {}, which is ignored", display_path(path))]
    UntrustedHosts { path: PathBuf },
    #[error("no directory to record trusted files in: neither XDG_STATE_HOME nor HOME is set")]
    NoStateDirectory,
    #[error("cannot record trusted files in {}", path.display())]
    Record { path: PathBuf, source: io::Error },
    #[error("{} is not trusted", .0.display())]
    NotTrusted(PathBuf),
    #[error("{}: no such file", .0.display())]
    Missing(PathBuf),
    #[error("{}: only a file {FILE} in a working directory needs trust", .0.display())]
    NeedsNoTrust(PathBuf),
}

fn suggestion(nearest: Option<&str>, known: &[&str]) -> String {
    match (nearest, known) {
        (Some(nearest), _) => format!(": `{nearest}` exists"),
        (None, []) => String::new(),
        (None, known) => format!(": there are {}", known.join(", ")),
    }
}

fn profile_names(has: &[String]) -> String {
    if has.is_empty() { String::new() } else { format!(": it has {}", has.join(", ")) }
}

/// Tells whether root was refused, as by an NFS server that gives root the rights of a stranger.
fn is_refused_to_root(error: &io::Error) -> bool {
    error.kind() == io::ErrorKind::PermissionDenied && Uid::effective().is_root()
}

impl ConfigError {
    /// Returns an error in a line of a file; lines are counted from 1.
    pub(crate) fn at_line(path: &Path, line: usize, reason: impl Into<String>) -> ConfigError {
        let origin = SettingOrigin::Line(path.to_owned(), line);
        ConfigError::Invalid { origin, reason: reason.into() }
    }

    pub(crate) fn hint(&self) -> Option<String> {
        match self {
            ConfigError::Read { source, .. } if is_refused_to_root(source) => Some(
                "root may not read it, as on NFS with root_squash: run rlaunch as the owner of that \
                 directory; --cluster none reads no file"
                    .into(),
            ),
            ConfigError::Read { .. } => Some("--cluster none reads no file".into()),
            ConfigError::Distrusted { path, .. } => Some(format!(
                "chmod go-w {0}, if it is yours; --cluster {0} reads it nevertheless, --cluster \
                 none reads no file",
                path.display()
            )),
            ConfigError::UntrustedProfile { .. } => Some(TRUST.into()),
            ConfigError::UntrustedHosts { .. } => Some(
                "-H names hosts, -H localhost this machine".into(),
            ),
            ConfigError::NoStateDirectory | ConfigError::Record { .. } => {
                Some(format!("--cluster {FILE} reads a file that is not trusted"))
            }
            ConfigError::NotTrusted(_) => Some("`rlaunch trust --list` lists trusted files".into()),
            ConfigError::NeedsNoTrust(path) => {
                Some(format!("--cluster {} reads it without trust", path.display()))
            }
            ConfigError::UnknownKey { nearest: None, known: [], .. } => {
                Some("keys are the long names of options, see `rlaunch --help`".into())
            }
            ConfigError::NoFile(_) => Some(format!(
                "--cluster FILE names a file; without it ./{FILE} or ~/.config/rlaunch/{FILE} is read"
            )),
            ConfigError::UnknownKey { .. }
            | ConfigError::NoProfile { .. }
            | ConfigError::Missing(_)
            | ConfigError::Invalid { .. } => None,
        }
    }
}
