//! `rlaunch.toml` as data: defaults, profiles and hosts, each with the line it stands on. Which
//! options there are is not known here.

use super::error::{ConfigError, Place};
use crate::hosts::host_table::HostEntry;
use rlaunch_bootstrap::shell_safe;
use rlaunch_console::text::nearest;
use std::net::IpAddr;
use std::path::Path;
use toml::Spanned;
use toml::de::{DeString, DeTable, DeValue};

/// What may stand at the top.
const SECTIONS: &[&str] = &["defaults", "hosts", "profile"];
/// What may be said of a host.
const OF_HOST: &[&str] = &["mesh", "port", "slots", "ssh", "user"];

/// A value as it was written.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Value {
    Flag(bool),
    /// A string or a number.
    Text(String),
    List(Vec<String>),
}

/// An option's value by the option's long name.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Setting {
    pub(crate) key: String,
    pub(crate) value: Value,
    pub(crate) place: Place,
}

/// A file, read.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct File {
    pub(crate) defaults: Vec<Setting>,
    pub(crate) profiles: Vec<(String, Vec<Setting>)>,
    /// In the order in which they stand there.
    pub(crate) hosts: Vec<HostEntry>,
    /// `hosts = [...]`, or else the names of all `[hosts.NAME]`: where nobody says which hosts.
    pub(crate) list: Option<Setting>,
}

type Key<'a> = Spanned<DeString<'a>>;
type Entry<'t, 'a> = (&'t Key<'a>, &'t Spanned<DeValue<'a>>);

/// Reads `text`, the content of `path`.
pub(crate) fn parse(text: &str, path: &Path) -> Result<File, ConfigError> {
    let reading = Reading { text, path };
    let table = DeTable::parse(text).map_err(|error| {
        let line = reading.line(error.span().map_or(text.len(), |span| span.start));
        ConfigError::at(path, line, error.message().trim())
    })?;
    let mut file = File::default();
    for (key, value) in in_order(table.get_ref()) {
        match &**key.get_ref() {
            "defaults" => file.defaults = reading.settings(key, value)?,
            "profile" => {
                for (name, value) in in_order(reading.table(key, value)?) {
                    let settings = reading.settings(name, value)?;
                    file.profiles.push((name.get_ref().to_string(), settings));
                }
            }
            "hosts" => match value.get_ref() {
                DeValue::Table(hosts) => {
                    let hosts = in_order(hosts).into_iter();
                    file.hosts =
                        hosts.map(|(n, v)| reading.host(n, v)).collect::<Result<_, _>>()?;
                }
                _ => file.list = Some(reading.setting(key, value)?),
            },
            _ => return Err(reading.unknown(key, SECTIONS)),
        }
    }
    if let (None, Some(first)) = (&file.list, file.hosts.first()) {
        // The file is of the hosts of a cluster, so these are they.
        let names = file.hosts.iter().map(HostEntry::bracketed).collect();
        let place = Place::Line(path.to_owned(), first.line);
        file.list = Some(Setting { key: "hosts".into(), value: Value::List(names), place });
    }
    Ok(file)
}

/// A table's entries as they stand in the file.
fn in_order<'t, 'a>(table: &'t DeTable<'a>) -> Vec<Entry<'t, 'a>> {
    let mut entries: Vec<Entry<'t, 'a>> = table.iter().collect();
    entries.sort_by_key(|(key, _)| key.span().start);
    entries
}

/// A file that is being read.
struct Reading<'f> {
    text: &'f str,
    path: &'f Path,
}

