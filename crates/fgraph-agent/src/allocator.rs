//! The agent's own memory, apart from the program's allocator.
//!
//! Plans and copies of files take megabytes for a moment. `dlmalloc` keeps such memory when it is
//! freed, and it would stay in the program after the agent has left it. So a large block is a
//! mapping of its own, which goes when the block is freed, and [`give_up`] has the kernel forget
//! the pages of free blocks.
//!
//! # Safety
//!
//! The unsafe code maps and unmaps memory as the contract of `GlobalAlloc` says: a block is freed
//! with the layout that it was allocated with, which tells how it was. The heap is used under its
//! lock only.

use std::alloc::{GlobalAlloc, Layout};
use std::cell::UnsafeCell;
use std::ptr;
use std::sync::Once;
use std::sync::atomic::{AtomicBool, Ordering};

use dlmalloc::Dlmalloc;

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

/// Where the heap gets its memory from.
struct Pages {
    /// It gets no more.
    is_closed: AtomicBool,
}

// SAFETY: the kernel gives memory that nothing else has, filled with zeros, and takes back what the
// heap says.
unsafe impl dlmalloc::Allocator for Pages {
    fn alloc(&self, size: usize) -> (*mut u8, usize, u32) {
        match self.is_closed.load(Ordering::Relaxed) {
            true => (ptr::null_mut(), 0, 0),
            false => (map(size), size, 0),
        }
    }

    fn remap(&self, memory: *mut u8, size: usize, new: usize, can_move: bool) -> *mut u8 {
        let flags = if can_move { libc::MREMAP_MAYMOVE } else { 0 };
        // SAFETY: memory of the heap, which asks for it.
        match unsafe { libc::mremap(memory.cast(), size, new, flags) } {
            libc::MAP_FAILED => ptr::null_mut(),
            memory => memory.cast(),
        }
    }

    fn free_part(&self, memory: *mut u8, size: usize, new: usize) -> bool {
        // SAFETY: memory of the heap, which does not use the part behind `new` bytes any more.
        unsafe { libc::munmap(memory.add(new).cast(), size - new) == 0 }
    }

    fn free(&self, memory: *mut u8, size: usize) -> bool {
        // SAFETY: memory of the heap, which does not use it any more.
        unsafe { libc::munmap(memory.cast(), size) == 0 }
    }

    fn can_release_part(&self, _flags: u32) -> bool {
        true
    }

    fn allocates_zeros(&self) -> bool {
        true
    }

    fn page_size(&self) -> usize {
        PAGE
    }
}

/// The heap of small blocks, and its lock.
struct Heap {
    lock: UnsafeCell<libc::pthread_mutex_t>,
    dlmalloc: UnsafeCell<Dlmalloc<Pages>>,
}

// SAFETY: `dlmalloc` is used with `lock` held only, which any thread may use.
unsafe impl Sync for Heap {}

static HEAP: Heap = Heap {
    lock: UnsafeCell::new(libc::PTHREAD_MUTEX_INITIALIZER),
    dlmalloc: UnsafeCell::new(Dlmalloc::new_with_allocator(Pages {
        is_closed: AtomicBool::new(false),
    })),
};

extern "C" fn lock() {
    // SAFETY: a mutex that stays where it is.
    let error = unsafe { libc::pthread_mutex_lock(HEAP.lock.get()) };
    assert_eq!(error, 0);
}

extern "C" fn unlock() {
    // SAFETY: a mutex that stays where it is, and that this thread has locked.
    unsafe { libc::pthread_mutex_unlock(HEAP.lock.get()) };
}

/// Uses the heap with its lock held. `work` must not allocate otherwise.
fn with_heap<T>(work: impl FnOnce(&mut Dlmalloc<Pages>) -> T) -> T {
    struct Locked;
    impl Drop for Locked {
        fn drop(&mut self) {
            unlock();
        }
    }
    lock();
    let _locked = Locked;
    // SAFETY: nothing else uses it while the lock is held.
    work(unsafe { &mut *HEAP.dlmalloc.get() })
}

