//! Parser of `rlaunch.toml`, for defaults, profiles, hosts and groups with their line numbers. Keys and values of
//! options are not checked here.

use super::error::{ConfigError, SettingOrigin};
use rlaunch_bootstrap::shell_safe;
use rlaunch_plan::hosts::host_table::{HostEntry, HostGroup};
use rlaunch_text::text::nearest;
use std::net::IpAddr;
use std::path::Path;
use toml::Spanned;
use toml::de::{DeString, DeTable, DeValue};

/// Keys at the top level.
const SECTIONS: &[&str] = &["defaults", "groups", "hosts", "profile"];
/// Keys of a table `[hosts.NAME]`.
const HOST_KEYS: &[&str] = &["mesh", "port", "slots", "ssh", "user"];

/// Value of a setting, before it is checked.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum SettingValue {
    Flag(bool),
    /// Text of a string or number.
    Text(String),
    List(Vec<String>),
}

/// Value that a file or a variable sets for an option. `key` should be the option's long name or an alias,
/// which is checked later.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Setting {
    pub(crate) key: String,
    pub(crate) value: SettingValue,
    pub(crate) origin: SettingOrigin,
}

/// Content of a configuration file.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct ConfigFile {
    pub(crate) defaults: Vec<Setting>,
    pub(crate) profiles: Vec<(String, Vec<Setting>)>,
    /// Tables `[hosts.NAME]`, in the order of the file.
    pub(crate) hosts: Vec<HostEntry>,
    /// Entries of `[groups]`, in the order of the file.
    pub(crate) groups: Vec<HostGroup>,
    /// Hosts of a job for which the user names none: `hosts = [...]`, or else the names of all
    /// `[hosts.NAME]`. `None` if the file has neither.
    pub(crate) host_list: Option<Setting>,
}

type Key<'a> = Spanned<DeString<'a>>;
type KeyValue<'t, 'a> = (&'t Key<'a>, &'t Spanned<DeValue<'a>>);

/// Parses `text`, the content of `path`.
pub(crate) fn parse(text: &str, path: &Path) -> Result<ConfigFile, ConfigError> {
    let parser = FileParser { text, path };
    let table = DeTable::parse(text).map_err(|error| {
        let line = parser.line(error.span().map_or(text.len(), |span| span.start));
        ConfigError::at_line(path, line, error.message().trim())
    })?;
    let mut file = ConfigFile::default();
    for (key, value) in in_order(table.get_ref()) {
        match &**key.get_ref() {
            "defaults" => file.defaults = parser.settings(key, value)?,
            "profile" => {
                for (name, value) in in_order(parser.table(key, value)?) {
                    let settings = parser.settings(name, value)?;
                    file.profiles.push((name.get_ref().to_string(), settings));
                }
            }
            "groups" => {
                let groups = in_order(parser.table(key, value)?).into_iter();
                file.groups = groups.map(|(n, v)| parser.group(n, v)).collect::<Result<_, _>>()?;
            }
            "hosts" => match value.get_ref() {
                DeValue::Table(hosts) => {
                    let hosts = in_order(hosts).into_iter();
                    file.hosts = hosts.map(|(n, v)| parser.host(n, v)).collect::<Result<_, _>>()?;
                }
                _ => file.host_list = Some(parser.setting(key, value)?),
            },
            _ => return Err(parser.unknown(key, SECTIONS)),
        }
    }
    if let (None, Some(first)) = (&file.host_list, file.hosts.first()) {
        // Without `hosts = [...]`, a job runs on all hosts that the file describes.
        let names = file.hosts.iter().map(HostEntry::bracketed).collect();
        let origin = SettingOrigin::Line(path.to_owned(), first.line);
        file.host_list =
            Some(Setting { key: "hosts".into(), value: SettingValue::List(names), origin });
    }
    Ok(file)
}

/// Lists a table's entries in the order of the file.
fn in_order<'t, 'a>(table: &'t DeTable<'a>) -> Vec<KeyValue<'t, 'a>> {
    let mut entries: Vec<KeyValue<'t, 'a>> = table.iter().collect();
    entries.sort_by_key(|(key, _)| key.span().start);
    entries
}

