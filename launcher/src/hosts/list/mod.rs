//! Hosts as people name them, with `-H` or in a hostfile: which, as which user, with how many slots.

pub(crate) mod hostfile;
pub(crate) mod ranges;

use ranges::{MOST_HOSTS, RangeError};
use rlaunch_bootstrap::shell_safe;
use std::collections::HashMap;
use std::fmt;
use std::net::IpAddr;

/// The longest name of a host, in bytes: one with ranges is written many times.
const LONGEST_NAME: usize = 1024;
/// How often hosts may be named in all: once for each rank, in some files.
const MOST_MENTIONS: usize = 1 << 18;

/// A host as the user gave it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Host {
    /// What is looked up: a name, an `~/.ssh/config` alias, or an address.
    pub(crate) name: String,
    /// The user before the `@`.
    pub(crate) user: Option<String>,
    /// How many ranks it takes; 1 for now where that is [`SlotsBy::Open`].
    pub(crate) slots: u32,
    /// Who has said so.
    pub(crate) slots_by: SlotsBy,
}

/// Who has said how many ranks a host takes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum SlotsBy {
    /// The user, or whoever made the allocation.
    Given,
    /// Nobody: a host of `-H` takes one.
    One,
    /// Nobody: a host of a hostfile takes as many as its node has GPUs, which is not known yet.
    Open,
    /// Its node's GPUs.
    Gpus,
    /// Its node, which has no GPU: one.
    NoGpu,
}

impl Host {
    /// Where this runs.
    pub(crate) fn this_machine() -> Host {
        Host { name: "localhost".into(), user: None, slots: 1, slots_by: SlotsBy::One }
    }

