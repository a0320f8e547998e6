//! Settings from `rlaunch.toml` and from variables `RLAUNCH_NAME`.
//!
//! A setting is a value for an option that comes from a file or a variable. The command line overrides
//! variables, variables override the profile, and the profile overrides `[defaults]`. Settings that take
//! effect are inserted into the command line as words ([`with_defaults`]). Their values are checked
//! beforehand, so that an error names the file and the line. If the user does not trust a file, only its
//! harmless keys take effect, and the user's own file overrides them.
//!
//! | file | subject |
//! |---|---|
//! | `find` | which files are read, up to a size, and checks of their owners and permissions |
//! | `file` | `rlaunch.toml` as data, with line numbers |
//! | `merge` | settings as options; which of several values takes effect |
//! | `untrusted` | keys of untrusted files: harmless ones, and those that are ignored |
//! | `trusted` | the store of trusted files, and of other files that they name and that trust in them covers |
//! | `review` | the effects of a file, for `rlaunch trust` |
//! | `error` | errors, with the file and line or the variable |

mod error;
pub(crate) mod file;
mod find;
mod merge;
mod review;
mod trusted;
mod untrusted;

pub(crate) use error::{ConfigError, FILE};
pub(crate) use review::Review;
pub(crate) use trusted::{TrustState, TrustStore, TrustedFile};

use clap::{Arg, ArgMatches, Command};
use error::SettingOrigin;
use file::{ConfigFile, Setting, SettingValue};
use find::ReadFile;
use merge::OptionSetting;
use rlaunch_bootstrap::env::{RLAUNCH_JOB_ID, RLAUNCH_PREFIX, is_rank_variable};
use rlaunch_console::process_env::ProcessEnv;
use rlaunch_plan::hosts::host_table::{HostEntry, HostGroup, HostTable};
use std::ffi::{OsStr, OsString};
use std::path::{Path, PathBuf};
use untrusted::IgnoredKeys;

/// Returns the files that are read in a directory without `--cluster`.
pub(crate) fn usual_files(directory: &Path) -> Vec<PathBuf> {
    let user_file = find::user_file_path(&ProcessEnv::current());
    [Some(directory.join(FILE)), user_file].into_iter().flatten().collect()
}

/// Result of loading the configuration: its hosts, and texts for logs, warnings and hints. The options that
/// the configuration sets are not in here, since they are inserted into the command line.
#[derive(Clone, Debug, Default)]
pub(crate) struct LoadedConfig {
    /// Tables `[hosts.NAME]` and `[groups]` of the trusted configuration file.
    pub(crate) hosts: HostTable,
    /// Files that were read.
    files: Vec<PathBuf>,
    /// Settings that take effect: the option, and the setting with the place at which it was made, as
    /// `transport (rlaunch.toml:3)`.
    effective: Vec<(String, String)>,
    /// Settings that have no effect, with the reason.
    notes: Vec<String>,
    /// Warnings of variables that are not read, and whose names resemble those of variables that are.
    pub(crate) unread_variables: Vec<String>,
    /// Whether a file or a variable names the hosts, and not the command line.
    names_hosts: bool,
    /// Keys that are ignored because their file is not trusted.
    ignored_keys: Option<IgnoredKeys>,
    /// Whether an rlaunch.toml, and not the user, names the SSH configuration. Other users must then not be
    /// able to write to that configuration.
    pub(crate) check_ssh_config_permissions: bool,
}

impl LoadedConfig {
    /// Logs which files were read (`-v`), and which settings take effect (`-vv`).
    pub(crate) fn log(&self) {
        for path in &self.files {
            tracing::info!("defaults from {}", error::display_path(path));
        }
        for (_, setting) in &self.effective {
            tracing::debug!("setting: {setting}");
        }
        for note in &self.notes {
            tracing::debug!("{note}");
        }
    }

    /// Returns a hint that lists the settings in effect, one of which may have caused an error; `None` if there are none.
    pub(crate) fn hint(&self) -> Option<String> {
        self.hint_on(|_| true)
    }

