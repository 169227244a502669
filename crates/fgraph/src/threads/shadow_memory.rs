//! Memory for shadow stacks, with the [return points](fgraph_core::points) of their frames.
//!
//! ```text
//!   arena      + 1 page    + 2 pages                   + span
//!   | file    | scratch   | state, frames | state, frames | ...  | points | points | points |
//! ```
//!
//! An arena is reserved at once, without rights, and handed out from its start. The return points
//! of a kind are a few pages of a shared memory file that are mapped again and again, so they take
//! address space but hardly any memory. They are executable, and never writable where the system
//! has memory files.
//!
//! Threads come here at their first traced call, so nothing allocates or waits. If two threads
//! reserve an arena at once, one of the two stays unused.
//!
//! # Safety
//!
//! The unsafe code makes and divides mappings of its own, which are never unmapped once they are
//! handed out.

use core::ffi::{CStr, c_void};
use core::ptr;
use core::sync::atomic::{AtomicI32, AtomicUsize, Ordering};

use fgraph_core::Fgraph;
use fgraph_core::points::{KINDS, SPANS};
use libc::{PROT_EXEC, PROT_NONE, PROT_READ, PROT_WRITE};

use crate::arch::cpu;
use crate::arch::trampoline::{Trampolines, points, symbol_file};
use crate::os::{self, PAGE, memory};
use crate::report::error::is_forbidden;

// SAFETY: this crate is the one runtime of the process.
static FGRAPH: &Fgraph = unsafe { fgraph_core::FGRAPH.get() };

/// Pages of an arena before the first shadow stack.
const HEADER: usize = 2 * PAGE;

/// Spans to try: a limit on the address space of the process may allow only a small one.
const SPANS_TO_TRY: [usize; 3] = [32 << 20, 8 << 20, 1 << 20];

/// The least and the most bytes of the pages of a kind of return points that all arenas map. The
/// least are enough for a state and a shadow stack of default size; the more, the fewer mappings a
/// larger one takes.
const MIN_MASTER: usize = 272 << 10;
const MAX_MASTER: usize = 4 << 20;

/// The bytes of these pages; 0 before they are made.
static MASTER: AtomicUsize = AtomicUsize::new(0);

/// The name of the memory file, by which another copy of this crate finds this one: `copies.rs`.
const NAME: &CStr = {
    let name = concat!("fgraph-points-", env!("CARGO_PKG_VERSION"), "\0");
    match CStr::from_bytes_with_nul(name.as_bytes()) {
        Ok(name) => name,
        Err(_) => panic!("a version has no zero byte"),
    }
};

/// The first unused address in the newest arena; 0 before the first one.
static NEXT: AtomicUsize = AtomicUsize::new(0);

/// The pages of return points, by kind; 0 before they are made.
static MASTERS: [AtomicUsize; KINDS] = [const { AtomicUsize::new(0) }; KINDS];

/// The error with which the system refused return points to the first thread; 0 if it did not. Then
/// nothing is patched, so no frame is ever used.
static REFUSED: AtomicI32 = AtomicI32::new(0);

/// Returns the error with which the system has refused return points for good.
pub(crate) fn refused() -> Option<i32> {
    match REFUSED.load(Ordering::Acquire) {
        0 => None,
        errno => Some(errno),
    }
}

/// Returns the most bytes that can be mapped at once.
pub(super) fn max_len() -> usize {
    match FGRAPH.points.span() {
        0 => usize::MAX,
        span => span - HEADER,
    }
}

/// Maps `len` bytes of zeros for a shadow stack, and what stands before it, with the return points
/// of all frames that they may hold. `None` if there is no memory.
pub(super) fn map(len: usize) -> Option<*mut u8> {
    let len = len.next_multiple_of(PAGE);
    let Some(place) = take(len) else {
        let errno = os::errno();
        // The thread that patches has a state already, and so an arena if there is any.
        let is_first = NEXT.load(Ordering::Acquire) == 0;
        if is_first && refused().is_none() && is_forbidden(errno) {
            REFUSED.store(errno, Ordering::Release);
        }
        refused()?;
        return memory::map(len);
    };
    let span = FGRAPH.points.span();
    let are_there = (0..KINDS).all(|kind| map_points(kind, place + (kind + 1) * span, len));
    if !are_there || !protect(place, len, PROT_READ | PROT_WRITE) {
        // Unless another thread has taken more meanwhile.
        let _ = NEXT.compare_exchange(place + len, place, Ordering::AcqRel, Ordering::Relaxed);
        return None;
    }
    Some(ptr::with_exposed_provenance_mut(place))
}

