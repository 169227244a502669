//! Reports calls that take too long, while they still run.
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

use fgraph::{
    AnywhereHandle, AnywhereOps, Entry, Error, FgraphOps, IntoFilter, Recycle, Recycled, Return,
    Untraced,
};

use crate::support::caller::write_function;
use crate::support::kernel;
use crate::support::looking;
use crate::support::version::Version;
use crate::tracer::{OneUser, Tracer};

/// Most calls of a thread that are followed at once.
const CALLS: usize = 128;

/// Watchdog. Dropping it ends it.
///
/// Each thread notes its running watched calls in memory that others can read. Nothing interrupts
/// the thread, and no signal is sent. A traced call costs one reading of the clock and some stores.
///
/// Calls that `longjmp` leaves count as running until the thread calls a watched function again. In
/// a thread that switches between coroutines calls may be overlooked.
#[derive(Debug)]
pub struct Watchdog {
    user: AnywhereHandle<Arc<Record>>,
    limit: Duration,
    watchers: Mutex<Vec<Watcher>>,
}

impl OneUser for Watchdog {
    fn user(&self) -> &dyn Tracer {
        &self.user
    }
}

/// Thread that looks for late calls.
#[derive(Debug)]
struct Watcher {
    is_over: Arc<AtomicBool>,
    thread: Option<JoinHandle<()>>,
}

impl Watchdog {
    /// Starts to follow the calls of the functions that `filter` selects. Calls that run longer
    /// than `limit` are late.
    ///
    /// # Errors
    ///
    /// Same as for [`fgraph::register`].
    pub fn start(filter: impl IntoFilter, limit: Duration) -> Result<Self, Error> {
        let record = Arc::new(Record::default());
        let user = fgraph::register_anywhere_with(record, filter, &looking::options())?;
        Ok(Self {
            user,
            limit,
            watchers: Mutex::default(),
        })
    }

    /// Returns the calls that are late now, in any thread.
    pub fn late(&self) -> Vec<LateCall> {
        self.user.user().late(self.limit)
    }

    /// Starts an untraced thread that calls `report` once for each call that becomes late, at most
    /// half of the limit after that, until this watchdog is dropped.
    ///
    /// # Errors
    ///
    /// Fails if the thread cannot be made.
    pub fn watch(&self, mut report: impl FnMut(&LateCall) + Send + 'static) -> io::Result<()> {
        let is_over = Arc::new(AtomicBool::new(false));
        let (record, limit, ends) = (
            Arc::clone(self.user.user()),
            self.limit,
            Arc::clone(&is_over),
        );
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
                // The thread itself may be dropping this.
                if thread.thread().id() != thread::current().id() {
                    let _ = thread.join();
                }
            }
        }
    }
}

/// Call that runs longer than it may.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct LateCall {
    /// Kernel id of the thread.
    pub thread: u32,
    /// Name of the thread.
    pub thread_name: String,
    /// Address of the function.
    pub function: usize,
    /// Time that the call has run.
    pub elapsed: Duration,
    /// Running watched calls of the thread, the outermost first, each with the address of its
    /// function and its running time. This call is among them; at most 128.
    pub stack: Vec<(usize, Duration)>,
    entered: u64,
}

impl LateCall {
    /// Returns a key that distinguishes calls.
    fn id(&self) -> (u32, u64) {
        (self.thread, self.entered)
    }
}

/// Writes `parse has run for 1.2s in thread 77 "worker": main 2.3s > parse 1.2s > read 1ms`.
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

/// Callbacks of the watchdog.
#[derive(Debug, Default)]
struct Record {
    threads: Recycled<State>,
}

/// Running calls of a thread. Only the thread writes.
#[derive(Debug)]
struct State {
    /// Kernel id of the thread.
    thread: AtomicU32,
    /// Number of running calls, including those without a place.
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
        // Release: a reader that sees the id sees no call of the previous thread.
        self.thread.store(thread, Ordering::Release);
        // Pairs with the Acquire fence in `read`: a reader that sees a call of this thread sees its
        // id.
        fence(Ordering::Release);
    }
}

impl State {
    /// Returns the calls and their thread; no calls if the state was just taken over.
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

/// Running call.
#[derive(Debug)]
struct Running {
    version: Version,
    function: AtomicUsize,
    /// Time of the entry; 0 if the call is over.
    entered: AtomicU64,
}

impl Running {
    const fn new() -> Self {
        Self {
            version: Version::new(),
            function: AtomicUsize::new(0),
            entered: AtomicU64::new(0),
        }
    }

    fn write(&self, function: usize, entered: u64) {
        self.version.change(|| {
            self.function.store(function, Ordering::Relaxed);
            self.entered.store(entered, Ordering::Relaxed);
        });
    }

    /// Returns the function, and the time of the entry; `None` if the call is over or is changing.
    fn read(&self) -> Option<(usize, u64)> {
        let call = self.version.read(|| {
            let entered = self.entered.load(Ordering::Relaxed);
            (self.function.load(Ordering::Relaxed), entered)
        });
        call.ok().filter(|(_, entered)| *entered != 0)
    }
}

/// Data that a call carries from entry to return.
#[derive(Clone, Copy, Debug)]
struct Call {
    depth: usize,
}

// SAFETY: the callbacks only use the clock, atomics, and memory of the thread's own.
unsafe impl AnywhereOps for Record {}

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
            // A thread that has ended inside a call is no longer in it.
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
        // Its first call is inside one of another thread, which a coroutine has begun there.
        state.calls[2].write(9, 6);
        state.len.store(3, Ordering::Relaxed);
        assert_eq!(state.read(), (8, vec![(9, 6)]));
    }
}