    /// Lists those alone of one option.
    pub(crate) fn hint_on(&self, is_cause: impl Fn(&str) -> bool) -> Option<String> {
        let settings = self.effective.iter().filter(|(option, _)| is_cause(option));
        let settings: Vec<&str> = settings.map(|(_, setting)| setting.as_str()).collect();
        (!settings.is_empty())
            .then(|| format!("set by variables or files: {}", settings.join(", ")))
    }

    /// Tells whether a file or a variable names the hosts, and not the command line.
    pub(crate) fn names_hosts(&self) -> bool {
        self.names_hosts
    }

    /// Returns the warning that keys of an untrusted file are ignored; `None` if none are.
    pub(crate) fn warning(&self) -> Option<String> {
        self.ignored_keys.as_ref().map(IgnoredKeys::warning)
    }

    /// Returns a hint for an error that may be due to ignored keys; `None` if no keys are ignored.
    pub(crate) fn trust_hint(&self) -> Option<String> {
        self.ignored_keys.as_ref().map(IgnoredKeys::hint)
    }

    /// Returns an error if only an untrusted file names hosts: the job must not run on this machine instead.
    pub(crate) fn check_no_hosts(&self) -> Result<(), ConfigError> {
        match self.ignored_keys.as_ref().and_then(IgnoredKeys::path_if_hosts) {
            Some(path) => Err(ConfigError::UntrustedHosts { path: path.to_owned() }),
            None => Ok(()),
        }
    }
}

/// Configuration file whose settings were checked.
struct CheckedFile {
    path: PathBuf,
    is_trusted: bool,
    /// File whose change ended the user's trust: this file, or a file that it names. `None` if no change
    /// ended the trust.
    changed: Option<PathBuf>,
    profiles: Vec<(String, Vec<OptionSetting>)>,
    defaults: Vec<OptionSetting>,
    /// Hosts of a job for which the user names none.
    host_list: Vec<OptionSetting>,
    hosts: Vec<HostEntry>,
    groups: Vec<HostGroup>,
}

impl CheckedFile {
    /// Checks all settings of a file, also those that will have no effect.
    fn check(read: ReadFile, all: &Command) -> Result<CheckedFile, ConfigError> {
        let ReadFile { path, text, is_trusted, changed } = read;
        let ConfigFile { defaults, profiles, hosts, groups, host_list } =
            file::parse(&text, &path)?;
        let profile = |(name, settings): (String, Vec<Setting>)| {
            check(all, &settings).map(|settings| (name, settings))
        };
        Ok(CheckedFile {
            is_trusted,
            changed,
            profiles: profiles.into_iter().map(profile).collect::<Result<_, _>>()?,
            defaults: check(all, &defaults)?,
            host_list: check(all, host_list.as_slice())?,
            hosts,
            groups,
            path,
        })
    }

    /// Lists the tables that need trust, each with the line of its first entry.
    fn tables(&self) -> Vec<(String, usize)> {
        let hosts = self.hosts.first().map(|host| ("hosts".to_owned(), host.line));
        let groups = self.groups.first().map(|group| ("groups".to_owned(), group.line));
        hosts.into_iter().chain(groups).collect()
    }

    fn profile(&self, name: &str) -> Option<&Vec<OptionSetting>> {
        self.profiles.iter().find(|(own, _)| own == name).map(|(_, settings)| settings)
    }
}

fn check(all: &Command, settings: &[Setting]) -> Result<Vec<OptionSetting>, ConfigError> {
    settings.iter().map(|setting| merge::check(all, setting)).collect()
}

