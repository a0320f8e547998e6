//! Levels and cycles of a graph.

use std::collections::{BTreeMap, BTreeSet, VecDeque};

/// Directed graph: each node, and the nodes that it uses.
#[derive(Debug, Default)]
pub(super) struct Graph<'a> {
    uses: BTreeMap<&'a str, BTreeSet<&'a str>>,
}

impl<'a> Graph<'a> {
    /// Makes a graph of nodes and edges.
    pub(super) fn new(
        nodes: impl IntoIterator<Item = &'a str>,
        edges: impl IntoIterator<Item = (&'a str, &'a str)>,
    ) -> Graph<'a> {
        let mut uses: BTreeMap<_, BTreeSet<_>> =
            nodes.into_iter().map(|node| (node, BTreeSet::new())).collect();
        for (from, to) in edges {
            uses.entry(from).or_default().insert(to);
            uses.entry(to).or_default();
        }
        Graph { uses }
    }

    /// Finds the shortest path from `from` to `to` with at least one edge. It includes both ends.
    pub(super) fn shortest_path(&self, from: &'a str, to: &'a str) -> Option<Vec<&'a str>> {
        let mut before: BTreeMap<&str, &str> = BTreeMap::new();
        let mut next = VecDeque::from([from]);
        while let Some(node) = next.pop_front() {
            for &used in &self.uses[node] {
                if before.contains_key(used) {
                    continue;
                }
                before.insert(used, node);
                if used != to {
                    next.push_back(used);
                    continue;
                }
                let mut path = vec![to, node];
                while let Some(&last) = path.last().filter(|last| **last != from) {
                    path.push(before[last]);
                }
                path.reverse();
                return Some(path);
            }
        }
        None
    }

    /// Groups nodes that reach each other. The groups that a group uses come before it.
    pub(super) fn groups(&self) -> Vec<BTreeSet<&'a str>> {
        let reached: BTreeMap<&str, BTreeSet<&str>> =
            self.uses.keys().map(|&node| (node, self.reached(node))).collect();
        let mut groups: Vec<BTreeSet<&str>> = Vec::new();
        for &node in self.uses.keys() {
            let is_mutual = |other: &&str| reached[other].contains(node);
            let group = reached[node].iter().copied().filter(is_mutual).chain([node]).collect();
            if !groups.contains(&group) {
                groups.push(group);
            }
        }
        // A node that uses another reaches everything that the other does, and more.
        groups.sort_by_key(|group| {
            let all = group.iter().flat_map(|node| &reached[node]).chain(group);
            all.collect::<BTreeSet<_>>().len()
        });
        groups
    }

    fn reached(&self, from: &str) -> BTreeSet<&'a str> {
        let mut reached = BTreeSet::new();
        let mut next: Vec<&str> = self.uses[from].iter().copied().collect();
        while let Some(node) = next.pop() {
            if reached.insert(node) {
                next.extend(&self.uses[node]);
            }
        }
        reached
    }

    /// Sorts groups into levels from the bottom. A group uses only groups of lower levels.
    pub(super) fn levels(&self) -> Vec<Vec<BTreeSet<&'a str>>> {
        let mut level: BTreeMap<&str, usize> = BTreeMap::new();
        let mut levels: Vec<Vec<BTreeSet<&str>>> = Vec::new();
        for group in self.groups() {
            let used = group.iter().flat_map(|node| &self.uses[node]);
            let below = used.filter(|used| !group.contains(*used));
            let height = below.map(|used| level[used] + 1).max().unwrap_or(0);
            level.extend(group.iter().map(|node| (*node, height)));
            if levels.len() <= height {
                levels.resize_with(height + 1, Vec::new);
            }
            levels[height].push(group);
        }
        levels
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn of<'a>(edges: &[(&'a str, &'a str)]) -> Graph<'a> {
        Graph::new(["alone"], edges.iter().copied())
    }

    #[test]
    fn levels_lie_above_all_that_they_use() {
        let graph = of(&[("a", "b"), ("b", "c"), ("a", "c"), ("d", "c")]);
        let levels: Vec<Vec<String>> = graph
            .levels()
            .into_iter()
            .map(|level| level.into_iter().map(|group| Vec::from_iter(group).join("+")).collect())
            .collect();
        assert_eq!(levels, [vec!["alone", "c"], vec!["b", "d"], vec!["a"]]);
    }

    #[test]
    fn nodes_that_reach_each_other_are_one_group() {
        let graph = of(&[("a", "b"), ("b", "c"), ("c", "a"), ("c", "d"), ("e", "a")]);
        let groups: Vec<String> =
            graph.groups().into_iter().map(|group| Vec::from_iter(group).join("+")).collect();
        assert_eq!(groups, ["alone", "d", "a+b+c", "e"]);
    }

    #[test]
    fn the_shortest_way_back_is_found() {
        let graph = of(&[("a", "b"), ("b", "c"), ("c", "a"), ("b", "a")]);
        assert_eq!(graph.shortest_path("a", "a").unwrap(), ["a", "b", "a"]);
        assert_eq!(graph.shortest_path("c", "c").unwrap(), ["c", "a", "b", "c"]);
        assert_eq!(graph.shortest_path("alone", "alone"), None);
    }
}
