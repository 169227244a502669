//! Memory for what callbacks keep, which does not come from the allocator.
//!
//! An arena belongs to one thread. It hands out memory from blocks that it maps, and gives all of
//! them back when it is dropped:
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
//! The unsafe code hands out references into blocks, which stay for as long as the arena does.

use core::ptr;
use core::sync::atomic::{AtomicPtr, AtomicU8, AtomicU32, AtomicU64, AtomicUsize, Ordering};

use super::kernel;

/// Bytes of a block, unless something larger is asked for.
const BLOCK: usize = 256 << 10;
/// What memory from an arena is aligned to, at most.
const ALIGN: usize = 64;

/// A type of which a value of zeros, byte by byte, is one.
///
/// # Safety
///
/// It must be so.
pub(crate) unsafe trait Zeroed {}

macro_rules! zeroed {
    ($($type:ty),*) => {
        // SAFETY: a number.
        $(unsafe impl Zeroed for $type {})*
    };
}

zeroed!(AtomicU8, AtomicU32, AtomicU64, AtomicUsize);

// SAFETY: a null pointer.
unsafe impl<T> Zeroed for AtomicPtr<T> {}
// SAFETY: values of zeros.
unsafe impl<T: Zeroed, const N: usize> Zeroed for [T; N] {}

/// The start of a block.
struct Header {
    next: *mut Header,
    len: usize,
}

/// Memory that one thread asks for, and that all may use.
#[derive(Debug, Default)]
pub(crate) struct Arena {
    /// The newest block.
    blocks: AtomicPtr<Header>,
    /// Bytes that are handed out of the newest block.
    used: AtomicUsize,
}

impl Arena {
    /// A value of zeros, or several in a row; `None` if there is no memory.
    ///
    /// # Safety
    ///
    /// One thread only may call this of an arena, not from a signal handler that interrupts it.
    pub(crate) unsafe fn zeroed<T: Zeroed>(&self, count: usize) -> Option<&[T]> {
        const { assert!(align_of::<T>() <= ALIGN && !core::mem::needs_drop::<T>()) }
        let len = count
            .checked_mul(size_of::<T>())?
            .checked_next_multiple_of(ALIGN)?;
        // SAFETY: handed on.
        let place = unsafe { self.take(len) }?;
        // SAFETY: so many bytes, all zeros, handed out to no one else, for as long as the arena.
        Some(unsafe { core::slice::from_raw_parts(place.cast(), count) })
    }

    /// Memory of `len` bytes, a multiple of [`ALIGN`].
    ///
    /// # Safety
    ///
    /// As for [`zeroed`](Self::zeroed).
    unsafe fn take(&self, len: usize) -> Option<*mut u8> {
        let block = self.blocks.load(Ordering::Relaxed);
        let used = self.used.load(Ordering::Relaxed);
        // SAFETY: blocks stay.
        if !block.is_null() && unsafe { (*block).len } - used >= len {
            self.used.store(used + len, Ordering::Relaxed);
            // SAFETY: within the block.
            return Some(unsafe { block.cast::<u8>().add(used) });
        }
        let whole = len.checked_add(ALIGN)?.max(BLOCK);
        let new: *mut Header = kernel::map(whole)?.cast();
        // SAFETY: just mapped, aligned to pages.
        unsafe {
            new.write(Header {
                next: block,
                len: whole,
            });
        }
        self.used.store(ALIGN + len, Ordering::Relaxed);
        // Release: whoever drops the arena finds the header.
        self.blocks.store(new, Ordering::Release);
        // SAFETY: within the block.
        Some(unsafe { new.cast::<u8>().add(ALIGN) })
    }
}

impl Drop for Arena {
    fn drop(&mut self) {
        let mut block = *self.blocks.get_mut();
        while !block.is_null() {
            // SAFETY: a block has its header until it is unmapped.
            let Header { next, len } = unsafe { block.read() };
            // SAFETY: mapped so; references to it end with the arena.
            unsafe { kernel::unmap(block.cast(), len) };
            block = next;
        }
    }
}

/// A list that one thread adds to and all may walk. What is in it belongs to an [`Arena`].
#[derive(Debug)]
pub(crate) struct List<T>(AtomicPtr<T>);

/// What is in a [`List`].
pub(crate) trait Linked: Sized {
    /// Leads to the next one.
    fn link(&self) -> &AtomicPtr<Self>;
}

impl<T> Default for List<T> {
    fn default() -> Self {
        Self(AtomicPtr::new(ptr::null_mut()))
    }
}

impl<T: Linked> List<T> {
    /// Adds one, at the start.
    ///
    /// # Safety
    ///
    /// It must live for as long as the list, be in no other one, and one thread only may add.
    pub(crate) unsafe fn add(&self, one: &T) {
        one.link()
            .store(self.0.load(Ordering::Relaxed), Ordering::Relaxed);
        // Release: who finds it finds it complete.
        self.0
            .store(ptr::from_ref(one).cast_mut(), Ordering::Release);
    }

    /// Those that are there now, the newest first.
    pub(crate) fn iter(&self) -> impl Iterator<Item = &T> {
        // SAFETY: null, or lives for as long as the list. Acquire: it is complete.
        let first = unsafe { self.0.load(Ordering::Acquire).as_ref() };
        core::iter::successors(first, |one| {
            // SAFETY: as above.
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
            // SAFETY: one thread.
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
        // SAFETY: one thread.
        assert!(unsafe { arena.zeroed::<AtomicU64>(usize::MAX / 8) }.is_none());
        // SAFETY: one thread.
        assert!(unsafe { arena.zeroed::<AtomicU64>(1 << 50) }.is_none());
        // SAFETY: one thread.
        assert!(unsafe { arena.zeroed::<AtomicU64>(1) }.is_some());
    }
}