/// Inserts settings into the command line `typed`, behind the command's name, which is the first word. `all`
/// has every option that may be set. Settings of options that `command` lacks are checked, but not inserted.
/// [`Command::build`] must have been called on both.
pub(crate) fn with_defaults(
    all: &Command,
    command: &Command,
    typed: Vec<OsString>,
    env: &ProcessEnv,
) -> Result<(Vec<OsString>, LoadedConfig), ConfigError> {
    // Errors are reported when the complete line is parsed.
    let Ok(matches) = command.clone().ignore_errors(true).try_get_matches_from(&typed) else {
        // The user asks for help or the version.
        return Ok((typed, LoadedConfig::default()));
    };
    let (cluster, profile) = file_and_profile(&matches, env);
    let files = find::find_files(cluster.as_deref(), env)?.into_iter();
    let files = files.map(|read| CheckedFile::check(read, all)).collect::<Result<Vec<_>, _>>()?;
    let FoundVariables { settings: variables, mut notes, unread } = from_variables(all, env)?;
    let mut layers = vec![check(all, &variables)?, profile_settings(profile.as_deref(), &files)?];
    layers.extend(files.iter().flat_map(|file| [file.defaults.clone(), file.host_list.clone()]));
    let ignored_keys = match files.iter().find(|file| !file.is_trusted) {
        Some(file) => {
            let (effective_if_trusted, _) = merge::select(command, &matches, layers.clone())?;
            drop_untrusted(&mut layers, file);
            let changed = file.changed.as_deref();
            IgnoredKeys::collect(&file.path, changed, &effective_if_trusted, file.tables())
        }
        None => None,
    };
    let (settings, left_out) = merge::select(command, &matches, layers)?;
    notes.extend(left_out);
    let check_ssh_config_permissions = settings.iter().any(|setting| {
        setting.option == "ssh-config" && matches!(setting.origin, SettingOrigin::Line(..))
    });
    let shown = |s: &OptionSetting| (s.option.clone(), format!("{} ({})", s.key, s.origin));
    let effective = settings.iter().map(shown).collect();
    let names_hosts = settings.iter().any(|setting| setting.option == "host");
    let paths = files.iter().map(|file| file.path.clone()).collect();
    let trusted = files.into_iter().find(|file| file.is_trusted);
    let hosts =
        trusted.map(|file| HostTable { path: file.path, entries: file.hosts, groups: file.groups });
    let config = LoadedConfig {
        hosts: hosts.unwrap_or_default(),
        files: paths,
        effective,
        notes,
        unread_variables: unread,
        names_hosts,
        ignored_keys,
        check_ssh_config_permissions,
    };
    let mut words = typed;
    let behind_name = words.len().min(1);
    let inserted: Vec<OsString> = settings.into_iter().flat_map(|setting| setting.words).collect();
    words.splice(behind_name..behind_name, inserted);
    Ok((words, config))
}

/// Reads the hosts and groups of the trusted configuration file, for verbs that take no settings from it.
pub(crate) fn host_table(env: &ProcessEnv) -> Result<HostTable, ConfigError> {
    let cluster = env.variable("RLAUNCH_CLUSTER").map(PathBuf::from);
    let files = find::find_files(cluster.as_deref(), env)?;
    let Some(ReadFile { path, text, .. }) = files.into_iter().find(|file| file.is_trusted) else {
        return Ok(HostTable::default());
    };
    let ConfigFile { hosts, groups, .. } = file::parse(&text, &path)?;
    Ok(HostTable { path, entries: hosts, groups })
}

/// Removes an untrusted file's keys that need trust, and lets the user's own file override its other keys.
fn drop_untrusted(layers: &mut [Vec<OptionSetting>], file: &CheckedFile) {
    let is_of_file = |setting: &OptionSetting| untrusted::is_from(setting, &file.path);
    for layer in layers.iter_mut() {
        layer.retain(|setting| untrusted::is_harmless(setting) || !is_of_file(setting));
    }
    layers.sort_by_key(|layer| layer.iter().any(is_of_file));
}

/// Returns the values of `--cluster` and `--profile`, or else of RLAUNCH_CLUSTER and RLAUNCH_PROFILE.
fn file_and_profile(matches: &ArgMatches, env: &ProcessEnv) -> (Option<PathBuf>, Option<String>) {
    let typed = |name| matches.try_get_one::<String>(name).ok().flatten().cloned();
    let cluster = matches.try_get_one::<PathBuf>("cluster").ok().flatten().cloned();
    let cluster = cluster.or_else(|| env.variable("RLAUNCH_CLUSTER").map(PathBuf::from));
    let variable = || env.variable("RLAUNCH_PROFILE").map(OsStr::to_string_lossy);
    let profile = typed("profile").or_else(|| variable().map(Into::into));
    (cluster, profile)
}

