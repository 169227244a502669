//! Return points, for unwinders that do not ask fgraph for each frame.
//!
//! | unwinder | finds the description of return points |
//! |---|---|
//! | libgcc | asks: `registry.rs` |
//! | LLVM's libunwind, or a libgcc that cannot be redirected | is told of each arena |
//! | any other in the process | as that of a module: `dl_iterate_phdr` and `_dl_find_object` lead to fgraph |
//! | gdb | by its interface for just-in-time compilers |
//!
//! # Safety
//!
//! The unsafe code registers descriptions that are permanent, and changes a word of a library in
//! which the dynamic linker keeps functions of this type.

use core::ffi::{CStr, c_int, c_void};
use core::ptr;
use core::sync::atomic::{AtomicUsize, Ordering};

use fgraph_core::points::MAX_ARENAS;
use libc::dl_phdr_info;

use super::registry;
use super::slot::Replaced;
use crate::arch::cpu;
use crate::arch::trampoline::points;
use crate::arch::trampoline::symbol_file::{self, Place};
use crate::process::linker;
use crate::process::modules::LoadedModule;
use crate::threads::FGRAPH;

static PLACES: [Place; MAX_ARENAS] = [const { Place::new() }; MAX_ARENAS];
/// The number of arenas that are announced.
static ANNOUNCED: AtomicUsize = AtomicUsize::new(0);

/// Announces the arenas that are new. Only one thread at a time may call this.
pub(crate) fn announce() {
    let announced = ANNOUNCED.load(Ordering::Relaxed);
    let arenas = FGRAPH.points.arenas().zip(&PLACES);
    for (arena, place) in arenas.skip(announced) {
        // SAFETY: the arena's file is at its start, permanently; the place is a new one.
        unsafe { symbol_file::announce(arena, place) };
        registry::register_at(arena + symbol_file::FDE);
        ANNOUNCED.fetch_add(1, Ordering::Relaxed);
    }
}

/// A function through which unwinders find the description of code.
struct Finder {
    name: &'static CStr,
    /// The C library's function; 0 while it is unknown.
    next: AtomicUsize,
}

/// `dl_iterate_phdr`.
static ITERATE: Finder = Finder::new(c"dl_iterate_phdr");
/// `_dl_find_object`, since glibc 2.35.
static FIND: Finder = Finder::new(c"_dl_find_object");

impl Finder {
    const fn new(name: &'static CStr) -> Self {
        Self {
            name,
            next: AtomicUsize::new(0),
        }
    }

    /// Redirects a module to `ours`.
    ///
    /// # Safety
    ///
    /// It must be a function of the same type as the C library's.
    unsafe fn redirect(
        &self,
        ours: *const c_void,
        module: &LoadedModule,
        image: impl FnOnce() -> Option<&'static [u8]>,
    ) {
        let own = match self.next().addr() {
            0 => self.find(ours),
            known => known,
        };
        if own == 0 {
            return;
        }
        let called = Replaced {
            name: self.name,
            own,
            found: own,
            ours: ours.expose_provenance(),
        };
        // An unwinder in a module that cannot be redirected stops at a return point.
        // SAFETY: the caller guarantees the type; it is pinned.
        let _ = unsafe { called.redirect(module, image) };
    }

    /// Looks the C library's function up, and keeps `ours` loaded. Returns 0 if either fails.
    fn find(&self, ours: *const c_void) -> usize {
        let own = linker::symbol(self.name).expose_provenance();
        if own == 0 || !linker::pin(ours) {
            return 0;
        }
        // Release pairs with the Acquire in `next`.
        self.next.store(own, Ordering::Release);
        own
    }

    fn next(&self) -> *const () {
        ptr::with_exposed_provenance(self.next.load(Ordering::Acquire))
    }
}

