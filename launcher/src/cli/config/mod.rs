//! What is not typed: defaults from `rlaunch.toml` and from variables that stand for options.
//!
//! Flags count before the environment, the environment before the profile, the profile before the
//! file's defaults. What counts is put before what was typed, as the words that would have been
//! typed; but whether it can be meant is checked where it stands, so that an error names the file
//! and the line. Of a file that the user does not trust only harmless keys count ([`stranger`]), and
//! those behind the user's own file.

mod error;
pub(crate) mod file;
mod find;
mod merge;
mod named;
mod review;
mod stranger;
mod trusted;

pub(crate) use error::{ConfigError, FILE};
pub(crate) use review::Review;
pub(crate) use trusted::{State, TrustStore, Trusted};

use crate::hosts::host_table::{HostEntry, HostTable};
use clap::{ArgMatches, Command};
use error::Place;
use file::{File, Setting, Value};
use find::ReadFile;
use merge::Given;
use rlaunch_bootstrap::env::{RLAUNCH_PREFIX, is_rank_variable};
use rlaunch_console::process_env::ProcessEnv;
use std::ffi::{OsStr, OsString};
use std::path::PathBuf;
use stranger::Aside;

/// What was found beside the command line.
#[derive(Clone, Debug, Default)]
pub(crate) struct Found {
    /// What the file says of hosts.
    pub(crate) book: HostTable,
    /// The files that were read.
    files: Vec<PathBuf>,
    /// Settings of them and of the environment that count: `transport (rlaunch.toml:3)`.
    given: Vec<String>,
    /// What does not count, and why.
    notes: Vec<String>,
    /// Keys that do not count because their file is not trusted.
    aside: Option<Aside>,
    /// Whether a file, and not the user, names SSH's configuration.
    pub(crate) check_ssh_config_permissions: bool,
}

