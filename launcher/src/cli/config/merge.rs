//! Settings as words of a command line: which options there are, what their values may be, and which
//! of several values counts.

use super::error::{ConfigError, Place};
use super::file::{Setting, Value};
use clap::error::{ContextKind, ContextValue, ErrorKind};
use clap::parser::ValueSource;
use clap::{Arg, ArgAction, ArgMatches, Command, Id};
use rlaunch_console::text::nearest;
use std::ffi::OsString;

/// Options that say where settings come from, so they are no settings.
const NO_SETTINGS: &[&str] = &["cluster", "profile", "help", "version", "ignored", "remark"];
/// Options that name the hosts: one of them replaces the others.
const OF_HOSTS: &[&str] = &["host", "hostfile"];
/// The one option whose values add up, whoever gives them.
const ADDS_UP: &str = "env";
/// How often a flag that counts may be repeated.
const MOST_REPEATED: usize = 8;

/// A setting that is known to be one.
#[derive(Clone, Debug)]
pub(crate) struct Given {
    /// The option's long name.
    pub(crate) long: String,
    /// What would have been typed; nothing for a flag that is off.
    pub(crate) words: Vec<OsString>,
    pub(crate) place: Place,
}

/// An option by its long name or another name of it.
pub(crate) fn option<'a>(command: &'a Command, key: &str) -> Option<&'a Arg> {
    command.get_arguments().find(|arg| {
        let aliases = arg.get_all_aliases().unwrap_or_default();
        arg.get_long() == Some(key) || aliases.contains(&key)
    })
}

/// Whether an option can have a value from elsewhere than the command line.
pub(crate) fn is_setting(arg: &Arg) -> bool {
    arg.get_long().is_some_and(|long| !NO_SETTINGS.contains(&long))
}

/// Finds what is unknown or has a value that cannot be.
pub(crate) fn check(all: &Command, setting: &Setting) -> Result<Given, ConfigError> {
    let Some(arg) = option(all, &setting.key).filter(|arg| is_setting(arg)) else {
        return Err(unknown(all, setting));
    };
    let long = arg.get_long().unwrap_or(&setting.key).to_owned();
    let wrong = |reason: String| ConfigError::Wrong { place: setting.place.clone(), reason };
    let is_variable = matches!(setting.place, Place::Variable(_));
    let words = words(arg, &long, &setting.value, is_variable)
        .map_err(|reason| wrong(format!("`{}` {reason}", setting.key)))?;
    for word in &words {
        let typed = [OsString::from("rlaunch"), word.clone()];
        if let Err(error) = all.clone().try_get_matches_from(typed)
            && error.kind() != ErrorKind::MissingRequiredArgument
        {
            let value = word.to_string_lossy();
            let value = value.split_once('=').map_or("", |(_, value)| value);
            let key = &setting.key;
            return Err(wrong(format!("`{key}` cannot be `{value}`: {}", reason(&error))));
        }
    }
    Ok(Given { long, words, place: setting.place.clone() })
}

fn unknown(all: &Command, setting: &Setting) -> ConfigError {
    let Setting { key, place, .. } = setting;
    if NO_SETTINGS.contains(&key.as_str()) {
        let reason = format!("`{key}` is for the command line");
        return ConfigError::Wrong { place: place.clone(), reason };
    }
    let shown = all.get_arguments().filter(|arg| is_setting(arg) && !arg.is_hide_set());
    let near = nearest(key, shown.filter_map(Arg::get_long)).map(str::to_owned);
    ConfigError::Unknown { place: place.clone(), key: key.clone(), near, all: &[] }
}

/// What a value's parser has against it, in one line.
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

