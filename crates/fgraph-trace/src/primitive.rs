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
    /// The writer's fence behind that.
    WriterFence,
    /// The new length is stored with release.
    LengthLast,
    /// A writer that drops asks for room.
    Room,
    /// The writer says at which place a sub-buffer is.
    Place,
    /// The reader's fence behind copying.
    ReaderFence,
    /// The reader looks at the state once more.
    LookAgain,
}

/// Whether a step is taken: outside of loom's models it always is.
#[cfg(not(loom))]
#[inline(always)]
pub(crate) const fn is_taken(_: Step) -> bool {
    true
}

#[cfg(loom)]
mod model {
    use std::sync::atomic::{AtomicU8, Ordering};

    use super::Step;

    /// Loom does not see it, and runs one thread at a time; tests of one process run one after the
    /// other.
    static LEFT_OUT: AtomicU8 = AtomicU8::new(0);

    /// Leaves a step out from now on, or none.
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
