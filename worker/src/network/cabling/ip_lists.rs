//! Addresses, routes and neighbours as `ip` lists them, and the words by which it adds and removes them: they are the same but
//! for a few.

use super::host_network::run_ip;
use nix::time::{ClockId, clock_gettime};
use rlaunch_bootstrap::protocol::network::{ChangeFailure, Privilege};
use serde::{Deserialize, Serialize};
use std::collections::BTreeSet;
use std::net::IpAddr;
use std::time::Duration;

/// Words that `ip` prints behind an address for its state. The kernel finds them out by itself.
const ADDRESS_STATES: &[&str] = &["secondary", "dynamic", "deprecated"];
/// Words that `ip` prints behind a route for its state.
const ROUTE_STATES: &str =
    "linkdown dead unresolved offload trap offload_failed rt_offload rt_trap rt_offload_failed";
/// Words that `ip` prints behind a neighbour for its state.
const NEIGHBOUR_STATES: &[&str] = &["PERMANENT", "offload"];
/// Time of the end of what does not end.
const NEVER: u64 = u64::MAX;

/// IPv4 address of an interface. Journals keep it by position: later versions add no fields.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(super) struct Address {
    /// What `ip address add` takes, but for interface and lifetimes: `192.168.101.2/24 scope global label eth1`.
    words: Vec<String>,
    /// Time at which it vanishes, in seconds of the clock that runs while the host is awake, as lifetimes do.
    pub(super) expires_at: u64,
    /// Time at which it is deprecated.
    deprecated_at: u64,
}

/// Lifetimes run, and are not compared.
impl PartialEq for Address {
    fn eq(&self, other: &Address) -> bool {
        self.words == other.words
    }
}

impl Address {
    /// Parses a line of `ip -o -4 address show` at the time `now`:
    ///
    /// ```text
    /// 3: eth1    inet 192.168.101.2/24 scope global dynamic eth1:x\       valid_lft 3000sec preferred_lft 2000sec
    /// ```
    pub(super) fn parse(line: &str, now: u64) -> Option<Address> {
        let (_, line) = line.split_once(" inet ")?;
        let (line, lifetimes) = line.split_once(" valid_lft ")?;
        let (valid, preferred) = lifetimes.split_once(" preferred_lft ")?;
        let mut words = words(line);
        let label = words.pop()?;
        words.retain(|word| !ADDRESS_STATES.contains(&&**word));
        words.extend(["label".to_owned(), label]);
        let end = |text: &str| match text.trim() {
            "forever" => Some(NEVER),
            text => text.strip_suffix("sec")?.parse::<u64>().ok().map(|left| now + left),
        };
        Some(Address { words, expires_at: end(valid)?, deprecated_at: end(preferred)? })
    }

    /// Returns the address without its prefix length.
    pub(super) fn without_prefix(&self) -> &str {
        let first = self.words.first().map_or("", String::as_str);
        first.split('/').next().unwrap_or_default()
    }

    /// Tells whether this is the address with this prefix length.
    pub(super) fn has_address(&self, address: IpAddr, prefix: u8) -> bool {
        self.words.first() == Some(&format!("{address}/{prefix}"))
    }

    /// Returns the arguments for `ip` that add it to an interface at the time `now`.
    pub(super) fn addition(&self, interface: &str, now: u64) -> Vec<String> {
        let mut line = words("address add");
        line.extend_from_slice(&self.words);
        for (name, end) in [("valid_lft", self.expires_at), ("preferred_lft", self.deprecated_at)] {
            if end != NEVER {
                line.extend([name.to_owned(), end.saturating_sub(now).to_string()]);
            }
        }
        line.extend(["dev".to_owned(), interface.to_owned()]);
        line
    }

    pub(super) fn deletion(&self, interface: &str) -> Vec<String> {
        // `10.1.1.1 peer 10.1.1.2/32` is one address.
        let has_peer = self.words.get(1).is_some_and(|word| word == "peer");
        let mut line = words("address delete");
        line.extend(self.words.iter().take(if has_peer { 3 } else { 1 }).cloned());
        line.extend(["dev".to_owned(), interface.to_owned()]);
        line
    }
}

/// Returns the time of the clock by which lifetimes run, in seconds.
pub(super) fn monotonic_seconds() -> u64 {
    clock_gettime(ClockId::CLOCK_MONOTONIC).map(Duration::from).unwrap_or_default().as_secs()
}