    /// The same with slots for a node of so many GPUs, where nobody has given any.
    pub(crate) fn settled(&self, gpus: u32) -> Host {
        let (slots, slots_by) = match (self.slots_by, gpus) {
            (SlotsBy::Open, 0) => (1, SlotsBy::NoGpu),
            (SlotsBy::Open, gpus) => (gpus, SlotsBy::Gpus),
            (slots_by, _) => (self.slots, slots_by),
        };
        Host { slots, slots_by, ..self.clone() }
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

/// An entry that names no host.
#[derive(Debug, PartialEq, Eq, thiserror::Error)]
pub(crate) enum HostsError {
    #[error("an empty host in `{0}`")]
    Empty(String),
    #[error("`{entry}`: `{slots}` is no number of slots")]
    Slots { entry: String, slots: String },
    #[error("`{entry}`: `{name}` is no host name")]
    Name { entry: String, name: String },
    #[error("`{entry}`: `{name}` has a character that means something to a shell")]
    Shell { entry: String, name: String },
    #[error("`{entry}`: {what}")]
    Range { entry: String, what: RangeError },
    #[error("more than {MOST_HOSTS} hosts")]
    TooMany,
    #[error("hosts are named more than {MOST_MENTIONS} times")]
    TooOften,
    /// A list of more than this one entry.
    #[error("in -H {list}: {what}")]
    Listed { list: String, what: Box<HostsError> },
}

/// Hosts in the order of their first mention. `a:2` gives a two slots, `a` one; repeats add up.
pub(crate) fn parse(lists: &[String]) -> Result<Vec<Host>, HostsError> {
    let mut hosts = HostSet::default();
    for list in lists {
        parse_list(list, &mut hosts).map_err(|error| match error {
            HostsError::Empty(_) => HostsError::Empty(format!("-H {list}")),
            other if ranges::entries(list).nth(1).is_none() => other,
            other => HostsError::Listed { list: list.clone(), what: Box::new(other) },
        })?;
    }
    Ok(hosts.into_hosts())
}

fn parse_list(list: &str, hosts: &mut HostSet) -> Result<(), HostsError> {
    for entry in ranges::entries(list) {
        for host in parse_entry(entry, SlotsBy::One)? {
            hosts.add(host)?;
        }
    }
    Ok(())
}

/// Hosts in the order of their first mention.
#[derive(Default)]
pub(crate) struct HostSet {
    hosts: Vec<Host>,
    at: HashMap<(String, Option<String>), usize>,
    mentions: usize,
}

impl HostSet {
    /// One more mention of a host: repeats add up.
    pub(crate) fn add(&mut self, host: Host) -> Result<(), HostsError> {
        self.mentions += 1;
        if self.mentions > MOST_MENTIONS {
            return Err(HostsError::TooOften);
        }
        let key = (host.name.clone(), host.user.clone());
        let known = self.at.get(&key).and_then(|&at| self.hosts.get_mut(at));
        if let Some(known) = known {
            known.slots = known.slots.saturating_add(host.slots);
            known.slots_by = SlotsBy::Given;
            return Ok(());
        }
        if self.hosts.len() == MOST_HOSTS {
            return Err(HostsError::TooMany);
        }
        self.at.insert(key, self.hosts.len());
        self.hosts.push(host);
        Ok(())
    }

    pub(crate) fn into_hosts(self) -> Vec<Host> {
        self.hosts
    }
}

/// `name`, `name:2`, `user@name`, `[fd00::2]:2`, `n[01-16]:8`; those without slots have one, by
/// `unsaid`.
pub(crate) fn parse_entry(entry: &str, unsaid: SlotsBy) -> Result<Vec<Host>, HostsError> {
    let (user, rest) = match entry.rsplit_once('@') {
        Some((user, rest)) => (Some(user.to_owned()), rest),
        None => (None, entry),
    };
    let Place { name, slots, is_address } = Place::parse(rest);
    let (slots, slots_by) = match slots {
        None => (1, unsaid),
        Some(slots) => (parse_slots(entry, slots)?, SlotsBy::Given),
    };
    if name.is_empty() || user.as_deref() == Some("") {
        return Err(HostsError::Empty(entry.to_owned()));
    }
    // Either may become a word of a command line, or of a hostfile.
    if user.as_deref().is_some_and(is_no_word) || is_no_word(name) {
        return Err(HostsError::Name { entry: entry.to_owned(), name: name.to_owned() });
    }
    let bad_user = user.as_deref().filter(|user| !shell_safe::is_user_name(user));
    if let Some(bad) = bad_user.or((!shell_safe::is_host_name(name)).then_some(name)) {
        return Err(HostsError::Shell { entry: entry.to_owned(), name: bad.to_owned() });
    }
    let names = match is_address {
        true => vec![name.to_owned()],
        false => ranges::expand(name)
            .map_err(|what| HostsError::Range { entry: entry.to_owned(), what })?,
    };
    let host = |name| Host { name, user: user.clone(), slots, slots_by };
    Ok(names.into_iter().map(host).collect())
}

fn is_no_word(name: &str) -> bool {
    let is_odd = |letter: char| letter.is_whitespace() || shell_safe::is_invisible(letter);
    name.len() > LONGEST_NAME
        || name.starts_with('-')
        || name.contains(is_odd)
        || name.contains(['/', '#', '='])
}

/// How many ranks the host of `entry` takes: one or more.
pub(crate) fn parse_slots(entry: &str, slots: &str) -> Result<u32, HostsError> {
    let number = slots.parse().ok().filter(|&n| n > 0);
    let none = || HostsError::Slots { entry: entry.to_owned(), slots: slots.to_owned() };
    number.ok_or_else(none)
}

/// What stands behind the user.
struct Place<'a> {
    name: &'a str,
    slots: Option<&'a str>,
    /// It stood in brackets, which are no range then.
    is_address: bool,
}

impl<'a> Place<'a> {
    /// `a:2`, `[fd00::2]:2`; more than one colon without brackets is an IPv6 address.
    fn parse(text: &'a str) -> Place<'a> {
        if let Some((address, rest)) = text.strip_prefix('[').and_then(|t| t.split_once(']'))
            && is_address(address)
        {
            // What follows without a colon is no number either.
            let slots = rest.strip_prefix(':').or((!rest.is_empty()).then_some(text));
            return Place { name: address, slots, is_address: true };
        }
        match text.split_once(':') {
            Some((name, slots)) if !slots.contains(':') => {
                Place { name, slots: Some(slots), is_address: false }
            }
            _ => Place { name: text, slots: None, is_address: false },
        }
    }
}

/// `fd00::2`, `fe80::1%eth0`, `10.0.0.1`.
fn is_address(text: &str) -> bool {
    let (address, zone) = text.split_once('%').unwrap_or((text, ""));
    let is_plain = |letter: char| letter.is_ascii_alphanumeric() || "._-".contains(letter);
    address.parse::<IpAddr>().is_ok() && zone.chars().all(is_plain)
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
        expect("me@[fe80::1%eth0]:2,[10.0.0.1]", &[("me@fe80::1%eth0", 2), ("10.0.0.1", 1)]);
        expect("n[09-10,12]:8,me@n[1]", &[("n09", 8), ("n10", 8), ("n12", 8), ("me@n1", 1)]);
        expect("n[1-2],n2:3", &[("n1", 1), ("n2", 4)]);
    }