/// Takes `len` bytes from the newest arena, or from a new one.
fn take(len: usize) -> Option<usize> {
    loop {
        // Acquire pairs with the Release below: the arena and the span are known.
        let next = NEXT.load(Ordering::Acquire);
        let span = FGRAPH.points.span();
        if next != 0 {
            // An arena that is used up ends where its points begin.
            let used = (next - 1) % span + 1;
            if used + len <= span {
                let taken =
                    NEXT.compare_exchange(next, next + len, Ordering::AcqRel, Ordering::Relaxed);
                if taken.is_ok() {
                    return Some(next);
                }
                continue;
            }
            if HEADER + len > span {
                return None;
            }
        }
        let arena = add_arena(len)?;
        publish(next, arena);
    }
}

/// Makes a new arena in which `len` bytes find room.
fn add_arena(len: usize) -> Option<usize> {
    let least = (HEADER + len).next_power_of_two();
    let tried = SPANS_TO_TRY.into_iter().filter(|&span| span > least);
    let arena = match FGRAPH.points.span() {
        0 => tried.chain([least]).find_map(|span| {
            let arena = reserve(span)?;
            // SAFETY: a power of two, and small enough.
            if unsafe { points::set_span(span) } == span {
                return Some(arena);
            }
            unmap(arena, SPANS * span);
            reserve(FGRAPH.points.span())
        }),
        span => reserve(span),
    }?;
    if !protect(arena, HEADER, PROT_READ | PROT_WRITE) {
        return None;
    }
    let master = len.clamp(MIN_MASTER, MAX_MASTER);
    let _ = MASTER.compare_exchange(0, master, Ordering::AcqRel, Ordering::Relaxed);
    let header = ptr::with_exposed_provenance_mut::<u8>(arena);
    let file = symbol_file::of(arena);
    // SAFETY: two pages of the new arena, which nobody else knows.
    unsafe {
        ptr::copy_nonoverlapping(file.as_ptr(), header, file.len());
        let page = core::slice::from_raw_parts_mut(header.add(PAGE), PAGE);
        let are_made = (0..KINDS).all(|kind| make_master(kind, page));
        protect(arena, HEADER, PROT_READ);
        (are_made && FGRAPH.points.add(arena)).then_some(arena)
    }
}

/// Returns the addresses of the pages of return points, by kind; 0 before they are made.
pub(super) fn masters() -> [usize; KINDS] {
    core::array::from_fn(|kind| MASTERS[kind].load(Ordering::Acquire))
}

/// Makes the first arena, unless there is one.
pub(crate) fn prepare() {
    if NEXT.load(Ordering::Acquire) == 0
        && let Some(arena) = add_arena(MIN_MASTER)
    {
        publish(0, arena);
    }
}

/// Lets an arena be used after the one that is used up at `next`.
fn publish(next: usize, arena: usize) {
    let _ = NEXT.compare_exchange(next, arena + HEADER, Ordering::AcqRel, Ordering::Relaxed);
}

/// Reserves an arena of this span.
fn reserve(span: usize) -> Option<usize> {
    let len = SPANS * span;
    let all = memory::map_with(2 * len, PROT_NONE)?.expose_provenance();
    let arena = all.next_multiple_of(len);
    unmap(all, arena - all);
    unmap(arena + len, all + len - arena);
    Some(arena)
}

/// Makes the pages of a kind of return points, unless they are there; `page` is for any use.
fn make_master(kind: usize, page: &mut [u8]) -> bool {
    if MASTERS[kind].load(Ordering::Acquire) != 0 {
        return true;
    }
    // Calls that began in any trampoline return through the one that can check more.
    let trampolines = Trampolines::caller_checking_of(cpu::vector_bytes(), cpu::opmask_bytes());
    points::write(kind, &trampolines, page);
    let Some(pages) = map_file(page).or_else(|| map_shared(page)) else {
        return false;
    };
    let known = MASTERS[kind].compare_exchange(0, pages, Ordering::AcqRel, Ordering::Relaxed);
    if known.is_err() {
        unmap(pages, master_len());
    }
    true
}

