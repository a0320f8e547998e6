//! The shape of the tree: who is whose parent, by arithmetic alone.

use crate::id::NodeId;
use std::ops::Range;

/// Above this many children a node costs its parent more than another level would.
const MAX_CHILDREN: u32 = 32;

/// A complete tree over nodes `0..nodes`, filled level by level: node 0 is the root and node `n`'s
/// parent is `(n - 1) / radix`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TreeShape {
    nodes: u32,
    radix: u32,
}

impl TreeShape {
    /// A tree of `nodes` nodes, at least one, of which each has at most `radix` children, at
    /// least one.
    pub fn new(nodes: u32, radix: u32) -> TreeShape {
        TreeShape { nodes: nodes.max(1), radix: radix.max(1) }
    }

    /// The shallowest tree in which nobody has more than 32 children, and of those the narrowest.
    pub fn for_nodes(nodes: u32) -> TreeShape {
        let depth = TreeShape::new(nodes, MAX_CHILDREN).depth();
        let narrowest =
            (1..MAX_CHILDREN).find(|&radix| TreeShape::new(nodes, radix).depth() <= depth);
        TreeShape::new(nodes, narrowest.unwrap_or(MAX_CHILDREN))
    }

    /// How many nodes there are.
    pub fn nodes(self) -> u32 {
        self.nodes
    }

    /// The most children a node has.
    pub fn radix(self) -> u32 {
        self.radix
    }

    /// `None` for the root.
    pub fn parent(self, node: NodeId) -> Option<NodeId> {
        node.0.checked_sub(1).map(|above| NodeId(above / self.radix))
    }

    /// The nodes whose parent this is.
    pub fn children(self, node: NodeId) -> impl ExactSizeIterator<Item = NodeId> + use<> {
        let range = self.child_range(node);
        range.map(NodeId)
    }

    fn child_range(self, node: NodeId) -> Range<u32> {
        let first = u64::from(node.0) * u64::from(self.radix) + 1;
        let end = first + u64::from(self.radix);
        let within = |n: u64| u32::try_from(n).unwrap_or(u32::MAX).min(self.nodes);
        within(first)..within(end)
    }

    /// Whether both ends of an edge are these two.
    pub fn is_edge(self, a: NodeId, b: NodeId) -> bool {
        let exist = a.0 < self.nodes && b.0 < self.nodes;
        exist && (self.parent(a) == Some(b) || self.parent(b) == Some(a))
    }

    /// Edges from the root to the farthest node.
    pub fn depth(self) -> u32 {
        self.depth_of(NodeId(self.nodes - 1))
    }

    /// Edges from the root to `node`.
    pub fn depth_of(self, node: NodeId) -> u32 {
        // A chain is as deep as it is long; the loop below would be as long.
        if self.radix == 1 {
            return node.0;
        }
        let mut depth = 0;
        let mut at = node;
        while let Some(above) = self.parent(at) {
            depth += 1;
            at = above;
        }
        depth
    }

    /// Levels below `node`, along its first descendants, which are the deepest.
    pub fn height_of(self, node: NodeId) -> u32 {
        if self.radix == 1 {
            return self.nodes - 1 - node.0.min(self.nodes - 1);
        }
        let mut height = 0;
        let mut at = node;
        while let Some(below) = self.children(at).next() {
            height += 1;
            at = below;
        }
        height
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_node_is_its_parents_child() {
        for (nodes, radix) in [(1, 1), (2, 1), (5, 1), (63, 2), (64, 8), (65, 8), (130, 3)] {
            let shape = TreeShape::new(nodes, radix);
            let mut children = 0;
            for node in (0..nodes).map(NodeId) {
                assert!(shape.children(node).len() <= radix as usize);
                for child in shape.children(node) {
                    assert_eq!(shape.parent(child), Some(node));
                    assert!(shape.is_edge(node, child) && shape.is_edge(child, node));
                    assert_eq!(shape.depth_of(child), shape.depth_of(node) + 1);
                    children += 1;
                }
                let below = shape.children(node).map(|child| shape.height_of(child) + 1).max();
                assert_eq!(shape.height_of(node), below.unwrap_or(0));
            }
            assert_eq!(children, nodes - 1);
        }
    }

    #[test]
    fn small_jobs_are_flat_and_large_ones_shallow() {
        let shape = |nodes| {
            let shape = TreeShape::for_nodes(nodes);
            (shape.radix(), shape.depth())
        };
        assert_eq!(shape(1), (1, 0));
        assert_eq!(shape(3), (2, 1));
        assert_eq!(shape(33), (32, 1));
        assert_eq!(shape(64), (8, 2));
        assert_eq!(shape(10_000), (22, 3));
    }

    #[test]
    fn strangers_share_no_edge() {
        let shape = TreeShape::new(7, 2);
        assert!(!shape.is_edge(NodeId(1), NodeId(2)));
        assert!(!shape.is_edge(NodeId(3), NodeId(7)));
        assert!(!shape.is_edge(NodeId(0), NodeId(0)));
    }
}