impl Found {
    /// Says for -v what was read, and for -vv what came of it.
    pub(crate) fn log(&self) {
        for path in &self.files {
            tracing::info!("defaults from {}", stranger::shown(path));
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

    /// Says on one line what of an untrusted file is left aside.
    pub(crate) fn warning(&self) -> Option<String> {
        self.aside.as_ref().map(Aside::sentence)
    }

    /// Gives a hint for an error that may come of what is left aside.
    pub(crate) fn trust_hint(&self) -> Option<String> {
        self.aside.as_ref().map(Aside::hint)
    }

    /// Refuses to take this machine in place of an untrusted file's hosts, where no other are named.
    pub(crate) fn check_no_hosts(&self) -> Result<(), ConfigError> {
        match self.aside.as_ref().and_then(Aside::hosts_are_of) {
            Some(path) => Err(ConfigError::UntrustedHosts { path: path.to_owned() }),
            None => Ok(()),
        }
    }
}

/// A file whose settings are checked.
struct Checked {
    path: PathBuf,
    is_trusted: bool,
    /// File that has changed since it was trusted.
    changed: Option<PathBuf>,
    profiles: Vec<(String, Vec<Given>)>,
    defaults: Vec<Given>,
    /// Hosts of a job whose user names none.
    list: Vec<Given>,
    hosts: Vec<HostEntry>,
}

impl Checked {
    /// Checks all of a file, so that a mistake is found even in what will not count.
    fn of(read: ReadFile, all: &Command) -> Result<Checked, ConfigError> {
        let ReadFile { path, text, is_trusted, changed } = read;
        let File { defaults, profiles, hosts, list } = file::parse(&text, &path)?;
        let profile = |(name, settings): (String, Vec<Setting>)| {
            check(all, &settings).map(|given| (name, given))
        };
        Ok(Checked {
            is_trusted,
            changed,
            profiles: profiles.into_iter().map(profile).collect::<Result<_, _>>()?,
            defaults: check(all, &defaults)?,
            list: check(all, list.as_slice())?,
            hosts,
            path,
        })
    }

    fn profile(&self, name: &str) -> Option<&Vec<Given>> {
        self.profiles.iter().find(|(own, _)| own == name).map(|(_, given)| given)
    }
}

fn check(all: &Command, settings: &[Setting]) -> Result<Vec<Given>, ConfigError> {
    settings.iter().map(|setting| merge::check(all, setting)).collect()
}

/// The words of a command line with defaults before what was typed. `all` knows every option that a
/// file or the environment may set; `command` takes those of them that it has.
pub(crate) fn with_defaults(
    all: Command,
    mut command: Command,
    typed: Vec<OsString>,
    around: &ProcessEnv,
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
    let files = find::find(cluster.as_deref(), around)?.into_iter();
    let files = files.map(|read| Checked::of(read, &all)).collect::<Result<Vec<_>, _>>()?;
    let (environment, mut notes) = of_environment(&all, around)?;
    let mut layers = vec![check(&all, &environment)?, chosen(profile.as_deref(), &files)?];
    layers.extend(files.iter().flat_map(|file| [file.defaults.clone(), file.list.clone()]));
    let aside = match files.iter().find(|file| !file.is_trusted) {
        Some(strange) => {
            let (would_count, _) = merge::choose(&command, &matches, layers.clone())?;
            let is_kept = |given: &Given| {
                stranger::is_harmless(given) || !stranger::is_of(given, &strange.path)
            };
            layers.iter_mut().for_each(|layer| layer.retain(is_kept));
            // Trusted it would count before the user's own file, which until then counts before it.
            layers.sort_by_key(|layer| {
                layer.iter().any(|given| stranger::is_of(given, &strange.path))
            });
            let changed = strange.changed.as_deref();
            Aside::of(&strange.path, changed, &would_count, &strange.hosts)
        }
        None => None,
    };
    let (given, left_out) = merge::choose(&command, &matches, layers)?;
    notes.extend(left_out);
    let shown = |given: &Given| format!("{} ({})", given.long, given.place);
    let given_words = given.iter().map(shown).collect();
    let paths = files.iter().map(|file| file.path.clone()).collect();
    let trusted = files.into_iter().find(|file| file.is_trusted);
    let book = trusted.map(|file| HostTable { path: file.path, entries: file.hosts });
    let book = book.unwrap_or_default();
    let check_ssh_config_permissions = given
        .iter()
        .any(|given| given.long == "ssh-config" && matches!(given.place, Place::Line(..)));
    let found = Found {
        book,
        files: paths,
        given: given_words,
        notes,
        aside,
        check_ssh_config_permissions,
    };
    let mut words = typed;
    let behind_name = words.len().min(1);
    let defaults: Vec<OsString> = given.into_iter().flat_map(|given| given.words).collect();
    words.splice(behind_name..behind_name, defaults);
    Ok((words, found))
}

/// `--cluster` and `--profile`, or the variables that stand for them.
fn sources(matches: &ArgMatches, around: &ProcessEnv) -> (Option<PathBuf>, Option<String>) {
    let typed = |name| matches.try_get_one::<String>(name).ok().flatten().cloned();
    let cluster = matches.try_get_one::<PathBuf>("cluster").ok().flatten().cloned();
    let cluster = cluster.or_else(|| around.variable("RLAUNCH_CLUSTER").map(PathBuf::from));
    let of_environment = || around.variable("RLAUNCH_PROFILE").map(OsStr::to_string_lossy);
    let profile = typed("profile").or_else(|| of_environment().map(Into::into));
    (cluster, profile)
}

/// Finds the settings of the profile that was asked for. Since the user named it, it is not left
/// aside: one of an untrusted file is an error.
fn chosen(name: Option<&str>, files: &[Checked]) -> Result<Vec<Given>, ConfigError> {
    let Some(name) = name else { return Ok(Vec::new()) };
    let with_it = |is_trusted| {
        files.iter().find(|file| file.is_trusted == is_trusted && file.profile(name).is_some())
    };
    if let Some(given) = with_it(true).and_then(|file| file.profile(name)) {
        return Ok(given.clone());
    }
    Err(match (with_it(false), files.last()) {
        (Some(strange), _) => {
            ConfigError::UntrustedProfile { path: strange.path.clone(), name: name.to_owned() }
        }
        (None, Some(file)) => ConfigError::NoProfile {
            path: file.path.clone(),
            name: name.to_owned(),
            has: file.profiles.iter().map(|(name, _)| name.clone()).collect(),
        },
        (None, None) => ConfigError::NoFile(name.to_owned()),
    })
}

/// Variables that stand for an option, and what to note of others. Those that ranks are told never
/// do: in a rank they are set for another job.
fn of_environment(
    all: &Command,
    around: &ProcessEnv,
) -> Result<(Vec<Setting>, Vec<String>), ConfigError> {
    let (mut settings, mut notes) = (Vec::new(), Vec::new());
    for (name, value) in &around.variables {
        let Some(name) = name.to_str() else { continue };
        let Some(rest) = name.strip_prefix(RLAUNCH_PREFIX).filter(|_| !is_rank_variable(name))
        else {
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
