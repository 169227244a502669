//! The slowest calls, each with the calls inside it.
//!
//! Events are read for the usual times of functions, for the calls that took longest, and for the
//! calls inside these. The first two are one reading if the functions are named.

use std::cmp::Reverse;
use std::collections::BinaryHeap;
use std::convert::Infallible;

use fgraph_trace::Source;
use fgraph_trace::clock::Clock;
use fgraph_trace::graph::Matcher;
use fgraph_trace::source::SourceError;

use crate::calls::{self, At, Call, Calls, Ending, Function, Open, Slot, ThreadId, Views, Visitor};
use crate::stats::Stats;

/// The usual times of functions.
#[derive(Debug)]
struct Usual {
    clock: Clock,
    stats: Vec<Stats>,
}

impl Visitor for Usual {
    type Error = Infallible;

    fn function(&mut self, _: &Function) {
        self.stats.push(Stats::default());
    }

    fn exit(&mut self, _: &At<'_>, call: &Call) -> Result<(), Infallible> {
        calls::count(
            call,
            &self.clock,
            false,
            &mut self.stats[call.slot as usize],
        );
        Ok(())
    }
}

/// A slow call, ordered by slowness. Times are in ticks.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Slow {
    score: u64,
    /// Its time.
    pub took: u64,
    /// The time at which it began.
    pub begin: u64,
    /// The number of its thread.
    pub thread: usize,
    /// The slot of its function.
    pub slot: Slot,
    depth: usize,
}

impl Slow {
    /// Makes a call that has ended in a thread, and that this number of calls contain.
    #[must_use]
    pub fn new(thread: usize, depth: usize, call: &Call) -> Self {
        Self {
            score: 0,
            took: call.ran,
            begin: call.begin,
            thread,
            slot: call.slot,
            depth,
        }
    }

    /// Returns true if it contains another call.
    fn has(&self, other: &Self) -> bool {
        let end = self.begin.saturating_add(self.took);
        self.thread == other.thread && self.begin <= other.begin && other.begin < end
    }
}

/// The slowest calls.
struct Slowest {
    wanted: Option<Matcher>,
    /// The usual times in ticks, from which scores count; `None` for functions that are ignored.
    usual: Vec<Option<u64>>,
    /// The same, for functions by slot.
    from: Vec<Option<u64>>,
    number: usize,
    found: BinaryHeap<Reverse<Slow>>,
}

impl Slowest {
    /// Starts to look for the slowest calls of `wanted` functions, or of functions that have a
    /// usual time in ticks.
    fn new(wanted: Option<Matcher>, usual: Vec<Option<u64>>, number: usize) -> Self {
        Self {
            wanted,
            usual,
            from: Vec::new(),
            number: number.saturating_mul(SPARE),
            found: BinaryHeap::new(),
        }
    }

    /// Returns the slowest calls, the slowest first, none inside another one.
    fn into_slow(self, number: usize) -> Vec<Slow> {
        let mut slow: Vec<Slow> = Vec::new();
        for Reverse(next) in self.found.into_sorted_vec() {
            // A call inside another one is shown there.
            slow.retain(|shown| !next.has(shown) || shown.has(&next));
            if !slow.iter().any(|shown| shown.has(&next)) {
                slow.push(next);
            }
        }
        slow.truncate(number);
        slow
    }
}

impl Visitor for Slowest {
    type Error = Infallible;

    fn function(&mut self, function: &Function) {
        let from = match &self.wanted {
            Some(wanted) => wanted(&function.name, &function.module).then_some(0),
            // They are met in the same order each time.
            None => self.usual.get(self.from.len()).copied().flatten(),
        };
        self.from.push(from);
    }

