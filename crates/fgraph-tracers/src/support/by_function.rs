//! Something small for each function, found by its number.
//!
//! ```text
//!   chunks                cells of 4096 functions
//!   +-----+              +------+------+-----+
//!   |  o--|------------->| cell | cell | ... |
//!   | null|              +------+------+-----+
//! ```
//!
//! A chunk is mapped when a callback asks for one of its functions first, and stays.
//!
//! # Safety
//!
//! The unsafe code refers to cells, which stay for as long as the table does.

use core::ptr;
use core::sync::atomic::{AtomicPtr, Ordering};

use fgraph::Function;

use super::arena::Zeroed;
use super::kernel;

/// Functions of a chunk.
const CHUNK: usize = 4096;
/// Chunks: functions have numbers below 2^24.
const CHUNKS: usize = (1 << 24) / CHUNK;

/// A cell for each function, zeros at first.
#[derive(Debug)]
pub(crate) struct ByFunction<T> {
    chunks: Box<[AtomicPtr<T>]>,
}

impl<T: Zeroed> ByFunction<T> {
    const LEN: usize = CHUNK * size_of::<T>();

    pub(crate) fn new() -> Self {
        const { assert!(!core::mem::needs_drop::<T>()) }
        let chunks = (0..CHUNKS).map(|_| AtomicPtr::new(ptr::null_mut()));
        Self {
            chunks: chunks.collect(),
        }
    }

    /// The cell of a function; `None` without memory. It may be asked for in callbacks.
    #[inline]
    pub(crate) fn of(&self, function: Function) -> Option<&T> {
        let index = function.index() as usize;
        let chunk = self.chunks.get(index / CHUNK)?;
        // Acquire: the cells are mapped before.
        let mut cells = chunk.load(Ordering::Acquire);
        if cells.is_null() {
            cells = Self::map(chunk)?;
        }
        // SAFETY: a chunk has so many cells, zeros at first, and stays.
        Some(unsafe { &*cells.add(index % CHUNK) })
    }

    #[cold]
    #[inline(never)]
    fn map(chunk: &AtomicPtr<T>) -> Option<*mut T> {
        let ours: *mut T = kernel::map(Self::LEN)?.cast();
        let (release, acquire) = (Ordering::Release, Ordering::Acquire);
        match chunk.compare_exchange(ptr::null_mut(), ours, release, acquire) {
            Ok(_) => Some(ours),
            Err(theirs) => {
                // SAFETY: just mapped, and known to nothing else.
                unsafe { kernel::unmap(ours.cast(), Self::LEN) };
                Some(theirs)
            }
        }
    }

    /// The cells of all functions that callbacks have asked for, and of others.
    pub(crate) fn iter(&self) -> impl Iterator<Item = &T> {
        let chunks = self
            .chunks
            .iter()
            .map(|chunk| chunk.load(Ordering::Acquire));
        let chunks = chunks.filter(|cells| !cells.is_null());
        // SAFETY: as in `of`.
        chunks.flat_map(|cells| unsafe { core::slice::from_raw_parts(cells, CHUNK) })
    }
}

impl<T> Drop for ByFunction<T> {
    fn drop(&mut self) {
        for chunk in &mut self.chunks {
            let cells = *chunk.get_mut();
            if !cells.is_null() {
                // SAFETY: mapped with this length; references to cells end with the table.
                unsafe { kernel::unmap(cells.cast(), CHUNK * size_of::<T>()) };
            }
        }
    }
}
