//! Output of `nft -s list ruleset`.
//!
//! ```text
//! table inet filter { # handle 3
//!     chain input { # handle 1
//!         type filter hook input priority filter; policy drop;
//!         iifname "lo" accept # handle 4
//!         tcp dport { 22, 80-90 } accept # handle 5
//!     }
//! }
//! ```

use super::{Action, Conditions, Filter, Hook, Rule, parse_protocol, port_range};
use rlaunch_bootstrap::inventory::diagnostics::FilterProtocol;
use std::fmt::Write;
use std::iter::Peekable;
use std::vec::IntoIter;

/// Families of tables that see IPv4 packets.
const FAMILIES: [&str; 2] = ["inet", "ip"];

/// Chain as it is printed.
struct PrintedChain<'a> {
    table: &'a str,
    name: &'a str,
    lines: Vec<&'a str>,
}

/// Finds the chains of tables that see IPv4 packets.
fn parse_chains(text: &str) -> Vec<PrintedChain<'_>> {
    let mut table = None;
    let mut chains: Vec<PrintedChain<'_>> = Vec::new();
    let mut is_inside = false;
    for line in text.lines().filter(|line| !line.is_empty()) {
        let depth = line.len() - line.trim_start_matches('\t').len();
        let content = line.trim();
        match depth {
            0 => {
                let name = content.strip_prefix("table ").and_then(|rest| rest.split_once(" {"));
                let is_seen =
                    |name: &&str| FAMILIES.iter().any(|f| name.starts_with(&format!("{f} ")));
                (table, is_inside) = (name.map(|(name, _)| name).filter(is_seen), false);
            }
            1 => {
                let name = content.strip_prefix("chain ").and_then(|rest| rest.split_once(" {"));
                is_inside = false;
                if let (Some(table), Some((name, _))) = (table, name) {
                    chains.push(PrintedChain { table, name, lines: Vec::new() });
                    is_inside = true;
                }
            }
            _ if is_inside => {
                if let Some(chain) = chains.last_mut() {
                    chain.lines.push(content);
                }
            }
            // Sets, maps, and tables of other families.
            _ => {}
        }
    }
    chains
}

/// Returns the hook at which the kernel calls a chain for packets that arrive at this host or leave it. `None` for
/// other chains.
fn parse_hook(chain: &PrintedChain<'_>) -> Option<Hook> {
    let is_of = |hook: &str| {
        chain.lines.iter().find(|line| line.starts_with("type filter") && line.contains(hook))
    };
    let (is_input, line) = match is_of(" hook input ") {
        Some(line) => (true, line),
        None => (false, is_of(" hook output ")?),
    };
    let full = format!("{} {}", chain.table, chain.name);
    let drops = line.contains("policy drop");
    Some(Hook { chain: full, is_input, priority: parse_priority(line), drops })
}

/// Parses the priority of a chain, as in `priority filter + 10;`.
fn parse_priority(line: &str) -> i32 {
    let text = line.split_once(" priority ").map_or("", |(_, rest)| rest);
    let mut words = text.split(';').next().unwrap_or_default().split(' ');
    let base: i32 = match words.next().unwrap_or_default() {
        "raw" => -300,
        "mangle" => -150,
        "dstnat" => -100,
        "security" => 50,
        "srcnat" => 100,
        // That of `filter` is 0.
        word => word.parse().unwrap_or(0),
    };
    let offset: i32 = match (words.next(), words.next().and_then(|word| word.parse::<i32>().ok())) {
        (Some("+"), Some(more)) => more,
        (Some("-"), Some(less)) => less.saturating_neg(),
        _ => 0,
    };
    base.saturating_add(offset)
}

/// Returns the chains to which a rule may jump, by itself or by a map.
fn targets(line: &str) -> impl Iterator<Item = &str> {
    let words = line.split([' ', ',']);
    let after = words.clone().skip(1);
    words.zip(after).filter(|(word, _)| matches!(*word, "jump" | "goto")).map(|(_, name)| name)
}

/// Shortens the output to the chains that packets at this host meet.
pub(super) fn keep_relevant(text: &str) -> String {
    let chains = parse_chains(text);
    let mut wanted: Vec<(&str, &str)> = Vec::new();
    let hooks = chains.iter().filter(|chain| parse_hook(chain).is_some());
    let mut left: Vec<&PrintedChain<'_>> = hooks.collect();
    while let Some(chain) = left.pop() {
        if wanted.contains(&(chain.table, chain.name)) {
            continue;
        }
        wanted.push((chain.table, chain.name));
        let targets: Vec<&str> = chain.lines.iter().flat_map(|line| targets(line)).collect();
        left.extend(chains.iter().filter(|c| c.table == chain.table && targets.contains(&c.name)));
    }
    let mut short = String::new();
    for chain in chains.iter().filter(|chain| wanted.contains(&(chain.table, chain.name))) {
        let lines: String = chain.lines.iter().map(|line| format!("\t\t{line}\n")).collect();
        // Writing to a string does not fail.
        let _ =
            write!(short, "table {} {{\n\tchain {} {{\n{lines}\t}}\n}}\n", chain.table, chain.name);
    }
    short
}

