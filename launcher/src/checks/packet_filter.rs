//! Whether a packet filter lets packets pass, by the rules that were read.

use rlaunch_bootstrap::inventory::diagnostics::{FilterProtocol, Firewall, FirewallRule};

/// Packets to ask about.
#[derive(Clone, Copy, Debug)]
pub(super) struct Packets<'a> {
    pub(super) protocol: FilterProtocol,
    /// First and last destination port.
    pub(super) ports: (u16, u16),
    /// Whether they arrive at the host; otherwise they leave it.
    pub(super) arrive: bool,
    /// Interface through which they pass; `None` if it is unknown.
    pub(super) interface: Option<&'a str>,
}

/// Answer of a filter about packets that begin a connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Verdict<'a> {
    /// It lets them all pass.
    Passes,
    /// It drops or rejects at least half of the ports: by this rule, or by default if there is none.
    Drops(Option<&'a FirewallRule>),
    /// It drops a few of the ports, or the rules have conditions that were not understood.
    Unknown,
}

/// Follows the rules of a filter in order and says what becomes of the packets. The rules of all
/// chains count as one list.
pub(super) fn verdict<'a>(filter: &'a Firewall, packets: Packets<'_>) -> Verdict<'a> {
    let mut open = vec![packets.ports];
    let (mut may_accept, mut may_drop) = (false, false);
    let (mut dropped, mut by) = (0, None);
    for rule in filter.rules.iter().filter(|rule| concerns(rule, packets)) {
        let is_sure =
            !rule.has_other_conditions && (rule.interface.is_none() || packets.interface.is_some());
        let (rest, matched) = without(&open, &rule.ports);
        match (rule.accepts, is_sure) {
            _ if matched == 0 => {}
            (true, false) => may_accept = true,
            (false, false) => may_drop = true,
            (true, true) => open = rest,
            (false, true) => {
                (open, dropped) = (rest, dropped + matched);
                by = by.or(Some(rule));
            }
        }
    }
    let left: u32 = open.iter().copied().map(count).sum();
    if packets.arrive && filter.drops_by_default {
        dropped += left;
    }
    match dropped {
        0 if may_drop => Verdict::Unknown,
        0 => Verdict::Passes,
        _ if may_accept || dropped * 2 < count(packets.ports) => Verdict::Unknown,
        _ => Verdict::Drops(by),
    }
}

/// Tells whether a rule may match packets that begin a connection.
fn concerns(rule: &FirewallRule, packets: Packets<'_>) -> bool {
    let protocol = rule.protocol.is_none_or(|protocol| protocol == packets.protocol);
    let interface = match (rule.interface.as_deref(), packets.interface) {
        (Some("lo"), None) => false,
        (None, _) | (Some(_), None) => true,
        (Some(pattern), Some(name)) => matches_interface(pattern, name),
    };
    rule.is_input == packets.arrive && protocol && interface && !is_about_known_connections(rule)
}

/// Tells whether a name matches a pattern, which may end in `*` (nft) or `+` (iptables).
fn matches_interface(pattern: &str, name: &str) -> bool {
    let pattern = pattern.trim_matches('"');
    match pattern.strip_suffix(['*', '+']) {
        Some(prefix) => name.starts_with(prefix),
        None => pattern == name,
    }
}

/// Tells whether a rule matches only packets of connections that exist, or invalid ones.
fn is_about_known_connections(rule: &FirewallRule) -> bool {
    let text = rule.text.to_ascii_lowercase();
    let mut words = text.split(|c: char| !c.is_ascii_alphanumeric());
    let has = |wanted: &[&str]| words.clone().any(|word| wanted.contains(&word));
    let has_state = has(&["ct", "state", "ctstate"]);
    let is_new = words.any(|word| word == "new" || word == "untracked");
    rule.has_other_conditions && has_state && !is_new
}

