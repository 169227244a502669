//! Cancellations: fgraph learns of them before they are sent.
//!
//! While a user's callback runs, its thread must not be cancelled. Disabling cancellation at each
//! call costs more than the rest of the call, and many programs that name `pthread_cancel` never
//! call it. So modules that name it are redirected to fgraph, and cancellation is disabled from its
//! first call on:
//!
//! ```text
//!   cancelling thread                       any other thread
//!     say that threads are cancelled          mark itself as inside
//!     (heavy barrier)                         (light barrier)
//!     wait until all have been outside        cancelled? then hold it off
//!     pthread_cancel                          call users
//! ```
//!
//! Either a thread's hazard slot is stored before the heavy barrier: then the cancelling thread
//! waits for it. Or it is stored afterwards: then the thread sees the announcement. If a module
//! cannot be redirected, cancellation is disabled from the start.
//!
//! # Safety
//!
//! The unsafe code changes words of modules to a function of the right type, and calls the original
//! function.

use core::ffi::{CStr, c_int, c_void};
use core::mem;
use core::ptr;
use core::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::Duration;

use super::slot::Replaced;
use crate::arch::trampoline;
use crate::os::{self, membarrier};
use crate::process::linker;
use crate::process::modules::LoadedModule;
use crate::threads::{self, FGRAPH};

/// The function that cancels threads: a module that names it may cancel threads.
pub(crate) const FUNCTION: &CStr = c"pthread_cancel";

/// The time that the first cancellation waits for running callbacks: one of them may wait for the
/// cancelling thread.
const PATIENCE: Duration = Duration::from_secs(1);

/// The C library's function; 0 while it is unknown, and then no module is redirected.
static NEXT: AtomicUsize = AtomicUsize::new(0);

/// True if cancellation is disabled for all callbacks.
static IS_DISABLED: AtomicBool = AtomicBool::new(false);

/// Redirects a module that may cancel threads; `image` returns its file. Returns true on success.
/// This may wait for libraries to be loaded.
pub(crate) fn announce(
    module: &LoadedModule,
    image: impl FnOnce() -> Option<&'static [u8]>,
) -> bool {
    let own = linker::symbol(FUNCTION).expose_provenance();
    if own == 0 || !linker::pin(cancel as *const c_void) {
        return false;
    }
    // Release: pairs with the Acquire in `cancel`.
    let known = NEXT.compare_exchange(0, own, Ordering::Release, Ordering::Relaxed);
    if known.is_err_and(|known| known != own) {
        return false;
    }
    let called = Replaced {
        name: FUNCTION,
        own,
        found: own,
        ours: cancel as *const () as usize,
    };
    // SAFETY: it is of the same type, and pinned.
    unsafe { called.redirect(module, image) }
}

/// Replaces the C library's function.
///
/// # Safety
///
/// The contract of `pthread_cancel` holds.
#[unsafe(link_section = "fgraph_text")]
unsafe extern "C" fn cancel(thread: libc::pthread_t) -> c_int {
    // Acquire: a thread that does not wait comes after the one that has waited.
    if !IS_DISABLED.load(Ordering::Acquire) {
        let errno = os::errno();
        hold_off();
        // SAFETY: `errno` is the calling thread's own.
        unsafe { *libc::__errno_location() = errno };
    }
    // Acquire: pairs with the Release in `announce`.
    let next = ptr::with_exposed_provenance::<()>(NEXT.load(Ordering::Acquire));
    // SAFETY: the address was set before this is called, to the function that it replaces.
    unsafe {
        let next: unsafe extern "C" fn(libc::pthread_t) -> c_int = mem::transmute(next);
        next(thread)
    }
}

/// Disables cancellation, and waits until it is disabled for all running callbacks.
fn hold_off() {
    trampoline::announce_cancellation();
    // Without the barrier a thread may be about to call a user. It was available when fgraph
    // started.
    let _ = membarrier::fence();
    let until = os::now() + PATIENCE;
    let pause = |thread| {
        os::nap();
        threads::is_alive(thread) && os::now() < until
    };
    // SAFETY: `is_alive` reads only the owner.
    unsafe { FGRAPH.wait_for_callbacks(trampoline::current(), pause) };
    IS_DISABLED.store(true, Ordering::Release);
}
