//! Rules of the packet filter for IPv4 packets that arrive at this host or leave it.
//!
//! Root may read them, by the programs `nft` and `iptables-save`. These are run only if the kernel
//! has the parts that they ask for, since they would load them otherwise. Their output is cut to those
//! chains that are reached from the hooks `input` and `output`.
//!
//! | file | contents |
//! |---|---|
//! | `nft.rs` | output of `nft`; that of `iptables-save` is read here |
//! | `mod.rs` | rules of chains, in the order in which a packet meets them |
//!
//! Output of `iptables-save -t filter`, which is read here:
//!
//! ```text
//! *filter
//! :INPUT DROP [0:0]
//! -A INPUT -i lo -j ACCEPT
//! -A INPUT -p tcp -m multiport --dports 22,80:90 -j ACCEPT
//! COMMIT
//! ```

mod nft;

use super::{modules, program};
use crate::node::inventory::Root;
use nix::unistd::Uid;
use rlaunch_bootstrap::inventory::diagnostics::{FilterProtocol, Firewall, FirewallRule};
use std::collections::BTreeMap;
use std::ffi::OsStr;
use std::path::{Path, PathBuf};

/// Recorded file with the output of the programs, each after a line with its name.
const RECORDED: &str = "/firewall";
const NFT: &str = "# nft";
const IPTABLES: &str = "# iptables";
/// Line before each table in the output of `iptables-save`.
const IPTABLES_TABLE: &str = "*filter\n";
/// Names of tables of the older kernel interface, which nft does not show.
const LEGACY_TABLES: &str = "/proc/net/ip_tables_names";

/// Reads the rules. Returns `None` if this user may not, or a program fails.
pub(super) fn read(root: &Root) -> Option<Firewall> {
    let ask = || Uid::effective().is_root().then(|| run_programs(root)).flatten();
    Some(parse(&root.asked_text(RECORDED, ask)?))
}

/// Runs the programs. Returns `None` if they fail, as in a container without the capability.
fn run_programs(root: &Root) -> Option<String> {
    let tables = root.text(LEGACY_TABLES).unwrap_or_default();
    let has_legacy = tables.lines().any(|name| name == "filter");
    let mut text = String::new();
    if modules::is_loaded(root, "nf_tables")? {
        match program::find("nft") {
            Some(nft) => {
                let printed = program::run(&nft, &["-s", "list", "ruleset"])?;
                text = format!("{NFT}\n{}", nft::keep_relevant(&printed));
                if nft::has_tables_of_iptables(&printed) {
                    append_iptables(&mut text, iptables_save(true));
                }
            }
            None => append_iptables(&mut text, Some(iptables_save(true)?)),
        }
    }
    if has_legacy {
        append_iptables(&mut text, Some(iptables_save(false)?));
    }
    Some(text)
}

/// Runs the program that prints rules of iptables: those that are kept in nft's tables, or those of
/// the older kernel interface. Either would load kernel modules for the other kind.
fn iptables_save(is_nft: bool) -> Option<String> {
    let own = if is_nft { "iptables-nft-save" } else { "iptables-legacy-save" };
    let is_of_kind = |program: &PathBuf| {
        let real = program.canonicalize().ok();
        let name = real.as_deref().and_then(Path::file_name).and_then(OsStr::to_str);
        name.is_some_and(|name| name.contains("nft") == is_nft)
    };
    let program = program::find(own);
    let program = program.or_else(|| program::find("iptables-save").filter(is_of_kind))?;
    program::run(&program, &["-t", "filter"])
}

fn append_iptables(text: &mut String, printed: Option<String>) {
    let Some(printed) = printed else { return };
    // Both kinds have the same form.
    let title = if text.contains(IPTABLES) { "" } else { IPTABLES };
    *text = format!("{text}\n{title}\n{printed}");
}