/// Tells whether tables are those of `iptables`, which `iptables-save` prints better.
pub(super) fn has_tables_of_iptables(text: &str) -> bool {
    parse_chains(text).iter().any(is_of_iptables)
}

fn is_of_iptables(chain: &PrintedChain<'_>) -> bool {
    chain.table == "ip filter" && matches!(chain.name, "INPUT" | "OUTPUT" | "FORWARD")
}

/// Parses the output. Tables of iptables are left out unless they are wanted.
pub(super) fn parse(text: &str, with_iptables: bool) -> Filter {
    let chains = parse_chains(text);
    let has_iptables = chains.iter().any(is_of_iptables);
    let is_left_out =
        |c: &PrintedChain<'_>| !with_iptables && has_iptables && c.table == "ip filter";
    let mut filter = Filter::default();
    for chain in chains.iter().filter(|chain| !is_left_out(chain)) {
        let hook = parse_hook(chain);
        let is_input = hook.as_ref().is_none_or(|hook| hook.is_input);
        let rules = chain.lines.iter().filter_map(|line| parse_rule(line, chain.table, is_input));
        filter.chains.entry(format!("{} {}", chain.table, chain.name)).or_default().extend(rules);
        filter.hooks.extend(hook);
    }
    filter
}

/// Part of a rule.
#[derive(Debug)]
enum Part<'a> {
    Bare(&'a str),
    /// Text that was in quotes.
    Text(&'a str),
    /// Values between braces.
    Set(Vec<&'a str>),
}

fn split_parts(text: &str) -> Vec<Part<'_>> {
    let mut parts = Vec::new();
    let mut rest = text.trim_start();
    while let Some(first) = rest.chars().next() {
        let (part, after) = match first {
            '"' => {
                let (text, after) = rest[1..].split_once('"').unwrap_or((&rest[1..], ""));
                (Part::Text(text), after)
            }
            '{' => {
                let (values, after) = rest[1..].split_once('}').unwrap_or((&rest[1..], ""));
                let values = values.split(',').map(|value| value.trim().trim_matches('"'));
                (Part::Set(values.collect()), after)
            }
            _ => {
                let (word, after) = rest.split_once(' ').unwrap_or((rest, ""));
                (Part::Bare(word), after)
            }
        };
        parts.push(part);
        rest = after.trim_start();
    }
    parts
}

/// Parses a rule. Returns `None` for other lines of a chain.
fn parse_rule(line: &str, table: &str, is_input: bool) -> Option<Rule> {
    if line.starts_with("type ") || line.starts_with('#') {
        return None;
    }
    // Recordings may have been made with -a.
    let text = line.rsplit_once(" # handle ").map_or(line, |(text, _)| text);
    let mut reader = RuleReader {
        parts: split_parts(text).into_iter().peekable(),
        conditions: Conditions::default(),
        table,
        is_input,
    };
    let action = reader.read();
    Some(Rule { text: text.to_owned(), conditions: reader.conditions, action })
}

/// Reader of one rule.
struct RuleReader<'a> {
    parts: Peekable<IntoIter<Part<'a>>>,
    conditions: Conditions,
    table: &'a str,
    is_input: bool,
}

impl<'a> RuleReader<'a> {
    /// Reads conditions up to the action, and returns it.
    fn read(&mut self) -> Action {
        while let Some(part) = self.parts.next() {
            let Part::Bare(word) = part else {
                self.conditions.others = true;
                continue;
            };
            match word {
                "accept" => return Action::Accept,
                "drop" | "reject" => return Action::Drop,
                "return" => return Action::Return,
                "queue" => return Action::Either,
                "jump" => return self.read_target().map_or(Action::Either, Action::Jump),
                "goto" => return self.read_target().map_or(Action::Either, Action::Goto),
                "vmap" => {
                    self.parts.next();
                    return Action::Either;
                }
                _ => self.read_condition(word),
            }
        }
        Action::None
    }

