//! Calls by the stacks that they were made on.

use std::cmp::Reverse;
use std::collections::HashMap;

use crate::calls::Slot;

/// Calls of a function from one place of a tree. Times are in nanoseconds.
#[derive(Debug, Default)]
pub(crate) struct Node {
    pub(crate) slot: Slot,
    pub(crate) parent: u32,
    pub(crate) hits: u64,
    pub(crate) total: u64,
    pub(crate) own: u64,
    pub(crate) children: Vec<u32>,
}

/// A tree of calls; the node 0 is its root.
#[derive(Debug)]
pub(crate) struct Tree {
    pub(crate) nodes: Vec<Node>,
    /// By parent and function.
    places: HashMap<(u32, Slot), u32>,
}

impl Tree {
    /// A tree with a root only.
    pub(crate) fn new() -> Self {
        Self {
            nodes: vec![Node::default()],
            places: HashMap::new(),
        }
    }

    /// The node of calls of a function that a node makes.
    pub(crate) fn child(&mut self, parent: u32, slot: Slot) -> u32 {
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

    /// As [`child`](Self::child), where the tree may not grow any more.
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

    /// Puts the children of each node in the order of their times, the longest first.
    pub(crate) fn sort(&mut self) {
        for node in 0..self.nodes.len() {
            let mut children = std::mem::take(&mut self.nodes[node].children);
            children.sort_by_key(|&child| Reverse(self.nodes[child as usize].total));
            self.nodes[node].children = children;
        }
    }
}
