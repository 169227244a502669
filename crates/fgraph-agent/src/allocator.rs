//! The agent's own memory, apart from the program's allocator.
//!
//! Plans and copies of files take megabytes for a moment. `dlmalloc` keeps such memory when it is
//! freed, and it would stay in the program after the agent has left it. So a large block is a
//! mapping of its own, which goes when the block is freed.
//!
//! # Safety
//!
//! The unsafe code maps and unmaps memory as the contract of `GlobalAlloc` says: a block is freed
//! with the layout that it was allocated with, which tells how it was.

use std::alloc::{GlobalAlloc, Layout};
use std::ptr;

use dlmalloc::GlobalDlmalloc;

/// Blocks from this size on are mappings.
const LARGE: usize = 256 << 10;
const PAGE: usize = 4096;

/// `dlmalloc` for small blocks, the kernel for large ones.
pub(crate) struct Allocator;

const fn is_large(layout: &Layout) -> bool {
    layout.size() >= LARGE && layout.align() <= PAGE
}

fn map(len: usize) -> *mut u8 {
    let rights = libc::PROT_READ | libc::PROT_WRITE;
    let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS;
    // SAFETY: a new mapping.
    let memory = unsafe { libc::mmap(ptr::null_mut(), len, rights, flags, -1, 0) };
    match memory {
        libc::MAP_FAILED => ptr::null_mut(),
        memory => memory.cast(),
    }
}

// SAFETY: both allocators give blocks that nothing else has, of the size and alignment that is
// asked for, and a block goes back to the one that it is from.
unsafe impl GlobalAlloc for Allocator {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        match is_large(&layout) {
            true => map(layout.size()),
            // SAFETY: the caller's contract.
            false => unsafe { GlobalDlmalloc.alloc(layout) },
        }
    }

    unsafe fn alloc_zeroed(&self, layout: Layout) -> *mut u8 {
        match is_large(&layout) {
            true => map(layout.size()),
            // SAFETY: the caller's contract.
            false => unsafe { GlobalDlmalloc.alloc_zeroed(layout) },
        }
    }

    unsafe fn dealloc(&self, block: *mut u8, layout: Layout) {
        match is_large(&layout) {
            true => {
                // SAFETY: mapped by `alloc`, with this length.
                unsafe { libc::munmap(block.cast(), layout.size()) };
            }
            // SAFETY: the caller's contract.
            false => unsafe { GlobalDlmalloc.dealloc(block, layout) },
        }
    }

    unsafe fn realloc(&self, block: *mut u8, layout: Layout, size: usize) -> *mut u8 {
        // SAFETY: the caller's contract: the size does not overflow when it is rounded up.
        let new = unsafe { Layout::from_size_align_unchecked(size, layout.align()) };
        match (is_large(&layout), is_large(&new)) {
            // SAFETY: the caller's contract.
            (false, false) => unsafe { GlobalDlmalloc.realloc(block, layout, size) },
            (true, true) => {
                let may_move = libc::MREMAP_MAYMOVE;
                // SAFETY: mapped by `alloc`, with this length.
                let moved = unsafe { libc::mremap(block.cast(), layout.size(), size, may_move) };
                match moved {
                    libc::MAP_FAILED => ptr::null_mut(),
                    moved => moved.cast(),
                }
            }
            _ => {
                // SAFETY: the caller's contract.
                let moved = unsafe { self.alloc(new) };
                if !moved.is_null() {
                    // SAFETY: both blocks are as large, and the new one is another one.
                    unsafe {
                        ptr::copy_nonoverlapping(block, moved, layout.size().min(size));
                        self.dealloc(block, layout);
                    }
                }
                moved
            }
        }
    }
}
