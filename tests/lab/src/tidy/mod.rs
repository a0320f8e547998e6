//! `cargo lab tidy`: the order of folders, sizes and names, checked on the sources.
//!
//! It reads the sources of the workspace with Rust's own grammar. In reading order: [`workspace`]
//! finds crates and files, [`modules`] the modules of a crate, [`edges`] which of its rooms use
//! which, by [`resolve`]. [`order`] holds these against the order of [`rooms`], or looks for cycles;
//! [`sizes`] and [`names`] look at the rest. What is not as it should be yet is in [`known`].

mod ceilings;
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
use edges::{FloorPlan, floor_plan};
use finding::{Finding, Known, TidyReport, judge};
use names::Vocabulary;
use order::Order;
use sizes::Page;
use workspace::{Crate, Sources, called, crates, owner, read_pages, read_sources};

/// Path of the tables, from the workspace.
const KNOWN_TABLE: &str = "tests/lab/src/tidy/known.rs";
const ROOMS_TABLE: &str = "tests/lab/src/tidy/rooms.rs";

/// Rules that the sources are held against.
struct Rules<'a> {
    orders: &'a [Order],
    pages: &'a [Page],
    code_maps: &'a [CodeMap],
    given_up: &'a [Vocabulary],
    known: &'a [Known],
    ceilings: &'a [Known],
}

const RULES: Rules<'_> = Rules {
    orders: rooms::ORDERS,
    pages: rooms::PAGES,
    code_maps: rooms::CODE_MAPS,
    given_up: given_up::GIVEN_UP,
    known: known::KNOWN,
    ceilings: ceilings::CEILINGS,
};

/// Crates to look at, and how much to print.
#[derive(Debug, Default)]
pub struct TidyOptions<'a> {
    /// Only the crate of this name or folder.
    pub only: Option<&'a str>,
    /// Print each place at which a folder uses another.
    pub edges: bool,
    /// Print findings that are known, too.
    pub known: bool,
}

/// Prints the order of each crate's folders, then all findings. Tells whether there are none.
pub fn run(options: &TidyOptions<'_>) -> Result<bool, LabError> {
    let workspace = dist::workspace();
    let crates = crates()?;
    let only = options.only.map(|word| called(&crates, word)).transpose()?;
    let sources = read_sources(&workspace)?;
    for krate in crates.iter().filter(|krate| is_wanted(krate, only)) {
        let plan = floor_plan(krate, &sources);
        emit(&describe(krate, &plan));
        if options.edges {
            plan.edges.iter().for_each(|edge| emit(&format!("{edge}\n")));
        }
    }
    let rules = if options.known { Rules { known: &[], ceilings: &[], ..RULES } } else { RULES };
    Ok(print_report(&rules.inspect(&workspace, &crates, &sources, only)?))
}

/// Prints all findings, and tells whether there are none.
pub(crate) fn check() -> Result<bool, LabError> {
    let workspace = dist::workspace();
    let sources = read_sources(&workspace)?;
    Ok(print_report(&RULES.inspect(&workspace, &crates()?, &sources, None)?))
}

fn is_wanted(krate: &Crate, only: Option<&Crate>) -> bool {
    only.is_none_or(|only| only.folder == krate.folder)
}

/// Draws the order of a crate's folders.
fn describe(krate: &Crate, plan: &FloorPlan) -> String {
    if plan.rooms.len() <= plan.roots.len() {
        return String::new();
    }
    let folder = krate.key();
    let drawn = order::draw(plan);
    match RULES.orders.iter().find(|order| order.krate == folder) {
        None => format!("{folder}: no order declared; its edges make\n{drawn}"),
        Some(order @ Order { pending: None, .. }) => {
            format!("{folder}: as declared\n{}", order.draw())
        }
        Some(order) => {
            let why = order.pending.unwrap_or_default();
            let declared = order.draw();
            format!(
                "{folder}: declared, but pending: {why}\n{declared}{folder}: its edges make\n{drawn}"
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
    emit(&format!("tidy: {count} findings; {to_mend} known and to be mended, {kept} that stay\n"));
    findings.is_empty()
}

impl Rules<'_> {
    /// Holds all crates against the rules, or one; what is of no crate is looked at with all.
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
            let plan = floor_plan(krate, sources);
            let order = self.orders.iter().find(|order| order.krate == krate.key());
            findings.extend(match order {
                // Where an order holds there are no cycles, and where all is about to be moved they
                // are drawn and no more.
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
        let known = self.known.iter().chain(self.ceilings);
        Ok(judge(findings, known, Path::new(KNOWN_TABLE), &looked_at))
    }
}