/// Has forked children find the heap unlocked. To be called before a child may be forked.
pub(crate) fn survive_forks() {
    static ONCE: Once = Once::new();
    ONCE.call_once(|| {
        // SAFETY: functions that stay. They lock before a fork, and unlock in parent and child.
        unsafe { libc::pthread_atfork(Some(lock), Some(unlock), Some(unlock)) };
    });
}

/// Has the kernel forget the pages that only free blocks have.
///
/// All free blocks are allocated first, by their size, while the heap gets no more memory: so their
/// inner pages are nobody's, and may be zero when the blocks are freed again.
pub(crate) fn give_up() {
    const SMALLEST: usize = 2 * PAGE;
    with_heap(|heap| {
        heap.allocator().is_closed.store(true, Ordering::Relaxed);
        let mut blocks: *mut *mut u8 = ptr::null_mut();
        let mut size = LARGE;
        while size >= SMALLEST {
            // SAFETY: any size and alignment may be asked for.
            let block = unsafe { heap.malloc(size, align_of::<*mut u8>()) };
            if block.is_null() {
                size /= 2;
                continue;
            }
            // The first word leads to the block before.
            let start = (block.addr() + size_of::<*mut u8>()).next_multiple_of(PAGE);
            let end = (block.addr() + size) / PAGE * PAGE;
            let block: *mut *mut u8 = block.cast();
            // SAFETY: the block is large enough for a word, and this thread's alone. The pages from
            // `start` on are within it.
            unsafe {
                block.write(blocks.cast());
                libc::madvise(
                    block.with_addr(start).cast(),
                    end.saturating_sub(start),
                    libc::MADV_DONTNEED,
                );
            }
            blocks = block;
        }
        while !blocks.is_null() {
            let block = blocks;
            // SAFETY: allocated above, with its first word. Its size need not be known.
            unsafe {
                blocks = block.read().cast();
                heap.c_free(block.cast());
            }
        }
        // SAFETY: it unmaps what is free.
        unsafe { heap.trim(0) };
        heap.allocator().is_closed.store(false, Ordering::Relaxed);
    });
}

// SAFETY: both allocators give blocks that nothing else has, of the size and alignment that is
// asked for, and a block goes back to the one that it is from.
unsafe impl GlobalAlloc for Allocator {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        match is_large(&layout) {
            true => map(layout.size()),
            // SAFETY: the caller's contract.
            false => with_heap(|heap| unsafe { heap.malloc(layout.size(), layout.align()) }),
        }
    }

    unsafe fn alloc_zeroed(&self, layout: Layout) -> *mut u8 {
        match is_large(&layout) {
            true => map(layout.size()),
            // SAFETY: the caller's contract.
            false => with_heap(|heap| unsafe { heap.calloc(layout.size(), layout.align()) }),
        }
    }

    unsafe fn dealloc(&self, block: *mut u8, layout: Layout) {
        match is_large(&layout) {
            true => {
                // SAFETY: mapped by `alloc`, with this length.
                unsafe { libc::munmap(block.cast(), layout.size()) };
            }
            // SAFETY: the caller's contract.
            false => with_heap(|heap| unsafe { heap.free(block, layout.size(), layout.align()) }),
        }
    }

    unsafe fn realloc(&self, block: *mut u8, layout: Layout, size: usize) -> *mut u8 {
        // SAFETY: the caller's contract: the size does not overflow when it is rounded up.
        let new = unsafe { Layout::from_size_align_unchecked(size, layout.align()) };
        match (is_large(&layout), is_large(&new)) {
            (false, false) => with_heap(|heap| {
                // SAFETY: the caller's contract.
                unsafe { heap.realloc(block, layout.size(), layout.align(), size) }
            }),
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
