//! Calls that take too long, reported while they still run.
//!
//! ```
//! use std::sync::mpsc;
//! use std::time::Duration;
//! use fgraph_tracers::watchdog::Watchdog;
//!
//! let watchdog = Watchdog::start("nanosleep clock_nanosleep", Duration::from_millis(20))?;
//! let (send, late) = mpsc::channel();
//! watchdog.watch(move |call| drop(send.send(call.to_string())))?;
//! std::thread::sleep(Duration::from_millis(200));
//! println!("{}", late.recv()?);
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```

use std::collections::HashSet;
use std::fmt;
use std::fs;
use std::io;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, AtomicUsize, Ordering, fence};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::{self, JoinHandle};
use std::time::Duration;

use fgraph::{Entry, Error, FgraphOps, Handle, IntoFilter, Recycle, Recycled, Return, Untraced};

use crate::support::caller::write_function;
use crate::support::kernel;
use crate::support::looking;

/// Calls of a thread that are followed at once.
const CALLS: usize = 128;

/// A watchdog at work; dropping it ends it.
///
/// Each thread notes the watched calls that it is in, where others can read them; nothing is asked
/// of the thread, and no signal is sent. A traced call costs one reading of the clock and some
/// stores.
///
/// Calls that are left by `longjmp` count as running until the thread calls a watched function
/// again. In a thread that goes from coroutine to coroutine calls may be overlooked.
#[derive(Debug)]
pub struct Watchdog {
    user: Handle<Arc<Record>>,
    limit: Duration,
    watchers: Mutex<Vec<Watcher>>,
}

crate::tracer::tracer!(Watchdog);

/// A thread that looks for late calls.
#[derive(Debug)]
struct Watcher {
    is_over: Arc<AtomicBool>,
    thread: Option<JoinHandle<()>>,
}

impl Watchdog {
    /// Starts following the calls of the functions that `filter` selects; those that run longer
    /// than `limit` are late.
    ///
    /// # Errors
    ///
    /// As for [`fgraph::register`].
    pub fn start(filter: impl IntoFilter, limit: Duration) -> Result<Self, Error> {
        // SAFETY: the callbacks use the clock, atomics, and memory of the thread's own.
        let user = unsafe {
            fgraph::register_with(Arc::new(Record::default()), filter, &looking::options())
        }?;
        Ok(Self {
            user,
            limit,
            watchers: Mutex::default(),
        })
    }

    /// The calls that are late now, in any thread.
    pub fn late(&self) -> Vec<LateCall> {
        self.user.late(self.limit)
    }

    /// Has a thread call `report` for each call that becomes late, once, at most half of the limit
    /// after it does, until this watchdog is dropped. The thread is not traced.
    ///
    /// # Errors
    ///
    /// Those of making a thread.
    pub fn watch(&self, mut report: impl FnMut(&LateCall) + Send + 'static) -> io::Result<()> {
        let is_over = Arc::new(AtomicBool::new(false));
        let (record, limit, ends) = (Arc::clone(&self.user), self.limit, Arc::clone(&is_over));
        let pause = (limit / 2).clamp(Duration::from_micros(100), Duration::from_secs(1));
        let watch = move || {
            let _untraced = Untraced::new();
            let mut reported: HashSet<(u32, u64)> = HashSet::new();
            while !ends.load(Ordering::Relaxed) {
                let late = record.late(limit);
                let is_new = |call: &&LateCall| !reported.contains(&call.id());
                late.iter().filter(is_new).for_each(&mut report);
                reported = late.iter().map(LateCall::id).collect();
                thread::park_timeout(pause);
            }
        };
        let builder = thread::Builder::new().name("watchdog".to_owned());
        let thread = fgraph::untraced(|| builder.spawn(watch))?;
        let mut watchers = self.watchers.lock().unwrap_or_else(PoisonError::into_inner);
        watchers.push(Watcher {
            is_over,
            thread: Some(thread),
        });
        Ok(())
    }
}

impl Drop for Watchdog {
    fn drop(&mut self) {
        let watchers = self.watchers.get_mut();
        for watcher in watchers.unwrap_or_else(PoisonError::into_inner) {
            watcher.is_over.store(true, Ordering::Relaxed);
            if let Some(thread) = watcher.thread.take() {
                thread.thread().unpark();
                // It may be what drops this.
                if thread.thread().id() != thread::current().id() {
                    let _ = thread.join();
                }
            }
        }
    }
}

/// A call that runs longer than it may.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct LateCall {
    /// The kernel's id of the thread.
    pub thread: u32,
    /// The thread's name.
    pub thread_name: String,
    /// The address of the function.
    pub function: usize,
    /// How long the call has run.
    pub elapsed: Duration,
    /// The watched calls that the thread was in, the outermost first, each with the address of its
    /// function and how long it has run. This call is among them; at most 128.
    pub stack: Vec<(usize, Duration)>,
    entered: u64,
}

impl LateCall {
    /// What tells calls apart.
    fn id(&self) -> (u32, u64) {
        (self.thread, self.entered)
    }
}

/// `parse has run for 1.2s in thread 77 "worker": main 2.3s > parse 1.2s > read 1ms`
impl fmt::Display for LateCall {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write_function(f, self.function)?;
        let (thread, thread_name) = (self.thread, &self.thread_name);
        write!(
            f,
            " has run for {:?} in thread {thread} {thread_name:?}:",
            self.elapsed
        )?;
        for (nth, (function, elapsed)) in self.stack.iter().enumerate() {
            f.write_str(if nth == 0 { " " } else { " > " })?;
            write_function(f, *function)?;
            write!(f, " {elapsed:?}")?;
        }
        Ok(())
    }
}

/// The watchdog's callbacks.
#[derive(Debug, Default)]
struct Record {
    threads: Recycled<State>,
}

/// The calls that a thread is in. The thread alone writes.
#[derive(Debug)]
struct State {
    /// The kernel's id of the thread.
    thread: AtomicU32,
    /// How many there are, those without a place included.
    len: AtomicUsize,
    calls: [Running; CALLS],
}

impl Default for State {
    fn default() -> Self {
        Self {
            thread: AtomicU32::new(0),
            len: AtomicUsize::new(0),
            calls: [const { Running::new() }; CALLS],
        }
    }
}

impl Recycle for State {
    /// The calls of a thread that has ended are over.
    fn begin(&self, thread: u32) {
        let is_left = |running: &&Running| running.entered.load(Ordering::Relaxed) != 0;
        let left = self.calls.iter().filter(is_left);
        left.for_each(|running| running.write(0, 0));
        self.len.store(0, Ordering::Relaxed);
        // Release: who sees the id sees no call of the thread before.
        self.thread.store(thread, Ordering::Release);
        // Pairs with the Acquire fence in `read`: who sees a call of this thread there sees its id.
        fence(Ordering::Release);
    }
}

impl State {
    /// The calls, and the thread that is in them; none of a thread whose state was just taken over.
    fn read(&self) -> (u32, Vec<(usize, u64)>) {
        let thread = self.thread.load(Ordering::Acquire);
        let len = self.len.load(Ordering::Acquire);
        let calls = self.calls.iter().take(len);
        let mut calls: Vec<_> = calls.filter_map(Running::read).collect();
        fence(Ordering::Acquire);
        if self.thread.load(Ordering::Relaxed) != thread {
            calls.clear();
        }
        (thread, calls)
    }
}

/// A call that is going on.
#[derive(Debug)]
struct Running {
    /// Odd while the rest changes.
    version: AtomicU32,
    function: AtomicUsize,
    /// When it was entered; 0 if it is over.
    entered: AtomicU64,
}

impl Running {
    const fn new() -> Self {
        Self {
            version: AtomicU32::new(0),
            function: AtomicUsize::new(0),
            entered: AtomicU64::new(0),
        }
    }

    fn write(&self, function: usize, entered: u64) {
        let version = self.version.load(Ordering::Relaxed) | 1;
        self.version.store(version, Ordering::Relaxed);
        // Pairs with the Acquire fence in `read`.
        fence(Ordering::Release);
        self.function.store(function, Ordering::Relaxed);
        self.entered.store(entered, Ordering::Relaxed);
        // Release: pairs with the first load in `read`.
        self.version
            .store(version.wrapping_add(1), Ordering::Release);
    }

    /// The function, and when it was entered; `None` if the call is over or is just changing.
    fn read(&self) -> Option<(usize, u64)> {
        // Acquire: pairs with the Release of the version in `write`.
        let version = self.version.load(Ordering::Acquire);
        let function = self.function.load(Ordering::Relaxed);
        let entered = self.entered.load(Ordering::Relaxed);
        // Pairs with the Release fence in `write`.
        fence(Ordering::Acquire);
        let is_whole = version.is_multiple_of(2)
            && self.version.load(Ordering::Relaxed) == version
            && entered != 0;
        is_whole.then_some((function, entered))
    }
}

/// What a call carries from entry to return.
#[derive(Clone, Copy, Debug)]
struct Call {
    depth: usize,
}

impl FgraphOps for Record {
    type Data = Call;

    fn entry(&self, call: &mut Entry<'_, Call>) -> Option<Call> {
        let state = call.recycled(&self.threads)?;
        let depth = call.parent_data().map_or(0, |around| around.depth + 1);
        if let Some(running) = state.calls.get(depth) {
            running.write(call.function().address(), kernel::now());
        }
        state.len.store(depth + 1, Ordering::Release);
        Some(Call { depth })
    }

    fn ret(&self, call: &mut Return<'_, Call>, data: Call) {
        let Some(state) = call.recycled(&self.threads) else {
            return;
        };
        if let Some(running) = state.calls.get(data.depth) {
            running.write(0, 0);
        }
        state.len.store(data.depth, Ordering::Release);
    }
}

impl Record {
    fn late(&self, limit: Duration) -> Vec<LateCall> {
        let mut late = Vec::new();
        for (thread, calls) in self.threads.iter().map(State::read) {
            let now = kernel::now();
            let elapsed = |entered: u64| kernel::duration(now.saturating_sub(entered));
            let is_late = |call: &&(usize, u64)| elapsed(call.1) > limit;
            if !calls.iter().any(|call| is_late(&call)) {
                continue;
            }
            // A thread that has ended in a call is not in it any more.
            let Ok(name) = fs::read_to_string(format!("/proc/self/task/{thread}/comm")) else {
                continue;
            };
            let stack = calls
                .iter()
                .map(|&(function, entered)| (function, elapsed(entered)));
            let stack: Vec<_> = stack.collect();
            late.extend(
                calls
                    .iter()
                    .filter(is_late)
                    .map(|&(function, entered)| LateCall {
                        thread,
                        thread_name: name.trim_end().to_owned(),
                        function,
                        elapsed: elapsed(entered),
                        stack: stack.clone(),
                        entered,
                    }),
            );
        }
        late
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_thread_is_not_in_the_calls_of_the_one_before() {
        let state = State::default();
        state.begin(7);
        (1..4).for_each(|nth| state.calls[nth].write(nth, 5));
        state.len.store(4, Ordering::Relaxed);
        assert_eq!(state.read(), (7, vec![(1, 5), (2, 5), (3, 5)]));
        state.begin(8);
        assert_eq!(state.read(), (8, vec![]));
        // Its first call is within one of another thread, which a coroutine has begun there.
        state.calls[2].write(9, 6);
        state.len.store(3, Ordering::Relaxed);
        assert_eq!(state.read(), (8, vec![(9, 6)]));
    }
}