/// Redirects a module that may contain an unwinder; `image` returns its file. This may wait for
/// libraries to be loaded.
pub(crate) fn redirect(module: &LoadedModule, mut image: impl FnMut() -> Option<&'static [u8]>) {
    // SAFETY: they are of the types of these functions.
    unsafe {
        ITERATE.redirect(iterate as *const c_void, module, &mut image);
        FIND.redirect(find_object as *const c_void, module, &mut image);
    }
}

type Callback = unsafe extern "C" fn(*mut dl_phdr_info, usize, *mut c_void) -> c_int;

/// Calls the C library's function. If an unwinder searches for a return point, calls its callback
/// for the arena as for a module. No other caller notices.
///
/// # Safety
///
/// The contract of `dl_iterate_phdr` holds.
#[unsafe(link_section = "fgraph_text")]
unsafe extern "C" fn iterate(callback: Callback, data: *mut c_void) -> c_int {
    type Iterate = unsafe extern "C" fn(Callback, *mut c_void) -> c_int;
    // SAFETY: the address was set before this is called, to such a function, and the caller keeps
    // its contract.
    let result =
        unsafe { core::mem::transmute::<*const (), Iterate>(ITERATE.next())(callback, data) };
    // SAFETY: the caller's frame is above this one.
    let Some(arena) = unsafe { searched(data) }.filter(|_| result == 0) else {
        return result;
    };
    // SAFETY: all fields may be zero.
    let mut info: dl_phdr_info = unsafe { core::mem::zeroed() };
    info.dlpi_name = c"fgraph".as_ptr();
    info.dlpi_phdr = ptr::with_exposed_provenance(arena + symbol_file::PROGRAM_HEADERS);
    info.dlpi_phnum = symbol_file::PROGRAM_HEADER_COUNT;
    // SAFETY: the caller guarantees the callback, which gets a live description.
    unsafe { callback(ptr::from_mut(&mut info), size_of::<dl_phdr_info>(), data) }
}

/// Returns the arena of the return point that an unwinder searches for: its address is one of the
/// first two words of the argument, which unwinders have on the stack.
///
/// # Safety
///
/// `data` must be the argument of the calling function, as its caller has passed it.
#[inline(always)]
unsafe fn searched(data: *mut c_void) -> Option<usize> {
    /// More than the frames of an unwinder take.
    const NEAR: usize = 16 << 10;
    let words = data.cast::<[usize; 2]>();
    let here = (&raw const words).addr();
    if words.addr().wrapping_sub(here) > NEAR || !words.is_aligned() {
        return None;
    }
    // SAFETY: the words are above this frame, and in or near that of a caller.
    let words = unsafe { words.read_volatile() };
    // One that is no unwinder's may be of a part of the stack that is not in use.
    cpu::of_any_memory(words)
        .into_iter()
        .find_map(|word| FGRAPH.points.arena_of(word))
}

/// The result of `_dl_find_object`.
#[repr(C)]
struct Found {
    flags: u64,
    start: usize,
    end: usize,
    link_map: usize,
    eh_frame: usize,
    reserved: [u64; 7],
}

/// Calls the C library's function, except for return points.
///
/// # Safety
///
/// The contract of `_dl_find_object` holds.
#[unsafe(link_section = "fgraph_text")]
unsafe extern "C" fn find_object(address: usize, found: *mut Found) -> c_int {
    type Find = unsafe extern "C" fn(usize, *mut Found) -> c_int;
    let Some(arena) = FGRAPH.points.arena_of(address) else {
        // SAFETY: as in `iterate`.
        return unsafe { core::mem::transmute::<*const (), Find>(FIND.next())(address, found) };
    };
    let code = points::of(arena);
    // SAFETY: the caller guarantees room for the result.
    unsafe {
        found.write(Found {
            flags: 0,
            start: code.start,
            end: code.end,
            link_map: 0,
            eh_frame: arena + symbol_file::EH_FRAME_HDR,
            reserved: [0; 7],
        });
    }
    0
}
