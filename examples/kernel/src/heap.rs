//! The allocator: lists of free blocks, one for each power of two.

use core::alloc::{GlobalAlloc, Layout};
use core::ptr;
use core::sync::atomic::{AtomicU64, Ordering};

use crate::cpu::Lock;
use crate::memory;

const SIZE: usize = 24 << 20;
const ADDRESS: usize = 0xffff_c000_0000_0000;
/// Classes of 2^4 to 2^22 bytes.
const CLASSES: usize = 19;
const LEAST: usize = 16;

#[global_allocator]
static HEAP: Heap = Heap {
    blocks: Lock::new(Blocks {
        free: [ptr::null_mut(); CLASSES],
        next: ADDRESS,
    }),
    used: AtomicU64::new(0),
};

struct Heap {
    blocks: Lock<Blocks>,
    /// Bytes of blocks in use.
    used: AtomicU64,
}

/// A free block.
struct Block {
    next: *mut Block,
}

struct Blocks {
    free: [*mut Block; CLASSES],
    /// The end of the blocks that were ever made.
    next: usize,
}

// SAFETY: the blocks belong to whoever has the lock.
unsafe impl Send for Blocks {}

/// Maps the heap's memory.
pub(crate) fn prepare() {
    // SAFETY: nothing else uses the addresses.
    unsafe { memory::map_new(ADDRESS, SIZE) };
}

/// Returns the bytes of all blocks in use.
pub(crate) fn used() -> u64 {
    HEAP.used.load(Ordering::Relaxed)
}

/// Returns the class of a layout.
fn class_of(layout: Layout) -> usize {
    let size = layout
        .size()
        .max(layout.align())
        .max(LEAST)
        .next_power_of_two();
    (size / LEAST).trailing_zeros() as usize
}

/// Takes a block of a class; null if there is no memory.
#[inline(never)]
pub(crate) fn take_block(class: usize) -> *mut u8 {
    let mut blocks = HEAP.blocks.lock();
    if class >= CLASSES {
        return ptr::null_mut();
    }
    let size = LEAST << class;
    HEAP.used.fetch_add(size as u64, Ordering::Relaxed);
    let first = blocks.free[class];
    if !first.is_null() {
        // SAFETY: a free block is at its start a `Block`.
        blocks.free[class] = unsafe { (*first).next };
        return first.cast();
    }
    let start = blocks.next.next_multiple_of(size);
    if start + size > ADDRESS + SIZE {
        return ptr::null_mut();
    }
    blocks.next = start + size;
    start as *mut u8
}

/// Gives a block of a class back.
///
/// # Safety
///
/// The block must be one that [`take_block`] has returned, and unused.
#[inline(never)]
pub(crate) unsafe fn give_block(block: *mut u8, class: usize) {
    let mut blocks = HEAP.blocks.lock();
    HEAP.used
        .fetch_sub((LEAST << class) as u64, Ordering::Relaxed);
    let block = block.cast::<Block>();
    // SAFETY: the caller gives the block, which is large enough, and aligned to its size.
    unsafe { (*block).next = blocks.free[class] };
    blocks.free[class] = block;
}

// SAFETY: blocks are as large as asked for, aligned to their size, and in one place at a time.
unsafe impl GlobalAlloc for Heap {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        take_block(class_of(layout))
    }

    unsafe fn dealloc(&self, block: *mut u8, layout: Layout) {
        // SAFETY: the caller passes a block and its layout.
        unsafe { give_block(block, class_of(layout)) };
    }
}
