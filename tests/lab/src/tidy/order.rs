//! The order of a crate's top-level modules (its folders), each of which may use only those below
//! it: declared, or derived from the sources.

use std::collections::BTreeMap;
use std::fmt::Write;
use std::path::Path;

use super::edges::{Edge, RoomGraph, group_by_rooms};
use super::finding::{Finding, Rule};
use super::graph::Graph;

/// Declared order of a crate's top-level modules. The root is above all of them.
#[derive(Debug)]
pub(super) struct Order {
    pub(super) krate: &'static str,
    /// Layers from the bottom. A layer has branches, which must not use each other. A branch is a
    /// list of top-level modules from the bottom, each of which may use those before it.
    pub(super) layers: &'static [&'static [&'static [&'static str]]],
    /// Reason why the order is not enforced yet.
    pub(super) pending: Option<&'static str>,
}

impl Order {
    /// Finds a top-level module's layer, branch and step.
    fn place(&self, room: &str) -> Option<(usize, usize, usize)> {
        self.layers.iter().enumerate().find_map(|(layer, branches)| {
            branches.iter().enumerate().find_map(|(branch, rooms)| {
                rooms.iter().position(|name| *name == room).map(|step| (layer, branch, step))
            })
        })
    }

    /// Returns whether a top-level module is above another: in a higher layer, or later in the same
    /// branch.
    pub(super) fn is_above(&self, room: &str, other: &str) -> bool {
        let (Some(one), Some(two)) = (self.place(room), self.place(other)) else { return false };
        one.0 > two.0 || (one.0 == two.0 && one.1 == two.1 && one.2 > two.2)
    }

    pub(super) fn rooms(&self) -> impl Iterator<Item = &'static str> {
        self.layers
            .iter()
            .flat_map(|branches| branches.iter())
            .flat_map(|rooms| rooms.iter().copied())
    }

    /// Describes what is wrong with an edge, if anything is.
    fn fault(&self, from: &str, to: &str) -> Option<String> {
        let (above, below) = (self.place(from)?, self.place(to)?);
        let is_apart = above.0 == below.0 && above.1 != below.1;
        if is_apart {
            Some(format!("`{from}` and `{to}` must not use each other"))
        } else if above < below {
            Some(format!("`{to}` is above `{from}`"))
        } else {
            None
        }
    }

    /// Checks the order against the top-level modules and edges of a crate.
    pub(super) fn check(&self, plan: &RoomGraph, table: &Path) -> Vec<Finding> {
        let undeclared: Vec<Finding> = self.undeclared(plan);
        if self.pending.is_some() {
            let is_there = self.rooms().all(|room| plan.rooms.contains_key(room));
            let is_over = undeclared.is_empty() && is_there;
            let what =
                format!("the order of {} is pending, though each folder is in it", self.krate);
            let remedy = "set `pending: None`".into();
            return is_over
                .then(|| self.table_finding(table, "pending", what, remedy))
                .into_iter()
                .collect();
        }
        let gone = self.rooms().filter(|room| !plan.rooms.contains_key(*room)).map(|room| {
            let what = format!("the order of {} has `{room}`, which does not exist", self.krate);
            self.table_finding(table, room, what, "remove it from the order".into())
        });
        let mut findings: Vec<Finding> = gone.collect();
        findings.extend(undeclared);
        for ((from, to), edges) in group_by_rooms(&plan.edges) {
            let fault = match plan.roots.contains(to) {
                true => Some(format!("`{to}` is the root of the crate")),
                false => self.fault(from, to),
            };
            let Some(fault) = fault.filter(|_| !plan.roots.contains(from)) else { continue };
            findings.extend(edges.iter().map(|edge| Finding {
                file: edge.file.clone(),
                line: edge.line,
                rule: Rule::Upward,
                krate: self.krate.into(),
                subject: format!("{from} → {to}"),
                size: edges.len(),
                what: format!("`{from}` uses `{}`, but {fault}", edge.path),
                remedy: "move it to a folder below both, or hand it in from above".into(),
            }));
        }
        findings
    }

    fn undeclared(&self, plan: &RoomGraph) -> Vec<Finding> {
        let is_unplaced =
            |room: &&String| !plan.roots.contains(*room) && self.place(room).is_none();
        let unplaced = plan.rooms.keys().filter(is_unplaced);
        unplaced
            .map(|room| Finding {
                file: plan.rooms[room].clone(),
                line: 1,
                rule: Rule::Undeclared,
                krate: self.krate.into(),
                subject: room.clone(),
                size: 1,
                what: format!("`{room}` is not in the order of {}", self.krate),
                remedy: "move it into one of the folders, or give it a place in tidy/rooms.rs"
                    .into(),
            })
            .collect()
    }

    fn table_finding(&self, table: &Path, subject: &str, what: String, remedy: String) -> Finding {
        let (file, krate, subject) = (table.into(), self.krate.into(), subject.into());
        Finding { file, line: 1, rule: Rule::Undeclared, krate, subject, size: 1, what, remedy }
    }

    /// Formats the order, from the top.
    pub(super) fn draw(&self) -> String {
        let branches = |layer: &&[&[&str]]| {
            let chains: Vec<String> = layer.iter().map(|rooms| rooms.join(" ← ")).collect();
            chains.join(" | ")
        };
        numbered(self.layers.iter().map(branches))
    }
}

fn graph(plan: &RoomGraph) -> Graph<'_> {
    let edges = plan.edges.iter().map(|edge| (&*edge.from, &*edge.to));
    Graph::new(plan.rooms.keys().map(String::as_str), edges)
}

/// Formats the levels that the edges of a crate make, from the top, with each cycle in parentheses.
pub(super) fn draw(plan: &RoomGraph) -> String {
    let line = |groups: Vec<std::collections::BTreeSet<&str>>| {
        let names: Vec<String> = groups
            .into_iter()
            .map(|group| match group.len() {
                1 => group.into_iter().collect(),
                _ => format!("({})", Vec::from_iter(group).join(" ↔ ")),
            })
            .collect();
        names.join(" ")
    };
    numbered(graph(plan).levels().into_iter().map(line))
}

/// Numbers lines from the bottom and returns them from the top.
fn numbered(lines: impl Iterator<Item = String>) -> String {
    let mut text = String::new();
    for (number, line) in lines.collect::<Vec<_>>().into_iter().enumerate().rev() {
        let _ = writeln!(text, "  {:>2}  {line}", number + 1);
    }
    text
}

/// Finds top-level modules that use themselves through others, each with its shortest cycle.
pub(super) fn cycles(krate: &str, plan: &RoomGraph) -> Vec<Finding> {
    let graph = graph(plan);
    let first: BTreeMap<(&str, &str), &Edge> =
        group_by_rooms(&plan.edges).into_iter().map(|(pair, edges)| (pair, edges[0])).collect();
    let groups = graph.groups();
    let in_cycles = groups.iter().filter(|group| group.len() > 1);
    let rooms = in_cycles.flat_map(|group| group.iter().map(|room| (*room, group.len())));
    rooms
        .filter_map(|(room, size)| {
            let way = graph.shortest_path(room, room)?;
            let edge = first[&(way[0], way[1])];
            Some(Finding {
                file: edge.file.clone(),
                line: edge.line,
                rule: Rule::Cycle,
                krate: krate.into(),
                subject: room.into(),
                size,
                what: format!("`{}` closes a cycle: {}", edge.path, way.join(" → ")),
                remedy: "move what both use to a folder below both".into(),
            })
        })
        .collect()
}
