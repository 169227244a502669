//! Tree of the distinct stacks of an export.

use std::collections::HashMap;

use fgraph_analysis::calls::{Call, Slot, ThreadId};

/// Meaning of a node of the tree.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) enum Frame {
    /// Root of a process's stacks.
    Process(u32),
    /// Function that is called by the parent's.
    Function(Slot),
}

/// Stack: this frame, called by its parent, and so on.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Node {
    pub(crate) frame: Frame,
    parent: u32,
    pub(crate) calls: u64,
    /// Nanoseconds with the calls in it.
    pub(crate) total: u64,
    /// Nanoseconds without the calls in it.
    pub(crate) own: u64,
}

impl Node {
    /// Returns the number of the parent, which is smaller than its own, or its own at a root.
    pub(crate) fn parent(&self) -> usize {
        self.parent as usize
    }
}

/// Distinct stacks, and the current one of each thread.
#[derive(Debug, Default)]
pub(crate) struct Stacks {
    nodes: Vec<Node>,
    /// Roots by process.
    roots: HashMap<u32, u32>,
    /// Children by parent, in the upper half, and function: one word is hashed faster than two.
    children: HashMap<u64, u32>,
    /// Current stack of each thread.
    current: Vec<u32>,
}

/// Most functions of a stack that are written.
const MAX_FRAMES: usize = 1024;

fn push(nodes: &mut Vec<Node>, frame: Frame, parent: Option<u32>) -> u32 {
    let number = nodes.len() as u32;
    nodes.push(Node {
        frame,
        parent: parent.unwrap_or(number),
        calls: 0,
        total: 0,
        own: 0,
    });
    number
}

impl Stacks {
    /// Called before the first call of a thread, which is the next one by its index.
    pub(crate) fn thread(&mut self, thread: ThreadId) {
        let root = self.roots.entry(thread.process);
        let new = || push(&mut self.nodes, Frame::Process(thread.process), None);
        self.current.push(*root.or_insert_with(new));
    }

    /// Returns the number of a thread's current stack, or that of a root outside of all calls.
    pub(crate) fn current(&self, thread: ThreadId) -> usize {
        self.current[thread.index] as usize
    }

    pub(crate) fn begin(&mut self, thread: ThreadId, symbol: Slot) {
        let current = &mut self.current[thread.index];
        let parent = *current;
        let child = self
            .children
            .entry(u64::from(parent) << 32 | u64::from(symbol));
        let new = || push(&mut self.nodes, Frame::Function(symbol), Some(parent));
        *current = *child.or_insert_with(new);
    }

    pub(crate) fn end(&mut self, thread: ThreadId, call: &Call) {
        let current = &mut self.current[thread.index];
        let node = &mut self.nodes[*current as usize];
        node.calls += 1;
        node.total += call.measured.ran;
        node.own += call.measured.own;
        *current = node.parent;
    }

    /// Returns all stacks, each after its parent.
    pub(crate) fn nodes(&self) -> &[Node] {
        &self.nodes
    }

    /// Returns the calls and the own time of each stack. If a stack has more than [`MAX_FRAMES`],
    /// they count for its outermost frames, because the lines of all stacks would otherwise be as
    /// long as the square of the depth.
    pub(crate) fn cut(&self) -> Vec<(u64, u64)> {
        let mut sums = vec![(0, 0); self.nodes.len()];
        // For each stack, its number of frames, and the stack that it counts for.
        let mut places: Vec<(usize, usize)> = Vec::with_capacity(self.nodes.len());
        for (at, node) in self.nodes.iter().enumerate() {
            let place = match places.get(node.parent()) {
                Some(&(frames, whole)) if frames == MAX_FRAMES => (frames, whole),
                Some(&(frames, _)) => (frames + 1, at),
                None => (0, at),
            };
            let sum: &mut (u64, u64) = &mut sums[place.1];
            sum.0 += node.calls;
            sum.1 += node.own;
            places.push(place);
        }
        sums
    }
}