/// As it would be typed. `lenient` takes 1 and 0 for a flag as well: a variable has no other types.
fn words(arg: &Arg, long: &str, value: &Value, lenient: bool) -> Result<Vec<OsString>, String> {
    let bare = || OsString::from(format!("--{long}"));
    let with = |text: &String| OsString::from(format!("--{long}={text}"));
    let flag = match value {
        Value::Flag(flag) => Some(*flag),
        Value::Text(text) if lenient => truth(text),
        _ => None,
    };
    if matches!(arg.get_action(), ArgAction::Count) {
        let times = match (flag, value) {
            // `1` of a variable is once, too.
            (Some(flag), _) => Some(usize::from(flag)),
            (None, Value::Text(text)) => text.parse().ok().filter(|&times| times <= MOST_REPEATED),
            (None, _) => None,
        };
        let times = times.ok_or_else(|| format!("is a number, {MOST_REPEATED} at most"))?;
        return Ok(std::iter::repeat_with(bare).take(times).collect());
    }
    if !arg.get_action().takes_values() {
        let flag = flag.ok_or_else(|| "is true or false".to_owned())?;
        return Ok(if flag { vec![bare()] } else { Vec::new() });
    }
    let may_be_bare = arg.get_num_args().is_some_and(|count| count.min_values() == 0);
    match (value, flag) {
        (_, Some(flag)) if may_be_bare => Ok(if flag { vec![bare()] } else { Vec::new() }),
        (Value::Text(text), _) => Ok(vec![with(text)]),
        (Value::List(texts), _) if matches!(arg.get_action(), ArgAction::Append) => {
            Ok(texts.iter().map(with).collect())
        }
        (Value::List(_), _) => Err("takes one value".to_owned()),
        (Value::Flag(_), _) => Err("takes a value, not true or false".to_owned()),
    }
}

fn truth(text: &str) -> Option<bool> {
    match text.to_ascii_lowercase().as_str() {
        "1" | "true" | "yes" | "on" => Some(true),
        "0" | "false" | "no" | "off" => Some(false),
        _ => None,
    }
}

/// What of `layers`, the most important first, `command` is given beside what was typed; and what
/// was not, with the reason.
pub(crate) fn choose(
    command: &Command,
    typed: &ArgMatches,
    layers: Vec<Vec<Given>>,
) -> Result<(Vec<Given>, Vec<String>), ConfigError> {
    let of_command = |id: &Id| command.get_arguments().find(|arg| arg.get_id() == id);
    let was_typed =
        |arg: &&Arg| typed.value_source(arg.get_id().as_str()) == Some(ValueSource::CommandLine);
    let mut taken: Vec<Id> =
        command.get_arguments().filter(was_typed).map(|arg| arg.get_id().clone()).collect();
    let (mut chosen, mut notes, mut off) = (Vec::new(), Vec::new(), Vec::new());
    // The first value of those that add up is the least important one.
    let mut added = Vec::new();
    for layer in layers {
        let mut of_layer: Vec<(&Arg, Place)> = Vec::new();
        let mut added_here = Vec::new();
        for given in layer {
            // A verb takes those that it has, but for what has to be typed there.
            let Some(arg) = option(command, &given.long).filter(|arg| !arg.is_required_set())
            else {
                continue;
            };
            if given.long == ADDS_UP {
                added_here.push(given);
                continue;
            }
            if off.contains(arg.get_id()) {
                continue;
            }
            if given.words.is_empty() {
                // Off, whatever less important layers say; and it is in nobody's way.
                off.push(arg.get_id().clone());
                continue;
            }
            let in_the_way = |other: &&Arg| excludes(command, arg, other);
            if let Some(other) = taken.iter().filter_map(of_command).find(in_the_way) {
                let by = other.get_long().unwrap_or_default();
                notes.push(format!("{}: {} is left out for --{by}", given.place, given.long));
                continue;
            }
            if let Some((other, place)) = of_layer.iter().find(|(other, _)| in_the_way(other)) {
                let other = other.get_long().unwrap_or_default();
                let reason = format!("`{}` and `{other}` ({place}) exclude each other", given.long);
                return Err(ConfigError::Wrong { place: given.place, reason });
            }
            of_layer.push((arg, given.place.clone()));
            chosen.push(given);
        }
        taken.extend(of_layer.into_iter().map(|(arg, _)| arg.get_id().clone()));
        added.splice(0..0, added_here);
    }
    chosen.extend(added);
    Ok((chosen, notes))
}

/// Whether one of two options keeps the other out.
fn excludes(command: &Command, one: &Arg, other: &Arg) -> bool {
    let is_among = |arg: &Arg, list: Vec<&Arg>| list.iter().any(|a| a.get_id() == arg.get_id());
    let of_hosts = |arg: &Arg| arg.get_long().is_some_and(|long| OF_HOSTS.contains(&long));
    one.get_id() == other.get_id()
        || is_among(one, command.get_arg_conflicts_with(other))
        || is_among(other, command.get_arg_conflicts_with(one))
        || (of_hosts(one) && of_hosts(other))
}
