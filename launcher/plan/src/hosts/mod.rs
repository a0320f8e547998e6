//! Hosts: how users name them, and the addresses by which they reach each other.
//!
//! Here are hosts in the syntax of `-H` and host files: name, with ranges as in `n[01-16]`, user and slots.
//!
//! | file | subject |
//! |---|---|
//! | `hostfile` | host files |
//! | `host_table` | `[hosts.NAME]` and `[groups]` of a configuration file |
//! | `addresses` | addresses by which agents connect to each other (out-of-band network), in the order in which they are tried |

pub mod addresses;
pub mod host_table;
pub mod hostfile;

use host_table::HostTable;
use rlaunch_bootstrap::shell_safe;
use std::collections::HashMap;
use std::fmt;
use std::net::IpAddr;

/// Maximum length of a host name, in bytes. A name with ranges is copied for each host that it stands for,
/// so a long one could take much memory.
const MAX_NAME_BYTES: usize = 1024;
/// Maximum number of mentions of hosts in the `-H` options or in a host file. It exceeds the maximum number
/// of hosts, because some host files mention each host once per rank.
const MAX_MENTIONS: usize = 1 << 18;

/// Host as the user named it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Host {
    /// DNS name, alias in `~/.ssh/config`, or IP address.
    pub name: String,
    /// Login name: the text before the `@`, if there is one.
    pub user: Option<String>,
    /// Number of ranks that the host has room for; 1 as a placeholder while `slots_by` is
    /// [`SlotsBy::Open`].
    pub slots: u32,
    /// Source of the number in `slots`.
    pub slots_by: SlotsBy,
}

/// Source of a host's number of slots.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SlotsBy {
    /// Number given by the user or the batch system.
    Given,
    /// Number behind a colon that is more likely meant as a port, such as 2222 in `a:2222`. Mentions of the host elsewhere
    /// may have added to `slots`.
    LikelyPort(u32),
    /// Default of one slot, for a host in `-H` without a number of slots.
    One,
    /// Not known yet: a host in a host file without a number of slots gets one slot per GPU, once its agent
    /// has reported the number of GPUs.
    Open,
    /// Number of GPUs that the agent reported.
    Gpus,
    /// One slot, because the agent reported no GPU.
    NoGpu,
}

impl Host {
    /// Returns a host with one slot that stands for the machine on which rlaunch runs.
    pub fn this_machine() -> Host {
        Host { name: "localhost".into(), user: None, slots: 1, slots_by: SlotsBy::One }
    }

    /// Tells whether the user or the batch system gave the number of slots.
    pub fn has_given_slots(&self) -> bool {
        matches!(self.slots_by, SlotsBy::Given | SlotsBy::LikelyPort(_))
    }

    /// Returns the number behind the host's colon if it is more likely meant as a port, and the host with it as the user
    /// typed it: `a:2222`, `[fd00::2]:2222`.
    pub fn likely_port(&self) -> Option<(String, u32)> {
        let SlotsBy::LikelyPort(port) = self.slots_by else { return None };
        let is_ipv6 = self.name.contains(':');
        let name = if is_ipv6 { format!("[{}]", self.name) } else { self.name.clone() };
        let host = Host { name, ..self.clone() };
        Some((format!("{host}:{port}"), port))
    }

