//! Conversion of settings to words of a command line: checks of keys and values, and which of several values
//! takes effect.

use super::error::{ConfigError, SettingOrigin};
use super::file::{Setting, SettingValue};
use clap::error::{ContextKind, ContextValue, ErrorKind};
use clap::parser::ValueSource;
use clap::{Arg, ArgAction, ArgMatches, Command, Id};
use rlaunch_text::text::nearest;
use std::ffi::OsString;

/// Options that are not settings: help, version, and those that choose the configuration to read.
const NOT_SETTINGS: &[&str] = &["cluster", "profile", "help", "version"];
/// Options that name the hosts. A source of settings that sets one of them overrides all of them in sources
/// of lower precedence.
const HOST_OPTIONS: &[&str] = &["host", "hostfile"];
/// Option whose values add up: a value from one source does not override the values from another.
const CUMULATIVE: &str = "env";
/// Maximum number of times that a flag like `-v` can be repeated.
const MAX_REPEATS: usize = 8;

/// Setting that was checked: the option exists, and the value is valid.
#[derive(Clone, Debug)]
pub(crate) struct OptionSetting {
    /// Long name of the option.
    pub(crate) option: String,
    /// Name by which the file or the variable calls it.
    pub(crate) key: String,
    /// Words to insert into the command line; empty for a flag that is off.
    pub(crate) words: Vec<OsString>,
    pub(crate) origin: SettingOrigin,
}

/// Finds an option by its long name or by an alias.
pub(crate) fn option<'a>(command: &'a Command, key: &str) -> Option<&'a Arg> {
    command.get_arguments().find(|arg| {
        let aliases = arg.get_all_aliases().unwrap_or_default();
        arg.get_long() == Some(key) || aliases.contains(&key)
    })
}

/// Tells whether an option can be set by a file or a variable.
pub(crate) fn is_setting(arg: &Arg) -> bool {
    arg.get_long().is_some_and(|long| !NOT_SETTINGS.contains(&long))
}

/// Checks the key and the value of a setting. `all` has every option that may be set.
pub(crate) fn check(all: &Command, setting: &Setting) -> Result<OptionSetting, ConfigError> {
    let Some(arg) = option(all, &setting.key).filter(|arg| is_setting(arg)) else {
        return Err(unknown(all, setting));
    };
    let option = arg.get_long().unwrap_or(&setting.key).to_owned();
    let origin = setting.origin.clone();
    let invalid = |reason: String| ConfigError::Invalid { origin: setting.origin.clone(), reason };
    let is_variable = matches!(setting.origin, SettingOrigin::Variable(_));
    let words = words(arg, &option, &setting.value, is_variable)
        .map_err(|reason| invalid(format!("`{}` {reason}", setting.key)))?;
    for word in &words {
        let typed = [OsString::from("rlaunch"), word.clone()];
        if let Err(error) = all.clone().try_get_matches_from(typed)
            && error.kind() != ErrorKind::MissingRequiredArgument
        {
            let value = word.to_string_lossy();
            let value = value.split_once('=').map_or("", |(_, value)| value);
            let key = &setting.key;
            return Err(invalid(format!("`{key}` cannot be `{value}`: {}", reason(&error))));
        }
    }
    Ok(OptionSetting { option, key: setting.key.clone(), words, origin })
}

fn unknown(all: &Command, setting: &Setting) -> ConfigError {
    let Setting { key, origin, .. } = setting;
    if NOT_SETTINGS.contains(&key.as_str()) {
        let reason = format!("`{key}` can be set on the command line only");
        return ConfigError::Invalid { origin: origin.clone(), reason };
    }
    let shown = all.get_arguments().filter(|arg| is_setting(arg) && !arg.is_hide_set());
    let nearest = nearest(key, shown.filter_map(Arg::get_long)).map(str::to_owned);
    ConfigError::UnknownKey { origin: origin.clone(), key: key.clone(), nearest, known: &[] }
}

/// Returns the reason why a value is refused, in one line.
fn reason(error: &clap::Error) -> String {
    if let Some(ContextValue::Strings(valid)) = error.get(ContextKind::ValidValue)
        && let Some((last, others)) = valid.split_last()
    {
        return if others.is_empty() {
            last.clone()
        } else {
            format!("{} or {last}", others.join(", "))
        };
    }
    let source = std::error::Error::source(error).map(ToString::to_string);
    source.unwrap_or_else(|| error.kind().to_string())
}

