//! The code map of the README: one row for each top-level module.

use std::collections::BTreeSet;
use std::fs;
use std::path::Path;

use super::finding::{Finding, Rule};
use super::order::Order;
use super::workspace::Crate;

/// Heading of the table.
const HEADING: &str = "## Code map";
/// Maximum number of rows.
const MOST_ROWS: usize = 30;

/// Page with a code map.
#[derive(Debug)]
pub(super) struct CodeMap {
    /// Path from the workspace.
    pub(super) file: &'static str,
    /// Crates of which every top-level module that is a folder has a row, in the order of the
    /// crate's layers.
    pub(super) crates: &'static [&'static str],
}

/// Folder or file of a row.
struct MappedPath {
    line: usize,
    path: String,
}

impl CodeMap {
    /// Checks the map against the folders, the crates and the declared orders.
    pub(super) fn check(
        &self,
        workspace: &Path,
        crates: &[Crate],
        orders: &[Order],
    ) -> Vec<Finding> {
        let Ok(page) = fs::read_to_string(workspace.join(self.file)) else { return Vec::new() };
        let rows = rows(&page);
        let first = rows.first().map_or(1, |(line, _)| *line);
        let mut found = Vec::new();
        if rows.len() > MOST_ROWS {
            let what = format!("the code map has {} rows, of {MOST_ROWS} at most", rows.len());
            found.push(self.finding(first, "rows", what, "join rows".into()));
        }
        let places: Vec<MappedPath> =
            rows.iter().flat_map(|(line, row)| places(*line, row)).collect();
        for MappedPath { line, path } in &places {
            if !workspace.join(path).exists() {
                let what = format!("the code map names `{path}`, which does not exist");
                found.push(self.finding(*line, path, what, "correct the row".into()));
            }
        }
        let is_mapped = |krate: &Crate| {
            let mut paths = places.iter().map(|place| Path::new(&place.path));
            paths.any(|path| path.starts_with(&krate.folder) || krate.folder.starts_with(path))
        };
        let unmapped = crates.iter().filter(|krate| !is_mapped(krate));
        found.extend(unmapped.map(|krate| self.missing(first, krate.key())));
        let orders = orders.iter().filter(|order| self.crates.contains(&order.krate));
        orders.for_each(|order| found.extend(self.check_order(workspace, order, &places, first)));
        found
    }

    /// Finds top-level modules of one crate that have no row, or whose row comes before that of a
    /// top-level module they may use.
    fn check_order(
        &self,
        workspace: &Path,
        order: &Order,
        places: &[MappedPath],
        first: usize,
    ) -> Vec<Finding> {
        let source = format!("{}/src/", order.krate);
        let room_of = |place: &MappedPath| {
            let rest = place.path.strip_prefix(&source)?;
            Some(rest.trim_end_matches('/').trim_end_matches(".rs").to_owned())
        };
        let mapped: Vec<(usize, String)> =
            places.iter().filter_map(|place| Some((place.line, room_of(place)?))).collect();
        let named: BTreeSet<&str> = mapped.iter().map(|(_, room)| room.as_str()).collect();
        let mut found = Vec::new();
        let folders =
            order.rooms().filter(|room| workspace.join(format!("{source}{room}")).is_dir());
        for room in folders.filter(|room| !named.contains(room)) {
            found.push(self.missing(first, &format!("{source}{room}/")));
        }
        for pair in mapped.windows(2) {
            let [(_, before), (line, room)] = pair else { continue };
            if order.is_above(before, room) {
                let what = format!("the code map has `{room}` after `{before}`, which is above it");
                let remedy = "order rows from the lowest room to the highest".into();
                found.push(self.finding(*line, room, what, remedy));
            }
        }
        found
    }

    fn missing(&self, line: usize, path: &str) -> Finding {
        let what = format!("the code map has no row for `{path}`");
        self.finding(line, path, what, "add a row".into())
    }

    fn finding(&self, line: usize, subject: &str, what: String, remedy: String) -> Finding {
        let (file, subject) = (self.file.into(), subject.into());
        let krate = String::new();
        Finding { file, line, rule: Rule::CodeMap, krate, subject, size: 1, what, remedy }
    }
}

/// Returns the first cells of the table, each with its line.
fn rows(page: &str) -> Vec<(usize, &str)> {
    let lines = (1..).zip(page.lines());
    let section = lines.skip_while(|(_, line)| *line != HEADING).skip(1);
    let section = section.take_while(|(_, line)| !line.starts_with("## "));
    let cells = section.filter_map(|(line, text)| {
        let cell = text.strip_prefix('|')?.split('|').next()?.trim();
        Some((line, cell))
    });
    cells.filter(|(_, cell)| cell.starts_with('`')).collect()
}

/// Lists the paths in backticks in a cell; `a/{b,c}/` is two paths.
fn places(line: usize, cell: &str) -> Vec<MappedPath> {
    let quoted = cell.split('`').skip(1).step_by(2);
    quoted.flat_map(expand).map(|path| MappedPath { line, path }).collect()
}

fn expand(pattern: &str) -> Vec<String> {
    let braces = pattern.split_once('{').and_then(|(before, rest)| {
        rest.split_once('}').map(|(inside, after)| (before, inside, after))
    });
    let Some((before, inside, after)) = braces else { return vec![pattern.to_owned()] };
    inside.split(',').flat_map(|one| expand(&format!("{before}{one}{after}"))).collect()
}