    #[test]
    fn who_gave_the_slots_is_known() {
        let by = |list: &str| parse(&[list.to_owned()]).unwrap().remove(0).slots_by;
        assert_eq!([by("a"), by("a:1"), by("a,a")], [SlotsBy::One, SlotsBy::Given, SlotsBy::Given]);
        let open = parse_entry("a", SlotsBy::Open).unwrap().remove(0);
        let settled = |gpus| (open.settled(gpus).slots, open.settled(gpus).slots_by);
        assert_eq!([settled(0), settled(4)], [(1, SlotsBy::NoGpu), (4, SlotsBy::Gpus)]);
        let given = parse_entry("a:3", SlotsBy::Open).unwrap().remove(0);
        assert_eq!(given.settled(8), given);
    }

    #[test]
    fn mistakes_are_named() {
        assert_eq!(parsed("a,,b"), Err(HostsError::Empty("-H a,,b".into())));
        assert_eq!(parsed(""), Err(HostsError::Empty("-H ".into())));
        assert!(matches!(parsed("a:0"), Err(HostsError::Slots { .. })));
        assert!(matches!(parsed("a:two"), Err(HostsError::Slots { .. })));
        assert!(matches!(parsed("-oProxyCommand=x"), Err(HostsError::Name { .. })));
        assert!(matches!(parsed("-oProxyCommand=x@a"), Err(HostsError::Name { .. })));
        assert!(matches!(parsed("[fd00::2]4"), Err(HostsError::Slots { .. })));
        assert!(matches!(parsed("a#b"), Err(HostsError::Name { .. })));
        assert!(matches!(parsed("a\u{202e}b"), Err(HostsError::Name { .. })));
        for name in ["`id`", "$(id)", "a;id", "a|b", "a&b", "me`id`@a", "me;id@a", "a>b", "x{1}"] {
            assert!(matches!(parsed(name), Err(HostsError::Shell { .. })), "{name}");
        }
        assert_eq!(parsed(r"DOMAIN\me@a"), Ok(vec![(r"DOMAIN\me@a".to_owned(), 1)]));
        assert!(matches!(parsed("n[1-2"), Err(HostsError::Range { .. })));
        let said = |list: &str| parsed(list).unwrap_err().to_string();
        assert_eq!(said("a,b:two"), "in -H a,b:two: `b:two`: `two` is no number of slots");
        assert_eq!(said("n[3-1]"), "`n[3-1]`: `3-1` runs backwards");
        assert_eq!(said("n[1-65536],m"), "in -H n[1-65536],m: more than 65536 hosts");
        assert!(said(&"n".repeat(2000)).ends_with("is no host name"));
    }
}