/// Text and path of the file that is parsed, from which errors get line numbers.
struct FileParser<'f> {
    text: &'f str,
    path: &'f Path,
}

impl FileParser<'_> {
    /// Returns the number of the line that has the byte at offset `at`. Lines are counted from 1.
    fn line(&self, at: usize) -> usize {
        let before = self.text.as_bytes().get(..at).unwrap_or(self.text.as_bytes());
        let line = 1 + before.iter().filter(|byte| **byte == b'\n').count();
        // An error at the end of the text is in its last line.
        line.min(self.text.lines().count().max(1))
    }

    fn origin<T>(&self, item: &Spanned<T>) -> SettingOrigin {
        SettingOrigin::Line(self.path.to_owned(), self.line(item.span().start))
    }

    fn invalid<T>(&self, item: &Spanned<T>, reason: impl Into<String>) -> ConfigError {
        ConfigError::Invalid { origin: self.origin(item), reason: reason.into() }
    }

    fn unknown(&self, key: &Key<'_>, known: &'static [&'static str]) -> ConfigError {
        let nearest = nearest(key.get_ref(), known.iter().copied()).map(str::to_owned);
        let (origin, key) = (self.origin(key), key.get_ref().to_string());
        ConfigError::UnknownKey { origin, key, nearest, known }
    }

    fn table<'t, 'a>(
        &self,
        key: &Key<'_>,
        value: &'t Spanned<DeValue<'a>>,
    ) -> Result<&'t DeTable<'a>, ConfigError> {
        match value.get_ref() {
            DeValue::Table(table) => Ok(table),
            _ => Err(self.invalid(key, format!("`{0}` is a table: [{0}]", key.get_ref()))),
        }
    }

    fn settings(
        &self,
        key: &Key<'_>,
        value: &Spanned<DeValue<'_>>,
    ) -> Result<Vec<Setting>, ConfigError> {
        let entries = in_order(self.table(key, value)?);
        entries.into_iter().map(|(key, value)| self.setting(key, value)).collect()
    }

    fn setting(&self, key: &Key<'_>, value: &Spanned<DeValue<'_>>) -> Result<Setting, ConfigError> {
        let invalid = || {
            let reason = "takes a string, a number, true or false, or a list of strings";
            self.invalid(key, format!("`{}` {reason}", key.get_ref()))
        };
        let value = match value.get_ref() {
            DeValue::Boolean(flag) => SettingValue::Flag(*flag),
            DeValue::Array(list) => {
                let texts = list.iter().map(|value| text_of(value.get_ref()));
                SettingValue::List(texts.collect::<Option<_>>().ok_or_else(invalid)?)
            }
            value => SettingValue::Text(text_of(value).ok_or_else(invalid)?),
        };
        Ok(Setting { key: key.get_ref().to_string(), value, origin: self.origin(key) })
    }

    fn host(&self, name: &Key<'_>, value: &Spanned<DeValue<'_>>) -> Result<HostEntry, ConfigError> {
        let line = self.line(name.span().start);
        let text = self.word(name, name.get_ref(), shell_safe::is_host_name)?;
        let mut host = HostEntry { name: text, line, ..HostEntry::default() };
        if host.name.contains(['@', ',', '[', ']']) {
            let reason =
                format!("`{}` is not a host name; the key `user` names the user", host.name);
            return Err(self.invalid(name, reason));
        }
        let DeValue::Table(table) = value.get_ref() else {
            let reason = format!("`{0}` is a table: [hosts.{0}]", host.name);
            return Err(self.invalid(name, reason));
        };
        for (key, value) in in_order(table) {
            match &**key.get_ref() {
                "ssh" => host.ssh = Some(self.string(key, value)?),
                "user" => host.user = Some(self.string(key, value)?),
                "port" => host.port = Some(self.number(key, value)?),
                "slots" => host.slots = Some(self.number(key, value)?),
                "mesh" => host.fabric_addresses = self.addresses(key, value)?,
                _ => return Err(self.unknown(key, HOST_KEYS)),
            }
        }
        Ok(host)
    }

    fn group(
        &self,
        name: &Key<'_>,
        value: &Spanned<DeValue<'_>>,
    ) -> Result<HostGroup, ConfigError> {
        let text = name.get_ref();
        let is_plain = |letter: char| letter.is_ascii_alphanumeric() || "-_.".contains(letter);
        if text.is_empty() || !text.chars().all(is_plain) {
            let reason = format!("{text:?} is not a name of a group: letters, digits and -_.");
            return Err(self.invalid(name, reason));
        }
        let lists = match self.setting(name, value)?.value {
            SettingValue::List(lists) if !lists.is_empty() => lists,
            SettingValue::Text(list) => vec![list],
            _ => {
                let reason = format!("`{text}` is a list of hosts, as [\"a\", \"b:4\"]");
                return Err(self.invalid(name, reason));
            }
        };
        let line = self.line(name.span().start);
        let group = HostGroup { name: text.to_string(), line, lists };
        group.hosts().map_err(|error| self.invalid(name, format!("`{text}`: {error}")))?;
        Ok(group)
    }

    fn string(&self, key: &Key<'_>, value: &Spanned<DeValue<'_>>) -> Result<String, ConfigError> {
        let text = value.get_ref().as_str();
        let text =
            text.ok_or_else(|| self.invalid(key, format!("`{}` is a string", key.get_ref())));
        let is_name = if &**key.get_ref() == "user" {
            shell_safe::is_user_name
        } else {
            shell_safe::is_host_name
        };
        self.word(key, text?, is_name)
    }

    /// Returns `text` if `is_name` accepts it as the name of a host or user, and otherwise an error. The name
    /// may become part of a command line.
    fn word(
        &self,
        key: &Key<'_>,
        text: &str,
        is_name: fn(&str) -> bool,
    ) -> Result<String, ConfigError> {
        if !is_name(text) || text.contains('/') {
            let reason = format!("{text:?} is not a name of a host or user");
            return Err(self.invalid(key, reason));
        }
        Ok(text.to_owned())
    }

    /// Parses an integer from 1 to the maximum of `T`.
    fn number<T: TryFrom<u64>>(
        &self,
        key: &Key<'_>,
        value: &Spanned<DeValue<'_>>,
    ) -> Result<T, ConfigError> {
        let number = value.get_ref().as_integer();
        let number = number.and_then(|n| u64::from_str_radix(n.as_str(), n.radix()).ok());
        let number = number.filter(|&n| n > 0).and_then(|n| T::try_from(n).ok());
        let invalid = || {
            let most = if size_of::<T>() == 2 { ", 65535 at most" } else { "" };
            self.invalid(key, format!("`{}` is a number, 1 or more{most}", key.get_ref()))
        };
        number.ok_or_else(invalid)
    }

    fn addresses(
        &self,
        key: &Key<'_>,
        value: &Spanned<DeValue<'_>>,
    ) -> Result<Vec<(IpAddr, usize)>, ConfigError> {
        let invalid = || {
            let reason = format!("`{}` is a list of addresses, as [\"10.1.0.1\"]", key.get_ref());
            self.invalid(key, reason)
        };
        let DeValue::Array(list) = value.get_ref() else { return Err(invalid()) };
        let address = |value: &Spanned<DeValue<'_>>| {
            let address = value.get_ref().as_str()?.parse().ok()?;
            Some((address, self.line(value.span().start)))
        };
        list.iter().map(address).collect::<Option<_>>().ok_or_else(invalid)
    }
}

/// Converts a string or a number to the text that options take; `None` for other types.
fn text_of(value: &DeValue<'_>) -> Option<String> {
    match value {
        DeValue::String(text) => Some(text.to_string()),
        DeValue::Integer(number) if number.radix() == 10 => {
            Some(number.as_str().trim_start_matches('+').to_owned())
        }
        DeValue::Integer(number) => {
            i128::from_str_radix(number.as_str(), number.radix()).ok().map(|n| n.to_string())
        }
        DeValue::Float(number) => Some(number.as_str().to_owned()),
        DeValue::Boolean(_) | DeValue::Datetime(_) | DeValue::Array(_) | DeValue::Table(_) => None,
    }
}

#[cfg(test)]
mod tests;
