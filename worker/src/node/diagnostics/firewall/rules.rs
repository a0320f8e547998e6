//! Chains of rules, and the rules that a packet meets, in order.

use rlaunch_bootstrap::inventory::diagnostics::{FilterProtocol, Firewall, FirewallRule};
use std::collections::BTreeMap;

/// Maximum number of rules that are reported.
const MAX_RULES: usize = 1000;
/// Maximum depth of jumps from chain to chain.
const MAX_DEPTH: usize = 12;
/// Maximum number of jumps that are followed.
const MAX_JUMPS: usize = 2000;
/// Maximum length of a rule's text, in bytes.
const MAX_TEXT: usize = 200;

/// Rules of one program, by their chains.
#[derive(Debug, Default)]
pub(super) struct Filter {
    /// Chains by their full names, as in `inet filter input`.
    pub(super) chains: BTreeMap<String, Vec<Rule>>,
    /// Chains that the kernel calls for packets that arrive or leave.
    pub(super) hooks: Vec<Hook>,
}

/// Chain that the kernel calls.
#[derive(Debug)]
pub(super) struct Hook {
    pub(super) chain: String,
    pub(super) is_input: bool,
    /// Order among the hooks that a packet meets: those with lower numbers are called first.
    pub(super) priority: i32,
    /// Whether packets are dropped that match no rule.
    pub(super) drops: bool,
}

#[derive(Debug)]
pub(super) struct Rule {
    pub(super) text: String,
    pub(super) handle: Option<u64>,
    pub(super) conditions: Conditions,
    pub(super) action: Action,
}

/// Conditions of a rule.
#[derive(Clone, Debug, Default)]
pub(super) struct Conditions {
    /// Protocols, of which a packet must have one; all if there are none.
    pub(super) protocols: Vec<FilterProtocol>,
    /// First and last port of ranges; all ports if there are none.
    pub(super) ports: Vec<(u16, u16)>,
    /// Interfaces through which a packet must arrive or leave; all if there are none.
    pub(super) interfaces: Vec<String>,
    /// Whether there are other conditions.
    pub(super) others: bool,
    /// Whether no IPv4 packet matches.
    pub(super) is_never: bool,
}

/// Effect of a rule on packets that match.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Action {
    Accept,
    Drop,
    /// It accepts or drops, by a map or by another program.
    Either,
    /// The rules of another chain follow, then those after this one.
    Jump(String),
    /// The rules of another chain follow instead of those after this one.
    Goto(String),
    Return,
    /// The next rule follows, as after a counter.
    None,
}

impl Conditions {
    fn is_always(&self) -> bool {
        let is_limited =
            !self.protocols.is_empty() || !self.ports.is_empty() || !self.interfaces.is_empty();
        !is_limited && !self.others
    }

    /// Returns the conditions of a rule in a chain that is entered under these conditions.
    fn and(&self, inner: &Conditions) -> Conditions {
        let mut both = inner.clone();
        both.others |= self.others;
        both.is_never |= self.is_never
            | narrow(&mut both.protocols, &self.protocols)
            | narrow(&mut both.interfaces, &self.interfaces);
        if both.ports.is_empty() {
            both.ports.clone_from(&self.ports);
        } else {
            both.others |= !self.ports.is_empty();
        }
        both
    }
}

/// Limits a list to the values of another, where an empty list has all values. Returns whether no
/// value is left.
fn narrow<T: Clone + PartialEq>(list: &mut Vec<T>, other: &[T]) -> bool {
    if list.is_empty() {
        list.extend_from_slice(other);
        return false;
    }
    if !other.is_empty() {
        list.retain(|value| other.contains(value));
    }
    list.is_empty()
}

impl Filter {
    pub(super) fn is_empty(&self) -> bool {
        self.hooks.is_empty()
    }
}

/// Adds the rules of filters to a firewall, in the order in which packets meet them.
pub(super) fn add(filters: &[Filter], firewall: &mut Firewall) {
    let mut hooks: Vec<(&Filter, &Hook)> =
        filters.iter().flat_map(|filter| filter.hooks.iter().map(move |h| (filter, h))).collect();
    hooks.sort_by_key(|(_, hook)| hook.priority);
    for (base, (filter, hook)) in (0..).zip(hooks) {
        let is_input = hook.is_input;
        let mut walk = Walk { filter, base, is_input, jumps: 0, rules: &mut firewall.rules };
        walk.follow(&hook.chain, &Conditions::default(), 0);
        if !hook.drops {
            continue;
        }
        if is_input && !firewall.drops_by_default {
            firewall.drops_by_default = true;
            firewall.chain.clone_from(&hook.chain);
            firewall.base = base;
        } else {
            let text = "policy drop".to_owned();
            let conditions = Conditions::default();
            let rule = Rule { text, handle: None, conditions, action: Action::Drop };
            walk.report(&hook.chain, &rule, &rule.conditions);
        }
    }
}