    fn exit(&mut self, at: &At<'_>, call: &Call) -> Result<(), Infallible> {
        let thread = at.thread.index;
        let Some(from) = self.from[call.slot as usize] else {
            return Ok(());
        };
        let score = call.ran.saturating_sub(from);
        let is_slower = match self.found.peek() {
            Some(Reverse(least)) => self.found.len() < self.number || score > least.score,
            None => true,
        };
        // A requested call that is in progress at the end has taken long until then.
        let is_known = match call.ending {
            Ending::Open => self.wanted.is_some(),
            _ => call.duration().is_some(),
        };
        if !is_slower || score == 0 || !is_known {
            return Ok(());
        }
        self.found.push(Reverse(Slow {
            score,
            ..Slow::new(thread, at.around.len(), call)
        }));
        if self.found.len() > self.number {
            self.found.pop();
        }
        Ok(())
    }
}

/// The usual times of functions that were named, and their slowest calls.
struct Named {
    usual: Usual,
    slowest: Slowest,
}

impl Visitor for Named {
    type Error = Infallible;

    fn function(&mut self, function: &Function) {
        self.usual.function(function);
        self.slowest.function(function);
    }

    fn exit(&mut self, at: &At<'_>, call: &Call) -> Result<(), Infallible> {
        // Usual times of other functions are not shown.
        if self.slowest.from[call.slot as usize].is_some() {
            self.usual.exit(at, call)?;
            self.slowest.exit(at, call)?;
        }
        Ok(())
    }
}

/// A call in a slow one, or that itself. Times are in ticks.
#[derive(Clone, Copy, Debug)]
pub struct Inner {
    /// The slot of its function.
    pub slot: Slot,
    /// The time at which it began.
    pub begin: u64,
    /// The time until its end, or the time that it ran for certain.
    pub took: u64,
    /// The part of that outside of the calls in it.
    pub own: u64,
    /// The number of calls in the slow one that contain it, the slow one included.
    pub depth: usize,
    /// The way in which it ended.
    pub ending: Ending,
}

/// A slow call, and the calls in it.
#[derive(Debug)]
pub struct Tree {
    /// The slow call.
    pub slow: Slow,
    /// Ticks below which a call in it is only counted.
    pub least: u64,
    /// The number of calls around it while it is in progress; these are not all that there were.
    around: Option<usize>,
    /// The slow call and the calls in it, in the order in which they began.
    pub inner: Vec<Inner>,
    /// The number of calls in it that are only counted.
    pub left_out: u64,
}

/// The calls inside the slow calls. Slots and threads of these are those of the first reading.
struct Trees<'f> {
    trees: Vec<Tree>,
    first: &'f Calls<Views>,
    /// The slots and the threads of the first reading, by those of this one.
    slots: Vec<Option<Slot>>,
    threads: Vec<Option<usize>>,
}

impl Visitor for Trees<'_> {
    type Error = Infallible;

    fn function(&mut self, function: &Function) {
        self.slots.push(self.first.functions.slot_of(function));
    }

    fn thread(&mut self, at: &At<'_>) -> Result<(), Infallible> {
        let ThreadId { process, id, .. } = at.thread;
        self.threads.push(self.first.number_of((process, id)));
        Ok(())
    }

    fn enter(&mut self, at: &At<'_>, call: &Open) -> Result<(), Infallible> {
        let thread = at.thread.index;
        let (thread, slot) = (self.threads[thread], self.slots[call.data as usize]);
        let is_it = |tree: &&mut Tree| {
            let slow = &tree.slow;
            slow.begin == call.begin
                && tree.inner.is_empty()
                && (Some(slow.thread), Some(slow.slot)) == (thread, slot)
        };
        if let Some(tree) = self.trees.iter_mut().find(is_it) {
            tree.around.get_or_insert(at.around.len());
        }
        Ok(())
    }

    fn exit(&mut self, at: &At<'_>, call: &Call) -> Result<(), Infallible> {
        let thread = at.thread.index;
        let (thread, slot) = (self.threads[thread], self.slots[call.slot as usize]);
        for tree in &mut self.trees {
            let Some(depth) = tree.around.filter(|_| thread == Some(tree.slow.thread)) else {
                continue;
            };
            if at.around.len() == depth {
                tree.around = None;
                if call.ran != tree.slow.took {
                    // It was another call of the function, which began at the same tick.
                    (tree.inner, tree.left_out) = (Vec::new(), 0);
                    continue;
                }
            }
            if call.ran < tree.least || tree.inner.len() >= MAX_LINES {
                tree.left_out += 1;
                continue;
            }
            tree.inner.extend(slot.map(|slot| Inner {
                slot,
                begin: call.begin,
                took: call.ran,
                own: call.own,
                depth: at.around.len() - depth,
                ending: call.ending,
            }));
        }
        Ok(())
    }
}

