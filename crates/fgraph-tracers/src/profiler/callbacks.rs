//! Callbacks of the profiler.

use core::ptr::NonNull;
use core::sync::atomic::Ordering;

use fgraph::{AnywhereOps, Entry, FgraphOps, Recycled, Return};
use fgraph_trace::clock::{Clock, ClockKind};

use super::table::{EdgeCells, Table};
use super::{Options, Profile};
use crate::support::kernel;

/// Records of all threads.
#[derive(Debug)]
pub(super) struct Record {
    tables: Recycled<Table>,
    clock: Clock,
    options: Options,
}

/// Data that a call carries from entry to return.
#[derive(Clone, Copy, Debug)]
pub(super) struct Call {
    /// Time of the entry in ticks of the clock.
    entered: u64,
    /// Nanoseconds spent in the watched calls inside this one.
    inside: u64,
    edge: EdgeRef,
    /// Number of the thread that made the entry. If a coroutine has moved, another thread makes the
    /// return.
    thread: u32,
    /// True if no call of the function is around this one.
    is_outermost: bool,
}

/// Edge in the tables of the thread that made the entry.
#[derive(Clone, Copy, Debug)]
struct EdgeRef(NonNull<EdgeCells>);

impl EdgeRef {
    fn get(&self) -> &EdgeCells {
        // SAFETY: edges live as long as the user does.
        unsafe { self.0.as_ref() }
    }
}

// SAFETY: it stands for a shared reference to atomics, which live as long as the user does.
unsafe impl Send for EdgeRef {}

// SAFETY: the callbacks only use the clock, atomics, and memory that they map.
unsafe impl AnywhereOps for Record {}

impl FgraphOps for Record {
    type Data = Call;

    fn entry(&self, call: &mut Entry<'_, Call>) -> Option<Call> {
        let table = call.recycled(&self.tables)?;
        let function = call.function();
        let around = call.parent_data().map(|parent| parent.edge.get());
        // SAFETY: the table is the running thread's, and this is a callback.
        let edge = unsafe { table.edge(around, function) }?;
        let is_active = &edge.row().is_active;
        // A call that `longjmp` left has not cleared the flag. Then no call around this one has
        // `is_outermost`.
        let is_outermost = is_active.load(Ordering::Relaxed) == 0
            || !(0..)
                .map_while(|generation| call.ancestor_data(generation))
                .any(|around| around.edge.get().is_of(function));
        if is_outermost {
            is_active.store(1, Ordering::Relaxed);
        }
        Some(Call {
            inside: 0,
            edge: EdgeRef(NonNull::from(edge)),
            thread: call.thread_number(),
            is_outermost,
            // Read the clock last, to keep the callback itself out of the time.
            entered: self.now(),
        })
    }

    fn ret(&self, call: &mut Return<'_, Call>, data: Call) {
        let ticks = self.now().saturating_sub(data.entered);
        let has_moved = data.thread != call.thread_number();
        let took = match has_moved && !self.options.sleep_time {
            // The other thread has another clock.
            true => 0,
            false => self.clock.nanoseconds(ticks),
        };
        if let Some(parent) = call.parent_data_mut() {
            parent.inside = parent.inside.wrapping_add(took);
        }
        let mut edge = data.edge.get();
        if data.is_outermost {
            edge.row().is_active.store(0, Ordering::Relaxed);
        }
        if has_moved {
            let Some(table) = call.recycled(&self.tables) else {
                return;
            };
            // SAFETY: the table is the running thread's, and this is a callback.
            match unsafe { table.same_edge(edge) } {
                Some(own) => edge = own,
                None => return,
            }
        }
        match self.options.graph_time {
            true => edge.record(took, data.inside, data.is_outermost),
            // Then no time is counted in two calls.
            false => edge.record(took.saturating_sub(data.inside), 0, true),
        }
    }
}

impl Record {
    pub(super) fn new(options: Options) -> Self {
        let kind = match options.sleep_time {
            true => ClockKind::of_this_machine(),
            // This clock counts nanoseconds too.
            false => ClockKind::Monotonic,
        };
        Self {
            tables: Recycled::new(),
            clock: Clock::start(kind),
            options,
        }
    }

    /// Returns the current time in ticks.
    #[inline(always)]
    fn now(&self) -> u64 {
        match self.options.sleep_time {
            true => self.clock.kind().now(),
            false => kernel::running(),
        }
    }

    pub(super) fn profile(&self) -> Profile {
        let unrecorded = |table: &Table| table.unrecorded.load(Ordering::Relaxed);
        let (mut threads, mut ended) = (Vec::new(), Profile::default());
        for table in self.tables.iter() {
            table.read(&mut threads, &mut ended.threads);
        }
        threads.push(ended.together());
        threads.retain(|profile| !profile.functions.is_empty());
        Profile {
            unrecorded: self.tables.iter().map(unrecorded).sum(),
            threads,
        }
    }
}
