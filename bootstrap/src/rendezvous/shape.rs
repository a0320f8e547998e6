//! Shape of the tree of agents: parents and children, computed from node numbers.

use crate::id::NodeId;
use std::ops::Range;

/// Maximum number of children of a node. With more children, serving them takes longer than another
/// level of the tree.
const MAX_CHILDREN: u32 = 32;

/// Complete tree of the nodes from 0 to `nodes - 1`, filled level by level. Node 0 is the root; the
/// parent of node `n` is `(n - 1) / radix`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TreeShape {
    nodes: u32,
    radix: u32,
}

impl TreeShape {
    /// Makes a tree in which each node has at most `radix` children. Both arguments are raised to 1
    /// if they are 0.
    pub fn new(nodes: u32, radix: u32) -> TreeShape {
        TreeShape { nodes: nodes.max(1), radix: radix.max(1) }
    }

    /// Returns the tree for `nodes` nodes that has the least depth possible with at most 32
    /// children per node and, at this depth, the fewest children per node.
    pub fn for_nodes(nodes: u32) -> TreeShape {
        let depth = TreeShape::new(nodes, MAX_CHILDREN).depth();
        let narrowest =
            (1..MAX_CHILDREN).find(|&radix| TreeShape::new(nodes, radix).depth() <= depth);
        TreeShape::new(nodes, narrowest.unwrap_or(MAX_CHILDREN))
    }

    /// Returns the number of nodes in the tree.
    pub fn nodes(self) -> u32 {
        self.nodes
    }

    /// Returns the maximum number of children of a node.
    pub fn radix(self) -> u32 {
        self.radix
    }

    /// Returns the parent of a node, or `None` for the root.
    pub fn parent(self, node: NodeId) -> Option<NodeId> {
        node.0.checked_sub(1).map(|above| NodeId(above / self.radix))
    }

    /// Returns the children of a node.
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

    /// Tells whether an edge connects the two nodes, so that one is the parent of the other.
    pub fn is_edge(self, a: NodeId, b: NodeId) -> bool {
        let exist = a.0 < self.nodes && b.0 < self.nodes;
        exist && (self.parent(a) == Some(b) || self.parent(b) == Some(a))
    }

    /// Returns the number of edges from the root to the farthest node.
    pub fn depth(self) -> u32 {
        self.depth_of(NodeId(self.nodes - 1))
    }

    /// Returns the number of edges from the root to a node.
    pub fn depth_of(self, node: NodeId) -> u32 {
        // In a chain, the loop below would take as many steps as there are nodes.
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

    /// Returns the number of levels below a node: the length of the path through first children.
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
