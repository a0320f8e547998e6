//! What is not typed: defaults from `rlaunch.toml` and from variables that stand for options.
//!
//! Flags count before the environment, the environment before the profile, the profile before the
//! file's defaults. What counts is put before what was typed, as the words that would have been
//! typed; but whether it can be meant is checked where it stands, so that an error names the file
//! and the line.

mod book;
mod error;
mod file;
mod find;
mod merge;

pub(crate) use book::HostBook;
pub(crate) use error::ConfigError;
pub(crate) use find::Surroundings;

use clap::{ArgMatches, Command};
use error::Place;
use file::{File, Setting, Value};
use merge::Given;
use rlaunch_bootstrap::env::{RLAUNCH_PREFIX, is_of_rank};
use std::ffi::{OsStr, OsString};
use std::path::{Path, PathBuf};

/// What was found beside the command line.
#[derive(Clone, Debug, Default)]
pub(crate) struct Found {
    /// What the file says of hosts.
    pub(crate) book: HostBook,
    /// The file that was read.
    file: Option<PathBuf>,
    /// What counts of it and of the environment: `transport (rlaunch.toml:3)`.
    given: Vec<String>,
    /// What does not count, and why.
    notes: Vec<String>,
}

impl Found {
    /// Says for -v what was read, and for -vv what came of it.
    pub(crate) fn log(&self) {
        if let Some(path) = &self.file {
            let here = path.parent().is_some_and(|parent| parent.as_os_str().is_empty());
            tracing::info!("defaults from {}{}", if here { "./" } else { "" }, path.display());
        }
        for given in &self.given {
            tracing::debug!("given: {given}");
        }
        for note in &self.notes {
            tracing::debug!("{note}");
        }
    }

    /// For an error that may be about what nobody typed.
    pub(crate) fn hint(&self) -> Option<String> {
        (!self.given.is_empty()).then(|| format!("not typed but given: {}", self.given.join(", ")))
    }
}

/// The words of a command line with defaults before what was typed. `all` knows every option that a
/// file or the environment may set; `command` takes those of them that it has.
pub(crate) fn with_defaults(
    all: Command,
    mut command: Command,
    typed: Vec<OsString>,
    around: &Surroundings,
) -> Result<(Vec<OsString>, Found), ConfigError> {
    let mut all = all;
    all.build();
    command.build();
    // What is wrong with it is found when all of it is read.
    let Ok(matches) = command.clone().ignore_errors(true).try_get_matches_from(&typed) else {
        // Help was asked for.
        return Ok((typed, Found::default()));
    };
    let (cluster, profile) = sources(&matches, around);
    let (file, path) = match find::find(cluster.as_deref(), around)? {
        Some((path, text)) => (file::parse(&text, &path)?, Some(path)),
        None => (File::default(), None),
    };
    let check = |settings: &[Setting]| {
        settings.iter().map(|setting| merge::check(&all, setting)).collect::<Result<Vec<_>, _>>()
    };
    let (environment, mut notes) = of_environment(&all, around)?;
    let mut profiles = Vec::new();
    for (name, settings) in &file.profiles {
        profiles.push((name, check(settings)?));
    }
    let chosen = match &profile {
        Some(name) => {
            let found = profiles.into_iter().find(|(own, _)| *own == name);
            found.map(|(_, given)| given).ok_or_else(|| no_profile(name, &file, path.as_deref()))?
        }
        None => Vec::new(),
    };
    let layers =
        vec![check(&environment)?, chosen, check(&file.defaults)?, check(file.list.as_slice())?];
    let (given, left_out) = merge::choose(&command, &matches, layers)?;
    notes.extend(left_out);
    let book = HostBook { path: path.clone().unwrap_or_default(), entries: file.hosts };
    let shown = |given: &Given| format!("{} ({})", given.long, given.place);
    let found = Found { book, file: path, given: given.iter().map(shown).collect(), notes };
    let mut words = typed;
    let behind_name = words.len().min(1);
    let defaults: Vec<OsString> = given.into_iter().flat_map(|given| given.words).collect();
    words.splice(behind_name..behind_name, defaults);
    Ok((words, found))
}

/// `--cluster` and `--profile`, or the variables that stand for them.
fn sources(matches: &ArgMatches, around: &Surroundings) -> (Option<PathBuf>, Option<String>) {
    let typed = |name| matches.try_get_one::<String>(name).ok().flatten().cloned();
    let cluster = matches.try_get_one::<PathBuf>("cluster").ok().flatten().cloned();
    let cluster = cluster.or_else(|| around.variable("RLAUNCH_CLUSTER").map(PathBuf::from));
    let of_environment = || around.variable("RLAUNCH_PROFILE").map(OsStr::to_string_lossy);
    let profile = typed("profile").or_else(|| of_environment().map(Into::into));
    (cluster, profile)
}

fn no_profile(name: &str, file: &File, path: Option<&Path>) -> ConfigError {
    match path {
        Some(path) => ConfigError::NoProfile {
            path: path.to_owned(),
            name: name.to_owned(),
            has: file.profiles.iter().map(|(name, _)| name.clone()).collect(),
        },
        None => ConfigError::NoFile(name.to_owned()),
    }
}

/// Variables that stand for an option, and what to note of others. Those that ranks are told never
/// do: in a rank they are set for another job.
fn of_environment(
    all: &Command,
    around: &Surroundings,
) -> Result<(Vec<Setting>, Vec<String>), ConfigError> {
    let (mut settings, mut notes) = (Vec::new(), Vec::new());
    for (name, value) in &around.variables {
        let Some(name) = name.to_str() else { continue };
        let Some(rest) = name.strip_prefix(RLAUNCH_PREFIX).filter(|_| !is_of_rank(name)) else {
            continue;
        };
        let key = rest.to_ascii_lowercase().replace('_', "-");
        let Some(option) = merge::option(all, &key) else {
            notes.push(format!("{name} stands for no option"));
            continue;
        };
        if value.is_empty() || !merge::is_setting(option) {
            continue;
        }
        let place = Place::Variable(name.to_owned());
        let Some(text) = value.to_str() else {
            return Err(ConfigError::Wrong { place, reason: "it is not UTF-8".to_owned() });
        };
        settings.push(Setting { key, value: Value::Text(text.to_owned()), place });
    }
    Ok((settings, notes))
}

#[cfg(test)]
mod tests;