/// Removes `ranges` from the open ports. Returns what is left, and the number of ports removed. No
/// ranges mean all ports.
fn without(open: &[(u16, u16)], ranges: &[(u16, u16)]) -> (Vec<(u16, u16)>, u32) {
    let before: u32 = open.iter().copied().map(count).sum();
    if ranges.is_empty() {
        return (Vec::new(), before);
    }
    let mut left = open.to_vec();
    for &(first, last) in ranges {
        let cut = |(from, to): (u16, u16)| {
            let below = (from < first).then(|| (from, to.min(first.saturating_sub(1))));
            let above = (to > last).then(|| (from.max(last.saturating_add(1)), to));
            below.into_iter().chain(above)
        };
        left = left.into_iter().flat_map(cut).collect();
    }
    let after: u32 = left.iter().copied().map(count).sum();
    (left, before - after)
}

fn count((first, last): (u16, u16)) -> u32 {
    u32::from(last.saturating_sub(first)) + 1
}

#[cfg(test)]
mod tests {
    use super::*;

    fn rule(text: &str, accepts: bool, ports: &[(u16, u16)]) -> FirewallRule {
        FirewallRule {
            text: text.into(),
            is_input: true,
            accepts,
            ports: ports.to_vec(),
            protocol: text.contains("udp").then_some(FilterProtocol::Udp),
            has_other_conditions: text.contains('?') || text.contains("ct state"),
            interface: text.split_once("iif ").map(|(_, name)| name.to_owned()),
            ..FirewallRule::default()
        }
    }

    fn answer(drops_by_default: bool, rules: Vec<FirewallRule>) -> &'static str {
        let filter = Firewall { drops_by_default, rules, ..Firewall::default() };
        let packets = Packets {
            protocol: FilterProtocol::Udp,
            ports: (4700, 4799),
            arrive: true,
            interface: Some("eth1"),
        };
        match verdict(&filter, packets) {
            Verdict::Passes => "passes",
            Verdict::Drops(None) => "drops",
            Verdict::Drops(Some(_)) => "drops by a rule",
            Verdict::Unknown => "unknown",
        }
    }

    #[test]
    fn the_first_rule_that_matches_decides() {
        let all = &[(4700, 4799)];
        assert_eq!(answer(false, vec![]), "passes");
        assert_eq!(answer(true, vec![]), "drops");
        assert_eq!(answer(false, vec![rule("udp drop", false, all)]), "drops by a rule");
        let accepted = vec![rule("udp accept", true, all), rule("drop", false, &[])];
        assert_eq!(answer(true, accepted.clone()), "passes");
        assert_eq!(answer(true, accepted.into_iter().rev().collect()), "drops by a rule");
        assert_eq!(answer(true, vec![rule("iif eth+", true, &[])]), "passes");
        assert_eq!(answer(true, vec![rule("iif eth2", true, &[])]), "drops");
    }

    #[test]
    fn ports_are_counted() {
        let halves = vec![rule("a", true, &[(0, 4749)]), rule("b", true, &[(4750, 65535)])];
        assert_eq!(answer(true, halves), "passes");
        assert_eq!(answer(true, vec![rule("a", true, &[(4710, 4720)])]), "drops");
        assert_eq!(answer(false, vec![rule("a", false, &[(4710, 4720)])]), "unknown");
        assert_eq!(answer(false, vec![rule("a", false, &[(1, 2)])]), "passes");
    }

    #[test]
    fn conditions_that_are_not_understood_give_no_answer() {
        assert_eq!(answer(true, vec![rule("? accept", true, &[])]), "unknown");
        assert_eq!(answer(false, vec![rule("? drop", false, &[])]), "unknown");
        let known = rule("ct state established,related accept", true, &[]);
        assert_eq!(answer(true, vec![known]), "drops");
        let new = rule("ct state new accept", true, &[]);
        assert_eq!(answer(true, vec![new]), "unknown");
        let out = FirewallRule { is_input: false, ..rule("udp drop", false, &[]) };
        assert_eq!(answer(false, vec![out]), "passes");
    }
}
