//! Libraries that come and go while filters are in force.
//!
//! The dynamic linker calls a function of its own that does nothing, each time that it has mapped
//! or unmapped libraries, for debuggers to put a breakpoint there (`r_brk` in `<link.h>`). To us it
//! is a function as any other: while there is a filter its entry is patched, and what its stub
//! leads to is not a copy of its instructions but [`on_event`].
//!
//! ```text
//!   dlopen: map -> event -> relocate -> constructors
//!                    |
//!                    the filters are applied to what is new
//! ```
//!
//! The calling thread holds locks of the linker for which a thread that holds our lock may be
//! waiting, so it does not wait for ours: if that is taken, its holder applies the filters when it
//! is done.
//!
//! # Safety
//!
//! The unsafe code reads the linker's description for debuggers, which is never freed, and calls
//! the copy of its function.

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
    /// What the linker is about to do; 0 if it is done.
    state: c_int,
}

/// Address of the linker's function; 0 if it is not known.
static EVENT: AtomicUsize = AtomicUsize::new(0);
/// The linker's description.
static DEBUG: AtomicPtr<Debug> = AtomicPtr::new(ptr::null_mut());
/// Address of the copy of its instructions; 0 while it has no site.
static COPY: AtomicUsize = AtomicUsize::new(0);
/// Libraries came or went, and the filters have not been applied yet.
static PENDING: AtomicBool = AtomicBool::new(false);
/// What is called in a thread that has just loaded or unloaded libraries.
static HANDLER: OnceLock<fn()> = OnceLock::new();

thread_local! {
    /// This thread is in the linker.
    static IN_EVENT: Cell<bool> = const { Cell::new(false) };
}

/// Finds the linker's function. When libraries have come or gone, `handler` is called, in a thread
/// that may be in the dynamic linker.
pub(crate) fn find_event(handler: fn()) {
    // The first one stays: there is one control in a process.
    let _ = HANDLER.set(handler);
    let debug = linker::symbol(c"_r_debug").cast::<Debug>();
    // SAFETY: it is the linker's, and complete since the program was started.
    if let Some(found) = unsafe { debug.as_ref() } {
        DEBUG.store(debug, Ordering::Relaxed);
        EVENT.store(found.breakpoint, Ordering::Relaxed);
        // SAFETY: without it libraries would come and go unnoticed.
        unsafe { replacement::set_must_run(found.breakpoint) };
    }
}

/// Address of the function that is called when libraries come or go.
pub(crate) fn event() -> Option<usize> {
    match EVENT.load(Ordering::Relaxed) {
        0 => None,
        address => Some(address),
    }
}

/// Takes the place of the function's body, the copy of which is at `copy`. Returns where to go on
/// from the stub instead.
pub(crate) fn take_place_of(copy: usize) -> usize {
    COPY.store(copy, Ordering::Release);
    on_event as *const () as usize
}

/// Whether the function at `address` is the one whose place was taken.
pub(crate) fn is_event(address: usize) -> bool {
    COPY.load(Ordering::Relaxed) != 0 && event() == Some(address)
}

/// Whether this thread is in the middle of loading libraries: those that are new are not relocated
/// yet, and it waits for no other thread that is.
pub(crate) fn is_loading() -> bool {
    IN_EVENT.get()
}

/// Runs `work` as if this thread were in the middle of loading libraries.
pub(crate) fn as_loading<R>(work: impl FnOnce() -> R) -> R {
    let outer = IN_EVENT.replace(true);
    let result = work();
    IN_EVENT.set(outer);
    result
}

extern "C" fn on_event() {
    // SAFETY: the copy of a function that takes nothing and gives nothing.
    unsafe {
        let copy = COPY.load(Ordering::Acquire);
        mem::transmute::<usize, extern "C" fn()>(copy)();
        // Before and after the change. The linker writes it in this thread.
        if (&raw const (*DEBUG.load(Ordering::Relaxed)).state).read_volatile() != 0 {
            return;
        }
    }
    set_pending();
    if let Some(handler) = HANDLER.get() {
        as_loading(handler);
    }
}

/// Says that libraries came or went.
pub(crate) fn set_pending() {
    PENDING.store(true, Ordering::SeqCst);
}

/// Whether libraries came or went; says so once.
pub(crate) fn take_pending() -> bool {
    PENDING.swap(false, Ordering::SeqCst)
}

/// Whether libraries came or went since [`take_pending`].
pub(crate) fn is_pending() -> bool {
    PENDING.load(Ordering::Acquire)
}
