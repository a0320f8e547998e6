//! What becomes of packets by the rules of a packet filter, in their order.

use rlaunch_bootstrap::inventory::diagnostics::{FilterProtocol, Firewall, FirewallRule};
use std::collections::BTreeSet;

/// First and last ports of ranges.
type Ranges = Vec<(u16, u16)>;

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

/// Follows the rules of a filter in order and says what becomes of the packets. They have to be
/// accepted in each base chain that they meet; one that drops them is final.
pub(super) fn verdict<'a>(filter: &'a Firewall, packets: Packets<'_>) -> Verdict<'a> {
    let rules = || filter.rules.iter().filter(move |rule| may_match(rule, packets));
    let default = (packets.arrive && filter.drops_by_default).then_some(filter.base);
    let chains: BTreeSet<u32> = rules().map(|rule| rule.base).chain(default).collect();
    let mut open = vec![packets.ports];
    let (mut is_sure, mut drops) = (true, Vec::new());
    for base in chains {
        let of_chain = rules().filter(|rule| rule.base == base);
        match follow_chain(of_chain, default == Some(base), packets, &open) {
            Some(fate) => {
                open = fate.passing;
                drops.extend(fate.drops);
            }
            None => is_sure = false,
        }
    }
    let dropped: u32 = drops.iter().map(|(count, _)| count).sum();
    // The first of equal ones counts.
    let most = drops.iter().rev().max_by_key(|(count, _)| *count);
    match most {
        Some((_, by)) if dropped * 2 >= port_count(packets.ports) => Verdict::Drops(*by),
        None if is_sure => Verdict::Passes,
        _ => Verdict::Unknown,
    }
}

/// Effect of one base chain on packets.
struct Fate<'a> {
    /// Ports that it accepts.
    passing: Ranges,
    /// Numbers of ports that it drops, each by a rule, or by default.
    drops: Vec<(u32, Option<&'a FirewallRule>)>,
}

/// Follows the rules of one base chain for packets to open ports. Returns `None` if their
/// conditions decide.
fn follow_chain<'a>(
    rules: impl Iterator<Item = &'a FirewallRule>,
    drops_by_default: bool,
    packets: Packets<'_>,
    open: &[(u16, u16)],
) -> Option<Fate<'a>> {
    let mut open = open.to_vec();
    let (mut may_accept, mut may_drop) = (false, false);
    let mut fate = Fate { passing: Vec::new(), drops: Vec::new() };
    for rule in rules {
        let is_sure =
            !rule.has_other_conditions && (rule.interface.is_none() || packets.interface.is_some());
        let (rest, matched) = split_by_ranges(&open, &rule.ports);
        if matched.is_empty() {
            continue;
        }
        if !is_sure {
            may_accept |= rule.accepts;
            may_drop |= !rule.accepts;
            continue;
        }
        open = rest;
        if rule.accepts {
            fate.passing.extend(matched);
        } else {
            fate.drops.push((total_port_count(&matched), Some(rule)));
        }
    }
    if drops_by_default && !open.is_empty() {
        fate.drops.push((total_port_count(&open), None));
    } else {
        fate.passing.append(&mut open);
    }
    // A rule that may match matters only if it would turn the answer around.
    let is_unsure = if fate.drops.is_empty() { may_drop } else { may_accept };
    (!is_unsure).then_some(fate)
}