/// Lists the IPv4 addresses of an interface, in the kernel's order.
pub(super) fn list_addresses(interface: &str) -> Result<Vec<Address>, ChangeFailure> {
    let mut arguments = words("-o -4 address show dev");
    arguments.push(interface.to_owned());
    let (listed, now) = (list_by_ip(&arguments)?, monotonic_seconds());
    let parse = |line: &str| {
        let unknown = || failure(&arguments, format!("cannot tell what `{line}` says"));
        Address::parse(line, now).ok_or_else(unknown)
    };
    listed.lines().map(parse).collect()
}

/// Lists the IPv4 routes of all tables, as `ip route append` takes them.
pub(super) fn list_routes() -> Result<Vec<String>, ChangeFailure> {
    let listed = list_by_ip(&words("-o -4 -d route show table all"))?;
    // What a nexthop id stands for may follow in a line of its own.
    let is_route = |line: &&str| !line.trim_start().starts_with("nh_info");
    Ok(listed.lines().filter(is_route).map(appendable_route).collect())
}

/// Leaves out of a listed route what `ip route append` does not take.
fn appendable_route(line: &str) -> String {
    let mut words = words(line);
    words.retain(|word| !ROUTE_STATES.split(' ').any(|state| state == &**word));
    let position = |words: &[String], name: &str| words.iter().position(|word| word == name);
    if let Some(at) = position(&words, "rto_min")
        .filter(|at| words.get(at + 1).is_some_and(|word| word == "lock"))
    {
        words.remove(at + 1);
    }
    // A nexthop id is taken instead of the way that it stands for.
    if position(&words, "nhid").is_some() {
        if let Some(at) = position(&words, "nexthop") {
            words.truncate(at);
        }
        for name in ["via", "dev"] {
            if let Some(at) = position(&words, name) {
                let end = (at + 2).min(words.len());
                words.drain(at..end);
            }
        }
    }
    words.join(" ")
}

/// Lists the permanent neighbours and the proxies of all interfaces, of IPv4 and IPv6, as `ip neigh replace` takes them.
pub(super) fn list_neighbours() -> Result<Vec<String>, ChangeFailure> {
    let permanent = list_by_ip(&words("neigh show nud permanent"))?;
    let proxies = list_by_ip(&words("neigh show proxy"))?;
    let permanent = permanent.lines().map(replaceable_neighbour);
    Ok(permanent.chain(proxies.lines().map(replaceable_proxy)).collect())
}

/// Returns a listed neighbour as `ip neigh replace` takes it.
fn replaceable_neighbour(line: &str) -> String {
    let mut words = words(line);
    words.retain(|word| !NEIGHBOUR_STATES.contains(&&**word));
    words.extend(["nud", "permanent"].map(str::to_owned));
    words.join(" ")
}

/// Returns a listed proxy as `ip neigh replace` takes it: its word comes before the address.
fn replaceable_proxy(line: &str) -> String {
    let mut words = words(line);
    words.retain(|word| word != "proxy");
    words.insert(0, "proxy".to_owned());
    words.join(" ")
}

/// Returns the arguments for `ip` that bring wanted neighbours back. One that others have given another link address
/// meanwhile is theirs.
pub(super) fn neighbour_repairs(wanted: &[&str], present: &[String]) -> Vec<Vec<String>> {
    let is_missing = |line: &&&str| present.iter().all(|other| neighbour(other) != neighbour(line));
    let missing = wanted.iter().filter(is_missing);
    // The kernel may have learned the neighbour by itself meanwhile, which `add` would refuse.
    missing.map(|line| words(&format!("neigh replace {line}"))).collect()
}

/// Returns what names a neighbour: whether it is a proxy, its address, and the interface.
fn neighbour(line: &str) -> (&str, &str) {
    let (address, rest) = line.split_once(" dev ").unwrap_or((line, ""));
    (address, rest.split(' ').next().unwrap_or_default())
}

/// Returns the routes through these interfaces or from these addresses, and those that the kernel tries before or
/// behind one of them.
pub(super) fn tied_routes<'a>(
    routes: &'a [String],
    interfaces: &BTreeSet<&str>,
    sources: &BTreeSet<&str>,
) -> Vec<&'a String> {
    let is_tied = |route: &&String| {
        values(route, "dev").any(|name| interfaces.contains(name))
            || values(route, "src").any(|address| sources.contains(address))
    };
    let tied: BTreeSet<Vec<&str>> = routes.iter().filter(is_tied).map(|one| rivalry(one)).collect();
    routes.iter().filter(|route| tied.contains(&rivalry(route))).collect()
}

