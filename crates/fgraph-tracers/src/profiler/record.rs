//! The profiler's callbacks.

use core::ptr::NonNull;
use core::sync::atomic::Ordering;

use fgraph::{Entry, FgraphOps, Function, PerThread, Return};
use fgraph_trace::clock::{Clock, ClockKind};

use super::Profile;
use super::table::{EdgeCells, Table};

/// What all threads have recorded.
#[derive(Debug)]
pub(super) struct Record {
    tables: PerThread<Table>,
    clock: Clock,
}

/// What a call carries from entry to return.
#[derive(Clone, Copy, Debug)]
pub(super) struct Call {
    /// In ticks of the clock.
    entered: u64,
    /// Nanoseconds spent in the watched calls inside it.
    inside: u64,
    function: Function,
    caller: Option<Function>,
    edge: EdgeRef,
    /// The thread that has entered; it is another one that leaves if a coroutine has moved.
    thread: u32,
    /// No call of the function is around this one.
    is_outermost: bool,
}

/// An edge in the tables of the thread that has entered.
#[derive(Clone, Copy, Debug)]
struct EdgeRef(NonNull<EdgeCells>);

// SAFETY: it stands for a shared reference to atomics, which stay as long as the user does.
unsafe impl Send for EdgeRef {}

impl FgraphOps for Record {
    type Data = Call;

    fn entry(&self, call: &mut Entry<'_, Call>) -> Option<Call> {
        let table = call.per_thread(&self.tables)?;
        let function = call.function();
        let caller = call.parent_data().map(|parent| parent.function);
        // SAFETY: the running thread's, in a callback.
        let edge = unsafe { table.edge(caller, function) }?;
        let is_active = &edge.row().is_active;
        // A call that never returned, because of a `longjmp`, has left it set: then no call around
        // this one says the same.
        let is_outermost = is_active.load(Ordering::Relaxed) == 0
            || !(0..)
                .map_while(|generation| call.ancestor_data(generation))
                .any(|around| around.function == function);
        if is_outermost {
            is_active.store(1, Ordering::Relaxed);
        }
        Some(Call {
            inside: 0,
            function,
            caller,
            edge: EdgeRef(NonNull::from(edge)),
            thread: call.thread_id(),
            is_outermost,
            // Last, so that the callback itself is not in the time.
            entered: self.clock.kind().now(),
        })
    }

    fn ret(&self, call: &mut Return<'_, Call>, data: Call) {
        let ticks = self.clock.kind().now().saturating_sub(data.entered);
        let took = self.clock.nanoseconds(ticks);
        if let Some(parent) = call.parent_data_mut() {
            parent.inside = parent.inside.wrapping_add(took);
        }
        // SAFETY: edges stay as long as the user does.
        let mut edge = unsafe { data.edge.0.as_ref() };
        if data.is_outermost {
            edge.row().is_active.store(0, Ordering::Relaxed);
        }
        if data.thread != call.thread_id() {
            let Some(table) = call.per_thread(&self.tables) else {
                return;
            };
            // SAFETY: the running thread's, in a callback.
            match unsafe { table.edge(data.caller, data.function) } {
                Some(own) => edge = own,
                None => return,
            }
        }
        edge.record(took);
        edge.row()
            .record(took, took.saturating_sub(data.inside), data.is_outermost);
    }
}

impl Record {
    pub(super) fn new() -> Self {
        Self {
            tables: PerThread::new(),
            clock: Clock::start(ClockKind::of_this_machine()),
        }
    }

    pub(super) fn profile(&self) -> Profile {
        let unrecorded = |(_, table): (_, &Table)| table.unrecorded.load(Ordering::Relaxed);
        Profile {
            unrecorded: self.tables.iter().map(unrecorded).sum(),
            threads: self
                .tables
                .iter()
                .map(|(thread, table)| table.read(thread))
                .filter(|profile| !profile.functions.is_empty())
                .collect(),
        }
    }
}
