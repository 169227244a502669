//! Atomics from `core`, or from loom when its model checker runs the protocol of the rings.

#[cfg(not(loom))]
pub use core::sync::atomic::{AtomicU64, Ordering, fence};
#[cfg(loom)]
pub use loom::sync::atomic::{AtomicU64, Ordering, fence};

/// A step of the protocol of the rings that loom's models can leave out, to show that they notice.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub enum Step {
    /// The writer makes a sub-buffer's state odd before it overwrites it.
    OddState = 1,
    /// The writer's fence after that store.
    WriterFence,
    /// The store of the new length has release order.
    LengthLast,
    /// A writer that drops events asks for room.
    Room,
    /// The writer stores the place of a sub-buffer.
    Place,
    /// The reader's fence after copying.
    ReaderFence,
    /// The reader checks the state again.
    LookAgain,
}

/// Returns true if a step is taken: always, outside of loom's models.
#[cfg(not(loom))]
#[inline(always)]
pub(crate) const fn is_taken(_: Step) -> bool {
    true
}

#[cfg(loom)]
mod model {
    use std::sync::atomic::{AtomicU8, Ordering};

    use super::Step;

    /// Loom does not see this variable. It runs one thread at a time, and the tests of one process
    /// run one after the other.
    static LEFT_OUT: AtomicU8 = AtomicU8::new(0);

    /// Leaves a step out from now on, or no step.
    pub fn leave_out(step: Option<Step>) {
        LEFT_OUT.store(step.map_or(0, |step| step as u8), Ordering::Relaxed);
    }

    pub(crate) fn is_taken(step: Step) -> bool {
        LEFT_OUT.load(Ordering::Relaxed) != step as u8
    }
}

#[cfg(loom)]
pub(crate) use model::is_taken;
#[cfg(loom)]
pub use model::leave_out;