/// Returns what routes share among which only their order decides: kind and destination, table, metric, type of service.
fn rivalry(route: &str) -> Vec<&str> {
    let mut shared: Vec<&str> = route.split(' ').take(2).collect();
    for name in ["table", "metric", "tos"] {
        shared.push(values(route, name).next().unwrap_or_default());
    }
    shared
}

/// Lists the words that follow a word.
pub(super) fn values<'a>(line: &'a str, name: &'a str) -> impl Iterator<Item = &'a str> {
    let named = line.split(' ').zip(line.split(' ').skip(1));
    named.filter(move |(word, _)| *word == name).map(|(_, value)| value)
}

/// Returns the arguments for `ip` that bring wanted routes back to their places among those present.
pub(super) fn route_repairs(wanted: &[&str], present: &[String]) -> Vec<Vec<String>> {
    let mut repairs = Vec::new();
    let mut done = BTreeSet::new();
    // Gateways are reached by other routes.
    let (far, near): (Vec<&str>, Vec<&str>) =
        wanted.iter().copied().partition(|route| route.contains(" via "));
    for rivalry_of in near.into_iter().chain(far).map(rivalry) {
        let rivals: Vec<&str> =
            wanted.iter().copied().filter(|route| rivalry(route) == rivalry_of).collect();
        if !done.insert(rivalry_of) {
            continue;
        }
        let present: Vec<&str> =
            present.iter().map(String::as_str).filter(|route| rivals.contains(route)).collect();
        let (misplaced, missing) = difference(&rivals, &present);
        repairs.extend(misplaced.iter().map(|route| words(&format!("route delete {route}"))));
        // `add` would refuse one that differs from another in the way alone.
        repairs.extend(missing.iter().map(|route| words(&format!("route append {route}"))));
    }
    repairs
}

/// Returns what must be removed from a list and what must then be appended for it to become the wanted one.
pub(super) fn difference<'a, T: PartialEq>(
    wanted: &'a [T],
    present: &'a [T],
) -> (&'a [T], &'a [T]) {
    let same = wanted.iter().zip(present).take_while(|(one, other)| one == other).count();
    (present.split_at(same).1, wanted.split_at(same).1)
}

/// Splits a line of `ip`. With `-o`, a backslash stands for the end of a line.
pub(super) fn words(line: &str) -> Vec<String> {
    let words = line.split(|c: char| c.is_whitespace() || c == '\\');
    words.filter(|word| !word.is_empty()).map(str::to_owned).collect()
}

/// Runs `ip` to change something.
pub(super) fn change_by_ip(
    privilege: Privilege,
    arguments: &[String],
) -> Result<(), ChangeFailure> {
    run_ip(privilege, arguments).map(drop).map_err(|cause| failure(arguments, cause))
}

/// Runs `ip` to list something, which takes no right: it is run directly, as root runs it.
fn list_by_ip(arguments: &[String]) -> Result<String, ChangeFailure> {
    run_ip(Privilege::Root, arguments).map_err(|cause| failure(arguments, cause))
}

fn failure(arguments: &[String], cause: String) -> ChangeFailure {
    ChangeFailure { line: format!("ip {}", arguments.join(" ")), cause }
}

/// Lists the addresses of an interface with their prefix lengths, but for link-local ones.
pub(super) fn list_held(interface: &str) -> Result<Vec<String>, ChangeFailure> {
    let mut arguments = words("-o address show dev");
    arguments.push(interface.to_owned());
    Ok(held_addresses(&list_by_ip(&arguments)?))
}

/// Reads `ip -o address show`.
pub(super) fn held_addresses(listed: &str) -> Vec<String> {
    let held = listed.lines().map(words).filter(|words| {
        let mut pairs = words.iter().zip(words.iter().skip(1));
        !pairs.any(|(name, value)| name == "scope" && value == "link")
    });
    held.filter_map(|words| words.into_iter().nth(3)).collect()
}

pub(super) fn list_ipv6(interface: &str) -> Result<String, ChangeFailure> {
    let mut arguments = words("-o -6 address show dev");
    arguments.push(interface.to_owned());
    list_by_ip(&arguments)
}

