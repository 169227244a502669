//! Table with a small cell for each function, found by the function's number.
//!
//! ```text
//!   chunks                cells of 4096 functions
//!   +-----+              +------+------+-----+
//!   |  o--|------------->| cell | cell | ... |
//!   | null|              +------+------+-----+
//! ```
//!
//! A chunk is mapped when a callback first requests a cell in it, and stays.
//!
//! # Safety
//!
//! The unsafe code refers to cells, which live as long as the table.

use core::ptr;
use core::sync::atomic::{AtomicPtr, Ordering};

use fgraph::Function;

use super::arena::Zeroed;
use super::kernel;

/// Number of functions in a chunk.
const CHUNK: usize = 4096;
/// Number of chunks: functions have numbers below 2^24.
const CHUNKS: usize = (1 << 24) / CHUNK;

/// A cell for each function, zero at first.
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

    /// Returns the cell of a function, if one of its chunk was requested before. Callbacks on the
    /// fast path may call this.
    #[inline(always)]
    pub(crate) fn get(&self, function: Function) -> Option<&T> {
        let index = function.index() as usize;
        let chunk = self.chunks.get(index / CHUNK)?;
        // Acquire: the cells are mapped before.
        let cells = chunk.load(Ordering::Acquire);
        // SAFETY: the index is within the chunk, which has zeroed cells and stays mapped.
        (!cells.is_null()).then(|| unsafe { &*cells.add(index % CHUNK) })
    }

    /// Returns the cell of a function; `None` without memory. Callbacks may call this.
    #[inline]
    pub(crate) fn of(&self, function: Function) -> Option<&T> {
        let index = function.index() as usize;
        let chunk = self.chunks.get(index / CHUNK)?;
        // Acquire: the cells are mapped before.
        let mut cells = chunk.load(Ordering::Acquire);
        if cells.is_null() {
            cells = Self::map(chunk)?;
        }
        // SAFETY: the index is within the chunk, which has zeroed cells and stays mapped.
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
                // SAFETY: the chunk was just mapped, and no other thread knows it.
                unsafe { kernel::unmap(ours.cast(), Self::LEN) };
                Some(theirs)
            }
        }
    }

    /// Iterates over the cells of all functions that callbacks have requested, and of others.
    pub(crate) fn iter(&self) -> impl Iterator<Item = &T> {
        let chunks = self
            .chunks
            .iter()
            .map(|chunk| chunk.load(Ordering::Acquire));
        let chunks = chunks.filter(|cells| !cells.is_null());
        // SAFETY: a chunk has this number of zeroed cells, and stays mapped.
        chunks.flat_map(|cells| unsafe { core::slice::from_raw_parts(cells, CHUNK) })
    }
}

impl<T> Drop for ByFunction<T> {
    fn drop(&mut self) {
        for chunk in &mut self.chunks {
            let cells = *chunk.get_mut();
            if !cells.is_null() {
                // SAFETY: the chunk was mapped with this length; references to cells end with the
                // table.
                unsafe { kernel::unmap(cells.cast(), CHUNK * size_of::<T>()) };
            }
        }
    }
}