/// Parses the recorded output of the programs.
fn parse(text: &str) -> Firewall {
    let (nft, iptables) = match text.split_once(IPTABLES) {
        Some((nft, iptables)) => (nft, iptables.trim()),
        None => (text, ""),
    };
    // Tables of iptables are in nft's output too. They are taken from iptables-save, if it was run.
    let mut filters = vec![nft::parse(nft, iptables.is_empty())];
    // The program that a user has to ask for more: nft, unless it has shown nothing that iptables-save has not.
    let read_by = match (nft.contains(NFT), iptables.is_empty()) {
        (_, false) if filters[0].is_empty() => "iptables",
        (true, _) => "nft",
        (false, _) => "",
    };
    // Both kinds of iptables may have a table, and chains of the same names in it.
    filters.extend(iptables.split(IPTABLES_TABLE).map(parse_iptables));
    let mut firewall = Firewall { read_by: read_by.to_owned(), ..Firewall::default() };
    add_rules(&filters, &mut firewall);
    firewall
}

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
struct Filter {
    /// Chains by their full names, as in `inet filter input`.
    chains: BTreeMap<String, Vec<Rule>>,
    /// Chains that the kernel calls for packets that arrive or leave.
    hooks: Vec<Hook>,
}

/// Chain that the kernel calls.
#[derive(Debug)]
struct Hook {
    chain: String,
    is_input: bool,
    /// Order among the hooks that a packet meets: those with lower numbers are called first.
    priority: i32,
    /// Whether packets are dropped that match no rule.
    drops: bool,
}

#[derive(Debug)]
struct Rule {
    text: String,
    conditions: Conditions,
    action: Action,
}

/// Conditions of a rule.
#[derive(Clone, Debug, Default)]
struct Conditions {
    /// Protocols, of which a packet must have one; all if there are none.
    protocols: Vec<FilterProtocol>,
    /// First and last port of ranges; all ports if there are none.
    ports: Vec<(u16, u16)>,
    /// Interfaces through which a packet must arrive or leave; all if there are none.
    interfaces: Vec<String>,
    /// Whether there are other conditions.
    others: bool,
    /// Whether no IPv4 packet matches.
    is_never: bool,
}

/// Effect of a rule on packets that match.
#[derive(Clone, Debug, PartialEq, Eq)]
enum Action {
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
    fn is_empty(&self) -> bool {
        self.hooks.is_empty()
    }
}