/// Tells whether an address is among those that `ip -o -6 address show` lists.
pub(super) fn has_ipv6(listed: &str, address: IpAddr, prefix: u8) -> bool {
    listed.lines().filter_map(|line| line.split_once(" inet6 ")).any(|(_, rest)| {
        let own = rest.split_whitespace().next().and_then(|word| word.split_once('/'));
        own.is_some_and(|(own, bits)| own.parse() == Ok(address) && bits.parse() == Ok(prefix))
    })
}

#[cfg(test)]
pub(super) mod tests {
    use super::*;

    /// Listed by iproute2 6.1.
    pub(in crate::network::cabling) const ADDRESSES: &str = "\
3: eth1    inet 192.168.101.2/24 metric 77 brd 192.168.101.255 scope global dynamic eth1:x\\       valid_lft 3000sec preferred_lft 2000sec
3: eth1    inet 10.1.1.1 peer 10.1.1.2/32 scope global eth1\\       valid_lft forever preferred_lft forever
3: eth1    inet 10.9.9.9/24 scope global deprecated dynamic eth1\\       valid_lft 100sec preferred_lft 0sec
3: eth1    inet 192.168.101.3/24 scope global secondary noprefixroute eth1\\       valid_lft forever preferred_lft forever
";
    const MULTIPATH: &str = "unicast 172.19.0.0/16 table main proto boot scope global \
                             \\\tnexthop via 192.168.101.9 dev eth1 weight 2 linkdown \
                             \\\tnexthop via 10.9.9.1 dev eth2 weight 1 onlink ";

    fn parsed(now: u64) -> Vec<Address> {
        ADDRESSES.lines().map(|line| Address::parse(line, now).unwrap()).collect()
    }

    #[test]
    fn an_ipv6_address_is_found_among_those_that_are_there() {
        let listed = "3: eth1    inet6 fd00:0:0:1::2/64 scope global \\       valid_lft forever preferred_lft forever\n\
                      3: eth1    inet6 fe80::1/64 scope link \\       valid_lft forever preferred_lft forever\n";
        let has = |address: &str, prefix| has_ipv6(listed, address.parse().unwrap(), prefix);
        assert!(has("fe80::1", 64) && has("fd00:0:0:1::2", 64));
        assert!(
            !has("fe80::1", 10)
                && !has("fe80::2", 64)
                && !has_ipv6("", "::1".parse().unwrap(), 128)
        );
    }

    #[test]
    fn an_address_is_added_with_all_that_it_had() {
        let at = |now| {
            let lines = parsed(1000).into_iter();
            lines.map(|one| one.addition("eth1", now).join(" ")).collect::<Vec<_>>()
        };
        let wanted = [
            "address add 192.168.101.2/24 metric 77 brd 192.168.101.255 scope global label eth1:x \
             valid_lft 3000 preferred_lft 2000 dev eth1",
            "address add 10.1.1.1 peer 10.1.1.2/32 scope global label eth1 dev eth1",
            "address add 10.9.9.9/24 scope global label eth1 valid_lft 100 preferred_lft 0 dev eth1",
            "address add 192.168.101.3/24 scope global noprefixroute label eth1 dev eth1",
        ];
        assert_eq!(at(1000), wanted);
        assert!(at(1060)[0].contains(" valid_lft 2940 preferred_lft 1940 "), "they have run");
        assert_eq!(parsed(0), parsed(60), "whatever has run");
        assert_eq!(Address::parse("3: eth1    inet6 fe80::1/64 scope link", 0), None);
        assert_eq!(Address::parse("rubbish", 0), None);
    }

    #[test]
    fn an_address_is_deleted_by_its_name() {
        let lines: Vec<String> =
            parsed(0).iter().map(|one| one.deletion("eth1").join(" ")).collect();
        assert_eq!(lines[0], "address delete 192.168.101.2/24 dev eth1");
        assert_eq!(lines[1], "address delete 10.1.1.1 peer 10.1.1.2/32 dev eth1");
        let first = &parsed(0)[0];
        assert_eq!(first.without_prefix(), "192.168.101.2");
        assert!(first.has_address("192.168.101.2".parse().unwrap(), 24));
        assert!(!first.has_address("192.168.101.2".parse().unwrap(), 28));
    }