    /// Reads a condition that begins with a word. What is not understood counts as another condition.
    fn read_condition(&mut self, word: &str) {
        match word {
            "meta" | "counter" | "continue" => {}
            "packets" | "bytes" | "comment" => {
                self.parts.next();
            }
            "log" => self.skip_log(),
            "iif" | "iifname" => self.read_interface(self.is_input),
            "oif" | "oifname" => self.read_interface(!self.is_input),
            "l4proto" => self.read_protocols(),
            "nfproto" => match self.read_values().as_deref() {
                Some(["ipv4"]) => {}
                Some(["ipv6"]) => self.conditions.is_never = true,
                _ => self.conditions.others = true,
            },
            "ip" => match self.next_word() {
                Some("protocol") => self.read_protocols(),
                _ => self.conditions.others = true,
            },
            "ip6" | "icmpv6" => self.conditions.is_never = true,
            "icmp" => {
                self.conditions.protocols = vec![FilterProtocol::Icmp];
                self.conditions.others = true;
            }
            "ct" => self.read_tracked_state(),
            "tcp" | "udp" | "th" => {
                if let Some(protocol) = parse_protocol(word).filter(|_| word != "th") {
                    self.conditions.protocols = vec![protocol];
                }
                match self.next_word() {
                    Some("dport") => self.read_ports(),
                    Some("flags") => self.read_flags(),
                    _ => self.conditions.others = true,
                }
            }
            _ => self.conditions.others = true,
        }
    }

    /// Returns the chain of a jump.
    fn read_target(&mut self) -> Option<String> {
        let name = self.next_word()?;
        Some(format!("{} {name}", self.table))
    }

    fn next_word(&mut self) -> Option<&'a str> {
        match self.parts.next()? {
            Part::Bare(word) => Some(word),
            Part::Text(_) | Part::Set(_) => None,
        }
    }

    /// Returns the values that are compared; `None` if a packet must have others, or they are in a
    /// named set or map.
    fn read_values(&mut self) -> Option<Vec<&'a str>> {
        match self.parts.peek()? {
            // The verdict of a map is read by the caller.
            Part::Bare("vmap") => None,
            Part::Bare(word) if word.starts_with('@') || *word == "!=" || *word == "." => {
                self.parts.next();
                None
            }
            _ => match self.parts.next()? {
                Part::Bare("==") => self.read_values(),
                Part::Bare(word) | Part::Text(word) => Some(vec![word]),
                Part::Set(values) => Some(values),
            },
        }
    }

    /// Reads a condition on an interface. `is_of_hook` tells whether that is the interface at which
    /// the hook sees packets: the incoming one for input, the outgoing one for output.
    fn read_interface(&mut self, is_of_hook: bool) {
        match self.read_values().filter(|_| is_of_hook) {
            Some(names) => {
                self.conditions.interfaces = names.into_iter().map(str::to_owned).collect();
            }
            None => self.conditions.others = true,
        }
    }

    /// Reads a condition on the protocol.
    fn read_protocols(&mut self) {
        let Some(names) = self.read_values() else {
            self.conditions.others = true;
            return;
        };
        let protocols = &mut self.conditions.protocols;
        protocols.clear();
        for protocol in names.iter().filter_map(|name| parse_protocol(name)) {
            if !protocols.contains(&protocol) {
                protocols.push(protocol);
            }
        }
        self.conditions.is_never |= self.conditions.protocols.is_empty();
        self.conditions.others |= self.conditions.protocols.contains(&FilterProtocol::Other);
    }

    /// Reads a condition on ports.
    fn read_ports(&mut self) {
        let ranges = self.read_values().and_then(|values| {
            let ranges = values.iter().map(|value| port_range(value, '-'));
            ranges.collect::<Option<Vec<(u16, u16)>>>()
        });
        match ranges {
            Some(ranges) => self.conditions.ports = ranges,
            None => self.conditions.others = true,
        }
    }

    /// Reads a condition on the connection. Packets that begin one are new.
    fn read_tracked_state(&mut self) {
        let is_state = self.next_word() == Some("state");
        let states = self.read_values().filter(|_| is_state);
        let has_new = |states: Vec<&str>| states.iter().any(|s| s.split(',').any(|s| s == "new"));
        self.conditions.others |= !states.is_some_and(has_new);
    }

    /// Reads a condition on the flags of TCP. Packets that begin a connection have SYN alone.
    fn read_flags(&mut self) {
        let mut words = Vec::new();
        while let Some(Part::Bare(word)) = self.parts.next_if(|part| {
            matches!(part, Part::Bare(word) if !matches!(*word, "accept" | "drop" | "reject" | "counter"))
        }) {
            words.push(word);
        }
        let condition = words.join(" ");
        let is_syn = matches!(
            condition.as_str(),
            "syn / fin,syn,rst,ack" | "& (fin | syn | rst | ack) == syn" | "== syn"
        );
        self.conditions.others |= !is_syn;
    }

    /// Skips the options of `log`.
    fn skip_log(&mut self) {
        const OPTIONS: &[&str] =
            &["prefix", "level", "group", "snaplen", "queue-threshold", "flags"];
        while matches!(self.parts.peek(), Some(Part::Bare(word)) if OPTIONS.contains(word)) {
            let (option, value) = (self.next_word(), self.next_word());
            if option == Some("flags") && matches!(value, Some("tcp" | "ip")) {
                self.parts.next();
            }
        }
    }
}