/// Finds the settings of the profile that the user chose. If only an untrusted file has the profile, that is
/// an error, since ignoring the file would ignore the user's choice.
fn profile_settings(
    name: Option<&str>,
    files: &[CheckedFile],
) -> Result<Vec<OptionSetting>, ConfigError> {
    let Some(name) = name else { return Ok(Vec::new()) };
    let find = |is_trusted| {
        files.iter().find(|file| file.is_trusted == is_trusted && file.profile(name).is_some())
    };
    if let Some(settings) = find(true).and_then(|file| file.profile(name)) {
        return Ok(settings.clone());
    }
    Err(match (find(false), files.last()) {
        (Some(untrusted), _) => {
            ConfigError::UntrustedProfile { path: untrusted.path.clone(), name: name.to_owned() }
        }
        (None, Some(file)) => ConfigError::NoProfile {
            path: file.path.clone(),
            name: name.to_owned(),
            has: file.profiles.iter().map(|(name, _)| name.clone()).collect(),
        },
        (None, None) => ConfigError::NoFile(name.to_owned()),
    })
}

/// Settings from variables `RLAUNCH_NAME`.
#[derive(Default)]
struct FoundVariables {
    settings: Vec<Setting>,
    /// Notes on those that name no option.
    notes: Vec<String>,
    /// Warnings of those that were probably meant as another.
    unread: Vec<String>,
}

/// Collects settings from variables `RLAUNCH_NAME`. Variables that rlaunch sets for ranks are skipped: if this
/// rlaunch runs inside a rank, they describe the job of that rank.
fn from_variables(all: &Command, env: &ProcessEnv) -> Result<FoundVariables, ConfigError> {
    let mut found = FoundVariables::default();
    let is_in_rank = env.variable(RLAUNCH_JOB_ID).is_some();
    for (name, value) in &env.variables {
        let Some(name) = name.to_str() else { continue };
        let Some(rest) = name.strip_prefix(RLAUNCH_PREFIX) else { continue };
        let key = rest.to_ascii_lowercase().replace('_', "-");
        let option = merge::option(all, &key).filter(|_| !is_rank_variable(name));
        let Some(option) = option else {
            let meant = meant_variable(all, name, &key).filter(|_| !is_in_rank);
            found.unread.extend(meant.map(|meant| format!("{name} is not read, but {meant} is")));
            if !is_rank_variable(name) {
                found.notes.push(format!("{name} stands for no option"));
            }
            continue;
        };
        if value.is_empty() || !merge::is_setting(option) {
            continue;
        }
        let origin = SettingOrigin::Variable(name.to_owned());
        let Some(text) = value.to_str() else {
            return Err(ConfigError::Invalid { origin, reason: "it is not UTF-8".to_owned() });
        };
        let value = SettingValue::Text(text.to_owned());
        found.settings.push(Setting { key, value, origin });
    }
    Ok(found)
}

/// Finds the variable that was meant by one that is not read: that of the same option by its other name, or of an option
/// with a similar name. Variables of ranks are set for them on purpose, and resemble nothing.
fn meant_variable(all: &Command, name: &str, key: &str) -> Option<String> {
    let variable =
        |name: &str| format!("{RLAUNCH_PREFIX}{}", name.to_ascii_uppercase().replace('-', "_"));
    let option = merge::option(all, key);
    let edits = match option {
        Some(_) => usize::MAX,
        None if is_rank_variable(name) => return None,
        None if key.len() < 6 => 1,
        None => 2,
    };
    let names = |arg: &Arg| -> Vec<String> {
        let aliases = arg.get_all_aliases().unwrap_or_default();
        arg.get_long().into_iter().chain(aliases).map(variable).collect()
    };
    let of_options: Vec<String> = match option {
        Some(option) => names(option),
        None => all.get_arguments().filter(|arg| merge::is_setting(arg)).flat_map(names).collect(),
    };
    let read = of_options.into_iter().filter(|known| !is_rank_variable(known));
    let distance = |known: &String| strsim::damerau_levenshtein(known, name);
    read.filter(|known| distance(known) <= edits).min_by_key(distance)
}

#[cfg(test)]
mod host_table_tests;
#[cfg(test)]
mod tests;
