//! `cargo lab tidy`: checks of the sources. They are parsed with Rust's own grammar.
//!
//! A *top-level module* is directly below the root of a crate: `x.rs` and `x/` together. The code
//! calls it a room.
//!
//! | file | what |
//! |---|---|
//! | `workspace`, `modules`, `prose` | crates and files; modules of a crate; comments and Markdown |
//! | `edges`, `resolve` | which top-level module uses which |
//! | `order`, `graph` | declared orders of top-level modules; cycles |
//! | `sizes`, `names`, `english` | long files and functions; names; doc comments |
//! | `code_map` | the README's code map |
//! | `finding` | findings, and known exceptions |
//! | `rooms`, `known`, `given_up` | tables |

mod code_map;
mod edges;
mod english;
mod finding;
mod given_up;
mod graph;
mod known;
mod modules;
mod names;
mod order;
mod prose;
mod resolve;
mod rooms;
mod sizes;
#[cfg(test)]
mod tests;
mod workspace;

use std::collections::BTreeSet;
use std::io::{self, Write};
use std::path::Path;

use crate::{LabError, dist};
use code_map::CodeMap;
use edges::{RoomGraph, room_graph};
use finding::{Finding, Known, TidyReport, judge};
use names::Vocabulary;
use order::Order;
use sizes::Page;
use workspace::{Crate, Sources, crates, find_crate, owner, read_pages, read_sources};

/// Paths of two tables, from the workspace.
const KNOWN_TABLE: &str = "tests/lab/src/tidy/known.rs";
const ROOMS_TABLE: &str = "tests/lab/src/tidy/rooms.rs";

/// Tables that the sources are checked against.
struct Rules<'a> {
    orders: &'a [Order],
    pages: &'a [Page],
    code_maps: &'a [CodeMap],
    given_up: &'a [Vocabulary],
    known: &'a [Known],
}

const RULES: Rules<'_> = Rules {
    orders: rooms::ORDERS,
    pages: rooms::PAGES,
    code_maps: rooms::CODE_MAPS,
    given_up: given_up::GIVEN_UP,
    known: known::KNOWN,
};

/// Crates to check, and how much to print.
#[derive(Debug, Default)]
pub struct TidyOptions<'a> {
    /// Check only the crate of this name or folder.
    pub only: Option<&'a str>,
    /// Print each place at which a top-level module uses another.
    pub edges: bool,
    /// Print findings that are known exceptions as well.
    pub known: bool,
}

/// Prints the order of each crate's top-level modules, then all findings. Returns whether there are
/// none.
pub fn run(options: &TidyOptions<'_>) -> Result<bool, LabError> {
    let workspace = dist::workspace();
    let crates = crates()?;
    let only = options.only.map(|word| find_crate(&crates, word)).transpose()?;
    let sources = read_sources(&workspace)?;
    for krate in crates.iter().filter(|krate| is_wanted(krate, only)) {
        let plan = room_graph(krate, &sources);
        emit(&describe(krate, &plan));
        if options.edges {
            plan.edges.iter().for_each(|edge| emit(&format!("{edge}\n")));
        }
    }
    let rules = if options.known { Rules { known: &[], ..RULES } } else { RULES };
    Ok(print_report(&rules.inspect(&workspace, &crates, &sources, only)?))
}

/// Prints all findings; returns whether there are none.
pub(crate) fn check() -> Result<bool, LabError> {
    let workspace = dist::workspace();
    let sources = read_sources(&workspace)?;
    Ok(print_report(&RULES.inspect(&workspace, &crates()?, &sources, None)?))
}

fn is_wanted(krate: &Crate, only: Option<&Crate>) -> bool {
    only.is_none_or(|only| only.folder == krate.folder)
}

/// Describes the order of a crate's top-level modules.
fn describe(krate: &Crate, plan: &RoomGraph) -> String {
    if plan.rooms.len() <= plan.roots.len() {
        return String::new();
    }
    let folder = krate.key();
    let drawn = order::draw(plan);
    match RULES.orders.iter().find(|order| order.krate == folder) {
        None => format!("{folder}: no declared order; its edges imply\n{drawn}"),
        Some(order @ Order { pending: None, .. }) => {
            format!("{folder}: as declared\n{}", order.draw())
        }
        Some(order) => {
            let why = order.pending.unwrap_or_default();
            let declared = order.draw();
            format!(
                "{folder}: declared, not enforced yet: {why}\n{declared}{folder}: its edges imply\n{drawn}"
            )
        }
    }
}

/// Prints text; a reader that closed the pipe early, such as `head`, is not an error.
fn emit(text: &str) {
    let _ = io::stdout().write_all(text.as_bytes());
}

fn print_report(report: &TidyReport) -> bool {
    for finding in &report.findings {
        emit(&format!("{finding}\n"));
    }
    let TidyReport { findings, to_mend, kept } = report;
    let count = findings.len();
    emit(&format!("tidy: {count} findings; {to_mend} known exceptions to fix, {kept} that stay\n"));
    findings.is_empty()
}

impl Rules<'_> {
    /// Checks all crates, or one. Files outside all crates are only checked with all.
    fn inspect(
        &self,
        workspace: &Path,
        crates: &[Crate],
        sources: &Sources,
        only: Option<&Crate>,
    ) -> Result<TidyReport, LabError> {
        let mut findings: Vec<Finding> = Vec::new();
        let mut looked_at: BTreeSet<&str> = BTreeSet::new();
        for krate in crates.iter().filter(|krate| is_wanted(krate, only)) {
            looked_at.insert(krate.key());
            let plan = room_graph(krate, sources);
            let order = self.orders.iter().find(|order| order.krate == krate.key());
            findings.extend(match order {
                // A declared order excludes cycles, and a pending one will change.
                Some(order) => order.check(&plan, Path::new(ROOMS_TABLE)),
                None => order::cycles(krate.key(), &plan),
            });
            findings.extend(names::types_twice(krate, sources));
            findings.extend(english::check(krate, sources));
        }
        if only.is_none() {
            looked_at.insert("");
            findings.extend(self.pages.iter().filter_map(|page| page.check(workspace)));
            let maps = self.code_maps.iter();
            findings.extend(maps.flat_map(|map| map.check(workspace, crates, self.orders)));
        }
        for (file, source) in sources {
            let krate = owner(crates, file).map_or("", Crate::key);
            if looked_at.contains(krate) {
                findings.extend(sizes::check(krate, file, source));
                findings.extend(names::given_up(krate, file, source, self.given_up));
            }
        }
        for (file, page) in &read_pages(workspace)? {
            let krate = owner(crates, file).map_or("", Crate::key);
            if looked_at.contains(krate) {
                findings.extend(names::given_up_in_page(krate, file, page, self.given_up));
            }
        }
        Ok(judge(findings, self.known.iter(), Path::new(KNOWN_TABLE), &looked_at))
    }
}
