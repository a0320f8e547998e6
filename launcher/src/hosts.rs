//! `-H`: which hosts, as which user, with how many slots.

use std::fmt;

/// A host as the user gave it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Host {
    /// What is looked up: a name, an `~/.ssh/config` alias, or an address.
    pub(crate) name: String,
    /// The user before the `@`.
    pub(crate) user: Option<String>,
    /// How many ranks it takes.
    pub(crate) slots: u32,
}

impl Host {
    /// Where this runs.
    pub(crate) fn this_machine() -> Host {
        Host { name: "localhost".into(), user: None, slots: 1 }
    }
}

impl fmt::Display for Host {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.user {
            Some(user) => write!(f, "{user}@{}", self.name),
            None => f.write_str(&self.name),
        }
    }
}

/// An entry of `-H` that names no host.
#[derive(Debug, PartialEq, Eq, thiserror::Error)]
pub(crate) enum HostsError {
    #[error("an empty host in `{0}`")]
    Empty(String),
    #[error("`{entry}`: `{slots}` is no number of slots")]
    Slots { entry: String, slots: String },
    #[error("`{entry}`: `{name}` is no host name")]
    Name { entry: String, name: String },
}

/// Hosts in the order of their first mention. `a:2` gives a two slots, `a` one; repeats add up.
pub(crate) fn parse(lists: &[String]) -> Result<Vec<Host>, HostsError> {
    let mut hosts: Vec<Host> = Vec::new();
    for list in lists {
        for entry in list.split(',').map(str::trim) {
            let host = parse_entry(entry).map_err(|error| match error {
                HostsError::Empty(_) => HostsError::Empty(format!("-H {list}")),
                other => other,
            })?;
            add(&mut hosts, host);
        }
    }
    Ok(hosts)
}

/// One more mention of a host.
pub(crate) fn add(hosts: &mut Vec<Host>, host: Host) {
    let known = hosts.iter_mut().find(|h| h.name == host.name && h.user == host.user);
    match known {
        Some(known) => known.slots = known.slots.saturating_add(host.slots),
        None => hosts.push(host),
    }
}

/// `name`, `name:2`, `user@name`, `[fd00::2]:2`.
pub(crate) fn parse_entry(entry: &str) -> Result<Host, HostsError> {
    let (user, rest) = match entry.rsplit_once('@') {
        Some((user, rest)) => (Some(user.to_owned()), rest),
        None => (None, entry),
    };
    let (name, slots) = split_slots(rest);
    let slots = match slots {
        None => 1,
        Some(slots) => parse_slots(entry, slots)?,
    };
    if name.is_empty() || user.as_deref() == Some("") {
        return Err(HostsError::Empty(entry.to_owned()));
    }
    // Either may become a word of a command line.
    if user.as_deref().is_some_and(is_no_word) || is_no_word(name) {
        return Err(HostsError::Name { entry: entry.to_owned(), name: name.to_owned() });
    }
    Ok(Host { name: name.to_owned(), user, slots })
}

fn is_no_word(name: &str) -> bool {
    name.starts_with('-') || name.contains(char::is_whitespace) || name.contains('/')
}

/// How many ranks the host of `entry` takes: one or more.
pub(crate) fn parse_slots(entry: &str, slots: &str) -> Result<u32, HostsError> {
    let number = slots.parse().ok().filter(|&n| n > 0);
    let none = || HostsError::Slots { entry: entry.to_owned(), slots: slots.to_owned() };
    number.ok_or_else(none)
}

/// `a:2`, `[fd00::2]:2`; more than one colon without brackets is an IPv6 address.
fn split_slots(text: &str) -> (&str, Option<&str>) {
    if let Some((address, rest)) = text.strip_prefix('[').and_then(|t| t.split_once(']')) {
        return (address, rest.strip_prefix(':').or((!rest.is_empty()).then_some(rest)));
    }
    match text.split_once(':') {
        Some((name, slots)) if !slots.contains(':') => (name, Some(slots)),
        _ => (text, None),
    }
}

/// Whether these hosts mean this machine, without SSH: no host at all, or one of three names that
/// can mean nothing else, alone.
pub(crate) fn are_local(hosts: &[Host]) -> bool {
    match hosts {
        [] => true,
        [host] => {
            host.user.is_none() && matches!(host.name.as_str(), "localhost" | "127.0.0.1" | "::1")
        }
        _ => false,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parsed(list: &str) -> Result<Vec<(String, u32)>, HostsError> {
        let hosts = parse(&[list.to_owned()])?;
        Ok(hosts.into_iter().map(|h| (h.to_string(), h.slots)).collect())
    }

    #[test]
    fn slots_users_and_addresses() {
        let expect = |list: &str, want: &[(&str, u32)]| {
            let want: Vec<_> = want.iter().map(|(n, s)| ((*n).to_owned(), *s)).collect();
            assert_eq!(parsed(list), Ok(want), "{list}");
        };
        expect("a,b,c", &[("a", 1), ("b", 1), ("c", 1)]);
        expect("a:2, b", &[("a", 2), ("b", 1)]);
        expect("a,b,a:3", &[("a", 4), ("b", 1)]);
        expect("root@a:2,a", &[("root@a", 2), ("a", 1)]);
        expect("[fd00::2]:4,fd00::3", &[("fd00::2", 4), ("fd00::3", 1)]);
    }

    #[test]
    fn mistakes_are_named() {
        assert_eq!(parsed("a,,b"), Err(HostsError::Empty("-H a,,b".into())));
        assert_eq!(parsed(""), Err(HostsError::Empty("-H ".into())));
        assert!(matches!(parsed("a:0"), Err(HostsError::Slots { .. })));
        assert!(matches!(parsed("a:two"), Err(HostsError::Slots { .. })));
        assert!(matches!(parsed("-oProxyCommand=x"), Err(HostsError::Name { .. })));
        assert!(matches!(parsed("-oProxyCommand=x@a"), Err(HostsError::Name { .. })));
        assert!(matches!(parsed("[fd00::2]4"), Err(HostsError::Slots { .. }) | Ok(_)));
    }
}
