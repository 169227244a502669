//! The writers of all rings, in memory that a child of `fork` finds wiped.
//!
//! A thread's word is where its writer is. A writer of zeros has no ring, so a child finds out at
//! its first call that it needs rings of its own; it shares the memory of the rings with its
//! parent, and would write to the parent's else. This needs no handler of forks, so it holds for a
//! bare `clone` as well.

use core::ptr::NonNull;

use fgraph_trace::ring::Writer;

use crate::support::kernel;

/// A writer for each ring, and before them two that never have one.
#[derive(Debug)]
pub(super) struct Writers {
    first: NonNull<Writer>,
    count: usize,
}

// SAFETY: each writer is used by the thread that has its ring only.
unsafe impl Send for Writers {}
// SAFETY: as above.
unsafe impl Sync for Writers {}

/// Where a thread's writer is, in bytes from the first one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct WriterOffset(pub(super) u64);

impl WriterOffset {
    /// Of a thread that got no ring. That of one that was not seen yet is 0.
    pub(super) const WITHOUT_RING: Self = Self(size_of::<Writer>() as u64);

    /// Of the thread that has the ring `index`.
    pub(super) fn of_ring(index: u32) -> Self {
        Self((u64::from(index) + 2) * size_of::<Writer>() as u64)
    }
}

impl Writers {
    /// Writers for so many rings; `None` if there is no memory.
    pub(super) fn new(rings: u32) -> Option<Self> {
        let count = rings as usize + 2;
        let len = count * size_of::<Writer>();
        let memory = kernel::map(len)?;
        if !kernel::wipe_on_fork(memory, len) {
            // SAFETY: just mapped.
            unsafe { kernel::unmap(memory, len) };
            return None;
        }
        let first = NonNull::new(memory.cast())?;
        Some(Self { first, count })
    }

    /// The writer at an offset.
    ///
    /// # Safety
    ///
    /// The offset must be 0, that of no ring, or of a ring that there is.
    #[inline(always)]
    pub(super) unsafe fn at(&self, offset: WriterOffset) -> &Writer {
        // SAFETY: it is a writer's, which zeros are as well.
        unsafe { self.first.byte_add(offset.0 as usize).as_ref() }
    }
}

impl Drop for Writers {
    fn drop(&mut self) {
        let len = self.count * size_of::<Writer>();
        // SAFETY: mapped with this length, and nothing refers to it any more.
        unsafe { kernel::unmap(self.first.as_ptr().cast(), len) };
    }
}
