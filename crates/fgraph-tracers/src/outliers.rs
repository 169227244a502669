//! Records the slowest calls of some functions, each with all calls inside it.
//!
//! ```
//! use fgraph_tracers::outliers::{Limits, Outliers};
//!
//! // The slowest three of these calls, with what the C library does in them.
//! let limits = Limits { calls: 3, nodes: 1000 };
//! let outliers = Outliers::start("opendir", "*:mod:libc.so*", limits)?;
//! for _ in 0..10 {
//!     assert!(std::fs::read_dir("/proc/self/task")?.count() > 0);
//! }
//! let slowest = outliers.slowest();
//! assert_eq!(slowest.len(), 3);
//! println!("{}", slowest[0]);
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```

use core::sync::atomic::{AtomicPtr, AtomicU32, AtomicU64, AtomicUsize, Ordering};
use std::fmt;
use std::time::Duration;

use fgraph::{
    AnywhereHandle, AnywhereOps, Entry, Error, FgraphOps, Filter, IntoFilter, Recycle, Recycled,
    Return,
};

use crate::support::caller::write_function;
use crate::support::classes::{Classes, without_predicate};
use crate::support::kernel;
use crate::support::looking;
use crate::support::version::Version;
use crate::tracer::{OneUser, Tracer};

/// Limits of the memory for each thread: about `32 * (calls + 1) * nodes` bytes.
///
/// It is exhaustive, since callers write it as a literal: a new field breaks them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Limits {
    /// Number of slow calls, 1 to 1000.
    pub calls: usize,
    /// Number of calls in the tree of a slow call, itself included, 1 to 1,000,000. Further calls
    /// are only counted.
    pub nodes: usize,
}

impl Default for Limits {
    fn default() -> Self {
        Self {
            calls: 10,
            nodes: 1000,
        }
    }
}

/// Tracer of slow calls. Dropping it ends it.
///
/// A call that is not inside a chosen function costs a few loads; one inside costs two readings of
/// the clock and some stores. A call of a chosen function inside another one belongs to the tree of
/// the outer one.
#[derive(Debug)]
pub struct Outliers {
    user: AnywhereHandle<Record>,
}

impl OneUser for Outliers {
    fn user(&self) -> &dyn Tracer {
        &self.user
    }
}

impl Outliers {
    /// Starts to look for the slowest calls of the functions that `functions` selects. Their trees
    /// contain the calls of the functions that `within` selects.
    ///
    /// # Errors
    ///
    /// Same as for [`fgraph::register`], and
    /// [`PredicateAsText`](fgraph::FilterError::PredicateAsText) for `functions` with a predicate,
    /// because callbacks would have to call it.
    pub fn start(
        functions: impl IntoFilter,
        within: impl IntoFilter,
        limits: Limits,
    ) -> Result<Self, Error> {
        let functions = without_predicate(functions)?;
        let filter = within.into_filter()?.union(functions.clone());
        let record = Record {
            limits: Limits {
                calls: limits.calls.clamp(1, 1000),
                nodes: limits.nodes.clamp(1, 1_000_000),
            },
            functions,
            classes: Classes::new(),
            threads: Recycled::new(),
            lost: AtomicU64::new(0),
        };
        let user = fgraph::register_anywhere_with(record, filter, &looking::options())?;
        Ok(Self { user })
    }

    /// Returns the slowest calls of all threads that have returned, slowest first.
    pub fn slowest(&self) -> Vec<SlowCall> {
        let record = self.user.user();
        let threads = record.threads.iter();
        let calls = threads.flat_map(|state| state.read(record.limits));
        let mut calls: Vec<_> = calls.collect();
        calls.sort_by_key(|call| std::cmp::Reverse(call.took));
        calls.truncate(record.limits.calls);
        calls
    }

    /// Returns the number of calls whose trees were lost. A tree is lost without memory, or if a
    /// chosen function was called on another stack of the thread meanwhile.
    pub fn lost(&self) -> u64 {
        self.user.user().lost.load(Ordering::Relaxed)
    }
}

/// Slow call.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct SlowCall {
    /// Kernel id of the thread.
    pub thread: u32,
    /// Duration of the call.
    pub took: Duration,
    /// The call and the calls inside it, in the order of their entries.
    pub tree: Vec<Node>,
    /// Number of calls inside it that found no room.
    pub left_out: usize,
}

/// Call in a tree.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Node {
    /// Address of the function.
    pub function: usize,
    /// Number of calls of the tree that are around it.
    pub depth: usize,
    /// Time from the entry of the slow call to the entry of this one.
    pub after: Duration,
    /// Duration of the call; `None` if `longjmp` left it.
    pub took: Option<Duration>,
}

/// Writes durations and an indented tree, like the kernel's `function_graph`.
impl fmt::Display for SlowCall {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for node in &self.tree {
            match node.took {
                Some(took) => write!(f, "{:>12.3} us", took.as_secs_f64() * 1e6)?,
                None => write!(f, "{:>15}", "")?,
            }
            write!(f, " | {:1$}", "", 2 * node.depth)?;
            write_function(f, node.function)?;
            writeln!(f)?;
        }
        if self.left_out != 0 {
            writeln!(f, "{:>15} | {} more calls", "", self.left_out)?;
        }
        Ok(())
    }
}

/// Callbacks of the tracer.
#[derive(Debug)]
struct Record {
    limits: Limits,
    functions: Filter,
    classes: Classes,
    threads: Recycled<State>,
    lost: AtomicU64,
}

/// Node in zeroed memory.
#[derive(Debug)]
struct NodeCell {
    function: AtomicUsize,
    depth: AtomicUsize,
    entered: AtomicU64,
    /// Duration plus one; 0 before the call returns.
    took: AtomicU64,
}

/// Slow call that is kept.
#[derive(Debug)]
struct Kept {
    /// Version of the other fields and of the nodes.
    version: Version,
    /// Kernel id of the call's thread.
    thread: AtomicUsize,
    /// Duration of the call; 0 if there is no call.
    took: AtomicU64,
    /// Number of calls in its tree, including those without room.
    len: AtomicUsize,
    /// Index of the piece of memory with its nodes.
    piece: AtomicUsize,
}

/// State of a thread, including the calls of earlier threads with this state. It has `calls` kept
/// calls, and `calls + 1` pieces of `nodes` nodes. The last piece is for the running call at first.
#[derive(Debug, Default)]
struct State {
    /// Kernel id of the thread.
    thread: AtomicU32,
    kept: AtomicPtr<Kept>,
    nodes: AtomicPtr<NodeCell>,
    /// Number of mapped bytes.
    mapped: AtomicUsize,
    /// Index of the piece for the running call.
    piece: AtomicUsize,
    /// Number of calls in the running call's tree.
    len: AtomicUsize,
    /// Number of calls that had trees.
    run: AtomicU64,
}

impl Recycle for State {
    /// A call in which the previous thread ended is lost.
    fn begin(&self, thread: u32) {
        self.run
            .store(self.run.load(Ordering::Relaxed) + 1, Ordering::Relaxed);
        self.thread.store(thread, Ordering::Relaxed);
    }
}

/// Data that a call carries from entry to return.
#[derive(Clone, Copy, Debug)]
struct Call {
    run: u64,
    nth: usize,
    depth: usize,
    entered: u64,
}

// SAFETY: the callbacks only use the clock, atomics, and memory that they map.
unsafe impl AnywhereOps for Record {}

impl FgraphOps for Record {
    type Data = Call;

    fn entry(&self, call: &mut Entry<'_, Call>) -> Option<Call> {
        let around = call.parent_data().copied();
        if around.is_none() {
            let is_it = |_, facts: &fgraph::FunctionFacts<'_>| self.functions.matches(facts);
            if self.classes.of(call.function(), 1, is_it) == 0 {
                return None;
            }
        }
        let state = call.recycled(&self.threads)?;
        if state.kept.load(Ordering::Relaxed).is_null() && state.map(self.limits).is_none() {
            self.lost.fetch_add(1, Ordering::Relaxed);
            return None;
        }
        let run = state.run.load(Ordering::Relaxed);
        let (run, depth) = match around {
            Some(around) if around.run == run => (run, around.depth + 1),
            // The call is inside one whose tree was lost.
            Some(_) => return None,
            None => {
                state.run.store(run + 1, Ordering::Relaxed);
                state.len.store(0, Ordering::Relaxed);
                (run + 1, 0)
            }
        };
        let nth = state.len.load(Ordering::Relaxed);
        state.len.store(nth + 1, Ordering::Relaxed);
        let entered = kernel::now();
        if let Some(node) = state.node(self.limits, nth) {
            let function = call.function().address();
            node.function.store(function, Ordering::Relaxed);
            node.depth.store(depth, Ordering::Relaxed);
            node.entered.store(entered, Ordering::Relaxed);
            node.took.store(0, Ordering::Relaxed);
        }
        Some(Call {
            run,
            nth,
            depth,
            entered,
        })
    }

    fn ret(&self, call: &mut Return<'_, Call>, data: Call) {
        let took = kernel::now().saturating_sub(data.entered);
        let state = call.recycled(&self.threads);
        let state = state.filter(|state| state.run.load(Ordering::Relaxed) == data.run);
        let Some(state) = state else {
            self.lost
                .fetch_add(u64::from(data.depth == 0), Ordering::Relaxed);
            return;
        };
        if let Some(node) = state.node(self.limits, data.nth) {
            node.took.store(took + 1, Ordering::Relaxed);
        }
        if data.depth == 0 {
            state.keep(self.limits, took);
        }
    }
}

impl State {
    #[cold]
    fn map(&self, limits: Limits) -> Option<()> {
        let kept = limits.calls * size_of::<Kept>();
        let len = kept + (limits.calls + 1) * limits.nodes * size_of::<NodeCell>();
        let memory = kernel::map(len)?;
        self.mapped.store(len, Ordering::Relaxed);
        self.piece.store(limits.calls, Ordering::Relaxed);
        // SAFETY: the result is inside the mapping, and aligned, as both types consist of words.
        let nodes = unsafe { memory.add(kept) };
        self.nodes.store(nodes.cast(), Ordering::Relaxed);
        let kept: *mut Kept = memory.cast();
        for nth in 0..limits.calls {
            // SAFETY: `nth` is within the kept calls, which were just mapped.
            unsafe { (*kept.add(nth)).piece.store(nth, Ordering::Relaxed) };
        }
        // Release: a thread that loads the pointer sees the stores above.
        self.kept.store(kept, Ordering::Release);
        Some(())
    }

    fn kept(&self, limits: Limits) -> &[Kept] {
        // Acquire: pairs with the Release in `map`.
        let kept = self.kept.load(Ordering::Acquire);
        if kept.is_null() {
            return &[];
        }
        // SAFETY: the mapping holds this number of kept calls, zeros at first, while the state
        // lives.
        unsafe { core::slice::from_raw_parts(kept, limits.calls) }
    }

    /// Returns the nodes of a piece.
    fn piece(&self, limits: Limits, piece: usize) -> &[NodeCell] {
        let nodes = self.nodes.load(Ordering::Relaxed);
        if nodes.is_null() || piece > limits.calls {
            return &[];
        }
        // SAFETY: the mapping holds one piece more than kept calls, zeros at first, while the state
        // lives.
        unsafe { core::slice::from_raw_parts(nodes.add(piece * limits.nodes), limits.nodes) }
    }

    /// Returns a node of the running call, if there is room for it.
    fn node(&self, limits: Limits, nth: usize) -> Option<&NodeCell> {
        let piece = self.piece.load(Ordering::Relaxed);
        self.piece(limits, piece).get(nth)
    }

    /// Keeps a call that has ended in the place of the fastest kept one.
    fn keep(&self, limits: Limits, took: u64) {
        let kept = self.kept(limits).iter();
        let fastest = kept.min_by_key(|kept| kept.took.load(Ordering::Relaxed));
        let Some(kept) = fastest else { return };
        // 0 marks an empty place.
        let took = took.max(1);
        if kept.took.load(Ordering::Relaxed) >= took {
            return;
        }
        let ours = self.piece.load(Ordering::Relaxed);
        let theirs = kept.piece.load(Ordering::Relaxed);
        kept.version.change(|| {
            kept.piece.store(ours, Ordering::Relaxed);
            let thread = self.thread.load(Ordering::Relaxed);
            kept.thread.store(thread as usize, Ordering::Relaxed);
            kept.took.store(took, Ordering::Relaxed);
            kept.len
                .store(self.len.load(Ordering::Relaxed), Ordering::Relaxed);
        });
        // Later writes to that piece come after the version.
        self.piece.store(theirs, Ordering::Release);
    }

    /// Returns the kept calls.
    fn read(&self, limits: Limits) -> Vec<SlowCall> {
        let calls = self.kept(limits).iter().filter_map(|kept| {
            // Nodes of a call that is no longer kept are overwritten only after its version has
            // changed.
            let call = kept.version.read_whole(|| {
                let len = kept.len.load(Ordering::Relaxed);
                let thread = kept.thread.load(Ordering::Relaxed) as u32;
                let took = kept.took.load(Ordering::Relaxed);
                let nodes = self.piece(limits, kept.piece.load(Ordering::Relaxed));
                let nodes = nodes.get(..len.min(limits.nodes)).unwrap_or_default();
                let begin = nodes
                    .first()
                    .map_or(0, |node| node.entered.load(Ordering::Relaxed));
                (took != 0).then(|| SlowCall {
                    thread,
                    took: kernel::duration(took),
                    tree: nodes.iter().map(|node| node.read(begin)).collect(),
                    left_out: len.saturating_sub(limits.nodes),
                })
            });
            call.ok().flatten()
        });
        calls.collect()
    }
}

impl NodeCell {
    fn read(&self, begin: u64) -> Node {
        let entered = self.entered.load(Ordering::Relaxed);
        let took = self.took.load(Ordering::Relaxed);
        Node {
            function: self.function.load(Ordering::Relaxed),
            depth: self.depth.load(Ordering::Relaxed),
            after: kernel::duration(entered.saturating_sub(begin)),
            took: took.checked_sub(1).map(kernel::duration),
        }
    }
}

impl Drop for State {
    fn drop(&mut self) {
        let kept = *self.kept.get_mut();
        if !kept.is_null() {
            // SAFETY: the memory was mapped with this length, and nothing refers to it any more.
            unsafe { kernel::unmap(kept.cast(), *self.mapped.get_mut()) };
        }
    }
}
