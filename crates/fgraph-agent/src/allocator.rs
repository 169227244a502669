//! Memory of the agent, apart from the program's allocator.
//!
//! Plans and copies of files take megabytes for a moment. `dlmalloc` keeps such memory when it is
//! freed, and it would stay in the program after the agent has left. A large block is therefore a
//! mapping of its own, which is unmapped when the block is freed. [`give_up`] makes the kernel
//! discard the pages of free blocks.
//!
//! Rust's standard library gets memory for destructors of thread-local values from `malloc`,
//! whatever the global allocator. [`malloc`](c_malloc) and the others of that family are therefore
//! defined here, hidden: only the code of this library finds them. The program's allocator may not
//! be ready.
//!
//! # Safety
//!
//! The unsafe code maps and unmaps memory under the contract of `GlobalAlloc`: a block is freed
//! with the layout that it was allocated with, which tells how it was. The heap is used only under
//! its lock.

use std::alloc::{GlobalAlloc, Layout};
use std::cell::UnsafeCell;
use std::ptr;
use std::sync::Once;
use std::sync::atomic::{AtomicBool, Ordering};

use dlmalloc::Dlmalloc;

/// Blocks of at least this size are mappings.
const LARGE: usize = 256 << 10;
const PAGE: usize = 4096;

/// `dlmalloc` for small blocks, the kernel for large ones.
pub(crate) struct Allocator;

const fn is_large(layout: &Layout) -> bool {
    layout.size() >= LARGE && layout.align() <= PAGE
}

/// Maps `len` bytes of zeros, without a lock; null if there is no memory.
pub(crate) fn map(len: usize) -> *mut u8 {
    let rights = libc::PROT_READ | libc::PROT_WRITE;
    let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS;
    // SAFETY: the kernel chooses a free address for the new mapping.
    let memory = unsafe { libc::mmap(ptr::null_mut(), len, rights, flags, -1, 0) };
    if memory == libc::MAP_FAILED {
        return ptr::null_mut();
    }
    // Debuggers do not need it, and the program's core file would be megabytes larger.
    // SAFETY: the content of the new mapping stays.
    unsafe { libc::madvise(memory, len, libc::MADV_DONTDUMP) };
    memory.cast()
}

/// Source of the heap's memory.
struct Pages {
    /// True if the heap gets no more memory.
    is_closed: AtomicBool,
}

// SAFETY: the kernel gives zeroed memory that nothing else uses, and takes back only memory that
// the heap names.
unsafe impl dlmalloc::Allocator for Pages {
    fn alloc(&self, size: usize) -> (*mut u8, usize, u32) {
        match self.is_closed.load(Ordering::Relaxed) {
            true => (ptr::null_mut(), 0, 0),
            false => (map(size), size, 0),
        }
    }

    fn remap(&self, memory: *mut u8, size: usize, new: usize, can_move: bool) -> *mut u8 {
        let flags = if can_move { libc::MREMAP_MAYMOVE } else { 0 };
        // SAFETY: the memory is the heap's, which requests this.
        match unsafe { libc::mremap(memory.cast(), size, new, flags) } {
            libc::MAP_FAILED => ptr::null_mut(),
            memory => memory.cast(),
        }
    }

    fn free_part(&self, memory: *mut u8, size: usize, new: usize) -> bool {
        // SAFETY: the memory is the heap's, which no longer uses the part behind `new` bytes.
        unsafe { libc::munmap(memory.add(new).cast(), size - new) == 0 }
    }

