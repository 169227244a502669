//! Memory for the data that callbacks keep, without the allocator.
//!
//! An arena belongs to one thread. It hands out memory from blocks that it maps, and unmaps all of
//! them when it is dropped:
//!
//! ```text
//!   blocks --> +------+------------------+   +------+--------------------+
//!              | next | zeros, handed out|   | next | handed out already |
//!              +--|---+------------------+   +--^---+--------------------+
//!                 +-----------------------------+
//! ```
//!
//! # Safety
//!
//! The unsafe code hands out references into blocks, which live as long as the arena.

use core::ptr;
use core::sync::atomic::{AtomicPtr, AtomicU8, AtomicU32, AtomicU64, AtomicUsize, Ordering};

use super::kernel;

/// Bytes of a block, unless a larger piece is requested.
const BLOCK: usize = 256 << 10;
/// Greatest alignment of memory from an arena.
const ALIGN: usize = 64;

/// Type whose all-zero bytes are a valid value.
///
/// # Safety
///
/// All-zero bytes must be a valid value of the type.
pub(crate) unsafe trait Zeroed {}

macro_rules! zeroed {
    ($($type:ty),*) => {
        // SAFETY: zero is a valid number.
        $(unsafe impl Zeroed for $type {})*
    };
}

zeroed!(AtomicU8, AtomicU32, AtomicU64, AtomicUsize);

// SAFETY: zeros are a null pointer, which is valid.
unsafe impl<T> Zeroed for AtomicPtr<T> {}
// SAFETY: each element is valid as zeros.
unsafe impl<T: Zeroed, const N: usize> Zeroed for [T; N] {}

/// Start of a block.
struct Header {
    next: *mut Header,
    len: usize,
}

/// Memory that one thread requests, and all threads may use.
#[derive(Debug, Default)]
pub(crate) struct Arena {
    /// Newest block.
    blocks: AtomicPtr<Header>,
    /// Bytes of the newest block that were handed out.
    used: AtomicUsize,
}

impl Arena {
    /// Returns one or several zeroed values; `None` without memory.
    ///
    /// # Safety
    ///
    /// Only one thread may call this on an arena, and not from a signal handler that interrupts it.
    pub(crate) unsafe fn zeroed<T: Zeroed>(&self, count: usize) -> Option<&[T]> {
        const { assert!(align_of::<T>() <= ALIGN && !core::mem::needs_drop::<T>()) }
        let len = count
            .checked_mul(size_of::<T>())?
            .checked_next_multiple_of(ALIGN)?;
        // SAFETY: the caller keeps the same contract.
        let place = unsafe { self.take(len) }?;
        // SAFETY: the place has this number of bytes, all zero, for nobody else, while the arena
        // lives.
        Some(unsafe { core::slice::from_raw_parts(place.cast(), count) })
    }

    /// Returns memory of `len` bytes, a multiple of [`ALIGN`].
    ///
    /// # Safety
    ///
    /// Same as for [`zeroed`](Self::zeroed).
    unsafe fn take(&self, len: usize) -> Option<*mut u8> {
        let block = self.blocks.load(Ordering::Relaxed);
        let used = self.used.load(Ordering::Relaxed);
        // SAFETY: blocks stay mapped while the arena lives.
        if !block.is_null() && unsafe { (*block).len } - used >= len {
            self.used.store(used + len, Ordering::Relaxed);
            // SAFETY: the result is within the block, by the check.
            return Some(unsafe { block.cast::<u8>().add(used) });
        }
        let whole = len.checked_add(ALIGN)?.max(BLOCK);
        let new: *mut Header = kernel::map(whole)?.cast();
        // SAFETY: the block was just mapped, is aligned to pages, and nobody else knows it.
        unsafe {
            new.write(Header {
                next: block,
                len: whole,
            });
        }
        self.used.store(ALIGN + len, Ordering::Relaxed);
        // Release: the thread that drops the arena sees the header.
        self.blocks.store(new, Ordering::Release);
        // SAFETY: the result is within the block.
        Some(unsafe { new.cast::<u8>().add(ALIGN) })
    }
}

impl Drop for Arena {
    fn drop(&mut self) {
        let mut block = *self.blocks.get_mut();
        while !block.is_null() {
            // SAFETY: a block has its header until it is unmapped.
            let Header { next, len } = unsafe { block.read() };
            // SAFETY: the block was mapped with this length; references into it end with the arena.
            unsafe { kernel::unmap(block.cast(), len) };
            block = next;
        }
    }
}

/// List that one thread adds to and all threads may walk. Its elements belong to an [`Arena`].
#[derive(Debug)]
pub(crate) struct List<T>(AtomicPtr<T>);

/// Element of a [`List`].
pub(crate) trait Linked: Sized {
    /// Returns the link to the next element.
    fn link(&self) -> &AtomicPtr<Self>;
}

impl<T> Default for List<T> {
    fn default() -> Self {
        Self(AtomicPtr::new(ptr::null_mut()))
    }
}

impl<T: Linked> List<T> {
    /// Adds an element at the start.
    ///
    /// # Safety
    ///
    /// The element must live as long as the list, and be in no other one. Only one thread may add.
    pub(crate) unsafe fn add(&self, one: &T) {
        one.link()
            .store(self.0.load(Ordering::Relaxed), Ordering::Relaxed);
        // Release: a thread that finds the element sees it complete.
        self.0
            .store(ptr::from_ref(one).cast_mut(), Ordering::Release);
    }

    /// Iterates over the current elements, newest first.
    pub(crate) fn iter(&self) -> impl Iterator<Item = &T> {
        // SAFETY: null, or an element that lives as long as the list. Acquire: it is complete.
        let first = unsafe { self.0.load(Ordering::Acquire).as_ref() };
        core::iter::successors(first, |one| {
            // SAFETY: null, or an element that lives as long as the list.
            unsafe { one.link().load(Ordering::Acquire).as_ref() }
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn memory_is_zero_and_is_handed_out_once() {
        let arena = Arena::default();
        let mut places = Vec::new();
        for count in [1, 7, 8, 1000, 100_000, 3] {
            // SAFETY: the test has one thread.
            let words: &[AtomicU64] = unsafe { arena.zeroed(count) }.unwrap();
            assert_eq!(words.len(), count);
            assert_eq!(words.as_ptr().addr() % ALIGN, 0);
            for word in words {
                assert_eq!(word.swap(1, Ordering::Relaxed), 0);
            }
            places.push(words.as_ptr_range());
        }
        places.sort_by_key(|range| range.start);
        assert!(places.windows(2).all(|pair| pair[0].end <= pair[1].start));
    }

    #[test]
    fn more_than_there_is_is_none() {
        let arena = Arena::default();
        // SAFETY: the test has one thread.
        assert!(unsafe { arena.zeroed::<AtomicU64>(usize::MAX / 8) }.is_none());
        // SAFETY: the test has one thread.
        assert!(unsafe { arena.zeroed::<AtomicU64>(1 << 50) }.is_none());
        // SAFETY: the test has one thread.
        assert!(unsafe { arena.zeroed::<AtomicU64>(1) }.is_some());
    }
}
