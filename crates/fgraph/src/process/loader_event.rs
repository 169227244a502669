//! Detects libraries that are loaded and unloaded while there are filters.
//!
//! Each time that the dynamic linker has mapped or unmapped libraries, it calls an empty function
//! of its own, so that debuggers can put a breakpoint there (`r_brk` in `<link.h>`). For us it is a
//! function like any other: while there is a filter its entry is patched, but its stub leads to
//! [`on_event`] instead of a relocated prologue.
//!
//! ```text
//!   dlopen: map -> event -> relocate -> constructors
//!                    |
//!                    the filters are applied to what is new
//! ```
//!
//! The calling thread holds locks of the linker for which a thread that holds our lock may be
//! waiting, so it does not wait for ours. If our lock is held, its holder applies the filters at
//! the end.
//!
//! # Safety
//!
//! The unsafe code reads the linker's description for debuggers, which is never freed, and calls
//! the relocated prologue of its function.

use core::cell::Cell;
use core::ffi::{c_int, c_void};
use core::mem;
use core::ptr;
use core::sync::atomic::{AtomicBool, AtomicPtr, AtomicUsize, Ordering};
use std::sync::OnceLock;

use fgraph_core::replacement;

use super::linker;

/// The start of `struct r_debug` in `<link.h>`.
#[repr(C)]
struct Debug {
    version: c_int,
    map: *const c_void,
    breakpoint: usize,
    /// The linker's current action; 0 if it has finished.
    state: c_int,
}

/// Address of the linker's function; 0 if it is unknown.
static EVENT: AtomicUsize = AtomicUsize::new(0);
/// The linker's description for debuggers.
static DEBUG: AtomicPtr<Debug> = AtomicPtr::new(ptr::null_mut());
/// Address of the relocated prologue; 0 while it has no site.
static PROLOGUE: AtomicUsize = AtomicUsize::new(0);
/// True if libraries were loaded or unloaded, and the filters were not applied yet.
static PENDING: AtomicBool = AtomicBool::new(false);
/// Called in a thread that has just loaded or unloaded libraries.
static HANDLER: OnceLock<fn()> = OnceLock::new();

thread_local! {
    /// True while this thread is in the linker.
    static IN_EVENT: Cell<bool> = const { Cell::new(false) };
}

/// Finds the linker's function. `handler` is called when libraries were loaded or unloaded, in a
/// thread that may be in the dynamic linker.
pub(crate) fn find_event(handler: fn()) {
    // The first one stays: there is one control in a process.
    let _ = HANDLER.set(handler);
    let debug = linker::symbol(c"_r_debug").cast::<Debug>();
    // SAFETY: it belongs to the linker, and is complete since the program was started.
    if let Some(found) = unsafe { debug.as_ref() } {
        DEBUG.store(debug, Ordering::Relaxed);
        EVENT.store(found.breakpoint, Ordering::Relaxed);
        // SAFETY: without this function, libraries would be loaded and unloaded unnoticed.
        unsafe { replacement::set_must_run(found.breakpoint) };
    }
}

/// Returns the address of the function that is called when libraries are loaded or unloaded.
pub(crate) fn event() -> Option<usize> {
    match EVENT.load(Ordering::Relaxed) {
        0 => None,
        address => Some(address),
    }
}

/// Replaces the function's body, whose relocated prologue is at `prologue`. Returns the address at
/// which the stub continues instead.
pub(crate) fn take_place_of(prologue: usize) -> usize {
    PROLOGUE.store(prologue, Ordering::Release);
    on_event as *const () as usize
}

/// Returns true if the function at `address` is the one that was replaced.
pub(crate) fn is_event(address: usize) -> bool {
    PROLOGUE.load(Ordering::Relaxed) != 0 && event() == Some(address)
}

/// Returns true if this thread is loading libraries: new ones are not relocated yet, and the thread
/// must not wait for another one that is loading.
pub(crate) fn is_loading() -> bool {
    IN_EVENT.get()
}

/// Runs `work` as if this thread were loading libraries.
pub(crate) fn as_loading<R>(work: impl FnOnce() -> R) -> R {
    let outer = IN_EVENT.replace(true);
    let result = work();
    IN_EVENT.set(outer);
    result
}

extern "C" fn on_event() {
    // SAFETY: the relocated prologue of a function without arguments and result.
    unsafe {
        let prologue = PROLOGUE.load(Ordering::Acquire);
        mem::transmute::<usize, extern "C" fn()>(prologue)();
        // Set before and after the change. The linker writes it in this thread.
        if (&raw const (*DEBUG.load(Ordering::Relaxed)).state).read_volatile() != 0 {
            return;
        }
    }
    set_pending();
    if let Some(handler) = HANDLER.get() {
        as_loading(handler);
    }
}

/// Records that libraries were loaded or unloaded.
pub(crate) fn set_pending() {
    PENDING.store(true, Ordering::SeqCst);
}

/// Returns true, once, if libraries were loaded or unloaded.
pub(crate) fn take_pending() -> bool {
    PENDING.swap(false, Ordering::SeqCst)
}

/// Returns true if libraries were loaded or unloaded since [`take_pending`].
pub(crate) fn is_pending() -> bool {
    PENDING.load(Ordering::Acquire)
}
