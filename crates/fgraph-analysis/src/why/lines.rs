//! Finds the few lines that explain a difference of time.

use std::cmp::Reverse;
use std::collections::HashMap;

use crate::tree::Tree;
use crate::waits::Cause;

/// The parts of a call's time, in ticks: by cause and place.
pub(super) type Parts = HashMap<(Cause, u32), u64>;
/// Differences of time, in ticks: by cause and place.
pub(super) type Differences = HashMap<(Cause, u32), f64>;

/// A line: ticks with one cause, at a place or in the calls that it makes.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Line {
    pub(super) cause: Cause,
    pub(super) place: u32,
    pub(super) ticks: f64,
    /// Calls that it makes, which have lines of their own.
    pub(super) except: Vec<u32>,
}

/// The part of the whole difference below which there is no line.
const LEAST: f64 = 0.02;
/// A call that has this part of the time of calls around it stands for them.
const MOST_OF_IT: f64 = 0.9;
/// A call that has this part of the time of its caller gets a line of its own.
const MUCH_OF_IT: f64 = 0.2;

/// Returns the mean of the parts of some calls.
pub(super) fn means<'p>(calls: impl ExactSizeIterator<Item = &'p Parts>) -> Differences {
    let count = calls.len().max(1) as f64;
    let mut means = Differences::new();
    for call in calls {
        for (&at, &ticks) in call {
            *means.entry(at).or_default() += ticks as f64 / count;
        }
    }
    means
}

/// Returns the lines that explain the differences, the largest first.
pub(super) fn explain(tree: &Tree, differences: &Differences) -> Vec<Line> {
    let whole: f64 = differences.values().sum();
    let mut by_cause: HashMap<Cause, Vec<f64>> = HashMap::new();
    for (&(cause, place), &ticks) in differences {
        let own = by_cause
            .entry(cause)
            .or_insert_with(|| vec![0.0; tree.nodes.len()]);
        own[place as usize] += ticks;
    }
    let mut lines = Vec::new();
    for (cause, mut all) in by_cause {
        // A node comes after its parent.
        for node in (1..all.len()).rev() {
            all[tree.nodes[node].parent as usize] += all[node];
        }
        let mut search = Search {
            tree,
            cause,
            all: &all,
            least: whole.max(0.0) * LEAST,
            lines: &mut lines,
        };
        search.add(0);
    }
    lines.sort_by(|a, b| b.ticks.total_cmp(&a.ticks).then(a.place.cmp(&b.place)));
    lines
}

/// The search for the lines of one cause.
struct Search<'s> {
    tree: &'s Tree,
    cause: Cause,
    /// The difference at each place and in the calls that it makes.
    all: &'s [f64],
    least: f64,
    lines: &'s mut Vec<Line>,
}

impl Search<'_> {
    /// Adds the lines of a place and of the calls that it makes.
    fn add(&mut self, first: u32) {
        let mut node = first as usize;
        let most = self.all[node] * MOST_OF_IT;
        loop {
            let ticks = self.all[node];
            if ticks < self.least || ticks <= 0.0 {
                return;
            }
            let mut children = self.tree.nodes[node].children.clone();
            children.sort_by_key(|&child| Reverse(self.all[child as usize].max(0.0) as u64));
            if let Some(&child) = children.first()
                && self.all[child as usize] >= most
            {
                node = child as usize;
                continue;
            }
            let is_large = |child: &&u32| self.all[**child as usize] >= ticks * MUCH_OF_IT;
            let large = children.iter().filter(is_large);
            let mut large: Vec<u32> = large.copied().collect();
            // A thread loses its processor wherever it is.
            if self.cause == Cause::Processor {
                large.clear();
            }
            let in_large: f64 = large.iter().map(|&child| self.all[child as usize]).sum();
            let rest = ticks - in_large;
            if rest >= self.least && rest > 0.0 {
                self.lines.push(Line {
                    cause: self.cause,
                    place: node as u32,
                    ticks: rest,
                    except: large.clone(),
                });
            }
            for child in large {
                self.add(child);
            }
            return;
        }
    }
}

/// Returns true if a place is another one, or in a call that it makes.
pub(super) fn is_within(tree: &Tree, mut place: u32, outer: u32) -> bool {
    // A node comes after its parent.
    while place > outer {
        place = tree.nodes[place as usize].parent;
    }
    place == outer
}

impl Line {
    /// Returns true if time at a place is part of this line.
    pub(super) fn has(&self, tree: &Tree, cause: Cause, place: u32) -> bool {
        let is_within = |outer: u32| is_within(tree, place, outer);
        let is_there = is_within(self.place) && !self.except.iter().any(|it| is_within(*it));
        cause == self.cause && is_there
    }

    /// Returns the ticks of a call that are part of this line.
    pub(super) fn ticks_of(&self, tree: &Tree, parts: &Parts) -> u64 {
        let parts = parts.iter();
        let own = parts.filter(|((cause, place), _)| self.has(tree, *cause, *place));
        own.map(|(_, ticks)| ticks).sum()
    }
}

#[cfg(test)]
mod tests;