    /// The first address of a network is the primary one.
    #[test]
    fn what_follows_the_first_difference_is_appended_again() {
        let all = ["a", "b", "c"];
        assert_eq!(difference(&all, &all), (&[][..], &[][..]));
        assert_eq!(difference(&all, &["b", "c"]), (&["b", "c"][..], &all[..]));
        assert_eq!(difference(&all, &["a", "new"]), (&["new"][..], &["b", "c"][..]));
        assert_eq!(difference(&[], &["new"]), (&["new"][..], &[][..]));
    }

    #[test]
    fn routes_are_written_as_they_are_added() {
        let wanted = "unicast 172.19.0.0/16 table main proto boot scope global nexthop via 192.168.101.9 dev eth1 \
                      weight 2 nexthop via 10.9.9.1 dev eth2 weight 1 onlink";
        assert_eq!(appendable_route(MULTIPATH), wanted);
        for (listed, wanted) in [
            (
                "unicast 10.8.0.0/16 dev v0 proto boot rto_min lock 200ms",
                "unicast 10.8.0.0/16 dev v0 proto boot rto_min 200ms",
            ),
            (
                "unicast 10.8.0.0/16 dev v0 mtu lock 1400",
                "unicast 10.8.0.0/16 dev v0 mtu lock 1400",
            ),
            (
                "unicast 10.8.0.0/16 nhid 5 via 10.1.0.9 dev v0 proto bgp src 10.1.0.1",
                "unicast 10.8.0.0/16 nhid 5 proto bgp src 10.1.0.1",
            ),
        ] {
            assert_eq!(appendable_route(listed), wanted);
        }
    }

    #[test]
    fn routes_that_may_go_are_recorded() {
        let lines = [
            "unicast 10.0.0.0/24 dev eth0 table main proto kernel scope link src 10.0.0.7",
            "unicast 172.16.0.0/16 via 10.0.0.1 dev eth0 table main proto static scope global src 192.168.101.2",
            "unicast 172.17.0.0/16 dev eth2 table 77 proto boot scope link",
            "unicast 172.17.0.0/16 dev eth1 table 77 proto boot scope link",
            "unicast 172.17.0.0/16 dev eth2 table 77 proto boot scope link metric 9",
            MULTIPATH,
        ];
        let all: Vec<String> = lines.iter().map(|line| appendable_route(line)).collect();
        let tied = tied_routes(&all, &BTreeSet::from(["eth1"]), &BTreeSet::from(["192.168.101.2"]));
        assert_eq!(tied, [&all[1], &all[2], &all[3], &all[5]]);
    }

    #[test]
    fn routes_come_back_in_their_order_and_gateways_last() {
        let line = |one: &str| format!("unicast {one} table main");
        let [far, first, second] =
            ["10.7.0.0/16 via 10.1.0.9 dev eth1", "10.1.0.0/24 dev eth1", "10.1.0.0/24 dev eth2"]
                .map(line);
        let wanted = [far.as_str(), first.as_str(), second.as_str()];
        let repairs = |present: &[&String]| {
            let present: Vec<String> = present.iter().copied().cloned().collect();
            let repairs = route_repairs(&wanted, &present).into_iter();
            repairs.map(|line| line.join(" ")).collect::<Vec<_>>()
        };
        let append = |route: &str| format!("route append {route}");
        let delete = format!("route delete {second}");
        assert_eq!(repairs(&[&far, &first, &second]), [""; 0]);
        assert_eq!(repairs(&[&first, &second]), [append(&far)]);
        assert_eq!(repairs(&[&second]), [delete, append(&first), append(&second), append(&far)]);
        let strange = line("10.1.0.0/24 dev eth3");
        assert_eq!(repairs(&[&strange, &first, &second, &far]), [""; 0], "of somebody else");
    }

    /// Listed by iproute2 6.1.
    #[test]
    fn neighbours_are_written_as_they_are_replaced() {
        let neighbours = [
            "10.0.0.9 dev eth1 lladdr 00:11:22:33:44:55 PERMANENT ",
            "fe80::9 dev eth1 lladdr 00:11:22:33:44:55 router offload PERMANENT proto static ",
        ];
        let wanted = [
            "10.0.0.9 dev eth1 lladdr 00:11:22:33:44:55 nud permanent",
            "fe80::9 dev eth1 lladdr 00:11:22:33:44:55 router proto static nud permanent",
        ];
        assert_eq!(neighbours.map(replaceable_neighbour), wanted);
        let proxy = replaceable_proxy("fd00::77 dev eth1 proxy proto static ");
        assert_eq!(proxy, "proxy fd00::77 dev eth1 proto static");
    }
}