/// Tells whether a rule may match packets that begin a connection.
fn may_match(rule: &FirewallRule, packets: Packets<'_>) -> bool {
    let protocol = rule.protocol.is_none_or(|protocol| protocol == packets.protocol);
    let interface = match (rule.interface.as_deref(), packets.interface) {
        // No packet of another host comes through the loopback interface.
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

/// Splits open ports into those outside of `ranges` and those inside. No ranges mean all ports.
fn split_by_ranges(open: &[(u16, u16)], ranges: &[(u16, u16)]) -> (Ranges, Ranges) {
    if ranges.is_empty() {
        return (Vec::new(), open.to_vec());
    }
    let rest = without(open, ranges);
    let matched = without(open, &rest);
    (rest, matched)
}

/// Removes ranges of ports from others.
fn without(ports: &[(u16, u16)], ranges: &[(u16, u16)]) -> Ranges {
    let mut left = ports.to_vec();
    for &(first, last) in ranges {
        let cut = |(from, to): (u16, u16)| {
            let below = (from < first).then(|| (from, to.min(first.saturating_sub(1))));
            let above = (to > last).then(|| (from.max(last.saturating_add(1)), to));
            below.into_iter().chain(above)
        };
        left = left.into_iter().flat_map(cut).collect();
    }
    left
}

fn total_port_count(ports: &[(u16, u16)]) -> u32 {
    ports.iter().copied().map(port_count).sum()
}

fn port_count((first, last): (u16, u16)) -> u32 {
    u32::from(last.saturating_sub(first)) + 1
}

#[cfg(test)]
mod tests {
    use super::*;

    fn filter_rule(text: &str, accepts: bool, ports: &[(u16, u16)]) -> FirewallRule {
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
        assert_eq!(answer(false, vec![filter_rule("udp drop", false, all)]), "drops by a rule");
        let accepted = vec![filter_rule("udp accept", true, all), filter_rule("drop", false, &[])];
        assert_eq!(answer(true, accepted.clone()), "passes");
        assert_eq!(answer(true, accepted.into_iter().rev().collect()), "drops by a rule");
        assert_eq!(answer(true, vec![filter_rule("iif eth+", true, &[])]), "passes");
        assert_eq!(answer(true, vec![filter_rule("iif eth2", true, &[])]), "drops");
    }

    #[test]
    fn ports_are_counted() {
        let halves =
            vec![filter_rule("a", true, &[(0, 4749)]), filter_rule("b", true, &[(4750, 65535)])];
        assert_eq!(answer(true, halves), "passes");
        assert_eq!(answer(true, vec![filter_rule("a", true, &[(4710, 4720)])]), "drops");
        assert_eq!(answer(false, vec![filter_rule("a", false, &[(4710, 4720)])]), "unknown");
        assert_eq!(answer(false, vec![filter_rule("a", false, &[(1, 2)])]), "passes");
    }

    #[test]
    fn conditions_that_are_not_understood_give_no_answer() {
        assert_eq!(answer(true, vec![filter_rule("? accept", true, &[])]), "unknown");
        assert_eq!(answer(false, vec![filter_rule("? drop", false, &[])]), "unknown");
        let known = filter_rule("ct state established,related accept", true, &[]);
        assert_eq!(answer(true, vec![known]), "drops");
        let new = filter_rule("ct state new accept", true, &[]);
        assert_eq!(answer(true, vec![new]), "unknown");
        let out = FirewallRule { is_input: false, ..filter_rule("udp drop", false, &[]) };
        assert_eq!(answer(false, vec![out]), "passes");
    }

    #[test]
    fn every_base_chain_has_to_accept() {
        let in_chain = |base, rule| FirewallRule { base, ..rule };
        let all = |accepts| filter_rule("rule", accepts, &[]);
        let drop = || in_chain(1, all(false));
        assert_eq!(answer(false, vec![all(true), drop()]), "drops by a rule");
        assert_eq!(
            answer(false, vec![filter_rule("? accept", true, &[]), drop()]),
            "drops by a rule"
        );
        assert_eq!(answer(true, vec![all(true), in_chain(1, all(true))]), "passes");
        assert_eq!(answer(true, vec![in_chain(1, all(true))]), "drops");
        let last = Firewall {
            drops_by_default: true,
            base: 1,
            rules: vec![all(true)],
            ..Firewall::default()
        };
        let packets =
            Packets { protocol: FilterProtocol::Tcp, ports: (1, 9), arrive: true, interface: None };
        assert_eq!(verdict(&last, packets), Verdict::Drops(None));
        // Each of two chains drops a half.
        let halves =
            [filter_rule("a", false, &[(0, 4749)]), filter_rule("b", false, &[(4750, 65535)])];
        let [one, other] = halves;
        assert_eq!(answer(false, vec![one, in_chain(1, other)]), "drops by a rule");
    }

    /// Deleting the rule that is named has to help.
    #[test]
    fn the_rule_that_drops_most_is_named() {
        let few = filter_rule("a", false, &[(4710, 4720)]);
        assert_eq!(answer(true, vec![few]), "drops");
    }
}
