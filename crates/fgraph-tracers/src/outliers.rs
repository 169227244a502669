//! The slowest calls of some functions, each with all that was called within it.
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

use core::sync::atomic::{AtomicPtr, AtomicU32, AtomicU64, AtomicUsize, Ordering, fence};
use std::fmt;
use std::time::Duration;

use fgraph::{Entry, Error, FgraphOps, Filter, Handle, IntoFilter, Recycle, Recycled, Return};

use crate::support::caller::write_function;
use crate::support::classes::{Classes, without_predicate};
use crate::support::kernel;
use crate::support::looking;

/// Attempts to read a call that is being replaced.
const ATTEMPTS: usize = 100;

/// How much is kept of each thread: about `32 * (calls + 1) * nodes` bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Limits {
    /// Slow calls, 1 to 1000.
    pub calls: usize,
    /// Calls in the tree of one, with it, 1 to 1,000,000. Further ones are counted.
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

/// A tracer of slow calls at work; dropping it ends it.
///
/// A call of a function that is not within one of the chosen ones costs a few loads, one within it
/// two readings of the clock and some stores. Calls of a chosen function within another one belong
/// to the tree of that.
#[derive(Debug)]
pub struct Outliers {
    user: Handle<Record>,
}

crate::tracer::tracer!(Outliers);

impl Outliers {
    /// Starts to look for the slowest calls of the functions that `functions` selects; the trees
    /// have the calls of those that `within` selects.
    ///
    /// # Errors
    ///
    /// As for [`fgraph::register`], and [`PredicateAsText`](fgraph::FilterError::PredicateAsText)
    /// for `functions` with a predicate, which would be asked in callbacks.
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
        // SAFETY: the callbacks use the clock, atomics, and memory that they map.
        let user = unsafe { fgraph::register_with(record, filter, &looking::options()) }?;
        Ok(Self { user })
    }

    /// The slowest calls of all threads that have returned, the slowest first.
    pub fn slowest(&self) -> Vec<SlowCall> {
        let record = &*self.user;
        let threads = record.threads.iter();
        let calls = threads.flat_map(|state| state.read(record.limits));
        let mut calls: Vec<_> = calls.collect();
        calls.sort_by_key(|call| std::cmp::Reverse(call.took));
        calls.truncate(record.limits.calls);
        calls
    }

    /// Calls whose trees were lost: there was no memory, or a chosen function was called on
    /// another stack of the thread meanwhile.
    pub fn lost(&self) -> u64 {
        self.user.lost.load(Ordering::Relaxed)
    }
}

/// A slow call.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct SlowCall {
    /// The kernel's id of the thread.
    pub thread: u32,
    /// How long it took.
    pub took: Duration,
    /// The call and those within it, as they were entered.
    pub tree: Vec<Node>,
    /// Calls within it that found no room.
    pub left_out: usize,
}

/// A call in a tree.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Node {
    /// The address of the function.
    pub function: usize,
    /// How many calls of the tree are around it.
    pub depth: usize,
    /// When it was entered, from the entry of the slow call on.
    pub after: Duration,
    /// How long it took; `None` if it was left by `longjmp`.
    pub took: Option<Duration>,
}

/// Durations and an indented tree, as the kernel's `function_graph`.
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

/// The tracer's callbacks.
#[derive(Debug)]
struct Record {
    limits: Limits,
    functions: Filter,
    classes: Classes,
    threads: Recycled<State>,
    lost: AtomicU64,
}

/// A node in memory of zeros.
#[derive(Debug)]
struct NodeCell {
    function: AtomicUsize,
    depth: AtomicUsize,
    entered: AtomicU64,
    /// One more than how long it took; 0 before it returns.
    took: AtomicU64,
}

/// A call that is kept.
#[derive(Debug)]
struct Kept {
    /// Odd while the rest changes.
    version: AtomicUsize,
    /// The kernel's id of its thread.
    thread: AtomicUsize,
    /// How long it took; 0 if there is none.
    took: AtomicU64,
    /// Calls in its tree, those without room included.
    len: AtomicUsize,
    /// The piece of memory that its nodes are in.
    piece: AtomicUsize,
}

/// What a thread keeps, with what those before it have kept: `calls` kept calls, and `calls + 1`
/// pieces of `nodes` nodes, the last of which is for the call that is going on, at first.
#[derive(Debug, Default)]
struct State {
    /// The kernel's id of the thread.
    thread: AtomicU32,
    kept: AtomicPtr<Kept>,
    nodes: AtomicPtr<NodeCell>,
    /// Bytes that were mapped.
    mapped: AtomicUsize,
    /// The piece for the call that is going on.
    piece: AtomicUsize,
    /// Calls in its tree.
    len: AtomicUsize,
    /// Counts the calls of which there were trees.
    run: AtomicU64,
}