    /// Returns a copy of the host. If its slots are [`SlotsBy::Open`], the copy has one slot per GPU, but
    /// at least one slot.
    pub fn settled(&self, gpus: u32) -> Host {
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

/// Error in a list of hosts.
#[derive(Debug, PartialEq, Eq, thiserror::Error)]
pub enum HostsError {
    #[error("an empty host in `{0}`")]
    Empty(String),
    #[error("`{entry}`: `{slots}` is not a number of slots")]
    Slots { entry: String, slots: String },
    #[error("`{entry}`: `{name}` is not a host name")]
    Name { entry: String, name: String },
    #[error("`{entry}`: `{name}` has a character that means something to a shell")]
    Shell { entry: String, name: String },
    #[error("`{entry}`: {what}")]
    Range { entry: String, what: RangeError },
    #[error("`@{name}` is no group of hosts: {}", listed_groups(known))]
    Group {
        name: String,
        /// All groups, each with its place: `@gpu (rlaunch.toml:3)`.
        known: Vec<String>,
    },
    #[error("`{0}`: a group has hosts, and no other groups")]
    Nested(String),
    #[error("more than {MAX_HOSTS} hosts")]
    TooMany,
    #[error("hosts are named more than {MAX_MENTIONS} times")]
    TooOften,
    /// Error in one entry of a list with several entries.
    #[error("in -H {list}: {what}")]
    Listed { list: String, what: Box<HostsError> },
}

fn listed_groups(known: &[String]) -> String {
    match known {
        [] => "no configuration file that is read has any".to_owned(),
        known => format!("there are {}", known.join(", ")),
    }
}

/// Parses the values of `-H` into hosts, in the order of their first mention. `a:2` is host `a` with two
/// slots, `a` is the same host with one slot; slots of repeated hosts add up.
pub fn parse(lists: &[String]) -> Result<Vec<Host>, HostsError> {
    HostTable::default().parse_hosts(lists)
}

/// Parses lists like [`parse`]. `hosts_of` parses an entry.
fn parse_lists(
    lists: &[String],
    hosts_of: impl Fn(&str) -> Result<Vec<Host>, HostsError>,
) -> Result<Vec<Host>, HostsError> {
    let mut hosts = HostSet::default();
    for list in lists {
        let added = entries(list).try_for_each(|entry| {
            hosts_of(entry)?.into_iter().try_for_each(|host| hosts.add(host))
        });
        added.map_err(|error| match error {
            HostsError::Empty(_) => HostsError::Empty(format!("-H {list}")),
            other if entries(list).nth(1).is_none() => other,
            other => HostsError::Listed { list: list.clone(), what: Box::new(other) },
        })?;
    }
    Ok(hosts.into_hosts())
}

/// Distinct hosts in the order of their first mention.
#[derive(Default)]
pub struct HostSet {
    hosts: Vec<Host>,
    at: HashMap<(String, Option<String>), usize>,
    mentions: usize,
}

impl HostSet {
    /// Adds a mention of a host; slots of repeated hosts add up. Returns an error if there are too many
    /// hosts or mentions.
    pub fn add(&mut self, host: Host) -> Result<(), HostsError> {
        self.mentions += 1;
        if self.mentions > MAX_MENTIONS {
            return Err(HostsError::TooOften);
        }
        let key = (host.name.clone(), host.user.clone());
        let known = self.at.get(&key).and_then(|&at| self.hosts.get_mut(at));
        if let Some(known) = known {
            known.slots = known.slots.saturating_add(host.slots);
            // Whoever names a host twice wants two ranks there, however many GPUs it has.
            known.slots_by = match (known.slots_by, host.slots_by) {
                (port @ SlotsBy::LikelyPort(_), _) | (_, port @ SlotsBy::LikelyPort(_)) => port,
                _ => SlotsBy::Given,
            };
            return Ok(());
        }
        if self.hosts.len() == MAX_HOSTS {
            return Err(HostsError::TooMany);
        }
        self.at.insert(key, self.hosts.len());
        self.hosts.push(host);
        Ok(())
    }

    pub fn into_hosts(self) -> Vec<Host> {
        self.hosts
    }
}

/// Parses `name`, `name:2`, `user@name`, `[fd00::2]:2` or `n[01-16]:8`. If the entry has no number of
/// slots, each of its hosts gets one slot, with `default_slots` as the source.
pub(crate) fn parse_entry(entry: &str, default_slots: SlotsBy) -> Result<Vec<Host>, HostsError> {
    let (user, rest) = match entry.rsplit_once('@') {
        Some((user, rest)) => (Some(user.to_owned()), rest),
        None => (None, entry),
    };
    let NameAndSlots { name, slots, is_address } = NameAndSlots::parse(rest);
    let (slots, slots_by) = match slots {
        None => (1, default_slots),
        Some(slots) => parse_slots_behind_colon(entry, slots)?,
    };
    if name.is_empty() || user.as_deref() == Some("") {
        return Err(HostsError::Empty(entry.to_owned()));
    }
    // User and name may become arguments of a command or words of a host file, so they must not look like
    // an option or contain a separator.
    if user.as_deref().is_some_and(is_unsafe_word) || is_unsafe_word(name) {
        return Err(HostsError::Name { entry: entry.to_owned(), name: name.to_owned() });
    }
    let bad_user = user.as_deref().filter(|user| !shell_safe::is_user_name(user));
    if let Some(bad) = bad_user.or((!shell_safe::is_host_name(name)).then_some(name)) {
        return Err(HostsError::Shell { entry: entry.to_owned(), name: bad.to_owned() });
    }
    let names = if is_address {
        vec![name.to_owned()]
    } else {
        expand(name).map_err(|what| HostsError::Range { entry: entry.to_owned(), what })?
    };
    let host = |name| Host { name, user: user.clone(), slots, slots_by };
    Ok(names.into_iter().map(host).collect())
}

fn is_unsafe_word(name: &str) -> bool {
    let is_odd = |letter: char| letter.is_whitespace() || shell_safe::is_invisible(letter);
    name.len() > MAX_NAME_BYTES
        || name.starts_with('-')
        || name.contains(is_odd)
        || name.contains(['/', '#', '='])
}

/// Parses a number of slots, which must be at least 1. `entry` is quoted in the error.
pub(crate) fn parse_slots(entry: &str, slots: &str) -> Result<u32, HostsError> {
    let number = slots.parse().ok().filter(|&n| n > 0);
    let none = || HostsError::Slots { entry: entry.to_owned(), slots: slots.to_owned() };
    number.ok_or_else(none)
}

/// Parses a number of slots behind a colon, where other programs take a port.
fn parse_slots_behind_colon(entry: &str, slots: &str) -> Result<(u32, SlotsBy), HostsError> {
    let slots = parse_slots(entry, slots)?;
    // Port 22, and those of an sshd that does not listen there. Hosts with as many CPUs are rare, and their users can
    // give the number of ranks.
    let is_port = matches!(slots, 22 | 1024..=65_535);
    Ok((slots, if is_port { SlotsBy::LikelyPort(slots) } else { SlotsBy::Given }))
}

/// Host name and number of slots of an entry, as text.
struct NameAndSlots<'a> {
    name: &'a str,
    slots: Option<&'a str>,
    /// Whether `name` is an IP address that was in brackets. If not, brackets in `name` enclose ranges.
    is_address: bool,
}

impl<'a> NameAndSlots<'a> {
    /// Splits `a:2` or `[fd00::2]:2`. Text with more than one colon and without brackets is taken for an
    /// IPv6 address without slots.
    fn parse(text: &'a str) -> NameAndSlots<'a> {
        if let Some((address, rest)) = text.strip_prefix('[').and_then(|t| t.split_once(']'))
            && is_address(address)
        {
            // Text between the bracket and a colon is passed on as slots, whose parsing fails.
            let slots = rest.strip_prefix(':').or((!rest.is_empty()).then_some(text));
            return NameAndSlots { name: address, slots, is_address: true };
        }
        match text.split_once(':') {
            Some((name, slots)) if !slots.contains(':') => {
                NameAndSlots { name, slots: Some(slots), is_address: false }
            }
            _ => NameAndSlots { name: text, slots: None, is_address: false },
        }
    }
}

/// Tells whether a text is an IP address, possibly with a zone: `fd00::2`, `fe80::1%eth0`, `10.0.0.1`.
fn is_address(text: &str) -> bool {
    let (address, zone) = text.split_once('%').unwrap_or((text, ""));
    let is_plain = |letter: char| letter.is_ascii_alphanumeric() || "._-".contains(letter);
    address.parse::<IpAddr>().is_ok() && zone.chars().all(is_plain)
}

/// Tells whether the job runs on this machine alone and without SSH: no host was given, or only
/// `localhost`, `127.0.0.1` or `::1`.
pub fn are_local(hosts: &[Host]) -> bool {
    match hosts {
        [] => true,
        [host] => {
            host.user.is_none() && matches!(host.name.as_str(), "localhost" | "127.0.0.1" | "::1")
        }
        _ => false,
    }
}

/// Maximum number of hosts that the `-H` options or a host file may name.
pub const MAX_HOSTS: usize = 65_536;
/// Maximum number of digits of a number in a range, so that the number fits 64 bits.
const MAX_DIGITS: usize = 18;

/// Error in the ranges of a host name.
#[derive(Debug, PartialEq, Eq, thiserror::Error)]
pub enum RangeError {
    #[error("a bracket is not closed")]
    NotClosed,
    #[error("a bracket is closed that was never opened")]
    NotOpened,
    #[error("`{0}` is neither a number nor a range like 01-16")]
    NoRange(String),
    #[error("`{0}` runs backwards")]
    Backwards(String),
    #[error("more than {MAX_HOSTS} hosts")]
    TooMany,
}

/// Numbers from `first` to `last`, both included, padded with zeros to `digits` digits.
struct Range {
    first: u64,
    last: u64,
    digits: usize,
}

impl Range {
    fn parse(text: &str) -> Result<Range, RangeError> {
        let (first, last) = text.split_once('-').unwrap_or((text, text));
        let number = |digits: &str| {
            let is_number = !digits.is_empty() && digits.bytes().all(|byte| byte.is_ascii_digit());
            let fits = is_number && digits.len() <= MAX_DIGITS;
            digits.parse().ok().filter(|_: &u64| fits)
        };
        let (Some(low), Some(high)) = (number(first), number(last)) else {
            return Err(RangeError::NoRange(text.to_owned()));
        };
        if low > high {
            return Err(RangeError::Backwards(text.to_owned()));
        }
        let digits = if first.starts_with('0') { first.len() } else { 0 };
        Ok(Range { first: low, last: high, digits })
    }

