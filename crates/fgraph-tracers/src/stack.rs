//! Finds the deepest machine stack of each thread, and the size of each call on it.
//!
//! ```
//! use fgraph_tracers::stack::StackTracer;
//!
//! let stack = StackTracer::start("*:mod:libc.so*")?;
//! let now = std::fs::read_dir("/proc/self/task")?.count();
//! let deepest = stack.deepest();
//! assert!(now > 0 && deepest[0].bytes > 0);
//! println!("{}", deepest[0]);
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```

use std::cell::Cell;
use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, AtomicUsize, Ordering};

use fgraph::{
    AnywhereHandle, AnywhereOps, Entry, Error, FgraphOps, IntoFilter, LibraryEvent, Recycle,
    Recycled, Return,
};
use fgraph_trace::ring::Rings;

use crate::support::caller::write_function;
use crate::support::looking;
use crate::support::sink::{MOST, Place, Sink};
use crate::support::version::Version;
use crate::tracer::{OneUser, Tracer};

/// Most calls of a backtrace.
const CALLS: usize = 64;

/// Tracer of stacks. Dropping it ends it.
///
/// Depth is measured at the entry of watched functions, from the end of the thread's stack that
/// stacks grow away from. The backtrace contains the watched functions. The size of each extends to
/// the next one, and includes the functions between.
///
/// The backtrace is taken when the deepest call returns, and on the way down each time that the
/// stack has grown by an eighth. A thread that overflows its stack therefore has one too. A call
/// that sets no record costs a few loads. The stacks of signal handlers and coroutines are not
/// measured.
#[derive(Debug)]
pub struct StackTracer {
    user: AnywhereHandle<Record>,
}

impl OneUser for StackTracer {
    fn user(&self) -> &dyn Tracer {
        &self.user
    }
}

impl StackTracer {
    /// Starts to watch the functions that `filter` selects.
    ///
    /// # Errors
    ///
    /// Same as for [`fgraph::register`].
    pub fn start(filter: impl IntoFilter) -> Result<Self, Error> {
        let record = Record::default();
        let user = fgraph::register_anywhere_with(record, filter, &looking::options())?;
        Ok(Self { user })
    }

    /// Same as [`start`](Self::start), and also reports each backtrace in rings when it is taken,
    /// as a mark that [`read_mark`] decodes. `executed` is the number of programs that the process
    /// has executed before: see [`Options::executed`](crate::recorder::Options::executed).
    ///
    /// # Errors
    ///
    /// Same as for [`fgraph::register`]; [`Unsupported`](Error::Unsupported) without memory.
    pub fn start_in(
        rings: impl Into<Arc<Rings>>,
        executed: u32,
        filter: impl IntoFilter,
    ) -> Result<Self, Error> {
        let record = Record {
            sink: Some(Sink::start(rings, executed)?),
            ..Record::default()
        };
        let user = fgraph::register_anywhere_with(record, filter, &looking::options())?;
        Ok(Self { user })
    }

    /// Returns the deepest stack of each thread, deepest first: the kernel's `stack_max_size` and
    /// `stack_trace`. It keeps at least the last 64 threads that have ended, and the one with the
    /// deepest stack.
    pub fn deepest(&self) -> Vec<ThreadStack> {
        let threads = self.user.user().threads.iter();
        let mut stacks: Vec<_> = threads.flat_map(State::read).flatten().collect();
        stacks.sort_by_key(|stack| std::cmp::Reverse(stack.bytes));
        stacks
    }

    /// Resets the depths of all stacks.
    pub fn reset(&self) {
        for state in self.user.user().threads.iter() {
            state.own.clear();
            state.ended.clear();
        }
    }
}

/// Deepest stack of a thread.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct ThreadStack {
    /// Kernel id of the thread.
    pub thread: u32,
    /// Bytes between the end of the stack and the entry of the deepest call.
    pub bytes: usize,
    /// Total bytes of the stack.
    pub size: usize,
    /// Calls, the deepest first; at most 64.
    pub calls: Vec<StackCall>,
    /// Depth of the stack when the calls were noted: `bytes`, if the deepest call has returned.
    pub traced_bytes: usize,
}

/// Decodes the stack in the words of a mark, where functions are indices. `None` for other words.
#[must_use]
pub fn read_mark(thread: u32, words: &[u64]) -> Option<ThreadStack> {
    let [size, calls @ ..] = words else {
        return None;
    };
    let (calls, rest) = calls.as_chunks::<2>();
    let bytes = calls.first()?[1] as usize;
    let outer = calls.iter().skip(1).map(|call| call[1]).chain([0]);
    let calls = calls.iter().zip(outer);
    rest.is_empty().then(|| ThreadStack {
        thread,
        bytes,
        size: *size as usize,
        calls: calls
            .map(|(&[function, depth], outer)| StackCall {
                function: function as usize,
                depth: depth as usize,
                size: depth.saturating_sub(outer) as usize,
            })
            .collect(),
        traced_bytes: bytes,
    })
}

/// Call on a stack.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct StackCall {
    /// Address of the function.
    pub function: usize,
    /// Depth of the stack at its entry, in bytes.
    pub depth: usize,
    /// Bytes between the entry of the next watched call around it, or the end of the stack, and its
    /// own entry.
    pub size: usize,
}

/// Writes the same table as the kernel's `stack_trace`.
impl fmt::Display for ThreadStack {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let count = self.calls.len();
        writeln!(f, "        Depth    Size   Location    ({count} entries)")?;
        writeln!(f, "        -----    ----   --------")?;
        for (nth, call) in self.calls.iter().enumerate() {
            let StackCall {
                function,
                depth,
                size,
            } = call;
            write!(f, "{nth:>3}) {depth:>8} {size:>7}   ")?;
            write_function(f, *function)?;
            writeln!(f)?;
        }
        Ok(())
    }
}

/// Callbacks of the tracer.
#[derive(Debug, Default)]
struct Record {
    threads: Recycled<State>,
    /// Sink that backtraces are reported to.
    sink: Option<Sink>,
}

/// Stacks of a thread, and of earlier threads with this state. Only the thread writes, except for a
/// reset.
#[derive(Debug, Default)]
struct State {
    version: Version,
    own: Stack,
    /// The deepest stack of the earlier threads.
    ended: Stack,
}

/// Measurements of a stack.
#[derive(Debug)]
struct Stack {
    /// Kernel id of the thread.
    thread: AtomicU32,
    /// Bytes of the stack.
    size: AtomicUsize,
    /// Greatest depth of a call in bytes.
    deepest: AtomicUsize,
    /// Depth in bytes when the calls below were noted.
    traced: AtomicUsize,
    len: AtomicUsize,
    /// Functions, the deepest first, each with the depth of the stack at its entry.
    calls: [[AtomicUsize; 2]; CALLS],
}

impl Default for Stack {
    fn default() -> Self {
        Self {
            thread: AtomicU32::new(0),
            size: AtomicUsize::new(0),
            deepest: AtomicUsize::new(0),
            traced: AtomicUsize::new(0),
            len: AtomicUsize::new(0),
            calls: [const { [AtomicUsize::new(0), AtomicUsize::new(0)] }; CALLS],
        }
    }
}

impl Stack {
    fn clear(&self) {
        let words = [&self.deepest, &self.traced, &self.len];
        words
            .iter()
            .for_each(|word| word.store(0, Ordering::Relaxed));
    }

    fn copy_from(&self, other: &Self) {
        let copy = |to: &AtomicUsize, from: &AtomicUsize| {
            to.store(from.load(Ordering::Relaxed), Ordering::Relaxed);
        };
        let thread = other.thread.load(Ordering::Relaxed);
        self.thread.store(thread, Ordering::Relaxed);
        copy(&self.size, &other.size);
        copy(&self.deepest, &other.deepest);
        copy(&self.traced, &other.traced);
        copy(&self.len, &other.len);
        let calls = self.calls.iter().zip(&other.calls);
        calls.for_each(|(to, from)| to.iter().zip(from).for_each(|(to, from)| copy(to, from)));
    }
}

impl Recycle for State {
    fn begin(&self, thread: u32) {
        self.version.change(|| {
            let deepest = |stack: &Stack| stack.deepest.load(Ordering::Relaxed);
            if deepest(&self.own) > deepest(&self.ended) {
                self.ended.copy_from(&self.own);
            }
            self.own.clear();
            self.own.thread.store(thread, Ordering::Relaxed);
        });
    }
}

/// Data that a call carries from entry to return.
#[derive(Clone, Copy, Debug)]
struct Call {
    function: usize,
    index: u32,
    /// Depth of the stack at its entry.
    depth: usize,
}

// SAFETY: the callbacks only use atomics, memory of the thread's own, and the rings.
unsafe impl AnywhereOps for Record {}

impl FgraphOps for Record {
    type Data = Call;

    fn entry(&self, call: &mut Entry<'_, Call>) -> Option<Call> {
        let stack = call.thread_stack()?;
        if let Some(sink) = &self.sink {
            // SAFETY: `thread_word` is the running thread's.
            unsafe { sink.know(call.function(), call.thread_word()) };
        }
        let data = Call {
            function: call.function().address(),
            index: call.function().index(),
            depth: stack.end.saturating_sub(call.stack_pointer()),
        };
        let state = call.recycled(&self.threads)?;
        let own = &state.own;
        if data.depth > own.deepest.load(Ordering::Relaxed) {
            own.deepest.store(data.depth, Ordering::Relaxed);
            own.size.store(stack.len(), Ordering::Relaxed);
            let traced = own.traced.load(Ordering::Relaxed);
            if data.depth > traced + traced / 8 {
                state.trace(data, |generation| call.ancestor_data(generation));
                if let Some(sink) = &self.sink {
                    let told = Told::of(stack.len(), data, |nth| call.ancestor_data(nth));
                    let place = Place::of(call.thread_stack(), false);
                    // SAFETY: `thread_word` and `thread_id` are the running thread's.
                    unsafe { told.tell(sink, call.thread_word(), call.thread_id(), place) };
                }
            }
        }
        Some(data)
    }

    fn ret(&self, call: &mut Return<'_, Call>, data: Call) {
        let Some(state) = call.recycled(&self.threads) else {
            return;
        };
        let own = &state.own;
        let traced = own.traced.load(Ordering::Relaxed);
        if data.depth == own.deepest.load(Ordering::Relaxed) && data.depth != traced {
            state.trace(data, |generation| call.ancestor_data(generation));
            if let Some(sink) = &self.sink {
                let size = own.size.load(Ordering::Relaxed);
                let told = Told::of(size, data, |nth| call.ancestor_data(nth));
                let place = Place::of(call.thread_stack(), false);
                // SAFETY: `thread_word` and `thread_id` are the running thread's.
                unsafe { told.tell(sink, call.thread_word(), call.thread_id(), place) };
            }
        }
    }

    fn library(&self, event: &LibraryEvent<'_>) {
        if let Some(sink) = &self.sink {
            sink.library(event);
        }
    }
}

/// Words of a mark: the bytes of the stack, then for each call, the deepest first, the index of its
/// function and the depth of the stack at its entry.
#[derive(Debug)]
struct Told {
    words: [u64; 1 + 2 * CALLS],
    len: usize,
}

const _: () = assert!(2 * CALLS < MOST);

impl Told {
    fn of<'c>(size: usize, innermost: Call, around: impl Fn(usize) -> Option<&'c Call>) -> Self {
        let mut words = [0; 1 + 2 * CALLS];
        words[0] = size as u64;
        let (mut call, mut len) = (Some(&innermost), 1);
        while let (Some(found), Some([function, depth])) = (call, words.get_mut(len..len + 2)) {
            *function = found.index.into();
            *depth = found.depth as u64;
            call = around((len - 1) / 2);
            len += 2;
        }
        Self { words, len }
    }

    /// # Safety
    ///
    /// `word` and `thread` are the running thread's, as [`Sink`] requires.
    unsafe fn tell(&self, sink: &Sink, word: &Cell<u64>, thread: u32, place: Place) {
        let words = self.words.get(..self.len).unwrap_or_default();
        // SAFETY: the caller passes the running thread's word and id.
        unsafe { sink.mark_words(word, thread, words, place) };
    }
}

impl State {
    /// Notes a call and the calls around it.
    fn trace<'c>(&self, innermost: Call, around: impl Fn(usize) -> Option<&'c Call>) {
        self.version.change(|| {
            let mut call = Some(&innermost);
            let mut len = 0;
            while let (
                Some(Call {
                    function, depth, ..
                }),
                Some([to, to_depth]),
            ) = (call, self.own.calls.get(len))
            {
                to.store(*function, Ordering::Relaxed);
                to_depth.store(*depth, Ordering::Relaxed);
                call = around(len);
                len += 1;
            }
            self.own.len.store(len, Ordering::Relaxed);
            self.own.traced.store(innermost.depth, Ordering::Relaxed);
        });
    }

    /// Reads the stacks of the thread, and of the earlier ones with this state.
    fn read(&self) -> [Option<ThreadStack>; 2] {
        let stacks = || [&self.own, &self.ended].map(Stack::read);
        self.version.read_whole(stacks).unwrap_or_default()
    }
}

impl Stack {
    /// Reads the stack; `None` if no call was entered on it.
    fn read(&self) -> Option<ThreadStack> {
        let load = |word: &AtomicUsize| word.load(Ordering::Relaxed);
        let calls = self.calls.iter().take(load(&self.len).min(CALLS));
        let calls: Vec<_> = calls.map(|call| call.each_ref().map(load)).collect();
        let outer = calls.iter().skip(1).map(|[_, depth]| *depth).chain([0]);
        let with_outer = calls.iter().zip(outer);
        let calls = with_outer.map(|(&[function, depth], outer)| StackCall {
            function,
            depth,
            size: depth.saturating_sub(outer),
        });
        let bytes = load(&self.deepest);
        (bytes != 0).then(|| ThreadStack {
            thread: self.thread.load(Ordering::Relaxed),
            bytes,
            size: load(&self.size),
            calls: calls.collect(),
            traced_bytes: load(&self.traced),
        })
    }
}