impl Recycle for State {
    /// The call that a thread has ended in is lost.
    fn begin(&self, thread: u32) {
        self.run
            .store(self.run.load(Ordering::Relaxed) + 1, Ordering::Relaxed);
        self.thread.store(thread, Ordering::Relaxed);
    }
}

/// What a call carries from entry to return.
#[derive(Clone, Copy, Debug)]
struct Call {
    run: u64,
    nth: usize,
    depth: usize,
    entered: u64,
}

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
            // Within a call whose tree was lost.
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
        // SAFETY: within what was mapped, and aligned, as both types have words only.
        let nodes = unsafe { memory.add(kept) };
        self.nodes.store(nodes.cast(), Ordering::Relaxed);
        let kept: *mut Kept = memory.cast();
        for nth in 0..limits.calls {
            // SAFETY: so many, just mapped.
            unsafe { (*kept.add(nth)).piece.store(nth, Ordering::Relaxed) };
        }
        // Release: who sees the kept calls sees all of this.
        self.kept.store(kept, Ordering::Release);
        Some(())
    }

    fn kept(&self, limits: Limits) -> &[Kept] {
        // Acquire pairs with the Release in `map`.
        let kept = self.kept.load(Ordering::Acquire);
        if kept.is_null() {
            return &[];
        }
        // SAFETY: so many, zeros at first, for as long as the state is.
        unsafe { core::slice::from_raw_parts(kept, limits.calls) }
    }

    /// The nodes of a piece.
    fn piece(&self, limits: Limits, piece: usize) -> &[NodeCell] {
        let nodes = self.nodes.load(Ordering::Relaxed);
        if nodes.is_null() || piece > limits.calls {
            return &[];
        }
        // SAFETY: there is one piece more than kept calls, zeros at first, for as long as the
        // state is.
        unsafe { core::slice::from_raw_parts(nodes.add(piece * limits.nodes), limits.nodes) }
    }

    /// A node of the call that is going on, if there is room for it.
    fn node(&self, limits: Limits, nth: usize) -> Option<&NodeCell> {
        let piece = self.piece.load(Ordering::Relaxed);
        self.piece(limits, piece).get(nth)
    }

    /// A call has ended: keeps it in the place of the fastest one.
    fn keep(&self, limits: Limits, took: u64) {
        let kept = self.kept(limits).iter();
        let fastest = kept.min_by_key(|kept| kept.took.load(Ordering::Relaxed));
        let Some(kept) = fastest else { return };
        // 0 is none.
        let took = took.max(1);
        if kept.took.load(Ordering::Relaxed) >= took {
            return;
        }
        let version = kept.version.load(Ordering::Relaxed) | 1;
        kept.version.store(version, Ordering::Relaxed);
        // Pairs with the Acquire fence in `read`.
        fence(Ordering::Release);
        let ours = self.piece.load(Ordering::Relaxed);
        let theirs = kept.piece.load(Ordering::Relaxed);
        kept.piece.store(ours, Ordering::Relaxed);
        let thread = self.thread.load(Ordering::Relaxed);
        kept.thread.store(thread as usize, Ordering::Relaxed);
        kept.took.store(took, Ordering::Relaxed);
        kept.len
            .store(self.len.load(Ordering::Relaxed), Ordering::Relaxed);
        // Release: pairs with the first load in `read`.
        kept.version
            .store(version.wrapping_add(1), Ordering::Release);
        // What is written there from now on comes after the version.
        self.piece.store(theirs, Ordering::Release);
    }

    /// The calls that are kept.
    fn read(&self, limits: Limits) -> Vec<SlowCall> {
        let calls = self.kept(limits).iter().filter_map(|kept| {
            for _ in 0..ATTEMPTS {
                // Acquire: pairs with the Release of the version in `keep`.
                let version = kept.version.load(Ordering::Acquire);
                let len = kept.len.load(Ordering::Relaxed);
                let thread = kept.thread.load(Ordering::Relaxed) as u32;
                let took = kept.took.load(Ordering::Relaxed);
                let piece = kept.piece.load(Ordering::Relaxed);
                let nodes = self.piece(limits, piece);
                let nodes = nodes.get(..len.min(limits.nodes)).unwrap_or_default();
                let begin = nodes
                    .first()
                    .map_or(0, |node| node.entered.load(Ordering::Relaxed));
                let tree = nodes.iter().map(|node| node.read(begin)).collect();
                // Pairs with the Release fence in `keep`, after which nodes of a call that is not
                // kept any more are written.
                fence(Ordering::Acquire);
                if version.is_multiple_of(2) && kept.version.load(Ordering::Relaxed) == version {
                    return (took != 0).then(|| SlowCall {
                        thread,
                        took: kernel::duration(took),
                        tree,
                        left_out: len.saturating_sub(limits.nodes),
                    });
                }
                std::thread::yield_now();
            }
            None
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
            // SAFETY: mapped with this length, and nothing refers to it any more.
            unsafe { kernel::unmap(kept.cast(), *self.mapped.get_mut()) };
        }
    }
}