    fn free(&self, memory: *mut u8, size: usize) -> bool {
        // SAFETY: the memory is the heap's, which no longer uses it.
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

// SAFETY: `dlmalloc` is used only with `lock` held, which any thread may take.
unsafe impl Sync for Heap {}

static HEAP: Heap = Heap {
    lock: UnsafeCell::new(libc::PTHREAD_MUTEX_INITIALIZER),
    dlmalloc: UnsafeCell::new(Dlmalloc::new_with_allocator(Pages {
        is_closed: AtomicBool::new(false),
    })),
};

extern "C" fn lock() {
    // SAFETY: the mutex is in a static.
    let error = unsafe { libc::pthread_mutex_lock(HEAP.lock.get()) };
    assert_eq!(error, 0);
}

extern "C" fn unlock() {
    // SAFETY: the mutex is in a static, and this thread has locked it.
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
    // SAFETY: nothing else uses the heap while the lock is held.
    work(unsafe { &mut *HEAP.dlmalloc.get() })
}

/// Makes forked children find the heap unlocked. Call this before a child may be forked.
pub(crate) fn survive_forks() {
    static ONCE: Once = Once::new();
    ONCE.call_once(|| {
        // SAFETY: the functions stay loaded. They lock before a fork, and unlock in parent and
        // child.
        unsafe { libc::pthread_atfork(Some(lock), Some(unlock), Some(unlock)) };
    });
}

/// Makes the kernel discard pages that hold only free blocks.
///
/// All free blocks are first allocated, by their size, while the heap gets no more memory. Their
/// inner pages then belong to nobody, and may be zero when the blocks are freed again.
pub(crate) fn give_up() {
    const SMALLEST: usize = 2 * PAGE;
    with_heap(|heap| {
        heap.allocator().is_closed.store(true, Ordering::Relaxed);
        let mut blocks: *mut *mut u8 = ptr::null_mut();
        let mut size = LARGE;
        while size >= SMALLEST {
            // SAFETY: `malloc` accepts any size and alignment.
            let block = unsafe { heap.malloc(size, align_of::<*mut u8>()) };
            if block.is_null() {
                size /= 2;
                continue;
            }
            // The first word leads to the previous block.
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
            // SAFETY: the block was allocated above, with its first word. `free` does not need its
            // size.
            unsafe {
                blocks = block.read().cast();
                heap.c_free(block.cast());
            }
        }
        // SAFETY: it unmaps only free memory.
        unsafe { heap.trim(0) };
        heap.allocator().is_closed.store(false, Ordering::Relaxed);
    });
}

// SAFETY: both allocators return blocks that nothing else uses, of the requested size and
// alignment, and a block goes back to its own allocator.
unsafe impl GlobalAlloc for Allocator {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        match is_large(&layout) {
            true => map(layout.size()),
            // SAFETY: the caller keeps the contract of `GlobalAlloc`.
            false => with_heap(|heap| unsafe { heap.malloc(layout.size(), layout.align()) }),
        }
    }

    unsafe fn alloc_zeroed(&self, layout: Layout) -> *mut u8 {
        match is_large(&layout) {
            true => map(layout.size()),
            // SAFETY: the caller keeps the contract of `GlobalAlloc`.
            false => with_heap(|heap| unsafe { heap.calloc(layout.size(), layout.align()) }),
        }
    }

    unsafe fn dealloc(&self, block: *mut u8, layout: Layout) {
        match is_large(&layout) {
            true => {
                // SAFETY: `alloc` has mapped the block with this length.
                unsafe { libc::munmap(block.cast(), layout.size()) };
            }
            // SAFETY: the caller keeps the contract of `GlobalAlloc`.
            false => with_heap(|heap| unsafe { heap.free(block, layout.size(), layout.align()) }),
        }
    }

    unsafe fn realloc(&self, block: *mut u8, layout: Layout, size: usize) -> *mut u8 {
        // SAFETY: the size does not overflow when it is rounded up, by the contract of
        // `GlobalAlloc`.
        let new = unsafe { Layout::from_size_align_unchecked(size, layout.align()) };
        match (is_large(&layout), is_large(&new)) {
            (false, false) => with_heap(|heap| {
                // SAFETY: the caller keeps the contract of `GlobalAlloc`.
                unsafe { heap.realloc(block, layout.size(), layout.align(), size) }
            }),
            (true, true) => {
                let may_move = libc::MREMAP_MAYMOVE;
                // SAFETY: `alloc` has mapped the block with this length.
                let moved = unsafe { libc::mremap(block.cast(), layout.size(), size, may_move) };
                match moved {
                    libc::MAP_FAILED => ptr::null_mut(),
                    moved => moved.cast(),
                }
            }
            _ => {
                // SAFETY: the caller keeps the contract of `GlobalAlloc`.
                let moved = unsafe { self.alloc(new) };
                if !moved.is_null() {
                    // SAFETY: both blocks have at least this length, and do not overlap.
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

/// The bytes before a block of [`c_malloc`] and others: its distance to the block of the heap, and
/// the length of that block.
const HEAD: usize = 2 * size_of::<usize>();

/// Allocates `len` bytes with this alignment, behind a head of at least [`HEAD`] bytes. Returns
/// null if there is no memory.
fn allocate(len: usize, align: usize) -> *mut u8 {
    let before = HEAD.max(align);
    let Some(all) = len.checked_add(before) else {
        return ptr::null_mut();
    };
    // SAFETY: `malloc` accepts any size and alignment.
    let block = with_heap(|heap| unsafe { heap.malloc(all, before) });
    if block.is_null() {
        return block;
    }
    // SAFETY: the block has room for the head and `len` bytes after it.
    unsafe {
        let start = block.add(before);
        start.sub(HEAD).cast::<[usize; 2]>().write([before, all]);
        start
    }
}

/// `malloc` of this library's code.
extern "C" fn c_malloc(len: usize) -> *mut u8 {
    allocate(len, HEAD)
}

/// `calloc` of this library's code.
extern "C" fn c_calloc(count: usize, len: usize) -> *mut u8 {
    let Some(len) = count.checked_mul(len) else {
        return ptr::null_mut();
    };
    let block = allocate(len, HEAD);
    if !block.is_null() {
        // SAFETY: the block has `len` bytes.
        unsafe { block.write_bytes(0, len) };
    }
    block
}

/// `posix_memalign` of this library's code.
unsafe extern "C" fn c_posix_memalign(to: *mut *mut u8, align: usize, len: usize) -> i32 {
    let block = allocate(len, align);
    // SAFETY: the caller passes a place for the address.
    unsafe { to.write(block) };
    if block.is_null() { libc::ENOMEM } else { 0 }
}

/// `realloc` of this library's code.
unsafe extern "C" fn c_realloc(block: *mut u8, len: usize) -> *mut u8 {
    let new = allocate(len, HEAD);
    if !block.is_null() && !new.is_null() {
        // SAFETY: the block is one of `allocate`, with a head, and both have room for these bytes.
        unsafe {
            let [before, all] = block.sub(HEAD).cast::<[usize; 2]>().read();
            ptr::copy_nonoverlapping(block, new, len.min(all - before));
            c_free(block);
        }
    }
    new
}

/// `free` of this library's code.
unsafe extern "C" fn c_free(block: *mut u8) {
    if block.is_null() {
        return;
    }
    // SAFETY: the block is one of `allocate`, with a head.
    with_heap(|heap| unsafe {
        let [before, all] = block.sub(HEAD).cast::<[usize; 2]>().read();
        heap.free(block.sub(before), all, before);
    });
}

/// Defines a function of the C library for this library's code alone.
macro_rules! hidden {
    ($($name:literal: $function:path),*) => {
        $(core::arch::global_asm!(
            concat!(".globl ", $name),
            concat!(".hidden ", $name),
            concat!(".type ", $name, ", @function"),
            concat!($name, ":"),
            "jmp {function}",
            function = sym $function,
        );)*
    };
}

hidden!(
    "malloc": c_malloc,
    "calloc": c_calloc,
    "posix_memalign": c_posix_memalign,
    "realloc": c_realloc,
    "free": c_free
);
