//! Calls by stack.

use std::cmp::Reverse;
use std::collections::HashMap;

use fgraph_analysis::calls::Slot;

/// The calls of a function from one place of a tree. Times are in nanoseconds.
#[derive(Debug, Default)]
pub(crate) struct Node {
    pub(crate) slot: Slot,
    pub(crate) parent: u32,
    pub(crate) hits: u64,
    pub(crate) total: u64,
    pub(crate) own: u64,
    pub(crate) children: Vec<u32>,
}

/// The number of children of a node that are found without hashing.
const FEW: usize = 8;

/// A tree of calls; the node 0 is its root.
#[derive(Debug)]
pub(crate) struct Tree {
    pub(crate) nodes: Vec<Node>,
    /// By parent and function.
    places: HashMap<(u32, Slot), u32>,
}

impl Tree {
    /// Makes a tree with only a root.
    pub(crate) fn new() -> Self {
        Self {
            nodes: vec![Node::default()],
            places: HashMap::new(),
        }
    }

    /// Returns the node for calls of a function that a node makes.
    #[inline]
    pub(crate) fn child(&mut self, parent: u32, slot: Slot) -> u32 {
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
    pub(crate) fn known_child(&self, parent: u32, slot: Slot) -> Option<u32> {
        self.places.get(&(parent, slot)).copied()
    }

    /// Counts a call, its time, and its time without the calls in it.
    pub(crate) fn add(&mut self, node: u32, took: u64, own: u64) {
        let node = &mut self.nodes[node as usize];
        node.hits += 1;
        node.total = node.total.saturating_add(took);
        node.own = node.own.saturating_add(own);
    }

    /// Sorts the children of each node by time, the longest first.
    pub(crate) fn sort(&mut self) {
        for node in 0..self.nodes.len() {
            let mut children = std::mem::take(&mut self.nodes[node].children);
            children.sort_by_key(|&child| Reverse(self.nodes[child as usize].total));
            self.nodes[node].children = children;
        }
    }
}