/// The most calls of one tree that are shown.
const MAX_LINES: usize = 1000;
/// The number of candidates for each shown call, because some are inside others.
const SPARE: usize = 16;
/// The fewest calls with which a function has a usual time.
const LEAST_CALLS: u64 = 10;

/// The calls of a source, and the usual times of their functions, by slot.
pub type Read = (Calls<Views>, Vec<Stats>);

/// Reads the calls and the usual times of all functions.
///
/// # Errors
///
/// Errors of the source.
pub fn usual(source: &mut impl Source) -> Result<Read, SourceError> {
    let mut usual = Usual {
        clock: *source.clock(),
        stats: Vec::new(),
    };
    let calls = calls::follow(source, &mut usual)?;
    Ok((calls, usual.stats))
}

/// Returns the calls that took longest beyond the median of their function, the slowest first, none
/// inside another one. `usual` is from a reading of the same events.
///
/// # Errors
///
/// Errors of the source.
pub fn beyond_usual(
    source: &mut impl Source,
    usual: &[Stats],
    number: usize,
) -> Result<Vec<Slow>, SourceError> {
    let rate = u128::from(source.clock().ticks_per_second());
    let median = |stats: &Stats| {
        let ticks = u128::from(stats.percentile(500)) * rate / 1_000_000_000;
        let ticks = u64::try_from(ticks).unwrap_or(u64::MAX);
        (stats.hits >= LEAST_CALLS).then_some(ticks)
    };
    let mut slowest = Slowest::new(None, usual.iter().map(median).collect(), number);
    calls::follow(source, &mut slowest)?;
    Ok(slowest.into_slow(number))
}

/// Reads the calls, the usual times of `wanted` functions, and the slowest calls of these, the
/// slowest first, none inside another one.
///
/// # Errors
///
/// Errors of the source.
pub fn of_functions(
    source: &mut impl Source,
    wanted: Matcher,
    number: usize,
) -> Result<(Read, Vec<Slow>), SourceError> {
    let mut named = Named {
        usual: Usual {
            clock: *source.clock(),
            stats: Vec::new(),
        },
        slowest: Slowest::new(Some(wanted), Vec::new(), number),
    };
    let calls = calls::follow(source, &mut named)?;
    let slow = named.slowest.into_slow(number);
    Ok(((calls, named.usual.stats), slow))
}

/// Reads the calls inside slow calls from a source that has their events. `first` is from a reading
/// of all events. Calls are only counted that took less than this part of the slow one.
///
/// # Errors
///
/// Errors of the source.
pub fn trees(
    source: &mut impl Source,
    first: &Calls<Views>,
    slow: Vec<Slow>,
    part: f64,
) -> Result<Vec<Tree>, SourceError> {
    let tree = |slow: Slow| Tree {
        slow,
        least: (slow.took as f64 * part) as u64,
        around: None,
        inner: Vec::new(),
        left_out: 0,
    };
    let mut trees = Trees {
        trees: slow.into_iter().map(tree).collect(),
        first,
        slots: Vec::new(),
        threads: Vec::new(),
    };
    calls::follow(source, &mut trees)?;
    for tree in &mut trees.trees {
        tree.inner.sort_by_key(|call| (call.begin, call.depth));
    }
    Ok(trees.trees)
}
