//! Calls by stack.

use std::cmp::Reverse;
use std::collections::{BinaryHeap, HashMap, HashSet};

use crate::calls::Slot;
use serde::{Deserialize, Serialize};

/// The calls of a function from one place of a tree. Times are in nanoseconds.
#[derive(Debug, Default, Serialize, Deserialize)]
pub struct Node {
    /// The slot of the function.
    pub slot: Slot,
    /// The node of the calls around it.
    pub parent: u32,
    /// The number of calls.
    pub hits: u64,
    /// Their time.
    pub total: u64,
    /// Their time without the calls in them.
    pub own: u64,
    /// The nodes of the calls in them.
    pub children: Vec<u32>,
}

/// The number of children of a node that are found without hashing.
const FEW: usize = 8;

/// A tree of calls; the node 0 is its root.
#[derive(Debug, Serialize, Deserialize)]
pub struct Tree {
    /// The nodes; each comes after its parent.
    pub nodes: Vec<Node>,
    /// By parent and function; empty in a summary.
    #[serde(skip)]
    places: HashMap<(u32, Slot), u32>,
}

/// Makes a tree with only a root.
impl Default for Tree {
    fn default() -> Self {
        Self {
            nodes: vec![Node::default()],
            places: HashMap::new(),
        }
    }
}

impl Tree {
    /// Returns the node for calls of a function that a node makes.
    #[inline]
    pub fn child(&mut self, parent: u32, slot: Slot) -> u32 {
        let few = self.nodes[parent as usize].children.iter().take(FEW);
        for &child in few {
            if self.nodes[child as usize].slot == slot {
                return child;
            }
        }
        self.look_up(parent, slot)
    }

    #[cold]
    fn look_up(&mut self, parent: u32, slot: Slot) -> u32 {
        let next = self.nodes.len() as u32;
        let child = *self.places.entry((parent, slot)).or_insert(next);
        if child == next {
            self.nodes.push(Node {
                slot,
                parent,
                ..Node::default()
            });
            self.nodes[parent as usize].children.push(child);
        }
        child
    }

    /// Does the same as [`child`](Self::child), in a tree that may not grow any more.
    #[must_use]
    pub fn known_child(&self, parent: u32, slot: Slot) -> Option<u32> {
        self.places.get(&(parent, slot)).copied()
    }

    /// Counts a call, its time, and its time without the calls in it.
    pub fn add(&mut self, node: u32, took: u64, own: u64) {
        let node = &mut self.nodes[node as usize];
        node.hits += 1;
        node.total = node.total.saturating_add(took);
        node.own = node.own.saturating_add(own);
    }

    /// Leaves only this number of nodes below the root: those with the longest times whose parents
    /// are left, too.
    pub fn keep_longest(&mut self, most: usize) {
        let mut next = BinaryHeap::from([(0, Reverse(0))]);
        let mut kept = HashSet::new();
        // The root counts as none.
        while kept.len() <= most
            && let Some((_, Reverse(node))) = next.pop()
        {
            kept.insert(node);
            let children = self.nodes[node as usize].children.iter();
            next.extend(children.map(|&it| (self.nodes[it as usize].total, Reverse(it))));
        }
        for node in &mut self.nodes {
            node.children.retain(|child| kept.contains(child));
        }
    }

    /// Sorts the children of each node by time, the longest first.
    pub fn sort(&mut self) {
        for node in 0..self.nodes.len() {
            let mut children = std::mem::take(&mut self.nodes[node].children);
            children.sort_by_key(|&child| Reverse(self.nodes[child as usize].total));
            self.nodes[node].children = children;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn longest_nodes_are_kept_below_their_parents() {
        let mut tree = Tree::default();
        let long = tree.child(0, 1);
        let short = tree.child(0, 2);
        let below_long = tree.child(long, 3);
        let below_short = tree.child(short, 4);
        for (node, took) in [(long, 90), (short, 20), (below_long, 30), (below_short, 80)] {
            tree.add(node, took, 0);
        }
        tree.sort();
        let kept = |tree: &Tree| {
            let nodes = tree.nodes.iter();
            let mut kept: Vec<u32> = nodes.flat_map(|it| it.children.clone()).collect();
            kept.sort_unstable();
            kept
        };
        tree.keep_longest(usize::MAX);
        assert_eq!(kept(&tree), [long, short, below_long, below_short]);
        tree.keep_longest(3);
        assert_eq!(kept(&tree), [long, short, below_long]);
        tree.keep_longest(2);
        assert_eq!(kept(&tree), [long, below_long]);
        tree.keep_longest(0);
        assert!(kept(&tree).is_empty());
    }
}