/// Way through the chains of one hook.
struct Walk<'a> {
    filter: &'a Filter,
    /// Number of the hook.
    base: u32,
    is_input: bool,
    jumps: usize,
    rules: &'a mut Vec<FirewallRule>,
}

impl Walk<'_> {
    /// Follows a chain that is entered under the given conditions. Returns whether it decides about
    /// every packet.
    fn follow(&mut self, name: &str, entered: &Conditions, depth: usize) -> bool {
        let filter = self.filter;
        let mut entered = entered.clone();
        // Whether some packets may leave the chain before its end.
        let mut leaks = false;
        for rule in filter.chains.get(name).into_iter().flatten() {
            let conditions = entered.and(&rule.conditions);
            if conditions.is_never || rule.action == Action::None {
                continue;
            }
            let is_always = rule.conditions.is_always();
            match &rule.action {
                Action::Jump(target) | Action::Goto(target) => {
                    let is_goto = matches!(rule.action, Action::Goto(_));
                    let is_known = filter.chains.contains_key(target);
                    self.jumps += 1;
                    let is_followed = is_known && depth < MAX_DEPTH && self.jumps < MAX_JUMPS;
                    let decides = is_followed && self.follow(target, &conditions, depth + 1);
                    if !is_followed {
                        self.report_either(name, rule, &conditions);
                    }
                    if is_always && (decides || is_goto) {
                        return decides && !leaks;
                    }
                    // Packets that the other chain leaves undecided do not reach the rest.
                    entered.others |= is_goto && !decides;
                    leaks |= is_goto && !decides;
                }
                Action::Return if is_always => return false,
                Action::Return => (entered.others, leaks) = (true, true),
                Action::Either => self.report_either(name, rule, &conditions),
                Action::Accept | Action::Drop => {
                    self.report(name, rule, &conditions);
                    if is_always {
                        return !leaks;
                    }
                }
                Action::None => {}
            }
        }
        false
    }

    /// Reports a rule that may accept and may drop.
    fn report_either(&mut self, chain: &str, rule: &Rule, conditions: &Conditions) {
        let conditions = Conditions { others: true, ..conditions.clone() };
        for action in [Action::Accept, Action::Drop] {
            let (text, handle) = (rule.text.clone(), rule.handle);
            let rule = Rule { text, handle, conditions: Conditions::default(), action };
            self.report(chain, &rule, &conditions);
        }
    }

    fn report(&mut self, chain: &str, rule: &Rule, conditions: &Conditions) {
        for protocol in each(&conditions.protocols) {
            for interface in each(&conditions.interfaces) {
                if self.rules.len() == MAX_RULES {
                    return;
                }
                self.rules.push(FirewallRule {
                    text: rule.text[..rule.text.floor_char_boundary(MAX_TEXT)].to_owned(),
                    chain: chain.to_owned(),
                    base: self.base,
                    handle: rule.handle,
                    is_input: self.is_input,
                    accepts: rule.action == Action::Accept,
                    protocol,
                    ports: conditions.ports.clone(),
                    interface,
                    has_other_conditions: conditions.others,
                });
            }
        }
    }
}

/// Lists the values, or `None` alone without any.
fn each<T: Clone>(values: &[T]) -> Vec<Option<T>> {
    if values.is_empty() { vec![None] } else { values.iter().cloned().map(Some).collect() }
}

/// Parses a protocol's name or number. Returns `None` for one of IPv6.
pub(super) fn protocol(name: &str) -> Option<FilterProtocol> {
    match name {
        "tcp" | "6" => Some(FilterProtocol::Tcp),
        "udp" | "17" => Some(FilterProtocol::Udp),
        "icmp" | "1" => Some(FilterProtocol::Icmp),
        "icmpv6" | "ipv6-icmp" | "58" => None,
        _ => Some(FilterProtocol::Other),
    }
}

/// Parses a port or a range of ports.
pub(super) fn port_range(text: &str, between: char) -> Option<(u16, u16)> {
    match text.split_once(between) {
        Some((first, last)) => Some((first.trim().parse().ok()?, last.trim().parse().ok()?)),
        None => text.trim().parse().ok().map(|port| (port, port)),
    }
}
