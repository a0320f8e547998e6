//! Rules of the packet filter for IPv4 packets that arrive at this host or leave it.
//!
//! Root may read them, by the programs `nft` and `iptables-save`. These are run only if the kernel
//! has the parts that they ask for, since they would load them otherwise. Their output is cut to those
//! chains that are reached from the hooks `input` and `output`.
//!
//! | file | contents |
//! |---|---|
//! | `nft.rs`, `iptables.rs` | output of the two programs |
//! | `rules.rs` | rules of chains, in the order in which a packet meets them |

mod iptables;
mod nft;
mod rules;

#[cfg(test)]
mod tests;

use super::{modules, program};
use crate::node::inventory::Root;
use nix::unistd::Uid;
use rlaunch_bootstrap::inventory::diagnostics::Firewall;
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

pub(super) fn read(root: &Root) -> Option<Firewall> {
    let ask = || Uid::effective().is_root().then(|| ask(root)).flatten();
    Some(parse(&root.asked_text(RECORDED, ask)?))
}

/// Runs the programs. Returns `None` if they fail, as in a container without the capability.
fn ask(root: &Root) -> Option<String> {
    let tables = root.text(LEGACY_TABLES).unwrap_or_default();
    let has_legacy = tables.lines().any(|name| name == "filter");
    let mut text = String::new();
    if modules::is_loaded(root, "nf_tables")? {
        match program::find("nft") {
            Some(nft) => {
                let printed = program::output(&nft, &["-a", "-s", "list", "ruleset"])?;
                text = format!("{NFT}\n{}", nft::relevant(&printed));
                if nft::has_tables_of_iptables(&printed) {
                    append(&mut text, iptables_save(true));
                }
            }
            None => append(&mut text, Some(iptables_save(true)?)),
        }
    }
    if has_legacy {
        append(&mut text, Some(iptables_save(false)?));
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
    program::output(&program, &["-t", "filter"])
}

fn append(text: &mut String, printed: Option<String>) {
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
    let mut filters = vec![nft::parse(nft, iptables.is_empty())];
    let read_by = match (nft.contains(NFT), iptables.is_empty()) {
        (_, false) if filters[0].is_empty() => "iptables",
        (true, _) => "nft",
        (false, _) => "",
    };
    // Both kinds of iptables may have a table, and chains of the same names in it.
    filters.extend(iptables.split(IPTABLES_TABLE).map(iptables::parse));
    let mut firewall = Firewall { read_by: read_by.to_owned(), ..Firewall::default() };
    rules::add(&filters, &mut firewall);
    firewall
}
