//! Atomics from `core`, or from loom when its model checker runs the protocols.

#[cfg(not(loom))]
pub use core::sync::atomic::{AtomicPtr, AtomicU16, AtomicU32, AtomicU64, Ordering, fence};
#[cfg(loom)]
pub use loom::sync::atomic::{AtomicPtr, AtomicU16, AtomicU32, AtomicU64, Ordering, fence};

/// Makes a `const fn`, or a plain one with loom, whose atomics cannot be made in a constant.
macro_rules! const_unless_loom {
    ($(#[$doc:meta])* pub fn $name:ident() -> Self $body:block) => {
        $(#[$doc])*
        #[cfg(not(loom))]
        pub const fn $name() -> Self $body

        $(#[$doc])*
        #[cfg(loom)]
        pub fn $name() -> Self $body
    };
}

pub(crate) use const_unless_loom;

/// Runs the reader's side of an asymmetric barrier: it keeps the compiler from moving accesses
/// across.
///
/// It orders a store before a later load only together with the writer's *heavy* barrier, which
/// makes every running thread execute a full fence: `membarrier(PRIVATE_EXPEDITED)` in a process,
/// and an interrupt of the other processors in a kernel. Loom has no asymmetric barriers, so there
/// it is a full fence.
#[inline(always)]
pub fn light_barrier() {
    #[cfg(not(loom))]
    core::sync::atomic::compiler_fence(Ordering::SeqCst);
    #[cfg(loom)]
    fence(Ordering::SeqCst);
}