/// Converts the value of a setting to words of a command line: `--long=VALUE`; for a flag, `--long` if the value
/// is true, and no word if it is false. `lenient` is for values of environment variables, which are always text:
/// 1, yes, on, 0, no and the like then count as true or false too.
fn words(
    arg: &Arg,
    long: &str,
    value: &SettingValue,
    lenient: bool,
) -> Result<Vec<OsString>, String> {
    let bare = || OsString::from(format!("--{long}"));
    let with = |text: &String| OsString::from(format!("--{long}={text}"));
    let flag = match value {
        SettingValue::Flag(flag) => Some(*flag),
        SettingValue::Text(text) if lenient => parse_bool(text),
        _ => None,
    };
    if matches!(arg.get_action(), ArgAction::Count) {
        let times = match (flag, value) {
            // In a variable, `1` is read as true, which sets the flag once.
            (Some(flag), _) => Some(usize::from(flag)),
            (None, SettingValue::Text(text)) => {
                text.parse().ok().filter(|&times| times <= MAX_REPEATS)
            }
            (None, _) => None,
        };
        let times = times.ok_or_else(|| format!("is a number, {MAX_REPEATS} at most"))?;
        return Ok(std::iter::repeat_with(bare).take(times).collect());
    }
    if !arg.get_action().takes_values() {
        let flag = flag.ok_or_else(|| "is true or false".to_owned())?;
        return Ok(if flag { vec![bare()] } else { Vec::new() });
    }
    let may_be_bare = arg.get_num_args().is_some_and(|count| count.min_values() == 0);
    match (value, flag) {
        (_, Some(flag)) if may_be_bare => Ok(if flag { vec![bare()] } else { Vec::new() }),
        (SettingValue::Text(text), _) => Ok(vec![with(text)]),
        (SettingValue::List(texts), _) if matches!(arg.get_action(), ArgAction::Append) => {
            Ok(texts.iter().map(with).collect())
        }
        (SettingValue::List(_), _) => Err("takes one value".to_owned()),
        (SettingValue::Flag(_), _) => Err("takes a value, not true or false".to_owned()),
    }
}

fn parse_bool(text: &str) -> Option<bool> {
    match text.to_ascii_lowercase().as_str() {
        "1" | "true" | "yes" | "on" => Some(true),
        "0" | "false" | "no" | "off" => Some(false),
        _ => None,
    }
}

/// Selects the settings to add to the options that the user typed. `layers` has the settings of each source,
/// the source with the highest precedence first. Also returns notes on settings that are overridden by other
/// options.
pub(crate) fn select(
    command: &Command,
    typed: &ArgMatches,
    layers: Vec<Vec<OptionSetting>>,
) -> Result<(Vec<OptionSetting>, Vec<String>), ConfigError> {
    let argument = |id: &Id| command.get_arguments().find(|arg| arg.get_id() == id);
    let was_typed =
        |arg: &&Arg| typed.value_source(arg.get_id().as_str()) == Some(ValueSource::CommandLine);
    let mut taken: Vec<Id> =
        command.get_arguments().filter(was_typed).map(|arg| arg.get_id().clone()).collect();
    let (mut selected, mut notes, mut off) = (Vec::new(), Vec::new(), Vec::new());
    // Values of `-x`. Later ones override earlier ones, so those of the lowest precedence come first.
    let mut added = Vec::new();
    for layer in layers {
        let mut layer_args: Vec<(&Arg, SettingOrigin)> = Vec::new();
        let mut added_here = Vec::new();
        for setting in layer {
            // Skip settings of options that `command` does not have, or that the user has to type.
            let Some(arg) = option(command, &setting.option).filter(|arg| !arg.is_required_set())
            else {
                continue;
            };
            if setting.option == CUMULATIVE {
                added_here.push(setting);
                continue;
            }
            if off.contains(arg.get_id()) {
                continue;
            }
            if setting.words.is_empty() {
                // The flag stays off, whatever layers of lower precedence say. It conflicts with no other
                // option.
                off.push(arg.get_id().clone());
                continue;
            }
            let conflicts = |other: &&Arg| excludes(command, arg, other);
            if let Some(other) = taken.iter().filter_map(argument).find(conflicts) {
                let by = other.get_long().unwrap_or_default();
                notes.push(format!("{}: --{by} overrides {}", setting.origin, setting.option));
                continue;
            }
            if let Some((other, origin)) = layer_args.iter().find(|(other, _)| conflicts(other)) {
                let other = other.get_long().unwrap_or_default();
                let option = &setting.option;
                let reason = format!("`{option}` and `{other}` ({origin}) exclude each other");
                return Err(ConfigError::Invalid { origin: setting.origin, reason });
            }
            layer_args.push((arg, setting.origin.clone()));
            selected.push(setting);
        }
        taken.extend(layer_args.into_iter().map(|(arg, _)| arg.get_id().clone()));
        added.splice(0..0, added_here);
    }
    selected.extend(added);
    Ok((selected, notes))
}

/// Tells whether two options exclude each other.
fn excludes(command: &Command, one: &Arg, other: &Arg) -> bool {
    let is_among = |arg: &Arg, list: Vec<&Arg>| list.iter().any(|a| a.get_id() == arg.get_id());
    let selects_hosts = |arg: &Arg| arg.get_long().is_some_and(|long| HOST_OPTIONS.contains(&long));
    one.get_id() == other.get_id()
        || is_among(one, command.get_arg_conflicts_with(other))
        || is_among(other, command.get_arg_conflicts_with(one))
        || (selects_hosts(one) && selects_hosts(other))
}
