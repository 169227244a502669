//! Writers of all rings, in memory that a child of `fork` finds wiped.
//!
//! A thread's word is the offset of its writer. A zeroed writer has no ring, so a child notices at
//! its first call that it needs rings of its own. Without that it would write to its parent's
//! rings, whose memory it shares. No fork handler is needed, so this works for a bare `clone` too.

use core::ptr::NonNull;
use core::sync::atomic::{AtomicU64, Ordering};

use fgraph_trace::ring::Writer;

use crate::support::kernel;

/// A writer for each ring, behind two that never have a ring. After them comes, for each ring, the
/// thread that uses it. The rings' own note of that thread can be written by other processes.
#[derive(Debug)]
pub(super) struct Writers {
    first: NonNull<Writer>,
    count: usize,
}

// SAFETY: only the thread that has a ring uses its writer.
unsafe impl Send for Writers {}
// SAFETY: only the thread that has a ring uses its writer.
unsafe impl Sync for Writers {}

/// Offset of a thread's writer, in bytes from the first one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct WriterOffset(pub(super) u64);

impl WriterOffset {
    /// Offset for a thread that got no ring. The offset for a thread that was not seen yet is 0.
    pub(super) const WITHOUT_RING: Self = Self(size_of::<Writer>() as u64);

    /// Returns the offset for the thread that has the ring `index`.
    pub(super) fn of_ring(index: u32) -> Self {
        Self((u64::from(index) + 2) * size_of::<Writer>() as u64)
    }
}

/// Thread of this process, or of one that shares its memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Owner {
    pub(super) process: u32,
    pub(super) thread: u32,
}

impl Owner {
    fn bits(self) -> u64 {
        u64::from(self.process) << 32 | u64::from(self.thread)
    }

    fn of(bits: u64) -> Self {
        Self {
            process: (bits >> 32) as u32,
            thread: bits as u32,
        }
    }
}

/// Returns the number of bytes of this many writers and their owners.
fn bytes(count: usize) -> usize {
    count * (size_of::<Writer>() + size_of::<AtomicU64>())
}

impl Writers {
    /// Maps writers for this number of rings; `None` without memory.
    pub(super) fn new(rings: u32) -> Option<Self> {
        let count = rings as usize + 2;
        let len = bytes(count);
        let memory = kernel::map(len)?;
        if !kernel::wipe_on_fork(memory, len) {
            // SAFETY: the memory was just mapped, and nothing refers to it.
            unsafe { kernel::unmap(memory, len) };
            return None;
        }
        let first = NonNull::new(memory.cast())?;
        Some(Self { first, count })
    }

    /// Gives a ring's writer to a thread; `false` if another thread has it that has not ended
    /// according to `is_gone`.
    pub(super) fn claim(&self, ring: u32, owner: Owner, is_gone: impl Fn(Owner) -> bool) -> bool {
        let Some(place) = self.owner(ring) else {
            return false;
        };
        let before = place.load(Ordering::Relaxed);
        let is_free = before == 0 || before == owner.bits() || is_gone(Owner::of(before));
        // Acquire: a thread that is gone no longer uses the writer.
        let (acquire, relaxed) = (Ordering::Acquire, Ordering::Relaxed);
        let claimed = || place.compare_exchange(before, owner.bits(), acquire, relaxed);
        is_free && claimed().is_ok()
    }

    /// True if a thread was the last to get the writer of a ring.
    pub(super) fn is_of(&self, ring: u32, owner: Owner) -> bool {
        let place = self.owner(ring);
        place.is_some_and(|place| place.load(Ordering::Relaxed) == owner.bits())
    }

    fn owner(&self, ring: u32) -> Option<&AtomicU64> {
        let at = (ring as usize)
            .checked_add(2)
            .filter(|at| *at < self.count)?;
        // SAFETY: this number of owners is behind the writers, with the same alignment, and nothing
        // else is there.
        Some(unsafe {
            self.first
                .add(self.count)
                .cast::<AtomicU64>()
                .add(at)
                .as_ref()
        })
    }

    /// Returns the writer at an offset.
    ///
    /// # Safety
    ///
    /// The offset must be 0, the one for no ring, or that of an existing ring.
    #[inline(always)]
    pub(super) unsafe fn at(&self, offset: WriterOffset) -> &Writer {
        // SAFETY: the offset leads to a writer, for which zeros are valid too.
        unsafe { self.first.byte_add(offset.0 as usize).as_ref() }
    }
}

impl Drop for Writers {
    fn drop(&mut self) {
        let len = bytes(self.count);
        // SAFETY: the memory was mapped with this length, and nothing refers to it any more.
        unsafe { kernel::unmap(self.first.as_ptr().cast(), len) };
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_writer_is_given_to_another_thread_when_its_own_is_gone() {
        let [seven, eight] = [7, 8].map(|thread| Owner { process: 1, thread });
        let other = Owner {
            process: 2,
            thread: 7,
        };
        let writers = Writers::new(2).unwrap();
        assert!(writers.claim(0, seven, |_| false));
        assert!(writers.claim(0, seven, |_| false));
        for owner in [eight, other] {
            assert!(!writers.claim(0, owner, |_| false));
            assert!(!writers.is_of(0, owner));
        }
        assert!(writers.is_of(0, seven) && !writers.is_of(1, seven));
        assert!(writers.claim(0, eight, |owner| owner == seven));
        assert!(writers.is_of(0, eight));
        assert!(writers.claim(1, seven, |_| false));
        assert!(!writers.claim(2, seven, |_| true), "there is no such ring");
    }
}
