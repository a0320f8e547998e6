//! Rules of the packet filter for IPv4 packets that arrive at this host or leave it.
//!
//! Root may read them, by the programs `nft` and `iptables-save`. These are run only if the kernel
//! has the parts that they ask, since they would load them otherwise. Their output is cut to those
//! chains that are reached from the hooks `input` and `output`.
//!
//! | file | contents |
//! |---|---|
//! | `nft.rs`, `iptables.rs` | output of the two programs |
//! | `rules.rs` | rules of chains, in the order in which a packet meets them |
//! | `program.rs` | running a program with a time limit |

mod iptables;
mod nft;
mod program;
mod rules;

#[cfg(test)]
mod tests;

use super::modules;
use crate::node::inventory::Root;
use nix::unistd::Uid;
use rlaunch_bootstrap::inventory::diagnostics::Firewall;

/// Recorded file with the output of the programs, each after a line with its name.
const RECORDED: &str = "/firewall";
const NFT: &str = "# nft";
const IPTABLES: &str = "# iptables";
/// Names of tables of the older kernel interface, which nft does not show.
const LEGACY_TABLES: &str = "/proc/net/ip_tables_names";

pub(super) fn read(root: &Root) -> Option<Firewall> {
    let ask = || Uid::effective().is_root().then(|| ask(root)).flatten();
    Some(parse(&root.asked_text(RECORDED, ask)?))
}

/// Runs the programs. Returns `None` if they fail, as in a container without the capability.
fn ask(root: &Root) -> Option<String> {
    let has_legacy = root.text(LEGACY_TABLES).is_some_and(|names| !names.is_empty());
    let mut text = String::new();
    let mut is_of_iptables = false;
    if modules::is_loaded(root, "nf_tables")? {
        let printed = program::output("nft", &["-a", "-s", "list", "ruleset"]);
        if let Some(printed) = &printed {
            is_of_iptables = nft::has_tables_of_iptables(printed);
            text = format!("{NFT}\n{}", nft::relevant(printed));
        } else if !has_legacy {
            text = format!("{IPTABLES}\n{}", program::output("iptables-save", IPTABLES_FILTER)?);
        }
    }
    if has_legacy || is_of_iptables {
        // Where both kinds are in use, a distribution has a program for each.
        let legacy = has_legacy.then(|| program::output("iptables-legacy-save", IPTABLES_FILTER));
        let usual = program::output("iptables-save", IPTABLES_FILTER);
        let printed = usual.into_iter().chain(legacy.flatten()).collect::<String>();
        text = format!("{text}\n{IPTABLES}\n{printed}");
    }
    Some(text)
}

const IPTABLES_FILTER: &[&str] = &["-t", "filter"];

/// Parses the recorded output of the programs.
fn parse(text: &str) -> Firewall {
    let (nft, iptables) = match text.split_once(IPTABLES) {
        Some((nft, iptables)) => (nft, iptables.trim()),
        None => (text, ""),
    };
    let (of_nft, of_iptables) = (nft::parse(nft, iptables.is_empty()), iptables::parse(iptables));
    let read_by = match (nft.contains(NFT), iptables.is_empty()) {
        (_, false) if of_nft.is_empty() => "iptables",
        (true, _) => "nft",
        (false, _) => "",
    };
    let mut firewall = Firewall { read_by: read_by.to_owned(), ..Firewall::default() };
    for filter in [of_nft, of_iptables] {
        filter.add_to(&mut firewall);
    }
    firewall
}
