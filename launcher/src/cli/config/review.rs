//! Review of a file before it is trusted: what it would do then.

use super::error::{ConfigError, FILE, Place};
use super::file::{self, Setting, Value};
use super::{TrustStore, find, merge, stranger};
use crate::console::surroundings::Surroundings;
use crate::hosts::host_table::HostEntry;
use clap::Command;
use rlaunch_bootstrap::env::redacted;
use std::path::{Path, PathBuf};

/// A file that was read, to be trusted as it was read.
#[derive(Clone, Debug)]
pub(crate) struct Review {
    path: PathBuf,
    text: String,
    /// Its effects that need trust, a line each.
    pub(crate) lines: Vec<String>,
}

impl Review {
    /// Reads a file that a working directory may have; `all` knows every option.
    pub(crate) fn of(path: &Path, mut all: Command) -> Result<Review, ConfigError> {
        all.build();
        if path.file_name().is_none_or(|name| name != FILE) {
            return Err(ConfigError::NeedsNoTrust(path.to_owned()));
        }
        let text = find::guarded(path)?.ok_or_else(|| ConfigError::Missing(path.to_owned()))?;
        let file = file::parse(&text, path)?;
        let mut found: Vec<(usize, String)> = Vec::new();
        for setting in file.list.iter().chain(&file.defaults) {
            found.extend(line(&all, setting, "")?);
        }
        for (name, settings) in &file.profiles {
            let section = format!("[profile.{}] ", name.escape_debug());
            for setting in settings {
                found.extend(line(&all, setting, &section)?);
            }
        }
        found.extend(file.hosts.iter().filter_map(|host| Some((host.line, of_host(host)?))));
        found.sort();
        let shown = |(line, text): (usize, String)| format!("{}:{line}: {text}", path.display());
        let lines = found.into_iter().map(shown).collect();
        Ok(Review { path: path.to_owned(), text, lines })
    }

    /// Lets the file count as it was read.
    pub(crate) fn trust(&self, around: &Surroundings) -> Result<(), ConfigError> {
        TrustStore::of(around)?.trust(&self.path, &self.text)
    }
}

/// Says what a setting does, with its line; nothing where it is harmless, unless a profile has it, which
/// counts as a whole.
fn line(
    all: &Command,
    setting: &Setting,
    section: &str,
) -> Result<Option<(usize, String)>, ConfigError> {
    let given = merge::check(all, setting)?;
    let is_harmless = stranger::is_harmless(&given);
    let Place::Line(_, line) = given.place else { return Ok(None) };
    if is_harmless && section.is_empty() {
        return Ok(None);
    }
    let quoted = |text: &String| format!("{:?}", redacted(text));
    let value = match &setting.value {
        Value::Flag(flag) => flag.to_string(),
        Value::Text(text) => quoted(text),
        Value::List(texts) => texts.iter().map(quoted).collect::<Vec<_>>().join(", "),
    };
    let effect = if is_harmless { "" } else { stranger::effect(&given.long) };
    let colon = if effect.is_empty() { "" } else { ": " };
    Ok(Some((line, format!("{section}{} = {value}{colon}{effect}", setting.key))))
}

/// Says how a host is reached according to the file.
fn of_host(host: &HostEntry) -> Option<String> {
    let words = [
        host.ssh.as_ref().map(|ssh| format!("ssh {ssh:?}")),
        host.user.as_ref().map(|user| format!("user {user:?}")),
        host.port.map(|port| format!("port {port}")),
        host.slots.map(|slots| format!("slots {slots}")),
        (!host.mesh.is_empty()).then(|| "mesh".to_owned()),
    ];
    let words: Vec<String> = words.into_iter().flatten().collect();
    (!words.is_empty()).then(|| format!("host {:?}: {}", host.name, words.join(", ")))
}