/// Maps a memory file that has `page` again and again.
fn map_file(page: &[u8]) -> Option<usize> {
    const AT_ONCE: usize = 32;
    const MFD_EXEC: libc::c_uint = 0x10;
    let mut limit = libc::rlimit {
        rlim_cur: 0,
        rlim_max: 0,
    };
    // A longer file would be answered with a signal.
    // SAFETY: writes to the live local.
    let is_known = unsafe { libc::getrlimit(libc::RLIMIT_FSIZE, &mut limit) } == 0;
    if !is_known || limit.rlim_cur < master_len() as u64 {
        return None;
    }
    let parts = [libc::iovec {
        iov_base: page.as_ptr().cast_mut().cast(),
        iov_len: page.len(),
    }; AT_ONCE];
    let create = |flags: libc::c_uint| {
        // SAFETY: the name ends with a zero byte.
        unsafe { libc::syscall(libc::SYS_memfd_create, NAME.as_ptr(), flags) }
    };
    let file = match create(libc::MFD_CLOEXEC | MFD_EXEC) {
        // Kernels before 6.3 do not know the flag.
        file if file < 0 => create(libc::MFD_CLOEXEC),
        file => file,
    };
    if file < 0 {
        return None;
    }
    // Bare system calls: the C library's functions are cancellation points.
    let mut left = master_len() / PAGE;
    while left > 0 {
        let count = left.min(AT_ONCE);
        // SAFETY: reads the page as often as the kernel is told.
        let written = unsafe { libc::syscall(libc::SYS_writev, file, parts.as_ptr(), count) };
        if written != (count * PAGE) as libc::c_long {
            break;
        }
        left -= count;
    }
    let pages = (left == 0).then(|| map_pages(file as i32, PROT_READ | PROT_EXEC));
    // SAFETY: the new file.
    unsafe { libc::syscall(libc::SYS_close, file) };
    pages?
}

/// Does the same without a file.
fn map_shared(page: &[u8]) -> Option<usize> {
    let pages = map_pages(-1, PROT_READ | PROT_WRITE)?;
    fill(pages, master_len(), page);
    if !protect(pages, master_len(), PROT_READ | PROT_EXEC) {
        unmap(pages, master_len());
        return None;
    }
    Some(pages)
}

/// Returns the bytes of the pages of a kind of return points.
fn master_len() -> usize {
    MASTER.load(Ordering::Acquire)
}

fn map_pages(file: i32, protection: i32) -> Option<usize> {
    let anonymous = if file < 0 { libc::MAP_ANONYMOUS } else { 0 };
    let flags = libc::MAP_SHARED | anonymous;
    // SAFETY: a new mapping.
    let pages = unsafe { libc::mmap(ptr::null_mut(), master_len(), protection, flags, file, 0) };
    if pages == libc::MAP_FAILED {
        return None;
    }
    // Every thread has the same ones: they need not be in a core file.
    // SAFETY: our own mapping.
    unsafe { libc::madvise(pages, master_len(), libc::MADV_DONTDUMP) };
    Some(pages.expose_provenance())
}

/// Maps the return points of a kind at `place`, in an arena.
fn map_points(kind: usize, place: usize, len: usize) -> bool {
    let master = MASTERS[kind].load(Ordering::Acquire);
    (place..place + len)
        .step_by(master_len())
        .all(|place_of_part| {
            let part = master_len().min(place + len - place_of_part);
            // With the old size 0, the pages are mapped once more.
            // SAFETY: the place is in a part of an arena that this thread has taken.
            let mapped = unsafe {
                libc::mremap(
                    ptr::with_exposed_provenance_mut(master),
                    0,
                    part,
                    libc::MREMAP_MAYMOVE | libc::MREMAP_FIXED,
                    ptr::with_exposed_provenance_mut::<c_void>(place_of_part),
                )
            };
            mapped != libc::MAP_FAILED || copy_points(master, place_of_part, part)
        })
}

/// Copies return points, where a tool does not let pages be mapped again.
fn copy_points(master: usize, place: usize, len: usize) -> bool {
    if !protect(place, len, PROT_READ | PROT_WRITE) {
        return false;
    }
    // SAFETY: the pages are there, and never change; the place is as in `map_points`.
    let page =
        unsafe { core::slice::from_raw_parts(ptr::with_exposed_provenance::<u8>(master), PAGE) };
    fill(place, len, page);
    protect(place, len, PROT_READ | PROT_EXEC)
}

/// Fills `len` bytes at `place`, which are in our own mapping, with copies of `page`.
fn fill(place: usize, len: usize, page: &[u8]) {
    for at in (place..place + len).step_by(PAGE) {
        // SAFETY: whole pages that the caller has mapped for this.
        unsafe {
            ptr::copy_nonoverlapping(page.as_ptr(), ptr::with_exposed_provenance_mut(at), PAGE);
        }
    }
}

fn protect(place: usize, len: usize, protection: i32) -> bool {
    // SAFETY: a part of our own mapping.
    unsafe { libc::mprotect(ptr::with_exposed_provenance_mut(place), len, protection) == 0 }
}

fn unmap(place: usize, len: usize) {
    if len != 0 {
        // SAFETY: a part of a mapping that nobody else knows.
        unsafe { libc::munmap(ptr::with_exposed_provenance_mut(place), len) };
    }
}