/// Adds the rules of filters to a firewall, in the order in which packets meet them.
fn add_rules(filters: &[Filter], firewall: &mut Firewall) {
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
            let rule = Rule { text, conditions, action: Action::Drop };
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
            let text = rule.text.clone();
            let rule = Rule { text, conditions: Conditions::default(), action };
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
fn parse_protocol(name: &str) -> Option<FilterProtocol> {
    match name {
        "tcp" | "6" => Some(FilterProtocol::Tcp),
        "udp" | "17" => Some(FilterProtocol::Udp),
        "icmp" | "1" => Some(FilterProtocol::Icmp),
        "icmpv6" | "ipv6-icmp" | "58" => None,
        _ => Some(FilterProtocol::Other),
    }
}

/// Parses a port or a range of ports.
fn port_range(text: &str, between: char) -> Option<(u16, u16)> {
    match text.split_once(between) {
        Some((first, last)) => Some((first.trim().parse().ok()?, last.trim().parse().ok()?)),
        None => text.trim().parse().ok().map(|port| (port, port)),
    }
}

/// Targets after which the next rule follows.
const PASSING_TARGETS: &[&str] = &["LOG", "NFLOG", "ULOG", "MARK", "CONNMARK", "TRACE", "AUDIT"];

/// Parses the output, which has one table.
fn parse_iptables(text: &str) -> Filter {
    let mut filter = Filter::default();
    for line in text.lines().map(str::trim) {
        if let Some((chain, rest)) = line.strip_prefix(':').and_then(|line| line.split_once(' ')) {
            filter.chains.entry(chain.to_owned()).or_default();
            if let "INPUT" | "OUTPUT" = chain {
                filter.hooks.push(Hook {
                    chain: chain.to_owned(),
                    is_input: chain == "INPUT",
                    priority: 0,
                    drops: rest.starts_with("DROP"),
                });
            }
        } else if let Some(rest) = line.strip_prefix("-A ") {
            let words = split_words(rest);
            let Some((chain, words)) = words.split_first() else { continue };
            let rules = filter.chains.entry((*chain).to_owned()).or_default();
            rules.push(parse_rule(line, words));
        }
    }
    filter
}

/// Splits a rule into words. A text in quotes is one word.
fn split_words(text: &str) -> Vec<&str> {
    let mut words = Vec::new();
    let mut rest = text.trim_start();
    while !rest.is_empty() {
        let (word, after) = match rest.strip_prefix('"') {
            Some(quoted) => quoted.split_once('"').unwrap_or((quoted, "")),
            None => rest.split_once(' ').unwrap_or((rest, "")),
        };
        words.push(word);
        rest = after.trim_start();
    }
    words
}

/// Parses a rule that was split into words.
fn parse_rule(text: &str, words: &[&str]) -> Rule {
    let mut conditions = Conditions::default();
    let mut action = Action::None;
    let mut is_negated = false;
    let mut words = words.iter().copied();
    while let Some(word) = words.next() {
        let mut value = || words.next().unwrap_or_default();
        let is_understood = match word {
            "!" => {
                is_negated = true;
                continue;
            }
            "-i" | "-o" => {
                conditions.interfaces = vec![value().to_owned()];
                true
            }
            "-p" => {
                conditions.protocols = parse_protocol(value()).into_iter().collect();
                conditions.is_never |= conditions.protocols.is_empty() && !is_negated;
                true
            }
            // Options follow that say what else must hold.
            "-m" => !is_bare_condition(value()),
            "--dport" | "--dports" => {
                let ranges: Option<Vec<_>> =
                    value().split(',').map(|range| port_range(range, ':')).collect();
                conditions.ports = ranges.clone().unwrap_or_default();
                ranges.is_some()
            }
            // Every packet that begins a connection is new and has these flags.
            "--ctstate" | "--state" => value().split(',').any(|state| state == "NEW"),
            "--tcp-flags" => (value(), value()) == ("FIN,SYN,RST,ACK", "SYN"),
            "--comment" | "--reject-with" | "--log-prefix" | "--log-level" => {
                value();
                true
            }
            "-j" | "-g" => {
                action = parse_target(word, value());
                true
            }
            _ => false,
        };
        if is_negated {
            // A negated condition would otherwise be taken for its opposite. Without it the rule concerns more packets,
            // of which `others` says that not all match.
            match word {
                "-i" | "-o" => conditions.interfaces.clear(),
                "-p" => conditions.protocols.clear(),
                _ => conditions.ports.clear(),
            }
        }
        conditions.others |= is_negated || !is_understood;
        is_negated = false;
    }
    Rule { text: text.to_owned(), conditions, action }
}

/// Tells whether a module is a condition even without options.
fn is_bare_condition(module: &str) -> bool {
    matches!(module, "limit" | "socket" | "rpfilter" | "recent")
}

/// Parses the chain or verdict to which `option`, `-j` or `-g`, leads.
fn parse_target(option: &str, name: &str) -> Action {
    match (option, name) {
        ("-g", chain) => Action::Goto(chain.to_owned()),
        (_, "ACCEPT") => Action::Accept,
        (_, "DROP" | "REJECT" | "TARPIT") => Action::Drop,
        (_, "RETURN") => Action::Return,
        (_, "NFQUEUE" | "QUEUE") => Action::Either,
        (_, target) if PASSING_TARGETS.contains(&target) => Action::None,
        (_, chain) => Action::Jump(chain.to_owned()),
    }
}

#[cfg(test)]
mod tests;
