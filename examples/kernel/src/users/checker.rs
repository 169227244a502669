//! A user that checks fgraph: each return belongs to the entry whose data it gets.

use core::sync::atomic::{AtomicU64, Ordering};

use fgraph_core::{Dropped, Entry, FgraphOps, Return};

/// The data of a call.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Call {
    user: u64,
    function: u32,
    task: u32,
    depth: u32,
    argument: u64,
    stack_pointer: usize,
}

/// The user.
#[derive(Debug, Default)]
pub(crate) struct Checker {
    /// The user's number, which the data of its calls has.
    pub(crate) number: u64,
    /// Calls whose returns the user has requested.
    pub(crate) accepted: AtomicU64,
    /// Returns of accepted calls.
    pub(crate) returned: AtomicU64,
    /// Accepted calls that were dropped.
    pub(crate) dropped: AtomicU64,
    /// Returns with data of another call.
    pub(crate) failures: AtomicU64,
}

impl Checker {
    /// Makes the user with a number.
    pub(crate) fn new(number: u64) -> Self {
        Self {
            number,
            ..Self::default()
        }
    }

    fn fail(&self) {
        self.failures.fetch_add(1, Ordering::Relaxed);
    }
}

impl FgraphOps for Checker {
    type Data = Call;

    fn entry(&self, call: &mut Entry<'_, Call>) -> Option<Call> {
        let argument = call.arg(0)?;
        // Some calls are declined.
        if self.number % 4 == 3 && call.stack_pointer().is_multiple_of(32) {
            return None;
        }
        self.accepted.fetch_add(1, Ordering::Relaxed);
        let depth = call.parent_data().map_or(0, |parent| parent.depth + 1);
        if call
            .parent_data()
            .is_some_and(|parent| parent.user != self.number)
        {
            self.fail();
        }
        Some(Call {
            user: self.number,
            function: call.function().index(),
            task: call.thread_id(),
            depth,
            argument,
            stack_pointer: call.stack_pointer(),
        })
    }

    fn ret(&self, call: &mut Return<'_, Call>, data: Call) {
        self.returned.fetch_add(1, Ordering::Relaxed);
        let depth = call.parent_data().map_or(0, |parent| parent.depth + 1);
        let is_right = data.user == self.number
            && data.function == call.function().index()
            && data.task == call.thread_id()
            && data.stack_pointer == call.stack_pointer()
            && data.depth == depth;
        if !is_right || core::hint::black_box(data.argument) != data.argument {
            self.fail();
        }
    }

    fn dropped(&self, _call: &Dropped<'_, Call>, _data: Call) {
        self.dropped.fetch_add(1, Ordering::Relaxed);
    }
}