impl Reading<'_> {
    /// The line of a byte, from 1.
    fn line(&self, at: usize) -> usize {
        let before = self.text.as_bytes().get(..at).unwrap_or(self.text.as_bytes());
        let line = 1 + before.iter().filter(|byte| **byte == b'\n').count();
        // Behind the last line there is none.
        line.min(self.text.lines().count().max(1))
    }

    fn place<T>(&self, what: &Spanned<T>) -> Place {
        Place::Line(self.path.to_owned(), self.line(what.span().start))
    }

    fn wrong<T>(&self, what: &Spanned<T>, reason: impl Into<String>) -> ConfigError {
        ConfigError::Wrong { place: self.place(what), reason: reason.into() }
    }

    fn unknown(&self, key: &Key<'_>, all: &'static [&'static str]) -> ConfigError {
        let near = nearest(key.get_ref(), all.iter().copied()).map(str::to_owned);
        ConfigError::Unknown { place: self.place(key), key: key.get_ref().to_string(), near, all }
    }

    fn table<'t, 'a>(
        &self,
        key: &Key<'_>,
        value: &'t Spanned<DeValue<'a>>,
    ) -> Result<&'t DeTable<'a>, ConfigError> {
        match value.get_ref() {
            DeValue::Table(table) => Ok(table),
            _ => Err(self.wrong(key, format!("`{0}` is a table: [{0}]", key.get_ref()))),
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
        let wrong = || {
            let reason = "takes a string, a number, true or false, or a list of strings";
            self.wrong(key, format!("`{}` {reason}", key.get_ref()))
        };
        let value = match value.get_ref() {
            DeValue::Boolean(flag) => Value::Flag(*flag),
            DeValue::Array(list) => {
                let texts = list.iter().map(|value| text_of(value.get_ref()));
                Value::List(texts.collect::<Option<_>>().ok_or_else(wrong)?)
            }
            value => Value::Text(text_of(value).ok_or_else(wrong)?),
        };
        Ok(Setting { key: key.get_ref().to_string(), value, place: self.place(key) })
    }

    fn host(&self, name: &Key<'_>, value: &Spanned<DeValue<'_>>) -> Result<HostEntry, ConfigError> {
        let line = self.line(name.span().start);
        let name_of = self.word(name, name.get_ref(), shell_safe::is_host_name)?;
        let mut host = HostEntry { name: name_of, line, ..HostEntry::default() };
        if host.name.contains(['@', ',', '[', ']']) {
            let reason = format!("`{}` is no host name: its user is the key `user`", host.name);
            return Err(self.wrong(name, reason));
        }
        let DeValue::Table(table) = value.get_ref() else {
            let reason = format!("`{0}` is a table: [hosts.{0}]", host.name);
            return Err(self.wrong(name, reason));
        };
        for (key, value) in in_order(table) {
            match &**key.get_ref() {
                "ssh" => host.ssh = Some(self.string(key, value)?),
                "user" => host.user = Some(self.string(key, value)?),
                "port" => host.port = Some(self.number(key, value)?),
                "slots" => host.slots = Some(self.number(key, value)?),
                "mesh" => host.mesh = self.addresses(key, value)?,
                _ => return Err(self.unknown(key, OF_HOST)),
            }
        }
        Ok(host)
    }

    fn string(&self, key: &Key<'_>, value: &Spanned<DeValue<'_>>) -> Result<String, ConfigError> {
        let text = value.get_ref().as_str();
        let text = text.ok_or_else(|| self.wrong(key, format!("`{}` is a string", key.get_ref())));
        let is_name = if &**key.get_ref() == "user" {
            shell_safe::is_user_name
        } else {
            shell_safe::is_host_name
        };
        self.word(key, text?, is_name)
    }

    /// What may become a word of a command line, or part of one.
    fn word(
        &self,
        key: &Key<'_>,
        text: &str,
        is_name: fn(&str) -> bool,
    ) -> Result<String, ConfigError> {
        if !is_name(text) || text.contains('/') {
            let reason = format!("{text:?} names no host or user");
            return Err(self.wrong(key, reason));
        }
        Ok(text.to_owned())
    }

    /// From 1 on, as far as its type goes.
    fn number<T: TryFrom<u64>>(
        &self,
        key: &Key<'_>,
        value: &Spanned<DeValue<'_>>,
    ) -> Result<T, ConfigError> {
        let number = value.get_ref().as_integer();
        let number = number.and_then(|n| u64::from_str_radix(n.as_str(), n.radix()).ok());
        let number = number.filter(|&n| n > 0).and_then(|n| T::try_from(n).ok());
        let wrong = || {
            let most = if size_of::<T>() == 2 { ", 65535 at most" } else { "" };
            self.wrong(key, format!("`{}` is a number, 1 or more{most}", key.get_ref()))
        };
        number.ok_or_else(wrong)
    }

    fn addresses(
        &self,
        key: &Key<'_>,
        value: &Spanned<DeValue<'_>>,
    ) -> Result<Vec<(IpAddr, usize)>, ConfigError> {
        let wrong = || {
            let reason = format!("`{}` is a list of addresses, as [\"10.1.0.1\"]", key.get_ref());
            self.wrong(key, reason)
        };
        let DeValue::Array(list) = value.get_ref() else { return Err(wrong()) };
        let address = |value: &Spanned<DeValue<'_>>| {
            let address = value.get_ref().as_str()?.parse().ok()?;
            Some((address, self.line(value.span().start)))
        };
        list.iter().map(address).collect::<Option<_>>().ok_or_else(wrong)
    }
}

/// A string or a number as an option takes it.
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