    fn count(&self) -> u64 {
        (self.last - self.first).saturating_add(1)
    }

    fn numbers(&self) -> impl Iterator<Item = String> {
        let digits = self.digits;
        (self.first..=self.last).map(move |number| format!("{number:0digits$}"))
    }
}

/// Splits a list of hosts at the commas that are not in brackets, and trims the entries.
pub fn entries(list: &str) -> impl Iterator<Item = &str> {
    let mut is_inside = false;
    let is_separator = move |letter: char| {
        is_inside = if is_inside { letter != ']' } else { letter == '[' };
        letter == ',' && !is_inside
    };
    list.split(is_separator).map(str::trim)
}

/// Expands a host name with ranges to all names that it stands for. With several ranges these are all
/// combinations, in which the last range varies fastest.
fn expand(name: &str) -> Result<Vec<String>, RangeError> {
    let mut parts: Vec<(&str, Vec<Range>)> = Vec::new();
    let mut rest = name;
    while let Some((before, behind)) = rest.split_once('[') {
        let (inside, behind) = behind.split_once(']').ok_or(RangeError::NotClosed)?;
        let ranges = inside.split(',').map(str::trim).map(Range::parse);
        parts.push((before, ranges.collect::<Result<_, _>>()?));
        rest = behind;
    }
    if rest.contains(']') || parts.iter().any(|(before, _)| before.contains(']')) {
        return Err(RangeError::NotOpened);
    }
    let counts = parts.iter().map(|(_, ranges)| {
        ranges.iter().fold(0u64, |count, range| count.saturating_add(range.count()))
    });
    if counts.fold(1u64, u64::saturating_mul) > MAX_HOSTS as u64 {
        return Err(RangeError::TooMany);
    }
    let mut names = vec![String::new()];
    for (before, ranges) in &parts {
        let longer = |name: &String| {
            let numbers = ranges.iter().flat_map(Range::numbers);
            numbers.map(|number| format!("{name}{before}{number}")).collect::<Vec<_>>()
        };
        names = names.iter().flat_map(longer).collect();
    }
    names.iter_mut().for_each(|name| name.push_str(rest));
    Ok(names)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

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
    fn ports_in_the_place_of_slots_are_found() {
        let found = |list: &str| {
            let hosts = parse(&["z".to_owned(), list.to_owned()]).unwrap();
            hosts.iter().find_map(Host::likely_port).map(|(entry, _)| entry)
        };
        for (list, entry) in [
            ("h1:2222", "h1:2222"),
            ("h1:22", "h1:22"),
            ("a:8,me@h1:2222,c", "me@h1:2222"),
            ("me@[fd00::2]:2222", "me@[fd00::2]:2222"),
            ("n[01-16]:2222", "n01:2222"),
            ("a,a:2222,a:8", "a:2222"),
        ] {
            assert_eq!(found(list).as_deref(), Some(entry), "{list}");
        }
        for list in ["a:768", "fd00::2:2222", "a:100000", "a:11,a:11", "n[2222-2223]"] {
            assert_eq!(found(list), None, "{list}");
        }
        let host = parse(&["h1:2222".to_owned()]).unwrap().remove(0);
        assert!(host.has_given_slots() && host.slots == 2222);
    }

    #[test]
    fn mistakes_are_named() {
        assert_eq!(parsed("a,,b"), Err(HostsError::Empty("-H a,,b".into())));
        assert_eq!(parsed(""), Err(HostsError::Empty("-H ".into())));
        for list in ["a:0", "a:two", "[fd00::2]4"] {
            assert!(matches!(parsed(list), Err(HostsError::Slots { .. })), "{list}");
        }
        for list in ["-oProxyCommand=x", "-oProxyCommand=x@a", "a#b", "a\u{202e}b"] {
            assert!(matches!(parsed(list), Err(HostsError::Name { .. })), "{list}");
        }
        for name in ["`id`", "$(id)", "a;id", "a|b", "a&b", "me`id`@a", "me;id@a", "a>b", "x{1}"] {
            assert!(matches!(parsed(name), Err(HostsError::Shell { .. })), "{name}");
        }
        assert_eq!(parsed(r"DOMAIN\me@a"), Ok(vec![(r"DOMAIN\me@a".to_owned(), 1)]));
        assert!(matches!(parsed("n[1-2"), Err(HostsError::Range { .. })));
        let parse_error = |list: &str| parsed(list).unwrap_err().to_string();
        assert_eq!(
            parse_error("a,b:two"),
            "in -H a,b:two: `b:two`: `two` is not a number of slots"
        );
        assert_eq!(parse_error("n[3-1]"), "`n[3-1]`: `3-1` runs backwards");
        assert_eq!(parse_error("n[1-65536],m"), "in -H n[1-65536],m: more than 65536 hosts");
        assert!(parse_error(&"n".repeat(2000)).ends_with("is not a host name"));
    }

    #[test]
    fn ranges_keep_their_zeros_and_multiply() {
        assert_eq!(expand("a").unwrap(), ["a"]);
        assert_eq!(expand("n[08-11,20]").unwrap(), ["n08", "n09", "n10", "n11", "n20"]);
        assert_eq!(expand("n[8-11].x").unwrap(), ["n8.x", "n9.x", "n10.x", "n11.x"]);
        assert_eq!(expand("r[1-2]n[0,7]").unwrap(), ["r1n0", "r1n7", "r2n0", "r2n7"]);
        assert_eq!(expand("n[098-101]").unwrap(), ["n098", "n099", "n100", "n101"]);
        assert_eq!(expand("n[0]").unwrap(), ["n0"]);
        assert_eq!(expand("n[00001-65536]").unwrap().len(), MAX_HOSTS);
    }

    #[test]
    fn mistakes_in_ranges_are_named() {
        let error = |name: &str| expand(name).unwrap_err();
        assert_eq!(error("n[1-3"), RangeError::NotClosed);
        assert_eq!(error("n1-3]"), RangeError::NotOpened);
        assert_eq!(error("n]1[1-3]"), RangeError::NotOpened);
        assert_eq!(error("n[3-1]"), RangeError::Backwards("3-1".into()));
        for bad in ["n[]", "n[1-]", "n[a-c]", "n[1,]", "n[-3]", "n[[1]", "n[1-2-3]", "n[+1]"] {
            assert!(matches!(error(bad), RangeError::NoRange(_)), "{bad}");
        }
        assert_eq!(error("n[1-65537]"), RangeError::TooMany);
        assert_eq!(error("n[1-300]m[1-300]"), RangeError::TooMany);
        assert_eq!(error("n[0-999999999999999999,0-999999999999999999]"), RangeError::TooMany);
        assert!(matches!(error("n[0-9999999999999999999]"), RangeError::NoRange(_)));
    }

    #[test]
    fn commas_in_brackets_separate_nothing() {
        let of = |list: &'static str| entries(list).collect::<Vec<_>>();
        assert_eq!(of("a, n[1,2]:4,[fd00::2]:2"), ["a", "n[1,2]:4", "[fd00::2]:2"]);
        assert_eq!(of("n[1,2,b"), ["n[1,2,b"]);
        assert_eq!(of("a],b"), ["a]", "b"]);
        assert_eq!(of(""), [""]);
    }

    proptest! {
        #[test]
        fn a_range_has_the_names_that_counting_gives(first in 0..2000u64, more in 0..50u64, digits in 1..6usize) {
            let text = format!("n[{first:0digits$}-{}]x", first + more);
            // Numbers are padded only where the first begins with a zero.
            let wide = if format!("{first:0digits$}").starts_with('0') { digits } else { 0 };
            let expected: Vec<String> =
                (first..=first + more).map(|n| format!("n{n:0wide$}x")).collect();
            prop_assert_eq!(expand(&text).unwrap(), expected);
        }

        #[test]
        fn anything_is_names_or_an_error(text in "[a0-9,\\[\\]-]{0,24}|.{0,20}") {
            if let Ok(names) = expand(&text) {
                prop_assert!(!names.is_empty() && names.len() <= MAX_HOSTS);
                prop_assert!(names.iter().all(|name| !name.contains(['[', ']'])));
            }
        }
    }
}
