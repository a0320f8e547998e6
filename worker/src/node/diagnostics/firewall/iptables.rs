//! Output of `iptables-save -t filter`.
//!
//! ```text
//! *filter
//! :INPUT DROP [0:0]
//! -A INPUT -i lo -j ACCEPT
//! -A INPUT -p tcp -m multiport --dports 22,80:90 -j ACCEPT
//! COMMIT
//! ```

use super::rules::{Action, Conditions, Filter, Hook, Rule, port_range, protocol};

/// Targets after which the next rule follows.
const PASSING_TARGETS: &[&str] = &["LOG", "NFLOG", "ULOG", "MARK", "CONNMARK", "TRACE", "AUDIT"];

/// Parses the output, which has one table.
pub(super) fn parse(text: &str) -> Filter {
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
            let words = words(rest);
            let Some((chain, words)) = words.split_first() else { continue };
            let rules = filter.chains.entry((*chain).to_owned()).or_default();
            rules.push(rule(line, words));
        }
    }
    filter
}

/// Splits a rule into words. A text in quotes is one word.
fn words(text: &str) -> Vec<&str> {
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

fn rule(text: &str, words: &[&str]) -> Rule {
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
                conditions.protocols = protocol(value()).into_iter().collect();
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
                action = target(word, value());
                true
            }
            _ => false,
        };
        if is_negated {
            // A negated condition would otherwise be taken for its opposite.
            match word {
                "-i" | "-o" => conditions.interfaces.clear(),
                "-p" => conditions.protocols.clear(),
                _ => conditions.ports.clear(),
            }
        }
        conditions.others |= is_negated || !is_understood;
        is_negated = false;
    }
    Rule { text: text.to_owned(), handle: None, conditions, action }
}

/// Tells whether a module is a condition even without options.
fn is_bare_condition(module: &str) -> bool {
    matches!(module, "limit" | "socket" | "rpfilter" | "recent")
}

fn target(option: &str, name: &str) -> Action {
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
